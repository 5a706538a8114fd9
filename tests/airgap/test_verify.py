"""A bundle that is not what its maker made is refused, and the file is named."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from localjudge.airgap import archive
from localjudge.airgap.bundle import Made
from localjudge.airgap.manifest import read
from localjudge.airgap.verify import verify
from localjudge.errors import BundleError
from tests.airgap.conftest import Make, World, make_keys

Whole = dict[str, Made]
CARD = "models/pocket-1b/config.json"


@pytest.fixture
def folder(whole: Whole, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole["b"].files[0], tmp_path / "bundle"))


@pytest.fixture
def tar(whole: Whole, tmp_path: Path) -> Path:
    return Path(shutil.copy(whole["b.tar"].files[0], tmp_path / "bundle.tar"))


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def name_in_manifest(folder: Path, path: str, data: bytes) -> None:
    """Put a file in, and into the manifest as well: what a dishonest maker would do."""
    if not path.startswith("/") and ".." not in path:
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_bytes())
    manifest["files"][path] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def link(path: str, to: str) -> Callable[[Path], object]:
    def spoil(folder: Path) -> None:
        (folder / path).unlink(missing_ok=True)
        (folder / path).symlink_to(to)

    return spoil


def test_a_whole_one_passes_with_its_key(whole: Whole, world: World) -> None:
    for made in whole.values():
        found = verify(made.files[0], world.public)
        assert (found.sha256, found.signed) == (made.sha256, True)
        assert verify(made.files[0]).signed is False


BAD_FOLDERS: list[tuple[str, Callable[[Path], object], str]] = [
    (
        "one flipped byte",
        lambda b: flip(b / "models/pocket-1b/model.safetensors", 90),
        "models/pocket-1b/model.safetensors: has other bytes than its manifest says",
    ),
    ("one flipped byte of install", lambda b: flip(b / "install", 50), "install: has other bytes"),
    ("cut", lambda b: os.truncate(b / CARD, 9), "models/pocket-1b/config.json: is 9 bytes, not 72"),
    ("missing", lambda b: (b / "data/records.jsonl").unlink(), "lacks data/records.jsonl"),
    ("extra", lambda b: (b / "data/more.jsonl").write_text("{}"), "does not name: data/more.jsonl"),
    ("hidden extra", lambda b: (b / "wheels/.pth").write_text("import evil"), "does not name: wheels/.pth"),
    ("empty folder", lambda b: (b / "data/x").mkdir(), "does not name: data/x/"),
    ("link out", link("data/records.jsonl", "/etc/passwd"), "data/records.jsonl: is a link to /etc/passwd"),
    ("extra link out", link("data/passwd", "/etc/passwd"), "data/passwd: is a link to /etc/passwd"),
    ("link inside", link("data/records.jsonl", "../install"), "data/records.jsonl: is a link to ../install"),
    ("link to a folder", link("data/etc", "/etc"), "data/etc: is a link to /etc"),
    ("linked manifest", link("manifest.json", "/etc/passwd"), "manifest.json: is a link to /etc/passwd"),
    ("pipe", lambda b: os.mkfifo(b / "data/pipe"), "data/pipe: is no plain file"),
    (
        "pickle",
        lambda b: name_in_manifest(b, "models/pocket-1b/pytorch_model.bin", b"\x80\x04."),
        "models/pocket-1b/pytorch_model.bin: is a pickle by its name",
    ),
    ("pickle in the data", lambda b: name_in_manifest(b, "data/x/cache.PKL", b""), "data/x/cache.PKL: is a pickle"),
    (
        "code",
        lambda b: name_in_manifest(b, "models/pocket-1b/modeling.py", b"import os"),
        "models/pocket-1b/modeling.py: is code in a model's folder",
    ),
    (
        "auto_map",
        lambda b: name_in_manifest(b, CARD, b'{"auto_map": {"AutoModel": "modeling.Evil"}}'),
        "models/pocket-1b/config.json: has an auto_map",
    ),
    ("config is no JSON", lambda b: name_in_manifest(b, CARD, b"{"), "models/pocket-1b/config.json: is not JSON"),
    (
        "..",
        lambda b: name_in_manifest(b, "data/../../out.txt", b""),
        "'data/../../out.txt' leads outside the bundle",
    ),
    (
        "absolute",
        lambda b: name_in_manifest(b, "/tmp/localjudge-x", b""),
        "'/tmp/localjudge-x' is an absolute path",
    ),
    ("odd path", lambda b: name_in_manifest(b, "data/a\nb", b""), "'data/a\\nb' is not a plain relative path"),
    (
        "own name",
        lambda b: name_in_manifest(b, "manifest.json.sig", b""),
        "'manifest.json.sig' is the bundle's own",
    ),
    ("no manifest", lambda b: (b / "manifest.json").unlink(), "is not a bundle: it has no manifest.json"),
    ("cut manifest", lambda b: os.truncate(b / "manifest.json", 99), "the manifest is damaged"),
    (
        "another manifest",
        lambda b: (b / "manifest.json").write_text('{"format": 2}'),
        "not one that this localjudge",
    ),
    (
        "a name twice",
        lambda b: (b / "manifest.json").write_text('{"files": {"a": 1, "a": 2}}'),
        "the manifest is damaged: 'a' is given twice",
    ),
]


@pytest.mark.parametrize(("spoil", "says"), [bad[1:] for bad in BAD_FOLDERS], ids=[bad[0] for bad in BAD_FOLDERS])
def test_a_bad_folder_is_refused_with_the_file_named(
    folder: Path, spoil: Callable[[Path], object], says: str
) -> None:
    spoil(folder)
    with pytest.raises(BundleError) as caught:
        verify(folder)
    assert says in str(caught.value)


# The same in a tar


def rewrite(tar: Path, change: Callable[[dict[str, bytes | tarfile.TarInfo]], object]) -> None:
    """The tar written anew by Python's own tarfile. A TarInfo in bytes' place is put in as it is."""
    members: dict[str, bytes | tarfile.TarInfo] = {}
    with tarfile.open(tar) as old:
        for info in old:
            file = old.extractfile(info)
            assert file
            members[info.name] = file.read()
    change(members)
    with tarfile.open(tar, "w", format=tarfile.PAX_FORMAT) as new:
        for name, data in members.items():
            if isinstance(data, tarfile.TarInfo):
                new.addfile(data)
                continue
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), archive.mode_of(name)
            new.addfile(info, io.BytesIO(data))


def special(name: str, kind: bytes, to: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, to
    return info


def before(members: dict[str, bytes | tarfile.TarInfo], path: str, new: bytes | tarfile.TarInfo, name: str) -> None:
    items = list(members.items())
    members.clear()
    for key, value in items:
        if key == path:
            members[name] = new
        members[key] = value


EVIL = "evil"
BAD_TARS: list[tuple[str, Callable[[Path], object], str]] = [
    ("missing", lambda t: rewrite(t, lambda m: m.pop("data/records.jsonl")), "lacks data/records.jsonl"),
    ("missing last", lambda t: rewrite(t, lambda m: m.popitem()), "lacks wheels/outer-3.0-py3-none-any.whl"),
    (
        "extra",
        lambda t: rewrite(t, lambda m: before(m, "install", b"#!/bin/sh\n", "evil.sh")),
        "holds 'evil.sh', which the manifest does not name",
    ),
    (
        "extra at the end",
        lambda t: rewrite(t, lambda m: m.update({"z.sh": b"x"})),
        "holds 'z.sh', which the manifest",
    ),
    (
        "leads out",
        lambda t: rewrite(t, lambda m: before(m, "install", b"x", "../out.sh")),
        "holds '../out.sh', which leads outside the bundle",
    ),
    (
        "absolute",
        lambda t: rewrite(t, lambda m: before(m, "install", b"x", "/etc/cron.d/x")),
        "holds '/etc/cron.d/x', which is an absolute path",
    ),
    (
        "link",
        lambda t: rewrite(t, lambda m: m.update({"install": special("install", tarfile.SYMTYPE, "/etc/passwd")})),
        "holds 'install', a link to '/etc/passwd'",
    ),
    (
        "hard link",
        lambda t: rewrite(t, lambda m: m.update({"install": special("install", tarfile.LNKTYPE, "/etc/passwd")})),
        "holds 'install', a link to '/etc/passwd'",
    ),
    (
        "device",
        lambda t: rewrite(t, lambda m: m.update({"install": special("install", tarfile.CHRTYPE)})),
        "holds 'install', which is no plain file",
    ),
    (
        "other size",
        lambda t: rewrite(t, lambda m: m.update({"install": b"#!/bin/sh\n"})),
        "holds install with another size or other marks (10 bytes)",
    ),
    (
        "a first file that is no manifest",
        lambda t: rewrite(t, lambda m: before(m, "manifest.json", b"", "evil.sh")),
        "does not begin with a manifest",
    ),
    ("no tar", lambda t: t.write_bytes(b"hello" * 999), "does not begin with a manifest"),
    ("empty", lambda t: t.write_bytes(b""), "does not begin with a manifest"),
    ("more behind", lambda t: t.write_bytes(t.read_bytes() + t.read_bytes()), "goes on behind its end"),
]


@pytest.mark.parametrize(("spoil", "says"), [bad[1:] for bad in BAD_TARS], ids=[bad[0] for bad in BAD_TARS])
def test_a_bad_tar_is_refused_with_the_file_named(tar: Path, spoil: Callable[[Path], object], says: str) -> None:
    spoil(tar)
    with pytest.raises(BundleError) as caught:
        verify(tar)
    assert says in str(caught.value)


def test_wherever_a_tar_is_cut_or_a_byte_is_flipped_it_is_refused(whole: Whole, tar: Path) -> None:
    data = tar.read_bytes()
    names = {"manifest", "cut off", "is damaged", "lacks", "holds", "other bytes", "not a bundle", "no key"}
    for at in range(0, len(data), 997):
        os.truncate(tar, at)
        with pytest.raises(BundleError, match=r"cut off|not a bundle|manifest"):
            verify(tar)
        changed = bytearray(data)
        changed[at] ^= 1
        tar.write_bytes(changed)
        try:
            verify(tar)
        except BundleError as error:
            assert any(name in str(error) for name in names)
        else:
            assert _in_signature(data, at), "the one thing that no hash is of"
        tar.write_bytes(data)
    assert verify(tar).sha256 == whole["b.tar"].sha256


def _in_signature(data: bytes, at: int) -> bool:
    start = data.index(b"manifest.json.sig") + archive.BLOCK
    return start <= at < start + archive.BLOCK


def test_volumes_must_all_be_here(whole: Whole, tmp_path: Path) -> None:
    for file in whole["volumes.tar"].files:
        shutil.copy(file, tmp_path)
    (tmp_path / "volumes.tar.003").write_bytes(b"more")
    with pytest.raises(BundleError, match=r"volumes\.tar\.003 is here, but"):
        verify(tmp_path / "volumes.tar")
    (tmp_path / "volumes.tar.002").unlink()
    with pytest.raises(BundleError, match=r"volumes\.tar\.003 is here, but volumes\.tar\.002 is not"):
        verify(tmp_path / "volumes.tar.001")
    (tmp_path / "volumes.tar.003").unlink()
    with pytest.raises(BundleError, match="is cut off before install"):
        verify(tmp_path / "volumes.tar")
    with pytest.raises(BundleError, match="there is no such bundle"):
        verify(tmp_path / "nothing")


# Signatures


def test_a_wrong_key_and_a_changed_manifest_are_refused(
    make: Make, folder: Path, tar: Path, world: World, tmp_path: Path
) -> None:
    other, other_public = tmp_path / "other.pem", tmp_path / "other-public.pem"
    make_keys(other, other_public)
    for bundle in (folder, tar):
        with pytest.raises(BundleError, match="signed with another key"):
            verify(bundle, other_public)
    name_in_manifest(folder, "data/late.jsonl", b"{}")
    assert verify(folder).signed is False, "the hashes alone are those of a changed manifest"
    with pytest.raises(BundleError, match="or its manifest was changed"):
        verify(folder, world.public)
    (folder / "manifest.json.sig").unlink()
    with pytest.raises(BundleError, match="is not signed"):
        verify(folder, world.public)
    assert verify(folder).signed is None


def test_what_is_no_public_key_is_refused(folder: Path, world: World, tmp_path: Path) -> None:
    rsa = tmp_path / "rsa.pem"
    subprocess.run(["openssl", "genrsa", "-out", rsa, "1024"], check=True, capture_output=True)
    for key, says in [
        (world.key, "is a private key; verifying takes the public one"),
        (rsa, "is a private key"),
        (world.data, "holds no ed25519 public key"),
        (tmp_path / "none.pem", "there is no such key"),
    ]:
        with pytest.raises(BundleError, match=says):
            verify(folder, key)


def test_openssl_can_check_a_bundle_before_anything_is_installed(folder: Path, world: World) -> None:
    command = f"pkeyutl -verify -pubin -inkey {world.public} -rawin -in manifest.json -sigfile manifest.json.sig"
    done = subprocess.run(["openssl", *command.split()], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_without_cryptography_the_way_is_shown(folder: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    with pytest.raises(BundleError, match=r"pip install 'localjudge\[sign\]'.*openssl pkeyutl"):
        verify(folder, world.public)


def test_a_bundle_that_is_signed_can_be_checked_where_it_is_unpacked(whole: Whole) -> None:
    manifest = read((whole["b"].files[0] / "manifest.json").read_bytes(), "")
    assert manifest.target.extras == ["sign"]
    assert "lock" in {package.name for package in manifest.packages}
