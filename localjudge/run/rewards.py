"""A checklist judge's run as a training signal: a reward for each response, and for each item of its checklist."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from localjudge.errors import RunError
from localjudge.judge.checklist import task_of
from localjudge.judge.spec import JudgeSpec
from localjudge.records import Record, read_records
from localjudge.run.reports import records_file
from localjudge.run.store import VerdictsById
from localjudge.verdict import Verdict


def rewards(directory: Path, run: Mapping[str, Any], spec: JudgeSpec) -> Iterator[dict[str, Any]]:
    """A row a judged record, in the records' order.

    id, prompt (the task's texts), images (their sha256), completion (the response); reward, the overall, 0 to 1;
    essential, additional: the same of these items, or None; items: each with its id, essential, criterion,
    reference, weight, credit (0, 0.5, 1; where it was read from probabilities, its mean), rationale, and reward,
    its part of the whole: credit x weight / sum of weights, so that they add up to the overall before rounding.

    Raises RunError for a run of another kind, RecordsError when the records are gone.
    """
    section = spec.checklist
    if section is None:
        what = f"'{spec.name}' is a {spec.kind} judge: rewards are of a checklist judge's items"
        raise RunError(what, where="--to rewards", fix="export the overall and the scores with --to jsonl")
    path, settings = records_file(directory, run), run["settings"]
    with contextlib.closing(VerdictsById(directory)) as verdicts:
        for record in read_records(path, spec.inputs, mapping=settings["mapping"], limit=settings["limit"]):
            verdict = verdicts.get(record.id)
            if isinstance(record, Record) and verdict is not None and verdict.items:
                task = task_of(spec, record.fields)
                texts = [text if isinstance(text, str) else json.dumps(text) for text in task.text.values()]
                yield {
                    "id": record.id,
                    "prompt": "\n\n".join(texts),
                    "images": task.images,
                    "completion": record.fields[section.response],
                    **_of(verdict),
                }


def _of(verdict: Verdict) -> dict[str, Any]:
    items = verdict.items or []
    total = sum(item.weight for item in items)
    rows = []
    for item in items:
        expected = verdict.answers[item.id].expected
        credit = item.credit if expected is None else expected
        row = {**item.model_dump(), "credit": credit, "reward": credit * item.weight / total}
        rows.append(row)
    return {
        "reward": verdict.overall,
        "essential": verdict.scores.get("essential"),
        "additional": verdict.scores.get("additional"),
        "items": rows,
    }
