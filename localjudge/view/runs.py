"""The runs under some folders, followed while they are written. Takes no run's lock and writes nothing.

Knows run directories; nothing of pages, labels or HTTP.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from localjudge.errors import LocalJudgeError, RunError
from localjudge.judge.spec import JudgeSpec
from localjudge.report.html.data import RunData, read_run
from localjudge.run.runner import judge_of
from localjudge.verdict import Verdict
from localjudge.view.queue import Facts, facts_of

T = TypeVar("T")

DEEPEST = 8
"""Folders below one that is given: a suite's panel's members lie six down."""
LATELY = 60.0
"""Seconds since the last verdict after which a run that is not whole no longer counts as going on."""
_FRESH = 1.0


def find_runs(folders: Sequence[Path]) -> Iterator[Path]:
    """Each folder with a run.json in these or below them, once, in the order of names. Links are not followed."""
    seen: set[Path] = set()
    for folder in folders:
        top = len(folder.parts)
        for place, below, files in os.walk(folder):
            path = Path(place)
            deep = len(path.parts) - top >= DEEPEST
            below[:] = [] if deep else sorted(name for name in below if not name.startswith("."))
            if "run.json" in files and (real := path.resolve()) not in seen:
                seen.add(real)
                yield path


class Followed:
    """One run, as it grows. Whatever is asked of it happens in one thread of its own, since what it holds open is
    bound to a thread; `do` waits for that."""

    def __init__(self, path: Path) -> None:
        """Raises RunError."""
        run = read_run(path)
        self.path = path
        self.key = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:12]
        self.spec: JudgeSpec = judge_of(path, run)
        self.title = f"{self.spec.name}, judged by {run['model']['name']}"
        self.digest: str = run["judge"]["digest"]
        self.records = {run["records"].get("digest"), run.get("paths", {}).get("records")} - {None}
        self.remade = False
        self._facts: dict[str, Facts] = {}
        self._statuses: Counter[str] = Counter()
        self._passed: Counter[bool] = Counter()
        self._place: tuple[int, int] = (0, 0)  # the file's inode, and how far it was read
        self._data: RunData | None = None
        self._data_at: tuple[int, int] | None = None
        self._one = ThreadPoolExecutor(1, thread_name_prefix="localjudge-view")

    def do(self, work: Callable[[RunData], T]) -> T:
        """Do something with the run's data as they are now. Raises LocalJudgeError."""
        return self._one.submit(lambda: work(self._current())).result()

    def detail(self, record_id: str, *, blind: bool) -> dict[str, Any]:
        """One case, as `RunData.detail` has it. Raises LocalJudgeError."""

        def told() -> dict[str, Any]:
            # To take in a long run anew for each case that is looked at while it grows would be slow.
            if self._data is not None and self._place[0] == (self._data_at or (0, 0))[0]:
                with contextlib.suppress(RunError):
                    return self._data.detail(record_id, blind=blind)
            return self._current().detail(record_id, blind=blind)

        return self._one.submit(told).result()

    def facts(self) -> dict[str, Facts]:
        """id -> what labelling goes by, of all that is judged by now. Raises RunError."""

        def told() -> dict[str, Facts]:
            self._read_on()
            return dict(self._facts)

        return self._one.submit(told).result()

    def _current(self) -> RunData:
        self._read_on()
        if self._data is None:
            self._data = RunData(self.path)
        elif self._data_at != self._place:
            self._data.refresh()
        self._data_at = self._place
        return self._data

    def close(self) -> None:
        if self._data is not None:
            self._one.submit(self._data.close).result()
        self._one.shutdown()

    def state(self) -> dict[str, Any]:
        """name, judge, kind, model, total, judged, statuses, passed, failed, mean, state (done, judging, stopped),
        age in seconds, problem. What is wrong with a run is told, not raised."""
        try:
            return self._one.submit(self._state).result()
        except LocalJudgeError as error:
            return {"key": self.key, "path": str(self.path), "problem": str(error)}

    def _state(self) -> dict[str, Any]:
        run = read_run(self.path)
        self.remade = run["judge"]["digest"] != self.digest
        self._read_on()
        total, judged = int(run["records"]["total"]), self._statuses.total()
        age = time.time() - _changed(self.path)
        low, high = (0.0, 1.0) if self.spec.kind == "pairwise" else self.spec.bounds
        told = [one.overall for one in self._facts.values() if one.overall is not None]
        return {
            "key": self.key,
            "path": str(self.path),
            "judge": run["judge"]["name"],
            "kind": self.spec.kind,
            "model": run["model"]["name"],
            "started": run.get("started"),
            "total": max(total, judged),
            "judged": judged,
            "statuses": dict(self._statuses),
            "passed": self._passed[True],
            "graded": self._passed.total(),
            "mean": low + (high - low) * math.fsum(told) / len(told) if told else None,
            "bounds": [low, high],
            "state": "done" if judged >= total else "judging" if age < LATELY else "stopped",
            "age": round(age),
            "panel": "panel" in run,
            "problem": None,
        }

    def _read_on(self) -> None:
        path = self.path / "verdicts.jsonl"
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return
        with file:
            status = os.fstat(file.fileno())
            inode, place = self._place
            if inode != status.st_ino or status.st_size < place:  # written anew, as to retry what failed
                place = 0
                self._facts, self._statuses, self._passed = {}, Counter(), Counter()
            file.seek(place)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                try:
                    verdict = Verdict.model_validate_json(line)
                except ValueError as error:
                    what = f"a line is no verdict: {str(error).splitlines()[0]}"
                    raise RunError(what, where=str(path), fix="delete it") from None
                place += len(line)
                self._take(verdict)
            self._place = (status.st_ino, place)

    def _take(self, verdict: Verdict) -> None:
        self._statuses[verdict.status] += 1
        if verdict.passed is not None:
            self._passed[verdict.passed] += 1
        self._facts[verdict.id] = facts_of(self.spec, verdict)


def _changed(path: Path) -> float:
    """When the run was last written to."""
    times = [file.stat().st_mtime for name in ("verdicts.jsonl", "run.json") if (file := path / name).exists()]
    return max(times, default=0.0)


class Runs:
    """The runs under some folders; new ones are found as they come."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """Raises RunError for a folder that is not there, or when there is no run at all."""
        for folder in folders:
            if not folder.is_dir():
                what = "this is no folder" if folder.exists() else "there is no such folder"
                raise RunError(what, where=str(folder), fix="give the folder that `-o` named, or one above it")
        self.folders = list(folders)
        self._runs: dict[str, Followed] = {}
        self._broken: dict[str, dict[str, Any]] = {}
        self._busy = threading.Lock()
        self._looked = 0.0
        self.look()
        if not self._runs and not self._broken:
            raise RunError(
                "no run is in this folder, or below it" if len(folders) == 1 else "no run is in these folders",
                where=", ".join(map(str, folders)),
                fix="give the folder that `-o` named, or one above it",
            )

    def look(self) -> None:
        with self._busy:
            if time.monotonic() - self._looked < _FRESH and self._looked:
                return
            self._looked = time.monotonic()
            known = {run.path: key for key, run in self._runs.items() if not run.remade}
            there = list(find_runs(self.folders))
            self._broken = {}
            for path in there:
                if path in known:
                    continue
                try:
                    run = Followed(path)
                    self._runs[run.key] = run
                except LocalJudgeError as error:
                    self._broken[str(path)] = {"key": None, "path": str(path), "problem": str(error)}
            for key, run in list(self._runs.items()):
                if run.path not in there:
                    self._runs.pop(key).close()

    def get(self, key: str) -> Followed | None:
        self.look()
        return self._runs.get(key)

    def all(self) -> list[Followed]:
        self.look()
        return sorted(self._runs.values(), key=lambda run: str(run.path))

    def states(self) -> list[dict[str, Any]]:
        """Each run's `state`, broken ones too."""
        found = [run.state() for run in self.all()]
        return sorted([*found, *self._broken.values()], key=lambda one: one["path"])

    def close(self) -> None:
        for run in self._runs.values():
            run.close()
