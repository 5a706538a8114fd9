"""A bundle as one tar, whole or in volumes: byte for byte what its manifest makes it, and nothing else.

Every header follows from a file's name and size alone (times and owners are zero, files in sorted order after the
manifest), so that what is here of an interrupted archive can be told from what is not, and a reader can hold every
byte against the one it expects instead of trusting what an archive says of itself. Volumes are plain slices of the
tar: `cat name.tar.* | tar x` unpacks them.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from localjudge.airgap.manifest import NAME, SIGNATURE, FileEntry, Manifest, path_fault
from localjudge.errors import BundleError

CHUNK = 4 << 20
BLOCK = tarfile.BLOCKSIZE
END = bytes(2 * BLOCK)
SIGNATURE_SIZE = 64  # bytes, of ed25519
EXECUTABLE = "install"
Sink = Callable[[bytes], object]


@dataclass(frozen=True)
class Member:
    """A file for a bundle. open: a new reader of its bytes."""

    path: str
    entry: FileEntry
    open: Callable[[], BinaryIO]


def of_bytes(path: str, data: bytes) -> Member:
    entry = FileEntry(size=len(data), sha256=hashlib.sha256(data).hexdigest())
    return Member(path, entry, lambda: io.BytesIO(data))


def of_file(path: str, file: Path, sha256: str) -> Member:
    return Member(path, FileEntry(size=file.stat().st_size, sha256=sha256), lambda: file.open("rb"))


def mode_of(path: str) -> int:
    return 0o755 if path == EXECUTABLE else 0o644


def header(path: str, size: int) -> bytes:
    """The one or, for a long name, three and more blocks before a file's bytes."""
    info = tarfile.TarInfo(path)
    info.size, info.mode = size, mode_of(path)
    return info.tobuf(format=tarfile.PAX_FORMAT)


def padding(size: int) -> bytes:
    return bytes(-size % BLOCK)


def copy(member: Member, sink: Sink) -> None:
    """Every byte, counted and hashed on its way. Raises BundleError when they are not those of its entry."""
    seen = hashlib.sha256()
    size = 0
    with member.open() as source:
        while chunk := source.read(CHUNK):
            seen.update(chunk)
            size += len(chunk)
            sink(chunk)
    if (size, seen.hexdigest()) != (member.entry.size, member.entry.sha256):
        raise BundleError("changed while it was copied", where=member.path, fix="run the same command again")


class Volumes:
    """The bytes of a tar, in one file or in volumes of `size` bytes each: name.tar.001, name.tar.002, ..."""

    def __init__(self, path: Path, size: int | None = None) -> None:
        self.path, self.size = path, size

    @classmethod
    def found(cls, path: Path) -> Volumes:
        """Those of an archive that is here, by its name or its first volume's. Raises BundleError."""
        if path.name.endswith(".001"):
            path = path.with_name(path.name.removesuffix(".001"))
        first = path.with_name(f"{path.name}.001")
        if path.is_file():
            return cls(path)
        if not first.is_file():
            raise BundleError("there is no such bundle", where=str(path))
        volumes = cls(path, first.stat().st_size or 1)
        if strange := volumes.strange():
            lacking = volumes.part(len(volumes.parts()))
            raise BundleError(f"{strange[0].name} is here, but {lacking.name} is not, or is short", where=str(path))
        return volumes

    def part(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number + 1:03}") if self.size else self.path

    def parts(self) -> list[Path]:
        """Those that are here, up to the first that is missing, or short, which is the last."""
        found: list[Path] = []
        while (part := self.part(len(found))).is_file():
            length = part.stat().st_size
            if self.size is None or length <= self.size:
                found.append(part)
            if length != self.size:
                break
        return found

    def strange(self) -> list[Path]:
        """What is called a volume and is none, as those before it are not all here and full."""
        return sorted(set(self.path.parent.glob(f"{self.path.name}.[0-9][0-9][0-9]")) - set(self.parts()))

    def chunks(self) -> Iterator[bytes]:
        for part in self.parts():
            with part.open("rb") as file:
                while chunk := file.read(CHUNK):
                    yield chunk

    def truncate(self, length: int) -> None:
        """Keep this many bytes, and nothing else."""
        for part in self.strange():
            part.unlink()
        for number, part in enumerate(self.parts()):
            start = number * (self.size or 0)
            if length <= start and number:
                part.unlink()
            elif length < start + part.stat().st_size:
                os.truncate(part, length - start)

    def append(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            parts = self.parts()
            last = parts[-1] if parts else self.part(0)
            room = len(view)
            if self.size:
                room = self.size - (last.stat().st_size if parts else 0)
                if not room:
                    last, room = self.part(len(parts)), self.size
            with last.open("ab") as file:
                file.write(view[:room])
            view = view[room:]


class Reader:
    """Exactly as many bytes as are asked for, out of chunks."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._left = chunks, memoryview(b"")
        self.read_bytes = 0

    def take(self, size: int) -> Iterator[memoryview]:
        """The next `size` bytes in pieces; fewer at the end."""
        while size:
            if not self._left:
                self._left = memoryview(next(self._chunks, b""))
                if not self._left:
                    return
            piece, self._left = self._left[:size], self._left[size:]
            size -= len(piece)
            self.read_bytes += len(piece)
            yield piece

    def read(self, size: int) -> bytes:
        return b"".join(self.take(size))


def write(volumes: Volumes, members: list[Member], say: Callable[[str], None]) -> None:
    """Write the archive, or what an interrupted writing left out of it. Raises BundleError."""
    reader = Reader(volumes.chunks())
    kept = whole = 0
    for member in members:
        if not _is_here(reader, member):
            break
        kept, whole = kept + 1, reader.read_bytes
    if kept:
        say(f"{kept} of {len(members)} files are in it already")
    volumes.truncate(whole)
    for member in members[kept:]:
        volumes.append(header(member.path, member.entry.size))
        copy(member, volumes.append)
        volumes.append(padding(member.entry.size))
    volumes.append(END)


def _is_here(reader: Reader, member: Member) -> bool:
    head = header(member.path, member.entry.size)
    if reader.read(len(head)) != head:
        return False
    seen = hashlib.sha256()
    for piece in reader.take(member.entry.size):
        seen.update(piece)
    pad = padding(member.entry.size)
    return reader.read(len(pad)) == pad and seen.hexdigest() == member.entry.sha256


def read_heads(reader: Reader, where: str, most: int) -> tuple[bytes, bytes | None, bytes]:
    """The manifest's bytes, the signature's if there is one, and the next header's first block.

    most: the longest manifest. Raises BundleError for what is no bundle.
    """
    block = reader.read(BLOCK)
    try:
        size = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape").size
    except tarfile.HeaderError:
        size = -1
    if not 0 <= size <= most or block != header(NAME, size):
        raise BundleError("is not a bundle: it does not begin with a manifest", where=where)
    manifest = reader.read(size)
    if reader.read(len(padding(size))) != padding(size):
        raise BundleError("is cut off in its manifest", where=where)
    block = reader.read(BLOCK)
    if block != header(SIGNATURE, SIGNATURE_SIZE):
        return manifest, None, block
    signature = reader.read(SIGNATURE_SIZE)
    reader.read(len(padding(SIGNATURE_SIZE)))
    return manifest, signature, reader.read(BLOCK)


def read_files(
    reader: Reader, manifest: Manifest, first: bytes, where: str, begin: Callable[[str], Sink]
) -> Iterator[str]:
    """Read every file of the manifest, in order; each path when its bytes have been given to `begin(path)`.

    first: the block that was read already. Raises BundleError at the first byte that is not as it must be.
    """
    for path in sorted(manifest.files):
        size = manifest.files[path].size
        head = header(path, size)
        found = first + reader.read(len(head) - len(first))
        first = b""
        if found != head:
            raise BundleError(_instead(found, path, manifest), where=where)
        sink = begin(path)
        before = reader.read_bytes
        for piece in reader.take(size):
            sink(bytes(piece))
        if reader.read_bytes - before < size:
            raise BundleError(f"is cut off in {path}", where=where)
        if reader.read(len(padding(size))) != padding(size):
            raise BundleError(f"is cut off, or holds something, behind {path}", where=where)
        yield path
    end = first + reader.read(len(END) - len(first))
    if end != END:
        fault = _instead(end, None, manifest) if len(end) == len(END) else "is cut off at its very end"
        raise BundleError(fault, where=where)
    if reader.read(1):
        raise BundleError("goes on behind its end", where=where)


def _instead(found: bytes, path: str | None, manifest: Manifest) -> str:
    """What is there in a header's place."""
    if path and len(found) < BLOCK:
        return f"is cut off before {path}"
    if path and not any(found):
        return f"lacks {path}"
    try:
        info = tarfile.TarInfo.frombuf(found[:BLOCK], "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return f"is damaged where {path} begins" if path else "holds something behind its last file"
    if info.islnk() or info.issym():
        return f"holds {info.name!r}, a link to {info.linkname!r}; a bundle holds no links"
    if fault := path_fault(info.name):
        return f"holds {info.name!r}, which {fault}"
    if not info.isreg():
        return f"holds {info.name!r}, which is no plain file"
    if info.name not in manifest.files:
        return f"holds {info.name!r}, which the manifest does not name"
    if info.name == path:
        return f"holds {path} with another size or other marks ({info.size:,} bytes)"
    return f"lacks {path}" if path else f"holds {info.name!r} a second time"
