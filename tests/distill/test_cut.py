"""The lower layers of a model are a model: its own hidden states, and what every engine opens."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from localjudge.adapters import read_safetensors
from localjudge.distill.cut import cut
from localjudge.errors import ModelError, RunError
from localjudge.models import LocalModel, find_model
from tests.tiny import tiny_model


@pytest.fixture
def whole(embedded: LocalModel, tmp_path: Path) -> LocalModel:
    return tiny_model(tmp_path / "whole", num_hidden_layers=3, layer_types=["full_attention"] * 3)


def test_what_is_cut_is_the_lower_layers_of_the_model_bit_for_bit(whole: LocalModel, tmp_path: Path) -> None:
    (whole.path / "distill.json").write_text("{}")
    out = cut(whole, 2, tmp_path / "cut")
    small = find_model(str(out))
    config = json.loads((out / "config.json").read_text())
    assert (config["num_hidden_layers"], config["layer_types"]) == (2, ["full_attention"] * 2)
    before, after = (read_safetensors(m.path / "model.safetensors") for m in (whole, small))
    assert before.keys() - after.keys() == {name for name in before if ".layers.2." in name} != set()
    assert all(np.array_equal(values, before[name][1]) for name, (_, values) in after.items())
    assert not (out / "distill.json").exists(), "what the whole model learnt is not said of it"
    assert small.template_hash == whole.template_hash and small.fingerprint != whole.fingerprint


def test_its_states_are_those_of_the_whole_model_half_way(whole: LocalModel, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    ids = torch.tensor([[5, 6, 7, 8]])
    states = []
    for path in (whole.path, cut(whole, 1, tmp_path / "cut")):
        model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        first = model.model.layers[0]
        seen: list[object] = []
        first.register_forward_hook(lambda _, __, out, seen=seen: seen.append(out))
        with torch.no_grad():
            model(ids)
        states.append(seen[0])
        assert len(model.model.layers) == (3 if path == whole.path else 1)
    assert torch.equal(*states)


@pytest.mark.parametrize("layers", [0, 3, 40])
def test_a_model_is_cut_to_fewer_layers_than_it_has(whole: LocalModel, tmp_path: Path, layers: int) -> None:
    with pytest.raises(ModelError, match="has 3 layers") as error:
        cut(whole, layers, tmp_path / "cut")
    assert error.value.fix == "give a number from 1 to 2"
    assert not (tmp_path / "cut").exists()


def test_what_lies_there_is_left_alone(whole: LocalModel, tmp_path: Path) -> None:
    (tmp_path / "cut").mkdir()
    with pytest.raises(RunError, match="is there already"):
        cut(whole, 1, tmp_path / "cut")


def test_a_model_that_says_not_how_deep_it_is_is_not_cut(whole: LocalModel, tmp_path: Path) -> None:
    config = json.loads((whole.path / "config.json").read_text())
    (whole.path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": None}))
    with pytest.raises(ModelError, match="how many layers"):
        cut(whole, 1, tmp_path / "cut")
