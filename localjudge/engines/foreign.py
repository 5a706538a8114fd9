"""Another's OpenAI-compatible server as the engine: stock vLLM, llama.cpp, SGLang, ...: without the guarantee.

It is asked with a JSON schema, and every answer is validated; one that is cut or does not follow the schema is
asked for again with twice the budget, twice at most, and is then `engine_error`. A budget that the server has no
room for beside the prompt is halved, twice at most, before the record is `too_long`. Quotas of texts hold as far as
the budget does. Which turns, control tokens and tools a record's text can feign is the server's affair: messages
are sent as they are, and nothing in them is neutralised. Pictures go with them, as data: URIs.

Labels are read from the server's list of the likeliest first tokens. It is short: a label that is not on it counts
as 0, so that the label mass is what the list shows, or less than the truth.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from localjudge.decoding.closing import Grammar
from localjudge.decoding.grammar import QUOTA, follows
from localjudge.decoding.vocabulary import Vocabulary
from localjudge.engines.base import Ask, AskFailed, Completion, openai_content
from localjudge.engines.inprocess import ask_key, key_base
from localjudge.engines.server import Server
from localjudge.engines.wire import Refused, Wire, origin
from localjudge.errors import EngineError

MOST = 20
"""Length of the list of likeliest tokens: the most that OpenAI's API gives, and vLLM by default."""

TIMES = 3
"""How often an answer is asked for until it is valid, each time with twice the budget."""

HALVINGS = 2
"""How often a budget is halved that does not fit beside the prompt."""

TOO_LONG = ("context_length_exceeded", "exceed_context_size", "input_tokens", "input_text")
"""What OpenAI's API, llama.cpp and (the last two) vLLM call a prompt that does not fit."""

LONG = "context length"
"""In the message of those that have no word for it: SGLang, and an older vLLM."""

NO_ROOM = "; the server has no room for more"

LIMIT = (
    f"read from the server's list of the {MOST} likeliest first tokens; a label that is not on it counts as 0, and "
    "mass is what the list shows"
)


class ForeignEngine:
    """A server that is not localjudge's own. Make it with `start`; `close` it in the end."""

    def __init__(self, server: Server, wire: Wire, manner: Mapping[str, Any]) -> None:
        """manner: how the server lets itself be asked; see `_find_manner`."""
        self._server, self._wire, self._manner = server, wire, manner
        self.concurrency: int = server.arguments.get("concurrency", 16)
        self._identity = {
            "engine": "server",
            "kind": "foreign",
            "model": server.served,
            **server.about,
            "manner": dict(manner),
        }
        # Not in the identity: a run may go on when the server has moved.
        self._key_base = key_base({**self._identity, "origin": origin(server.url)})
        told = server.about.get("max_model_len")
        self._most = told if isinstance(told, int) and told > 0 else None
        self._budgets: dict[str, int] = {}

    @classmethod
    async def start(cls, server: Server) -> ForeignEngine:
        """Try how the server lets itself be asked. Raises EngineError."""
        wire = Wire(server.url, server.arguments)
        try:
            return cls(server, wire, await _find_manner(server, wire))
        except BaseException:
            await wire.close()
            raise

    @property
    def identity(self) -> Mapping[str, Any]:
        return self._identity

    @property
    def provenance(self) -> Mapping[str, Any]:
        return {
            "url": self._server.url,
            "arguments": dict(self._server.arguments),
            "guarantee": "none: answers are validated, and asked for again when they do not follow the schema",
            "labels": LIMIT if self._manner["logprobs"] else "not to be had: the server tells no log-probabilities",
        }

    def one_token(self, labels: Sequence[str]) -> bool:
        """Without the server's tokenizer only of single letters and digits can this be said.

        Raises EngineError, since it is asked before labels are read, where the server tells no log-probabilities.
        """
        if not self._manner["logprobs"]:
            raise EngineError(
                "the server tells no log-probabilities, so that no labels can be read",
                where=self._server.url,
                fix="judge with --mode explain, or serve the model with: localjudge serve MODEL",
            )
        plain = all(len(label) == 1 and label.isascii() and label.isalnum() for label in labels)
        return plain and len(set(labels)) == len(labels) <= MOST

    def key(self, ask: Ask) -> str:
        return ask_key(ask, self._key_base)

    async def complete(self, ask: Ask) -> Completion:
        return await (self._read(ask) if ask.labels else self._write(ask))

    async def _write(self, ask: Ask) -> Completion:
        sent = self._capped(ask.budget or self._budget(ask.schema))
        answered = halved = 0
        why = full = ""
        while True:
            body = {
                "temperature": ask.temperature,
                "seed": ask.seed if ask.temperature else None,
                "max_tokens": sent,
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "strict": True, "schema": _without_quotas(ask.schema)},
                },
            }
            try:
                found = await self._ask(ask, body)
            except AskFailed as failure:
                if failure.status != "too_long":
                    raise
                if why:  # what does not fit is the greater budget
                    full = NO_ROOM
                    break
                if halved == HALVINGS or sent < 2:
                    raise
                halved, sent = halved + 1, sent // 2
                continue
            answered += 1
            text, finish = _text(found), str(found["choices"][0].get("finish_reason"))
            if follows(ask.schema, text):
                return Completion(text, *_usage(found), finish)
            why = f"is cut after {sent} tokens" if finish == "length" else "does not follow the schema"
            more = self._capped(2 * sent)
            if halved or more == sent:
                full = NO_ROOM
            if ask.budget or full or answered == TIMES:  # what the user has set is not exceeded
                break
            sent = more
        asked = f", asked for {answered} times with twice the budget each" if answered > 1 else ""
        raise AskFailed("engine_error", f"the server's answer {why}{asked}{full}")

    def _capped(self, budget: int) -> int:
        """vLLM refuses a budget beyond its whole context, and gives a lesser one what room there is."""
        return min(budget, self._most or budget)

    def _budget(self, schema: Mapping[str, Any]) -> int:
        """What the schema needs with its quotas used up, all else spelled a token a byte: no tokenizer is here."""
        key = repr(schema)
        if key not in self._budgets:
            self._budgets[key] = Grammar(schema, Vocabulary.of_bytes()).full
        return self._budgets[key]

    async def _read(self, ask: Ask) -> Completion:
        found = await self._ask(ask, {"temperature": 0.0, "max_tokens": 1, "logprobs": True, "top_logprobs": MOST})
        listed = _first_tokens(found)
        if listed is None:
            raise AskFailed("engine_error", "the server told no log-probabilities this time")
        likely = {
            label: math.fsum(math.exp(p) for token, p in listed if token in (label, f" {label}", f"▁{label}"))
            for label in ask.labels
        }
        mass = math.fsum(likely.values())
        if not mass > 0:
            raise AskFailed("engine_error", f"none of the labels is among the {len(listed)} likeliest first tokens")
        prompt, cached, written = _usage(found)
        told = {label: p / mass for label, p in likely.items()}
        return Completion("", prompt, cached, written, "labels", {"": told}, min(mass, 1.0))

    async def _ask(self, ask: Ask, body: Mapping[str, Any]) -> Any:
        """The server's answer, which holds a choice. Raises AskFailed and EngineError."""
        turns = [{"role": message.role, "content": openai_content(message)} for message in ask.messages]
        try:
            found = await self._wire.post(
                "/chat/completions", _request(self._server.served, turns, self._manner, body)
            )
        except Refused as refusal:
            long = any(word in refusal.code for word in TOO_LONG) or LONG in refusal.message
            raise AskFailed("too_long" if long else "engine_error", f"the server: {refusal.message}") from None
        try:
            message = found["choices"][0]["message"]
        except (KeyError, IndexError, TypeError) as error:
            raise AskFailed("engine_error", f"the server's answer holds no choice: {error!r}") from None
        if not isinstance(message, Mapping):
            raise AskFailed("engine_error", f"the server's answer holds no message but {message!r:.40}")
        return found

    async def close(self) -> None:
        await self._wire.close()


async def _find_manner(server: Server, wire: Wire) -> dict[str, Any]:
    """How the server lets itself be asked, tried out in one token each.

    system: it takes a system message; else that is put before the user's. thinking_switch: it takes the chat
    template's switch, to turn thinking off. logprobs: it tells the likeliest tokens. Raises EngineError when it
    answers in no manner.
    """
    turns = [{"role": "system", "content": "Answer."}, {"role": "user", "content": "A or B?"}]
    refusal = None
    for system, thinking_switch, logprobs in itertools.product((True, False), repeat=3):
        manner = {"system": system, "thinking_switch": thinking_switch, "logprobs": logprobs}
        body: dict[str, Any] = {"temperature": 0.0, "max_tokens": 1}
        if logprobs:
            body |= {"logprobs": True, "top_logprobs": MOST}
        try:
            found = await wire.post("/chat/completions", _request(server.served, turns, manner, body))
        except Refused as error:
            refusal = refusal or error
            continue
        except AskFailed as failure:
            raise EngineError(failure.why, where=server.url) from None
        return {**manner, "logprobs": logprobs and bool(_first_tokens(found))}
    assert refusal is not None
    raise EngineError(f"the server refuses to chat: {refusal.message}", where=server.url)


def _request(
    served: str, turns: Sequence[Mapping[str, Any]], manner: Mapping[str, Any], body: Mapping[str, Any]
) -> dict[str, Any]:
    if not manner["system"] and [turn["role"] for turn in turns[:2]] == ["system", "user"]:
        system, user = (turn["content"] for turn in turns[:2])
        whole = f"{system}\n\n{user}" if isinstance(user, str) else [{"type": "text", "text": system}, *user]
        first = {"role": "user", "content": whole}
        turns = [first, *turns[2:]]
    request = {"model": served, "messages": list(turns), **body}
    if manner["thinking_switch"]:
        request["chat_template_kwargs"] = {"enable_thinking": False}
    return {key: value for key, value in request.items() if value is not None}


def _without_quotas(part: Any) -> Any:
    if isinstance(part, Mapping):
        return {key: _without_quotas(value) for key, value in part.items() if key != QUOTA}
    return [_without_quotas(value) for value in part] if isinstance(part, list) else part


def _text(found: Any) -> str:
    return str(found["choices"][0]["message"].get("content") or "")


def _usage(found: Any) -> tuple[int, int, int]:
    """Tokens of the prompt, cached ones of these, and written; 0 where the server does not count. Raises AskFailed
    where it counts in no numbers."""
    usage = found.get("usage") or {}
    try:
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        return int(usage.get("prompt_tokens") or 0), int(cached or 0), int(usage.get("completion_tokens") or 0)
    except (ValueError, TypeError, AttributeError, OverflowError):
        raise AskFailed("engine_error", f"the server counts no tokens but says {usage!r:.80}") from None


def _first_tokens(found: Any) -> list[tuple[str, float]] | None:
    """The likeliest first tokens and their log-probabilities, as far as the server lists them. None where it does
    not, and where one is above 0, give or take rounding: no log-probability is."""
    try:
        [first, *_] = found["choices"][0]["logprobs"]["content"]
        listed = [(str(item["token"]), float(item["logprob"])) for item in first["top_logprobs"]]
    except (KeyError, IndexError, TypeError, ValueError):
        return None
    return listed if listed and all(p < 0.01 for _, p in listed) else None
