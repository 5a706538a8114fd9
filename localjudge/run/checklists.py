"""Where checklists are kept: each written once for its task, and found again by every response to it.

One JSON file a list, named after a hash of all that made it: the task (with its images), the reference answer, the
model, what the judge asks for, and the settings. What a person has locked lies in `locked/`, named after the task
alone, is never written anew, and comes before all others. Knows nothing of how lists are written.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import yaml
from filelock import FileLock
from pydantic import ValidationError
from yaml.reader import Reader

from localjudge import yamlfile
from localjudge.engines.base import AskFailed
from localjudge.errors import JudgeError, RecordsError, RunError, did_you_mean
from localjudge.judge.checklist import Task, brought, fitting, task_inputs, task_of
from localjudge.judge.items import Checklist, Kept, first_fault, hash_of, rubric_of, scoring
from localjudge.judge.loading import load_judge
from localjudge.judge.spec import JudgeSpec
from localjudge.paths import cache_dir
from localjudge.records import BadRecord, Record, read_records
from localjudge.report.markdown import fold
from localjudge.run.store import read_verdicts, write_atomically, writing

LEAST_KEY = 6
"""Characters of a key that will do."""

_LOCKED = "locked"


def shared_folder() -> Path:
    return cache_dir() / "checklists"


def read_kept(path: Path) -> Kept | None:
    """None when there is no such file. Raises RunError for one that is broken."""
    try:
        return Kept.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        fix = "mend it, or delete it: it is then written anew"
        raise RunError(f"this checklist is broken: {first_fault(error)}", where=str(path), fix=fix) from None
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"cannot be read: {error}", where=str(path)) from None


def _write(path: Path, kept: Kept) -> None:
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(kept.model_dump(mode="json"), ensure_ascii=False, indent=1) + "\n")


def _locked_file(folder: Path, task_key: str) -> Path:
    return folder / _LOCKED / f"{task_key}.json"


class Checklists:
    """The checklists of one judge and one model; a `Shelf`.

    made_with: what else decides a list that this model writes. folder: where they are shared, None for nowhere but
    in memory. copies: the run's own, so that it explains itself and goes on with the lists that it began with.
    given: the one that every record is to be graded by. What people have locked counts, shared or not.
    """

    def __init__(
        self,
        spec: JudgeSpec,
        model_name: str,
        made_with: Mapping[str, Any],
        folder: Path | None,
        copies: Path | None = None,
        given: Kept | Checklist | None = None,
    ) -> None:
        self._spec, self._model_name, self._given = spec, model_name, given
        self._made_by = [spec.writing_digest, dict(made_with)]
        self._folder, self._copies = folder, copies
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._memory: dict[str, Kept] = {}

    def key(self, task: Task) -> str:
        return hash_of([task.key, task.reference, *self._made_by])

    async def of(self, task: Task, write: Callable[[], Awaitable[Kept]]) -> Kept:
        """As `Shelf` has it. Responses to one task wait for the first of them, whose asks write the list."""
        if self._given is not None:
            try:
                return fitting(self._given, task)
            except ValueError as error:
                raise AskFailed("invalid_record", f"the given checklist {error}") from None
        key = self.key(task)
        # A lock lives as long as somebody waits for it: a million tasks leave none behind.
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            copy = self._copies / f"{key}.json" if self._copies else None
            kept = read_kept(copy) if copy else self._memory.get(key)
            if kept is not None:
                return kept
            kept = self._found(task, key) or self._put(key, await write())
            if copy:
                _write(copy, kept)
            elif self._folder is None:
                self._memory[key] = kept
            return kept

    def _found(self, task: Task, key: str) -> Kept | None:
        locked = read_kept(_locked_file(self._folder or shared_folder(), task.key))
        return locked or (read_kept(self._folder / f"{key}.json") if self._folder else None)

    def _put(self, key: str, kept: Kept) -> Kept:
        kept = kept.model_copy(
            update={
                "key": key,
                "written_by": self._model_name,
                "judge": self._spec.name,
                "digest": self._spec.writing_digest,
            }
        )
        if self._folder is None:
            return kept
        path = self._folder / f"{key}.json"
        with holding(self._folder):
            # Another run may have been quicker: then both go by its list.
            there = read_kept(_locked_file(self._folder, kept.task_key)) or read_kept(path)
            if there is None:
                _write(path, kept)
        return there or kept

    def named(self, key: str) -> Kept:
        return find_kept(key, self._folder or shared_folder())[1]


def holding(folder: Path) -> FileLock:
    """What changes the lists of a folder holds this meanwhile."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return FileLock(folder / ".lock")


def all_kept(folder: Path | None = None) -> Iterable[tuple[Path, Kept]]:
    """Every checklist that is kept, locked ones first. Raises RunError for a broken one."""
    folder = folder or shared_folder()
    for path in [*sorted(folder.glob(f"{_LOCKED}/*.json")), *sorted(folder.glob("*.json"))]:
        if kept := read_kept(path):
            yield path, kept


def find_kept(key: str, folder: Path | None = None) -> tuple[Path, Kept]:
    """The checklist whose key, or its task's, is `key` or begins so; a locked one comes first. Raises RunError."""
    folder = folder or shared_folder()
    if len(key) < LEAST_KEY or not all(c in "0123456789abcdef" for c in key):
        fix = f"give {LEAST_KEY} or more of its hexadecimal digits, as `localjudge checklist show` prints them"
        raise RunError(f"'{key}' is no checklist's key", fix=fix)
    found: dict[str, tuple[Path, Kept]] = {}
    for path, kept in all_kept(folder):
        name = kept.key or path.stem
        if name.startswith(key) or (kept.locked and kept.task_key.startswith(key)):
            found.setdefault(name, (path, kept))
    if not found:
        known = [kept.key[: len(key)] for _, kept in all_kept(folder) if kept.key]
        raise RunError(f"no checklist has the key '{key}'", where=str(folder), fix=did_you_mean(key, known[:10]))
    if len(found) > 1:
        fix = f"give more of it: {', '.join(name[: len(key) + 6] for name in sorted(found)[:5])}"
        raise RunError(f"{len(found)} checklists have keys that begin with '{key}'", fix=fix)
    return next(iter(found.values()))


def read_file(path: Path) -> Kept | Checklist:
    """A checklist file: JSON or YAML, as it is kept or as a plain rubric. Raises RunError, with the line."""
    document = yamlfile.load(path, RunError)
    if not isinstance(document.data, dict) or "task_key" not in document.data:
        return yamlfile.validate(Checklist, document, RunError)
    return yamlfile.validate(Kept, document, RunError)


def refuse_other_tasks(
    given: Kept | Checklist, where: str, spec: JudgeSpec, records: Iterable[Record | BadRecord]
) -> None:
    """Raises RunError when a checklist is given for records of another task than its own."""
    if not isinstance(given, Kept):
        return
    for record in records:
        if isinstance(record, Record):
            try:
                fitting(given, task_of(spec, record.fields))
            except ValueError as error:
                fix = f"the first record of another task is at {record.where}; leave --checklist out"
                raise RunError(f"this checklist {error}", where=where, fix=fix) from None


# A person's part


def lock(key: str, folder: Path | None = None) -> Kept:
    """Lock a checklist: it is used for its task whatever the model is, and never written anew. Raises RunError when
    another one is locked for its task."""
    folder = folder or shared_folder()
    _, kept = find_kept(key, folder)
    return put_locked(kept, folder)


def put_locked(kept: Kept, folder: Path | None = None, force: bool = False) -> Kept:
    """Keep a checklist as its task's locked one. force: in another's place. Raises RunError as `lock` does."""
    folder = folder or shared_folder()
    key = kept.key or hash_of([kept.task_key, kept.rubric()])
    kept = kept.model_copy(update={"locked": True, "contested": False, "key": key})
    with holding(folder):
        path = _locked_file(folder, kept.task_key)
        there = read_kept(path)
        if there is not None and not force and there.rubric() != kept.rubric():
            fix = f"unlock it first: localjudge checklist lock --undo {(there.key or path.stem)[:12]}"
            raise RunError(f"another checklist is locked for the task '{there.about}'", where=str(path), fix=fix)
        _write(path, kept)
    return kept


def unlock(key: str, folder: Path | None = None) -> Kept:
    """Raises RunError when it is not locked."""
    folder = folder or shared_folder()
    path, kept = find_kept(key, folder)
    if not kept.locked:
        raise RunError("this checklist is not locked", where=str(path))
    kept = kept.model_copy(update={"locked": False})
    with holding(folder):
        _write(folder / f"{kept.key}.json", kept)
        path.unlink(missing_ok=True)
    return kept


def as_yaml(kept: Kept) -> str:
    """A checklist as people read and edit it."""
    made = f"written by {kept.written_by}" if kept.written_by else "brought along"
    marks = [mark for mark in ("locked", "edited", "contested") if getattr(kept, mark)]
    head = [
        f"# {(kept.key or kept.task_key)[:12]}: {made}" + (f" ({', '.join(marks)})" if marks else ""),
        *(f"# {line}" for name, text in kept.task.items() for line in _lines(name, text)),
        *(f"# dropped: {one.criterion} ({one.why})" for one in kept.dropped),
    ]
    body = yaml.safe_dump(kept.rubric(), allow_unicode=True, sort_keys=False, width=100)
    # Line ends would end the comment, and YAML has no controls even there.
    return "\n".join([*(fold(Reader.NON_PRINTABLE.sub(" ", line)) for line in head), body])


def _lines(name: str, text: Any) -> list[str]:
    told = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)
    return [f"{name}: {told if len(told) <= 300 else told[:299] + '…'}"]


def edit(key: str, folder: Path | None = None, editor: str | None = None) -> Kept | None:
    """Open a checklist in an editor and keep what comes back; None when nothing changed.

    editor: by default what VISUAL or EDITOR names. Raises RunError: a locked one, an editor that fails, and, with
    its line, what is no checklist, which then stays where the error says.
    """
    folder = folder or shared_folder()
    path, kept = find_kept(key, folder)
    if kept.locked:
        fix = f"unlock it first: localjudge checklist lock --undo {key}"
        raise RunError("this checklist is locked", where=str(path), fix=fix)
    command = editor or os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    handle, name = tempfile.mkstemp(prefix=f"checklist-{key[:12]}-", suffix=".yaml")
    draft = Path(name)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(as_yaml(kept))
    try:
        subprocess.run([*shlex.split(command), name], check=True)
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        draft.unlink(missing_ok=True)
        raise RunError(
            f"the editor failed, and nothing is changed: {error}", where=command, fix="set EDITOR"
        ) from None
    changed = yamlfile.validate(Checklist, yamlfile.load(draft, RunError), RunError)
    draft.unlink()
    if changed.rubric() == kept.rubric():
        return None
    new = kept.model_copy(
        update={
            "essential": changed.essential,
            "additional": changed.additional,
            "edited": True,
            "contested": False,
        }
    )
    with holding(folder):
        now = read_kept(path)
        if now is None or now.rubric() != kept.rubric():
            raise RunError("it was changed by somebody else meanwhile", where=str(path), fix="edit it again")
        _write(path, new)
    return new


def kept_for(spec: JudgeSpec, path: Path, mapping: Mapping[str, str], folder: Path | None = None) -> list[Kept]:
    """The checklists that are kept for the tasks of a file of records, in its order. Raises RecordsError."""
    of_task: dict[str, list[Kept]] = {}
    met = set()
    for _, kept in all_kept(folder):
        if kept.key not in met:
            met.add(kept.key)
            of_task.setdefault(kept.task_key, []).append(kept)
    found = []
    for record in read_records(path, task_inputs(spec), mapping=mapping):
        if isinstance(record, Record):
            found += of_task.pop(task_of(spec, record.fields).key, [])
    return found


def import_checklists(
    spec: JudgeSpec,
    path: Path,
    field: str = "checklist",
    *,
    mapping: Mapping[str, str] | None = None,
    force: bool = False,
    folder: Path | None = None,
) -> list[Kept]:
    """Lock the checklists that records hold in a field, each for its record's task. Raises RecordsError with the
    record that has none, or a broken one, before any is kept."""
    inputs = task_inputs(spec)
    found: dict[str, tuple[Kept, str]] = {}
    for record in read_records(path, inputs, mapping=mapping or {}):
        if isinstance(record, BadRecord):
            raise RecordsError(record.problem, where=record.where)
        task = task_of(spec, {item.name: record.fields.get(item.name) for item in inputs})
        if field not in record.fields:
            raise RecordsError(f"it has no field '{field}'", where=record.where, fix="name it with --field")
        try:
            kept = brought(record.fields[field], task)
        except ValueError as error:
            raise RecordsError(f"field '{field}' {error}", where=record.where) from None
        other = found.get(task.key)
        if other and other[0].rubric() != kept.rubric():
            what = f"another checklist than {other[1]} has, for the same task"
            raise RecordsError(what, where=record.where, fix="keep one of them")
        found[task.key] = (kept, record.where)
    return [put_locked(kept, folder, force) for kept, _ in found.values()]


def checklists_of(what: str, judge: str, mapping: Mapping[str, str]) -> list[Kept]:
    """The checklists that a key, a run's folder or a file of records speaks of. Raises LocalJudgeError."""
    path = Path(what)
    if (path / "run.json").is_file():
        found = [kept for file in sorted(path.glob("checklists/*.json")) if (kept := read_kept(file))]
        if not found:
            raise RunError("this run keeps no checklists", where=what)
        return found
    if path.exists():
        spec = load_judge(judge)
        if not spec.checklist:
            raise JudgeError(f"'{judge}' is a {spec.kind} judge", where="--judge", fix="name a checklist judge")
        found = kept_for(spec, path, mapping)
        if not found:
            fix = f"write them: localjudge checklist write {judge} {what} -m MODEL"
            raise RunError("no checklist is kept for these tasks", where=what, fix=fix)
        return found
    return [find_kept(what)[1]]


def exported(what: str) -> Iterator[dict[str, Any]]:
    """Plain JSON: of a key its rubric; of a run's folder a row a judged record: id, rubric, scoring."""
    path = Path(what)
    if not (path / "run.json").is_file():
        yield find_kept(what)[1].rubric()
        return
    for verdict in read_verdicts(path):
        if verdict.items:
            yield {"id": verdict.id, "rubric": rubric_of(verdict.items), "scoring": scoring(verdict.items)}
