"""What a run keeps on disk.

A run directory holds run.json (what made the run), verdicts.jsonl (one verdict a line, only ever appended to),
and the summary and reports made from them. Completions are kept in SQLite: in the user's cache folder, shared by
all runs, or in the run directory alone. A process may die between any two writes: a torn last line is dropped when
the directory is next opened, and its record judged again from its stored completions.
"""

from __future__ import annotations

import contextlib
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

_MAY_MEND = ("engine_error", "incomplete")


def may_mend(verdict: Verdict) -> bool:
    """Whether another try may do better: it failed, or a member of its panel did, for want of an answer."""
    return any(each.status in _MAY_MEND for each in (verdict, *(verdict.members or ())))


_RUN_KEYS = {"judge", "model", "records", "settings", "engine", "spec", "sessions"}


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the disk refuses, as a RunError."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise RunError(
            f"cannot be written: {getattr(error, 'strerror', None) or error}",
            where=str(path),
            fix="make room for it; what is judged is kept, and the same command goes on",
        ) from error


def write_atomically(path: Path, text: str) -> None:
    """Write a whole file, or leave the old one as it was. Raises RunError."""
    temporary = path.with_name(f".{path.name}.tmp")
    with writing(path):
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)


def _apart(was: str, now: str) -> tuple[str, str]:
    """Hashes and paths, only as far as they tell the two apart."""
    same = next((i for i, (a, b) in enumerate(zip(was, now, strict=False)) if a != b), min(len(was), len(now)))

    def cut(text: str) -> str:
        return text if len(text) <= max(40, same + 12) else f"{text[: same + 12]}…"

    return cut(was), cut(now)


def differences(old: Mapping[str, Any], new: Mapping[str, Any], at: str = "") -> list[str]:
    """What changed from `old` to `new`, one line a leaf."""
    found = []
    for key in sorted({*old, *new}):
        was, now = old.get(key), new.get(key)
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            found.extend(differences(was, now, f"{at}{key}."))
        elif was != now:
            told = _apart(was, now) if isinstance(was, str) and isinstance(now, str) else (was, now)
            found.append(f"{at}{key} was {told[0]!r}, is now {told[1]!r}")
    return found


def claim(file: Path, made_by: Mapping[str, Any], what: str, fix: str) -> None:
    """Write to `file`, in its folder, what decides all that the folder holds, as JSON; `made_by` has JSON values
    only. Raises RunError, naming `what` it holds, when it says otherwise already."""
    if file.is_file():
        try:
            changed = differences(json.loads(file.read_text(encoding="utf-8")), made_by)
        except ValueError:
            changed = [f"{file.name} is broken"]
        if changed:
            told = "\n  ".join((f"this folder holds {what}:", *changed))
            raise RunError(told, where=str(file.parent), fix=fix)
    write_atomically(file, json.dumps(made_by, ensure_ascii=False, indent=1) + "\n")


def read_verdicts(directory: Path) -> Iterator[Verdict]:
    """The verdicts of a run, in the order in which they were reached. A torn last line is passed over."""
    path = directory / "verdicts.jsonl"
    if not path.is_file():
        if (directory / "run.json").is_file():
            return
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


class VerdictsById:
    """A run's verdicts, found by their records' ids; their places alone are held, on disk when they are many."""

    def __init__(self, directory: Path) -> None:
        """Raises RunError when the folder holds no run."""
        for _ in read_verdicts(directory):  # raises for what is no run, or has a broken line
            pass
        path = directory / "verdicts.jsonl"
        self._places = sqlite3.connect("")
        self._places.execute("CREATE TABLE at (id TEXT PRIMARY KEY, start INT) WITHOUT ROWID")
        self._file: BinaryIO | None = path.open("rb") if path.is_file() else None
        start = 0
        for line in self._file or ():
            if line.endswith(b"\n"):
                self._places.execute("INSERT OR IGNORE INTO at VALUES (?, ?)", (json.loads(line)["id"], start))
            start += len(line)

    def __len__(self) -> int:
        count: int = self._places.execute("SELECT count(*) FROM at").fetchone()[0]
        return count

    def ids(self) -> list[str]:
        return [record_id for (record_id,) in self._places.execute("SELECT id FROM at")]

    def get(self, record_id: str) -> Verdict | None:
        row = self._places.execute("SELECT start FROM at WHERE id = ?", (record_id,)).fetchone()
        if row is None or self._file is None:
            return None
        self._file.seek(row[0])
        return Verdict.model_validate_json(self._file.readline())

    def close(self) -> None:
        self._places.close()
        if self._file is not None:
            self._file.close()


def hold(path: Path, what: str = "run") -> FileLock:
    """Make a folder, and keep it for this process alone until the lock is released. Raises RunError when it cannot
    be written, or another `what` has it."""
    lock = FileLock(path / ".lock", blocking=False)
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise RunError(
            f"another {what} is using this folder", where=str(path), fix="wait for it, or give another -o"
        ) from None
    except OSError as error:
        raise RunError(
            f"the folder cannot be written: {error.strerror or error}", where=str(path), fix="give another -o"
        ) from None
    return lock


class RunDirectory:
    """A run directory, held by this process alone until closed."""

    def __init__(self, path: Path) -> None:
        """Raises RunError when the folder cannot be written, or another run holds it."""
        self.path = path
        self._lock = hold(path)
        self._file: BinaryIO | None = None
        self._size = 0
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
                raise RunError(
                    "verdicts.jsonl without run.json: what made it is not known",
                    where=str(self.path),
                    fix="give another -o, or move it away",
                )
            return None
        try:
            run: dict[str, Any] = json.loads(self.run_file.read_text(encoding="utf-8"))
            whole = isinstance(run, dict) and run.keys() >= _RUN_KEYS
            if not whole or not all(session.keys() >= {"judged", "seconds"} for session in run["sessions"]):
                raise ValueError("it is not what a run writes")
        except (ValueError, TypeError, AttributeError) as error:
            raise RunError(
                f"run.json is broken: {error}", where=str(self.run_file), fix="give another -o, or restore it"
            ) from None
        return run

    def write_run(self, run: Mapping[str, Any]) -> None:
        write_atomically(self.run_file, json.dumps(run, ensure_ascii=False, indent=1) + "\n")

    def read_done(self, *, retry_failed: bool = False) -> int:
        """How many records have a verdict, each of which `is_done` then knows. Changes nothing.

        retry_failed: as if those that are engine_error or incomplete had none.
        """
        count = 0
        for verdict in read_verdicts(self.path):
            if not (retry_failed and may_mend(verdict)):
                count += self._ids.execute("INSERT OR IGNORE INTO done VALUES (?)", (verdict.id,)).rowcount
        return count

    def open(self, *, retry_failed: bool = False) -> None:
        """Get ready to append: cut a torn last line off and, to retry them, drop the verdicts that failed."""
        with writing(self.verdicts_file):
            if retry_failed:
                kept = self.verdicts_file.with_name(".verdicts.jsonl.tmp")
                with kept.open("w", encoding="utf-8") as file:
                    for verdict in read_verdicts(self.path):
                        if not may_mend(verdict):
                            file.write(verdict.model_dump_json() + "\n")
                    file.flush()
                    os.fsync(file.fileno())
                kept.replace(self.verdicts_file)
            elif self.verdicts_file.exists():
                with self.verdicts_file.open("rb+") as old:
                    old.truncate(sum(len(line) for line in old if line.endswith(b"\n")))
            self._file = self.verdicts_file.open("ab", buffering=0)
            self._size = self._file.tell()

    def is_done(self, record_id: str) -> bool:
        return self._ids.execute("SELECT 1 FROM done WHERE id = ?", (record_id,)).fetchone() is not None

    def append(self, verdict: Verdict) -> None:
        """Add a verdict; it survives the death of this process as soon as this returns."""
        assert self._file is not None
        line = verdict.model_dump_json().encode() + b"\n"
        with writing(self.verdicts_file):
            try:
                written = 0
                while written < len(line):  # a disk that fills up takes a part, and says so only the next time
                    written += self._file.write(line[written:])
            except OSError:
                self._file.truncate(self._size)  # another worker's verdict may come yet: not onto half a line
                raise
            self._size += len(line)
            now = time.monotonic()
            if now - self._synced > SYNC_EVERY:
                os.fsync(self._file.fileno())
                self._synced = now

    def close(self) -> None:
        try:
            if self._file is not None:
                with self._file, writing(self.verdicts_file):
                    os.fsync(self._file.fileno())
        finally:
            self._file = None
            self._ids.close()
            self._lock.release()


class CompletionCache:
    """Completions by the key of their ask. Several runs may share one at the same time. Raises RunError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._usable():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=60, isolation_level=None)
            # SQLite waits for locks, but not for this one: of two runs that make the cache at once, one would fail.
            with FileLock(f"{path}.lock"):
                self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            # With rowids: WITHOUT them a row lies where its hash puts it, and each insert shuffles whole answers.
            self._db.execute("CREATE TABLE IF NOT EXISTS completions (key TEXT PRIMARY KEY, value TEXT)")

    @contextlib.contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise RunError(
                f"the completion cache cannot be used: {error}",
                where=str(self._path),
                fix="make room for it, or delete it; --no-cache does without",
            ) from error

    def get(self, key: str) -> Completion | None:
        with self._usable():
            row = self._db.execute("SELECT value FROM completions WHERE key = ?", (key,)).fetchone()
        try:
            return Completion(**json.loads(row[0])) if row else None
        except (ValueError, TypeError):  # of another version of localjudge
            return None

    def put(self, key: str, completion: Completion) -> None:
        value = json.dumps({name: getattr(completion, name) for name in Completion.__slots__}, ensure_ascii=False)
        with self._usable():
            self._db.execute("INSERT OR REPLACE INTO completions VALUES (?, ?)", (key, value))

    def close(self) -> None:
        self._db.close()
