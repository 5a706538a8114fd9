"""Judgements made elsewhere become a run like any other: each is validated, then counted by the judge's own rules.

Two forms are read: records whose fields answer the judge's questions, and the output of an OpenAI batch that was
asked them (`localjudge export --to openai-batch` writes its input). Of a record only its id and its answers are
needed; what the judge would have been shown may be absent.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import localjudge
from localjudge.engines.base import AskFailed
from localjudge.errors import JudgeError, LocalJudgeError, RecordsError, RunError, did_you_mean, nearest
from localjudge.judge import pairwise, rubric
from localjudge.judge.asking import all_answered, inputs_of
from localjudge.judge.questions import (
    BandQuestion,
    ChoiceQuestion,
    FindingsQuestion,
    FlagsQuestion,
    Question,
    ScoreQuestion,
    TextQuestion,
    answer_of,
    read_answers,
)
from localjudge.judge.spec import JudgeSpec
from localjudge.records import BadRecord, Record, read_records, scan_records
from localjudge.report.summary import Summary
from localjudge.rows import Decoder, open_rows, parse_json, shown, up_to_damage
from localjudge.run.runner import write_summary
from localjudge.run.store import RunDirectory, differences
from localjudge.verdict import Answer, Usage, Verdict

FORMATS = ("records", "openai-batch")

SWAPPED = "preference_swapped"
"""The field that holds what the swapped order of a pair was answered, in the record's own A and B."""

SWAPPED_ID = "#swapped"
"""What ends the custom_id of a batch's request that shows a pair swapped; the rest of it is the record's id."""

_VERDICT_OF = {"rubric": rubric.verdict_of, "pairwise": pairwise.verdict_of}
_YES_NO = {"yes": True, "true": True, "no": False, "false": False}
_WHOLE = re.compile(r"-?[0-9]{1,9}(\.0+)?")

Judgements = Iterator[Verdict | BadRecord]


class _Source(Protocol):
    """A file of judgements, to be read as often as needed.

    model: who judged, unless the user says. digest: a hash of its rows. settings: what decides how they are read.
    """

    model: str
    digest: str
    settings: dict[str, Any]

    def judgements(self, model: str) -> Judgements: ...


def import_verdicts(
    spec: JudgeSpec,
    path: Path,
    directory: Path,
    *,
    mapping: Mapping[str, str] | None = None,
    limit: int | None = None,
    skip_invalid: bool = False,
    form: str | None = None,
    model_name: str | None = None,
) -> Summary:
    """Make a run out of a file of judgements.

    mapping: question (or `id`, an input, `preference_swapped`) -> the field that has it. form: one of FORMATS; seen
    from the first row if not given. model_name: who judged; by default the field of the one mapped question, the
    model that a batch names, or the file's stem.

    A label must be one of the question's own. What is only written otherwise is taken: a score as "3" or 3.0, a
    choice labelled "1" as 1, flags as the list of those raised or as code -> true, false, yes or no (one code alone
    needs no list). Every label must be there; texts may be absent.

    Raises RecordsError, with each line that holds no judgement, unless they are to be skipped; RunError when the
    folder holds another run. The same import goes on with one that was stopped.
    """
    if form is not None and form not in FORMATS:
        raise LocalJudgeError(f"'{form}' is not a known form", where="--format", fix=did_you_mean(form, FORMATS))
    if spec.checklist:
        fix = "bring lists in with `localjudge checklist import`, people's credits with `run --gold`"
        raise JudgeError(f"'{spec.name}' asks other items of every task, so nothing can be mapped to it", fix=fix)
    if spec.dual_control:
        fix = "bring in what people say of one stream with a rubric judge of the same questions"
        raise JudgeError(f"'{spec.name}' asks each record's own readers, so nothing can be mapped to it", fix=fix)
    source: _Source
    with contextlib.ExitStack() as stack:
        if (form or _form_of(path)) == "openai-batch":
            if mapping:
                raise LocalJudgeError("a batch's answers have their places already", where="--map", fix="drop it")
            source = stack.enter_context(contextlib.closing(_Batch(spec, path, limit)))
        else:
            source = _Records(spec, path, dict(mapping or {}), limit)
        model = model_name or source.model
        total = _refuse_bad(source.judgements(model), skip_invalid)
        held = stack.enter_context(contextlib.closing(RunDirectory(directory)))
        run = _run_of(held, spec, path, model, source, total, skip_invalid)
        if held.read_done() < total:
            held.open()
            left = (verdict for verdict in source.judgements(model) if not held.is_done(verdict.id))
            judged = 0
            for verdict in left:
                held.append(_kept(verdict, spec, model))
                judged += 1
            # How long the judging took is not known: 0, for which no report tells a speed.
            run["sessions"].append({"judged": judged, "seconds": 0})
            held.write_run(run)
        return write_summary(directory, spec, run)


def _form_of(path: Path) -> str:
    rows, _, _ = open_rows(path)
    first = next(up_to_damage(path, rows), None)
    data = (first and first.data) or {}
    return "openai-batch" if "custom_id" in data and ("response" in data or "error" in data) else "records"


def _refuse_bad(judgements: Judgements, skip_invalid: bool) -> int:
    """How many there are. Raises RecordsError when some are none."""
    total, bad = 0, 0
    first_bad: list[BadRecord] = []
    for judgement in judgements:
        total += 1
        if isinstance(judgement, BadRecord):
            bad += 1
            if bad <= 20:
                first_bad.append(judgement)
    if bad == total > 1 and len({judgement.problem for judgement in first_bad}) == 1:
        # It is not the records that are wrong: even --skip-invalid would leave nothing.
        first = first_bad[0]
        raise RecordsError(f"none of {total} records holds a judgement: {first.problem}", where=first.where)
    if bad and not skip_invalid:
        shown = "\n  ".join(f"{judgement.where}: {judgement.problem}" for judgement in first_bad)
        more = f"\n  and {bad - len(first_bad)} more" if bad > len(first_bad) else ""
        raise RecordsError(
            f"{bad} of {total} records hold no judgement\n  {shown}{more}",
            fix="mend them, or import the rest with --skip-invalid",
        )
    return total


def _kept(judgement: Verdict | BadRecord, spec: JudgeSpec, model: str) -> Verdict:
    if isinstance(judgement, Verdict):
        return judgement
    error = f"{judgement.where}: {judgement.problem}"
    return Verdict(id=judgement.id, status="invalid_record", error=error, judge=spec.name, model=model)


def _run_of(
    held: RunDirectory, spec: JudgeSpec, path: Path, model: str, source: _Source, total: int, skip_invalid: bool
) -> dict[str, Any]:
    """run.json, written anew, or as it is when this same import made it. Raises RunError when another run did."""
    made_by: dict[str, Any] = {
        "judge": {
            "name": spec.name,
            "version": spec.version,
            "digest": spec.digest,
            "kind": spec.kind,
            "language": spec.language,
        },
        "model": {"name": model, "fingerprint": None, "chat_template": None},
        "records": {"digest": source.digest, "total": total},
        "settings": {**source.settings, "skip_invalid": skip_invalid, "mode": "import"},
        "engine": {"identity": {"engine": "import", "file": path.name, "digest": _digest_of(path, source.digest)}},
    }
    old = held.read_run()
    if old is None:
        run = {
            **made_by,
            "localjudge": localjudge.__version__,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "spec": spec.model_dump(mode="json", by_alias=True),
            "paths": {"records": str(path.resolve()), "model": None},
            "sessions": [],
        }
        held.write_run(run)
        return run
    if changed := differences({key: old[key] for key in made_by}, made_by):
        raise RunError(
            "this folder holds a run that was made otherwise:\n  " + "\n  ".join(changed),
            where=str(held.path),
            fix="give another -o",
        )
    return old


def _digest_of(path: Path, rows: str) -> str:
    """The file's sha256; a folder's is that of its rows."""
    if not path.is_file():
        return rows
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Records whose fields are answers


class _Records:
    """See _Source. mapping: as `import_verdicts` has it."""

    def __init__(self, spec: JudgeSpec, path: Path, mapping: dict[str, str], limit: int | None) -> None:
        self._spec, self._path, self._mapping, self._limit = spec, path, mapping, limit
        questions = [question.id for question in spec.asked]
        inputs = [item.name for item in spec.inputs]
        if both := [name for name in questions if name in inputs]:
            what = (
                f"'{both[0]}' is an input of the judge and a question too, so a field of that name could be either"
            )
            raise LocalJudgeError(what, fix="give the question another id")
        known = ["id", *questions, *inputs, *([SWAPPED] if spec.kind == "pairwise" else [])]
        for target in mapping:
            if target not in known:
                what = f"the judge {spec.name} has no question or input '{target}'"
                raise LocalJudgeError(what, where="--map", fix=did_you_mean(target, known))
        if SWAPPED in mapping and spec.orders == "single":
            fix = "drop it, or drop --set orders=single"
            raise LocalJudgeError(f"the judge asks one order, so there is no '{SWAPPED}'", where="--map", fix=fix)
        self.settings = {"mapping": mapping, "limit": limit, "format": "records"}
        self.digest = scan_records(path, [], mapping=mapping, limit=limit).digest
        labels = [q.id for q in spec.asked if q.id in mapping and not isinstance(q, TextQuestion)]
        self.model = mapping[labels[0]] if len(labels) == 1 else _stem(path)

    def judgements(self, model: str) -> Judgements:
        for record in read_records(self._path, [], mapping=self._mapping, limit=self._limit):
            if isinstance(record, BadRecord):
                yield record
                continue
            told, problems = self._answers(record)
            if problems:
                yield BadRecord(record.id, record.where, "; ".join(problems))
            else:
                yield self._verdict(record, told, model)

    def _verdict(self, record: Record, told: list[dict[str, Answer]], model: str) -> Verdict | BadRecord:
        spec = self._spec
        if spec.kind == "pairwise":
            return pairwise.verdict_of(spec, record.id, told, model)
        fields = inputs_of(spec, record)
        whole = all(fields[item.name] is not None for item in spec.inputs if not item.optional)
        try:
            checked = rubric.checked_of(spec, fields) if whole else None
            return rubric.verdict_of(spec, record.id, told, model, fields if whole else None, checked)
        except AskFailed as failure:
            return BadRecord(record.id, record.where, failure.why)

    def _answers(self, record: Record) -> tuple[list[dict[str, Answer]], list[str]]:
        """What each order was answered, and all that is wrong with it."""
        spec, fields = self._spec, record.fields
        answers: dict[str, Answer] = {}
        problems = []
        for question in spec.asked:
            problems += self._read(question, question.id, fields, answers)
        told = [answers]
        if spec.kind == "pairwise" and spec.orders == "both" and (SWAPPED in self._mapping or SWAPPED in fields):
            swapped: dict[str, Answer] = {}
            [preference] = [question for question in spec.questions if question.id == "preference"]
            problems += self._read(preference, SWAPPED, fields, swapped)
            told += [{"preference": answer} for answer in swapped.values()]
        return told, problems

    def _read(
        self, question: Question, name: str, fields: Mapping[str, Any], answers: dict[str, Answer]
    ) -> list[str]:
        value = fields.get(name)
        if value is None or value == "":
            return [] if isinstance(question, TextQuestion) else [self._missing(name, fields)]
        try:
            answers[name] = answer_of(question, _as_asked(question, value))
        except ValueError as error:
            return [f"the answer to '{name}' {error}"]
        return []

    def _missing(self, name: str, fields: Mapping[str, Any]) -> str:
        if name in fields:
            return f"the answer to '{name}' is null or empty"
        if name in self._mapping:
            return f"the answer to '{name}' is missing: there is no '{self._mapping[name]}' to take it from"
        if close := nearest(name, fields):
            return f"the answer to '{name}' is missing: if '{close}' is meant, use --map {name}={close}"
        has = ", ".join([*fields][:20]) + (", ..." if len(fields) > 20 else "")
        return f"the answer to '{name}' is missing: use --map {name}=FIELD; the record has {has or 'no fields'}"


def _stem(path: Path) -> str:
    name = path.resolve().name
    return name if path.is_dir() else Path(name.removesuffix(".gz")).stem


def _as_asked(question: Question, value: Any) -> Any:
    """The same answer as a judge's own completion has it; what is no answer stays as it is. Raises ValueError."""
    if isinstance(question, ScoreQuestion) and isinstance(value, str) and _WHOLE.fullmatch(value):
        return float(value)
    if isinstance(question, ChoiceQuestion) and type(value) is int:
        return str(value)
    if isinstance(question, FindingsQuestion | BandQuestion) and isinstance(value, str) and value[0] in "[{":
        value, problem = parse_json(Decoder(), value)  # a table of nothing but text
        if problem:
            raise ValueError(f"should be JSON: {problem}")
    if isinstance(question, FlagsQuestion):
        return _flags(list(question.codes), value)
    return value


def _flags(codes: list[str], value: Any) -> Any:
    if isinstance(value, str) and value[0] in "[{":  # a table of nothing but text
        value, problem = parse_json(Decoder(), value)
        if problem:
            raise ValueError(f"should be JSON: {problem}")
    if isinstance(value, list):
        for place, code in enumerate(value):
            if code not in codes or code in value[:place]:
                what = "is there twice" if code in codes else f"is not one of {', '.join(codes)}"
                raise ValueError(f"has the code {shown(code)}, which {what}")
        return {code: code in value for code in codes}
    if not isinstance(value, dict) and len(codes) == 1:
        value = {codes[0]: value}
    if not isinstance(value, dict) or value.keys() != set(codes):
        return value
    said = {code: value[code] for code in codes}
    return {code: _YES_NO.get(v.casefold(), v) if isinstance(v, str) else v for code, v in said.items()}


# The output of an OpenAI batch


@dataclass(frozen=True)
class _Told:
    """One line of a batch's output: the text of the answer, or why there is none."""

    content: str | None
    why: str
    model: str | None
    usage: Usage


class _Batch:
    """See _Source. The output comes in any order, and a pair's two asks are lines apart: they meet in a database on
    disk."""

    def __init__(self, spec: JudgeSpec, path: Path, limit: int | None) -> None:
        self._spec, self._limit = spec, limit
        self._both = spec.kind == "pairwise" and spec.orders == "both"
        self.model = _stem(path)
        mapping = {"id": "custom_id"}
        self.settings = {"mapping": mapping, "limit": limit, "format": "openai-batch"}
        self.digest = scan_records(path, [], mapping=mapping).digest
        self._db = sqlite3.connect("")
        self._db.execute("CREATE TABLE lines (place INTEGER PRIMARY KEY, id, swapped, told, place_told, problem)")
        named = None
        for record in read_records(path, [], mapping=mapping):
            if isinstance(record, BadRecord):
                self._put(record.id, False, None, record.where, record.problem)
                continue
            swapped = self._both and record.id.endswith(SWAPPED_ID)
            told = _told(record.fields)
            named = named or told.model
            whole = json.dumps([told.content, told.why, told.usage.model_dump()])
            self._put(
                record.id.removesuffix(SWAPPED_ID) if swapped else record.id, swapped, whole, record.where, ""
            )
        self.model = named or self.model
        self._db.execute("CREATE INDEX by_id ON lines (id)")
        self._any_swapped = bool(self._db.execute("SELECT 1 FROM lines WHERE swapped").fetchone())

    def _put(self, *row: Any) -> None:
        self._db.execute(
            "INSERT INTO lines (id, swapped, told, place_told, problem) VALUES (?, ?, ?, ?, ?)",
            row,
        )

    def close(self) -> None:
        self._db.close()

    def judgements(self, model: str) -> Judgements:
        first = "SELECT id FROM lines GROUP BY id ORDER BY MIN(place) LIMIT ?"
        lines = "SELECT told, place_told, problem, swapped FROM lines WHERE id = ? ORDER BY swapped"
        for (record_id,) in self._db.execute(first, (-1 if self._limit is None else self._limit,)):
            rows = self._db.execute(lines, (record_id,)).fetchall()
            bad = [BadRecord(record_id, where, problem) for _, where, problem, _ in rows if problem]
            yield (
                bad[0]
                if bad
                else self._verdict(record_id, {bool(swapped): told for told, _, _, swapped in rows}, model)
            )

    def _verdict(self, record_id: str, rows: Mapping[bool, str], model: str) -> Verdict:
        usage = Usage()
        told: list[dict[str, Answer] | AskFailed] = []
        for swapped in (False, True) if self._any_swapped else (False,):
            if swapped not in rows:
                order = "swapped" if swapped else "straight"
                told.append(AskFailed("engine_error", f"the batch has no answer for the {order} order"))
                continue
            content, why, used = json.loads(rows[swapped])
            usage += Usage(**used)
            told.append(self._read(content, why, swapped))
        try:
            verdict = _VERDICT_OF[self._spec.kind](self._spec, record_id, all_answered(told), model)
        except AskFailed as failure:
            verdict = Verdict(
                id=record_id, status=failure.status, error=failure.why, judge=self._spec.name, model=model
            )
        return verdict.model_copy(update={"usage": usage})

    def _read(self, content: str | None, why: str, swapped: bool) -> dict[str, Answer] | AskFailed:
        if content is None:
            return AskFailed("engine_error", why)
        try:
            answers = read_answers(content, self._spec.asked)
        except ValueError as error:
            return AskFailed("engine_error", f"the answer is not valid: {error}")
        return pairwise.swap_back(answers) if swapped else answers


def _told(line: Mapping[str, Any]) -> _Told:
    """Failed requests have an `error`, or a response whose status is not 200."""

    def within(value: Any, *way: str | int) -> Any:
        for step in way:
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                return None
        return value

    response = line.get("response")
    body = within(response, "body")
    error = line.get("error") or within(body, "error")
    status = within(response, "status_code")
    content = within(body, "choices", 0, "message", "content")
    model = within(body, "model")
    why = "the response holds no text"
    if error or status not in (None, 200):
        said = within(error, "message") or error or "no reason given"
        why = f"the request failed{f' with HTTP {status}' if status not in (None, 200) else ''}: {said}"
        content = None
    elif refusal := within(body, "choices", 0, "message", "refusal"):
        why, content = f"the model refused: {refusal}", None

    def tokens(*way: str) -> int:
        n = within(body, "usage", *way)
        return n if type(n) is int and n >= 0 else 0

    return _Told(
        content=content if isinstance(content, str) else None,
        why=why,
        model=model if isinstance(model, str) and model else None,
        usage=Usage(
            asks=1,
            prompt=tokens("prompt_tokens"),
            cached=tokens("prompt_tokens_details", "cached_tokens"),
            written=tokens("completion_tokens"),
        ),
    )
