"""Candidates side by side: paired arithmetic checked by hand and against scipy, runs and suites joined, and what is
never mixed."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from localjudge.engines.base import Ask, AskFailed
from localjudge.errors import RecordsError, RunError
from localjudge.judge.loading import load_judge
from localjudge.judge.spec import JudgeSpec
from localjudge.paths import data_dir
from localjudge.run.candidates import Judged, compared, paired, standing
from localjudge.run.compare import compare_runs, comparisons_of, markdown
from tests.run import test_suite
from tests.run.conftest import Job, child, finish, truth_rows
from tests.scripted import ScriptedEngine

REPLAYS = data_dir("prompts") / "replay-review" / "examples" / "records.jsonl"


@pytest.fixture(scope="module")
def replay() -> JudgeSpec:
    return load_judge("replay-review")


@pytest.fixture(scope="module")
def review() -> JudgeSpec:
    return load_judge("scenario-review")


def judged(spec: JudgeSpec, overall: float | None, status: str = "ok", **told: Any) -> Judged:
    names = [name for name in spec.scales if name != spec.scoring.overall]
    values = {name: told.pop(name, overall) for name in names} if status == "ok" else {}
    fields: dict[str, Any] = {"id": "r", "passed": None, "grade": None, "red_lines": [], **told}
    return Judged(status=status, overall=overall, values=values, **fields)


# Arithmetic


def test_one_match_is_told_as_the_seed_tells_it(replay: JudgeSpec) -> None:
    strong = judged(
        replay,
        83.0,
        accuracy=95.0,
        depth=80.0,
        format=90.0,
        expression=60.0,
        user_view=100.0,
        social=80.0,
        grade="A",
    )
    weak = judged(
        replay,
        61.0,
        accuracy=45.0,
        depth=60.0,
        format=95.0,
        expression=70.0,
        user_view=None,
        social=60.0,
        grade="B",
    )
    it = compared(replay, ["模型甲", "模型乙"], {"m1": {"模型甲": strong, "模型乙": weak}}, "candidate")
    assert it.standing.winner == "模型甲"
    # By what each adds to the overall: 20 x 50, 20 x 20, 15 x 20; not by the bare differences.
    assert it.standing.reason == (
        "模型甲 领先 模型乙 22 分（83 对 61）。领先最多的是：事实准确性 +50、分析深度 +20、社交分享价值 +20。"
        "不足之处：表达质量与趣味性 -10、格式规范性 -5。"
    )
    assert it.standing.sentences == {
        "模型甲": "综合 83 分，等级 A；最强的是 用户视角合理性 100，最弱的是 表达质量与趣味性 60。",
        "模型乙": "综合 61 分，等级 B；最强的是 格式规范性 95，最弱的是 事实准确性 45。",
    }
    text = markdown(it)
    assert text.startswith("# replay-review 横评对比\n")
    for line in (
        "| 维度 | 模型甲 | 模型乙 |\n|---|--:|--:|\n| 事实准确性 | 95/100 | 45/100 |",
        "| 用户视角合理性 | 100/100 | 无法判断 |",
        "| **综合得分** | **83/100** | **61/100** |\n| **等级** | A | B |",
        "**胜出**：模型甲",
        "**各自一句话评价**\n\n- 模型甲：综合 83 分",
    ):
        assert line in text
    assert "区间" not in text


def test_intervals_are_student_s_on_paired_differences_and_need_eight_cases(review: JudgeSpec) -> None:
    from scipy import stats

    first, second = [5, 4, 3, 5, 4, 2, 5, 4, 3.0], [4, 4, 1, 5, 2, 2, 4, 3, 3.0]
    cases = [{"a": judged(review, a), "b": judged(review, b)} for a, b in zip(first, second, strict=True)]
    told = paired("overall", "a", "b", cases)
    oracle = stats.ttest_rel(first, second).confidence_interval()
    assert told is not None
    assert told.difference == pytest.approx(7 / 9)
    assert (told.low, told.high) == (pytest.approx(oracle.low), pytest.approx(oracle.high))
    assert told.low is not None
    assert told.low > 0
    assert "over 9 cases); 95 % interval 0.14 to 1.42." in standing(review, ["a", "b"], cases).reason

    few = paired("overall", "a", "b", cases[:7])
    assert few is not None
    assert (few.n, few.low, few.high) == (7, None, None)
    assert "too few cases for an interval" in standing(review, ["a", "b"], cases[:7]).reason

    level = [{"a": judged(review, a), "b": judged(review, b)} for a, b in [(5, 4), (2, 4), (5, 3), (3, 3)] * 2]
    assert "so it may be chance" in standing(review, ["a", "b"], level).reason
    same = [{"a": judged(review, 4), "b": judged(review, 3)}] * 8
    assert "the same in each case" in standing(review, ["a", "b"], same).reason


def test_what_could_not_be_judged_is_counted_and_in_no_mean(review: JudgeSpec) -> None:
    found = {
        "one": {"a": judged(review, 5), "b": judged(review, 1)},
        "two": {"a": judged(review, None, "engine_error"), "b": judged(review, 5)},
        "three": {"a": judged(review, 1), "b": judged(review, 4)},
        "four": {"b": judged(review, 5)},
    }
    it = compared(review, ["a", "b"], found, "candidate")
    a, b = it.candidates
    assert (a.records, a.judged, a.failed, a.overall) == (3, 2, {"engine_error": 1}, 3)
    assert (b.records, b.judged, b.overall) == (4, 4, 2.5)
    assert it.common == 2
    assert it.standing.winner == "a"
    assert it.standing.sentences["a"] == "overall 3; 1 not judged."
    assert it.warnings == [
        "a: 1 of 3 could not be judged, and count nothing.",
        "2 of 4 cases were not judged for every candidate, and are in no mean.",
    ]
    assert it.cases[1].standing.winner is None
    assert it.cases[1].standing.sentences["a"] == "not judged (engine_error)."
    text = markdown(it)
    assert "| **overall** | **not judged** | **5/5** |" in text
    assert "With one candidate only: four (1)" in text


def test_at_the_same_overall_what_passes_is_ahead_and_ties_stay_ties(review: JudgeSpec) -> None:
    clean, crossed = judged(review, 2, passed=True), judged(review, 2, passed=False, red_lines=["S3", "S4"])
    told = standing(review, ["a", "b"], [{"a": clean, "b": crossed}])
    assert told.winner == "a"
    assert told.reason == "a, b have 2 each, but a passes more often (a 1, b 0). Red lines: a none; b S3, S4."
    told = standing(review, ["a", "b"], [{"a": crossed, "b": crossed}] * 2)
    assert told.winner is None
    assert told.reason.startswith("Nobody is ahead: a, b have 2 each over 2 cases. Red lines: a in 2 of 2 (S3, S4)")


# One run


def candidates(n: int) -> list[dict[str, Any]]:
    return [
        {
            "id": f"{name}{i}",
            "question": f"Is {i} even?",
            "answer": f"{name} says {i}",
            "case": f"q{i}",
            "candidate": name,
        }
        for i in range(n)
        for name in ("first", "second")
    ]


def test_a_run_whose_records_name_their_candidate(tmp_path: Path) -> None:
    job = Job(tmp_path, "truthfulness", candidates(12))
    job.run()
    files, text = compare_runs([job.out])
    assert files == [job.out / "comparison.json", job.out / "comparison.md"]
    assert files[1].read_text() == text
    [it] = json.loads(files[0].read_text())["comparisons"]
    assert [one["name"] for one in it["candidates"]] == ["first", "second"]
    assert [case["case"] for case in it["cases"]] == [f"q{i}" for i in range(12)]
    assert it["common"] == 12
    assert all(one["low"] is not None for one in it["differences"])
    assert re.search(r"\| first − second +\| overall +\| +-?[\d.]+ +\| +12 +\| -?[\d.]+ to -?[\d.]+ +\|", text)


def test_other_fields_may_name_them_and_mistakes_are_told(tmp_path: Path) -> None:
    rows = [{"who": row.pop("candidate"), "item": row.pop("case"), **row} for row in candidates(2)]
    job = Job(tmp_path, "truthfulness", rows)
    job.run()
    found, _ = comparisons_of([job.out], by="who", case="item")
    assert [one.name for one in found[0].candidates] == ["first", "second"]
    with pytest.raises(RecordsError, match=r"no record has a field 'candidate'\n.*--by FIELD"):
        compare_runs([job.out])
    with pytest.raises(RecordsError, match=r"no record has a field 'itm'\n.*did you mean 'item'"):
        compare_runs([job.out], by="who", case="itm")
    with pytest.raises(RunError, match="has two records of 'first': first0 and first1"):
        compare_runs([job.out], by="who", case="who")
    with pytest.raises(RunError, match="one candidate"):
        out, _ = (
            job.out,
            job.run(out=tmp_path / "one", records=test_suite.write_rows(tmp_path / "one.jsonl", rows[::2])),
        )
        compare_runs([tmp_path / "one"], by="who", case="item")
    with pytest.raises(RunError, match="this folder holds no run"):
        compare_runs([tmp_path / "nothing"])
    assert out == job.out


def test_the_replay_review_is_compared_in_chinese(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in REPLAYS.read_text(encoding="utf-8").splitlines()]
    job = Job(tmp_path, "replay-review", rows)
    job.run()
    found, text = comparisons_of([job.out])
    [it] = found
    assert [one.name for one in it.candidates] == ["模型甲", "模型乙"]
    assert [case.case for case in it.cases] == ["m1", "m2", "m3"]
    for title in ("事实准确性", "分析深度", "格式规范性", "表达质量与趣味性", "用户视角合理性", "社交分享价值"):
        assert len(re.findall(rf"^\| {title} \| [\d无]", text, re.MULTILINE)) == 4
    assert text.count("| **等级** |") == 4
    assert "**胜出原因**：" in text


# Several runs


def test_runs_are_joined_by_their_records_ids(tmp_path: Path) -> None:
    job = Job(tmp_path, "truthfulness", truth_rows(9))
    job.run(out=tmp_path / "old")
    changed = [{**row, "answer": f"Another answer to {row['id']}."} for row in truth_rows(10)]
    job.run(out=tmp_path / "new", records=test_suite.write_rows(tmp_path / "new.jsonl", changed))
    written, text = compare_runs([tmp_path / "old", tmp_path / "new"])
    assert written == []
    [it], _ = comparisons_of([tmp_path / "old", tmp_path / "new"])
    assert [one.name for one in it.candidates] == ["old", "new"]
    assert (it.common, len(it.cases)) == (9, 10)
    assert "different models" not in text

    job.run(ScriptedEngine(settings={"model": "b"}), model={"name": "b", "fingerprint": "b"}, out=tmp_path / "b")
    files, text = compare_runs([tmp_path / "old", tmp_path / "b"], out=tmp_path / "kept")
    assert [file.name for file in files] == ["comparison.json", "comparison.md"]
    assert "| scripted | b |" in text
    assert "what differs is who judges, not what is judged" in text
    _, text = compare_runs([tmp_path / "new", tmp_path / "b"])
    assert "the differences are of both" in text
    with pytest.raises(RunError, match="joined by their records' ids"):
        compare_runs([tmp_path / "old", tmp_path / "b"], by="candidate")
    with pytest.raises(RunError, match="given twice"):
        compare_runs([tmp_path / "old", tmp_path / "old"])


def test_judges_are_never_mixed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    truth = Job(tmp_path / "a", "truthfulness", truth_rows(2))
    truth.run()
    truth.run(out=tmp_path / "strict", judge_settings=["rationale=20"])
    rows = [{"id": f"t{i}", "instruction": "Count.", "response": str(i)} for i in range(2)]
    quality = Job(tmp_path / "b", "answer-quality", rows)
    quality.run()
    with pytest.raises(RunError, match=r"runs of different judges: 'truthfulness' .*, 'answer-quality'"):
        compare_runs([truth.out, quality.out])
    with pytest.raises(RunError, match=r"is not the same judge in .*: judge\.digest was"):
        compare_runs([truth.out, tmp_path / "strict"])
    pairs = Job(tmp_path, "pairwise", [{"id": "p", "instruction": "i", "response_a": "a", "response_b": "b"}])
    pairs.run()
    with pytest.raises(RunError, match="compares already"):
        compare_runs([pairs.out])


# Suites


def test_a_suite_keeps_its_categories_apart(tmp_path: Path) -> None:
    job = test_suite.Job(tmp_path, test_suite.ROWS.values())
    folder = Path(job.run().folder)
    found, text = comparisons_of([folder])
    assert [(one.judge, one.category) for one in found] == [
        ("scenario-review", "scenario"),
        ("completability", "scenario"),
        ("project-review", "project"),
        ("completability", "project"),
    ]
    scenario, beside, _, _ = found
    loop, single = scenario.candidates
    assert (loop.overall, single.overall, scenario.common) == (2.75, 1.75, 4)
    assert scenario.standing.winner == "loop"
    assert scenario.standing.reason == (
        "loop is ahead of single-call by 1 (2.75 against 1.75 over 4 cases); too few cases for an interval. "
        "Its largest leads: stageIntegrity +1.75, projectNotLecture +0.25, granularity +0.25. "
        "It is behind in typeFit -0.5, taskEvaluability -0.25. "
        "Red lines: loop in 3 of 4 (S3, S7, S1); single-call in 4 of 4 (S4, S5, S1, S6)."
    )
    assert {case.case: case.standing.winner for case in scenario.cases} == {
        "raise": "loop",
        "allergy": "loop",
        "noise": None,
        "debate": None,
        "vet": None,
        "guide": None,
    }
    assert (beside.standing.winner, beside.common) == ("single-call", 4)
    assert "passes more often (loop 2, single-call 4)" in beside.standing.reason
    assert text.count("side by side (scenario)") == text.count("side by side (project)") == 2

    moved = folder.rename(tmp_path / "moved")
    assert len(comparisons_of([moved])[0]) == 4


def test_two_models_suites_are_compared_judge_by_judge(tmp_path: Path) -> None:
    job = test_suite.Job(tmp_path, list(test_suite.ROWS.values())[8:12])

    def fails(ask: Ask) -> AskFailed | None:
        return AskFailed("engine_error", "scripted") if "obstacles" in ask.schema["properties"] else None

    first = asyncio.run(job.prepare(model="a").go())
    job.out = tmp_path / "b"
    second = asyncio.run(job.prepare(test_suite.Reviewer(settings={"m": "b"}, fails=fails), model="b").go())
    found, text = comparisons_of([Path(first.folder), Path(second.folder)])
    assert [(one.judge, one.category) for one in found] == [
        ("scenario-review", "scenario"),
        ("completability", "scenario"),
        ("project-review", "project"),
        ("completability", "project"),
    ]
    assert [one.name for one in found[0].candidates] == ["a", "b"]
    assert found[1].standing.winner is None
    assert "b: 2 of 2 could not be judged" in text


def test_suites_are_named_by_their_folders_also_from_within_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = test_suite.Job(tmp_path, list(test_suite.ROWS.values())[:2])
    first = Path(job.run().folder).rename(tmp_path / "one")
    Path(job.run().folder).rename(tmp_path / "other")
    monkeypatch.chdir(first)
    found, _ = comparisons_of([Path(), Path("../other")])
    assert [one.name for one in found[0].candidates] == ["one", "other"]


def test_the_command(tmp_path: Path) -> None:
    job = Job(tmp_path, "truthfulness", candidates(3))
    job.run()
    out, _ = finish(child("compare", str(job.out)))
    assert "# truthfulness side by side" in out
    assert out.endswith("comparison.md\n")
    _, err = finish(child("compare", str(tmp_path)), 2)
    assert "holds no run" in err
