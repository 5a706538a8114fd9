"""What a run keeps on disk outlives a process that dies at any moment, a full disk, and hands that meddle."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from localjudge.engines.base import Completion
from localjudge.errors import RunError
from localjudge.run.store import CompletionCache, RunDirectory, differences, read_verdicts, write_atomically
from localjudge.verdict import STATUSES, Status, Verdict
from tests.conftest import REPOSITORY

RUN: dict[str, Any] = {
    "judge": {},
    "model": {},
    "records": {},
    "settings": {},
    "engine": None,
    "spec": {},
    "sessions": [],
}
COMPLETION = Completion('{"a":"勉强"}', 7, 3, 5, "stop", {"a": {"yes": 0.75, "no": 0.25}})


def verdict(name: str, status: Status = "ok") -> Verdict:
    return Verdict(
        id=name,
        status=status,
        overall=1.0 if status == "ok" else None,
        rationale="因为 \U0001f642 \n it is so",
        judge="j",
        model="m",
    )


def directory(path: Path) -> RunDirectory:
    """A run directory with its run.json, ready to append to."""
    made = RunDirectory(path)
    if made.read_run() is None:
        made.write_run(RUN)
    made.read_done()
    made.open()
    return made


def ids(path: Path) -> list[str]:
    return [found.id for found in read_verdicts(path)]


def test_a_verdict_is_on_disk_as_soon_as_it_is_appended(tmp_path: Path) -> None:
    held = directory(tmp_path)
    for n in range(3):
        held.append(verdict(f"é{n}"))
        assert ids(tmp_path) == [f"é{i}" for i in range(n + 1)]
    held.close()
    again = RunDirectory(tmp_path)
    assert again.read_done() == 3
    assert again.is_done("é2")
    assert not again.is_done("é3")
    again.close()
    assert next(iter(read_verdicts(tmp_path))) == verdict("é0")


def test_a_file_cut_at_any_byte_loses_only_the_line_that_was_cut(tmp_path: Path) -> None:
    held = directory(tmp_path)
    for name in ("first", "second", "third"):
        held.append(verdict(name))
    held.close()
    whole = held.verdicts_file.read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for cut in [0, 1, *range(ends[1] - 5, len(whole) + 1)]:
        held.verdicts_file.write_bytes(whole[:cut])
        left = ["first", "second", "third"][: sum(end <= cut for end in ends)]
        assert ids(tmp_path) == left
        again = RunDirectory(tmp_path)
        assert again.read_done() == len(left)
        assert held.verdicts_file.stat().st_size == cut  # looking at it changes nothing
        again.open()
        again.append(verdict("next"))
        again.close()
        assert ids(tmp_path) == [*left, "next"]


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    held = directory(tmp_path)
    for name in ("first", "second", "third"):
        held.append(verdict(name))
    held.close()
    lines = held.verdicts_file.read_bytes().splitlines(keepends=True)
    for damage in (lines[1][:40] + b"\n", b"\n", b"\xff\xfe\n", b'{"id": "second", "status": "ok"}\n'):
        held.verdicts_file.write_bytes(lines[0] + damage + lines[2])
        again = RunDirectory(tmp_path)
        with pytest.raises(RunError, match="not a verdict") as caught:
            again.read_done()
        again.close()
        assert caught.value.where == f"{held.verdicts_file}:2"
        assert held.verdicts_file.read_bytes() == lines[0] + damage + lines[2]


def test_a_failure_with_a_score_is_not_a_verdict(tmp_path: Path) -> None:
    held = directory(tmp_path)
    held.append(verdict("a"))
    held.close()
    told = json.loads(held.verdicts_file.read_text()) | {"status": "engine_error"}
    held.verdicts_file.write_text(json.dumps(told) + "\n")
    with pytest.raises(RunError, match="not a verdict"):
        list(read_verdicts(tmp_path))


def test_only_what_may_be_mended_is_tried_again(tmp_path: Path) -> None:
    held = directory(tmp_path)
    for status in STATUSES:
        held.append(verdict(status, status))
    held.close()
    before = held.verdicts_file.read_bytes()
    again = RunDirectory(tmp_path)
    assert again.read_done(retry_failed=True) == 3
    assert not again.is_done("engine_error")
    assert not again.is_done("incomplete")
    assert held.verdicts_file.read_bytes() == before
    again.open(retry_failed=True)
    again.close()
    assert ids(tmp_path) == ["ok", "too_long", "invalid_record"]
    assert set(held.verdicts_file.read_bytes().splitlines()) < set(before.splitlines())


def test_a_folder_without_a_run_holds_none(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no run"):
        list(read_verdicts(tmp_path))


def test_a_run_without_a_verdict_yet_has_none(tmp_path: Path) -> None:
    held = RunDirectory(tmp_path)
    held.write_run(RUN)
    assert held.read_done() == 0
    held.close()


def test_verdicts_without_their_run_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "verdicts.jsonl").write_text("{}\n")
    held = RunDirectory(tmp_path)
    with pytest.raises(RunError, match=r"verdicts.jsonl without run.json"):
        held.read_run()
    held.close()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "null", '{"judge": {}, "model": {}}', "\xff"])
def test_a_broken_run_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text, encoding="latin-1")
    held = RunDirectory(tmp_path)
    with pytest.raises(RunError, match=r"run.json is broken") as caught:
        held.read_run()
    held.close()
    assert caught.value.where == str(tmp_path / "run.json")
    assert caught.value.fix


def test_a_folder_is_held_by_one(tmp_path: Path) -> None:
    held = RunDirectory(tmp_path)
    with pytest.raises(RunError, match="another run is using this folder"):
        RunDirectory(tmp_path)
    held.close()
    RunDirectory(tmp_path).close()


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for path in (file, file / "run"):
        with pytest.raises(RunError, match="cannot be written") as caught:
            RunDirectory(path)
        assert caught.value.where == str(path)


FILL = """
import resource, sys
from pathlib import Path
from localjudge.errors import RunError
from tests.run.test_store import directory, verdict

resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
held = directory(Path(sys.argv[1]))
kept = 0
for n in range(100):
    try:
        held.append(verdict(f"n{n}"))
        kept += 1
    except RunError as error:
        last = str(error)
held.close()
print(kept)
print(last)
"""


@pytest.mark.parametrize("limit", [10_000, 10_007, 10_100])
def test_a_full_disk_leaves_whole_lines_only(tmp_path: Path, limit: int) -> None:
    """Half of a line goes onto the disk before it is full, and more verdicts come before all workers stop."""
    done = subprocess.run(
        [sys.executable, "-c", FILL, str(tmp_path), str(limit)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    kept, *told = done.stdout.splitlines()
    assert 0 < int(kept) < 100
    assert "verdicts.jsonl: cannot be written: File too large" in told[0]
    text = (tmp_path / "verdicts.jsonl").read_bytes()
    assert text.endswith(b"\n")
    assert len(ids(tmp_path)) == int(kept)


def test_a_write_that_takes_a_part_only_is_carried_on(tmp_path: Path) -> None:
    held = directory(tmp_path)
    real = held._file

    class Slow:
        def write(self, data: bytes) -> int:
            assert real is not None
            return real.write(data[:7])

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    held._file = Slow()  # type: ignore[assignment]
    held.append(verdict("a"))
    held.append(verdict("b"))
    held._file = real
    held.close()
    assert ids(tmp_path) == ["a", "b"]


def test_a_file_is_whole_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "summary.json"
    write_atomically(path, "old")

    def no_room(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(RunError, match=r"summary.json: cannot be written: No space left on device"):
        write_atomically(path, "new")
    assert path.read_text() == "old"


def test_differences_say_what_was_and_what_is() -> None:
    old = {"a": {"b": 1, "c": "same"}, "hash": "0" * 64, "gone": True, "m": {"x": "1"}}
    new = {"a": {"b": 2, "c": "same"}, "hash": "1" * 64, "m": {"y": "1"}}
    assert differences(old, new) == [
        "a.b was 1, is now 2",
        "gone was True, is now None",
        "hash was '000000000000…', is now '111111111111…'",
        "m.x was '1', is now None",
        "m.y was None, is now '1'",
    ]
    assert differences(old, old) == []


def test_long_values_are_told_as_far_as_they_differ() -> None:
    stem = "/home/someone/a/rather/deep/folder/of/models/"
    [told] = differences({"model": stem + "one"}, {"model": stem + "two-which-is-very-long-indeed"})
    assert told == f"model was '{stem}one', is now '{stem}two-which-is…'"
    [longer] = differences({"model": stem}, {"model": stem + "one"})
    assert longer == f"model was '{stem}', is now '{stem}one'"


def test_the_cache_gives_back_what_was_put(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "completions.sqlite"
    cache = CompletionCache(path)
    assert cache.get("k") is None
    cache.put("k", COMPLETION)
    cache.close()
    again = CompletionCache(path)
    assert again.get("k") == COMPLETION
    again.close()


def test_a_completion_of_another_version_is_asked_for_anew(tmp_path: Path) -> None:
    cache = CompletionCache(tmp_path / "c.sqlite")
    for key, value in (("new", '{"text": "x", "more": 1}'), ("odd", "[]"), ("cut", '{"text'), ("null", "null")):
        cache._db.execute("INSERT INTO completions VALUES (?, ?)", (key, value))
        assert cache.get(key) is None
        cache.put(key, COMPLETION)
        assert cache.get(key) == COMPLETION
    cache.close()


def test_a_file_that_is_no_cache_is_named(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    path.write_text("this is not SQLite, and never was " * 100)
    with pytest.raises(RunError, match="cache cannot be used: file is not a database") as caught:
        CompletionCache(path)
    assert caught.value.where == str(path)
    assert "delete it" in str(caught.value.fix)


def test_a_cache_that_was_damaged_is_named_when_it_shows(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    cache = CompletionCache(path)
    for n in range(2000):
        cache.put(f"{n:064}", COMPLETION)
    cache.close()
    data = bytearray(path.read_bytes())
    data[8192:] = random.Random(1).randbytes(len(data) - 8192)
    path.write_bytes(data)
    with pytest.raises(RunError, match="cache cannot be used") as caught:
        cache = CompletionCache(path)
        for n in range(2000):
            cache.get(f"{n:064}")
    assert caught.value.where == str(path)


def test_a_cache_that_has_no_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cache cannot be used"):
        CompletionCache(tmp_path / "file" / "c.sqlite")


PUT = """
import sys
from pathlib import Path
from localjudge.run.store import CompletionCache
from tests.run.test_store import COMPLETION

print("ready", flush=True)
sys.stdin.readline()
for turn in range(40):
    cache = CompletionCache(Path(sys.argv[1]) / f"{turn}.sqlite")
    for n in range(20):
        cache.put(f"{sys.argv[2]}-{n}", COMPLETION)
        cache.put(f"both-{n}", COMPLETION)
    cache.close()
    print("next", flush=True)
    sys.stdin.readline()
"""


def test_processes_that_start_at_the_same_time_share_one_cache(tmp_path: Path) -> None:
    """The making of a cache is what two runs collided on, so each turn makes a new one."""
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", PUT, str(tmp_path), str(n)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in range(3)
    ]
    for _ in range(40 + 1):
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() in ("ready\n", "next\n"), writer.communicate(timeout=60)[1]
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
    for writer in writers:
        _, err = writer.communicate(timeout=60)
        assert writer.returncode == 0, err
    for turn in range(40):
        cache = CompletionCache(tmp_path / f"{turn}.sqlite")
        for name in ("0", "1", "2", "both"):
            assert all(cache.get(f"{name}-{n}") == COMPLETION for n in range(20))
        cache.close()


def test_a_thought_is_kept_with_its_completion(tmp_path: Path) -> None:
    completion = Completion("{}", 10, 0, 60, "stop", thought="Hm. 嗯。")
    with contextlib.closing(CompletionCache(tmp_path / "completions.sqlite")) as cache:
        cache.put("key", completion)
        assert cache.get("key") == completion
