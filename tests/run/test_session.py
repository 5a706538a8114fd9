"""The command line's runs, killed, stopped and crowded: nothing finished is lost, and nothing is doubled."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from localjudge.engines.base import Ask, Completion
from localjudge.errors import EngineError, RunError
from localjudge.run.session import report_again, run_to_end
from tests.run.conftest import Job, by_id, child, files_of, finish, pair_rows, truth_rows, wait_for
from tests.scripted import ScriptedEngine

SIGNALS = [signal.SIGINT, signal.SIGTERM]
GO_ON = "stopped; what is judged is kept: run the same command again to go on"


def asked(log: Path) -> Counter[str]:
    return Counter(log.read_text().splitlines()) if log.exists() else Counter()


def kill_at_random(job: Job, random: random.Random, kills: int, cut: bool, *options: str, **scripted: Any) -> None:
    """Start the job and kill it, again and again: while it starts, reads its records, judges or writes."""
    verdicts = job.out / "verdicts.jsonl"
    for turn in range(kills):
        process = job.child(*options, **scripted)
        if turn % 4 == 3:
            time.sleep(random.uniform(0.2, 1.0))
        else:
            wait_for(process, "judging")
            time.sleep(random.uniform(0, 0.12))
        process.kill()
        assert process.communicate()[0] is not None
        assert process.returncode == -signal.SIGKILL, "it was done before it was killed often enough"
        if cut and turn % 2 and verdicts.exists():
            os.truncate(verdicts, random.randint(verdicts.stat().st_size * 9 // 10, verdicts.stat().st_size))


def test_a_run_killed_twenty_times_ends_as_if_it_never_was(tmp_path: Path) -> None:
    job = Job(tmp_path, "truthfulness", truth_rows(600))
    whole = job.expected()
    log = tmp_path / "asked"
    slow = {"delay": 0.05, "concurrency": 6, "log": log}
    kill_at_random(job, random.Random(20), 20, True, **slow)
    assert 0 < len(by_id(job.out)) < 600
    finish(job.child(log=log))
    assert by_id(job.out) == whole
    assert len(asked(log)) == 600
    # A kill between the engine's answer and its storing costs that answer, and no more.
    assert asked(log).total() <= 600 + 20
    assert json.loads((job.out / "summary.json").read_text())["total"] == 600


@pytest.mark.parametrize("options", [[], ["--no-cache"]], ids=["shared cache", "own cache"])
def test_pairs_killed_again_and_again_end_as_if_they_never_were(tmp_path: Path, options: list[str]) -> None:
    job = Job(tmp_path, "pairwise", pair_rows(200))
    whole = job.expected()
    log = tmp_path / "asked"
    kill_at_random(job, random.Random(8), 8, True, *options, delay=0.04, concurrency=3, log=log)
    finish(job.child(*options, log=log))
    assert by_id(job.out) == whole
    assert len(asked(log)) == 400
    assert asked(log).total() <= 400 + 8


@pytest.mark.parametrize("options", [[], ["--no-cache"]], ids=["shared cache", "own cache"])
def test_half_a_pair_is_not_asked_again(tmp_path: Path, options: list[str]) -> None:
    """One order of one pair is answered and the other is not when the process is killed."""
    job = Job(tmp_path, "pairwise", pair_rows(1))
    whole = job.expected()
    [(straight, swapped)] = [(row["response_a"], row["response_b"]) for row in job.rows]
    log = tmp_path / "asked"
    shown_first = f"<response_a {_mark(swapped)}>"
    process = job.child(*options, log=log, hangs=shown_first)
    wait_for(process, "judging")
    while asked(log).total() < 1:
        time.sleep(0.01)
    time.sleep(0.1)
    process.kill()
    process.communicate()
    assert by_id(job.out) == {}
    finish(job.child(*options, log=log))
    assert sorted(asked(log).values()) == [1, 1]
    assert by_id(job.out) == whole
    assert straight != swapped


def _mark(text: str) -> str:
    from localjudge.judge.prompt import fence

    return fence("x", text).split(">")[0].split()[1]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_a_run_cleanly_and_the_next_start_finishes_it(tmp_path: Path, number: signal.Signals) -> None:
    job = Job(tmp_path, "truthfulness", truth_rows(200))
    whole = job.expected()
    process = job.child(delay=0.05, concurrency=4)
    wait_for(process, "judging")
    time.sleep(0.5)
    process.send_signal(number)
    _, err = finish(process, 130)
    assert err.splitlines()[-1] == GO_ON
    kept = by_id(job.out)
    assert 0 < len(kept) < 200
    assert json.loads((job.out / "summary.json").read_text())["total"] == len(kept)
    assert (job.out / "report.md").is_file()
    [sitting] = json.loads((job.out / "run.json").read_text())["sessions"]
    assert sitting["judged"] == len(kept)
    out, err = finish(job.child())
    assert f"{len(kept)} of 200 records are judged already" in err
    assert str(job.out / "verdicts.jsonl") in out
    assert by_id(job.out) == whole


@pytest.mark.parametrize("how", ["loading", "loading_awaits"])
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_the_loading_of_a_model_at_once(truth: Job, number: signal.Signals, how: str) -> None:
    """vLLM loads for minutes without giving way to the event loop."""
    process = truth.child(**{how: 60})
    wait_for(process, "loading")
    time.sleep(0.2)
    start = time.monotonic()
    process.send_signal(number)
    _, err = finish(process, 130)
    assert time.monotonic() - start < 10
    assert err.splitlines()[-1] == GO_ON
    finish(truth.child())
    assert len(by_id(truth.out)) == 30


def test_a_second_signal_does_no_harm(tmp_path: Path) -> None:
    job = Job(tmp_path, "truthfulness", truth_rows(200))
    process = job.child(delay=0.05, concurrency=4)
    wait_for(process, "judging")
    time.sleep(0.3)
    for _ in range(20):
        process.send_signal(signal.SIGINT)
        time.sleep(0.002)
    process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT, 1)
    finish(job.child())
    assert len(by_id(job.out)) == 200


def test_an_engine_that_falls_to_the_same_signal_does_not_make_it_an_error(truth: Job) -> None:
    class Falling(ScriptedEngine):
        async def complete(self, ask: Ask) -> Completion:
            if self.answered >= 11:
                os.kill(os.getpid(), signal.SIGINT)
                raise EngineError("vLLM has stopped")
            return await super().complete(ask)

    assert threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    assert run_to_end(truth.prepare(Falling(concurrency=2))) is None
    assert signal.getsignal(signal.SIGINT) is before
    assert {found.status for found in by_id(truth.out).values()} == {"ok"}
    assert 11 <= len(by_id(truth.out)) < 30


def test_an_engine_that_falls_by_itself_is_an_error(truth: Job) -> None:
    process = truth.child(dies_after=7)
    _, err = finish(process, 2)
    assert "error: the scripted engine has died" in err
    assert len(by_id(truth.out)) == 7
    finish(truth.child())
    assert len(by_id(truth.out)) == 30


def test_a_finished_run_loads_no_model(truth: Job) -> None:
    out, _ = finish(truth.child())
    assert "judging" in out
    before = files_of(truth.out)
    out, err = finish(truth.child())
    assert "loading" not in out + err
    assert "All 30 records judged." in out
    assert "30 of 30 records are judged already" in err
    assert files_of(truth.out) == before


def test_a_folder_in_use_is_refused_until_its_run_is_gone(truth: Job) -> None:
    """The engine's process, which vLLM may fork, outlives a run that is killed, and must not hold its folder."""
    first = truth.child(hangs="Is 11 even?", forks=True)
    assert first.stdout is not None
    assert first.stdout.readline() == "loading\n"
    engine = int(first.stdout.readline())
    try:
        wait_for(first, "judging")
        _, err = finish(truth.child(), 2)
        assert f"error: {truth.out}: another run is using this folder" in err
        assert "another -o" in err
        with pytest.raises(RunError, match="another run is using this folder"):
            report_again(truth.out)
        first.kill()
        first.wait()
        os.kill(engine, 0)
        finish(truth.child())
    finally:
        first.kill()
        os.kill(engine, signal.SIGKILL)
        first.communicate()
    assert len(by_id(truth.out)) == 30


@pytest.mark.parametrize("what", ["verdicts", "completions"])
def test_a_disk_that_fills_up_is_told_and_the_run_goes_on_when_it_has_room(tmp_path: Path, what: str) -> None:
    job = Job(tmp_path, "truthfulness", truth_rows(200))
    whole = job.expected()
    if what == "verdicts":  # with all its completions stored already, only verdicts are written
        job.run(out=tmp_path / "first")
    _, err = finish(job.child(file_limit=40_000), 2)
    assert ("verdicts.jsonl: cannot be written" if what == "verdicts" else "cache cannot be used") in err
    kept = by_id(job.out)
    assert (0 if what == "completions" else 50) <= len(kept) < 200
    finish(job.child())
    assert by_id(job.out) == whole


def test_a_folder_that_cannot_be_made_is_told(truth: Job) -> None:
    (truth.path / "file").write_text("")
    truth.out = truth.path / "file" / "out"
    out, err = finish(truth.child(), 2)
    assert f"error: {truth.out}: the folder cannot be written: Not a directory" in err
    assert "loading" not in out


def test_a_run_of_failures_only_is_told_by_its_exit(truth: Job) -> None:
    out, _ = finish(truth.child(fails="even?"), 1)
    assert "30 engine_error" in out
    out, _ = finish(truth.child("--retry-failed"))
    assert "All 30 records judged." in out


# Reporting again


def test_a_report_is_made_anew_from_the_verdicts(truth: Job) -> None:
    truth.run()
    before = files_of(truth.out)
    for name in ("summary.json", "report.md"):
        (truth.out / name).unlink()
    out, _ = finish(child("report", str(truth.out)))
    assert out.startswith("# truthfulness")
    assert files_of(truth.out) == before


def test_a_report_passes_over_a_torn_line_and_leaves_it(truth: Job) -> None:
    truth.run()
    verdicts = truth.out / "verdicts.jsonl"
    os.truncate(verdicts, verdicts.stat().st_size - 5)
    before = verdicts.read_bytes()
    report_again(truth.out)
    assert verdicts.read_bytes() == before
    assert json.loads((truth.out / "summary.json").read_text())["total"] == 29


def test_a_report_of_a_run_without_verdicts_says_so(truth: Job) -> None:
    def fail() -> None:
        raise EngineError("no engine")

    with pytest.raises(EngineError):
        truth.run(while_loading=fail)
    (truth.out / "verdicts.jsonl").unlink(missing_ok=True)
    report_again(truth.out)
    assert json.loads((truth.out / "summary.json").read_text())["total"] == 0


def test_a_report_of_what_is_no_run_is_refused(truth: Job) -> None:
    with pytest.raises(RunError, match="holds no run"):
        report_again(truth.path / "nowhere")
    with pytest.raises(RunError, match="holds no run"):
        report_again(truth.path)
    assert not (truth.path / "nowhere").exists()
    assert not (truth.path / ".lock").exists()
    truth.run()
    run = json.loads((truth.out / "run.json").read_text())
    run["spec"]["kind"] = "of the future"
    (truth.out / "run.json").write_text(json.dumps(run))
    with pytest.raises(RunError, match="a judge that this localjudge does not know") as caught:
        report_again(truth.out)
    assert "use localjudge 0.1.0, which made it" in str(caught.value)
