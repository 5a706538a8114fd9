"""What the stories of runs share: a job to run again and again in this process, and the same in its own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from localjudge.judge.loading import load_judge
from localjudge.report.summary import Summary
from localjudge.run.runner import Run, Settings
from localjudge.run.store import read_verdicts
from localjudge.verdict import Verdict
from tests.conftest import REPOSITORY
from tests.scripted import ScriptedEngine, scripted_model, write_tokenizer


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No story sees the completions of another."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("LOCALJUDGE_CACHE", str(cache))
    return cache / "completions.sqlite"


def truth_rows(n: int) -> list[dict[str, Any]]:
    return [{"id": f"t{i}", "question": f"Is {i} even?", "answer": f"It is number {i}."} for i in range(n)]


def pair_rows(n: int) -> list[dict[str, Any]]:
    return [
        {"id": f"p{i}", "instruction": f"Count to {i}.", "response_a": f"left {i}", "response_b": f"right {i}"}
        for i in range(n)
    ]


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def by_id(out: Path) -> dict[str, Verdict]:
    """A run's verdicts without their usage, which tells how they were reached. None may be there twice."""
    found: dict[str, Verdict] = {}
    for verdict in read_verdicts(out):
        assert verdict.id not in found
        found[verdict.id] = verdict.model_copy(update={"usage": None})
    return found


def files_of(out: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(out.iterdir())}


@dataclass
class Job:
    """One judge on one file of records, by a scripted engine."""

    path: Path
    judge: str
    rows: list[dict[str, Any]]
    starts: int = 0
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        write_tokenizer(self.path)
        self.records = write_rows(self.path / "records.jsonl", self.rows)
        self.out = self.path / "out"

    def prepare(
        self,
        engine: ScriptedEngine | None = None,
        *,
        judge_settings: Iterable[str] = (),
        model: Mapping[str, Any] | None = None,
        while_loading: Callable[[], None] = lambda: None,
        out: Path | None = None,
        records: Path | None = None,
        shared_cache: bool = True,
        retry_failed: bool = False,
        **settings: Any,
    ) -> Run:
        async def start() -> ScriptedEngine:
            self.starts += 1
            while_loading()
            return engine or ScriptedEngine()

        return Run(
            spec=load_judge(self.judge, judge_settings),
            records=records or self.records,
            model=scripted_model(self.path, **(model or {})),
            directory=out or self.out,
            settings=Settings(**settings),
            start_engine=start,
            shared_cache=shared_cache,
            retry_failed=retry_failed,
            say=self.said.append,
        )

    def run(self, engine: ScriptedEngine | None = None, **options: Any) -> Summary:
        return asyncio.run(self.prepare(engine, **options).go())

    def command(self, *options: str) -> list[str]:
        return ["run", self.judge, str(self.records), "-m", "scripted", "-o", str(self.out), *options]

    def child(self, *options: str, **scripted: Any) -> subprocess.Popen[str]:
        """The same through the command line, in a process of its own."""
        return child(*self.command(*options), **scripted)

    def expected(self, **options: Any) -> dict[str, Verdict]:
        """The verdicts of a run that nothing disturbs."""
        self.run(out=self.path / "undisturbed", shared_cache=False, **options)
        return by_id(self.path / "undisturbed")


def child(*arguments: str, **scripted: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.run.child", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "SCRIPTED": json.dumps(scripted, default=str)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(process: subprocess.Popen[str], line: str) -> None:
    """Read the process's output up to and with this line."""
    assert process.stdout is not None
    for told in process.stdout:
        if told.strip() == line:
            return
    raise AssertionError(f"ended before '{line}': {process.communicate(timeout=60)[1]}")


def finish(process: subprocess.Popen[str], code: int = 0, wait: float = 120) -> tuple[str, str]:
    """Its output and errors; wait: seconds."""
    out, err = process.communicate(timeout=wait)
    assert process.returncode == code, err
    assert "Traceback" not in err
    return out, err


@pytest.fixture
def truth(tmp_path: Path) -> Job:
    return Job(tmp_path, "truthfulness", truth_rows(30))


@pytest.fixture
def pairs(tmp_path: Path) -> Job:
    return Job(tmp_path, "pairwise", pair_rows(20))
