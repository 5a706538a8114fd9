"""Files and Hugging Face datasets on disk become records, one at a time and in constant memory.

Knows the formats, renaming (`--map`), ids, and what a judge's inputs ask of a row; does not know judges.
A row that cannot be judged becomes a `BadRecord` and the reading goes on. Only what spoils the whole file
is a `RecordsError`.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import gzip
import hashlib
import io
import itertools
import json
import math
import re
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, TextIO, cast

from pydantic import BaseModel, ConfigDict, field_validator

from localjudge.errors import RecordsError, did_you_mean, nearest

_KNOWN = ".jsonl, .ndjson, .json, .csv, .tsv (each also with .gz), .parquet, a folder made by save_to_disk"
_CHUNK = 1 << 16  # characters of a JSON array read at a time
_BATCH = 64  # rows of a table turned into Python objects at a time: few, as each may hold images
_LONGEST_CELL = 1 << 27  # characters in CSV; what has more is a quote left open
_LONGEST_ID = 512
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")
_SPACE = re.compile(r"[ \t\r\n]*")
_SURROGATE = re.compile("[\ud800-\udfff]")
_ABSENT = object()


class Field(BaseModel):
    """One input of a judge. allow_empty: white space alone, or an empty list or object, will do."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    type: Literal["text", "json", "number"] = "text"
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
    """One thing to be judged. fields: the row after renaming. where: `a.jsonl:12`, `a.parquet row 12`."""

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
    """What a reading found. first_bad: 20 at most. digest: sha256 of ids and contents, bad ones too."""

    total: int
    bad: int
    first_bad: list[BadRecord]
    digest: str


def read_records(
    path: Path, inputs: Sequence[Field], *, mapping: Mapping[str, str] | None = None, limit: int | None = None
) -> Iterator[Record | BadRecord]:
    """The records of a file in its order; the first `limit` of them, bad ones counted.

    mapping: field -> where a row has it: a name, or a dotted way into nested JSON (`choices.0.text`).
    """
    for record, _ in _read(path, inputs, _Renaming(mapping), limit):
        yield record


def scan_records(
    path: Path, inputs: Sequence[Field], *, mapping: Mapping[str, str] | None = None, limit: int | None = None
) -> Scan:
    """Reads and counts what `read_records` would give. Refuses a mapping whose source no record has."""
    renaming = _Renaming(mapping)
    digest = hashlib.sha256(_canonical(renaming.mapping))
    total, bad = 0, 0
    first_bad: list[BadRecord] = []
    for record, content in _read(path, inputs, renaming, limit):
        total += 1
        digest.update(b"%s\0%d\0%s" % (record.id.encode(), len(content), content))
        if isinstance(record, BadRecord):
            bad += 1
            if bad <= 20:
                first_bad.append(record)
    renaming.refuse_unmet(path)
    return Scan(total, bad, first_bad, digest.hexdigest())


def _read(
    path: Path, inputs: Sequence[Field], renaming: _Renaming, limit: int | None
) -> Iterator[tuple[Record | BadRecord, bytes]]:
    """Each record with the bytes that stand for its content."""
    rows, noun, untyped = _source(path)
    name = _encodable(path.resolve().name)
    number = 0
    with contextlib.closing(_open_places()) as places:
        for number, data, problem, raw in itertools.islice(_up_to_damage(path, rows), limit):
            problems, id, fields, content = [problem], None, data or {}, b""
            if data is not None:
                content = _canonical(data)
                if not content:
                    problems.append(_not_utf8(raw) or _not_json(data))
                fields = renaming.apply(data)
                if "id" in fields or "id" in renaming.mapping:
                    id, complaint = _given_id(fields, renaming.mapping)
                    problems.append(complaint)
                elif content:
                    id = f"sha:{hashlib.sha256(content).hexdigest()[:16]}"
                problems += [_check(field, fields, inputs, renaming.mapping, untyped) for field in inputs]
            own = id or f"invalid:{name}:{number}"
            first = _claim(places, own, number)
            if first is not None and id is not None:
                problems.append(
                    f"id {_shown(id)} was used before, at {noun} {first}: give each record an id of its own"
                    if "id" in fields
                    else f"the same content as {noun} {first}, and no id: drop one, or give each an 'id'"
                )
            while first is not None:
                own = f"{own}#{number}"
                first = _claim(places, own, number)
            where = f"{name}:{number}" if noun == "line" else f"{name} {noun} {number}"
            wrong = "; ".join(filter(None, problems))
            record = BadRecord(own, where, _encodable(wrong)) if wrong else Record(own, fields, where)
            yield record, content or (raw or repr(data)).encode("utf-8", "surrogateescape")
    if number == 0 and limit != 0:
        raise _refusal(path, "has no records")


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

    def refuse_unmet(self, path: Path) -> None:
        for target, source in self.mapping.items():
            if source in self.unmet and self.met:
                what = f"--map {target}={source}: no record has '{source}'"
                raise _refusal(path, what, did_you_mean(source, self.met))


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
        return None, f"the id is {_shown(id)}: use text or a whole number"
    if len(id) > _LONGEST_ID:
        return None, f"the id has {len(id)} characters: use {_LONGEST_ID} at most"
    return (None if _SURROGATE.search(id) else id), None


def _check(
    field: Field, fields: dict[str, Any], inputs: Sequence[Field], mapping: Mapping[str, str], untyped: bool
) -> str | None:
    """What is wrong with one input, if anything. Parses it in place; drops an optional one that is not there.

    untyped: the format (CSV) has nothing but text, so numbers are read out of it.
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
    if field.type == "text":
        return None if isinstance(value, str) else _not_text(name, value, mapping.get(name, name))
    if field.type == "number":
        number = _number(value) if isinstance(value, str) else value
        if isinstance(number, int | float) and not isinstance(number, bool) and (untyped or number is value):
            fields[name] = number
            return None
        how = " without quotes" if isinstance(value, str) and number is not None else ", such as 0.5"
        return f"field '{name}' is {_shown(value)}, not a number: write a number{how}"
    if isinstance(value, str):
        parsed, problem = _parse(_Decoder(), value)
        if isinstance(parsed, list | dict):
            value = fields[name] = parsed
            problem = problem or (None if _canonical(parsed) else _not_json(parsed))
        if problem:
            return f"field '{name}' is text that should hold JSON: {problem}"
    if isinstance(value, list | dict):
        return None
    return f"field '{name}' is {_shown(value)}, not a list or an object: write one of these"


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
        how = f'write it in quotes, "{_shown(value)}"'
    for key, inner in _inside(value):
        if isinstance(inner, str):
            how += f", or reach into it with --map {name}={source}.{key}"
            break
    return f"field '{name}' is {_shown(value)}, not text: {how}"


def _number(text: str) -> int | float | None:
    for read in (int, float):
        with contextlib.suppress(ValueError):
            value = read(text)
            return None if "_" in text or not math.isfinite(value) else value
    return None


class _Row(NamedTuple):
    """number: its first line, or its place among rows or items, from 1. raw: its text, if there is any."""

    number: int
    data: dict[str, Any] | None
    problem: str | None = None
    raw: str = ""


def _source(path: Path) -> tuple[Iterator[_Row], str, bool]:
    """The rows, what their numbers count, and whether the format has nothing but text."""
    if path.is_dir():
        return _dataset(path), "row", False
    if not path.exists():
        near = nearest(path.name, (file.name for file in path.parent.glob("*")))
        raise _refusal(path, "there is no such file", near and f"did you mean '{path.parent / near}'?")
    kind = path.suffix.lower()
    if kind == ".parquet":
        _start(path)
        return _parquet(path), "row", False
    if kind == ".gz":
        kind = Path(path.stem).suffix.lower()
    if kind in (".jsonl", ".ndjson"):
        _text_start(path)
        return _json_lines(path), "line", False
    if kind == ".json":
        if _text_start(path).startswith("["):
            return _json_array(path), "item", False
        return _lines_in_json(path), "line", False
    if kind in (".csv", ".tsv"):
        _text_start(path)
        return _csv_rows(path, "," if kind == ".csv" else "\t"), "line", True
    raise _refusal(path, f"'{path.suffix}' is not a known kind of file", f"known: {_KNOWN}")


def _start(path: Path) -> bytes:
    try:
        with _open(path) as file:
            start = file.read(4096)
    except (OSError, EOFError, zlib.error) as error:
        raise _refusal(path, f"cannot be read: {error}") from error
    if start.startswith(b"version https://git-lfs"):
        raise _refusal(path, "is a Git LFS pointer, not the file itself", "fetch the file with: git lfs pull")
    return start


def _text_start(path: Path) -> str:
    """The first characters that are not white space."""
    start = _start(path)
    if start[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in start:
        raise _refusal(
            path, "is UTF-16 or binary, not UTF-8", "convert it: iconv -f UTF-16 -t UTF-8 OLD > NEW"
        )
    return start.decode("utf-8-sig", "replace").lstrip()


def _open(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb"))


def _open_text(path: Path, newline: str) -> TextIO:
    return io.TextIOWrapper(_open(path), encoding="utf-8-sig", errors="surrogateescape", newline=newline)


def _up_to_damage(path: Path, rows: Iterator[_Row]) -> Iterator[_Row]:
    """A file cut off or corrupt part-way still gives what comes before, then one row that says so."""
    number = 0
    try:
        for row in rows:
            number = row.number
            yield row
    except (OSError, EOFError, ValueError, NotImplementedError, csv.Error, zlib.error) as error:
        if number == 0:
            raise _refusal(path, f"cannot be read: {error}") from error
        yield _Row(number + 1, None, f"the file is damaged: {error}; nothing after this point could be read")


class _Decoder(json.JSONDecoder):
    """Python's own, told to notice a key that occurs twice in one object.

    ijson is not used for arrays: it makes '?' of a lone surrogate and keeps the last of two keys without a
    word, and cannot go on after a NaN or a large integer.
    """

    twice: str | None = None

    def __init__(self) -> None:
        super().__init__(object_pairs_hook=self._object)

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            keys = [key for key, _ in pairs]
            self.twice = f"key {_shown(next(k for k in keys if keys.count(k) > 1))} occurs twice: keep one"
        return made

    def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
        self.twice = None
        return super().raw_decode(s, idx)


def _parse(decoder: _Decoder, text: str) -> tuple[Any, str | None]:
    """The value, and what is wrong with it."""
    try:
        return decoder.decode(text), decoder.twice
    except (ValueError, RecursionError) as error:
        return None, _broken(error)


def _broken(error: Exception, line: int = 0, column: int = 0) -> str:
    """line, column: how much of the file lies before the decoded text, where that is not a line by itself."""
    if isinstance(error, RecursionError):
        return "nested too deeply: flatten it"
    if not isinstance(error, json.JSONDecodeError):
        return "a number has too many digits: write it as text"
    place = f"column {error.colno + (column if error.lineno == 1 else 0)}"
    if line or error.lineno > 1:
        place = f"line {line + error.lineno} {place}"
    what = error.msg.replace("Expecting", "expected").removesuffix(" at").removesuffix(" starting")
    return f"broken JSON at {place}: {what[0].lower()}{what[1:]}"


def _object_row(number: int, value: Any, problem: str | None, raw: str) -> _Row:
    if isinstance(value, dict):
        return _Row(number, value, problem, raw)
    return _Row(
        number,
        None,
        _not_utf8(raw) or problem or f"{_shown(value)} is not an object: write one object a record",
        raw,
    )


def _json_lines(path: Path) -> Iterator[_Row]:
    decoder = _Decoder()
    with _open_text(path, "\n") as file:
        for number, line in enumerate(file, 1):
            if not line.isspace():
                yield _object_row(number, *_parse(decoder, line.rstrip()), line)


def _lines_in_json(path: Path) -> Iterator[_Row]:
    """JSON lines that are called .json, but not one object with the records somewhere inside it."""
    rows = _json_lines(path)
    first = list(itertools.islice(rows, 2))
    if len(first) == 1 and (found := first[0].data):
        wrapped = any(isinstance(v, list) and v and isinstance(v[0], dict) for v in found.values())
    else:
        wrapped = bool(first) and first[0].data is None
    if wrapped:
        fix = "write the records as an array, [{...}, {...}], or as .jsonl, one object a line"
        raise _refusal(path, "is neither an array of records nor one record a line", fix)
    yield from itertools.chain(first, rows)


class _Window:
    """The part of a text file that is being read, so that a JSON array need not fit into memory."""

    def __init__(self, file: TextIO) -> None:
        self.file, self.text, self.at = file, "", 0
        self.line, self.column = 0, 0  # where in the file the text begins

    def grow(self) -> bool:
        """Forgets what is done and reads on, by at least as much as is kept. False at the file's end."""
        more = self.file.read(max(_CHUNK, len(self.text) - self.at))
        if not more:
            return False
        done = self.text[: self.at]
        self.line += done.count("\n")
        self.column = len(done) - done.rfind("\n") - 1 if "\n" in done else self.column + len(done)
        self.text, self.at = self.text[self.at :] + more, 0
        return True

    def peek(self) -> str:
        """The next character that is not white space, or nothing at the file's end."""
        while True:
            self.at = _SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.grow():
                return ""

    def take(self, marks: str) -> str:
        mark = self.peek()
        if not mark or mark not in marks:
            raise json.JSONDecodeError(f"Expecting {' or '.join(map(repr, marks))}", self.text, self.at)
        self.at += 1
        return mark

    def value(self, decoder: _Decoder) -> tuple[Any, str]:
        """The JSON value that comes next, and its text."""
        self.peek()
        while True:
            try:
                value, end = decoder.raw_decode(self.text, self.at)
            except json.JSONDecodeError as error:
                cut_off = error.msg.startswith("Unterminated") or error.pos > len(self.text) - 16
                if not (cut_off and self.grow()):
                    raise
            else:
                if end == len(self.text) and self.grow():  # what looks like a number's end may not be it
                    continue
                raw, self.at = self.text[self.at : end], end
                return value, raw


def _json_array(path: Path) -> Iterator[_Row]:
    decoder, number = _Decoder(), 1
    with _open_text(path, "\n") as file:
        window = _Window(file)
        try:
            window.take("[")
            mark = window.take("]") if window.peek() == "]" else ","
            while mark == ",":
                value, raw = window.value(decoder)
                yield _object_row(number, value, decoder.twice, raw)
                number += 1
                mark = window.take(",]")
            if window.peek():
                raise json.JSONDecodeError("Expecting the end of the file", window.text, window.at)
        except (ValueError, RecursionError) as error:
            problem = f"{_broken(error, window.line, window.column)}; nothing after this point could be read"
            yield _Row(number, None, problem, window.text[window.at :])


def _csv_rows(path: Path, delimiter: str) -> Iterator[_Row]:
    csv.field_size_limit(_LONGEST_CELL)
    with _open_text(path, "") as file:
        lines: list[str] = []
        reader = csv.reader(_kept(file, lines), delimiter=delimiter, strict=True)
        header = next(filter(None, reader), [])
        _refuse_header(path, header, "".join(lines))
        while True:
            lines.clear()
            number = reader.line_num + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                why = f"broken CSV ({error}): is a quote left open, or not doubled inside a quoted cell?"
                yield _Row(number, None, why, "".join(lines))
                continue
            raw = "".join(lines)
            if len(cells) == len(header):
                yield _Row(number, dict(zip(header, cells, strict=True)), None, raw)
            elif cells:
                why = f"{len(cells)} cells where the header has {len(header)}: is a cell unquoted?"
                yield _Row(number, None, why, raw)


def _kept(lines: Iterable[str], kept: list[str]) -> Iterator[str]:
    for line in lines:
        kept.append(line)
        yield line


def _refuse_header(path: Path, header: Sequence[str], raw: str = "") -> None:
    if problem := _not_utf8(raw):
        raise _refusal(path, problem)
    for place, name in enumerate(header, 1):
        if not name.strip():
            fix = "name it in the header, or leave it out (pandas: to_csv(..., index=False))"
            raise _refusal(path, f"column {place} has no name", fix)
        if name in header[: place - 1]:
            raise _refusal(path, f"two columns are named '{name}'", "rename or drop one of them")


def _parquet(path: Path) -> Iterator[_Row]:
    from pyarrow import parquet

    with parquet.ParquetFile(path, buffer_size=1 << 20) as file:
        yield from _table_rows(path, file.iter_batches(_BATCH))


def _dataset(path: Path) -> Iterator[_Row]:
    splits = path / "dataset_dict.json"
    if splits.is_file():
        names = json.loads(splits.read_text("utf-8"))["splits"]
        ways = ", ".join(str(path / name) for name in names)
        raise _refusal(path, "holds the splits of a dataset", f"give one of them: {ways}")
    if not (path / "dataset_info.json").is_file():
        raise _refusal(
            path, "is a folder without a dataset", "give a file, or what save_to_disk of datasets made"
        )
    try:
        import datasets
    except ImportError as error:
        raise _refusal(path, "needs a package that is missing", "pip install datasets") from error
    yield from _table_rows(path, datasets.load_from_disk(str(path)).with_format("arrow").iter(_BATCH))


def _table_rows(path: Path, tables: Iterable[Any]) -> Iterator[_Row]:
    """The rows of Arrow tables that share one schema."""
    import pyarrow as pa

    schema, number = None, 0
    for table in tables:
        if schema is None:
            _refuse_header(path, table.schema.names)
            schema = pa.schema([field.with_type(_plain(field.type)) for field in table.schema])
        for row in table.cast(schema).to_pylist():
            number += 1
            yield _Row(number, row)


def _plain(kind: Any) -> Any:
    """The Arrow type of the same content that Python has as JSON: times and decimals become text."""
    import pyarrow as pa
    from pyarrow import types

    if isinstance(kind, pa.BaseExtensionType):
        return _plain(kind.storage_type)
    if types.is_dictionary(kind):
        return _plain(kind.value_type)
    if types.is_temporal(kind) or types.is_decimal(kind):
        return pa.string()
    if types.is_float16(kind):
        return pa.float32()
    if types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    if types.is_map(kind):
        pair = [("key", _plain(kind.key_type)), ("value", _plain(kind.item_type))]
        return pa.large_list(pa.struct(pair))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.large_list(kind.value_field.with_type(_plain(kind.value_type)))
    return kind


def _inside(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list | tuple) else ()


def _shown(value: Any) -> str:
    """A value as an error quotes it."""
    for kind, name in ((list, "a list"), (dict, "an object"), (bytes, "bytes")):
        if isinstance(value, kind):
            return name
    text = f"'{value}'" if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:56]}...{text[-1]}"


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _hashed(value: Any) -> dict[str, str]:
    if isinstance(value, bytes):
        return {"bytes": hashlib.sha256(value).hexdigest()}
    raise TypeError(f"a record cannot hold {type(value).__name__}")


_encoder = json.JSONEncoder(
    sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_hashed
)


def _canonical(value: Any) -> bytes:
    """The same bytes for the same content. Empty for what JSON cannot hold: NaN, lone surrogates."""
    try:
        return _encoder.encode(value).encode()
    except (ValueError, RecursionError):
        return b""


def _not_json(value: Any) -> str:
    """Why `_canonical` gave nothing. Without recursion, as depth may be the reason."""
    todo = [("", value)]
    while todo:
        way, value = todo.pop()
        if isinstance(value, float) and not math.isfinite(value):
            return f"field '{way}' is {_shown(value)}, which is not JSON: write null, or leave it out"
        if isinstance(value, str) and _SURROGATE.search(value):
            return f"field '{way}' has a lone surrogate, which is no character: take it out"
        for key, inner in _inside(value):
            inner_way = f"{way}.{key}" if way else str(key)
            todo += [(inner_way, inner), (inner_way, key)]
    return "nested too deeply: flatten it"


def _not_utf8(raw: str) -> str | None:
    """Text is opened with `surrogateescape`, so that the reading goes on behind a byte that is not UTF-8."""
    escaped = _ESCAPED_BYTE.search(raw)
    if escaped is None:
        return None
    where = f"byte 0x{ord(escaped[0]) - 0xDC00:02x} at column {len(raw[: escaped.start()].encode()) + 1}"
    return f"not UTF-8 ({where}): convert with iconv -f latin1 -t utf-8"


def _refusal(path: Path, what: str, fix: str | None = None) -> RecordsError:
    return RecordsError(what, where=str(path), fix=fix)
