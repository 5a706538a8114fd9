"""An adapter beside its card is a model like any other: merged as peft merges, once, and only into its own base."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localjudge import adapters, models
from localjudge.adapters import CONFIG, OWN, WEIGHTS, merge, read_safetensors, scale_of
from localjudge.airgap.bundle import Request, _Contents
from localjudge.airgap.manifest import Target
from localjudge.distill.card import publish
from localjudge.embedded import bfloat16, write_safetensors
from localjudge.errors import ModelError, RunError
from localjudge.model_files import MANIFEST, fingerprint, hash_weights
from localjudge.models import LocalModel, cards, find_model
from localjudge.paths import data_dir
from tests.tiny import tiny_model

PLAIN = {
    "peft_type": "LORA",
    "r": 4,
    "lora_alpha": 8,
    "lora_dropout": 0.05,
    "bias": "none",
    "task_type": "CAUSAL_LM",
}
CHANGED = ("layers.1.self_attn.q_proj", "layers.1.mlp.down_proj", "layers.0.mlp.up_proj")


def values(file: Path, name: str) -> np.ndarray[Any, Any]:
    return adapters._float32(*read_safetensors(file)[name])


def write_adapter(
    folder: Path, base: Path, *, seed: int = 0, names: tuple[str, ...] = CHANGED, **config: Any
) -> Path:
    """Random matrices of rank 4, as peft would have saved them."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    shapes = {name: raw.shape for name, (_, raw) in read_safetensors(base / "model.safetensors").items()}
    tensors = []
    for name in names:
        out, into = shapes[f"model.{name}.weight"]
        for which, shape in (("A", (4, into)), ("B", (out, 4))):
            stored = bfloat16(random.normal(0, 0.2, shape).astype(np.float32))
            tensors.append((f"base_model.model.model.{name}.lora_{which}.weight", stored))
    write_safetensors(folder / WEIGHTS, tensors)
    (folder / CONFIG).write_text(json.dumps({**PLAIN, **config}))
    return folder


CARD = """\
name: told
title: A tiny judge that was taught
licence: Apache-2.0
source:
  adapter:
    base: tiny-base
    base_weights: {weights}
    sha256: {sha256}
parameters: 3M
context: 2048
memory_gib_bf16: 0.01
languages: English
"""
BASE = """\
name: tiny-base
title: Tiny
licence: Apache-2.0
source: {hub: me/tiny-base}
parameters: 3M
context: 2048
memory_gib_bf16: 0.01
languages: English
"""


@pytest.fixture(scope="module")
def tiny(embedded: LocalModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("adapters") / "tiny-base").path


@pytest.fixture
def home(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user with a base and, among the package's models, an adapter of it."""
    monkeypatch.setenv("LOCALJUDGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(models, "data_dir", lambda kind: tmp_path / kind)
    shutil.copytree(tiny, tmp_path / "cache" / "models" / "tiny-base")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tiny-base.yaml").write_text(BASE)
    ship(tmp_path, tiny)
    return tmp_path


def ship(home: Path, base: Path, **adapter: Any) -> Path:
    folder = write_adapter(home / "models" / "told", base, **adapter)
    sha256 = hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
    (folder / models.CARD).write_text(CARD.format(weights=hash_weights(base), sha256=sha256))
    return folder


def test_its_name_is_enough(home: Path, tiny: Path) -> None:
    assert list(cards()) == ["tiny-base", "told"]
    assert "merged when it is first asked for" in str(models.whereabouts(cards()["told"]))
    found = find_model("told")
    assert (found.name, found.card, found.context) == ("told", cards()["told"], 2048)
    assert found.path == home / "cache" / "models" / "told"
    assert models.whereabouts(found.card) == str(found.path)
    base = find_model("tiny-base")
    assert found.template_hash == base.template_hash
    assert found.fingerprint != base.fingerprint
    before = (found.path / "model.safetensors").stat().st_mtime_ns
    assert find_model("told") == find_model(str(home / "models" / "told")) == found
    assert (found.path / "model.safetensors").stat().st_mtime_ns == before
    shutil.rmtree(home / "cache" / "models" / "tiny-base")
    assert find_model("told") == found, "once merged, the base may go"


def test_what_is_merged_is_w_plus_scale_b_a(home: Path, tiny: Path) -> None:
    made = find_model("told").path / "model.safetensors"
    assert list(read_safetensors(made)) == list(read_safetensors(tiny / "model.safetensors"))
    adapter = home / "models" / "told" / WEIGHTS
    for name in read_safetensors(made):
        was, now = values(tiny / "model.safetensors", name), values(made, name)
        module = f"base_model.model.{name.removesuffix('.weight')}"
        if any(name == f"model.{changed}.weight" for changed in CHANGED):
            a, b = (values(adapter, f"{module}.lora_{which}.weight") for which in "AB")
            assert np.abs(now - (was + 2 * b @ a)).max() <= np.abs(now).max() / 256
            assert not np.array_equal(now, was)
        else:
            assert np.array_equal(now, was)


def test_what_was_measured_of_the_base_is_not_told_of_what_is_made_of_it(tiny: Path, tmp_path: Path) -> None:
    base = Path(shutil.copytree(tiny, tmp_path / "base"))
    for name in OWN:
        (base / name).write_text("{}")
    (tmp_path / "out").mkdir()
    merge(write_adapter(tmp_path / "adapter", base), base, tmp_path / "out")
    assert not {path.name for path in (tmp_path / "out").iterdir()} & set(OWN)


def test_it_is_what_peft_merges(tiny: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    config = peft.LoraConfig(
        r=4, lora_alpha=8, target_modules=["q_proj", "o_proj", "down_proj"], layers_to_transform=[1]
    )
    learnt = peft.get_peft_model(model, config)
    torch.manual_seed(1)
    for name, parameter in learnt.named_parameters():
        if ".lora_" in name:
            parameter.data = (0.2 * torch.randn_like(parameter)).bfloat16().float()
    learnt.save_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / "adapter_model.safetensors").rename(tmp_path / "saved" / WEIGHTS)
    (tmp_path / "merged").mkdir()
    merge(tmp_path / "saved", tiny, tmp_path / "merged")
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.bfloat16)
    theirs = learnt.merge_and_unload().bfloat16()
    own = dict(ours.named_parameters())
    for name, parameter in theirs.named_parameters():
        apart = own[name].float() - parameter.float()
        # A sum in float32 may round to the other side of a tie.
        assert (apart.abs() > 0).float().mean() < 1e-3, name
        assert apart.abs().max() <= parameter.float().abs().max() / 128


def test_two_processes_that_ask_at_once_get_one_whole_folder(home: Path) -> None:
    found: list[LocalModel] = []
    both = [threading.Thread(target=lambda: found.append(find_model("told"))) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert found[0] == found[1]
    assert sorted(file.name for file in (home / "cache" / "models").iterdir() if file.is_dir()) == [
        "tiny-base",
        "told",
    ]


def test_another_release_of_the_adapter_is_merged_anew(home: Path, tiny: Path) -> None:
    first = find_model("told")
    ship(home, tiny, seed=1)
    second = find_model("told")
    assert second.fingerprint != first.fingerprint
    (second.path / "model.safetensors").write_bytes(b"torn")
    assert find_model("told") == second


def test_a_base_that_is_not_here_is_named_with_the_way_to_get_it(home: Path) -> None:
    shutil.rmtree(home / "cache" / "models" / "tiny-base")
    assert models.whereabouts(cards()["told"]) is None
    with pytest.raises(ModelError) as told:
        find_model("told")
    assert "told is an adapter, and needs its base: tiny-base is not on this machine" in str(told.value)
    assert "hf download me/tiny-base" in str(told.value)
    assert "told is an adapter; its base: " in models.how_to_get(cards()["told"])
    assert not list((home / "cache" / "models").glob("told*"))


def test_a_base_of_other_weights_is_refused(home: Path) -> None:
    weights = home / "cache" / "models" / "tiny-base" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(ModelError, match="was trained on other weights of tiny-base than these"):
        find_model("told")


def test_an_adapter_that_is_not_the_card_s_is_refused(home: Path, tiny: Path) -> None:
    write_adapter(home / "models" / "told", tiny, seed=5)
    with pytest.raises(ModelError, match="is not the adapter that its card names"):
        find_model("told")
    (home / "models" / "told" / WEIGHTS).unlink()
    with pytest.raises(ModelError, match=r"adapter\.safetensors is missing"):
        find_model("told")


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"use_dora": True}, "more than plain LoRA (use_dora: true)"),
        ({"alpha_pattern": {"q_proj": 4}}, 'alpha_pattern: {"q_proj": 4}'),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, 'bias: "all"'),
        ({"init_lora_weights": "pissa"}, 'init_lora_weights: "pissa"'),
        ({"peft_type": "IA3"}, 'peft_type: "IA3"'),
        ({"r": 0}, "has no rank and alpha"),
    ],
)
def test_more_than_plain_lora_is_refused(tmp_path: Path, config: dict[str, Any], says: str) -> None:
    (tmp_path / CONFIG).write_text(json.dumps({**PLAIN, **config}))
    with pytest.raises(ModelError) as told:
        scale_of(tmp_path / CONFIG)
    assert says in str(told.value)


def test_the_scale_is_alpha_over_rank_or_over_its_root(tmp_path: Path) -> None:
    for rslora, scale in ((False, 2), (True, 4)):
        (tmp_path / CONFIG).write_text(json.dumps({**PLAIN, "use_rslora": rslora}))
        assert scale_of(tmp_path / CONFIG) == scale


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        (
            {"layers.9.mlp.up_proj.lora_": ((4, 64), (128, 4))},
            "which this base does not have",
        ),
        ({"layers.0.mlp.up_proj.lora_": ((4, 60), (128, 4))}, "where the adapter changes"),
        ({"layers.0.mlp.up_proj.lora_": ((4, 64), (128, 3))}, "not a fitting A and B"),
        ({"embed_tokens.lora_embedding_": ((4, 64), (128, 4))}, "not a LoRA matrix"),
        ({}, "holds no matrices"),
    ],
)
def test_matrices_that_do_not_fit_are_refused(tiny: Path, tmp_path: Path, tensors: Any, says: str) -> None:
    (tmp_path / CONFIG).write_text(json.dumps(PLAIN))
    ones = [
        (f"base_model.model.model.{name}{which}.weight", bfloat16(np.ones(shape, np.float32)))
        for name, shapes in tensors.items()
        for which, shape in zip("AB", shapes, strict=True)
    ]
    write_safetensors(tmp_path / WEIGHTS, ones)
    (tmp_path / "out").mkdir()
    with pytest.raises(ModelError, match=says):
        merge(tmp_path, tiny, tmp_path / "out")


def test_a_base_of_two_files_in_float32_becomes_two_in_bfloat16(tiny: Path, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    split, whole = tmp_path / "split", tmp_path / "whole"
    shutil.copytree(tiny, split)
    (split / "model.safetensors").unlink()
    (split / "config.json").write_text(
        json.dumps({**json.loads((tiny / "config.json").read_text()), "dtype": "float32"})
    )
    tensors = {
        name: values(tiny / "model.safetensors", name) for name in read_safetensors(tiny / "model.safetensors")
    }
    names = sorted(tensors)
    places = {}
    for part, own in enumerate((names[:5], names[5:]), 1):
        file = f"model-0000{part}-of-00002.safetensors"
        safetensors.save_file({name: tensors[name] for name in own}, split / file)
        places |= dict.fromkeys(own, file)
    (split / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    adapter = write_adapter(tmp_path / "adapter", tiny)
    for base, out in ((split, tmp_path / "out"), (tiny, whole)):
        out.mkdir()
        merge(adapter, base, out)
    assert find_model(str(tmp_path / "out")).architecture == "LlamaForCausalLM"
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    for name in names:
        assert np.array_equal(
            values(tmp_path / "out" / places[name], name), values(whole / "model.safetensors", name)
        )


def test_a_torn_adapter_is_told(tiny: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "adapter", tiny)
    data = (adapter / WEIGHTS).read_bytes()
    for torn in (data[:100], data[:-100], b""):
        (adapter / WEIGHTS).write_bytes(torn)
        with pytest.raises(ModelError, match="not a whole safetensors file"):
            adapters.lora_of(adapter / WEIGHTS)


def test_the_manifest_tells_what_it_is_made_of(home: Path) -> None:
    made = json.loads((find_model("told").path / MANIFEST).read_text())
    assert made["made_from"]["base"] == "tiny-base"
    assert set(made["files"]) >= {"model.safetensors", "tokenizer.json", "config.json"}


def test_a_bundle_carries_it_merged(home: Path, tmp_path: Path) -> None:
    target = Target(python="3.12", platform="manylinux_2_34_x86_64", extras=[])
    contents = _Contents.of(Request(tmp_path / "b.tar", target, models=["told"]))
    [carried] = contents.models
    assert (carried.name, carried.folder) == ("told", "models/told")
    assert carried.fingerprint == find_model("told").fingerprint
    assert "models/told/model.safetensors" in {member.path for member in contents.members}


def test_what_is_shipped_fits_the_embedded_model(embedded: LocalModel) -> None:
    for card in cards().values():
        if (adapter := card.source.adapter) is None:
            continue
        folder = data_dir("models") / card.name
        assert (adapter.base, adapter.base_weights) == ("smollm2-135m", hash_weights(embedded.path))
        assert hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest() == adapter.sha256
        assert (folder / WEIGHTS).stat().st_size <= 10_000_000
        assert scale_of(folder / CONFIG) > 0
        assert adapters.lora_of(folder / WEIGHTS)
        told = "".join((folder / name).read_text() for name in ("README.md", "distill.json", CONFIG))
        assert "/work/" not in told and "/home/" not in told and "/root/" not in told


# From a training's folder to a model


def test_a_trained_adapter_becomes_a_model_by_its_name(home: Path, tiny: Path, tmp_path: Path) -> None:
    trained = write_adapter(tmp_path / "trained", tiny, seed=3, base_model_name_or_path="/home/me/tiny")
    told = {"student": "tiny-base", "settings": {"epochs": 2}, "teachers": [{"run": "/home/me/runs/big"}]}
    (trained / "distill.json").write_text(json.dumps(told))
    out = publish(trained, home / "models" / "learnt", "tiny-base", title="Learnt", notes="For a test.")
    card = cards()["learnt"]
    assert (card.title, card.licence, card.context) == ("Learnt", "Apache-2.0", 2048)
    found = find_model("learnt")
    assert found.card == card
    assert find_model(str(out)) == found
    assert json.loads((out / CONFIG).read_text())["base_model_name_or_path"] == "tiny-base"
    text = (out / "README.md").read_text()
    assert text.startswith("---\nlicense: apache-2.0\nbase_model: tiny-base\n")
    for part in ("# Learnt", "For a test.", "-m learnt", "## Recipe", "epochs", "| big"):
        assert part in text
    assert "/home/me" not in text + (out / "distill.json").read_text()
    for told in ("distill.json", "evaluation.json"):
        (found.path / told).write_text("{}")
    assert fingerprint(found.path) == found.fingerprint, "what is told of a model changes no answer"


def test_what_is_no_adapter_is_not_made_a_model(home: Path, tiny: Path, tmp_path: Path) -> None:
    trained = write_adapter(tmp_path / "trained", tiny)
    with pytest.raises(ModelError, match=r"has no distill\.json, so it is not a trained adapter"):
        publish(trained, home / "models" / "learnt", "tiny-base", title="Learnt")
    (trained / "distill.json").write_text("{}")
    (home / "models" / "other").mkdir()
    with pytest.raises(RunError, match="is in the way, and no model's folder"):
        publish(trained, home / "models" / "other", "tiny-base", title="Learnt")
    write_adapter(trained, tiny, use_dora=True)
    with pytest.raises(ModelError, match="more than plain LoRA"):
        publish(trained, home / "models" / "learnt", "tiny-base", title="Learnt")
    assert not (home / "models" / "learnt").exists()
