"""Arithmetic on answers, and nothing else: pure functions, no model, no files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction


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


def vote(labels: Sequence[str]) -> str | None:
    """The one label that all agree on, else None."""
    return labels[0] if labels and all(label == labels[0] for label in labels) else None


def share_of_a(labels: Sequence[str]) -> float:
    """How much of the preference went to A: 1 for A, 0 for B, a half for a tie, averaged over the orders."""
    worth = {"A": 1.0, "B": 0.0, "tie": 0.5}
    return math.fsum(worth[label] for label in labels) / len(labels)


def expectation(distribution: Mapping[float, float]) -> tuple[float, float]:
    """Mean and standard deviation of value -> probability."""
    mean = math.fsum(value * p for value, p in distribution.items())
    variance = math.fsum((value - mean) ** 2 * p for value, p in distribution.items())
    return mean, math.sqrt(max(variance, 0.0))


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
