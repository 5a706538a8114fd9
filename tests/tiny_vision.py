"""Small vision models of real architectures with random weights and the embedded model's own tokenizer: they load
fast, see pictures and know nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from localjudge.embedded import write_json
from localjudge.models import LocalModel, find_model

TEXT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}IMAGE{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# Control tokens of the embedded model that no template uses lend their ids.
LENT = {
    "<repo_name>": "<image>",
    "<reponame>": "<|vision_start|>",
    "<file_sep>": "<|image_pad|>",
    "<filename>": "<|vision_end|>",
    "<gh_stars>": "<|video_pad|>",
}


def _tokenizer(path: Path, image: str) -> None:
    lender = find_model("smollm2-135m").path
    path.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (lender / name).read_text(encoding="utf-8")
        for old, new in LENT.items():
            text = text.replace(old, new)
        (path / name).write_text(text, encoding="utf-8")
    settings = json.loads((path / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings["chat_template"] = TEMPLATE.replace("IMAGE", image)
    write_json(path / "tokenizer_config.json", settings)


def _save(path: Path, config: Any, seed: int) -> LocalModel:
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForImageTextToText

    torch.manual_seed(seed)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model = AutoModelForImageTextToText.from_config(config)
    for weights in model.parameters():  # the initial ones are so small that a picture would hardly be seen
        if weights.ndim > 1:
            torch.nn.init.normal_(weights, 0, 0.1)
    model.save_pretrained(path)
    (path / "generation_config.json").unlink(missing_ok=True)
    # As published models have it, which is how vLLM knows it; transformers writes CLIP's parts without their house.
    weights = load_file(path / "model.safetensors")
    tower = re.compile(r"^vision_tower\.(?!vision_model)")
    named = {tower.sub("vision_tower.vision_model.", name): weight for name, weight in weights.items()}
    save_file(named, path / "model.safetensors", {"format": "pt"})
    return find_model(str(path))


def _ids(path: Path) -> dict[str, int]:
    added = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    return {token["content"]: token["id"] for token in added}


def tiny_llava(path: Path, seed: int = 0) -> LocalModel:
    """LLaVA: a CLIP tower of 56 pixels in 16 patches before a Llama."""
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig

    _tokenizer(path, "<image>")
    vision = CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=56,
        patch_size=14,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=LlamaConfig(vocab_size=49152, **TEXT),
        image_token_index=_ids(path)["<image>"],
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        image_seq_length=16,
    )
    write_json(
        path / "preprocessor_config.json",
        {
            "image_processor_type": "CLIPImageProcessor",
            "processor_class": "LlavaProcessor",
            "size": {"shortest_edge": 56},
            "crop_size": {"height": 56, "width": 56},
        },
    )
    write_json(
        path / "processor_config.json",
        {
            "processor_class": "LlavaProcessor",
            "image_token": "<image>",
            "patch_size": 14,
            "num_additional_image_tokens": 1,
            "vision_feature_select_strategy": "default",
        },
    )
    return _save(path, config, seed)


def tiny_qwen(path: Path, seed: int = 0) -> LocalModel:
    """Qwen2.5-VL: as many tokens a picture as its size asks for, between tags of their own, positions in three
    directions."""
    from transformers import Qwen2_5_VLConfig

    _tokenizer(path, "<|vision_start|><|image_pad|><|vision_end|>")
    ids = _ids(path)
    config = Qwen2_5_VLConfig(
        text_config={
            **TEXT,
            "vocab_size": 49152,
            "rope_parameters": {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 10000.0},
            "bos_token_id": None,
            "eos_token_id": None,
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": 64,
            "fullatt_block_indexes": [1],
            "window_size": 56,
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    write_json(
        path / "preprocessor_config.json",
        {
            "image_processor_type": "Qwen2VLImageProcessor",
            "processor_class": "Qwen2_5_VLProcessor",
            # vLLM takes these from this file, and where they are not in it does without, as transformers does not.
            "do_rescale": True,
            "do_normalize": True,
            "image_mean": [0.48145466, 0.4578275, 0.40821073],
            "image_std": [0.26862954, 0.26130258, 0.27577711],
            "min_pixels": 56 * 56,
            "max_pixels": 112 * 112,
            "patch_size": 14,
            "merge_size": 2,
            "temporal_patch_size": 2,
        },
    )
    return _save(path, config, seed)
