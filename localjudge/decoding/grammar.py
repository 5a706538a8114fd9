"""From a JSON schema to an index of legal tokens.

Takes only what outlines_core truly enforces: an object of fixed keys, enums, constants, booleans and free
strings, nested as deep as one likes. Everything else (numeric bounds, patterns, optional keys, ...) is either
ignored or refused by it, so it is refused here, when the schema is first seen. Free strings carry their quota of
tokens under `QUOTA`; the grammar leaves them unbounded, which keeps the index small, and `closing` bounds them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import outlines_core
from outlines_core.json_schema import build_regex_from_schema

from localjudge.decoding.vocabulary import Vocabulary
from localjudge.errors import JudgeError

QUOTA = "x-tokens"
"""The schema keyword that bounds a free string, in tokens."""

_ALLOWED = {
    "object": {"type", "properties", "required", "additionalProperties", "description", "title"},
    "string": {"type", "minLength", QUOTA, "description", "title"},
    "boolean": {"type", "description", "title"},
    "enum": {"enum", "type", "description", "title"},
    "const": {"const", "type", "description", "title"},
}


def check_schema(schema: Mapping[str, Any], at: str = "$") -> None:
    """Raise JudgeError for the first part of `schema` that the decoder would not enforce to the letter."""

    def refuse(what: str, fix: str) -> JudgeError:
        return JudgeError(f"the schema cannot be enforced: {what}", where=at, fix=fix)

    kind = next((key for key in ("enum", "const") if key in schema), schema.get("type"))
    if not isinstance(kind, str) or kind not in _ALLOWED:
        fix = "use an object of fixed keys, an enum, a const, a boolean or a string"
        raise refuse(f"{kind!r} is not a kind that it knows", fix)
    for key in schema:
        if key not in _ALLOWED[kind]:
            hint = "list the values as an enum" if key in {"minimum", "maximum", "multipleOf"} else f"drop '{key}'"
            raise refuse(f"'{key}' would be ignored", hint)
    if kind == "object":
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            raise refuse("an object without named keys", "name its keys under 'properties'")
        if list(schema.get("required", [])) != list(properties):
            raise refuse("optional keys", "list every key under 'required', in the order of 'properties'")
        if schema.get("additionalProperties") is not False:
            raise refuse("keys that are not named", "set 'additionalProperties' to false")
        for key, value in properties.items():
            if json.dumps(key, ensure_ascii=False) != f'"{key}"':
                raise refuse(f"the key {key!r}, whose escapes outlines_core would leave out", "use a plainer key")
            check_schema(value, f"{at}.{key}")
    elif kind == "enum":
        values = schema["enum"]
        if not isinstance(values, list) or not values or any(isinstance(v, dict | list | float) for v in values):
            raise refuse("an enum of anything but strings, integers, booleans and null", "list plain labels")
        if len({json.dumps(value) for value in values}) != len(values):
            raise refuse("an enum with the same value twice", "list each value once")
    elif kind == "string":
        quota = schema.get(QUOTA)
        if not isinstance(quota, int) or isinstance(quota, bool) or quota < 1:
            raise refuse(f"a free string without its quota of tokens, '{QUOTA}'", f"set '{QUOTA}' to 1 or more")
        if schema.get("minLength", 1) != 1:
            raise refuse("'minLength' other than 1", "set it to 1, or leave it out")


def follows(schema: Mapping[str, Any], text: str) -> bool:
    """Whether `text` is JSON that follows `schema`, keys in their order."""

    def fits(part: Mapping[str, Any], value: Any) -> bool:
        if "enum" in part or "const" in part:
            options = part["enum"] if "enum" in part else [part["const"]]
            return any(type(value) is type(option) and value == option for option in options)
        if part["type"] == "object":
            keys = list(part["properties"])
            return (
                isinstance(value, dict)
                and list(value) == keys
                and all(fits(part["properties"][key], value[key]) for key in keys)
            )
        return bool(value) and isinstance(value, str) if part["type"] == "string" else isinstance(value, bool)

    try:
        return fits(schema, json.loads(text))
    except (ValueError, RecursionError):
        return False


def quotas(schema: Mapping[str, Any]) -> list[int]:
    """The quotas of the schema's free strings, in the order in which they are written."""
    if schema.get("type") == "object":
        return [quota for value in schema["properties"].values() for quota in quotas(value)]
    return [schema[QUOTA]] if schema.get("type") == "string" and "enum" not in schema else []


def leaves(schema: Mapping[str, Any]) -> list[tuple[tuple[str, ...], bytes, Mapping[str, Any]]]:
    """Every part that is not an object, in the order of writing: the keys that lead to it, one text that may come
    before it, and its own schema."""
    found: list[tuple[tuple[str, ...], bytes, Mapping[str, Any]]] = []

    def write(part: Mapping[str, Any], path: tuple[str, ...], before: str) -> str:
        if part.get("type") == "object":
            for i, (key, value) in enumerate(part["properties"].items()):
                start = ("," if i else "{") + json.dumps(key, ensure_ascii=False) + ":"
                before = write(value, (*path, key), before + start)
            return before + "}"
        found.append((path, before.encode(), part))
        if "enum" in part or "const" in part:
            return before + json.dumps(part["enum"][0] if "enum" in part else part["const"], ensure_ascii=False)
        return before + ('"a"' if part["type"] == "string" else "true")

    write(schema, (), "")
    return found


def openings(schema: Mapping[str, Any]) -> list[bytes]:
    """For each free string, in the order of writing, one text that leads up to and into its opening quote."""
    return [before + b'"' for _, before, part in leaves(schema) if QUOTA in part]


def schema_regex(schema: Mapping[str, Any]) -> str:
    """The compact JSON texts of `schema`, without optional white space, as a regular expression."""
    check_schema(schema)

    def plain(part: Any) -> Any:
        if not isinstance(part, Mapping):
            return part
        return {key: plain(value) for key, value in part.items() if key != QUOTA}

    regex: str = build_regex_from_schema(json.dumps(plain(schema), ensure_ascii=False), whitespace_pattern="")
    return regex


class TokenIndex:
    """The automaton of a regex over a vocabulary.

    start, finals: states. steps: state -> {token: next state}. bytes: state -> {byte: next state}, the same
    automaton read a byte at a time (outlines_core numbers states by the regex alone, so they coincide).
    """

    def __init__(self, regex: str, vocabulary: Vocabulary) -> None:
        self._index = outlines_core.Index(regex, vocabulary.core)
        bytewise = outlines_core.Index(regex, Vocabulary.of_bytes().core)
        self.start: int = self._index.get_initial_state()
        self.finals: frozenset[int] = frozenset(self._index.get_final_states())
        self.bytes: dict[int, dict[int, int]] = bytewise.get_transitions()
        if bytewise.get_initial_state() != self.start or not self.finals <= set(self.bytes):
            raise JudgeError("outlines_core numbers its states in a way that localjudge does not know")
        for final in self.finals:
            self.bytes[final] = {byte: state for byte, state in self.bytes[final].items() if byte < 256}

    def steps(self) -> Iterator[tuple[int, dict[int, int]]]:
        """Each state with its tokens, without the end of text."""
        for state, tokens in self._index.get_transitions().items():
            if state in self.finals:
                yield state, {token: to for token, to in tokens.items() if to != state}
            else:
                yield state, tokens

    def walk(self, text: bytes) -> int:
        """The state after `text`, byte by byte."""
        state = self.start
        for byte in text:
            state = self.bytes[state][byte]
        return state

    def step(self, state: int, token: int) -> int | None:
        to: int | None = self._index.get_next_state(state, token)
        return to
