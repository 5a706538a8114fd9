"""Pictures of a record: where they come from, whether they are sound, and their pixels.

A picture is a path (relative to the record file), a `data:` URI, bytes, or `{"bytes": ..., "path": ...}` as Parquet
and datasets hold them; never an address on the web. Each is decoded once when it is read, so that what is damaged
or hostile is the record's fault and no engine's. Knows nothing of records, judges or models.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import re
import stat
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, unquote_to_bytes

MOST_BYTES = 20_000_000
MOST_PIXELS = 25_000_000

FORMATS = "PNG, JPEG, WebP, GIF or BMP"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")  # two letters at least: one is a drive


class PictureError(ValueError):
    """A picture that cannot be taken: what is wrong with it and what to do, as what is said of it."""


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture, which has been decoded once.

    sha256: of its bytes, and all that two pictures are compared by. data: those bytes, as they were found. name:
    what messages and reports call it. width, height: of its pixels as they are shown, upright. format: 'PNG',
    'JPEG', ... path: the file, where it came from one.
    """

    sha256: str
    data: bytes = field(compare=False, repr=False)
    name: str = field(compare=False)
    width: int = field(compare=False)
    height: int = field(compare=False)
    format: str = field(compare=False)
    path: Path | None = field(compare=False, default=None, repr=False)

    def __str__(self) -> str:
        return f"[{self.name}, {self.width} x {self.height} {self.format}]" if self.data else f"[{self.name}]"

    def pixels(self) -> Any:
        """A Pillow image in RGB: of an animation the first frame, upright, what is transparent on white."""
        return _decoded(self.data)[1]

    def uri(self) -> str:
        """The picture as a `data:` URI."""
        return f"data:image/{self.format.lower()};base64,{base64.b64encode(self.data).decode()}"


def written(value: object) -> str:
    """A picture as a record may hold it, wherever the record lies: for `json.dumps` as `default`."""
    if isinstance(value, Picture):
        return str(value.path) if value.path else value.uri()
    raise TypeError(f"{type(value).__name__} is not JSON")


def example(name: str) -> Picture:
    """A picture without pixels, to try templates with."""
    return Picture(hashlib.sha256(name.encode()).hexdigest(), b"", name, 0, 0, "PNG")


def read_pictures(value: Any, folder: Path | None) -> list[Picture]:
    """The pictures that a field holds: a list of them, or one. folder: where relative paths start.

    Raises PictureError, with the place in the list, for the first that cannot be taken.
    """
    if not isinstance(value, list | tuple):
        return [read_picture(value, folder)]
    pictures = []
    for number, item in enumerate(value, 1):
        try:
            pictures.append(read_picture(item, folder))
        except PictureError as error:
            raise PictureError(f"picture {number}: {error}" if len(value) > 1 else str(error)) from None
    return pictures


def read_picture(value: Any, folder: Path | None = None) -> Picture:
    """One picture. Raises PictureError, which names the file."""
    if isinstance(value, Picture):
        return value
    called = "it"
    try:
        value, name = _held(value) if isinstance(value, Mapping) else (value, "data")
        path = None
        if isinstance(value, bytes):
            data = value
        elif isinstance(value, str) and value[:5].lower() == "data:":
            data = _of_uri(value)
        elif isinstance(value, str | Path):
            called = f"'{_cut(str(value))}'"
            path, data = _of_file(str(value), folder)
            name = path.name
        else:
            what = f"is {_kind(value)}, not a picture"
            raise PictureError(f"{what}: give a path, a data: URI, bytes, or an object of bytes and path")
        if len(data) > MOST_BYTES:
            raise PictureError(_too_big(len(data)))
        kind, image = _decoded(data)
    except PictureError as error:
        raise PictureError(f"{called} {error}") from None
    width, height = image.size
    return Picture(hashlib.sha256(data).hexdigest(), data, name, width, height, kind, path)


def _held(value: Mapping[str, Any]) -> tuple[Any, str]:
    """Bytes or path out of an object of both, as datasets' Image feature has them; and a name."""
    if not {"bytes", "path"} & value.keys():
        raise PictureError("is an object without 'bytes' or 'path': give one of them")
    path = value.get("path")
    if path is not None and not isinstance(path, str):
        raise PictureError(f"has {_kind(path)} for its 'path': write text")
    if (content := value.get("bytes")) is not None:
        if not isinstance(content, bytes):
            raise PictureError(f"has {_kind(content)} for its 'bytes': JSON holds a picture as a data: URI, not so")
        return content, Path(path).name if path else "data"
    if path is None:
        raise PictureError("has neither bytes nor path: fill one in, or leave the record out")
    return path, path


def _kind(value: Any) -> str:
    for kind, name in ((bool, "true or false"), (int | float, "a number"), (str, "text"), (list | tuple, "a list")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "an object"


def _of_uri(uri: str) -> bytes:
    head, comma, body = uri[5:].partition(",")
    if not comma:
        raise PictureError("is a data: URI without a comma, so without data: write data:image/png;base64,...")
    if len(body) > 3 * MOST_BYTES:
        raise PictureError(_too_big(len(body) * 3 // 4))
    if not head.lower().endswith(";base64"):
        return unquote_to_bytes(body)
    try:
        return base64.b64decode(re.sub(r"\s+", "", unquote(body)), validate=True)
    except (binascii.Error, ValueError):
        raise PictureError("is a data: URI whose base64 is broken: encode the file again") from None


def _of_file(text: str, folder: Path | None) -> tuple[Path, bytes]:
    """The file and its bytes. Nothing is opened that is no plain file, or too large."""
    scheme = _SCHEME.match(text)
    if scheme and scheme[1].lower() == "file":
        raise PictureError("is a file: URI: write the path itself")
    if scheme and text[scheme.end() :].startswith("//"):
        raise PictureError("is an address, and nothing is fetched: save the picture and give its path")
    try:
        path = Path(text).expanduser()
        path = path if path.is_absolute() else (folder or Path()).resolve() / path
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise PictureError("is a folder, not a file" if path.is_dir() else "is not a plain file")
        if status.st_size > MOST_BYTES:
            raise PictureError(_too_big(status.st_size))
        with path.open("rb") as file:
            return path, file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        where = "" if Path(text).is_absolute() else f" (looked in {path.parent})"
        raise PictureError(f"is not there{where}") from None
    except PictureError:
        raise
    except (OSError, ValueError, RuntimeError) as error:  # a NUL in it, a home that nobody has
        raise PictureError(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _cut(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:38]}...{text[-38:]}"


def _too_big(size: int) -> str:
    return f"has {size:,} bytes: {MOST_BYTES:,} at most, so make it smaller"


def _decoded(data: bytes) -> tuple[str, Any]:
    """The format, and the pixels as `Picture.pixels` has them. Raises PictureError, before any pixel is decoded
    when they are too many."""
    from PIL import Image, ImageOps

    name, reader = _format(data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of broken EXIF and the like, which costs nothing here
            # The format's own reader and not Image.open, which tries others and warns of large pictures only.
            image = reader(io.BytesIO(data))
            width, height = image.size
            if width * height > MOST_PIXELS:
                raise PictureError(
                    f"is {width:,} x {height:,} pixels: {MOST_PIXELS // 10**6} million at most, so make it smaller"
                )
            image.load()
            image = ImageOps.exif_transpose(image)
            if image.mode.startswith("I;16") or image.mode == "I":
                image = Image.fromarray(_eight_bits(image))
            if image.has_transparency_data:
                image = image.convert("RGBA")
                image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
            return name, image.convert("RGB")
    except PictureError:
        raise
    except Exception as error:  # of any kind: a hostile file makes readers fail in all ways
        what = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise PictureError(f"is a damaged {name}: {what}") from None


def _eight_bits(image: Any) -> Any:
    """Grey of 16 bits in 8, which Pillow would clip."""
    import numpy as np

    grey = np.asarray(image).astype(np.int64)
    return np.clip(grey >> 8, 0, 255).astype(np.uint8)


def _format(data: bytes) -> tuple[str, Any]:
    """The format by the first bytes, whatever the file is called, and Pillow's reader of it."""
    from PIL import BmpImagePlugin, GifImagePlugin, JpegImagePlugin, PngImagePlugin, WebPImagePlugin

    if not data:
        raise PictureError("has 0 bytes")
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG", PngImagePlugin.PngImageFile
    if data.startswith(b"\xff\xd8\xff"):
        return "JPEG", JpegImagePlugin.JpegImageFile
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "WebP", WebPImagePlugin.WebPImageFile
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "GIF", GifImagePlugin.GifImageFile
    if data.startswith(b"BM"):
        return "BMP", BmpImagePlugin.BmpImageFile
    if b"<svg" in data[:4096].lower():
        raise PictureError(f"is SVG, a drawing to be run and not a picture: save it as {FORMATS}")
    if data.startswith(b"version https://git-lfs"):
        raise PictureError("is a Git LFS pointer, not the file itself: fetch it with git lfs pull")
    raise PictureError(f"is no {FORMATS}, by its content: save it as one of them")
