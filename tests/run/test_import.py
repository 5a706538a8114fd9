"""Judgements made elsewhere, real ones where there are any, become runs; what is none is told line by line."""

from __future__ import annotations

import csv
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from localjudge import cli
from localjudge.errors import LocalJudgeError, RecordsError, RunError
from localjudge.judge.loading import load_judge
from localjudge.judge.spec import JudgeSpec
from localjudge.run.importing import import_verdicts
from localjudge.run.session import report_again
from localjudge.run.store import RunDirectory, read_verdicts
from localjudge.verdict import Verdict
from tests.conftest import shared, shared_rows
from tests.run.conftest import Job, by_id, files_of, write_rows

Imported = Callable[..., list[Verdict]]


@pytest.fixture
def imported(tmp_path: Path) -> Imported:
    """The verdicts of an import: of a file, or of rows."""

    def imported(
        spec: JudgeSpec | str, rows: Path | list[Any], *, out: str = "out", **options: Any
    ) -> list[Verdict]:
        path = rows if isinstance(rows, Path) else write_rows(tmp_path / "rows.jsonl", rows)
        spec = load_judge(spec) if isinstance(spec, str) else spec
        import_verdicts(spec, path, tmp_path / out, **options)
        return list(read_verdicts(tmp_path / out))

    return imported


def refused(imported: Imported, *arguments: Any, **options: Any) -> str:
    with pytest.raises(RecordsError) as caught:
        imported(*arguments, **options)
    return str(caught.value)


TIES = load_judge("pairwise", ["tie=true"])

MIXED = """\
name: mixed
inputs: [response]
rationale: 40
questions:
  - {id: good, type: score, ask: Good, scale: [1, 5]}
  - {id: tone, type: choice, ask: Tone, options: {1: warm, 2: cold}}
  - {id: lines, type: flags, ask: Lines, codes: {HARM: it harms, LIE: it lies}}
  - {id: long, type: flags, ask: Long, codes: {LONG: it is long}}
scoring:
  weights: {good: 2}
  values: {tone: {1: 5, 2: 2}}
  pass: 3
  veto: [lines]
"""


@pytest.fixture
def mixed(tmp_path: Path) -> JudgeSpec:
    (tmp_path / "mixed.yaml").write_text(MIXED)
    return load_judge(tmp_path / "mixed.yaml")


FINE = {"id": "a", "good": 4, "tone": "2", "lines": ["LIE"], "long": False}


# Real judgements


@pytest.mark.parametrize(
    ("judge", "unjudged", "published"), [("gpt35", 25, 0.698), ("pandalm7b", 0, 0.668)], ids=["gpt35", "pandalm7b"]
)
def test_released_verdicts_agree_with_people_as_often_as_was_published(
    imported: Imported, judge: str, unjudged: int, published: float
) -> None:
    labels = {row["id"]: row["label"] for row in shared_rows("pandalm.jsonl.gz", 999)}
    verdicts = imported(
        TIES, shared("pandalm.jsonl.gz"), mapping={"preference": judge}, skip_invalid=bool(unjudged)
    )
    assert len(verdicts) == len(labels) == 999
    assert Counter(verdict.status for verdict in verdicts)["invalid_record"] == unjudged
    judged = [verdict for verdict in verdicts if verdict.status == "ok"]
    agree = sum(verdict.answers["preference"].value == labels[verdict.id] for verdict in judged)
    assert round(agree / 999, 3) == published, "one that was not judged cannot agree"
    assert {verdict.model for verdict in verdicts} == {judge}
    assert all(verdict.orders is None for verdict in verdicts)


def test_gpt_4_s_two_orders_are_one_preference_or_none(imported: Imported) -> None:
    rows = [row for row in shared_rows("llmbar.jsonl.gz", 885) if "Vanilla" in (row["gpt4_verdicts_ab_ba"] or {})]
    told = {row["id"]: row["gpt4_verdicts_ab_ba"]["Vanilla"] for row in rows}
    way = "gpt4_verdicts_ab_ba.Vanilla"
    verdicts = imported(
        "pairwise", rows, mapping={"preference": f"{way}.0", "preference_swapped": f"{way}.1"}, model_name="gpt-4"
    )
    assert len(verdicts) == 419
    for verdict in verdicts:
        first, second = told[verdict.id]
        assert verdict.answers["preference"].value == (first if first == second else "inconsistent")
        assert verdict.overall == [first, second].count("A") / 2
        assert [order["preference"].value for order in verdict.orders or []] == [first, second]
    assert sum(verdict.answers["preference"].value == "inconsistent" for verdict in verdicts) == 30


def test_scores_and_feedback_of_another_judge_keep_their_reasons(imported: Imported, tmp_path: Path) -> None:
    (tmp_path / "judge.yaml").write_text(
        "name: absolute\ninputs: [instruction, response, rubric]\nrationale: 200\n"
        "questions:\n  - {id: quality, type: score, ask: By the rubric, scale: [1, 5]}\n"
    )
    rows = shared_rows("prometheus_absolute.jsonl.gz", 640)
    path = shared("prometheus_absolute.jsonl.gz")
    mapping = {"quality": "scores.0", "rationale": "feedback.0"}
    verdicts = imported(load_judge(tmp_path), path, mapping=mapping, skip_invalid=True)
    assert len(verdicts) == 640
    for row, verdict in zip(rows, verdicts, strict=True):
        assert (verdict.overall, verdict.rationale) == (row["scores"][0], row["feedback"][0])


# What a run is


def test_an_import_is_a_run_like_any_other(imported: Imported, tmp_path: Path) -> None:
    rows = [{"id": f"r{i}", "preference": "AB"[i % 2], "rationale": f"Reason {i}."} for i in range(40)]
    [first, *_] = imported("pairwise", rows)
    assert (first.id, first.overall, first.rationale, first.model) == ("r0", 1.0, "Reason 0.", "rows")
    assert first.usage.asks == 0
    out = tmp_path / "out"
    run = json.loads((out / "run.json").read_text())
    digest = hashlib.sha256((tmp_path / "rows.jsonl").read_bytes()).hexdigest()
    assert run["engine"] == {"identity": {"engine": "import", "file": "rows.jsonl", "digest": digest}}
    assert run["model"]["name"] == "rows"
    assert run["records"]["total"] == 40
    assert run["settings"]["mode"] == "import"
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["pairwise"]["wins_a"], summary["pairwise"]["wins_b"], summary["seconds"]) == (20, 20, None)
    before = files_of(out)
    assert "pairwise, judged by rows" in report_again(out)
    assert files_of(out) == before


@pytest.mark.parametrize("name", ["truth", "pairs"])
def test_the_numbers_are_the_judge_s_own(imported: Imported, name: str, request: pytest.FixtureRequest) -> None:
    """What a run said, given back as answers, comes to the same verdicts."""
    job: Job = request.getfixturevalue(name)
    job.run()
    judged = by_id(job.out)
    rows = []
    for verdict in judged.values():
        told, *swapped = verdict.orders or [verdict.answers]
        row = {"id": verdict.id, **{question: answer.value for question, answer in told.items()}}
        if swapped:
            row["preference_swapped"] = swapped[0]["preference"].value
        rows.append(row)
    same = {"usage": None, "orders": None}
    for verdict in imported(job.judge, rows, out="again", model_name="scripted"):
        assert verdict.model_copy(update=same) == judged[verdict.id].model_copy(update=same)


def test_a_record_needs_neither_what_the_judge_would_have_seen_nor_an_id_of_its_own(imported: Imported) -> None:
    [verdict] = imported("truthfulness", [{"truthful": "yes"}])
    assert (verdict.id[:4], verdict.overall, verdict.passed, verdict.rationale) == ("sha:", 1.0, True, None)


def test_who_judged_is_the_mapped_field_or_the_file_or_whoever_one_says(imported: Imported, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "gpt-4.1-mini.jsonl", [{"id": "a", "preference": "A", "claude": "B"}])

    def model(**options: Any) -> str:
        return imported("pairwise", path, out=f"out{len([*tmp_path.iterdir()])}", **options)[0].model

    assert model() == "gpt-4.1-mini"
    assert model(mapping={"preference": "claude"}) == "claude"
    assert model(mapping={"preference": "claude"}, model_name="C") == "C"


def test_an_import_that_was_stopped_goes_on_and_another_is_refused(
    imported: Imported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"id": f"r{i}", "preference": "A"} for i in range(10)]
    append, count = RunDirectory.append, Counter[str]()

    def stops(held: RunDirectory, verdict: Verdict) -> None:
        count["appended"] += 1
        if count["appended"] == 5:
            raise KeyboardInterrupt
        append(held, verdict)

    monkeypatch.setattr(RunDirectory, "append", stops)
    with pytest.raises(KeyboardInterrupt):
        imported("pairwise", rows)
    assert len([*read_verdicts(tmp_path / "out")]) == 4
    assert [verdict.id for verdict in imported("pairwise", rows)] == [f"r{i}" for i in range(10)]
    assert count["appended"] == 5 + 6
    before = files_of(tmp_path / "out")
    with pytest.raises(RunError, match=r"was made otherwise:\n  model.name was 'rows', is now 'me'"):
        imported("pairwise", rows, model_name="me")
    with pytest.raises(RunError, match=r"engine.identity.digest was .*\n  records.digest was"):
        imported("pairwise", [{**row, "preference": "B"} for row in rows])
    assert files_of(tmp_path / "out") == before
    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "append", None)
        assert len(imported("pairwise", rows)) == 10, "nothing is left to do"


def test_a_folder_that_another_run_holds_is_refused(imported: Imported, tmp_path: Path) -> None:
    held = RunDirectory(tmp_path / "out")
    with pytest.raises(RunError, match="another run is using this folder"):
        imported("pairwise", [{"preference": "A"}])
    held.close()


def test_the_first_records_alone(imported: Imported) -> None:
    rows = [{"id": f"r{i}", "preference": "A" if i < 3 else "C"} for i in range(10)]
    assert [verdict.id for verdict in imported("pairwise", rows, limit=3)] == ["r0", "r1", "r2"]


# Labels


@pytest.mark.parametrize("good", [4, 4.0, "4", "4.0"])
@pytest.mark.parametrize("tone", ["2", 2])
@pytest.mark.parametrize(
    "lines",
    [["LIE"], {"LIE": True, "HARM": False}, {"HARM": "no", "LIE": "Yes"}, '["LIE"]', '{"HARM":"no","LIE":true}'],
)
@pytest.mark.parametrize("long", [False, "no", "FALSE", [], {"LONG": "no"}])
def test_an_answer_may_be_written_in_several_ways(
    imported: Imported, mixed: JudgeSpec, good: Any, tone: Any, lines: Any, long: Any
) -> None:
    [verdict] = imported(mixed, [{"id": "a", "good": good, "tone": tone, "lines": lines, "long": long}])
    assert {name: answer.value for name, answer in verdict.answers.items()} == {
        "good": 4,
        "tone": "2",
        "lines": ["LIE"],
        "long": [],
    }
    assert (verdict.overall, verdict.passed, verdict.red_lines) == (10 / 3, False, ["LIE"])


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"good": 6}, "the answer to 'good' is 6, which is not on the scale [1, 5]"),
        ({"good": 0.5}, "the answer to 'good' is 0.5, which is not on the scale"),
        ({"good": "3.5"}, "the answer to 'good' is \"3.5\", which is not on the scale"),
        ({"good": " 3"}, "the answer to 'good' is \" 3\", which is not on the scale"),
        ({"good": "three"}, "the answer to 'good' is \"three\", which is not on the scale"),
        ({"good": True}, "the answer to 'good' is true, which is not on the scale"),
        ({"good": [3]}, "the answer to 'good' is "),
        ({"good": None}, "the answer to 'good' is null or empty"),
        ({"tone": ""}, "the answer to 'tone' is null or empty"),
        ({"tone": "warm"}, "the answer to 'tone' is \"warm\", which is not one of 1, 2"),
        ({"tone": 2.0}, "the answer to 'tone' is 2.0, which is not one of 1, 2"),
        ({"tone": True}, "the answer to 'tone' is true, which is not one of 1, 2"),
        ({"lines": ["LYE"]}, "the answer to 'lines' has the code 'LYE', which is not one of HARM, LIE"),
        ({"lines": ["LIE", "LIE"]}, "the answer to 'lines' has the code 'LIE', which is there twice"),
        ({"lines": [["LIE"]]}, "the answer to 'lines' has the code a list, which is not one of"),
        ({"lines": {"LIE": True}}, "the answer to 'lines' does not answer exactly the codes HARM, LIE"),
        ({"lines": {"LIE": 1, "HARM": 0}}, "the answer to 'lines' has a code that is neither true nor false"),
        ({"lines": True}, "the answer to 'lines' does not answer exactly the codes HARM, LIE"),
        ({"lines": "[LIE]"}, "the answer to 'lines' should be JSON: broken JSON at column 2"),
        ({"long": "perhaps"}, "the answer to 'long' has a code that is neither true nor false"),
        ({"rationale": 5}, "the answer to 'rationale' is not a text"),
    ],
)
def test_what_is_no_answer_is_told_with_its_line_and_never_a_score(
    imported: Imported, mixed: JudgeSpec, wrong: Mapping[str, Any], says: str
) -> None:
    rows = [FINE, {**FINE, "id": "b", **wrong}]
    told = refused(imported, mixed, rows)
    assert told.startswith(f"1 of 2 records hold no judgement\n  rows.jsonl:2: {says}")
    assert told.endswith("--skip-invalid")
    fine, bad = imported(mixed, rows, skip_invalid=True)
    assert (fine.status, bad.status, bad.overall) == ("ok", "invalid_record", None)
    assert (bad.error or "").startswith(f"rows.jsonl:2: {says}")


def test_a_table_of_text_holds_answers_too(imported: Imported, mixed: JudgeSpec, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["id", *FINE, "rationale"][1:])
        writer.writeheader()
        writer.writerow({**FINE, "lines": '["LIE"]', "rationale": ""})
        writer.writerow({**FINE, "id": "b", "good": "", "lines": "[]"})
    assert "rows.csv:3: the answer to 'good' is null or empty" in refused(imported, mixed, path)
    first, _ = imported(mixed, path, skip_invalid=True)
    assert (first.overall, first.red_lines, first.rationale) == (10 / 3, ["LIE"], None)


def test_parquet_holds_answers_too(imported: Imported, mixed: JudgeSpec, tmp_path: Path) -> None:
    parquet.write_table(pa.Table.from_pylist([{**FINE, "good": 4.0}]), tmp_path / "rows.parquet")
    [verdict] = imported(mixed, tmp_path / "rows.parquet")
    assert (verdict.overall, verdict.red_lines) == (10 / 3, ["LIE"])


def test_twenty_wrong_lines_are_told_and_the_rest_counted(imported: Imported) -> None:
    rows = [{"id": f"r{i}", "preference": f"C{i}" if i % 2 else "A"} for i in range(60)]
    told = refused(imported, "pairwise", rows).splitlines()
    assert told[0] == "30 of 60 records hold no judgement"
    assert told[1] == "  rows.jsonl:2: the answer to 'preference' is \"C1\", which is not one of A, B"
    assert told[20].startswith("  rows.jsonl:40: ")
    assert told[21] == "  and 10 more"


def test_all_that_is_wrong_with_a_line_is_told_at_once(imported: Imported, mixed: JudgeSpec) -> None:
    told = refused(imported, mixed, [FINE, {"id": "a", "good": 9, "tone": 1, "lines": []}])
    assert "rows.jsonl:2: id 'a' was used before, at line 1" in told
    told = refused(imported, mixed, [FINE, {"id": "b", "good": 9, "tone": 1, "lines": []}])
    assert "rows.jsonl:2: the answer to 'good' is 9" in told
    assert "; the answer to 'long' is missing" in told


def test_a_file_that_does_not_answer_a_question_is_told_once_with_the_likely_field(imported: Imported) -> None:
    rows = [{"id": f"r{i}", "preferences": "A"} for i in range(50)]
    for skip in (False, True):
        told = refused(imported, "pairwise", rows, skip_invalid=skip)
        assert told == (
            "rows.jsonl:1: none of 50 records holds a judgement: the answer to 'preference' is missing: "
            "if 'preferences' is meant, use --map preference=preferences"
        )
    told = refused(imported, "pairwise", [{"id": f"r{i}", "winner": "A"} for i in range(2)])
    assert "use --map preference=FIELD; the record has id, winner" in told


@pytest.mark.parametrize(
    ("judge", "mapping", "says"),
    [
        ("pairwise", {"prefrence": "x"}, "no question or input 'prefrence'\n  did you mean 'preference'"),
        ("truthfulness", {"preference_swapped": "x"}, "no question or input 'preference_swapped'"),
        ("pairwise", {"preference": "winer"}, "no record has 'winer'\n  did you mean 'winner'"),
    ],
)
def test_a_mapping_that_leads_nowhere_is_refused(
    imported: Imported, judge: str, mapping: Mapping[str, str], says: str
) -> None:
    with pytest.raises(LocalJudgeError) as caught:
        imported(judge, [{"id": "a", "winner": "A"}], mapping=mapping)
    assert says in str(caught.value)


def test_the_second_order_is_validated_too_and_taken_only_by_a_judge_that_asks_it(imported: Imported) -> None:
    rows = [
        {"id": "a", "preference": "A", "preference_swapped": "B"},
        {"id": "b", "preference": "A", "second": "X"},
    ]
    told = refused(imported, "pairwise", [*rows, {"id": "c", "preference": "A", "preference_swapped": "X"}])
    assert told.splitlines()[:2] == [
        "1 of 3 records hold no judgement",
        "  rows.jsonl:3: the answer to 'preference_swapped' is \"X\", which is not one of A, B",
    ]
    first, second = imported("pairwise", rows)
    assert (first.overall, second.overall, second.orders) == (0.5, 1.0, None)
    told = refused(imported, "pairwise", rows, mapping={"preference_swapped": "second"})
    assert (
        "rows.jsonl:1: the answer to 'preference_swapped' is missing: there is no 'second' to take it from" in told
    )
    single = load_judge("pairwise", ["orders=single"])
    assert [verdict.overall for verdict in imported(single, rows, out="single")] == [1, 1]
    with pytest.raises(LocalJudgeError, match="the judge asks one order"):
        imported(single, rows, mapping={"preference_swapped": "second"})


# The output of an OpenAI batch


def batch_line(custom_id: str, content: Any, **body: Any) -> dict[str, Any]:
    text = content if isinstance(content, str) else json.dumps(content)
    message = {"role": "assistant", "content": text, "refusal": None}
    body = {"model": "gpt-x", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], **body}
    response = {"status_code": 200, "request_id": "q", "body": body}
    return {"id": f"batch_req_{custom_id}", "custom_id": custom_id, "response": response, "error": None}


YES = {"rationale": "So it is.", "truthful": "yes"}


def failed_lines() -> list[tuple[dict[str, Any], str]]:
    limited = batch_line("e1", YES)
    limited["response"]["status_code"] = 429
    limited["response"]["body"] = {"error": {"message": "too many requests"}}
    expired = {"id": "x", "custom_id": "e2", "response": None, "error": {"code": "expired", "message": "too late"}}
    refusal = batch_line("e3", YES)
    refusal["response"]["body"]["choices"][0]["message"] = {"content": None, "refusal": "I will not."}
    empty = batch_line("e4", YES)
    empty["response"]["body"]["choices"] = []
    return [
        (limited, "the request failed with HTTP 429: too many requests"),
        (expired, "the request failed: too late"),
        (refusal, "the model refused: I will not."),
        (empty, "the response holds no text"),
        (batch_line("e5", f"```json\n{json.dumps(YES)}\n```"), "the answer is not valid: the answer is not JSON"),
        (batch_line("e6", {**YES, "truthful": "perhaps"}), 'is "perhaps", which is not one of yes, no'),
        (batch_line("e7", {"truthful": "yes"}), "does not have exactly the keys rationale, truthful"),
        (batch_line("e8", json.dumps(YES)[:-4]), "the answer is not valid: the answer is not JSON"),
    ]


def test_a_batch_s_answers_are_verdicts_and_its_failures_are_failures(imported: Imported, tmp_path: Path) -> None:
    failing = failed_lines()
    usage = {"prompt_tokens": 90, "completion_tokens": 12, "prompt_tokens_details": {"cached_tokens": 64}}
    rows = [*(row for row, _ in failing), batch_line("good", YES, usage=usage)]
    *failures, good = imported("truthfulness", rows)
    for (row, why), verdict in zip(failing, failures, strict=True):
        assert (verdict.id, verdict.status, verdict.overall) == (row["custom_id"], "engine_error", None)
        assert why in (verdict.error or "")
    assert (good.id, good.overall, good.rationale, good.model) == ("good", 1.0, "So it is.", "gpt-x")
    used = good.usage
    assert (used.asks, used.prompt, used.cached, used.written) == (1, 90, 64, 12)
    run = json.loads((tmp_path / "out" / "run.json").read_text())
    assert (run["settings"]["format"], run["model"]["name"]) == ("openai-batch", "gpt-x")


def test_the_two_orders_of_a_pair_meet_wherever_they_are(imported: Imported) -> None:
    def line(custom_id: str, preference: str) -> dict[str, Any]:
        return batch_line(custom_id, {"rationale": f"{custom_id}.", "preference": preference})

    failed = line("half#swapped", "A")
    failed["response"]["status_code"] = 500
    rows = [
        line("same#swapped", "B"),
        line("torn", "A"),
        line("half", "A"),
        line("lost#swapped", "A"),
        line("same", "A"),
        failed,
        line("torn#swapped", "A"),
    ]
    told = {verdict.id: verdict for verdict in imported("pairwise", rows)}
    assert [*told] == ["same", "torn", "half", "lost"]
    same = told["same"]
    assert (same.overall, same.answers["preference"].value, same.rationale) == (1.0, "A", "same.")
    assert same.usage.asks == 2
    assert [order["rationale"].value for order in same.orders or []] == ["same.", "same#swapped."]
    assert told["torn"].answers["preference"].value == "inconsistent"
    assert (told["half"].status, told["lost"].status) == ("incomplete", "incomplete")
    assert (told["half"].error or "").startswith("1 of 2 asks failed: the request failed with HTTP 500")
    assert "no answer for the straight order" in (told["lost"].error or "")
    assert [v.id for v in imported("pairwise", rows, limit=2, out="two")] == ["same", "torn"]
    alone = [row for row in rows if "#" not in row["custom_id"]]
    assert all(v.status == "ok" and v.orders is None for v in imported("pairwise", alone, out="alone"))


def test_a_batch_s_own_lines_are_validated(imported: Imported) -> None:
    rows: list[Any] = [batch_line("a", YES), batch_line("a", YES), {**batch_line("b", YES), "custom_id": None}]
    told = refused(imported, "truthfulness", rows)
    assert "rows.jsonl:2: id 'a' was used before, at line 1" in told
    assert "rows.jsonl:3: the id is null" in told
    statuses = [verdict.status for verdict in imported("truthfulness", rows, skip_invalid=True)]
    assert statuses == ["ok", "invalid_record", "invalid_record"]
    with pytest.raises(LocalJudgeError, match="--map: a batch's answers have their places already"):
        imported("truthfulness", rows, mapping={"truthful": "x"})
    with pytest.raises(
        LocalJudgeError, match="--format: 'openai' is not a known form\n  did you mean 'openai-batch'"
    ):
        imported("truthfulness", rows, form="openai")


# From the command line


def call(monkeypatch: pytest.MonkeyPatch, *words: Any) -> int:
    monkeypatch.setattr(sys, "argv", ["localjudge", *map(str, words)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return int(caught.value.code or 0)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"id": f"r{i}", "winner": "A"} for i in range(3)] + [{"id": "r3", "winner": "C"}]
    path, out = write_rows(tmp_path / "rows.jsonl", rows), tmp_path / "out"
    words = ("import", "pairwise", path, "-o", out, "--map", "preference=winner")
    assert call(monkeypatch, *words) == 2
    assert "rows.jsonl:4: the answer to 'preference' is \"C\"" in capsys.readouterr().err
    assert not out.exists()
    assert call(monkeypatch, *words, "--skip-invalid", "--model-name", "me") == 0
    assert "3 of 4 records judged; 1 could not be: 1 invalid_record." in capsys.readouterr().out
    assert {verdict.model for verdict in read_verdicts(out)} == {"me"}
    missing = ("import", "pairwise", tmp_path / "row.jsonl", "-o", tmp_path / "new")
    assert call(monkeypatch, *missing) == 2
    assert f"there is no such file\n  did you mean '{path}'?" in capsys.readouterr().err
    failed = write_rows(tmp_path / "failed.jsonl", [{"custom_id": "a", "error": {"message": "no"}}])
    assert call(monkeypatch, "import", "truthfulness", failed, "-o", tmp_path / "failed") == 1, "none was judged"
