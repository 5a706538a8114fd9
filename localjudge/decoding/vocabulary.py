"""A tokenizer's vocabulary as bytes.

Knows the two ways fast tokenizers spell bytes (byte-level alphabets and SentencePiece with byte fallback).
Leaves out every added and special token: an answer is made of text, never of control tokens. Going through
strings instead, as the common libraries do, turns every token that holds part of a character into U+FFFD, so
that Chinese, accents and emoji can be neither forced nor refused.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import outlines_core

from localjudge.errors import ModelError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_of_char() -> dict[str, int]:
    """The byte-level alphabet of GPT-2, inverted: printable bytes stand for themselves, others for U+0100 on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    shifted = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(shifted)}


def _kinds(part: dict[str, Any] | None) -> list[dict[str, Any]]:
    """A pre-tokenizer or decoder and, where it is a sequence, its parts."""
    if not part:
        return []
    inner = part.get("pretokenizers") or part.get("decoders") or part.get("normalizers") or []
    return [part, *(kind for child in inner for kind in _kinds(child))]


class Vocabulary:
    """Token id -> the bytes it writes.

    tokens: one entry an id; None where the id writes no text (added, special or unused).
    eos: the ids that may end an answer; none of them writes text.
    """

    def __init__(self, tokens: list[bytes | None], eos: Iterable[int]) -> None:
        self.eos = tuple(sorted(set(eos)))
        if not self.eos:
            raise ModelError("the tokenizer names no end-of-text token")
        self.tokens = tokens
        for token in self.eos:
            if token < len(tokens):
                tokens[token] = None

    @classmethod
    def from_tokenizer_json(cls, text: str, eos: Iterable[int]) -> Vocabulary:
        """From the contents of a tokenizer.json. Raises ModelError for a kind that does not spell bytes."""
        try:
            spec = json.loads(text)
            model = spec["model"]
            kind, _ = model["type"], model["vocab"]
        except (ValueError, TypeError, KeyError) as error:
            raise ModelError(f"its tokenizer.json is not what tokenizers writes: {error!r}") from None
        if kind == "BPE":
            ids: dict[str, int] = model["vocab"]
        elif kind == "Unigram":
            ids = {piece: i for i, (piece, _) in enumerate(model["vocab"])}
        else:
            raise ModelError(
                f"a {kind} tokenizer cannot write arbitrary text",
                fix="take a model with a BPE or Unigram tokenizer",
            )
        byte_level = any(
            kind["type"] == "ByteLevel" for part in ("decoder", "pre_tokenizer") for kind in _kinds(spec.get(part))
        )
        added = {token["id"] for token in spec.get("added_tokens", [])}
        tokens: list[bytes | None] = [None] * (max([*ids.values(), *added, *eos]) + 1)
        alphabet = _byte_of_char()
        for piece, token in ids.items():
            if token in added or not piece:
                continue
            if byte_level:
                if all(char in alphabet for char in piece):
                    tokens[token] = bytes(alphabet[char] for char in piece)
            elif match := _BYTE_TOKEN.fullmatch(piece):
                tokens[token] = bytes([int(match[1], 16)])
            else:
                tokens[token] = piece.replace("▁", " ").encode()
        return cls(tokens, eos)

    @classmethod
    def from_folder(cls, folder: Path) -> Vocabulary:
        """From a model's folder, without loading anything else of it."""
        try:
            text = (folder / "tokenizer.json").read_text(encoding="utf-8")
            config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ModelError(f"its tokenizer cannot be read: {error}", where=str(folder)) from None
        eos = config.get("eos_token")
        eos = eos.get("content") if isinstance(eos, dict) else eos
        ids = [token["id"] for token in json.loads(text).get("added_tokens", []) if token["content"] == eos]
        return cls.from_tokenizer_json(text, ids)

    @classmethod
    def of_bytes(cls) -> Vocabulary:
        """One token a byte: the yardstick where no model is at hand."""
        return cls([bytes([byte]) for byte in range(256)] + [None], [256])

    @cached_property
    def digest(self) -> str:
        """A hash of the whole table."""
        hasher = hashlib.sha256(repr(self.eos).encode())
        for token in self.tokens:
            hasher.update(b"\xff" if token is None else len(token).to_bytes(4) + token)
        return hasher.hexdigest()

    @cached_property
    def core(self) -> Any:
        """The same table as outlines_core takes it."""
        table: dict[bytes, list[int]] = {}
        for token, text in enumerate(self.tokens):
            if text:
                table.setdefault(text, []).append(token)
        return outlines_core.Vocabulary(self.eos[0], table)

    def text(self, ids: Iterable[int]) -> str:
        """What these ids write; end tokens and the like write nothing. Raises UnicodeDecodeError."""
        return b"".join(self.tokens[i] or b"" for i in ids if i < len(self.tokens)).decode()
