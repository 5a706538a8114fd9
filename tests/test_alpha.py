"""Krippendorff's alpha of a stream, against the reference package on random and degenerate ratings."""

from __future__ import annotations

import numpy as np
import pytest

from localjudge.report.alpha import RunningAlpha

krippendorff = pytest.importorskip("krippendorff")


@pytest.mark.parametrize("metric", ["nominal", "interval"])
@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_reference_packages(metric: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    ratings = random.integers(1, 6, (int(random.integers(2, 6)), 40)).astype(float)
    ratings[:, ::3] = ratings[0, ::3]  # some agreement
    ratings[random.random(ratings.shape) < 0.2] = np.nan
    alpha = RunningAlpha(metric)  # type: ignore[arg-type]
    for unit in ratings.T:
        alpha.add([float(rating) for rating in unit if not np.isnan(rating)])
    assert alpha.alpha() == pytest.approx(krippendorff.alpha(ratings, level_of_measurement=metric), abs=1e-12)


def test_without_a_difference_there_is_none() -> None:
    for metric in ("nominal", "interval"):
        alpha = RunningAlpha(metric)  # type: ignore[arg-type]
        assert alpha.alpha() is None
        alpha.add([3.0])
        alpha.add([3.0, 3.0])
        alpha.add([3.0, 3.0, 3.0])
        assert alpha.alpha() is None
        assert (alpha.units, alpha.unanimous) == (2, 2)


def test_perfect_agreement_is_one_and_opposites_are_below_nothing() -> None:
    alike, apart = RunningAlpha("nominal"), RunningAlpha("nominal")
    for label, other in (("A", "B"), ("B", "A"), ("A", "B")):
        alike.add([label, label])
        apart.add([label, other])
    assert alike.alpha() == 1
    assert (apart.alpha() or 0) < 0
