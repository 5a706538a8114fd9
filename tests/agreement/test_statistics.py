"""Every statistic says what a well-kept library says, on random ratings and on hardly any."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from localjudge.agreement import statistics as ours
from localjudge.agreement.statistics import Pairs, Values, krippendorff, one

metrics = pytest.importorskip("sklearn.metrics")
kripp = pytest.importorskip("krippendorff")

Rated = tuple[NDArray[Any], NDArray[Any]]


def rated(seed: int, n: int, k: int, *, numbers: bool = False) -> Rated:
    """Two ratings that agree more than by chance."""
    rng = np.random.default_rng(seed)
    gold = rng.integers(1, k + 1, n).astype(float)
    judge = np.where(rng.random(n) < 0.5, gold, rng.integers(1, k + 1, n))
    return (judge + rng.normal(0, 0.5, n) if numbers else judge), gold


def icc_by_anova(x: Values, y: Values) -> float:
    """The mean squares as the textbook has them."""
    data = np.column_stack([x, y])
    n, k = data.shape
    whole = data.mean()
    rows = k * ((data.mean(1) - whole) ** 2).sum() / (n - 1)
    columns = n * ((data.mean(0) - whole) ** 2).sum() / (k - 1)
    rest = data - data.mean(1, keepdims=True) - data.mean(0) + whole
    error = (rest**2).sum() / ((n - 1) * (k - 1))
    return float((rows - error) / (rows + (k - 1) * error + k * (columns - error) / n))


ORACLES: dict[str, tuple[Callable[..., Values], Callable[[Any, Any], float]]] = {
    "accuracy": (ours.accuracy, metrics.accuracy_score),
    "kappa": (ours.kappa, metrics.cohen_kappa_score),
    "quadratic_kappa": (
        ours.quadratic_kappa,
        lambda x, y: metrics.cohen_kappa_score(x, y, weights="quadratic", labels=np.arange(1.0, 10)),
    ),
    "pearson": (ours.pearson, lambda x, y: stats.pearsonr(x, y).statistic),
    "spearman": (ours.spearman, lambda x, y: stats.spearmanr(x, y).statistic),
    "kendall": (ours.kendall, lambda x, y: stats.kendalltau(x, y).statistic),
    "mae": (ours.mae, metrics.mean_absolute_error),
    "bias": (ours.bias, lambda x, y: np.mean(x - y)),
    "icc": (ours.icc, icc_by_anova),
    "macro_f1": (ours.macro_f1, lambda x, y: metrics.f1_score(y, x, average="macro")),
    **{
        f"alpha-{metric}": (
            ours.pair_alpha(metric),
            lambda x, y, metric=metric: kripp.alpha(np.stack([x, y]), level_of_measurement=metric),
        )
        for metric in ("nominal", "ordinal", "interval")
    },
}
OF_NUMBERS = ("pearson", "spearman", "kendall", "mae", "bias", "icc", "alpha-interval")


@pytest.mark.parametrize("name", ORACLES)
def test_labels_are_counted_as_libraries_count_them(name: str) -> None:
    statistic, oracle = ORACLES[name]
    for seed, (n, k) in enumerate(product((2, 7, 40, 600), (2, 5, 9))):
        x, y = rated(seed, n, k)
        found = one(statistic, x, y)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                expected = float(oracle(x, y))
            except ValueError:  # krippendorff's word for ratings that are all equal
                expected = np.nan
        if np.isfinite(expected):
            assert found == pytest.approx(expected, abs=1e-9), (n, k)
        else:
            assert found is None, (n, k)


@pytest.mark.parametrize("name", OF_NUMBERS)
@pytest.mark.parametrize("n", [30, 2500])
def test_numbers_too(name: str, n: int) -> None:
    statistic, oracle = ORACLES[name]
    x, y = rated(n, n, 5, numbers=True)
    y = y + np.random.default_rng(1).normal(0, 0.1, n)
    if name == "alpha-interval" and n > 100:
        pytest.skip("the library takes a table of all values")
    assert one(statistic, x, y) == pytest.approx(oracle(x, y), abs=1e-9)


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_a_large_offset_costs_no_digits(name: str) -> None:
    statistic, _ = ORACLES[name]
    x, y = rated(3, 200, 5, numbers=True)
    assert one(statistic, x + 1e6, y + 1e6) == pytest.approx(one(statistic, x, y), abs=1e-6)


def test_precision_recall_and_f1_of_each_label() -> None:
    x, y = rated(5, 300, 4)
    pairs, _ = Pairs.of(x, y)
    expected = metrics.precision_recall_fscore_support(y, x, labels=pairs.labels)
    for label in range(4):
        for statistic, told in zip((ours.precision, ours.recall, ours.f1), expected[:3], strict=True):
            assert float(statistic(label)(pairs, pairs.counts)) == pytest.approx(told[label])


def test_many_raters_and_missing_ratings() -> None:
    rng = np.random.default_rng(7)
    for raters, k in ((2, 2), (3, 5), (6, 4)):
        truth = rng.integers(1, k + 1, 80)[:, None]
        ratings = np.where(rng.random((80, raters)) < 0.6, truth, rng.integers(1, k + 1, (80, raters))).astype(
            float
        )
        ratings[rng.random(ratings.shape) < 0.3] = np.nan
        for metric in ("nominal", "ordinal", "interval"):
            expected = kripp.alpha(ratings.T, level_of_measurement=metric)
            assert krippendorff(ratings, metric) == pytest.approx(expected, abs=1e-9)  # type: ignore[arg-type]


DEGENERATE: dict[str, Rated] = {
    "nothing": (np.array([]), np.array([])),
    "one record": (np.array([1.0]), np.array([1.0])),
    "one class": (np.full(9, 2.0), np.full(9, 2.0)),
    "one class each": (np.full(9, 2.0), np.full(9, 1.0)),
    "all ties in the judge": (np.full(9, 2.0), np.arange(9.0)),
    "two records": (np.array([1.0, 2.0]), np.array([1.0, 2.0])),
    "two records, swapped": (np.array([1.0, 2.0]), np.array([2.0, 1.0])),
}


@pytest.mark.parametrize("case", DEGENERATE)
def test_hardly_any_data_gives_none_and_no_warning(case: str) -> None:
    x, y = DEGENERATE[case]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = {name: one(statistic, x, y) for name, (statistic, _) in ORACLES.items()}
        found["krippendorff"] = krippendorff(np.column_stack([x, y]), "nominal")
    flat = {"kappa", "pearson", "spearman", "kendall"}
    if case == "nothing":
        assert all(value is None for value in found.values())
    elif case in ("one record", "one class"):
        assert found["accuracy"] == 1
        assert all(found[name] is None for name in (*flat, "quadratic_kappa", "alpha-nominal", "krippendorff"))
    elif case == "one class each":
        assert (found["accuracy"], found["kappa"], found["mae"]) == (0, 0, 1)
        assert all(found[name] is None for name in ("pearson", "spearman", "kendall"))
    elif case == "all ties in the judge":
        assert all(found[name] is None for name in ("pearson", "spearman", "kendall"))
    elif case == "two records":
        assert all(found[name] == pytest.approx(1) for name in (*flat, "icc", "quadratic_kappa"))
    else:
        assert (found["accuracy"], found["pearson"]) == (0, pytest.approx(-1))


@pytest.mark.parametrize("name", ORACLES)
def test_many_samples_at_once_are_what_each_is_alone(name: str) -> None:
    statistic, _ = ORACLES[name]
    x, y = rated(11, 120, 5)
    pairs, cell = Pairs.of(x, y)
    rng = np.random.default_rng(0)
    drawn = [rng.integers(120, size=120) for _ in range(8)]
    counts = np.stack([np.bincount(cell[rows], minlength=len(pairs.x)) for rows in drawn]).astype(float)
    alone = [one(statistic, x[rows], y[rows]) for rows in drawn]
    assert statistic(pairs, counts) == pytest.approx(alone, abs=1e-9)


def test_ece_by_the_definition_and_brier_by_the_library() -> None:
    rng = np.random.default_rng(2)
    p = rng.dirichlet(np.ones(4), 500)
    truth = rng.integers(0, 4, 500)
    assert ours.brier(p, truth) == pytest.approx(metrics.brier_score_loss(truth, p, labels=[0, 1, 2, 3]))
    two = np.column_stack([1 - p[:, 0], p[:, 0]])
    assert ours.brier(two, truth == 0) == pytest.approx(metrics.brier_score_loss(truth == 0, p[:, 0]))
    confidence, right = p.max(1), (p.argmax(1) == truth).astype(float)
    gaps = 0.0
    for low in np.arange(10) / 10:
        inside = (confidence > low) & (confidence <= low + 0.1 + 1e-12)
        if inside.any():
            gaps += inside.mean() * abs(confidence[inside].mean() - right[inside].mean())
    assert ours.ece(confidence, right) == pytest.approx(gaps)
    assert ours.ece([], []) is None
    assert ours.brier(np.empty((0, 2)), []) is None
