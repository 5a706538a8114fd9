"""A LoRA adapter and the model it was trained on become one folder that every engine reads.

Knows the two files of an adapter, as peft writes them, and the safetensors format; neither cards nor caches.
Needs no torch: W + scale * B @ A is summed in float64 and then rounded to bfloat16, so that the same two inputs
make the same bytes on every machine, whatever its BLAS does with the order of a sum.
"""

from __future__ import annotations

import json
import math
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localjudge.embedded import BFloat16, bfloat16, write_json, write_safetensors
from localjudge.errors import ModelError
from localjudge.model_files import INDEX, MANIFEST, read_json, weight_files

WEIGHTS = "adapter.safetensors"
CONFIG = "adapter_config.json"
PROVENANCE = "distill.json"
EVALUATION = "evaluation.json"
OWN = (MANIFEST, PROVENANCE, EVALUATION)
"""What is told of a model itself, and not of what is made of it."""

_DTYPES = {"BF16": "<u2", "F16": "<f2", "F32": "<f4"}
_HARMLESS = {
    *("task_type", "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision"),
    *("inference_mode", "r", "target_modules", "exclude_modules", "lora_alpha", "lora_dropout", "use_rslora"),
    *("init_lora_weights", "layers_to_transform", "layers_pattern", "megatron_core", "qalora_group_size"),
}
"""What of peft's configuration changes nothing in how the two matrices are merged, or is looked at."""

_PREFIX = "base_model.model."
_BESIDE = {".json", ".jinja", ".model"}
_ROWS = 4096
"""Rows of a matrix that are summed at a time."""

Lora = dict[str, tuple[NDArray[np.float32], NDArray[np.float32]]]


def merge(adapter: Path, base: Path, out: Path) -> None:
    """Write into `out`, which exists, the base with the adapter in its weights: bfloat16 safetensors under the
    base's own file names, and its tokenizer, chat template and configuration.

    adapter: a folder of adapter.safetensors and adapter_config.json. Raises ModelError for anything but plain LoRA
    on matrices that the base has: it would be merged wrongly in silence.
    """
    scale = scale_of(adapter / CONFIG)
    left = lora_of(adapter / WEIGHTS)
    shards = weight_files(base)
    for shard in shards:
        write_safetensors(out / shard.name, _merged(shard, left, scale))
    if left:
        raise ModelError(
            f"changes {_named(left)}, which this base does not have",
            where=str(adapter / WEIGHTS),
            fix="merge it into the model that it was trained on",
        )
    for file in base.iterdir():
        if file.suffix in _BESIDE and file.name not in (*OWN, "config.json"):
            shutil.copyfile(file, out / file.name)
    if (base / INDEX).is_file():
        index = read_json(base / INDEX)
        write_json(out / INDEX, {**index, "metadata": {"total_size": sum(map(_size, shards))}})
    config = read_json(base / "config.json")
    write_json(out / "config.json", {**config, ("torch_dtype" if "torch_dtype" in config else "dtype"): "bfloat16"})


def scale_of(config_file: Path) -> float:
    """What B @ A is multiplied by. Raises ModelError for a configuration that asks for more than that."""
    config = read_json(config_file)
    fix = "merge it with peft itself (merge_and_unload), and give the merged folder"
    more = [
        key for key, value in config.items() if key not in _HARMLESS and value not in (None, False, "none", {}, [])
    ]
    if config.get("peft_type") != "LORA" or config.get("init_lora_weights") not in (None, True, False, "gaussian"):
        more.insert(0, "peft_type" if config.get("peft_type") != "LORA" else "init_lora_weights")
    if more:
        told = ", ".join(f"{key}: {json.dumps(config.get(key))}" for key in more)
        raise ModelError(f"is more than plain LoRA ({told})", where=str(config_file), fix=fix)
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, int | float):
        raise ModelError(f"has no rank and alpha (r: {rank!r}, lora_alpha: {alpha!r})", where=str(config_file))
    return float(alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank)


def lora_of(file: Path) -> Lora:
    """The base's tensor -> (A, B), of shapes (rank, in) and (out, rank). Raises ModelError."""
    halves: dict[str, dict[str, NDArray[np.float32]]] = {}
    for name, (dtype, raw) in read_safetensors(file).items():
        module, dot, which = name.removesuffix(".weight").rpartition(".lora_")
        if not (dot and which in ("A", "B") and name.startswith(_PREFIX) and raw.ndim == 2):
            raise ModelError(f"holds '{name}', which is not a LoRA matrix as peft names it", where=str(file))
        halves.setdefault(f"{module.removeprefix(_PREFIX)}.weight", {})[which] = _float32(dtype, raw)
    for name, both in halves.items():
        if set(both) != {"A", "B"} or both["A"].shape[0] != both["B"].shape[1]:
            raise ModelError(f"has not a fitting A and B for {name}", where=str(file))
    if not halves:
        raise ModelError("holds no matrices", where=str(file))
    return {name: (both["A"], both["B"]) for name, both in halves.items()}


def read_safetensors(file: Path) -> dict[str, tuple[str, NDArray[Any]]]:
    """Tensor -> (dtype, its values as they lie on the disk, bfloat16 as uint16), mapped, not read. Raises
    ModelError."""
    where = str(file)
    try:
        mapped = np.memmap(file, np.uint8, "r")
        length = struct.unpack("<Q", bytes(mapped[:8]))[0]
        header = json.loads(bytes(mapped[8 : 8 + length]))
        header.pop("__metadata__", None)
        if other := next((of["dtype"] for of in header.values() if of["dtype"] not in _DTYPES), None):
            raise ModelError(
                f"holds numbers of type {other}; bfloat16, float16 and float32 can be merged", where=where
            )
        return {
            name: (
                of["dtype"],
                np.ndarray(of["shape"], _DTYPES[of["dtype"]], mapped, 8 + length + of["data_offsets"][0]),
            )
            for name, of in header.items()
        }
    except FileNotFoundError:
        raise ModelError("there is no such file", where=where) from None
    except (ValueError, KeyError, TypeError, AttributeError, struct.error):
        raise ModelError("is not a whole safetensors file", where=where, fix="copy it again") from None


def _merged(shard: Path, left: Lora, scale: float) -> Iterator[tuple[str, BFloat16]]:
    """A shard's tensors in their order, in bfloat16. Takes what it merges out of `left`."""
    for name, (dtype, raw) in read_safetensors(shard).items():
        both = left.pop(name, None)
        if both is None:
            yield name, raw if dtype == "BF16" else bfloat16(_float32(dtype, raw))
            continue
        a, b = both
        if raw.shape != (b.shape[0], a.shape[1]):
            told = f"{list(raw.shape)}, where the adapter changes {[b.shape[0], a.shape[1]]}"
            raise ModelError(f"{name} is {told}", where=str(shard), fix="take the base that it was trained on")
        merged = np.empty(raw.shape, "<u2")
        wide = a.astype(np.float64)
        for start in range(0, len(merged), _ROWS):
            rows = slice(start, start + _ROWS)
            total = _float32(dtype, raw[rows]) + scale * (b[rows].astype(np.float64) @ wide)
            merged[rows] = bfloat16(total.astype(np.float32))
        yield name, merged


def _float32(dtype: str, raw: NDArray[Any]) -> NDArray[np.float32]:
    if dtype == "BF16":
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.astype(np.float32)


def _size(shard: Path) -> int:
    """Bytes of a shard's tensors in bfloat16."""
    return sum(2 * raw.size for _, raw in read_safetensors(shard).values())


def _named(left: Lora) -> str:
    first, *others = sorted(left)
    return f"{first} and {len(others)} others" if others else first
