"""An engine without a model: its answers follow from a hash of the ask. For arithmetic and failure cases only.

It is honest in what runs go by: the same key gives the same answer, every setting that changes an answer is in the
key and in the identity, and it counts what it was really asked.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from localjudge.engines.base import Ask, AskFailed, Completion
from localjudge.errors import EngineError
from localjudge.models import LocalModel

WORDS = ("true", "false", "勉强", "claim", "é", "because", "\U0001f642", "rests", "on", "nothing")


def scripted_model(path: Path, **changed: Any) -> LocalModel:
    """A model that the scripted engine can stand for. changed: other fields of LocalModel."""
    fields: dict[str, Any] = {
        "name": "scripted",
        "path": path,
        "card": None,
        "context": 2048,
        "fingerprint": hashlib.sha256(b"weights").hexdigest(),
        "template_hash": hashlib.sha256(b"template").hexdigest(),
        "architecture": "ScriptedForCausalLM",
        "vision": False,
    }
    return LocalModel(**{**fields, **changed})


def write_tokenizer(path: Path) -> None:
    """A tokenizer of one token a byte, for what is said of a model's tokens before its engine starts."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = [byte for byte in range(256) if byte not in plain]
    characters = sorted([*plain, *range(256, 256 + len(shifted))])
    spec = {
        "model": {"type": "BPE", "vocab": {chr(c): i for i, c in enumerate(characters)}, "merges": []},
        "decoder": {"type": "ByteLevel"},
        "added_tokens": [{"id": 256, "content": "<end>", "special": True}],
    }
    (path / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
    (path / "tokenizer_config.json").write_text('{"eos_token": "<end>"}', encoding="utf-8")


def answer(schema: Mapping[str, Any], number: int) -> tuple[Any, int]:
    """A value that follows the schema, drawn from `number`; and what is left of that."""
    if schema.get("type") == "object":
        value = {}
        for key, inner in schema["properties"].items():
            value[key], number = answer(inner, number)
        return value, number
    if schema.get("type") == "array":
        number, length = divmod(number, 3)
        items = []
        for _ in range(length):
            item, number = answer(schema["items"], number)
            items.append(item)
        return items, number
    if "const" in schema:
        return schema["const"], number
    choices = schema.get("enum") or ([False, True] if schema["type"] == "boolean" else WORDS)
    number, place = divmod(number, len(choices))
    return choices[place], number


class ScriptedEngine:
    """See the module.

    delay: seconds an answer takes. fails: what goes wrong with an ask, if anything; by default nothing.
    dies_after: asks answered until the engine is dead. hangs: asks that are never answered. log: a file that gets
    the key of each ask as it is answered, so that it can be counted over processes that are killed.
    settings: what changes answers (in identity and keys); speed: what does not (in provenance alone).
    """

    def __init__(
        self,
        *,
        delay: float = 0.0,
        concurrency: int = 8,
        fails: Callable[[Ask], AskFailed | None] = lambda ask: None,
        hangs: Callable[[Ask], bool] = lambda ask: False,
        dies_after: int | None = None,
        log: Path | None = None,
        settings: Mapping[str, Any] | None = None,
        speed: Mapping[str, Any] | None = None,
    ) -> None:
        self.concurrency = concurrency
        self.delay, self.fails, self.hangs, self.dies_after = delay, fails, hangs, dies_after
        self.asked: Counter[str] = Counter()
        self.in_flight = self.most_in_flight = 0
        self.answered = self.closed = 0
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT) if log else None
        self._identity = {"engine": "scripted", "versions": {"scripted": "1"}, **(settings or {})}
        self._provenance = {"arguments": {"concurrency": concurrency, **(speed or {})}}
        self._key_base = json.dumps(self._identity, sort_keys=True).encode()

    @property
    def identity(self) -> Mapping[str, Any]:
        return self._identity

    @property
    def provenance(self) -> Mapping[str, Any]:
        return self._provenance

    def one_token(self, labels: Sequence[str]) -> bool:
        """As `write_tokenizer` has it: a token is a byte."""
        return len(set(labels)) == len(labels) and all(len(label.encode()) == 1 for label in labels)

    def key(self, ask: Ask) -> str:
        asked = [
            [message.content for message in ask.messages],
            ask.schema,
            ask.budget,
            ask.temperature,
            ask.seed if ask.temperature else 0,
            ask.labels,
        ]
        return hashlib.sha256(self._key_base + json.dumps(asked).encode()).hexdigest()

    async def complete(self, ask: Ask) -> Completion:
        if self.closed:
            raise EngineError("the scripted engine is closed")
        key = self.key(ask)
        self.asked[key] += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            if self.hangs(ask):
                await asyncio.Event().wait()
            await asyncio.sleep(self.delay)
        finally:
            self.in_flight -= 1
        if self.answered == self.dies_after:
            raise EngineError("the scripted engine has died")
        self.answered += 1
        if failure := self.fails(ask):
            raise failure
        if self._log is not None:
            os.write(self._log, key.encode() + b"\n")
        read = sum(len(message.text.split()) for message in ask.messages)
        if ask.labels:
            weights = [1 + key.count(digit) for digit in "0123456789abcdef"[: len(ask.labels)]]
            shares = {label: weight / sum(weights) for label, weight in zip(ask.labels, weights, strict=True)}
            return Completion("", read, read // 2, 1, "labels", {"": shares}, mass=1 - 1 / sum(weights))
        value, _ = answer(ask.schema, int(key, 16))
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return Completion(
            text=text, prompt_tokens=read, cached_tokens=read // 2, written_tokens=len(text), finish="stop"
        )

    async def close(self) -> None:
        self.closed += 1
