"""Sentence embeddings from a small local model: the mean of its last layer over a text's tokens. Reaches out for
nothing, and runs on the CPU, beside whatever judges."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localjudge.errors import ModelError
from localjudge.offline import silence

LONGEST = 256
"""Tokens of a text that are looked at."""

_ONE_AT_A_TIME = threading.Lock()


def embeddings(folder: str, texts: Sequence[str]) -> NDArray[np.float64]:
    """n x width. Raises ModelError when the folder holds no model that transformers can load from safetensors."""
    import torch

    rows = []
    # Records are judged at once: each would load a model of its own, and a fast tokenizer takes one thread only.
    with _ONE_AT_A_TIME, torch.inference_mode():
        tokenizer, model = _loaded(folder)
        for start in range(0, len(texts), 32):
            batch = tokenizer(
                list(texts[start : start + 32]),
                padding=True,
                truncation=True,
                max_length=LONGEST,
                return_tensors="pt",
            )
            states = model(**batch).last_hidden_state.double()
            mask = batch["attention_mask"].unsqueeze(-1).double()
            rows.append(((states * mask).sum(1) / mask.sum(1).clamp(min=1)).numpy())
    return np.concatenate(rows)


def check_embedding(folder: str) -> None:
    """What can be told before anything is loaded. Raises ModelError."""
    if not (Path(folder).expanduser() / "config.json").is_file():
        raise ModelError(
            "there is no embedding model in this folder", where=folder, fix="name one with a config.json"
        )
    if find_spec("transformers") is None:
        fix = "pip install 'localjudge[transformers]'"
        raise ModelError("an embedding needs a package that is missing", where=folder, fix=fix)


@functools.cache
def _loaded(folder: str) -> tuple[Any, Any]:
    silence()
    check_embedding(folder)
    from transformers import AutoModel, AutoTokenizer

    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    path = Path(folder).expanduser()
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, **local)
        model = AutoModel.from_pretrained(path, use_safetensors=True, dtype="float32", **local)
    except (OSError, ValueError, KeyError) as error:
        what = f"the embedding model cannot be loaded: {str(error).splitlines()[0]}"
        raise ModelError(what, where=folder) from None
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer, model.eval()
