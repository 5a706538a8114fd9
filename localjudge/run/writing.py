"""Checklists written ahead, without a response to grade, so that people can review them first."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from localjudge.engines.base import AskFailed, Engine
from localjudge.errors import JudgeError
from localjudge.judge.checklist import checklist_of, task_inputs, task_of
from localjudge.judge.items import Kept
from localjudge.judge.spec import JudgeSpec
from localjudge.models import LocalModel, ServedModel
from localjudge.paths import cache_dir
from localjudge.records import BadRecord, Record, read_records, scan_records
from localjudge.run.checklists import shared_folder
from localjudge.run.runner import Asker, Settings, check_model, judge_stream, shelf_of
from localjudge.run.store import CompletionCache


@dataclass
class Written:
    """kept: the checklists of the records' tasks, each once, in the order of writing. failed: a record's place and
    why its task has none. asks: that the model was put, and those of them that were answered already."""

    kept: list[Kept]
    failed: list[tuple[str, str]]
    asks: int
    reused: int


@dataclass
class WriteRun:
    """Write, or find, the checklist of each task of a file of records. judging, stop: as of a Run."""

    spec: JudgeSpec
    records: Path
    model: LocalModel | ServedModel
    settings: Settings
    start_engine: Callable[[], Awaitable[Engine]]
    judging: bool = field(default=False, init=False)
    stopping: bool = field(default=False, init=False)

    def stop(self) -> None:
        self.stopping = True

    async def go(self) -> Written:
        """Raises LocalJudgeError; lists that are written are kept."""
        if not self.spec.checklist:
            raise JudgeError(f"'{self.spec.name}' is a {self.spec.kind} judge, which writes no checklists")
        check_model(self.spec, self.model, self.settings)
        inputs = task_inputs(self.spec, reference=True)
        settings = self.settings
        found = scan_records(self.records, inputs, mapping=settings.mapping, limit=settings.limit)
        if found.bad and not settings.skip_invalid:
            bad = found.first_bad[0]
            raise JudgeError(
                bad.problem, where=bad.where, fix="mend it, or leave such records out with --skip-invalid"
            )
        written = Written([], [], 0, 0)
        tasks: dict[str, Kept | None] = {}
        with contextlib.closing(CompletionCache(cache_dir() / "completions.sqlite")) as cache:
            engine = await self.start_engine()
            self.judging = True
            shelf = shelf_of(self.spec, self.model, settings, shared_folder())

            async def write(record: Record | BadRecord) -> None:
                if isinstance(record, BadRecord):
                    written.failed.append((record.where, record.problem))
                    return
                asker = Asker(engine, cache, settings)
                key = shelf.key(task_of(self.spec, record.fields))
                try:
                    kept = await checklist_of(self.spec, record, asker, shelf)
                except AskFailed as failure:
                    if key not in tasks:
                        tasks[key] = None
                        written.failed.append((record.where, failure.why))
                else:
                    if key not in tasks:
                        tasks[key] = kept
                        written.kept.append(kept)
                finally:
                    written.asks += asker.usage.asks
                    written.reused += asker.usage.reused

            try:
                records = read_records(self.records, inputs, mapping=settings.mapping, limit=settings.limit)
                await judge_stream(write, records, lambda _: None, engine.concurrency)
            finally:
                await engine.close()
                self.judging = False
        return written
