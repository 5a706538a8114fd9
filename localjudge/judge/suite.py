"""suite.yaml: several judges over the same records, which of them takes which, and what is reported apart.

Knows files and judges; runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, model_validator

from localjudge import yamlfile
from localjudge.errors import JudgeError, did_you_mean
from localjudge.judge import checks
from localjudge.judge.loading import judge_names, load_judge
from localjudge.judge.questions import spelled
from localjudge.judge.spec import Input, JudgeSpec
from localjudge.yamlfile import Complaint

Part = Literal["scores", "red_lines", "overall", "passed", "grade", "rationale"]


class SuiteJudge(BaseModel):
    """One judge of a suite.

    judge: its file or folder, from the suite's own folder, or a built-in name. when: of what `dispatch` says, the
    records that it takes; all without it. beside: it is reported beside the category of a record and makes none
    itself. seed: key -> part of the verdict, of the one flat JSON that `--output-format seed` writes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    judge: Annotated[str, Field(min_length=1)]
    category: Annotated[str, Field(min_length=1)]
    when: str | None = None
    beside: bool = False
    seed: dict[str, Part] = Field(default_factory=dict)


class SuiteSpec(BaseModel):
    """One suite.yaml. dispatch: the checks (`judge.checks`) whose `dispatch` says what kind a record is."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, spelled(r"[a-z0-9][a-z0-9_.-]*", "small letters, digits, '-', '_' and '.'")]
    description: str = ""
    dispatch: str | None = None
    judges: Annotated[list[SuiteJudge], Field(min_length=1)]

    @model_validator(mode="after")
    def _each_record_has_one_category(self) -> SuiteSpec:
        known = kinds_of(self.dispatch)
        own = [(place, one) for place, one in enumerate(self.judges) if not one.beside]
        for place, one in enumerate(self.judges):
            if one.when is not None and self.dispatch is None:
                what = "'when' needs 'dispatch', the checks that tell records apart"
                raise Complaint(what, "judges", place, "when")
            if one.when is not None and one.when not in known:
                what = f"no record is a '{one.when}' to the checks '{self.dispatch}'"
                raise Complaint(f"{what}: {did_you_mean(one.when, known)}", "judges", place, "when")
        for place, one in own:
            for _, other in own[: own.index((place, one))]:
                if one.category != other.category and (None in (one.when, other.when) or one.when == other.when):
                    what = f"a record could be in '{other.category}' and in '{one.category}'"
                    raise Complaint(f"{what}: give both one category, or each its own 'when'", "judges", place)
        if not own:
            raise Complaint("every judge is beside, and none is there to be beside of", "judges")
        return self


def kinds_of(dispatch: str | None) -> list[str]:
    """What these checks can say that a record is. Raises Complaint for those that tell no records apart."""
    if dispatch is None:
        return []
    if dispatch not in checks.KNOWN:
        raise Complaint(f"there are no checks '{dispatch}': {did_you_mean(dispatch, checks.KNOWN)}", "dispatch")
    module = import_module(f"{checks.__name__}.{dispatch}")
    if not hasattr(module, "dispatch"):
        raise Complaint(f"the checks '{dispatch}' do not tell records apart", "dispatch")
    return list(get_args(get_type_hints(module.dispatch)["return"]))


@dataclass(frozen=True)
class Suite:
    """A suite and its judges, by their names in its order."""

    spec: SuiteSpec
    judges: Mapping[str, JudgeSpec]
    entries: Mapping[str, SuiteJudge]
    inputs: Sequence[Input]

    @property
    def language(self) -> Literal["en", "zh"]:
        return next(iter(self.judges.values())).language

    def kind_of(self, fields: Mapping[str, Any]) -> str | None:
        """Raises ValueError for a record that the checks cannot tell."""
        if self.spec.dispatch is None:
            return None
        kind: str = import_module(f"{checks.__name__}.{self.spec.dispatch}").dispatch(fields)
        return kind

    def takers(self, kind: str | None) -> list[str]:
        return [name for name, entry in self.entries.items() if entry.when in (None, kind)]

    def category_of(self, takers: Iterable[str]) -> str | None:
        """None of what is judged beside alone."""
        return next((entry.category for name in takers if not (entry := self.entries[name]).beside), None)


def find_suite(name_or_path: str) -> Path | None:
    """The suite.yaml that a judge's name or folder stands for, or this file is."""
    path = Path(name_or_path)
    if path.is_dir():
        return file if (file := path / "suite.yaml").is_file() else None
    if path.is_file():
        return path if path.name.startswith("suite") else None
    folder = judge_names().get(name_or_path)
    return file if folder and (file := folder / "suite.yaml").is_file() else None


def load_suite(path: Path, settings: Iterable[str] = (), language: str | None = None) -> Suite:
    """settings: `judge.key=value`, overrides of one judge's YAML. Raises JudgeError, with file and line."""
    document = yamlfile.load(path, JudgeError)
    spec = yamlfile.validate(SuiteSpec, document, JudgeError)
    sources = [_source(path, document, place, one.judge) for place, one in enumerate(spec.judges)]
    plain = [load_judge(source, (), language) for source in sources]
    names = [judge.name for judge in plain]
    for place, name in enumerate(names):
        if name in names[:place]:
            where = document.where(("judges", place, "judge"))
            raise JudgeError(f"the judge '{name}' is named twice", where=where, fix="drop one")
    own = _settings(settings, names)
    judges = {
        judge.name: load_judge(source, own[judge.name], language) if own[judge.name] else judge
        for judge, source in zip(plain, sources, strict=True)
    }
    for place, (name, judge) in enumerate(judges.items()):
        if judge.kind != "rubric":
            what = f"'{name}' is a {judge.kind} judge; a suite reports scores of one response each"
            raise JudgeError(what, where=document.where(("judges", place, "judge")), fix="leave it out")
    entries = dict(zip(names, spec.judges, strict=True))
    return Suite(spec, judges, entries, _inputs(judges, str(path)))


def _source(path: Path, document: yamlfile.Document, place: int, judge: str) -> Path:
    beside = path.parent / judge
    if beside.is_file() or (beside / "judge.yaml").is_file():
        return beside
    built_in = judge_names()
    if judge not in built_in:
        raise JudgeError(
            f"there is no judge '{judge}'",
            where=document.where(("judges", place, "judge")),
            fix=did_you_mean(judge, [*built_in, *(file.name for file in path.parent.glob("judge*.yaml"))]),
        )
    return built_in[judge]


def _settings(settings: Iterable[str], names: Sequence[str]) -> dict[str, list[str]]:
    own: dict[str, list[str]] = {name: [] for name in names}
    for setting in settings:
        name = next((name for name in names if setting.startswith(f"{name}.")), None)
        if name is None:
            told = setting.partition("=")[0].partition(".")[0]
            fix = f"write JUDGE.key=value: {did_you_mean(told, names)}"
            raise JudgeError(f"'{setting}' names none of the suite's judges", where="--set", fix=fix)
        own[name].append(setting.removeprefix(f"{name}."))
    return own


def _inputs(judges: Mapping[str, JudgeSpec], where: str) -> list[Input]:
    """What a record must have for any of the judges: an input that one of them does without is optional."""
    merged: dict[str, Input] = {}
    for name, judge in judges.items():
        for item in judge.inputs:
            known = merged.setdefault(item.name, item)
            if known.type != item.type:
                what = f"'{item.name}' is {item.type} to '{name}' and {known.type} to another of its judges"
                raise JudgeError(what, where=where, fix="give one of the inputs another name, and --map it")
    needed = {name: sum(name in [i.name for i in judge.inputs] for judge in judges.values()) for name in merged}
    lenient = {item.name for judge in judges.values() for item in judge.inputs if item.optional}
    lenient |= {name for name, n in needed.items() if n < len(judges)}
    empty = {item.name for judge in judges.values() for item in judge.inputs if item.allow_empty}
    return [
        item.model_copy(update={"optional": name in lenient, "allow_empty": name in empty})
        for name, item in merged.items()
    ]
