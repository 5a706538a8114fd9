"""What a run keeps on disk.

A run directory holds run.json (what made the run), verdicts.jsonl (one verdict a line, only ever appended to),
and the summary and reports made from them. Completions are kept in SQLite: in the user's cache folder, shared by
all runs, or in the run directory alone. A process may die between any two writes: a torn last line is dropped when
the directory is next opened, and its record judged again from its stored completions.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from localjudge.engines.base import Completion
from localjudge.errors import RunError
from localjudge.verdict import Verdict

SYNC_EVERY = 1.0
"""Seconds between forced writes to the disk: what a power cut may cost. A killed process loses nothing."""


def write_atomically(path: Path, text: str) -> None:
    """Write a whole file, or leave the old one as it was."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def differences(old: Mapping[str, Any], new: Mapping[str, Any], at: str = "") -> list[str]:
    """What changed from `old` to `new`, one line a leaf."""
    found = []
    for key in sorted({*old, *new}):
        was, now = old.get(key), new.get(key)
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            found.extend(differences(was, now, f"{at}{key}."))
        elif was != now:
            short = [
                value[:12] + "…" if isinstance(value, str) and len(value) > 40 else value for value in (was, now)
            ]
            found.append(f"{at}{key} was {short[0]!r}, is now {short[1]!r}")
    return found


def read_verdicts(directory: Path) -> Iterator[Verdict]:
    """The verdicts of a run, in the order in which they were reached. A torn last line is passed over."""
    path = directory / "verdicts.jsonl"
    if not path.is_file():
        raise RunError("this folder holds no run", where=str(directory), fix="give the folder that `-o` named")
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield Verdict.model_validate_json(line)
            except ValueError as error:
                raise RunError(
                    f"this line is not a verdict: {str(error).splitlines()[0]}",
                    where=f"{path}:{number}",
                    fix="delete it",
                ) from None


class RunDirectory:
    """A run directory, held by this process alone until closed."""

    def __init__(self, path: Path) -> None:
        """Raises RunError when the folder cannot be written, or another run holds it."""
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(path / ".lock", blocking=False)
            self._lock.acquire()
        except Timeout:
            raise RunError(
                "another run is using this folder", where=str(path), fix="wait for it, or give another -o"
            ) from None
        except OSError as error:
            raise RunError(
                f"the folder cannot be written: {error.strerror}", where=str(path), fix="give another -o"
            ) from None
        self._file: BinaryIO | None = None
        self._synced = 0.0
        self._ids = sqlite3.connect("")
        self._ids.execute("CREATE TABLE done (id TEXT PRIMARY KEY) WITHOUT ROWID")

    @property
    def run_file(self) -> Path:
        return self.path / "run.json"

    @property
    def verdicts_file(self) -> Path:
        return self.path / "verdicts.jsonl"

    def read_run(self) -> dict[str, Any] | None:
        """run.json, or None in a new directory."""
        if not self.run_file.is_file():
            if self.verdicts_file.exists():
                raise RunError("verdicts.jsonl without run.json: what made it is not known", where=str(self.path))
            return None
        try:
            run: dict[str, Any] = json.loads(self.run_file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RunError(f"run.json is broken: {error}", where=str(self.run_file)) from None
        return run

    def write_run(self, run: Mapping[str, Any]) -> None:
        write_atomically(self.run_file, json.dumps(run, ensure_ascii=False, indent=1) + "\n")

    def open(self, *, retry_failed: bool = False) -> int:
        """Get ready to append; how many verdicts are there already. A torn last line is cut off.

        retry_failed: drop the verdicts that are engine_error or incomplete, so that they are judged again.
        """
        if self.verdicts_file.exists():
            with self.verdicts_file.open("rb+") as file:
                whole = 0
                for line in file:
                    if line.endswith(b"\n"):
                        whole += len(line)
                file.truncate(whole)
        if retry_failed and self.verdicts_file.exists():
            kept = self.verdicts_file.with_name(".verdicts.jsonl.tmp")
            with kept.open("w", encoding="utf-8") as file:
                for verdict in read_verdicts(self.path):
                    if verdict.status not in ("engine_error", "incomplete"):
                        file.write(verdict.model_dump_json() + "\n")
                file.flush()
                os.fsync(file.fileno())
            kept.replace(self.verdicts_file)
        count = 0
        if self.verdicts_file.exists():
            for verdict in read_verdicts(self.path):
                count += self._ids.execute("INSERT OR IGNORE INTO done VALUES (?)", (verdict.id,)).rowcount
        self._file = self.verdicts_file.open("ab", buffering=0)
        return count

    def is_done(self, record_id: str) -> bool:
        return self._ids.execute("SELECT 1 FROM done WHERE id = ?", (record_id,)).fetchone() is not None

    def append(self, verdict: Verdict) -> None:
        """Add a verdict; it survives the death of this process as soon as this returns."""
        assert self._file is not None
        self._file.write(verdict.model_dump_json().encode() + b"\n")
        now = time.monotonic()
        if now - self._synced > SYNC_EVERY:
            os.fsync(self._file.fileno())
            self._synced = now

    def close(self) -> None:
        if self._file is not None:
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None
        self._ids.close()
        self._lock.release()


class CompletionCache:
    """Completions by the key of their ask. Several runs may share one at the same time."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=60, isolation_level=None)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS completions (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID"
            )
        except (sqlite3.Error, OSError) as error:
            raise RunError(
                f"the completion cache cannot be used: {error}",
                where=str(path),
                fix="delete it, or run with --no-cache",
            ) from None

    def get(self, key: str) -> Completion | None:
        row = self._db.execute("SELECT value FROM completions WHERE key = ?", (key,)).fetchone()
        return Completion(**json.loads(row[0])) if row else None

    def put(self, key: str, completion: Completion) -> None:
        value = {name: getattr(completion, name) for name in Completion.__slots__}
        self._db.execute(
            "INSERT OR REPLACE INTO completions VALUES (?, ?)", (key, json.dumps(value, ensure_ascii=False))
        )

    def close(self) -> None:
        self._db.close()
