"""The packages for a bundle: which wheels a named machine needs, their bytes, their licences.

pip chooses and fetches, with whatever indexes it is set to use here. It reads the conditions of requirements
("python_version < '3.12'") for the Python it runs on, even when told to choose for another one; so what it has
chosen is held against the target's own conditions, and it is asked again for what they still want.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from localjudge.airgap.manifest import Target
from localjudge.errors import BundleError

PROJECT = "localjudge"
_TOGETHER = 8  # wheels that one pip fetches: more start pip less often, and lose more when it is interrupted
_LEGACY = {"x86_64": {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}, "aarch64": {17: "manylinux2014"}}
_MANYLINUX = re.compile(r"manylinux_2_(\d+)_(\w+)")


@dataclass(frozen=True)
class Wheel:
    """One that was chosen. url: http(s), or a file's."""

    name: str
    version: str
    url: str
    sha256: str
    requires: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        return unquote(urlsplit(self.url).path.rpartition("/")[2])

    @property
    def line(self) -> str:
        """As in a requirements file."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"


def this_machine() -> tuple[str, str]:
    """Its Python and its platform, as `bundle` takes them."""
    glibc = platform.libc_ver()[1].rpartition(".")[2] or "28"
    return f"{sys.version_info.major}.{sys.version_info.minor}", f"manylinux_2_{glibc}_{platform.machine()}"


def check_target(target: Target, requires_python: str, extras: Iterable[str]) -> None:
    """Raises BundleError for a Python, a platform or an extra that localjudge has no part for."""
    from packaging.specifiers import SpecifierSet

    from localjudge.errors import did_you_mean

    if not re.fullmatch(r"3\.\d+", target.python) or target.python not in SpecifierSet(requires_python):
        what = f"'{target.python}' is no Python that localjudge runs on"
        raise BundleError(what, where="--python", fix=f"of the form 3.12, and {requires_python}")
    if not _MANYLINUX.fullmatch(target.platform):
        raise BundleError(
            f"'{target.platform}' is not a platform of the form manylinux_2_28_x86_64",
            fix="2_28 is glibc's version there (`ldd --version` tells), x86_64 what `uname -m` says",
        )
    known = set(extras)
    for extra in target.extras:
        if extra not in known:
            raise BundleError(f"there is no extra '{extra}'", fix=did_you_mean(extra, known))


def platform_tags(tag: str) -> list[str]:
    """All that run where `tag` does: older glibc, under its new and its old names, and no glibc at all."""
    match = _MANYLINUX.fullmatch(tag)
    assert match
    newest, machine = int(match[1]), match[2]
    tags = []
    for minor in range(newest, 4, -1):
        tags.append(f"manylinux_2_{minor}_{machine}")
        if minor in _LEGACY.get(machine, {}):
            tags.append(f"{_LEGACY[machine][minor]}_{machine}")
    return [*tags, f"linux_{machine}"]


def environment(target: Target) -> dict[str, str]:
    """What conditions of requirements are read against (PEP 508)."""
    machine = target.platform.split("_", 3)[3]
    return {
        **{str(key): str(value) for key, value in default_environment().items()},
        "python_version": target.python,
        "python_full_version": f"{target.python}.0",
        "implementation_version": f"{target.python}.0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "os_name": "posix",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": machine,
        "platform_release": "",
        "platform_version": "",
    }


def choose(own: Path, target: Target, pip_options: Sequence[str], say: Callable[[str], None]) -> list[Wheel]:
    """The wheels of `own` (localjudge's) with the target's extras and all that they need. Raises BundleError."""
    extras = f"[{','.join(target.extras)}]" if target.extras else ""
    wanted = [f"{PROJECT}{extras} @ {own.resolve().as_uri()}"]
    for _ in range(5):
        say(f"choosing wheels for Python {target.python} on {target.platform}")
        chosen = {str(canonicalize_name(wheel.name)): wheel for wheel in _resolve(wanted, target, pip_options)}
        needed, missing = closure(chosen, target)
        if not missing:
            return sorted((chosen[name] for name in needed), key=lambda wheel: canonicalize_name(wheel.name))
        wanted += missing
    raise BundleError(f"pip leaves out what the target needs: {', '.join(wanted[1:])}")


def closure(chosen: Mapping[str, Wheel], target: Target) -> tuple[set[str], list[str]]:
    """The names that localjudge needs there, its extras too, and the requirements that nothing chosen meets."""
    where = environment(target)
    missing: list[str] = []
    seen: set[tuple[str, str]] = set()
    waiting = [(PROJECT, extra) for extra in ["", *target.extras]]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for line in chosen[name].requires:
            requirement = Requirement(line)
            if requirement.marker and not requirement.marker.evaluate({**where, "extra": extra}):
                continue
            needed = canonicalize_name(requirement.name)
            if needed not in chosen or not requirement.specifier.contains(chosen[needed].version, prereleases=True):
                requirement.marker = None
                missing.append(str(requirement))
            else:
                waiting += [(needed, part) for part in ["", *requirement.extras]]
    return {name for name, _ in seen}, sorted(set(missing))


def _resolve(wanted: Sequence[str], target: Target, pip_options: Sequence[str]) -> list[Wheel]:
    # --target: pip chooses for other machines only when it would install into a folder; nothing is written there.
    options = ["--dry-run", "--ignore-installed", "--target", "unused"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        _pip("install", [*options, "--report", str(file), *_for(target), *pip_options, *wanted])
        report = json.loads(file.read_text(encoding="utf-8"))
    wheels = []
    for item in report["install"]:
        found, metadata = item["download_info"], item["metadata"]
        sha256 = found.get("archive_info", {}).get("hashes", {}).get("sha256") or _hash_of(found["url"])
        requires = tuple(metadata.get("requires_dist", ()))
        wheels.append(Wheel(metadata["name"], metadata["version"], found["url"], sha256, requires))
    return wheels


def _hash_of(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme != "file":
        raise BundleError("the package index gives no SHA-256 of this wheel", where=url)
    with Path(unquote(parts.path)).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(
    wheels: Sequence[Wheel], folder: Path, target: Target, pip_options: Sequence[str], say: Callable[[str], None]
) -> None:
    """Bring every wheel into `folder`; those that are there, whole, are kept. Raises BundleError."""
    folder.mkdir(parents=True, exist_ok=True)
    left = [wheel for wheel in wheels if not _is_whole(folder / wheel.file, wheel.sha256)]
    if kept := len(wheels) - len(left):
        say(f"{kept} of {len(wheels)} wheels are here already")
    far = []
    for wheel in left:
        parts = urlsplit(wheel.url)
        if parts.scheme == "file":
            _copy(Path(unquote(parts.path)), folder / wheel.file)
        else:
            far.append(wheel)
    for start in range(0, len(far), _TOGETHER):
        some = far[start : start + _TOGETHER]
        say(f"fetching {start + 1}-{start + len(some)} of {len(far)}: {', '.join(wheel.name for wheel in some)}")
        listed = folder.parent / "fetching.txt"
        listed.write_text("".join(f"{wheel.line}\n" for wheel in some))
        options = ["--no-deps", "--require-hashes", "--dest", str(folder), "-r", str(listed)]
        _pip("download", [*options, *_for(target), *pip_options])
        listed.unlink()
    for wheel in left:
        if not _is_whole(folder / wheel.file, wheel.sha256):
            raise BundleError("did not arrive whole", where=wheel.url, fix="run the same command again")


def _is_whole(file: Path, sha256: str) -> bool:
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest() == sha256


def _copy(source: Path, target: Path) -> None:
    partial = target.with_name(target.name + ".part")
    shutil.copyfile(source, partial)
    partial.replace(target)


def _for(target: Target) -> list[str]:
    tags = [word for tag in platform_tags(target.platform) for word in ("--platform", tag)]
    return ["--only-binary=:all:", "--implementation", "cp", "--python-version", target.python, *tags]


def _pip(command: str, arguments: Sequence[str]) -> None:
    """Raises BundleError with what pip says was wrong."""
    still = ["--disable-pip-version-check", "--no-input"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", command, *still, *arguments], capture_output=True, text=True, check=False
    )
    if not done.returncode:
        return
    if "No module named pip" in done.stderr:
        raise BundleError("this Python has no pip", fix=f"{sys.executable} -m ensurepip")
    said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
    why = re.search(r"The conflict is caused by:\n(.*?)\n *\n", done.stdout, re.DOTALL)
    what = why[1] if why else said[0] if said else "failed without a word"
    unmet = why or "from versions" in done.stderr
    fix = "what has wheels for other machines alone needs a newer --platform (glibc) or another --python"
    raise BundleError(f"pip {command}: {_shortened(what)}", fix=fix if unmet else None)


def _shortened(text: str) -> str:
    """Without the hundred versions and the conditions that it lists."""
    text = re.sub(r"\(from versions: ([^)]*)\)", lambda m: f"(newest: {m[1].split(', ')[-1]})", text)
    return "; ".join(re.sub(r";.*", "", line).strip() for line in text.splitlines())


def build_own(folder: Path, checkout: Path) -> Path:
    """localjudge's own wheel out of its checkout. Raises BundleError."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{PROJECT}-*.whl"):
        old.unlink()
    try:
        import hatchling  # noqa: F401

        isolation = ["--no-build-isolation"]  # builds without the network
    except ImportError:
        isolation = []
    _pip("wheel", ["--no-deps", *isolation, "--wheel-dir", str(folder), str(checkout)])
    return next(folder.glob(f"{PROJECT}-*.whl"))


def metadata(wheel: Path) -> Any:
    """The headers of a wheel's METADATA. Raises BundleError."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            name = next(name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
            return HeaderParser().parsestr(archive.read(name).decode("utf-8", "replace"))
    except (OSError, StopIteration, zipfile.BadZipFile) as error:
        raise BundleError(f"is not a wheel: {error or 'it has no METADATA'}", where=str(wheel)) from None


def licence(headers: Any) -> str:
    """As the package states it: its SPDX expression, else its classifiers, else the first line of its own words."""
    if expression := headers.get("License-Expression"):
        return str(expression)
    classes = [
        value.rpartition(" :: ")[2]
        for value in headers.get_all("Classifier", [])
        if value.startswith("License ::") and value != "License :: OSI Approved"
    ]
    if classes:
        return "; ".join(sorted(classes))
    own = str(headers.get("License") or "").strip().splitlines()
    return own[0][:80] if own and own[0].lower() != "unknown" else "not stated"
