"""Arithmetic on answers, and nothing else: pure functions, no model, no files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from statistics import mean, median, pstdev
from typing import Literal


def half_up(value: float, decimals: int = 0) -> float:
    """Round half away from zero, as people do on paper (Python rounds half to even).

    A float such as 2.675 is read as it prints, not as the binary number a little below it.
    """
    scaled = Fraction(str(value)) * 10**decimals
    whole = math.floor(abs(scaled) + Fraction(1, 2))
    return float(Fraction(whole if scaled >= 0 else -whole, 10**decimals))


def weighted_mean(values: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Sum of value times weight over the sum of weights; a value without a weight weighs 1.

    Exact on the numbers as they print, so that all fives are five whatever the weights. Raises ZeroDivisionError
    when all weights are 0.
    """
    exact = {name: Fraction(str(weights.get(name, 1.0))) for name in values}
    total = sum(Fraction(str(value)) * exact[name] for name, value in values.items())
    return float(total / sum(exact.values()))


def center(values: Sequence[float], how: Literal["mean", "median"]) -> float:
    """The mean or the median, exact on the numbers as they print. Raises StatisticsError of nothing."""
    exact = [Fraction(str(value)) for value in values]
    return float(mean(exact) if how == "mean" else median(exact))


def spread(values: Sequence[float]) -> float:
    """The standard deviation over just these values (not of a sample)."""
    return pstdev(values)


def vote(labels: Sequence[str]) -> str | None:
    """The one label that all agree on, else None."""
    return labels[0] if labels and all(label == labels[0] for label in labels) else None


def share_of_a(labels: Sequence[str]) -> float:
    """How much of the preference went to A: 1 for A, 0 for B, a half for a tie, averaged over the orders."""
    worth = {"A": 1.0, "B": 0.0, "tie": 0.5}
    return math.fsum(worth[label] for label in labels) / len(labels)


def expectation(distribution: Mapping[float, float]) -> tuple[float, float]:
    """Mean and standard deviation of value -> probability."""
    middle = math.fsum(value * p for value, p in distribution.items())
    variance = math.fsum((value - middle) ** 2 * p for value, p in distribution.items())
    return middle, math.sqrt(max(variance, 0.0))


def entropy(probabilities: Iterable[float]) -> float:
    """Shannon's, in bits."""
    return -math.fsum(p * math.log2(p) for p in probabilities if p > 0)


def mean_log_odds(distributions: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The average of distributions over the same labels on the log scale, that is, their normalised geometric mean;
    of two labels, the mean of the log-odds. A probability is taken to be 1e-9 at least."""
    labels = list(distributions[0])
    logs = {
        label: math.fsum(math.log(max(d[label], 1e-9)) for d in distributions) / len(distributions)
        for label in labels
    }
    total = math.fsum(math.exp(value) for value in logs.values())
    return {label: math.exp(value) / total for label, value in logs.items()}


def error_rate_score(errors: int, total: int, factor: float = 200) -> float | None:
    """max(0, 100 - factor·errors/total): with 200, each per cent of errors costs two points. None when there is
    nothing to be wrong about. Raises ValueError when more is wrong than there is."""
    if not 0 <= errors <= total:
        raise ValueError(f"{errors} of {total} cannot be wrong")
    if total == 0:
        return None
    return float(max(Fraction(0), 100 - Fraction(str(factor)) * errors / total))


def deduction_score(points: Iterable[float], full: float = 100) -> float:
    """`full` less what is taken off, never below 0."""
    return float(max(Fraction(0), Fraction(str(full)) - sum(Fraction(str(point)) for point in points)))


def tally_score(points: Iterable[float], items: int, worth: float) -> float | None:
    """The points earned out of `worth` each for `items` items, on 100 and at most that: with 20 items worth 10,
    min(100, total/20·10). None without items."""
    if items <= 0:
        return None
    earned = sum(Fraction(str(point)) for point in points)
    return float(min(Fraction(100), 100 * earned / (items * Fraction(str(worth)))))


def band_of(count: float, bands: Iterable[Sequence[float]]) -> tuple[float, float]:
    """The lowest and highest score of the band that a count falls into. bands: (at least, low, high), in any order.
    Raises ValueError when the count is below all of them."""
    reached = [tuple(band) for band in bands if count >= band[0]]
    if not reached:
        raise ValueError(f"no band begins at or below {count:g}")
    _, low, high = max(reached)
    return low, high


def in_band(low: float, high: float, place: Literal["low", "middle", "high"] = "middle") -> float:
    """A whole number within a band: its lowest, its middle rounded half up, or its highest."""
    return half_up({"low": low, "middle": (low + high) / 2, "high": high}[place])


def _judged(value: float) -> Fraction:
    """A score as a fraction. A third that became a float is a third again, so that a half is seen as one."""
    return Fraction(value).limit_denominator(100_000)


def mean_of_judged(values: Iterable[float | None], decimals: int = 0) -> float | None:
    """The plain mean of what could be judged, rounded half up; None when nothing could."""
    judged = [_judged(value) for value in values if value is not None]
    return half_up(float(sum(judged) / len(judged)), decimals) if judged else None


def weighted_of_judged(values: Mapping[str, float | None], weights: Mapping[str, float]) -> float | None:
    """The weighted mean of what could be judged, not rounded: what could not leaves the weighting, and the other
    weights keep their proportions. A value without a weight weighs 1. None when nothing that weighs could be
    judged."""
    judged = {name: value for name, value in values.items() if value is not None and weights.get(name, 1.0)}
    return weighted_mean(judged, weights) if judged else None


def grade_of(score: float, grades: Mapping[str, Sequence[float]]) -> str:
    """The grade whose [low, high] a score falls into; one between two grades has the lower one. Raises ValueError
    below them all."""
    reached = {grade: bounds[0] for grade, bounds in grades.items() if score >= bounds[0]}
    if not reached:
        raise ValueError(f"no grade begins at or below {score:g}")
    return max(reached, key=reached.__getitem__)


def unit(value: float, low: float, high: float) -> float:
    """A value of the scale `low` to `high` as a part of it, from 0 to 1."""
    return float((_judged(value) - _judged(low)) / (_judged(high) - _judged(low)))


def fact_share(supported: int, contradicted: int, unchecked: int = 0, worth: float | None = None) -> float | None:
    """The share of the claims that are supported. Those not checkable leave the count, or are each worth `worth`.
    None without a claim that counts."""
    spare = unchecked if worth is not None else 0
    total = supported + contradicted + spare
    return float((supported + spare * Fraction(str(worth or 0))) / total) if total else None


def fused(technical: float, persona: float, tau_technical: float, tau_persona: float) -> float:
    """S = (tau_t S_t + tau_p S_p) / (tau_t + tau_p)."""
    return weighted_mean({"t": technical, "p": persona}, {"t": tau_technical, "p": tau_persona})


def gate_ceiling(floor: float, tau_technical: float, tau_persona: float) -> float:
    """The least that an open gate lets through: a technical score at the floor, and a persona that likes nothing.
    What is fused behind a closed gate is multiplied by it, so that no answer there, whomever it pleases, comes out
    above one in front of it. A smaller persona weight alone does not do that: where personas weigh much, a plain
    answer loses more by not pleasing than a wrong one by being wrong."""
    return fused(floor, 0.0, tau_technical, tau_persona)
