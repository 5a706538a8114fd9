"""What localjudge itself costs: ten times the records are ten times the work, and no more memory."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.run.conftest import child, finish, truth_rows, write_rows

SMALL, LARGE = (10_000, 100_000) if os.environ.get("LOCALJUDGE_THOROUGH") else (3_000, 30_000)


def measured(path: Path, n: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """CPU seconds and peak bytes of a whole run over n records: read twice, judged, stored, counted, reported."""
    path.mkdir()
    monkeypatch.setenv("LOCALJUDGE_CACHE", str(path / "cache"))
    records = write_rows(path / "records.jsonl", truth_rows(n))
    out, usage = path / "out", path / "usage.json"
    told, _ = finish(
        child("run", "truthfulness", str(records), "-m", "scripted", "-o", str(out), concurrency=512, usage=usage),
        wait=600,
    )
    assert f"All {n:,} records judged." in told
    with (out / "verdicts.jsonl").open("rb") as lines:
        assert sum(1 for _ in lines) == n
    used: dict[str, Any] = json.loads(usage.read_text())
    shutil.rmtree(path)
    print(n, used)
    return used


def test_ten_times_the_records_take_ten_times_as_long_and_no_more_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scripted engine's own work, about a tenth, is in the time. Other work on the machine stretches it, hence
    user time for the ratio, and a second try."""
    for turn in range(2):
        small = measured(tmp_path / f"small-{turn}", SMALL, monkeypatch)
        large = measured(tmp_path / f"large-{turn}", LARGE, monkeypatch)
        assert large["peak"] < 300 * 2**20
        ratio = large["user"] / small["user"]
        if ratio < 11:
            return
    raise AssertionError(f"ten times the records take {ratio:.1f} times as long")
