"""judge.yaml as models: what a judge is, read strictly, with the file and line of whatever is wrong."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator, model_validator

from localjudge import yamlfile
from localjudge.decoding.grammar import check_schema
from localjudge.errors import JudgeError, did_you_mean, nearest
from localjudge.judge.prompt import Source, Templates
from localjudge.judge.questions import (
    ChoiceQuestion,
    FlagsQuestion,
    Label,
    Question,
    ScoreQuestion,
    TextQuestion,
    answer_form,
    answer_schema,
    spelled,
)
from localjudge.judge.scoring import weighted_mean
from localjudge.paths import data_dir
from localjudge.records import Field as Input
from localjudge.yamlfile import Complaint, Document, Number, Whole

ROLES = ("system", "user")
TAKEN = ("judge", "questions", "answer_form", "inputs", "true", "false", "none", "True", "False", "None")
"""Names that mean something else in a template, so that no input can have them."""

RATIONALE = {
    "en": "Explain briefly, on the evidence, what decides your answers.",
    "zh": "请依据文本中的证据，简要说明你作出判断的理由。",
}


class Scoring(BaseModel):
    """How answers become numbers.

    weights: question id -> weight; questions left out weigh 1. values: question id -> label -> number, for choices
    that count. pass_mark (`pass` in YAML): least overall that passes. decimals: round the overall half up.
    veto: flags questions of which a single raised code fails the record.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    weights: dict[str, Annotated[Number, Field(ge=0)]] = Field(default_factory=dict)
    values: dict[str, dict[Label, Number]] = Field(default_factory=dict)
    pass_mark: Number | None = Field(default=None, alias="pass")
    decimals: Annotated[Whole, Field(ge=0, le=6)] | None = None
    veto: list[str] | None = None


class JudgeSpec(BaseModel):
    """One judge.yaml.

    inputs: the fields a record must have; an optional one stands in parentheses.
    system, user: the two templates, in the file itself; system.j2 and user.j2 beside it come next; else the
        kind's own templates in the judge's language.
    rationale: token budget of a text asked before everything else; 0 for none.
    order: 'rationale-first' or 'labels-first'.
    tie, orders: pairwise only.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, spelled(r"[a-z0-9][a-z0-9_.-]*", "small letters, digits, '-', '_' and '.'")]
    version: str = "1"
    language: Literal["en", "zh"] = "en"
    kind: Literal["rubric", "pairwise"] = "rubric"
    description: str = ""
    inputs: Annotated[list[Input], Field(min_length=1)]
    system: str | None = None
    user: str | None = None
    task: str = ""
    rationale: Annotated[Whole, Field(ge=0)] = 0
    order: Literal["rationale-first", "labels-first"] = "rationale-first"
    questions: Annotated[list[Question], Field(min_length=1)]
    scoring: Scoring = Scoring()
    tie: Annotated[bool, Field(strict=True)] = False
    orders: Literal["both", "single"] = "both"

    _templates: Templates = PrivateAttr()
    _tail: Templates = PrivateAttr()
    _digest: str = PrivateAttr()

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
        if self.kind == "pairwise":
            self._check_pairwise()
        else:
            self._check_scoring()
        return self

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
        counted = self.counted
        for question_id in scoring.weights:
            if question_id not in counted:
                what = f"scoring.weights weighs '{question_id}', which gives no number"
                raise Complaint(what, "scoring", "weights", question_id)
        if not counted and not any(isinstance(question, FlagsQuestion) for question in self.questions):
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
        low, high = self.bounds
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
        if self.scoring != Scoring():
            raise Complaint("a pairwise judge counts its orders: it takes no 'scoring'", "scoring")
        if not self.pairs:
            raise Complaint("a pairwise judge needs inputs in pairs, such as response_a and response_b", "inputs")
        for place, item in enumerate(self.inputs):
            if item.name[-2:] in ("_a", "_b") and item.name[:-2] not in self.pairs:
                other = item.name[:-1] + ("b" if item.name.endswith("a") else "a")
                raise Complaint(f"the input '{item.name}' has no counterpart '{other}'", "inputs", place)

    @cached_property
    def asked(self) -> list[Question]:
        """All questions in the order of writing, the judge's rationale included."""
        own = list(self.questions)
        if not self.rationale:
            return own
        text = TextQuestion(id="rationale", type="text", ask=RATIONALE[self.language], budget=self.rationale)
        return [text, *own] if self.order == "rationale-first" else [*own, text]

    @property
    def counted(self) -> list[str]:
        """The ids of the questions whose answers are numbers in the overall."""
        return [
            question.id
            for question in self.questions
            if isinstance(question, ScoreQuestion) or question.id in self.scoring.values
        ]

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest overall of a rubric judge, before rounding."""
        ends: list[dict[str, float]] = [{}, {}]
        for question in self.questions:
            if question.id not in self.counted:
                continue
            values = self.scoring.values.get(question.id, {}).values()
            points = question.bounds if isinstance(question, ScoreQuestion) else values
            ends[0][question.id], ends[1][question.id] = min(points), max(points)
        if not ends[0]:
            return 0.0, 1.0
        return weighted_mean(ends[0], self.scoring.weights), weighted_mean(ends[1], self.scoring.weights)

    @property
    def veto(self) -> list[str]:
        """The ids of the flags questions that fail a record."""
        flags = [question.id for question in self.questions if isinstance(question, FlagsQuestion)]
        return flags if self.scoring.veto is None else self.scoring.veto

    @property
    def pairs(self) -> list[str]:
        """The stems of inputs that come as <stem>_a and <stem>_b."""
        names = {item.name for item in self.inputs}
        return sorted(name[:-2] for name in names if name.endswith("_a") and f"{name[:-2]}_b" in names)

    @cached_property
    def answer_schema(self) -> dict[str, Any]:
        """The JSON schema of one completion."""
        return answer_schema(self.asked)

    @property
    def templates(self) -> Templates:
        return self._templates

    def tail(self, **names: Any) -> str:
        """The end of the user's message when one question's labels are read: `question`, `code`, `meanings`,
        `labels`."""
        return self._tail.messages({}, names)[0].text

    @property
    def digest(self) -> str:
        """A hash of all that makes the judge what it is: its settings and its templates."""
        return self._digest

    @cached_property
    def template_names(self) -> dict[str, Any]:
        """What a template may use besides the inputs."""
        return {
            "judge": {
                "name": self.name,
                "task": self.task.strip(),
                "language": self.language,
                "tie": self.tie,
            },
            "questions": [
                {
                    "id": question.id,
                    "type": question.type,
                    "ask": question.ask.strip(),
                    "anchors": getattr(question, "anchors", {}),
                    "bounds": getattr(question, "bounds", None),
                    "options": getattr(question, "options", {}),
                    "codes": getattr(question, "codes", {}),
                    "budget": getattr(question, "budget", None),
                }
                for question in self.asked
            ],
            "answer_form": answer_form(self.asked),
            "reading": False,
        }

    def warnings(self) -> list[str]:
        """What is allowed but often a mistake."""
        found = []
        kinds = [question.type for question in self.asked]
        if "text" not in kinds:
            found.append("no text is asked for: the verdicts will come without a reason")
        elif kinds.index("text") > 0:
            found.append("labels are chosen before the first text: a reason written afterwards only defends them")
        for question in self.asked:
            if isinstance(question, ScoreQuestion) and not question.anchors:
                found.append(f"'{question.id}' has no anchors: judges agree less on a bare scale")
            if isinstance(question, ScoreQuestion) and len(question.labels) > 10:
                found.append(f"'{question.id}' has {len(question.labels)} points: judges tell about ten apart")
        scales = {question.bounds for question in self.questions if isinstance(question, ScoreQuestion)}
        for question_id, values in self.scoring.values.items():
            ends = min(values.values()), max(values.values())
            if scales and ends not in scales:
                what = f"'{question_id}' gives {ends[0]:g} to {ends[1]:g}, the scores"
                found.append(f"{what} {' to '.join(map(str, scales.pop()))}: their mean mixes two scales")
                break
        if self.kind == "pairwise" and self.orders == "single":
            found.append("only one order is asked: the judge's leaning to one place goes unnoticed")
        return found


def judge_names() -> dict[str, Path]:
    """The built-in judges: name -> folder."""
    return {
        path.parent.name: path.parent
        for path in sorted(data_dir("prompts").glob("*/judge.yaml"))
        if re.match(r"[a-z0-9]", path.parent.name)
    }


def _find(name_or_path: str | Path) -> Path:
    path = Path(name_or_path)
    if path.is_dir() and (path / "judge.yaml").is_file():
        return path / "judge.yaml"
    if path.is_file():
        return path
    built_in = judge_names()
    if str(name_or_path) in built_in:
        return built_in[str(name_or_path)] / "judge.yaml"
    if path.is_dir():
        files = sorted(path.glob("*.y*ml"))
        fix = f"give {files[0]}" if len(files) == 1 else "give a judge's file, or a folder with judge.yaml in it"
        raise JudgeError("there is no judge.yaml in this folder", where=str(path), fix=fix)
    if path.suffix in {".yaml", ".yml"} or len(path.parts) > 1:
        near = nearest(path.name, [file.name for file in path.parent.glob("*")])
        hint = f"did you mean '{path.parent / near}'?" if near else None
        raise JudgeError("there is no such judge file", where=str(path), fix=hint)
    raise JudgeError(f"there is no judge called '{name_or_path}'", fix=did_you_mean(str(name_or_path), built_in))


def _template_sources(spec: JudgeSpec, document: Document) -> dict[str, Source]:
    folder = document.path.parent
    if document.path.name == "judge.yaml":
        known = [f"{role}.j2" for role in ROLES]
        for file in sorted(folder.glob("*.j2")):
            if file.name not in known:
                fix = f"a judge's templates are {' and '.join(known)}: rename it, or move it away"
                raise JudgeError("no template is called so", where=str(file), fix=fix)
    default = data_dir("prompts") / "_default" / spec.kind
    sources = {}
    for role, own in zip(ROLES, (spec.system, spec.user), strict=True):
        if own is not None:
            put = document.setting((role,))
            where = f"--set {role}" if put else str(document.path)
            sources[role] = Source(where, 1 if put else document.text_starts((role,)), own)
            continue
        beside = folder / f"{role}.j2"
        file = beside if beside.is_file() else default / f"{role}.{spec.language}.j2"
        sources[role] = Source(str(file), 1, yamlfile.read_text(file, JudgeError))
    return sources


def load_judge(name_or_path: str | Path, settings: Iterable[str] = ()) -> JudgeSpec:
    """A judge by its built-in name, its folder or its file. settings: `key=value` overrides of its YAML.

    Raises JudgeError, with file and line, for anything that is not as it should be, and for questions whose
    answers could not be enforced.
    """
    document = yamlfile.load(_find(name_or_path), JudgeError)
    if isinstance(document.data, dict):
        document = yamlfile.override(document, settings, JudgeError)
    spec = yamlfile.validate(JudgeSpec, document, JudgeError)
    check_schema(spec.answer_schema)
    sources = _template_sources(spec, document)
    known = {item.name for item in spec.inputs} | set(spec.template_names) | {"inputs"}
    spec._templates = Templates(sources, known)
    tail = data_dir("prompts") / "_default" / f"read.{spec.language}.j2"
    sources["read"] = Source(str(tail), 1, yamlfile.read_text(tail, JudgeError))
    spec._tail = Templates({"user": sources["read"]}, ("question", "code", "meanings", "labels"))
    whole = {
        "spec": spec.model_dump(mode="json"),
        "templates": {role: source.text for role, source in sources.items()},
    }
    spec._digest = hashlib.sha256(json.dumps(whole, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
    _try_templates(spec, document)
    return spec


def _try_templates(spec: JudgeSpec, document: Document) -> None:
    """Every input must be shown. Render with all of them and with the required ones only, so that what is wrong
    shows before a run.

    Inputs of JSON are left to real records: what their templates look for cannot be guessed.
    """
    shown: set[str] = set()
    if "inputs" in spec.templates.used:
        shown = {item.name for item in spec.inputs}
    if any(item.type == "json" for item in spec.inputs):
        shown |= spec.templates.used
    else:
        marks = {item.name: f"Text of {item.name}." for item in spec.inputs}
        required = {item.name: None if item.optional else marks[item.name] for item in spec.inputs}
        spec.templates.messages(required, spec.template_names)
        messages = spec.templates.messages(marks, spec.template_names)
        if not any(message.role == "user" for message in messages):
            raise JudgeError("the user template writes nothing", where=document.where(("user",)))
        text = "".join(message.text for message in messages)
        shown = {name for name, mark in marks.items() if mark.casefold() in text.casefold()}
    for place, item in enumerate(spec.inputs):
        if item.name not in shown:
            raise JudgeError(
                f"no template shows the input '{item.name}'",
                where=document.where(("inputs", place)),
                fix=f"print it with {{{{ {item.name} }}}}, or drop it from 'inputs'",
            )
