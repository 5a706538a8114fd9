"""How far two ratings of the same things agree: pure functions on numpy arrays. Knows no verdicts and no files.

Each statistic takes `Pairs`, the distinct pairs of ratings, and how often each occurs: counts of shape (C,), or
(B, C) for B samples at once, which is how thousands of resamples cost little. It gives an array of shape () or
(B,).

What is not defined (one class only, all ties, no rows) is NaN in these arrays, without a warning, and `told`
makes None of it; no NaN leaves this package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Codes = NDArray[np.intp]
Metric = Literal["nominal", "ordinal", "interval"]

SAME = 1e-12
"""A variance below this part of the squared range is rounding: all values are equal."""

MOST_CELLS = 20_000
"""Cells of a table of ranks that is always worth filling, for Kendall's pairs; beyond, sorting may be quicker."""


def told(value: Any) -> float | None:
    """A number, or None for what is not defined."""
    number = float(value)
    return number if np.isfinite(number) else None


def ratio(above: Any, below: Any) -> Values:
    """above / below; NaN where below is not positive."""
    above, below = np.broadcast_arrays(np.asarray(above, float), np.asarray(below, float))
    result: Values = np.divide(above, below, out=np.full(above.shape, np.nan), where=below > 0)
    return result


def weigh(counts: Values, values: Any) -> Values:
    """The sum of values (C,) or (C, K), each as often as it is counted: (...) or (..., K) of counts (..., C).

    Not `counts @ values`: BLAS would start threads for such thin products, which on a busy machine only wait
    for one another."""
    values = np.asarray(values, float)
    result: Values = np.einsum("...c,c->..." if values.ndim == 1 else "...c,ck->...k", counts, values)
    return result


@dataclass(frozen=True, eq=False)
class Pairs:
    """The distinct pairs of one rating (x, shape (C,)) and the other (y), as numbers.

    counts: how often each occurs. labels: what can be given at all, ascending; by default what was.
    Nominal ratings are numbered by the caller, in any order.
    """

    x: Values
    y: Values
    counts: Values
    labels: Values

    @classmethod
    def of(cls, x: Any, y: Any, labels: Sequence[float] | None = None) -> tuple[Pairs, Codes]:
        """The pairs of two ratings of the same N things, and for each thing which pair it is."""
        rows = np.column_stack([np.asarray(x, float), np.asarray(y, float)])
        if not len(rows):
            rows = rows.reshape(0, 2)
        cells, cell = np.unique(rows, axis=0, return_inverse=True)
        counts = np.bincount(cell.ravel(), minlength=len(cells)).astype(float)
        known = np.unique(rows) if labels is None else np.unique(np.asarray(labels, float))
        return cls(cells[:, 0], cells[:, 1], counts, known), cell.ravel()

    @cached_property
    def coded(self) -> tuple[Codes, Codes]:
        """x and y as places among the labels."""
        return np.searchsorted(self.labels, self.x), np.searchsorted(self.labels, self.y)

    @cached_property
    def _one_hot(self) -> Any:
        from scipy.sparse import csr_array

        x, y = self.coded
        k = len(self.labels)
        return csr_array((np.ones(len(x)), (np.arange(len(x)), x * k + y)), shape=(len(x), k * k))

    def table(self, counts: Values | None = None) -> Values:
        """Confusion: (..., K, K), the first rating's labels down, the second's across."""
        counts = self.counts if counts is None else counts
        k = len(self.labels)
        flat = np.atleast_2d(counts) @ self._one_hot
        return np.asarray(flat).reshape(*counts.shape[:-1], k, k)

    @cached_property
    def ranks(self) -> tuple[Codes, Codes]:
        """x and y as places among their own distinct values."""
        return np.unique(self.x, return_inverse=True)[1], np.unique(self.y, return_inverse=True)[1]

    @cached_property
    def powers(self) -> Values:
        """x, y, their squares and their product, (C, 5), of x and y moved and shrunk together into 0 to 1, so
        that no square loses digits."""
        both = np.concatenate([self.x, self.y])
        low, span = (both.min(), np.ptp(both)) if len(both) else (0.0, 0.0)
        x, y = ((values - low) / (span or 1.0) for values in (self.x, self.y))
        return np.stack([x, y, x * x, y * y, x * y], 1)


Statistic = Callable[[Pairs, Values], Values]


def one(statistic: Callable[..., Values], x: Any, y: Any, labels: Sequence[float] | None = None) -> float | None:
    """A statistic of two arrays of ratings of the same things, None where it is not defined."""
    pairs, _ = Pairs.of(x, y, labels)
    return told(statistic(pairs, pairs.counts))


# Of labels


def accuracy(pairs: Pairs, counts: Values) -> Values:
    """The share of equal ratings."""
    return ratio(weigh(counts, pairs.x == pairs.y), counts.sum(-1))


def within_one(pairs: Pairs, counts: Values) -> Values:
    """The share of ratings at most 1 apart."""
    return ratio(weigh(counts, np.abs(pairs.x - pairs.y) <= 1), counts.sum(-1))


def chance(pairs: Pairs, counts: Values) -> Values:
    """The accuracy to be expected of the first ratings were they shuffled: the sum of products of the margins."""
    table = pairs.table(counts)
    return ratio((table.sum(-1) * table.sum(-2)).sum(-1), counts.sum(-1) ** 2)


def kappa(pairs: Pairs, counts: Values) -> Values:
    """Cohen's kappa (1960). Not defined when both ratings are all one label."""
    expected = chance(pairs, counts)
    return ratio(accuracy(pairs, counts) - expected, np.where(1 - expected > SAME, 1 - expected, 0))


def quadratic_kappa(pairs: Pairs, counts: Values) -> Values:
    """Cohen's weighted kappa (1968), a disagreement weighing the square of its size.

    From moments: 1 - E(x - y)^2 / (var x + var y + (mean x - mean y)^2), which is what the table comes to.
    """
    m = _moments(pairs, counts)
    expected = m.xx + m.yy + (m.x - m.y) ** 2
    off = m.xx + m.yy - 2 * m.xy + (m.x - m.y) ** 2
    return ratio(expected - off, np.where(expected > SAME, expected, 0))


def precision(label: int) -> Statistic:
    """Of what was given the label (by its place among the labels), how much is it."""
    return lambda pairs, counts: ratio(weigh(counts, _both(pairs, label)), weigh(counts, pairs.coded[0] == label))


def recall(label: int) -> Statistic:
    """Of what is the label, how much was given it."""
    return lambda pairs, counts: ratio(weigh(counts, _both(pairs, label)), weigh(counts, pairs.coded[1] == label))


def f1(label: int) -> Statistic:
    """The harmonic mean of precision and recall; 0 when nothing was found, not defined when nothing was there
    nor given."""

    def statistic(pairs: Pairs, counts: Values) -> Values:
        x, y = pairs.coded
        return ratio(2 * weigh(counts, _both(pairs, label)), weigh(counts, x == label) + weigh(counts, y == label))

    return statistic


def _both(pairs: Pairs, label: int) -> NDArray[np.bool_]:
    x, y = pairs.coded
    result: NDArray[np.bool_] = (x == label) & (y == label)
    return result


def macro_f1(pairs: Pairs, counts: Values, labels: int | None = None) -> Values:
    """The mean F1 of the labels that occur in either rating; of the first `labels` alone, when the last is none
    that the second can have."""
    table = pairs.table(counts)
    each = ratio(2 * np.diagonal(table, axis1=-2, axis2=-1), table.sum(-1) + table.sum(-2))[..., :labels]
    there = np.isfinite(each)
    return ratio(np.where(there, each, 0).sum(-1), there.sum(-1))


# Of numbers


@dataclass(frozen=True)
class _Moments:
    """Means and (co)variances, divided by n, on the scale of `Pairs.powers`."""

    n: Values
    x: Values
    y: Values
    xx: Values
    yy: Values
    xy: Values


def _moments(pairs: Pairs, counts: Values) -> _Moments:
    n = counts.sum(-1)
    mx, my, mxx, myy, mxy = np.moveaxis(ratio(weigh(counts, pairs.powers), n[..., None]), -1, 0)
    xx, yy, xy = mxx - mx**2, myy - my**2, mxy - mx * my
    return _Moments(n, mx, my, np.maximum(xx, 0), np.maximum(yy, 0), xy)


def _correlation(xy: Values, xx: Values, yy: Values, unit: float = 1.0) -> Values:
    spread = np.where((xx > SAME * unit) & (yy > SAME * unit), xx * yy, 0)
    return np.clip(ratio(xy, np.sqrt(spread)), -1, 1)


def pearson(pairs: Pairs, counts: Values) -> Values:
    """Pearson's correlation. Not defined when either rating is constant."""
    m = _moments(pairs, counts)
    return _correlation(m.xy, m.xx, m.yy)


def mae(pairs: Pairs, counts: Values) -> Values:
    """The mean absolute difference, in points of the scale."""
    return ratio(weigh(counts, np.abs(pairs.x - pairs.y)), counts.sum(-1))


def bias(pairs: Pairs, counts: Values) -> Values:
    """The mean of the first rating minus the second, in points of the scale."""
    return ratio(weigh(counts, pairs.x - pairs.y), counts.sum(-1))


def icc(pairs: Pairs, counts: Values) -> Values:
    """ICC(A,1) of two raters: two-way, absolute agreement, single measure (McGraw and Wong 1996).

    (MSR - MSE) / (MSR + MSE + 2 (MSC - MSE) / n). Needs two rows; may be negative.
    """
    m = _moments(pairs, counts)
    more = np.where(m.n > 1, m.n - 1, np.nan)
    scale = m.n / more
    rows = scale * (m.xx + m.yy + 2 * m.xy) / 2
    error = scale * (m.xx + m.yy - 2 * m.xy) / 2
    columns = m.n * (m.x - m.y) ** 2 / 2
    below = rows + error + 2 * ratio(columns - error, m.n)
    return ratio(rows - error, np.where(below > SAME, below, 0))


def _mid_ranks(codes: Codes, counts: Values) -> Values:
    """Each cell's mean rank, its value's ties counted with it; (..., C)."""
    from scipy.sparse import csr_array

    levels = int(codes.max(initial=-1)) + 1
    hot = csr_array((np.ones(len(codes)), (np.arange(len(codes)), codes)), shape=(len(codes), levels))
    of_level = np.atleast_2d(counts) @ hot
    ranks = np.cumsum(of_level, -1) - (of_level - 1) / 2
    return np.asarray(ranks)[:, codes].reshape(counts.shape)


def spearman(pairs: Pairs, counts: Values) -> Values:
    """Spearman's rank correlation, ties at their mean rank."""
    n = counts.sum(-1)[..., None]
    x, y = (ratio(_mid_ranks(codes, counts) - (n + 1) / 2, n) for codes in pairs.ranks)
    xy, xx, yy = (ratio((counts * a * b).sum(-1), n[..., 0]) for a, b in ((x, y), (x, x), (y, y)))
    return _correlation(xy, xx, yy)


def kendall(pairs: Pairs, counts: Values) -> Values:
    """Kendall's tau-b (1945): concordant minus discordant pairs, ties in either rating out of the measure."""
    x, y = pairs.ranks
    rows, columns = (int(codes.max(initial=-1)) + 1 for codes in (x, y))
    samples = np.atleast_2d(counts)
    if rows * columns > max(MOST_CELLS, 50 * len(x)):
        found = np.array([_kendall_by_sorting(x, y, sample) for sample in samples])
    else:
        step = max(1, 100 * MOST_CELLS // max(1, rows * columns))
        parts = [samples[start : start + step] for start in range(0, len(samples), step)]
        found = np.concatenate([_kendall_by_table(x, y, rows, columns, part) for part in parts])
    return found.reshape(counts.shape[:-1])


def _kendall_by_table(x: Codes, y: Codes, rows: int, columns: int, counts: Values) -> Values:
    from scipy.sparse import csr_array

    hot = csr_array((np.ones(len(x)), (np.arange(len(x)), x * columns + y)), shape=(len(x), rows * columns))
    table = np.asarray(counts @ hot).reshape(len(counts), rows, columns)
    above = np.cumsum(table, 1) - table  # what lies in earlier rows
    left = np.cumsum(above, -1) - above  # of that, what lies in earlier columns
    right = above.sum(-1, keepdims=True) - left - above
    surplus = (table * (left - right)).sum((-1, -2))
    n = table.sum((-1, -2))
    pairs_in = [(n * (n - 1) - (m * (m - 1)).sum(-1)) / 2 for m in (table.sum(-1), table.sum(-2))]
    return np.clip(ratio(surplus, np.sqrt(pairs_in[0] * pairs_in[1])), -1, 1)


def _kendall_by_sorting(x: Codes, y: Codes, counts: Values) -> float:
    from scipy.stats import kendalltau

    times = counts.astype(int)
    told_x, told_y = np.repeat(x, times), np.repeat(y, times)
    if len(told_x) < 2 or np.ptp(told_x) == 0 or np.ptp(told_y) == 0:
        return np.nan
    return float(kendalltau(told_x, told_y, method="asymptotic").statistic)


# Krippendorff's alpha: any number of raters, ratings missing


def alpha(coincidences: Values, labels: Values, metric: Metric) -> Values:
    """Krippendorff's alpha from a table of coincidences (Krippendorff 2011), (..., K, K), symmetric.

    1 - observed over expected disagreement. Not defined when all ratings are equal, or none can be paired.
    """
    margins = coincidences.sum(-1)
    n = margins.sum(-1)
    if metric == "nominal":
        distance = 1 - np.eye(len(labels))
    elif metric == "interval":
        distance = (labels[:, None] - labels[None]) ** 2
    else:
        upto = np.cumsum(margins, -1)
        middle = upto - margins / 2
        distance = (middle[..., :, None] - middle[..., None, :]) ** 2
    observed = (coincidences * distance).sum((-1, -2))
    expected = (margins[..., :, None] * margins[..., None, :] * distance).sum((-1, -2))
    return 1 - ratio(observed * (n - 1), np.where(expected > SAME, expected, 0))


def pair_alpha(metric: Metric) -> Statistic:
    """Krippendorff's alpha of two raters who rated everything."""

    def statistic(pairs: Pairs, counts: Values) -> Values:
        if metric != "interval":
            table = pairs.table(counts)
            return alpha(table + np.swapaxes(table, -1, -2), pairs.labels, metric)
        m = _moments(pairs, counts)  # the same without a table, which numbers would make huge
        off = m.xx + m.yy - 2 * m.xy + (m.x - m.y) ** 2
        spread = m.xx + m.yy + (m.x - m.y) ** 2 / 2
        return 1 - ratio(off * (2 * m.n - 1), np.where(spread > SAME, 2 * m.n * spread, 0))

    return statistic


def coincidences_of(ratings: Values, labels: Values) -> Values:
    """What each unit adds to the table of coincidences: (U, K, K) of ratings (U, raters), NaN where one is
    missing.

    A unit with fewer than two ratings adds nothing.
    """
    given = np.isfinite(ratings)
    hot = ((ratings[..., None] == labels) & given[..., None]).sum(1).astype(float)
    m = given.sum(1)
    product = hot[:, :, None] * hot[:, None, :] - hot[:, :, None] * np.eye(len(labels))
    result: Values = product / np.where(m > 1, m - 1, 1)[:, None, None] * (m > 1)[:, None, None]
    return result


def krippendorff(ratings: Any, metric: Metric, labels: Sequence[float] | None = None) -> float | None:
    """Krippendorff's alpha of ratings (units, raters), NaN where one is missing."""
    array = np.asarray(ratings, float)
    known = np.unique(array[np.isfinite(array)]) if labels is None else np.unique(np.asarray(labels, float))
    if not len(known):
        return None
    seen, times = np.unique(np.sort(array, axis=1), axis=0, return_counts=True)
    total = np.tensordot(times.astype(float), coincidences_of(seen, known), 1)
    return told(alpha(total, known, metric))


# Of probabilities


def ece(confidence: Any, right: Any, bins: int = 10) -> float | None:
    """Expected calibration error: over equal bins of confidence, the mean gap between confidence and share
    right, weighted by how many lie in each (Naeini et al. 2015). confidence in 0 to 1; right 0 or 1."""
    pairs, _ = Pairs.of(confidence, right)
    return told(ece_of(bins)(pairs, pairs.counts))


def ece_of(bins: int = 10) -> Statistic:
    """ECE of pairs (confidence, right)."""

    def statistic(pairs: Pairs, counts: Values) -> Values:
        place = bin_of(pairs.x, bins)
        gaps = weigh(counts, (pairs.x - pairs.y)[:, None] * (place[:, None] == np.arange(bins)))
        return ratio(np.abs(gaps).sum(-1), counts.sum(-1))

    return statistic


def bin_of(confidence: Values, bins: int) -> Codes:
    """Bins are open below and closed above, but for the first, which has 0."""
    return np.clip(np.ceil(confidence * bins).astype(np.intp) - 1, 0, bins - 1)


def brier(probabilities: Any, truth: Any) -> float | None:
    """Brier's score: the mean squared distance between probabilities (N, K) and truth (N,), a place among the K
    labels. From 0 to 2; of two labels it is halved, as is usual, to lie between 0 and 1."""
    p, y = np.asarray(probabilities, float), np.asarray(truth, int)
    if not len(p):
        return None
    squares = ((p - np.eye(p.shape[1])[y]) ** 2).sum(1)
    return float(squares.mean() / (2 if p.shape[1] == 2 else 1))
