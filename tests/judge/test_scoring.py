"""Arithmetic on answers, to the letter."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localjudge.judge.scoring import half_up, share_of_a, vote, weighted_mean


@pytest.mark.parametrize(
    ("value", "decimals", "rounded"),
    [
        (0.5, 0, 1),
        (1.5, 0, 2),
        (2.5, 0, 3),
        (-0.5, 0, -1),
        (-2.5, 0, -3),
        (0.49999999999999994, 0, 0),
        (2.4999, 0, 2),
        (2.675, 2, 2.68),
        (1.005, 2, 1.01),
        (-1.005, 2, -1.01),
        (0.285, 2, 0.29),
        (4.35, 1, 4.4),
        (3.25, 1, 3.3),
        (1e-7, 6, 0.0),
        (5e-7, 6, 1e-6),
        (1234567.5, 0, 1234568),
        (0.0, 3, 0.0),
        (10 / 3, 3, 3.333),
    ],
)
def test_half_is_rounded_up_as_on_paper(value: float, decimals: int, rounded: float) -> None:
    assert half_up(value, decimals) == rounded


@given(st.integers(-(10**9), 10**9), st.integers(0, 6))
def test_rounding_what_is_rounded_changes_nothing(number: int, decimals: int) -> None:
    value = number / 10**decimals
    assert half_up(value, decimals) == value


@pytest.mark.parametrize(
    ("values", "weights", "mean"),
    [
        ({"a": 4}, {}, 4),
        ({"a": 4, "b": 5}, {}, 4.5),
        ({"a": 4, "b": 5}, {"a": 3}, 4.25),
        ({"a": 4, "b": 5}, {"a": 3, "b": 0}, 4),
        ({"a": 5, "b": 4, "c": 3, "d": 2}, {"a": 3, "b": 3, "c": 2, "d": 1}, 35 / 9),
        ({"a": 3, "b": 3, "c": 3}, {"a": 0.1, "b": 0.2, "c": 0.7}, 3),
        ({"a": 4, "b": 3, "c": 4, "d": 3}, {"a": 0.3, "b": 0.3, "c": 0.2, "d": 0.2}, 3.5),
        ({"a": 0.1, "b": 0.2}, {}, 0.15),
        ({"a": 1}, {"a": 2, "unasked": 100}, 1),
    ],
)
def test_a_mean_by_hand(values: dict[str, float], weights: dict[str, float], mean: float) -> None:
    assert weighted_mean(values, weights) == mean


@pytest.mark.parametrize(
    "weights", [(0.3, 0.3, 0.2, 0.2), (0.1, 0.2, 0.3, 0.4), (0.15, 0.25, 0.35, 0.25), (3, 3, 2, 1)]
)
def test_a_mean_is_exact_so_that_a_pass_mark_that_is_met_is_met(weights: tuple[float, ...]) -> None:
    names = "abcd"
    for points in itertools.product(range(1, 6), repeat=4):
        exact = sum(p * Fraction(str(w)) for p, w in zip(points, weights, strict=True)) / sum(
            Fraction(str(w)) for w in weights
        )
        got = weighted_mean(dict(zip(names, points, strict=True)), dict(zip(names, weights, strict=True)))
        assert got == float(exact)
        assert (got >= 3.5) == (exact >= Fraction(7, 2))


def test_weights_of_nothing_have_no_mean() -> None:
    with pytest.raises(ZeroDivisionError):
        weighted_mean({"a": 1}, {"a": 0})


@pytest.mark.parametrize(
    ("labels", "agreed", "share"),
    [
        (["A"], "A", 1),
        (["B"], "B", 0),
        (["tie"], "tie", 0.5),
        (["A", "A"], "A", 1),
        (["B", "B"], "B", 0),
        (["tie", "tie"], "tie", 0.5),
        (["A", "B"], None, 0.5),
        (["B", "A"], None, 0.5),
        (["A", "tie"], None, 0.75),
        (["tie", "B"], None, 0.25),
        (["A", "A", "B"], None, 2 / 3),
    ],
)
def test_a_vote_is_unanimous_and_a_share_counts_ties_half(
    labels: list[str], agreed: str | None, share: float
) -> None:
    assert vote(labels) == agreed
    assert share_of_a(labels) == share


def test_nobody_s_vote_is_no_vote() -> None:
    assert vote([]) is None
