"""A checklist judge's run as a training signal: a reward for each response, and for each item of its checklist."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from localjudge.errors import RunError
from localjudge.judge.checklist import section_of, task_of
from localjudge.judge.spec import JudgeSpec
from localjudge.records import BadRecord, read_records
from localjudge.run.reports import placed, records_file
from localjudge.run.store import VerdictsById
from localjudge.verdict import Verdict


class Rewards:
    """The rewards of a run. left_out: records that have none; first_left_out: where the first is, and why. Both are
    known when all rows have been read."""

    def __init__(self, directory: Path, run: Mapping[str, Any], spec: JudgeSpec) -> None:
        """Raises RunError for a run of another kind, RecordsError when the records are gone."""
        if spec.checklist is None:
            what = f"'{spec.name}' is a {spec.kind} judge: rewards are of a checklist judge's items"
            raise RunError(what, where="--to rewards", fix="export the overall and the scores with --to jsonl")
        self._directory, self._run, self._spec = directory, run, spec
        self._records = records_file(directory, run)
        self.left_out = 0
        self.first_left_out: str | None = None

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row a judged record, in the records' order.

        id, prompt (the task's texts), images (their sha256), completion (the response); reward, the overall, 0 to
        1; essential, additional: the same of these items, or None; items: each with its id, essential, criterion,
        reference, weight, credit (0, 0.5, 1; where it was read from probabilities, its mean), rationale, and
        reward, its part of the whole: credit x weight / sum of weights, so that they add up to the overall before
        rounding. A panel has no items, as each of its members may have graded by a checklist of its own.
        """
        settings, response = self._run["settings"], section_of(self._spec).response
        with contextlib.closing(VerdictsById(self._directory)) as verdicts:
            for record in read_records(
                self._records, self._spec.inputs, mapping=settings["mapping"], limit=settings["limit"]
            ):
                verdict = verdicts.get(record.id)
                if isinstance(record, BadRecord) or verdict is None or verdict.status != "ok":
                    why = (verdict and verdict.error) or "it was not judged"
                    self.left_out += 1
                    self.first_left_out = self.first_left_out or placed(why, record.where)
                    continue
                task = task_of(self._spec, record.fields)
                texts = [text if isinstance(text, str) else json.dumps(text) for text in task.text.values()]
                yield {
                    "id": record.id,
                    "prompt": "\n\n".join(texts),
                    "images": task.images,
                    "completion": record.fields[response],
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
