"""Files and Hugging Face datasets on disk become rows, one at a time and in constant memory.

Knows the formats and nothing of what a row is for. What is wrong with one row is its `problem`, and the reading
goes on; only what spoils the whole file is a `RecordsError`.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import itertools
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TextIO, cast

from localjudge.errors import RecordsError, nearest
from localjudge.offline import silence

SURROGATE = re.compile("[\ud800-\udfff]")
_KNOWN = ".jsonl, .ndjson, .json, .csv, .tsv (each also with .gz), .parquet, a folder made by save_to_disk"
_CHUNK = 1 << 16  # characters of a JSON array read at a time
_BATCH = 64  # rows of a table turned into Python objects at a time: few, as each may hold images
_LONGEST_CELL = 1 << 27  # characters in CSV; what has more is a quote left open
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")
_SPACE = re.compile(r"[ \t\r\n]*")

Source = Path | Sequence[Mapping[str, Any]]
"""Where records come from: a file or folder, or rows in memory."""


class Row(NamedTuple):
    """number: its first line, or its place among rows or items, from 1. raw: its text, if there is any."""

    number: int
    data: dict[str, Any] | None
    problem: str | None = None
    raw: str = ""


def open_rows(path: Source) -> tuple[Iterator[Row], str, bool]:
    """The rows, what their numbers count, and whether the format has nothing but text."""
    if not isinstance(path, Path):
        return (_row_in_memory(number, row) for number, row in enumerate(path, 1)), "row", False
    if path.is_dir():
        return _dataset(path), "row", False
    if not path.exists():
        near = nearest(path.name, (file.name for file in path.parent.glob("*")))
        raise refusal(path, "there is no such file", near and f"did you mean '{path.parent / near}'?")
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
    raise refusal(path, f"'{path.suffix}' is not a known kind of file", f"known: {_KNOWN}")


def _start(path: Path) -> bytes:
    try:
        with _open(path) as file:
            start = file.read(4096)
    except (OSError, EOFError, zlib.error) as error:
        raise refusal(path, f"cannot be read: {error}") from error
    if start.startswith(b"version https://git-lfs"):
        raise refusal(path, "is a Git LFS pointer, not the file itself", "fetch the file with: git lfs pull")
    return start


def _text_start(path: Path) -> str:
    """The first characters that are not white space."""
    start = _start(path)
    if start[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in start:
        raise refusal(path, "is UTF-16 or binary, not UTF-8", "convert it: iconv -f UTF-16 -t UTF-8 OLD > NEW")
    return start.decode("utf-8-sig", "replace").lstrip()


def _open(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb"))


def _open_text(path: Path, newline: str) -> TextIO:
    return io.TextIOWrapper(_open(path), encoding="utf-8-sig", errors="surrogateescape", newline=newline)


def _row_in_memory(number: int, row: Any) -> Row:
    if isinstance(row, Mapping):
        return Row(number, dict(row))
    return Row(number, None, f"is {shown(row)}, not a mapping: give each record as a dict of its fields", repr(row))


def up_to_damage(path: Source, rows: Iterator[Row]) -> Iterator[Row]:
    """A file cut off or corrupt part-way still gives what comes before, then one row that says so."""
    number = 0
    try:
        for row in rows:
            number = row.number
            yield row
    except (OSError, EOFError, ValueError, NotImplementedError, csv.Error, zlib.error) as error:
        if number == 0:
            raise refusal(path, f"cannot be read: {error}") from error
        yield Row(number + 1, None, f"the file is damaged: {error}; nothing after this point could be read")


class Decoder(json.JSONDecoder):
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
            self.twice = f"key {shown(next(k for k in keys if keys.count(k) > 1))} occurs twice: keep one"
        return made

    def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
        self.twice = None
        return super().raw_decode(s, idx)


def parse_json(decoder: Decoder, text: str) -> tuple[Any, str | None]:
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


def _object_row(number: int, value: Any, problem: str | None, raw: str) -> Row:
    if isinstance(value, dict):
        return Row(number, value, problem, raw)
    return Row(
        number,
        None,
        not_utf8(raw) or problem or f"{shown(value)} is not an object: write one object a record",
        raw,
    )


def _json_lines(path: Path) -> Iterator[Row]:
    decoder = Decoder()
    with _open_text(path, "\n") as file:
        for number, line in enumerate(file, 1):
            if not line.isspace():
                yield _object_row(number, *parse_json(decoder, line.rstrip()), line)


def _lines_in_json(path: Path) -> Iterator[Row]:
    """JSON lines that are called .json, but not one object with the records somewhere inside it."""
    rows = _json_lines(path)
    first = list(itertools.islice(rows, 2))
    if len(first) == 1 and (found := first[0].data):
        wrapped = any(isinstance(v, list) and v and isinstance(v[0], dict) for v in found.values())
    else:
        wrapped = bool(first) and first[0].data is None
    if wrapped:
        fix = "write the records as an array, [{...}, {...}], or as .jsonl, one object a line"
        raise refusal(path, "is neither an array of records nor one record a line", fix)
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

    def value(self, decoder: Decoder) -> tuple[Any, str]:
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


def _json_array(path: Path) -> Iterator[Row]:
    decoder, number = Decoder(), 1
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
            yield Row(number, None, problem, window.text[window.at :])


def _csv_rows(path: Path, delimiter: str) -> Iterator[Row]:
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
                yield Row(number, None, why, "".join(lines))
                continue
            raw = "".join(lines)
            if len(cells) == len(header):
                yield Row(number, dict(zip(header, cells, strict=True)), None, raw)
            elif cells:
                why = f"{len(cells)} cells where the header has {len(header)}: is a cell unquoted?"
                yield Row(number, None, why, raw)


def _kept(lines: Iterable[str], kept: list[str]) -> Iterator[str]:
    for line in lines:
        kept.append(line)
        yield line


def _refuse_header(path: Path, header: Sequence[str], raw: str = "") -> None:
    if problem := not_utf8(raw):
        raise refusal(path, problem)
    for place, name in enumerate(header, 1):
        if not name.strip():
            fix = "name it in the header, or leave it out (pandas: to_csv(..., index=False))"
            raise refusal(path, f"column {place} has no name", fix)
        if name in header[: place - 1]:
            raise refusal(path, f"two columns are named '{name}'", "rename or drop one of them")


def _parquet(path: Path) -> Iterator[Row]:
    from pyarrow import parquet

    with parquet.ParquetFile(path, buffer_size=1 << 20) as file:
        yield from _table_rows(path, file.iter_batches(_BATCH))


def _dataset(path: Path) -> Iterator[Row]:
    splits = path / "dataset_dict.json"
    if splits.is_file():
        try:
            names = list(json.loads(splits.read_text("utf-8"))["splits"])
        except (ValueError, TypeError, KeyError) as error:
            raise refusal(path, f"dataset_dict.json does not name its splits: {error}") from None
        ways = ", ".join(str(path / name) for name in names)
        raise refusal(path, "holds the splits of a dataset", f"give one of them: {ways}")
    if not (path / "dataset_info.json").is_file():
        raise refusal(path, "is a folder without a dataset", "give a file, or what save_to_disk of datasets made")
    silence()
    try:
        import datasets
    except ImportError as error:
        raise refusal(path, "needs a package that is missing", "pip install datasets") from error
    yield from _table_rows(path, datasets.load_from_disk(str(path)).with_format("arrow").iter(_BATCH))


def _table_rows(path: Path, tables: Iterable[Any]) -> Iterator[Row]:
    """The rows of Arrow tables that share one schema."""
    import pyarrow as pa

    schema, number = None, 0
    for table in tables:
        if schema is None:
            _refuse_header(path, table.schema.names)
            schema = pa.schema([field.with_type(_plain(field.type)) for field in table.schema])
        for row in table.cast(schema).to_pylist():
            number += 1
            yield Row(number, row)


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


def inside(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list | tuple) else ()


def shown(value: Any) -> str:
    """A value as an error quotes it."""
    for kind, name in ((list, "a list"), (dict, "an object"), (bytes, "bytes")):
        if isinstance(value, kind):
            return name
    text = f"'{value}'" if isinstance(value, str) else json.dumps(value, default=repr)
    return text if len(text) <= 60 else f"{text[:56]}...{text[-1]}"


def encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _hashed(value: Any) -> dict[str, str]:
    if isinstance(value, bytes):
        return {"bytes": hashlib.sha256(value).hexdigest()}
    raise TypeError(f"a record cannot hold {type(value).__name__}")


_encoder = json.JSONEncoder(
    sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_hashed
)


def canonical(value: Any) -> bytes:
    """The same bytes for the same content. Empty for what JSON cannot hold: NaN, lone surrogates, dates."""
    try:
        return _encoder.encode(value).encode()
    except (ValueError, TypeError, RecursionError):
        return b""


def not_json(value: Any) -> str:
    """Why `canonical` gave nothing. Without recursion, as depth may be the reason."""
    todo = [("", value)]
    while todo:
        way, value = todo.pop()
        if isinstance(value, float) and not math.isfinite(value):
            return f"field '{way}' is {shown(value)}, which is not JSON: write null, or leave it out"
        if isinstance(value, str) and SURROGATE.search(value):
            return f"field '{way}' has a lone surrogate, which is no character: take it out"
        if not isinstance(value, str | int | float | bytes | list | tuple | dict | None):
            return f"field '{way}' is a {type(value).__name__}, which is not JSON: make it text"
        for key, inner in inside(value):
            inner_way = f"{way}.{key}" if way else str(key)
            todo += [(inner_way, inner), (inner_way, key)]
    return "nested too deeply: flatten it"


def not_utf8(raw: str) -> str | None:
    """Text is opened with `surrogateescape`, so that the reading goes on behind a byte that is not UTF-8."""
    escaped = _ESCAPED_BYTE.search(raw)
    if escaped is None:
        return None
    where = f"byte 0x{ord(escaped[0]) - 0xDC00:02x} at column {len(raw[: escaped.start()].encode()) + 1}"
    return f"not UTF-8 ({where}): convert with iconv -f latin1 -t utf-8"


def refusal(path: Source, what: str, fix: str | None = None) -> RecordsError:
    return RecordsError(what, where=name_of(path), fix=fix)


def name_of(source: Source) -> str:
    """What messages call a source."""
    return str(source) if isinstance(source, Path) else "records"
