"""The doctor names what is wrong with a machine and how to mend it, and says yes to one that is well."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from localjudge.airgap import doctor
from localjudge.airgap.doctor import GIB, Finding, Gpu
from localjudge.models import LocalModel
from tests.conftest import thorough
from tests.test_models import folder as model_folder

SCRIPT = Path(sys.executable).with_name("localjudge")


def call(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    whole = {**os.environ, **env}
    return subprocess.run([SCRIPT, *words], env=whole, capture_output=True, text=True, timeout=300, check=False)


def test_this_machine_is_examined_without_loading_anything(tmp_path: Path) -> None:
    code = (
        "import sys; from localjudge.airgap import doctor; found = doctor.examine(); "
        "print(sorted({'torch', 'vllm', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n"


def test_it_is_told_to_people_and_to_programs(tmp_path: Path) -> None:
    cache = {"LOCALJUDGE_CACHE": str(tmp_path), "HF_HOME": str(tmp_path)}
    said = call("doctor", **cache)
    assert (said.returncode, said.stderr) == (0, "")
    assert "models       none that has a card is here" in said.stdout
    assert "fix: `localjudge models` lists good ones" in said.stdout
    found = json.loads(call("doctor", "--json", **cache).stdout)
    assert found["broken"] is False
    abouts = [finding["about"] for finding in found["findings"]]
    assert {"python", "localjudge", "engines", "gpu", "memory", "models", "cache", "network"} <= set(abouts)
    assert all(set(finding) == {"about", "state", "what", "fix"} for finding in found["findings"])
    [network] = [finding for finding in found["findings"] if finding["about"] == "network"]
    assert network["state"] == "ok", "the guard was tried, and refused"


def test_what_is_broken_makes_it_fail(tmp_path: Path) -> None:
    model_folder(tmp_path / "models" / "qwen3-8b", auto_map={"AutoModel": "evil.Model"})
    refused = {"at": "2026-11-30T10:00:00+00:00", "who": "vllm < __main__", "address": "8.8.8.8:80"}
    (tmp_path / "refused.jsonl").write_text(f"{json.dumps(refused)}\n" * 2 + '{"at": "20')
    done = call("doctor", LOCALJUDGE_CACHE=str(tmp_path), VLLM_CACHE_ROOT="/dev/null/cache", HF_HUB_OFFLINE="0")
    assert done.returncode == 1
    assert "broken   models       qwen3-8b:" in done.stdout
    assert "has an auto_map" in done.stdout
    assert "broken   vLLM cache   /dev/null/cache cannot be written to" in done.stdout
    assert "fix: name another folder: export VLLM_CACHE_ROOT=" in done.stdout
    assert "refused lately: vllm < __main__ to 8.8.8.8:80 on 2026-11-30 (all: " in done.stdout
    assert "HF_HUB_OFFLINE of this environment will not count" in done.stdout


def test_packages_of_the_wrong_release_are_named_with_the_right_one() -> None:
    lines = [
        "pydantic>=2.10",
        "numpy>=99",
        "no-such-package>=1",
        'elsewhere>=1; sys_platform == "win32"',
        "pydantic<1; extra == 'dev'",
        "pytest<1; extra == 'vllm' and sys_platform == 'linux'",
        "pyyaml<1; extra == 'vllm' and sys_platform == 'win32'",
        "no-such-engine>=1; extra == 'vllm'",
    ]
    found = {finding.what.split()[0]: finding for finding in doctor.misfits(lines, ["vllm"])}
    assert set(found) == {"numpy", "no-such-package", "pytest"}
    assert all(finding.state == "broken" for finding in found.values())
    assert found["numpy"].fix == "pip install 'numpy>=99'"
    assert "is not here; localjudge works with >=1" in found["no-such-package"].what


def test_a_vllm_that_the_plugin_does_not_know_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.vllm_plugin, "vllm_version", lambda: "0.99.0")
    found = doctor.engines()
    assert (found.state, found.fix) == ("broken", "install vLLM 0.32.* or 0.33.*")
    monkeypatch.setattr(doctor.vllm_plugin, "vllm_version", lambda: None)
    found = doctor.engines()
    assert found.state == "missing"
    assert "localjudge[vllm]" in str(found.fix)


def test_a_broken_torchvision_is_found_with_its_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torchvision").mkdir()
    init = tmp_path / "torchvision" / "__init__.py"
    init.write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = doctor.torchvision()
    assert found
    assert found.state == "broken"
    assert "operator torchvision::nms does not exist" in found.what
    assert found.fix
    assert found.fix.startswith("pip uninstall -y torchvision torchaudio torchcodec")
    init.write_text("")
    found = doctor.torchvision()
    assert found
    assert found.state == "ok"


SMI = """#!/bin/sh
if [ $# = 0 ]; then
    echo '| NVIDIA-SMI 580.65.06    Driver Version: 580.65.06    CUDA Version: 13.0 |'
else
    echo 'NVIDIA H200, 143771, 143000'
    echo 'NVIDIA H200, Graphics, 143771, 71000'
fi
"""


def test_gpus_are_read_from_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    gpus, driver = doctor.find_gpus()
    assert driver == "13.0"
    assert [gpu.total for gpu in gpus] == [143771 << 20] * 2
    assert (gpus[1].name, gpus[1].free) == ("NVIDIA H200, Graphics", 71000 << 20)
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'has failed because it could not communicate'; exit 9\n")
    assert doctor.find_gpus() == ([], "")


@pytest.mark.parametrize(
    ("torch", "cuda", "driver", "state", "says"),
    [
        ("2.14.0", "13.0", "13.0", "ok", "GPU X (20 of 24 GiB free); the driver runs CUDA 13.0"),
        ("2.14.0", "12.9", "13.0", "ok", ""),
        ("2.14.0", "13.0", "12.4", "broken", "this torch needs CUDA 13.0"),
        ("2.13.0+cpu", None, "13.0", "broken", "is a CPU build"),
        (None, None, "13.0", "ok", ""),
    ],
)
def test_gpu_driver_and_torch_must_go_together(
    monkeypatch: pytest.MonkeyPatch, torch: str | None, cuda: str | None, driver: str, state: str, says: str
) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: torch if name == "torch" else None)
    monkeypatch.setattr(doctor, "_torch_cuda", lambda: cuda)
    found = doctor.graphics([Gpu(name="GPU X", total=24 * GIB, free=20 * GIB)], driver)
    assert found.state == state
    assert says in found.what
    assert (found.fix is None) is (state == "ok")


def test_the_cuda_of_the_torch_that_is_here_is_read_without_importing_it() -> None:
    pytest.importorskip("torch")
    code = (
        "import sys; from localjudge.airgap.doctor import _torch_cuda; told = _torch_cuda(); "
        "assert 'torch' not in sys.modules; import torch; print(told == torch.version.cuda)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "True\n"


def test_room_is_counted_as_the_engines_take_it() -> None:
    def gpu(gib: int) -> Gpu:
        return Gpu(name="GPU", total=gib * GIB, free=gib * GIB)

    assert doctor.room_for_weights([], 26 * GIB) == pytest.approx(24 / 1.2)
    one = doctor.room_for_weights([gpu(80)], 0)
    assert one == pytest.approx((72 - 2) / 1.2)
    assert doctor.room_for_weights([gpu(80)] * 3, 0) == pytest.approx(2 * one), "a power of two of them"
    assert doctor.room_for_weights([gpu(80), gpu(24)], 0) == pytest.approx(2 * (21.6 - 2) / 1.2), "the smallest"
    assert doctor.room_for_weights([], GIB) == 0


def test_the_cards_that_fit_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_memory", lambda: (32 * GIB, 24 * GIB))
    found = doctor.memory([])
    assert found.state == "ok"
    fit, large = found.what.split("too large:")
    assert "qwen3-8b" in fit
    assert "qwen3-32b (61.1 GiB)" in large
    monkeypatch.setattr(doctor, "_memory", lambda: (2 * GIB, 2 * GIB))
    assert doctor.memory([]).state == "broken"


def test_a_full_disk_and_one_that_cannot_be_written_to_are_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doctor.disk("cache", tmp_path / "not" / "made" / "yet", "X").state == "ok"
    assert not (tmp_path / "not").exists(), "the doctor changes nothing"
    (tmp_path / "file").write_text("")
    assert doctor.disk("cache", tmp_path / "file" / "cache", "X").state == "broken"
    usage = doctor.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage._replace(free=GIB // 2))
    found = doctor.disk("cache", tmp_path, "LOCALJUDGE_CACHE")
    assert found.state == "broken"
    assert "0.5 GiB free" in found.what
    assert "export LOCALJUDGE_CACHE=" in str(found.fix)


def test_findings_are_printed_with_their_fixes() -> None:
    text = doctor.as_text([Finding(about="gpu", state="broken", what="old driver", fix="a new one")])
    assert text == "broken   gpu          old driver\n                      fix: a new one"


@pytest.mark.vllm
@thorough
def test_deep_has_a_real_model_judge(random_model: LocalModel, tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    done = call("doctor", "--deep", "-m", str(random_model.path), "--json")
    [deep] = [finding for finding in json.loads(done.stdout)["findings"] if finding["about"] == "deep"]
    assert deep["state"] == "ok", deep
    assert "with vllm gave a valid verdict" in deep["what"]
    done = call("doctor", "--deep", "-m", str(tmp_path))
    assert done.returncode == 1
    assert "has no config.json" in done.stdout
