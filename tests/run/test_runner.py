"""A run keeps a record's failure to itself, goes on where it stopped, and mixes nothing that was made otherwise."""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from localjudge.engines.base import Ask, AskFailed, Completion
from localjudge.errors import EngineError, JudgeError, LocalJudgeError, ModelError, RecordsError, RunError
from localjudge.judge.loading import load_judge
from localjudge.records import BadRecord, Record
from localjudge.run.runner import Settings, judge_stream, own_seed
from localjudge.run.store import read_verdicts
from localjudge.verdict import Verdict
from tests.run.child import contains
from tests.run.conftest import Job, by_id, files_of, truth_rows, write_rows
from tests.scripted import ScriptedEngine

KEPT = {"run.json", "verdicts.jsonl", "summary.json", "report.md"}


def line_of(out: Path, name: str) -> dict[str, Any]:
    lines = (out / "verdicts.jsonl").read_text(encoding="utf-8").splitlines()
    [found] = [told for line in lines if (told := json.loads(line))["id"] == name]
    return dict(found)


def failing(status: Any, *texts: str) -> Callable[[Ask], AskFailed | None]:
    def fails(ask: Ask) -> AskFailed | None:
        return AskFailed(status, f"scripted {status}") if any(contains(text, ask) for text in texts) else None

    return fails


# What a run leaves behind


def test_a_run_leaves_verdicts_a_summary_and_a_report(truth: Job) -> None:
    summary = truth.run()
    assert set(files_of(truth.out)) - {".lock"} == KEPT
    assert summary.total == summary.statuses["ok"] == 30
    assert json.loads((truth.out / "summary.json").read_text()) == json.loads(summary.model_dump_json())
    assert (truth.out / "report.md").read_text(encoding="utf-8").startswith("# truthfulness")
    told = line_of(truth.out, "t7")
    assert {"id", "status", "overall", "scores", "answers", "rationale", "judge", "model", "usage"} <= set(told)
    assert told["status"] == "ok"
    assert told["overall"] == told["scores"]["truthful"] == (told["answers"]["truthful"]["value"] == "yes")
    assert told["answers"]["rationale"]["value"] == told["rationale"]
    assert (told["judge"], told["model"]) == ("truthfulness", "scripted")
    assert told["usage"]["asks"] == 1
    assert told["usage"]["reused"] == 0
    assert told["usage"]["prompt"] > told["usage"]["cached"] > 0
    assert set(by_id(truth.out)) == {row["id"] for row in truth.rows}


def test_a_run_says_what_made_it(truth: Job) -> None:
    truth.run(ScriptedEngine(settings={"dtype": "bfloat16"}, speed={"gpus": 2}), temperature=0.5, seed=3)
    run = json.loads((truth.out / "run.json").read_text())
    spec = load_judge("truthfulness")
    assert run["judge"] == {
        "name": "truthfulness",
        "version": "1",
        "digest": spec.digest,
        "kind": "rubric",
        "language": "en",
    }
    assert run["model"]["name"] == "scripted"
    assert len(run["model"]["fingerprint"]) == len(run["model"]["chat_template"]) == 64
    assert run["records"]["total"] == 30
    assert run["settings"]["temperature"] == 0.5
    assert run["settings"]["seed"] == 3
    assert run["engine"]["identity"]["dtype"] == "bfloat16"
    assert run["engine"]["arguments"]["gpus"] == 2
    assert run["paths"]["records"] == str(truth.records)
    assert [sitting["judged"] for sitting in run["sessions"]] == [30]


def test_the_settings_reach_every_ask(truth: Job) -> None:
    engine = ScriptedEngine()
    seen: list[Ask] = []
    engine.fails = seen.append
    truth.run(engine, temperature=0.7, seed=11, max_tokens=99, limit=4)
    assert {(ask.temperature, ask.budget) for ask in seen} == {(0.7, 99)}
    assert all(ask.seed == own_seed(11, ask.messages) for ask in seen)
    assert [row["question"] for row in truth.rows[:4]] == [
        next(row["question"] for row in truth.rows if contains(row["question"], ask)) for ask in seen
    ]


def test_as_many_records_are_judged_at_a_time_as_the_engine_wants(truth: Job) -> None:
    engine = ScriptedEngine(concurrency=5, delay=0.001)
    truth.run(engine)
    assert engine.most_in_flight == 5
    assert engine.closed == 1


def test_a_pair_is_asked_in_both_orders_at_once(pairs: Job) -> None:
    engine = ScriptedEngine(concurrency=5, delay=0.001)
    summary = pairs.run(engine)
    assert engine.asked.total() == 40
    assert engine.most_in_flight == 10
    assert summary.usage.asks == 40
    assert summary.pairwise is not None
    assert summary.pairwise.n == 20


def test_a_budget_that_holds_no_answer_is_told_before_anything_starts(truth: Job) -> None:
    with pytest.raises(JudgeError, match="5 tokens are too few for an answer to 'truthfulness'") as caught:
        truth.run(max_tokens=5)
    least = len('{"rationale":"a","truthful":"no"}') + 1  # this model's tokens are bytes, and one ends the text
    assert f"give {least} or more" in str(caught.value)
    assert not truth.out.exists()
    assert truth.run(max_tokens=least).statuses["ok"] == 30


def test_a_model_without_tags_is_not_made_to_think(truth: Job) -> None:
    with pytest.raises(ModelError, match="scripted has no tags to think between"):
        truth.run(think=100)
    assert truth.starts == 0


# Failures


def test_a_failure_is_its_records_own(truth: Job) -> None:
    def fails(ask: Ask) -> AskFailed | None:
        return failing("too_long", "Is 3 even?")(ask) or failing("engine_error", "Is 4 even?", "Is 5 even?")(ask)

    summary = truth.run(ScriptedEngine(fails=fails))
    assert summary.statuses == {"ok": 27, "too_long": 1, "invalid_record": 0, "engine_error": 2, "incomplete": 0}
    assert summary.overall is not None
    assert (summary.overall.n, summary.overall.missing) == (27, 3)
    told = line_of(truth.out, "t3")
    assert (told["status"], told["overall"], told["passed"], told["error"]) == (
        "too_long",
        None,
        None,
        "scripted too_long",
    )
    assert line_of(truth.out, "t5")["status"] == "engine_error"


def test_failures_that_another_try_may_mend_are_tried_again_on_request(truth: Job) -> None:
    whole = truth.expected()

    def fails(ask: Ask) -> AskFailed | None:
        return failing("too_long", "Is 3 even?")(ask) or failing("engine_error", "Is 4 even?", "Is 5 even?")(ask)

    truth.run(ScriptedEngine(fails=fails))
    before = by_id(truth.out)
    assert truth.run().statuses["engine_error"] == 2  # not without being asked to
    assert truth.starts == 2  # the undisturbed one and the first
    engine = ScriptedEngine()
    summary = truth.run(engine, retry_failed=True)
    assert engine.asked.total() == 2
    assert summary.statuses["engine_error"] == 0
    after = by_id(truth.out)
    assert after["t3"].status == "too_long"
    assert {name: after[name] for name in ("t4", "t5")} == {name: whole[name] for name in ("t4", "t5")}
    assert {name for name in after if after[name] != before[name]} == {"t4", "t5"}
    assert truth.run(retry_failed=True).total == 30
    assert truth.starts == 3  # with nothing to retry, no engine is needed


def test_what_is_tried_again_may_fail_again(truth: Job) -> None:
    fails = failing("engine_error", "Is 4 even?")
    for retry in (False, True, True):
        assert truth.run(ScriptedEngine(fails=fails), retry_failed=retry).statuses["engine_error"] == 1
        assert len(by_id(truth.out)) == 30


@pytest.mark.parametrize("shared_cache", [True, False])
def test_half_a_pair_is_incomplete_and_only_its_other_half_is_asked_again(pairs: Job, shared_cache: bool) -> None:
    whole = pairs.expected()

    def swapped(ask: Ask) -> AskFailed | None:
        text = "".join(message.text for message in ask.messages)
        if "right 7" in text and text.index("right 7") < text.index("left 7"):
            return AskFailed("engine_error", "scripted")
        return None

    summary = pairs.run(ScriptedEngine(fails=swapped), shared_cache=shared_cache)
    assert summary.statuses["incomplete"] == 1
    told = line_of(pairs.out, "p7")
    assert (told["status"], told["overall"], told["orders"], told["answers"]) == ("incomplete", None, None, {})
    engine = ScriptedEngine()
    pairs.run(engine, retry_failed=True, shared_cache=shared_cache)
    assert engine.asked.total() == 1
    assert by_id(pairs.out) == whole
    assert line_of(pairs.out, "p7")["usage"]["reused"] == 1


def test_a_dead_engine_ends_the_run_and_the_rest_is_judged_later(truth: Job) -> None:
    whole = truth.expected()
    dying = ScriptedEngine(dies_after=11, concurrency=4)
    with pytest.raises(EngineError, match="has died"):
        truth.run(dying)
    assert dying.closed == 1
    half = by_id(truth.out)
    assert len(half) == 11
    assert all(found.status == "ok" for found in half.values())  # what was in flight is not a failure
    assert json.loads((truth.out / "summary.json").read_text())["total"] == 11
    engine = ScriptedEngine()
    summary = truth.run(engine)
    assert "11 of 30 records are judged already" in truth.said
    assert engine.asked.total() == 19
    assert summary.total == 30
    assert by_id(truth.out) == whole
    assert [sitting["judged"] for sitting in json.loads((truth.out / "run.json").read_text())["sessions"]] == [
        11,
        19,
    ]


def test_an_engine_that_does_not_start_loses_nothing(truth: Job) -> None:
    with pytest.raises(EngineError):
        truth.run(ScriptedEngine(dies_after=11))
    before = files_of(truth.out)

    def fail() -> None:
        raise EngineError("vLLM could not start")

    for retry in (False, True):
        with pytest.raises(EngineError, match="could not start"):
            truth.run(while_loading=fail, retry_failed=retry)
        assert files_of(truth.out) == before
    assert truth.run().total == 30


def test_an_engine_that_does_not_start_at_first_either(truth: Job) -> None:
    def fail() -> None:
        raise EngineError("vLLM could not start")

    with pytest.raises(EngineError):
        truth.run(while_loading=fail)
    assert truth.run().total == 30


def test_an_error_of_localjudges_own_ends_the_run_and_closes_the_engine(truth: Job) -> None:
    engine = ScriptedEngine(fails=lambda ask: 1 / 0)  # type: ignore[arg-type, return-value]
    with pytest.raises(ZeroDivisionError):
        truth.run(engine)
    assert engine.closed == 1
    assert truth.run().total == 30


def test_a_record_that_the_template_cannot_show_is_invalid(tmp_path: Path) -> None:
    judge = tmp_path / "judge.yaml"
    judge.write_text(
        "name: match\n"
        "inputs: [{name: match, type: json}]\n"
        "user: '{{ match.winner }}'\n"
        "questions: [{id: fair, type: score, ask: 'Was it fair?', scale: [1, 5]}]\n"
    )
    rows = [{"id": f"m{i}", "match": {"winner": "red"} if i != 5 else {"won": "red"}} for i in range(9)]
    job = Job(tmp_path, str(judge), rows)
    statuses = job.run().statuses
    assert (statuses["ok"], statuses["invalid_record"]) == (8, 1)
    assert "winner" in line_of(job.out, "m5")["error"]


# Resuming


def test_a_finished_run_starts_nothing_and_asks_nothing(truth: Job) -> None:
    truth.run()
    before = files_of(truth.out)
    summary = truth.run()
    assert truth.starts == 1
    assert summary.total == 30
    assert files_of(truth.out) == before


def test_a_verdict_taken_out_is_reached_again_from_its_stored_completion(truth: Job) -> None:
    truth.run()
    whole = by_id(truth.out)
    path = truth.out / "verdicts.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:10] + lines[11:]))
    engine = ScriptedEngine()
    truth.run(engine)
    assert engine.asked.total() == 0
    assert by_id(truth.out) == whole


def changed_judge(job: Job) -> dict[str, Any]:
    return {"judge_settings": ["rationale=40"]}


def changed_fingerprint(job: Job) -> dict[str, Any]:
    return {"model": {"fingerprint": "f" * 64}}


def changed_model(job: Job) -> dict[str, Any]:
    return {"model": {"name": "another"}}


def changed_template(job: Job) -> dict[str, Any]:
    return {"model": {"template_hash": None}}


def changed_temperature(job: Job) -> dict[str, Any]:
    return {"temperature": 0.5}


def changed_seed(job: Job) -> dict[str, Any]:
    return {"seed": 1}


def changed_max_tokens(job: Job) -> dict[str, Any]:
    return {"max_tokens": 50}


def changed_limit(job: Job) -> dict[str, Any]:
    return {"limit": 20}


def changed_content(job: Job) -> dict[str, Any]:
    rows = [dict(row) for row in job.rows]
    rows[29]["answer"] += "!"
    return {"records": write_rows(job.path / "others.jsonl", rows)}


def more_records(job: Job) -> dict[str, Any]:
    return {"records": write_rows(job.path / "others.jsonl", truth_rows(31))}


def changed_mapping(job: Job) -> dict[str, Any]:
    return {"mapping": {"answer": "question"}}


def changed_engine(job: Job) -> dict[str, Any]:
    return {"engine": ScriptedEngine(settings={"dtype": "float16"})}


CHANGES = [
    (changed_judge, r"judge.digest was '\w{12}…', is now '\w{12}…'"),
    (changed_fingerprint, r"model.fingerprint was '9a129038d9a0…', is now 'ffffffffffff…'"),
    (changed_model, r"model.name was 'scripted', is now 'another'"),
    (changed_template, r"model.chat_template was '5cde\w+', is now None"),
    (changed_temperature, r"settings.temperature was 0.0, is now 0.5"),
    (changed_seed, r"settings.seed was 0, is now 1"),
    (changed_max_tokens, r"settings.max_tokens was None, is now 50"),
    (changed_limit, r"settings.limit was None, is now 20"),
    (changed_content, r"records.digest was '\w{12}…', is now '\w{12}…'"),
    (more_records, r"records.total was 30, is now 31"),
    (changed_mapping, r"settings.mapping.answer was None, is now 'question'"),
    (changed_engine, r"dtype was None, is now 'float16'"),
]


@pytest.mark.parametrize(("change", "told"), CHANGES, ids=[change.__name__ for change, _ in CHANGES])
def test_what_was_made_otherwise_is_not_mixed(truth: Job, change: Any, told: str) -> None:
    fails = failing("engine_error", "Is 4 even?")
    with pytest.raises(EngineError):
        truth.run(ScriptedEngine(fails=fails, dies_after=11))
    before = files_of(truth.out)
    for retry in (False, True):
        with pytest.raises(RunError, match=told) as caught:
            truth.run(**change(truth), retry_failed=retry)
        assert caught.value.where == str(truth.out)
        assert "another -o" in str(caught.value.fix)
        assert files_of(truth.out) == before
    assert truth.run(retry_failed=True).statuses["ok"] == 30


def test_what_changes_only_speed_may_change(truth: Job) -> None:
    with pytest.raises(EngineError):
        truth.run(ScriptedEngine(dies_after=11, concurrency=2, speed={"gpus": 1}))
    engine = ScriptedEngine(concurrency=7, speed={"gpus": 4})
    truth.run(engine)
    assert engine.asked.total() == 19
    assert json.loads((truth.out / "run.json").read_text())["engine"]["arguments"] == {"concurrency": 7, "gpus": 4}


def test_the_same_records_may_lie_elsewhere(truth: Job) -> None:
    with pytest.raises(EngineError):
        truth.run(ScriptedEngine(dies_after=11))
    moved = truth.path / "elsewhere.jsonl.gz"
    moved.write_bytes(gzip.compress(truth.records.read_bytes()))
    engine = ScriptedEngine()
    truth.run(engine, records=moved)
    assert engine.asked.total() == 19


# Records


def bad_rows(n: int, good: int = 5) -> list[dict[str, Any]]:
    return [{"id": f"bad{i}", "question": f"{i}?", "answer": i} for i in range(n)] + truth_rows(good)


def test_bad_records_are_all_told_before_anything_starts(tmp_path: Path) -> None:
    job = Job(tmp_path, "truthfulness", bad_rows(3))
    with pytest.raises(RecordsError, match="3 of 8 records cannot be judged") as caught:
        job.run()
    told = str(caught.value)
    assert [f"records.jsonl:{n + 1}: field 'answer' is {n}, not text" in told for n in range(3)] == [True] * 3
    assert told.count("records.jsonl:") == 3
    assert "more" not in told
    assert "--skip-invalid" in told
    assert not job.out.exists()
    assert job.starts == 0


def test_of_many_bad_records_twenty_are_told(tmp_path: Path) -> None:
    job = Job(tmp_path, "truthfulness", bad_rows(25))
    with pytest.raises(RecordsError) as caught:
        job.run()
    told = str(caught.value)
    assert told.count("records.jsonl:") == 20
    assert "and 5 more" in told


def test_bad_records_that_are_bad_alike_are_told_once(tmp_path: Path) -> None:
    alike = [{"id": f"alike{i}", "question": "?"} for i in range(12)]
    job = Job(tmp_path, "truthfulness", [*alike, *bad_rows(1)])
    with pytest.raises(RecordsError, match="13 of 18 records cannot be judged") as caught:
        job.run()
    told = str(caught.value)
    assert "records.jsonl:1: field 'answer' is missing: the record has id, question (and 11 like it)" in told
    assert "records.jsonl:13: field 'answer' is 0, not text" in told
    assert told.count("records.jsonl:") == 2


def test_bad_records_can_be_skipped_and_are_kept_as_such(tmp_path: Path) -> None:
    job = Job(tmp_path, "truthfulness", bad_rows(3))
    engine = ScriptedEngine()
    summary = job.run(engine, skip_invalid=True)
    assert engine.asked.total() == 5
    assert summary.statuses == {"ok": 5, "too_long": 0, "invalid_record": 3, "engine_error": 0, "incomplete": 0}
    told = line_of(job.out, "bad1")
    assert told["status"] == "invalid_record"
    assert told["error"].startswith("records.jsonl:2: field 'answer' is 1, not text")
    assert (told["overall"], told["usage"]["asks"]) == (None, 0)


def test_records_that_change_while_the_model_loads_are_noticed(truth: Job) -> None:
    def edit() -> None:
        rows = [dict(row) for row in truth.rows]
        rows[3]["answer"] = "edited"
        write_rows(truth.records, rows)

    with pytest.raises(RecordsError, match="changed while they were judged"):
        truth.run(while_loading=edit)
    with pytest.raises(RunError, match=r"records.digest"):
        truth.run()


@pytest.mark.parametrize("damage", ["cut off", "emptied", "spoilt", "gone"])
def test_records_that_are_damaged_while_the_model_loads_end_the_run(truth: Job, damage: str) -> None:
    records = truth.path / "records.jsonl.gz"
    whole = gzip.compress(truth.records.read_bytes(), mtime=0)
    records.write_bytes(whole)

    def spoil() -> None:
        records.unlink()
        if damage != "gone":
            records.write_bytes({"cut off": whole[:-20], "emptied": b"", "spoilt": b"\0" * 50}[damage])

    engine = ScriptedEngine()
    with pytest.raises(LocalJudgeError):
        truth.run(engine, records=records, while_loading=spoil)
    assert engine.closed == 1
    assert all(found.status == "ok" for found in by_id(truth.out).values())
    records.write_bytes(whole)
    assert truth.run(records=records).statuses["ok"] == 30


def test_records_that_were_only_touched_have_not_changed(truth: Job) -> None:
    assert truth.run(while_loading=lambda: os.utime(truth.records, (1, 1))).total == 30


def test_an_error_in_the_records_ends_the_stream_and_what_is_in_flight() -> None:
    kept: list[str] = []
    cancelled: Counter[str] = Counter()

    def records() -> Iterator[Record]:
        for n in range(10):
            yield Record(f"r{n}", {}, "")
        raise RecordsError("the disk is gone")

    async def judge(record: Record | BadRecord) -> Verdict:
        try:
            await asyncio.sleep(0.001 if record.id < "r7" else 60)
        except asyncio.CancelledError:
            cancelled[record.id] += 1
            raise
        return Verdict(id=record.id, status="ok", overall=1, judge="j", model="m")

    async def go() -> None:
        await judge_stream(judge, records(), lambda verdict: kept.append(verdict.id), 4)

    with pytest.raises(RecordsError, match="the disk is gone"):
        asyncio.run(asyncio.wait_for(go(), 10))
    assert kept == [f"r{n}" for n in range(7)]
    assert set(cancelled) == {"r7", "r8", "r9"}


# The completion cache


def test_runs_share_their_completions(truth: Job) -> None:
    truth.run()
    engine = ScriptedEngine()
    summary = truth.run(engine, out=truth.path / "again")
    assert engine.asked.total() == 0
    assert (summary.usage.asks, summary.usage.reused) == (30, 30)
    assert by_id(truth.path / "again") == by_id(truth.out)
    first, second = (next(iter(read_verdicts(out))).usage for out in (truth.out, truth.path / "again"))
    assert second == first.model_copy(update={"reused": 1})


@pytest.mark.parametrize(
    ("first", "second", "asked"),
    [
        ({}, {"temperature": 0.5}, 30),
        ({}, {"seed": 1}, 0),  # without a temperature nothing is drawn
        ({"temperature": 0.5}, {"temperature": 0.5, "seed": 1}, 30),
        ({"temperature": 0.5, "seed": 1}, {"temperature": 0.5, "seed": 1}, 0),
        ({}, {"max_tokens": 60}, 30),
        ({}, {"judge_settings": ["rationale=81"]}, 30),
        ({}, {"judge_settings": ["scoring.pass=0"]}, 0),  # counted from the same answers
        ({}, {"engine": ScriptedEngine(settings={"dtype": "float16"})}, 30),
        ({}, {"shared_cache": False}, 30),
        ({"shared_cache": False}, {}, 30),
    ],
)
def test_only_what_would_be_answered_the_same_is_reused(
    truth: Job, first: dict[str, Any], second: dict[str, Any], asked: int
) -> None:
    truth.run(**first)
    engine = second.pop("engine", None) or ScriptedEngine()
    truth.run(engine, out=truth.path / "again", **second)
    assert engine.asked.total() == asked


def test_without_the_shared_cache_completions_stay_in_the_folder(truth: Job, own_cache: Path) -> None:
    truth.run(shared_cache=False)
    assert not own_cache.exists()
    assert (truth.out / "completions.sqlite").is_file()


def test_a_spoilt_cache_is_told_before_the_model_loads(truth: Job, own_cache: Path) -> None:
    own_cache.parent.mkdir()
    own_cache.write_text("no database" * 100)
    with pytest.raises(RunError, match="cache cannot be used") as caught:
        truth.run()
    assert str(own_cache) in str(caught.value)
    assert truth.starts == 0
    assert truth.run(shared_cache=False).total == 30


# Stopping


def test_cancelling_keeps_what_is_judged(truth: Job) -> None:
    engine = ScriptedEngine(concurrency=4, hangs=lambda ask: contains("Is 11 even?", ask))

    async def go() -> None:
        task = asyncio.ensure_future(truth.prepare(engine).go())
        while engine.asked.total() < 30:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(go())
    assert engine.closed == 1
    assert engine.in_flight == 0
    assert set(by_id(truth.out)) == {row["id"] for row in truth.rows} - {"t11"}
    assert json.loads((truth.out / "summary.json").read_text())["total"] == 29
    again = ScriptedEngine()
    assert truth.run(again).total == 30
    assert again.asked.total() == 1


def test_what_fails_because_the_run_stops_is_no_failure(truth: Job) -> None:
    """Ctrl-C goes to the engine's own process too, which then ends its requests before we have."""
    engine = ScriptedEngine(concurrency=4)
    run = truth.prepare(engine)

    def fails(ask: Ask) -> AskFailed | None:
        run.stopping = run.stopping or engine.asked.total() > 11
        return AskFailed("engine_error", "aborted") if run.stopping else None

    engine.fails = fails
    asyncio.run(run.go())
    assert 0 < len(by_id(truth.out)) < 12
    assert {found.status for found in by_id(truth.out).values()} == {"ok"}
    assert truth.run().statuses["ok"] == 30


def test_settings_cannot_be_changed_under_way(truth: Job) -> None:
    with pytest.raises(ValidationError):
        truth.prepare().settings.temperature = 1.0  # type: ignore[misc]


def test_an_answer_that_is_not_valid_is_asked_again_and_not_kept(truth: Job) -> None:
    """Cut JSON in the cache would be served for ever, to every run that shares it."""

    class CutsItShort(ScriptedEngine):
        async def complete(self, ask: Ask) -> Completion:
            completion = await super().complete(ask)
            return dataclasses.replace(completion, text=completion.text[:-3])

    assert truth.run(CutsItShort()).statuses["engine_error"] == 30
    engine = ScriptedEngine()
    assert truth.run(engine, retry_failed=True).statuses["ok"] == 30
    assert sum(engine.asked.values()) == 30


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"mode": "scores"}, "'mode' cannot be 'scores'"),
        ({"temperature": -1}, "'temperature' cannot be -1"),
        ({"temperature": float("nan")}, "'temperature' cannot be nan"),
        ({"limit": 0}, "'limit' cannot be 0"),
        ({"temprature": 0.5}, "did you mean 'temperature'?"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(RunError) as caught:
        Settings.of(**settings)
    assert says in str(caught.value)


def test_score_mode_writes_nothing_and_so_needs_no_budget(truth: Job) -> None:
    summary = truth.run(mode="score", max_tokens=1)
    assert summary.statuses["ok"] == 30
    labels = json.loads((truth.out / "run.json").read_text())["labels"]
    assert labels == {"truthful": {"A": "yes", "B": "no"}}


class Doubting:
    """A correction that believes nothing by more than it must, and is sure of nothing."""

    def answers(self, answers: Any, swapped: bool) -> Any:
        told = answers["preference"]
        return {"preference": told.model_copy(update={"distribution": {"A": 0.4, "B": 0.6}, "value": "B"})}

    def unsure(self, answers: Any) -> bool:
        return bool(answers["preference"].value == "B")


def test_answers_are_corrected_before_they_come_to_a_verdict(pairs: Job) -> None:
    run = pairs.prepare(mode="score")
    run.correct, run.corrected_by = Doubting(), {"digest": "d1"}
    summary = asyncio.run(run.go())
    assert summary.pairwise is not None and summary.pairwise.wins_b == summary.unsure == 20
    assert all(verdict.overall == pytest.approx(0.4) for verdict in read_verdicts(pairs.out))
    assert json.loads((pairs.out / "run.json").read_text())["calibration"] == {"digest": "d1"}
    with pytest.raises(RunError, match="calibration was"):
        pairs.run(mode="score")
