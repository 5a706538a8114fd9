"""What a suite's folder shows in the end: results.json, one JSON a project, and report.md.

A category's records are counted by variant (the records' `candidate`), never with those of another category; a
judge that is beside is counted over the same records and told apart. Knows verdicts and where records went.
"""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TextIO

import jinja2
from pydantic import BaseModel, ConfigDict

from localjudge.engines.base import AskFailed
from localjudge.errors import RunError
from localjudge.judge.rubric import checked_of
from localjudge.judge.spec import JudgeSpec
from localjudge.judge.suite import Suite
from localjudge.records import BadRecord, Record, read_records
from localjudge.report.markdown import cut, interval, number, percent, plain, table
from localjudge.report.summary import Mean, Share, summarize
from localjudge.run.reports import report_file
from localjudge.run.store import VerdictsById, write_atomically, writing
from localjudge.verdict import Verdict

Format = Literal["full", "seed"]
MOST_CASES = 500
"""Cases in the report's tables; results.json has all."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A record's place in a suite. category: None where no judge makes one. judges: those that take it. problem:
    why nobody can judge it."""

    id: str
    case: str | None = None
    candidate: str | None = None
    category: str | None = None
    judges: tuple[str, ...] = ()
    problem: str | None = None


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Group(_Model):
    """One judge on one variant of one category.

    records: how many there are. scored: verdicts that are ok. unscored: status -> how many are not; they are in no
    mean. checked: where no model was asked, the records that code could read; nothing is scored then.
    red_lines: code -> how many of the scored, or checked, it stands on. grades: grade -> how many.
    """

    judge: str
    category: str
    beside: bool
    candidate: str | None
    records: int
    scored: int
    checked: int
    unscored: dict[str, int]
    overall: Mean | None
    scores: dict[str, Mean]
    passed: Share | None
    grades: dict[str, int]
    red_lines: dict[str, int]


class Unscored(_Model):
    """judge: None where none could take the record."""

    id: str
    judge: str | None
    status: str
    error: str | None


class Results(_Model):
    """results.json, but for its `projects`. judged: judge -> the records it takes. categories: their records.
    unplaced: records that no judge of the suite takes."""

    suite: str
    model: str | None
    judged: dict[str, int]
    categories: dict[str, int]
    records: int
    unplaced: list[str]
    groups: list[Group]
    unscored: list[Unscored]
    folder: str

    @property
    def scored(self) -> int:
        """Records that were judged, or checked, in a category."""
        return sum(group.scored + group.checked for group in self.groups if not group.beside)

    @property
    def opening(self) -> str:
        """The result in words."""
        told = []
        for group in self.groups:
            if not group.beside:
                name = f"{group.category}, {group.candidate}" if group.candidate else group.category
                done = f"{group.checked or group.scored} of {group.records}"
                told.append(f"{name}: {done} {'scored' if self.model else 'checked by code alone'}")
                if (mean := group.overall) is not None:
                    in_brackets = f" ({interval(mean)}, 95 %)" if mean.low != mean.high else ""
                    told[-1] += f", mean overall {number(mean.mean, mean)}{in_brackets}"
        lost = [f"{len(self.unscored)} unscored"] * bool(self.unscored)
        lost += [f"{len(self.unplaced)} taken by no judge"] * bool(self.unplaced)
        return "\n".join([*told, *lost])


Told = Mapping[str, Verdict | dict[str, Any]]
"""judge -> its verdict, or what code alone settled."""


def write_results(
    folder: Path, suite: Suite, made_by: Mapping[str, Any], placed: Sequence[Placed], output_format: Format
) -> Results:
    """Of the judges' runs in `folder`. Raises RunError."""
    with contextlib.ExitStack() as stack:
        runs = {
            name: stack.enter_context(contextlib.closing(VerdictsById(folder / "judges" / name)))
            for name in suite.judges
            if any(name in one.judges for one in placed)
        }

        def told(one: Placed) -> Told:
            found = {name: runs[name].get(one.id) for name in one.judges}
            return {name: verdict for name, verdict in found.items() if verdict is not None}

        def group(name: str, category: str, candidate: str | None, ones: Sequence[Placed]) -> Group:
            grades: Counter[str] = Counter()

            def verdicts() -> Iterator[Verdict]:
                for one in ones:
                    verdict = runs[name].get(one.id)
                    if verdict is not None:
                        grades.update([verdict.grade] if verdict.grade else [])
                        yield verdict

            summary = summarize(verdicts(), suite.judges[name])
            return Group(
                judge=name,
                category=category,
                beside=suite.entries[name].beside,
                candidate=candidate,
                records=len(ones),
                scored=summary.statuses["ok"],
                checked=0,
                unscored={status: n for status, n in summary.statuses.items() if n and status != "ok"},
                overall=summary.overall,
                scores=summary.scores,
                passed=summary.passed,
                grades={grade: grades[grade] for grade in suite.judges[name].scoring.grades},
                red_lines=summary.red_lines,
            )

        return _write(folder, suite, made_by, placed, told, group, output_format)


def write_checked(folder: Path, suite: Suite, made_by: Mapping[str, Any], placed: Sequence[Placed]) -> Results:
    """Of what code settles about the records in `folder`, without any run. Raises RunError."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for name, spec in suite.judges.items():
        file = folder / "records" / f"{name}.jsonl"
        found[name] = {}
        if any(name in one.judges for one in placed):
            for record in read_records(file, spec.inputs):
                found[name][record.id] = _checked(spec, record)

    def told(one: Placed) -> Told:
        return {name: found[name][one.id] for name in one.judges}

    def group(name: str, category: str, candidate: str | None, ones: Sequence[Placed]) -> Group:
        these = [found[name][one.id] for one in ones]
        codes = {line.code: 0 for line in suite.judges[name].red_lines if line.by != "model"}
        for it in these:
            for code in it["red_lines"]:
                codes[code] += 1
        bad = sum(it["status"] != "checked" for it in these)
        return Group(
            judge=name,
            category=category,
            beside=suite.entries[name].beside,
            candidate=candidate,
            records=len(ones),
            scored=0,
            checked=len(ones) - bad,
            unscored={"invalid_record": bad} if bad else {},
            overall=None,
            scores={},
            passed=None,
            grades={},
            red_lines=codes,
        )

    return _write(folder, suite, made_by, placed, told, group, "full")


def _checked(spec: JudgeSpec, record: Record | BadRecord) -> dict[str, Any]:
    """The red lines that code decides of this record; no overall, and no pass."""
    if isinstance(record, BadRecord):
        return _bad(record.problem)
    try:
        checked = checked_of(spec, record.fields)
    except AskFailed as error:
        return _bad(error.why)
    decisions = {
        line.code: {"stands": settled.stands, "by": "code", "why": settled.why}
        for line in spec.red_lines
        if line.by != "model" and (settled := checked.red_lines.get(line.code))
    }
    standing = [code for code, decision in decisions.items() if decision["stands"]]
    return {"status": "checked", "red_lines": standing, "decisions": decisions, "error": None}


def _bad(problem: str) -> dict[str, Any]:
    return {"status": "invalid_record", "red_lines": [], "decisions": {}, "error": problem}


def _write(
    folder: Path,
    suite: Suite,
    made_by: Mapping[str, Any],
    placed: Sequence[Placed],
    told: Callable[[Placed], Told],
    group: Callable[[str, str, str | None, Sequence[Placed]], Group],
    output_format: Format,
) -> Results:
    unscored = [
        Unscored(id=one.id, judge=None, status="invalid_record", error=one.problem) for one in placed if one.problem
    ]
    cases: dict[str, dict[str, dict[str | None, list[dict[str, Any]]]]] = {}
    settled: list[tuple[str, str, str]] = []
    projects = folder / "projects"
    shutil.rmtree(projects, ignore_errors=True)
    temporary = folder / ".results.json.tmp"
    with writing(folder), temporary.open("w", encoding="utf-8") as file:
        projects.mkdir()
        file.write('{"projects": [')
        for number, one in enumerate(placed):
            found = told(one)
            whole = _project(one, found)
            text = json.dumps(whole, ensure_ascii=False, indent=1)
            file.write(("," if number else "") + f"\n{text}")
            if output_format == "full":
                (projects / _file(one.id)).write_text(f"{text}\n", encoding="utf-8")
            else:
                _write_seed(projects, suite, one, found)
            for name, each in whole["judges"].items():
                by_code = [it for it in each["decisions"].items() if it[1]["stands"] and it[1]["by"] == "code"]
                settled += [(one.id, code, decision["why"]) for code, decision in by_code]
                if each["status"] not in ("ok", "checked"):
                    unscored.append(Unscored(id=one.id, judge=name, status=each["status"], error=each["error"]))
            if one.category is not None:
                row = {"id": one.id, **{name: _brief(each) for name, each in whole["judges"].items()}}
                by_case = cases.setdefault(one.category, {}).setdefault(one.case or one.id, {})
                by_case.setdefault(one.candidate, []).append(row)
        results = Results(
            suite=suite.spec.name,
            model=made_by["model"] and made_by["model"]["name"],
            judged={name: sum(name in one.judges for one in placed) for name in suite.judges},
            categories={name: sum(one.category == name for one in placed) for name in categories_of(suite)},
            records=len(placed),
            unplaced=[one.id for one in placed if not one.judges and not one.problem],
            groups=list(_groups(suite, placed, group)),
            unscored=unscored,
            folder=str(folder),
        )
        _finish(file, results, made_by)
    temporary.replace(folder / "results.json")
    write_atomically(folder / "report.md", _report(suite, results, cases, settled, made_by))
    return results


def _finish(file: TextIO, results: Results, made_by: Mapping[str, Any]) -> None:
    rest = {"format": 1, **results.model_dump(mode="json", exclude={"folder"}), "made_by": made_by}
    file.write("\n],\n" + json.dumps(rest, ensure_ascii=False, indent=1).removeprefix("{\n") + "\n")


def _file(record_id: str) -> str:
    return f"{report_file(Path(), record_id).name.removesuffix('.md')}.json"


def _project(one: Placed, told: Told) -> dict[str, Any]:
    """One project's part of results.json."""
    judges = {name: it.model_dump(mode="json") if isinstance(it, Verdict) else it for name, it in told.items()}
    return {
        "id": one.id,
        "case": one.case,
        "candidate": one.candidate,
        "category": one.category,
        "judges": judges,
        "error": one.problem,
    }


def _brief(it: Mapping[str, Any]) -> dict[str, Any]:
    return {key: it.get(key) for key in ("status", "overall", "passed", "grade", "red_lines")}


def _groups(
    suite: Suite,
    placed: Sequence[Placed],
    group: Callable[[str, str, str | None, Sequence[Placed]], Group],
) -> Iterator[Group]:
    for category in categories_of(suite):
        ones = [one for one in placed if one.category == category]
        for name in suite.judges:
            # In the order in which the records name them.
            for candidate in dict.fromkeys(one.candidate for one in ones):
                these = [one for one in ones if one.candidate == candidate and name in one.judges]
                if these:
                    yield group(name, category, candidate, these)


def categories_of(suite: Suite) -> list[str]:
    return list(dict.fromkeys(entry.category for entry in suite.entries.values() if not entry.beside))


# The flat JSON of one verdict


def _write_seed(projects: Path, suite: Suite, one: Placed, told: Told) -> None:
    """One file a project; of a judge that is beside, in a folder of its name. What is unscored has none."""
    for name, verdict in told.items():
        entry = suite.entries[name]
        if entry.seed and isinstance(verdict, Verdict) and verdict.status == "ok":
            folder = projects / name if entry.beside else projects
            folder.mkdir(exist_ok=True)
            text = json.dumps(seed_json(entry.seed, suite.judges[name], verdict), ensure_ascii=False)
            (folder / _file(one.id)).write_text(f"{text}\n", encoding="utf-8")


def seed_json(keys: Mapping[str, str], spec: JudgeSpec, verdict: Verdict) -> dict[str, Any]:
    """keys: key -> part of the verdict. Numbers are whole where they are; `scores` are without the overall."""
    parts: dict[str, Any] = {
        "scores": {name: _whole(value) for name, value in verdict.scores.items() if name != spec.scoring.overall},
        "red_lines": verdict.red_lines,
        "overall": None if verdict.overall is None else _whole(verdict.overall),
        "passed": verdict.passed,
        "grade": verdict.grade,
        "rationale": rationale_of(verdict),
    }
    return {key: parts[part] for key, part in keys.items()}


def _whole(value: float) -> int | float:
    return int(value) if value == int(value) else value


def rationale_of(verdict: Verdict) -> str:
    """The text asked for as `rationale`; a panel's is that of the member nearest to it. Empty where labels alone
    were read."""
    if "rationale" in verdict.answers:
        return str(verdict.answers["rationale"].value)
    judged = [
        (abs(member.overall - verdict.overall), place, member)
        for place, member in enumerate(verdict.members or ())
        if "rationale" in member.answers and member.overall is not None and verdict.overall is not None
    ]
    return rationale_of(min(judged)[2]) if judged else ""


# report.md


def _report(
    suite: Suite,
    results: Results,
    cases: Mapping[str, Any],
    settled: Sequence[tuple[str, str, str]],
    made_by: Mapping[str, Any],
) -> str:
    try:
        return _template().render(
            suite=suite,
            results=results,
            cases=cases,
            settled=settled,
            made_by=made_by,
            most=MOST_CASES,
            language=suite.language,
        )
    except jinja2.TemplateError as error:
        raise RunError(f"the suite's report could not be rendered: {error}") from error


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters.update(plain=plain, cut=cut, percent=percent)
    environment.globals.update(table=table, interval=interval, number=number)
    import localjudge.report

    source = Path(localjudge.report.__file__).with_name("suite.md.j2")
    return environment.from_string(source.read_text(encoding="utf-8"))
