"""What a cascade of two judges would come to at each confidence, from complete runs of both. Arithmetic alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from localjudge.agreement.statistics import Values
from localjudge.report.summary import wilson

POINTS = 100
WITHIN = 0.01
"""How much less than the teacher's agreement a cascade is to have at most, unless another agreement is wanted."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Point(_Model):
    """A cascade that escalates what is less confident than `below`, and what is in doubt whatever its confidence.

    escalated: the share of records that go to the teacher. agreement: of all verdicts with the labels; low, high:
    Wilson's 95 % interval, as if records stood alone. work: tokens times parameters, as a share of the teacher's
    alone; time: seconds likewise. None where that is not known.
    """

    below: float
    escalated: float
    agreement: float
    low: float
    high: float
    work: float | None = None
    time: float | None = None


def curve(
    sure: Values,
    always: NDArray[np.bool_],
    student: Values,
    teacher: Values,
    *,
    work: float | None = None,
    time: float | None = None,
) -> list[Point]:
    """From the student alone to the teacher alone: at most POINTS thresholds, each a confidence that was seen.

    sure: (N,) the student's confidence, NaN where it has none: then only `always` escalates. always: (N,) what is
    in doubt by itself. student, teacher: (N,) whether each is right, 0 or 1. work, time: what the student costs a
    record, as a share of what the teacher does; it judges every record.
    """
    n = len(sure)
    if not n:
        return []
    known = np.where(always, -np.inf, np.where(np.isfinite(sure), sure, np.inf))
    order = np.argsort(known, kind="stable")
    ordered = known[order]
    # right[k]: right verdicts when the k least sure records go to the teacher.
    gain = np.concatenate([[0.0], np.cumsum((teacher - student)[order])])
    right = student.sum() + gain
    # Equal confidences stay or go together; a threshold above the last one sends all that has a confidence.
    levels = np.unique(ordered[np.isfinite(ordered)])
    thresholds = np.append(levels, np.nextafter(levels[-1], math.inf)) if len(levels) else np.array([0.0])
    if len(thresholds) > POINTS:
        thresholds = thresholds[np.unique(np.linspace(0, len(thresholds) - 1, POINTS).round().astype(int))]
    found = []
    for below in thresholds:
        k = int(np.searchsorted(ordered, below, side="left"))
        low, high = wilson(float(right[k]), n)
        found.append(
            Point(
                below=float(below),
                escalated=k / n,
                agreement=float(right[k] / n),
                low=low,
                high=high,
                work=None if work is None else work + k / n,
                time=None if time is None else time + k / n,
            )
        )
    return found


class HeldOut(_Model):
    """What comes of choosing a threshold on one half of the records (groups whole) and judging the other by it,
    both ways together; low, high: Wilson's 95 % interval."""

    escalated: float
    agreement: float
    low: float
    high: float


def held_out(
    sure: Values,
    always: NDArray[np.bool_],
    student: Values,
    teacher: Values,
    groups: Sequence[str] | None,
    wanted: float | None,
    seed: int = 0,
) -> HeldOut | None:
    """As `curve` takes them. wanted: the agreement to choose for; None: in each half the teacher's own less WITHIN.
    None where a half has no threshold for it, or there is but one group."""
    names, place = np.unique(np.asarray(groups if groups is not None else range(len(sure))), return_inverse=True)
    if len(names) < 2:
        return None
    half = (np.random.default_rng(seed).permutation(len(names)) % 2)[place]
    right = escalated = 0.0
    for part in (0, 1):
        seen, unseen = half == part, half != part
        least = float(teacher[seen].mean()) - WITHIN if wanted is None else wanted
        point = choose(curve(sure[seen], always[seen], student[seen], teacher[seen]), least)
        if point is None:
            return None
        passed_on = always[unseen] | (sure[unseen] < point.below)
        right += float(np.where(passed_on, teacher[unseen], student[unseen]).sum())
        escalated += float(passed_on.sum())
    n = len(sure)
    low, high = wilson(right, n)
    return HeldOut(escalated=escalated / n, agreement=right / n, low=low, high=high)


def choose(points: Sequence[Point], wanted: float) -> Point | None:
    """The point of least escalation that has the wanted agreement, if any has.

    It is chosen on the very records that it is told of, so that its agreement is a little too good there; a
    threshold that holds elsewhere with known probability is what `localjudge calibrate --agreement` finds.
    """
    return next((point for point in sorted(points, key=lambda p: p.escalated) if point.agreement >= wanted), None)


def best(points: Sequence[Point]) -> Point | None:
    """The point of the greatest agreement, of several the cheapest."""
    return max(points, key=lambda p: (p.agreement, -p.escalated), default=None)
