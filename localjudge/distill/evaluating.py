"""An evaluation from the command line: what is given as a model judges first, one after the other on this machine,
so that speeds may be compared; then the runs are measured, and what came out is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from localjudge.adapters import PROVENANCE
from localjudge.distill.card import evaluation_markdown, write_card
from localjudge.distill.evaluate import FILE, ROLES, Evaluation, Role, Wanted, keep, measure
from localjudge.run.runner import Run
from localjudge.run.store import write_atomically, writing

LABELS = "teacher-labels.jsonl"


@dataclass
class EvaluationRun:
    """given: a run's folder, or a run that is to be made. out: the folder of evaluation.json and evaluation.md;
    where a student's training is told there too (distill.json), its model card is written anew."""

    given: Mapping[Role, Path | Run]
    out: Path
    wanted: Wanted
    say: Callable[[str], None] = lambda text: None
    stopping: bool = field(default=False, init=False)
    _current: Run | None = field(default=None, init=False)

    @property
    def judging(self) -> bool:
        """As of a run."""
        return self._current is not None and self._current.judging

    def stop(self) -> None:
        self.stopping = True
        if self._current:
            self._current.stop()

    async def go(self) -> tuple[Evaluation, list[Path]]:
        """The figures, and the files written. Raises LocalJudgeError; what is judged is kept."""
        runs: dict[Role, Path] = {}
        for role in ROLES:
            one = self.given.get(role)
            if isinstance(one, Run):
                self.say(f"{role}: {one.model.name}")
                self._current = one
                await one.go()
                self._current = None
                runs[role] = one.directory
            elif one is not None:
                runs[role] = one
        with writing(self.out):
            self.out.mkdir(parents=True, exist_ok=True)
        found = measure(runs, self.wanted, self.out / LABELS)
        whole = keep(self.out, found)
        write_atomically(self.out / "evaluation.md", evaluation_markdown(whole))
        files = [self.out / FILE, self.out / "evaluation.md"]
        if (self.out / PROVENANCE).is_file():
            files.append(write_card(self.out))
        return found, files
