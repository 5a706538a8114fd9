"""A bundle is made whole or not at all, the same from the same, and goes on where it was interrupted."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from localjudge.airgap import archive, wheels
from localjudge.airgap.bundle import Made, parse_size
from localjudge.airgap.manifest import Manifest
from localjudge.airgap.verify import verify
from localjudge.errors import BundleError, LocalJudgeError
from localjudge.judge.loading import load_judge
from localjudge.models import find_model
from tests.airgap.conftest import HERE, Make, World, fake_wheel


def tree(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_what_is_needed_comes_along_and_what_it_is_is_told(make: Make, world: World, tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    manifest = make(out).manifest
    assert sorted(manifest.files) == [
        "data/records.jsonl",
        "install",
        "judges/mine/judge.yaml",
        "models/pocket-1b/LICENSE",
        "models/pocket-1b/README.md",
        "models/pocket-1b/config.json",
        "models/pocket-1b/model.safetensors",
        "models/pocket-1b/tokenizer.json",
        "models/pocket-1b/tokenizer_config.json",
        "requirements.txt",
        "wheels/inner-1.5-py3-none-any.whl",
        "wheels/localjudge-9.9-py3-none-any.whl",
        "wheels/outer-3.0-py3-none-any.whl",
    ]
    assert {package.name: package.licence for package in manifest.packages} == {
        "inner": "MIT",
        "localjudge": "Apache-2.0",
        "outer": "not stated",
    }
    [model] = manifest.models
    there = find_model(str(out / model.folder))
    assert there.fingerprint == model.fingerprint == find_model(str(world.model)).fingerprint
    assert (model.name, model.licence) == ("Pocket-1B", "mit")
    [judge] = manifest.judges
    assert load_judge(out / judge.path).digest == judge.digest == load_judge(world.judge).digest
    assert manifest.data == ["data/records.jsonl"]
    assert verify(out).manifest == manifest
    assert os.access(out / "install", os.X_OK)
    pinned = [line.split(" --hash=sha256:") for line in (out / "requirements.txt").read_text().splitlines()]
    assert [name for name, _ in pinned] == ["inner==1.5", "localjudge==9.9", "outer==3.0"]
    assert pinned[0][1] == manifest.files["wheels/inner-1.5-py3-none-any.whl"].sha256
    assert not list(tmp_path.glob("*.part"))


def test_the_same_makes_the_same(make: Make, world: World, whole: dict[str, Made], tmp_path: Path) -> None:
    """Later, elsewhere, under another name."""
    made = make(tmp_path / "elsewhere" / "another.tar", sign_key=world.key)
    assert made.sha256 == whole["b"].sha256 == whole["b.tar"].sha256
    assert made.files[0].read_bytes() == whole["b.tar"].files[0].read_bytes()
    from_its_own = make(tmp_path / "copy", wheels_from=whole["b"].files[0] / "wheels", sign_key=world.key)
    assert from_its_own.sha256 == made.sha256, "a bundle's wheels make the same bundle, whatever an index has now"


def test_a_tar_is_any_tars_and_volumes_are_its_slices(whole: dict[str, Made], tmp_path: Path) -> None:
    [tar] = whole["b.tar"].files
    volumes = whole["volumes.tar"].files
    assert [file.name for file in volumes] == ["volumes.tar.001", "volumes.tar.002"]
    assert b"".join(file.read_bytes() for file in volumes) == tar.read_bytes()
    subprocess.run(["tar", "xf", tar, "-C", tmp_path], check=True)
    assert tree(tmp_path) == tree(whole["b"].files[0])
    assert os.access(tmp_path / "install", os.X_OK)
    for name in (tar, volumes[0], volumes[0].with_name("volumes.tar")):
        assert verify(name).sha256 == whole["b"].sha256


# Interrupted


class Unplugged(BaseException):
    """Power is gone: nothing catches it."""


def unplug_after(monkeypatch: pytest.MonkeyPatch, chunks: int) -> list[str]:
    """Interrupt when so many chunks are copied, in the midst of a file. Returns the files that copying began."""
    begun: list[str] = []
    real = archive.copy
    left = chunks

    def copy(member: archive.Member, sink: archive.Sink) -> None:
        def counting(chunk: bytes) -> None:
            nonlocal left
            if not left:
                raise Unplugged
            left -= 1
            sink(chunk)

        begun.append(member.path)
        real(member, counting)

    monkeypatch.setattr(archive, "CHUNK", 1000)
    monkeypatch.setattr(archive, "copy", copy)
    return begun


@pytest.mark.parametrize(
    ("name", "chunks"), [("b", 0), ("b", 65), ("b.tar", 1), ("b.tar", 20), ("volumes.tar", 65), ("volumes.tar", 70)]
)
def test_an_interrupted_bundle_goes_on_and_ends_the_same(
    make: Make,
    world: World,
    whole: dict[str, Made],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    chunks: int,
) -> None:
    fields: dict[str, Any] = {"sign_key": world.key}
    if name == "volumes.tar":
        fields["volume_size"] = 65536
    with monkeypatch.context() as patch:
        begun = unplug_after(patch, chunks)
        with pytest.raises(Unplugged):
            make(tmp_path / name, **fields)
    assert not (tmp_path / name).exists()
    assert not list(tmp_path.glob("volumes.tar.0*")), "what has its name is whole"
    with monkeypatch.context() as patch:
        patch.setattr(wheels, "_pip", lambda *_: pytest.fail("pip was asked again"))
        more = unplug_after(patch, 10**9)
        made = make(tmp_path / name, **fields)
    assert more[0] == begun[-1], "what was whole is not copied again"
    assert made.sha256 == whole[name].sha256
    if name == "b":
        assert tree(tmp_path / name) == tree(whole[name].files[0])
    else:
        assert [file.name for file in made.files] == [file.name for file in whole[name].files]
        for file, same in zip(made.files, whole[name].files, strict=True):
            assert file.read_bytes() == same.read_bytes()
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("name", ["b", "b.tar"])
def test_damage_to_what_was_left_is_mended(
    make: Make, world: World, whole: dict[str, Made], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with monkeypatch.context() as patch:
        unplug_after(patch, 65)
        with pytest.raises(Unplugged):
            make(tmp_path / name, sign_key=world.key)
    left = [file for file in (tmp_path / f"{name}.part").rglob("*") if file.is_file() and file.suffix != ".json"]
    for file in left:
        data = bytearray(file.read_bytes())
        if data:
            data[len(data) // 2] ^= 1
        file.write_bytes(data)
    (tmp_path / f"{name}.part" / "wheels" / "stray-1.whl").write_bytes(b"?")
    assert make(tmp_path / name, sign_key=world.key).sha256 == whole[name].sha256
    assert verify(tmp_path / name, world.public).sha256 == whole[name].sha256


def test_another_request_in_what_was_left_makes_what_was_asked(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        unplug_after(patch, 65)
        with pytest.raises(Unplugged):
            make(tmp_path / "b")
    expected = make(tmp_path / "fresh", data=[], models=[])
    assert make(tmp_path / "b", data=[], models=[]).sha256 == expected.sha256
    assert tree(tmp_path / "b") == tree(tmp_path / "fresh")


# For another machine


def test_conditions_are_read_for_the_target_and_not_for_this_python(make: Make, tmp_path: Path) -> None:
    here = make(tmp_path / "here").manifest
    there = make(tmp_path / "there", target=HERE.model_copy(update={"python": "3.12"})).manifest
    assert {package.name for package in there.packages} - {package.name for package in here.packages} == {"newer"}
    assert "wanted=3.12" in (tmp_path / "there" / "install").read_text()


def test_wheels_for_the_target_alone_are_chosen(make: Make, world: World, tmp_path: Path) -> None:
    for tag in (
        "cp312-cp312-manylinux_2_17_x86_64",
        "cp312-cp312-manylinux_2_34_x86_64",
        "cp311-cp311-linux_x86_64",
    ):
        fake_wheel(tmp_path / "house", "inner", "1.5", tag=tag)
    for wheel in world.wheels.glob("[!i]*.whl"):
        (tmp_path / "house" / wheel.name).write_bytes(wheel.read_bytes())

    def inner(platform: str) -> str:
        target = HERE.model_copy(update={"python": "3.12", "platform": platform})
        files = make(tmp_path / platform, target=target, wheels_from=tmp_path / "house").manifest.files
        return next(path for path in files if "inner" in path)

    assert inner("manylinux_2_28_x86_64") == "wheels/inner-1.5-cp312-cp312-manylinux_2_17_x86_64.whl"
    assert inner("manylinux_2_36_x86_64") == "wheels/inner-1.5-cp312-cp312-manylinux_2_34_x86_64.whl"
    with pytest.raises(BundleError, match=r"requirement inner>=1 .*\n.*a newer --platform"):
        inner("manylinux_2_28_aarch64")


def test_two_that_do_not_go_together_are_named(make: Make, world: World, tmp_path: Path) -> None:
    house = tmp_path / "house"
    fake_wheel(house, "inner", "1.5")
    fake_wheel(house, "outer", "3.0", "Requires-Dist: inner>=2")
    with pytest.raises(BundleError) as caught:
        make(tmp_path / "b", wheels_from=house)
    assert "requirement inner>=2 (from outer) (newest: 1.5)" in str(caught.value)
    fake_wheel(house, "lock", "1.0", "Requires-Dist: inner<1.5")
    fake_wheel(house, "outer", "3.0", "Requires-Dist: inner>=1.5")
    with pytest.raises(BundleError) as caught:
        make(tmp_path / "b", wheels_from=house, target=HERE.model_copy(update={"extras": ["sign"]}))
    assert "outer 3.0 depends on inner>=1.5; lock 1.0 depends on inner<1.5" in str(caught.value)


def test_a_platform_stands_for_all_older_ones() -> None:
    tags = wheels.platform_tags("manylinux_2_18_x86_64")
    assert tags[:3] == ["manylinux_2_18_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"]
    assert tags[-2:] == ["manylinux1_x86_64", "linux_x86_64"]
    assert "manylinux2010_aarch64" not in wheels.platform_tags("manylinux_2_28_aarch64")


def test_the_closure_follows_extras_and_finds_what_is_missing_or_unfit() -> None:
    def wheel(name: str, version: str, *needs: str) -> wheels.Wheel:
        return wheels.Wheel(name, version, f"https://example.org/{name}.whl", "0" * 64, needs)

    chosen = {
        "localjudge": wheel("localjudge", "1", "a[fast]>=1", 'b; extra == "more"', 'c; sys_platform == "win32"'),
        "a": wheel("A", "2", 'd; extra == "fast"', 'e; extra == "slow"', "localjudge"),
        "d": wheel("D", "1", "f<2"),
        "f": wheel("f", "2"),
        "unused": wheel("unused", "1"),
    }
    assert wheels.closure(chosen, HERE) == ({"localjudge", "a", "d"}, ["f<2"])
    more = HERE.model_copy(update={"extras": ["more"]})
    assert wheels.closure(chosen, more)[1] == ["b", "f<2"]


@pytest.mark.parametrize(
    ("headers", "licence"),
    [
        (["License-Expression: MIT AND BSD-3-Clause", "License: other"], "MIT AND BSD-3-Clause"),
        (["Classifier: License :: OSI Approved :: BSD License", "License: long"], "BSD License"),
        (["Classifier: License :: OSI Approved", "License: ISC"], "ISC"),
        (["License: UNKNOWN"], "not stated"),
        ([], "not stated"),
    ],
)
def test_a_licence_is_the_packages_own_word(tmp_path: Path, headers: list[str], licence: str) -> None:
    assert wheels.licence(wheels.metadata(fake_wheel(tmp_path, "p", "1", *headers))) == licence


# Refused


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"wheels_from": None}, "add --online, or give --from"),
        ({"target": HERE.model_copy(update={"python": "3.9"})}, "'3.9' is no Python that localjudge runs on"),
        ({"target": HERE.model_copy(update={"python": "python3"})}, "'python3' is no Python"),
        ({"target": HERE.model_copy(update={"platform": "linux"})}, "of the form manylinux_2_28_x86_64"),
        ({"target": HERE.model_copy(update={"extras": ["sing"]})}, "did you mean 'sign'?"),
        ({"volume_size": 65536}, "volumes are of a tar"),
        ({"models": ["qwen3-7b"]}, "did you mean 'qwen3-8b'?"),
        ({"judges": ["pairwsie"]}, "did you mean 'pairwise'?"),
        ({"data": [Path("nothing.jsonl")]}, "nothing.jsonl: there is no such file or folder"),
        ({"data": [Path("twice/records.jsonl"), Path("records.jsonl")]}, "two things would be called data/records"),
        ({"data": [Path("pickled")]}, "model.bin: is a pickle by its name"),
        ({"own_wheel": Path("none.whl")}, "none.whl: there is no such wheel"),
        ({"own_wheel": Path("records.jsonl")}, "is not a wheel"),
        ({"own_wheel": Path("other-1.0-py3-none-any.whl")}, "is a wheel of other, not of localjudge"),
        ({"wheels_from": Path("twice")}, "satisfies the requirement outer==3.0"),
        ({"sign_key": Path("none.pem")}, "none.pem: there is no such key"),
        ({"sign_key": Path("records.jsonl")}, "holds no ed25519 private key"),
    ],
)
def test_what_cannot_be_is_refused_with_the_remedy(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("records.jsonl", "twice/records.jsonl", "pickled/model.bin"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("{}\n")
    fake_wheel(tmp_path, "other", "1.0")
    with pytest.raises(LocalJudgeError) as caught:
        make(Path("out"), **fields)
    assert says in str(caught.value)
    assert not Path("out").exists()


def test_nothing_is_written_over(make: Make, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with pytest.raises(BundleError, match="is there already"):
        make(tmp_path / "b")
    (tmp_path / "b.tar.001").touch()
    with pytest.raises(BundleError, match="is there already"):
        make(tmp_path / "b.tar", volume_size=65536)
    (tmp_path / "c.part").mkdir()
    (tmp_path / "c.part" / "thesis.txt").write_text("years of work")
    with pytest.raises(BundleError, match=r"c\.part: is in the way"):
        make(tmp_path / "c")
    assert (tmp_path / "c.part" / "thesis.txt").exists()


def test_two_at_once_are_refused(make: Make, tmp_path: Path) -> None:
    (tmp_path / "b.part").mkdir()
    (tmp_path / "b.part" / ".localjudge-bundle.json").touch()
    with FileLock(tmp_path / "b.part" / ".lock"), pytest.raises(BundleError, match="made by another process"):
        make(tmp_path / "b")


def test_a_full_disk_is_seen_before_it_is_full(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(BundleError, match="larger disk"):
        make(tmp_path / "b")


def test_what_changes_while_it_is_copied_is_not_kept(
    make: Make, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "growing.jsonl"
    data.write_bytes(world.data.read_bytes())
    real = archive.copy

    def copy(member: archive.Member, sink: archive.Sink) -> None:
        if member.path == "data/growing.jsonl":
            with data.open("a") as file:
                file.write('{"id": "late"}\n')
        real(member, sink)

    monkeypatch.setattr(archive, "copy", copy)
    with pytest.raises(BundleError, match=r"growing\.jsonl: changed while it was copied"):
        make(tmp_path / "b", data=[data])
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("text", "size"), [("4G", 4 << 30), ("700M", 700 << 20), ("64KiB", 65536), ("1tb", 1 << 40), ("70000", 70000)]
)
def test_a_size_is_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "-4G", "4.5G", "1K", "4X"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(BundleError, match="is no size of a volume"):
        parse_size(text)


def test_the_manifest_is_json_without_a_date(make: Make, tmp_path: Path) -> None:
    make(tmp_path / "b")
    value = json.loads((tmp_path / "b" / "manifest.json").read_bytes())
    assert value["format"] == 1
    assert set(value) == set(Manifest.model_fields)
