"""A small world to bundle: wheels of made-up packages for real pip, a model's folder, a judge, data, keys."""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from localjudge.airgap.bundle import Made, Request, bundle
from localjudge.airgap.manifest import Target
from tests.test_models import folder as model_folder

HERE = Target(python="3.11", platform="manylinux_2_28_x86_64", extras=[])
MINE = """\
name: mine
inputs: [answer]
user: "{{ answer }}"
rationale: 20
questions:
  - {id: good, type: score, ask: "How good?", anchors: {1: bad, 3: good}}
"""


def fake_wheel(folder: Path, name: str, version: str, *headers: str, tag: str = "py3-none-any") -> Path:
    """A wheel that pip takes for one. headers: further lines of METADATA."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    info = f"{name}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *headers]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", f"version = '{version}'\n")
        archive.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        archive.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return path


class World(NamedTuple):
    wheels: Path
    own_wheel: Path
    model: Path
    judge: Path
    data: Path
    key: Path
    public: Path


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    root = tmp_path_factory.mktemp("world")
    wheels = root / "wheels"
    fake_wheel(wheels, "inner", "1.5", "License-Expression: MIT")
    fake_wheel(wheels, "newer", "2.0", "License: BSD")
    fake_wheel(wheels, "lock", "1.0", "Classifier: License :: OSI Approved :: Apache Software License")
    fake_wheel(wheels, "outer", "3.0", "Requires-Dist: inner>=1", 'Requires-Dist: newer; python_version >= "3.12"')
    own = fake_wheel(
        root,
        "localjudge",
        "9.9",
        "Requires-Python: >=3.11,<3.14",
        "Provides-Extra: sign",
        "Requires-Dist: outer==3.0",
        'Requires-Dist: lock>=1; extra == "sign"',
        "License-Expression: Apache-2.0",
    )
    model = model_folder(root / "Pocket-1B")
    (model / "LICENSE").write_text("Do as you like.\n")
    (model / "README.md").write_text("---\nlicense: mit\n---\nA model.\n")
    (model / "training.log").write_text("not for others\n")
    judge = root / "mine"
    judge.mkdir()
    (judge / "judge.yaml").write_text(MINE)
    data = root / "records.jsonl"
    data.write_text('{"id": "1", "answer": "Yes."}\n' * 2000)
    key, public = root / "key.pem", root / "public.pem"
    make_keys(key, public)
    return World(wheels, own, model, judge, data, key, public)


def make_keys(key: Path, public: Path) -> None:
    for command in (f"genpkey -algorithm ed25519 -out {key}", f"pkey -in {key} -pubout -out {public}"):
        subprocess.run(["openssl", *command.split()], check=True, capture_output=True)


Make = Callable[..., Made]


@pytest.fixture(scope="session")
def make(world: World) -> Make:
    """Bundle the world. Fields of Request may be given otherwise."""

    def make(out: Path, **changed: Any) -> Made:
        fields: dict[str, Any] = {
            "target": HERE,
            "models": [str(world.model)],
            "judges": [str(world.judge), "pairwise"],
            "data": [world.data],
            "own_wheel": world.own_wheel,
            "wheels_from": world.wheels,
        }
        return bundle(Request(out=out, **(fields | changed)), lambda _: None)

    return make


@pytest.fixture(scope="session")
def whole(make: Make, world: World, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    """The world's bundle as a folder, a tar and a tar in volumes, signed. Not to be written to."""
    root = tmp_path_factory.mktemp("whole")
    sizes = {"b": None, "b.tar": None, "volumes.tar": 65536}
    return {name: make(root / name, volume_size=size, sign_key=world.key) for name, size in sizes.items()}
