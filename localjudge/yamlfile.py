"""YAML files read strictly: UTF-8, no key twice, and every complaint with its line.

Only true and false are booleans (YAML 1.2): with YAML 1.1 a label `no` would silently become False.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from localjudge.errors import LocalJudgeError, nearest

M = TypeVar("M", bound=BaseModel)


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2's booleans and no key given twice."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own way
        first: [(tag, regex) for tag, regex in resolvers if tag != "tag:yaml.org,2002:bool"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key '{key}' was given before, on line {seen[key]}",
                    problem_mark=key_node.start_mark,
                )
            seen[key] = key_node.start_mark.line + 1
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$"), list("tf"))


@dataclass(frozen=True)
class Document:
    """A parsed file: its data, and its nodes to find lines by."""

    path: Path
    data: Any
    root: yaml.Node | None

    def line(self, location: Sequence[str | int]) -> int:
        """The line of the deepest part of `location` that is in the file; parts the file lacks are skipped."""
        node, line = self.root, 1
        for step in location:
            if isinstance(node, yaml.MappingNode):
                for key, value in node.value:
                    if key.value == str(step):
                        line, node = key.start_mark.line + 1, value
                        break
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
                line = node.start_mark.line + 1
        return line


def load(path: Path) -> Document:
    """Read a YAML file. Raises LocalJudgeError with the line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise LocalJudgeError("the file is not UTF-8", where=f"{path}:{line}", fix="save it as UTF-8") from None
    except OSError as error:
        raise LocalJudgeError(f"the file cannot be read: {error.strerror}", where=str(path)) from None
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        data = loader.construct_document(root) if root else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise LocalJudgeError(f"not valid YAML: {error.problem or error.context}", where=where) from None
    except yaml.YAMLError as error:
        raise LocalJudgeError(f"not valid YAML: {error}", where=str(path)) from None
    finally:
        loader.dispose()
    return Document(path, data, root)


def parse(text: str, where: str) -> Any:
    """A YAML value, such as the right side of `--set key=value`."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise LocalJudgeError(f"'{text}' is not a YAML value: {error}", where=where) from None


def validate(model: type[M], document: Document, error_type: type[LocalJudgeError]) -> M:
    """The document as `model`. Raises `error_type` with every complaint, each with its line."""
    if not isinstance(document.data, dict):
        raise error_type("the file should hold keys and values", where=str(document.path))
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        complaints = [(document.line(e["loc"]), _in_words(e, model)) for e in error.errors()]
        complaints.sort(key=lambda complaint: complaint[0])
        line, what = complaints[0]
        rest = [f"line {line}: {what}" for line, what in complaints[1:]]
        raise error_type(what, where=f"{document.path}:{line}", fix="\n  ".join(rest) or None) from None


def _in_words(error: Any, model: type[BaseModel]) -> str:
    place = ".".join(
        str(part) for part in error["loc"] if not (isinstance(part, str) and part.startswith("function-"))
    )
    message = error["msg"].removeprefix("Value error, ")
    kind = error["type"]
    if kind == "missing":
        return f"'{place}' is missing"
    if kind == "extra_forbidden":
        close = nearest(str(error["loc"][-1]), _siblings(model, error["loc"]))
        return f"'{place}' is not a known key" + (f": did you mean '{close}'?" if close else "")
    if kind == "literal_error":
        expected = error["ctx"]["expected"]
        close = nearest(str(error["input"]), re.findall(r"'([^']+)'", expected))
        hint = f"did you mean '{close}'?" if close else f"use {expected}"
        return f"'{place}' cannot be {error['input']!r}: {hint}"
    if kind == "union_tag_invalid":
        tags = re.findall(r"'([^']+)'", error["ctx"]["expected_tags"])
        close = nearest(str(error["ctx"]["tag"]), tags)
        hint = f"did you mean '{close}'?" if close else f"use one of {', '.join(tags)}"
        return f"'{place}' has the unknown type '{error['ctx']['tag']}': {hint}"
    if kind == "union_tag_not_found":
        return f"'{place}' needs a 'type'"
    return f"'{place}': {message}" if place else message


def _siblings(model: type[BaseModel], location: Sequence[str | int]) -> set[str]:
    """The keys that are known where `location`'s last part stands, as far as the annotations tell."""
    candidates: list[Any] = [model]
    for step in location[:-1]:
        inner: list[Any] = []
        for candidate in candidates:
            if not (isinstance(candidate, type) and issubclass(candidate, BaseModel)):
                continue
            fields = candidate.model_fields
            tagged = fields.get("type")
            if tagged is not None and get_args(tagged.annotation) == (step,):
                inner.append(candidate)
            elif isinstance(step, str) and step in fields:
                inner.extend(_models_in(fields[step].annotation))
        candidates = inner or candidates
    return {
        field.alias or name
        for candidate in candidates
        if isinstance(candidate, type) and issubclass(candidate, BaseModel)
        for name, field in candidate.model_fields.items()
    }


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]
