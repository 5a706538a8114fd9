"""The closing machine always ends, always valid, inside its budget, and never decides a label."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localjudge.decoding.closing import ClosingMachine, Grammar
from localjudge.decoding.vocabulary import Vocabulary
from localjudge.errors import JudgeError
from localjudge.judge.spec import judge_names, load_judge
from localjudge.models import LocalModel
from tests.decoding.test_grammar import an_object

FAR = 10**6


def text(quota: int) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "x-tokens": quota}


@cache
def small_vocabulary() -> Vocabulary:
    """Bytes, and longer tokens that straddle every boundary there is: quotes, keys, labels, half characters."""
    longer = [
        *(
            '":"',
            '","',
            '":',
            '{"',
            '"}',
            '"a',
            'a"',
            '","s',
            '":"The',
            "The ",
            "the",
            " good",
            'good"}',
            "goo",
            "od",
        ),
        *("gre", "reat", "1", "10", "0,", ',"', "0}", ":1", "true", "rue,", "false", "fal", "score", "sco", 're"'),
        *(
            "好",
            "好 吗",
            ' 吗"',
            "é",
            "😀",
            '\\"',
            "\\\\",
            "\\",
            '"\\',
            "ab",
            "abX",
            "YZ",
            "}}",
            '":{"',
            '":tr',
            'a","',
        ),
        *('"B1":', 'x","y'),
    ]
    pieces = [bytes([byte]) for byte in range(256)]
    pieces += [piece.encode() for piece in longer]
    pieces += [
        "好".encode()[:2],
        "好".encode()[1:],
        "好".encode()[2:] + b'"',
        "😀".encode()[:3],
        b'"' + "好".encode()[:1],
    ]
    unique: list[bytes | None] = list(dict.fromkeys(pieces))
    return Vocabulary([*unique, None], [len(unique)])


labels = st.one_of(
    st.lists(st.integers(0, 12), min_size=1, max_size=6, unique=True),
    st.lists(
        st.sampled_from(
            [
                "good",
                "great",
                "goo",
                "A",
                "B",
                "tie",
                "好 吗",
                "é è",
                "😀",
                'a"b',
                "\\",
                "abXYZ",
                "abX",
                "a\nb",
                "x.*",
            ]
        ),
        min_size=1,
        max_size=5,
        unique=True,
    ),
).map(lambda values: {"enum": values})
leaves = st.one_of(labels, st.integers(1, 30).map(text), st.just({"type": "boolean"}))
names = st.sampled_from(["a", "score", "sco", "B1", "the", "好", "x y", "a.b", "(c)*", "why"])
objects = st.recursive(
    leaves,
    lambda parts: st.dictionaries(names, parts, min_size=1, max_size=4).map(lambda found: an_object(**found)),
    max_leaves=6,
).filter(lambda schema: schema.get("type") == "object")


def farthest(grammar: Grammar, machine: ClosingMachine, legal: list[int], rng: random.Random) -> int:
    """The legal token that leads farthest from the end."""
    row = grammar._rows[machine.state]
    needs = dict(zip(row.tokens.tolist(), row.need.tolist(), strict=True))
    worst = max(needs[token] for token in legal)
    return rng.choice([token for token in legal if needs[token] == worst])


def write(grammar: Grammar, budget: int, rng: random.Random, adversary: str) -> str:
    machine = grammar.machine(budget)
    written: list[int] = []
    while not machine.finished:
        legal = machine.legal().tolist()
        assert legal, "no token is legal before the end"
        if adversary == "farthest":
            token = farthest(grammar, machine, legal, rng)
        elif adversary == "shortest":
            token = min(legal, key=lambda t: (len(grammar.vocabulary.tokens[t] or b""), rng.random()))
        else:
            token = rng.choice(legal)
        assert machine.advance(token)
        written.append(token)
        assert len(written) <= budget
    assert machine.legal().tolist() == list(grammar.vocabulary.eos)
    return grammar.vocabulary.text(written)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(schema=objects, seed=st.integers(0, 2**32), extra=st.sampled_from([0, 1, 2, 5, 20, 100]))
def test_any_question_set_ends_valid_in_any_budget_whatever_is_chosen(
    schema: dict[str, Any], seed: int, extra: int
) -> None:
    grammar = Grammar(schema, small_vocabulary())
    rng = random.Random(seed)
    for adversary in ("random", "farthest", "shortest"):
        answer = write(grammar, grammar.least + extra, rng, adversary)
        jsonschema.validate(json.loads(answer), schema)


def cheapest(grammar: Grammar) -> Any:
    """The answer in the fewest tokens: its texts are what a text looks like when there is room for no more."""
    machine, written = grammar.machine(grammar.least), []
    while not machine.finished:
        row = grammar._rows[machine.state]
        needs = dict(zip(row.tokens.tolist(), row.need.tolist(), strict=True))
        written.append(min(machine.legal().tolist(), key=needs.__getitem__))
        machine.advance(written[-1])
    return json.loads(grammar.vocabulary.text(written))


def alternatives(schema: dict[str, Any], filled: Any) -> list[tuple[str, list[str]]]:
    """Every label of the schema: the text before it, with the texts of `filled`, and the JSON of its choices."""
    found: list[tuple[str, list[str]]] = []

    def walk(part: dict[str, Any], before: str, value: Any) -> str:
        if part.get("type") == "object":
            for i, (key, inner) in enumerate(part["properties"].items()):
                start = ("," if i else "{") + json.dumps(key, ensure_ascii=False) + ":"
                before = walk(inner, before + start, value[key])
            return before + "}"
        if part.get("type") != "string":
            options = part.get("enum", [False, True])
            found.append((before, [json.dumps(option, ensure_ascii=False) for option in options]))
        return before + json.dumps(value, ensure_ascii=False)

    walk(schema, "", filled)
    return found


def spell(machine: ClosingMachine, grammar: Grammar, wanted: bytes) -> bool:
    """Whether some spelling of `wanted` is legal all the way (depth first, longest tokens first)."""
    if not wanted:
        return True
    tokens = grammar.vocabulary.tokens
    for token in sorted(machine.legal().tolist(), key=lambda t: -len(tokens[t] or b"")):
        piece = tokens[token]
        if not piece or not wanted.startswith(piece[: len(wanted)]):
            continue
        machine.advance(token)
        if len(piece) >= len(wanted) or spell(machine, grammar, wanted[len(piece) :]):
            machine.rollback(1)
            return True
        machine.rollback(1)
    return False


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(schema=objects, seed=st.integers(0, 2**32))
def test_want_of_room_never_takes_a_label_away(schema: dict[str, Any], seed: int) -> None:
    """Written in the least budget, with every text at its shortest, each label can still be chosen."""
    grammar = Grammar(schema, small_vocabulary())
    rng = random.Random(seed)
    for before, options in alternatives(schema, cheapest(grammar)):
        for option in options:
            assert spell(grammar.machine(grammar.least), grammar, (before + option).encode()), (before, option)
    # ... and after any wandering, where one label of a scale is legal, all are.
    machine = grammar.machine(grammar.least + rng.randrange(40))
    while not machine.finished:
        legal = set(machine.legal().tolist())
        state = machine.state
        if grammar.text_of[state] < 0:
            here = grammar.index.bytes[grammar._states[state]]
            firsts = {(grammar.vocabulary.tokens[token] or b" ")[0] for token in legal}
            assert firsts == set(here), "a byte that the grammar allows has become unaffordable"
        machine.advance(rng.choice(sorted(legal)))


@pytest.mark.parametrize("name", judge_names())
def test_each_built_in_judge_offers_every_label_at_its_least_budget(name: str, embedded: LocalModel) -> None:
    spec = load_judge(name)
    grammar = Grammar(spec.answer_schema, Vocabulary.from_folder(embedded.path))
    for before, options in alternatives(spec.answer_schema, cheapest(grammar)):
        for option in options:
            assert spell(grammar.machine(grammar.least), grammar, (before + option).encode()), (before, option)


@pytest.mark.parametrize("name", judge_names())
def test_each_built_in_judge_ends_in_any_budget(name: str, embedded: LocalModel) -> None:
    spec = load_judge(name)
    grammar = Grammar(spec.answer_schema, Vocabulary.from_folder(embedded.path))
    rng = random.Random(1)
    for budget in (grammar.least, grammar.least + 1, 64, 256, grammar.full):
        for adversary in ("random", "farthest"):
            for _ in range(3):
                answer = write(grammar, max(budget, grammar.least), rng, adversary)
                jsonschema.validate(json.loads(answer), spec.answer_schema)


@pytest.mark.parametrize("label", ["好 吗", "é è", "😀", "ﷺ", 'a "quoted" \\ label', "naïve 👩‍🚀"])
def test_labels_beyond_ascii_come_out_right(label: str, embedded: LocalModel) -> None:
    grammar = Grammar(an_object(pick={"enum": [label]}, why=text(9)), Vocabulary.from_folder(embedded.path))
    for seed in range(5):
        answer = json.loads(write(grammar, grammar.least + seed, random.Random(seed), "random"))
        assert answer["pick"] == label


def test_a_chatty_first_text_cannot_starve_the_next(embedded: LocalModel) -> None:
    """A model that never wants to stop fills each text to its quota; none is left with less than its share."""
    vocabulary = Vocabulary.from_folder(embedded.path)
    grammar = Grammar(an_object(first=text(60), score={"enum": [1, 2]}, second=text(20)), vocabulary)
    word = next(i for i, piece in enumerate(vocabulary.tokens) if piece == b" the")
    for budget, first, second in ((grammar.full, 60, 20), (grammar.least + 39, 30, 10), (grammar.least, 1, 1)):
        machine = grammar.machine(budget)
        counts = {0: 0, 1: 0}
        while not machine.finished:
            legal = machine.legal().tolist()
            longest = max(legal, key=lambda token: len(vocabulary.tokens[token] or b""))
            machine.advance(word if word in legal else longest)
            if (inside := int(grammar.text_of[machine.state])) >= 0:
                counts[inside] += 1
        assert first - 1 <= counts[0] <= first + 2, (budget, counts)
        assert second - 1 <= counts[1] <= second + 2, (budget, counts)


def test_steps_can_be_taken_back() -> None:
    """Speculative decoding proposes tokens and withdraws them."""
    grammar = Grammar(an_object(why=text(5), ok={"type": "boolean"}), small_vocabulary())
    machine = grammar.machine(grammar.least + 6)
    rng = random.Random(3)
    trail = []
    while not machine.finished:
        trail.append((machine.state, machine.left, machine.used, machine.mask().tobytes()))
        machine.advance(rng.choice(machine.legal().tolist()))
    for state, left, used, mask in reversed(trail):
        machine.rollback(1)
        assert (machine.state, machine.left, machine.used, machine.mask().tobytes()) == (state, left, used, mask)


def test_an_illegal_token_changes_nothing() -> None:
    grammar = Grammar(an_object(ok={"type": "boolean"}), small_vocabulary())
    machine = grammar.machine(grammar.least)
    before = machine.mask().copy()
    for token in (ord("x"), grammar.vocabulary.eos[0], 10**7):
        assert not machine.advance(token)
    assert np.array_equal(machine.mask(), before)
    assert machine.left == grammar.least


def test_a_budget_below_the_least_is_refused() -> None:
    grammar = Grammar(an_object(ok={"type": "boolean"}), small_vocabulary())
    with pytest.raises(ValueError, match=f"below the least, {grammar.least}"):
        grammar.machine(grammar.least - 1)


def test_a_vocabulary_that_cannot_spell_a_label_is_refused() -> None:
    only_ascii = Vocabulary([bytes([byte]) for byte in range(128)] + [None], [128])
    Grammar(an_object(pick={"enum": ["yes"]}), only_ascii)
    with pytest.raises(JudgeError, match="cannot spell"):
        Grammar(an_object(pick={"enum": ["yes", "好"]}), only_ascii)
