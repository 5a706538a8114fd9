"""The corrected headline: what people would say of all that was judged, from labels on some of it. And the
alt-test, which asks whether the judge may stand in for one of the people.

Pure arithmetic on arrays. A judge's own mean carries its errors; both corrections here carry the error of the
correction too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from localjudge.agreement.intervals import benjamini_yekutieli
from localjudge.agreement.statistics import Values

if TYPE_CHECKING:
    from localjudge.agreement.join import Joined

Z = NormalDist().inv_cdf(0.975)
LEAST_LABELS = 10
LEAST_INFORMATIVE = 0.1
"""Sensitivity plus specificity, less 1: below this, Rogan and Gladen's division blows up."""

NOT_RANDOM = 0.01
ALT_Q = 0.05
ALT_LEAST = 30


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Estimate(_Model):
    value: float
    low: float
    high: float


class Headline(_Model):
    """A mean or a share over all that was judged.

    what: 'mean', or 'share of <label>'. judge: the judge's own, over all. labels_only: from the labels alone.
    ppi: prediction-powered, with its power `tuning` (0 ignores the judge, 1 trusts it fully). rogan_gladen: of
    a share only, from the judge's sensitivity and specificity. applies: which of them to quote; why: in a
    sentence.
    more_labels: how many labels in all would halve the interval of `applies`; None when no number would, or it
    is not known."""

    what: str
    n_labelled: int
    n_judged: int
    judge: float
    labels_only: Estimate
    ppi: Estimate
    tuning: float
    rogan_gladen: Estimate | None
    sensitivity: float | None
    specificity: float | None
    applies: Literal["ppi", "rogan_gladen"]
    why: str
    more_labels: int | None


class AltAnnotator(_Model):
    """rho_judge, rho_person: how often each is at least as close to the others as the other is. p: that the
    judge is worse than the person by epsilon or more, made good for the several."""

    annotator: int
    n: int
    rho_judge: float
    rho_person: float
    p: float
    won: bool


class AltTest(_Model):
    """Calderon, Reichart and Dror (arXiv 2501.10970). passed: the judge wins against half of the annotators or
    more (winning_rate), with false discoveries held to 5 % by Benjamini and Yekutieli. advantage: the mean
    rho_judge."""

    epsilon: float
    winning_rate: float
    advantage: float
    passed: bool
    annotators: list[AltAnnotator]


def _scale_variance(groups: Sequence[str] | None, values: Values) -> float:
    """The variance of the mean of values: of records, or, where groups hang together, of groups (the
    cluster-robust sum of group totals)."""
    n = len(values)
    off = values - values.mean()
    if groups is None:
        return float((off**2).mean() / n)
    _, place = np.unique(np.asarray(groups), return_inverse=True)
    totals = np.bincount(place, weights=off)
    g = len(totals)
    return float((totals**2).sum() / n**2 * g / max(g - 1, 1))


def power_tuning(gold: Values, judged: Values, rest: Values) -> float:
    """The lambda of PPI++ (Angelopoulos, Duchi and Zrnic, arXiv 2311.01453, example 6.1): cov(gold, judged)
    over (1 + n/N) var(judged, of both samples), cut to 0 to 1."""
    n, big = len(gold), len(rest)
    spread = float(np.var(np.concatenate([judged, rest]), ddof=1)) if n + big > 1 else 0.0
    if spread <= 0 or not big:
        return 0.0
    covariance = float(((gold - gold.mean()) * (judged - judged.mean())).mean())
    return min(1.0, max(0.0, covariance / ((1 + n / big) * spread)))


def ppi(
    gold: Values,
    judged: Values,
    rest: Values,
    tuning: float | None = None,
    groups: Sequence[str] | None = None,
    rest_groups: Sequence[str] | None = None,
) -> tuple[Estimate, float]:
    """The prediction-powered mean (PPI++), its 95 % interval, and its power tuning.

    gold, judged: (n,), of the labelled records, a random sample; rest: (N,), the judge's numbers of others.
    """
    lam = power_tuning(gold, judged, rest) if tuning is None else tuning
    off = gold - lam * judged
    value = float(off.mean() + (lam * rest.mean() if len(rest) else 0.0))
    variance = _scale_variance(groups, off)
    if len(rest) and lam:
        variance += _scale_variance(rest_groups, lam * rest)
    half = Z * math.sqrt(variance)
    return Estimate(value=value, low=value - half, high=value + half), lam


def rogan_gladen(share: float, n: int, specificity: float, m0: int, sensitivity: float, m1: int) -> Estimate | None:
    """The true share of positives behind a judge's share of n records (Rogan and Gladen 1978), with an interval
    that has the errors of the share and of both accuracies (Lee et al., arXiv 2511.21140).

    specificity: of m0 true negatives; sensitivity: of m1 true positives. The interval is taken about counts
    with a little added (z^2 to the share's, 2 to the others'), moved by the second-order term. None when
    sensitivity + specificity - 1 is under 0.1: such a judge says next to nothing."""
    if m0 < 1 or m1 < 1 or n < 1 or sensitivity + specificity - 1 < LEAST_INFORMATIVE:
        return None
    value = min(1.0, max(0.0, (share + specificity - 1) / (sensitivity + specificity - 1)))
    p, q0, q1 = (
        (n * share + Z**2 / 2) / (n + Z**2),
        (m0 * specificity + 1) / (m0 + 2),
        (m1 * sensitivity + 1) / (m1 + 2),
    )
    informative = q0 + q1 - 1
    if informative <= 0:
        return None
    v0, v1 = q0 * (1 - q0) / (m0 + 2), q1 * (1 - q1) / (m1 + 2)
    theta = (p + q0 - 1) / informative
    moved = theta + 2 * Z**2 * (theta * v1 - (1 - theta) * v0)
    half = Z * math.sqrt(p * (1 - p) / (n + Z**2) + (1 - theta) ** 2 * v0 + theta**2 * v1) / informative
    low, high = (min(1.0, max(0.0, end)) for end in (moved - half, moved + half))
    return Estimate(value=value, low=min(low, value), high=max(high, value))


def labels_to_halve(gold: Values, judged: Values, rest: Values) -> int | None:
    """How many labels in all would halve the interval of `ppi`, those added being taken from the rest; None
    when not even all would.

    The variance with n labels of a total T, tuned at each n: var(gold) / n times 1 - r^2 (1 - n/T), r the
    correlation of gold and judge; that of a mean over all T that is known once all are labelled is taken as
    var(gold) / T."""
    n, total = len(gold), len(gold) + len(rest)
    spread = float(np.var(gold))
    if spread <= 0 or n < 2 or not len(rest):
        return None
    jspread = float(np.var(judged))
    covariance = float(((gold - gold.mean()) * (judged - judged.mean())).mean())
    r2 = covariance**2 / (spread * jspread) if jspread > 0 and covariance > 0 else 0.0

    def variance(labels: float) -> float:
        return spread / labels * (1 - min(r2, 1.0) * (1 - labels / total))

    wanted = variance(n) / 4
    if variance(total) > wanted:
        return None
    low, high = n, total
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if variance(middle) <= wanted else (middle, high)
    return high


def _looks_random(labelled: Values, rest: Values) -> bool:
    """Whether the judge's numbers of the labelled and of the rest could come from one population: two means, z."""
    se = math.sqrt(float(np.var(labelled)) / len(labelled) + float(np.var(rest)) / len(rest))
    off = abs(float(labelled.mean() - rest.mean()))
    if se == 0:
        return off == 0
    return 2 * (1 - NormalDist().cdf(off / se)) >= NOT_RANDOM


def headline(data: Joined) -> Headline | None:
    """The corrected mean of a score or overall, or share that passes, has a flag, is of the first of two labels
    (`yes` where it is one), or of the preference that is A's.

    None where the labels are too few, nothing is left unlabelled, or a choice has more labels than two.
    """
    kind, labels = data.target.kind, data.target.labels
    if kind == "choice" and len(labels) > 2:
        return None
    positive = {"passed": 1, "flag": 1, "choice": labels.index("yes") if "yes" in labels else 0}.get(kind)
    judged = data.of(data.ok)
    told, rest = _as_numbers(judged.number, positive), _as_numbers(data.rest, positive)
    gold = (
        _as_numbers(judged.gold, positive)
        if kind != "preference"
        else np.array([1.0, 0.0, 0.5])[judged.gold.astype(int)]
    )
    if len(gold) < LEAST_LABELS or not len(rest) or not np.isfinite(np.concatenate([told, rest])).all():
        return None
    everything = np.concatenate([told, rest])
    plain, _ = ppi(gold, told, rest, 0.0, judged.groups, data.rest_groups)
    powered, tuning = ppi(gold, told, rest, None, judged.groups, data.rest_groups)
    corrected, sensitivity, specificity = None, None, None
    true, false = gold == 1, gold == 0
    if positive is not None and true.any() and false.any():
        sensitivity, specificity = float(told[true].mean()), float(1 - told[false].mean())
        corrected = rogan_gladen(
            float(rest.mean()), len(rest), specificity, int(false.sum()), sensitivity, int(true.sum())
        )
    applies: Literal["ppi", "rogan_gladen"] = "ppi"
    if _looks_random(told, rest):
        why = (
            "the labelled records look like a random sample of what was judged, and of these PPI is the sharper one"
        )
    elif corrected is not None:
        applies = "rogan_gladen"
        why = (
            "the judge rates the labelled records unlike the others, so they are no random sample. It is right if "
            "they were picked by what people say of them, or come from elsewhere; it is wrong if they were picked "
            "by what the judge said of them"
        )
    else:
        why = (
            "the judge rates the labelled records unlike the others: they are no random sample, and no correction "
            "here is sound; label records picked at random"
        )
    label = "A" if positive is None else labels[positive]
    return Headline(
        what="mean" if data.target.numeric else f"share of {label}",
        n_labelled=len(gold),
        n_judged=len(everything),
        judge=float(everything.mean()),
        labels_only=_inside(plain, data),
        ppi=_inside(powered, data),
        tuning=tuning,
        rogan_gladen=corrected,
        sensitivity=sensitivity,
        specificity=specificity,
        applies=applies,
        why=why,
        more_labels=labels_to_halve(gold, told, rest) if applies == "ppi" else None,
    )


def _as_numbers(values: Values, positive: int | None) -> Values:
    """Labels as 1 where they are the one that is counted; numbers as they are."""
    return values if positive is None else (values == positive).astype(float)


def _inside(estimate: Estimate, data: Joined) -> Estimate:
    """Cut to the scale."""
    low, high = data.target.bounds or (0.0, 1.0)
    return Estimate(**{name: min(high, max(low, end)) for name, end in estimate.model_dump().items()})


def alt_test(judge: Values, people: Values, numeric: bool, epsilon: float = 0.2) -> AltTest | None:
    """judge: (N,); people: (N, annotators), NaN where one gave no label.

    For each annotator in turn, on records that others labelled too: who is closer to the others, the annotator
    or the judge? Closeness is the share of others who gave the same label, or, of numbers, minus the root mean
    square distance from them. One-sided t-test on the difference of wins against epsilon. None with fewer than
    three
    annotators of 30 such records each: the test needs them."""
    found: list[dict[str, Any]] = []
    for j in range(people.shape[1]):
        others = np.delete(people, j, 1)
        rows = np.isfinite(people[:, j]) & np.isfinite(others).any(1) & np.isfinite(judge)
        if rows.sum() < ALT_LEAST:
            continue
        close_judge = _closeness(judge[rows], others[rows], numeric)
        close_person = _closeness(people[rows, j], others[rows], numeric)
        wins_judge = (close_judge >= close_person).astype(float)
        wins_person = (close_person >= close_judge).astype(float)
        found.append(
            {
                "annotator": j,
                "n": int(rows.sum()),
                "rho_judge": float(wins_judge.mean()),
                "rho_person": float(wins_person.mean()),
                "p": _t_below(wins_person - wins_judge, epsilon),
            }
        )
    if len(found) < 3:
        return None
    adjusted = benjamini_yekutieli([one["p"] for one in found])
    annotators = [
        AltAnnotator(**{**one, "p": p, "won": p <= ALT_Q}) for one, p in zip(found, adjusted, strict=True)
    ]
    rate = sum(one.won for one in annotators) / len(annotators)
    return AltTest(
        epsilon=epsilon,
        winning_rate=rate,
        advantage=float(np.mean([one.rho_judge for one in annotators])),
        passed=rate >= 0.5,
        annotators=annotators,
    )


def _closeness(one: Values, others: Values, numeric: bool) -> Values:
    given = np.isfinite(others)
    n = given.sum(1)
    if numeric:
        squares = np.where(given, (others - one[:, None]) ** 2, 0).sum(1)
        result: Values = -np.sqrt(squares / n)
        return result
    equal: Values = (others == one[:, None]).sum(1) / n
    return equal


def _t_below(values: Values, bound: float) -> float:
    """One-sided p of Student's t that the mean is not below the bound."""
    from scipy.special import stdtr

    n = len(values)
    sd = float(np.std(values, ddof=1))
    off = float(values.mean()) - bound
    if sd == 0:
        return 0.0 if off < 0 else 1.0
    return float(stdtr(n - 1, off / (sd / math.sqrt(n))))
