"""What a model may answer, and how an answer is read back: exactly what the schema allows, and nothing else."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from localjudge.decoding.grammar import check_schema
from localjudge.judge.questions import Question, answer_form, answer_schema, read_answers

QUESTIONS: list[Question] = TypeAdapter(list[Question]).validate_python(
    [
        {"id": "why", "type": "text", "ask": "Why?", "budget": 20},
        {"id": "good", "type": "score", "ask": "Is it good?", "scale": [-1, 3]},
        {"id": "kind", "type": "choice", "ask": "Which?", "options": ["yes", "是", 'so "so"', "back\\slash", "🙂"]},
        {"id": "lines", "type": "flags", "ask": "Any?", "codes": {"A-1": "harm", "B.2": "lie"}},
        {
            "id": "found",
            "type": "findings",
            "ask": "What is wrong?",
            "budget": 200,
            "fields": {
                "code": {"type": "choice", "options": {"D1": "a lie", "D2": "a slip"}},
                "grave": {"type": "yesno", "ask": "Is it grave?"},
                "reason": {"type": "text", "budget": 20},
            },
        },
    ]
)
FOUND = [{"quote": "he said", "code": "D2", "grave": "no", "reason": "why not"}]
ANSWER = {"why": "because", "good": 3, "kind": "是", "lines": {"A-1": False, "B.2": True}, "found": FOUND}


def text(**changed: Any) -> str:
    return json.dumps({**ANSWER, **changed})


def test_each_kind_of_question_gives_its_value_back() -> None:
    read = read_answers(text(), QUESTIONS)
    assert {name: answer.value for name, answer in read.items()} == {
        "why": "because",
        "good": 3,
        "kind": "是",
        "lines": ["B.2"],
        "found": FOUND,
    }
    assert list(read) == [question.id for question in QUESTIONS]
    assert all(answer.distribution is None for answer in read.values())


def test_distributions_go_to_their_questions() -> None:
    read = read_answers(text(), QUESTIONS, {"good": {"2": 0.25, "3": 0.75}, "kind": {}})
    assert read["good"].distribution == {"2": 0.25, "3": 0.75}
    assert read["kind"].distribution is None


@pytest.mark.parametrize("label", ["yes", "是", 'so "so"', "back\\slash", "🙂"])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_labels_may_be_any_text(label: str, ascii_only: bool) -> None:
    written = json.dumps({**ANSWER, "kind": label}, ensure_ascii=ascii_only)
    assert read_answers(written, QUESTIONS)["kind"].value == label


def test_a_score_is_a_whole_number_however_it_is_written() -> None:
    [value] = {
        type(read_answers(text().replace("3", number), QUESTIONS)["good"].value) for number in ("3", "3.0", "3e0")
    }
    assert value is int


def test_the_prompt_shows_the_form_in_the_order_of_the_questions() -> None:
    assert answer_form(QUESTIONS) == (
        '{"why":"...","good":<-1 to 3>,"kind":"yes"|"是"|"so \\"so\\""|"back\\\\slash"|"🙂",'
        '"lines":{"A-1":true|false,"B.2":true|false},'
        '"found":[{"quote":"...","code":"D1"|"D2","grave":"yes"|"no","reason":"..."}, ...]}'
    )


def test_the_schema_is_one_that_can_be_enforced() -> None:
    check_schema(answer_schema(QUESTIONS))


def test_nothing_found_is_an_answer_and_so_is_much() -> None:
    assert read_answers(text(found=[]), QUESTIONS)["found"].value == []
    assert read_answers(text(found=FOUND * 30), QUESTIONS)["found"].value == FOUND * 30


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ({"type": "choice"}, "needs options"),
        ({"type": "choice", "options": ["one"]}, "at least 2"),
        ({"type": "choice", "options": ["one", "one"]}, "listed twice"),
        ({"type": "text", "options": ["a", "b"]}, "takes no options"),
        ({"type": "yesno", "budget": 5}, "takes no budget"),
        ({"type": "text", "budget": 0}, "greater than or equal to 1"),
        ({"type": "number"}, "'text', 'choice' or 'yesno'"),
        ({"ask": "What?"}, "Field required"),
    ],
)
def test_a_field_of_a_finding_is_a_text_a_choice_or_yes_or_no(field: dict[str, Any], says: str) -> None:
    question = {"id": "found", "type": "findings", "ask": "?", "fields": {"field": field}}
    with pytest.raises(ValidationError, match=re.escape(says)):
        TypeAdapter(Question).validate_python(question)


@pytest.mark.parametrize("name", ["quote", "1st", "a b", "好"])
def test_a_finding_has_its_quote_already_and_plain_names(name: str) -> None:
    question = {"id": "found", "type": "findings", "ask": "?", "fields": {name: {"type": "text"}}}
    with pytest.raises(ValidationError, match=r"already|cannot be a name"):
        TypeAdapter(Question).validate_python(question)


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("", "the answer is not JSON"),
        ("{", "the answer is not JSON"),
        ("good", "the answer is not JSON"),
        (text() + "}", "the answer is not JSON"),
        ("Here you are: " + text(), "the answer is not JSON"),
        ("[" * 100_000, "the answer is not JSON"),
        (text().replace('"good": 3', '"good": ' + "9" * 5000), "the answer is not JSON"),
        (text().replace('"good": 3', '"good": 1, "good": 3'), "a key is given twice"),
        (text().replace('"A-1": false', '"A-1": true, "A-1": false'), "a key is given twice"),
        ("[]", "exactly the keys why, good, kind, lines, found"),
        ("null", "exactly the keys why, good, kind, lines, found"),
        ("{}", "exactly the keys why, good, kind, lines, found"),
        (text(more=1), "exactly the keys why, good, kind, lines, found"),
        (json.dumps(dict(reversed(ANSWER.items()))), "exactly the keys why, good, kind, lines, found"),
        (text(why=""), "'why' is not a text"),
        (text(why=None), "'why' is not a text"),
        (text(why=["because"]), "'why' is not a text"),
        (text(why="\ud800"), "surrogates not allowed"),
        (text(kind="\ud800"), "surrogates not allowed"),
        (text(**{"\ud800": 1}), "surrogates not allowed"),
        (text(good=4), "'good' is 4, which is not on the scale [-1, 3]"),
        (text(good=-2), "'good' is -2"),
        (text(good=2.5), "'good' is 2.5"),
        (text(good="3"), "'good' is \"3\""),
        (text(good=True), "'good' is true"),
        (text(good=None), "'good' is null"),
        (text(good=float("nan")), "'good' is NaN"),
        (text(good=float("inf")), "'good' is Infinity"),
        (text(good=[3]), "'good' is a list"),
        (text(good={}), "'good' is keys and values"),
        (text(kind="Yes"), "'kind' is \"Yes\", which is not one of yes, 是"),
        (text(kind="yes "), "'kind' is \"yes \""),
        (text(kind="x" * 1000), "'kind' is \"xxxx"),
        (text(kind=None), "'kind' is null"),
        (text(kind=["yes"]), "'kind' is a list"),
        (text(lines=[]), "'lines' does not answer exactly the codes A-1, B.2"),
        (text(lines={"A-1": True}), "'lines' does not answer exactly the codes"),
        (text(lines={"B.2": True, "A-1": False}), "'lines' does not answer exactly the codes"),
        (text(lines={"A-1": True, "B.2": False, "C": True}), "'lines' does not answer exactly the codes"),
        (text(lines={"A-1": True, "B.2": 0}), "'lines' has a code that is neither true nor false"),
        (text(lines={"A-1": True, "B.2": "true"}), "'lines' has a code that is neither true nor false"),
        (text(found=None), "'found' is null, which is no list"),
        (text(found=FOUND[0]), "'found' is keys and values, which is no list"),
        (text(found=["he said"]), "'found' has a finding, number 1, without exactly the keys quote, code, grave"),
        (text(found=[*FOUND, {}]), "'found' has a finding, number 2, without exactly the keys"),
        (
            text(found=[dict(reversed(FOUND[0].items()))]),
            "'found' has a finding, number 1, without exactly the keys",
        ),
        (text(found=[{**FOUND[0], "more": 1}]), "'found' has a finding, number 1, without exactly the keys"),
        (text(found=[*FOUND, {**FOUND[0], "code": "D3"}]), 'number 2, whose code cannot be "D3"'),
        (text(found=[{**FOUND[0], "grave": True}]), "number 1, whose grave cannot be true"),
        (text(found=[{**FOUND[0], "quote": ""}]), 'number 1, whose quote cannot be ""'),
        (text(found=[{**FOUND[0], "reason": ["x"]}]), "number 1, whose reason cannot be a list"),
    ],
    ids=lambda written: repr(written)[:60],
)
def test_anything_else_is_refused_in_a_sentence(written: str, says: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_answers(written, QUESTIONS)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 200
    assert str(caught.value).encode(), "a verdict that tells it can be written"


identifiers = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,6}", fullmatch=True)
codes = st.from_regex(r"[A-Za-z0-9_.-]{1,5}", fullmatch=True)
characters = st.characters(exclude_categories=["Cs"])
labels = st.text(characters, min_size=1, max_size=6)


TAKEN = ("quote", "verified", "settled", "why")
fields = st.one_of(
    st.builds(lambda budget: {"type": "text", "budget": budget}, st.integers(1, 40)),
    st.just({"type": "yesno"}),
    st.lists(labels, min_size=2, max_size=4, unique=True).map(lambda own: {"type": "choice", "options": own}),
)


@st.composite
def question_lists(draw: st.DrawFn) -> list[Question]:
    questions = []
    for name in draw(st.lists(identifiers, min_size=1, max_size=5, unique=True)):
        kind = draw(st.sampled_from(["text", "score", "choice", "flags", "findings"]))
        question: dict[str, Any] = {"id": name, "type": kind, "ask": "?"}
        if kind == "score":
            low = draw(st.integers(-5, 5))
            question["scale"] = [low, low + draw(st.integers(1, 10))]
        elif kind == "choice":
            question["options"] = draw(st.lists(labels, min_size=2, max_size=5, unique=True))
        elif kind == "flags":
            question["codes"] = dict.fromkeys(draw(st.lists(codes, min_size=1, max_size=4, unique=True)), "x")
        elif kind == "findings":
            question["fields"] = draw(
                st.dictionaries(identifiers.filter(lambda n: n not in TAKEN), fields, max_size=3)
            )
        questions.append(question)
    return TypeAdapter(list[Question]).validate_python(questions)


def answers_to(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Any value that follows a schema, with its keys in our order."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema["type"] == "array":
        return st.lists(answers_to(schema["items"]), max_size=3)
    if schema["type"] == "object":
        keys = list(schema["properties"])
        values = st.tuples(*map(answers_to, schema["properties"].values()))
        return values.map(lambda drawn: dict(zip(keys, drawn, strict=True)))
    return st.booleans() if schema["type"] == "boolean" else st.text(characters, min_size=1, max_size=20)


@settings(deadline=None)
@given(st.data())
def test_what_follows_the_schema_is_read_and_one_change_that_breaks_it_is_refused(data: st.DataObject) -> None:
    questions = data.draw(question_lists())
    schema = answer_schema(questions)
    answer = data.draw(answers_to(schema))
    jsonschema.validate(answer, schema)
    written = json.dumps(answer, ensure_ascii=data.draw(st.booleans()))
    read = read_answers(written, questions)
    for question in questions:
        said = answer[question.id]
        assert read[question.id].value == ([c for c in said if said[c]] if question.type == "flags" else said)

    changed = dict(answer)
    name = data.draw(st.sampled_from(list(answer)))
    what = data.draw(st.sampled_from(["drop", "add", "change", "reach in"]))
    if what == "drop":
        del changed[name]
    elif what == "add":
        changed[name + "_"] = answer[name]
    elif what == "reach in" and isinstance(answer[name], dict):
        changed[name] = {**answer[name], data.draw(st.sampled_from(list(answer[name]))): data.draw(junk)}
    else:
        changed[name] = data.draw(junk)
    try:
        jsonschema.validate(changed, schema)
    except jsonschema.ValidationError:
        with pytest.raises(ValueError):
            read_answers(json.dumps(changed), questions)
    else:
        read_answers(json.dumps(changed), questions)


junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-20, 20),
    st.floats(-9, 9),
    st.just(""),
    labels,
    st.lists(st.booleans(), max_size=2),
    st.dictionaries(codes, st.booleans(), max_size=2),
)
