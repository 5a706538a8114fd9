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
from localjudge.offline import silence

TAGS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>"))
"""The tags between which models think aloud: Qwen3, DeepSeek-R1 and many others; Magistral; Seed-OSS."""


def thinking_tags(tokenizer_json: str) -> tuple[int, int] | None:
    """The ids of the tags between which this tokenizer's model thinks; None where it has none."""
    added = {token["content"]: token["id"] for token in json.loads(tokenizer_json).get("added_tokens", [])}
    return next(((added[a], added[b]) for a, b in TAGS if a in added and b in added), None)


def without_control_tokens(tokenizer_json: str) -> tuple[Tokenizer, frozenset[int]]:
    """A tokenizer that finds no added token but white space ones in a text; and the ids of those it lost.

    They keep their ids and get names that nobody can guess, among the added tokens and in the model alike: some
    models hold `</s>` as an ordinary piece too, and without the tokens themselves those after them would move up.
    """
    spec = json.loads(tokenizer_json)
    control = {
        token["id"]: f"\ue000{secrets.token_hex(16)}"
        for token in spec.get("added_tokens", [])
        if token["special"] or token["content"].replace("▁", " ").strip()
    }
    for token in spec.get("added_tokens", []):
        token["content"] = control.get(token["id"], token["content"])
    spec["post_processor"] = spec["truncation"] = spec["padding"] = None
    model = spec["model"]
    if isinstance(model["vocab"], list):
        for i, piece in enumerate(model["vocab"]):
            piece[0] = control.get(i, piece[0])
    else:
        renamed = {piece: control[i] for piece, i in model["vocab"].items() if i in control}
        model["vocab"] = {renamed.get(piece, piece): i for piece, i in model["vocab"].items()}
        if model.get("unk_token") in renamed:
            model["unk_token"] = renamed[model["unk_token"]]
        if "merges" in model:
            pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
            model["merges"] = [(a, b) for a, b in pairs if not {a, b, a + b} & renamed.keys()]
    for part in (spec.get("pre_tokenizer") or {}, *(spec.get("pre_tokenizer") or {}).get("pretokenizers", [])):
        if part.get("prepend_scheme") == "first":
            part["prepend_scheme"] = "never"  # what is encoded here comes after a control token, never first
    return Tokenizer.from_str(json.dumps(spec)), frozenset(control)


class ChatEncoder:
    """The chat template and the two readings of one model's tokenizer: with and without control tokens."""

    def __init__(self, folder: Path) -> None:
        """Raises ModelError when the tokenizer or its chat template does not work."""
        silence()
        from transformers import AutoTokenizer

        try:
            self._chat: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        except Exception as error:
            raise ModelError(f"its tokenizer cannot be loaded: {error}", where=str(folder)) from error
        if self._chat.eos_token_id is None:
            raise ModelError("its tokenizer names no end-of-text token", where=str(folder))
        self.eos_id: int = self._chat.eos_token_id
        self.tokenizer_json: str = self._chat.backend_tokenizer.to_str()
        self._plain, self.control_ids = without_control_tokens(self.tokenizer_json)
        self.tags = thinking_tags(self.tokenizer_json)
        self._system_role = self._takes_system()
        self._split = lru_cache(4096)(self._split_scaffold)
        try:
            self.encode([Message("system", "."), Message("user", ".")])
        except Exception as error:
            raise ModelError(f"its chat template does not work: {error}", where=str(folder)) from error

    def vocabulary(self) -> Vocabulary:
        return Vocabulary.from_tokenizer_json(self.tokenizer_json, [self.eos_id])

    def _render(self, messages: Sequence[dict[str, str]], think: bool = False) -> str:
        rendered: str = self._chat.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=think
        )
        return rendered

    def _takes_system(self) -> bool:
        """Whether the template takes a system message: some raise, some drop it without a word."""
        mark = secrets.token_hex(8)
        try:
            return mark in self._render([{"role": "system", "content": mark}, {"role": "user", "content": "."}])
        except Exception:
            return False

    def _split_scaffold(self, text: str) -> tuple[str | int, ...]:
        """The template's own text: its control tokens as ids, what lies between them as text."""
        encoded = self._chat.backend_tokenizer.encode(text, add_special_tokens=False)
        parts: list[str | int] = []
        done = 0
        for token, (start, end) in zip(encoded.ids, encoded.offsets, strict=True):
            if token in self.control_ids:
                parts += [text[done:start], token]
                done = end
        return (*parts, text[done:])

    def encode_text(self, text: str) -> list[int]:
        """The ids of `text` as plain text, none of them a control token's; what the vocabulary has no word for is
        left out."""
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        return [token for token in ids if token not in self.control_ids]

    def encode(self, messages: Sequence[Message], think: bool = False) -> list[int]:
        """The prompt's ids: those that the template itself would give, but that no text of a message can be read as
        an added token, control or other.

        think: end with the tag that opens a thought, which the model must have. Without, a thought that the
        template opens by itself is closed at once, empty.
        """
        texts = [message.text for message in messages]
        roles: list[str] = [message.role for message in messages]
        if not self._system_role and roles[:2] == ["system", "user"]:
            texts[:2] = [f"{texts[0]}\n\n{texts[1]}"]
            roles[:2] = ["user"]
        nonce = secrets.token_hex(8)
        slots = [f"\ue000{nonce}{i}\ue001" for i in range(len(texts))]
        rendered = self._render([{"role": r, "content": s} for r, s in zip(roles, slots, strict=True)], think)
        pieces = re.split(f"\ue000{nonce}(\\d+)\ue001", rendered)
        if sorted(pieces[1::2]) != sorted(str(i) for i in range(len(texts))):
            raise ModelError("its chat template does not print each message once")
        parts: list[str | int] = []
        for i, piece in enumerate(pieces):
            parts += [texts[int(piece)]] if i % 2 else self._split(piece)
        # From one control token to the next the text is encoded in one go: tokens may cross from the template's
        # words into a message's, and tokenizers put things before the first word of what they are given.
        ids: list[int] = []
        run = ""
        for part in parts:
            if isinstance(part, str):
                run += part
            else:
                ids += [*self.encode_text(run), part]
                run = ""
        ids += self.encode_text(run)
        opened = self._opened(ids)
        if think and not opened:
            assert self.tags is not None
            ids += [self.tags[0], *self.encode_text("\n")]
        return ids if think or not opened else ids + self.after_thought(self.encode_text("\n"))

    def _opened(self, ids: Sequence[int]) -> bool:
        """Whether a thought is open at the end of these ids. Only the template can have opened it."""
        tags = [token for token in ids if token in (self.tags or ())]
        return bool(tags) and self.tags is not None and tags[-1] == self.tags[0]

    def after_thought(self, thought: Sequence[int]) -> list[int]:
        """What leads from an opened thought to the answer: the thought, less any control token, and its end."""
        assert self.tags is not None
        return [
            *(token for token in thought if token not in self.control_ids),
            self.tags[1],
            *self.encode_text("\n\n"),
        ]

    def label_ids(self, label: str) -> tuple[int, ...]:
        """The ids that write `label`, with or without a blank before it, as the one first token of an answer,
        with or without a thought before it."""
        # What stands after the last control token decides how a first word is spelled.
        rendered = self._render([{"role": "user", "content": "."}])
        parts = self._split(rendered)
        tails = ["\n\n"] if self.tags else []
        if not self._opened([part for part in parts if isinstance(part, int)]):
            tails.append(str(parts[-1]))
        found: list[int] = []
        for tail in tails:
            before = self.encode_text(tail)
            spelled = [self.encode_text(tail + form) for form in (label, f" {label}")]
            here = [ids[-1] for ids in spelled if ids[:-1] == before]
            if not here:
                return ()
            found += [token for token in here if token not in found]
        return tuple(found)
