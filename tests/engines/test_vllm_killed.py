"""A real run in real vLLM, killed in the middle and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from localjudge.models import LocalModel
from localjudge.run.store import read_verdicts
from tests.conftest import Loop
from tests.engines.test_vllm import run_in

pytestmark = pytest.mark.vllm
COUNT = 200


def engine_processes(mark: str) -> list[int]:
    """The processes that carry `mark` in their environment: all that the command started."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for left-over processes in /proc")
def test_killed_in_the_middle_and_started_again_it_ends_as_if_nothing_had_been(
    random_engine: Any, random_model: LocalModel, loop: Loop, tmp_path: Path
) -> None:
    records = tmp_path / "records.jsonl"
    rows = [
        {"id": f"r{i}", "question": f"What is {i} plus {i}?", "answer": f"It is {i + i}."} for i in range(COUNT)
    ]
    records.write_text("".join(json.dumps(row) + "\n" for row in rows))
    mark = f"LOCALJUDGE_TEST_MARK={tmp_path.name}-{os.getpid()}"
    environment = {**os.environ, **dict([mark.split("=")])}

    def start() -> subprocess.Popen[str]:
        # In float32, as the session's engine: then a verdict is the same in whatever company it is reached.
        command = f"run truthfulness {records} -m {random_model.path} -o {cut} --no-cache --max-tokens 24"
        arguments = "--engine-arg dtype=float32 --engine-arg max_num_seqs=4"
        return subprocess.Popen(
            [sys.executable, "-m", "localjudge", *command.split(), *arguments.split()],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )

    cut, whole = tmp_path / "cut", tmp_path / "whole"
    first = start()
    verdicts = cut / "verdicts.jsonl"
    deadline = time.monotonic() + 240
    while not verdicts.exists() or verdicts.read_bytes().count(b"\n") < COUNT // 5:
        assert time.monotonic() < deadline
        assert first.poll() is None, first.stderr.read() if first.stderr else ""
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    kept = verdicts.read_bytes()
    assert kept.count(b"\n") < COUNT, "killed too late to prove anything"

    second = start()
    _, said = second.communicate(timeout=300)
    assert second.returncode == 0, said
    assert "judged already" in said
    assert verdicts.read_bytes().startswith(kept[: kept.rfind(b"\n") + 1])

    run_in(whole, random_engine, random_model, "truthfulness", records, loop, max_tokens=24)

    def told(run: Path) -> list[tuple[str, str]]:
        beside = {"usage": True, "answers": {"truthful": {"distribution"}}}  # of which the last digits differ
        return sorted((v.id, v.model_dump_json(exclude=beside)) for v in read_verdicts(run))

    assert [record for record, _ in told(cut)] == sorted(f"r{i}" for i in range(COUNT))
    assert told(cut) == told(whole)
    for _ in range(100):
        if not (left := engine_processes(mark)):
            break
        time.sleep(0.2)
    assert not left, f"processes of the killed run are still there: {left}"
