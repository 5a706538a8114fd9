"""A suite: several judges over the same records, in one load of the engine.

Each judge's run is a run like any other, in a folder of its own below the suite's, resumed as such; the suite adds
what tells records apart, lends the engine, and has the results written (`suite_results`).
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import localjudge
from localjudge.engines.base import Ask, Completion, Engine
from localjudge.errors import LocalJudgeError, RecordsError, RunError
from localjudge.images import written
from localjudge.judge.suite import Suite
from localjudge.models import LocalModel, ServedModel
from localjudge.records import BadRecord, Record, read_records
from localjudge.run.runner import Run, Settings, check_model, check_sees, scan
from localjudge.run.store import RunDirectory, differences, write_atomically, writing
from localjudge.run.suite_results import Format, Placed, Results, write_checked, write_results

SHOWN = 20
"""Records that cannot be judged, shown in one message."""


def place_records(suite: Suite, records: Path, settings: Settings) -> Iterator[tuple[Placed, Record | None]]:
    """Where each record goes; with the record, unless nobody can tell what it is."""
    read = read_records(records, suite.inputs, mapping=settings.mapping, limit=settings.limit)
    for record in read:
        if isinstance(record, BadRecord):
            yield Placed(record.id, problem=f"{record.where}: {record.problem}"), None
            continue
        case, candidate = (_named(record.fields.get(name)) for name in ("case", "candidate"))
        try:
            takers = suite.takers(suite.kind_of(record.fields))
        except ValueError as error:
            yield Placed(record.id, case, candidate, problem=f"{record.where}: {error}"), None
            continue
        yield Placed(record.id, case, candidate, suite.category_of(takers), tuple(takers)), record


def _named(value: Any) -> str | None:
    return None if value is None else str(value)


class _Lent:
    """An engine that outlives the runs that it is lent to: closing it closes nothing."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self.concurrency = engine, engine.concurrency

    @property
    def identity(self) -> Mapping[str, Any]:
        return self._engine.identity

    @property
    def provenance(self) -> Mapping[str, Any]:
        return self._engine.provenance

    def one_token(self, labels: Sequence[str]) -> bool:
        return self._engine.one_token(labels)

    def key(self, ask: Ask) -> str:
        return self._engine.key(ask)

    async def complete(self, ask: Ask) -> Completion:
        return await self._engine.complete(ask)

    async def close(self) -> None:
        pass


def model_folder(directory: Path, model: str) -> Path:
    """Where a model's time stamps lie; its name, with what no file name takes replaced."""
    return directory / re.sub(r"[^\w.-]", "_", model)


@dataclass
class SuiteRun:
    """One sitting of a suite: from checked judges, model and records to a folder of results.

    directory: that of the model, whose folders are time stamps. The newest one that these judges, this model,
    records and settings made is gone on in, also when it is finished; else, or if `fresh`, a new one is begun.
    model: None to have only what code settles.
    """

    suite: Suite
    records: Path
    model: LocalModel | ServedModel | None
    directory: Path
    settings: Settings
    start_engine: Callable[[], Awaitable[Engine]] | None = None
    fresh: bool = False
    output_format: Format = "full"
    shared_cache: bool = True
    retry_failed: bool = False
    say: Callable[[str], None] = lambda text: None
    stopping: bool = field(default=False, init=False)
    _engine: Engine | None = field(default=None, init=False)
    _current: Run | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.output_format == "seed":
            if self.model is None:
                raise RunError("without a model there are no scores to write", where="--output-format seed")
            if not any(entry.seed for entry in self.suite.entries.values()):
                raise RunError(
                    f"the suite '{self.suite.spec.name}' declares no such format",
                    where="--output-format seed",
                    fix="give its judges a 'seed' in suite.yaml",
                )

    @property
    def judging(self) -> bool:
        """As of a run; between two runs too, as the engine is up."""
        return self._engine is not None

    def stop(self) -> None:
        self.stopping = True
        if self._current:
            self._current.stop()

    async def go(self) -> Results:
        """Judge what is not judged yet, by one judge after the other, then write the results. Raises
        LocalJudgeError; what is judged is kept."""
        made_by = self._made_by()
        folder = self._folder(made_by)
        held = RunDirectory(folder)
        try:
            placed = self._place(folder)
            if self.model is None:
                return write_checked(folder, self.suite, made_by, placed)
            try:
                for number, name in enumerate(self.suite.judges, 1):
                    taken = sum(name in one.judges for one in placed)
                    self.say(f"judge {number} of {len(self.suite.judges)}: {name} ({taken} records)")
                    if taken:
                        await self._judge(folder, name, self.model)
            finally:
                self._current = None
                engine, self._engine = self._engine, None
                if engine is not None:
                    await engine.close()
            return write_results(folder, self.suite, made_by, placed, self.output_format)
        finally:
            held.close()

    def _made_by(self) -> dict[str, Any]:
        """What decides the results. All that can be refused early is."""
        settings = self.settings
        if self.model is not None:
            for spec in self.suite.judges.values():
                check_model(spec, self.model, settings)
        every = next(iter(self.suite.judges.values())).model_copy(update={"inputs": self.suite.inputs})
        found = scan(self.records, every, settings)
        if self.model is not None:
            check_sees(self.model, found)
        if not settings.skip_invalid:
            places = place_records(self.suite, self.records, settings)
            lost = [one.problem for one, record in places if record is None]
            if lost:
                told = "\n  ".join(str(problem) for problem in lost[:SHOWN])
                more = f"\n  and {len(lost) - SHOWN} more" if len(lost) > SHOWN else ""
                raise RecordsError(
                    f"{len(lost)} of {found.total} records cannot be judged\n  {told}{more}",
                    fix="mend them, or judge the rest with --skip-invalid",
                )
        model = self.model
        return {
            "suite": {"name": self.suite.spec.name, "dispatch": self.suite.spec.dispatch},
            "judges": {
                name: {
                    "version": spec.version,
                    "digest": spec.digest,
                    "language": spec.language,
                    **self.suite.entries[name].model_dump(include={"category", "when", "beside"}),
                }
                for name, spec in self.suite.judges.items()
            },
            "model": model
            and {"name": model.name, "fingerprint": model.fingerprint, "chat_template": model.template_hash},
            "records": {"digest": found.digest, "total": found.total},
            "settings": settings.model_dump(),
        }

    def _folder(self, made_by: Mapping[str, Any]) -> Path:
        """The newest folder that the same made, else a new one."""
        made = sorted(self.directory.glob("*/suite.json"), reverse=True)
        newest: list[str] | None = None
        for file in made if not self.fresh else ():
            with contextlib.suppress(ValueError, AttributeError, KeyError):
                old = json.loads(file.read_text(encoding="utf-8"))
                changed = differences({key: old[key] for key in made_by}, made_by)
                if not changed:
                    self.say(f"going on in {file.parent} (--fresh begins anew)")
                    return file.parent
                newest = newest or changed
        if newest:
            self.say(f"{made[0].parent} was made otherwise ({newest[0]}): beginning anew")
        with writing(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            folder = self._new_folder()
        whole = {
            **made_by,
            "localjudge": localjudge.__version__,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "paths": {"records": str(self.records.resolve())},
        }
        write_atomically(folder / "suite.json", json.dumps(whole, ensure_ascii=False, indent=1) + "\n")
        return folder

    def _new_folder(self) -> Path:
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
        for name in (stamp, *(f"{stamp}-{i}" for i in range(2, 1000))):
            with contextlib.suppress(FileExistsError):
                (self.directory / name).mkdir()
                return self.directory / name
        raise RunError("a thousand runs have begun this second", where=str(self.directory))

    def _place(self, folder: Path) -> list[Placed]:
        """Write each judge its own records, which are the ones it takes; where every record went."""
        placed = []
        own = folder / "records"
        with writing(own), contextlib.ExitStack() as stack:
            own.mkdir(exist_ok=True)
            partial = {name: own / f".{name}.tmp" for name in self.suite.judges}
            files = {name: stack.enter_context(path.open("w", encoding="utf-8")) for name, path in partial.items()}
            for one, record in place_records(self.suite, self.records, self.settings):
                placed.append(one)
                for name in one.judges:
                    assert record is not None
                    line = json.dumps({**record.fields, "id": record.id}, ensure_ascii=False, default=written)
                    files[name].write(f"{line}\n")
        with writing(own):
            for name, path in partial.items():
                path.replace(own / f"{name}.jsonl")
        return placed

    async def _judge(self, folder: Path, name: str, model: LocalModel | ServedModel) -> None:
        async def lend() -> Engine:
            if self._engine is None:
                assert self.start_engine is not None
                self._engine = await self.start_engine()
            return _Lent(self._engine)

        self._current = Run(
            spec=self.suite.judges[name],
            records=folder / "records" / f"{name}.jsonl",
            model=model,
            directory=folder / "judges" / name,
            settings=self.settings.model_copy(update={"mapping": {}, "limit": None}),
            start_engine=lend,
            shared_cache=self.shared_cache,
            retry_failed=self.retry_failed,
            say=self.say,
        )
        try:
            await self._current.go()
        except LocalJudgeError as error:
            fix = "what is judged is kept, and the same command goes on; --fresh begins anew"
            raise type(error)(
                f"the suite's judge '{name}' stopped: {error.what}",
                where=error.where,
                fix=f"{error.fix}\n  {fix}" if error.fix else fix,
            ) from error
