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


def write_reports(directory: Path, spec: JudgeSpec, run: Mapping[str, Any]) -> int:
    """Write each judged record's report into reports/; how many. Raises RunError, RecordsError."""
    report = RecordReport(spec, template_of(run))
    written = 0
    with contextlib.closing(VerdictsById(directory)) as verdicts:
        for record in _records(spec, run):
            verdict = verdicts.get(record.id)
            if verdict is None:
                continue
            file = report_file(directory, record.id)
            file.parent.mkdir(exist_ok=True)
            write_atomically(file, report.render(record.id, record.fields, verdict, _checked(spec, record)))
            written += 1
    return written


def one_report(directory: Path, spec: JudgeSpec, run: Mapping[str, Any], record_id: str) -> str:
    """The report of one record. Raises RunError for an id that the run has no verdict of, RecordsError when the
    records are not where they were."""
    with contextlib.closing(VerdictsById(directory)) as verdicts:
        verdict = verdicts.get(record_id)
        if verdict is None:
            fix = did_you_mean(record_id, verdicts.ids()) if len(verdicts) <= 10_000 else None
            raise RunError(f"there is no verdict on a record '{record_id}'", where=str(directory), fix=fix)
    record = next((record for record in _records(spec, run) if record.id == record_id), None)
    if record is None:
        raise RecordsError(f"the records no longer hold '{record_id}'", where=run["paths"]["records"])
    return RecordReport(spec, template_of(run)).render(record_id, record.fields, verdict, _checked(spec, record))


def _records(spec: JudgeSpec, run: Mapping[str, Any]) -> Iterator[Record]:
    path, settings = Path(run["paths"]["records"]), run["settings"]
    if not path.exists():
        raise RecordsError("the run's records are not there any more", where=str(path), fix="put them back")
    for record in read_records(path, spec.inputs, mapping=settings["mapping"], limit=settings["limit"]):
        # What could not be judged has its verdict to show all the same.
        yield Record(record.id, {}, record.where) if isinstance(record, BadRecord) else record


def _checked(spec: JudgeSpec, record: Record) -> Checked:
    with contextlib.suppress(AskFailed):
        return checked_of(spec, record.fields)
    return Checked()
