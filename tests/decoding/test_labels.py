"""Where labels are chosen, and what their probabilities come to."""

from __future__ import annotations

import math
from typing import Any

import pytest

from localjudge.decoding.closing import Grammar
from localjudge.decoding.labels import label_places, read_distributions, wanted_tokens
from localjudge.decoding.vocabulary import Vocabulary
from tests.decoding.test_closing import small_vocabulary, text
from tests.decoding.test_grammar import a_list, an_object


def grammar_of(**parts: Any) -> tuple[dict[str, Any], Grammar]:
    schema = an_object(**parts)
    return schema, Grammar(schema, small_vocabulary())


def test_each_label_has_its_tokens_at_its_place() -> None:
    schema, grammar = grammar_of(why=text(5), score={"enum": [1, 2]}, pick={"enum": ["good", "yes"]})
    score, pick = label_places(schema, grammar)
    spelled = {
        place.path: {grammar.vocabulary.tokens[token]: label for token, label in place.tokens.items()}
        for place in (score, pick)
    }
    assert spelled[("score",)] == {b"1": "1", b"2": "2"}
    assert spelled[("pick",)] == {b"g": "good", b"goo": "good", b'good"}': "good", b"y": "yes"}
    assert set(wanted_tokens([score, pick])) == {*score.tokens, *pick.tokens}


def test_flags_have_a_place_for_each_code() -> None:
    schema, grammar = grammar_of(flags=an_object(B1={"type": "boolean"}, S2={"type": "boolean"}))
    assert [place.path for place in label_places(schema, grammar)] == [("flags", "B1"), ("flags", "S2")]


def test_labels_inside_lists_have_none_since_each_item_goes_through_them_anew() -> None:
    item = an_object(why=text(3), bad={"type": "boolean"})
    schema, grammar = grammar_of(
        found=a_list(item, 99), names=a_list({"enum": ["good", "yes"]}), ok={"type": "boolean"}
    )
    [place] = label_places(schema, grammar)
    assert place.path == ("ok",)
    ids = {piece: token for token, piece in enumerate(grammar.vocabulary.tokens)}
    answer = b'{"found":[{"why":"x","bad":true},{"why":"y","bad":false}],"names":["yes"],"ok":true}'
    written = [ids[bytes([byte])] for byte in answer]
    logprobs: list[dict[int, float]] = [{ids[b"t"]: math.log(0.75), ids[b"f"]: math.log(0.25)} for _ in written]
    found = read_distributions([place], grammar, grammar.full + 200, written, logprobs)
    assert found == {"ok": {"false": pytest.approx(0.25), "true": pytest.approx(0.75)}}


@pytest.mark.parametrize("labels", [[1, 2, 10], ["good", "great"], ["abX", "abXYZ"]])
def test_labels_that_one_token_does_not_tell_apart_have_none(labels: list[Any]) -> None:
    """Of 1 and 10 the token '1' begins both; of good and great the token 'g' does."""
    schema, grammar = grammar_of(pick={"enum": labels}, ok={"type": "boolean"})
    assert [place.path for place in label_places(schema, grammar)] == [("ok",)]


def test_the_tokens_of_one_label_are_added_up_and_the_rest_is_normalised() -> None:
    schema, grammar = grammar_of(score={"enum": [1, 2]})
    ids = {piece: token for token, piece in enumerate(grammar.vocabulary.tokens)}
    places = label_places(schema, grammar)
    written = [ids[piece] for piece in (b'{"', b"score", b'":', b"1", b"}")]
    logprobs = [{} for _ in written]
    logprobs[3] = {ids[b"1"]: math.log(0.3), ids[b"2"]: math.log(0.1), ids[b"}"]: -1.0}
    found = read_distributions(places, grammar, grammar.full, written, logprobs)
    assert found == {"score": {"1": pytest.approx(0.75), "2": pytest.approx(0.25)}}


def test_a_place_that_the_tokens_jump_across_is_left_out() -> None:
    schema, grammar = grammar_of(score={"enum": [1, 2]})
    ids = {piece: token for token, piece in enumerate(grammar.vocabulary.tokens)}
    written = [ids[piece] for piece in (b'{"', b"score", b'"', b":1", b"}")]
    assert read_distributions(label_places(schema, grammar), grammar, grammar.full, written, [{}] * 5) == {}


def test_too_many_tokens_are_not_asked_for() -> None:
    vocabulary = Vocabulary([bytes([byte]) for byte in range(256)] + [None], [256])
    schema = an_object(
        pick={"enum": [chr(33 + i) for i in range(90) if chr(33 + i) not in '"\\']}, ok={"enum": list("abc")}
    )
    places = label_places(schema, Grammar(schema, vocabulary))
    assert len(places) == 2
    assert len(wanted_tokens(places)) == 88
