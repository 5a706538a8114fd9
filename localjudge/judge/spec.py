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
from localjudge.errors import JudgeError, did_you_mean
from localjudge.judge.prompt import Templates
from localjudge.judge.questions import (
    ChoiceQuestion,
    FlagsQuestion,
    Question,
    ScoreQuestion,
    TextQuestion,
    answer_form,
    answer_schema,
)
from localjudge.paths import data_dir
from localjudge.records import Field as Input

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

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    weights: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    values: dict[str, dict[str, float]] = Field(default_factory=dict)
    pass_mark: float | None = Field(default=None, alias="pass")
    decimals: Annotated[int, Field(ge=0, le=6)] | None = None
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

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$")]
    version: str = "1"
    language: Literal["en", "zh"] = "en"
    kind: Literal["rubric", "pairwise"] = "rubric"
    description: str = ""
    inputs: Annotated[list[Input], Field(min_length=1)]
    system: str | None = None
    user: str | None = None
    task: str = ""
    rationale: Annotated[int, Field(ge=0)] = 0
    order: Literal["rationale-first", "labels-first"] = "rationale-first"
    questions: Annotated[list[Question], Field(min_length=1)]
    scoring: Scoring = Scoring()
    tie: bool = False
    orders: Literal["both", "single"] = "both"

    _templates: Templates = PrivateAttr()
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
            {"name": item.strip("()"), "optional": item.startswith("(")} if isinstance(item, str) else item
            for item in value
        ]

    @model_validator(mode="before")
    @classmethod
    def _preference_has_its_labels(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or data.get("kind") != "pairwise":
            return data
        labels = ["A", "B", "tie"] if data.get("tie") else ["A", "B"]
        questions = [
            {**question, "options": question.get("options", labels)}
            if isinstance(question, Mapping) and question.get("id") == "preference"
            else question
            for question in data.get("questions") or []
        ]
        return {**data, "questions": questions}

    @model_validator(mode="after")
    def _hangs_together(self) -> JudgeSpec:
        ids = [question.id for question in self.asked]
        for question_id in ids:
            if ids.count(question_id) > 1:
                raise ValueError(f"two questions have the id '{question_id}'")
        names = [item.name for item in self.inputs]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"the input '{name}' is listed twice")
        self._check_scoring()
        if self.kind == "pairwise":
            self._check_pairwise()
        return self

    def _check_scoring(self) -> None:
        by_id = {question.id: question for question in self.questions}
        for field, mentioned in (
            ("weights", self.scoring.weights),
            ("values", self.scoring.values),
            ("veto", self.scoring.veto or ()),
        ):
            for question_id in mentioned:
                if question_id not in by_id:
                    hint = did_you_mean(question_id, by_id)
                    raise ValueError(f"scoring.{field} names '{question_id}', which is no question: {hint}")
        for question_id, values in self.scoring.values.items():
            question = by_id[question_id]
            if not isinstance(question, ChoiceQuestion):
                raise ValueError(f"scoring.values is for choices; '{question_id}' is a {question.type}")
            if set(values) != set(question.options):
                raise ValueError(f"scoring.values.{question_id} must give each of {', '.join(question.options)}")
        for question_id in self.scoring.veto or ():
            if not isinstance(by_id[question_id], FlagsQuestion):
                raise ValueError(f"scoring.veto is for flags; '{question_id}' is a {by_id[question_id].type}")
        if self.kind != "rubric":
            return
        counted = self.counted
        for question_id in self.scoring.weights:
            if question_id not in counted:
                raise ValueError(f"scoring.weights weighs '{question_id}', which gives no number")
        if not counted and not any(isinstance(question, FlagsQuestion) for question in self.questions):
            raise ValueError("nothing to score: ask a score, a choice with scoring.values, or flags")
        if counted and not any(self.scoring.weights.get(question_id, 1.0) for question_id in counted):
            raise ValueError("scoring.weights leaves every question without weight")
        scales = {by_id[q].bounds for q in counted if isinstance(by_id[q], ScoreQuestion)}  # type: ignore[union-attr]
        if len(scales) > 1:
            raise ValueError(
                f"the scores have different scales ({', '.join(f'{a}-{b}' for a, b in sorted(scales))}), "
                "so their mean would mean nothing: give them one scale"
            )

    def _check_pairwise(self) -> None:
        preference = next((question for question in self.questions if question.id == "preference"), None)
        wanted = {"A", "B", "tie"} if self.tie else {"A", "B"}
        if not isinstance(preference, ChoiceQuestion) or set(preference.options) != wanted:
            raise ValueError(f"a pairwise judge needs a choice 'preference' of {', '.join(sorted(wanted))}")
        if others := [q.id for q in self.questions if not isinstance(q, TextQuestion) and q is not preference]:
            raise ValueError(f"a pairwise judge asks its preference and texts; '{others[0]}' is neither")
        names = {item.name for item in self.inputs}
        if not self.pairs:
            raise ValueError("a pairwise judge needs inputs in pairs, such as response_a and response_b")
        if odd := [n for n in names if n[-2:] in ("_a", "_b") and n[:-2] not in self.pairs]:
            raise ValueError(f"the input '{odd[0]}' has no counterpart")

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
        if self.kind == "pairwise" and self.orders == "single":
            found.append("only one order is asked: the judge's leaning to one place goes unnoticed")
        return found


def _set(data: dict[str, Any], settings: Iterable[str]) -> None:
    """Apply `key=value` overrides, dots for depth, values in YAML."""
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not re.fullmatch(r"[\w.-]+", key):
            raise JudgeError(f"'{setting}' is not of the form key=value", where="--set")
        *outer, last = key.split(".")
        inside: Any = data
        for part in outer:
            inside = inside.setdefault(part, {}) if isinstance(inside, dict) else None
        if not isinstance(inside, dict):
            raise JudgeError(f"'{key}' does not lead to a setting of the judge", where="--set")
        inside[last] = yamlfile.parse(text, "--set")


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
        raise JudgeError("there is no judge.yaml in this folder", where=str(path))
    if path.suffix in {".yaml", ".yml"} or len(path.parts) > 1:
        raise JudgeError("there is no such judge file", where=str(path))
    raise JudgeError(f"there is no judge called '{name_or_path}'", fix=did_you_mean(str(name_or_path), built_in))


def _template_sources(spec: JudgeSpec, path: Path) -> dict[str, tuple[str, str]]:
    sources = {}
    default = data_dir("prompts") / "_default" / spec.kind
    for role, own in (("system", spec.system), ("user", spec.user)):
        if own is not None:
            sources[role] = (f"{path} ({role})", own)
            continue
        beside = path.parent / f"{role}.j2"
        file = beside if beside.is_file() else default / f"{role}.{spec.language}.j2"
        try:
            sources[role] = (str(file), file.read_text(encoding="utf-8"))
        except UnicodeDecodeError as error:
            raise JudgeError(f"the template is not UTF-8: {error.reason}", where=str(file)) from None
    return sources


def load_judge(name_or_path: str | Path, settings: Iterable[str] = ()) -> JudgeSpec:
    """A judge by its built-in name, its folder or its file. settings: `key=value` overrides of its YAML.

    Raises JudgeError, with file and line, for anything that is not as it should be, and for questions whose
    answers could not be enforced.
    """
    path = _find(name_or_path)
    document = yamlfile.load(path)
    data = document.data
    if isinstance(data, dict):
        _set(data, settings)
    spec = yamlfile.validate(JudgeSpec, document, JudgeError)
    sources = _template_sources(spec, path)
    spec._templates = Templates(sources)
    whole = {
        "spec": spec.model_dump(mode="json"),
        "templates": {role: text for role, (_, text) in sources.items()},
    }
    spec._digest = hashlib.sha256(json.dumps(whole, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
    _try_templates(spec, str(path))
    return spec


def _try_templates(spec: JudgeSpec, where: str) -> None:
    """Render with every input and with the required ones only, so that a bad name shows before a run.

    Inputs of JSON are left to real records: what their templates look for cannot be guessed.
    """
    if any(item.type == "json" for item in spec.inputs):
        return
    for with_optional in (True, False):
        fields = {
            item.name: f"text of {item.name}" if with_optional or not item.optional else None
            for item in spec.inputs
        }
        messages = spec.templates.messages(fields, spec.template_names)
        if not any(message.role == "user" for message in messages):
            raise JudgeError("the user template writes nothing", where=where)
        text = "".join(message.text for message in messages)
        if hidden := [name for name, value in fields.items() if value and value not in text]:
            raise JudgeError(
                f"no template shows the input '{hidden[0]}'",
                where=where,
                fix=f"print it with {{{{ {hidden[0]} }}}}, or drop it from 'inputs'",
            )
