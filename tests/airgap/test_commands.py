"""The commands, from outside: what they print, and that each process of ours has the guard on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from localjudge.airgap.bundle import Made
from localjudge.airgap.wheels import this_machine
from localjudge.decoding import vllm_plugin
from tests.airgap.conftest import World

SCRIPT = Path(sys.executable).with_name("localjudge")


def call(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPT, *map(str, words)], cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_bundle_is_made_and_verified(world: World, whole: dict[str, Made], tmp_path: Path) -> None:
    made = call(
        *("bundle", "-o", "b.tar", "--from", world.wheels, "--own-wheel", world.own_wheel),
        *("-m", world.model, "--judge", world.judge, "--data", world.data),
        *("--python", "3.11", "--platform", "manylinux_2_28_x86_64"),
        *("--sign-key", world.key, "--volume-size", "64K"),
        cwd=tmp_path,
    )
    assert made.returncode == 0, made.stderr
    assert made.stdout.splitlines() == [
        "bundle    b.tar.001",
        "bundle    b.tar.002",
        "holds     localjudge[sign] 9.9 for Python 3.11 on manylinux_2_28_x86_64, 4 packages, Pocket-1B, mine, "
        f"data/records.jsonl, 14 files of {whole['b'].manifest.size / 1e6:.1f} MB",
        f"manifest  {whole['b'].sha256}",
    ]
    assert "it brings no engine" in made.stderr
    checked = call("verify", "b.tar", "--key", world.public, cwd=tmp_path)
    assert checked.stdout.splitlines() == [
        "whole     b.tar",
        *made.stdout.splitlines()[2:],
        f"signed    yes, with {world.public}",
    ]
    assert "signed    yes; give --key" in call("verify", "b.tar.001", cwd=tmp_path).stdout


def test_this_machine_is_the_target_unless_another_is_named(world: World, tmp_path: Path) -> None:
    made = call(
        "bundle",
        "-o",
        "b",
        "--from",
        world.wheels,
        "--own-wheel",
        world.own_wheel,
        "--python",
        "3.12",
        cwd=tmp_path,
    )
    assert f"for Python 3.12 on {this_machine()[1]}," in made.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("verify nothing", "nothing: there is no such bundle"),
        ("verify .", "is not a bundle: it has no manifest.json"),
        ("verify . --key none.pem", "none.pem: there is no such key"),
        ("bundle -o b", "add --online"),
        ("bundle -o b.tar --volume-size 4X --online", "--volume-size: '4X' is no size of a volume"),
        ("bundle -o b --volume-size 4G --online", "-o b.tar"),
        ("bundle -o b --online -m qwen3-7b", "did you mean 'qwen3-8b'?"),
        ("bundle -o b --from . --own-wheel none.whl", "none.whl: there is no such wheel"),
        ("models fetch --wheel none.whl", "none.whl"),
    ],
)
def test_a_mistake_is_told_in_one_message(tmp_path: Path, words: str, says: str) -> None:
    done = call(*words.split(), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


# Silence

TRIED = """
import socket
try:
    socket.create_connection(("192.0.2.1", 9), timeout=0.05)
except ConnectionRefusedError as error:
    print("refused" if "localjudge is offline" in str(error) else "tried")
except OSError:
    print("tried")
"""


def tried(code: str, *words: str, **env: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", code + TRIED, *words],
        env={**os.environ, "LOCALJUDGE_CACHE": "/dev/null/nowhere", **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.split()


def test_every_command_runs_under_the_guard() -> None:
    code = "from localjudge.cli import main\ntry:\n    main()\nexcept SystemExit:\n    pass\n"
    assert tried(code, "--version")[-1] == "refused"


def test_an_engines_own_processes_are_under_the_guard_and_other_peoples_are_not() -> None:
    code = "from localjudge.decoding.vllm_plugin import follow_owner\nfollow_owner()\n"
    assert tried(code, **{vllm_plugin.OWNER: str(os.getpid())}) == ["refused"]
    assert tried(code) == ["tried"]
    assert tried(code, **{vllm_plugin.OWNER: str(os.getpid()), "LOCALJUDGE_ALLOWED_HOSTS": "192.0.2.1"}) == [
        "tried"
    ]


def test_a_program_that_imports_localjudge_keeps_its_network() -> None:
    assert tried("import localjudge\nlocaljudge.load_judge('pairwise')\n") == ["tried"]


def test_the_server_that_was_named_is_reached() -> None:
    code = "from localjudge import guard\nguard.watch()\nguard.allow_url('http://{}:8000/v1')\n"
    assert tried(code.format("192.0.2.1")) == ["tried"]
    assert tried(code.format("192.0.2.2")) == ["refused"]
    assert tried(code.format("[::1")) == ["refused"], "what is no address is allowed nothing"
