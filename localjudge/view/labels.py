"""People's labels as they give them: what they are asked of a judge's verdicts, and the gold file that keeps it.

The file is JSON lines that are only ever added to, each forced to the disk before it is called saved:

    {"id": "r1", "polite": 4, "annotator": "ann", "time": "2026-12-01T10:00:00+00:00", "blind": true, ...}

What one says of a record last counts, and a line may take answers back, which it names in `withdrawn`. It is what
`agree` and `calibrate` take as a gold file. What a person has made of it by hand is read as theirs, or refused with
its line; it is never written over. Knows judges, not runs, and nothing of HTTP.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from localjudge.agreement.join import ANNOTATOR, WITHDRAWN
from localjudge.agreement.targets import Target, read_label, targets_of
from localjudge.errors import LocalJudgeError, RecordsError, RunError, did_you_mean
from localjudge.judge.questions import CANNOT, BandQuestion, ChoiceQuestion, FlagsQuestion, Question, ScoreQuestion
from localjudge.judge.spec import RED_LINES, RED_LINES_ASK, JudgeSpec
from localjudge.rows import shown

OURS = ("id", ANNOTATOR, "time", "blind", "picked", WITHDRAWN)
"""What a line says besides labels."""

LONGEST_NAME = 60
_PLACES = "123456789abcdefghijklmnopqrtvwyz"
"""Keys that choose by place: none of those that label.js has another use for."""
_WAIT = 10.0


class Refused(LocalJudgeError):
    """A label, or a name, that cannot be taken."""


# What is asked


@dataclass(frozen=True)
class Asked:
    """One thing to say of a record, a target of `agree`.

    how: 'one' of some labels, 'some' of them, or a 'number' between bounds. options: (label as it is kept, the key
    that chooses it, what it means). cannot: whether it may be said to be unjudgeable.
    """

    name: str
    ask: str
    how: str
    targets: tuple[Target, ...]
    options: tuple[tuple[Any, str, str], ...] = ()
    bounds: tuple[float, float] | None = None
    whole: bool = False
    cannot: bool = False

    def form(self) -> dict[str, Any]:
        """As the browser gets it."""
        options = [{"value": value, "key": key, "means": means} for value, key, means in self.options]
        return {
            "name": self.name,
            "ask": self.ask,
            "how": self.how,
            "options": options,
            "bounds": self.bounds,
            "whole": self.whole,
            "cannot": CANNOT if self.cannot else None,
        }

    def check(self, value: Any) -> None:
        """Raises ValueError for what is no answer to it."""
        if value == CANNOT and self.cannot:
            return
        if self.how == "some":
            if not isinstance(value, list):
                raise ValueError(f"{shown(value)} is no list of codes")
            codes = [target.code for target in self.targets]
            for code in value:
                if code not in codes:
                    raise ValueError(f"{shown(code)} is no code: {did_you_mean(str(code), codes)}")
            return
        if isinstance(value, list | dict):
            raise ValueError(f"{shown(value)} is not one label")
        number = read_label(self.targets[0], value, {})
        if self.whole and number != int(number):
            raise ValueError(f"{shown(value)} is no whole number")


def asked_of(spec: JudgeSpec, names: Sequence[str] = ()) -> list[Asked]:
    """What a person is asked: the judge's questions that have labels, and its red lines; or what `names` says, of
    all that `agree` can hold against people. Raises LocalJudgeError for a name that there is not, or that a line of
    the file needs for something else."""
    known = targets_of(spec)
    questions = {question.id: question for question in spec.questions}
    wanted = list(names) or [name for name in known if name in questions or name == RED_LINES]
    found = []
    for name in wanted or ["overall"]:
        if name not in known:
            raise LocalJudgeError(
                f"the judge {spec.name} has no question '{name}'", where="--question", fix=did_you_mean(name, known)
            )
        if name in OURS:
            raise LocalJudgeError(
                f"the question '{name}' of the judge {spec.name} is called as something else in a gold file is",
                where="--question",
                fix="name other questions to label",
            )
        found.append(_asked(spec, name, known[name], questions.get(name)))
    return found


def _asked(spec: JudgeSpec, name: str, targets: Sequence[Target], question: Question | None) -> Asked:
    first = targets[0]
    ask = question.ask.strip() if question else RED_LINES_ASK[spec.language] if name == RED_LINES else name
    cannot = bool(getattr(question, "cannot", False))
    means: Mapping[Any, str]
    if first.kind == "flag" and (len(targets) > 1 or name == first.question):
        means = question.codes if isinstance(question, FlagsQuestion) else {r.code: r.text for r in spec.red_lines}
        codes = [target.code for target in targets]
        options = tuple((code, _PLACES[i : i + 1], means.get(code, "")) for i, code in enumerate(codes))
        return Asked(name, ask, "some", tuple(targets), options)
    if first.kind in ("passed", "flag"):
        says = ((True, "y", ""), (False, "n", ""))
        return Asked(name, ask if first.kind == "passed" else f"{name}?", "one", tuple(targets), says)
    if first.kind == "overall":
        return Asked(name, ask, "number", tuple(targets), bounds=first.bounds)
    if isinstance(question, ScoreQuestion):
        low, high = question.bounds
        if high - low >= 9 and not 0 <= low <= high <= 9:
            return Asked(name, ask, "number", tuple(targets), (), first.bounds, whole=True, cannot=cannot)
        means = {point: question.anchors.get(point, "") for point in question.labels}
    elif isinstance(question, BandQuestion):
        bands = question.options.items()
        means = {label: f"{band.range[0]:g}-{band.range[1]:g}. {band.text}".strip() for label, band in bands}
    else:
        options_of = question.options if isinstance(question, ChoiceQuestion) else {}
        means = {label: options_of.get(label, "") for label in first.labels}
    keys = _keys(list(means))
    options = tuple((label, key, meaning) for (label, meaning), key in zip(means.items(), keys, strict=True))
    whole = isinstance(question, ScoreQuestion)
    return Asked(name, ask, "one", tuple(targets), options, whole=whole, cannot=cannot)


def _keys(labels: Sequence[Any]) -> list[str]:
    """The key of each label: itself or its first letter where that is plain, else its place."""
    told = [str(label) for label in labels]
    if all(len(text) == 1 and text.isdigit() for text in told):
        return told
    if {*told} <= {"A", "B", "tie", "yes", "no"}:
        return [text[0].lower() for text in told]
    return [_PLACES[place : place + 1] for place in range(len(told))]


def check_name(name: Any) -> str:
    """An annotator's name, tidied. Raises Refused."""
    tidy = " ".join(name.split()) if isinstance(name, str) else ""
    if not tidy or len(tidy) > LONGEST_NAME or not tidy.isprintable():
        raise Refused(f"{shown(name)} is no name", where=ANNOTATOR, fix=f"use 1 to {LONGEST_NAME} characters")
    return tidy


# What is kept


@dataclass(frozen=True)
class Label:
    """What one person said of one record. blind: before they were shown the judge's verdict. picked: how the record
    came before them; what was not picked at random does not stand for the rest. withdrawn: what they take back."""

    id: str
    annotator: str
    answers: Mapping[str, Any]
    blind: bool = True
    picked: str = "random"
    withdrawn: tuple[str, ...] = ()

    def line(self) -> dict[str, Any]:
        return {
            "id": self.id,
            **self.answers,
            ANNOTATOR: self.annotator,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "blind": self.blind,
            "picked": self.picked,
            **({WITHDRAWN: list(self.withdrawn)} if self.withdrawn else {}),
        }


class GoldFile:
    """A gold file, shared with other viewers and with people's editors. Safe to call from several threads."""

    def __init__(self, path: Path, asked: Sequence[Asked]) -> None:
        """Reads it, if it is there. Raises RecordsError for a line that is no label, RunError."""
        self.path, self.asked = path, {one.name: one for one in asked}
        self.torn: list[str] = []
        self._given: dict[str, dict[str, Label]] = {}
        self._stamp: tuple[int, ...] | None = None
        self._size = 0
        self._tail = b""
        self._busy = threading.RLock()
        self.refresh()

    def refresh(self) -> None:
        """Read it again if another has written to it. Raises RecordsError; what was read before is then kept."""
        with self._busy, _readable(self.path):
            stamp = _stamp(self.path)
            if stamp == self._stamp:
                return
            data = self.path.read_bytes() if stamp else b""
            whole, _, tail = data.rpartition(b"\n")
            lines = whole.split(b"\n") if whole or tail != data else []
            if tail and _is_json(tail):  # an editor that ends no last line
                lines.append(tail)
            given: dict[str, dict[str, Label]] = {}
            for number, line in enumerate(lines, 1):
                if line.strip():
                    self._take(given, self._read(line, number))
            self._given, self._stamp = given, stamp
            self._size, self._tail = len(data) - len(tail), tail

    def of(self, record_id: str) -> dict[str, Label]:
        """annotator -> what they say of this record now."""
        with self._busy:
            return {who: labels[record_id] for who, labels in self._given.items() if record_id in labels}

    def by(self, annotator: str) -> dict[str, Label]:
        """id -> what this person says, in the order in which they said it last."""
        with self._busy:
            return dict(self._given.get(annotator, {}))

    def counts(self) -> dict[str, int]:
        """annotator -> records labelled."""
        with self._busy:
            return {who: len(labels) for who, labels in self._given.items() if labels}

    def add(self, label: Label) -> None:
        """Keep a label. It is on the disk when this returns. Raises Refused for what is no answer, RecordsError for
        a file that was broken meanwhile, RunError when it cannot be written."""
        for name, value in label.answers.items():
            if name not in self.asked:
                raise Refused(f"nothing is asked of '{name}'", where=name, fix=did_you_mean(name, self.asked))
            try:
                self.asked[name].check(value)
            except ValueError as error:
                raise Refused(str(error), where=name) from None
        if not label.answers:
            raise Refused("no question is answered", where=label.id)
        with self._busy:
            self._append(label)

    def undo(self, annotator: str) -> Label | None:
        """Take back what this person said last, and return it; None when there is nothing. Raises as `add` does."""
        with self._busy:
            self.refresh()
            mine = self._given.get(annotator)
            if not mine:
                return None
            last = mine[next(reversed(mine))]
            self._append(replace(last, answers={}))
            return last

    @staticmethod
    def _take(given: dict[str, dict[str, Label]], label: Label) -> None:
        mine = given.setdefault(label.annotator, {})
        before = mine.pop(label.id, label).answers
        answers = {name: said for name, said in {**before, **label.answers}.items() if name not in label.withdrawn}
        if answers:
            mine[label.id] = replace(label, answers=answers)

    def _read(self, line: bytes, number: int) -> Label:
        """Raises RecordsError."""

        def fault(what: str) -> RecordsError:
            fix = "mend that line or delete it; no label is taken until then, and nothing was changed"
            return RecordsError(f"this line is no label: {what}", where=f"{self.path}:{number}", fix=fix)

        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise fault(f"it is not JSON ({error})") from None
        if not isinstance(row, dict):
            raise fault(f"{shown(row)} is no object")
        record_id = str(row["id"]) if type(row.get("id")) is int else row.get("id")
        if not isinstance(record_id, str) or not record_id:
            raise fault("it has no 'id'")
        who = row.get(ANNOTATOR)
        if not isinstance(who, str) or not who:
            raise fault(f"it has no '{ANNOTATOR}', who gave it (labels of another form need a file of their own)")
        answers = {}
        for name, asked in self.asked.items():
            value = row.get(name)
            if value is None or value == "":
                continue
            try:
                asked.check(value)
            except ValueError as error:
                raise fault(f"'{name}': {error}") from None
            answers[name] = value
        gone = row.get(WITHDRAWN) or []
        if not isinstance(gone, list):
            raise fault(f"'{WITHDRAWN}' is {shown(gone)}, no list of questions")
        picked = str(row.get("picked", "random"))
        return Label(record_id, who, answers, bool(row.get("blind", True)), picked, tuple(map(str, gone)))

    def _append(self, label: Label) -> None:
        """Write a label; what its person said of the record before, and now does not, is taken back."""
        with self._locked(), _writable(self.path):
            self.refresh()
            before = self._given.get(label.annotator, {}).get(label.id)
            gone = [name for name in before.answers if name not in label.answers] if before else []
            label = replace(label, withdrawn=tuple(gone))
            line = json.dumps(label.line(), ensure_ascii=False).encode() + b"\n"
            new = self._stamp is None
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                line = self._mend_tail(file) + line
                try:
                    written = 0
                    while written < len(line):
                        written += os.write(file, line[written:])
                    os.fsync(file)
                except OSError:
                    os.ftruncate(file, self._size)  # the next label does not go onto half a line
                    raise
            finally:
                os.close(file)
            if new:
                _sync_folder(self.path.parent)
            self._size += len(line)
            self._stamp = _stamp(self.path)
            self._take(self._given, label)

    def _mend_tail(self, file: int) -> bytes:
        """What has to be written before the next line, now that the last may have no end: a torn one, which a crash
        leaves and which was never said to be saved, goes into a file of its own."""
        tail, self._tail = self._tail, b""
        if not tail:
            return b""
        if _is_json(tail):
            self._size += len(tail)
            return b"\n"
        aside = self.path.with_name(f"{self.path.name}.torn")
        with aside.open("ab") as kept:
            kept.write(tail + b"\n")
            os.fsync(kept.fileno())
        os.ftruncate(file, self._size)
        self.torn.append(f"{self.path}: a torn last line was moved to {aside.name}")
        return b""

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Other viewers wait meanwhile."""
        try:
            with _writable(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                lock = FileLock(self.path.with_name(f".{self.path.name}.lock"), timeout=_WAIT)
                lock.acquire()
        except Timeout:
            raise RunError("another viewer holds the gold file", where=str(self.path), fix="try again") from None
        try:
            yield
        finally:
            lock.release()


def _stamp(path: Path) -> tuple[int, ...] | None:
    with contextlib.suppress(FileNotFoundError):
        status = path.stat()
        return status.st_ino, status.st_size, status.st_mtime_ns
    return None


def _is_json(text: bytes) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(f"the gold file cannot be read: {error.strerror or error}", where=str(path)) from None


@contextlib.contextmanager
def _writable(path: Path) -> Iterator[None]:
    try:
        yield
    except Timeout:
        raise
    except OSError as error:
        fix = "give another with --gold; the labels given before are kept"
        raise RunError(
            f"the label could not be saved: {error.strerror or error}", where=str(path), fix=fix
        ) from None
