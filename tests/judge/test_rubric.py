"""Large rubrics: passes, red lines, findings, measures, dimensions, grades; and what is said of mistakes."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from localjudge.engines.base import Ask, AskFailed, Completion
from localjudge.errors import JudgeError
from localjudge.judge.checks import Checked, Measured, Settled
from localjudge.judge.loading import load_judge
from localjudge.judge.measuring import folded, measure, verified
from localjudge.judge.rubric import judge, verdict_of
from localjudge.judge.spec import JudgeSpec
from localjudge.paths import data_dir
from localjudge.records import Record
from localjudge.verdict import Answer, Decision, Verdict

FULL = """\
name: full
inputs: [source, report]
rationale: 30
passes:
  - {id: facts, questions: [errors, claims, red_lines]}
  - {id: style, questions: [depth, jokes, place, tone], rationale: 0}
questions:
  - id: errors
    type: findings
    ask: Which mistakes are there
    budget: 200
    quoted_from: [report]
    fields:
      kind: {type: choice, options: {big: a big one, small: a small one}}
  - id: claims
    type: findings
    ask: Which numbers are cited
    fields:
      matches: {type: choice, options: ["yes", "no", absent]}
      actual: {type: text, budget: 10, ask: the number in the source}
  - id: depth
    type: band
    cannot: true
    ask: How deep does it go
    options:
      deep: {range: [60, 80], text: causes and effects}
      flat: {range: [0, 20]}
  - {id: jokes, type: findings, ask: Which jokes are there, fields: {kind: {type: choice, options: [pun, satire]}}}
  - {id: place, type: choice, ask: How good are they, options: [low, middle, high]}
  - {id: tone, type: choice, ask: Is the tone right, options: ["yes", "no"]}
red_lines:
  - {code: R1, text: it is dangerous, cap: 40}
  - {code: R2, text: it is long-winded, fails: false}
scoring:
  measures:
    truth: {error_rate: {findings: claims, wrong: {matches: "no"}, skip: {matches: absent}}}
    care: {deductions: {findings: errors, by: kind, points: {big: 15, small: 5}}, minus: {tone: {"no": 10}}}
    depth: {question: depth}
    fun: {count_band: {findings: jokes, bands: [[2, 70, 90], [1, 40, 69], [0, 0, 39]], place: place}}
  dimensions:
    - {id: facts, weight: 60, measures: [truth, care]}
    - {id: style, weight: 40, measures: [depth, fun]}
  decimals: 0
  grades: {good: [80, 100], fair: [50, 79], poor: [0, 49]}
"""


@pytest.fixture
def spec(tmp_path: Path) -> JudgeSpec:
    return load_judge(written(tmp_path, FULL))


def written(folder: Path, text: str) -> Path:
    file = folder / "judge.yaml"
    file.write_text(text, encoding="utf-8")
    return file


RECORD = Record("r", {"source": "Sold 7 in May.", "report": "They sold 9  in May.\nA ｐｕｎ? Funny."}, "r:1")

TOLD: dict[str, Any] = {
    "facts_rationale": "So it is.",
    "errors": [{"quote": "sold 9 in May", "kind": "big"}, {"quote": "in June", "kind": "big"}],
    "claims": [
        {"quote": "9", "matches": "no", "actual": "7"},
        {"quote": "May", "matches": "yes", "actual": "May"},
        {"quote": "Funny", "matches": "absent", "actual": "-"},
        {"quote": "nowhere", "matches": "no", "actual": "-"},
    ],
    "red_lines": {"R1": False, "R2": True},
    "depth": {"band": "deep", "place": "middle"},
    "jokes": [{"quote": "A pun?", "kind": "pun"}],
    "place": "high",
    "tone": "no",
}


class Told:
    """Answers each ask out of what is told, by the keys of its schema."""

    def __init__(self, **changed: Any) -> None:
        self.told = {**TOLD, **changed}
        self.asked: list[Ask] = []

    async def __call__(self, ask: Ask) -> Completion:
        self.asked.append(ask)
        text = json.dumps({key: self.told[key] for key in ask.schema["properties"]}, ensure_ascii=False)
        return Completion(text, 10, 5, 5, "stop")


def judged(spec: JudgeSpec, **changed: Any) -> Verdict:
    return asyncio.run(judge(spec, RECORD, Told(**changed), "m"))


def test_passes_share_all_before_their_questions(spec: JudgeSpec) -> None:
    told = Told()
    asyncio.run(judge(spec, RECORD, told, "m"))
    first, second = told.asked
    assert list(first.schema["properties"]) == ["facts_rationale", "errors", "claims", "red_lines"]
    assert list(second.schema["properties"]) == ["depth", "jokes", "place", "tone"]
    assert first.messages[0] == second.messages[0]
    here, there = first.messages[1].text, second.messages[1].text
    shared = next(i for i, (a, b) in enumerate(zip(here, there, strict=False)) if a != b)
    assert "Funny." in here[:shared]
    assert "Which mistakes are there" in here[shared:]
    assert "R1: true if this applies: it is dangerous" in here
    assert "deep = 60-80. causes and effects" in there
    assert "cannot_judge" in there
    assert "big = a big one" in here


def test_every_number_is_counted_by_the_program(spec: JudgeSpec) -> None:
    verdict = judged(spec)
    # Of two claims that can be checked one is wrong: 100 - 200 x 1/2. One big error is proven: 100 - 15, less 10
    # for the tone.
    assert {name: one.value for name, one in verdict.measures.items()} == {
        "truth": 0,
        "care": 75,
        "depth": 70,
        "fun": 69,
    }
    assert verdict.measures["care"].why == ["-15: “sold 9 in May” (kind big)", "-10: tone = no"]
    assert verdict.dimensions == {"facts": 38, "style": 70}  # 37.5 and 69.5, half up
    assert verdict.scores == verdict.dimensions
    assert verdict.overall == 51  # 0.6 x 38 + 0.4 x 70 = 50.8
    assert verdict.grade == "fair"
    assert verdict.passed is True
    assert verdict.red_lines == ["R2"]
    assert verdict.rationale == "So it is."


def test_a_quote_that_is_not_in_the_record_does_not_count(spec: JudgeSpec) -> None:
    verdict = judged(spec)
    assert [finding["verified"] for finding in verdict.answers["errors"].value] == [True, False]
    assert [finding["verified"] for finding in verdict.answers["claims"].value] == [True, True, True, False]
    assert folded(" ｐｕｎ\n\t ＡＢ ") == "pun AB"
    assert verified([{"quote": "  "}], ["a b"]) == [{"quote": "  ", "verified": False}]
    # In the source only, where errors are to be quoted from the report:
    [finding] = judged(spec, errors=[{"quote": "Sold 7 in May.", "kind": "big"}]).answers["errors"].value
    assert finding["verified"] is False


def test_what_cannot_be_judged_leaves_the_weighting(spec: JudgeSpec) -> None:
    verdict = judged(spec, depth={"band": "cannot_judge", "place": "low"})
    assert verdict.answers["depth"].value is None
    assert verdict.measures["depth"].value is None
    assert verdict.dimensions["style"] == 69
    verdict = judged(spec, claims=[])
    assert verdict.measures["truth"].value is None
    assert verdict.dimensions["facts"] == 75
    assert verdict.overall == 73


def test_a_red_line_caps_and_fails(spec: JudgeSpec) -> None:
    verdict = judged(spec, red_lines={"R1": True, "R2": False})
    assert (verdict.overall, verdict.passed, verdict.grade) == (40, False, "poor")
    assert verdict.decisions == {
        "R1": Decision(stands=True, by="model"),
        "R2": Decision(stands=False, by="model"),
    }


def test_a_count_falls_on_the_edge_of_its_band(spec: JudgeSpec) -> None:
    pun, fun = {"quote": "A pun?", "kind": "pun"}, {"quote": "Funny.", "kind": "pun"}
    for jokes, place, value in (([], "low", 0), ([], "middle", 20), ([pun], "low", 40), ([pun, fun], "low", 70)):
        assert judged(spec, jokes=jokes, place=place).measures["fun"].value == value


def test_what_is_listed_again_or_says_nothing_counts_once_or_not(spec: JudgeSpec) -> None:
    pun, mark = {"quote": "A pun?", "kind": "pun"}, {"quote": "?", "kind": "satire"}
    verdict = judged(spec, jokes=[pun, {**pun, "quote": "A ｐｕｎ?"}, pun, mark], place="low")
    assert [finding["verified"] for finding in verdict.answers["jokes"].value] == [True, True, True, False]
    assert verdict.measures["fun"].value == 40
    error = {"quote": "sold 9 in May", "kind": "big"}
    assert judged(spec, errors=[error] * 5, tone="yes").measures["care"].value == 85


def test_quotes_are_found_inside_json_as_it_is_shown(tmp_path: Path) -> None:
    text = FULL.replace(
        "inputs: [source, report]", "inputs: [source, {name: report, type: json, view: {drop: [id]}}]"
    )
    spec = load_judge(written(tmp_path, text))
    fields = {"source": "s", "report": {"id": "secret 12", "parts": [{"text": "They sold 9 in May.", "n": 7}]}}
    quotes = ["sold 9 in May", "secret 12", "7"]
    told = {**TOLD, "errors": [{"quote": quote, "kind": "big"} for quote in quotes]}
    verdict = asyncio.run(judge(spec, Record("r", fields, "r:1"), Told(**told), "m"))
    assert [finding["verified"] for finding in verdict.answers["errors"].value] == [True, False, True]


def test_code_decides_and_the_model_cannot_overrule_it(tmp_path: Path) -> None:
    spec = load_judge("scenario-review")
    raised = {line.code: Answer(value=[]) for line in spec.red_lines}
    answers = {question.id: Answer(value=5) for question in spec.questions if question.type == "score"}
    answers["red_lines"] = Answer(value=["S1", "B3"])
    checked = Checked(red_lines={"S1": Settled(False, "in order"), "S3": Settled(True, "beat 2 has none")})
    verdict = verdict_of(spec, "r", [answers], "m", None, checked)
    assert raised
    assert verdict.red_lines == ["B3", "S3"]
    assert verdict.decisions["S1"] == Decision(stands=False, by="code", why="in order")
    assert verdict.decisions["S3"] == Decision(stands=True, by="code", why="beat 2 has none")
    assert verdict.decisions["B3"].by == "model"
    assert (verdict.overall, verdict.passed) == (2, False)


@pytest.mark.parametrize(
    ("score", "blockers", "passed", "risk"),
    [
        (5, [], True, "low"),
        (4, [], True, "low"),
        (3, [], False, "medium"),
        (2, [], False, "high"),
        (1, [], False, "high"),
        (5, ["C7"], False, "high"),
        (3, ["C1", "C2"], False, "high"),
    ],
)
def test_whether_a_project_can_be_completed_is_arithmetic(
    score: int, blockers: list[str], passed: bool, risk: str
) -> None:
    spec = load_judge("completability")
    answers = {"score": Answer(value=score), "red_lines": Answer(value=blockers)}
    verdict = verdict_of(spec, "r", [answers], "m")
    assert (verdict.passed, verdict.grade, verdict.overall) == (passed, risk, score)


def test_nothing_that_could_be_judged_is_no_score(spec: JudgeSpec) -> None:
    scoring = spec.scoring.model_copy(update={"dimensions": spec.scoring.dimensions[:0]})
    assert measure(scoring, {}, {})["truth"] == Measured(None, ("not answered",))
    told = {name: Answer(value=value) for name, value in (("claims", []), ("red_lines", []), ("depth", None))}
    with pytest.raises(AskFailed, match="nothing that counts could be judged") as caught:
        verdict_of(spec, "r", [told], "m")
    assert caught.value.status == "invalid_record"


def test_labels_are_read_without_findings(spec: JudgeSpec) -> None:
    from localjudge.judge.reading import plan_labels

    plan = plan_labels(spec, lambda labels: True)
    assert set(plan) == {"depth", "place", "tone", "red_lines"}
    assert list(plan["depth"]) == ["deep", "flat", "cannot_judge"]

    async def read(ask: Ask) -> Completion:
        likely = dict.fromkeys(ask.labels, 1 / len(ask.labels))
        return Completion("", 10, 5, 1, "labels", {"": likely}, mass=1.0)

    verdict = asyncio.run(judge(spec, RECORD, read, "m", plan))
    assert verdict.measures["depth"].value == 40  # of deep (70) and flat (10), as likely as each other
    assert verdict.measures["truth"].value is None
    assert verdict.dimensions == {"facts": None, "style": 40}


def test_a_judge_comes_in_several_languages(tmp_path: Path) -> None:
    assert load_judge("scenario-review", language="zh").language == "zh"
    assert load_judge("scenario-review", language="en").language == "en"
    assert load_judge("replay-review").language == "zh"
    assert load_judge("replay-review", language="en").language == "en"
    with pytest.raises(JudgeError, match="does not come in the language 'zh'") as caught:
        load_judge("truthfulness", language="zh")
    assert "write judge.zh.yaml beside it" in str(caught.value)


MISTAKES = [
    (
        "weight: 60",
        "weight: 50",
        "the dimensions' weights sum to 90, not 100: 50 + 40",
        "dimensions:",
    ),
    (
        "fair: [50, 79]",
        "fair: [50, 75]",
        "there is a gap: let fair end at 79",
        "grades:",
    ),
    (
        "fair: [50, 79]",
        "fair: [50, 80]",
        "there is an overlap: let fair end at 79",
        "grades:",
    ),
    (
        "[1, 40, 69]",
        "[1, 40, 70]",
        "the band from 1 reaches 70, into the one from 2, which begins at 70",
        "fun:",
    ),
    (
        "[0, 0, 39]",
        "[-1, 0, 39]",
        "no band holds counts below -1",
        "fun:",
    ),
    (
        "points: {big: 15, small: 5}",
        "points: {big: 15, smal: 5}",
        "did you mean 'small'?",
        "care:",
    ),
    (
        "points: {big: 15, small: 5}",
        "points: {big: 15}",
        "no points are given for kind 'small'",
        "care:",
    ),
    (
        "findings: claims",
        "findings: claim",
        "'claim' is no question: did you mean 'claims'?",
        "truth:",
    ),
    (
        'matches: "no"}',
        'match: "no"}',
        "have no field 'match' with labels: did you mean",
        "truth:",
    ),
    (
        "quoted_from: [report]",
        "quoted_from: [reports]",
        "'reports' is no input: did you mean 'report'?",
        "quoted_from:",
    ),
    (
        "measures: [depth, fun]",
        "measures: [depth]",
        "'fun' is in no dimension, so it counts nothing",
        "fun:",
    ),
    (
        "measures: [depth, fun]",
        "measures: [depth, fnu]",
        "'fnu' is no measure: did you mean 'fun'?",
        "id: style, weight",
    ),
    (
        "place, tone], rat",
        "tone], rat",
        "'place' is in no pass, so it would not be asked",
        "passes:",
    ),
    (
        "[depth, jokes, place",
        "[depht, jokes, place",
        "'depht' is no question: did you mean 'depth'?",
        "id: style, q",
    ),
    (
        "code: R2",
        "code: R1",
        "two red lines have the code 'R1'",
        "long-winded",
    ),
    (
        "cap: 40}",
        "by: code}",
        "'R1' is decided by code, but the judge names no 'checks'",
        "code: R1",
    ),
    (
        "rationale: 30",
        "checks: replays",
        "there are no checks 'replays': did you mean 'replay'?",
        "checks:",
    ),
    (
        "kind: {type: choice, options: {big",
        "quote: {type: choice, options: {big",
        "every finding has 'quote' already",
        "",
    ),
    (
        "inputs: [source, report]",
        "inputs: [source, {name: report, view: {drop: [id]}}]",
        "a view is of JSON",
        "inputs",
    ),
    (
        "range: [60, 80]",
        "range: [80, 60]",
        "the band [80, 60] is not two numbers that rise, from 0 to 100",
        "deep:",
    ),
    (
        "depth: {question: depth}",
        "depth: {question: depth, check: x}",
        "it has question and check",
        "depth: {q",
    ),
    (
        "depth: {question: depth}",
        "depth: {question: errors}",
        "it gives no number of 0 to 100",
        "depth: {q",
    ),
    ("poor: [0, 49]", "poor: [10, 49]", "no grade holds an overall of 0: let poor begin there", "grades:"),
    ("good: [80, 100]", "good: [80, 95]", "no grade holds an overall of 100: let good end there", "grades:"),
    (
        "{good: [80, 100], fair: [50, 79], poor: [0, 49]}",
        "{poor: [0, 49], fair: [50, 79], good: [80, 100]}",
        "the grade fair is better than poor: the best first",
        "grades:",
    ),
    ("cap: 40", "cap: 140", "the cap 140 of 'R1' is no overall, which lies between 0 and 100", "code: R1"),
    ("points: {big: 15", "points: {big: -15", "should be at least 0, not -15", "care:"),
    ('wrong: {matches: "no"}', "wrong: {}", "error_rate.wrong' is empty", "truth:"),
    ("range: [0, 20]", "range: [0, 70]", "the bands flat and deep overlap", "options:"),
    ("rationale: 30", "checks: replay", "look at 'match', which is no input", "checks:"),
]


@pytest.mark.parametrize(("good", "bad", "what", "line"), MISTAKES, ids=[mistake[1] for mistake in MISTAKES])
def test_a_mistake_is_told_with_its_line(tmp_path: Path, good: str, bad: str, what: str, line: str) -> None:
    assert good in FULL
    text = FULL.replace(good, bad, 1)
    with pytest.raises(JudgeError) as caught:
        load_judge(written(tmp_path, text))
    assert what in str(caught.value)
    number = int(str(caught.value.where).rpartition(":")[2])
    assert line in text.splitlines()[number - 1]


def test_a_built_in_judge_is_copied_and_changed(tmp_path: Path) -> None:
    """A new user's way: copy the folder, change weights and a band, be told what does not add up, run."""
    mine = tmp_path / "mine"
    shutil.copytree(data_dir("prompts") / "replay-review", mine)
    file = mine / "judge.yaml"

    def change(old: str, new: str) -> None:
        text = file.read_text(encoding="utf-8")
        assert text.count(old) == 1
        file.write_text(text.replace(old, new), encoding="utf-8")

    before = load_judge(mine)
    change("id: accuracy, title: 事实准确性, weight: 20", "id: accuracy, title: 事实准确性, weight: 30")
    with pytest.raises(JudgeError, match="the dimensions' weights sum to 110, not 100: 30 "):
        load_judge(mine)
    change("id: depth, title: 分析深度, weight: 20", "id: depth, title: 分析深度, weight: 10")
    change("S: [90, 100], A: [80, 89]", "S: [95, 100], A: [80, 89]")
    with pytest.raises(JudgeError, match=r"between the grades A .to 89. and S .from 95. there is a gap") as caught:
        load_judge(mine)
    assert str(caught.value.where).startswith(f"{file}:")
    change("S: [95, 100], A: [80, 89]", "S: [95, 100], A: [80, 94]")
    after = load_judge(mine)
    assert after.digest != before.digest
    assert [dimension.weight for dimension in after.scoring.dimensions][:2] == [30, 10]
    assert after.report is not None and after.report.where == str(mine / "report.zh.md.j2")
