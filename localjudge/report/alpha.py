"""Krippendorff's alpha of a stream of rated units, in memory that does not grow with it.

Krippendorff, Content Analysis (2004), chapter 11: 1 - observed over expected disagreement, where of a unit with m
ratings each pair weighs 1 / (m - 1), and units with fewer than two ratings count for nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Literal

Metric = Literal["nominal", "interval"]


class RunningAlpha:
    """metric: 'nominal' (labels are equal or not) or 'interval' (numbers; the squared difference)."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.units = self.unanimous = 0
        self._n = 0
        self._observed = 0.0
        self._counts: Counter[Hashable] = Counter()
        self._sum = self._squares = 0.0

    def add(self, ratings: Sequence[Hashable], labels: Sequence[Hashable] | None = None) -> None:
        """One unit's ratings: numbers under 'interval'. labels: what is looked at to see whether all said the same,
        where the numbers are finer."""
        m = len(ratings)
        if m < 2:
            return
        self.units += 1
        self.unanimous += len(set(ratings if labels is None else labels)) == 1
        self._n += m
        if self.metric == "nominal":
            counts = Counter(ratings)
            self._counts.update(counts)
            self._observed += (m * m - sum(n * n for n in counts.values())) / (m - 1)
            return
        numbers = [float(rating) for rating in ratings]  # type: ignore[arg-type]
        total, squares = math.fsum(numbers), math.fsum(number * number for number in numbers)
        self._sum += total
        self._squares += squares
        self._observed += 2 * (m * squares - total * total) / (m - 1)

    def alpha(self) -> float | None:
        """None without two differing ratings: then there is nothing to disagree about."""
        if not self.units:
            return None
        expected: float
        if self.metric == "nominal":
            expected = self._n**2 - sum(n * n for n in self._counts.values())
        else:
            expected = 2 * (self._n * self._squares - self._sum * self._sum)
        if expected <= 1e-12 * self._n**2:
            return None
        return 1 - self._observed * (self._n - 1) / expected
