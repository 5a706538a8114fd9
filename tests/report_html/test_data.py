"""What the pages are told of a run: all of it, blind or not, while it goes on, and without its records."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from localjudge.agreement.writing import Asked, agree_run
from localjudge.distill.evaluate import Wanted, keep, measure
from localjudge.errors import RunError
from localjudge.judge.loading import load_judge
from localjudge.report.html.data import RunData, cases, detail, overview
from localjudge.run.importing import import_verdicts
from localjudge.run.store import RunDirectory
from tests.report_html.runs import KeptEngine, judged, pairs
from tests.run.conftest import truth_rows, write_rows


def whole(ask: dict[str, Any], first: dict[str, Any]) -> list[tuple[str, str]]:
    return [(role, first["messages"][i][1][:n] + text) for i, (role, text, n) in enumerate(ask["messages"])]


def test_a_case_has_what_was_sent_and_what_came_back_to_the_letter(tmp_path: Path) -> None:
    engine = KeptEngine()
    out = judged(tmp_path, "pairwise", pairs(3), engine)
    told = [detail(out, f"p{i}")["asks"] for i in range(3)]
    assert sorted(whole(ask, asks[0]) for asks in told for ask in asks) == sorted(engine.asks)
    assert sorted(ask["completion"] for asks in told for ask in asks) == sorted(engine.texts)
    # Of the second order only what is not in the first is told again.
    assert told[0][1]["messages"][0] == ["system", "", len(told[0][0]["messages"][0][1])]


def test_labels_that_were_read_come_with_their_prompts(tmp_path: Path) -> None:
    engine = KeptEngine()
    out = judged(tmp_path, "truthfulness", truth_rows(2), engine, mode="score")
    told = detail(out, "t1")
    assert whole(told["asks"][0], told["asks"][0]) in engine.asks
    assert "completion" not in told["asks"][0]
    [answer] = told["answers"]
    assert answer["id"] == "truthful" and dict(answer["distribution"]).keys() == {"yes", "no"}
    assert 0 < answer["mass"] < 1


def test_a_prompt_that_cannot_be_made_again_is_said_not_guessed(tmp_path: Path) -> None:
    (tmp_path / "judge.yaml").write_text(
        "name: own\ninputs: [text]\nuser: 'Look: {{ text }} {{ question_list }}'\n"
        "questions: [{id: good, type: score, ask: Is it good, anchors: {1: bad, 5: good}}]\n"
    )
    out = judged(tmp_path, str(tmp_path / "judge.yaml"), [{"id": "1", "text": "a"}])
    assert detail(out, "1")["asks"][0]["messages"][-1][1].startswith("Look: <text ")
    run = json.loads((out / "run.json").read_text())
    run["judge"]["digest"] = "0" * 64
    (out / "run.json").write_text(json.dumps(run))
    assert detail(out, "1")["asks"] == []
    assert any("prompts cannot be shown" in note for note in overview(out)["notes"])


def test_blind_is_without_anything_that_the_judge_said(tmp_path: Path) -> None:
    out = judged(tmp_path, "truthfulness", truth_rows(3))
    told = detail(out, "t0", blind=True)
    assert told.keys() == {"id", "where", "fields", "pairs", "blind"}
    with contextlib.closing(RunData(out)) as data:
        rows = list(data.cases(blind=True))
    assert all(row.keys() == {"id", "fields", "text"} for row in rows)
    said = {str(answer["value"]) for answer in detail(out, "t0")["answers"]}
    assert not any(text in json.dumps([told, rows[0]]) for text in said if len(text) > 8)


def test_records_are_sliced_by_any_field_whose_values_come_again(tmp_path: Path) -> None:
    rows = [
        {**row, "topic": ("law", "art")[i % 2], "level": i % 3, "note": f"only {i}"}
        for i, row in enumerate(truth_rows(60))
    ]
    out = judged(tmp_path, "truthfulness", rows, mode="score")
    with contextlib.closing(RunData(out)) as data:
        next(data.cases())  # given up
        assert len(list(data.cases())) == len(list(data.cases())) == 60
        told = data.overview()
    assert set(told["slices"]) == {"topic", "level"}
    law = told["slices"]["topic"]["law"]
    assert law["n"] == law["judged"] == 30
    overalls = [row["overall"] for row in cases(out) if row["fields"]["topic"] == "law"]
    assert law["mean"] == pytest.approx(sum(overalls) / 30)
    assert law["low"] < law["mean"] < law["high"]
    assert told["reading"]["truthful"]["n"] == 60
    assert told["summary"]["total"] == 60


def test_people_are_beside_the_judge_once_the_run_was_held_against_them(tmp_path: Path) -> None:
    rows = [{**row, "human": ("yes", "no")[i % 2]} for i, row in enumerate(truth_rows(20))]
    out = judged(tmp_path, "truthfulness", rows)
    assert overview(out)["gold"] is None
    agree_run(out, Asked(["human"]), draw=False)
    told = {row["id"]: row["gold"]["truthful"] for row in cases(out)}
    assert all(one["gold"] == rows[int(name[1:])]["human"] for name, one in told.items())
    assert all(one["same"] == (one["gold"] == one["judge"]) for one in told.values())
    assert overview(out)["agreement"]["held"][0]["target"] == "truthful"


def test_pairs_that_name_their_models_are_ranked(tmp_path: Path) -> None:
    out = judged(tmp_path, "pairwise", pairs(30), judge_settings=["tie=true"])
    told = overview(out)
    assert {row["name"] for row in told["ranking"]["rows"]} == {"alpha", "beta", "gamma"}
    counted = sum(sum(row) for row in told["wins"]["wins"]) + sum(sum(row) for row in told["wins"]["ties"]) // 2
    assert counted == 30


def test_a_run_that_goes_on_is_looked_at_without_being_held(tmp_path: Path) -> None:
    out = judged(tmp_path, "truthfulness", truth_rows(5))
    lines = (out / "verdicts.jsonl").read_bytes().splitlines(keepends=True)
    (out / "verdicts.jsonl").write_bytes(b"".join(lines[:2]) + lines[2][:40])  # as another process writes
    with contextlib.closing(RunDirectory(out)), contextlib.closing(RunData(out)) as data:
        assert [row["id"] for row in data.cases()] == ["t0", "t1"]
        assert data.overview()["opening"].startswith("2 of 5 records so far")
        (out / "verdicts.jsonl").write_bytes(b"".join(lines))
        data.refresh()
        assert data.judged == 5
        assert len(list(data.cases())) == len(list(data.cases())) == 5
        assert data.overview()["slices"] == {} and data.overview()["summary"]["total"] == 5
        assert data.detail("t4")["status"] == "ok"


def test_a_run_whose_records_are_gone_shows_its_verdicts_and_says_so(tmp_path: Path) -> None:
    out = judged(tmp_path, "truthfulness", truth_rows(3))
    (tmp_path / "records.jsonl").unlink()
    assert [row["overall"] is not None for row in cases(out)] == [True] * 3
    assert "shown without their texts" in overview(out)["notes"][0]
    assert detail(out, "t1")["fields"] == []


def test_what_is_no_run_or_no_case_is_told(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="this folder holds no run"):
        overview(tmp_path)
    out = judged(tmp_path / "run", "truthfulness", truth_rows(3))
    with pytest.raises(RunError, match="no verdict on a record 't9'"):
        detail(out, "t9")
    (out / "run.json").write_text("[1]")
    with pytest.raises(RunError, match="is broken"):
        overview(out)


def test_what_was_judged_elsewhere_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    rows = [{"id": f"a{i}", "answer": "It is.", "label": ("yes", "no")[i % 2]} for i in range(4)]  # no question
    path = write_rows(tmp_path / "rows.jsonl", rows)
    import_verdicts(load_judge("truthfulness"), path, tmp_path / "out", mapping={"truthful": "label"})
    assert [row["answers"]["truthful"] for row in cases(tmp_path / "out")] == ["yes", "no", "yes", "no"]
    assert overview(tmp_path / "out")["notes"] == []
    told = detail(tmp_path / "out", "a1")
    assert "It is." in [field["value"] for field in told["fields"]]
    assert told["asks"] == []


def test_a_record_that_could_not_be_judged_is_shown_all_the_same(tmp_path: Path) -> None:
    rows = [*truth_rows(2), {"id": "bad", "question": "", "answer": "Nothing was asked."}]
    out = judged(tmp_path, "truthfulness", rows, skip_invalid=True)
    told = detail(out, "bad")
    assert told["status"] == "invalid_record" and "question" in told["error"] and told["asks"] == []
    assert "Nothing was asked." in [field["value"] for field in told["fields"]]


def test_the_record_stands_as_the_judge_was_given_it(tmp_path: Path) -> None:
    row = {"note": "n", **pairs(1)[0]}
    row = {"id": row.pop("id"), **dict(reversed(row.items()))}
    fields = [
        (field["name"], field["input"]) for field in detail(judged(tmp_path, "pairwise", [row]), "p0")["fields"]
    ]
    assert fields[:3] == [("instruction", True), ("response_a", True), ("response_b", True)]
    assert [one for one in fields[3:] if one[0] != "id"] == [
        ("model_b", False),
        ("model_a", False),
        ("note", False),
    ]


def test_an_evaluation_is_shown_with_the_runs_that_it_is_of(tmp_path: Path) -> None:
    out = judged(tmp_path, "truthfulness", truth_rows(8), mode="score")
    assert overview(out)["distilled"] is None
    found = measure({"student": out, "teacher": out}, Wanted("test", Asked([])), tmp_path / "labels.jsonl")
    keep(out, found)
    told = overview(out)["distilled"]
    assert [judge["role"] for judge in told["test"]["judges"]] == ["student", "teacher"]
    # Where `distill evaluate` had a model judge, the run is in a folder of the evaluation's.
    whole, run = tmp_path / "whole", tmp_path / "whole" / "runs" / "test" / "student"
    run.parent.mkdir(parents=True)
    keep(whole, found)
    (out / "evaluation.json").rename(out / "evaluation.old")
    out.rename(run)
    assert list(overview(run)["distilled"]) == ["test"]
    (run / "evaluation.json").write_text('{"sets": 3}')
    told = overview(run)
    assert told["distilled"] is None
    assert any("is not what this localjudge writes" in note for note in told["notes"])
