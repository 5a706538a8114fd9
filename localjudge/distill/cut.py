"""A smaller student: the lower layers of a model, with its embeddings, last norm and head, as a model of its own.

Knows the safetensors format and how decoder layers are named; needs no torch. What is cut has everything to learn
again at its top: untrained, its answers mean nothing.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from localjudge.adapters import OWN, read_safetensors
from localjudge.embedded import BFloat16, bfloat16, write_json, write_safetensors
from localjudge.errors import ModelError, RunError
from localjudge.model_files import INDEX, read_json, weight_files
from localjudge.models import LocalModel
from localjudge.run.export import replacing

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def cut(model: LocalModel, layers: int, out: Path) -> Path:
    """Write the model's lowest `layers` layers to the folder `out`, in bfloat16. The folder is whole or absent.

    Raises ModelError for a model that has not more layers than that, or other ones than text's; RunError where
    something is in the way.
    """
    if out.exists():
        raise RunError("is there already", where=str(out), fix="give another -o")
    config = read_json(model.path / "config.json")
    depth = config.get("num_hidden_layers")
    if not isinstance(depth, int):
        raise ModelError("does not say how many layers it has, so none can be cut off", where=str(model.path))
    if not 0 < layers < depth:
        what = f"{model.name} has {depth} layers: {layers} of them are not fewer"
        raise ModelError(what, where="--layers", fix=f"give a number from 1 to {depth - 1}")
    with replacing(out) as folder:
        folder.mkdir()
        for file in model.path.iterdir():
            told = file.name in (*OWN, INDEX, "config.json")
            if file.suffix in (".json", ".jinja", ".model") and not told:
                shutil.copyfile(file, folder / file.name)
        write_json(folder / "config.json", _shorter(config, depth, layers))
        kept = (pair for shard in weight_files(model.path) for pair in _kept(shard, layers))
        write_safetensors(folder / "model.safetensors", kept)
    return out


def _shorter(config: dict[str, Any], depth: int, layers: int) -> dict[str, Any]:
    """The configuration for fewer layers: what it lists a layer is cut as well."""
    cut = {
        key: value[:layers] if isinstance(value, list) and len(value) == depth else value
        for key, value in config.items()
    }
    dtype = "torch_dtype" if "torch_dtype" in config else "dtype"
    return {**cut, "num_hidden_layers": layers, dtype: "bfloat16"}


def _kept(shard: Path, layers: int) -> Iterator[tuple[str, BFloat16]]:
    for name, (dtype, raw) in read_safetensors(shard).items():
        layer = _LAYER.search(name)
        if layer is None or int(layer[1]) < layers:
            yield name, raw if dtype == "BF16" else bfloat16(raw.astype("float32"))
