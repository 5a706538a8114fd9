"""The typed questions a judge asks: what the model may answer, and how an answer is read back.

Each question gives the JSON schema of its answer and reads that JSON into a value. Nothing here counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from localjudge.decoding.grammar import QUOTA
from localjudge.verdict import Answer

IDENTIFIER = r"^[A-Za-z_][A-Za-z0-9_]*$"


class _Question(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Annotated[str, Field(pattern=IDENTIFIER)]
    ask: Annotated[str, Field(min_length=1)]
    """What the model is asked, in one or more sentences."""


class TextQuestion(_Question):
    """Free text of at most `budget` tokens, at least one character."""

    type: Literal["text"]
    budget: Annotated[int, Field(ge=1)] = 160

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
    anchors: dict[int, str] = Field(default_factory=dict)
    scale: tuple[int, int] | None = None

    @model_validator(mode="after")
    def _has_a_scale(self) -> ScoreQuestion:
        if self.scale is None and len(self.anchors) < 2:
            raise ValueError("a score needs a scale, such as [1, 5], or at least two anchors")
        low, high = self.bounds
        if low >= high:
            raise ValueError(f"the scale [{low}, {high}] does not rise")
        if high - low > 100:
            raise ValueError(f"the scale [{low}, {high}] has over 101 points: a judge tells few of them apart")
        if outside := [point for point in self.anchors if not low <= point <= high]:
            raise ValueError(f"the anchor {outside[0]} lies outside the scale [{low}, {high}]")
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
        return f"<{low}-{high}>"

    def read(self, value: Any) -> Any:
        if isinstance(value, bool) or value not in self.labels:
            raise ValueError(f"{value!r} is not on the scale {list(self.bounds)}")
        return value


class ChoiceQuestion(_Question):
    """One of some labels. options: label -> what it means (which may be empty)."""

    type: Literal["choice"]
    options: Annotated[dict[str, str], Field(min_length=2)]

    @model_validator(mode="before")
    @classmethod
    def _options_may_be_a_list(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and isinstance(data.get("options"), list):
            options = data["options"]
            if len(set(map(str, options))) != len(options):
                raise ValueError("the same option is listed twice")
            return {**data, "options": dict.fromkeys(map(str, options), "")}
        if isinstance(data, Mapping) and isinstance(data.get("options"), Mapping):
            return {**data, "options": {str(label): meaning for label, meaning in data["options"].items()}}
        return data

    @property
    def labels(self) -> list[str]:
        return list(self.options)

    def json_schema(self) -> dict[str, Any]:
        return {"enum": self.labels}

    def form(self) -> str:
        return "|".join(json.dumps(label, ensure_ascii=False) for label in self.labels)

    def read(self, value: Any) -> Any:
        if not isinstance(value, str) or value not in self.options:
            raise ValueError(f"{value!r} is not one of {', '.join(self.options)}")
        return value


class FlagsQuestion(_Question):
    """Which codes of a list apply. codes: code -> what it stands for. Answered yes or no code by code, so that
    none is passed over; its value is the list of those that apply."""

    type: Literal["flags"]
    codes: Annotated[dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")], str], Field(min_length=1)]

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
            raise ValueError("a code is neither true nor false")
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


def read_answers(
    text: str,
    questions: Sequence[Question],
    distributions: Mapping[str, Mapping[str, float]] | None = None,
) -> dict[str, Answer]:
    """Parse and validate a completion. Raises ValueError, which says what is wrong with it."""
    try:
        found = json.loads(text)
        text.encode()
        json.dumps(found, ensure_ascii=False).encode()
    except ValueError as error:
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
