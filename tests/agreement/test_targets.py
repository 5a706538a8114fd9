"""What a judge says beyond its questions is held against people as well: dimensions, grades, red lines; and where
it says that it cannot judge, that is counted."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from localjudge.agreement import calibrate
from localjudge.agreement.join import ABSTAINED
from localjudge.agreement.targets import targets_of
from localjudge.errors import LocalJudgeError
from localjudge.judge.questions import CANNOT
from localjudge.run.store import read_verdicts
from tests.agreement.conftest import Imported, held_of, judge_file, value_of

GRADED = """\
name: graded
inputs: [response]
questions:
  - {id: facts, type: choice, ask: Facts, options: [none, some, most, all]}
  - {id: tone, type: choice, ask: Tone, options: {warm: "", cold: ""}, cannot: true}
red_lines:
  - {code: LIE, text: it lies}
  - {code: HARM, text: it harms, fails: false, cap: 70}
scoring:
  decimals: 0
  values: {facts: {none: 0, some: 30, most: 70, all: 100}}
  measures: {facts: {question: facts}}
  dimensions: [{id: content, weight: 100, measures: [facts]}]
  grades: {good: [60, 100], poor: [10, 59], unfit: [0, 9]}
  grade_on_red_line: unfit
"""


WORTH = {"none": 0, "some": 30, "most": 70, "all": 100}


@pytest.fixture
def graded(imported: Imported, tmp_path: Path) -> Path:
    rng = random.Random(4)
    rows: list[dict[str, Any]] = []
    for i in range(90):
        lines = rng.sample(["LIE", "HARM"], rng.choice([0, 0, 1]))
        rows.append(
            {
                "id": f"r{i}",
                "response": "x",
                "facts": (q := rng.choice(list(WORTH))),
                "tone": CANNOT if i < 9 else rng.choice(["warm", "cold"]),
                "red_lines": lines,
                "people": {
                    "content": min(100, max(0, WORTH[q] + rng.randint(-20, 20))),
                    "lines": lines if rng.random() < 0.8 else [],
                    "grade": rng.choice(["good", "poor", "unfit"]),
                    "tone": CANNOT if i > 84 else rng.choice(["warm", "cold"]),
                },
            }
        )
    return imported(judge_file(tmp_path, GRADED), rows)


def test_dimensions_grades_and_red_lines(graded: Path, tmp_path: Path) -> None:
    known = targets_of(judge_file(tmp_path, GRADED))
    assert {"dimensions.content", "measures.facts", "grade", "red_lines.LIE", "overall", "passed"} <= set(known)
    assert [target.name for target in known["red_lines"]] == ["red_lines.LIE", "red_lines.HARM"]
    content = held_of(graded, "dimensions.content=people.content")
    assert value_of(content, "pearson") > 0.85
    assert value_of(content, "mae") < 25
    lie = held_of(graded, "red_lines.LIE=people.lines")
    assert value_of(lie, "recall") == 1 > value_of(lie, "precision")
    grade = held_of(graded, "grade=people.grade")
    assert grade.labels == ["good", "poor", "unfit"]
    verdicts = {verdict.id: verdict for verdict in read_verdicts(graded)}
    assert grade.confusion
    assert sum(grade.confusion.table[2]) == sum(verdict.grade == "unfit" for verdict in verdicts.values())


def test_where_the_judge_says_that_it_cannot_judge_it_is_neither_right_nor_wrong(graded: Path) -> None:
    tone = held_of(graded, "tone=people.tone")
    assert tone.counts["not_judged"] == {ABSTAINED: 9}
    assert value_of(tone, "accuracy", "n") == 76, "nor do people label what they cannot judge"
    assert value_of(tone, "accuracy_of_all", "n") == 85


def test_verdicts_whose_rules_look_at_the_record_are_not_calibrated_afterwards(
    graded: Path, tmp_path: Path
) -> None:
    spec = judge_file(tmp_path, GRADED)
    [verdict, *_] = read_verdicts(graded)
    made = calibrate.Calibrator(method="temperature", labels=list(WORTH), temperature=2.0)
    calibration = calibrate.Calibration(
        localjudge="0",
        judge=spec.name,
        judge_digest=spec.digest,
        model="m",
        model_fingerprint=None,
        mode="score",
        gold=[],
        seed=0,
        calibrators={"facts": made},
        evidence={},
    )
    assert calibrate.apply(calibration, spec, verdict) == verdict, "it keeps no probabilities"
    likely = {"none": 0.1, "some": 0.1, "most": 0.2, "all": 0.6}
    facts = verdict.answers["facts"].model_copy(update={"distribution": likely, "mass": 0.9})
    read = verdict.model_copy(update={"answers": {**verdict.answers, "facts": facts}})
    with pytest.raises(LocalJudgeError, match="judge with --calibration"):
        calibrate.apply(calibration, spec, read)
    better = calibrate.recalibrate(calibration, spec, read.answers)["facts"]
    assert better.distribution
    assert better.distribution["all"] < 0.6
