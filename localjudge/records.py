"""Rows become records: renaming (`--map`), ids, and what a judge's inputs ask of a row.

Does not know file formats (`rows` does) nor judges.
A row that cannot be judged becomes a `BadRecord` and the reading goes on. Only what spoils the whole file
is a `RecordsError`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, field_validator

from localjudge.errors import did_you_mean, nearest
from localjudge.images import Picture, PictureError, read_pictures
from localjudge.rows import (
    SURROGATE,
    Decoder,
    Source,
    canonical,
    encodable,
    inside,
    name_of,
    not_json,
    not_utf8,
    open_rows,
    parse_json,
    refusal,
    shown,
    up_to_damage,
)

_LONGEST_ID = 512
_ABSENT = object()


class Field(BaseModel):
    """One input of a judge. allow_empty: white space alone, or an empty list or object, will do. Of images, a
    record holds a list or one (`localjudge.images`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    type: Literal["text", "json", "number", "images"] = "text"
    optional: bool = False
    allow_empty: bool = False
    description: str = ""

    @field_validator("name")
    @classmethod
    def _a_template_can_use_it(cls, name: str) -> str:
        if not name.isidentifier():
            raise ValueError(f"'{name}' is not a name: use letters, digits and _, and no digit first")
        return name


@dataclass(frozen=True, slots=True)
class Record:
    """One thing to be judged. fields: the row after renaming, images among them as a list of pictures. where:
    `a.jsonl:12`, `a.parquet row 12`."""

    id: str
    fields: dict[str, Any]
    where: str


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A row that cannot be judged. id: unique among all that is read. problem: everything wrong with it."""

    id: str
    where: str
    problem: str


@dataclass(frozen=True)
class Scan:
    """What a reading found. first_bad: 20 at most. digest: sha256 of ids and contents, bad ones too, and of the
    bytes of pictures. pictured: the first place where there is a picture."""

    total: int
    bad: int
    first_bad: list[BadRecord]
    digest: str
    pictured: str | None = None


def read_records(
    path: Source,
    inputs: Sequence[Field],
    *,
    mapping: Mapping[str, str] | None = None,
    limit: int | None = None,
    repeats: bool = False,
) -> Iterator[Record | BadRecord]:
    """The records of a file in its order; the first `limit` of them, bad ones counted.

    mapping: field -> where a row has it: a name, or a dotted way into nested JSON (`choices.0.text`).
    repeats: rows may share an id, as what several people say of one record does.
    """
    for record, _ in _read(path, inputs, _Renaming(mapping), limit, repeats):
        yield record


def scan_records(
    path: Source,
    inputs: Sequence[Field],
    *,
    mapping: Mapping[str, str] | None = None,
    limit: int | None = None,
) -> Scan:
    """Reads and counts what `read_records` would give. Refuses a mapping whose source no record has."""
    renaming = _Renaming(mapping)
    digest = hashlib.sha256(canonical(renaming.mapping))
    total, bad = 0, 0
    pictured: str | None = None
    first_bad: list[BadRecord] = []
    for record, content in _read(path, inputs, renaming, limit):
        total += 1
        digest.update(b"%s\0%d\0%s" % (record.id.encode(), len(content), content))
        if isinstance(record, BadRecord):
            bad += 1
            if bad <= 20:
                first_bad.append(record)
        elif pictured is None and pictures_of(record, inputs):
            pictured = record.where
    renaming.refuse_unmet(path)
    return Scan(total, bad, first_bad, digest.hexdigest(), pictured)


def pictures_of(record: Record, inputs: Sequence[Field]) -> list[Picture]:
    """All pictures of a record's inputs, in the order of the inputs."""
    names = [field.name for field in inputs if field.type == "images"]
    return [picture for name in names for picture in record.fields.get(name, ())]


def _read(
    path: Source, inputs: Sequence[Field], renaming: _Renaming, limit: int | None, repeats: bool = False
) -> Iterator[tuple[Record | BadRecord, bytes]]:
    """Each record with the bytes that stand for its content."""
    rows, noun, untyped = open_rows(path)
    name = encodable(path.name or path.resolve().name) if isinstance(path, Path) else name_of(path)
    folder = path if isinstance(path, Path) and path.is_dir() else path.parent if isinstance(path, Path) else None
    with_images = any(field.type == "images" for field in inputs)
    number = 0
    with contextlib.closing(_open_places()) as places:
        for number, data, fault, raw in itertools.islice(up_to_damage(path, rows), limit):
            problems = [fault] if fault else []
            id, fields, content = None, data or {}, b""
            if data is not None:
                content = canonical(data)
                if not content:
                    problems.append(not_utf8(raw) or not_json(data))
                fields = renaming.apply(data)
                if with_images and fields is data:
                    fields = dict(data)  # a row in memory keeps its paths
                if "id" in fields or "id" in renaming.mapping:
                    id, problem = _given_id(fields, renaming.mapping)
                    problems += [problem] if problem else []
                elif content:
                    id = f"sha:{hashlib.sha256(content).hexdigest()[:16]}"
                for field in inputs:
                    if problem := _check(field, fields, inputs, renaming.mapping, untyped, folder):
                        problems.append(problem)
            own = id or f"invalid:{name}:{number}"
            first = None if repeats else _claim(places, own, number)
            if first is not None and id is not None:
                problems.append(
                    f"id {shown(id)} was used before, at {noun} {first}: give each record an id of its own"
                    if "id" in fields
                    else f"the same content as {noun} {first}, and no id: drop one, or give each an 'id'"
                )
            while first is not None:
                own = f"{own}#{number}"
                first = _claim(places, own, number)
            where = f"{name}:{number}" if noun == "line" else f"{name} {noun} {number}"
            content = content or (raw or repr(data)).encode("utf-8", "surrogateescape")
            if problems:
                yield BadRecord(own, where, encodable("; ".join(problems))), content
            else:
                record = Record(own, fields, where)
                yield record, b"\0".join((content, *(p.sha256.encode() for p in pictures_of(record, inputs))))
    if number == 0 and limit != 0:
        raise refusal(path, "has no records")


def _open_places() -> sqlite3.Connection:
    """Where each id was met first: on disk, so that a million ids take little more memory than ten."""
    places = sqlite3.connect("", check_same_thread=False)
    places.execute("PRAGMA journal_mode=OFF")
    places.execute("PRAGMA cache_size=-8192")
    places.execute("CREATE TABLE places (id TEXT PRIMARY KEY, number INTEGER) WITHOUT ROWID")
    return places


def _claim(places: sqlite3.Connection, id: str, number: int) -> int | None:
    """Nothing when the id is new, else where it was met first."""
    if places.execute("INSERT OR IGNORE INTO places VALUES (?, ?)", (id, number)).rowcount:
        return None
    return cast(int, places.execute("SELECT number FROM places WHERE id = ?", (id,)).fetchone()[0])


class _Renaming:
    """Takes mapped fields from their sources. unmet: sources no row has had; met: what rows have had."""

    def __init__(self, mapping: Mapping[str, str] | None) -> None:
        self.mapping = dict(mapping or {})
        self.unmet = set(self.mapping.values())
        self.met: set[str] = set()

    def apply(self, row: dict[str, Any]) -> dict[str, Any]:
        if not self.mapping:
            return row
        if self.unmet and len(self.met) < 1000:
            self.met.update(row, *([f"{k}.{k2}" for k2 in v] for k, v in row.items() if isinstance(v, dict)))
        fields = dict(row)
        for target, source in self.mapping.items():
            value = _reach(row, source)
            if value is _ABSENT:
                fields.pop(target, None)  # the row's own field of that name is not the one that was asked for
            else:
                fields[target] = value
                self.unmet.discard(source)
        return fields

    def refuse_unmet(self, path: Source) -> None:
        for target, source in self.mapping.items():
            if source in self.unmet and self.met:
                what = f"--map {target}={source}: no record has '{source}'"
                raise refusal(path, what, did_you_mean(source, self.met))


def _reach(row: dict[str, Any], source: str) -> Any:
    if source in row:
        return row[source]
    value: Any = row
    for step in source.split("."):
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return _ABSENT
    return value


def _given_id(fields: dict[str, Any], mapping: Mapping[str, str]) -> tuple[str | None, str | None]:
    """The id, or what is wrong with it."""
    if "id" not in fields:
        return None, f"the id is missing: there is no '{mapping['id']}' to take it from"
    id = fields["id"]
    if isinstance(id, int) and not isinstance(id, bool):
        id = str(id)
    if id is None or (isinstance(id, str) and not id.strip()):
        return None, f"the id is {'null' if id is None else 'empty'}: give one, or leave ids out of all rows"
    if not isinstance(id, str):
        return None, f"the id is {shown(id)}: use text or a whole number"
    if len(id) > _LONGEST_ID:
        return None, f"the id has {len(id)} characters: use {_LONGEST_ID} at most"
    return (None if SURROGATE.search(id) else id), None


def _check(
    field: Field,
    fields: dict[str, Any],
    inputs: Sequence[Field],
    mapping: Mapping[str, str],
    untyped: bool,
    folder: Path | None,
) -> str | None:
    """What is wrong with one input, if anything. Parses it in place; drops an optional one that is not there.

    untyped: the format (CSV) has nothing but text, so numbers are read out of it. folder: where paths of pictures
    start.
    """
    name, value = field.name, fields.get(field.name)
    blank = not value.strip() if isinstance(value, str) else value in ([], {})
    if blank and isinstance(value, str) and field.type != "text":
        value = None
    if field.optional and (value is None or (blank and not field.allow_empty)):
        fields.pop(name, None)
        return None
    if value is None:
        return _missing(name, mapping.get(name), tuple(fields), tuple(other.name for other in inputs))
    if blank and not field.allow_empty:
        return f"field '{name}' is empty: fill it in, or leave the record out"
    if field.type == "images":
        return _take_pictures(name, value, fields, untyped, folder)
    if field.type == "text":
        return None if isinstance(value, str) else _not_text(name, value, mapping.get(name, name))
    if field.type == "number":
        number = _number(value) if isinstance(value, str) else value
        if isinstance(number, int | float) and not isinstance(number, bool) and (untyped or number is value):
            fields[name] = number
            return None
        how = " without quotes" if isinstance(value, str) and number is not None else ", such as 0.5"
        return f"field '{name}' is {shown(value)}, not a number: write a number{how}"
    if isinstance(value, str):
        parsed, problem = parse_json(Decoder(), value)
        if isinstance(parsed, list | dict):
            value = fields[name] = parsed
            problem = problem or (None if canonical(parsed) else not_json(parsed))
        if problem:
            return f"field '{name}' is text that should hold JSON: {problem}"
    if isinstance(value, list | dict):
        return None
    return f"field '{name}' is {shown(value)}, not a list or an object: write one of these"


def _take_pictures(name: str, value: Any, fields: dict[str, Any], untyped: bool, folder: Path | None) -> str | None:
    """What is wrong with a field of pictures. Reads them in its place."""
    if untyped and isinstance(value, str) and value.lstrip().startswith("["):  # several, in a cell of CSV
        value, problem = parse_json(Decoder(), value)
        if problem:
            return f"field '{name}' should hold a list of pictures: {problem}"
    try:
        fields[name] = read_pictures(value, folder)
    except PictureError as error:
        return f"field '{name}': {error}"
    return None


@functools.lru_cache(maxsize=256)
def _missing(name: str, source: str | None, present: tuple[str, ...], inputs: tuple[str, ...]) -> str:
    """Cached, since a file that lacks a field mostly lacks it in all its rows."""
    if name in present:
        return f"field '{name}' is null or empty: fill it in, or leave the record out"
    if source is not None:
        return f"field '{name}' is missing: there is no '{source}' to take it from"
    close = nearest(name, (key for key in present if key not in inputs))
    if close:
        return f"field '{name}' is missing: if '{close}' is meant, use --map {name}={close}"
    has = ", ".join(present[:20]) + (", ..." if len(present) > 20 else "")
    return f"field '{name}' is missing: the record has {has or 'no fields'}"


def _not_text(name: str, value: Any, source: str) -> str:
    how = "write one string"
    if isinstance(value, bool | int | float):
        how = f'write it in quotes, "{shown(value)}"'
    for key, inner in inside(value):
        if isinstance(inner, str):
            how += f", or reach into it with --map {name}={source}.{key}"
            break
    return f"field '{name}' is {shown(value)}, not text: {how}"


def _number(text: str) -> int | float | None:
    for read in (int, float):
        with contextlib.suppress(ValueError):
            value = read(text)
            return None if "_" in text or not math.isfinite(value) else value
    return None
