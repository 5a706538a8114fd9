"""Does a judge change its mind for reasons that should not matter? Judges records as they are, then changed in ways
that should change nothing (`perturb`), and holds the two against each other, record by record.

Every ask goes through one engine and the completion cache, so that the same command goes on with a stopped audit.
Knows asks and arithmetic; `audit_report` knows how it is told.

In a pair each side's text is changed in turn, and the two are averaged: were only the loser's changed, whatever a
wavering judge did would look like a gain, since a loser can only gain.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

import localjudge
from localjudge.agreement.intervals import Units, intervals
from localjudge.agreement.join import RESPONSES
from localjudge.agreement.perturb import PERTURBATIONS, Case, Perturbation, Voice, changed_spec, turned, wording
from localjudge.engines.base import Engine
from localjudge.errors import JudgeError, LocalJudgeError, RecordsError, did_you_mean
from localjudge.judge import pairwise
from localjudge.judge.scoring import half_up
from localjudge.judge.spec import JudgeSpec
from localjudge.models import LocalModel, ServedModel
from localjudge.paths import cache_dir
from localjudge.records import BadRecord, Record, read_records
from localjudge.report.summary import wilson
from localjudge.run.progress import RunProgress
from localjudge.run.runner import (
    Settings,
    check_model,
    check_sees,
    judge_record,
    judge_stream,
    label_plan,
    scan,
)
from localjudge.run.store import CompletionCache, RunDirectory, write_atomically
from localjudge.verdict import Answer, Verdict

Grade = Literal["none seen", "slight", "serious", "too few to tell", "does not apply"]

SLIGHT_OVER = 0.02
SERIOUS_FROM = 0.10
"""Of the share of minds changed, and of the shift as a share of the scale; held against the interval's near end."""
FEWEST = 10
"""Records, or groups of them, below which nothing is said."""
EXAMPLES = 2
ALIKE = 0.9

CHATML = ("<|im_end|>\n<|im_start|>system\n", "<|im_end|>\n<|im_start|>user\n")


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Estimate(_Model):
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float


class Example(_Model):
    """A record on which the judge changed its mind. side: of a pair, whose text was changed. before, after: its
    outcome and overall; why_before, why_after: its reasons, in explain mode."""

    id: str
    side: str | None = None
    before: str
    after: str
    why_before: str | None = None
    why_after: str | None = None


class Finding(_Model):
    """What one perturbation did.

    n: records it could be told of; units: those, or groups of them. cases: of a pair's text one a side; changed:
        those in which the outcome changed; lost: those left out since one of the two verdicts failed.
    flips: the share of cases changed (Wilson's, on as many records as the groups are worth, by Kish 1965).
    shift: the mean change of the overall as a share of its scale, of a pair's text of its share of the preference
        (BCa; where all are equal, as wide as Wilson's of none); None where it says nothing. For `order`: what a
        text has in the first place over what it has in the second.
    direction: which way the shift goes, where its interval lies beyond 2 %. wants: why it does not apply.
    """

    name: str
    what: str
    grade: Grade
    n: int = 0
    units: int = 0
    cases: int = 0
    changed: int = 0
    lost: int = 0
    flips: Estimate | None = None
    shift: Estimate | None = None
    direction: str | None = None
    wants: str | None = None
    examples: list[Example] = []


class Audit(_Model):
    """audit.json. text: the input that was taken for the candidate's. outcomes: of the records as they are."""

    judge: str
    judge_digest: str
    kind: str
    model: str
    fingerprint: str
    engine: dict[str, Any]
    mode: str
    localjudge: str
    records: str
    records_digest: str
    taken: int
    bad: int
    failed: dict[str, int]
    outcomes: dict[str, int]
    text: str | None
    grouped: bool
    seed: int
    thresholds: dict[str, float]
    findings: list[Finding]
    notes: list[str]


# Arithmetic


def rate(flips: Sequence[float], groups: Sequence[str]) -> Estimate:
    """A share of units from 0 to 1, its interval never too narrow: no unit varies more than a yes or no does."""
    p = float(np.mean(flips))
    n = _worth(groups)
    low, high = wilson(p * n, n)  # type: ignore[arg-type]  # as many as the groups are worth, which may be 7.4
    return Estimate(value=p, low=low, high=high)


def _worth(groups: Sequence[str]) -> float:
    """How many independent records these are worth (Kish 1965): n² over the sum of the groups' squared sizes."""
    sizes = np.array(list(Counter(groups).values()), float)
    return float(sizes.sum() ** 2 / (sizes**2).sum())


def mean_shift(shifts: Sequence[float], groups: Sequence[str], seed: int = 0) -> Estimate:
    """The mean of paired differences, of units from -1 to 1."""
    values, cell = np.unique(np.round(shifts, 12), return_inverse=True)
    units = Units.of(cell, len(values), groups)
    [found] = intervals(units, lambda counts: (counts @ values / counts.sum(-1))[..., None], seed)
    mean = float(np.mean(shifts))
    if found.low is None or found.high is None:
        unseen = wilson(0, _worth(groups))[1]  # type: ignore[arg-type]
        return Estimate(value=mean, low=max(-1.0, mean - unseen), high=min(1.0, mean + unseen))
    return Estimate(value=mean, low=found.low, high=found.high)


def grade(flips: Estimate, shift: Estimate | None, units: int) -> Grade:
    """The worse of the two. Serious: the whole interval lies at or beyond 10 %; slight: beyond 2 %; none seen: it
    ends below 10 %; else the records are too few to tell."""
    if units < FEWEST:
        return "too few to tell"
    spans = [(flips.low, flips.high)]
    if shift:
        least = max(shift.low, -shift.high, 0.0)
        spans.append((least, max(abs(shift.low), abs(shift.high))))
    if any(low >= SERIOUS_FROM for low, _ in spans):
        return "serious"
    if any(low > SLIGHT_OVER for low, _ in spans):
        return "slight"
    return "none seen" if all(high < SERIOUS_FROM for _, high in spans) else "too few to tell"


def outcome(spec: JudgeSpec, verdict: Verdict) -> str:
    """What of a verdict is its mind: of a pair the preference; else whether it passed, its grade, the label of its
    only question, or its overall as a whole number."""
    if spec.kind == "pairwise":
        return str(verdict.answers["preference"].value)
    if verdict.passed is not None:
        return "pass" if verdict.passed else "fail"
    if verdict.grade is not None:
        return verdict.grade
    labelled = [verdict.answers[question.id].value for question in spec.own_questions if question.type != "text"]
    if len(labelled) == 1 and not isinstance(labelled[0], list):
        return "cannot judge" if labelled[0] is None else str(labelled[0])
    assert verdict.overall is not None
    return f"{half_up(verdict.overall):g}"


def worth(spec: JudgeSpec, verdict: Verdict, side: str | None) -> float:
    """A verdict's overall as a share of the scale, from 0 to 1; of a pair, the preference for one side."""
    assert verdict.overall is not None
    if spec.kind == "pairwise":
        return 1 - verdict.overall if side == "B" else verdict.overall
    low, high = spec.bounds
    return (verdict.overall - low) / (high - low)


# What is asked


def chosen(only: Sequence[str], wordings: Mapping[str, JudgeSpec]) -> list[Perturbation]:
    """The perturbations of these names, or all. Raises LocalJudgeError for a name that there is not."""
    known = {**PERTURBATIONS, **{(one := wording(name, spec)).name: one for name, spec in wordings.items()}}
    for name in only:
        if name not in known:
            raise LocalJudgeError(
                f"there is no perturbation '{name}'", where="--only", fix=did_you_mean(name, known)
            )
    return [one for name, one in known.items() if not only or name in only]


def text_of(spec: JudgeSpec, named: str | None = None) -> str | None:
    """The input that the candidate wrote, of pairs its stem: the one that is named, else one with a name that such
    inputs have, else the last required one. None where that is no text. Raises LocalJudgeError for another name."""
    types = {item.name: item.type for item in spec.inputs}
    if spec.kind == "pairwise":
        texts = [stem for stem in spec.pairs if types[f"{stem}_a"] == types[f"{stem}_b"] == "text"]
        last = texts[-1:]
    else:
        texts = [name for name, kind in types.items() if kind == "text"]
        last = [item.name for item in spec.inputs if not item.optional][-1:]
    if named is not None and named not in texts:
        raise LocalJudgeError(
            f"the judge has no text '{named}' to change", where="--text", fix=did_you_mean(named, texts)
        )
    found = [named] if named else [name for name in RESPONSES if name in texts] + [x for x in last if x in texts]
    return found[0] if found else None


def turn_of(model: LocalModel | ServedModel) -> tuple[str, str]:
    """What ends a user's turn and opens a system's in a model's chat template, and what ends that and opens the
    user's again. Of a template without a system's turn, the user's; of one that is not known, ChatML's."""
    from localjudge.model_files import chat_template

    if model.path is None or not chat_template(model.path):
        return CHATML
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model.path, trust_remote_code=False, local_files_only=True)
    marks = ("\ue000first\ue001", "\ue000second\ue001")

    def around(roles: Sequence[str]) -> tuple[str, str, str] | None:
        messages = [{"role": role, "content": mark} for role, mark in zip(roles, marks, strict=False)]
        with contextlib.suppress(Exception):  # templates refuse what they do not know in ways of their own
            text = tokenizer.apply_chat_template(messages, tokenize=False)
            before, found, rest = text.partition(marks[0])
            between, there, after = rest.partition(marks[1])
            if found and (there or len(roles) == 1):
                return before, between, after
        return None

    begin = tokenizer.bos_token or ""
    if both := around(("system", "user")):
        before, between, after = both
        # What begins a text may be what begins a turn: then it stands before the second as well.
        return after + (before if begin in between else before.removeprefix(begin)), between
    if alone := around(("user",)):
        before, after, _ = alone
        return after + before.removeprefix(begin), after + before.removeprefix(begin)
    return CHATML


Orders = list[Case]
"""One record's cases: the one, or of a pair its straight and its swapped order."""


@dataclass(frozen=True)
class _Held:
    """base: what the changed one is held against; None for the record as it is."""

    base: Orders | None
    changed: Orders


@dataclass
class AuditRun:
    """One audit, from a checked judge, model and records to audit.json and audit.md in a folder.

    only: names of perturbations, all by default. text: which input the candidate wrote. group: a field of the
    records whose equal values hang together; by default `group`, where there is one.
    judging, stop: as of a Run.
    """

    spec: JudgeSpec
    records: Path
    model: LocalModel | ServedModel
    directory: Path
    settings: Settings
    start_engine: Callable[[], Awaitable[Engine]]
    wordings: Mapping[str, JudgeSpec] = field(default_factory=dict)
    only: Sequence[str] = ()
    text: str | None = None
    group: str | None = None
    shared_cache: bool = True
    say: Callable[[str], None] = lambda text: None
    judging: bool = field(default=False, init=False)
    stopping: bool = field(default=False, init=False)

    def stop(self) -> None:
        self.stopping = True

    async def go(self) -> Audit:
        """Judge the records as they are and changed; write what was found. Raises LocalJudgeError; completions
        reached are kept in the cache."""
        perturbations = chosen(self.only, self.wordings)
        if self.spec.checklist:
            fix = "audit a judge that asks the same of every record"
            raise JudgeError(f"'{self.spec.name}' writes its own items, which a changed task changes", fix=fix)
        text = text_of(self.spec, self.text)
        check_model(self.spec, self.model, self.settings)
        found = scan(self.records, self.spec, self.settings)
        check_sees(self.model, found)
        limit, mapping = self.settings.limit, self.settings.mapping
        read = read_records(self.records, self.spec.inputs, mapping=mapping, limit=limit)
        records = [record for record in read if not isinstance(record, BadRecord)]
        if not records:
            raise RecordsError("holds no record that can be judged", where=str(self.records))
        groups = self._groups(records)
        directory = RunDirectory(self.directory)
        try:
            shared = self.shared_cache and self.model.path is not None
            cache_file = (cache_dir() if shared else self.directory) / "completions.sqlite"
            with contextlib.closing(CompletionCache(cache_file)) as cache:
                engine = await self.start_engine()
                self.judging = True
                try:
                    asking = _Asking(self, engine, cache, text)
                    base, findings = await asking.all(records, perturbations, groups)
                    identity = dict(engine.identity)
                finally:
                    await engine.close()
                    self.judging = False
            outcomes = Counter(outcome(self.spec, verdict) for verdict in base if verdict.status == "ok")
            audit = Audit(
                judge=self.spec.name,
                judge_digest=self.spec.digest,
                kind=self.spec.kind,
                model=self.model.name,
                fingerprint=self.model.fingerprint,
                engine=identity,
                mode=self.settings.mode,
                localjudge=localjudge.__version__,
                records=str(self.records),
                records_digest=found.digest,
                taken=len(records),
                bad=found.bad,
                failed=dict(Counter(verdict.status for verdict in base if verdict.status != "ok")),
                outcomes=dict(outcomes.most_common()),
                text=text,
                grouped=len(set(groups.values())) < len(records),
                seed=self.settings.seed,
                thresholds={"slight_over": SLIGHT_OVER, "serious_from": SERIOUS_FROM, "fewest": FEWEST},
                findings=findings,
                notes=self._notes(text, outcomes, limit if found.total == limit else None),
            )
            from localjudge.agreement.audit_report import audit_markdown

            write_atomically(self.directory / "audit.json", audit.model_dump_json(indent=1) + "\n")
            write_atomically(self.directory / "audit.md", audit_markdown(audit))
            return audit
        finally:
            directory.close()

    def _groups(self, records: Sequence[Record]) -> dict[str, str]:
        name = self.group or "group"
        if self.group and not any(self.group in record.fields for record in records):
            fields = sorted({key for record in records for key in record.fields})
            raise LocalJudgeError(
                f"no record has the field '{self.group}'", where="--group", fix=did_you_mean(self.group, fields)
            )
        return {
            record.id: f"id:{record.id}" if (value := record.fields.get(name)) is None else f"group:{value}"
            for record in records
        }

    def _notes(self, text: str | None, outcomes: Counter[str], limit: int | None) -> list[str]:
        notes = []
        if limit:
            notes.append(f"these are the first {limit:,} records; --limit takes more")
        if text is None:
            notes.append("no input of the judge is a candidate's text, so none was changed: name one with --text")
        if outcomes:
            [(label, n)] = outcomes.most_common(1)
            if n >= ALIKE * outcomes.total():
                notes.append(
                    f"as they are, {n:,} of {outcomes.total():,} records are judged '{label}': a judge that says "
                    "the same of everything is hard to sway, and no better for it"
                )
        return notes


class _Asking:
    """The asks of one audit."""

    def __init__(self, run: AuditRun, engine: Engine, cache: CompletionCache, text: str | None) -> None:
        self._run, self._engine, self._cache, self._text = run, engine, cache, text
        self._plan = label_plan(run.spec, engine, run.settings)
        self._voice = Voice(run.model.name, turn_of(run.model), engine.one_token)
        self._pairs = run.spec.kind == "pairwise"

    async def all(
        self, records: Sequence[Record], perturbations: Sequence[Perturbation], groups: Mapping[str, str]
    ) -> tuple[list[Verdict], list[Finding]]:
        """The verdicts on the records as they are, and a finding for each perturbation."""
        spec = changed_spec(self._run.spec, orders="single") if self._pairs else self._run.spec
        cases = [Case(spec, record, self._plan, self._voice, self._text) for record in records]
        work = {one.name: self._work(one, cases) for one in perturbations}
        asked = [held for sides in work.values() for side in sides.values() for held in side]
        findings = []
        with RunProgress(len(cases) + sum(1 + (held.base is not None) for held in asked), 0) as progress:
            self._run.say(f"as they are: {len(cases):,} records")
            base = await self._told([self._orders(case) for case in cases], progress)
            for one in perturbations:
                if any(work[one.name].values()):
                    self._run.say(f"{one.name}: {one.what}")
                told = {}
                for side, held in work[one.name].items():
                    against = await self._told([it.base for it in held if it.base], progress)
                    told[side] = against or base, await self._told([it.changed for it in held], progress)
                findings.append(finding(self._run.spec, one, told, groups, self._run.settings.seed))
        return list(base.values()), findings

    def _orders(self, case: Case, both: bool = True) -> Orders:
        other = turned(case) if both and self._run.spec.orders == "both" else None
        return [case, other] if other else [case]

    def _work(self, one: Perturbation, cases: Sequence[Case]) -> dict[str | None, list[_Held]]:
        """side -> what this perturbation makes of each case. Of a pair each order is changed by itself, since a
        change may tell of the place in which the text stands."""
        sides: tuple[str | None, ...] = ("A", "B") if self._pairs and one.of_text else (None,)
        work: dict[str | None, list[_Held]] = {}
        for side in sides:
            work[side] = []
            for case in cases:
                orders = self._orders(replace(case, side=side), one.in_both_orders)
                changed = [new for order in orders if (new := one.change(order))]
                base = [new for order in orders if one.against and (new := one.against(order))]
                if changed and (base or not one.against):
                    work[side].append(_Held(base or None, changed))
        return work

    async def _told(self, work: Sequence[Orders], progress: RunProgress) -> dict[str, Verdict]:
        """Record's id -> its verdict, in the record's own A and B."""
        by_id = {orders[0].record.id: orders for orders in work}
        told: dict[str, Verdict] = {}

        async def judge(record: Record | BadRecord) -> Verdict:
            return await self._judge(by_id[record.id])

        def keep(verdict: Verdict) -> None:
            told[verdict.id] = verdict
            progress.add(verdict.status)

        await judge_stream(judge, iter([orders[0].record for orders in work]), keep, self._engine.concurrency)
        return {record_id: told[record_id] for record_id in by_id}

    async def _judge(self, orders: Orders) -> Verdict:
        run = self._run
        told = await asyncio.gather(
            *(
                judge_record(it.spec, it.record, self._engine, run.model.name, run.settings, self._cache, it.plan)
                for it in orders
            )
        )
        failed = next((verdict for verdict in told if verdict.status != "ok"), None)
        if failed or not self._pairs:
            return failed or told[0]
        answers = [_own(verdict, case) for verdict, case in zip(told, orders, strict=True)]
        return pairwise.verdict_of(run.spec, told[0].id, answers, run.model.name)


def _own(verdict: Verdict, case: Case) -> dict[str, Answer]:
    """The answers about a pair in one order, in the record's own A and B."""
    answers = verdict.answers
    if not case.swapped:
        return answers
    told = answers["preference"]
    if told.value == "inconsistent":  # a tie of what was read, which counts by its probabilities alone
        answers = {**answers, "preference": told.model_copy(update={"value": "A"})}
    return pairwise.swap_back(answers)


def finding(
    spec: JudgeSpec,
    one: Perturbation,
    told: Mapping[str | None, tuple[Mapping[str, Verdict], Mapping[str, Verdict]]],
    groups: Mapping[str, str],
    seed: int = 0,
) -> Finding:
    """What a perturbation did. told: side -> record's id -> its verdict, before and after. groups: record's id ->
    what it belongs to."""
    flips: dict[str, list[float]] = {}
    shifts: dict[str, list[float]] = {}
    examples: list[tuple[float, Example]] = []
    lost = 0
    for side, (before, after) in told.items():
        for record_id, now in after.items():
            was = before[record_id]
            if was.status != "ok" or now.status != "ok":
                lost += 1
                continue
            shift = worth(spec, now, side) - worth(spec, was, side)
            flipped = outcome(spec, was) != outcome(spec, now)
            flips.setdefault(record_id, []).append(float(flipped))
            shifts.setdefault(record_id, []).append(shift)
            if flipped:
                examples.append((abs(shift), _example(spec, side, was, now)))
    if not flips:
        return Finding(name=one.name, what=one.what, grade="does not apply", lost=lost, wants=one.wants)
    of = [groups[record_id] for record_id in flips]
    flip = rate([_mean(each) for each in flips.values()], of)
    shift_of = None
    if one.of_text or one.name == "order" or spec.kind != "pairwise":
        shift_of = mean_shift([_mean(each) for each in shifts.values()], of, seed)
    direction = None
    if shift_of:
        up, down = one.toward
        direction = up if shift_of.low > SLIGHT_OVER else down if shift_of.high < -SLIGHT_OVER else "neither way"
    return Finding(
        name=one.name,
        what=one.what,
        grade=grade(flip, shift_of, len(set(of))),
        n=len(flips),
        units=len(set(of)),
        cases=sum(map(len, flips.values())),
        changed=len(examples),
        lost=lost,
        flips=flip,
        shift=shift_of,
        direction=direction,
        examples=[example for _, example in sorted(examples, key=lambda it: -it[0])[:EXAMPLES]],
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _example(spec: JudgeSpec, side: str | None, was: Verdict, now: Verdict) -> Example:
    def said(verdict: Verdict) -> str:
        share = "A's share " if spec.kind == "pairwise" else ""
        return f"{outcome(spec, verdict)} ({share}{verdict.overall:.3g})"

    return Example(
        id=was.id, side=side, before=said(was), after=said(now), why_before=was.rationale, why_after=now.rationale
    )
