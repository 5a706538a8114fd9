"""What was learnt, as files: the adapter alone, and the model with it. Knows where things go, not how they came."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from localjudge import adapters


@contextlib.contextmanager
def _anew(folder: Path) -> Iterator[Path]:
    """Where to write what then takes the folder's place, whole or not at all."""
    aside = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    yield aside
    shutil.rmtree(folder, ignore_errors=True)
    aside.replace(folder)


def write_adapter(student: Any, base_name: str, folder: Path, told: Mapping[str, Any]) -> None:
    """adapter.safetensors (peft's names, bfloat16), adapter_config.json (peft's) and distill.json."""
    import torch
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    with _anew(folder) as aside:
        learnt = get_peft_model_state_dict(student.causal)
        save_file(
            {name: part.detach().to("cpu", torch.bfloat16).contiguous() for name, part in sorted(learnt.items())},
            aside / adapters.WEIGHTS,
            metadata={"format": "pt"},
        )
        (aside / adapters.WEIGHTS).chmod(0o644)  # safetensors lets nobody else read it
        config = student.causal.peft_config["default"].to_dict()
        config |= {"base_model_name_or_path": base_name, "inference_mode": True}
        plain = {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
        (aside / adapters.CONFIG).write_text(json.dumps(plain, indent=1, sort_keys=True, default=str) + "\n")
        _tell(aside, told)


def write_merged(adapter: Path, base: Path, folder: Path) -> None:
    """The base with the adapter in its weights: a model like any other. Raises ModelError."""
    with _anew(folder) as aside:
        adapters.merge(adapter, base, aside)
        shutil.copyfile(adapter / adapters.PROVENANCE, aside / adapters.PROVENANCE)


def write_whole(student: Any, base: Path, folder: Path, told: Mapping[str, Any]) -> None:
    """The model whose layers were trained themselves, in bfloat16."""
    import torch

    with _anew(folder) as aside:
        student.plain.to(torch.bfloat16).save_pretrained(aside)
        for file in base.iterdir():
            ours = file.name in adapters.OWN or file.name.endswith(".index.json") or (aside / file.name).exists()
            if file.suffix in {".json", ".jinja", ".model"} and not ours:
                shutil.copyfile(file, aside / file.name)
        _tell(aside, told)


def _tell(folder: Path, told: Mapping[str, Any]) -> None:
    text = json.dumps(told, ensure_ascii=False, indent=1) + "\n"
    (folder / adapters.PROVENANCE).write_text(text, encoding="utf-8")
