"""How sure a figure is: intervals and tests. Knows statistics as functions of counts, never what they mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from localjudge.agreement.statistics import Codes, Pairs, Values, bin_of, ece_of, weigh

Method = Literal["wilson", "bca", "percentile", "jackknife", "debiased"]

DRAWS = 2000
CONFIDENCE = 0.95
MOST_CELLS = 4000
"""More distinct pairs than these are not resampled: a jackknife of blocks says the same of so many, far sooner."""
BLOCKS = 100
_BATCH = 1 << 22
"""Counts held at a time."""


@dataclass(frozen=True)
class Interval:
    """95 %. low, high: None when every resample gives the same, or too few give anything."""

    low: float | None
    high: float | None
    method: Method | None


UNKNOWN = Interval(None, None, None)


@dataclass(frozen=True)
class Units:
    """What is resampled: records, or groups of records that hang together.

    patterns: sparse (P, C), what a unit adds to the counts of each of C cells; no two rows are equal.
    times: (P,), how many units have each pattern. of_unit: (U,), which pattern each unit has.
    """

    patterns: Any
    times: Values
    of_unit: Codes
    grouped: bool

    @classmethod
    def of(cls, cell: Codes, cells: int, groups: Sequence[Any] | None = None) -> Units:
        """cell: for each record, which of the cells it is in. groups: for each record, what it belongs to."""
        from scipy.sparse import csr_array

        cell = np.asarray(cell, np.intp)
        names, group = np.unique(np.asarray(groups), return_inverse=True) if groups is not None else (cell, None)
        if group is None or len(names) == len(cell):
            used, of_unit = np.unique(cell, return_inverse=True)
            eye = csr_array((np.ones(len(used)), (np.arange(len(used)), used)), shape=(len(used), cells))
            times = np.bincount(of_unit, minlength=len(used)).astype(float)
            return cls(eye, times, of_unit, grouped=False)
        whole = csr_array((np.ones(len(cell)), (group, cell)), shape=(len(names), cells))
        whole.sum_duplicates()
        seen: dict[bytes, int] = {}
        of_unit = np.empty(len(names), np.intp)
        first: list[int] = []
        for unit in range(len(names)):
            span = slice(whole.indptr[unit], whole.indptr[unit + 1])
            key = whole.indices[span].tobytes() + b"|" + whole.data[span].tobytes()
            if key not in seen:
                seen[key] = len(first)
                first.append(unit)
            of_unit[unit] = seen[key]
        return cls(whole[first], np.bincount(of_unit).astype(float), of_unit, grouped=True)

    @property
    def n(self) -> int:
        return len(self.of_unit)

    @property
    def counts(self) -> Values:
        """Of the sample itself, (C,)."""
        return np.asarray(self.times @ self.patterns)

    def resamples(self, rng: np.random.Generator, draws: int) -> Values:
        """How often each pattern was drawn, (draws, P), n units a draw."""
        if len(self.times) < self.n / 4:
            return rng.multinomial(self.n, self.times / self.n, size=draws).astype(float)
        drawn = rng.integers(self.n, size=(draws, self.n))
        return np.stack([np.bincount(self.of_unit[row], minlength=len(self.times)) for row in drawn]).astype(float)


Figures = Callable[[Values], Values]
"""Counts (B, C) -> figures (B, F)."""


def intervals(
    units: Units, figures: Figures, seed: int = 0, draws: int = DRAWS, confidence: float = CONFIDENCE
) -> list[Interval]:
    """An interval for each figure of a sample, by resampling its units.

    BCa (Efron 1987); percentile where BCa is not defined; of more than 4,000 distinct pairs, Student's t on a
    jackknife of 100 blocks of units (Tukey 1958; at that size they agree, and the resamples would take
    minutes)."""
    if units.n < 2:
        return [UNKNOWN] * figures(units.counts[None]).shape[-1]
    estimate = figures(units.counts[None])[0]
    rng = np.random.default_rng(seed)
    if units.patterns.shape[1] > MOST_CELLS and units.n > MOST_CELLS:
        return _jackknife(units, figures, estimate, rng, confidence)
    drawn = resampled(units, figures, rng, draws)
    left_out, weights = leave_out(units, figures, rng)
    return [bca(estimate[i], drawn[:, i], left_out[:, i], weights, confidence) for i in range(len(estimate))]


def resampled(units: Units, figures: Figures, rng: np.random.Generator, draws: int) -> Values:
    """The figures of `draws` resamples, (draws, F)."""
    width = max(units.patterns.shape[1], len(units.times), units.n if len(units.times) >= units.n / 4 else 1)
    step = max(1, _BATCH // width)
    parts = []
    for start in range(0, draws, step):
        weights = units.resamples(rng, min(step, draws - start))
        parts.append(figures(np.asarray(weights @ units.patterns)))
    return np.concatenate(parts)


def leave_out(units: Units, figures: Figures, rng: np.random.Generator) -> tuple[Values, Values]:
    """The figures without each unit in turn, (J, F), and how many units each stands for; of very many units,
    without each of 100 blocks of them."""
    whole = units.counts
    if len(units.times) <= 10 * BLOCKS:
        step = max(1, _BATCH // len(whole))
        rows = units.patterns.toarray() if len(units.times) * len(whole) <= _BATCH else units.patterns
        parts = []
        for start in range(0, len(units.times), step):
            part = rows[start : start + step]
            parts.append(figures(whole - (part if isinstance(part, np.ndarray) else part.toarray())))
        return np.concatenate(parts), units.times
    return figures(whole - _blocks(units, rng)), np.ones(BLOCKS)


def _blocks(units: Units, rng: np.random.Generator) -> Values:
    """What each of 100 random blocks of units adds to the counts, (100, C)."""
    from scipy.sparse import csr_array

    block = rng.permutation(units.n) % BLOCKS
    chosen = csr_array((np.ones(units.n), (block, units.of_unit)), shape=(BLOCKS, len(units.times)))
    return np.asarray((chosen @ units.patterns).toarray())


def _jackknife(
    units: Units, figures: Figures, estimate: Values, rng: np.random.Generator, confidence: float
) -> list[Interval]:
    from scipy.special import stdtrit

    whole = units.counts
    blocks = _blocks(units, rng)
    left_out = np.concatenate([figures((whole - blocks[b])[None]) for b in range(BLOCKS)])
    t = float(stdtrit(BLOCKS - 1, (1 + confidence) / 2))
    found = []
    for i, value in enumerate(estimate):
        parts = left_out[:, i]
        se = float(np.sqrt((BLOCKS - 1) / BLOCKS * ((parts - parts.mean()) ** 2).sum()))
        known = np.isfinite(value) and np.isfinite(se) and se > 0
        found.append(Interval(float(value - t * se), float(value + t * se), "jackknife") if known else UNKNOWN)
    return found


def bca(
    estimate: float,
    drawn: Values,
    left_out: Values,
    weights: Values | None = None,
    confidence: float = CONFIDENCE,
) -> Interval:
    """The bias-corrected and accelerated interval (Efron 1987) of an estimate from its resamples, NaN where one
    gave nothing, and from what it is without each unit. weights: units behind each of the latter.

    Percentile when all resamples lie on one side of the estimate, or no unit alone changes it.
    """
    drawn = drawn[np.isfinite(drawn)]
    if not np.isfinite(estimate) or len(drawn) < DRAWS / 4 or np.ptp(drawn) == 0:
        return UNKNOWN
    normal = NormalDist()
    tail = (1 - confidence) / 2
    edges = [tail, 1 - tail]
    method: Method = "percentile"
    # Half of the ties: figures of small tables take few values, and the estimate is often one of them.
    below = (np.sum(drawn < estimate - 1e-12) + np.sum(drawn <= estimate + 1e-12)) / 2 / len(drawn)
    known = np.isfinite(left_out)
    times = (np.ones(len(left_out)) if weights is None else weights)[known]
    parts = left_out[known]
    if 0 < below < 1 and times.sum() > 1:
        off = np.average(parts, weights=times) - parts
        spread = float((times * off**2).sum())
        if spread > 1e-24:
            acceleration = float((times * off**3).sum()) / (6 * spread**1.5)
            z0 = normal.inv_cdf(float(below))
            moved = [z0 + normal.inv_cdf(edge) for edge in edges]
            edges = [normal.cdf(z0 + z / (1 - acceleration * z)) for z in moved if acceleration * z < 1]
            method = "bca"
            if len(edges) < 2:
                edges, method = [tail, 1 - tail], "percentile"
    low, high = np.quantile(drawn, edges)
    return Interval(float(low), float(high), method)


def ece_interval(pairs: Pairs, units: Units, bins: int, seed: int = 0) -> Interval:
    """An interval for the ECE of pairs (confidence, right), which chance alone pushes up: so does resampling,
    once more. The lower end is moved down by twice that push, and is 0 where verdicts as sure as these and
    right just as often would show as much (Broecker and Smith 2007); of very many pairs the push is nothing."""
    statistic = ece_of(bins)

    def figures(counts: Values) -> Values:
        return statistic(pairs, counts)[:, None]

    if len(pairs.x) > MOST_CELLS or units.n < 2:
        return intervals(units, figures, seed)[0]
    rng = np.random.default_rng(seed)
    value = float(figures(units.counts[None])[0, 0])
    drawn = resampled(units, figures, rng, DRAWS // 2)[:, 0]
    push, half = float(drawn.mean()) - value, NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * float(drawn.std())
    sure, place = np.unique(pairs.x, return_inverse=True)
    times = np.bincount(place, weights=pairs.counts).astype(int)
    right = rng.binomial(times, np.clip(sure, 0, 1), (DRAWS // 2, len(sure)))
    bin_at = bin_of(sure, bins)[:, None] == np.arange(bins)
    by_chance = np.abs(weigh((times * sure - right).astype(float), bin_at)).sum(-1) / times.sum()
    low = max(0.0, value - 2 * push - half)
    if value <= np.quantile(by_chance, (1 + CONFIDENCE) / 2):
        low = 0.0
    return Interval(low, min(1.0, value + half), "debiased")


# Two judges


def mcnemar(only_first: int, only_second: int) -> float:
    """The exact two-sided p that two judges are right equally often (McNemar 1947), from how many records only
    one of them is right about. 1 when there are none."""
    from scipy.special import bdtr

    n = only_first + only_second
    return 1.0 if not n else float(min(1.0, 2 * bdtr(min(only_first, only_second), n, 0.5)))


def bootstrap_p(drawn: Values) -> float | None:
    """The two-sided p that a difference is 0, from its resamples: twice the share on the rarer side, one more
    on each side, so that it is never 0 (Davison and Hinkley 1997)."""
    drawn = drawn[np.isfinite(drawn)]
    if not len(drawn):
        return None
    rarer = min(np.sum(drawn <= 0), np.sum(drawn >= 0))
    return float(min(1.0, 2 * (rarer + 1) / (len(drawn) + 1)))


def holm(p: Sequence[float]) -> list[float]:
    """p values made good for being several (Holm 1979): what each must be held against is then alpha itself."""
    values = np.asarray(p, float)
    order = np.argsort(values, kind="stable")
    steps = values[order] * (len(values) - np.arange(len(values)))
    adjusted = np.empty(len(values))
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return [float(value) for value in adjusted]


def benjamini_yekutieli(p: Sequence[float]) -> list[float]:
    """p values made good for the false discovery rate under any dependence (Benjamini and Yekutieli 2001)."""
    values = np.asarray(p, float)
    m = len(values)
    order = np.argsort(values, kind="stable")
    steps = values[order] * m * np.sum(1 / np.arange(1, m + 1)) / np.arange(1, m + 1)
    adjusted: NDArray[np.float64] = np.empty(m)
    adjusted[order] = np.minimum(np.minimum.accumulate(steps[::-1])[::-1], 1)
    return [float(value) for value in adjusted]
