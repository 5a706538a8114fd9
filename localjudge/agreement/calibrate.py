"""What the judge's probabilities are worth, and how to make them worth what they say.

Learned from labels on some records, written as calibration.json, applied to verdicts by `apply`. Everything
told of the result is told of records that the fit did not see. Knows joined arrays and verdicts.

A pair's preference is calibrated order by order, as first against second place, so that a leaning to one place
is taken out with it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

import localjudge
from localjudge.agreement.agree import Bin, Kept, reliability, risk_coverage
from localjudge.agreement.join import Joined, Opened
from localjudge.agreement.statistics import Codes, Values, brier, ece
from localjudge.errors import LocalJudgeError, RecordsError
from localjudge.judge import pairwise, rubric
from localjudge.judge.pairwise import swap_back
from localjudge.judge.questions import FlagsQuestion, ScoreQuestion
from localjudge.judge.scoring import entropy, expectation
from localjudge.judge.spec import JudgeSpec
from localjudge.run.store import write_atomically
from localjudge.verdict import Answer, Verdict

Method = Literal["temperature", "platt", "isotonic"]

LEAST = 20
"""Labels below which nothing can be fitted and checked."""
ISOTONIC_FROM = 500
FOLDS = 5
TINY = 1e-9
RISK = 0.05
"""How often the agreement that a threshold assures may fail to hold."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Steps(_Model):
    """A rising line through points, flat outside them."""

    x: list[float]
    y: list[float]


class Calibrator(_Model):
    """Probabilities of labels into better ones.

    temperature: each to the power 1 / temperature, made to sum to 1 (Guo et al. 2017). platt: of two labels,
    the log-odds of the second times slope plus offset (Platt 1999). isotonic: each label's own rising steps
    (Zadrozny and Elkan 2002), no probability below `floor`, made to sum to 1."""

    method: Method
    labels: list[str]
    temperature: float | None = None
    slope: float | None = None
    offset: float | None = None
    steps: list[Steps] | None = None
    floor: float = TINY

    def apply(self, p: Values) -> Values:
        """(N, K) -> (N, K)."""
        if self.method == "temperature":
            return _softmax(np.log(np.clip(p, TINY, 1)) / (self.temperature or 1.0))
        if self.method == "platt":
            second = _sigmoid((self.slope or 0.0) * _logit(p[:, 1]) + (self.offset or 0.0))
            return np.stack([1 - second, second], 1)
        each = [np.interp(p[:, k], steps.x, steps.y) for k, steps in enumerate(self.steps or [])]
        raised = np.clip(np.stack(each, 1), self.floor, 1 - self.floor)
        made: Values = raised / raised.sum(1, keepdims=True)
        return made


class Threshold(_Model):
    """The least confidence at which verdicts agree with people as often as wanted.

    confidence: None when none will do. coverage: the share of verdicts that have it; accuracy, low, high: of
    these.
    assured: with 95 % probability the agreement is at least `wanted` (thresholds tried from the strictest on,
    each by an exact binomial test, until one fails: Angelopoulos et al., arXiv 2110.01052); otherwise it only
    was so here."""

    wanted: float
    confidence: float | None
    coverage: float | None = None
    accuracy: float | None = None
    low: float | None = None
    high: float | None = None
    assured: bool = False


class Quality(_Model):
    """Of the probability of the verdict's label: ECE, and the reliability behind it. Of all labels': the log
    loss (nats) and Brier's score."""

    ece: float
    log_loss: float
    brier: float
    reliability: list[Bin]


class Evidence(_Model):
    """How a calibrator came out on records that it had not seen: each of `folds` parts of the labelled records,
    groups whole, calibrated by what the others say. tried: the log loss of each method there."""

    n: int
    groups: int
    folds: int
    tried: dict[str, float]
    before: Quality
    after: Quality
    risk_coverage: list[Kept]
    thresholds: list[Threshold]
    notes: list[str]


class Calibration(_Model):
    """calibration.json. calibrators, evidence: question, or question.code of a flag."""

    format: Literal[1] = 1
    localjudge: str
    judge: str
    judge_digest: str
    model: str
    model_fingerprint: str | None
    mode: str
    gold: list[str]
    seed: int
    calibrators: dict[str, Calibrator]
    evidence: dict[str, Evidence]


# Fitting


def _logit(p: Values) -> Values:
    inside = np.clip(p, TINY, 1 - TINY)
    result: Values = np.log(inside) - np.log1p(-inside)
    return result


def _sigmoid(x: Values) -> Values:
    from scipy.special import expit

    result: Values = expit(x)
    return result


def _softmax(x: Values) -> Values:
    raised = np.exp(x - x.max(-1, keepdims=True))
    result: Values = raised / raised.sum(-1, keepdims=True)
    return result


def log_loss(p: Values, y: Codes) -> float:
    """The mean of -log of what was given to the true label, in nats; no probability is taken to be under 1e-9."""
    return float(-np.log(np.clip(p[np.arange(len(y)), y], TINY, 1)).mean())


def fit_temperature(p: Values, y: Codes, labels: Sequence[str]) -> Calibrator:
    """The temperature of the least log loss. p: (N, K); y: (N,), places among the labels."""
    from scipy.optimize import minimize_scalar

    logs = np.log(np.clip(p, TINY, 1))

    def loss(log_t: float) -> float:
        return log_loss(_softmax(logs / math.exp(log_t)), y)

    best = minimize_scalar(loss, bounds=(math.log(0.05), math.log(100)), method="bounded")
    return Calibrator(method="temperature", labels=list(labels), temperature=float(math.exp(best.x)))


def fit_platt(p: Values, y: Codes, labels: Sequence[str]) -> Calibrator:
    """Logistic regression on the log-odds of the second of two labels; targets are pulled in by one count on
    each side, as Platt (1999) has it, so that separable data have a fit."""
    from scipy.optimize import minimize

    x = _logit(p[:, 1])
    ones, n = int(y.sum()), len(y)
    target = np.where(y == 1, (ones + 1) / (ones + 2), 1 / (n - ones + 2))

    def loss(w: Values) -> tuple[float, Values]:
        z = w[0] * x + w[1]
        off = _sigmoid(z) - target
        return float((np.logaddexp(0, z) - target * z).sum()), np.array([off @ x, off.sum()])

    start = np.array([1.0, 0.0])
    best = minimize(loss, start, jac=True, method="BFGS")
    return Calibrator(method="platt", labels=list(labels), slope=float(best.x[0]), offset=float(best.x[1]))


def fit_isotonic(p: Values, y: Codes, labels: Sequence[str]) -> Calibrator:
    """A rising step function for each label, by the pooling of adjacent violators."""
    from scipy.optimize import isotonic_regression

    steps = []
    for k in range(len(labels)):
        x, place = np.unique(p[:, k], return_inverse=True)
        weights = np.bincount(place).astype(float)
        means = np.bincount(place, weights=(y == k).astype(float)) / weights
        raised = isotonic_regression(means, weights=weights).x
        # Of a level stretch only the ends matter.
        kept = np.ones(len(x), bool)
        kept[1:-1] = (raised[1:-1] != raised[:-2]) | (raised[1:-1] != raised[2:])
        steps.append(Steps(x=x[kept].tolist(), y=raised[kept].tolist()))
    return Calibrator(method="isotonic", labels=list(labels), steps=steps, floor=1 / (len(y) + 2))


FITS: dict[Method, Callable[[Values, Codes, Sequence[str]], Calibrator]] = {
    "temperature": fit_temperature,
    "platt": fit_platt,
    "isotonic": fit_isotonic,
}


class _Readings:
    """The probabilities of one target: p (N, orders, K), each order's in the places in which it was shown, and
    places (N, orders), the truth in the same. label: the verdict's own, unless it follows from the
    probabilities."""

    def __init__(self, data: Joined, reads: bool) -> None:
        judged = data.of(data.ok)
        first = data.target.codes[0] if data.target.kind == "score" else 0.0
        p = judged.p[:, None] if judged.order_p is None else judged.order_p
        k = p.shape[2]
        truth = judged.rounded - first
        known = np.isfinite(p).all((1, 2))
        if data.target.kind == "preference" and k > 2 and not (p[known, :, 2] > 0).any():
            p = p[..., :2]
            known &= truth < 2  # a tie that the judge cannot give is not its to learn
        self.straight = p[known]
        self.truth = truth[known].astype(int)
        self.swapped = judged.order_p is not None
        self.p = _in_places(self.straight) if self.swapped else self.straight
        self.places = np.repeat(self.truth[:, None], self.p.shape[1], 1)
        if self.swapped:
            self.places[:, 1] = np.array([1, 0, 2])[self.places[:, 1]]
        self.labels = list(data.target.labels[: self.p.shape[2]])
        self.label = None if reads else (judged.label[known] - first)
        self.groups = [judged.groups[i] if judged.groups else judged.ids[i] for i in np.flatnonzero(known)]

    def verdicts(self, p: Values) -> tuple[Values, Values, Values]:
        """Of probabilities by order: those of the verdict (N, K), its confidence and whether it is right."""
        back = _in_places(p) if self.swapped else p
        whole = _softmax(np.log(np.clip(back, TINY, 1)).mean(1))
        label = whole.argmax(1) if self.label is None else self.label
        inside = label < whole.shape[1]
        own = whole[np.arange(len(whole)), np.where(inside, label, 0).astype(int)]
        sure: Values = np.where(inside, own, whole.max(1))
        return whole, sure, (label == self.truth).astype(float)

    def quality(self, p: Values) -> Quality:
        whole, sure, right = self.verdicts(p)
        error, score = ece(sure, right), brier(whole, self.truth)
        assert error is not None
        assert score is not None
        return Quality(
            ece=error, log_loss=log_loss(whole, self.truth), brier=score, reliability=reliability(sure, right)
        )

    def calibrated(self, calibrator: Calibrator, rows: Codes) -> Values:
        chosen = self.p[rows]
        return calibrator.apply(chosen.reshape(-1, chosen.shape[2])).reshape(chosen.shape)

    def fit(self, method: Method, rows: Codes) -> Calibrator:
        p = self.p[rows]
        return FITS[method](p.reshape(-1, p.shape[2]), self.places[rows].ravel(), self.labels)


def _in_places(p: Values) -> Values:
    """The second order's A and B exchanged: from the record's own to the places shown, and back."""
    back = p.copy()
    back[:, 1, [0, 1]] = p[:, 1, [1, 0]]
    return back


def calibrate(
    opened: Opened,
    joined: Sequence[Joined],
    golds: Sequence[str],
    *,
    method: Method | None = None,
    wanted: Sequence[float] = (),
    seed: int = 0,
) -> Calibration:
    """Fit one calibrator a target. method: by default the one of least log loss on held-out records:
    temperature; Platt for two labels; isotonic from 500 labels on. wanted: agreements to set thresholds for.

    Raises LocalJudgeError for targets without probabilities, and for too few labels.
    """
    mode = str(opened.run["settings"].get("mode"))
    calibrators, evidence = {}, {}
    for data in joined:
        name = data.target.name
        if data.target.kind in ("overall", "passed"):
            fix = "calibrate the questions behind it: --gold QUESTION=FIELD"
            raise LocalJudgeError(f"'{name}' has no probabilities of its own", where="--gold", fix=fix)
        calibrators[name], evidence[name] = _calibrate_one(data, mode == "score", method, wanted, seed)
    return Calibration(
        localjudge=localjudge.__version__,
        judge=opened.spec.name,
        judge_digest=opened.run["judge"]["digest"],
        model=opened.run["model"]["name"],
        model_fingerprint=opened.run["model"].get("fingerprint"),
        mode=mode,
        gold=list(golds),
        seed=seed,
        calibrators=calibrators,
        evidence=evidence,
    )


def _calibrate_one(
    data: Joined, reads: bool, method: Method | None, wanted: Sequence[float], seed: int
) -> tuple[Calibrator, Evidence]:
    name = data.target.name
    if not data.p.shape[1] or not np.isfinite(data.p).any():
        raise RecordsError(
            f"the run keeps no probabilities for '{name}'",
            fix="judge with --mode score; imported judgements have none",
        )
    readings = _Readings(data, reads)
    n = len(readings.truth)
    if n < LEAST:
        raise RecordsError(f"{n} labelled verdicts of '{name}' are too few", fix=f"label {LEAST} or more")
    if len(np.unique(readings.truth)) < 2:
        raise RecordsError(f"people gave '{name}' one label only: there is nothing to learn from")
    fold, groups = _folds(readings.groups, seed)
    folds = int(fold.max()) + 1
    if folds < 2:
        raise RecordsError(
            f"the labelled verdicts of '{name}' are all of one group: nothing can be held out",
            fix="label records of several groups",
        )
    two = readings.p.shape[2] == 2
    if method == "platt" and not two:
        raise LocalJudgeError(f"'{name}' has {readings.p.shape[2]} labels: Platt's is for two", where="--method")
    tried: list[Method] = [method] if method else ["temperature"]
    if method is None:
        tried += ["platt"] if two else []
        tried += ["isotonic"] if n >= ISOTONIC_FROM else []
    held_out = {one: _held_out(readings, one, fold, folds) for one in tried}
    losses = {one: log_loss(readings.verdicts(p)[0], readings.truth) for one, p in held_out.items()}
    best = min(tried, key=losses.__getitem__)
    before, after = readings.quality(readings.p), readings.quality(held_out[best])
    notes = []
    if after.log_loss >= before.log_loss:
        notes.append("on records it had not seen, calibration made nothing better")
    _, sure, right = readings.verdicts(held_out[best])
    return readings.fit(best, np.arange(n)), Evidence(
        n=n,
        groups=groups,
        folds=folds,
        tried={str(one): loss for one, loss in losses.items()},
        before=before,
        after=after,
        risk_coverage=risk_coverage(sure, right),
        thresholds=[threshold(sure, right, share) for share in wanted],
        notes=notes,
    )


def _folds(groups: Sequence[str], seed: int) -> tuple[Codes, int]:
    """A part for each record, groups whole, and how many groups there are."""
    names, place = np.unique(np.asarray(groups), return_inverse=True)
    of_group = np.random.default_rng(seed).permutation(len(names)) % FOLDS
    return of_group[place], len(names)


def _held_out(readings: _Readings, method: Method, fold: Codes, folds: int) -> Values:
    p = readings.p.copy()
    for part in range(folds):
        inside = np.flatnonzero(fold == part)
        p[inside] = readings.calibrated(readings.fit(method, np.flatnonzero(fold != part)), inside)
    return p


def threshold(sure: Values, right: Values, wanted: float) -> Threshold:
    """See Threshold."""
    from scipy.special import bdtrc

    curve = risk_coverage(sure, right, points=200)[::-1]  # the most confident first
    n = len(sure)
    assured: Kept | None = None
    for kept in curve:
        m = round(kept.coverage * n)
        if wanted**m > RISK:  # not even all right would be proof
            continue
        hits = round(kept.accuracy * m)
        if float(bdtrc(hits - 1, m, wanted)) > RISK:
            break
        assured = kept
    found = assured or next((kept for kept in reversed(curve) if kept.accuracy >= wanted), None)
    if found is None:
        return Threshold(wanted=wanted, confidence=None)
    return Threshold(wanted=wanted, **found.model_dump(), assured=assured is not None)


# Using


def write(calibration: Calibration, path: Path) -> None:
    write_atomically(path, calibration.model_dump_json(indent=1) + "\n")


def load(path: Path, spec: JudgeSpec, fingerprint: str | None = None, mode: str | None = None) -> Calibration:
    """Read a calibration for this judge; of this model and mode too, where these are given.

    Raises LocalJudgeError when it is none, or of something else: probabilities of one are not those of another.
    """
    where = str(path)
    try:
        calibration = Calibration.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise LocalJudgeError(
            "there is no such file", where=where, fix="make it with: localjudge calibrate"
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise LocalJudgeError(
            f"this is no calibration: {place + ': ' if place else ''}{first['msg'].lower()}", where=where
        ) from None
    fix = "calibrate it anew on a run of what you judge with"
    if calibration.judge_digest != spec.digest:
        what = f"it was made for the judge {calibration.judge}, digest {calibration.judge_digest[:12]}"
        raise LocalJudgeError(f"{what}; this is {spec.name}, {spec.digest[:12]}", where=where, fix=fix)
    if fingerprint is not None and calibration.model_fingerprint != fingerprint:
        raise LocalJudgeError(f"it was made for the model {calibration.model}, not this one", where=where, fix=fix)
    if mode is not None and calibration.mode != mode:
        raise LocalJudgeError(f"it was made in the mode {calibration.mode}, not {mode}", where=where, fix=fix)
    return calibration


def apply(calibration: Calibration, spec: JudgeSpec, verdict: Verdict) -> Verdict:
    """The same verdict with calibrated probabilities.

    What was read from probabilities follows them: the label, the expected score, overall, pass and red lines by
    the judge's own rules. What was written stays as it was written, with better probabilities beside it.
    `unsure` is set where a question's confidence is below its first threshold. A verdict that failed stays as
    it is.

    Where answers are at hand before they come to a verdict, `recalibrate` them there: rules that look at the
    record too cannot be followed from here. Raises LocalJudgeError for a judge that has such rules.
    """
    if verdict.status != "ok":
        return verdict
    orders = [verdict.answers] if verdict.orders is None else verdict.orders
    told = [recalibrate(calibration, spec, answers, swapped=bool(place)) for place, answers in enumerate(orders)]
    changed: dict[str, object] = {"answers": told[0]}
    read = any(answer.mass is not None for answers in told for answer in answers.values())
    if verdict.orders is not None or (read and told != orders):
        if verdict.measures or verdict.decisions:
            raise LocalJudgeError(
                f"what {spec.name} makes of its answers depends on the record too, so that its verdicts cannot be "
                "calibrated afterwards",
                fix="judge with --calibration",
            )
        rules = pairwise.verdict_of if spec.kind == "pairwise" else rubric.verdict_of
        new = rules(spec, verdict.id, told, verdict.model)
        changed = {name: getattr(new, name) for name in FOLLOWS}
    answers = changed["answers"]
    assert isinstance(answers, dict)
    return verdict.model_copy(update={**changed, "unsure": verdict.unsure or below_threshold(calibration, answers)})


FOLLOWS = ("overall", "passed", "scores", "answers", "orders", "red_lines", "order_gap", "grade")
"""What of a verdict follows from its answers' probabilities."""


def below_threshold(calibration: Calibration, answers: Mapping[str, Answer]) -> bool:
    """Whether any of a verdict's answers is less sure than its first threshold asks for."""
    return any(_below(calibration, name, answer) for name, answer in answers.items())


def _below(calibration: Calibration, name: str, answer: Answer) -> bool:
    """Whether an answer, or one code of flags, is less sure than the first threshold asks for."""
    for key, evidence in calibration.evidence.items():
        question, _, code = key.partition(".")
        least = next((t.confidence for t in evidence.thresholds if t.confidence is not None), None)
        if question != name or least is None or not answer.distribution:
            continue
        if code:
            p = answer.distribution.get(code, 1.0)
            sure = max(p, 1 - p)
        else:
            sure = answer.distribution.get(str(answer.value), max(answer.distribution.values()))
        if sure < least:
            return True
    return False


def _recalibrated(calibrator: Calibrator, distribution: Mapping[str, float]) -> dict[str, float]:
    """Labels that the calibrator does not know keep nothing; its own keep their order."""
    p = np.array([[distribution[label] for label in calibrator.labels]])
    return dict(zip(calibrator.labels, calibrator.apply(p)[0].tolist(), strict=True))


def recalibrate(
    calibration: Calibration, spec: JudgeSpec, answers: Mapping[str, Answer], *, swapped: bool = False
) -> dict[str, Answer]:
    """One order's answers with calibrated probabilities; those read from them follow.

    swapped: that these are of the swapped order, and already in the record's own A and B.
    """
    if not swapped:
        return {name: _better(calibration, spec, name, answer) for name, answer in answers.items()}
    told = swap_back(dict(answers))
    return swap_back({**told, "preference": _better(calibration, spec, "preference", told["preference"])})


def _better(calibration: Calibration, spec: JudgeSpec, name: str, answer: Answer) -> Answer:
    likely = answer.distribution
    question = next((question for question in spec.asked if question.id == name), None)
    if likely is None or question is None:
        return answer
    if isinstance(question, FlagsQuestion):
        raised = dict(likely)
        for code, p in likely.items():
            if calibrator := calibration.calibrators.get(f"{name}.{code}"):
                raised[code] = _recalibrated(calibrator, {"no": 1 - p, "yes": p})["yes"]
        value = answer.value if answer.mass is None else [code for code, p in raised.items() if p > 0.5]
        return answer.model_copy(update={"distribution": raised, "value": value})
    calibrator = calibration.calibrators.get(name)
    if calibrator is None or any(label not in likely for label in calibrator.labels):
        return answer
    made = _recalibrated(calibrator, likely)
    update: dict[str, object] = {"distribution": made}
    if answer.mass is not None:
        best = max(made, key=made.__getitem__)
        update |= {"value": best, "entropy": entropy(made.values())}
        if isinstance(question, ScoreQuestion):
            mean, sd = expectation({float(label): p for label, p in made.items()})
            update |= {"value": int(best), "expected": mean, "sd": sd}
    return answer.model_copy(update=update)


@dataclass(frozen=True)
class Calibrated:
    """A calibration of a judge's, as a run applies it to answers (`judge.asking.Correction`)."""

    calibration: Calibration
    spec: JudgeSpec

    @classmethod
    def load(cls, path: Path, spec: JudgeSpec, fingerprint: str, mode: str) -> Calibrated:
        """Raises LocalJudgeError, as `load` does."""
        return cls(load(path, spec, fingerprint, mode), spec)

    @property
    def has_threshold(self) -> bool:
        return any(t.confidence is not None for it in self.calibration.evidence.values() for t in it.thresholds)

    @property
    def provenance(self) -> dict[str, Any]:
        """What run.json says of it."""
        whole = self.calibration.model_dump_json()
        return {"digest": hashlib.sha256(whole.encode()).hexdigest(), "of": sorted(self.calibration.calibrators)}

    def answers(self, answers: Mapping[str, Answer], swapped: bool) -> dict[str, Answer]:
        return recalibrate(self.calibration, self.spec, answers, swapped=swapped)

    def unsure(self, answers: Mapping[str, Answer]) -> bool:
        return below_threshold(self.calibration, answers)
