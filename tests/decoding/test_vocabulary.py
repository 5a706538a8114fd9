"""A vocabulary spells bytes, and nothing but bytes."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from localjudge.decoding.vocabulary import Vocabulary
from localjudge.errors import ModelError
from localjudge.models import LocalModel

TEXTS = [
    "plain text, 12.5 %",
    "好 吗？您好",
    "é è ü ñ Ångström",
    " 😀 ok 👩‍🚀",
    "tab\tand\nline",
    '{"a":1}',
    "ﷺ \u200b𠮷",
]


@pytest.mark.parametrize("text", TEXTS)
def test_the_embedded_tokenizer_s_tokens_give_the_text_back_byte_for_byte(embedded: LocalModel, text: str) -> None:
    vocabulary = Vocabulary.from_folder(embedded.path)
    tokenizer = Tokenizer.from_file(str(embedded.path / "tokenizer.json"))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert vocabulary.text(ids) == text


def test_control_tokens_write_nothing(embedded: LocalModel) -> None:
    vocabulary = Vocabulary.from_folder(embedded.path)
    added = json.loads((embedded.path / "tokenizer.json").read_text())["added_tokens"]
    assert added
    assert all(vocabulary.tokens[token["id"]] is None for token in added)
    assert vocabulary.text([*vocabulary.eos]) == ""


def _sentencepiece_like() -> Tokenizer:
    """As Llama 2 and Gemma: '▁' for a space, '<0xNN>' for bytes without a piece of their own."""
    pieces = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁the", "a", "好", "▁好"]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    return tokenizer


def test_sentencepiece_spells_bytes_and_spaces() -> None:
    vocabulary = Vocabulary.from_tokenizer_json(_sentencepiece_like().to_str(), [1])
    assert vocabulary.tokens[:2] == [None, None]
    assert vocabulary.tokens[2 + 0xE5] == b"\xe5"
    assert vocabulary.tokens[258:] == [b" ", b" the", b"a", "好".encode(), " 好".encode()]


def test_unigram_spells_bytes_too() -> None:
    tokenizer = Tokenizer(models.Unigram([("</s>", 0.0), ("▁a", -1.0), ("<0x41>", -2.0)], 0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens(["</s>"])
    assert Vocabulary.from_tokenizer_json(tokenizer.to_str(), [0]).tokens == [None, b" a", b"A"]


def test_a_wordpiece_tokenizer_is_refused() -> None:
    tokenizer = Tokenizer(models.WordPiece({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    with pytest.raises(ModelError, match="WordPiece"):
        Vocabulary.from_tokenizer_json(tokenizer.to_str(), [0])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"model": {"vocab": {}}}', '{"model": 3}'])
def test_what_is_no_tokenizer_is_told_so(text: str) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        Vocabulary.from_tokenizer_json(text, [0])


def test_a_tokenizer_without_an_end_is_refused() -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.train_from_iterator(["ab ab"], trainers.BpeTrainer(vocab_size=10))
    with pytest.raises(ModelError, match="end-of-text"):
        Vocabulary.from_tokenizer_json(tokenizer.to_str(), [])
