"""Whether a bundle, a folder or a tar, is what its maker made: every byte, nothing missing, nothing extra.

Reads only; a tar is streamed and never unpacked. Whose manifest it is, only a signature, or the manifest's hash
carried by another way, can tell.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from localjudge.airgap import archive, signature
from localjudge.airgap.manifest import (
    MOST_BYTES,
    NAME,
    SIGNATURE,
    Manifest,
    code_fault,
    content_fault,
    digest,
    may_name_code,
    read,
    some,
)
from localjudge.errors import BundleError

AGAIN = "copy it again from where it was made, and verify it there too"


@dataclass(frozen=True)
class Verified:
    """sha256: of the manifest. signed: None when it is not, False when no key was given to check it by."""

    manifest: Manifest
    sha256: str
    signed: bool | None


def verify(bundle: Path, key_file: Path | None = None) -> Verified:
    """Raises BundleError, naming the file, at the first thing that is not as it must be."""
    key = signature.load_public(key_file) if key_file else None
    if bundle.is_dir():
        data, signed = _read_manifest(bundle)
        found = _trusted(data, signed, key, bundle)
        _check_names(bundle, found.manifest)
        for path in sorted(found.manifest.files):
            check = _Check(path, found.manifest, bundle)
            with (bundle / path).open("rb") as file:
                while chunk := file.read(archive.CHUNK):
                    check.feed(chunk)
            check.end()
        return found
    volumes = archive.Volumes.found(bundle)
    reader = archive.Reader(volumes.chunks())
    data, signed, first = archive.read_heads(reader, str(bundle), MOST_BYTES)
    found = _trusted(data, signed, key, bundle)
    checks: dict[str, _Check] = {}

    def begin(path: str) -> Callable[[bytes], object]:
        checks[path] = _Check(path, found.manifest, bundle)
        return checks[path].feed

    for path in archive.read_files(reader, found.manifest, first, str(bundle), begin):
        checks.pop(path).end()
    return found


def _trusted(data: bytes, signed: bytes | None, key: object, bundle: Path) -> Verified:
    """The signature is checked before the manifest is looked into."""
    if key is not None:
        if signed is None:
            raise BundleError("is not signed", where=str(bundle), fix="leave --key out to check its hashes alone")
        if not signature.is_by(key, signed, data):
            raise BundleError("is signed with another key, or its manifest was changed", where=str(bundle))
    manifest = read(data, f"{bundle}: {NAME}")
    for path in manifest.files:
        if fault := content_fault(path):
            raise BundleError(fault, where=f"{bundle}: {path}")
    return Verified(manifest, digest(data), None if signed is None else key is not None)


def _read_manifest(bundle: Path) -> tuple[bytes, bytes | None]:
    for name, most in ((NAME, MOST_BYTES), (SIGNATURE, archive.SIGNATURE_SIZE)):
        file = bundle / name
        if file.is_symlink():
            raise BundleError(f"is a link to {file.readlink()}; a bundle holds no links", where=str(file))
        if file.exists() and (not file.is_file() or file.stat().st_size > most):
            raise BundleError("is no plain file of the size it has in a bundle", where=str(file))
    if not (bundle / NAME).is_file():
        raise BundleError(f"is not a bundle: it has no {NAME}", where=str(bundle))
    signed = (bundle / SIGNATURE).read_bytes() if (bundle / SIGNATURE).is_file() else None
    return (bundle / NAME).read_bytes(), signed


def _check_names(bundle: Path, manifest: Manifest) -> None:
    here = set(_files(bundle)) - {NAME, SIGNATURE}
    named = set(manifest.files)
    if missing := named - here:
        raise BundleError(f"lacks {some(missing)}", where=str(bundle), fix=AGAIN)
    if extra := here - named:
        raise BundleError(f"holds what its manifest does not name: {some(extra)}", where=str(bundle))


def _files(bundle: Path) -> Iterator[str]:
    """The paths of all plain files, and of empty folders, with a slash. Raises BundleError for anything else."""
    folders = [""]
    while folders:
        folder = folders.pop()
        entries = sorted(os.scandir(bundle / folder), key=lambda entry: entry.name)
        if folder and not entries:
            yield f"{folder}/"
        for entry in entries:
            path = f"{folder}/{entry.name}".lstrip("/")
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode):
                link = Path(entry.path).readlink()
                raise BundleError(f"is a link to {link}; a bundle holds no links", where=f"{bundle}: {path}")
            if stat.S_ISDIR(mode):
                folders.append(path)
            elif stat.S_ISREG(mode):
                yield path
            else:
                raise BundleError("is no plain file", where=f"{bundle}: {path}")


class _Check:
    """One file's bytes against its entry. `end` raises BundleError."""

    def __init__(self, path: str, manifest: Manifest, bundle: Path) -> None:
        self._path, self._entry, self._bundle = path, manifest.files[path], bundle
        self._hash = hashlib.sha256()
        self._size = 0
        self._text = bytearray() if may_name_code(path) else None

    def feed(self, chunk: bytes) -> None:
        self._hash.update(chunk)
        self._size += len(chunk)
        if self._text is not None and self._size <= MOST_BYTES:
            self._text += chunk

    def end(self) -> None:
        where = f"{self._bundle}: {self._path}"
        if self._size != self._entry.size:
            raise BundleError(f"is {self._size:,} bytes, not {self._entry.size:,}", where=where, fix=AGAIN)
        if self._hash.hexdigest() != self._entry.sha256:
            raise BundleError("has other bytes than its manifest says", where=where, fix=AGAIN)
        if self._text is not None and (fault := code_fault(self._path, bytes(self._text))):
            raise BundleError(fault, where=where)
