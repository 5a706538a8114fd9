"""The typed questions a judge asks: what the model may answer, and how an answer is read back.

Each question gives the JSON schema of its answer and reads that JSON into a value. Nothing here counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from localjudge.decoding.grammar import QUOTA
from localjudge.verdict import Answer
from localjudge.yamlfile import Complaint, Whole, shown


def spelled(regex: str, words: str) -> AfterValidator:
    """Text that follows a regex, which `words` explain."""

    def check(text: str) -> str:
        if not re.fullmatch(regex, text):
            raise ValueError(f"{shown(text)} cannot be a name: use {words}")
        return text

    return AfterValidator(check)


def _as_label(value: Any) -> Any:
    """Labels are text. A whole number is read as it is written; of 1.10 the last 0 is lost, so it needs quotes."""
    if type(value) is int:
        return str(value)
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not text: put it in quotes")
    if not value:
        raise ValueError("a label cannot be empty")
    return value


def _no_bool(value: Any) -> Any:
    """JSON has text for keys, so a point may come as text: the strict `Whole` would not take it back."""
    if isinstance(value, bool):
        raise ValueError(f"{shown(value)} is not a whole number")
    return value


Label = Annotated[str, BeforeValidator(_as_label)]


class _Question(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Annotated[str, spelled(r"[A-Za-z_][A-Za-z0-9_]*", "letters, digits and _, and no digit first")]
    ask: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    """What the model is asked, in one or more sentences."""


class TextQuestion(_Question):
    """Free text of at most `budget` tokens, at least one character."""

    type: Literal["text"]
    budget: Annotated[Whole, Field(ge=1)] = 160

    def json_schema(self) -> dict[str, Any]:
        return {"type": "string", "minLength": 1, QUOTA: self.budget}

    def form(self) -> str:
        return '"..."'

    def read(self, value: Any) -> Any:
        if not isinstance(value, str) or not value:
            raise ValueError("is not a text")
        return value


class ScoreQuestion(_Question):
    """A whole number on a scale. anchors: what some of its points mean; scale: [lowest, highest], by default the
    least and the greatest anchor."""

    type: Literal["score"]
    anchors: dict[Annotated[int, BeforeValidator(_no_bool)], str] = Field(default_factory=dict)
    scale: tuple[int, int] | None = None

    @field_validator("scale", mode="before")
    @classmethod
    def _a_scale_is_two_numbers(cls, value: Any) -> Any:
        if value is None:
            return None
        numbers = value if isinstance(value, list | tuple) else ()
        if len(numbers) != 2 or not all(type(number) is int for number in numbers):
            raise ValueError("a scale is two whole numbers, such as [1, 5]")
        return tuple(numbers)

    @model_validator(mode="after")
    def _has_a_scale(self) -> ScoreQuestion:
        if self.scale is None and len(self.anchors) < 2:
            raise ValueError("a score needs a scale, such as [1, 5], or at least two anchors")
        low, high = self.bounds
        if low >= high:
            raise Complaint(f"the scale [{low}, {high}] does not rise", "scale")
        if high - low > 100:
            what = f"the scale [{low}, {high}] has over 101 points: a judge tells few of them apart"
            raise Complaint(what, "scale" if self.scale else "anchors")
        if outside := [point for point in self.anchors if not low <= point <= high]:
            what = f"the anchor {outside[0]} lies outside the scale [{low}, {high}]"
            raise Complaint(what, "anchors", outside[0])
        return self

    @property
    def bounds(self) -> tuple[int, int]:
        return self.scale or (min(self.anchors), max(self.anchors))

    @property
    def labels(self) -> list[int]:
        low, high = self.bounds
        return list(range(low, high + 1))

    def json_schema(self) -> dict[str, Any]:
        return {"enum": self.labels}

    def form(self) -> str:
        low, high = self.bounds
        return f"<{low}-{high}>" if low >= 0 else f"<{low} to {high}>"

    def read(self, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float) or value not in self.labels:
            raise ValueError(f"is {shown(value)}, which is not on the scale {list(self.bounds)}")
        return int(value)


class ChoiceQuestion(_Question):
    """One of some labels. options: label -> what it means (which may be empty)."""

    type: Literal["choice"]
    options: Annotated[dict[Label, str], Field(min_length=2)]

    @field_validator("options", mode="before")
    @classmethod
    def _options_may_be_a_list(cls, options: Any) -> Any:
        if not isinstance(options, list | Mapping):
            return options
        labels = [_as_label(label) for label in options]
        if twice := [label for label in labels if labels.count(label) > 1]:
            raise ValueError(f"the option '{twice[0]}' is listed twice")
        if isinstance(options, list):
            return dict.fromkeys(labels, "")
        return {label: meaning or "" for label, meaning in zip(labels, options.values(), strict=True)}

    @property
    def labels(self) -> list[str]:
        return list(self.options)

    def json_schema(self) -> dict[str, Any]:
        return {"enum": self.labels}

    def form(self) -> str:
        return "|".join(json.dumps(label, ensure_ascii=False) for label in self.labels)

    def read(self, value: Any) -> Any:
        if not isinstance(value, str) or value not in self.options:
            raise ValueError(f"is {shown(value)}, which is not one of {', '.join(self.options)}")
        return value


class FlagsQuestion(_Question):
    """Which codes of a list apply. codes: code -> what it stands for. Answered yes or no code by code, so that
    none is passed over; its value is the list of those that apply."""

    type: Literal["flags"]
    codes: Annotated[
        dict[Annotated[Label, spelled(r"[A-Za-z0-9_.-]+", "letters, digits, '_', '.' and '-'")], str],
        Field(min_length=1),
    ]

    def json_schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {code: {"type": "boolean"} for code in self.codes},
            "required": list(self.codes),
            "additionalProperties": False,
        }

    def form(self) -> str:
        return "{" + ",".join(f'"{code}":true|false' for code in self.codes) + "}"

    def read(self, value: Any) -> Any:
        if not isinstance(value, dict) or list(value) != list(self.codes):
            raise ValueError(f"does not answer exactly the codes {', '.join(self.codes)}")
        if not all(isinstance(raised, bool) for raised in value.values()):
            raise ValueError("has a code that is neither true nor false")
        return [code for code, raised in value.items() if raised]


Question = Annotated[TextQuestion | ScoreQuestion | ChoiceQuestion | FlagsQuestion, Field(discriminator="type")]


def answer_schema(questions: Sequence[Question]) -> dict[str, Any]:
    """The JSON schema of an answer to all of these questions, in their order."""
    return {
        "type": "object",
        "properties": {question.id: question.json_schema() for question in questions},
        "required": [question.id for question in questions],
        "additionalProperties": False,
    }


def answer_form(questions: Sequence[Question]) -> str:
    """The answer's JSON as a prompt shows it, with what goes where."""
    return "{" + ",".join(f'"{question.id}":{question.form()}' for question in questions) + "}"


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is given twice")
    return found


def read_answers(
    text: str,
    questions: Sequence[Question],
    distributions: Mapping[str, Mapping[str, float]] | None = None,
) -> dict[str, Answer]:
    """Parse and validate a completion. Raises ValueError, which says what is wrong with it."""
    try:
        found = json.loads(text, object_pairs_hook=_each_key_once)
        json.dumps(found, ensure_ascii=False).encode()  # a lone surrogate is no character
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the answer is not JSON: {error}") from None
    wanted = [question.id for question in questions]
    if not isinstance(found, dict) or list(found) != wanted:
        raise ValueError(f"the answer does not have exactly the keys {', '.join(wanted)}")
    answers = {}
    for question in questions:
        try:
            value = question.read(found[question.id])
        except ValueError as error:
            raise ValueError(f"the answer to '{question.id}' {error}") from None
        distribution = (distributions or {}).get(question.id)
        answers[question.id] = Answer(value=value, distribution=dict(distribution) if distribution else None)
    return answers
