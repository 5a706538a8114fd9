"""Where an answer's labels are chosen, and how likely each was there.

A label's place is the state of the grammar at which its first byte is written (of a text label, after the opening
quote). There the tokens that are legal each belong to one label, unless one label's text begins another's (1 and
10); such a place is left out, since one token does not tell them apart. Labels inside lists are left out as well:
each item goes through their places anew.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localjudge.decoding.closing import Grammar
from localjudge.decoding.grammar import parts

MOST_TOKENS = 128
"""How many tokens' probabilities vLLM gives at most."""


@dataclass(frozen=True, slots=True)
class LabelPlace:
    """path: the keys that lead to the answer. state: where it is chosen. tokens: token -> label, as JSON prints it
    but without quotes."""

    path: tuple[str, ...]
    state: int
    tokens: Mapping[int, str]


def label_places(schema: Mapping[str, Any], grammar: Grammar) -> list[LabelPlace]:
    """The places of all labels outside lists that one token decides, in the order of writing."""
    places = []
    for part in parts(schema):
        if part.within is not None or part.kind not in ("enum", "boolean"):
            continue
        options = part.schema.get("enum", [False, True])
        quoted = all(isinstance(option, str) for option in options)
        spelled = {option_text(option): json.dumps(option, ensure_ascii=False).encode() for option in options}
        if quoted:
            spelled = {label: text[1:] for label, text in spelled.items()}
        state = grammar.state_after(part.before + (b'"' if quoted else b""))
        tokens: dict[int, str] = {}
        for token in grammar.tokens_at(state):
            piece = grammar.vocabulary.tokens[token] or b""
            fits = [label for label, text in spelled.items() if text.startswith(piece) or piece.startswith(text)]
            if len(fits) != 1:
                break
            tokens[token] = fits[0]
        else:
            places.append(LabelPlace(part.path, state, tokens))
    return places


def option_text(option: Any) -> str:
    """A label as distributions name it: a text as it is, anything else as JSON prints it."""
    return option if isinstance(option, str) else json.dumps(option)


def wanted_tokens(places: Iterable[LabelPlace]) -> list[int]:
    """The tokens whose probabilities tell all these places' labels, or none where they are too many."""
    tokens = sorted({token for place in places for token in place.tokens})
    return tokens if len(tokens) <= MOST_TOKENS else []


def read_distributions(
    places: Sequence[LabelPlace],
    grammar: Grammar,
    budget: int,
    written: Sequence[int],
    logprobs: Sequence[Mapping[int, float]],
) -> dict[str, dict[str, float]]:
    """Question, or question.code -> label -> probability, for each place that the answer went through.

    written: the answer's tokens. logprobs: for each of them, token -> log-probability over the legal tokens. A
    place is passed over when the answer's tokens jumped across it, or no label's probability is known there.
    """
    by_state = {place.state: place for place in places}
    machine = grammar.machine(budget)
    found = {}
    for token, known in zip(written, logprobs, strict=False):
        if place := by_state.get(machine.state):
            mass = dict.fromkeys(place.tokens.values(), 0.0)
            for candidate, label in place.tokens.items():
                mass[label] += math.exp(known[candidate]) if candidate in known else 0.0
            if (total := math.fsum(mass.values())) > 0:
                found[".".join(place.path)] = {label: p / total for label, p in mass.items()}
        if not machine.advance(token):
            break
    return found
