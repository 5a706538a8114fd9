"""From a JSON schema to an index of legal tokens.

Takes only what can be enforced to the letter: an object of fixed keys, enums, constants, booleans, free strings and
lists, nested as deep as one likes, but no list inside a list. Everything else (numeric bounds, patterns, optional
keys, ...) is either ignored or refused by outlines_core, so it is refused here, when the schema is first seen. Free
strings and lists carry their quota of tokens under `QUOTA`; the grammar leaves them unbounded, which keeps the
index small, and `closing` bounds them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import outlines_core
from outlines_core.json_schema import build_regex_from_schema

from localjudge.decoding.vocabulary import Vocabulary
from localjudge.errors import JudgeError

QUOTA = "x-tokens"
"""The schema keyword that bounds a free string, or a list with all its items, in tokens."""

_ALLOWED = {
    "object": {"type", "properties", "required", "additionalProperties", "description", "title"},
    "array": {"type", "items", QUOTA, "description", "title"},
    "string": {"type", "minLength", QUOTA, "description", "title"},
    "boolean": {"type", "description", "title"},
    "enum": {"enum", "type", "description", "title"},
    "const": {"const", "type", "description", "title"},
}


def kind_of(schema: Mapping[str, Any]) -> Any:
    """What decides how a part is written: 'enum', 'const', else its type."""
    return next((key for key in ("enum", "const") if key in schema), schema.get("type"))


def check_schema(schema: Mapping[str, Any], at: str = "$", listed: bool = False) -> None:
    """Raise JudgeError for the first part of `schema` that the decoder would not enforce to the letter.

    at: where it stands, in words. listed: it stands inside a list.
    """

    def refuse(what: str, fix: str) -> JudgeError:
        return JudgeError(f"the schema cannot be enforced: {what}", where=at, fix=fix)

    kind = kind_of(schema)
    if not isinstance(kind, str) or kind not in _ALLOWED:
        fix = "use an object of fixed keys, a list, an enum, a const, a boolean or a string"
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
            check_schema(value, f"{at}.{key}", listed)
    elif kind == "array":
        if listed:
            raise refuse("a list inside a list", "ask for it as a list of its own")
        _check_quota(schema, "list", refuse)
        if not isinstance(schema.get("items"), Mapping):
            raise refuse("a list of anything", "say what its items are under 'items'")
        check_schema(schema["items"], f"{at}[]", True)
    elif kind == "enum":
        values = schema["enum"]
        if not isinstance(values, list) or not values or any(isinstance(v, dict | list | float) for v in values):
            raise refuse("an enum of anything but strings, integers, booleans and null", "list plain labels")
        if len({json.dumps(value) for value in values}) != len(values):
            raise refuse("an enum with the same value twice", "list each value once")
    elif kind == "string":
        _check_quota(schema, "free string", refuse)
        if schema.get("minLength", 1) != 1:
            raise refuse("'minLength' other than 1", "set it to 1, or leave it out")


def _check_quota(schema: Mapping[str, Any], what: str, refuse: Callable[[str, str], JudgeError]) -> None:
    quota = schema.get(QUOTA)
    if not isinstance(quota, int) or isinstance(quota, bool) or quota < 1:
        raise refuse(f"a {what} without its quota of tokens, '{QUOTA}'", f"set '{QUOTA}' to 1 or more")


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
        if part["type"] == "array":
            return isinstance(value, list) and all(fits(part["items"], item) for item in value)
        return bool(value) and isinstance(value, str) if part["type"] == "string" else isinstance(value, bool)

    try:
        return fits(schema, json.loads(text))
    except (ValueError, RecursionError):
        return False


@dataclass(frozen=True, slots=True)
class Part:
    """A label, a free string or a list of a schema.

    path: the keys that lead to it, through a list as if there were none. before: one text that may come before it.
    within: the path of the list that it is a part of an item of.
    """

    path: tuple[str, ...]
    before: bytes
    schema: Mapping[str, Any]
    within: tuple[str, ...] | None

    @property
    def kind(self) -> str:
        kind: str = kind_of(self.schema)
        return kind


def parts(
    schema: Mapping[str, Any],
    path: tuple[str, ...] = (),
    before: str = "",
    within: tuple[str, ...] | None = None,
) -> Iterator[Part]:
    """Every part that is not an object, in the order of writing; a list comes before the parts of its items."""
    kind = kind_of(schema)
    if kind == "object":
        for i, (key, value) in enumerate(schema["properties"].items()):
            before += ("," if i else "{") + json.dumps(key, ensure_ascii=False) + ":"
            yield from parts(value, (*path, key), before, within)
            before += sample(value)
        return
    yield Part(path, before.encode(), schema, within)
    if kind == "array":
        yield from parts(schema["items"], path, before + "[", path)


def sample(schema: Mapping[str, Any]) -> str:
    """One text that follows `schema`: a list has one item, a label is the first one."""
    kind = kind_of(schema)
    if kind == "object":
        keys = (
            f"{json.dumps(key, ensure_ascii=False)}:{sample(value)}" for key, value in schema["properties"].items()
        )
        return "{" + ",".join(keys) + "}"
    if kind == "array":
        return f"[{sample(schema['items'])}]"
    if kind in ("enum", "const"):
        return json.dumps(schema["enum"][0] if kind == "enum" else schema["const"], ensure_ascii=False)
    return '"a"' if kind == "string" else "true"


def schema_regex(schema: Mapping[str, Any]) -> str:
    """The compact JSON texts of `schema`, without optional white space, as a regular expression.

    A list is `((item,)*item)?`, of which the automaton holds one copy of the item; of outlines_core's own
    `(item(,item)*)?` it would hold two.
    """
    check_schema(schema)

    def one(part: Mapping[str, Any]) -> str:
        regex: str = build_regex_from_schema(json.dumps(part, ensure_ascii=False), whitespace_pattern="")
        return regex

    def regex_of(part: Mapping[str, Any]) -> str:
        kind = kind_of(part)
        if kind == "object":
            keys = (f"{one({'const': key})}:{regex_of(value)}" for key, value in part["properties"].items())
            return r"\{" + ",".join(keys) + r"\}"
        if kind == "array":
            item = regex_of(part["items"])
            return rf"\[(({item},)*{item})?\]"
        return one({key: value for key, value in part.items() if key != QUOTA})

    return regex_of(schema)


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
