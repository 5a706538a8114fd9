"""Verdicts into one page of numbers, in one pass and in memory that does not grow with the run.

Failures are counted and never enter a mean. Knows nothing of files, nor of how its numbers are shown.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable
from statistics import NormalDist
from typing import Literal

from pydantic import BaseModel, ConfigDict

from localjudge.judge.asking import rationale_of
from localjudge.judge.checklist import critical_failures
from localjudge.judge.panel import ratings as ratings_of
from localjudge.judge.questions import CANNOT, BandQuestion, ChoiceQuestion, FlagsQuestion, ScoreQuestion
from localjudge.judge.scoring import share_of_a
from localjudge.judge.spec import JudgeSpec
from localjudge.report.alpha import Metric, RunningAlpha
from localjudge.report.diagnosis import Diagnosing, Diagnosis
from localjudge.verdict import STATUSES, Status, Usage, Verdict

SPLIT = "(split)"
"""How a histogram names what a panel gave no answer to most often."""

CASES = 5
FAILURES = 10
CONFIDENCE = 0.95

Scale = tuple[float, float]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Mean(_Model):
    """The mean of one value a record, with its 95 % interval.

    n: verdicts behind it. missing: records that have no such value. sd: of the sample (n - 1); None when n < 2.
    scale: the least and the greatest value that the judge can give.
    method: 'wilson' when the scale is 0 to 1 and nothing but 0 and 1 was seen; else 't', Student's, cut to the
    scale. low, high: None when n < 2 under 't'; both the mean when all values are equal.
    """

    mean: float
    low: float | None
    high: float | None
    method: Literal["t", "wilson"]
    sd: float | None
    n: int
    missing: int
    scale: Scale


class Share(_Model):
    """`count` of `n`, with the 95 % Wilson interval of the share."""

    count: int
    n: int
    share: float
    low: float
    high: float


class Case(_Model):
    """One judged record worth reading."""

    id: str
    overall: float
    passed: bool | None
    scores: dict[str, float]
    red_lines: list[str]
    rationale: str | None


class Undecided(_Model):
    """A pair whose two orders disagree, straight order first. The preferences are in the record's A and B; the
    second rationale was written of the swapped pair, so its A is the record's B."""

    id: str
    preferences: list[str]
    rationales: list[str | None]


class Failure(_Model):
    id: str
    status: Status
    error: str | None


class Pairwise(_Model):
    """How the pairs went.

    split: a panel gave no outcome most often.
    win_rate_a: A's wins among A's and B's; None when neither won any.
    inconsistent_share, first_place: None when one order was asked.
    first_place: how often the response that stood first was preferred, over all single orders, a tie counting
        half; 0.5 is no leaning. Its n is pairs and its interval is over pairs, whose two orders hang together.
    """

    n: int
    wins_a: int
    wins_b: int
    ties: int
    inconsistent: int
    split: int
    win_rate_a: Share | None
    inconsistent_share: Share | None
    first_place: Mean | None


class Member(_Model):
    """How one member of a panel judged. judged: its ok verdicts; failed: the others."""

    judged: int
    failed: int
    overall: Mean | None


class Agreement(_Model):
    """How a panel's members agree on one question, or one code of flags.

    alpha: Krippendorff's, `metric` telling by which differences; None when no two answers differ in all the run.
    unanimous: records on which all who answered said the same. split: those without a most frequent answer.
    """

    metric: Metric
    alpha: float | None
    unanimous: Share | None
    split: int


class Panel(_Model):
    """members: model, or model#sample -> how it judged. agreement: question, or question.code -> how they agree."""

    members: dict[str, Member]
    agreement: dict[str, Agreement]


class Failed(_Model):
    """A response with nothing of an essential item of weight 3. items: those criteria, with what each asks for."""

    id: str
    overall: float
    items: list[str]


class Credits(_Model):
    """What responses earned on the items of their checklists.

    essential, additional: credit -> items, over all verdicts. critical: verdicts with nothing of an essential item
    of weight 3; failed: the first of them.
    """

    essential: dict[str, int]
    additional: dict[str, int]
    critical: int
    failed: list[Failed]


class Side(_Model):
    """One of a cascade's two models. judged: records it was asked of; decided: verdicts that are its own.

    tokens: read without those that the engine had cached, and written. parameters: of the model, where that is
    known. seconds: judging, without loading; None where completions of earlier runs were used.
    """

    model: str
    judged: int
    decided: int
    tokens: int
    parameters: int | None
    seconds: float | None


class Cascade(_Model):
    """Who decided what, and at what cost.

    below: the confidence under which the student's verdict goes to the teacher; None where a calibration says.
    doubted: why -> records. escalated: of all that could be judged.
    work, time: parameters times tokens, and seconds, as a share of what the teacher alone is estimated to take: for
    each record as much as for those that it had. None where one of them is not known.
    """

    student: Side
    teacher: Side
    below: float | None
    doubted: dict[str, int]
    escalated: Share | None
    work: float | None
    time: float | None


class Summary(_Model):
    """summary.json.

    overall, scores: from ok verdicts alone; None and absent where there are none.
    histograms: question -> label -> verdicts, zeros included; flags count each code that was raised.
    worst, best: by overall, a raised red line below everything; worst first, best first; no record in both.
    records: how many there are to judge; total: how many verdicts there are so far.
    panel: of a panel's run alone; cascade: of a cascade's; credits: of a checklist judge's; diagnosis:
        of a dual-control judge's.
    usage: of all verdicts. judged: those reached in the sittings that took `seconds`.
    """

    judge: str
    kind: str
    records: int
    total: int
    statuses: dict[Status, int]
    overall: Mean | None
    scores: dict[str, Mean]
    passed: Share | None
    histograms: dict[str, dict[str, int]]
    pairwise: Pairwise | None
    panel: Panel | None
    cascade: Cascade | None = None
    credits: Credits | None = None
    diagnosis: Diagnosis | None = None
    red_lines: dict[str, int]
    unsure: int
    worst: list[Case]
    best: list[Case]
    undecided: list[Undecided]
    failures: list[Failure]
    usage: Usage
    judged: int
    seconds: float | None
    verdicts_per_second: float | None


def wilson(count: float, n: int) -> Scale:
    """The 95 % score interval of a share (Wilson 1927). n >= 1."""
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    middle = (count + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(count * (n - count) / n + z * z / 4)
    return max(0.0, middle - half), min(1.0, middle + half)


def share(count: int, n: int) -> Share | None:
    """None of nothing is no share."""
    if not n:
        return None
    low, high = wilson(count, n)
    return Share(count=count, n=n, share=count / n, low=low, high=high)


class Running:
    """The mean and variance of a stream (Welford 1962): sums of squares would lose digits over a million."""

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        self.n, self.value, self.squares = 0, 0.0, 0.0
        self.all_or_nothing = scale == (0, 1)

    def add(self, value: float) -> None:
        self.n += 1
        off = value - self.value
        self.value += off / self.n
        self.squares += off * (value - self.value)
        self.all_or_nothing = self.all_or_nothing and value in (0, 1)

    def mean(self, total: int) -> Mean | None:
        if not self.n:
            return None
        sd = math.sqrt(self.squares / (self.n - 1)) if self.n > 1 else None
        low: float | None = None
        high: float | None = None
        if self.all_or_nothing:
            low, high = wilson(self.value * self.n, self.n)
        elif sd is not None:
            from scipy.special import stdtrit  # scipy.stats takes twice as long to import

            half = float(stdtrit(self.n - 1, (1 + CONFIDENCE) / 2)) * sd / math.sqrt(self.n)
            low, high = max(self.scale[0], self.value - half), min(self.scale[1], self.value + half)
        return Mean(
            mean=self.value,
            low=low,
            high=high,
            method="wilson" if self.all_or_nothing else "t",
            sd=sd,
            n=self.n,
            missing=total - self.n,
            scale=self.scale,
        )


class _Greatest:
    """The verdicts of the greatest keys. A key ends in the verdict's number, so that no two are equal."""

    def __init__(self) -> None:
        self.heap: list[tuple[tuple[float, ...], Verdict]] = []

    def add(self, key: tuple[float, ...], verdict: Verdict) -> None:
        if len(self.heap) < CASES:
            heapq.heappush(self.heap, (key, verdict))
        elif key > self.heap[0][0]:
            heapq.heapreplace(self.heap, (key, verdict))

    def cases(self, most: int) -> list[Case]:
        return [_case(verdict) for _, verdict in sorted(self.heap, reverse=True)[:most]]


def _case(verdict: Verdict) -> Case:
    assert verdict.overall is not None
    return Case(
        id=verdict.id,
        overall=verdict.overall,
        passed=verdict.passed,
        scores=verdict.scores,
        red_lines=verdict.red_lines,
        rationale=verdict.rationale,
    )


def _first_place(verdict: Verdict) -> float:
    """How often the response that stood first won over both orders."""
    straight, swapped = (order["preference"].value for order in verdict.orders or ())
    return (share_of_a([straight]) + 1 - share_of_a([swapped])) / 2


class _Pairs:
    def __init__(self, spec: JudgeSpec) -> None:
        self.spec = spec
        self.outcomes = dict.fromkeys(("A", "B", "tie", "inconsistent", None), 0)
        self.first_place = Running((0, 1))
        self.undecided: list[Undecided] = []

    def add(self, verdict: Verdict) -> None:
        outcome = verdict.answers["preference"].value
        self.outcomes[outcome] += 1
        places = [_first_place(each) for each in verdict.members or [verdict] if each.orders]
        if places:
            self.first_place.add(math.fsum(places) / len(places))
        if not verdict.orders:
            return
        straight, swapped = (order["preference"].value for order in verdict.orders)
        if outcome == "inconsistent" and len(self.undecided) < CASES:
            self.undecided.append(
                Undecided(
                    id=verdict.id,
                    preferences=[straight, swapped],
                    rationales=[rationale_of(self.spec, order) for order in verdict.orders],
                )
            )

    def result(self, total: int) -> Pairwise:
        a, b, ties, inconsistent, split = self.outcomes.values()
        n = a + b + ties + inconsistent + split
        return Pairwise(
            n=n,
            wins_a=a,
            wins_b=b,
            ties=ties,
            inconsistent=inconsistent,
            split=split,
            win_rate_a=share(a, a + b),
            inconsistent_share=share(inconsistent, n) if self.first_place.n else None,
            first_place=self.first_place.mean(total),
        )


class _Credits:
    def __init__(self) -> None:
        self.earned = {essential: {"0": 0, "0.5": 0, "1": 0} for essential in (True, False)}
        self.critical = 0
        self.failed: list[Failed] = []

    def add(self, verdict: Verdict) -> None:
        items = verdict.items or []
        for item in items:
            self.earned[item.essential][f"{item.credit:g}"] += 1
        if critical := critical_failures(items):
            self.critical += 1
            if len(self.failed) < FAILURES:
                told = [
                    f"{one.criterion} ({one.reference})" if one.reference else one.criterion for one in critical
                ]
                self.failed.append(Failed(id=verdict.id, overall=verdict.overall or 0.0, items=told))

    def result(self) -> Credits | None:
        if not any(self.earned[True].values()):
            return None  # a panel's items are its members'
        return Credits(
            essential=self.earned[True],
            additional=self.earned[False],
            critical=self.critical,
            failed=self.failed,
        )


class _Members:
    """How the members of a panel judged, and how they agree."""

    def __init__(self, spec: JudgeSpec, scale: Scale) -> None:
        self.spec, self.scale = spec, scale
        self.overall: dict[str, Running] = {}
        self.failed: Counter[str] = Counter()
        self.alphas: dict[str, RunningAlpha] = {}
        self.split: Counter[str] = Counter()

    def add(self, verdict: Verdict) -> None:
        for member in verdict.members or ():
            running = self.overall.setdefault(member.model, Running(self.scale))
            if member.overall is None:
                self.failed[member.model] += 1
            else:
                running.add(member.overall)
        self.split.update(verdict.split)
        for question, (labels, numbers) in ratings_of(self.spec, verdict).items():
            alpha = self.alphas.setdefault(question, RunningAlpha("nominal" if numbers is None else "interval"))
            alpha.add(labels if numbers is None else numbers, labels)

    def result(self, total: int) -> Panel | None:
        if not self.overall:
            return None
        return Panel(
            members={
                name: Member(judged=running.n, failed=self.failed[name], overall=running.mean(total))
                for name, running in self.overall.items()
            },
            agreement={
                question: Agreement(
                    metric=alpha.metric,
                    alpha=alpha.alpha(),
                    unanimous=share(alpha.unanimous, alpha.units),
                    split=self.split[question],
                )
                for question, alpha in self.alphas.items()
            },
        )


def _empty_histograms(spec: JudgeSpec) -> dict[str, dict[str, int]]:
    histograms: dict[str, dict[str, int]] = {}
    if spec.checklist:
        return histograms  # each task has questions of its own
    for question in spec.own_questions:
        if isinstance(question, ScoreQuestion | ChoiceQuestion | BandQuestion):
            histograms[question.id] = {str(label): 0 for label in question.labels}
        elif isinstance(question, FlagsQuestion):
            histograms[question.id] = dict.fromkeys(question.codes, 0)
    if spec.kind == "pairwise" and spec.orders == "both":
        histograms["preference"]["inconsistent"] = 0
    return histograms


def _count_labels(histograms: dict[str, dict[str, int]], verdict: Verdict, every: bool) -> set[str]:
    """Count one verdict's labels. every: it must have an answer to each question, or KeyError is raised; else some
    are for other readers than its own. The questions that it answers."""
    asked = set(histograms) if every else set(histograms).intersection(verdict.answers)
    for name in asked:
        answer = verdict.answers[name].value
        if answer is None:
            answer = SPLIT if name in verdict.split else CANNOT
            histograms[name].setdefault(answer, 0)
        for label in answer if isinstance(answer, list) else [answer]:
            histograms[name][str(label)] += 1
    return asked


def summarize(
    verdicts: Iterable[Verdict],
    spec: JudgeSpec,
    seconds: float | None = None,
    judged: int | None = None,
    records: int | None = None,
) -> Summary:
    """Count verdicts, which may be a generator of millions.

    seconds: how long it took to reach `judged` of them, by default all. records: how many there are to judge, by
    default as many as there are verdicts.
    """
    total = 0
    statuses = dict.fromkeys(STATUSES, 0)
    scales: dict[str, Scale] = {"preference_a": (0, 1)} if spec.kind == "pairwise" else spec.scales
    overall = Running((0, 1) if spec.kind == "pairwise" else spec.bounds)
    scores = {name: Running(scale) for name, scale in scales.items()}
    passes = graded = 0
    histograms = _empty_histograms(spec)
    pairs = _Pairs(spec) if spec.kind == "pairwise" else None
    credits = _Credits() if spec.checklist else None
    dual = Diagnosing(spec.dual_control) if spec.dual_control else None
    asked: set[str] = set()
    members = _Members(spec, overall.scale)
    red_lines = {code: 0 for name in spec.veto for code in histograms[name]}
    red_lines |= {line.code: 0 for line in spec.red_lines}
    unsure = 0
    worst, best = _Greatest(), _Greatest()
    failures: list[Failure] = []
    usage = Usage()

    for verdict in verdicts:
        total += 1
        statuses[verdict.status] += 1
        usage += verdict.usage
        members.add(verdict)
        if verdict.overall is None:
            if len(failures) < FAILURES:
                failures.append(Failure(id=verdict.id, status=verdict.status, error=verdict.error))
            continue
        overall.add(verdict.overall)
        for name, value in verdict.scores.items():
            scores[name].add(value)
        if verdict.passed is not None:
            graded += 1
            passes += verdict.passed
        asked |= _count_labels(histograms, verdict, every=dual is None)
        unsure += verdict.unsure
        for code in verdict.red_lines:
            red_lines[code] += 1
        for each in (credits, dual):
            if each:
                each.add(verdict)
        if pairs:
            pairs.add(verdict)
        else:
            rank = (float(not verdict.red_lines), verdict.overall, total)
            best.add(rank, verdict)
            worst.add(tuple(-part for part in rank), verdict)

    judged = total if judged is None else judged
    return Summary(
        judge=spec.name,
        kind=spec.kind,
        records=total if records is None else records,
        total=total,
        statuses=statuses,
        overall=overall.mean(total),
        scores={name: mean for name, running in scores.items() if (mean := running.mean(total))},
        passed=share(passes, graded),
        histograms={name: histogram for name, histogram in histograms.items() if not dual or name in asked},
        pairwise=pairs and pairs.result(total),
        panel=members.result(total),
        credits=credits and credits.result(),
        diagnosis=dual and dual.result(),
        red_lines=red_lines,
        unsure=unsure,
        worst=worst.cases((overall.n + 1) // 2),
        best=best.cases(overall.n // 2),
        undecided=pairs.undecided if pairs else [],
        failures=failures,
        usage=usage,
        judged=judged,
        seconds=seconds,
        verdicts_per_second=judged / seconds if seconds else None,
    )
