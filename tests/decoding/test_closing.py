"""The closing machine always ends, always valid, inside its budget, and never decides a label."""

from __future__ import annotations

import json
import random
import time
from functools import cache
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localjudge.decoding.closing import ClosingMachine, Grammar
from localjudge.decoding.grammar import follows
from localjudge.decoding.vocabulary import Vocabulary
from localjudge.errors import JudgeError
from localjudge.judge.loading import judge_names, load_judge
from localjudge.models import LocalModel
from tests.conftest import SMALL
from tests.decoding.test_grammar import a_list, an_object

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
        *("[]", "[1", '["', '[{"', '"},{"', "},{", '"}],"', '"]', "],", "1,1", ",1,", 'a","a', '},{"a":t', "]}"),
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
lists = st.one_of(
    leaves, st.dictionaries(names, leaves, min_size=1, max_size=3).map(lambda found: an_object(**found))
).flatmap(lambda item: st.integers(1, 120).map(lambda quota: a_list(item, quota)))
objects = st.recursive(
    st.one_of(leaves, leaves, lists),
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
    in_lists = [0] * len(grammar.lists)
    while not machine.finished:
        legal = machine.legal().tolist()
        assert legal, "no token is legal before the end"
        if (place := int(grammar.list_of[machine.state])) >= 0:
            in_lists[place] += 1
        if adversary == "farthest":
            token = farthest(grammar, machine, legal, rng)
        elif adversary == "shortest":
            token = min(legal, key=lambda t: (len(grammar.vocabulary.tokens[t] or b""), rng.random()))
        elif adversary == "endless":  # never an end where there is another way
            token = max(legal, key=lambda t: (b"]" not in (grammar.vocabulary.tokens[t] or b""), rng.random()))
        else:
            token = rng.choice(legal)
        assert machine.advance(token)
        written.append(token)
        assert len(written) <= budget
    assert machine.legal().tolist() == list(grammar.vocabulary.eos)
    for tokens, share in zip(in_lists, grammar.lists, strict=True):
        assert tokens <= share.of(budget - grammar.least), "a list has taken more than its quota"
    return grammar.vocabulary.text(written)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(schema=objects, seed=st.integers(0, 2**32), extra=st.sampled_from([0, 1, 2, 5, 20, 100, 400]))
def test_any_question_set_ends_valid_in_any_budget_whatever_is_chosen(
    schema: dict[str, Any], seed: int, extra: int
) -> None:
    grammar = Grammar(schema, small_vocabulary())
    rng = random.Random(seed)
    for adversary in ("random", "farthest", "shortest", "endless"):
        answer = write(grammar, grammar.least + extra, rng, adversary)
        jsonschema.validate(json.loads(answer), schema)
        assert follows(schema, answer)


def cheapest(grammar: Grammar) -> Any:
    """The answer in the fewest tokens but with an item in each list: its texts are what a text is like when there
    is room for no more."""
    machine, written = grammar.machine(grammar.least), b""
    while not machine.finished:
        row = grammar._rows[machine.state]
        needs = dict(zip(row.tokens.tolist(), row.need.tolist(), strict=True))
        legal = {token: grammar.vocabulary.tokens[token] or b"" for token in machine.legal().tolist()}
        token = min((token for token in legal if b"[]" not in written[-1:] + legal[token]), key=needs.__getitem__)
        written += legal[token]
        machine.advance(token)
    return json.loads(written)


def alternatives(schema: dict[str, Any], filled: Any) -> list[tuple[str, list[str]]]:
    """Every label of the schema: the text before it, with the texts of `filled`, and the JSON of its choices. Of a
    list, whether there is anything in it."""
    found: list[tuple[str, list[str]]] = []

    def walk(part: dict[str, Any], before: str, value: Any) -> str:
        if part.get("type") == "object":
            for i, (key, inner) in enumerate(part["properties"].items()):
                start = ("," if i else "{") + json.dumps(key, ensure_ascii=False) + ":"
                before = walk(inner, before + start, value[key])
            return before + "}"
        if part.get("type") == "array":
            found.append(
                (before, ["[]", "[" + json.dumps(value[0], ensure_ascii=False, separators=(",", ":")) + "]"])
            )
            for item in value:
                walk(part["items"], before + "[", item)
            return before + json.dumps(value, ensure_ascii=False, separators=(",", ":"))
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
    machine = grammar.machine(grammar.least + rng.choice([rng.randrange(40), rng.randrange(300)]))
    while not machine.finished:
        legal = set(machine.legal().tolist())
        state = machine.state
        if grammar.text_of[state] < 0:
            firsts = {(grammar.vocabulary.tokens[token] or b" ")[0] for token in legal}
            here = grammar._bytes[grammar._states[state]].keys()
            assert here <= firsts, "a byte that the grammar allows has become unaffordable"
            assert firsts - here <= {ord(",")}, "nothing but another item may be unaffordable"
        machine.advance(rng.choice(sorted(legal)))


@pytest.mark.parametrize("name", judge_names())
def test_each_built_in_judge_offers_every_label_at_its_least_budget(name: str, embedded: LocalModel) -> None:
    vocabulary = Vocabulary.from_folder(embedded.path)
    for schema in load_judge(name).schemas:
        grammar = Grammar(schema, vocabulary)
        for before, options in alternatives(schema, cheapest(grammar)):
            for option in options:
                assert spell(grammar.machine(grammar.least), grammar, (before + option).encode()), (before, option)


@pytest.mark.parametrize("name", judge_names())
def test_each_built_in_judge_ends_in_any_budget(name: str, embedded: LocalModel) -> None:
    vocabulary = Vocabulary.from_folder(embedded.path)
    rng = random.Random(1)
    for schema in load_judge(name).schemas:
        grammar = Grammar(schema, vocabulary)
        for budget in (grammar.least, grammar.least + 1, 64, 256, *[grammar.full] * (name in SMALL)):
            for adversary in ("random", "farthest"):
                for _ in range(3 if name in SMALL else 1):
                    answer = write(grammar, max(budget, grammar.least), rng, adversary)
                    jsonschema.validate(json.loads(answer), schema)


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
        trail.append((machine.state, machine.left, machine.room, machine.mask().tobytes()))
        machine.advance(rng.choice(machine.legal().tolist()))
    for state, left, room, mask in reversed(trail):
        machine.rollback(1)
        assert (machine.state, machine.left, machine.room, machine.mask().tobytes()) == (state, left, room, mask)


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


FINDING = an_object(quote=text(12), kind={"enum": ["fact", "style"]}, why=text(8), severe={"type": "boolean"})
FINDINGS = an_object(why=text(20), findings=a_list(FINDING, 200), more=a_list(FINDING, 160), score={"enum": [1, 2]})


def test_a_list_that_never_ends_by_itself_leaves_what_follows_its_share(embedded: LocalModel) -> None:
    """A model that begins item after item fills each list to its quota, and no list takes from the next."""
    vocabulary = Vocabulary.from_folder(embedded.path)
    grammar = Grammar(FINDINGS, vocabulary)
    for budget in (grammar.least, grammar.least + 60, grammar.full):
        rng = random.Random(budget)
        answer = json.loads(write(grammar, budget, rng, "endless"))
        jsonschema.validate(answer, FINDINGS)
        found, more = len(answer["findings"]), len(answer["more"])
        assert found >= 1 <= more
        if budget == grammar.full:
            assert found >= 2 <= more


def test_each_item_s_texts_have_quotas_of_their_own(embedded: LocalModel) -> None:
    """Each quote that never wants to end goes on to its quota, the last item's to its part of what is left."""
    vocabulary = Vocabulary.from_folder(embedded.path)
    grammar = Grammar(an_object(found=a_list(an_object(quote=text(10), why=text(5)), 70), last=text(6)), vocabulary)
    machine = grammar.machine(grammar.full)
    word = next(i for i, piece in enumerate(vocabulary.tokens) if piece == b" the")
    written = b""
    while not machine.finished:
        legal = machine.legal().tolist()
        tokens = {token: vocabulary.tokens[token] or b"" for token in legal}
        token = word if word in tokens else max(tokens, key=lambda t: (b"]" not in tokens[t], len(tokens[t])))
        machine.advance(token)
        written += tokens[token]
    answer = json.loads(written)
    counts = [(item["quote"].count(" the"), item["why"].count(" the")) for item in answer["found"]]
    assert len(counts) >= 3
    for quote, why in counts[:-1]:
        assert 8 <= quote <= 10, counts
        assert 3 <= why <= 5, counts
    quote, why = counts[-1]
    assert quote <= 10, counts
    assert why >= 1 or quote <= 3, "the last item's quote has starved its reason"
    assert answer["last"].count(" the") >= 4


def test_tokens_across_the_boundaries_of_items_stay_legal() -> None:
    vocabulary = small_vocabulary()
    grammar = Grammar(an_object(found=a_list(an_object(why=text(5)), 60), ok=text(5)), vocabulary)
    ids = {piece: token for token, piece in enumerate(vocabulary.tokens)}

    def legal_after(written: str, budget: int) -> set[bytes]:
        machine = grammar.machine(budget)
        if not all(machine.advance(ids[bytes([byte])]) for byte in written.encode()):
            return set()  # a byte a token is too dear
        return {vocabulary.tokens[token] or b"" for token in machine.legal().tolist()}

    item = '{"found":[{"why":"x'
    assert {b"[]", b"[", b'[{"'} <= legal_after('{"found":', grammar.full)
    assert b'"}],"' in legal_after('{"found":[{"why":"x', grammar.full)
    assert b'"},{"' in legal_after('{"found":[{"why":"x', grammar.full)
    another = [b'"},{"' in legal_after(item, budget) for budget in range(grammar.least, grammar.full)]
    assert another == sorted(another), "a larger budget never takes another item away"
    assert set(another) == {False, True}
    assert all(b'"}],"' in legal_after(item, grammar.least + extra) for extra in range(len(item), 90))


def test_no_token_both_begins_an_item_and_chooses_its_label() -> None:
    """`},{"a":t` would make true cheaper than false, and a tight budget would leave nothing else."""
    vocabulary = small_vocabulary()
    grammar = Grammar(an_object(found=a_list(an_object(a={"type": "boolean"}), 60)), vocabulary)
    ids = {piece: token for token, piece in enumerate(vocabulary.tokens)}
    state = grammar.state_after(b'{"found":[{"a":true')
    assert ids[b"},{"] in grammar.tokens_at(state)
    assert ids[b'},{"a":t'] not in grammar.tokens_at(state)


def test_characters_of_several_bytes_are_whole_in_an_item_s_quote(embedded: LocalModel) -> None:
    vocabulary = Vocabulary.from_folder(embedded.path)
    grammar = Grammar(
        an_object(found=a_list(an_object(quote=text(3), pick={"enum": ["好", "😀"]}), 30)), vocabulary
    )
    starts = [i for i, piece in enumerate(vocabulary.tokens) if piece and piece[-1] >= 0xC0]
    for seed in range(20):
        rng = random.Random(seed)
        machine, written = grammar.machine(grammar.least + seed), b""
        while not machine.finished:
            legal = machine.legal().tolist()
            token = rng.choice([t for t in starts if t in legal] or legal)
            written += vocabulary.tokens[token] or b""
            machine.advance(token)
        jsonschema.validate(json.loads(written.decode()), an_object(found=a_list(an_object(quote={}, pick={}))))


def test_steps_inside_lists_can_be_taken_back() -> None:
    grammar = Grammar(an_object(found=a_list(an_object(why=text(5)), 40), last=text(3)), small_vocabulary())
    rng = random.Random(5)
    for _ in range(10):
        machine = grammar.machine(grammar.full)
        trail = []
        while not machine.finished:
            trail.append((machine.state, machine.left, machine.room, machine.held, machine.spare))
            machine.advance(rng.choice(machine.legal().tolist()))
        for seen in reversed(trail):
            machine.rollback(1)
            assert (machine.state, machine.left, machine.room, machine.held, machine.spare) == seen


def test_a_grammar_of_findings_compiles_in_less_than_a_second(embedded: LocalModel) -> None:
    vocabulary = Vocabulary.from_folder(embedded.path)
    assert vocabulary.core
    item = an_object(
        quote=text(40), kind={"enum": ["a", "b"]}, why=text(30), severe={"type": "boolean"}, fix=text(30)
    )
    start = time.process_time()
    Grammar(an_object(why=text(80), findings=a_list(item, 300), score={"enum": [1, 2, 3, 4, 5]}), vocabulary)
    assert time.process_time() - start < 1


def test_a_list_of_plain_texts_gives_each_its_quota() -> None:
    """`","` leaves one text and is in the next."""
    vocabulary = small_vocabulary()
    grammar = Grammar(an_object(found=a_list(text(3), 60), last=text(3)), vocabulary)
    ids = {piece: token for token, piece in enumerate(vocabulary.tokens)}
    machine = grammar.machine(grammar.full + 9)
    for byte in b'{"found":["':
        assert machine.advance(ids[bytes([byte])])
    for _ in range(5):
        assert all(machine.advance(ids[b"The "]) for _ in range(2))  # the opening token is one of its three
        assert not machine.advance(ids[b"The "])
        assert machine.advance(ids[b'","'])


def test_a_token_into_a_list_that_leaves_more_to_write_than_its_bracket_is_not_taken() -> None:
    """`[{` would spoil the one token for the whole key, and the list's share may not cover its bytes."""
    pieces = [bytes([byte]) for byte in range(256)] + [b'{"why":"', b"[{"]
    grammar = Grammar(
        an_object(found=a_list(an_object(why=text(1)), 1), last=text(9)), Vocabulary([*pieces, None], [258])
    )
    assert grammar.tokens_at(grammar.state_after(b'{"found":')) == [ord("[")]
    for seed in range(10):
        write(grammar, grammar.full + seed, random.Random(seed), "endless")
