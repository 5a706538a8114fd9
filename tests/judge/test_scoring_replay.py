"""The arithmetic of the game-replay review, with the rubric's own numbers and every edge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from localjudge.judge.scoring import (
    band_of,
    deduction_score,
    error_rate_score,
    grade_of,
    in_band,
    mean_of_judged,
    tally_score,
    weighted_of_judged,
)

WEIGHTS = {"accuracy": 20, "depth": 20, "format": 10, "expression": 20, "user_view": 15, "social": 15}
GRADES = {"S": (90, 100), "A": (80, 89), "B": (60, 79), "C": (40, 59), "D": (0, 39)}
GOLDEN = [(5, 90, 100), (3, 70, 89), (2, 50, 69), (1, 30, 49), (0, 0, 29)]
BEATS = [(6, 90, 100), (4, 70, 89), (2, 50, 69), (1, 30, 49), (0, 0, 29)]


@pytest.mark.parametrize(
    ("errors", "total", "score"),
    [
        (0, 20, 100),
        (1, 20, 90),
        (1, 100, 98),  # one per cent costs two points
        (3, 24, 75),
        (1, 16, 87.5),
        (1, 3, 100 / 3),
        (1, 17, 1500 / 17),
        (10, 20, 0),  # half of them wrong is nothing left
        (11, 20, 0),
        (20, 20, 0),
        (0, 0, None),
    ],
)
def test_an_error_in_a_hundred_costs_two_points(errors: int, total: int, score: float | None) -> None:
    assert error_rate_score(errors, total) == score


def test_an_error_rate_with_another_factor() -> None:
    assert error_rate_score(1, 4, factor=100) == 75
    assert error_rate_score(1, 4, factor=400) == 0


@pytest.mark.parametrize(("errors", "total"), [(1, 0), (3, 2), (-1, 5)])
def test_more_errors_than_citations_are_a_mistake_of_the_caller(errors: int, total: int) -> None:
    with pytest.raises(ValueError, match="cannot be wrong"):
        error_rate_score(errors, total)


@pytest.mark.parametrize(
    ("points", "score"),
    [
        ([], 100),
        ([15], 85),
        ([15, 5], 80),
        ([20, 15, 5], 60),
        ([5, 8, 10, 20], 57),
        ([30, 15, 10], 45),
        ([20] * 5, 0),
        ([20] * 6, 0),  # never below nothing
        ([0.1] * 3, 99.7),
    ],
)
def test_deductions_stop_at_nothing(points: list[float], score: float) -> None:
    assert deduction_score(points) == score


def test_deductions_may_begin_elsewhere() -> None:
    assert deduction_score([15, 15], full=60) == 30
    assert deduction_score([40], full=30) == 0


@pytest.mark.parametrize(
    ("great", "fair", "flat", "dry", "score"),
    [
        (20, 0, 0, 0, 100),
        (0, 20, 0, 0, 60),
        (0, 0, 20, 0, 30),
        (0, 0, 0, 20, 0),
        (15, 5, 0, 0, 90),
        (0, 2, 8, 10, 18),
        (8, 9, 3, 0, 71.5),
        (0, 0, 0, 0, 0),  # nothing was there to be rated
        (10, 0, 0, 0, 50),  # half of it was missing
        (21, 0, 0, 0, 100),
    ],
)
def test_twenty_memes_of_ten_points_each(great: int, fair: int, flat: int, dry: int, score: float) -> None:
    assert tally_score([10] * great + [6] * fair + [3] * flat + [0] * dry, items=20, worth=10) == score


def test_a_tally_of_no_items_cannot_be_judged() -> None:
    assert tally_score([], items=0, worth=10) is None


@pytest.mark.parametrize(
    ("count", "bands", "band"),
    [
        (0, GOLDEN, (0, 29)),
        (1, GOLDEN, (30, 49)),
        (2, GOLDEN, (50, 69)),
        (3, GOLDEN, (70, 89)),
        (4, GOLDEN, (70, 89)),
        (5, GOLDEN, (90, 100)),
        (50, GOLDEN, (90, 100)),
        (3, BEATS, (50, 69)),
        (4, BEATS, (70, 89)),
        (5, BEATS, (70, 89)),
        (6, BEATS, (90, 100)),
        (3, GOLDEN[::-1], (70, 89)),
    ],
)
def test_a_count_falls_into_a_band(count: int, bands: Sequence[Sequence[float]], band: tuple[float, float]) -> None:
    assert band_of(count, bands) == band


def test_a_count_below_all_bands_is_a_gap() -> None:
    with pytest.raises(ValueError, match="no band begins at or below 0"):
        band_of(0, [(1, 30, 49), (2, 50, 69)])


@pytest.mark.parametrize(
    ("low", "high", "middle"),
    [
        (0, 20, 10),
        (30, 50, 40),
        (60, 80, 70),
        (90, 100, 95),
        (0, 29, 15),
        (70, 89, 80),
        (0, 19, 10),
        (100, 100, 100),
    ],
)
def test_three_places_in_a_band(low: float, high: float, middle: float) -> None:
    assert [in_band(low, high, place) for place in ("low", "middle", "high")] == [low, middle, high]


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        ([100, 100, 100], 100),
        ([95, 100, 95], 97),  # 96.67
        ([90, 80, 95], 88),  # 88.33
        ([13.5, 40, 80], 45),  # 44.5 is rounded up
        ([100 / 3, 100 / 3, 100 / 3 + 1.5], 34),  # 33.83
        ([50.5, 100 / 3, 200 / 3 + 1], 51),  # 50.5 exactly, though its thirds came as floats
        ([None, 80, 91], 86),  # 85.5 of the two that were judged
        ([None, None, 61], 61),
        ([None, None, None], None),
        ([], None),
    ],
)
def test_a_dimension_is_the_mean_of_what_was_judged(values: list[float | None], mean: float | None) -> None:
    assert mean_of_judged(values) == mean


@pytest.mark.parametrize(
    ("values", "overall"),
    [
        ((100, 97, 100, 93, 98, 97), 97.25),
        ((89, 33, 86, 45, 23, 10), 46.95),
        ((95, 87, 100, 87, 97, 80), 90.35),
        ((0, 0, 0, 0, 0, 0), 0),
        ((100, 100, 100, 100, 100, 100), 100),
        ((None, 80, 80, 80, 80, 80), 80),
        ((None, 60, 100, 60, 60, 60), 65),  # of 80: 0.2·60 + 0.1·100 + 0.2·60 + 0.15·60 + 0.15·60 = 52
        ((None, None, None, None, None, 71), 71),
        ((None, None, None, None, None, None), None),
    ],
)
def test_what_cannot_be_judged_leaves_the_weighting(values: Sequence[float | None], overall: float | None) -> None:
    assert weighted_of_judged(dict(zip(WEIGHTS, values, strict=True)), WEIGHTS) == overall


def test_what_weighs_nothing_makes_no_overall() -> None:
    assert weighted_of_judged({"a": 50, "b": None}, {"a": 0, "b": 1}) is None
    assert weighted_of_judged({"a": 50, "b": 70}, {"a": 0}) == 70


@pytest.mark.parametrize(
    ("score", "grade"),
    [(100, "S"), (90, "S"), (89, "A"), (80, "A"), (79, "B"), (60, "B"), (59, "C"), (40, "C"), (39, "D"), (0, "D")],
)
def test_grades_by_band(score: float, grade: str) -> None:
    assert grade_of(score, GRADES) == grade
    assert grade_of(score, dict(reversed(GRADES.items()))) == grade


def test_between_two_grades_the_lower_one_is_given() -> None:
    assert grade_of(89.5, GRADES) == "A"


def test_below_all_grades_there_is_none() -> None:
    partial: Mapping[str, Sequence[float]] = {"pass": (60, 100)}
    with pytest.raises(ValueError, match="no grade begins at or below 59"):
        grade_of(59, partial)
