"""What the pages show of a run, as JSON: an overview, a row a case, and all there is of one case.

Reads a run's folder without holding it, so that a run that goes on is not disturbed; knows nothing of pages. The
shapes, which the scripts beside and `localjudge view` go by:

overview  title, judge (`judge_data`), provenance [[key, value]], summary (summary.json), opening, warnings, notes,
          reading {question: {n, confidence, mass}}, slices {field: {value: {n, judged, mean, low, high, passed}}},
          ranking and wins (of pairs whose records name model_a and model_b), gold {target: labels}, agreement,
          audit (their JSON), distilled {set: `distill.evaluate.Evaluation`}: each or None, figures [{name, image}]
row       id, status, overall, passed, grade, scores, red_lines, unsure, inconsistent, order_gap, preference,
          answers {question: label, labels or None}, confidence, mass (the least of its answers), gold {target:
          {judge, gold, same}}, fields (short ones, to slice by), text (to search in)
detail    id, status, fields [{name, kind: text|json|images, value, input}] (inputs first, in the judge's
          order), pairs [stem], and, unless blind, error,
          overall, passed, grade, scores, rationale, answers [answer], orders [[answer]], decisions, measures,
          dimensions, dual, items, decided_by, members, split, unsure, order_gap, usage, gold, report, and asks
          (`Replay.asks`)
answer    id, value, distribution [[label, p]], expected, sd, entropy, mass; what it asks is in overview.judge
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import math
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localjudge.errors import LocalJudgeError, RecordsError, RunError, did_you_mean
from localjudge.judge.questions import FindingsQuestion, FlagsQuestion, Question, TextQuestion
from localjudge.judge.reading import confidence
from localjudge.judge.spec import JudgeSpec
from localjudge.records import BadRecord, Field, Record, read_records
from localjudge.report.html.ranking import Outcome, ranking, wins
from localjudge.report.markdown import opening, provenance, warnings
from localjudge.report.record import RecordReport
from localjudge.report.summary import Running, summarize
from localjudge.run.replay import Replay
from localjudge.run.reports import checked_or_not, records_file, template_of
from localjudge.run.runner import judge_of
from localjudge.run.store import VerdictsById, read_verdicts
from localjudge.verdict import Answer, Verdict

if TYPE_CHECKING:
    from localjudge.agreement.targets import Target

LONGEST_VALUE = 60
MOST_VALUES = 30
"""A field of no more and no longer values than these is one to slice by."""
SEARCHED = 4_000_000
"""Characters of all cases' texts to search in; each case has its part of them, at least 200 and at most 4,000."""
FIGURES_MOST = 2_000_000
"""Bytes of an agreement's figures taken along."""
WIDEST, PICTURE_MOST = 1000, 200_000
"""Pixels and bytes of a record's picture, beyond which it is made smaller."""


def overview(directory: Path) -> dict[str, Any]:
    with contextlib.closing(RunData(directory)) as data:
        return data.overview()


def cases(directory: Path) -> Iterator[dict[str, Any]]:
    with contextlib.closing(RunData(directory)) as data:
        yield from data.cases()


def detail(directory: Path, record_id: str, *, blind: bool = False) -> dict[str, Any]:
    """One case. blind: without anything that the judge said. Raises RunError for an id without a verdict."""
    with contextlib.closing(RunData(directory)) as data:
        return data.detail(record_id, blind=blind)


def read_run(directory: Path) -> dict[str, Any]:
    """run.json, without holding the folder. Raises RunError."""
    file = directory / "run.json"
    if not file.is_file():
        raise RunError("this folder holds no run", where=str(directory), fix="give the folder that `-o` named")
    try:
        run = json.loads(file.read_text(encoding="utf-8"))
        if not run.keys() >= {"judge", "model", "records", "settings", "spec", "sessions"}:
            raise ValueError("it is not what a run writes")
    except (ValueError, AttributeError) as error:
        raise RunError(f"run.json is broken: {error}", where=str(file), fix="restore it") from None
    return dict(run)


class RunData:
    """A run's folder, opened to be looked at. What is judged later is seen after `refresh`."""

    def __init__(self, directory: Path) -> None:
        """Raises RunError when the folder holds no run, or a broken one."""
        self.directory = directory
        self.run = read_run(directory)
        self.spec = judge_of(directory, self.run)
        self.notes: list[str] = []
        self._labelled = [question.id for question in self.spec.own_questions if labels_of(question)]
        self._replay = Replay(directory, self.spec, self.run)
        self._gold = self._read_gold()
        self._records: sqlite3.Connection | None = None
        self._verdicts = VerdictsById(directory)
        self._report = None
        if template_of(self.run):
            with contextlib.suppress(LocalJudgeError):
                self._report = RecordReport(self.spec, template_of(self.run))
        self._counted = False
        self._outcomes: list[Outcome] = []
        self._slices: dict[str, dict[str, _Slice]] = {}
        self._reading: dict[str, _Reading] = {}

    def close(self) -> None:
        self._verdicts.close()
        self._replay.close()
        if self._records is not None:
            self._records.close()

    def refresh(self) -> None:
        """Take in what was judged since."""
        self._verdicts.close()
        self.run = read_run(self.directory)
        self._verdicts = VerdictsById(self.directory)
        self._counted = False

    @property
    def judged(self) -> int:
        """How many records have a verdict."""
        return len(self._verdicts)

    # Cases

    def pairs(self) -> Iterator[tuple[Record | None, Verdict]]:
        """Each judged record with its verdict, in the records' order; where the records are gone, the verdicts.
        What of them is asked for as a row is counted anew."""
        self._slices, self._reading, self._outcomes, self._counted = {}, {}, [], False
        yield from self._pairs()
        self._counted = True

    def _pairs(self) -> Iterator[tuple[Record | None, Verdict]]:
        try:
            file = records_file(self.directory, self.run)
            if self.run["settings"].get("format") == "openai-batch":
                raise RecordsError("holds a batch's answers, not records", where=str(file))
        except RecordsError as error:
            self._note(f"{error.where}: {error.what}; the cases are shown without their texts")
            for verdict in read_verdicts(self.directory):
                yield None, verdict
            return
        for record in self._read():
            told = self._verdicts.get(record.id)
            if told is not None:
                yield record, told

    def _read(self) -> Iterator[Record]:
        settings = self.run["settings"]
        path = records_file(self.directory, self.run)
        # What a record lacks is no reason not to show it, nor did an imported one need it.
        inputs = [item.model_copy(update={"optional": True, "allow_empty": True}) for item in self.spec.inputs]
        for record in read_records(path, inputs, mapping=settings.get("mapping"), limit=settings.get("limit")):
            yield Record(record.id, {}, record.where) if isinstance(record, BadRecord) else record

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def cases(self, *, blind: bool = False) -> Iterator[dict[str, Any]]:
        """A row a case. blind: without anything that the judge said."""
        for record, verdict in self.pairs():
            row = self.row(record, verdict)
            yield {key: row[key] for key in ("id", "fields", "text")} if blind else row

    def row(self, record: Record | None, verdict: Verdict) -> dict[str, Any]:
        fields = record.fields if record else {}
        short = {name: text for name, value in fields.items() if (text := _short(value)) is not None}
        told = [answer for answers in (verdict.answers, *(verdict.orders or ())) for answer in answers.values()]
        sure = [confidence(answer) for answer in told if answer.distribution]
        mass = [answer.mass for answer in told if answer.mass is not None]
        preference = verdict.answers["preference"].value if "preference" in verdict.answers else None
        self._count(verdict, short)
        return {
            "id": verdict.id,
            "status": verdict.status,
            "overall": verdict.overall,
            "passed": verdict.passed,
            "grade": verdict.grade,
            "scores": verdict.scores,
            "red_lines": verdict.red_lines,
            "unsure": verdict.unsure,
            "inconsistent": preference == "inconsistent",
            "order_gap": verdict.order_gap,
            "preference": preference if self.spec.kind == "pairwise" else None,
            "answers": {name: verdict.answers[name].value for name in self._labelled if name in verdict.answers},
            "confidence": min(sure, default=None),
            "mass": min(mass, default=None),
            "gold": self._gold.get(verdict.id, {}),
            "fields": {name: value for name, value in short.items() if len(self._slices[name]) <= MOST_VALUES},
            "text": self._searched(fields, verdict),
        }

    def _searched(self, fields: Mapping[str, Any], verdict: Verdict) -> str:
        most = min(4000, max(200, SEARCHED // max(1, self.run["records"].get("total") or self.judged)))
        inputs = {item.name for item in self.spec.inputs}
        told = [
            (name not in inputs, value) for name, value in fields.items() if isinstance(value, str) and name != "id"
        ]
        texts = [value for _, value in sorted(told, key=lambda one: one[0])]
        texts += [verdict.rationale or "", verdict.error or ""]
        cut: list[str] = []
        for place, text in enumerate(texts):
            part = max(80, (most - sum(map(len, cut))) // (len(texts) - place))
            cut.append(" ".join(text[: 2 * part].split())[:part])
        return " ".join(filter(None, cut))[:most]

    def count(self, record: Record | None, verdict: Verdict) -> None:
        """Count a case for the overview that has no row."""
        fields = record.fields if record else {}
        self._count(verdict, {name: text for name, value in fields.items() if (text := _short(value)) is not None})

    def _count(self, verdict: Verdict, short: Mapping[str, str]) -> None:
        for name, value in short.items():
            values = self._slices.setdefault(name, {})
            if value in values or len(values) <= MOST_VALUES:
                values.setdefault(value, _Slice(self._bounds)).add(verdict)
        for name, answer in verdict.answers.items():
            if answer.distribution or answer.mass is not None:
                self._reading.setdefault(name, _Reading()).add(answer)
        self._meet(verdict, short)

    def _meet(self, verdict: Verdict, short: Mapping[str, str]) -> None:
        """Who of `model_a` and `model_b` won, where records of pairs name them; of what is inconsistent, nobody."""
        first, second = short.get("model_a"), short.get("model_b")
        if self.spec.kind == "pairwise" and verdict.status == "ok" and first and second and first != second:
            won = {"A": 1.0, "B": 0.0}.get(verdict.answers["preference"].value, 0.5)
            self._outcomes.append(Outcome(first, second, won, verdict.id))

    @functools.cached_property
    def _bounds(self) -> tuple[float, float]:
        return (0.0, 1.0) if self.spec.kind == "pairwise" else self.spec.bounds

    # One case

    def detail(self, record_id: str, *, blind: bool = False) -> dict[str, Any]:
        """All there is of one case. Raises RunError for an id without a verdict."""
        verdict = self.verdict(record_id)
        if verdict is None:
            fix = did_you_mean(record_id, self._verdicts.ids()) if self.judged <= 10_000 else None
            raise RunError(f"there is no verdict on a record '{record_id}'", where=str(self.directory), fix=fix)
        return self.detail_of(self.record(record_id), verdict, blind=blind)

    def verdict(self, record_id: str) -> Verdict | None:
        return self._verdicts.get(record_id)

    def record(self, record_id: str) -> Record | None:
        """From a table on disk, made when the first is wanted. None where the records are gone."""
        if self._records is None:
            self._records = sqlite3.connect("", check_same_thread=False)
            self._records.execute("CREATE TABLE at (id TEXT PRIMARY KEY, fields BLOB, place TEXT) WITHOUT ROWID")
            with contextlib.suppress(RecordsError):
                self._records.executemany(
                    "INSERT OR IGNORE INTO at VALUES (?, ?, ?)",
                    ((one.id, _packed(one.fields), one.where) for one in self._read()),
                )
        row = self._records.execute("SELECT fields, place FROM at WHERE id = ?", (record_id,)).fetchone()
        return Record(record_id, _unpacked(row[0]), row[1]) if row else None

    def detail_of(
        self, record: Record | None, verdict: Verdict, *, blind: bool = False, prompts: bool = True
    ) -> dict[str, Any]:
        """prompts: with its prompts and completions; without, `asks` is None."""
        fields = record.fields if record else {}
        shown = {
            "id": verdict.id,
            "where": record.where if record else None,
            "fields": [
                field_of(name, fields[name], is_input) for name, is_input in in_order(fields, self.spec.inputs)
            ],
            "pairs": [stem for stem in self.spec.pairs if f"{stem}_a" in fields and f"{stem}_b" in fields],
        }
        if blind:
            return {**shown, "blind": True}
        texts = {line.code: line.text for line in self.spec.red_lines}
        return {
            **shown,
            "status": verdict.status,
            "error": verdict.error,
            "overall": verdict.overall,
            "passed": verdict.passed,
            "grade": verdict.grade,
            "scores": verdict.scores,
            "rationale": verdict.rationale,
            "answers": _answers(verdict.answers),
            "orders": [_answers(order) for order in verdict.orders or ()],
            "red_lines": verdict.red_lines,
            "decisions": [
                {"code": code, "text": texts.get(code, ""), "stands": one.stands, "by": one.by, "why": one.why}
                for code, one in verdict.decisions.items()
            ],
            "measures": {name: {"value": one.value, "why": one.why} for name, one in verdict.measures.items()},
            "dimensions": verdict.dimensions,
            "dual": verdict.dual and verdict.dual.model_dump(mode="json"),
            "items": [item.model_dump(mode="json") for item in verdict.items or ()],
            "decided_by": verdict.decided_by,
            "members": [
                {
                    "model": one.model,
                    "status": one.status,
                    "overall": one.overall,
                    "passed": one.passed,
                    "answers": _answers(one.answers),
                    "rationale": one.rationale,
                    "error": one.error,
                }
                for one in verdict.members or ()
            ],
            "split": verdict.split,
            "unsure": verdict.unsure,
            "order_gap": verdict.order_gap,
            "usage": verdict.usage.model_dump(),
            "gold": self._gold.get(verdict.id, {}),
            "asks": None
            if not prompts
            else self._replay.asks(record)
            if record and verdict.status != "invalid_record"
            else [],
            "report": self._reported(record, verdict),
        }

    def _reported(self, record: Record | None, verdict: Verdict) -> str | None:
        if self._report is None or record is None:
            return None
        try:
            return self._report.render(record.id, record.fields, verdict, checked_or_not(self.spec, record))
        except RunError as error:
            return f"{error}"

    # All of it

    def overview(self) -> dict[str, Any]:
        """Counts the cases, unless they were all gone through already."""
        if not self._counted:
            for _ in self.cases():
                pass
        judged = sum(session["judged"] for session in self.run["sessions"])
        seconds = sum(session["seconds"] for session in self.run["sessions"])
        records = self.run["records"]["total"]
        summary = summarize(
            read_verdicts(self.directory), self.spec, seconds or None, judged or None, max(records, self.judged)
        )
        if self._replay.why_not and self.run["settings"].get("mode") != "import":
            self._note(self._replay.why_not)
        return {
            "format": 1,
            "title": f"{self.spec.name}, judged by {self.run['model']['name']}",
            "folder": str(self.directory),
            "started": self.run.get("started"),
            "judge": judge_data(self.spec),
            "provenance": provenance(self.run),
            "summary": summary.model_dump(mode="json"),
            "opening": opening(summary),
            "warnings": warnings(summary),
            "reading": {name: one.told() for name, one in self._reading.items()},
            "slices": self.slices(),
            **self._met(),
            "gold": self._targets or None,
            "agreement": self._json("agreement.json"),
            "audit": self._json("audit.json"),
            "distilled": self._distilled(),
            "figures": self._figures(),
            "notes": self.notes,
        }

    def slices(self) -> dict[str, dict[str, Any]]:
        """Fields whose values come again: field -> value -> how those records came out."""
        return {
            name: {value: one.told() for value, one in sorted(values.items(), key=lambda item: -item[1].n)}
            for name, values in self._slices.items()
            if 2 <= len(values) <= MOST_VALUES and sum(one.n for one in values.values()) > len(values)
        }

    def _met(self) -> dict[str, Any]:
        names = sorted({name for one in self._outcomes for name in one[:2]})
        if len(names) < 2:
            return {"ranking": None, "wins": None}
        return {"ranking": ranking(names, self._outcomes), "wins": wins(names, self._outcomes)}

    def _json(self, name: str) -> Any:
        with contextlib.suppress(OSError, ValueError):
            return json.loads((self.directory / name).read_text(encoding="utf-8"))
        return None

    def _distilled(self) -> dict[str, Any] | None:
        """What `distill evaluate` wrote into this folder, or, having judged here itself, above it."""
        here = self.directory.resolve()
        for folder in (here, *here.parents[:3]):
            if not (folder / "evaluation.json").is_file():
                continue
            from localjudge.distill.evaluate import read

            try:
                sets = read(folder).sets
            except LocalJudgeError as error:
                self._note(str(error).splitlines()[0])
                return None
            return {
                name: one.model_dump(mode="json")
                for name, one in sets.items()
                if folder == here or any(folder / "runs" / name / judge.role == here for judge in one.judges)
            } or None
        return None

    def _figures(self) -> list[dict[str, str]]:
        found, room = [], FIGURES_MOST
        for file in sorted((self.directory / "figures").glob("*.png")):
            if file.stat().st_size <= room:
                room -= file.stat().st_size
                image = base64.b64encode(file.read_bytes()).decode()
                found.append({"name": file.stem, "image": f"data:image/png;base64,{image}"})
        return found

    def _read_gold(self) -> dict[str, dict[str, dict[str, Any]]]:
        """What people said, where the run was held against them: id -> target -> theirs and the judge's."""
        self._targets: dict[str, list[str]] = {}
        agreement = self._json("agreement.json")
        if not agreement:
            return {}
        from localjudge.agreement.join import Opened, join

        try:
            held = join(Opened(self.directory, self.run, self.spec), agreement["gold"])
        except (LocalJudgeError, OSError, KeyError, TypeError) as error:
            told = str(error).splitlines()[0]
            self._note(f"the labels of agreement.json cannot be read again, so no case shows its own: {told}")
            return {}
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for one in held:
            target = one.target
            self._targets[target.name] = list(target.labels)

            for place, record_id in enumerate(one.ids):
                ours, theirs = (_named(target, told[place]) for told in (one.label_or_number, one.gold))
                same = None if ours is None or theirs is None else ours == theirs
                if same is not None and target.numeric:
                    low, high = target.bounds or (0.0, 1.0)
                    same = abs(ours - theirs) <= 0.125 * (high - low)
                found.setdefault(record_id, {})[target.name] = {"judge": ours, "gold": theirs, "same": same}
        return found


class _Slice:
    """How the records of one value came out."""

    def __init__(self, scale: tuple[float, float]) -> None:
        self.n = self.graded = self.passes = 0
        self.overall = Running(scale)

    def add(self, verdict: Verdict) -> None:
        self.n += 1
        if verdict.overall is not None:
            self.overall.add(verdict.overall)
        if verdict.passed is not None:
            self.graded += 1
            self.passes += verdict.passed

    def told(self) -> dict[str, Any]:
        mean = self.overall.mean(self.n)
        return {
            "n": self.n,
            "judged": self.overall.n,
            "mean": mean and mean.mean,
            "low": mean and mean.low,
            "high": mean and mean.high,
            "passed": self.passes / self.graded if self.graded else None,
        }


class _Reading:
    """How sure one question was answered, and how much of the belief was on its labels."""

    def __init__(self) -> None:
        self.sure, self.mass = Running((0, 1)), Running((0, 1))

    def add(self, answer: Answer) -> None:
        if answer.distribution:
            self.sure.add(confidence(answer))
        if answer.mass is not None:
            self.mass.add(answer.mass)

    def told(self) -> dict[str, Any]:
        return {
            "n": max(self.sure.n, self.mass.n),
            "confidence": self.sure.value if self.sure.n else None,
            "mass": self.mass.value if self.mass.n else None,
        }


def _named(target: Target, number: float) -> Any:
    """A label by its number, as `Joined` has it."""
    if math.isnan(number):
        return None
    if target.numeric:
        return round(float(number), 3)
    return target.labels[int(number)] if number < len(target.labels) else target.undecided


def _short(value: Any) -> str | None:
    """A value to slice by, as text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value if 0 < len(value) <= LONGEST_VALUE and "\n" not in value else None
    return f"{value:g}" if isinstance(value, int | float) else None


def in_order(names: Iterable[str], inputs: Iterable[Field]) -> list[tuple[str, bool]]:
    """(name, whether it is an input) of each: the judge's inputs first, as it is given them."""
    places = {item.name: place for place, item in enumerate(inputs)}
    return [(name, name in places) for name in sorted(names, key=lambda name: places.get(name, len(places)))]


def field_of(name: str, value: Any, is_input: bool) -> dict[str, Any]:
    pictures = _pictures(value)
    if pictures is not None:
        return {"name": name, "kind": "images", "value": pictures, "input": is_input}
    if value is None or isinstance(value, str):
        return {"name": name, "kind": "text", "value": value or "", "input": is_input}
    return {"name": name, "kind": "json", "value": _plain(value), "input": is_input}


def _pictures(value: Any) -> list[str] | None:
    """Pictures as data URIs, large ones made smaller; None of anything else."""
    from localjudge.images import Picture

    if not isinstance(value, list) or not value or not all(isinstance(one, Picture) for one in value):
        return None
    return [_picture(one) for one in value]


def _picture(picture: Any) -> str:
    if max(picture.width, picture.height) <= WIDEST and len(picture.data) <= PICTURE_MOST:
        return str(picture.uri())
    import io

    pixels = picture.pixels()
    pixels.thumbnail((WIDEST, WIDEST))
    file = io.BytesIO()
    pixels.save(file, "JPEG", quality=82)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def _plain(value: Any) -> Any:
    """Only what JSON has."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return json.loads(json.dumps(value, default=str))
    return value


def _packed(fields: Mapping[str, Any]) -> bytes:
    import pickle

    return zlib.compress(pickle.dumps(dict(fields)), 1)


def _unpacked(blob: bytes) -> dict[str, Any]:
    import pickle

    found: dict[str, Any] = pickle.loads(zlib.decompress(blob))  # our own, from a table without a name
    return found


def _answers(answers: Mapping[str, Answer]) -> list[dict[str, Any]]:
    return [
        {
            "id": name,
            "value": answer.value,
            **({"distribution": list(answer.distribution.items())} if answer.distribution else {}),
            **{
                key: number
                for key in ("expected", "sd", "entropy", "mass")
                if (number := getattr(answer, key)) is not None
            },
        }
        for name, answer in answers.items()
    ]


def judge_data(spec: JudgeSpec) -> dict[str, Any]:
    """name, version, kind, language, description, bounds, pass, questions [{id, type, ask, labels [[label,
    meaning]], counts}], red_lines, dimensions [{id, title, weight, measures}], measures {name: title}, scales."""
    return {
        "name": spec.name,
        "version": spec.version,
        "kind": spec.kind,
        "language": spec.language,
        "description": spec.description,
        "bounds": (0.0, 1.0) if spec.kind == "pairwise" else spec.bounds,
        "pass": spec.scoring.pass_mark,
        "questions": [
            {
                "id": question.id,
                "type": question.type,
                "ask": question.ask,
                "labels": labels_of(question),
                "counts": question.id in spec.counted,
                "cannot": bool(getattr(question, "cannot", False)),
            }
            for question in spec.asked
        ],
        "red_lines": [line.model_dump(mode="json") for line in spec.red_lines],
        "dimensions": [
            {"id": one.id, "title": one.title or one.id, "weight": one.weight, "measures": one.measures}
            for one in spec.scoring.dimensions
        ],
        "measures": {name: one.title or name for name, one in spec.scoring.measures.items()},
        "scales": {"preference_a": (0.0, 1.0)} if spec.kind == "pairwise" else spec.scales,
        "grades": list(spec.scoring.grades),
    }


def labels_of(question: Question) -> list[tuple[str, str]]:
    if isinstance(question, TextQuestion | FindingsQuestion):
        return []
    if isinstance(question, FlagsQuestion):
        return list(question.codes.items())
    anchors = getattr(question, "anchors", {})
    options = getattr(question, "options", {})
    return [
        (str(label), anchors.get(label) or getattr(options.get(label), "text", options.get(label)) or "")
        for label in question.labels
    ]
