"""One HTML file of a run, or of several: the page, its scripts, and the data that they show, compressed.

The file asks nothing of anybody: its content policy names its own scripts and styles by their hashes and forbids
the rest, so it is the same from a disk, a mail or a server. Cases are written as they are read; the details of a
block of cases are gzipped together and opened by the browser when one is looked at. What would make the file larger
than `MOST` goes into volumes beside it, each a page of its own.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import gzip
import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import jinja2

from localjudge.errors import RunError
from localjudge.report.html.compare import Compared, candidates_in
from localjudge.report.html.data import RunData, judge_data
from localjudge.report.html.words import LANGUAGES, WORDS
from localjudge.run.store import writing

HERE = Path(__file__).parent
LIBRARIES = ("vendor/uplot.js", "vendor/marked.js")
SCRIPTS = ("dom.js", "figures.js", "overview.js", "list.js", "case.js", "app.js")
STYLES = ("vendor/uplot.css", "style.css")

BLOCK = 400_000
"""Characters of details that are compressed together, and so opened together."""
MOST = 20_000_000
"""Bytes of details that a file holds; further ones go into volumes."""
MOST_CASES = 50_000
"""Cases that are listed: a browser would not hold many more. All are counted."""
MOST_PROMPTS = 5_000
"""Cases with their prompts: rendering those takes longer than all the rest. The viewer has them of all."""


def report_file(directory: Path) -> Path:
    return directory / "report.html"


def write_report(directory: Path, out: Path | None = None, language: str = "en") -> Path:
    """report.html of one run, or of all runs of a suite's folder; its candidates side by side where it has some.
    Raises RunError, RecordsError."""
    books = _books(directory)
    candidates = candidates_in(directory)
    try:
        return write_pages(books, out or report_file(directory), language, candidates)
    finally:
        if candidates:
            candidates.close()


def write_comparison(directories: Sequence[Path], out: Path, language: str = "en") -> Path:
    """One file of several runs, or suites, side by side, each after it. Raises RunError, RecordsError."""
    if len({one.resolve() for one in directories}) < len(directories):
        raise RunError("the same run is given twice", fix="give each once")
    each = [(directory, _books(directory)) for directory in directories]
    books = [
        (" · ".join(filter(None, [name_of(directory), title])), folder)
        for directory, found in each
        for title, folder in found
    ]
    compared = Compared(directories)
    try:
        return write_pages(books, out, language, compared)
    finally:
        compared.close()


def name_of(directory: Path) -> str:
    return "/".join(directory.resolve().parts[-2:])


def _books(directory: Path) -> list[tuple[str, Path]]:
    """(title, folder) of the runs in a folder: itself, or those of a suite's judges."""
    if (directory / "run.json").is_file():
        return [("", directory)]
    runs = sorted(file.parent for file in directory.glob("judges/*/run.json"))
    if not runs:
        raise RunError("this folder holds no run", where=str(directory), fix="give the folder that `-o` named")
    return [(run.name, run) for run in runs]


def write_pages(
    books: Sequence[tuple[str, Path]], out: Path, language: str = "en", compared: Compared | None = None
) -> Path:
    """One file of runs, each a (title, folder), and of what compares them: first where there are several runs to
    compare, last where it is of one run's candidates."""
    if language not in LANGUAGES:
        raise RunError(
            f"there are no labels in '{language}'", where="--language", fix=f"give {' or '.join(LANGUAGES)}"
        )
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        pages = _Pages(out, language)
        try:
            comparison = {"key": "c", "title": WORDS[language]["comparison"], "kind": "comparison"}
            if compared and not compared.of_one:
                pages.add(comparison, compared)
            for place, (title, folder) in enumerate(books):
                with contextlib.closing(RunData(folder)) as data:
                    pages.add({"key": f"r{place}", "title": title or data.spec.name, "kind": "run"}, data)
            if compared and compared.of_one:
                pages.add(comparison, compared)
            pages.finish()
        finally:
            pages.give_up()
    return out


class _Pages:
    """report.html and its volumes, written beside and put in place when all is there."""

    def __init__(self, out: Path, language: str) -> None:
        self.out, self.language = out, language
        self.folder = out.with_name(f"{out.stem}_files")
        self._temporary = out.with_name(f".{out.name}.tmp")
        self._folder_temporary = out.with_name(f".{out.stem}_files.tmp")
        shutil.rmtree(self._folder_temporary, ignore_errors=True)
        self._file = self._temporary.open("w", encoding="utf-8")
        self._books: list[dict[str, Any]] = []
        self._blocks = self._volumes = 0
        self._room = MOST
        self._judge: dict[str, Any] = {}
        self._volume: TextIO | None = None
        self._held: list[dict[str, Any]] = []
        self._head, self._tail = page(language).split(_DATA)
        self._file.write(self._head)

    def add(self, description: dict[str, Any], data: Any) -> None:
        """data: has `spec`, `pairs`, `row`, `count`, `detail_of` and `overview`, as RunData. Holds one block of
        cases at a time."""
        self._judge = judge_data(data.spec)
        rows = _Packing()
        waiting: list[str] = []
        held: list[dict[str, Any]] = []
        volumes: dict[int, int] = {}
        size = listed = total = beside = 0

        def end_block() -> None:
            nonlocal waiting, held, size, beside
            if waiting:
                text = packed(f"[{','.join(waiting)}]".encode())
                if self._make_room(len(text)):
                    volumes[self._blocks] = self._volumes
                    self._held += held
                    beside += len(waiting)
                _write_data(self._volume or self._file, f"block-{self._blocks}", text)
                self._blocks += 1
                waiting, held, size = [], [], 0

        for one, verdict in data.pairs():
            total += 1
            if listed >= MOST_CASES:
                data.count(one, verdict)
                continue
            row = data.row(one, verdict)
            text = json.dumps(data.detail_of(one, verdict, prompts=listed < MOST_PROMPTS), ensure_ascii=False)
            row |= {"block": self._blocks, "place": len(waiting)}
            rows.add(row)
            listed += 1
            waiting.append(text)
            held.append(row)
            size += len(text)
            if size > BLOCK:
                end_block()
        end_block()
        self._end_volume()
        overview = data.overview()
        overview |= {"listed": listed, "cases": total, "beside": beside, "volumes": volumes}
        overview["files"] = self.folder.name if beside else None
        key = description["key"]
        _write_data(self._file, f"rows-{key}", rows.text())
        self._data(self._file, f"overview-{key}", overview)
        self._books.append(description)

    def _make_room(self, size: int) -> bool:
        """Whether the next `size` bytes of details go into a volume, which is then open."""
        if size > self._room:
            self._end_volume()
            self._volumes += 1
            self._folder_temporary.mkdir(exist_ok=True)
            self._volume = (self._folder_temporary / f"{self._volumes}.html").open("w", encoding="utf-8")
            self._volume.write(self._head)
            self._room = MOST
        self._room -= size
        return self._volume is not None

    def _end_volume(self) -> None:
        """Of one book; what comes next goes into another."""
        if self._volume is None:
            return
        book = {"key": "v", "title": self.out.name, "kind": "volume"}
        about = {"title": self.out.name, "home": f"../{self.out.name}", "judge": self._judge}
        self._data(self._volume, "rows-v", self._held)
        self._data(self._volume, "overview-v", about)
        self._data(self._volume, "books", [book])
        self._volume.write(self._tail)
        self._volume.close()
        self._volume = None
        self._held.clear()
        self._room = 0

    def _data(self, file: TextIO, name: str, value: Any) -> None:
        _write_data(file, name, packed(json.dumps(value, ensure_ascii=False).encode()))

    def finish(self) -> None:
        self._data(self._file, "books", self._books)
        self._file.write(self._tail)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._volumes:
            self._folder_temporary.replace(self.folder)
        self._temporary.replace(self.out)

    def give_up(self) -> None:
        """Leave nothing half-written."""
        self._file.close()
        if self._volume:
            self._volume.close()
        self._temporary.unlink(missing_ok=True)
        shutil.rmtree(self._folder_temporary, ignore_errors=True)


class _Packing:
    """A list of JSON values as `packed` has it, of which only the packed part is held."""

    def __init__(self) -> None:
        self._gzip = zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
        self._parts: list[bytes] = []
        self._empty = True

    def add(self, value: Any) -> None:
        text = json.dumps(value, ensure_ascii=False)
        self._parts.append(self._gzip.compress((f"[{text}" if self._empty else f",{text}").encode()))
        self._empty = False

    def text(self) -> str:
        self._parts.append(self._gzip.compress(b"[]" if self._empty else b"]"))
        self._parts.append(self._gzip.flush())
        return base64.b64encode(b"".join(self._parts)).decode()


def packed(data: bytes) -> str:
    """gzip, then base64: what `DecompressionStream` opens."""
    return base64.b64encode(gzip.compress(data, 6, mtime=0)).decode()


def _write_data(file: TextIO, name: str, text: str) -> None:
    file.write(f'<script type="application/gzip" id="{name}">{text}</script>\n')


# The page

_DATA = "<!-- data -->"


def page(
    language: str = "en",
    *,
    title: str = "localjudge",
    scripts: Sequence[str] = (),
    styles: Sequence[str] = (),
    connect: bool = False,
) -> str:
    """The page without data, whose place a comment `<!-- data -->` keeps.

    scripts, styles: sources to follow our own, such as the viewer's. connect: let it fetch from where it came from,
    as the viewer does; else it can fetch from nowhere.
    """
    own_scripts = [*(_source(name) for name in SCRIPTS), *scripts]
    own_styles = ["\n".join([*(_source(name) for name in STYLES), *styles])]
    # One script, so that what `const` names is seen in all parts of it, and by nothing else.
    script = '(() => {\n"use strict";\n' + "\n".join(own_scripts) + "\n})();\n"
    libraries = [_source(name) for name in LIBRARIES]
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src {' '.join(_hash(text) for text in [*libraries, script])}",
            f"style-src {' '.join(_hash(text) for text in own_styles)}",
            "img-src data:",
            *(["connect-src 'self'"] if connect else []),
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    return _template().render(
        policy=policy,
        title=title,
        language=language,
        data=_DATA,
        words=json.dumps(WORDS, ensure_ascii=False).replace("<", "\\u003c"),
        said=WORDS[language],
        libraries=libraries,
        script=script,
        styles=own_styles,
    )


@functools.cache
def _source(name: str) -> str:
    text = (HERE / name).read_text(encoding="utf-8")
    return "\n".join(line for line in text.splitlines() if not line.startswith("//# sourceMappingURL")) + "\n"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string((HERE / "page.html.j2").read_text(encoding="utf-8"))
