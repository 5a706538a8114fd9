"""YAML files read strictly: UTF-8, no key twice, and every complaint with its line.

Plain values are those of YAML 1.2, less some rare spellings of numbers: with 1.1, which PyYAML reads by itself, a
label `no` is False, `1:30` is 90 and `010` is 8, without a word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, Field, ValidationError

from localjudge.errors import LocalJudgeError, did_you_mean, nearest

M = TypeVar("M", bound=BaseModel)

Whole = Annotated[int, Field(strict=True)]
"""A whole number; neither true, nor '3', nor 3.0."""

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
"""A number; neither true nor '3'."""

_PLAIN = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"0|-?[1-9][0-9]*", list("-0123456789")),  # only as Python writes it: +1 and 007 are labels
    "float": (
        r"-?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?|-?\.inf|\.nan",
        list("-.0123456789"),
    ),
    "merge": (r"<<", ["<"]),
}

_REMEDIES = {
    "'\\t'": "indent with spaces, not with tabs",
    "but found '<block": "check the indentation of this line and of those above it",
    "mapping values are not allowed": "put a text that holds ': ' in quotes",
    "cannot start any token": "put a text that begins with a special character in quotes",
    "alias": "put a text that begins with * or & in quotes",
    "a constructor for the tag": "write plain values, without tags such as !name",
    "end of stream": "close what is opened here: a quote, a [ or a {",
    "but got '?'": "put a text with a ? in quotes where it stands within { } or [ ]",
    "expected ',' or": "close the [ or the { that is open here",
    "unhashable key": "put a text that begins with {{ in quotes",
    "another document": "leave one document in the file: no second line of ---",
}


class Complaint(ValueError):
    """What a model's own validator has against it. at: the place inside the model that it is about."""

    def __init__(self, what: str, *at: str | int) -> None:
        self.at = at
        super().__init__(what)


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2's plain values, no key given twice, and nothing that is no character."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own way

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if (key.tag, key.value) in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key '{key.value}' was given before, on line {seen[key.tag, key.value]}",
                    problem_mark=key.start_mark,
                )
            seen[key.tag, key.value] = key.start_mark.line + 1
        return node

    def construct_scalar(self, node: Any) -> Any:
        value = super().construct_scalar(node)
        if isinstance(value, str) and re.search("[\ud800-\udfff]", value):
            problem = "a lone surrogate is no character"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return value


for _tag, (_regex, _first) in _PLAIN.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_regex})$"), _first)


@dataclass(frozen=True)
class Document:
    """A parsed file: its data, its nodes to find lines by, and what was set over it: (its keys, as it was put)."""

    path: Path
    data: Any
    root: yaml.Node | None
    settings: tuple[tuple[tuple[str, ...], str], ...] = ()

    def node(self, location: Sequence[str | int]) -> tuple[int, yaml.Node | None]:
        """The deepest part of `location` that is in the file, and its line; parts the file lacks are skipped."""
        node, line = self.root, 1
        for step in location:
            if isinstance(node, yaml.MappingNode):
                # The last one wins, as a merged key comes before the one that overrides it.
                for key, value in reversed(node.value):
                    if key.value == str(step):
                        line, node = key.start_mark.line + 1, value
                        break
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
                line = node.start_mark.line + 1
        return line, node

    def setting(self, location: Sequence[str | int]) -> str | None:
        """What was set over the file at `location`, if anything."""
        steps = tuple(map(str, location))
        return next((put for keys, put in self.settings[::-1] if steps[: len(keys)] == keys), None)

    def where(self, location: Sequence[str | int]) -> str:
        """The file and the line of `location`, or the setting that put it there."""
        put = self.setting(location)
        return f"--set {put}" if put else f"{self.path}:{self.node(location)[0]}"

    def text_starts(self, location: Sequence[str | int]) -> int:
        """The line on which a text itself begins: below its key when it is a block."""
        line, node = self.node(location)
        return line + 1 if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">") else line

    def in_words(self, location: Sequence[str | int], lacks_last: bool = False) -> str:
        """`questions.clarity.scale`: list items by their id or name, and without steps that the file lacks (what
        pydantic adds), but for the last where it is that which is missing."""
        here, words = self.data, []
        for place, step in enumerate(location):
            if isinstance(here, dict) and (key := next((k for k in here if str(k) == str(step)), None)) is not None:
                here = here[key]
                words.append(str(step))
            elif isinstance(here, list) and isinstance(step, int) and step < len(here):
                here = here[step]
                name = (here.get("id") or here.get("name")) if isinstance(here, dict) else None
                words.append(name if isinstance(name, str) else str(step + 1))
            elif lacks_last and place == len(location) - 1:
                words.append(str(step))
        return ".".join(words)


def read_text(path: Path, error_type: type[LocalJudgeError]) -> str:
    """A whole file of text. Raises `error_type` when it is not there or not UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise error_type("the file is not UTF-8", where=f"{path}:{line}", fix="save it as UTF-8") from None
    except OSError as error:
        raise error_type(f"the file cannot be read: {error.strerror}", where=str(path)) from None


def load(path: Path, error_type: type[LocalJudgeError]) -> Document:
    """Read a YAML file. Raises `error_type` with the line."""
    try:
        data, root = _read(read_text(path, error_type))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        problem = str(error.problem or error.context)
        raise error_type(f"not valid YAML: {problem}", where=where, fix=_remedy(problem)) from None
    except ValueError as error:
        raise error_type(f"not valid YAML: {error}", where=str(path)) from None
    return Document(path, data, root)


def parse(text: str, where: str, error_type: type[LocalJudgeError] = LocalJudgeError) -> Any:
    """A YAML value, such as the right side of `--set key=value`."""
    try:
        return _read(text)[0]
    except yaml.MarkedYAMLError as error:
        problem = str(error.problem or error.context)
        raise error_type(f"'{text}' is not a YAML value: {problem}", where=where, fix=_remedy(problem)) from None
    except ValueError as error:
        raise error_type(f"'{text}' is not a YAML value: {error}", where=where) from None


def _read(text: str) -> tuple[Any, yaml.Node | None]:
    """Raises MarkedYAMLError, or ValueError for what YAML itself has no word for."""
    try:
        loader = _Loader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ValueError(f"the character U+{error.character:04X} on line {line} is not allowed") from None
    try:
        root = loader.get_single_node()
        return loader.construct_document(root) if root else None, root
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError:
        raise ValueError("a number in it is too long") from None
    finally:
        loader.dispose()


def _remedy(problem: str) -> str | None:
    return next((remedy for sign, remedy in _REMEDIES.items() if sign in problem), None)


def override(document: Document, settings: Iterable[str], error_type: type[LocalJudgeError]) -> Document:
    """The document with `key=value` put over it; dots in a key lead inwards, values are YAML."""
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not re.fullmatch(r"\w[\w-]*(\.[\w-]+)*", key):
            raise error_type(f"'{setting}' is not of the form key=value", where="--set")
        keys = tuple(key.split("."))
        inside: Any = document.data
        for part in keys[:-1]:
            inside = inside.setdefault(part, {}) if isinstance(inside, dict) else None
        if not isinstance(inside, dict):
            raise error_type(f"'{key}' does not lead to a setting", where="--set")
        inside[keys[-1]] = parse(text, "--set", error_type)
        document = replace(document, settings=(*document.settings, (keys, setting)))
    return document


def validate(model: type[M], document: Document, error_type: type[LocalJudgeError]) -> M:
    """The document as `model`. Raises `error_type` with every complaint, each with its line."""
    if not isinstance(document.data, dict):
        what = "the file is empty" if document.data is None else "the file does not hold keys and values"
        raise error_type(what, where=f"{document.path}:1", fix="write lines such as 'name: my-judge'")
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        complaints = []
        slips = {_slip(model, found["loc"]) for found in error.errors() if found["type"] == "extra_forbidden"}
        for found in error.errors():
            if found["type"] == "missing" and found["loc"] in slips:
                continue  # it is there, under a name that another complaint is about
            cause = found.get("ctx", {}).get("error")
            location = (*found["loc"], *cause.at) if isinstance(cause, Complaint) else found["loc"]
            what = _in_words(found, model, document.in_words(found["loc"], found["type"] == "missing"))
            complaints.append((document.node(location)[0], document.where(location), what))
        complaints.sort(key=lambda complaint: complaint[0])
        _, where, what = complaints[0]
        rest = [f"{where.replace(f'{document.path}:', 'line ')}: {what}" for _, where, what in complaints[1:]]
        raise error_type(what, where=where, fix="\n  ".join(rest) or None) from None


_WANTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "keys and values",
    "model_type": "keys and values",
    "model_attributes_type": "keys and values",
}


def _in_words(error: Any, model: type[BaseModel], place: str) -> str:
    message = error["msg"].removeprefix("Value error, ")
    kind, context = error["type"], error.get("ctx", {})
    if kind == "missing":
        return f"'{place}' is missing"
    if kind == "extra_forbidden":
        return f"'{place}' is not a known key: {_known_key(model, error['loc'])}"
    if kind == "literal_error":
        close = nearest(str(error["input"]), re.findall(r"'([^']+)'", context["expected"]))
        hint = f"did you mean '{close}'?" if close else f"use {context['expected']}"
        return f"'{place}' cannot be {shown(error['input'])}: {hint}"
    if kind == "union_tag_invalid":
        tags = re.findall(r"'([^']+)'", context["expected_tags"])
        close = nearest(str(context["tag"]), tags)
        hint = f"did you mean '{close}'?" if close else f"use one of {', '.join(tags)}"
        return f"'{place}' has the unknown type '{context['tag']}': {hint}"
    if kind == "union_tag_not_found":
        return f"'{place}' needs a 'type'"
    if kind in _WANTED:
        if error["input"] is None:
            return f"'{place}' is empty: it should be {_WANTED[kind]}"
        quote = ": put it in quotes" if kind == "string_type" and isinstance(error["input"], int | float) else ""
        return f"'{place}' should be {_WANTED[kind]}, not {shown(error['input'])}{quote}"
    if kind in ("too_short", "string_too_short"):
        least = context["min_length"]
        return f"'{place}' is empty" if least == 1 else f"'{place}' needs at least {least} entries"
    if kind in ("greater_than_equal", "less_than_equal"):
        bound = f"at least {context['ge']:g}" if "ge" in context else f"at most {context['le']:g}"
        return f"'{place}' should be {bound}, not {shown(error['input'])}"
    return f"'{place}': {message}" if place else message


def shown(value: Any) -> str:
    """A value of a YAML file, as a message quotes it."""
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "keys and values"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 40 else text[:39] + "…"


def _slip(model: type[BaseModel], location: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """Where the key that is not known should probably have stood."""
    keys = {key for candidate in _models_at(model, location[:-1]) for key in _keys(candidate)}
    return (*location[:-1], nearest(str(location[-1]), keys) or "")


def _known_key(model: type[BaseModel], location: Sequence[str | int]) -> str:
    """The remedy for a key that is not known: the near one here, else one further in, else all there are."""
    key, here = str(location[-1]), _models_at(model, location[:-1])
    keys = {key for candidate in here for key in _keys(candidate)}
    inner = {
        key: f"{name}.{key}"
        for candidate in here
        for name, field in candidate.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        for key in _keys(field.annotation)
    }
    if not nearest(key, keys) and (close := nearest(key, inner)):
        return f"did you mean '{inner[close]}'?"
    return did_you_mean(key, keys)


def _keys(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _models_at(model: type[BaseModel], location: Sequence[str | int]) -> list[type[BaseModel]]:
    """The models that may stand at `location`, as far as the annotations tell."""
    candidates = [model]
    for step in location:
        inner: list[type[BaseModel]] = []
        for candidate in candidates:
            fields = candidate.model_fields
            tagged = fields.get("type")
            if tagged is not None and get_args(tagged.annotation) == (step,):
                inner.append(candidate)
            elif isinstance(step, str) and step in fields:
                inner.extend(_models_in(fields[step].annotation))
        candidates = inner or candidates
    return candidates


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]
