"""Messages into token ids, through the model's own chat template.

What a message says is encoded with control tokens off, whatever it says: `<|im_end|>` in a candidate's answer stays
ten characters of text. Only the template's own text around the messages can open or close a turn. Where a picture
stands, the template puts the model's own placeholder, which no text can write either.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from localjudge.decoding.vocabulary import Vocabulary
from localjudge.engines.base import AskFailed, Message
from localjudge.errors import ModelError
from localjudge.images import Picture
from localjudge.model_files import chat_template
from localjudge.offline import silence

if TYPE_CHECKING:
    from localjudge.engines.vision import Vision

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


def _content(parts: Sequence[str | None], in_parts: bool) -> Any:
    """A message's content as chat templates take it; None stands for a picture."""
    if None not in parts and not in_parts:
        return "".join(part for part in parts if part)
    return [{"type": "image"} if part is None else {"type": "text", "text": part} for part in parts]


class ChatEncoder:
    """The chat template and the two readings of one model's tokenizer: with and without control tokens."""

    def __init__(self, folder: Path, vision: Vision | None = None) -> None:
        """vision: of a model that is to be shown pictures. Raises ModelError when the tokenizer or its chat
        template does not work."""
        silence()
        from transformers import AutoTokenizer

        try:
            self._chat: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        except Exception as error:
            raise ModelError(f"its tokenizer cannot be loaded: {error}", where=str(folder)) from error
        if self._chat.eos_token_id is None:
            raise ModelError("its tokenizer names no end-of-text token", where=str(folder))
        if self._chat.chat_template is None:
            self._chat.chat_template = chat_template(folder)  # of older vision models, kept with the processor
        self.eos_id: int = self._chat.eos_token_id
        self.tokenizer_json: str = self._chat.backend_tokenizer.to_str()
        self._plain, self.control_ids = without_control_tokens(self.tokenizer_json)
        self.tags = thinking_tags(self.tokenizer_json)
        self._in_parts = not self._prints("user", parts=False) and self._prints("user", parts=True)
        self._system_role = self._prints("system", parts=self._in_parts)
        self._split = lru_cache(4096)(self._split_scaffold)
        self.vision, self.marker, self._marker_id = vision, "", -1
        try:
            self.encode([Message("system", "."), Message("user", ".")])
            if vision is not None:
                self._find_marker(vision)
        except Exception as error:
            raise ModelError(f"its chat template does not work: {error}", where=str(folder)) from error

    def vocabulary(self) -> Vocabulary:
        return Vocabulary.from_tokenizer_json(self.tokenizer_json, [self.eos_id])

    def _render(self, messages: Sequence[dict[str, Any]], think: bool = False) -> str:
        rendered: str = self._chat.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=think
        )
        return rendered

    def _prints(self, role: str, parts: bool) -> bool:
        """Whether the template prints such a message, its content one text or a list of parts. Some take no system
        message and raise, some drop it without a word; some of vision models know parts alone."""
        mark = secrets.token_hex(8)
        messages = [{"role": role, "content": _content([mark], parts)}]
        if role == "system":
            messages.append({"role": "user", "content": _content(["."], parts)})
        try:
            return mark in self._render(messages)
        except Exception:
            return False

    def _find_marker(self, vision: Vision) -> None:
        """What the template writes in the place of a picture. Raises ValueError."""
        rendered = self._render([{"role": "user", "content": _content([None, "."], True)}])
        marker = vision.marker_in(rendered)
        token = self._chat.backend_tokenizer.token_to_id(marker) if marker else None
        if marker is None or token not in self.control_ids or self._split(rendered).count(token) != 1:
            raise ValueError("it does not put a picture's placeholder where one stands")
        self.marker, self._marker_id = marker, token

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

    def encode(self, messages: Sequence[Message], think: bool = False, whole: bool = True) -> list[int]:
        """The prompt's ids: those that the template itself would give, but that no text of a message can be read as
        an added token, control or other.

        think: end with the tag that opens a thought, which the model must have. Without, a thought that the
        template opens by itself is closed at once, empty. whole: each picture takes the ids that its processor
        gives it, rather than the one placeholder that vLLM exchanges for them. Where in a message pictures stand is
        up to the template: some move them to its beginning. Raises AskFailed for pictures that the model cannot
        take.
        """
        told = [message.parts for message in messages]
        roles: list[str] = [message.role for message in messages]
        if not self._system_role and roles[:2] == ["system", "user"]:
            [*before, last], [first, *after] = told[:2]
            told[:2] = [[*before, f"{last}\n\n{first}", *after]]
            roles[:2] = ["user"]
        nonce = secrets.token_hex(8)
        texts: list[str] = []
        pictures: list[Picture] = []
        rendered_from = []
        for role, its_parts in zip(roles, told, strict=True):
            slots: list[str | None] = []
            for own in its_parts:
                if isinstance(own, Picture):
                    pictures.append(own)
                    slots.append(None)
                elif own or len(its_parts) == 1:
                    slots.append(f"\ue000{nonce}{len(texts)}\ue001")
                    texts.append(own)
            rendered_from.append({"role": role, "content": _content(slots, self._in_parts)})
        if pictures and not self.marker:
            raise AskFailed("engine_error", "this model is not shown pictures")
        pieces = re.split(f"\ue000{nonce}(\\d+)\ue001", self._render(rendered_from, think))
        if sorted(pieces[1::2]) != sorted(str(i) for i in range(len(texts))):
            raise ModelError("its chat template does not print each message once")
        parts: list[str | int] = []
        for i, piece in enumerate(pieces):
            parts += [texts[int(piece)]] if i % 2 else self._split(piece)
        if pictures:
            parts = self._with_pictures(parts, pictures, whole)
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

    def _with_pictures(
        self, parts: Sequence[str | int], pictures: Sequence[Picture], whole: bool
    ) -> list[str | int]:
        """The parts, each picture's placeholder exchanged for what its processor gives it. Raises AskFailed."""
        if parts.count(self._marker_id) != len(pictures):
            raise AskFailed("engine_error", "the chat template does not place each picture once")
        if not whole:
            return list(parts)
        assert self.vision is not None
        left = iter(pictures)
        exchanged: list[str | int] = []
        for part in parts:
            if part != self._marker_id:
                exchanged.append(part)
                continue
            try:
                seen = self.vision.see(next(left), self.marker)
            except ValueError as error:
                raise AskFailed("invalid_record", str(error)) from None
            # What is text in it, such as line breaks, is encoded with the text around it.
            exchanged += [
                token if token in self.control_ids else self._chat.backend_tokenizer.decode([token])
                for token in seen.ids
            ]
        return exchanged

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
        rendered = self._render([{"role": "user", "content": _content(["."], self._in_parts)}])
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
