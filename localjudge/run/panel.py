"""A run of several models on the same records: one after the other, since few fit together, then their panel.

Each member is a run like any other, in members/<model> of the panel's folder, resumed as such. The panel's verdicts
are made of theirs once all have judged, and made anew whenever it is run again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localjudge.errors import EngineError, ModelError, RunError
from localjudge.judge.panel import Combine, combine
from localjudge.report.summary import Summary
from localjudge.run.reports import write_reports
from localjudge.run.runner import PANEL, Run, write_summary
from localjudge.run.store import RunDirectory, VerdictsById, claim, read_verdicts, writing
from localjudge.verdict import Verdict


def member_folder(directory: Path, model: str) -> Path:
    """Where a member's run lies; its model's name, with what no file name takes replaced."""
    return directory / "members" / re.sub(r"[^\w.-]", "_", model)


@dataclass
class PanelRun:
    """Several runs that differ in their model alone, and the panel of their verdicts."""

    members: Sequence[Run]
    directory: Path
    combine: Combine
    say: Callable[[str], None] = lambda text: None
    stopping: bool = field(default=False, init=False)
    _current: Run | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        prints = [member.model.fingerprint for member in self.members]
        folders = [member.directory.name for member in self.members]
        for place, member in enumerate(self.members):
            if prints[place] in prints[:place]:
                fix = "--samples asks one model several times"
                raise RunError(f"the panel has '{member.model.name}' twice", where="-m", fix=fix)
            if folders[place] in folders[:place]:
                fix = "give one of the models' folders another name"
                raise RunError(
                    f"two of the panel's models would both be called '{folders[place]}'", where="-m", fix=fix
                )

    @property
    def judging(self) -> bool:
        """As of a run: whether it is to be stopped by cancelling `go`."""
        return self._current is not None and self._current.judging

    def stop(self) -> None:
        self.stopping = True
        if self._current:
            self._current.stop()

    async def go(self) -> Summary:
        """Let each member judge what it has not judged yet, then combine. Raises LocalJudgeError; that of a
        member's model names it. What all of them have judged is kept."""
        directory = RunDirectory(self.directory)
        try:
            self._claim()
            for number, member in enumerate(self.members, 1):
                self.say(f"member {number} of {len(self.members)}: {member.model.name}")
                self._current = member
                try:
                    await member.go()
                except (EngineError, ModelError) as error:
                    raise type(error)(
                        f"the panel's member '{member.model.name}' stopped: {error.what}",
                        where=error.where,
                        fix=f"{error.fix}\n  "
                        * bool(error.fix)
                        + "what all members have judged is kept, and the same command goes on; "
                        "or leave the member out, with another -o",
                    ) from error
            self._current = None
            return self._combine(directory)
        finally:
            directory.close()

    @property
    def _judges(self) -> dict[str, Any]:
        return {
            "combine": self.combine,
            "members": {member.model.name: member.model.fingerprint for member in self.members},
        }

    def _claim(self) -> None:
        """Make the folder this panel's. Raises RunError when it is another's, or that of one model."""
        file = self.directory / PANEL
        if not file.is_file() and (self.directory / "run.json").is_file():
            what = "this folder holds the run of one model"
            raise RunError(what, where=str(self.directory), fix="give another -o")
        claim(file, self._judges, "another panel's run", "give another -o, or run with what made it")

    def _combine(self, directory: RunDirectory) -> Summary:
        own = [_read(member.directory) for member in self.members]
        names = [member.model.name for member in self.members]
        panel = " + ".join(names)
        written = 0
        temporary = directory.verdicts_file.with_name(".verdicts.jsonl.tmp")
        with writing(temporary), temporary.open("w", encoding="utf-8") as file:
            for told in _joined([member.directory for member in self.members]):
                # A model that was sampled several times sits on the panel with each of its samples.
                flat = [each for verdict in told for each in verdict.members or [verdict]]
                verdict = combine(self.members[0].spec, told[0].id, flat, self.combine, panel)
                file.write(verdict.model_dump_json() + "\n")
                written += 1
        temporary.replace(directory.verdicts_file)
        seconds = sum(session["seconds"] for run in own for session in run["sessions"])
        fingerprint = json.dumps(self._judges, sort_keys=True)
        run = {
            **own[0],
            "model": {"name": panel, "fingerprint": hashlib.sha256(fingerprint.encode()).hexdigest()},
            "panel": self._judges,
            "engine": {member.model.name: made["engine"] for member, made in zip(self.members, own, strict=True)},
            "labels": {
                member.model.name: made.get("labels") for member, made in zip(self.members, own, strict=True)
            },
            "paths": {**own[0]["paths"], "model": None},
            "sessions": [{"judged": written, "seconds": round(seconds, 3)}],
        }
        directory.write_run(run)
        spec = self.members[0].spec
        summary = write_summary(self.directory, spec, run)
        if spec.report:
            write_reports(self.directory, spec, run)
        return summary


def _read(directory: Path) -> dict[str, Any]:
    with contextlib.closing(RunDirectory(directory)) as held:
        run = held.read_run()
    assert run is not None
    return run


def _joined(directories: Sequence[Path]) -> Iterator[list[Verdict]]:
    """The verdicts of each record in all runs that have one, joined by id, in the order of the first run."""
    first, *others = directories
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(contextlib.closing(VerdictsById(other))) for other in others]
        for verdict in read_verdicts(first):
            yield [verdict, *(told for other in found if (told := other.get(verdict.id)) is not None)]
