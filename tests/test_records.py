"""Every format gives the same records; every way in which a row can be wrong is named, with its remedy."""

from __future__ import annotations

import csv
import datetime as dt
import gzip
import hashlib
import json
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pydantic import ValidationError

from localjudge.errors import RecordsError
from localjudge.records import BadRecord, Field, Record, read_records, scan_records

RESPONSE = [Field(name="response")]
ROWS = [
    {"id": "a", "response": "Yes.", "label": "good"},
    {"id": "b", "response": "Nein, äöü 🙂", "label": "bad"},
    {"id": "c", "response": 'two\nlines, "quoted"', "label": "good"},
]


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def lines(rows: Iterable[Any]) -> str:
    """Rows as JSON lines; a string is taken as a line as it is."""
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)


def save_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    return write(path.with_suffix(".jsonl"), lines(rows))


def save_json(path: Path, rows: list[dict[str, Any]]) -> Path:
    return write(path.with_suffix(".json"), json.dumps(rows))


def save_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    path = path.with_suffix(".csv")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def save_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    path = path.with_suffix(".parquet")
    parquet.write_table(pa.Table.from_pylist(rows), path)
    return path


def save_dataset(path: Path, rows: list[dict[str, Any]]) -> Path:
    datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")
    datasets.disable_progress_bars()
    datasets.Dataset.from_list(rows).save_to_disk(path)
    return path


FORMATS = [save_jsonl, save_json, save_csv, save_parquet, save_dataset]
Save = Callable[[Path, list[dict[str, Any]]], Path]


def only(path: Path, inputs: list[Field] = RESPONSE, **options: Any) -> Record | BadRecord:
    (record,) = read_records(path, inputs, **options)
    return record


def problem(path: Path, inputs: list[Field] = RESPONSE, **options: Any) -> str:
    record = only(path, inputs, **options)
    assert isinstance(record, BadRecord)
    return record.problem


def bad_rows(path: Path, inputs: list[Field] = RESPONSE) -> dict[str, str]:
    """where -> problem. Also checks that a scan counts just what reading gives, and that ids are unique."""
    records = list(read_records(path, inputs))
    bad = [record for record in records if isinstance(record, BadRecord)]
    scan = scan_records(path, inputs)
    assert (scan.total, scan.bad, scan.first_bad) == (len(records), len(bad), bad[:20])
    assert len({record.id for record in records}) == len(records)
    return {record.where: record.problem for record in bad}


def refusal(path: Path, inputs: list[Field] = RESPONSE, **options: Any) -> str:
    with pytest.raises(RecordsError) as caught:
        scan_records(path, inputs, **options)
    return str(caught.value)


# Formats


@pytest.mark.parametrize("save", FORMATS)
def test_every_format_gives_the_same_records(tmp_path: Path, save: Save) -> None:
    path = save(tmp_path / "good", ROWS)
    records = list(read_records(path, RESPONSE))
    assert [r.id for r in records] == ["a", "b", "c"]
    assert [r.fields for r in records if isinstance(r, Record)] == ROWS  # `label` comes along, though no input
    assert bad_rows(path) == {}
    assert scan_records(path, RESPONSE).digest == scan_records(save_jsonl(tmp_path / "same", ROWS), RESPONSE).digest


@pytest.mark.parametrize(
    ("save", "where"),
    [
        (save_jsonl, ["x.jsonl:1", "x.jsonl:2", "x.jsonl:3"]),
        (save_json, ["x.json item 1", "x.json item 2", "x.json item 3"]),
        (save_csv, ["x.csv:2", "x.csv:3", "x.csv:4"]),
        (save_parquet, ["x.parquet row 1", "x.parquet row 2", "x.parquet row 3"]),
        (save_dataset, ["x row 1", "x row 2", "x row 3"]),
    ],
)
def test_a_record_knows_where_it_stood(tmp_path: Path, save: Save, where: list[str]) -> None:
    assert [record.where for record in read_records(save(tmp_path / "x", ROWS), RESPONSE)] == where


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".ndjson.gz", ".json.gz", ".csv.gz", ".tsv.gz"])
def test_gzip_is_read_through(tmp_path: Path, suffix: str) -> None:
    delimiter = "\t" if "tsv" in suffix else ","
    text = lines([{"id": "a", "response": "Yes."}])
    if "csv" in suffix or "tsv" in suffix:
        text = f"id{delimiter}response\na{delimiter}Yes.\n"
    record = only(write(tmp_path / f"x{suffix}", gzip.compress(text.encode())))
    assert isinstance(record, Record)
    assert record.fields == {"id": "a", "response": "Yes."}


def test_a_byte_order_mark_blank_lines_and_windows_line_ends_do_no_harm(tmp_path: Path) -> None:
    content = b'\xef\xbb\xbf\r\n{"id": 1, "response": "x"}\r\n  \r\n{"id": 2, "response": "y"}'
    records = list(read_records(write(tmp_path / "x.jsonl", content), RESPONSE))
    assert [(r.id, r.where) for r in records] == [("1", "x.jsonl:2"), ("2", "x.jsonl:4")]
    record = only(write(tmp_path / "x.csv", b"\xef\xbb\xbfid,response\r\n1,x\r\n"))
    assert isinstance(record, Record)
    assert record.fields == {"id": "1", "response": "x"}


def test_json_lines_may_be_called_json(tmp_path: Path) -> None:
    records = list(read_records(write(tmp_path / "x.json", lines(ROWS)), RESPONSE))
    assert [r.where for r in records] == ["x.json:1", "x.json:2", "x.json:3"]
    assert isinstance(only(write(tmp_path / "one.json", lines(ROWS[:1]))), Record)


@pytest.mark.parametrize(
    "content", ['{"data": [{"response": "x"}]}', '{\n "data": [\n{"response": "x"}\n]\n}', "12"]
)
def test_records_inside_an_object_are_not_guessed_at(tmp_path: Path, content: str) -> None:
    assert "write the records as an array" in refusal(write(tmp_path / "x.json", content))


def test_numbers_of_a_json_array_are_plain(tmp_path: Path) -> None:
    record = only(write(tmp_path / "x.json", '[{"response": "x", "a": 1, "b": 0.5, "c": 123456789012345678901}]'))
    assert isinstance(record, Record)
    assert record.fields == {"response": "x", "a": 1, "b": 0.5, "c": 123456789012345678901}
    assert isinstance(record.fields["b"], float)


@pytest.mark.parametrize("size", [1, 7, 100])
def test_an_array_is_the_same_however_it_is_cut_into_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr("localjudge.rows._CHUNK", size)
    rows = [*ROWS, {"id": 7, "response": '\\ " \u2028 ☃', "deep": [{"x": [1.5e3, -2, True, None]}, "]},{"]}]
    for indent in (None, 2):
        for ascii_only in (True, False):
            text = json.dumps(rows, indent=indent, ensure_ascii=ascii_only)
            records = list(read_records(write(tmp_path / "x.json", f" {text}\n\n"), RESPONSE))
            assert [r.fields for r in records if isinstance(r, Record)] == rows
    path = write(tmp_path / "x.json", '[{"response": "x"}, 1234567, tru]')
    assert [r.problem for r in read_records(path, RESPONSE) if isinstance(r, BadRecord)] == [
        "1234567 is not an object: write one object a record",
        "broken JSON at column 30: expected value; nothing after this point could be read",
    ]


def test_csv_lines_are_counted_through_quoted_ones(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", 'id,response\n1,"one\ntwo\r\nthree"\n\n2,x,y\n3,"a ""b"""\n4\n')
    assert bad_rows(path) == {
        "x.csv:6": "3 cells where the header has 2: is a cell unquoted?",
        "x.csv:8": "1 cells where the header has 2: is a cell unquoted?",
    }
    good = [r for r in read_records(path, RESPONSE) if isinstance(r, Record)]
    assert [(r.where, r.fields["response"]) for r in good] == [
        ("x.csv:2", "one\ntwo\r\nthree"),
        ("x.csv:7", 'a "b"'),
    ]


def test_a_csv_cell_may_be_long_and_a_quote_left_open_is_found(tmp_path: Path) -> None:
    assert isinstance(only(write(tmp_path / "long.csv", f"id,response\n1,{'x' * 300_000}\n")), Record)
    path = write(tmp_path / "x.csv", 'id,response\n1,fine\n2,"open\n3,swallowed\n')
    assert "is a quote left open" in bad_rows(path)["x.csv:3"]


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (b"id,response,id", "two columns are named 'id'"),
        (b",response", "column 1 has no name"),
        (b"id,r\xe9ponse", "not UTF-8 (byte 0xe9 at column 5)"),
        (b'id,"response', "unexpected end of data"),
    ],
)
def test_a_csv_header_that_is_no_use_is_refused(tmp_path: Path, header: bytes, said: str) -> None:
    assert said in refusal(write(tmp_path / "x.csv", header + b"\n1,2,3\n"))


def test_parquet_values_are_plain_python(tmp_path: Path) -> None:
    when = dt.datetime(2025, 1, 2, 3, 4, 5)
    columns = {
        "response": pa.array(["x"]).dictionary_encode(),
        "when": pa.array([when], pa.timestamp("ns", "UTC")),
        "day": pa.array([when.date()]),
        "price": pa.array([Decimal("1.20")]),
        "half": pa.array([0.5], pa.float16()),
        "image": pa.array([b"\x89PNG"]),
        "turns": pa.array([[{"role": "user", "at": when}]]),
        "map": pa.array([[("k", Decimal("0.5"))]], pa.map_(pa.string(), pa.decimal128(5, 2))),
        "none": pa.nulls(1),
    }
    parquet.write_table(pa.table(columns), tmp_path / "x.parquet")
    record = only(tmp_path / "x.parquet")
    assert isinstance(record, Record)
    assert record.fields == {
        "response": "x",
        "when": "2025-01-02 03:04:05.000000000Z",
        "day": "2025-01-02",
        "price": "1.20",
        "half": 0.5,
        "image": b"\x89PNG",
        "turns": [{"role": "user", "at": "2025-01-02 03:04:05.000000"}],
        "map": [{"key": "k", "value": "0.50"}],
        "none": None,
    }


def test_parquet_nan_and_bytes_are_named(tmp_path: Path) -> None:
    path = save_parquet(tmp_path / "x", [{"id": "a", "response": b"x", "label": float("nan")}])
    assert problem(path) == (
        "field 'label' is NaN, which is not JSON: write null, or leave it out; "
        "field 'response' is bytes, not text: write one string"
    )


def test_a_dataset_with_splits_asks_for_one_of_them(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")
    datasets.disable_progress_bars()
    data = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict(train=data, test=data).save_to_disk(tmp_path / "d")
    said = refusal(tmp_path / "d")
    assert f"give one of them: {tmp_path / 'd' / 'train'}, {tmp_path / 'd' / 'test'}" in said
    assert len(list(read_records(tmp_path / "d" / "train", RESPONSE))) == 3


def test_a_dataset_without_the_package_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    write(tmp_path / "dataset_info.json", "{}")
    assert "pip install datasets" in refusal(tmp_path)


# Whole files


def test_a_file_that_is_not_there_is_guessed(tmp_path: Path) -> None:
    save_jsonl(tmp_path / "answers", ROWS)
    assert f"did you mean '{tmp_path / 'answers.jsonl'}'?" in refusal(tmp_path / "answer.jsonl")
    assert "there is no such file" in refusal(tmp_path / "nowhere" / "x.jsonl")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.txt", b"x", "known: .jsonl, .ndjson, .json, .csv, .tsv"),
        ("x.jsonl", b"", "has no records"),
        ("x.jsonl", b"\n \n", "has no records"),
        ("x.json", b"", "has no records"),
        ("x.json", b" [ ] ", "has no records"),
        ("x.csv", b"", "has no records"),
        ("x.csv", b"id,response\n", "has no records"),
        ("x.jsonl", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "git lfs pull"),
        ("x.parquet", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "git lfs pull"),
        ("x.jsonl", '{"response": "x"}'.encode("utf-16"), "iconv -f UTF-16 -t UTF-8"),
        ("x.csv", "id,response".encode("utf-16-le"), "iconv -f UTF-16 -t UTF-8"),
        ("x.jsonl.gz", b"plain", "cannot be read: Not a gzipped file"),
        ("x.parquet", b"plain", "cannot be read"),
    ],
)
def test_what_spoils_a_whole_file_is_one_error(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    message = refusal(write(tmp_path / name, content))
    assert message.startswith(str(tmp_path / name))
    assert said in message


def test_an_empty_parquet_and_a_plain_folder_are_refused(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"response": pa.array([], pa.string())}), tmp_path / "x.parquet")
    assert "has no records" in refusal(tmp_path / "x.parquet")
    assert "is a folder without a dataset" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ('{"id": "b", "resp', "broken JSON at line 2 column 13: unterminated string"),
        ('{"id": "b" "c"}]', "broken JSON at line 2 column 12: expected ',' delimiter"),
        ('{"id": "b", "response": "y"}', "broken JSON at line 2 column 29: expected ',' or ']'"),
        ("", "broken JSON at line 2 column 1: expected value"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_an_array_that_breaks_gives_what_came_before(tmp_path: Path, end: str, said: str) -> None:
    path = write(tmp_path / "x.json", '[{"id": "a", "response": "x"},\n' + end)
    records = list(read_records(path, RESPONSE))
    assert records[0].id == "a"
    last = records[-1]
    assert isinstance(last, BadRecord)
    assert said in last.problem
    assert last.problem.endswith("; nothing after this point could be read")


def test_a_gzip_file_that_is_cut_off_gives_what_came_before(tmp_path: Path) -> None:
    whole = gzip.compress(lines({"id": i, "response": f"{i * i}"} for i in range(5000)).encode())
    *good, last = read_records(write(tmp_path / "x.jsonl.gz", whole[:-3000]), RESPONSE)
    assert len(good) > 1000
    assert all(isinstance(record, Record) for record in good)
    assert isinstance(last, BadRecord)
    assert "the file is damaged" in last.problem


# Rows


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('["x"]', "a list is not an object: write one object a record"),
        ("null", "null is not an object: write one object a record"),
        ('{"response": "x"', "broken JSON at column 17: expected ',' delimiter"),
        ('{"response": "x', "broken JSON at column 14: unterminated string"),
        ("{'response': 'x'}", "broken JSON at column 2: expected property name enclosed in double quotes"),
        ('{"response": "x"} {}', "broken JSON at column 19: extra data"),
        ('{"response": "x", "n": ' + "1" * 5000 + "}", "a number has too many digits: write it as text"),
        ("[" * 100_000, "nested too deeply: flatten it"),
        (
            '{"response": "\\ud800"}',
            "field 'response' has a lone surrogate, which is no character: take it out",
        ),
        (
            '{"response": "x", "\\udfff": 1}',
            "field '\\udfff' has a lone surrogate, which is no character: take it out",
        ),
        (
            '{"response": "x", "a": [1, {"b": NaN}]}',
            "field 'a.1.b' is NaN, which is not JSON: write null, or leave it out",
        ),
        (
            '{"response": "x", "a": -1e999}',
            "field 'a' is -Infinity, which is not JSON: write null, or leave it out",
        ),
        ('{"response": "x", "response": "y"}', "key 'response' occurs twice: keep one"),
        ('{"response": "x", "a": {"b": 1, "b": 1}}', "key 'b' occurs twice: keep one"),
    ],
)
def test_a_line_that_is_no_record_is_bad_and_the_next_is_read(tmp_path: Path, line: str, said: str) -> None:
    path = write(tmp_path / "x.jsonl", lines([line, {"id": "next", "response": "x"}]))
    assert bad_rows(path) == {"x.jsonl:1": said}


def test_an_item_of_an_array_that_is_no_record_is_bad_and_the_next_is_read(tmp_path: Path) -> None:
    items = [
        "3",
        '{"response": NaN}',
        '{"a": "\\ud800", "response": "x"}',
        '{"response": "x", "a": 1, "a": 2}',
        '"x"',
    ]
    path = write(tmp_path / "x.json", f"[{', '.join(items)}, {json.dumps(ROWS[0])}]")
    assert list(bad_rows(path)) == [f"x.json item {number}" for number in range(1, 6)]


def test_a_wrong_encoding_is_found_in_its_line(tmp_path: Path) -> None:
    said = "not UTF-8 (byte 0xe9 at column {}): convert with iconv -f latin1 -t utf-8"
    path = write(
        tmp_path / "x.jsonl",
        b'{"id": "a", "response": "caf\xe9"}\n{"id": \xe9}\n{"id": "c", "response": "x"}\n',
    )
    assert bad_rows(path) == {"x.jsonl:1": said.format(29), "x.jsonl:2": said.format(8)}
    assert next(read_records(path, RESPONSE)).id == "a"
    path = write(tmp_path / "x.csv", "id,response\n1,ä".encode() + b"\xe9\n2,x\n")
    assert bad_rows(path) == {"x.csv:2": said.format(5)}


# Ids


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (True, "the id is true: use text or a whole number"),
        (1.5, "the id is 1.5: use text or a whole number"),
        (["a"], "the id is a list: use text or a whole number"),
        (None, "the id is null: give one, or leave ids out of all rows"),
        (" ", "the id is empty: give one, or leave ids out of all rows"),
        ("x" * 513, "the id has 513 characters: use 512 at most"),
    ],
)
def test_an_id_is_text_or_a_whole_number(tmp_path: Path, given: Any, said: str) -> None:
    path = save_jsonl(tmp_path / "x", [{"id": given, "response": "x"}])
    assert only(path) == BadRecord("invalid:x.jsonl:1", "x.jsonl:1", said)


def test_a_record_without_an_id_is_named_after_its_content(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", '{"response": "x", "label": "ä"}\n{"label": "ä", "response": "x"}\n')
    first, second = read_records(path, RESPONSE)
    name = "sha:" + hashlib.sha256('{"label":"ä","response":"x"}'.encode()).hexdigest()[:16]
    assert first.id == name
    assert second == BadRecord(
        f"{name}#2",
        "x.jsonl:2",
        "the same content as line 1, and no id: drop one, or give each an 'id'",
    )
    # The name stays, whatever the judge asks of the row.
    changed = [Field(name="label", type="json", optional=True)]
    assert next(read_records(path, changed)).id == name


def test_a_second_use_of_an_id_is_bad_and_names_the_first(tmp_path: Path) -> None:
    ids: list[Any] = ["x", 7, "7", "x", "x#4", "invalid:x.jsonl:7"]
    rows: list[Any] = [{"id": id, "response": "r"} for id in ids]
    path = write(tmp_path / "x.jsonl", lines([*rows, "broken"]))
    remedy = "give each record an id of its own"
    assert {where: said for where, said in bad_rows(path).items() if where != "x.jsonl:7"} == {
        "x.jsonl:3": f"id '7' was used before, at line 2: {remedy}",
        "x.jsonl:4": f"id 'x' was used before, at line 1: {remedy}",
        "x.jsonl:5": f"id 'x#4' was used before, at line 4: {remedy}",
    }
    assert [r.id for r in read_records(path, RESPONSE)] == [
        "x",
        "7",
        "7#3",
        "x#4",
        "x#4#5",
        "invalid:x.jsonl:7",
        "invalid:x.jsonl:7#7",
    ]


# Fields


def test_a_name_of_an_input_can_stand_in_a_template() -> None:
    assert Field(name="response_a").type == "text"
    for wrong in ("", "response-a", "1st", "a b"):
        with pytest.raises(ValidationError, match="is not a name"):
            Field(name=wrong)
    with pytest.raises(ValidationError):
        Field.model_validate({"name": "x", "typ": "text"})


TEXT, NUMBER, JSON = Field(name="x"), Field(name="x", type="number"), Field(name="x", type="json")


@pytest.mark.parametrize(
    ("field", "row", "said"),
    [
        (TEXT, {"xx": "v"}, "field 'x' is missing: if 'xx' is meant, use --map x=xx"),
        (TEXT, {"output": "v", "n": 1}, "field 'x' is missing: the record has output, n"),
        (TEXT, {}, "field 'x' is missing: the record has no fields"),
        (TEXT, {"x": None}, "field 'x' is null or empty: fill it in, or leave the record out"),
        (TEXT, {"x": ""}, "field 'x' is empty: fill it in, or leave the record out"),
        (TEXT, {"x": " \n"}, "field 'x' is empty: fill it in, or leave the record out"),
        (TEXT, {"x": 42}, "field 'x' is 42, not text: write it in quotes, \"42\""),
        (TEXT, {"x": False}, "field 'x' is false, not text: write it in quotes, \"false\""),
        (TEXT, {"x": [1]}, "field 'x' is a list, not text: write one string"),
        (
            TEXT,
            {"x": {"n": 1, "text": "v"}},
            "field 'x' is an object, not text: write one string, or reach into it with --map x=x.text",
        ),
        (NUMBER, {"x": "5"}, "field 'x' is '5', not a number: write a number without quotes"),
        (NUMBER, {"x": "five"}, "field 'x' is 'five', not a number: write a number, such as 0.5"),
        (NUMBER, {"x": True}, "field 'x' is true, not a number: write a number, such as 0.5"),
        (NUMBER, {"x": " "}, "field 'x' is null or empty: fill it in, or leave the record out"),
        (JSON, {"x": 5}, "field 'x' is 5, not a list or an object: write one of these"),
        (JSON, {"x": "5"}, "field 'x' is '5', not a list or an object: write one of these"),
        (JSON, {"x": []}, "field 'x' is empty: fill it in, or leave the record out"),
        (
            JSON,
            {"x": "[1"},
            "field 'x' is text that should hold JSON: broken JSON at column 3: expected ',' delimiter",
        ),
        (
            JSON,
            {"x": '{"a": "\\ud800"}'},
            "field 'x' is text that should hold JSON: "
            "field 'a' has a lone surrogate, which is no character: take it out",
        ),
        (
            JSON,
            {"x": '{"a": 1, "a": 2}'},
            "field 'x' is text that should hold JSON: key 'a' occurs twice: keep one",
        ),
    ],
)
def test_what_is_wrong_with_a_field_is_said_with_its_remedy(
    tmp_path: Path, field: Field, row: dict[str, Any], said: str
) -> None:
    assert problem(save_jsonl(tmp_path / "x", [row]), [field]) == said


def test_another_input_is_not_offered_for_a_missing_one(tmp_path: Path) -> None:
    inputs = [Field(name="response_a"), Field(name="response_b")]
    path = save_jsonl(tmp_path / "x", [{"response_a": "v"}])
    assert problem(path, inputs) == "field 'response_b' is missing: the record has response_a"


@pytest.mark.parametrize(
    ("field", "value", "kept"),
    [
        (TEXT, "v", "v"),
        (TEXT.model_copy(update={"allow_empty": True}), " ", " "),
        (NUMBER, 5, 5),
        (NUMBER, 0, 0),
        (JSON, [0], [0]),
        (JSON, ' {"a": [1]} ', {"a": [1]}),
        (JSON.model_copy(update={"allow_empty": True}), "[]", []),
        (JSON.model_copy(update={"allow_empty": True}), {}, {}),
    ],
)
def test_a_field_as_it_should_be_is_kept(tmp_path: Path, field: Field, value: Any, kept: Any) -> None:
    record = only(save_jsonl(tmp_path / "x", [{"x": value}]), [field])
    assert isinstance(record, Record)
    assert record.fields == {"x": kept}


@pytest.mark.parametrize("field", [TEXT, NUMBER, JSON])
@pytest.mark.parametrize("row", [{}, {"x": None}, {"x": " "}])
def test_an_optional_field_with_nothing_in_it_is_left_out(
    tmp_path: Path, field: Field, row: dict[str, Any]
) -> None:
    optional = field.model_copy(update={"optional": True})
    record = only(save_jsonl(tmp_path / "x", [row | {"id": "a"}]), [optional])
    assert isinstance(record, Record)
    assert record.fields == {"id": "a"}


def test_csv_has_numbers_and_json_as_text(tmp_path: Path) -> None:
    inputs = [
        Field(name="n", type="number"),
        Field(name="j", type="json"),
        Field(name="o", type="number", optional=True),
    ]
    good = only(write(tmp_path / "x.csv", 'id,n,j,o,label\n1, 0.5,"[1, ""a""]",,3\n'), inputs)
    assert isinstance(good, Record)
    assert good.fields == {"id": "1", "n": 0.5, "j": [1, "a"], "label": "3"}
    for wrong in ("nan", "1e999", "1_000", "half"):
        assert f"field 'n' is '{wrong}', not a number" in problem(
            write(tmp_path / "x.csv", f"n,j\n{wrong},[1]\n"), inputs
        )


def test_all_that_is_wrong_with_a_row_is_said_at_once(tmp_path: Path) -> None:
    rows = [{"id": "a", "x": "v", "response": "v"}, {"id": "a", "x": "five"}]
    inputs = [NUMBER.model_copy(update={"optional": True}), *RESPONSE]
    _, second = read_records(save_jsonl(tmp_path / "x", rows), inputs)
    assert second == BadRecord(
        "a#2",
        "x.jsonl:2",
        "field 'x' is 'five', not a number: write a number, such as 0.5; "
        "field 'response' is missing: the record has id, x; "
        "id 'a' was used before, at line 1: give each record an id of its own",
    )


# Mapping


def test_a_mapped_field_comes_from_its_source(tmp_path: Path) -> None:
    row = {
        "uid": 7,
        "output": "plain",
        "choices": [{"message": {"content": "deep"}}],
        "a.b": "literal",
        "a": {"b": "nested"},
        "response": "old",
    }
    path = save_jsonl(tmp_path / "x", [row])
    for source, value in {
        "output": "plain",
        "choices.0.message.content": "deep",
        "a.b": "literal",
        "response": "old",
    }.items():
        record = only(path, mapping={"response": source, "id": "uid", "group": "a"})
        assert isinstance(record, Record)
        assert record.id == "7"
        assert record.fields == row | {"id": 7, "response": value, "group": {"b": "nested"}}


def test_a_row_without_the_source_does_not_fall_back_on_its_own_field(tmp_path: Path) -> None:
    path = save_jsonl(tmp_path / "x", [{"response": "old", "id": 1}, {"output": "new", "uid": 2}])
    bad, good = read_records(path, RESPONSE, mapping={"response": "output", "id": "uid"})
    assert isinstance(bad, BadRecord)
    assert bad.problem == (
        "the id is missing: there is no 'uid' to take it from; "
        "field 'response' is missing: there is no 'output' to take it from"
    )
    assert isinstance(good, Record)


@pytest.mark.parametrize(
    ("source", "near"),
    [("outptu", "output"), ("output.txt", "output.text"), ("output.text.x", "output.text")],
)
def test_a_source_that_no_record_has_is_refused(tmp_path: Path, source: str, near: str) -> None:
    path = save_jsonl(tmp_path / "x", [{"response": "r", "output": {"text": "t"}}])
    said = refusal(path, mapping={"label": source})
    assert f"--map label={source}: no record has '{source}'" in said
    assert f"did you mean '{near}'?" in said


# Scanning


def test_the_digest_notices_any_change_that_matters(tmp_path: Path) -> None:
    def digest(content: str, **options: Any) -> str:
        return scan_records(write(tmp_path / "x.jsonl", content), RESPONSE, **options).digest

    base = lines([*ROWS, "broken"])
    assert digest(lines(ROWS)) == digest(lines(ROWS).replace(": ", ":  ").replace("\n", "\n\n"))
    changed = [
        base.replace("Yes.", "No."),
        base.replace('"good"', '"fair"', 1),
        base.replace("broken", "brokem"),
        lines([*reversed(ROWS), "broken"]),
        lines(ROWS),
    ]
    digests = {digest(content) for content in [base, *changed]}
    assert len(digests) == 1 + len(changed)
    assert digest(base, mapping={"group": "label"}) not in digests
    assert digest(base, limit=3) == digest(lines(ROWS))


def test_a_limit_counts_bad_records_too(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", lines(["broken", "", *ROWS]))
    assert [r.where for r in read_records(path, RESPONSE, limit=2)] == ["x.jsonl:1", "x.jsonl:3"]
    scan = scan_records(path, RESPONSE, limit=2)
    assert (scan.total, scan.bad) == (2, 1)


def test_a_scan_keeps_only_the_first_bad_records(tmp_path: Path) -> None:
    scan = scan_records(save_jsonl(tmp_path / "x", [{"id": i} for i in range(50)]), RESPONSE)
    assert (scan.total, scan.bad) == (50, 50)
    assert [record.id for record in scan.first_bad] == [str(i) for i in range(20)]


def test_records_may_be_drawn_from_changing_threads(tmp_path: Path) -> None:
    records = read_records(save_jsonl(tmp_path / "x", ROWS), RESPONSE)
    drawn: list[str] = []
    for _ in ROWS:
        thread = threading.Thread(target=lambda: drawn.append(next(records).id))
        thread.start()
        thread.join()
    assert drawn == ["a", "b", "c"]


def peak(path: Path) -> int:
    """The most bytes that Python held while it scanned."""
    tracemalloc.start()
    try:
        assert scan_records(path, RESPONSE).bad == 0
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("save", "few", "many"),
    [
        (save_jsonl, 2_000, 200_000),
        (save_json, 2_000, 20_000),
        (save_csv, 2_000, 20_000),
        (save_parquet, 2_000, 20_000),
        (save_dataset, 2_000, 20_000),
    ],
)
def test_memory_does_not_grow_with_the_file(tmp_path: Path, save: Save, few: int, many: int) -> None:
    def rows(count: int) -> list[dict[str, Any]]:
        return [{"id": f"record-{i}", "response": f"The answer is {i}. " * 10} for i in range(count)]

    small, large = save(tmp_path / "small", rows(few)), save(tmp_path / "large", rows(many))
    peak(small)  # imports and caches
    assert peak(large) < 2 * peak(small) + 5_000_000
