"""Personas: who reads a response, what they look for, and their own questions, from YAML files.

    id: impatient_expert
    name: Impatient expert
    description: ...
    attributes: {expertise: expert, goal: solve, style: direct, pain_points: [padding]}
    focus: [...]
    questions:
      - id: depth
        ask: Does it go to the cause?
        points: {0: only the symptom, 1-2: a cause without its mechanism, 3: the cause and its mechanism}

A persona without questions is composed: its attributes are a vector, and it takes the nearest questions of a
library of attribute -> question. Knows files and questions; nothing of records, asks or scores.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from localjudge import yamlfile
from localjudge.errors import JudgeError, did_you_mean, nearest
from localjudge.judge.counting import Name
from localjudge.judge.questions import ScoreQuestion
from localjudge.yamlfile import Complaint, Whole, shown

COMPOSED = "composed"
"""The persona that a record's own attributes make."""

NEAR = 0.5
"""How close to a vector a library's question must be to be asked, 0 to 1."""

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Values = Annotated[list[Text], Field(min_length=1), BeforeValidator(_as_list)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _point_range(key: Any) -> tuple[int, int]:
    """`2` or `1-2` as its first and last point."""
    text = str(key) if type(key) is int or isinstance(key, str) else ""
    found = re.fullmatch(r"(\d{1,3})(?:\s*-\s*(\d{1,3}))?", text.strip())
    if not found:
        raise ValueError(f"{shown(key)} is no range of points: write 2, or 1-2 (and quote a text with commas)")
    low = int(found[1])
    high = int(found[2] or low)
    if high < low:
        raise ValueError(f"the range {text} does not rise")
    return low, high


class Asked(_Part):
    """One question of a persona. points: a point, or a range of them such as 1-2 -> what earns it; from 0,
    without a gap or an overlap."""

    id: Name
    ask: Text
    points: Annotated[dict[str, Text], Field(min_length=2)]

    @field_validator("points", mode="before")
    @classmethod
    def _ranges_follow_each_other(cls, points: Any) -> Any:
        if not isinstance(points, Mapping):
            return points
        ranges = sorted((*_point_range(key), key) for key in points)
        expected, before = 0, None
        for low, high, key in ranges:
            if low < expected:
                raise ValueError(f"the ranges {before} and {key} overlap: {shown(low)} would be both")
            if low > expected and before is None:
                raise ValueError(f"the points begin at {low}: begin at 0, for what earns nothing")
            if low > expected:
                raise ValueError(f"between {before} and {key} there is a gap: say what earns {expected}")
            expected, before = high + 1, key
        if expected > 11:
            raise ValueError(f"it has {expected} points: a reader tells about ten apart")
        return {str(low) if low == high else f"{low}-{high}": points[key] for low, high, key in ranges}

    @property
    def most(self) -> int:
        """The most points that it gives."""
        return max(_point_range(key)[1] for key in self.points)

    def question(self, persona: str) -> ScoreQuestion:
        """As it is asked for a persona, whose id comes first in its own."""
        anchors: dict[int, str] = {}
        for key, text in self.points.items():
            low, high = _point_range(key)
            anchors |= dict.fromkeys(range(low, high + 1), text)
        return ScoreQuestion(id=f"{persona}_{self.id}", type="score", ask=self.ask, anchors=anchors)


A = TypeVar("A", bound=Asked)


def _each_once(questions: list[A]) -> list[A]:
    ids = [question.id for question in questions]
    for place, one in enumerate(ids):
        if one in ids[:place]:
            raise Complaint(f"two questions have the id '{one}'", place, "id")
    return questions


class Persona(_Part):
    """One reader. attributes: expertise, goal, style, pain points and the like, each a value or several. focus:
    what this reader looks at first."""

    id: Name
    name: Text
    description: Text
    attributes: dict[Name, Values] = Field(default_factory=dict)
    focus: list[Text] = Field(default_factory=list)
    questions: list[Asked] = Field(default_factory=list)

    @field_validator("id")
    @classmethod
    def _its_id_is_free(cls, name: str) -> str:
        if name == COMPOSED:
            raise ValueError(f"'{COMPOSED}' is who a record's attributes make: give the persona another id")
        return name

    @field_validator("questions")
    @classmethod
    def _each_question_once(cls, questions: list[Asked]) -> list[Asked]:
        return _each_once(questions)


class Dimension(_Part):
    """An attribute's values. scale: they rise in this order, so that neighbours are near each other."""

    values: Annotated[list[Text], Field(min_length=2)]
    scale: Annotated[bool, Field(strict=True)] = False

    def closeness(self, one: str, other: str) -> float:
        """1 for the same value; between two of a scale, 1 less their distance as a part of the whole; else 0."""
        if one == other:
            return 1.0
        if not self.scale or not {one, other} <= set(self.values):
            return 0.0
        return 1 - abs(self.values.index(one) - self.values.index(other)) / (len(self.values) - 1)


class Shelved(Asked):
    """A library's question. when: attribute -> the value, or values, of the readers whom it is a question for."""

    when: Annotated[dict[Name, Values], Field(min_length=1)]


class Library(_Part):
    """What personas are composed from. take: how many questions one gets at most."""

    attributes: Annotated[dict[Name, Dimension], Field(min_length=1)]
    questions: Annotated[list[Shelved], Field(min_length=1)]
    take: Annotated[Whole, Field(ge=1, le=12)] = 4

    @field_validator("questions")
    @classmethod
    def _each_question_once(cls, questions: list[Shelved]) -> list[Shelved]:
        return _each_once(questions)

    @model_validator(mode="after")
    def _it_speaks_of_its_attributes(self) -> Library:
        for place, question in enumerate(self.questions):
            try:
                self.check(question.when)
            except ValueError as error:
                raise Complaint(str(error), "questions", place, "when") from None
        return self

    def check(self, vector: Mapping[str, Sequence[str]]) -> None:
        """Raises ValueError for an attribute or a value that the library does not have."""
        for name, values in vector.items():
            if name not in self.attributes:
                raise ValueError(f"there is no attribute '{name}': {did_you_mean(name, self.attributes)}")
            known = self.attributes[name].values
            for value in values:
                if value not in known:
                    raise ValueError(f"'{value}' is no value of '{name}': {did_you_mean(value, known)}")

    def nearest(self, vector: Mapping[str, Sequence[str]]) -> list[Shelved]:
        """The questions nearest to a reader of these attributes, at most `take`, the nearest first and then in the
        library's order; each at least NEAR. Raises ValueError when there is none."""
        self.check(vector)
        scored = [(self._closeness(question, vector), question) for question in self.questions]
        near = sorted((pair for pair in scored if pair[0] >= NEAR), key=lambda pair: -pair[0])
        if not near:
            told = "; ".join(f"{name}: {', '.join(values)}" for name, values in vector.items())
            raise ValueError(f"the library has no question for a reader of {told or 'no attributes'}")
        return [question for _, question in near[: self.take]]

    def _closeness(self, question: Shelved, vector: Mapping[str, Sequence[str]]) -> float:
        """The mean over the question's attributes of how near the vector comes to one of their values."""
        parts = [
            max(
                (
                    self.attributes[name].closeness(wanted, value)
                    for wanted in values
                    for value in vector.get(name, ())
                ),
                default=0.0,
            )
            for name, values in question.when.items()
        ]
        return sum(parts) / len(parts)


def compose(vector: Mapping[str, Sequence[str]], library: Library) -> Persona:
    """Who a record's attributes make: described by nothing but the library's own words. Raises ValueError."""
    questions = library.nearest(vector)
    told = "; ".join(f"{name.replace('_', ' ')}: {', '.join(values)}" for name, values in vector.items())
    # As COMPOSED is no id that a file can take, validation is passed by.
    return Persona.model_construct(
        id=COMPOSED,
        name=told,
        description=told,
        attributes={name: list(values) for name, values in vector.items()},
        focus=[],
        questions=[Asked(id=one.id, ask=one.ask, points=one.points) for one in questions],
    )


def vector_of(value: Any) -> dict[str, list[str]]:
    """A record's `attributes`: name -> a value or a list of them. Raises ValueError."""
    if not isinstance(value, Mapping) or not value:
        raise ValueError('\'attributes\' is not name -> value, such as {"expertise": "novice"}')
    found = {}
    for name, given in value.items():
        if given is None:  # a column of a table that has other rows' attributes too
            continue
        values = [given] if isinstance(given, str) else given
        if not isinstance(values, list) or not values or not all(isinstance(one, str) for one in values):
            raise ValueError(f"the attribute '{name}' is {shown(given)}, not a text or a list of texts")
        found[str(name)] = values
    return found


def named(value: Any, known: Sequence[str]) -> list[str]:
    """The personas that a record names: one, several with commas, or a list. Raises ValueError."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"'persona' is {shown(value)}: name one persona, or several in a list")
    found = list(dict.fromkeys(name.strip() for name in names if name.strip()))
    if not found:
        raise ValueError("'persona' names nobody")
    for name in found:
        if name not in known:
            raise ValueError(f"there is no persona '{name}': {did_you_mean(name, known)}")
    return found


def likeliest(likely: Mapping[str, float], most: int, second_from: float) -> dict[str, float]:
    """The likeliest personas as a mix whose shares sum to 1: the first, and up to `most` in all of those that
    are at least `second_from` likely."""
    ranked = sorted(likely.items(), key=lambda pair: -pair[1])
    taken = [ranked[0], *(pair for pair in ranked[1:most] if pair[1] >= second_from)]
    total = sum(p for _, p in taken)
    return {name: p / total if total else 1 / len(taken) for name, p in taken}


# Files


def read_library(path: Path) -> Library:
    """Raises JudgeError, with file and line."""
    return yamlfile.validate(Library, yamlfile.load(path, JudgeError), JudgeError)


def read_personas(path: Path, library: Library | None) -> list[Persona]:
    """A persona's file, or all of a folder's in the order of their names. One without questions gets the nearest of
    the library. Raises JudgeError, with file and line."""
    files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
    if not files:
        raise JudgeError("there is no persona in this folder", where=str(path), fix="put <id>.yaml files there")
    if not path.exists():
        near = nearest(path.name, [file.name for file in path.parent.glob("*")])
        fix = f"did you mean '{path.with_name(near)}'?" if near else None
        raise JudgeError("there is no such persona file", where=str(path), fix=fix)
    found: list[Persona] = []
    for file in files:
        document = yamlfile.load(file, JudgeError)
        persona = yamlfile.validate(Persona, document, JudgeError)
        if persona.id in [other.id for other in found]:
            raise JudgeError(f"two personas have the id '{persona.id}'", where=document.where(("id",)))
        if not persona.questions:
            persona = _with_questions(persona, library, document)
        found.append(persona)
    return found


def _with_questions(persona: Persona, library: Library | None, document: yamlfile.Document) -> Persona:
    if library is None:
        raise JudgeError(
            f"the persona '{persona.id}' has no questions",
            where=document.where(("questions",)),
            fix="write some, or give the judge a library to compose it from",
        )
    try:
        taken = library.nearest(persona.attributes)
    except ValueError as error:
        raise JudgeError(str(error), where=document.where(("attributes",))) from None
    questions = [Asked(id=one.id, ask=one.ask, points=one.points) for one in taken]
    return persona.model_copy(update={"questions": questions})
