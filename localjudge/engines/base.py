"""What every engine takes and gives: an Ask in, a Completion out. Knows nothing of judges or records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from localjudge.images import Picture

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. Its text is data through and through: engines encode it with control tokens off, so that only the
    chat template's own text around it can open or close a turn.

    images: each picture and where in the text it stands, as an offset, in their order. No text can feign one.
    """

    role: Role
    text: str
    images: tuple[tuple[int, Picture], ...] = ()

    @property
    def content(self) -> list[Any]:
        """What tells this message from others, in JSON values."""
        placed = [[offset, picture.sha256] for offset, picture in self.images]
        return [self.role, self.text, *([placed] if placed else [])]

    @property
    def parts(self) -> list[str | Picture]:
        """The text up to each picture and after it, and the pictures between."""
        parts: list[str | Picture] = []
        done = 0
        for offset, picture in self.images:
            parts += [self.text[done:offset], picture]
            done = offset
        return [*parts, self.text[done:]]


def openai_content(message: Message) -> Any:
    """A message's content as OpenAI's API has it: text or, where there are pictures, a list of parts, each picture
    as a data: URI."""
    if not message.images:
        return message.text
    return [
        {"type": "image_url", "image_url": {"url": part.uri()}}
        if isinstance(part, Picture)
        else {"type": "text", "text": part}
        for part in message.parts
        if part
    ]


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to a model.

    schema: the JSON schema that the answer follows, in the subset of `decoding.grammar`; each free text
        carries its quota of tokens.
    budget: the most tokens to write; None is what the schema needs with every quota used up.
    labels: where there are any, nothing is written: the completion tells how likely each of these is as the first
        word of the answer, without a grammar. Each must be one token there (`Engine.one_token`).
    think: the most tokens of free thought that the model may put between its own tags before it answers.
    """

    messages: tuple[Message, ...]
    schema: Mapping[str, Any] = field(default_factory=dict)
    budget: int | None = None
    temperature: float = 0.0
    seed: int = 0
    labels: tuple[str, ...] = ()
    think: int = 0

    @property
    def pictures(self) -> list[Picture]:
        """All pictures of its messages, in their order."""
        return [picture for message in self.messages for _, picture in message.images]


@dataclass(frozen=True, slots=True)
class Completion:
    """What came back. Token counts: prompt (of which `cached` were not computed again) and written.

    finish: the engine's own word for why it ended. Nothing trusts it.
    distributions: question (or question.code of flags) -> label -> probability, for the labels that one token
        decided; they sum to 1. Of an ask for labels: the one distribution, under ''.
    mass: of an ask for labels, how much of the model's whole belief was on any of them.
    thought: what the model thought before; its tokens are among those written.
    """

    text: str
    prompt_tokens: int
    cached_tokens: int
    written_tokens: int
    finish: str
    distributions: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    mass: float | None = None
    thought: str = ""


class AskFailed(Exception):
    """This ask could not be answered; others can be. `incomplete`: some asks of several were. `invalid_record`: it
    could not even be put, as the record lacks what it is made of."""

    def __init__(
        self, status: Literal["too_long", "engine_error", "incomplete", "invalid_record"], why: str
    ) -> None:
        self.status, self.why = status, why
        super().__init__(why)


class Engine(Protocol):
    """Answers asks, many at once. `complete` raises AskFailed for one ask, EngineError when all is lost."""

    concurrency: int
    """How many asks in flight keep the engine busy."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """Engine, versions, model and every setting that can change an answer; JSON values only."""

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Every setting, those that only change speed too; JSON values only."""

    def one_token(self, labels: Sequence[str]) -> bool:
        """Whether each of these labels is one token as the first word of an answer, and another one for each."""

    def key(self, ask: Ask) -> str:
        """A hash of all that decides the answer to `ask`: the same key, the same completion."""

    async def complete(self, ask: Ask) -> Completion: ...

    async def close(self) -> None: ...
