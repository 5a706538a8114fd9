"""A server of one's own as the engine: `localjudge serve` with the full guarantee, or another's without it.

Which of the two it is, the server says itself, in a header of its answers that `serving` puts there. With
localjudge's own the model's folder is here as well: prompts are made here, token by token as in process, and sent
as token ids, so that a record's text can't become control tokens; the answer comes back as token ids, with the
labels' log-probabilities. How another's server is asked is in `foreign`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from localjudge.decoding import vllm_plugin
from localjudge.decoding.closing import Grammar
from localjudge.engines.base import Ask, AskFailed, Completion, Engine
from localjudge.engines.chat import ChatEncoder
from localjudge.engines.inprocess import AskCodec
from localjudge.engines.wire import (
    TRIES,
    Refused,
    Wire,
    check_arguments,
    check_url,
    client_options,
    pause,
    read,
    why_not,
)
from localjudge.errors import EngineError, did_you_mean
from localjudge.models import LocalModel, ServedModel

PROTOCOL = 1
"""What client and server must agree on: the marked schema, and what the header says."""

HEADER = "localjudge"
"""The header in which a server of ours says what it serves, as JSON: protocol; concurrency, the asks in flight that
keep it busy; identity, what decides its answers."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that was asked what it serves.

    model: on this disk with localjudge's own. served: its name there. greeting: what HEADER says, None of another's
    server. about: what else the server tells of itself. arguments: some of `wire.ARGUMENTS`.
    """

    url: str
    model: LocalModel | ServedModel
    served: str
    greeting: Mapping[str, Any] | None
    about: Mapping[str, Any]
    arguments: Mapping[str, Any]


def find_server(url: str, model: str, arguments: Mapping[str, Any] | None = None) -> Server:
    """Ask the server at `url`, once, what it serves. Waits for the answer.

    model: a folder or a card's name where the server is localjudge's own, else the name it is served under.
    Raises EngineError when the server does not answer as one should or serves something else, ModelError when the
    model is not on this disk.
    """
    options = client_options()
    url = check_url(url)
    given = check_arguments(arguments or {})
    import httpx

    with httpx.Client(**options) as client:
        try:
            response = client.get(f"{url}/models", timeout=30)
        except httpx.RequestError as error:
            raise why_not(error, url) from None
        try:
            found = read(response, url)
        except Refused as refusal:
            raise EngineError(f"the server refused to say what it serves: {refusal.message}", where=url) from None
        try:
            cards = {str(card["id"]): card for card in found["data"]}
        except (TypeError, KeyError):
            raise EngineError("/models does not list models: this is no OpenAI-compatible API", where=url) from None
        greeting = _greeting(response.headers, url)
        if greeting is not None:
            local = _same_model(model, greeting, url)
            served = greeting["identity"]["model"]
            if served not in cards:
                raise EngineError(
                    f"the server no longer serves {served}", where=url, fix=did_you_mean(served, cards)
                )
            return Server(url, local, served, greeting, _told(cards[served]), given)
        if model not in cards:
            raise EngineError(f"the server serves no '{model}'", where=url, fix=did_you_mean(model, cards))
        about = {**_told(cards[model]), **_vllm_version(client, url)}
    return Server(url, ServedModel(model), model, None, about, given)


def _greeting(headers: Mapping[str, str], url: str) -> dict[str, Any] | None:
    """What a server of localjudge's says of itself; None of another's. Raises EngineError for another protocol."""
    if HEADER not in headers:
        return None
    try:
        told: dict[str, Any] = json.loads(headers[HEADER])
        protocol = told["protocol"]
    except (ValueError, TypeError, KeyError):
        raise EngineError(f"the server's '{HEADER}' header is not what localjudge sends", where=url) from None
    if protocol != PROTOCOL:
        raise EngineError(
            f"the server speaks protocol {protocol} of localjudge, this is {PROTOCOL}",
            where=url,
            fix="install the same release of localjudge on both sides",
        )
    return told


def _same_model(name: str, greeting: Mapping[str, Any], url: str) -> LocalModel:
    """The model on this disk. Raises EngineError when the server holds other files than it."""
    from localjudge.models import find_model

    local = find_model(name)
    told = greeting["identity"]
    if told["model_fingerprint"] != local.fingerprint:
        other = f"{told['model']}, not {local.name}" if told["model"] != local.name else f"another {local.name}"
        raise EngineError(
            f"the server serves {other}: its files are {told['model_fingerprint'][:12]}…, those of {local.path} "
            f"are {local.fingerprint[:12]}…",
            where=url,
            fix=f"start it with: localjudge serve {local.path}",
        )
    return local


def _told(card: Mapping[str, Any]) -> dict[str, Any]:
    """What an entry of /models says beside the name, as far as it decides answers. root: vLLM's model; meta: what
    llama.cpp tells of its file."""
    known = ("owned_by", "max_model_len", "root", "meta")
    return {key: card[key] for key in known if card.get(key) is not None}


def _vllm_version(client: Any, url: str) -> dict[str, str]:
    """The version of a vLLM server, which it tells beside its API; nothing of another."""
    import httpx

    try:
        return {"vllm": str(client.get(f"{url.removesuffix('/v1')}/version", timeout=10).json()["version"])}
    except (httpx.RequestError, ValueError, TypeError, KeyError):
        return {}


async def start_server_engine(server: Server) -> Engine:
    """The engine for either kind of server. Raises EngineError and ModelError."""
    if server.greeting is not None:
        return ServerEngine(server)
    from localjudge.engines.foreign import ForeignEngine

    return await ForeignEngine.start(server)


class ServerEngine:
    """A server that `localjudge serve` started. Make it on the loop that is to use it; `close` it in the end."""

    def __init__(self, server: Server) -> None:
        """Raises ModelError when the model's tokenizer does not work, EngineError when transformers is not here."""
        if find_spec("transformers") is None:
            raise EngineError("transformers is not installed", fix="pip install 'localjudge[server]'")
        assert isinstance(server.model, LocalModel) and server.greeting is not None
        self._server, self._identity_there = server, server.greeting["identity"]
        self.context: int = server.about["max_model_len"]
        self.concurrency: int = server.arguments.get("concurrency", server.greeting["concurrency"])
        encoder = ChatEncoder(server.model.path)
        self._identity = {
            "engine": "server",
            "kind": "localjudge",
            **self._identity_there,
            "context": self.context,
            "client_versions": {name: version(name) for name in ("transformers", "tokenizers")},
        }
        self._codec = AskCodec(encoder, self.context, self._identity)
        self._wire = Wire(server.url, server.arguments, self._still_the_same)

    def _still_the_same(self, headers: Mapping[str, str]) -> None:
        """A server may be started anew while a run goes on: see that it holds what it held."""
        greeting = _greeting(headers, self._server.url)
        if greeting is None or greeting["identity"] != self._identity_there:
            raise EngineError(
                "the server was replaced by one with another model, version or arguments",
                where=self._server.url,
                fix="start it as it was and run the same command: finished verdicts are kept",
            )

    @property
    def identity(self) -> Mapping[str, Any]:
        return self._identity

    @property
    def provenance(self) -> Mapping[str, Any]:
        return {"url": self._server.url, "arguments": dict(self._server.arguments)}

    def key(self, ask: Ask) -> str:
        return self._codec.key(ask)

    def grammar(self, schema: Mapping[str, Any]) -> Grammar:
        """The schema compiled for this model; once a schema."""
        return self._codec.grammar(schema)

    def one_token(self, labels: Sequence[str]) -> bool:
        return self._codec.one_token(labels)

    async def complete(self, ask: Ask) -> Completion:
        if ask.pictures:
            raise EngineError(
                "localjudge's own server takes token ids, and no pictures beside them",
                where=self._server.url,
                fix="judge pictures in process: leave --engine server out, or give --engine transformers",
            )
        thought = await self._think(ask) if ask.think else None
        completion = await (self._read(ask, thought) if ask.labels else self._write(ask, thought))
        return completion if thought is None else self._codec.after(thought, completion)

    async def _think(self, ask: Ask) -> list[int]:
        """What the model thinks before it answers, its end with it."""
        prompt, most = self._codec.thinking(ask)
        if not most:
            return []
        body = {**_drawn(ask), "prompt": prompt, "max_tokens": most, "stop_token_ids": self._codec.thought_ends}
        written, _, _, _ = await self._complete(body)
        return written

    async def _write(self, ask: Ask, thought: Sequence[int] | None) -> Completion:
        prepared = self._codec.prepare(ask, thought)
        body = {
            **_drawn(ask),
            "prompt": prepared.prompt,
            "max_tokens": prepared.budget,
            "structured_outputs": {"json": vllm_plugin.request_schema(dict(ask.schema), prepared.budget)},
            **_logprobs_of(self._codec.label_tokens(prepared)),
        }
        written, finish, cached, logprobs = await self._complete(body)
        return self._codec.completion(prepared, written, finish, cached, logprobs)

    async def _read(self, ask: Ask, thought: Sequence[int] | None) -> Completion:
        """The labels' probabilities after the prompt, in one token and without a grammar."""
        prompt = self._codec.label_prompt(ask, thought)
        tokens = [token for label in ask.labels for token in self._codec.label_ids(label)]
        body = {"prompt": prompt, "temperature": 0.0, "max_tokens": 1, **_logprobs_of(tokens)}
        _, _, cached, logprobs = await self._complete(body)
        if not logprobs:
            raise AskFailed("engine_error", "the server told no log-probabilities")
        return self._codec.reading(ask, prompt, logprobs[0], cached)

    async def _complete(self, body: Mapping[str, Any]) -> tuple[list[int], str, int, list[dict[int, float]]]:
        """The ids written, why they ended, how much of the prompt was cached, and the log-probabilities asked for,
        a mapping for each token written. Raises AskFailed and EngineError."""
        sent = {"model": self._server.served, "return_token_ids": True, "add_special_tokens": False, **body}
        for times in range(1, TRIES + 1):
            try:
                found = await self._wire.post("/completions", sent)
            except Refused as refusal:
                raise AskFailed("engine_error", f"the server refused the ask: {refusal.message}") from None
            written, finish, cached, logprobs = _unpacked(found)
            if finish in ("stop", "length"):
                return written, finish, cached, logprobs
            await asyncio.sleep(pause(times))  # 'abort' is what a server says that is being stopped
        raise AskFailed("engine_error", f"the server ended the answer with '{finish}'")

    async def close(self) -> None:
        await self._wire.close()


def _unpacked(found: Any) -> tuple[list[int], str, int, list[dict[int, float]]]:
    """What `_complete` gives, out of an answer to /completions. Raises AskFailed."""
    try:
        [choice] = found["choices"]
        cached = (found["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        told = (choice["logprobs"] or {}).get("top_logprobs") or []
        logprobs = [{int(name.removeprefix("token_id:")): p for name, p in place.items()} for place in told]
        return [int(token) for token in choice["token_ids"]], str(choice["finish_reason"]), int(cached), logprobs
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise AskFailed("engine_error", f"the server's answer is not what vLLM sends: {error!r}") from None


def _drawn(ask: Ask) -> dict[str, Any]:
    return {"temperature": ask.temperature, "seed": ask.seed if ask.temperature else None}


def _logprobs_of(tokens: Sequence[int]) -> dict[str, Any]:
    """What makes vLLM's server tell exactly these tokens' log-probabilities, by their ids."""
    if not tokens:
        return {}
    return {"logprobs": 1, "logprob_token_ids": list(tokens), "return_tokens_as_token_ids": True}
