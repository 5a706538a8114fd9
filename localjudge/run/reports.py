"""The reports of single records in a run's folder, made of its verdicts and the records that they judge."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from localjudge.engines.base import AskFailed
from localjudge.errors import RecordsError, RunError, did_you_mean
from localjudge.judge.checks import Checked
from localjudge.judge.prompt import Source
from localjudge.judge.rubric import checked_of
from localjudge.judge.spec import JudgeSpec
from localjudge.records import BadRecord, Record, read_records
from localjudge.report.record import RecordReport
from localjudge.run.store import VerdictsById, write_atomically


def report_file(directory: Path, record_id: str) -> Path:
    """Where a record's report lies. Ids that are no file name are told apart by a hash."""
    plain = re.sub(r"[^\w.-]", "_", record_id)[:80]
    mark = "" if plain == record_id else f"-{hashlib.sha256(record_id.encode()).hexdigest()[:8]}"
    return directory / "reports" / f"{plain}{mark}.md"


def template_of(run: Mapping[str, Any]) -> Source | None:
    """The report template that run.json keeps."""
    kept = run.get("report")
    return Source(*kept) if kept else None


def placed(why: str, where: str) -> str:
    """A reason with its record's place in front, which one that a verdict gives may have already."""
    return why if why.startswith(where) else f"{where}: {why}"


def write_reports(directory: Path, spec: JudgeSpec, run: Mapping[str, Any]) -> RunError | None:
    """Write each judged record's report into reports/. Where the template fails on some, the others are written all
    the same, and the error to tell is returned. Raises RunError for a broken template, RecordsError."""
    report = RecordReport(spec, template_of(run))
    failed, written = list[RunError](), 0
    with contextlib.closing(VerdictsById(directory)) as verdicts:
        for record in _records(directory, spec, run):
            verdict = verdicts.get(record.id)
            if verdict is None:
                continue
            file = report_file(directory, record.id)
            try:
                text = report.render(record.id, record.fields, verdict, checked_or_not(spec, record))
            except RunError as error:
                file.unlink(missing_ok=True)  # that of an earlier sitting is no longer this record's
                failed.append(error)
                continue
            file.parent.mkdir(exist_ok=True)
            write_atomically(file, text)
            written += 1
    if not failed:
        return None
    first = failed[0]
    fix = (
        f"{len(failed)} of {len(failed) + written} reports could not be made; the verdicts and the others are whole"
    )
    return RunError(first.what, where=first.where, fix=fix)


def one_report(directory: Path, spec: JudgeSpec, run: Mapping[str, Any], record_id: str) -> str:
    """The report of one record. Raises RunError for an id that the run has no verdict of, RecordsError when the
    records are not where they were."""
    with contextlib.closing(VerdictsById(directory)) as verdicts:
        verdict = verdicts.get(record_id)
        if verdict is None:
            fix = did_you_mean(record_id, verdicts.ids()) if len(verdicts) <= 10_000 else None
            raise RunError(f"there is no verdict on a record '{record_id}'", where=str(directory), fix=fix)
    record = next((record for record in _records(directory, spec, run) if record.id == record_id), None)
    if record is None:
        raise RecordsError(f"the records no longer hold '{record_id}'", where=str(records_file(directory, run)))
    report = RecordReport(spec, template_of(run))
    return report.render(record_id, record.fields, verdict, checked_or_not(spec, record))


def records_file(directory: Path, run: Mapping[str, Any]) -> Path:
    """The records of the run in this folder: where they were, or, as those of a suite lie in its own folder, where
    they went when that was moved. Raises RecordsError."""
    path, suite = Path(run["paths"]["records"]), directory.resolve().parent.parent
    if path.exists():
        return path
    if (suite / "suite.json").is_file() and (moved := suite / "records" / path.name).is_file():
        return moved
    raise RecordsError("the run's records are not there any more", where=str(path), fix="put them back")


def _records(directory: Path, spec: JudgeSpec, run: Mapping[str, Any]) -> Iterator[Record]:
    path, settings = records_file(directory, run), run["settings"]
    for record in read_records(path, spec.inputs, mapping=settings["mapping"], limit=settings["limit"]):
        # What could not be judged has its verdict to show all the same.
        yield Record(record.id, {}, record.where) if isinstance(record, BadRecord) else record


def checked_or_not(spec: JudgeSpec, record: Record) -> Checked:
    with contextlib.suppress(AskFailed):
        return checked_of(spec, record.fields)
    return Checked()
