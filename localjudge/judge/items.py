"""What a checklist is: its items, how judge.yaml asks for one, and the JSON that a model writes at each step.

Items read and write two plain JSON forms: a rubric, {"essential": [{"criterion", "reference", "weight"}, ...],
"additional": [...]}, and a scoring, [{"criterion", "rationale", "credit"}, ...]. Asks nobody and knows no files.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from localjudge.decoding.grammar import QUOTA
from localjudge.verdict import Graded
from localjudge.yamlfile import Complaint, Number, Whole, shown

STEPS = ("write", "verify", "same", "check")
"""The asks that come before a response is graded, each with a template of its own."""

CREDITS = {"none": 0.0, "half": 0.5, "full": 1.0}
"""What each label of an item's credit is worth."""

CREDIT_ASK = {
    "en": "How much of this item does the response fulfil?",
    "zh": "回答在多大程度上满足这一条？",
}
CREDIT_MEANINGS = {
    "en": {
        "none": "wrong, or not there at all",
        "half": "partly right: incomplete, imprecise, or right beside something wrong",
        "full": "there, and in agreement with the reference",
    },
    "zh": {
        "none": "错误，或完全没有提到",
        "half": "部分正确：不完整、不精确，或对错混杂",
        "full": "有，且与参考一致",
    },
}

CRITICAL = 3
"""The weight of an item whose lack decides."""

Line = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=4000)]


def _plain(value: Any) -> Any:
    """People write a reference as 3 or true; it is text all the same."""
    return json.dumps(value) if isinstance(value, bool | int | float) else value


_MARKS = re.compile("[.,;:!?\"'`()\\[\\]{}“”‘’«»…。，、；：！？（）【】「」《》·]")
"""What can be left out of a text without another meaning; of <, +, -, % and the like that is not so."""


def folded(text: str) -> str:
    """Text as items are compared: NFKC, without case, punctuation and white space; '' where it says nothing."""
    kept = _MARKS.sub(" ", unicodedata.normalize("NFKC", text).casefold())
    return " ".join(kept.split()) if any(c.isalnum() for c in kept) else ""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Item(_Model):
    """One thing to be looked for. reference: what is true of it. weight: 3 critical, 2 important, 1 helpful."""

    criterion: Line
    reference: Annotated[
        str, BeforeValidator(_plain), StringConstraints(strip_whitespace=True, max_length=4000)
    ] = ""
    weight: Annotated[Literal[1, 2, 3], BeforeValidator(lambda value: None if value is True else value)] = 1


class Checklist(_Model):
    """essential: what an answer must have; additional: what makes it better."""

    essential: Annotated[list[Item], Field(min_length=1)]
    additional: list[Item] = Field(default_factory=list)

    @model_validator(mode="after")
    def _each_once(self) -> Checklist:
        met: set[str] = set()
        for kind in ("essential", "additional"):
            for place, item in enumerate(getattr(self, kind)):
                name = folded(item.criterion) or item.criterion
                if name in met:
                    raise Complaint(f"the criterion '{item.criterion}' is listed twice", kind, place, "criterion")
                met.add(name)
        return self

    @property
    def items(self) -> dict[str, tuple[Item, bool]]:
        """id -> item, and whether it is essential: i1, i2, ..., the essential ones first."""
        both = [*((item, True) for item in self.essential), *((item, False) for item in self.additional)]
        return {f"i{number}": each for number, each in enumerate(both, 1)}

    def rubric(self) -> dict[str, list[dict[str, Any]]]:
        """The plain JSON form."""
        return {
            "essential": [item.model_dump() for item in self.essential],
            "additional": [item.model_dump() for item in self.additional],
        }


class Dropped(_Model):
    """An item that a candidate had and the checklist has not. criterion: as the candidate had it."""

    criterion: str
    why: str


class Kept(Checklist):
    """A checklist with what made it, as it is kept.

    key: of all that made it; None of one that people brought. task_key: of the task alone. task: its text by input,
    images: their sha256. grounded: written with a reference answer at hand. candidates: lists that it was merged
    from. contested: no essential item was in most of them. written_by, judge, digest: the model, the judge and a
    hash of what it asks; '' of one that people brought. locked: never written anew, and used whatever the model is.
    edited: by a person, since.
    """

    key: str | None = None
    task_key: str
    task: dict[str, Any]
    images: list[str] = Field(default_factory=list)
    grounded: bool = False
    candidates: int = 0
    contested: bool = False
    dropped: list[Dropped] = Field(default_factory=list)
    written_by: str = ""
    judge: str = ""
    digest: str = ""
    locked: bool = False
    edited: bool = False

    @property
    def about(self) -> str:
        """The task in a few words."""
        text = " ".join(" ".join(str(value) for value in self.task.values()).split())
        return text if len(text) <= 60 else text[:59] + "…"


def hash_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


class ChecklistSettings(_Model):
    """How a judge of the kind `checklist` writes and grades.

    response, reference: the inputs that hold what is graded and, if any, the reference answer; all others are
        the task. mode: 'grounded' needs a reference, 'answer-free' looks at none, 'auto' takes what a record has.
    candidates: lists that are written and merged. temperature: at which they are written; all else goes by the
        run's own. plan: tokens of a text before each list, on what the task needs; 0 for none.
    text: tokens of a criterion, and of a reference. essential, additional: tokens of these two lists.
    most: items of each of the two lists that are kept. reason: tokens of the reason for an item's credit.
    embedding: the folder of a small local model, by whose mean-pooled sentence embeddings items are compared;
        without one by their words.
    same, different: the similarity (cosine, 0 to 1) from which two items are the same, and below which they are
        not; between, the model decides. By default 0.85 and 0.1; with an embedding 0.95 and 0.6.
    """

    response: str = "response"
    reference: str | None = "reference"
    mode: Literal["auto", "grounded", "answer-free"] = "auto"
    candidates: Annotated[Whole, Field(ge=1, le=15)] = 3
    temperature: Annotated[Number, Field(ge=0, le=2)] = 0.3
    plan: Annotated[Whole, Field(ge=0)] = 80
    text: Annotated[Whole, Field(ge=1)] = 48
    essential: Annotated[Whole, Field(ge=1)] = 500
    additional: Annotated[Whole, Field(ge=1)] = 400
    most: Annotated[Whole, Field(ge=1, le=20)] = 10
    reason: Annotated[Whole, Field(ge=1)] = 60
    embedding: str | None = None
    same: Annotated[Number, Field(ge=0, le=1)] | None = None
    different: Annotated[Number, Field(ge=0, le=1)] | None = None

    @model_validator(mode="after")
    def _candidates_differ(self) -> ChecklistSettings:
        if self.candidates > 1 and not self.temperature:
            what = f"at temperature 0 all {self.candidates} candidates would be the same"
            raise Complaint(f"{what}: give 0.3, or candidates: 1", "temperature")
        same, different = self.thresholds
        if same <= different:
            raise Complaint(f"'same' is {same:g}, which is not above 'different', {different:g}", "same")
        if self.mode == "grounded" and self.reference is None:
            raise Complaint("the mode 'grounded' needs the input that holds the reference answer", "reference")
        return self

    @property
    def thresholds(self) -> tuple[float, float]:
        """(same, different)."""
        same, different = (0.95, 0.6) if self.embedding else (0.85, 0.1)
        return (
            same if self.same is None else self.same,
            different if self.different is None else self.different,
        )


# What a model writes


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def _text(quota: int) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, QUOTA: quota}


def write_schema(settings: ChecklistSettings) -> dict[str, Any]:
    """Of one candidate. The first essential item stands apart, since a list may be empty and this may not."""
    item = _object(
        {"criterion": _text(settings.text), "reference": _text(settings.text), "weight": {"enum": [1, 2, 3]}}
    )
    others = {"type": "array", "items": item, QUOTA: settings.essential}
    plan = {"plan": _text(settings.plan)} if settings.plan else {}
    return _object(
        {
            **plan,
            "essential": _object({"first": item, "others": others}),
            "additional": {"type": "array", "items": item, QUOTA: settings.additional},
        }
    )


RULINGS = ("keep", "repair", "drop")


def rule_schema(settings: ChecklistSettings, n: int) -> dict[str, Any]:
    """A ruling on each of n items, by id: keep it, repair its reference as it then says, or drop it."""
    ruling = {"why": _text(settings.reason), "ruling": {"enum": list(RULINGS)}, "reference": _text(settings.text)}
    return _object({f"i{number}": _object(ruling) for number in range(1, n + 1)})


def same_schema(n: int) -> dict[str, Any]:
    """Whether the two items of each of n pairs ask for the same."""
    return _object({f"p{number}": {"enum": ["same", "different"]} for number in range(1, n + 1)})


def grade_schema(settings: ChecklistSettings, n: int) -> dict[str, Any]:
    """A reason and a credit for each of n items, by id."""
    credit = {"rationale": _text(settings.reason), "credit": {"enum": list(CREDITS)}}
    return _object({f"i{number}": _object(credit) for number in range(1, n + 1)})


def form_of(schema: Mapping[str, Any], name: str = "text") -> str:
    """A schema as a prompt shows it, with what goes where; a free text by its name, since a weak model that is
    shown "..." writes just that."""
    if "enum" in schema:
        return "|".join(json.dumps(label, ensure_ascii=False) for label in schema["enum"])
    if schema["type"] == "array":
        return f"[{form_of(schema['items'])}, ...]"
    if schema["type"] == "object":
        return "{" + ",".join(f'"{key}":{form_of(inner, key)}' for key, inner in schema["properties"].items()) + "}"
    return f'"<{name}>"'


def listed(items: Mapping[str, Item], weights: bool = False) -> str:
    """Items as a prompt lists them, by id."""
    return "\n".join(
        f"{name}. {item.criterion}"
        + (f"\n    reference: {item.reference}" if item.reference else "")
        + (f"\n    weight: {item.weight}" if weights else "")
        for name, item in items.items()
    )


# Scorings


def rubric_of(graded: Sequence[Graded]) -> dict[str, list[dict[str, Any]]]:
    """The checklist that these were graded by, in its plain JSON form."""
    return {
        kind: [
            {"criterion": one.criterion, "reference": one.reference, "weight": one.weight}
            for one in graded
            if one.essential == essential
        ]
        for kind, essential in (("essential", True), ("additional", False))
    }


def scoring(graded: Iterable[Graded]) -> list[dict[str, Any]]:
    """What a response earned, in the plain JSON form."""
    return [
        {
            "criterion": one.criterion,
            "rationale": one.rationale or "",
            "credit": int(one.credit) if one.credit in (0, 1) else one.credit,
        }
        for one in graded
    ]


def read_credits(value: Any) -> dict[str, float]:
    """Somebody's credits: item's id or criterion -> 0, 0.5 or 1, out of a scoring or a mapping. Raises ValueError,
    which goes on from "the credits"."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise ValueError(f"are {shown(value)}, which is not JSON") from None
    pairs: Iterable[tuple[Any, Any]]
    if isinstance(value, Mapping):
        pairs = value.items()
    elif isinstance(value, Sequence) and all(isinstance(one, Mapping) and "criterion" in one for one in value):
        pairs = [(one["criterion"], one.get("credit")) for one in value]
    else:
        raise ValueError(f"are {shown(value)}: write {{item: credit}}, or [{{criterion, credit}}, ...]")
    found = {}
    for name, given in pairs:
        if given is None:
            continue
        credit = CREDITS.get(given.strip().casefold(), given) if isinstance(given, str) else given
        if isinstance(credit, bool) or credit not in (0, 0.5, 1):
            raise ValueError(f"give '{name}' {shown(credit)}: use 0, 0.5 or 1")
        found[str(name)] = float(credit)
    return found


def by_item(credits: Mapping[str, float], items: Mapping[str, str]) -> dict[str, float]:
    """Credits by an item's id, of those that name one by its id or its criterion. items: id -> criterion."""
    names = {folded(criterion): name for name, criterion in items.items()}
    found = {}
    for name, credit in credits.items():
        own = name if name in items else names.get(folded(name))
        if own is not None:
            found[own] = credit
    return found


def first_fault(error: ValidationError) -> str:
    """A checklist's first fault in words, with its place."""
    fault = error.errors()[0]
    at: list[Any] = list(fault["loc"])
    cause = fault.get("ctx", {}).get("error")
    if isinstance(cause, Complaint):
        at += cause.at
    place = ".".join(str(step + 1) if isinstance(step, int) else step for step in at)
    what = re.sub(r"^Value error, ", "", fault["msg"])
    what = what[:1].lower() + what[1:]
    return f"'{place}': {what}" if place else what
