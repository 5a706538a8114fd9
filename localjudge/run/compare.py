"""Runs in, a comparison out: candidates for the same thing side by side, as comparison.json and Markdown.

Candidates are told apart by a field of one run's records and joined on another (`candidate` on `case`), or are
several runs of one judge, joined by their records' ids. Judges are never mixed, nor are the categories of a suite.
`candidates` has the arithmetic.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

import localjudge.report
from localjudge.errors import RecordsError, RunError, did_you_mean
from localjudge.judge.spec import JudgeSpec
from localjudge.records import Record, read_records
from localjudge.report.markdown import plain, table
from localjudge.run.candidates import ENOUGH, WORDS, Comparison, Judged, compared, judged_of, shown
from localjudge.run.reports import records_file
from localjudge.run.runner import judge_of
from localjudge.run.store import RunDirectory, differences, read_verdicts, write_atomically, writing
from localjudge.verdict import Verdict

MOST_CASES = 20
"""Cases that the Markdown shows each on its own; comparison.json has all."""


@dataclass(frozen=True)
class _Run:
    """category: record id -> category, of a run in a suite; None of any other."""

    path: Path
    run: dict[str, Any]
    spec: JudgeSpec
    categories: Mapping[str, str] | None = None


def compare_runs(
    paths: Sequence[Path], by: str | None = None, case: str | None = None, out: Path | None = None
) -> tuple[list[Path], str]:
    """Compare, once a judge and category, and write comparison.json and comparison.md into `out`, by default the
    one run's folder. The files written, and the Markdown. Raises RunError, RecordsError."""
    found, text = comparisons_of(paths, by, case)
    if out is None and len(paths) > 1:
        return [], text
    out = out or paths[0]
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    whole = {"format": 1, "comparisons": [one.model_dump(mode="json") for one in found]}
    files = [out / "comparison.json", out / "comparison.md"]
    write_atomically(files[0], json.dumps(whole, ensure_ascii=False, indent=1) + "\n")
    write_atomically(files[1], text)
    return files, text


def comparisons_of(
    paths: Sequence[Path], by: str | None = None, case: str | None = None
) -> tuple[list[Comparison], str]:
    """The comparisons and their Markdown."""
    comparisons = [
        _compare_group(category, runs, by, case) for (_, category), runs in _grouped(paths).items() if runs
    ]
    order = list(dict.fromkeys(one.category for one in comparisons if one is not None))
    found = sorted((one for one in comparisons if one is not None), key=lambda one: order.index(one.category))
    if not found:
        name = by or "candidate"
        raise RunError(
            f"there is one candidate by '{name}' alone, so nothing to compare",
            where=str(paths[0]),
            fix="give another --by, or two runs or more",
        )
    return found, "\n".join(markdown(one) for one in found)


def _grouped(paths: Sequence[Path]) -> dict[tuple[str, str | None], list[_Run]]:
    """(judge, category) -> the runs of it. Raises RunError for runs of different judges."""
    if len({path.resolve() for path in paths}) < len(paths):
        raise RunError("the same run is given twice", fix="give each once")
    suites = [path for path in paths if (path / "suite.json").is_file()]
    if suites and len(suites) < len(paths):
        raise RunError(
            "a suite cannot be compared with a single run", where=str(suites[0]), fix="give suites alone"
        )
    groups: dict[tuple[str, str | None], list[_Run]] = {}
    for path in paths:
        for category, run in _of_suite(path) if suites else [(None, _open(path))]:
            groups.setdefault((run.spec.name, category), []).append(run)
    if not suites and len(groups) > 1:
        names = ", ".join(f"'{name}' ({runs[0].path})" for (name, _), runs in groups.items())
        raise RunError(f"these are runs of different judges: {names}", fix="compare runs of one judge")
    for runs in groups.values():
        if runs[0].spec.kind == "pairwise":
            what = f"'{runs[0].spec.name}' compares already: its verdicts are of pairs"
            raise RunError(what, where=str(runs[0].path), fix="read its report")
        for run in runs[1:]:
            if changed := differences(runs[0].run["judge"], run.run["judge"], "judge."):
                raise RunError(
                    f"'{run.spec.name}' is not the same judge in {runs[0].path} and here: {changed[0]}",
                    where=str(run.path),
                    fix="compare runs of one judge, in one version and language",
                )
    if suites and len(paths) > 1:
        groups = {key: runs for key, runs in groups.items() if len(runs) > 1}
        if not groups:
            raise RunError("these suites share no judge", fix="give suites of the same judges")
    return groups


def _open(path: Path, categories: Mapping[str, str] | None = None) -> _Run:
    if not (path / "run.json").is_file():
        raise RunError(
            "this folder holds no run", where=str(path), fix="give the folder of a run, or of a suite's time"
        )
    with contextlib.closing(RunDirectory(path)) as held:
        run = held.read_run()
    assert run is not None
    return _Run(path, run, judge_of(path, run), categories)


def _of_suite(path: Path) -> Iterator[tuple[str, _Run]]:
    """Each judge's run in a suite's folder, once for each category of its records."""
    judges = json.loads((path / "suite.json").read_text(encoding="utf-8"))["judges"]
    here = {name: it for name, it in judges.items() if (path / "judges" / name / "run.json").is_file()}
    if not here:
        raise RunError(
            "no judge of this suite has judged anything", where=str(path), fix="run it with a model first"
        )
    categories = {
        verdict.id: it["category"]
        for name, it in here.items()
        if not it["beside"]
        for verdict in read_verdicts(path / "judges" / name)
    }
    for name in here:
        run = _open(path / "judges" / name, categories)
        own = dict.fromkeys(c for verdict in read_verdicts(run.path) if (c := categories.get(verdict.id)))
        for category in own:
            yield category, run


def _compare_group(
    category: str | None, runs: Sequence[_Run], by: str | None, case: str | None
) -> Comparison | None:
    """None when there is one candidate."""
    spec = runs[0].spec
    found: dict[str, dict[str, Judged]] = {}
    names: list[str]
    left_out = 0
    if len(runs) > 1:
        if by is not None or case is not None:
            raise RunError(f"{len(runs)} runs are joined by their records' ids", where="--by", fix="leave it out")
        by, names = "run", _names(runs)
        for name, run in zip(names, runs, strict=True):
            for verdict in _verdicts(run, category):
                found.setdefault(verdict.id, {})[name] = judged_of(spec, verdict)
        if not any(len(candidates) > 1 for candidates in found.values()):
            raise RunError("these runs share no record's id", where=str(runs[1].path), fix="compare runs that do")
    else:
        by = by or "candidate"
        places = _places(runs[0], by, case or "case")
        names = []
        for verdict in _verdicts(runs[0], category):
            if verdict.id not in places:
                left_out += 1
                continue
            name, name_of_case = places[verdict.id]
            same = found.setdefault(name_of_case, {})
            if name in same:
                what = f"the case '{name_of_case}' has two records of '{name}': {same[name].id} and {verdict.id}"
                raise RunError(what, where=str(runs[0].path), fix="tell them apart with --by or --case")
            same[name] = judged_of(spec, verdict)
            names += [name] * (name not in names)
        # In the order of the records, not in that in which they were judged.
        order = dict.fromkeys(places.values())
        ranks = {name: rank for rank, name in enumerate(dict.fromkeys(name for name, _ in order))}
        cases = {name: rank for rank, name in enumerate(dict.fromkeys(name for _, name in order))}
        names.sort(key=ranks.__getitem__)
        found = dict(sorted(found.items(), key=lambda item: cases[item[0]]))
        if len(names) < 2:
            return None
    return compared(spec, names, found, by, category, left_out, _of_runs(runs, spec.language))


def _names(runs: Sequence[_Run]) -> list[str]:
    """Short names that tell runs apart: of the model, else of the folder, a suite's where they are of suites."""
    paths = [run.path.resolve() for run in runs]
    ways = (
        [run.run["model"]["name"] for run in runs],
        [path.name for path in paths],
        [
            path.parts[-3] if run.categories is not None else path.name
            for run, path in zip(runs, paths, strict=True)
        ],
    )
    return next((names for names in ways if len(set(names)) == len(names)), [str(run.path) for run in runs])


def _verdicts(run: _Run, category: str | None) -> Iterator[Verdict]:
    for verdict in read_verdicts(run.path):
        if run.categories is None or run.categories.get(verdict.id) == category:
            yield verdict


def _places(run: _Run, by: str, case: str) -> dict[str, tuple[str, str]]:
    """Record id -> (candidate, case). Raises RecordsError when no record has these fields."""
    path, settings = records_file(run.path, run.run), run.run["settings"]
    met: set[str] = set()
    found: dict[str, tuple[str, str]] = {}
    for record in read_records(path, run.spec.inputs, mapping=settings["mapping"], limit=settings["limit"]):
        if isinstance(record, Record):
            met.update(record.fields)
            if record.fields.get(by) is not None and record.fields.get(case) is not None:
                found[record.id] = str(record.fields[by]), str(record.fields[case])
    for field, option in ((by, "--by"), (case, "--case")):
        if field not in met:
            fix = f"{option} FIELD names the one that does: {did_you_mean(field, met)}"
            fix += "; or give two runs or more" if field == by else ""
            raise RecordsError(f"no record has a field '{field}'", where=str(path), fix=fix)
    return found


def _of_runs(runs: Sequence[_Run], language: str) -> list[str]:
    """What a reader should know about several runs first."""
    words, first = WORDS[language], runs[0].run
    models = {run.run["model"]["fingerprint"] for run in runs}
    records = {run.run["records"]["digest"] for run in runs}
    warnings = []
    if len(models) > 1:
        warnings.append(words["by_model" if len(records) == 1 else "both"])
    if changed := [line for run in runs[1:] for line in differences(first["settings"], run.run["settings"])]:
        warnings.append(words["settings"].format(words["list"].join(dict.fromkeys(changed))))
    return warnings


def markdown(comparison: Comparison) -> str:
    """comparison.md of one judge and category."""
    return _template().render(it=comparison, language=comparison.language, most=MOST_CASES, enough=ENOUGH)


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters.update(plain=plain)
    environment.globals.update(table=table, shown=shown)
    source = Path(localjudge.report.__file__ or "").with_name("compare.md.j2")
    return environment.from_string(source.read_text(encoding="utf-8"))
