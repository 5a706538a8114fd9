"""The `dual_control` section of a judge.yaml: what the technical stream weighs, who the personas are, and how
both come to one score. Declarations and their checks alone; `dual_control` applies them, `scoring` has the
arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from localjudge.errors import did_you_mean
from localjudge.judge.counting import Name, Scoring
from localjudge.judge.personas import COMPOSED, Library, Persona, Text
from localjudge.judge.questions import (
    BandQuestion,
    ChoiceQuestion,
    FindingsQuestion,
    FlagsQuestion,
    Label,
    Question,
    ScoreQuestion,
    TextQuestion,
    spelled,
)
from localjudge.yamlfile import Complaint, Number, Whole

SAFETY = "safety"
"""The flags that a policy is asked as."""

MATCH = "persona_match"
"""The choice of whom a response is for."""

STANDINGS = ("supported", "contradicted", "not_checkable")
"""How a claim stands to what it is about."""

SAFETY_ASK = {
    "en": "Which of these does the response itself do?",
    "zh": "回答本身有下列哪些情形？",
}
MATCH_ASK = {
    "en": "Which of these readers is the task most likely from? Go by what it asks and how it asks it.",
    "zh": "提出这个任务的人最可能是下列哪一类读者？请根据任务的内容和措辞判断。",
}
PERSONA_RATIONALE = {
    "en": "As this reader: say briefly, on the response's own words, what serves you and what does not.",
    "zh": "站在这位读者的立场，依据回答的原文，简要说明哪里对你有用、哪里没用。",
}

Share = Annotated[Number, Field(ge=0, le=1)]
Weight = Annotated[Number, Field(gt=0)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Code(_Part):
    """What a policy forbids. words: what raises it by itself wherever it stands in a response, asked or not."""

    text: Text
    words: list[Text] = Field(default_factory=list)


class Policy(_Part):
    """What no response may do: code -> what it stands for."""

    codes: Annotated[
        dict[Annotated[Label, spelled(r"[A-Za-z0-9_.-]+", "letters, digits, '_', '.' and '-'")], Code],
        Field(min_length=1),
    ]


class Taus(_Part):
    """The weights of the two streams."""

    technical: Weight
    persona: Weight


class Gate(_Part):
    """What keeps a pleasing response from making up for being wrong.

    It closes when the technical score is below `floor`, when so many claims are contradicted (0: never for
    that), and when a safety flag is raised. Behind it the persona weight is multiplied by `shrink`, and the
    score is brought below every score in front of it; or, with `then: fail`, it is 0 and the record does not pass.
    """

    floor: Annotated[Number, Field(gt=0, lt=1)] = 0.6
    contradicted: Annotated[Whole, Field(ge=0)] = 1
    safety: Annotated[bool, Field(strict=True)] = True
    shrink: Share = 0.25
    then: Literal["shrink", "fail"] = "shrink"


class Marks(_Part):
    """From which score on a stream is high, below which it is low, and how far apart personas may be."""

    high: Share = 0.7
    low: Share = 0.5
    spread: Annotated[Number, Field(gt=0, le=1)] = 0.4

    @model_validator(mode="after")
    def _low_is_below_high(self) -> Marks:
        if self.low > self.high:
            raise Complaint(f"low is {self.low:g}, above high, {self.high:g}", "low")
        return self


class Embedding(_Part):
    """Relevance by a local embedding model: the cosine of the task and the response, from `low` (0) to `high`
    (1), in place of the question `instead_of`. model: its folder."""

    model: Text
    instead_of: str = "relevance"
    low: Number = 0.2
    high: Number = 0.8

    @model_validator(mode="after")
    def _it_rises(self) -> Embedding:
        if self.low >= self.high:
            raise Complaint(f"low is {self.low:g}, not below high, {self.high:g}", "low")
        return self


class DualControl(_Part):
    """The section.

    task, response: the inputs that hold them. technical: question -> its weight in the technical score: findings of
    claims, scores, choices that scoring.values gives numbers, bands, and SAFETY, which the policy is asked as.
    with_images: the questions that are asked of records with images alone.
    match: whom a record is judged for: 'field', those that its `persona` or `attributes` name; 'model', the
    same, or where it names nobody, whom the model takes it to be from, up to `most` of those who are
    `second_from` likely; 'all', everybody, whomever it names.
    worth: what a claim that is not checkable is worth, 0 to 1; null: it leaves the weighting.
    rationale: token budget of each persona's reason. profile: which of the profiles holds.
    funnel: personas are not asked about what the gate has failed.
    """

    task: str = "task"
    response: str = "response"
    technical: Annotated[dict[str, Weight], Field(min_length=1)]
    with_images: list[str] = Field(default_factory=list)
    worth: Share | None = None
    personas: Annotated[list[Persona], Field(min_length=1)]
    library: Library | None = None
    policy: Policy | None = None
    match: Literal["field", "model", "all"] = "model"
    most: Annotated[Whole, Field(ge=1)] = 2
    second_from: Share = 0.3
    rationale: Annotated[Whole, Field(ge=1)] = 100
    profiles: Annotated[dict[Name, Taus], Field(min_length=1)] = {"balanced": Taus(technical=1, persona=1)}
    profile: str = "balanced"
    gate: Gate = Gate()
    marks: Marks = Marks()
    embedding: Embedding | None = None
    funnel: Annotated[bool, Field(strict=True)] = False

    @field_validator("personas")
    @classmethod
    def _personas_differ(cls, personas: list[Persona]) -> list[Persona]:
        ids = [persona.id for persona in personas]
        for place, one in enumerate(ids):
            if one in ids[:place]:
                raise Complaint(f"two personas have the id '{one}'", place, "id")
            if not personas[place].questions:
                raise Complaint(f"the persona '{one}' has no questions", place)
        return personas

    @model_validator(mode="after")
    def _the_profile_is_there(self) -> DualControl:
        if self.profile not in self.profiles:
            what = f"there is no profile '{self.profile}': {did_you_mean(self.profile, self.profiles)}"
            raise Complaint(what, "profile")
        return self

    @property
    def score_names(self) -> list[str]:
        """What a verdict's `scores` may have: both streams, and each persona."""
        return ["technical", "persona", *(f"persona_{reader.id}" for reader in self.readers)]

    @property
    def not_of_all(self) -> list[str]:
        """The technical questions that some records, or all, are not asked."""
        return [*self.with_images, *([self.embedding.instead_of] if self.embedding else [])]

    @property
    def taus(self) -> Taus:
        return self.profiles[self.profile]

    def safety_questions(self, language: str) -> list[Question]:
        """The one; none without a policy."""
        if self.policy is None:
            return []
        codes = {code: one.text for code, one in self.policy.codes.items()}
        return [FlagsQuestion(id=SAFETY, type="flags", ask=SAFETY_ASK[language], codes=codes)]

    def match_questions(self, language: str) -> list[Question]:
        """The one; none where nothing is left to match."""
        if self.match != "model" or len(self.personas) < 2:
            return []
        options = {persona.id: f"{persona.name}. {persona.description}" for persona in self.personas}
        return [ChoiceQuestion(id=MATCH, type="choice", ask=MATCH_ASK[language], options=options)]

    def persona_questions(self, persona: Persona, language: str) -> list[Question]:
        """What a persona is asked: a reason, then its own questions."""
        ask = PERSONA_RATIONALE[language]
        reason = TextQuestion(id=f"{persona.id}_rationale", type="text", ask=ask, budget=self.rationale)
        return [reason, *(asked.question(persona.id) for asked in persona.questions)]

    @property
    def readers(self) -> list[Persona]:
        """Everybody who may be asked: the personas, and one with all that a composed one may be asked."""
        if self.library is None or self.match == "all":
            return self.personas
        shelf = Persona.model_construct(
            id=COMPOSED, name=COMPOSED, description=COMPOSED, questions=list(self.library.questions)
        )
        return [*self.personas, shelf]


def check_section(
    section: DualControl,
    questions: Sequence[Question],
    inputs: Mapping[str, str],
    scoring: Scoring,
    language: str,
) -> None:
    """That the section names what there is. inputs: name -> type. Raises Complaint."""
    at = "dual_control"
    for key in ("task", "response"):
        name = getattr(section, key)
        if name not in inputs:
            raise Complaint(f"'{name}' is no input: {did_you_mean(name, inputs)}", at, key)
        if inputs[name] != "text":
            raise Complaint(f"the {key} must be a text; '{name}' is a {inputs[name]}", at, key)
    by_id: dict[str, Question] = {question.id: question for question in questions}
    if SAFETY in by_id and section.policy is not None:
        place = list(by_id).index(SAFETY)
        raise Complaint(
            f"'{SAFETY}' is what the policy is asked as: give the question another id", "questions", place
        )
    by_id |= {question.id: question for question in section.safety_questions(language)}
    for name in section.technical:
        if name not in by_id:
            hint = "give the judge a 'policy'" if name == SAFETY else did_you_mean(name, by_id)
            raise Complaint(f"'{name}' is no question: {hint}", at, "technical", name)
        question = by_id[name]
        if isinstance(question, FindingsQuestion):
            _check_claims(question, section, list(by_id).index(name))
        elif isinstance(question, TextQuestion) or (
            isinstance(question, ChoiceQuestion) and name not in scoring.values
        ):
            what = f"'{name}' is a {question.type} without scoring.values, so it gives no number"
            raise Complaint(what, at, "technical", name)
    for place, name in enumerate(section.with_images):
        if name not in by_id:
            raise Complaint(f"'{name}' is no question: {did_you_mean(name, by_id)}", at, "with_images", place)
    if section.with_images and "images" not in inputs.values():
        raise Complaint("the judge has no input of the type images", at, "with_images")
    if section.embedding and section.embedding.instead_of not in section.technical:
        name = section.embedding.instead_of
        what = f"'{name}' is no part of the technical score: {did_you_mean(name, section.technical)}"
        raise Complaint(what, at, "embedding", "instead_of")
    taken = {*by_id, MATCH}
    for place, persona in enumerate(section.personas):
        for asked in section.persona_questions(persona, language):
            if asked.id in taken:
                what = f"'{asked.id}' of the persona '{persona.id}' is the id of another question too"
                raise Complaint(what, at, "personas", place, "id")
            taken.add(asked.id)


def _check_claims(question: FindingsQuestion, section: DualControl, place: int) -> None:
    labels = question.labels_of("standing")
    if labels is None or set(labels) != set(STANDINGS) or "evidence" not in question.fields:
        what = f"claims need a text 'evidence' and a choice 'standing' of {', '.join(STANDINGS)}"
        raise Complaint(what, "questions", place, "fields")
    if question.quoted_from != [section.response]:
        what = f"claims are the response's: set quoted_from to [{section.response}]"
        raise Complaint(what, "questions", place, "quoted_from")


def scale_of(question: Question, scoring: Scoring) -> tuple[float, float]:
    """The least and the greatest number that an answer to a technical question can give."""
    if question.id in scoring.values:
        values = scoring.values[question.id].values()
        return min(values), max(values)
    if isinstance(question, ScoreQuestion):
        return question.bounds
    return (0.0, 100.0) if isinstance(question, BandQuestion) else (0.0, 1.0)
