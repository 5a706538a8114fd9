"""Only what is truly enforced is let in; the rest is refused when the schema is first seen."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from localjudge.decoding.grammar import check_schema, follows, openings, quotas, schema_regex
from localjudge.errors import JudgeError

TEXT = {"type": "string", "x-tokens": 5}


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
        ({"type": "array", "items": TEXT, "uniqueItems": True}, "array"),
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


def test_quotas_and_openings_follow_the_order_of_writing() -> None:
    schema = an_object(
        first={**TEXT, "x-tokens": 7},
        mid=an_object(label={"enum": ["é"]}, inner=TEXT),
        last={**TEXT, "x-tokens": 9},
    )
    assert quotas(schema) == [7, 5, 9]
    assert [text.decode() for text in openings(schema)] == [
        '{"first":"',
        '{"first":"a","mid":{"label":"é","inner":"',
        '{"first":"a","mid":{"label":"é","inner":"a"},"last":"',
    ]
