"""Runs are found, and followed while they are written, without touching them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from localjudge.errors import RunError
from localjudge.run.store import RunDirectory
from localjudge.view.runs import Runs, find_runs
from tests.run.conftest import files_of
from tests.view.conftest import Job, truth_rows


@pytest.fixture
def job(tmp_path: Path) -> Job:
    job = Job(tmp_path, "truthfulness", truth_rows(6))
    job.run()
    return job


def test_runs_are_found_below_the_folders_given_and_once_each(job: Job, tmp_path: Path) -> None:
    deep = tmp_path / "suite" / "model" / "time" / "judges" / "a" / "members" / "m"
    shutil.copytree(job.out, deep)
    shutil.copytree(job.out, tmp_path / ".hidden" / "run")
    (tmp_path / "link").symlink_to(tmp_path / "suite")
    assert list(find_runs([tmp_path])) == [job.out, deep]
    assert list(find_runs([job.out, tmp_path / "suite", deep])) == [job.out, deep]


def test_a_run_that_is_held_and_written_is_followed_and_left_alone(job: Job) -> None:
    verdicts = job.out / "verdicts.jsonl"
    lines = verdicts.read_bytes().splitlines(keepends=True)
    verdicts.write_bytes(b"".join(lines[:2]))
    runs = Runs([job.out])
    [run] = runs.all()
    holder = RunDirectory(job.out)  # as the run that goes on
    before = files_of(job.out)
    told = run.state()
    assert (told["judged"], told["total"], told["state"]) == (2, 6, "judging")
    with verdicts.open("ab") as file:
        file.write(lines[2] + lines[3][:20])  # and the rest of a line is on its way
    assert run.state()["judged"] == 3
    assert len(run.do(lambda data: list(data.cases()))) == 3
    with verdicts.open("ab") as file:
        file.write(lines[3][20:])
    assert run.state()["judged"] == 4
    assert run.detail(json.loads(lines[3])["id"], blind=False)["status"] == "ok"
    assert {name: data for name, data in files_of(job.out).items() if name != "verdicts.jsonl"} == {
        name: data for name, data in before.items() if name != "verdicts.jsonl"
    }
    holder.close()
    verdicts.replace(job.out / "old")  # written anew, as --retry-failed does
    verdicts.write_bytes(b"".join(lines))
    assert run.state()["judged"] == 6
    assert run.state()["state"] == "done"
    assert run.state()["mean"] == pytest.approx(run.do(lambda data: data.overview())["summary"]["overall"]["mean"])
    runs.close()


def test_a_run_that_has_judged_nothing_yet(job: Job) -> None:
    (job.out / "verdicts.jsonl").unlink()
    runs = Runs([job.out])
    assert runs.states()[0]["judged"] == 0
    assert runs.all()[0].do(lambda data: list(data.cases())) == []
    runs.close()


def test_new_runs_come_and_old_ones_go(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localjudge.view.runs._FRESH", 0.0)
    runs = Runs([tmp_path])
    shutil.copytree(job.out, tmp_path / "second")
    assert [run.path.name for run in runs.all()] == ["out", "second"]
    shutil.rmtree(job.out)
    assert [run.path.name for run in runs.all()] == ["second"]
    runs.close()


def test_what_is_broken_is_told_beside_what_is_not(job: Job, tmp_path: Path) -> None:
    for name, text in (("cut", "{"), ("other", '{"judge": 1}'), ("list", "[]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(text)
    spoiled = tmp_path / "spoiled"
    shutil.copytree(job.out, spoiled)
    (spoiled / "verdicts.jsonl").write_text("no verdict\n")
    runs = Runs([tmp_path])
    told = {Path(one["path"]).name: one["problem"] for one in runs.states()}
    assert told.pop("out") is None
    assert set(told) == {"cut", "other", "list", "spoiled"}
    assert all("run.json is broken" in problem for name, problem in told.items() if name != "spoiled")
    assert "a line is no verdict" in told["spoiled"]
    runs.close()


def test_folders_without_runs_are_told(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no run is in this folder"):
        Runs([tmp_path])
    with pytest.raises(RunError, match="there is no such folder"):
        Runs([tmp_path / "nowhere"])
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="this is no folder"):
        Runs([tmp_path / "file"])
