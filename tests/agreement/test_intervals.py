"""An interval of 95 % holds the truth 95 times in a hundred; tests say what libraries say."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from localjudge.agreement import intervals as ours
from localjudge.agreement import statistics
from localjudge.agreement.intervals import Figures, Units, intervals
from localjudge.agreement.statistics import Pairs, Statistic, Values
from localjudge.report.summary import wilson

multitest = pytest.importorskip("statsmodels.stats.multitest")

FIGURES: dict[str, Statistic] = {
    "accuracy": statistics.accuracy,
    "kappa": statistics.kappa,
    "quadratic_kappa": statistics.quadratic_kappa,
    "alpha": statistics.pair_alpha("ordinal"),
    "spearman": statistics.spearman,
    "kendall": statistics.kendall,
    "pearson": statistics.pearson,
    "mae": statistics.mae,
    "icc": statistics.icc,
    "f1": statistics.f1(1),
}


def figures_of(pairs: Pairs, chosen: Sequence[Statistic]) -> Figures:
    return lambda counts: np.stack([statistic(pairs, counts) for statistic in chosen], -1)


def drawn(rng: np.random.Generator, n: int, groups: int | None = None) -> tuple[Values, Values]:
    """A judge on a scale of four who is right three times in five; of a group he is right about all or about
    none."""
    gold = rng.choice([1.0, 2, 3, 4], size=n, p=[0.2, 0.3, 0.3, 0.2])
    near = np.clip(gold + rng.choice([-1, 1], n), 1, 4)
    right = np.repeat(rng.random(groups or n) < 0.6, n // (groups or n))
    return np.where(right, gold, np.where(rng.random(n) < 0.7, near, rng.integers(1, 5, n))), gold


TRUTH_SEED, SIMULATIONS = 99, 600


@pytest.mark.parametrize("groups", [None, 60], ids=["records", "groups"])
def test_coverage(groups: int | None) -> None:
    rng = np.random.default_rng(TRUTH_SEED)
    x, y = drawn(rng, 400_000)
    whole, _ = Pairs.of(x, y)
    chosen = list(FIGURES.values())
    truth = figures_of(whole, chosen)(whole.counts[None])[0]
    hits = np.zeros(len(chosen))
    for turn in range(SIMULATIONS):
        n = 120 if groups is None else groups * 3
        x, y = drawn(rng, n, groups)
        pairs, cell = Pairs.of(x, y, [1, 2, 3, 4])
        units = Units.of(cell, len(pairs.x), None if groups is None else np.repeat(np.arange(groups), 3))
        found = intervals(units, figures_of(pairs, chosen), turn, draws=1000)
        assert {interval.method for interval in found} == {"bca"}
        hits += [interval.low <= value <= interval.high for interval, value in zip(found, truth, strict=True)]
    coverage = dict(zip(FIGURES, hits / SIMULATIONS, strict=True))
    print(coverage)
    assert all(abs(share - 0.95) <= 0.03 for share in coverage.values()), coverage


def test_resampling_records_that_hang_together_as_if_they_did_not_would_not_cover() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for turn in range(200):
        x, y = drawn(rng, 180, 30)
        pairs, cell = Pairs.of(x, y)
        [found] = intervals(Units.of(cell, len(pairs.x)), figures_of(pairs, [statistics.mae]), turn, draws=500)
        hits += found.low <= 0.49 <= found.high  # type: ignore[operator]
    assert hits / 200 < 0.85


def test_wilson_covers_shares_of_small_samples_where_the_bootstrap_does_not() -> None:
    rng = np.random.default_rng(3)
    for n, p in ((12, 0.9), (25, 0.95), (60, 0.7)):
        hits = [low <= p <= high for low, high in (wilson(int(k), n) for k in rng.binomial(n, p, 4000))]
        assert abs(np.mean(hits) - 0.95) < 0.03


@pytest.mark.parametrize("slope", [0.3, 0.6, 0.85])
def test_the_interval_of_ece_covers_where_plain_resampling_would_not(slope: float) -> None:
    """A judge of this many points of truth for each point of confidence; 1 is calibrated."""
    rng = np.random.default_rng(11)
    sure = np.round(rng.uniform(0.5, 1, 400_000), 2)
    whole, _ = Pairs.of(sure, 0.5 + slope * (sure - 0.5))
    truth = float(statistics.ece_of()(whole, whole.counts))
    hits = []
    for turn in range(300):
        p = np.round(rng.uniform(0.5, 1, 200), 2)
        pairs, cell = Pairs.of(p, rng.random(200) < 0.5 + slope * (p - 0.5))
        found = ours.ece_interval(pairs, Units.of(cell, len(pairs.x)), 10, turn)
        assert found.low is not None and found.high is not None
        hits.append(found.low <= truth <= found.high)
    assert np.mean(hits) > 0.92, "it may be too wide, where one end cannot be below 0"


def test_a_calibrated_judge_is_not_told_that_it_is_not() -> None:
    rng = np.random.default_rng(2)
    zero = 0
    for turn in range(200):
        p = np.round(rng.uniform(0.5, 1, 150), 2)
        pairs, cell = Pairs.of(p, rng.random(150) < p)
        zero += ours.ece_interval(pairs, Units.of(cell, len(pairs.x)), 10, turn).low == 0
    assert zero / 200 > 0.94


def test_the_interval_of_people_s_own_alpha_covers() -> None:
    def people(rng: np.random.Generator, n: int) -> Values:
        truth = rng.integers(0, 3, n)
        each = [np.where(rng.random(n) < 0.7, truth, rng.integers(0, 3, n)) for _ in range(3)]
        return np.stack(each, 1).astype(float)

    rng = np.random.default_rng(0)
    truth = statistics.krippendorff(people(rng, 300_000), "nominal")
    labels = np.array([0.0, 1, 2])
    hits = 0
    for turn in range(500):
        seen, cell = np.unique(np.sort(people(rng, 100), 1), axis=0, return_inverse=True)
        each = statistics.coincidences_of(seen, labels).reshape(len(seen), -1)

        def alpha(counts: Values, each: Values = each) -> Values:
            table = statistics.weigh(counts, each).reshape(*counts.shape[:-1], 3, 3)
            return statistics.alpha(table, labels, "nominal")[:, None]

        [found] = intervals(Units.of(cell.ravel(), len(seen)), alpha, turn, draws=1000)
        assert found.low is not None and found.high is not None
        hits += found.low <= truth <= found.high
    assert hits / 500 == pytest.approx(0.95, abs=0.03)


def test_the_jackknife_of_blocks_covers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "MOST_CELLS", 100)
    rng = np.random.default_rng(0)
    hits = 0
    for turn in range(200):
        y = rng.normal(size=400)
        pairs, cell = Pairs.of(y + rng.normal(size=400), y)
        [found] = intervals(Units.of(cell, len(pairs.x)), figures_of(pairs, [statistics.pearson]), turn)
        assert found.method == "jackknife"
        hits += found.low <= 2**-0.5 <= found.high  # type: ignore[operator]
    assert hits / 200 == pytest.approx(0.95, abs=0.03)


def test_bca_is_scipys() -> None:
    rng = np.random.default_rng(5)
    data = rng.exponential(size=60)
    theirs = stats.bootstrap((data,), np.mean, method="BCa", n_resamples=20_000, rng=rng)
    pairs, cell = Pairs.of(data, np.zeros(60))
    [found] = intervals(Units.of(cell, 60), figures_of(pairs, [statistics.mae]), draws=20_000)
    assert found.method == "bca"
    assert (found.low, found.high) == pytest.approx(theirs.confidence_interval, abs=0.01)


def test_of_very_many_distinct_pairs_the_jackknife_says_what_the_bootstrap_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(6)
    y = rng.normal(size=6000)
    x = y + rng.normal(size=6000)
    pairs, cell = Pairs.of(x, y)
    figures = figures_of(pairs, [statistics.pearson, statistics.spearman, statistics.mae])
    quick = intervals(Units.of(cell, len(pairs.x)), figures)
    monkeypatch.setattr(ours, "MOST_CELLS", 10**6)
    slow = intervals(Units.of(cell, len(pairs.x)), figures)
    for a, b in zip(quick, slow, strict=True):
        assert (a.method, b.method) == ("jackknife", "bca")
        width = b.high - b.low  # type: ignore[operator]
        assert a.low == pytest.approx(b.low, abs=0.2 * width)
        assert a.high == pytest.approx(b.high, abs=0.2 * width)


def test_the_same_seed_gives_the_same_interval_and_another_one_nearly() -> None:
    x, y = drawn(np.random.default_rng(8), 150)
    pairs, cell = Pairs.of(x, y)
    units = Units.of(cell, len(pairs.x))
    first, again, other = (intervals(units, figures_of(pairs, [statistics.kappa]), seed)[0] for seed in (1, 1, 2))
    assert first == again != other
    assert other.low == pytest.approx(first.low, abs=0.03)


@pytest.mark.parametrize(
    ("x", "y"), [([1.0] * 20, [1.0] * 20), ([1.0], [2.0]), ([1.0, 2.0], [1.0, 2.0])], ids=["sure", "one", "two"]
)
def test_what_resampling_cannot_tell_is_not_told(x: Any, y: Any) -> None:
    pairs, cell = Pairs.of(x, y)
    [found] = intervals(Units.of(cell, len(pairs.x)), figures_of(pairs, [statistics.accuracy]))
    assert (found.low, found.high, found.method) == (None, None, None)


def test_where_no_unit_moves_the_figure_the_percentiles_are_given_and_said_so() -> None:
    found = ours.bca(0.5, np.random.default_rng(0).random(2000), np.full(10, 0.5))
    assert found.method == "percentile"
    assert found.low == pytest.approx(0.025, abs=0.01)


# Tests


def test_mcnemar_holm_and_benjamini_yekutieli_are_those_of_statsmodels() -> None:
    from statsmodels.stats.contingency_tables import mcnemar

    for b, c in ((0, 0), (1, 0), (3, 3), (5, 12), (0, 9), (240, 200)):
        expected = mcnemar([[7, b], [c, 4]], exact=True).pvalue if b + c else 1.0
        assert ours.mcnemar(b, c) == pytest.approx(expected)
    p = [0.001, 0.04, 0.03, 0.8, 0.01, 0.01]
    assert ours.holm(p) == pytest.approx(multitest.multipletests(p, method="holm")[1])
    assert ours.benjamini_yekutieli(p) == pytest.approx(multitest.multipletests(p, method="fdr_by")[1])
    assert ours.holm([]) == []


def test_the_bootstrap_p_of_no_difference_is_uniform() -> None:
    rng = np.random.default_rng(4)
    p = []
    for _ in range(600):
        off = rng.normal(size=80)
        means = off[rng.integers(80, size=(400, 80))].mean(1)
        p.append(ours.bootstrap_p(means))
    assert np.mean(np.array(p) < 0.05) == pytest.approx(0.05, abs=0.03)
    assert ours.bootstrap_p(np.full(999, 1.0)) == pytest.approx(0.002)
    assert ours.bootstrap_p(np.array([np.nan])) is None


def test_a_hundred_thousand_records_in_groups_are_resampled_in_seconds() -> None:
    rng = np.random.default_rng(9)
    x, y = drawn(rng, 99_999)
    pairs, cell = Pairs.of(x, y)
    started = time.process_time()
    found = intervals(
        Units.of(cell, len(pairs.x), np.arange(99_999) // 3), figures_of(pairs, list(FIGURES.values()))
    )
    assert time.process_time() - started < 15
    assert all(interval.method == "bca" for interval in found)
