"""Rounds of distillation: the teacher labels what the student is least sure of, and the student is trained again on
all that is labelled, until it agrees with the teacher well enough or the rounds are over.

Each step is what one would do by hand, a run, a training set, a training, in a folder of its own, and goes on where
it was stopped. Agreement is measured on records that were held out of all rounds.

    held-out.jsonl, pool.jsonl    groups of records, parted once
    held-out/teacher, held-out/untrained
    round-N/records.jsonl         what was chosen; student/ (a run over the pool) is what it was chosen by
    round-N/teacher, data, training, held-out; round.json when all is done
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from localjudge.agreement.agree import Figure
from localjudge.distill.data import DataSettings, folded, folded_text, make, twins_of
from localjudge.distill.evaluate import accuracies
from localjudge.errors import LocalJudgeError, RecordsError, did_you_mean
from localjudge.judge.spec import JudgeSpec
from localjudge.models import LocalModel
from localjudge.records import BadRecord, Record, read_records
from localjudge.report.markdown import percent, table
from localjudge.run.cascade import as_line, doubt, sureness
from localjudge.run.runner import Run
from localjudge.run.store import RunDirectory, claim, read_verdicts, write_atomically, writing
from localjudge.verdict import Verdict


@dataclass(frozen=True)
class Rounds:
    """per_round: records to label a round; rounds: at most so many. wanted: agreement with the teacher to stop at.
    hold_out: at least so many records to measure on, by whole groups. group: the records' field that groups them;
    by default `group`, else the judge's first input. min_mass: what the teacher read with less label mass is not
    learnt from."""

    per_round: int = 500
    rounds: int = 4
    wanted: float | None = None
    hold_out: int = 300
    group: str | None = None
    min_mass: float = 0.5
    seed: int = 0


_MAY_CHANGE = ("rounds", "wanted", "min_mass")


class Round(BaseModel):
    """round.json. labelled: records in all rounds so far. agreement: with the teacher on what is held out, of the
    question with the least; low, high: its 95 % interval. unsure: the student's mean confidence in what was chosen.
    model: the trained student's folder; of round 0, the untrained one's name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    number: int
    labelled: int
    agreement: float
    low: float | None
    high: float | None
    unsure: float | None
    model: str


Runs = Callable[[str, Path, Path], Run]
"""A model's name or folder, records, the run's folder -> the run."""
Learn = Callable[[Path, Path], Path]
"""A training set's folder, the training's folder -> the trained model's; the untrained one's is known to it."""


def training(base: LocalModel, **settings: Any) -> tuple[Learn, dict[str, Any]]:
    """`distill train` of this student with these of its settings, and all of them. Raises LocalJudgeError."""
    try:
        from localjudge.distill.train import train
        from localjudge.distill.trainer import TrainSettings
    except ImportError as error:
        fix = "pip install 'localjudge[train]'"
        raise LocalJudgeError(f"training needs a package that is missing: {error.name}", fix=fix) from error
    try:
        how = TrainSettings(**settings)
    except ValidationError as error:
        first = error.errors()[0]
        where = f"--{str(first['loc'][0]).replace('_', '-')}"
        raise LocalJudgeError(f"{first['input']}: {first['msg'].lower()}", where=where) from None

    def learn(data: Path, folder: Path) -> Path:
        model = train(data, base, folder, how).model
        assert model is not None
        return model

    return learn, how.model_dump()


@dataclass
class RoundsRun:
    """run_of, learn: how a model judges, and how the student is trained. made_by: what else decides what comes of
    it."""

    spec: JudgeSpec
    records: Path
    mapping: Mapping[str, str]
    student: str
    teacher: str
    directory: Path
    how: Rounds
    run_of: Runs
    learn: Learn
    made_by: Mapping[str, Any] = field(default_factory=dict)
    say: Callable[[str], None] = lambda text: None
    stopping: bool = field(default=False, init=False)
    _current: Run | None = field(default=None, init=False)

    @property
    def judging(self) -> bool:
        """As of a run."""
        return self._current is not None and self._current.judging

    def stop(self) -> None:
        self.stopping = True
        if self._current:
            self._current.stop()

    async def go(self) -> list[Round]:
        """All rounds, the untrained student's figures first. Raises LocalJudgeError; what is done is kept."""
        held = RunDirectory(self.directory)
        try:
            self._claim()
            self._part()
            labels = await self._judge(self.teacher, "held-out.jsonl", "held-out/teacher")
            found = [await self._untrained(labels)]
            for number in range(1, self.how.rounds + 1):
                if self._enough(found[-1]):
                    break
                told = await self._round(number, found[-1], labels)
                if told is None:
                    self.say("the pool is used up")
                    break
                found.append(told)
                self._tell(found)
            return found
        finally:
            held.close()

    def _enough(self, last: Round) -> bool:
        return last.number > 0 and self.how.wanted is not None and last.agreement >= self.how.wanted

    def _claim(self) -> None:
        file = self.directory / "rounds.json"
        made_by = {
            "judge": self.spec.digest,
            "records": str(self.records.resolve()),
            "student": self.student,
            "teacher": self.teacher,
            # More rounds, another agreement or learning from more may be asked of the same folder.
            "how": {key: value for key, value in asdict(self.how).items() if key not in _MAY_CHANGE},
            **self.made_by,
        }
        if not (self.directory / "pool.jsonl").is_file():
            file.unlink(missing_ok=True)  # nothing was begun by it
        claim(file, made_by, "other rounds", "give another -o, or go on with what began them")

    def _part(self) -> None:
        """Write held-out.jsonl and pool.jsonl, unless they are there: groups in an order drawn by hash, and in the
        pool no text that is all but the same as one held out."""
        pool, held_out = self.directory / "pool.jsonl", self.directory / "held-out.jsonl"
        if pool.is_file():
            return
        groups: dict[str, list[tuple[str, str]]] = {}
        for record in self._read(self.records, self.mapping):
            groups.setdefault(self._group(record), []).append((as_line(record), folded(self.spec, record)))
        drawn = sorted(groups, key=lambda name: hashlib.sha256(f"{self.how.seed}\0{name}".encode()).digest())
        held: list[tuple[str, str]] = []
        rest: list[tuple[str, str]] = []
        for name in drawn:
            (held if len(held) < self.how.hold_out else rest).extend(groups[name])
        twins = twins_of({text for _, text in rest}, {text for _, text in held}, DataSettings().near)
        if many := sum(text in twins for _, text in rest):
            self.say(f"left out {many}: all but the same is held out too")
            rest = [told for told in rest if told[1] not in twins]
        if not rest:
            raise RecordsError(
                f"{len(held)} records are too few to hold {self.how.hold_out} out of",
                where=str(self.records),
                fix="give more records, or a smaller --hold-out",
            )
        write_atomically(held_out, "".join(line for line, _ in held))
        write_atomically(pool, "".join(line for line, _ in rest))

    def _read(self, path: Path, mapping: Mapping[str, str] | None = None) -> Iterator[Record]:
        for record in read_records(path, self.spec.inputs, mapping=mapping or {}):
            if not isinstance(record, BadRecord):
                yield record

    def _group(self, record: Record) -> str:
        if self.how.group and self.how.group not in record.fields:
            what, fix = f"the record has no field '{self.how.group}'", did_you_mean(self.how.group, record.fields)
            raise RecordsError(what, where=record.where, fix=fix)
        value = record.fields.get(self.how.group or "group")
        if value is None:
            value = record.fields.get(self.spec.inputs[0].name)
        return folded_text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))

    async def _judge(self, model: str, records: str, folder: str) -> Path:
        self._current = self.run_of(model, self.directory / records, self.directory / folder)
        try:
            await self._current.go()
            return self._current.directory
        finally:
            self._current = None

    def _agreement(self, student: Path, teacher: Path, labels: Path) -> Figure:
        each = accuracies(student, teacher, labels, self.how.seed)
        return min(each, key=lambda figure: figure.value if figure.value is not None else 0.0)

    async def _untrained(self, labels: Path) -> Round:
        file = self.directory / "held-out" / "round.json"
        if file.is_file():
            return Round.model_validate_json(file.read_bytes())
        judged = await self._judge(self.student, "held-out.jsonl", "held-out/untrained")
        figure = self._agreement(judged, labels, self.directory / "held-out" / "teacher-labels.jsonl")
        return self._keep(file, 0, 0, figure, None, self.student)

    def _keep(
        self, file: Path, number: int, labelled: int, figure: Figure, unsure: float | None, model: str
    ) -> Round:
        told = Round(
            number=number,
            labelled=labelled,
            agreement=figure.value or 0.0,
            low=figure.low,
            high=figure.high,
            unsure=unsure,
            model=model,
        )
        write_atomically(file, told.model_dump_json(indent=1) + "\n")
        self.say(f"round {number}: {labelled} records labelled, agreement {percent(told.agreement)}")
        return told

    async def _round(self, number: int, last: Round, labels: Path) -> Round | None:
        """One round; None where nothing is left to label."""
        name = f"round-{number}"
        folder = self.directory / name
        if (folder / "round.json").is_file():
            return Round.model_validate_json((folder / "round.json").read_bytes())
        with writing(folder):
            folder.mkdir(exist_ok=True)
        if not (folder / "records.jsonl").is_file():
            await self._choose(number, last, folder)
        if not (folder / "records.jsonl").is_file():
            return None
        chosen = {record.id for record in self._read(folder / "records.jsonl")}
        await self._judge(self.teacher, f"{name}/records.jsonl", f"{name}/teacher")
        data = folder / "data"
        if not (data / "recipe.json").is_file():
            runs = [self.directory / f"round-{n}" / "teacher" for n in range(1, number + 1)]
            settings = DataSettings(
                group=self.how.group, dev=0.1, test=0.0, seed=self.how.seed, min_mass=self.how.min_mass
            )
            make(runs, data, settings, judge=self.spec, force=True)
        labelled = last.labelled + len(chosen)
        self.say(f"round {number}: training on {labelled} records")
        model = self.learn(data, folder / "training")
        judged = await self._judge(str(model), "held-out.jsonl", f"{name}/held-out")
        figure = self._agreement(judged, labels, folder / "teacher-labels.jsonl")
        certain = [sureness(verdict) for verdict in self._chosen_by(folder) if verdict.id in chosen]
        known = [sure for sure in certain if sure is not None]
        unsure = sum(known) / len(known) if known else None
        return self._keep(folder / "round.json", number, labelled, figure, unsure, str(model))

    def _chosen_by(self, folder: Path) -> Iterator[Verdict]:
        """The student's verdicts that a round's records were chosen by; none of the first."""
        return read_verdicts(folder / "student") if (folder / "student").is_dir() else iter(())

    async def _choose(self, number: int, last: Round, folder: Path) -> None:
        """Write the records to label: of those that no round has, the ones that the student doubts, then the ones
        it is least sure of; in the first round, when it knows nothing, any. Nothing where none is left."""
        done = {
            record.id
            for n in range(1, number)
            for record in self._read(self.directory / f"round-{n}" / "records.jsonl")
        }
        sure: dict[str, tuple[bool, float]] = {}
        if number > 1:
            await self._judge(last.model, "pool.jsonl", f"round-{number}/student")
            for verdict in self._chosen_by(folder):
                certain = sureness(verdict)
                sure[verdict.id] = (doubt(verdict, None) is None, 1.0 if certain is None else certain)
        # The pool's own order is drawn by hash, and ties keep it.
        left = [record for record in self._read(self.directory / "pool.jsonl") if record.id not in done]
        left.sort(key=lambda record: sure.get(record.id, (True, 0.0)))
        chosen = left[: self.how.per_round]
        if chosen:
            write_atomically(folder / "records.jsonl", "".join(map(as_line, chosen)))

    def _tell(self, found: Sequence[Round]) -> None:
        write_atomically(self.directory / "rounds.md", rounds_markdown(found))


def rounds_markdown(found: Sequence[Round]) -> str:
    """rounds.md: what each round came to."""
    rows = [
        [
            str(one.number),
            f"{one.labelled:,}",
            percent(one.agreement),
            "–" if one.low is None or one.high is None else f"{percent(one.low)} to {percent(one.high)}",
            "–" if one.unsure is None else f"{one.unsure:.3f}",
            one.model,
        ]
        for one in found
    ]
    header = ["round", "labelled", "agreement", "95 %", "confidence in what was chosen", "model"]
    return f"# Rounds\n\n{table(header, rows, range(5))}\n"
