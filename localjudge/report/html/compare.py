"""What the pages show of several runs side by side, or of the candidates in one run: as `data`, for comparisons.

overview  title, opening, notes, parts [{title, reason, warnings, titles, ranking, wins, differences, crossed}]
row       id, text, fields, sides [{name, status, overall, passed, preference, told, bounds}], gap
detail    id, fields (those that are the same for all), pairs, sides: each a detail without fields, with name, row,
          and in `it` its judge where that is not the first one's

Candidates and runs of one judge are compared by `run.compare`, categories apart; of different judges, or of judges
of pairs, it is told where they disagree.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from localjudge.errors import LocalJudgeError, RunError
from localjudge.judge.spec import JudgeSpec
from localjudge.records import Record
from localjudge.report.html.data import RunData, field_of, in_order, judge_data, labels_of
from localjudge.report.html.ranking import outcomes, ranking, wins
from localjudge.run.candidates import Comparison, shown
from localjudge.run.compare import comparisons_of
from localjudge.verdict import Verdict

MOST_LABELS = 12
"""Labels of a question whose answers are crossed."""


@dataclass
class _Side:
    """One side of a case."""

    name: str
    data: RunData
    record: Record | None
    verdict: Verdict


@dataclass
class _Crossed:
    """How two runs answered one question."""

    labels: list[str]
    table: dict[tuple[str, str], int] = field(default_factory=dict)

    def told(self, question: str, first: str, second: str) -> dict[str, Any]:
        """With Cohen's kappa (1960); None where one label is all there is."""
        n = sum(self.table.values())
        same = sum(count for (a, b), count in self.table.items() if a == b)
        rows = [sum(self.table.get((a, b), 0) for b in self.labels) for a in self.labels]
        columns = [sum(self.table.get((a, b), 0) for a in self.labels) for b in self.labels]
        chance = sum(a * b for a, b in zip(rows, columns, strict=True)) / n**2 if n else 1.0
        return {
            "question": question,
            "first": first,
            "second": second,
            "n": n,
            "same": same,
            "kappa": (same / n - chance) / (1 - chance) if n and chance < 1 else None,
            "labels": self.labels,
            "table": [[self.table.get((a, b), 0) for b in self.labels] for a in self.labels],
        }


def candidates_in(directory: Path) -> Compared | None:
    """The candidates of one run's records (`candidate`, `case`), or of a suite's; None where there are none."""
    with contextlib.suppress(LocalJudgeError):
        comparisons, _ = comparisons_of([directory])
        return Compared([directory], comparisons)
    return None


class Compared:
    """Several runs, or the candidates of one, as `build` takes them."""

    def __init__(self, directories: Sequence[Path], comparisons: Sequence[Comparison] | None = None) -> None:
        """Raises RunError when these cannot be held side by side at all."""
        self.notes: list[str] = []
        if comparisons is None:
            try:
                comparisons, _ = comparisons_of(directories)
            except RunError as error:
                if any((one / "suite.json").is_file() for one in directories):
                    raise
                self.notes.append(f"no ranking: {error.what}")
                comparisons = []
        self.comparisons = comparisons
        self.groups: list[tuple[str, list[RunData]]] = []
        self.of_one = len(directories) == 1
        suites = [one for one in directories if (one / "suite.json").is_file()]
        if suites:
            judges = dict.fromkeys(one.judge for one in comparisons)
            for judge in judges:
                runs = [one / "judges" / judge for one in directories]
                self.groups.append((judge, [RunData(run) for run in runs if (run / "run.json").is_file()]))
        else:
            self.groups.append(("", [RunData(one) for one in directories]))
        names = _names(directories, self.groups)
        # By folder: of several suites one may lack a judge.
        self._names = {
            one / "judges" / judge if suites else one: name
            for judge, _ in self.groups
            for one, name in zip(directories, names, strict=True)
        }
        self._crossed: dict[tuple[str, str, str, str], _Crossed] = {}
        self._met = 0

    @property
    def spec(self) -> JudgeSpec:
        """The first one's judge."""
        return self.groups[0][1][0].spec

    def close(self) -> None:
        for _, runs in self.groups:
            for run in runs:
                run.close()

    # Cases

    def pairs(self) -> Iterator[tuple[str, list[_Side]]]:
        seen: set[str] = set()
        for judge, runs in self.groups:
            for name, sides in self._candidates(runs[0]) if self.of_one else self._runs(runs):
                shown_name = f"{name} ({judge})" if name in seen else name
                seen.add(shown_name)
                self._met += 1
                yield shown_name, sides

    def _runs(self, runs: Sequence[RunData]) -> Iterator[tuple[str, list[_Side]]]:
        first, *others = runs
        found = False
        for record, verdict in first.pairs():
            sides = [_Side(self._names[first.directory], first, record, verdict)]
            for other in others:
                told = other.verdict(verdict.id)
                if told is not None:
                    sides.append(_Side(self._names[other.directory], other, other.record(verdict.id), told))
            if len(sides) > 1:
                found = True
                self._cross(sides)
                yield verdict.id, sides
        if not found:
            raise RunError("these runs share no record's id", where=str(runs[1].directory), fix="give runs that do")

    def _candidates(self, run: RunData) -> Iterator[tuple[str, list[_Side]]]:
        for comparison in self.comparisons:
            if comparison.judge != run.spec.name:
                continue
            for case in comparison.cases:
                sides = []
                for name, judged in case.candidates.items():
                    verdict = run.verdict(judged.id)
                    if verdict is not None:
                        sides.append(_Side(name, run, run.record(judged.id), verdict))
                yield case.case, sides

    def _cross(self, sides: Sequence[_Side]) -> None:
        """Count how each two answered what both were asked."""
        for one, other in combinations(sides, 2):
            for question in one.data.spec.own_questions:
                labels = [label for label, _ in labels_of(question)]
                if question.type == "flags" or not 2 <= len(labels) <= MOST_LABELS:
                    continue
                if question.id == "preference":
                    labels = [*labels, "inconsistent"]
                told = [side.verdict.answers.get(question.id) for side in (one, other)]
                given = [str(answer.value) for answer in told if answer and answer.value is not None]
                if len(given) == 2 and all(label in labels for label in given):
                    key = (one.data.spec.name, question.id, one.name, other.name)
                    table = self._crossed.setdefault(key, _Crossed(labels)).table
                    table[given[0], given[1]] = table.get((given[0], given[1]), 0) + 1

    def row(self, name: str, sides: list[_Side]) -> dict[str, Any]:
        parts = [_part(side.verdict, side.data.spec) for side in sides]
        preferences = {
            side.verdict.answers["preference"].value for side in sides if "preference" in side.verdict.answers
        }
        known = [part for part in parts if part is not None]
        gap = max(known) - min(known) if len(known) > 1 else None
        return {
            "id": name,
            "text": sides[0].data.row(sides[0].record, sides[0].verdict)["text"],
            "fields": {},
            "sides": [
                {
                    "name": side.name,
                    "status": side.verdict.status,
                    "overall": side.verdict.overall,
                    "passed": side.verdict.passed,
                    "told": _told(side),
                    "bounds": None if side.data.spec.kind == "pairwise" else side.data.spec.bounds,
                }
                for side in sides
            ],
            "gap": max(gap or 0.0, 1.0) if len(preferences) > 1 else gap,
        }

    def count(self, name: str, sides: list[_Side]) -> None:
        """Nothing is counted by cases here."""

    def detail_of(self, name: str, sides: list[_Side], *, prompts: bool = False) -> dict[str, Any]:
        """Without prompts, whatever is asked: each run has its own."""
        own = [side.record.fields if side.record else {} for side in sides]
        inputs = {item.name: item for side in sides for item in side.data.spec.inputs}
        fields: list[dict[str, Any]] = []
        pairs: list[str] = []
        for key, is_input in in_order(dict.fromkeys(key for one in own for key in one), inputs.values()):
            values = [one.get(key) for one in own]
            if all(value == values[0] for value in values):
                fields.append(field_of(key, values[0], is_input))
            elif is_input and len(sides) == 2:
                pairs.append(key)
                for end, side, value in zip("ab", sides, values, strict=True):
                    fields.append({**field_of(f"{key}_{end}", value, True), "label": f"{key}: {side.name}"})
            else:
                for side, value in zip(sides, values, strict=True):
                    if value is not None:
                        fields.append({**field_of(key, value, is_input), "label": f"{key}: {side.name}"})
        stems = [stem for stem in sides[0].data.spec.pairs if all(f"{stem}_{end}" in own[0] for end in "ab")]
        told = []
        for side in sides:
            one = side.data.detail_of(side.record, side.verdict, prompts=False)
            del one["fields"], one["pairs"], one["asks"]
            one |= {"name": side.name, "row": {key: one[key] for key in ("status", "overall", "passed", "grade")}}
            if side.data.spec.name != sides[0].data.spec.name or len(self.groups) > 1:
                one["it"] = {"judge": judge_data(side.data.spec)}
            told.append(one)
        return {"id": name, "fields": fields, "pairs": pairs or stems, "sides": told}

    # All of it

    def overview(self) -> dict[str, Any]:
        """After the cases were gone through."""
        first = self.groups[0][1][0]
        return {
            "format": 1,
            "title": " · ".join(dict.fromkeys(self._names.values())) if not self.of_one else first.spec.name,
            "opening": "",
            "judge": judge_data(first.spec),
            "notes": self.notes + [note for _, runs in self.groups for run in runs for note in run.notes],
            "parts": [*(self._compared(one) for one in self.comparisons), *self._disagreements()],
        }

    def _compared(self, one: Comparison) -> dict[str, Any]:
        names = [candidate.name for candidate in one.candidates]
        told = [
            outcome
            for case in one.cases
            for outcome in outcomes(
                case.case,
                {name: it.overall for name, it in case.candidates.items() if it.overall is not None},
            )
        ]
        ranked = ranking(names, told)
        by_name = {candidate.name: candidate for candidate in one.candidates}
        for row in ranked["rows"] if ranked else ():
            candidate = by_name[row["name"]]
            row["mean"] = candidate.overall
            row["passed"] = candidate.passed / one.common if candidate.passed is not None and one.common else None
        differences = []
        for it in one.differences:
            low, high = one.scales[it.value]
            differences.append({**it.model_dump(mode="json"), "scale": (low - high, high - low)})
        several = len(self.comparisons) > 1
        return {
            "title": " · ".join(filter(None, [one.judge if several else "", one.category])),
            "reason": one.standing.reason,
            "warnings": one.warnings,
            "titles": one.titles,
            "ranking": ranked,
            "wins": wins(names, told),
            "differences": differences,
        }

    def _disagreements(self) -> Iterator[dict[str, Any]]:
        if self._crossed:
            several = len({judge for judge, *_ in self._crossed}) > 1
            yield {
                "title": "",
                "reason": "",
                "warnings": [],
                "titles": {},
                "crossed": [
                    one.told(f"{judge}: {question}" if several else question, first, second)
                    for (judge, question, first, second), one in self._crossed.items()
                ],
            }


def _names(directories: Sequence[Path], groups: Sequence[tuple[str, Sequence[RunData]]]) -> list[str]:
    """Short names that tell the runs apart: their models', else their folders'."""
    if len(directories) == 1:
        return [directories[0].name]
    runs = groups[0][1] if groups else []
    paths = [one.resolve() for one in directories]
    ways = [
        [run.run["model"]["name"] for run in runs],
        [f"{run.spec.name}, {run.run['model']['name']}" for run in runs],
        [path.name for path in paths],
        ["/".join(path.parts[-2:]) for path in paths],
    ]
    return next((names for names in ways if len(set(names)) == len(directories)), [str(path) for path in paths])


def _bounds(spec: JudgeSpec) -> tuple[float, float]:
    return (0.0, 1.0) if spec.kind == "pairwise" else spec.bounds


def _part(verdict: Verdict, spec: JudgeSpec) -> float | None:
    """The overall as a share of its scale, so that judges of different scales can be held side by side."""
    low, high = _bounds(spec)
    return None if verdict.overall is None or high <= low else (verdict.overall - low) / (high - low)


def _told(side: _Side) -> str:
    verdict = side.verdict
    if verdict.overall is None:
        return verdict.status
    if "preference" in verdict.answers and side.data.spec.kind == "pairwise":
        return str(verdict.answers["preference"].value or "split")
    low, high = _bounds(side.data.spec)
    return shown(verdict.overall, high - low)
