"""A panel's verdict: what its members said, centred or voted on, with ties stated."""

from __future__ import annotations

from typing import Any

import pytest

from localjudge.judge.loading import load_judge
from localjudge.judge.pairwise import verdict_of as pair_verdict
from localjudge.judge.panel import combine, ratings
from localjudge.judge.rubric import verdict_of
from localjudge.judge.spec import JudgeSpec
from localjudge.report.summary import summarize
from localjudge.verdict import Answer, Usage, Verdict

RUBRIC = """
name: panelled
inputs: [response]
user: "{{ response }}"
questions:
  - {id: help, type: score, ask: How helpful, scale: [1, 5]}
  - {id: tone, type: choice, ask: Which tone, options: [warm, cold, flat]}
  - {id: fit, type: choice, ask: Does it fit, options: ["yes", "no"]}
  - {id: safety, type: flags, ask: What is wrong, codes: {S1: harm, S2: lie}}
scoring:
  weights: {help: 3}
  values: {fit: {"yes": 5, "no": 1}}
"""


@pytest.fixture
def spec(tmp_path: Any) -> JudgeSpec:
    file = tmp_path / "judge.yaml"
    file.write_text(RUBRIC)
    return load_judge(file)


def member(spec: JudgeSpec, name: str, score: int, tone: str, fit: str, *codes: str) -> Verdict:
    answers = {"help": score, "tone": tone, "fit": fit, "safety": list(codes)}
    told = {key: Answer(value=value) for key, value in answers.items()}
    verdict = verdict_of(spec, "r", [told], name)
    return verdict.model_copy(update={"rationale": f"so says {name}", "usage": Usage(asks=1, written=10)})


def failed(name: str, status: Any = "too_long") -> Verdict:
    return Verdict(id="r", status=status, error=f"{name} failed", judge="panelled", model=name)


def test_scores_are_centred_and_labels_go_by_the_most_votes(spec: JudgeSpec) -> None:
    members = [
        member(spec, "a", 2, "warm", "yes", "S1"),
        member(spec, "b", 5, "warm", "no", "S1"),
        member(spec, "c", 4, "cold", "yes"),
    ]
    verdict = combine(spec, "r", members, "mean", "a + b + c")
    assert verdict.status == "ok"
    told = verdict.answers["help"]
    assert (told.value, told.expected) == (4, 11 / 3)
    assert (told.sd, told.entropy) == (pytest.approx(1.2472191), pytest.approx(1.5849625))
    assert told.distribution == {"2": 1 / 3, "5": 1 / 3, "4": 1 / 3}
    assert verdict.answers["tone"].value == "warm"
    assert verdict.answers["fit"].value == "yes"
    assert verdict.scores == {"help": 11 / 3, "fit": 11 / 3}
    assert verdict.overall == pytest.approx(11 / 3)
    assert verdict.red_lines == ["S1"]
    assert verdict.passed is False
    assert verdict.answers["safety"].distribution == {"S1": 2 / 3, "S2": 0}
    assert verdict.split == []
    assert verdict.members == members
    assert verdict.usage == Usage(asks=3, written=30)
    assert verdict.rationale == "so says b"

    assert combine(spec, "r", members, "median", "p").scores == {"help": 4, "fit": 5}


def test_a_tie_is_stated_and_nobody_wins_it(spec: JudgeSpec) -> None:
    members = [member(spec, "a", 3, "warm", "yes", "S2"), member(spec, "b", 4, "cold", "no")]
    verdict = combine(spec, "r", members, "mean", "a + b")
    assert verdict.answers["tone"].value is None
    assert verdict.answers["tone"].distribution == {"warm": 0.5, "cold": 0.5}
    assert verdict.split == ["tone", "fit", "safety.S2"]
    assert verdict.red_lines == []
    assert verdict.unsure
    assert verdict.scores == {"help": 3.5, "fit": 3}
    assert Verdict.model_validate_json(verdict.model_dump_json()) == verdict


def test_a_panel_stands_on_most_of_its_members(spec: JudgeSpec) -> None:
    judged = [member(spec, "a", 3, "warm", "yes"), member(spec, "b", 3, "warm", "yes")]
    verdict = combine(spec, "r", [*judged, failed("c")], "mean", "p")
    assert verdict.status == "ok"
    assert verdict.answers["help"].distribution == {"3": 1}

    verdict = combine(spec, "r", [judged[0], failed("c", "engine_error"), failed("d")], "mean", "p")
    assert (verdict.status, verdict.overall) == ("engine_error", None)
    assert verdict.error == "2 of 3 members could not judge it: c failed"
    assert verdict.members is not None and len(verdict.members) == 3


def test_what_was_read_from_probabilities_counts_by_its_expectation(spec: JudgeSpec) -> None:
    read = []
    for name, expected in (("a", 2.25), ("b", 4.5)):
        one = member(spec, name, round(expected), "warm", "yes")
        answers = {**one.answers, "help": Answer(value=round(expected), expected=expected, mass=0.9)}
        read.append(verdict_of(spec, "r", [answers], name))
    assert combine(spec, "r", read, "mean", "p").scores["help"] == 3.375
    assert ratings(spec, combine(spec, "r", read, "mean", "p"))["help"] == (["2", "4"], [2.25, 4.5])


CANNOT = RUBRIC.replace("scale: [1, 5]", "scale: [1, 5], cannot: true")


def test_those_who_cannot_judge_it_are_not_outvoted_by_the_few_who_do(tmp_path: Any) -> None:
    file = tmp_path / "judge.yaml"
    file.write_text(CANNOT)
    spec = load_judge(file)
    members = [member(spec, name, 1, "warm", "yes") for name in "abc"]

    def without(*names: str) -> Verdict:
        told = []
        for one in members:
            answers = {**one.answers, "help": Answer(value=None)} if one.model in names else one.answers
            told.append(verdict_of(spec, "r", [answers], one.model))
        return combine(spec, "r", told, "mean", "p")

    assert without("a").scores["help"] == 1
    verdict = without("a", "b")
    assert verdict.answers["help"].value is None
    assert verdict.scores == {"fit": 5}
    assert verdict.split == []
    assert ratings(spec, verdict)["help"] == (["cannot_judge", "cannot_judge", "1"], [1.0])
    assert summarize([verdict], spec).histograms["help"]["cannot_judge"] == 1


def test_a_panel_shows_the_findings_of_its_nearest_member() -> None:
    spec = load_judge("completability")
    members = []
    for name, score in (("a", 1), ("b", 4), ("c", 5)):
        told = {
            "score": Answer(value=score),
            "red_lines": Answer(value=[]),
            "obstacles": Answer(value=f"of {name}"),
        }
        members.append(verdict_of(spec, "r", [told], name))
    assert combine(spec, "r", members, "median", "p").answers["obstacles"].value == "of b"


def test_the_first_place_is_counted_once_a_pair() -> None:
    spec = load_judge("pairwise")
    told = [
        pair_verdict(spec, "r", [{"preference": Answer(value="A")}, {"preference": Answer(value=second)}], name)
        for name, second in (("a", "B"), ("b", "B"), ("c", "A"))
    ]
    pairs = summarize([combine(spec, str(i), told, "mean", "p") for i in range(10)], spec).pairwise
    assert pairs is not None and pairs.first_place is not None
    assert (pairs.first_place.n, pairs.first_place.missing) == (10, 0)
    assert pairs.first_place.mean == pytest.approx(5 / 6)


@pytest.mark.parametrize(
    ("preferences", "value", "overall"),
    [
        ("AAB", "A", 2 / 3),
        ("AB", None, 0.5),
        ("AiB", None, 0.5),
        ("iiA", "inconsistent", 2 / 3),
        ("ttB", "tie", 1 / 3),
    ],
)
def test_pairs_are_voted_on(preferences: str, value: str | None, overall: float) -> None:
    spec = load_judge("pairwise", ["tie=true"])
    orders = {"A": ("A", "A"), "B": ("B", "B"), "t": ("tie", "tie"), "i": ("A", "B")}
    members = [
        pair_verdict(spec, "r", [{"preference": Answer(value=label)} for label in orders[p]], f"m{i}")
        for i, p in enumerate(preferences)
    ]
    verdict = combine(spec, "r", members, "mean", "p")
    assert verdict.answers["preference"].value == value
    assert verdict.overall == pytest.approx(overall)
    assert verdict.split == ([] if value else ["preference"])
