"""The typed questions a judge asks: what the model may answer, and how an answer is read back.

Each question gives the JSON schema of its answer and reads that JSON into a value. Nothing here counts.
"""

from __future__ import annotations

import itertools
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
from localjudge.judge.scoring import in_band
from localjudge.verdict import Answer
from localjudge.yamlfile import Complaint, Number, Whole, shown


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

CANNOT = "cannot_judge"
"""The label of what cannot be judged, where a question allows it: its answer is then None, and counts nothing."""

PLACES = ("low", "middle", "high")
"""Where in a band."""


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
    cannot: Annotated[bool, Field(strict=True)] = False
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
        return {"enum": [*self.labels, *[CANNOT] * self.cannot]}

    def form(self) -> str:
        low, high = self.bounds
        points = f"<{low}-{high}>" if low >= 0 else f"<{low} to {high}>"
        return f'{points}|"{CANNOT}"' if self.cannot else points

    def read(self, value: Any) -> Any:
        if self.cannot and value == CANNOT:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or value not in self.labels:
            raise ValueError(f"is {shown(value)}, which is not on the scale {list(self.bounds)}")
        return int(value)


def _options_may_be_a_list(options: Any) -> Any:
    if not isinstance(options, list | Mapping):
        return options
    labels = [_as_label(label) for label in options]
    if twice := [label for label in labels if labels.count(label) > 1]:
        raise ValueError(f"the option '{twice[0]}' is listed twice")
    if isinstance(options, list):
        return dict.fromkeys(labels, "")
    return {label: meaning or "" for label, meaning in zip(labels, options.values(), strict=True)}


Options = Annotated[dict[Label, str], Field(min_length=2), BeforeValidator(_options_may_be_a_list)]


def _either(labels: Sequence[str]) -> str:
    return "|".join(json.dumps(label, ensure_ascii=False) for label in labels)


class ChoiceQuestion(_Question):
    """One of some labels. options: label -> what it means (which may be empty)."""

    type: Literal["choice"]
    cannot: Annotated[bool, Field(strict=True)] = False
    options: Options

    @property
    def labels(self) -> list[str]:
        return list(self.options)

    def json_schema(self) -> dict[str, Any]:
        return {"enum": [*self.labels, *[CANNOT] * self.cannot]}

    def form(self) -> str:
        return _either([*self.labels, *[CANNOT] * self.cannot])

    def read(self, value: Any) -> Any:
        if self.cannot and value == CANNOT:
            return None
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


class Band(BaseModel):
    """range: the lowest and highest score in it. text: what belongs there."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    range: tuple[Number, Number]
    text: str = ""

    @field_validator("range")
    @classmethod
    def _it_rises(cls, ends: tuple[float, float]) -> tuple[float, float]:
        if not 0 <= ends[0] <= ends[1] <= 100:
            raise ValueError(f"the band [{ends[0]:g}, {ends[1]:g}] is not two numbers that rise, from 0 to 100")
        return ends


class BandQuestion(_Question):
    """One of some described bands of 0 to 100, and where in it: low, middle or high. Its number is the band's
    lowest, its middle rounded half up, or its highest."""

    type: Literal["band"]
    cannot: Annotated[bool, Field(strict=True)] = False
    options: Annotated[dict[Label, Band], Field(min_length=2)]

    @field_validator("options")
    @classmethod
    def _bands_do_not_overlap(cls, options: dict[str, Band]) -> dict[str, Band]:
        rising = sorted(options.items(), key=lambda item: item[1].range)
        for (less, low), (more, high) in itertools.pairwise(rising):
            if high.range[0] < low.range[1]:
                raise ValueError(f"the bands {less} and {more} overlap")
        return options

    @property
    def labels(self) -> list[str]:
        return list(self.options)

    def json_schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {
                "band": {"enum": [*self.labels, *[CANNOT] * self.cannot]},
                "place": {"enum": list(PLACES)},
            },
            "required": ["band", "place"],
            "additionalProperties": False,
        }

    def form(self) -> str:
        return f'{{"band":{_either([*self.labels, *[CANNOT] * self.cannot])},"place":{_either(PLACES)}}}'

    def read(self, value: Any) -> Any:
        band = value
        if isinstance(value, dict):
            if list(value) != ["band", "place"] or value["place"] not in PLACES:
                raise ValueError(f"is {shown(value)}, which is no band with a place in it")
            band = value["band"]
        if self.cannot and band == CANNOT:
            return None
        if not isinstance(band, str) or band not in self.options:
            raise ValueError(f"is {shown(band)}, which is not one of {', '.join(self.options)}")
        return band

    def worth(self, band: str, place: Any = "middle") -> float:
        return in_band(*self.options[band].range, place)


class FindingField(BaseModel):
    """One typed field of a finding: a text of at most `budget` tokens, or a choice; yesno is one of yes and no."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["text", "choice", "yesno"]
    ask: str = ""
    budget: Annotated[Whole, Field(ge=1)] | None = None
    options: Options | None = None

    @model_validator(mode="after")
    def _as_its_type_has_it(self) -> FindingField:
        if (self.options is not None) != (self.type == "choice"):
            raise ValueError(f"a {self.type} {'needs' if self.type == 'choice' else 'takes no'} options")
        if self.budget is not None and self.type != "text":
            raise ValueError(f"a {self.type} takes no budget")
        return self

    @property
    def labels(self) -> list[str] | None:
        """None of a text."""
        if self.type == "yesno":
            return ["yes", "no"]
        return list(self.options) if self.options else None

    def json_schema(self) -> dict[str, Any]:
        if self.labels:
            return {"enum": self.labels}
        return {"type": "string", "minLength": 1, QUOTA: self.budget or FIELD_BUDGET}


FIELD_BUDGET = 40
QUOTE_BUDGET = 60


_Name = Annotated[str, spelled(r"[A-Za-z_][A-Za-z0-9_]*", "letters, digits and _, and no digit first")]


class FindingsQuestion(_Question):
    """A list of quoted evidence, which may be empty: each finding a quote and typed fields, in their order.

    budget: tokens of the whole list; quote_budget: of one quote. quoted_from: the inputs in which a quote must be
    found to count; by default any that is a text.
    """

    type: Literal["findings"]
    fields: dict[_Name, FindingField] = Field(default_factory=dict)
    budget: Annotated[Whole, Field(ge=1)] = 600
    quote_budget: Annotated[Whole, Field(ge=1)] = QUOTE_BUDGET
    quoted_from: list[str] | None = None

    @field_validator("fields")
    @classmethod
    def _the_quote_is_there_already(cls, fields: dict[str, FindingField]) -> dict[str, FindingField]:
        for name in fields:
            if name in ("quote", "verified", "settled", "why"):
                raise ValueError(f"every finding has '{name}' already: give the field another name")
        return fields

    def labels_of(self, field: str) -> list[str] | None:
        """The labels that a field can have; None of a text, and of what is no field."""
        return self.fields[field].labels if field in self.fields else None

    def json_schema(self) -> dict[str, Any]:
        properties: dict[str, Any] = {"quote": {"type": "string", "minLength": 1, QUOTA: self.quote_budget}}
        properties |= {name: field.json_schema() for name, field in self.fields.items()}
        item = {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }
        return {"type": "array", "items": item, QUOTA: self.budget}

    def form(self) -> str:
        fields = [
            f'"{name}":{_either(field.labels) if field.labels else chr(34) + "..." + chr(34)}'
            for name, field in self.fields.items()
        ]
        return "[{" + ",".join(['"quote":"..."', *fields]) + "}, ...]"

    def read(self, value: Any) -> Any:
        if not isinstance(value, list):
            raise ValueError(f"is {shown(value)}, which is no list")
        keys = ["quote", *self.fields]
        for place, finding in enumerate(value, 1):
            if not isinstance(finding, dict) or list(finding) != keys:
                raise ValueError(f"has a finding, number {place}, without exactly the keys {', '.join(keys)}")
            for name, given in finding.items():
                labels = self.labels_of(name)
                if not isinstance(given, str) or not given or (labels is not None and given not in labels):
                    raise ValueError(f"has a finding, number {place}, whose {name} cannot be {shown(given)}")
        return value


Question = Annotated[
    TextQuestion | ScoreQuestion | ChoiceQuestion | FlagsQuestion | BandQuestion | FindingsQuestion,
    Field(discriminator="type"),
]


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


def answer_of(question: Question, value: Any) -> Answer:
    """What a completion says in answer to a question. Raises ValueError, which goes on from "the answer"."""
    read = question.read(value)
    if isinstance(question, BandQuestion) and read is not None:
        place = value["place"] if isinstance(value, dict) else "middle"
        return Answer(value=read, expected=question.worth(read, place))
    return Answer(value=read)


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
            answer = answer_of(question, found[question.id])
        except ValueError as error:
            raise ValueError(f"the answer to '{question.id}' {error}") from None
        place = f"{question.id}.band" if isinstance(question, BandQuestion) else question.id
        distribution = (distributions or {}).get(place)
        answers[question.id] = answer.model_copy(
            update={"distribution": dict(distribution) if distribution else None}
        )
    return answers
