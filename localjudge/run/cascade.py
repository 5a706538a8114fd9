"""A cascade: a small judge (the student) judges all records, and a large one (the teacher) those that it doubts.

Both are runs like any other, in members/<model> of the cascade's folder, resumed as such; the teacher's is over
escalated.jsonl, the doubtful records alone, which is written once the student has judged all. Says who decided each
record, and what that cost beside the teacher alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from localjudge.errors import EngineError, LocalJudgeError, ModelError, RunError
from localjudge.images import Picture
from localjudge.judge.reading import confidence
from localjudge.judge.scoring import vote
from localjudge.models import parameters_of
from localjudge.records import BadRecord, Record, read_records
from localjudge.report.summary import Cascade, Side, Summary, share
from localjudge.run.reports import write_reports
from localjudge.run.runner import CASCADE, PANEL, Run, write_summary
from localjudge.run.store import RunDirectory, VerdictsById, claim, read_verdicts, writing
from localjudge.verdict import Usage, Verdict

Doubt = Literal["failed", "inconsistent", "unsure", "not confident"]

ESCALATED = "escalated.jsonl"


def sureness(verdict: Verdict) -> float | None:
    """The probability of what was answered, of the least certain question (and order, where a pair's verdict has no
    probabilities of its own); None of a verdict without probabilities."""
    for told in ([verdict.answers], verdict.orders or []):
        sure = [confidence(answer) for answers in told for answer in answers.values() if answer.distribution]
        if sure:
            return min(sure)
    return None


def doubt(verdict: Verdict, below: float | None) -> Doubt | None:
    """Why a verdict is not to stand on its own, if it is not.

    Unsure is what the run marked so: little label mass, a tie, or less confidence than its calibration asks for.
    What is wrong with a record itself no other judge can mend.
    """
    if verdict.status == "invalid_record":
        return None
    if verdict.status != "ok":
        return "failed"
    if any(answer.value == "inconsistent" for answer in verdict.answers.values()) or _orders_disagree(verdict):
        return "inconsistent"
    if verdict.unsure:
        return "unsure"
    sure = sureness(verdict)
    return "not confident" if below is not None and sure is not None and sure < below else None


def _orders_disagree(verdict: Verdict) -> bool:
    """Whether a pair's two orders chose differently, though their probabilities may be averaged into a choice."""
    chosen = [order["preference"].value for order in verdict.orders or () if "preference" in order]
    return len(chosen) > 1 and vote(chosen) is None


def decided(student: Verdict, teacher: Verdict | None, cascade: str) -> Verdict:
    """The cascade's verdict out of its members'. Where the teacher could not judge what the student could, the
    student's stands, as unsure."""
    if teacher is None:
        verdict = student
    elif teacher.status == "ok" or student.status != "ok":
        verdict = teacher
    else:
        verdict = student.model_copy(update={"unsure": True})
    usage = student.usage + (teacher.usage if teacher else Usage())
    return verdict.model_copy(update={"decided_by": verdict.model, "model": cascade, "usage": usage})


def costs(student: Side, teacher: Side, records: int) -> tuple[float | None, float | None]:
    """Work and time of both, as shares of what the teacher alone would take for `records`: see `Cascade`."""
    if not teacher.judged or not records:
        return None, None
    alone = records / teacher.judged
    work = time = None
    if student.parameters and teacher.parameters and teacher.tokens:
        own, theirs = student.tokens * student.parameters, teacher.tokens * teacher.parameters
        work = (own + theirs) / (theirs * alone)
    if student.seconds is not None and teacher.seconds:
        time = (student.seconds + teacher.seconds) / (teacher.seconds * alone)
    return work, time


@dataclass
class CascadeRun:
    """A student's run, the teacher's as it would be over the same records, and what passes from one to the other.

    below: the confidence under which the student's verdict goes to the teacher; None to go by what is unsure alone.
    """

    student: Run
    teacher: Run
    directory: Path
    below: float | None = None
    say: Callable[[str], None] = lambda text: None
    stopping: bool = field(default=False, init=False)
    _current: Run | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.student.model.fingerprint == self.teacher.model.fingerprint:
            what = f"'{self.student.model.name}' is both the student and the teacher"
            raise RunError(what, where="--escalate-to", fix="give a larger model")
        if self.student.directory == self.teacher.directory:
            what = f"the student and the teacher would both be called '{self.student.directory.name}'"
            raise RunError(what, where="--escalate-to", fix="give one of the models' folders another name")

    @property
    def judging(self) -> bool:
        """As of a run: whether it is to be stopped by cancelling `go`."""
        return self._current is not None and self._current.judging

    def stop(self) -> None:
        self.stopping = True
        if self._current:
            self._current.stop()

    async def go(self) -> Summary:
        """Let the student judge what it has not judged yet, then the teacher what is in doubt; put both together.
        Raises LocalJudgeError; what both have judged is kept."""
        directory = RunDirectory(self.directory)
        try:
            self._claim()
            escalated = self.directory / ESCALATED
            # What failed in the student's run has gone to the teacher: it is the teacher's to try again.
            retry = self.student.retry_failed and not escalated.is_file()
            self.say(f"student: {self.student.model.name}")
            await self._let(dataclasses.replace(self.student, retry_failed=retry), "student")
            many = self._escalate(escalated)
            self.say(f"teacher: {self.teacher.model.name}, for {many} records in doubt")
            if many:
                settings = self.teacher.settings.model_copy(update={"mapping": {}, "limit": None})
                await self._let(dataclasses.replace(self.teacher, records=escalated, settings=settings), "teacher")
            return self._combine(directory, many)
        finally:
            directory.close()

    async def _let(self, run: Run, role: str) -> None:
        self._current = run
        try:
            await run.go()
        except (EngineError, ModelError) as error:
            kept = "what is judged is kept, and the same command goes on"
            raise type(error)(
                f"the cascade's {role} '{run.model.name}' stopped: {error.what}",
                where=error.where,
                fix=f"{error.fix}\n  {kept}" if error.fix else kept,
            ) from error
        finally:
            self._current = None

    @property
    def _judges(self) -> dict[str, Any]:
        return {
            "student": {self.student.model.name: self.student.model.fingerprint},
            "teacher": {self.teacher.model.name: self.teacher.model.fingerprint},
            "below": self.below,
        }

    def _claim(self) -> None:
        """Make the folder this cascade's. Raises RunError when it is another's, or that of one model."""
        file = self.directory / CASCADE
        if not file.is_file() and any((self.directory / name).is_file() for name in ("run.json", PANEL)):
            raise RunError("this folder holds another run", where=str(self.directory), fix="give another -o")
        fix = "give another -o (completions are shared, so that it is soon where this one was)"
        claim(file, self._judges, "another cascade's run", fix)

    def _escalate(self, file: Path) -> int:
        """Write the records in doubt, unless they are written; how many they are."""
        if file.is_file():
            with file.open("rb") as lines:
                return sum(1 for _ in lines)
        student, many, known, judged = self.student, 0, 0, 0
        temporary = file.with_name(f".{file.name}.tmp")
        with contextlib.closing(VerdictsById(student.directory)) as verdicts, writing(temporary):
            with temporary.open("w", encoding="utf-8") as lines:
                settings = student.settings
                for record in read_records(
                    student.records, student.spec.inputs, mapping=settings.mapping, limit=settings.limit
                ):
                    verdict = verdicts.get(record.id)
                    if verdict is None or isinstance(record, BadRecord):
                        continue
                    judged += verdict.status == "ok"
                    known += sureness(verdict) is not None
                    if doubt(verdict, self.below):
                        lines.write(as_line(record))
                        many += 1
            if self.below is not None and judged and not known:
                raise LocalJudgeError(
                    f"{student.model.name} gives no probabilities that could be below {self.below:g}",
                    where="--below",
                    fix="judge with --mode score",
                )
            temporary.replace(file)
        return many

    def _combine(self, directory: RunDirectory, many: int) -> Summary:
        student, teacher = self.student, self.teacher
        name = f"{student.model.name} > {teacher.model.name}"
        doubted: Counter[str] = Counter()
        by: Counter[str | None] = Counter()
        usage = {"student": Usage(), "teacher": Usage()}
        judgeable = 0
        temporary = directory.verdicts_file.with_name(".verdicts.jsonl.tmp")
        with contextlib.ExitStack() as stack:
            theirs = stack.enter_context(contextlib.closing(VerdictsById(teacher.directory))) if many else None
            stack.enter_context(writing(temporary))
            file = stack.enter_context(temporary.open("w", encoding="utf-8"))
            for own in read_verdicts(student.directory):
                why = doubt(own, self.below)
                other = theirs.get(own.id) if theirs and why else None
                verdict = decided(own, other, name)
                judgeable += own.status != "invalid_record"
                doubted.update([why] if why else [])
                by[verdict.decided_by] += verdict.status == "ok"
                usage["student"] += own.usage
                usage["teacher"] += other.usage if other else Usage()
                file.write(verdict.model_dump_json() + "\n")
        temporary.replace(directory.verdicts_file)
        runs = {"student": _read(student.directory), "teacher": _read(teacher.directory) if many else None}
        sides = {
            role: _side(run, member, by[member.model.name], usage[role])
            for (role, run), member in zip(runs.items(), (student, teacher), strict=True)
        }
        work, time = costs(sides["student"], sides["teacher"], judgeable)
        told = Cascade(
            **sides,
            below=self.below,
            doubted=dict(doubted.most_common()),
            escalated=share(many, judgeable),
            work=work,
            time=time,
        )
        first = runs["student"]
        assert first is not None
        fingerprint = json.dumps(self._judges, sort_keys=True)
        sessions = [session for run in runs.values() if run for session in run["sessions"]]
        seconds = sum(session["seconds"] for session in sessions)
        made = {role: run for role, run in runs.items() if run}
        run = {
            **first,
            "model": {"name": name, "fingerprint": hashlib.sha256(fingerprint.encode()).hexdigest()},
            "cascade": told.model_dump(),
            "engine": {role: run["engine"] for role, run in made.items()},
            "paths": {**first["paths"], "model": None},
            "sessions": [{"judged": first["records"]["total"], "seconds": round(seconds, 3)}],
        }
        directory.write_run(run)
        summary = write_summary(self.directory, student.spec, run)
        if student.spec.report:
            write_reports(self.directory, student.spec, run)
        return summary


def as_line(record: Record) -> str:
    """A record as a line of JSONL that is read as the same record, without any mapping. Pictures become text, so
    that they are the same wherever the file lies."""

    def told(value: Any) -> str:
        assert isinstance(value, Picture)
        return value.uri()

    return json.dumps({**record.fields, "id": record.id}, ensure_ascii=False, default=told) + "\n"


def _read(directory: Path) -> dict[str, Any]:
    with contextlib.closing(RunDirectory(directory)) as held:
        run = held.read_run()
    assert run is not None
    return run


def _side(run: Mapping[str, Any] | None, member: Run, own: int, usage: Usage) -> Side:
    return Side(
        model=member.model.name,
        judged=run["records"]["total"] if run else 0,
        decided=own,
        tokens=usage.prompt - usage.cached + usage.written,
        parameters=parameters_of(member.model),
        seconds=seconds_of(run, usage) if run else None,
    )


def seconds_of(run: Mapping[str, Any], usage: Usage) -> float | None:
    """How long a run's records took to judge, those of lost sittings as long as the others; None where answers came
    from earlier completions, since then nobody knows."""
    judged = sum(session["judged"] for session in run["sessions"])
    seconds = sum(session["seconds"] for session in run["sessions"])
    return float(seconds * run["records"]["total"] / judged) if judged and not usage.reused else None
