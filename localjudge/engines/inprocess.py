"""What the engines that hold a model themselves share: an ask becomes token ids and a budget, the ids that were
written become a completion. Knows nothing of how they are written."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, TypeVar

from localjudge import __version__
from localjudge.decoding.closing import Grammar
from localjudge.decoding.labels import MOST_TOKENS, LabelPlace, label_places, read_distributions, wanted_tokens
from localjudge.engines.base import Ask, AskFailed, Completion
from localjudge.engines.chat import ChatEncoder
from localjudge.engines.vision import Vision
from localjudge.errors import EngineError
from localjudge.model_files import read_json, weight_files
from localjudge.models import LocalModel, sees

T = TypeVar("T")

LONGEST_CONTEXT = 32_768
"""A judge's prompts seldom need more, and the cache of a longer context would crowd out other requests."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """An ask ready to be sent. budget: the most tokens to write, within the context, at least `grammar.least`."""

    prompt: list[int]
    grammar: Grammar
    budget: int
    places: list[LabelPlace]


def key_base(identity: Mapping[str, Any]) -> bytes:
    """What `ask_key` starts from. The version too: how a budget is shared out among texts is ours to change."""
    return json.dumps([__version__, identity], sort_keys=True).encode()


def ask_key(ask: Ask, base: bytes) -> str:
    """A hash of the ask and of what decides its answer beside it."""
    asked = [
        [message.content for message in ask.messages],
        ask.schema,
        ask.budget,
        ask.temperature,
        ask.seed if ask.temperature else 0,
        *([list(ask.labels)] if ask.labels else []),
        *([{"think": ask.think}] if ask.think else []),
    ]
    return hashlib.sha256(base + json.dumps(asked).encode()).hexdigest()


class AskCodec:
    """One model's asks into token ids and back, each schema compiled once.

    context: tokens of prompt and answer together. identity: all that decides an answer beside the ask.
    """

    def __init__(self, encoder: ChatEncoder, context: int, identity: Mapping[str, Any]) -> None:
        self.encoder, self.context = encoder, context
        self.vocabulary = encoder.vocabulary()
        self._grammars: dict[str, tuple[Grammar, list[LabelPlace]]] = {}
        self._compiling = threading.Lock()
        self._label_ids: dict[str, tuple[int, ...]] = {}
        self._key_base = key_base(identity)

    def key(self, ask: Ask) -> str:
        return ask_key(ask, self._key_base)

    def grammar(self, schema: Mapping[str, Any]) -> Grammar:
        """The schema compiled for this model; once a schema."""
        return self._compiled(schema)[0]

    def _compiled(self, schema: Mapping[str, Any]) -> tuple[Grammar, list[LabelPlace]]:
        key = json.dumps(schema)
        with self._compiling:
            if key not in self._grammars:
                grammar = Grammar(schema, self.vocabulary)
                self._grammars[key] = grammar, label_places(schema, grammar)
            return self._grammars[key]

    def label_ids(self, label: str) -> tuple[int, ...]:
        """The ids that write this label as the first word of an answer; none where it takes several tokens."""
        if label not in self._label_ids:
            self._label_ids[label] = self.encoder.label_ids(label)
        return self._label_ids[label]

    def one_token(self, labels: Sequence[str]) -> bool:
        ids = [self.label_ids(label) for label in labels]
        every = [token for tokens in ids for token in tokens]
        return all(ids) and len(set(every)) == len(every) <= MOST_TOKENS

    def thinking(self, ask: Ask) -> tuple[list[int], int]:
        """The prompt of the thought before the answer to `ask`, and how many tokens it may take, so that the answer
        still fits; 0 where it would not. Raises AskFailed."""
        if self.encoder.tags is None:
            raise AskFailed("engine_error", "this model has no tags to think between")
        prompt = self.encoder.encode(ask.messages, think=True)
        answer = 1 if ask.labels else ask.budget or self._compiled(ask.schema)[0].full
        ending = len(self.encoder.after_thought(()))
        return prompt, max(0, min(ask.think, self.context - len(prompt) - ending - answer))

    @property
    def thought_ends(self) -> list[int]:
        """The ids that end a thought: its closing tag, and any other control token."""
        return sorted(self.encoder.control_ids)

    def _prompt(self, ask: Ask, thought: Sequence[int] | None, whole: bool = True) -> list[int]:
        if thought is None:
            return self.encoder.encode(ask.messages, whole=whole)
        return self.encoder.encode(ask.messages, think=True, whole=whole) + self.encoder.after_thought(thought)

    def placeheld(self, ask: Ask, thought: Sequence[int] | None) -> list[int]:
        """The prompt with one placeholder for each picture, as vLLM takes it. Raises AskFailed."""
        return self._prompt(ask, thought, whole=False)

    def after(self, thought: Sequence[int], completion: Completion) -> Completion:
        """The completion of an ask that was answered after this thought."""
        text = b"".join(self.vocabulary.tokens[i] or b"" for i in thought if i < len(self.vocabulary.tokens))
        return dataclasses.replace(
            completion,
            thought=text.decode(errors="replace").strip(),
            prompt_tokens=(prompt := completion.prompt_tokens - len(self.encoder.after_thought(thought))),
            cached_tokens=min(completion.cached_tokens, prompt),
            written_tokens=completion.written_tokens + len(thought),
        )

    def label_prompt(self, ask: Ask, thought: Sequence[int] | None = None) -> list[int]:
        """The prompt of an ask for labels. Raises AskFailed."""
        prompt = self._prompt(ask, thought)
        if len(prompt) >= self.context:
            raise AskFailed(
                "too_long",
                f"the prompt takes {len(prompt)} tokens and the answer 1; the context holds {self.context}",
            )
        return prompt

    def reading(self, ask: Ask, prompt: list[int], logprobs: Mapping[int, float], cached: int = 0) -> Completion:
        """logprobs: token -> log-probability over the whole vocabulary, of the labels' ids at least."""
        likely = {
            label: math.fsum(math.exp(logprobs[token]) for token in self.label_ids(label) if token in logprobs)
            for label in ask.labels
        }
        mass = math.fsum(likely.values())
        if not mass > 0:
            raise AskFailed("engine_error", "the model gives none of the labels any probability")
        return Completion(
            text="",
            prompt_tokens=len(prompt),
            cached_tokens=cached,
            written_tokens=1,
            finish="labels",
            distributions={"": {label: p / mass for label, p in likely.items()}},
            mass=min(mass, 1.0),
        )

    def prepare(self, ask: Ask, thought: Sequence[int] | None = None) -> Prepared:
        """thought: the ids that the model thought before. Raises AskFailed, `too_long`, when the context, or the
        budget set, does not hold the least answer."""
        grammar, places = self._compiled(ask.schema)
        prompt = self._prompt(ask, thought)
        budget = min(ask.budget or grammar.full, self.context - len(prompt))
        if budget < grammar.least:
            if budget == ask.budget:
                raise AskFailed(
                    "too_long", f"the answer takes at least {grammar.least} tokens and may take {budget}"
                )
            raise AskFailed(
                "too_long",
                f"the prompt takes {len(prompt)} tokens and the answer at least {grammar.least}; "
                f"the context holds {self.context}",
            )
        return Prepared(prompt, grammar, budget, places)

    def label_tokens(self, prepared: Prepared) -> list[int]:
        """The ids whose log-probabilities `completion` can use: few, or none."""
        return wanted_tokens(prepared.places)

    def completion(
        self,
        prepared: Prepared,
        written: Sequence[int],
        finish: str,
        cached: int = 0,
        logprobs: Sequence[Mapping[int, float]] = (),
    ) -> Completion:
        """written: the ids, the end of text among them where it was written. logprobs: for each, token ->
        log-probability over the legal tokens, of `label_tokens` at least. Raises AskFailed."""
        try:
            text = self.vocabulary.text(written)
        except UnicodeDecodeError as error:
            raise AskFailed("engine_error", f"the answer is not UTF-8: {error}") from None
        return Completion(
            text=text,
            prompt_tokens=len(prepared.prompt),
            cached_tokens=cached,
            written_tokens=len(written),
            finish=finish,
            distributions=read_distributions(prepared.places, prepared.grammar, prepared.budget, written, logprobs),
        )


async def aside(ask: Ask, work: Callable[[], T]) -> T:
    """What `work` gives; where there are pictures to be looked at, in a thread, since it takes a while."""
    return await asyncio.to_thread(work) if ask.pictures else work()


def vision_of(model: LocalModel, settings: Mapping[str, Any] | None = None) -> Vision | None:
    """The model's processor of pictures; None of one that takes none. Raises ModelError when it is broken."""
    return Vision(model.path, settings) if sees(model) else None


def check_torchvision() -> None:
    """Raise EngineError when torchvision is here but broken: transformers then fails far away, in riddles."""
    if find_spec("torchvision") is None:
        return
    try:
        import torchvision  # noqa: F401
    except Exception as error:
        raise EngineError(
            f"the installed torchvision does not fit this torch: {first_line(error)}",
            fix="pip uninstall -y torchvision torchaudio torchcodec (judging text needs none of them)",
        ) from None


def multiplies_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 itself. On one that does not, float32 is several times as fast."""
    import torch

    can: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(can.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def cpu_dtype(model: LocalModel) -> str:
    """What to compute in on a CPU: bfloat16, or float32 where that is faster, of weights that are not quantized and
    at twice their size take at most 30 % of the memory."""
    if multiplies_bfloat16() or "quantization_config" in read_json(model.path / "config.json"):
        return "bfloat16"
    weights = sum(file.stat().st_size for file in weight_files(model.path))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return "float32" if 2 * weights <= 0.3 * memory else "bfloat16"


def first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
