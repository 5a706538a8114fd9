"""Only what is truly enforced is let in; the rest is refused when the schema is first seen."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from localjudge.decoding.grammar import check_schema, follows, parts, sample, schema_regex
from localjudge.errors import JudgeError

TEXT = {"type": "string", "x-tokens": 5}


def a_list(items: dict[str, Any], quota: int = 40) -> dict[str, Any]:
    return {"type": "array", "items": items, "x-tokens": quota}


def an_object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("part", "word"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 5}, "enum"),
        ({"type": "integer"}, "integer"),
        ({"type": "number", "multipleOf": 0.5}, "number"),
        ({"enum": [0.5, 1]}, "enum"),
        ({"enum": []}, "enum"),
        ({"enum": ["a", "a"]}, "twice"),
        ({"enum": [1, 2], "minimum": 1}, "minimum"),
        ({"type": "string"}, "quota"),
        ({"type": "string", "x-tokens": 0}, "quota"),
        ({"type": "string", "x-tokens": True}, "quota"),
        ({**TEXT, "maxLength": 10}, "maxLength"),
        ({**TEXT, "pattern": "a+"}, "pattern"),
        ({**TEXT, "minLength": 2}, "minLength"),
        ({**a_list(TEXT), "uniqueItems": True}, "uniqueItems"),
        ({**a_list(TEXT), "minItems": 1}, "minItems"),
        ({"type": "array", "items": TEXT}, "quota"),
        (a_list(TEXT, 0), "quota"),
        ({"type": "array", "x-tokens": 9}, "items"),
        (a_list({"type": "integer"}), "integer"),
        (a_list(an_object(why={"type": "string"})), "quota"),
        (a_list(a_list(TEXT)), "a list inside a list"),
        (a_list(an_object(why=TEXT, inner=an_object(more=a_list(TEXT)))), "a list inside a list"),
        ({"oneOf": [TEXT]}, "None"),
        ({"allOf": [TEXT]}, "None"),
        ({"$ref": "#"}, "None"),
        ({"type": "object", "properties": {}}, "named keys"),
        ({**an_object(a=TEXT), "required": []}, "optional"),
        ({**an_object(a=TEXT), "additionalProperties": True}, "additionalProperties"),
        ({**an_object(a=TEXT), "minProperties": 1}, "minProperties"),
        (an_object(a={"type": "integer"}), "integer"),
        (an_object(**{'a"b': TEXT}), "escapes"),
        (an_object(**{"a\nb": TEXT}), "escapes"),
    ],
)
def test_what_outlines_would_ignore_or_refuse_is_refused_by_name(part: dict[str, Any], word: str) -> None:
    with pytest.raises(JudgeError) as caught:
        check_schema(an_object(reason=TEXT, part=part))
    assert word in str(caught.value)
    assert caught.value.where is not None
    assert caught.value.where.startswith("$.part")


def test_the_regex_has_no_optional_white_space_and_spells_labels_as_json() -> None:
    schema = an_object(
        flag={"type": "boolean"}, label={"enum": ['a"b\\c', "好 吗", "x.(y)*[z]+?{1}|^$", 3, None, True]}
    )
    regex = re.compile(schema_regex(schema))
    for label in schema["properties"]["label"]["enum"]:
        answer = json.dumps({"flag": False, "label": label}, ensure_ascii=False, separators=(",", ":"))
        assert regex.fullmatch(answer), answer
    assert not regex.fullmatch('{"flag": false, "label": 3}')
    assert not regex.fullmatch('{"flag":false,"label":33}')


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ('{"why":"x","n":1,"flag":true}', True),
        ('{"why":"x","n":1,"flag":true', False),
        ('{"n":1,"why":"x","flag":true}', False),
        ('{"why":"","n":1,"flag":true}', False),
        ('{"why":"x","n":3,"flag":true}', False),
        ('{"why":"x","n":true,"flag":true}', False),
        ('{"why":"x","n":1,"flag":"true"}', False),
        ('{"why":"x","n":1,"flag":true,"more":1}', False),
        ("[" * 100_000, False),
    ],
)
def test_what_follows_a_schema_is_told_from_what_does_not(text: str, valid: bool) -> None:
    assert follows(an_object(why=TEXT, n={"enum": [1, 2]}, flag={"type": "boolean"}), text) is valid


def test_lists_are_spelled_without_optional_white_space_either() -> None:
    regex = re.compile(schema_regex(an_object(found=a_list(an_object(why=TEXT, n={"enum": [1, 10]})), ok=TEXT)))
    for items in (
        [],
        [{"why": "x", "n": 10}],
        [{"why": "x", "n": 1}, {"why": ",]", "n": 10}, {"why": "好", "n": 1}],
    ):
        answer = json.dumps({"found": items, "ok": "y"}, ensure_ascii=False, separators=(",", ":"))
        assert regex.fullmatch(answer), answer
    for answer in ('{"found":[{}],"ok":"y"}', '{"found":[{"why":"x","n":1},],"ok":"y"}', '{"found":[ ],"ok":"y"}'):
        assert not regex.fullmatch(answer)


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ('{"found":[]}', True),
        ('{"found":[{"why":"x","n":1}]}', True),
        ('{"found":[{"why":"x","n":1},{"why":"y","n":2}]}', True),
        ('{"found":[{"why":"x","n":1},{"why":"y","n":3}]}', False),
        ('{"found":[{"n":1,"why":"x"}]}', False),
        ('{"found":[{"why":"x"}]}', False),
        ('{"found":{"why":"x","n":1}}', False),
        ('{"found":[[]]}', False),
        ('{"found":"x"}', False),
        ('{"found":null}', False),
    ],
)
def test_every_item_of_a_list_must_follow_its_schema(text: str, valid: bool) -> None:
    assert follows(an_object(found=a_list(an_object(why=TEXT, n={"enum": [1, 2]}))), text) is valid


def test_parts_come_in_the_order_of_writing_each_with_a_text_that_leads_to_it() -> None:
    schema = an_object(
        first=TEXT,
        mid=an_object(label={"enum": ["é"]}, found=a_list(an_object(quote=TEXT, bad={"type": "boolean"}))),
        names=a_list({"enum": ["x", "y"]}),
        last=TEXT,
    )
    assert [(part.path, part.kind, part.within, part.before.decode()) for part in parts(schema)] == [
        (("first",), "string", None, '{"first":'),
        (("mid", "label"), "enum", None, '{"first":"a","mid":{"label":'),
        (("mid", "found"), "array", None, '{"first":"a","mid":{"label":"é","found":'),
        (
            ("mid", "found", "quote"),
            "string",
            ("mid", "found"),
            '{"first":"a","mid":{"label":"é","found":[{"quote":',
        ),
        (
            ("mid", "found", "bad"),
            "boolean",
            ("mid", "found"),
            '{"first":"a","mid":{"label":"é","found":[{"quote":"a","bad":',
        ),
        (("names",), "array", None, '{"first":"a","mid":{"label":"é","found":[{"quote":"a","bad":true}]},"names":'),
        (
            ("names",),
            "enum",
            ("names",),
            '{"first":"a","mid":{"label":"é","found":[{"quote":"a","bad":true}]},"names":[',
        ),
        (
            ("last",),
            "string",
            None,
            '{"first":"a","mid":{"label":"é","found":[{"quote":"a","bad":true}]},"names":["x"],"last":',
        ),
    ]
    assert follows(schema, sample(schema))
    assert re.fullmatch(schema_regex(schema), sample(schema))
