"""A bundle: localjudge, the wheels it needs on another machine, models, judges and data, with a manifest of it all.

Everything is gathered in `OUT.part` beside OUT and gets its name when it is whole, so that there is never half a
bundle; what is whole in there by its hash is kept when the same command is run again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path

from filelock import FileLock, Timeout

from localjudge import yamlfile
from localjudge.airgap import archive, signature, wheels
from localjudge.airgap.archive import Member, Volumes, of_bytes, of_file
from localjudge.airgap.manifest import (
    NAME,
    SIGNATURE,
    BundledJudge,
    BundledModel,
    Manifest,
    Package,
    Target,
    content_fault,
    digest,
    path_fault,
)
from localjudge.errors import BundleError, LocalJudgeError
from localjudge.judge.loading import judge_names, load_judge
from localjudge.model_files import hash_files, weight_files
from localjudge.models import LocalModel, find_model

_STATE = ".localjudge-bundle.json"
_BESIDE_WEIGHTS = {".json", ".jinja", ".txt", ".md", ".model"}
_TERMS = re.compile(r"(?i)(licen[cs]e|notice|use_policy|copying)")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
Say = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """What to bundle, for whom.

    out: a folder's name, or one that ends in .tar. models, judges: as `run` takes them. data: files or folders.
    own_wheel: localjudge's, where it does not run from a checkout. wheels_from: a folder to take every wheel from,
    instead of pip's own indexes, which need `online`. volume_size: bytes, of a tar's volumes.
    """

    out: Path
    target: Target
    models: Sequence[str] = ()
    judges: Sequence[str] = ()
    data: Sequence[Path] = ()
    own_wheel: Path | None = None
    wheels_from: Path | None = None
    online: bool = False
    sign_key: Path | None = None
    volume_size: int | None = None


@dataclass(frozen=True)
class Made:
    """files: the folder, the tar or its volumes. sha256: of the manifest."""

    files: list[Path]
    manifest: Manifest
    sha256: str


def parse_size(text: str) -> int:
    """'4G' -> bytes, in powers of 1024. Raises BundleError."""
    match = re.fullmatch(r"(\d+)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    size = int(match[1]) * _UNITS[match[2].upper()] if match else 0
    if size < 1 << 16:
        fix = "such as 4G or 700M; 64K at least"
        raise BundleError(f"'{text}' is no size of a volume", where="--volume-size", fix=fix)
    return size


def bundle(request: Request, say: Say) -> Made:
    """Make it, or go on making it. Raises LocalJudgeError; what can be refused early is, before pip is asked."""
    out = request.out
    as_tar = out.name.endswith(".tar")
    if out.exists() or out.with_name(f"{out.name}.001").exists():
        raise BundleError("is there already", where=str(out), fix="remove it, or give another -o")
    if request.volume_size and not as_tar:
        raise BundleError("volumes are of a tar", where="--volume-size", fix=f"-o {out}.tar")
    if not request.online and request.wheels_from is None:
        raise BundleError(
            "bundling fetches wheels from the package index, and nothing reaches out unless it is told to",
            fix="add --online, or give --from FOLDER with the wheels",
        )
    key = signature.load_private(request.sign_key) if request.sign_key else None
    # With a key, the other side must be able to check it.
    extras = sorted({*request.target.extras, *(["sign"] if key else [])})
    request = replace(request, target=request.target.model_copy(update={"extras": extras}))
    contents = _Contents.of(request)

    part = out.with_name(f"{out.name}.part")
    state = part / _STATE
    if part.exists() and not state.is_file():
        raise BundleError("is in the way, and not what an interrupted bundle leaves", where=str(part))
    part.mkdir(parents=True, exist_ok=True)
    state.touch()
    try:
        with FileLock(part / ".lock", timeout=0):
            made = _gather(request, contents, part, key, say)
            _put_in_place(made, part, out, as_tar)
    except Timeout:
        raise BundleError("is being made by another process", where=str(out)) from None
    return made


def _gather(request: Request, contents: _Contents, part: Path, key: object, say: Say) -> Made:
    target = request.target
    packages = _wheels(request, part, say)
    members = [of_file(f"wheels/{wheel.file}", part / "wheels" / wheel.file, wheel.sha256) for wheel, _ in packages]
    members += contents.members
    members.append(of_bytes("requirements.txt", "".join(f"{wheel.line}\n" for wheel, _ in packages).encode()))
    members.append(of_bytes(archive.EXECUTABLE, _install_script(target).encode()))
    manifest = Manifest(
        localjudge=next(wheel.version for wheel, _ in packages if wheel.name == wheels.PROJECT),
        target=target,
        packages=[package for _, package in packages],
        models=sorted(contents.models, key=lambda model: model.folder),
        judges=sorted(contents.judges, key=lambda judge: judge.path),
        data=sorted(contents.data),
        files={member.path: member.entry for member in members},
    )
    data = manifest.to_bytes()
    first = [of_bytes(NAME, data)]
    if key is not None:
        first.append(of_bytes(SIGNATURE, key.sign(data)))  # type: ignore[attr-defined]
    members.sort(key=lambda member: member.path)
    _check_room(part, manifest.size, request.out.name.endswith(".tar"))
    if request.out.name.endswith(".tar"):
        volumes = Volumes(part / request.out.name, request.volume_size)
        archive.write(volumes, [*first, *members], say)
        return Made([request.out.with_name(file.name) for file in volumes.parts()], manifest, digest(data))
    _write_folder(part, [*members, *first], say)
    return Made([request.out], manifest, digest(data))


def _put_in_place(made: Made, part: Path, out: Path, as_tar: bool) -> None:
    """A folder is renamed; of a tar, which lies in `part` beside the wheels it is made of, the rest is removed."""
    if as_tar:
        for file in made.files:
            (part / file.name).rename(file)
        shutil.rmtree(part)
        return
    for name in (_STATE, ".lock"):
        (part / name).unlink(missing_ok=True)
    part.rename(out)


def _wheels(request: Request, part: Path, say: Say) -> list[tuple[wheels.Wheel, Package]]:
    folder, target = part / "wheels", request.target
    own = _own_wheel(request, folder)
    headers = wheels.metadata(own)
    wheels.check_target(target, headers["Requires-Python"], headers.get_all("Provides-Extra", []))
    options = ["--no-index", "--find-links", str(request.wheels_from)] if request.wheels_from else []
    own_hash = hashlib.sha256(own.read_bytes()).hexdigest()
    asked = {"target": target.model_dump(), "options": options, "own": own_hash}
    chosen: list[wheels.Wheel] = []
    with contextlib.suppress(ValueError, KeyError, TypeError):
        state = json.loads((part / _STATE).read_text())
        chosen = [wheels.Wheel(**wheel) for wheel in state["wheels"]] if state["asked"] == asked else []
    if not chosen:
        chosen = wheels.choose(own, target, options, say)
        (part / _STATE).write_text(json.dumps({"asked": asked, "wheels": [asdict(wheel) for wheel in chosen]}))
    wheels.fetch(chosen, folder, target, options, say)
    named = {wheel.file for wheel in chosen}
    for file in folder.iterdir():
        if file.name not in named:
            file.unlink()
    return [
        (wheel, Package(name=wheel.name, version=wheel.version, licence=licence, file=f"wheels/{wheel.file}"))
        for wheel in chosen
        for licence in [wheels.licence(wheels.metadata(folder / wheel.file))]
    ]


def _own_wheel(request: Request, folder: Path) -> Path:
    package = Path(__file__).resolve().parents[1]
    checkout = package.parent
    if request.own_wheel is None:
        if not (package / "_data").is_dir() and (checkout / "pyproject.toml").is_file():
            return wheels.build_own(folder, checkout)
        name = f"{wheels.PROJECT}-{version(wheels.PROJECT)}-py3-none-any.whl"
        raise BundleError(
            "localjudge does not run from its checkout here, so its own wheel cannot be built",
            fix=f"give it: --own-wheel {name}",
        )
    if not request.own_wheel.is_file():
        raise BundleError("there is no such wheel", where=str(request.own_wheel))
    headers = wheels.metadata(request.own_wheel)
    if headers["Name"] != wheels.PROJECT:
        raise BundleError(f"is a wheel of {headers['Name']}, not of localjudge", where=str(request.own_wheel))
    folder.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(request.own_wheel, folder / request.own_wheel.name))


def _install_script(target: Target) -> str:
    machine = target.platform.split("_", 3)[3]
    script = (Path(__file__).parent / "install.sh").read_text(encoding="utf-8")
    return script.replace("@PYTHON@", target.python).replace("@MACHINE@", machine)


def _check_room(part: Path, size: int, as_tar: bool) -> None:
    files = [file for file in part.rglob("*") if file.is_file() and as_tar is (file.parent == part)]
    here = sum(file.stat().st_size for file in files)
    free = shutil.disk_usage(part).free
    if size - here > free:
        what = f"{(size - here) / 1e9:.1f} GB are still to be written, and {free / 1e9:.1f} GB are free"
        raise BundleError(what, where=str(part), fix="give an -o on a larger disk")


def _write_folder(part: Path, members: list[Member], say: Say) -> None:
    """Write what is not whole there yet, and remove what an earlier command of another kind left."""
    named = {member.path for member in members} | {_STATE, ".lock"}
    for path in sorted(part.rglob("*"), reverse=True):
        relative = path.relative_to(part).as_posix()
        if path.is_dir():
            with contextlib.suppress(OSError):
                path.rmdir()  # an empty one
        elif relative not in named:
            path.unlink()
    for member in members:
        file = part / member.path
        if _is_whole(file, member):
            continue
        if member.entry.size > 1 << 30:
            say(f"copying {member.path} ({member.entry.size / 1e9:.1f} GB)")
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = part / ".copying"
        with partial.open("wb") as target:
            archive.copy(member, target.write)
        partial.chmod(archive.mode_of(member.path))
        partial.replace(file)


def _is_whole(file: Path, member: Member) -> bool:
    if not file.is_file() or file.stat().st_size != member.entry.size:
        return False
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest() == member.entry.sha256


@dataclass
class _Contents:
    """What the bundle carries beside wheels. Making it checks it all. Raises LocalJudgeError."""

    members: list[Member]
    models: list[BundledModel]
    judges: list[BundledJudge]
    data: list[str]

    @classmethod
    def of(cls, request: Request) -> _Contents:
        contents = cls([], [], [], [])
        for model in request.models:
            contents._add_model(find_model(model))
        for judge in request.judges:
            contents._add_judge(judge)
        for path in request.data:
            contents._add_data(path)
        return contents

    def _add_model(self, model: LocalModel) -> None:
        folder = f"models/{(model.card.name if model.card else model.name.rpartition('/')[2]).lower()}"
        own = {path for path in model.path.iterdir() if path.is_file() and _goes_along(path)}
        self._add_files(folder, model.path, {*own, *weight_files(model.path)})
        self.models.append(
            BundledModel(
                name=model.name,
                folder=folder,
                fingerprint=model.fingerprint,
                licence=model.card.licence if model.card else _stated_licence(model.path),
                licence_url=model.card.licence_url if model.card else None,
            )
        )

    def _add_judge(self, name_or_path: str) -> None:
        path = Path(name_or_path)
        if not path.exists() and name_or_path in judge_names():
            return  # comes with the wheel
        spec = load_judge(name_or_path)
        folder = f"judges/{path.stem if path.is_file() else path.resolve().name}"
        if path.is_file():
            templates = [path.parent / f"{role}.j2" for role in ("system", "user")]
            self._add_files(folder, path.parent, {path, *(file for file in templates if file.is_file())})
            folder += f"/{path.name}"
        else:
            self._add_files(folder, path, set(_tree(path)))
        self.judges.append(BundledJudge(name=spec.name, path=folder, digest=spec.digest))

    def _add_data(self, path: Path) -> None:
        if not path.exists():
            raise BundleError("there is no such file or folder", where=str(path))
        name = f"data/{path.resolve().name}"
        if path.is_file():
            self._add_files("data", path.parent, {path})
        else:
            self._add_files(name, path, set(_tree(path)))
        self.data.append(name)

    def _add_files(self, folder: str, root: Path, files: set[Path]) -> None:
        taken = {member.path for member in self.members}
        for file, sha256 in sorted(hash_files(files).items()):
            path = f"{folder}/{file.relative_to(root).as_posix()}"
            if fault := path_fault(path) or content_fault(path):
                raise BundleError(fault, where=str(file))
            if path in taken:
                raise BundleError(f"two things would be called {path} in the bundle", where=str(file))
            self.members.append(of_file(path, file, sha256))


def _goes_along(file: Path) -> bool:
    return file.suffix.lower() in _BESIDE_WEIGHTS or bool(_TERMS.match(file.name))


def _tree(folder: Path) -> Iterator[Path]:
    """Its plain files, without what is hidden."""
    for path in folder.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden:
            yield path


def _stated_licence(folder: Path) -> str:
    """What a model's README says at its head, as the Hugging Face hub has it."""
    with contextlib.suppress(OSError, UnicodeDecodeError, LocalJudgeError):
        text = (folder / "README.md").read_text(encoding="utf-8")
        if match := re.match(r"---\n(.*?)\n---\n", text, re.DOTALL):
            stated = yamlfile.parse(match[1], "README.md")
            if isinstance(stated, dict) and isinstance(stated.get("license"), str):
                return str(stated["license"])
    return "not stated"
