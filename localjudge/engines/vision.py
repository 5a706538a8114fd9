"""What a vision model's own processor makes of a picture: what stands for it in a prompt, and its numbers.

The processor is given a picture and its marker alone, never the text around it, so that it has no text to search
for markers. Knows neither messages nor chat templates.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from localjudge.errors import ModelError
from localjudge.images import Picture
from localjudge.model_files import read_json

MARKERS = ("image_token", "boi_token", "fake_image_token")
"""Attributes in which processors name what a chat template writes in the place of a picture."""

MOST_KEPT = 512
"""Of pictures, what stands for them; some 16,000 ids each at most."""


@dataclass(frozen=True, slots=True)
class Seen:
    """ids: what stands for a picture in the prompt. kinds: inputs of the model with a number for each token of a
    prompt, such as whether it is a picture's: name -> id -> number; that of any other id is 0."""

    ids: tuple[int, ...]
    kinds: Mapping[str, Mapping[int, int]]


class Vision:
    """One model's processor. Its parts need not bear several threads, so one picture is seen at a time."""

    def __init__(self, folder: Path, settings: Mapping[str, Any] | None = None) -> None:
        """settings: what to set otherwise than the model's folder does, such as max_pixels. Raises ModelError."""
        self._settings = dict(settings or {})
        try:
            self._processor = _load(folder)
        except Exception as error:
            what = str(error).strip().partition("\n")[0] or type(error).__name__
            raise ModelError(f"its processor of pictures cannot be loaded: {what}", where=str(folder)) from error
        if not hasattr(self._processor, "image_processor"):
            raise ModelError(
                "has no processor of pictures",
                where=str(folder),
                fix="copy preprocessor_config.json and processor_config.json from the publisher's folder",
            )
        self._lock = threading.Lock()
        self._seen: dict[
            tuple[str, str], Seen
        ] = {}  # by hashes: pictures themselves would be held with their bytes
        self._processed = lru_cache(4)(self._process)

    def marker_in(self, text: str) -> str | None:
        """What stands for one picture in a chat template's text; None when the processor knows nothing in it."""
        parts = (self._processor, getattr(self._processor, "tokenizer", None))
        named = (getattr(part, name, None) for name in MARKERS for part in parts)
        return next((token for token in named if isinstance(token, str) and token and token in text), None)

    def see(self, picture: Picture, marker: str) -> Seen:
        """Raises ValueError when the processor fails on this picture."""
        key = picture.sha256, marker
        with self._lock:
            if key in self._seen:
                return self._seen[key]
            try:
                seen, _ = self._processed(picture, marker)
            except Exception as error:  # processors raise anything at all, such as for too long a side
                what = str(error).strip().partition("\n")[0] or type(error).__name__
                raise ValueError(f"the model's processor does not take {picture}: {what}") from error
            if len(self._seen) == MOST_KEPT:
                del self._seen[next(iter(self._seen))]
            self._seen[key] = seen
            return seen

    def numbers(self, pictures: Sequence[Picture], marker: str) -> dict[str, Any]:
        """What the model reads of these pictures, in the order in which they stand in a batch of prompts: name ->
        tensor."""
        with self._lock:
            each = [self._processed(picture, marker)[1] for picture in pictures]
        return {name: _together([numbers[name] for numbers in each]) for name in (each[0] if each else ())}

    def _process(self, picture: Picture, marker: str) -> tuple[Seen, dict[str, Any]]:
        found = self._processor(
            images=[picture.pixels()],
            text=[marker],
            add_special_tokens=False,
            return_tensors="pt",
            **self._settings,
        )
        [ids] = found["input_ids"].tolist()
        # What is 0 everywhere says nothing, and not every model has an input of that name.
        kinds = {
            name: {i: kind for i, kind in zip(ids, found[name][0].tolist(), strict=True) if kind}
            for name in found
            if name.endswith("token_type_ids")
        }
        seen = Seen(tuple(ids), {name: known for name, known in kinds.items() if known})
        rest = {"input_ids", "attention_mask", *kinds}
        return seen, {name: value for name, value in found.items() if name not in rest}


def _together(tensors: Sequence[Any]) -> Any:
    """Pictures one after the other, those with fewer parts or smaller ones filled up with zeros."""
    import torch

    size = [max(sizes) for sizes in zip(*(tensor.shape[1:] for tensor in tensors), strict=True)]
    filled = []
    for tensor in tensors:
        missing = [most - own for most, own in zip(size, tensor.shape[1:], strict=True)]
        padding = [amount for most in reversed(missing) for amount in (0, most)]
        filled.append(torch.nn.functional.pad(tensor, padding) if any(missing) else tensor)
    return torch.cat(filled)


def _load(folder: Path) -> Any:
    """transformers' processor of this folder."""
    from transformers import AutoProcessor
    from transformers.models.auto import processing_auto

    options = {"trust_remote_code": False, "local_files_only": True}
    if find_spec("torchvision") is not None:
        return AutoProcessor.from_pretrained(folder, **options)
    # Without torchvision the processors that know videos as well cannot be made, though pictures need none of it.
    name = processing_auto.PROCESSOR_MAPPING_NAMES.get(read_json(folder / "config.json").get("model_type"))
    known = processing_auto.processor_class_from_name(name) if name else None
    if known is None or "video_processor" not in known.get_attributes():
        return AutoProcessor.from_pretrained(folder, **options)
    parts = [part for part in known.get_attributes() if part != "video_processor"]
    without: Any = type(known.__name__, (known,), {"get_attributes": classmethod(lambda _: parts)})
    return without.from_pretrained(folder, **options)
