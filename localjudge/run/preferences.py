"""A dual-control judge's run as preference pairs: of several responses to one task, which serves a persona
better; in the conversational form that trl reads (prompt, chosen, rejected: lists of messages), each pair with
its persona.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from localjudge.errors import RunError
from localjudge.judge.dual_control import fuse, section_of
from localjudge.judge.measuring import texts_of
from localjudge.judge.spec import JudgeSpec
from localjudge.records import BadRecord, Record, read_records
from localjudge.run.reports import placed, records_file
from localjudge.run.store import VerdictsById
from localjudge.verdict import Verdict

LEAST_MARGIN = 0.1
"""What two responses must be apart by, 0 to 1, to be a pair."""

Candidate = Mapping[str, Any]


class Preferences:
    """The pairs of a run. left_out: records that can be in none; first_left_out: where the first is, and why. Both
    are known when all rows have been read."""

    def __init__(
        self, directory: Path, run: Mapping[str, Any], spec: JudgeSpec, margin: float = LEAST_MARGIN
    ) -> None:
        """Raises RunError for a run of another kind, RecordsError when the records are gone."""
        if spec.dual_control is None:
            what = f"'{spec.name}' is a {spec.kind} judge: preferences are of a dual-control judge's personas"
            raise RunError(what, where="--to preferences", fix="export the verdicts with --to jsonl")
        self._directory, self._run, self._spec, self._margin = directory, run, spec, margin
        self._records = records_file(directory, run)
        self.left_out = 0
        self.first_left_out: str | None = None

    def _leave_out(self, where: str, why: str) -> None:
        self.left_out += 1
        self.first_left_out = self.first_left_out or placed(why, where)

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row a pair and persona: prompt, chosen, rejected, persona, margin; also case, chosen_id, rejected_id,
        chosen_score and rejected_score.

        Responses are held against each other when their tasks are the same to the letter, and so are their `case`s,
        where records have one. A score is what a response's technical score and this persona's come to, by the
        judge's profile and gate; one is chosen only if it has passed the gate.
        """
        # On disk, as the responses to a task may lie far apart in a run of any size.
        with contextlib.closing(sqlite3.connect("")) as held:
            held.execute("CREATE TABLE candidates (task TEXT, number INTEGER, candidate TEXT)")
            held.executemany("INSERT INTO candidates VALUES (?, ?, ?)", self._candidates())
            held.execute("CREATE INDEX tasks ON candidates (task, number)")
            tasks = held.execute(
                "SELECT task FROM candidates GROUP BY task HAVING count(*) > 1 ORDER BY min(number)"
            )
            for (task,) in tasks.fetchall():
                told = held.execute("SELECT candidate FROM candidates WHERE task = ? ORDER BY number", (task,))
                yield from pairs([json.loads(text) for (text,) in told], self._margin)

    def _candidates(self) -> Iterator[tuple[str, int, str]]:
        settings = self._run["settings"]
        section = section_of(self._spec)
        with contextlib.closing(VerdictsById(self._directory)) as verdicts:
            records = read_records(
                self._records, self._spec.inputs, mapping=settings["mapping"], limit=settings["limit"]
            )
            for number, record in enumerate(records):
                verdict = verdicts.get(record.id)
                if verdict is None:
                    continue
                if isinstance(record, BadRecord) or verdict.dual is None:
                    self._leave_out(record.where, verdict.error or "it was not judged")
                elif self._spec.takes_images and self._has_images(record):
                    self._leave_out(record.where, "its task has images, which the pairs do not carry")
                else:
                    prompt = [
                        text
                        for item in self._spec.inputs
                        if item.name != section.response
                        for text in texts_of(record.fields.get(item.name))
                    ]
                    case = record.fields.get("case")
                    task = hashlib.sha256(json.dumps([case, prompt]).encode()).hexdigest()
                    candidate = {
                        "id": record.id,
                        "case": None if case is None else str(case),
                        "system": record.fields.get("system_prompt"),
                        "prompt": "\n\n".join(prompt),
                        "response": record.fields[section.response],
                        **self._scores(verdict),
                    }
                    yield task, number, json.dumps(candidate)

    def _has_images(self, record: Record) -> bool:
        return any(record.fields.get(item.name) for item in self._spec.inputs if item.type == "images")

    def _scores(self, verdict: Verdict) -> dict[str, Any]:
        """passed_gate; scores: persona -> score; otherwise: that of a persona who was not asked, as the gate
        had failed it before anybody was."""
        dual, section = verdict.dual, section_of(self._spec)
        assert dual is not None
        return {
            "passed_gate": not dual.gate,
            "scores": {
                name: fuse(section, dual.technical, score, bool(dual.gate)).overall
                for name, score in dual.personas.items()
            },
            "otherwise": verdict.overall if dual.skipped else None,
        }


def pairs(candidates: Sequence[Candidate], margin: float) -> Iterator[dict[str, Any]]:
    """The pairs among the responses to one task: persona by persona, in the order of the records."""
    personas = dict.fromkeys(name for candidate in candidates for name in candidate["scores"])
    for persona in personas:
        scored = [(one, one["scores"].get(persona, one["otherwise"])) for one in candidates]
        known = [(one, score) for one, score in scored if score is not None]
        for (one, a), (other, b) in itertools.combinations(known, 2):
            (chosen, high), (rejected, low) = ((one, a), (other, b)) if a >= b else ((other, b), (one, a))
            apart = high - low
            if apart < margin or not apart or not chosen["passed_gate"]:
                continue
            if chosen["response"] == rejected["response"]:
                continue
            # One prompt is all that a pair can have: what only one of them was told is left out of it.
            shared = chosen["system"] if chosen["system"] == rejected["system"] else None
            system = [{"role": "system", "content": shared}] if isinstance(shared, str) and shared else []
            yield {
                "prompt": [*system, {"role": "user", "content": chosen["prompt"]}],
                "chosen": [{"role": "assistant", "content": chosen["response"]}],
                "rejected": [{"role": "assistant", "content": rejected["response"]}],
                "persona": persona,
                "margin": apart,
                "case": chosen["case"],
                "chosen_id": chosen["id"],
                "rejected_id": rejected["id"],
                "chosen_score": high,
                "rejected_score": low,
            }
