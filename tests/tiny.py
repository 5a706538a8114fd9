"""A small Llama of random weights with the embedded model's own tokenizer: loads fast and knows nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from localjudge.embedded import bfloat16, write_json, write_safetensors
from localjudge.models import LocalModel, find_model

SIZE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 2048,
}


SWITCH = "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
OPENED = "{{ '<think>\\n' }}"


def give_thoughts(path: Path, template: str) -> None:
    """Give a model's tokenizer the tags <think> and </think>, in the place of two control tokens that no template
    uses, and let its chat template end with `template`."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (path / name).read_text(encoding="utf-8")
        (path / name).write_text(text.replace("<repo_name>", "<think>").replace("<reponame>", "</think>"))
    settings = json.loads((path / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings["chat_template"] = settings["chat_template"].removesuffix("{% endif %}") + template + "{% endif %}"
    write_json(path / "tokenizer_config.json", settings)


def tiny_model(path: Path, seed: int = 0, *, thinks: str | None = None, **config: Any) -> LocalModel:
    """Write the model to `path`. config: overrides of config.json, such as max_position_embeddings. thinks: a
    template's way with thoughts, SWITCH or OPENED.

    Raises ModelError where the embedded model, which lends its tokenizer, has not been fetched.
    """
    lender = find_model("smollm2-135m").path
    path.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(lender / name, path / name)
    if thinks is not None:
        give_thoughts(path, thinks)
    whole = json.loads((lender / "config.json").read_text()) | SIZE | config
    write_json(path / "config.json", whole)
    random = np.random.default_rng(seed)
    write_safetensors(
        path / "model.safetensors",
        (
            (name, bfloat16(np.ones(shape) if len(shape) == 1 else random.normal(0, 0.1, shape)))
            for name, shape in _shapes(whole).items()
        ),
    )
    return find_model(str(path))


def _shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        inside = {
            "input_layernorm": (hidden,),
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "post_attention_layernorm": (hidden,),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in inside.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes
