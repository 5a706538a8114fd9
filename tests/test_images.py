"""Pictures in records: from wherever they come, sound or refused with a reason, before any engine sees them."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import struct
import time
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from localjudge.engines.base import Message
from localjudge.errors import JudgeError, ModelError
from localjudge.images import MOST_BYTES, Picture, PictureError, read_picture, read_pictures, written
from localjudge.judge.loading import load_judge
from localjudge.judge.measuring import texts_of
from localjudge.judge.prompt import IMAGE, Source, Templates, _Places
from localjudge.judge.show import show
from localjudge.models import LocalModel
from localjudge.records import BadRecord, Field, Record, read_records, scan_records
from localjudge.run.runner import Settings, check_sees, scan
from tests.scripted import scripted_model

INPUTS = [Field(name="question"), Field(name="images", type="images", optional=True)]


def encoded(
    color: Any = "red", size: tuple[int, int] = (40, 30), form: str = "PNG", mode: str = "RGB", **how: Any
) -> bytes:
    file = io.BytesIO()
    Image.new(mode, size, color).save(file, form, **how)
    return file.getvalue()


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def corner(picture: Picture) -> Any:
    return picture.pixels().getpixel((0, 0))


def refused(value: Any, folder: Path | None = None) -> str:
    with pytest.raises(PictureError) as caught:
        read_picture(value, folder)
    return str(caught.value)


# Where they come from


def test_a_picture_is_the_same_wherever_it_comes_from(tmp_path: Path) -> None:
    data = encoded()
    (tmp_path / "in" / "a b").mkdir(parents=True)
    (tmp_path / "in" / "a b" / "red.png").write_bytes(data)
    uri = "data:image/png;base64," + base64.b64encode(data).decode()
    records = write(
        tmp_path / "in" / "r.jsonl",
        [
            {"id": "relative", "question": "?", "images": ["a b/red.png"]},
            {"id": "absolute", "question": "?", "images": str(tmp_path / "in" / "a b" / "red.png")},
            {"id": "uri", "question": "?", "images": [uri]},
            {"id": "path", "question": "?", "images": [{"bytes": None, "path": "a b/red.png"}]},
            {"id": "none", "question": "?", "images": []},
            {"id": "null", "question": "?", "images": None},
        ],
    )
    read = {record.id: record for record in read_records(records, INPUTS)}
    told = {name: record.fields.get("images") for name, record in read.items() if isinstance(record, Record)}
    assert (told.pop("none"), told.pop("null")) == (None, None)
    for pictures in told.values():
        assert pictures
        [picture] = pictures
        assert picture.sha256 == hashlib.sha256(data).hexdigest()
        assert (picture.width, picture.height, picture.format) == (40, 30, "PNG")
        assert corner(picture) == (255, 0, 0)
    assert len(told) == 4


def test_tables_and_datasets_hold_pictures_as_bytes(tmp_path: Path) -> None:
    red, blue = encoded("red"), encoded("blue", form="JPEG")
    rows = [
        {"id": "one", "question": "?", "images": [{"bytes": red, "path": "r.png"}, {"bytes": blue, "path": None}]},
        {"id": "bare", "question": "?", "images": []},
    ]
    table = pa.Table.from_pylist(rows)
    parquet.write_table(table, tmp_path / "r.parquet")
    plain = pa.table({"question": ["?"], "images": pa.array([blue], pa.binary())})
    parquet.write_table(plain, tmp_path / "plain.parquet")
    record, _ = read_records(tmp_path / "r.parquet", INPUTS)
    assert isinstance(record, Record)
    assert [(p.name, p.format) for p in record.fields["images"]] == [("r.png", "PNG"), ("data", "JPEG")]
    [record] = read_records(tmp_path / "plain.parquet", INPUTS)
    assert isinstance(record, Record)
    assert record.fields["images"][0].sha256 == hashlib.sha256(blue).hexdigest()

    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    made = datasets.Dataset.from_dict({"question": ["?"], "images": [{"bytes": red, "path": None}]})
    made.cast_column("images", datasets.Image()).save_to_disk(tmp_path / "saved")
    [record] = read_records(tmp_path / "saved", INPUTS)
    assert isinstance(record, Record)
    assert record.fields["images"][0].sha256 == hashlib.sha256(red).hexdigest()


def test_rows_in_memory_keep_what_they_held(tmp_path: Path) -> None:
    rows = [{"id": "1", "question": "?", "images": encoded()}]
    [record] = read_records(rows, INPUTS)
    assert isinstance(record, Record)
    assert isinstance(record.fields["images"][0], Picture)
    assert isinstance(rows[0]["images"], bytes)


def test_several_pictures_stand_in_a_cell_of_csv(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(encoded())
    (tmp_path / "r.csv").write_text('id,question,images\n1,?,a.png\n2,?,"[""a.png"", ""b.png""]"\n3,?,\n')
    counts = [len(record.fields.get("images", [])) for record in read_records(tmp_path / "r.csv", INPUTS)]  # type: ignore[union-attr]
    assert counts == [1, 2, 0]


# What is refused


def png_that_says(width: int, height: int) -> bytes:
    """A PNG of a few bytes that declares so many pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 100)), (b"IEND", b"")]
    made = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(made)


def test_too_many_pixels_are_refused_before_any_is_decoded() -> None:
    started = time.perf_counter()
    assert refused(png_that_says(50_000, 50_000)) == (
        "it is 50,000 x 50,000 pixels: 25 million at most, so make it smaller"
    )
    assert "100,000 x 300 pixels" in refused(png_that_says(100_000, 300))
    assert "5,001 x 5,000 pixels" in refused(encoded(size=(5_001, 5_000), mode="1", color=0))
    assert time.perf_counter() - started < 5
    bitmap = bytearray(encoded(form="BMP"))
    bitmap[18:26] = struct.pack("<ii", 50_000, 50_000)
    assert "50,000 x 50,000 pixels" in refused(bytes(bitmap))


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("empty.png", b"", "'empty.png' has 0 bytes"),
        ("notes.png", b"These are notes.", "'notes.png' is no PNG, JPEG, WebP, GIF or BMP, by its content"),
        ("page.jpg", b"<!doctype html><p>404", "is no PNG"),
        ("cut.png", encoded(size=(400, 300), color=0)[:200], "'cut.png' is a damaged PNG: "),
        ("cut.jpg", encoded(size=(400, 300), form="JPEG")[:700], "'cut.jpg' is a damaged JPEG: "),
        ("cut.webp", encoded(size=(400, 300), form="WEBP")[:60], "'cut.webp' is a damaged WebP: "),
        ("cut.gif", encoded(form="GIF")[:20], "'cut.gif' is a damaged GIF: "),
        ("liar.png", png_that_says(400, 300), "'liar.png' is a damaged PNG: "),
        ("drawing.svg", b'<?xml version="1.0"?>\n<svg xmlns="x"/>', "'drawing.svg' is SVG, a drawing to be run"),
        ("pointer.png", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        ("large.png", b"\x89PNG" + b"0" * MOST_BYTES, "has 20,000,004 bytes: 20,000,000 at most"),
        ("scan.tiff", encoded(form="TIFF"), "is no PNG"),
    ],
)
def test_what_is_not_a_sound_picture_is_told_by_name(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert says in refused(name, tmp_path)


def test_files_that_are_not_there_or_not_files(tmp_path: Path) -> None:
    assert refused("no.png", tmp_path) == f"'no.png' is not there (looked in {tmp_path})"
    assert refused("/no/such.png") == "'/no/such.png' is not there"
    assert refused(".", tmp_path) == "'.' is a folder, not a file"
    os.mkfifo(tmp_path / "pipe.png")
    assert refused("pipe.png", tmp_path) == "'pipe.png' is not a plain file"  # and nobody waits for a writer
    assert refused("/dev/zero") == "'/dev/zero' is not a plain file"
    assert "cannot be read" in refused("a\0b.png", tmp_path)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("https://example.org/a.png", "'https://example.org/a.png' is an address, and nothing is fetched"),
        ("HTTP://EXAMPLE.ORG/a.png", "is an address"),
        ("s3://bucket/a.png", "is an address"),
        ({"bytes": None, "path": "ftp://host/a.png"}, "is an address"),
        ("file:///tmp/a.png", "write the path itself"),
        ("data:image/png;base64,####", "whose base64 is broken"),
        ("data:image/png;base64", "without a comma"),
        ("data:image/png;base64,", "it has 0 bytes"),
        ("data:image/svg+xml,%3Csvg%20xmlns='x'/%3E", "is SVG"),
        (5, "it is a number, not a picture"),
        (True, "it is true or false, not a picture"),
        (None, "it is null"),
        ([], "it is a list"),
        ({"url": "x"}, "without 'bytes' or 'path'"),
        ({"bytes": None, "path": None}, "neither bytes nor path"),
        ({"bytes": "aGk=", "path": None}, "JSON holds a picture as a data: URI"),
        ({"path": 5}, "has a number for its 'path'"),
    ],
)
def test_what_cannot_be_a_picture_says_what_to_give(value: Any, says: str) -> None:
    assert says in refused(value)


def test_bad_pictures_are_bad_records_with_their_place(tmp_path: Path) -> None:
    (tmp_path / "red.png").write_bytes(encoded())
    (tmp_path / "empty.png").write_bytes(b"")
    records = write(
        tmp_path / "r.jsonl",
        [
            {"id": "good", "question": "?", "images": ["red.png"]},
            {"id": "second", "question": "?", "images": ["red.png", "empty.png"]},
            {"id": "web", "question": "?", "images": "https://example.org/a.png"},
            {"id": "both", "images": ["no.png"]},
        ],
    )
    read = list(read_records(records, INPUTS))
    bad = {record.where: record.problem for record in read if isinstance(record, BadRecord)}
    assert list(bad) == ["r.jsonl:2", "r.jsonl:3", "r.jsonl:4"]
    assert bad["r.jsonl:2"] == "field 'images': picture 2: 'empty.png' has 0 bytes"
    assert "field 'question' is missing" in bad["r.jsonl:4"]
    assert "'no.png' is not there" in bad["r.jsonl:4"]
    found = scan_records(records, INPUTS)
    assert (found.total, found.bad, found.pictured) == (4, 3, "r.jsonl:1")


# What the model is shown


def test_pictures_are_shown_upright_in_rgb_on_white(tmp_path: Path) -> None:
    turned = Image.new("RGB", (40, 20), "red")
    exif = turned.getexif()
    exif[0x0112] = 6  # held upright, it is the other way round
    file = io.BytesIO()
    turned.save(file, "JPEG", exif=exif)
    picture = read_picture(file.getvalue())
    assert (picture.width, picture.height) == (20, 40) == picture.pixels().size

    assert corner(read_picture(encoded((255, 0, 0, 0), mode="RGBA"))) == (255, 255, 255)
    assert corner(read_picture(encoded((0, 255, 255, 0), mode="CMYK", form="JPEG")))[0] > 200
    assert corner(read_picture(encoded(40_000, mode="I;16"))) == (156, 156, 156)
    assert corner(read_picture(encoded(1, mode="1"))) == (255, 255, 255)
    assert corner(read_picture(encoded(200, mode="L"))) == (200, 200, 200)

    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "blue")]
    for form in ("GIF", "WEBP", "PNG"):
        file = io.BytesIO()
        frames[0].save(file, form, save_all=True, append_images=frames[1:], lossless=True)
        assert corner(read_picture(file.getvalue())) == (255, 0, 0), form

    palette = Image.new("P", (8, 8), 0)
    palette.putpalette([10, 20, 30] + [0] * 765)
    file = io.BytesIO()
    palette.save(file, "PNG", transparency=0)
    assert corner(read_picture(file.getvalue())) == (255, 255, 255)


def test_pictures_say_what_they_are() -> None:
    picture = read_picture({"bytes": encoded(), "path": "scans/red.png"})
    assert str(picture) == "[red.png, 40 x 30 PNG]"
    assert read_picture(picture.uri()) == picture
    assert "data" not in repr(picture)
    assert read_pictures([picture, picture], None) == [picture, picture]


def test_pictures_are_written_so_that_they_are_found_again(tmp_path: Path) -> None:
    (tmp_path / "p.png").write_bytes(encoded())
    pictures = read_pictures(["p.png", encoded("blue")], tmp_path)
    again = json.loads(json.dumps(pictures, default=written))
    assert again[0] == str(tmp_path / "p.png")
    assert read_pictures(again, Path("/elsewhere")) == pictures
    with pytest.raises(TypeError):
        json.dumps(object(), default=written)


# Identity


def test_a_picture_that_changes_on_disk_makes_other_records(tmp_path: Path) -> None:
    (tmp_path / "p.png").write_bytes(encoded("red"))
    records = write(tmp_path / "r.jsonl", [{"question": "?", "images": ["p.png"]}])
    first = scan_records(records, INPUTS)
    assert scan_records(records, INPUTS).digest == first.digest
    unseen = scan_records(records, INPUTS[:1])
    (tmp_path / "p.png").write_bytes(encoded("blue"))
    assert scan_records(records, INPUTS).digest != first.digest
    assert (
        scan_records(records, INPUTS[:1]).digest == unseen.digest
    )  # to whom pictures are nothing, nothing changed
    [record] = read_records(records, INPUTS)
    [other] = read_records(records, [])
    assert record.id == other.id  # so that gold labels find their record


# The judge


JUDGE = """
name: pictured
inputs: [question, {name: images, type: images, optional: true}]
questions:
  - {id: good, type: score, ask: Is it good, anchors: {1: bad, 5: good}}
"""


def test_a_text_model_is_refused_only_where_there_is_a_picture(tmp_path: Path) -> None:
    (tmp_path / "judge.yaml").write_text(JUDGE)
    (tmp_path / "p.png").write_bytes(encoded())
    spec = load_judge(tmp_path)
    plain = write(tmp_path / "plain.jsonl", [{"id": "1", "question": "?"}])
    shown = write(
        tmp_path / "shown.jsonl", [{"id": "1", "question": "?"}, {"id": "2", "question": "?", "images": "p.png"}]
    )
    blind = scripted_model(tmp_path)
    check_sees(blind, scan(plain, spec, Settings()))
    with pytest.raises(ModelError) as caught:
        check_sees(blind, scan(shown, spec, Settings()))
    assert "scripted takes no pictures, and records hold some (first at shown.jsonl:2)" in str(caught.value)
    assert "qwen2.5-vl-7b" in str(caught.value)
    bare = scripted_model(tmp_path, vision=True)
    with pytest.raises(ModelError, match=r"lacks the preprocessor_config\.json"):
        check_sees(bare, scan(shown, spec, Settings()))
    (tmp_path / "preprocessor_config.json").write_text("{}")
    check_sees(bare, scan(shown, spec, Settings()))
    assert isinstance(bare, LocalModel)


def messages_of(template: str, fields: dict[str, Any], system: str = "") -> tuple[Message, ...]:
    sources = {
        "user": Source("user.j2", 1, template),
        **({"system": Source("system.j2", 1, system)} if system else {}),
    }
    return Templates(sources, {*fields, IMAGE, "inputs"}).messages(fields, {})


RED, BLUE, GREEN = (read_picture(encoded(color)) for color in ("red", "blue", "green"))


@pytest.mark.parametrize(
    ("template", "text", "placed"),
    [
        ("Look: {{ image(1) }} and {{ image(2) }}.", "Look:  and .", [(6, RED), (11, BLUE)]),
        ("{{ image(2) }}{{ image(1) }}{{ image(2) }}", "", [(0, BLUE), (0, RED), (0, BLUE)]),
        ("{{ images }}", "[image 1]\n\n[image 2]\n", [(10, RED), (21, BLUE)]),
        ("{{ images | bare }} x", "[image 1]\n\n[image 2]\n x", [(10, RED), (21, BLUE)]),
        ("{% for one in images %}{{ loop.index }}: {{ one }} {% endfor %}.", "1:  2:  .", [(3, RED), (7, BLUE)]),
        ("{{ images | length }} {{ images[1] | upper }}", "2 ", [(2, BLUE)]),
        ("{% for i in [2, 1] %}{{ image(i) }},{% endfor %}", ",,", [(0, BLUE), (1, RED)]),
        ("{{ inputs[1].value }}", "[image 1]\n\n[image 2]\n", [(10, RED), (21, BLUE)]),
        ("{% if none_such %}{{ image(9) }}{% endif %}-", "-", []),
    ],
)
def test_templates_place_pictures(template: str, text: str, placed: list[tuple[int, Picture]]) -> None:
    fields = {"question": "Which?", "images": [RED, BLUE], "none_such": None}
    [message] = messages_of(template, fields)
    assert (message.text, list(message.images)) == (text, placed)
    whole = "".join(part if isinstance(part, str) else f"<{part.sha256}>" for part in message.parts)
    assert whole.count("<") == len(placed)


def test_pictures_are_numbered_over_all_inputs() -> None:
    fields = {"response_a": [RED], "response_b": [BLUE, GREEN]}
    [message] = messages_of("{{ response_b }}|{{ image(3) }}|{{ image(1) }}", fields)
    assert [picture for _, picture in message.images] == [BLUE, GREEN, GREEN, RED]
    assert message.text.startswith("[image 2]\n\n[image 3]\n")


@pytest.mark.parametrize(
    ("template", "system", "says"),
    [
        ("\n{{ image(3) }}", "", "user.j2:2: the template failed: there is no image(3): the record has 2 pictures"),
        ("{{ image(0) }}", "", "there is no image(0)"),
        ("{{ image('1') }}", "", "image('1'): give a number, from 1"),
        ("{{ image(1) | truncate(20, true, '', 0) }}", "", "the place of a picture is cut or changed"),
        ("x", "{{ image(1) }}", "system.j2:1: the template failed: a picture can stand in the user's message only"),
    ],
)
def test_templates_that_misplace_pictures_are_told(template: str, system: str, says: str) -> None:
    with pytest.raises(JudgeError) as caught:
        messages_of(template, {"images": [RED, BLUE]}, system)
    assert says in str(caught.value)


def test_no_text_of_a_record_is_a_picture() -> None:
    """A place is drawn anew each time: what one message had is text in the next."""
    seen: list[str] = []
    for _ in range(3):
        text = "\ue0000-1\ue001 [image 1] {{ image(1) }} " + "".join(seen)
        [message] = messages_of("{{ question | bare }}{{ image(1) }}", {"question": text, "images": [RED]})
        assert message.text == text
        assert message.images == ((len(text), RED),)
        places = _Places({"images": [RED]})
        seen.append(places.image(1))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ("user: '{{ question }}'", "no template shows the input 'images'"),
        ("user: '{{ question }} {{ image(1) }}'", "there is no image(1): the record has no pictures"),
        (
            "user: '{{ question }} {% if images %}{{ image(17) }}{% endif %}'",
            "there is no image(17): the record has 16 pictures",
        ),
        ("inputs: [question, {name: image, type: images}]", "'image' is what templates place pictures with"),
        ("inputs: [question]\nuser: '{{ question }}{{ image(1) }}'", "uses 'image', which there is not"),
        ("inputs: [question, {name: images, type: image}]", "'images'"),
        ("user: '{{ question }}{% if images %}{{ image(2) }}{% endif %}'", ""),
        ("user: '{{ question }}{{ images }}'\ninputs: [question, {name: images, type: images}]", ""),
    ],
)
def test_judges_of_pictures_are_tried_when_they_are_loaded(tmp_path: Path, changed: str, says: str) -> None:
    keys = [line.partition(":")[0] for line in changed.splitlines()]
    kept = [line for line in JUDGE.splitlines() if line.partition(":")[0] not in keys]
    (tmp_path / "judge.yaml").write_text("\n".join([*kept, *changed.splitlines()]) + "\n")
    if not says:
        load_judge(tmp_path)
        return
    with pytest.raises(JudgeError) as caught:
        load_judge(tmp_path)
    assert says in str(caught.value)


def test_a_judge_is_shown_with_pictures_in_their_places(tmp_path: Path) -> None:
    (tmp_path / "judge.yaml").write_text(
        JUDGE + "user: '{{ question }} {% if images %}before {{ image(2) }} after{% endif %}'\n"
    )
    assert "before [images 2] after" in show(str(tmp_path), [])


def test_quotes_are_looked_for_in_texts_only() -> None:
    assert texts_of({"images": [RED], "n": 5, "text": "words"}) == ["5", "words"]
