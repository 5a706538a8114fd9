"""Where there is no network: a bundle made here is installed and used with no interface but loopback.

The core alone, to be quick; `scripts/prove_offline` does the same with vLLM and a model.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from localjudge.judge.loading import judge_names
from tests.conftest import REPOSITORY

SCRIPT = Path(sys.executable).with_name("localjudge")
CUT_OFF = ["unshare", "-rn" if os.getuid() else "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


def cut_off(*command: str | Path, cwd: Path, check: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
    whole = {"PATH": os.environ["PATH"], "HOME": str(cwd), "LOCALJUDGE_CACHE": str(cwd / "cache"), **env}
    done = subprocess.run(
        [*CUT_OFF, *map(str, command)], cwd=cwd, env=whole, capture_output=True, text=True, timeout=500, check=False
    )
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cut-off")
    try:
        tried = cut_off("true", cwd=folder, check=False)
    except OSError as error:
        pytest.skip(f"no namespace can be made here: {error}")
    if tried.returncode:
        pytest.skip(f"no namespace can be made here: {tried.stderr.strip()}")
    out = folder / "bundle"
    records = REPOSITORY / "prompts" / "pairwise" / "examples" / "records.jsonl"
    made = subprocess.run(
        [SCRIPT, "bundle", "-o", out, "--online", "--data", records],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    if made.returncode and "error: pip" in made.stderr:
        pytest.skip(f"no package registry can be reached: {made.stderr.strip().splitlines()[-1]}")
    assert made.returncode == 0, made.stderr
    assert "it brings no engine" in made.stderr
    return out


@pytest.fixture(scope="module")
def installed(bundle: Path) -> Path:
    """The bin folder of an environment made from the bundle alone."""
    done = cut_off(bundle / "install", bundle.parent / "env", cwd=bundle.parent, PYTHON=sys.executable)
    assert "ready: " in done.stdout
    return bundle.parent / "env" / "bin"


def test_there_is_no_way_out(bundle: Path) -> None:
    code = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=5)"
    done = cut_off(sys.executable, "-c", code, cwd=bundle.parent, check=False)
    assert "Network is unreachable" in done.stderr


def test_it_is_installed_verified_and_used(bundle: Path, installed: Path) -> None:
    home = bundle.parent
    assert "whole     " in cut_off(installed / "localjudge", "verify", bundle, cwd=home).stdout
    examined = cut_off(installed / "localjudge", "doctor", cwd=home).stdout
    assert "missing  engines      no engine is here" in examined
    assert "broken" not in examined
    listed = cut_off(installed / "localjudge", "judges", cwd=home).stdout
    assert all(f"{name} " in listed for name in judge_names())
    checked = cut_off(installed / "localjudge", "judges", "check", "pairwise", cwd=home).stdout
    assert "valid pairwise judge" in checked
    code = "import localjudge; print(localjudge.__file__)"
    at = cut_off(installed / "python", "-c", code, cwd=home).stdout
    assert at.startswith(str(home / "env")), "not this checkout"


def test_what_would_reach_out_says_so_at_once(installed: Path, bundle: Path) -> None:
    home = bundle.parent
    fetched = cut_off(installed / "localjudge", "models", "fetch", cwd=home, check=False)
    assert fetched.returncode == 2
    assert "add --online" in fetched.stderr
    bundled = cut_off(installed / "localjudge", "bundle", "-o", "again", cwd=home, check=False)
    assert "add --online" in bundled.stderr
    from_its_own = cut_off(
        *(installed / "localjudge", "bundle", "-o", "again", "--from", bundle / "wheels", "--own-wheel"),
        next((bundle / "wheels").glob("localjudge-*.whl")),
        *("--data", bundle / "data" / "records.jsonl"),
        cwd=home,
    )
    first = cut_off(installed / "localjudge", "verify", bundle, cwd=home).stdout
    [digest] = [line.split()[1] for line in first.splitlines() if line.startswith("manifest")]
    assert digest in from_its_own.stdout, "a bundle makes itself again, without a network"


@pytest.mark.parametrize(
    ("fake", "says"),
    [
        ("#!/bin/sh\necho Linux riscv64\n", "this bundle is for Linux on x86_64, this machine is Linux riscv64"),
        (None, "this bundle needs Python 3."),
    ],
)
def test_another_machine_is_refused_before_anything_is_made(
    bundle: Path, tmp_path: Path, fake: str | None, says: str
) -> None:
    path = tmp_path
    for name in ("sh", "dirname", "uname"):
        (path / name).symlink_to(f"/usr/bin/{name}")
    if fake:
        (path / "uname").unlink()
        (path / "uname").write_text(fake)
        (path / "uname").chmod(0o755)
    env = {"PATH": str(path)}
    done = subprocess.run(
        [bundle / "install", tmp_path / "env"], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert says in done.stderr
    assert not (tmp_path / "env").exists()
