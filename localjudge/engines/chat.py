"""Messages into token ids, through the model's own chat template.

What a message says is encoded with control tokens off, whatever it says: `<|im_end|>` in a candidate's answer stays
ten characters of text. Only the template's own text around the messages can open or close a turn.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from localjudge.decoding.vocabulary import Vocabulary
from localjudge.engines.base import Message
from localjudge.errors import ModelError


def without_control_tokens(tokenizer_json: str) -> tuple[Tokenizer, frozenset[int], tuple[str, ...]]:
    """A tokenizer that knows no added token but white space ones; the ids of those it lost; and their texts."""
    spec = json.loads(tokenizer_json)
    control = [token for token in spec.get("added_tokens", []) if token["special"] or token["content"].strip()]
    spec["added_tokens"] = [token for token in spec.get("added_tokens", []) if token not in control]
    spec["post_processor"] = None
    spec["truncation"] = spec["padding"] = None
    texts = sorted((token["content"] for token in control if len(token["content"]) > 1), key=len, reverse=True)
    return Tokenizer.from_str(json.dumps(spec)), frozenset(token["id"] for token in control), tuple(texts)


class ChatEncoder:
    """The chat template and the two readings of one model's tokenizer: with and without control tokens."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        try:
            self._chat: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        except Exception as error:
            raise ModelError(f"its tokenizer cannot be loaded: {error}", where=str(folder)) from error
        self.eos_id: int = self._chat.eos_token_id
        self.tokenizer_json: str = self._chat.backend_tokenizer.to_str()
        self._plain, self.control_ids, self._control_texts = without_control_tokens(self.tokenizer_json)
        self._system_role = self._takes_system()
        self._scaffold = lru_cache(4096)(self._encode_scaffold)

    def vocabulary(self) -> Vocabulary:
        return Vocabulary.from_tokenizer_json(self.tokenizer_json, [self.eos_id])

    def _render(self, messages: Sequence[dict[str, str]]) -> str:
        rendered: str = self._chat.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        return rendered

    def _takes_system(self) -> bool:
        """Whether the template takes a system message: some raise, some drop it without a word."""
        mark = secrets.token_hex(8)
        try:
            return mark in self._render([{"role": "system", "content": mark}, {"role": "user", "content": "."}])
        except Exception:
            return False

    def _encode_scaffold(self, text: str) -> tuple[int, ...]:
        return tuple(self._chat.backend_tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_text(self, text: str) -> list[int]:
        """The ids of `text` as plain text, none of them a control token's."""
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        if self.control_ids.isdisjoint(ids):
            return ids
        # Some vocabularies hold control tokens as ordinary pieces too: cut their texts in two.
        return [
            token
            for piece in re.split(f"({'|'.join(map(re.escape, self._control_texts))})", text)
            for half in ((piece[:1], piece[1:]) if piece in self._control_texts else (piece,))
            for token in self._plain.encode(half, add_special_tokens=False).ids
            if token not in self.control_ids
        ]

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """The prompt's ids: the template's text with its control tokens, the messages' texts without any."""
        texts = [message.text for message in messages]
        roles: list[str] = [message.role for message in messages]
        if not self._system_role and roles[:2] == ["system", "user"]:
            texts[:2] = [f"{texts[0]}\n\n{texts[1]}"]
            roles[:2] = ["user"]
        nonce = secrets.token_hex(8)
        slots = [f"\ue000{nonce}{i}\ue001" for i in range(len(texts))]
        rendered = self._render([{"role": r, "content": s} for r, s in zip(roles, slots, strict=True)])
        ids: list[int] = []
        pieces = re.split(f"\ue000{nonce}(\\d+)\ue001", rendered)
        if sorted(pieces[1::2]) != sorted(str(i) for i in range(len(texts))):
            raise ModelError("its chat template does not print each message once")
        for i, piece in enumerate(pieces):
            ids.extend(self.encode_text(texts[int(piece)]) if i % 2 else self._scaffold(piece))
        return ids
