"""A run's verdicts as tables that others read, and its asks put to another judge and brought back."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pyarrow import parquet

from localjudge.engines.base import Ask, AskFailed, Message
from localjudge.errors import LocalJudgeError, RecordsError, RunError
from localjudge.judge.loading import load_judge
from localjudge.run import export as exporting
from localjudge.run.export import FORMS, Exported, columns, export
from localjudge.run.importing import import_verdicts
from localjudge.run.store import RunDirectory, read_verdicts
from tests.run.conftest import Job, by_id, files_of, write_rows
from tests.run.test_import import FINE, MIXED, batch_line, call
from tests.scripted import ScriptedEngine


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def table(job: Job, form: str = "jsonl", **options: Any) -> Path:
    path = job.path / f"table.{form}"
    export(job.out, form, path, **options)
    return path


def some_fail(text: str) -> Callable[[Ask], AskFailed | None]:
    def fails(ask: Ask) -> AskFailed | None:
        return AskFailed("engine_error", "scripted") if text in ask.messages[-1].text else None

    return fails


@pytest.fixture
def mixed(tmp_path: Path) -> Job:
    """A judge of every type of question, and verdicts on its records."""
    (tmp_path / "mixed.yaml").write_text(MIXED)
    job = Job(tmp_path, str(tmp_path / "mixed.yaml"), [{"id": f"m{i}", "response": f"No. {i}"} for i in range(50)])
    job.run()
    return job


# Tables


def test_each_verdict_is_a_row(truth: Job) -> None:
    truth.run(ScriptedEngine(fails=some_fail("number 7.")))
    verdicts = by_id(truth.out)
    used = {verdict.id: verdict.usage for verdict in read_verdicts(truth.out)}
    rows = lines(table(truth))
    assert [row["id"] for row in rows] == [verdict.id for verdict in read_verdicts(truth.out)]
    for row in rows:
        verdict = verdicts[row["id"]]
        if row["id"] == "t7":
            continue
        assert row == {
            "id": verdict.id,
            "status": "ok",
            "overall": verdict.overall,
            "passed": verdict.passed,
            "score_truthful": verdict.scores["truthful"],
            "answer_truthful": verdict.answers["truthful"].value,
            "unsure": False,
            "rationale": verdict.rationale,
            "red_lines": "",
            "error": None,
            "judge": "truthfulness",
            "model": "scripted",
            "asks": 1,
            "prompt_tokens": used[verdict.id].prompt,
            "cached_tokens": used[verdict.id].cached,
            "written_tokens": used[verdict.id].written,
        }
    [failed] = [row for row in rows if row["id"] == "t7"]
    assert list(failed) == list(rows[0]), "every row has all columns"
    assert (failed["status"], failed["error"], failed["model"]) == ("engine_error", "scripted", "scripted")
    assert {failed[name] for name in ("overall", "passed", "score_truthful", "answer_truthful", "red_lines")} == {
        None
    }


def test_a_pair_s_row_has_both_orders(pairs: Job) -> None:
    pairs.run()
    verdicts = by_id(pairs.out)
    rows = lines(table(pairs))
    assert {row["answer_preference"] for row in rows} == {"A", "B", "inconsistent"}
    for row in rows:
        straight, swapped = verdicts[row["id"]].orders or []
        assert row["preference_straight"] == straight["preference"].value
        assert row["preference_swapped"] == swapped["preference"].value
        assert (row["rationale_straight"], row["rationale_swapped"]) == (
            straight["rationale"].value,
            swapped["rationale"].value,
        )
        assert row["score_preference_a"] == row["overall"]


def test_one_order_alone_is_the_straight_one(pairs: Job) -> None:
    pairs.run(judge_settings=["orders=single"])
    for row in lines(table(pairs)):
        assert row["preference_straight"] == row["answer_preference"]
        assert "preference_swapped" not in row


def with_distributions(job: Job, judged: Callable[[dict[str, Any]], None]) -> None:
    """As an engine that reads probabilities would have left it."""
    path = job.out / "verdicts.jsonl"
    rows = lines(path)
    for row in rows[3:]:
        judged(row)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_probabilities_are_columns_where_there_are_any(truth: Job, pairs: Job, tmp_path: Path) -> None:
    job = Job(tmp_path, "truthfulness", truth.rows)
    job.run()

    def judged(row: dict[str, Any]) -> None:
        row["answers"]["truthful"]["distribution"] = {"no": 0.25, "yes": 0.75}

    with_distributions(job, judged)
    rows = lines(table(job))
    assert [name for name in rows[0] if name.startswith("p_")] == ["p_truthful_yes", "p_truthful_no"]
    assert (rows[0]["p_truthful_yes"], rows[0]["p_truthful_no"]) == (None, None)
    assert (rows[3]["p_truthful_yes"], rows[3]["p_truthful_no"]) == (0.75, 0.25)
    assert parquet.read_table(table(job, "parquet")).to_pylist() == rows


def test_a_flag_s_probability_is_that_it_applies(mixed: Job) -> None:
    def judged(row: dict[str, Any]) -> None:
        row["answers"]["lines"]["distribution"] = {"LIE": 0.5, "HARM": 0.125}
        row["answers"]["good"]["distribution"] = {"4": 0.5, "2": 0.5}

    with_distributions(mixed, judged)
    row = lines(table(mixed))[3]
    told = {name: p for name, p in row.items() if name.startswith("p_")}
    assert told == {"p_good_2": 0.5, "p_good_4": 0.5, "p_lines_HARM": 0.125, "p_lines_LIE": 0.5}
    assert list(told) == sorted(told)


def test_two_columns_of_one_name_are_refused(truth: Job) -> None:
    with pytest.raises(RunError, match="two columns would be called 'p_a_b_c'"):
        columns(load_judge("truthfulness"), {("", "a"): ["b_c"], ("", "a_b"): ["c"]})


def test_probabilities_of_pairs_are_told_by_order(pairs: Job) -> None:
    pairs.run()

    def judged(row: dict[str, Any]) -> None:
        for order, p in zip(row["orders"], (0.9, 0.2), strict=True):
            order["preference"]["distribution"] = {"A": p, "B": 1 - p}

    with_distributions(pairs, judged)
    row = lines(table(pairs))[3]
    told = {name: p for name, p in row.items() if name.startswith("p_")}
    assert told == {
        "p_straight_preference_A": 0.9,
        "p_straight_preference_B": 1 - 0.9,
        "p_swapped_preference_A": 0.2,
        "p_swapped_preference_B": 0.8,
    }


@pytest.mark.parametrize("name", ["truth", "pairs", "mixed"])
def test_every_form_of_table_holds_the_same_rows(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(exporting, "_BATCH", 7)
    job: Job = request.getfixturevalue(name)
    job.run(ScriptedEngine(fails=some_fail("1")), retry_failed=True)
    rows = lines(table(job))
    assert len({row["status"] for row in rows}) == 1 if name == "mixed" else 2
    assert parquet.read_table(table(job, "parquet")).to_pylist() == rows
    assert datasets.load_from_disk(str(table(job, "hf"))).to_list() == rows
    assert not [path for path in job.path.iterdir() if path.name.startswith(".")], "nothing is left behind"


def test_a_run_without_verdicts_is_an_empty_table_with_its_columns(truth: Job) -> None:
    datasets = pytest.importorskip("datasets")
    truth.run()
    (truth.out / "verdicts.jsonl").write_text("")
    names = [column.name for column in columns(load_judge("truthfulness"))]
    assert lines(table(truth)) == []
    assert parquet.read_table(table(truth, "parquet")).column_names == names
    assert datasets.load_from_disk(str(table(truth, "hf"))).column_names == names


def test_a_name_that_ends_in_gz_is_compressed(truth: Job) -> None:
    truth.run()
    path = truth.path / "table.jsonl.gz"
    assert export(truth.out, "jsonl", path) == Exported(30)
    with gzip.open(path, "rt", encoding="utf-8") as file:
        assert [json.loads(line) for line in file] == lines(table(truth))


@pytest.mark.parametrize("form", ["jsonl", "parquet", "hf"])
def test_what_went_out_comes_back_with_the_same_overalls(mixed: Job, pairs: Job, form: str) -> None:
    spec = load_judge(mixed.judge)
    back = {question.id: f"answer_{question.id}" for question in spec.questions}
    import_verdicts(spec, table(mixed, form), mixed.path / "back", mapping=back, model_name="scripted")
    there, again = by_id(mixed.out), by_id(mixed.path / "back")
    assert there == again, "scores, red lines, passes and rationales too"
    assert len({verdict.overall for verdict in there.values()}) > 5


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_pairs_come_back_with_both_orders(pairs: Job, form: str) -> None:
    pairs.run()
    back = {"preference": "preference_straight"}
    import_verdicts(load_judge("pairwise"), table(pairs, form), pairs.path / "back", mapping=back)
    there, again = by_id(pairs.out), by_id(pairs.path / "back")
    assert {id: (v.overall, v.answers["preference"]) for id, v in there.items()} == {
        id: (v.overall, v.answers["preference"]) for id, v in again.items()
    }
    assert any(verdict.overall == 0.5 for verdict in again.values())


# Asks for another judge


def asked(request: dict[str, Any], schema: Any) -> Ask:
    """A request as an ask of the judge itself."""
    body = request["body"]
    messages = tuple(Message(message["role"], message["content"]) for message in body["messages"])
    return Ask(messages, schema, temperature=body["temperature"], seed=body["seed"])


@pytest.mark.parametrize("name", ["truth", "pairs", "mixed"])
def test_the_same_judge_asked_elsewhere_comes_to_the_same_verdicts(
    name: str, request: pytest.FixtureRequest
) -> None:
    job: Job = request.getfixturevalue(name)
    job.run(engine := ScriptedEngine(), out=job.path / "whole", shared_cache=False, temperature=0.7, seed=5)
    spec = load_judge(job.judge)
    path = job.path / "requests.jsonl"
    done = export(job.path / "whole", "openai-batch", path, model_name="gpt-x")
    requests = lines(path)
    per_record = 2 if name == "pairs" else 1
    assert done == Exported(len(job.rows) * per_record) == Exported(len(requests))
    assert {engine.key(asked(line, spec.answer_schema)) for line in requests} == set(engine.asked), "the same asks"
    answers = []
    for line in requests:
        assert (line["method"], line["url"], line["body"]["model"]) == ("POST", "/v1/chat/completions", "gpt-x")
        told = line["body"]["response_format"]["json_schema"]
        text = asyncio.run(ScriptedEngine().complete(asked(line, spec.answer_schema))).text
        jsonschema.validate(json.loads(text), told["schema"])
        assert told["strict"] is True
        answers.append(batch_line(line["custom_id"], text))
    random.Random(0).shuffle(answers)
    import_verdicts(spec, write_rows(job.path / "answers.jsonl", answers), job.path / "back", model_name="scripted")
    assert by_id(job.path / "back") == by_id(job.path / "whole")


def test_a_request_s_schema_is_what_strict_mode_takes(mixed: Job) -> None:
    schema = lines(table(mixed, "openai-batch"))[0]["body"]["response_format"]["json_schema"]["schema"]
    assert schema["properties"] == {
        "rationale": {"type": "string"},
        "good": {"type": "integer", "enum": [1, 2, 3, 4, 5]},
        "tone": {"type": "string", "enum": ["1", "2"]},
        "lines": {
            "type": "object",
            "properties": {"HARM": {"type": "boolean"}, "LIE": {"type": "boolean"}},
            "required": ["HARM", "LIE"],
            "additionalProperties": False,
        },
        "long": {
            "type": "object",
            "properties": {"LONG": {"type": "boolean"}},
            "required": ["LONG"],
            "additionalProperties": False,
        },
    }
    assert (schema["required"], schema["additionalProperties"]) == ([*schema["properties"]], False)


def test_requests_ask_what_the_run_was_set_to(pairs: Job) -> None:
    pairs.run(judge_settings=["tie=true", "orders=single"], limit=3)
    requests = lines(table(pairs, "openai-batch"))
    assert [line["custom_id"] for line in requests] == ["p0", "p1", "p2"]
    assert requests[0]["body"]["model"] == "scripted"
    schema = requests[0]["body"]["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["preference"]["enum"] == ["A", "B", "tie"]


def test_a_judge_with_templates_of_its_own_is_kept_by_the_run(tmp_path: Path, truth: Job) -> None:
    """A run from before that was so has to be given it."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "judge.yaml").write_text(MIXED.replace("mixed", "own"))
    (folder / "user.j2").write_text("Look: {{ response }}\n")
    job = Job(tmp_path, str(folder), [{"id": "a", "response": "No."}])
    job.run()
    [kept] = lines(table(job, "openai-batch"))
    assert kept["body"]["messages"][-1]["content"].startswith("Look: <response ")
    run = json.loads((job.out / "run.json").read_text())
    del run["templates"]
    (job.out / "run.json").write_text(json.dumps(run))
    (tmp_path / "table.openai-batch").unlink()
    with pytest.raises(RunError, match="templates of 'own' are not those that come with localjudge") as caught:
        table(job, "openai-batch")
    assert "--judge" in str(caught.value)
    with pytest.raises(RunError, match="the judge 'own' is not the one that made this run"):
        table(job, "openai-batch", judge=load_judge(folder, ["scoring.pass=4"]))
    [line] = lines(table(job, "openai-batch", judge=load_judge(folder)))
    assert line["body"]["messages"][-1]["content"].startswith("Look: <response ")


def test_records_that_a_judge_cannot_be_asked_about_are_counted(tmp_path: Path) -> None:
    rows = [{"id": "a", "response": "Yes."}, {"id": "b"}, {"id": "c", "response": ""}]
    (tmp_path / "mixed.yaml").write_text(MIXED)
    job = Job(tmp_path, str(tmp_path / "mixed.yaml"), rows)
    job.run(skip_invalid=True)
    done = export(job.out, "openai-batch", tmp_path / "requests.jsonl")
    assert (done.rows, done.left_out) == (1, 2)
    assert (done.first_left_out or "").startswith("records.jsonl:2: field 'response' is missing")
    path = write_rows(tmp_path / "answers.jsonl", [FINE])
    import_verdicts(load_judge(job.judge), path, tmp_path / "imported")
    with pytest.raises(RecordsError, match="none of its 1 records has what the judge asks about"):
        export(tmp_path / "imported", "openai-batch", tmp_path / "no.jsonl")


def test_records_that_are_not_what_they_were_are_refused(pairs: Job) -> None:
    pairs.run()
    write_rows(pairs.records, pairs.rows[:-1])
    with pytest.raises(RecordsError, match="no longer the records of the run"):
        table(pairs, "openai-batch")
    pairs.records.unlink()
    with pytest.raises(RecordsError, match="there is no such file"):
        table(pairs, "openai-batch")


def test_an_id_that_looks_like_a_second_request_is_refused(pairs: Job) -> None:
    write_rows(pairs.records, [{**pairs.rows[0], "id": "a#swapped"}])
    pairs.run()
    with pytest.raises(RecordsError, match="the id ends in '#swapped'"):
        table(pairs, "openai-batch")
    assert not (pairs.path / "table.openai-batch").exists()


# What goes wrong


def test_a_folder_without_a_run_and_one_in_use_are_refused(truth: Job) -> None:
    for folder in (truth.path, truth.path / "nowhere"):
        with pytest.raises(RunError, match="this folder holds no run"):
            export(folder, "jsonl", truth.path / "table")
    assert not (truth.path / "nowhere").exists()
    truth.run()
    held = RunDirectory(truth.out)
    with pytest.raises(RunError, match="another run is using this folder"):
        table(truth)
    held.close()


def test_an_unknown_form_is_told_the_known_ones(truth: Job) -> None:
    truth.run()
    with pytest.raises(LocalJudgeError, match="--to: 'parket' is not a known form\n  did you mean 'parquet'"):
        table(truth, "parket")


@pytest.mark.parametrize(
    ("form", "name", "better"),
    [
        ("jsonl", "table.parquet", "table.jsonl"),
        ("rewards", "table.parquet", "table.jsonl"),
        ("openai-batch", "table.parquet", "table.jsonl"),
        ("parquet", "table.jsonl", "table.parquet"),
    ],
)
def test_no_file_is_written_under_the_name_of_another_form(truth: Job, form: str, name: str, better: str) -> None:
    """`--to rewards -o x.parquet` wrote JSON lines, which whoever reads x.parquet could not."""
    truth.run()
    with pytest.raises(LocalJudgeError, match=f"give -o {truth.path / better}"):
        export(truth.out, form, truth.path / name)
    assert not (truth.path / name).exists()


OF_ANY = [form for form in FORMS if form not in ("rewards", "preferences")]
"""What is to be had of a judge of any kind."""


@pytest.mark.parametrize("form", OF_ANY)
def test_what_is_there_is_replaced_only_when_told_to_and_whole(
    truth: Job, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if form == "hf":
        pytest.importorskip("datasets")
    truth.run()
    path = table(truth, form)
    before = files_of(path) if path.is_dir() else path.read_bytes()
    with pytest.raises(RunError, match="is there already"):
        table(truth, form)
    with monkeypatch.context() as patch:
        patch.setattr(exporting._Table, "rows", lambda _: iter([{"id": 1 / 0} for _ in "x"]))
        patch.setattr(exporting._Asks, "requests", lambda _: iter([1 / 0 for _ in "x"]))
        with pytest.raises(ZeroDivisionError):
            table(truth, form, force=True)
    assert (files_of(path) if path.is_dir() else path.read_bytes()) == before
    assert table(truth, form, force=True) == path
    assert not [path for path in truth.path.iterdir() if path.name.startswith(".")]


def test_force_replaces_nothing_but_its_own_kind(truth: Job) -> None:
    truth.run()
    precious = truth.path / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    for form in FORMS:
        with pytest.raises(RunError, match="so it is not replaced"):
            export(truth.out, form, precious, force=True)
    with pytest.raises(RunError, match="is not a dataset's folder"):
        export(truth.out, "hf", truth.records, force=True)
    for name in files_of(truth.out):
        if not name.startswith("."):
            with pytest.raises(RunError, match="is the run's own file"):
                export(truth.out, "jsonl", truth.out / name, force=True)
    assert (precious / "file").read_text() == "mine"


def test_a_place_that_cannot_be_written_is_told(truth: Job) -> None:
    truth.run()
    (truth.path / "file").write_text("")
    for form in OF_ANY:
        with pytest.raises(RunError, match="cannot be written"):
            export(truth.out, form, truth.path / "file" / "table")
    assert export(truth.out, "jsonl", truth.path / "new" / "folder" / "table.jsonl").rows == 30


def test_the_command(truth: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    truth.run()
    words = ("export", truth.out, "-o", truth.path / "table", "--to")
    assert call(monkeypatch, *words, "jsonl") == 0
    assert capsys.readouterr().out == f"30 rows  {truth.path / 'table'}\n"
    assert call(monkeypatch, *words, "jsonl") == 2
    assert "is there already" in capsys.readouterr().err
    options = ("--force", "--model-name", "gpt-x", "--judge", "truthfulness")
    assert call(monkeypatch, *words, "openai-batch", *options) == 0
    assert lines(truth.path / "table")[0]["body"]["model"] == "gpt-x"
    assert call(monkeypatch, *words, "openai-batch", *options, "--set", "scoring.pass=null") == 2
    assert "is not the one that made this run" in capsys.readouterr().err
    assert call(monkeypatch, *words, "jsonl", "--force", "--set", "scoring.pass=null") == 2
    assert "--set: there is no --judge" in capsys.readouterr().err
