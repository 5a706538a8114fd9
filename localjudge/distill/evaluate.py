"""A student measured: the untrained model, the trained one and the teacher on the same records, with each other and
with people.

Knows runs, by their folders, and joined labels; asks no model itself. `measure` gives one set of records' figures,
which evaluation.json keeps under the set's name beside those of others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

import localjudge
from localjudge.adapters import EVALUATION
from localjudge.agreement import statistics
from localjudge.agreement.agree import Figure, main_figures, share
from localjudge.agreement.audit import Audit
from localjudge.agreement.compare import Comparison, compare
from localjudge.agreement.intervals import Method, Units, intervals
from localjudge.agreement.join import Joined, Opened, open_run
from localjudge.agreement.statistics import Pairs, Values, ratio, told
from localjudge.agreement.targets import Target, reader, targets_of
from localjudge.agreement.writing import Asked
from localjudge.distill.curve import WITHIN, HeldOut, Point, best, choose, curve, held_out
from localjudge.errors import LocalJudgeError, RunError
from localjudge.models import ServedModel, find_model, parameters_of
from localjudge.run.cascade import doubt, seconds_of, sureness
from localjudge.run.store import read_verdicts, write_atomically
from localjudge.verdict import Answer, Usage, Verdict

Role = Literal["untrained", "student", "teacher"]
ROLES: tuple[Role, ...] = ("untrained", "student", "teacher")

FILE = EVALUATION


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Against(_Model):
    """How far one judge agrees with labels on one target: n records, the main figures with intervals."""

    target: str
    n: int
    figures: list[Figure]


class Speed(_Model):
    """What one verdict takes. computed: tokens of prompts that were not in the engine's cache; written: tokens.

    per_second: verdicts, without loading; None where answers came from earlier completions. work: parameters times
    tokens. cost: of a thousand verdicts, at the price of an hour; relative: of one verdict, the teacher's being 1,
    by time where both are known, else by work.
    """

    per_second: float | None
    asks: float
    prompt: float
    computed: float
    written: float
    parameters: int | None
    work: float | None
    cost: float | None = None
    relative: float | None = None


class Judged(_Model):
    """One of the judges. people, teacher: its agreement with these; none with itself. distance: of its labels'
    probabilities from the teacher's, the mean Kullback-Leibler divergence in nats, by question. fingerprint: of the
    model; None of judgements that were imported."""

    role: Role
    model: str
    fingerprint: str | None
    mode: str
    engine: str | None
    run: str
    verdicts: int
    judged: int
    people: list[Against]
    teacher: list[Against]
    distance: dict[str, float]
    speed: Speed


class Kept(_Model):
    """The student's agreement with people as a share of the teacher's, over records that both judged."""

    target: str
    figure: str
    n: int
    share: float | None
    low: float | None
    high: float | None
    method: Method | None


class Cascade(_Model):
    """What both would come to together. of: whose labels agreement is with. wanted: of it, and the point chosen for
    that; best: the greatest agreement that any point has. held_out: what comes of choosing so on other records."""

    target: str
    of: Literal["people", "teacher"]
    n: int
    points: list[Point]
    wanted: float
    chosen: Point | None
    best: Point | None
    held_out: HeldOut | None


class Audited(_Model):
    """One finding of an audit of one of the judges: the share of records on which a change that should not matter
    changed its mind, with the 95 % interval; None where it does not apply."""

    role: Role
    name: str
    grade: str
    n: int
    flips: float | None
    low: float | None
    high: float | None


class Evaluation(_Model):
    """One set of records. judges: as far as they were given, in the order of ROLES. gold: whose labels. compared:
    the judges against each other by people's labels. hardware: in the user's words. price: of an hour."""

    name: str
    judge: str
    judge_digest: str
    records_digest: str
    gold: list[str]
    grouped: bool
    seed: int
    hardware: str | None
    price: float | None
    judges: list[Judged]
    kept: list[Kept]
    compared: list[Comparison]
    cascades: list[Cascade]
    audits: list[Audited]
    notes: list[str]
    localjudge: str


class Evaluations(_Model):
    """evaluation.json: the sets by their names."""

    format: Literal[1] = 1
    sets: dict[str, Evaluation]


@dataclass(frozen=True)
class Wanted:
    """What is asked of an evaluation. asked: people's labels, if any; agreement: that a cascade is to have; audits:
    folders of audits of the same judges."""

    name: str
    asked: Asked
    agreement: float | None = None
    price: float | None = None
    hardware: str | None = None
    seed: int = 0
    audits: Sequence[Path] = ()


def measure(runs: Mapping[Role, Path], wanted: Wanted, labels: Path) -> Evaluation:
    """Hold the runs against each other and, where gold is given, against people.

    labels: a file that gets the teacher's labels, as the gold that the others are held against. Raises
    LocalJudgeError: no runs there, runs of different judges, labels that cannot be joined. Runs of other records
    are joined by ids, which a note tells.
    """
    opened = {role: open_run(runs[role]) for role in ROLES if role in runs}
    _refuse_different(opened)
    first = next(iter(opened.values()))
    people = {role: wanted.asked.joined(one) if wanted.asked.golds else [] for role, one in opened.items()}
    with_teacher = _held_by_teacher(opened, wanted, labels)
    speeds = _speeds(opened, wanted.price)
    judges = [
        Judged(
            role=role,
            model=one.run["model"]["name"],
            fingerprint=one.run["model"]["fingerprint"],
            mode=str(one.run["settings"].get("mode")),
            engine=_engine(one.run),
            run=str(one.path),
            verdicts=sum(speeds[role].statuses.values()),
            judged=speeds[role].statuses.get("ok", 0),
            people=[_against(data, wanted.seed) for data in people[role]],
            teacher=[_against(data, wanted.seed) for data in with_teacher.get(role, [])],
            distance=_distances(one, opened["teacher"]) if "teacher" in opened and role != "teacher" else {},
            speed=speeds[role].speed,
        )
        for role, one in opened.items()
    ]
    kept: list[Kept] = []
    if wanted.asked.golds and {"student", "teacher"} <= set(opened):
        for own, theirs in zip(people["student"], people["teacher"], strict=True):
            kept += kept_of(own, theirs, wanted.seed)
    compared = []
    if wanted.asked.golds and len(opened) > 1:
        named = [replace(one, run=_named(one, role)) for role, one in opened.items()]
        compared = compare(named, list(people.values()), wanted.asked.golds, wanted.seed)
    return Evaluation(
        name=wanted.name,
        judge=first.spec.name,
        judge_digest=first.run["judge"]["digest"],
        records_digest=first.run["records"]["digest"],
        gold=list(wanted.asked.golds),
        grouped=any(data.groups is not None for data in people["student"]),
        seed=wanted.seed,
        hardware=wanted.hardware,
        price=wanted.price,
        judges=judges,
        kept=kept,
        compared=compared,
        cascades=_cascades(opened, people, with_teacher, speeds, wanted),
        audits=[one for path in wanted.audits for one in _audited(path, opened)],
        notes=_notes(opened, people, speeds),
        localjudge=localjudge.__version__,
    )


def accuracies(student: Path, teacher: Path, labels: Path, seed: int = 0) -> list[Figure]:
    """How often one run says what another does, by target; what it could not judge counts as wrong. labels: as for
    `measure`. Raises LocalJudgeError."""
    opened: dict[Role, Opened] = {"student": open_run(student), "teacher": open_run(teacher)}
    _refuse_different(opened)
    return [
        share("accuracy", (data.ok & (data.label == data.rounded)).astype(float), data.groups, seed)
        for data in _held_by_teacher(opened, Wanted("", Asked([])), labels)["student"]
    ]


def _refuse_different(opened: Mapping[Role, Opened]) -> None:
    first_role, first = next(iter(opened.items()))
    for role, one in opened.items():
        if one.run["judge"]["digest"] != first.run["judge"]["digest"]:
            raise RunError(
                f"the {role} was asked another judge than the {first_role}: {one.spec.name}, "
                f"digest {one.run['judge']['digest'][:12]}, not {first.run['judge']['digest'][:12]}",
                where=str(one.path),
                fix="judge the same records by the same judge and settings",
            )


def _named(one: Opened, role: Role) -> dict[str, Any]:
    """run.json with the role for a name, so that a comparison tells the judges apart."""
    return {**one.run, "model": {**one.run["model"], "name": role}}


def _engine(run: Mapping[str, Any]) -> str | None:
    identity = (run.get("engine") or {}).get("identity") or {}
    return str(identity["engine"]) if "engine" in identity else None


def _against(data: Joined, seed: int) -> Against:
    judged = data.of(data.ok)
    return Against(target=data.target.name, n=len(judged.ids), figures=main_figures(judged, seed))


# The teacher's labels as gold


def label_of(target: Target, verdict: Verdict) -> str | None:
    """What an ok verdict says of a target, as people would write it; None where it is undecided or abstains."""
    said = reader(target)(verdict)
    if said is None or not math.isfinite(said.label):
        return None
    if target.kind == "score":
        return str(int(said.label))
    place = int(said.label)
    return target.labels[place] if place < len(target.labels) else None


def _label_targets(one: Opened) -> list[Target]:
    known = {target.name: target for targets in targets_of(one.spec).values() for target in targets}
    asked = {question.id for question in one.spec.own_questions}
    return [
        t for t in known.values() if t.question in asked and t.kind in ("preference", "choice", "flag", "score")
    ]


def _held_by_teacher(opened: Mapping[Role, Opened], wanted: Wanted, labels: Path) -> dict[Role, list[Joined]]:
    """The others' joins with the teacher's labels, which are written to `labels`."""
    if "teacher" not in opened or len(opened) < 2:
        return {}
    targets = _label_targets(opened["teacher"])
    lines: list[str] = []
    given: set[str] = set()
    for verdict in read_verdicts(opened["teacher"].path):
        if verdict.status != "ok":
            continue
        row = {target.name: label for target in targets if (label := label_of(target, verdict)) is not None}
        given.update(row)
        lines.append(json.dumps({"id": verdict.id, **row}, ensure_ascii=False) + "\n")
    write_atomically(labels, "".join(lines))
    golds = [f"{target.name}={labels}:{target.name}" for target in targets if target.name in given]
    if not golds:
        raise RunError("the teacher gave no labels", where=str(opened["teacher"].path))
    asked = replace(wanted.asked, golds=golds, theirs={}, gold_id=None)
    return {role: asked.joined(one) for role, one in opened.items() if role != "teacher"}


def _distances(own: Opened, teacher: Opened) -> dict[str, float]:
    """The mean KL divergence of the teacher's distributions from another's, by question, where both have one."""
    theirs: dict[str, dict[str, Answer]] = {
        verdict.id: dict(verdict.answers) for verdict in read_verdicts(teacher.path) if verdict.status == "ok"
    }
    sums: dict[str, list[float]] = {}
    for verdict in read_verdicts(own.path):
        for name, answer in verdict.answers.items():
            other = theirs.get(verdict.id, {}).get(name)
            if other is None or not answer.distribution or not other.distribution:
                continue
            if isinstance(answer.value, list) or set(answer.distribution) != set(other.distribution):
                continue
            sums.setdefault(name, []).append(kl(other.distribution, answer.distribution))
    return {name: math.fsum(values) / len(values) for name, values in sums.items()}


def kl(teacher: Mapping[str, float], student: Mapping[str, float]) -> float:
    """KL(teacher || student) over the same labels, in nats; no probability is taken to be under 1e-9."""
    return math.fsum(p * math.log(p / max(student[label], 1e-9)) for label, p in teacher.items() if p > 0)


# Shares, cost


def kept_of(student: Joined, teacher: Joined, seed: int = 0) -> list[Kept]:
    """Accuracy and kappa of the first as shares of the second's, with paired intervals; none where nothing is
    labelled."""
    if student.target.kind == "overall":
        return []
    places = {record_id: i for i, record_id in enumerate(teacher.ids) if teacher.ok[i]}
    shared = [i for i, record_id in enumerate(student.ids) if student.ok[i] and record_id in places]
    if not shared:
        raise RunError("no labelled record was judged by both the student and the teacher")
    own, theirs = student.of(shared), teacher.of([places[student.ids[i]] for i in shared])
    triples, cell = np.unique(np.column_stack([own.label, theirs.label, own.rounded]), axis=0, return_inverse=True)
    counts = np.bincount(cell.ravel(), minlength=len(triples)).astype(float)
    known = np.unique(np.concatenate([own.coded, theirs.coded, own.rounded]))
    sides = [Pairs(triples[:, i], triples[:, 2], counts, known) for i in (0, 1)]
    chosen = {"accuracy": statistics.accuracy, "kappa": statistics.kappa}

    def figures(drawn: Values) -> Values:
        return np.stack([ratio(s(sides[0], drawn), s(sides[1], drawn)) for s in chosen.values()], -1)

    bounds = intervals(Units.of(cell.ravel(), len(triples), own.groups), figures, seed)
    values = figures(counts[None])[0]
    return [
        Kept(
            target=own.target.name,
            figure=name,
            n=len(shared),
            share=told(value),
            low=bound.low,
            high=bound.high,
            method=bound.method,
        )
        for name, value, bound in zip(chosen, values, bounds, strict=True)
    ]


@dataclass(frozen=True)
class _Passed:
    """What one pass over a run's verdicts tells."""

    statuses: dict[str, int]
    usage: Usage
    sure: dict[str, float]
    always: set[str]
    speed: Speed


def _speeds(opened: Mapping[Role, Opened], price: float | None) -> dict[Role, _Passed]:
    found = {role: _pass(one, price) for role, one in opened.items()}
    teacher = found.get("teacher")
    if teacher is None:
        return found
    return {
        role: replace(one, speed=one.speed.model_copy(update={"relative": relative(one.speed, teacher.speed)}))
        for role, one in found.items()
    }


def relative(own: Speed, teacher: Speed) -> float | None:
    """What a verdict costs, the teacher's being 1: see `Speed`."""
    if own.per_second and teacher.per_second:
        return teacher.per_second / own.per_second
    return own.work / teacher.work if own.work is not None and teacher.work else None


def _pass(one: Opened, price: float | None) -> _Passed:
    statuses: dict[str, int] = {}
    sure: dict[str, float] = {}
    always: set[str] = set()
    usage = Usage()
    for verdict in read_verdicts(one.path):
        statuses[verdict.status] = statuses.get(verdict.status, 0) + 1
        usage += verdict.usage
        if doubt(verdict, None):
            always.add(verdict.id)
        if (told_sure := sureness(verdict)) is not None:
            sure[verdict.id] = told_sure
    n = sum(statuses.values())
    seconds = seconds_of(one.run, usage)
    parameters = _parameters(one.run)
    computed = (usage.prompt - usage.cached) / n if n else 0.0
    written = usage.written / n if n else 0.0
    per_second = n / seconds if seconds else None
    speed = Speed(
        per_second=per_second,
        asks=usage.asks / n if n else 0.0,
        prompt=usage.prompt / n if n else 0.0,
        computed=computed,
        written=written,
        parameters=parameters,
        work=parameters * (computed + written) if parameters and usage.asks else None,
        cost=1000 / per_second / 3600 * price if price is not None and per_second else None,
    )
    return _Passed(statuses, usage, sure, always, speed)


def _parameters(run: Mapping[str, Any]) -> int | None:
    """Of the run's model, where it still lies here or has a card."""
    path = (run.get("paths") or {}).get("model")
    try:
        return parameters_of(find_model(path) if path else ServedModel(run["model"]["name"]))
    except LocalJudgeError:
        return None


# Both together


def _cascades(
    opened: Mapping[Role, Opened],
    people: Mapping[Role, Sequence[Joined]],
    with_teacher: Mapping[Role, Sequence[Joined]],
    speeds: Mapping[Role, _Passed],
    wanted: Wanted,
) -> list[Cascade]:
    if not {"student", "teacher"} <= set(opened):
        return []
    own, theirs = speeds["student"].speed, speeds["teacher"].speed
    work = own.work / theirs.work if own.work is not None and theirs.work else None
    time = theirs.per_second / own.per_second if own.per_second and theirs.per_second else None
    found = []
    for of in ("people", "teacher"):
        sides = people["student"] if of == "people" else with_teacher["student"]
        for place, student in enumerate(sides):
            if student.target.kind == "overall":
                continue
            rows, right = _rows(student, people["teacher"][place] if of == "people" else None)
            ids = [student.ids[i] for i in rows]
            passed = speeds["student"]
            is_right = ((student.label == student.rounded) & student.ok).astype(float)[rows]
            told_of = (
                np.array([passed.sure.get(record_id, math.nan) for record_id in ids]),
                np.array([record_id in passed.always for record_id in ids], bool),
                is_right,
                right,
            )
            points = curve(*told_of, work=work, time=time)
            groups = [student.groups[i] for i in rows] if student.groups else None
            least = wanted.agreement if wanted.agreement is not None else float(right.mean()) - WITHIN
            found.append(
                Cascade(
                    target=student.target.name,
                    of=of,
                    n=len(ids),
                    points=points,
                    wanted=least,
                    chosen=choose(points, least),
                    best=best(points),
                    held_out=held_out(*told_of, groups, wanted.agreement, wanted.seed),
                )
            )
    return found


def _rows(student: Joined, teacher: Joined | None) -> tuple[list[int], Values]:
    """The student's rows that the teacher judged too, and whether it is right there; by its own labels it is."""
    labelled = np.isfinite(student.gold)
    if teacher is None:
        rows = np.flatnonzero(labelled).tolist()
        return rows, np.ones(len(rows))
    right = {i: float(teacher.label[k] == teacher.rounded[k]) for k, i in enumerate(teacher.ids) if teacher.ok[k]}
    rows = [i for i, record_id in enumerate(student.ids) if labelled[i] and record_id in right]
    return rows, np.array([right[student.ids[i]] for i in rows])


def _notes(
    opened: Mapping[Role, Opened], people: Mapping[Role, Sequence[Joined]], speeds: Mapping[Role, _Passed]
) -> list[str]:
    first, *others = opened.items()
    found = [
        f"the {role}'s run is of another file than the {first[0]}'s, or of other fields of it: records are held to "
        "be the same where their ids are"
        for role, one in others
        if one.run["records"]["digest"] != first[1].run["records"]["digest"]
    ]
    found += [
        f"the {role}'s speed is not known: {one.usage.reused:,} of {one.usage.asks:,} answers came from earlier "
        "completions (judge with --no-cache)"
        for role, one in speeds.items()
        if one.usage.reused
    ]
    said = {note: None for sides in people.values() for data in sides for note in data.notes}
    return [*found, *said]


def _audited(path: Path, opened: Mapping[Role, Opened]) -> list[Audited]:
    file = path / "audit.json" if path.is_dir() else path
    try:
        audit = Audit.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        raise LocalJudgeError("holds no audit", where=str(path), fix="give the -o of `localjudge audit`") from None
    except ValidationError as error:
        raise LocalJudgeError(f"is no audit: {error.errors()[0]['msg'].lower()}", where=str(file)) from None
    prints = {one.run["model"]["fingerprint"]: role for role, one in opened.items()}
    if audit.fingerprint not in prints:
        raise LocalJudgeError(f"is of {audit.model}, which is none of the judges here", where=str(file))
    return [
        Audited(
            role=prints[audit.fingerprint],
            name=finding.name,
            grade=finding.grade,
            n=finding.n,
            flips=finding.flips and finding.flips.value,
            low=finding.flips and finding.flips.low,
            high=finding.flips and finding.flips.high,
        )
        for finding in audit.findings
    ]


# Keeping


def read(folder: Path) -> Evaluations:
    """The evaluations in a folder, none where there is no file. Raises LocalJudgeError."""
    file = folder / FILE
    if not file.is_file():
        return Evaluations(sets={})
    try:
        return Evaluations.model_validate_json(file.read_bytes())
    except ValidationError as error:
        what = f"is not what this localjudge writes: {error.errors()[0]['msg'].lower()}"
        raise LocalJudgeError(what, where=str(file), fix="move it away, and evaluate again") from None


def keep(folder: Path, evaluation: Evaluation) -> Evaluations:
    """Write a set's figures into the folder's evaluation.json, in the place of earlier ones of its name."""
    whole = Evaluations(sets={**read(folder).sets, evaluation.name: evaluation})
    write_atomically(folder / FILE, whole.model_dump_json(indent=1) + "\n")
    return whole
