"""judge.yaml as models: what a judge is, read strictly, with the file and line of whatever is wrong."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator, model_validator

from localjudge.errors import did_you_mean, nearest
from localjudge.judge import checks
from localjudge.judge.counting import (
    Name,
    RedLine,
    Scoring,
    check_ends,
    check_measures,
    check_red_lines,
    overall_question,
)
from localjudge.judge.items import (
    CREDIT_ASK,
    CREDIT_MEANINGS,
    CREDITS,
    STEPS,
    ChecklistSettings,
    form_of,
    grade_schema,
    hash_of,
    rule_schema,
    same_schema,
    write_schema,
)
from localjudge.judge.prompt import IMAGE, Source, Templates
from localjudge.judge.questions import (
    BandQuestion,
    ChoiceQuestion,
    FlagsQuestion,
    Question,
    ScoreQuestion,
    TextQuestion,
    answer_form,
    answer_schema,
    spelled,
)
from localjudge.judge.scoring import weighted_mean
from localjudge.judge.streams import SAFETY, DualControl, check_section
from localjudge.judge.views import View
from localjudge.records import Field as Field_
from localjudge.yamlfile import Complaint, Whole

ROLES = ("system", "user")
RED_LINES = "red_lines"
"""The question that the red lines of the model are asked as."""

RED_LINES_ASK = {
    "en": "Which of these red lines does it cross?",
    "zh": "它触犯了下列哪些红线？",
}

TAKEN = (
    "judge",
    "questions",
    "question_list",
    "answer_form",
    "inputs",
    "passes",
    "reading",
    "settled",
    "tables",
    "true",
    "false",
    "none",
    "True",
    "False",
    "None",
)
"""Names that mean something else in a template, so that no input can have them."""

RATIONALE = {
    "en": "Explain briefly, on the evidence, what decides your answers.",
    "zh": "请依据文本中的证据，简要说明你作出判断的理由。",
}


class Input(Field_):
    """One input. view: what of its JSON the judge is shown."""

    view: View | None = None

    @model_validator(mode="after")
    def _views_are_of_json(self) -> Input:
        if self.view is not None and self.type != "json":
            raise Complaint(f"a view is of JSON; '{self.name}' is a {self.type}", "view")
        return self


class Pass(BaseModel):
    """One ask of several about a record: some of the questions. rationale: as of the judge, for this ask alone."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Name
    questions: Annotated[list[str], Field(min_length=1)]
    rationale: Annotated[Whole, Field(ge=0)] | None = None


class JudgeSpec(BaseModel):
    """One judge.yaml.

    inputs: the fields a record must have; an optional one stands in parentheses.
    system, user: the two templates, in the file itself; system.j2 and user.j2 beside it come next; else the
        kind's own templates in the judge's language.
    rationale: token budget of a text asked before everything else; 0 for none.
    order: 'rationale-first' or 'labels-first'.
    passes: the asks that a large rubric is put in, which share all before their questions; by default one ask.
    red_lines: what fails a record or caps its overall, decided by the model (as flags, RED_LINES) or by code.
    checks: which code looks at a record first (`judge.checks`).
    tie, orders: pairwise only. dual_control, checklist: of that kind only.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, spelled(r"[a-z0-9][a-z0-9_.-]*", "small letters, digits, '-', '_' and '.'")]
    version: str = "1"
    language: Literal["en", "zh"] = "en"
    kind: Literal["rubric", "pairwise", "dual_control", "checklist"] = "rubric"
    description: str = ""
    inputs: Annotated[list[Input], Field(min_length=1)]
    system: str | None = None
    user: str | None = None
    task: str = ""
    rationale: Annotated[Whole, Field(ge=0)] = 0
    order: Literal["rationale-first", "labels-first"] = "rationale-first"
    questions: Annotated[list[Question], Field(min_length=1)]
    passes: list[Pass] = Field(default_factory=list)
    red_lines: list[RedLine] = Field(default_factory=list)
    checks: str | None = None
    scoring: Scoring = Scoring()
    tie: Annotated[bool, Field(strict=True)] = False
    orders: Literal["both", "single"] = "both"
    dual_control: DualControl | None = None
    checklist: ChecklistSettings | None = None

    _templates: Templates = PrivateAttr()
    _report: Source | None = PrivateAttr(default=None)
    _texts: dict[str, str] = PrivateAttr()
    _tail: Templates = PrivateAttr()
    _question_list: Templates = PrivateAttr()
    _digest: str = PrivateAttr()
    _steps: dict[str, Templates] = PrivateAttr(default_factory=dict)
    _writing_digest: str = PrivateAttr(default="")

    @field_validator("version", mode="before")
    @classmethod
    def _versions_are_text(cls, value: Any) -> Any:
        return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value

    @field_validator("inputs", mode="before")
    @classmethod
    def _inputs_may_be_names(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        return [
            {"name": re.sub(r"^\((.*)\)$", r"\1", item), "optional": bool(re.fullmatch(r"\(.*\)", item))}
            if isinstance(item, str)
            else item
            for item in value
        ]

    @field_validator("checks")
    @classmethod
    def _checks_are_known(cls, name: str | None) -> str | None:
        if name is not None and name not in checks.KNOWN:
            raise ValueError(f"there are no checks '{name}': {did_you_mean(name, checks.KNOWN)}")
        return name

    @model_validator(mode="before")
    @classmethod
    def _preference_has_its_labels(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or data.get("kind") != "pairwise":
            return data
        questions = data.get("questions")
        if not isinstance(questions, list) or not all(isinstance(question, Mapping) for question in questions):
            return data
        ids = [question.get("id") for question in questions]
        labels = ["A", "B", "tie"] if data.get("tie") is True else ["A", "B"]
        if "preference" not in ids:
            near = nearest("preference", [name for name in ids if isinstance(name, str)])
            what = f"a pairwise judge needs a choice 'preference' of {', '.join(labels)}"
            if near:
                raise Complaint(f"{what}: is '{near}' meant?", "questions", ids.index(near))
            raise Complaint(what, "questions")
        own = [
            {**question, "options": labels}
            if (question.get("id"), question.get("type"), question.get("options")) == ("preference", "choice", None)
            else question
            for question in questions
        ]
        return {**data, "questions": own}

    @model_validator(mode="before")
    @classmethod
    def _a_checklist_asks_for_credit(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or data.get("kind") != "checklist":
            return data
        language = "zh" if data.get("language") == "zh" else "en"
        ask, options = CREDIT_ASK[language], CREDIT_MEANINGS[language]
        return {
            "questions": [{"id": "credit", "type": "choice", "ask": ask, "options": options}],
            "checklist": {},
            **data,
        }

    @model_validator(mode="after")
    def _hangs_together(self) -> JudgeSpec:
        ids = [question.id for question in self.questions]
        for place, question_id in enumerate(ids):
            if question_id in ids[:place]:
                raise Complaint(f"two questions have the id '{question_id}'", "questions", place, "id")
            if question_id == "rationale" and self.rationale:
                what = "'rationale' asks for a text of that id already: drop it, or give the question another id"
                raise Complaint(what, "questions", place, "id")
        names = [item.name for item in self.inputs]
        for place, name in enumerate(names):
            if name in names[:place]:
                raise Complaint(f"the input '{name}' is listed twice", "inputs", place)
            if name in TAKEN:
                what = f"'{name}' means something else in templates: give the input another name"
                raise Complaint(f"{what}, and --map it", "inputs", place)
        if IMAGE in names and self.takes_images:
            what = f"'{IMAGE}' is what templates place pictures with: give the input another name, such as 'images'"
            raise Complaint(what, "inputs", names.index(IMAGE))
        if RED_LINES in ids:
            what = f"'{RED_LINES}' is what the declared red lines are asked as: give the question another id"
            raise Complaint(what, "questions", ids.index(RED_LINES), "id")
        if (self.kind == "dual_control") != (self.dual_control is not None):
            what = "a judge of the kind dual_control has a section 'dual_control', and no other has one"
            raise Complaint(what, "dual_control" if self.dual_control else "kind")
        if (self.kind == "checklist") != (self.checklist is not None):
            raise Complaint("a section 'checklist' is of judges of that kind alone", "checklist")
        if self.kind == "pairwise":
            self._check_pairwise()
        elif self.checklist is not None:
            self._check_checklist(self.checklist)
        elif self.dual_control is not None:
            self._check_dual_control(self.dual_control)
        else:
            about = checks.KNOWN[self.checks] if self.checks else None
            check_red_lines(self.red_lines, self.questions, about)
            for name in about.fields if about else ():
                if name not in names:
                    what = f"the checks '{self.checks}' look at '{name}', which is no input"
                    raise Complaint(f"{what}: {did_you_mean(name, names)}", "checks")
            self._check_scoring()
            self._check_findings()
        self._check_passes()
        return self

    def _check_findings(self) -> None:
        names = [item.name for item in self.inputs]
        for place, question in enumerate(self.questions):
            for i, name in enumerate(getattr(question, "quoted_from", None) or ()):
                if name not in names:
                    what = f"'{name}' is no input: {did_you_mean(name, names)}"
                    raise Complaint(what, "questions", place, "quoted_from", i)

    def _other_scoring(self, *allowed: str) -> list[str]:
        """What of `scoring` is set, other than these: not model_fields_set, as a stored judge has every key."""
        plain = Scoring()
        keys = [key for key in Scoring.model_fields if key not in allowed]
        return [key for key in keys if getattr(self.scoring, key) != getattr(plain, key)]

    def _check_dual_control(self, section: DualControl) -> None:
        for key, value in (("red_lines", self.red_lines), ("checks", self.checks)):
            if value:
                what = f"a dual-control judge has a policy and a gate: it takes no '{key}'"
                raise Complaint(what, key)
        if other := self._other_scoring("values", "pass_mark"):
            what = f"how a dual-control judge counts is in its section: of 'scoring' it takes no '{other[0]}'"
            raise Complaint(what, "scoring", other[0])
        if self.tie or self.orders != "both":
            raise Complaint("'tie' and 'orders' are for pairwise judges", "tie" if self.tie else "orders")
        inputs = {item.name: item.type for item in self.inputs}
        if "persona" in inputs:
            what = "'persona' is who reads, in templates; a record may name one without its being an input"
            raise Complaint(what, "inputs", list(inputs).index("persona"))
        for place, item in enumerate(self.inputs):
            if item.optional and item.name in (section.task, section.response):
                raise Complaint("there is nothing to judge without it", "inputs", place)
        check_section(section, self.questions, inputs, self.scoring, self.language)
        for question_id, values in self.scoring.values.items():
            question = next((one for one in self.questions if one.id == question_id), None)
            if not isinstance(question, ChoiceQuestion) or set(values) != set(question.options):
                what = f"scoring.values.{question_id} must be of a choice, and give each of its options"
                raise Complaint(what, "scoring", "values", question_id)
        self._check_findings()
        self._check_mark()

    def _check_checklist(self, section: ChecklistSettings) -> None:
        for key, value in (
            ("passes", self.passes),
            ("red_lines", self.red_lines),
            ("checks", self.checks),
            ("rationale", self.rationale),
            ("order", self.order != "rationale-first"),
            ("tie", self.tie),
            ("orders", self.orders != "both"),
        ):
            if value:
                raise Complaint(f"a checklist judge asks item by item: it takes no '{key}'", key)
        if other := self._other_scoring("pass_mark", "decimals", "grades"):
            what = f"a checklist judge counts credits by the items' weights: of 'scoring' it takes no '{other[0]}'"
            raise Complaint(what, "scoring", other[0])
        credit, *others = self.questions
        if others or not isinstance(credit, ChoiceQuestion) or list(credit.options) != list(CREDITS):
            what = f"a checklist judge asks one question, 'credit', a choice of {', '.join(CREDITS)}: leave it out"
            raise Complaint(what, "questions")
        if credit.id != "credit" or credit.cannot:
            what = "the question of a checklist judge is called 'credit', and every item can be judged"
            raise Complaint(what, "questions", 0, "id" if credit.id != "credit" else "cannot")
        inputs = {item.name: item for item in self.inputs}
        for key in ("response", *({"reference"} & section.model_fields_set)):
            name = getattr(section, key)
            if name is not None and name not in inputs:
                at = ("checklist", key) if key in section.model_fields_set else ("inputs",)
                raise Complaint(f"'{name}' is no input, to hold the {key}: {did_you_mean(name, inputs)}", *at)
        if inputs[section.response].optional:
            raise Complaint("there is nothing to grade without it", "inputs", list(inputs).index(section.response))
        if section.mode == "grounded" and (section.reference not in inputs or inputs[section.reference].optional):
            what = f"the mode 'grounded' needs '{section.reference}' as an input that is not optional"
            raise Complaint(what, "checklist", "mode")
        if not set(inputs) - {section.response, section.reference}:
            raise Complaint("there is no input that says what the task is", "inputs")
        if taken := set(inputs) & set(self._checklist_names(section)):
            what = f"'{min(taken)}' means something else in a checklist's templates: give the input another name"
            raise Complaint(f"{what}, and --map it", "inputs", list(inputs).index(min(taken)))
        if "checklist" in inputs:
            what = "a record's 'checklist' is taken in place of one that is written: it is no input"
            raise Complaint(what, "inputs", list(inputs).index("checklist"))
        check_ends(self.scoring, [], 0.0, 1.0)
        self._check_mark()

    def _check_passes(self) -> None:
        ids = [question.id for question in self.material_questions]
        seen: dict[str, str] = {}
        for place, one in enumerate(self.passes):
            if one.id in [other.id for other in self.passes[:place]]:
                raise Complaint(f"two passes have the id '{one.id}'", "passes", place, "id")
            for i, question_id in enumerate(one.questions):
                if question_id not in ids:
                    what = f"'{question_id}' is no question: {did_you_mean(question_id, ids)}"
                    raise Complaint(what, "passes", place, "questions", i)
                if question_id in seen:
                    what = f"'{question_id}' is asked in '{seen[question_id]}' already"
                    raise Complaint(what, "passes", place, "questions", i)
                seen[question_id] = one.id
        if self.passes and (left := [question_id for question_id in ids if question_id not in seen]):
            raise Complaint(f"'{left[0]}' is in no pass, so it would not be asked", "passes")

    def _place(self, question_id: str) -> int:
        return [question.id for question in self.questions].index(question_id)

    def _check_scoring(self) -> None:
        if self.tie or self.orders != "both":
            key = "tie" if self.tie else "orders"
            raise Complaint(f"'{key}' is for pairwise judges; this one is of the kind {self.kind}", key)
        by_id = {question.id: question for question in self.questions}
        scoring = self.scoring
        for field, mentioned in (("weights", scoring.weights), ("values", scoring.values), ("veto", scoring.veto)):
            for place, question_id in enumerate(mentioned or ()):
                if question_id not in by_id:
                    what = f"scoring.{field} names '{question_id}', which is no question"
                    at = place if field == "veto" else question_id
                    raise Complaint(f"{what}: {did_you_mean(question_id, by_id)}", "scoring", field, at)
        for question_id, values in scoring.values.items():
            question = by_id[question_id]
            if not isinstance(question, ChoiceQuestion):
                what = f"scoring.values is for choices; '{question_id}' is a {question.type}"
                raise Complaint(what, "scoring", "values", question_id)
            if set(values) != set(question.options):
                what = f"scoring.values.{question_id} must give each of {', '.join(question.options)}"
                raise Complaint(f"{what}, and nothing else", "scoring", "values", question_id)
        for place, question_id in enumerate(scoring.veto or ()):
            if not isinstance(by_id[question_id], FlagsQuestion):
                what = f"scoring.veto is for flags; '{question_id}' is a {by_id[question_id].type}"
                raise Complaint(what, "scoring", "veto", place)
        check_measures(scoring, self.questions, checks.KNOWN[self.checks].measures if self.checks else None)
        overall_question(scoring, self.questions)
        if scoring.dimensions:
            if scoring.weights:
                what = "scoring.weights is of questions; the dimensions have weights of their own"
                raise Complaint(what, "scoring", "weights")
            self._check_codes()
            self._check_mark()
            return
        counted = self.counted
        for question_id in scoring.weights:
            if question_id not in counted:
                what = f"scoring.weights weighs '{question_id}', which gives no number"
                raise Complaint(what, "scoring", "weights", question_id)
        flags = [question for question in self.own_questions if isinstance(question, FlagsQuestion)]
        if not counted and not flags:
            what = "nothing to score: ask a score, a choice with scoring.values, or flags"
            raise Complaint(what, "questions")
        if counted and not any(scoring.weights.get(question_id, 1.0) for question_id in counted):
            raise Complaint("scoring.weights leaves every question without weight", "scoring", "weights")
        self._check_scales()
        self._check_codes()

    def _check_scales(self) -> None:
        scores = [question for question in self.questions if isinstance(question, ScoreQuestion)]
        for question in scores:
            if question.bounds != scores[0].bounds:
                (a, b), (c, d) = scores[0].bounds, question.bounds
                what = f"'{question.id}' has the scale {c}-{d}, '{scores[0].id}' has {a}-{b}"
                what += ", so their mean would mean nothing: give them one scale"
                raise Complaint(what, "questions", self._place(question.id))
        self._check_mark()

    def _check_mark(self) -> None:
        low, high = self.bounds
        check_ends(self.scoring, self.red_lines, low, high)
        mark = self.scoring.pass_mark
        if mark is not None and not low <= mark <= high:
            what = f"scoring.pass is {mark:g}, but the overall lies between {low:g} and {high:g}"
            raise Complaint(what, "scoring", "pass")

    def _check_codes(self) -> None:
        seen: dict[str, str] = {}
        for question in self.questions:
            if isinstance(question, FlagsQuestion) and question.id in self.veto:
                for code in question.codes:
                    if code in seen:
                        what = f"the code '{code}' is in '{seen[code]}' and in '{question.id}'"
                        what += ", so a red line would not tell which: give it another name"
                        raise Complaint(what, "questions", self._place(question.id), "codes", code)
                    seen[code] = question.id

    def _check_pairwise(self) -> None:
        preference = self.questions[self._place("preference")]
        wanted = ["A", "B", "tie"] if self.tie else ["A", "B"]
        if not isinstance(preference, ChoiceQuestion) or set(preference.options) != set(wanted):
            what = f"a pairwise judge needs a choice 'preference' of {', '.join(wanted)}"
            raise Complaint(f"{what}: leave its options out", "questions", self._place("preference"), "options")
        if others := [q.id for q in self.questions if not isinstance(q, TextQuestion) and q is not preference]:
            what = f"a pairwise judge asks its preference and texts; '{others[0]}' is neither"
            raise Complaint(what, "questions", self._place(others[0]))
        for key, value in (
            ("scoring", self.scoring != Scoring()),
            ("passes", self.passes),
            ("checks", self.checks),
        ):
            if value:
                raise Complaint(f"a pairwise judge counts its orders: it takes no '{key}'", key)
        if self.red_lines:
            raise Complaint("red lines are of one response; a pairwise judge takes none", "red_lines")
        if not self.pairs:
            raise Complaint("a pairwise judge needs inputs in pairs, such as response_a and response_b", "inputs")
        for place, item in enumerate(self.inputs):
            if item.name[-2:] in ("_a", "_b") and item.name[:-2] not in self.pairs:
                other = item.name[:-1] + ("b" if item.name.endswith("a") else "a")
                raise Complaint(f"the input '{item.name}' has no counterpart '{other}'", "inputs", place)

    @cached_property
    def own_questions(self) -> list[Question]:
        """What is asked of any record, without rationales; of a dual-control judge also in its readers' names."""
        section = self.dual_control
        if section is None:
            return self.material_questions
        asked = [section.persona_questions(persona, self.language)[1:] for persona in section.readers]
        matching = section.match_questions(self.language)
        return [*self.material_questions, *matching, *(one for some in asked for one in some)]

    @cached_property
    def material_questions(self) -> list[Question]:
        """The questions, and as flags the red lines that are the model's to decide, or a policy."""
        if self.dual_control is not None:
            return [*self.questions, *self.dual_control.safety_questions(self.language)]
        codes = {line.code: line.text for line in self.red_lines if line.by != "code"}
        if not codes:
            return list(self.questions)
        ask = RED_LINES_ASK[self.language]
        return [*self.questions, FlagsQuestion(id=RED_LINES, type="flags", ask=ask, codes=codes)]

    @cached_property
    def asks(self) -> list[list[Question]]:
        """The questions of each ask in the order of writing, with its rationale: one list, or one a pass. Of a
        dual-control judge then whom a response is for, and each reader's."""
        section = self.dual_control
        if section is None:
            return self.material_asks
        return [
            *self.material_asks,
            *([match] for match in section.match_questions(self.language)),
            *(section.persona_questions(persona, self.language) for persona in section.readers),
        ]

    @property
    def ask_names(self) -> list[str]:
        """What each ask of several is called; nothing where there is one."""
        section = self.dual_control
        names = [one.id for one in self.passes]
        if section is None:
            return names
        matching = (match.id for match in section.match_questions(self.language))
        return [*(names or ["material"]), *matching, *(reader.id for reader in section.readers)]

    @cached_property
    def material_asks(self) -> list[list[Question]]:
        """The asks about the material itself, whoever reads it."""
        if not self.passes:
            return [self._with_rationale("rationale", self.rationale, self.material_questions)]
        by_id = {question.id: question for question in self.material_questions}
        return [
            self._with_rationale(
                f"{one.id}_rationale",
                self.rationale if one.rationale is None else one.rationale,
                [by_id[name] for name in one.questions],
            )
            for one in self.passes
        ]

    def _with_rationale(self, name: str, budget: int, own: list[Question]) -> list[Question]:
        if not budget:
            return own
        text = TextQuestion(id=name, type="text", ask=RATIONALE[self.language], budget=budget)
        return [text, *own] if self.order == "rationale-first" else [*own, text]

    @cached_property
    def asked(self) -> list[Question]:
        """All questions in the order of writing, rationales and red lines included."""
        return [question for questions in self.asks for question in questions]

    @cached_property
    def counted(self) -> list[str]:
        """The ids of the questions whose answers are numbers in the overall; beside dimensions, of none."""
        if self.scoring.dimensions or self.dual_control is not None or self.checklist is not None:
            return []
        return [
            question.id
            for question in self.questions
            if isinstance(question, ScoreQuestion) or question.id in self.scoring.values
        ]

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest overall of a rubric judge, before rounding."""
        if self.scoring.dimensions:
            return 0.0, 100.0
        if self.dual_control is not None or self.checklist is not None:
            return 0.0, 1.0
        scales = self.scales
        if self.scoring.overall is not None:
            return scales[self.scoring.overall]
        if not scales:
            return 0.0, 1.0
        least, greatest = ({name: scale[end] for name, scale in scales.items()} for end in (0, 1))
        return weighted_mean(least, self.scoring.weights), weighted_mean(greatest, self.scoring.weights)

    @property
    def scales(self) -> dict[str, tuple[float, float]]:
        """Of each score of a rubric's verdict, the least and the greatest it can be."""
        if self.scoring.dimensions:
            return {dimension.id: (0.0, 100.0) for dimension in self.scoring.dimensions}
        if self.dual_control is not None:
            return dict.fromkeys(self.dual_control.score_names, (0.0, 1.0))
        if self.checklist is not None:
            return dict.fromkeys(("essential", "additional"), (0.0, 1.0))
        scales: dict[str, tuple[float, float]] = {}
        for question in self.questions:
            if question.id in self.scoring.values:
                values = self.scoring.values[question.id].values()
                scales[question.id] = (min(values), max(values))
            elif isinstance(question, ScoreQuestion):
                scales[question.id] = question.bounds
        return scales

    @property
    def veto(self) -> list[str]:
        """The ids of the flags questions that fail a record."""
        if self.dual_control is not None:
            return [SAFETY] if self.dual_control.policy else []
        flags = [question.id for question in self.questions if isinstance(question, FlagsQuestion)]
        return flags if self.scoring.veto is None else self.scoring.veto

    @property
    def pairs(self) -> list[str]:
        """The stems of inputs that come as <stem>_a and <stem>_b."""
        names = {item.name for item in self.inputs}
        return sorted(name[:-2] for name in names if name.endswith("_a") and f"{name[:-2]}_b" in names)

    @cached_property
    def answer_schema(self) -> dict[str, Any]:
        """The JSON schema of an answer to all questions at once."""
        return answer_schema(self.asked)

    @cached_property
    def schemas(self) -> list[dict[str, Any]]:
        """The JSON schema of each ask's completion; of a checklist judge those of its steps, about one item."""
        if self.checklist is not None:
            of_items = [make(self.checklist, 1) for make in (rule_schema, grade_schema)]
            return [write_schema(self.checklist), same_schema(1), *of_items]
        return [answer_schema(questions) for questions in self.asks]

    def equip(self, sources: Mapping[str, Source]) -> None:
        """Give the judge its templates: `system` and `user`, `questions` and `read` (all judges'), and `report`, if
        it has one. Raises JudgeError for one that is broken or uses a name that there is not."""
        self._question_list = Templates({"user": sources["questions"]}, ("questions", "reading"))
        self._tail = Templates({"user": sources["read"]}, ("question", "code", "meanings", "labels"))
        known = {item.name for item in self.inputs} | set(self.template_names) | {"inputs"}
        known |= {IMAGE} if self.takes_images else set()
        self._templates = Templates({role: sources[role] for role in ROLES}, known)
        self._steps = {
            step: Templates({"system": sources["system"], "user": sources[step]}, known)
            for step in (STEPS if self.checklist else ())
        }
        if self.checklist:
            makes = self.model_dump(mode="json", include={"language", "task", "checklist", "inputs"})
            self._writing_digest = hash_of([makes, *(sources[step].text for step in ("system", *STEPS))])
        self._report = sources.get("report")
        self._texts = {role: sources[role].text for role in sources if role not in ("report", "questions", "read")}
        whole = {
            "spec": self.model_dump(mode="json", exclude_defaults=True),
            "templates": {role: source.text for role, source in sources.items() if role != "report"},
        }
        self._digest = hashlib.sha256(json.dumps(whole, sort_keys=True, ensure_ascii=False).encode()).hexdigest()

    @property
    def takes_images(self) -> bool:
        """Whether a record of this judge may have pictures."""
        return any(item.type == "images" for item in self.inputs)

    @property
    def templates(self) -> Templates:
        return self._templates

    @property
    def template_texts(self) -> dict[str, str]:
        """The judge's own templates: role, or step of a checklist judge -> text."""
        return self._texts

    def step(self, name: str) -> Templates:
        """The templates of one step of a checklist judge."""
        return self._steps[name]

    @property
    def writing_digest(self) -> str:
        """A hash of all in a checklist judge by which checklists are written."""
        return self._writing_digest

    def tail(self, **names: Any) -> str:
        """The end of the user's message when one question's labels are read: `question`, `code`, `meanings`,
        `labels`."""
        return self._tail.messages({}, names)[0].text

    @property
    def report(self) -> Source | None:
        """The template of a record's own report, where the judge has one. It is no part of the digest."""
        return self._report

    @property
    def digest(self) -> str:
        """A hash of all that makes the judge what it is: its settings and its templates."""
        return self._digest

    @cached_property
    def template_names(self) -> dict[str, Any]:
        """What a template may use besides the inputs, when all is asked at once."""
        return self.names_for(self.asked)

    def names_for(self, questions: Sequence[Question], reading: bool = False) -> dict[str, Any]:
        """What a template may use besides the inputs, when these are asked; reading: when labels are read."""
        described = [_described(question) for question in questions]
        listed = self._question_list.messages({}, {"questions": described, "reading": reading})
        return {
            "judge": {
                "name": self.name,
                "task": self.task.strip(),
                "language": self.language,
                "tie": self.tie,
            },
            "questions": described,
            "question_list": listed[0].text if listed else "",
            # Weak models copy the "..." of a rubric's form; its prompts stay what judges were measured with.
            "answer_form": answer_form(questions)
            if self.dual_control is None
            else form_of(answer_schema(questions)),
            "passes": len(self.passes) > 1 and not reading,
            "reading": reading,
            "settled": [],
            "tables": {},
            **({"persona": None} if self.dual_control is not None else {}),
            **(self._checklist_names(self.checklist) if self.checklist is not None else {}),
        }

    def _checklist_names(self, section: ChecklistSettings) -> dict[str, Any]:
        return {
            "items": "[items]",
            "pairs": "[pairs]",
            "answer_form": form_of(grade_schema(section, 1)),
            "most": section.most,
            "plan": section.plan,
            "grounded": False,
            "response_name": section.response,
            "reference_name": section.reference,
        }

    def warnings(self) -> list[str]:
        """What is allowed but often a mistake."""
        found: list[str] = []
        if self.checklist is not None:
            if self.checklist.candidates == 2:
                found.append("of 2 candidates most is both: an item that one lacks is dropped; 3 are steadier")
            return found
        kinds = [question.type for question in self.asked]
        if not {"text", "findings"} & set(kinds):
            found.append("no text is asked for: the verdicts will come without a reason")
        for questions in self.asks:
            reasons = [question.type in ("text", "findings") for question in questions]
            if any(reasons) and not reasons[0]:
                what = "labels are chosen before the first text: a reason written afterwards only defends them"
                found.append(what)
                break
        for question in self.asked:
            if isinstance(question, ScoreQuestion) and not question.anchors:
                found.append(f"'{question.id}' has no anchors: judges agree less on a bare scale")
            if isinstance(question, ScoreQuestion) and len(question.labels) > 10:
                found.append(f"'{question.id}' has {len(question.labels)} points: judges tell about ten apart")
        scales = {question.bounds for question in self.questions if isinstance(question, ScoreQuestion)}
        if self.dual_control is not None:
            scales = set()  # each part is brought to 0 to 1 by its own scale
        for question_id, values in self.scoring.values.items():
            ends = min(values.values()), max(values.values())
            if scales and ends not in scales:
                what = f"'{question_id}' gives {ends[0]:g} to {ends[1]:g}, the scores"
                found.append(f"{what} {' to '.join(map(str, scales.pop()))}: their mean mixes two scales")
                break
        if self.kind == "pairwise" and self.orders == "single":
            found.append("only one order is asked: the judge's leaning to one place goes unnoticed")
        return found


def _described(question: Question) -> dict[str, Any]:
    """A question as templates see it. options: label -> meaning, of a band with its range; fields: of findings."""
    options = getattr(question, "options", {})
    if isinstance(question, BandQuestion):
        options = {label: f"{band.range[0]:g}-{band.range[1]:g}. {band.text}" for label, band in options.items()}
    return {
        "id": question.id,
        "type": question.type,
        "ask": question.ask.strip(),
        "anchors": getattr(question, "anchors", {}),
        "bounds": getattr(question, "bounds", None),
        "options": options,
        "codes": getattr(question, "codes", {}),
        "budget": getattr(question, "budget", None),
        "cannot": getattr(question, "cannot", False),
        "fields": {
            name: {"type": field.type, "ask": field.ask, "options": field.options or {}}
            for name, field in getattr(question, "fields", {}).items()
        },
    }
