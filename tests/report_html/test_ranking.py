"""Who wins against whom: by hand, and where the strengths are known."""

from __future__ import annotations

import math
import random

import pytest

from localjudge.report.html.ranking import Outcome, outcomes, ranking, wins


def test_the_greater_overall_wins_and_the_same_is_a_tie() -> None:
    told = [*outcomes("one", {"a": 3.0, "b": 2.0, "c": 3.0}), *outcomes("two", {"a": 1.0, "b": 4.0})]
    assert wins(["a", "b", "c"], told) == {
        "names": ["a", "b", "c"],
        "wins": [[0, 1, 0], [1, 0, 0], [0, 1, 0]],
        "ties": [[0, 0, 1], [0, 0, 0], [1, 0, 0]],
    }


def test_two_candidates_are_as_strong_as_the_share_that_they_win() -> None:
    told = [Outcome("a", "b", won, str(i)) for i, won in enumerate([1.0] * 60 + [0.0] * 20 + [0.5] * 20)]
    found = ranking(["b", "a"], told)
    assert found is not None
    first, second = found["rows"]
    assert (first["name"], second["name"]) == ("a", "b")
    assert first["strength"] == pytest.approx(0.7, abs=0.002)  # a tenth of a win for each is added
    # Of 100 cases of a variance of 0.6 + 0.2/4 - 0.49: the normal interval is 0.7 +- 0.157.
    assert first["low"] == pytest.approx(0.7 - 1.96 * math.sqrt(0.16 / 100), abs=0.02)
    assert first["high"] == pytest.approx(0.7 + 1.96 * math.sqrt(0.16 / 100), abs=0.02)


def test_planted_strengths_come_out_in_their_order_and_within_their_intervals() -> None:
    planted = {"weak": -1.0, "middling": 0.0, "strong": 1.2}
    draw = random.Random(5)
    told = []
    for case in range(600):
        first, second = draw.sample(sorted(planted), 2)
        p = 1 / (1 + math.exp(planted[second] - planted[first]))
        told.append(Outcome(first, second, float(draw.random() < p), str(case)))
    found = ranking(list(planted), told)
    assert found is not None and found["draws"] == 400
    assert [row["name"] for row in found["rows"]] == ["strong", "middling", "weak"]
    for row in found["rows"]:
        others = [1 / (1 + math.exp(planted[o] - planted[row["name"]])) for o in planted if o != row["name"]]
        assert row["low"] < sum(others) / 2 < row["high"]


def test_who_never_lost_is_strong_and_not_infinitely_so() -> None:
    found = ranking(["a", "b"], [Outcome("a", "b", 1.0, str(i)) for i in range(5)])
    assert found is not None
    assert 0.95 < found["rows"][0]["strength"] < 1
    assert ranking(["a", "b"], []) is None
