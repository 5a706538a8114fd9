"""Checklists as they are kept: written once for a task, reviewed and locked by people, and told of in reports."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from localjudge.agreement.items import agree_items, item_agreement
from localjudge.cli import app
from localjudge.errors import JudgeError, LocalJudgeError, RecordsError, RunError
from localjudge.judge.items import Checklist, Item
from localjudge.judge.loading import load_judge
from localjudge.models import LocalModel
from localjudge.paths import data_dir
from localjudge.run.checklists import (
    all_kept,
    as_yaml,
    checklists_of,
    edit,
    exported,
    find_kept,
    import_checklists,
    lock,
    read_file,
    read_kept,
    shared_folder,
    unlock,
)
from localjudge.run.compare import comparisons_of
from localjudge.run.export import export
from localjudge.run.importing import import_verdicts
from localjudge.run.runner import Run, Settings
from localjudge.run.session import report_again
from localjudge.run.store import read_verdicts
from localjudge.run.writing import WriteRun
from localjudge.verdict import Answer, Graded, Verdict
from tests.conftest import Loop
from tests.evaluator import Evaluator, EvaluatorEngine, Row
from tests.run.conftest import Job, by_id, finish, wait_for, write_rows
from tests.scripted import ScriptedEngine, scripted_model

COUNT: tuple[list[Row], list[Row]] = (
    [("States how many planes are visible", "3", 3)],
    [("Names the type of the top plane", "F-22", 1)],
)
RUBRIC = {"essential": [{"criterion": "Says three", "reference": "3", "weight": 3}], "additional": []}


def rows(tasks: int = 2, responses: int = 2) -> list[dict[str, Any]]:
    return [
        {"id": f"t{task}r{i}", "task": f"Count the planes in photo {task}.", "response": f"Planes: {i}"}
        for task in range(tasks)
        for i in range(responses)
    ]


def three(criterion: str, response: str) -> float:
    """Of ours only a response that ends in 1 earns anything."""
    return float(response.endswith("1"))


def played(*candidates: tuple[list[Row], list[Row]], **options: Any) -> EvaluatorEngine:
    return EvaluatorEngine(Evaluator(*(candidates or [COUNT]), credit=three), **options)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path, "checklist", rows())


def invoke(*arguments: str) -> str:
    told = CliRunner().invoke(app, ["checklist", *arguments], catch_exceptions=False)
    assert told.exit_code == 0, told.output
    return told.output


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.json")}


# Written once


def test_two_responses_to_a_task_write_one_checklist(job: Job) -> None:
    first = played(delay=0.01)
    job.run(first)
    assert first.steps == {"write": 3 * 2, "check": 2, "grade": 4}
    assert len(files(shared_folder())) == 2
    assert files(job.out / "checklists") == files(shared_folder())
    # Usage tells who had the writing; a response to a task that has its list takes one ask.
    asks = Counter(verdict.usage.asks for verdict in read_verdicts(job.out))
    assert asks == {5: 2, 1: 2}


def test_another_run_of_another_response_finds_it_again(job: Job, tmp_path: Path) -> None:
    job.run(played())
    more = write_rows(tmp_path / "more.jsonl", [{**row, "response": "None 1"} for row in rows(2, 1)])
    again = played()
    job.run(again, records=more, out=tmp_path / "again")
    assert again.steps == {"grade": 2}
    mark = played()
    job.run(mark, judge_settings=["scoring.pass=0.5"], out=tmp_path / "mark", records=more)
    assert mark.steps == {}


@pytest.mark.parametrize(
    "changed",
    [
        {"judge_settings": ["checklist.plan=0"]},
        {"model": {"fingerprint": "f" * 64}},
        {"seed": 1},
        {"shared_cache": False},
    ],
)
def test_another_prompt_model_or_seed_writes_another(job: Job, tmp_path: Path, changed: dict[str, Any]) -> None:
    job.run(played())
    again = played(settings={"other": 1})  # whose completions are not those of the first
    job.run(again, out=tmp_path / "again", **changed)
    assert again.steps["write"] == 6
    kept = len(files(shared_folder()))
    assert kept == (2 if "shared_cache" in changed else 4)


def test_a_reference_answer_makes_another_list_of_the_same_task(job: Job, tmp_path: Path) -> None:
    job.run(played())
    told = write_rows(tmp_path / "told.jsonl", [{**row, "reference": "3"} for row in rows(1)])
    again = played()
    job.run(again, records=told, out=tmp_path / "again")
    # Three candidates that read the same are verified by three asks that are one, in flight at once.
    assert again.steps == {"write": 3, "verify": 3, "check": 1}
    assert len({kept.task_key for _, kept in all_kept()}) == 2


def test_a_run_goes_on_with_the_lists_that_it_began_with(job: Job) -> None:
    """A list that somebody edits between two sittings is not for the second of them: one run, one list a task."""
    job.run(played(), limit=1)
    [(path, kept)] = all_kept()
    changed = kept.model_copy(update={"essential": [Item(criterion="Another", weight=1)], "edited": True})
    path.write_text(changed.model_dump_json())
    job.out = job.path / "other"
    job.run(played())
    told = by_id(job.out)
    assert [item.criterion for item in told["t0r0"].items or []] == ["Another", COUNT[1][0][0]]
    path.write_text(kept.model_dump_json())
    finish_of = played()
    job.run(finish_of, retry_failed=True)
    assert by_id(job.out) == told


def test_a_broken_list_is_told_and_nothing_is_judged_by_it(job: Job) -> None:
    job.run(played(), limit=1)
    [(path, _)] = all_kept()
    path.write_text('{"essential": []}')
    with pytest.raises(RunError, match="this checklist is broken: 'essential'"):
        job.run(played(), out=job.path / "again")


def test_what_no_list_came_of_is_incomplete_and_may_be_tried_again(job: Job) -> None:
    evaluator = Evaluator(COUNT, check={COUNT[0][0][0]: "drop"})
    summary = job.run(EvaluatorEngine(evaluator))
    assert summary.statuses["incomplete"] == 4
    assert "no checklist came about" in summary.failures[0].error  # type: ignore[operator]
    assert files(shared_folder()) == set()


# Killed


def test_no_finished_step_is_asked_again_after_a_kill(tmp_path: Path) -> None:
    """The candidates are written and the check of the merged list is not answered when the process is killed; then
    that is answered, and no response graded."""
    job = Job(tmp_path, "checklist", rows(1, 2))
    # Two runs whose answers follow from hashes: what the second is told is what an undisturbed one is.
    whole = job.expected()
    log = tmp_path / "asked"

    def asked() -> Counter[str]:
        return Counter(log.read_text().splitlines()) if log.exists() else Counter()

    for hangs, least in (("put together from several", 3), ("is to be graded by this checklist", 4)):
        process = job.child(log=log, hangs=hangs, concurrency=1)
        wait_for(process, "judging")
        until = time.monotonic() + 30
        while asked().total() < least and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(0.2)
        process.kill()
        process.communicate()
        assert asked().total() >= least
        assert by_id(job.out) == {}
    finish(job.child(log=log), code=int(not any(v.status == "ok" for v in whole.values())))
    assert by_id(job.out) == whole
    assert set(asked().values()) == {1}


# People


def written(job: Job, *candidates: tuple[list[Row], list[Row]], model: str = "scripted") -> list[Any]:
    async def start() -> Any:
        return played(*candidates)

    run = WriteRun(load_judge("checklist"), job.records, scripted_model(job.path, name=model), Settings(), start)
    return asyncio.run(run.go()).kept


def test_lists_are_written_ahead_of_any_response(job: Job, tmp_path: Path) -> None:
    write_rows(job.records, [{key: row[key] for key in ("id", "task")} for row in rows()])
    kept = written(job)
    assert [one.about for one in kept] == ["Count the planes in photo 0.", "Count the planes in photo 1."]
    assert {(one.written_by, one.judge, one.candidates) for one in kept} == {("scripted", "checklist", 3)}
    write_rows(job.records, rows())
    graded = played()
    job.run(graded)
    assert graded.steps == {"grade": 4}


def test_only_checklist_judges_write(job: Job) -> None:
    run = WriteRun(load_judge("truthfulness"), job.records, scripted_model(job.path), Settings(), lambda: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(JudgeError, match="'truthfulness' is a rubric judge"):
        asyncio.run(run.go())


def test_a_locked_list_is_used_whatever_the_model_is_and_never_written_anew(job: Job, tmp_path: Path) -> None:
    key = written(job)[0].key
    assert "locked" in invoke("lock", key[:12])
    other: tuple[list[Row], list[Row]] = ([("Of another model", "", 1)], [])
    graded = played(other, settings={"other": 1})
    job.run(graded, model={"fingerprint": "e" * 64, "name": "another"})
    assert graded.steps == {"write": 3, "check": 1, "grade": 4}  # of the task that is not locked
    told = by_id(job.out)
    assert [item.criterion for item in told["t0r0"].items or []] == [COUNT[0][0][0], COUNT[1][0][0]]
    assert [item.criterion for item in told["t1r0"].items or []] == ["Of another model"]
    kept = find_kept(key)[1]
    assert (kept.locked, kept.written_by) == (True, "scripted")
    alone = played(other, settings={"other": 1})
    job.run(alone, shared_cache=False, out=tmp_path / "alone", limit=1)
    assert alone.steps == {"grade": 1}
    # A person can't edit it by mistake, nor lock another for the task.
    with pytest.raises(RunError, match="this checklist is locked"):
        edit(key, editor="true")
    with pytest.raises(RunError, match="another checklist is locked for the task 'Count the planes in photo 0"):
        import_checklists(
            load_judge("checklist"), write_rows(tmp_path / "in.jsonl", [{**rows()[0], "checklist": RUBRIC}])
        )
    assert not unlock(key).locked
    assert not find_kept(key)[1].locked
    with pytest.raises(RunError, match="is not locked"):
        unlock(key)


def editor(tmp_path: Path, code: str) -> str:
    script = tmp_path / "editor.py"
    script.write_text(f"import pathlib, sys\npath = pathlib.Path(sys.argv[1])\ntext = path.read_text()\n{code}\n")
    return f"{sys.executable} {script}"


def test_a_person_edits_a_list_in_an_editor_of_their_own(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = written(job)[0].key
    assert edit(key, editor="true") is None
    swap = "text = text.replace('how many planes are visible', 'the number').replace('weight: 3', 'weight: 2')"
    monkeypatch.setenv("VISUAL", editor(tmp_path, f"{swap}\npath.write_text(text)"))
    assert "edited" in invoke("edit", key[:10])
    kept = find_kept(key)[1]
    assert kept.essential == [Item(criterion="States the number", reference="3", weight=2)]
    assert kept.edited
    graded = played()
    job.run(graded, limit=1)
    assert graded.steps == {"grade": 1}
    assert by_id(job.out)["t0r0"].items[0].weight == 2  # type: ignore[index]


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("path.write_text(text.replace('weight: 3', 'weight: 4'))", r"\.yaml:\d+: 'essential.1.weight'"),
        ("path.write_text('essential: []')", r"\.yaml:1: 'essential' is empty"),
        ("path.write_text(text.replace('essential:', 'essentials:'))", "did you mean 'essential'"),
        ("sys.exit(3)", "the editor failed, and nothing is changed"),
    ],
)
def test_what_is_no_list_is_told_with_its_line_and_nothing_changes(
    job: Job, tmp_path: Path, code: str, why: str
) -> None:
    key = written(job)[0].key
    before = find_kept(key)[1]
    with pytest.raises(RunError, match=why):
        edit(key, editor=editor(tmp_path, code))
    assert find_kept(key)[1] == before


def test_lists_are_found_by_key_run_and_records(job: Job, tmp_path: Path) -> None:
    job.run(played())
    keys = [kept.key for _, kept in all_kept() if kept.key]
    assert sorted(kept.key or "" for kept in checklists_of(str(job.out), "checklist", {})) == sorted(keys)
    assert [kept.about for kept in checklists_of(str(job.records), "checklist", {})] == [
        "Count the planes in photo 0.",
        "Count the planes in photo 1.",
    ]
    text = as_yaml(find_kept(keys[0][:8])[1])
    assert text.startswith(f"# {keys[0][:12]}: written by scripted\n# task: Count the planes in photo")
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    assert read_file(file).rubric() == find_kept(keys[0])[1].rubric()
    assert len(invoke("show").splitlines()) == 2
    assert "criterion: States how many" in invoke("show", str(job.records))
    with pytest.raises(RunError, match="'abc' is no checklist's key"):
        find_kept("abc")
    with pytest.raises(RunError, match="no checklist has the key"):
        find_kept("0" * 12)


def test_lists_come_in_and_go_out_as_plain_json(job: Job, tmp_path: Path) -> None:
    brought = write_rows(tmp_path / "in.jsonl", [{"task": row["task"], "rubric": RUBRIC} for row in rows(2, 1)])
    told = invoke("import", str(brought), "--field", "rubric")
    assert told.count("1 essential, 0 additional, locked") == 2
    graded = played()
    job.run(graded)
    assert graded.steps == {"grade": 4}
    key = told.split()[0]
    assert json.loads(invoke("export", key)) == RUBRIC
    out = tmp_path / "out.jsonl"
    invoke("export", str(job.out), "-o", str(out))
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert lines == list(exported(str(job.out)))
    assert {line["id"] for line in lines} == {row["id"] for row in rows()}
    assert lines[0]["rubric"] == RUBRIC
    assert lines[0]["scoring"][0].keys() == {"criterion", "rationale", "credit"}
    assert "used by nothing until it is locked" in invoke("lock", "--undo", key)
    assert "used by nothing" not in invoke("lock", key)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"task": "A"}, "it has no field 'rubric'"),
        ({"task": "A", "rubric": {"essential": []}}, "field 'rubric' cannot be used: 'essential'"),
        ({"rubric": RUBRIC}, "field 'task' is missing"),
    ],
)
def test_nothing_is_brought_in_of_a_file_with_a_fault(tmp_path: Path, row: dict[str, Any], why: str) -> None:
    good = {"task": "Count.", "rubric": RUBRIC}
    path = write_rows(tmp_path / "in.jsonl", [good, row])
    with pytest.raises(RecordsError, match=why):
        import_checklists(load_judge("checklist"), path, "rubric")
    assert list(all_kept()) == []


def test_a_given_list_grades_all_records(job: Job, tmp_path: Path) -> None:
    file = tmp_path / "rubric.json"
    file.write_text(json.dumps(RUBRIC))
    graded = played()
    run = job.prepare(graded)
    run.checklist = read_file(file)
    asyncio.run(run.go())
    assert graded.steps == {"grade": 4}
    assert {verdict.overall for verdict in by_id(job.out).values()} == {0, 1}
    # Another one, or none, is another run.
    with pytest.raises(RunError, match="checklist was"):
        job.run(played())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("essential: [{criterion: A, weight: 5}]", "list.yaml:1: 'essential.1.weight'"),
        ("essential:\n- criterion: A\n  wheight: 1", "list.yaml:3: .* did you mean 'weight'"),
        ("- A", "the file does not hold keys and values"),
        ("", "the file is empty"),
    ],
)
def test_a_given_list_that_is_none_is_told_with_its_line(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "list.yaml"
    file.write_text(text)
    with pytest.raises(RunError, match=why):
        read_file(file)
    with pytest.raises(RunError, match="the file cannot be read"):
        read_file(tmp_path / "nowhere.yaml")


def test_a_locked_list_is_refused_for_other_tasks(job: Job, tmp_path: Path) -> None:
    key = written(job)[0].key
    file = tmp_path / "locked.json"
    file.write_text(lock(key).model_dump_json())
    run = job.prepare(played())
    run.checklist = read_file(file)
    with pytest.raises(RunError) as caught:
        asyncio.run(run.go())
    assert str(caught.value) == (
        "--checklist: this checklist is locked for another task ('Count the planes in photo 0.')\n"
        "  the first record of another task is at records.jsonl:3; leave --checklist out"
    )
    # By its key in a record of that task it is taken, in one of another it spoils that record alone.
    mixed = write_rows(tmp_path / "mixed.jsonl", [{**row, "checklist": key[:12]} for row in rows(2, 1)])
    job.run(played(), records=mixed, out=tmp_path / "mixed")
    told = by_id(tmp_path / "mixed")
    assert told["t0r0"].status == "ok"
    assert told["t1r0"].error == (
        "mixed.jsonl:2: field 'checklist' is locked for another task ('Count the planes in photo 0.')"
    )


# What is made of verdicts


def test_failed_critical_items_come_first_in_reports(job: Job) -> None:
    summary = job.run(played())
    assert summary.credits is not None
    assert (summary.credits.critical, summary.credits.essential) == (2, {"0": 2, "0.5": 0, "1": 2})
    assert summary.overall is not None
    assert summary.overall.mean == 0.5
    report = (job.out / "report.md").read_text()
    heads = [line for line in report.splitlines() if line.startswith("## ")]
    assert heads[:2] == ["## Critical items failed", "## Records"]
    assert "- **t0r0**, overall 0.000: States how many planes are visible (3)" in report
    assert "| essential  |      4 | 50.0 % | 0.0 % | 50.0 % |" in report
    own = report_again(job.out, "t0r0")
    assert own.index("## Failed: essential, weight 3") < own.index("## Essential")
    assert "- **States how many planes are visible** (3): Of States how many planes are visible." in own
    assert "## Failed" not in report_again(job.out, "t0r1")


def test_rewards_are_told_item_by_item_and_add_up(job: Job, tmp_path: Path) -> None:
    job.run(played())
    out = tmp_path / "rewards.jsonl"
    assert export(job.out, "rewards", out).rows == 4
    told = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["id"] for row in told] == [row["id"] for row in rows()]
    first, second = told[:2]
    assert (first["prompt"], first["completion"], first["reward"]) == (
        "Count the planes in photo 0.",
        "Planes: 0",
        0,
    )
    assert (second["reward"], second["essential"], second["additional"]) == (1, 1, 1)
    assert [item["reward"] for item in second["items"]] == [0.75, 0.25]
    assert sum(item["reward"] for item in second["items"]) == second["reward"]
    table = tmp_path / "table.jsonl"
    export(job.out, "jsonl", table)
    row = json.loads(table.read_text().splitlines()[0])
    assert row.keys() >= {"overall", "score_essential", "score_additional", "items"}
    assert json.loads(row["items"])[0]["criterion"] == COUNT[0][0][0]


def test_what_needs_the_same_questions_of_every_record_is_refused(job: Job, tmp_path: Path, truth: Job) -> None:
    truth.records = write_rows(tmp_path / "truth.jsonl", truth.rows)
    write_rows(job.records, rows())
    job.run(played())
    with pytest.raises(RunError, match="follow from the answers to others"):
        export(job.out, "openai-batch", tmp_path / "batch.jsonl")
    with pytest.raises(JudgeError, match="asks other items of every task"):
        import_verdicts(load_judge("checklist"), job.records, tmp_path / "imported")
    truth.run(ScriptedEngine(), out=tmp_path / "truth", records=truth.records)
    with pytest.raises(RunError, match="rewards are of a checklist judge's items"):
        export(tmp_path / "truth", "rewards", tmp_path / "rewards.jsonl")
    with pytest.raises(RunError, match="the judge truthfulness grades no items"):
        agree_items(tmp_path / "truth", "people")


def test_samples_share_a_list_and_are_a_panel(job: Job) -> None:
    graded = played()
    summary = job.run(graded, samples=3, temperature=0.7)
    assert graded.steps == {"write": 6, "check": 2, "grade": 12}
    told = by_id(job.out)["t0r1"]
    assert (told.overall, told.scores, len(told.members or [])) == (1, {"essential": 1, "additional": 1}, 3)
    assert summary.panel is not None
    assert "## Panel" in (job.out / "report.md").read_text()


def test_credits_are_read_in_score_mode(job: Job) -> None:
    graded = played()
    summary = job.run(graded, mode="score")
    assert graded.steps == {"write": 6, "check": 2, "read": 8}
    assert summary.statuses["ok"] == 4
    for verdict in by_id(job.out).values():
        worth = {name: answer.expected for name, answer in verdict.answers.items()}
        assert verdict.overall == pytest.approx((3 * worth["i1"] + worth["i2"]) / 4)  # type: ignore[operator]


# People's credits


def graded_by(credits: dict[str, float], record: str = "r") -> Verdict:
    items = [
        Graded(id=name, essential=name != "i3", criterion=f"Item {name}", reference="", weight=1, credit=credit)
        for name, credit in credits.items()
    ]
    answers = {name: Answer(value=credit) for name, credit in credits.items()}
    return Verdict(id=record, status="ok", overall=0.5, answers=answers, items=items, judge="c", model="m")


def test_kappa_is_told_of_each_kind_of_item() -> None:
    """Ours: 1 1 0 0 of essential items, people's: 1 0 0 0. Agreement 3/4; by chance 2/4 x 1/4 + 2/4 x 3/4 = 1/2;
    kappa 1/2. Of the additional ones, 1 0 against 1 0, kappa 1."""
    verdicts = [graded_by({"i1": 1, "i2": 1, "i3": 1}, "a"), graded_by({"i1": 0, "i2": 0, "i3": 0}, "b")]
    theirs = {
        "a": {"i1": 1.0, "item I2": 0.0, "i3": 1.0, "i9": 1.0},
        "b": {"i1": 0.0, "i2": 0.0, "i3": 0.0},
        "c": {"i1": 1.0},
    }
    told = item_agreement("people", verdicts, theirs)
    values = {kind: {one.name: one.value for one in figures} for kind, figures in told.kinds.items()}
    assert values["essential"]["kappa"] == pytest.approx(0.5)
    assert values["essential"]["same credit"] == 0.75
    assert values["additional"] == {"kappa": 1, "weighted kappa": 1, "same credit": 1}
    assert (told.records, told.unknown, told.unlabelled) == (2, 1, 0)
    assert "| essential  |   4 | 0.500" in told.markdown()
    with pytest.raises(LocalJudgeError, match="no credit by people is for an item that was graded"):
        item_agreement("people", verdicts, {"a": {"nothing": 1.0}})


def test_people_s_credits_lie_in_a_field_of_the_records(job: Job, tmp_path: Path) -> None:
    people = [{"i1": 0, "i2": 0}, [{"criterion": COUNT[0][0][0], "credit": 1}], None, {"i1": 1, "i2": 1}]
    write_rows(job.records, [{**row, "people": told} for row, told in zip(rows(), people, strict=True)])
    job.run(played())
    result, file = agree_items(job.out, "people")
    assert (result.records, result.unlabelled) == (3, 1)
    assert {kind: figures[0].value for kind, figures in result.kinds.items()} == {
        "essential": 1,
        "additional": 1,
        "all": 1,
    }
    assert json.loads(file.read_text())["gold"] == "people"
    with pytest.raises(RecordsError, match="did you mean 'people'"):
        agree_items(job.out, "peoples")
    told = CliRunner().invoke(app, ["agree", str(job.out), "--gold", "items=people"], catch_exceptions=False)
    assert "| essential  |   3 | 1.000" in told.output
    write_rows(tmp_path / "gold.jsonl", [{"id": "t0r0", "who": {"i1": 2}}])
    with pytest.raises(RecordsError, match=r"gold.jsonl:1: the credits in 'who' give 'i1' 2: use 0, 0.5 or 1"):
        agree_items(job.out, f"{tmp_path / 'gold.jsonl'}:who")


def test_the_command_line_tells_kappa_at_the_end_of_a_run(job: Job) -> None:
    write_rows(job.records, [{**row, "people": {"i1": int(row["id"][-1])}} for row in rows(20, 2)])
    out, _ = finish(job.child("--gold", "people"))
    assert "items_agreement.json" in out
    assert "weighted kappa" in out
    _, err = finish(Job(job.path, "truthfulness", []).child("--gold", "people"), 2)
    assert "error: --gold: 'truthfulness' is a rubric judge, without items" in err


def test_gold_that_is_not_there_is_told_before_anything_is_judged(job: Job) -> None:
    """It was told after the last verdict, when hours had gone into them."""
    write_rows(job.records, [{**row, "people": {"i1": 1}} for row in rows(4, 2)])
    _, err = finish(job.child("--gold", "peopel"), 2)
    assert "no record has credits in 'peopel'" in err
    assert "did you mean 'people'" in err
    assert not job.out.exists()


# A real model


SHORT = {"plan": 16, "text": 16, "essential": 60, "additional": 40, "reason": 16}
"""Tokens: a model of 135M parameters says nothing more with more."""


@pytest.mark.vllm
def test_a_real_model_writes_and_grades_by_valid_lists(
    engine: Any, loop: Loop, embedded: LocalModel, job: Job
) -> None:
    """Eight records of four tasks, two of them with a reference answer; from the candidates to the report. So small
    a model may rule out all that it wrote itself, which is then said; by a list that it is given it grades all."""
    records = data_dir("prompts") / "checklist" / "examples" / "records.jsonl"

    class Session:
        def __getattr__(self, name: str) -> Any:
            return getattr(engine, name)

        async def close(self) -> None:
            pass

    async def start() -> Any:
        return Session()

    def judged(out: Path, given: Checklist | None) -> dict[str, Verdict]:
        spec = load_judge("checklist", [f"checklist.{name}={n}" for name, n in SHORT.items()])
        loop.run(Run(spec, records, embedded, out, Settings(), start, checklist=given).go())
        told = by_id(out)
        assert len(told) == 8
        for verdict in told.values():
            if verdict.status == "ok":
                items = verdict.items or []
                assert [item.id for item in items] == [f"i{n}" for n in range(1, len(items) + 1)]
                assert items[0].essential
                assert {item.credit for item in items} <= {0, 0.5, 1}
                assert all(item.rationale for item in items)
        return told

    given = judged(job.path / "given", Checklist.model_validate(RUBRIC))
    assert {verdict.status for verdict in given.values()} == {"ok"}
    if not os.environ.get("LOCALJUDGE_THOROUGH"):  # a minute and more
        return
    whole = judged(job.out, None)
    assert {verdict.status for verdict in whole.values()} <= {"ok", "incomplete"}
    assert all("no checklist came about" in str(v.error) for v in whole.values() if v.status != "ok")
    kept = [read_kept(path) for path in (job.out / "checklists").glob("*.json")]
    assert len(kept) == len({verdict.id.split("-")[0] for verdict in whole.values() if verdict.status == "ok"})


def test_a_task_with_controls_in_it_is_edited_all_the_same(job: Job) -> None:
    write_rows(job.records, [{"id": "a", "task": "ring \u0007 \u001b[31m \ufffe", "response": "Planes: 1"}])
    job.run(played())
    [(_, kept)] = all_kept()
    assert edit(str(kept.key), editor="true") is None


def test_rewards_say_what_has_none_and_a_panel_has_them_without_items(job: Job, tmp_path: Path) -> None:
    write_rows(job.records, [*rows(1, 2), {"id": "x", "task": "", "response": "y"}])
    job.run(played(), samples=3, temperature=0.7, skip_invalid=True)
    done = export(job.out, "rewards", tmp_path / "rewards.jsonl")
    assert (done.rows, done.left_out) == (2, 1)
    assert (done.first_left_out or "").count("records.jsonl:3") == 1
    told = [json.loads(line) for line in (tmp_path / "rewards.jsonl").read_text().splitlines()]
    assert [row["items"] for row in told] == [[], []]


def test_runs_of_a_checklist_are_compared(job: Job, tmp_path: Path) -> None:
    job.run(played())
    job.run(played(), model={"fingerprint": "f" * 64}, out=tmp_path / "other")
    [found], text = comparisons_of([job.out, tmp_path / "other"])
    assert list(found.titles) == ["essential", "additional"]
    assert "cannot be judged" not in text
