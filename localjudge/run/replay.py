"""A run's asks over again: the exact prompts of a record, and what came back, out of the completions it kept.

The judge's own kind makes the asks; nothing is asked of a model. An engine's key is a hash of the ask and of the
identity in run.json, so that no model is loaded to find a completion. Knows no pages.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from pydantic import ValidationError

from localjudge.engines.base import Ask, AskFailed, Completion, Message
from localjudge.engines.inprocess import ask_key, key_base
from localjudge.errors import LocalJudgeError
from localjudge.judge.spec import JudgeSpec
from localjudge.paths import cache_dir
from localjudge.records import Record
from localjudge.run.export import with_templates
from localjudge.run.runner import Asker, Settings, bound_kind, shelf_of


class Replay:
    """why_not: why there are no prompts to show, in a sentence; '' where there are."""

    def __init__(self, directory: Path, spec: JudgeSpec, run: Mapping[str, Any]) -> None:
        self._spec, self.why_not = spec, ""
        self._loop = asyncio.new_event_loop()
        # A loop of its own needs a thread of its own, should whoever looks have a loop running; and one at a time.
        self._thread = ThreadPoolExecutor(1)
        self._kept = _Kept([])
        try:
            self._spec = with_templates(directory, run)
            self._settings = Settings.model_validate(run["settings"])
            made_by = cast("Any", SimpleNamespace(**run["model"]))
            self._judge = bound_kind(self._spec, shelf_of(self._spec, made_by, self._settings, None))
        except ValidationError:
            self.why_not = "the prompts cannot be shown: the run was made with settings of another kind"
            return
        except LocalJudgeError as error:
            self.why_not = f"the prompts cannot be shown: {str(error).splitlines()[0]}"
            return
        engine = run.get("engine") or {}
        identities = [engine] if "identity" in engine else [one for one in engine.values() if one]
        self._kept = _Kept([one["identity"] for one in identities if "identity" in one])
        self._kept.open(directory / "completions.sqlite", cache_dir() / "completions.sqlite")
        plan = run.get("labels")
        self._plan = next(iter(plan.values())) if run.get("panel") and plan else plan

    def close(self) -> None:
        self._thread.shutdown()
        self._kept.shut()
        self._loop.close()

    def asks(self, record: Record) -> list[dict[str, Any]]:
        """Each ask: `messages` [[role, text, n]], where n characters of the first ask's message in the same place
        stand before the text; and, where they were kept, `completion` and `thought`. Of several samples the first;
        of a panel's the first member that kept it. An ask that is made of an earlier one's answer is there only if
        that was kept."""
        if self.why_not or not record.fields:
            return []
        return self._thread.submit(self._asked, record).result()

    def _asked(self, record: Record) -> list[dict[str, Any]]:
        told = self._kept.told = []
        judging = self._judge(self._spec, record, Asker(self._kept, None, self._settings), "", self._plan, None)
        with contextlib.suppress(AskFailed, LocalJudgeError, KeyError, ValueError):
            self._loop.run_until_complete(judging)
        return _without_what_is_the_same(told)


class _Kept:
    """An engine that has only what others answered, and writes down what it was asked."""

    concurrency = 1

    def __init__(self, identities: list[Mapping[str, Any]]) -> None:
        self._bases = [key_base(identity) for identity in identities]
        self._caches: list[sqlite3.Connection] = []
        self.told: list[dict[str, Any]] = []

    def open(self, *files: Path) -> None:
        for file in files:
            if file.is_file():
                with contextlib.suppress(sqlite3.Error):
                    uri = f"{file.resolve().as_uri()}?mode=ro"
                    self._caches.append(sqlite3.connect(uri, uri=True, check_same_thread=False))

    def shut(self) -> None:
        for cache in self._caches:
            cache.close()

    async def close(self) -> None: ...

    @property
    def identity(self) -> Mapping[str, Any]:
        return {}

    @property
    def provenance(self) -> Mapping[str, Any]:
        return {}

    def one_token(self, labels: Any) -> bool:
        return True

    def key(self, ask: Ask) -> str:
        return ""

    async def complete(self, ask: Ask) -> Completion:
        one: dict[str, Any] = {"messages": [[message.role, _shown(message)] for message in ask.messages]}
        self.told.append(one)
        completion = self._found(ask)
        if completion is None:
            raise AskFailed("engine_error", "its completion is not kept")
        if completion.text:
            one["completion"] = completion.text
        if completion.thought:
            one["thought"] = completion.thought
        return completion

    def _found(self, ask: Ask) -> Completion | None:
        for base in self._bases if self._caches else ():
            key = ask_key(ask, base)
            for cache in self._caches:
                with contextlib.suppress(sqlite3.Error, ValueError, TypeError):
                    row = cache.execute("SELECT value FROM completions WHERE key = ?", (key,)).fetchone()
                    if row:
                        return Completion(**json.loads(row[0]))
        return None


def _shown(message: Message) -> str:
    return "".join(part if isinstance(part, str) else f"[{part}]" for part in message.parts)


def _without_what_is_the_same(asks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    first = [text for _, text in asks[0]["messages"]] if asks else []
    for place, ask in enumerate(asks):
        messages = []
        for i, (role, text) in enumerate(ask["messages"]):
            n = _shared(first[i], text) if place and i < len(first) else 0
            messages.append([role, text[n:], n])
        ask["messages"] = messages
    return asks


def _shared(one: str, other: str) -> int:
    """How many characters they begin with alike."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
