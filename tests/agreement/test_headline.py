"""The corrected headline is what the papers' own programs say, and its interval holds the truth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from localjudge.agreement import headline as ours
from localjudge.agreement.statistics import Values
from tests.agreement.conftest import ABSOLUTE, Imported, held_of, judge_file
from tests.conftest import shared_rows

ppi_py = pytest.importorskip("ppi_py")


def judged_and_true(rng: np.random.Generator, n: int) -> tuple[Values, Values]:
    """A judge of numbers, half a point too kind."""
    gold = np.clip(np.round(rng.normal(3.2, 1, n)), 1, 5)
    return np.clip(gold + 0.5 + rng.normal(0, 0.7, n), 1, 5), gold


def passes(rng: np.random.Generator, n: int, rate: float) -> tuple[Values, Values]:
    """A judge of sensitivity 0.9 and specificity 0.75."""
    gold = (rng.random(n) < rate).astype(float)
    return np.where(rng.random(n) < np.where(gold == 1, 0.9, 0.25), 1.0, 0.0), gold


# PPI


@pytest.mark.parametrize(("n", "big"), [(2, 3), (20, 50), (100, 2000), (300, 100)])
def test_ppi_is_that_of_its_authors(n: int, big: int) -> None:
    rng = np.random.default_rng(n)
    for made in (judged_and_true, lambda rng, n: passes(rng, n, 0.4)):
        judged, gold = made(rng, n)
        rest, _ = made(rng, big)
        for tuning in (None, 0.0, 1.0):
            low, high = ppi_py.ppi_mean_ci(gold, judged, rest, alpha=0.05, lam=tuning)
            point = ppi_py.ppi_mean_pointestimate(gold, judged, rest, lam=tuning)
            found, _ = ours.ppi(gold, judged, rest, tuning)
            assert (found.low, found.high) == pytest.approx((float(low[0]), float(high[0])), abs=1e-9)
            assert found.value == pytest.approx(float(np.squeeze(point)), abs=1e-9)


def test_ppi_of_a_judge_that_says_one_thing_is_the_labels_alone() -> None:
    gold = np.array([0.0, 1, 1, 0, 1, 1])
    found, tuning = ours.ppi(gold, np.ones(6), np.ones(100))
    assert tuning == 0
    assert found.value == pytest.approx(gold.mean())


def coverage(one: Any, truth: float, times: int = 1500) -> float:
    hits = 0
    for seed in range(times):
        estimate = one(np.random.default_rng(seed))
        hits += estimate.low <= truth <= estimate.high
    return hits / times


def test_ppi_covers_and_is_narrower_than_the_labels_alone() -> None:
    _, everyone = judged_and_true(np.random.default_rng(10**6), 10**6)
    widths = []

    def one(rng: np.random.Generator) -> ours.Estimate:
        judged, gold = judged_and_true(rng, 100)
        rest, _ = judged_and_true(rng, 2000)
        found, _ = ours.ppi(gold, judged, rest)
        plain, _ = ours.ppi(gold, judged, rest, 0.0)
        widths.append((found.high - found.low) / (plain.high - plain.low))
        return found

    assert coverage(one, float(everyone.mean())) == pytest.approx(0.95, abs=0.03)
    assert np.mean(widths) < 0.75


def test_ppi_by_groups_covers_where_records_hang_together() -> None:
    def grouped(rng: np.random.Generator, groups: int) -> tuple[Values, Values]:
        topic = np.repeat(rng.normal(0, 0.5, groups), 4)
        gold = topic + rng.normal(0, 0.5, groups * 4)
        return gold + 0.3 + rng.normal(0, 0.3, groups * 4), gold

    def one(rng: np.random.Generator, by_group: bool = True) -> ours.Estimate:
        judged, gold = grouped(rng, 50)
        rest, _ = grouped(rng, 200)
        names = [[str(i // 4) for i in range(n)] if by_group else None for n in (200, 800)]
        return ours.ppi(gold, judged, rest, None, *names)[0]

    assert coverage(one, 0.0, 800) == pytest.approx(0.95, abs=0.03)
    assert coverage(lambda rng: one(rng, False), 0.0, 800) < 0.9


# Rogan and Gladen


@pytest.mark.parametrize(
    ("given", "published"),
    [
        ((0.7, 500, 0.8, 40, 0.9, 60), (0.6045335451, 0.8353638001)),
        ((0.3, 10_000, 0.95, 200, 0.7, 100), (0.3249497856, 0.4504580623)),
    ],
)
def test_rogan_gladen_is_that_of_lee_and_others(given: tuple[Any, ...], published: tuple[float, float]) -> None:
    """Their program's intervals for these."""
    found = ours.rogan_gladen(*given)
    assert found
    share, _, specificity, _, sensitivity, _ = given
    assert found.value == pytest.approx((share + specificity - 1) / (specificity + sensitivity - 1))
    assert (found.low, found.high) == pytest.approx(published, abs=1e-9)


@pytest.mark.parametrize("rate", [0.15, 0.5, 0.85])
def test_rogan_gladen_covers_though_the_labels_are_picked_by_what_people_say(rate: float) -> None:
    def one(rng: np.random.Generator) -> ours.Estimate:
        told, gold = passes(rng, 120, 0.5)  # as many passes as fails, whatever the rate among all
        rest, _ = passes(rng, 1500, rate)
        found = ours.rogan_gladen(
            float(rest.mean()),
            1500,
            float(1 - told[gold == 0].mean()),
            int((gold == 0).sum()),
            float(told[gold == 1].mean()),
            int(gold.sum()),
        )
        assert found
        return found

    assert coverage(one, rate) == pytest.approx(0.95, abs=0.03)


def test_of_a_judge_that_says_nothing_rogan_and_gladen_make_nothing() -> None:
    assert ours.rogan_gladen(0.5, 100, 0.5, 20, 0.5, 20) is None
    assert ours.rogan_gladen(0.5, 100, 0.9, 0, 0.9, 20) is None


# How many labels


def test_with_as_many_labels_as_it_says_the_interval_is_half_as_wide() -> None:
    rng = np.random.default_rng(8)
    judged, gold = judged_and_true(rng, 20_000)
    first = slice(0, 150)
    wanted = ours.labels_to_halve(gold[first], judged[first], judged[150:])
    assert wanted
    assert 450 < wanted < 1000
    before, _ = ours.ppi(gold[first], judged[first], judged[150:])
    after, _ = ours.ppi(gold[:wanted], judged[:wanted], judged[wanted:])
    assert (after.high - after.low) / (before.high - before.low) == pytest.approx(0.5, abs=0.04)
    assert ours.labels_to_halve(gold[:150], judged[:150], judged[150:200]) is None, "there are only 200 in all"


# Which applies


def test_the_headline_of_a_run(imported: Imported, tmp_path: Any) -> None:
    rng = np.random.default_rng(12)
    judged, gold = judged_and_true(rng, 2000)
    judged = np.round(judged)
    rows = [
        {"id": str(i), "response": "x", "quality": int(q), "human": int(g) if i < 150 else None}
        for i, (q, g) in enumerate(zip(judged, gold, strict=True))
    ]
    held = held_of(imported(judge_file(tmp_path, ABSOLUTE), rows), "human")
    found = held.headline
    assert found
    assert (found.what, found.n_labelled, found.n_judged, found.applies) == ("mean", 150, 2000, "ppi")
    assert found.judge == pytest.approx(judged.mean())
    assert found.ppi.low < gold.mean() < found.ppi.high < found.judge
    assert found.ppi.high - found.ppi.low < found.labels_only.high - found.labels_only.low
    assert found.more_labels
    assert "random sample" in found.why


def test_labels_picked_by_what_people_say_are_no_random_sample(imported: Imported) -> None:
    rng = np.random.default_rng(13)
    told, gold = passes(rng, 1500, 0.8)
    fails_first = np.argsort(gold, kind="stable")
    picked = set(fails_first[:150]) | set(fails_first[-50:])
    rows = [
        {"id": str(i), "truthful": ["no", "yes"][int(t)], "human": bool(g) if i in picked else None}
        for i, (t, g) in enumerate(zip(told, gold, strict=True))
    ]
    held = held_of(imported("truthfulness", rows), "human")
    assert held.headline
    assert held.headline.applies == "rogan_gladen"
    assert "no random sample" in held.headline.why
    assert held.headline.what == "share of yes"
    corrected = held.headline.rogan_gladen
    assert corrected
    assert corrected.low < gold.mean() < corrected.high
    assert held.headline.ppi.high < gold.mean()


def test_real_labels_on_a_few_of_truthfulqa(imported: Imported) -> None:
    """A judge that calls true whatever begins with 'No' is badly off; its headline, corrected, is not."""
    rows = shared_rows("truthfulqa_truth.jsonl.gz", 3000)
    truth = np.mean([row["label"] == "yes" for row in rows])
    rng = np.random.default_rng(5)
    few = set(rng.choice(3000, 200, replace=False))
    for i, row in enumerate(rows):
        row["truthful"] = "yes" if row["answer"].startswith(("No", "I have", "There")) else "no"
        row["human"] = row["label"] if i in few else None
    held = held_of(imported("truthfulness", rows), "human")
    found = held.headline
    assert found
    assert not found.ppi.low <= found.judge <= found.ppi.high
    assert found.ppi.low < truth < found.ppi.high


# The alt-test


def test_the_alt_test_is_students_with_benjamini_and_yekutieli() -> None:
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    rng = np.random.default_rng(3)
    truth = rng.integers(0, 3, 120)
    people = np.stack([np.where(rng.random(120) < 0.75, truth, rng.integers(0, 3, 120)) for _ in range(4)], 1)
    people = people.astype(float)
    people[rng.random(people.shape) < 0.1] = np.nan
    judge = np.where(rng.random(120) < 0.7, truth, rng.integers(0, 3, 120)).astype(float)
    found = ours.alt_test(judge, people, numeric=False, epsilon=0.15)
    assert found
    p, rho = [], []
    for j in range(4):
        wins_judge, wins_person = [], []
        for i in range(120):
            others = [v for k, v in enumerate(people[i]) if k != j and np.isfinite(v)]
            if not others or not np.isfinite(people[i, j]):
                continue
            a, b = (np.mean([one == v for v in others]) for one in (judge[i], people[i, j]))
            wins_judge.append(float(a >= b))
            wins_person.append(float(b >= a))
        off = np.array(wins_person) - np.array(wins_judge)
        p.append(stats.ttest_1samp(off, 0.15, alternative="less").pvalue)
        rho.append(np.mean(wins_judge))
    reject, adjusted, *_ = multitest.multipletests(p, alpha=0.05, method="fdr_by")
    assert [one.p for one in found.annotators] == pytest.approx(adjusted)
    assert found.winning_rate == np.mean(reject)
    assert found.advantage == pytest.approx(np.mean(rho))


def test_a_judge_like_the_people_passes_and_one_that_guesses_does_not() -> None:
    rng = np.random.default_rng(4)
    truth = rng.normal(3, 1, 200)
    people = truth[:, None] + rng.normal(0, 0.5, (200, 3))
    good = ours.alt_test(truth + rng.normal(0, 0.5, 200), people, numeric=True)
    bad = ours.alt_test(rng.normal(3, 1, 200), people, numeric=True)
    assert good
    assert bad
    assert (good.passed, bad.passed) == (True, False)
    assert ours.alt_test(truth, people[:, :2], numeric=True) is None, "it takes three people"
    assert ours.alt_test(truth[:20], people[:20], numeric=True) is None, "and thirty records of each"
