"""From a run's folder to agreement.json, agreement.md and figures in it; the same for calibration and
comparison.

Reads, calls what computes, and writes; counts nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from localjudge.agreement import figures
from localjudge.agreement.agree import Agreement, agree
from localjudge.agreement.calibrate import Calibration, Method, calibrate, write
from localjudge.agreement.compare import Comparison, compare
from localjudge.agreement.join import Joined, Opened, join, open_run
from localjudge.agreement.render import agreement_markdown
from localjudge.run.store import write_atomically

FIGURES = "figures"


@dataclass(frozen=True)
class Asked:
    """What labels there are and how to join them: see `join`."""

    golds: Sequence[str]
    slices: Sequence[str] = ()
    group: str | None = None
    records: Path | None = None
    gold_id: str | None = None
    theirs: Mapping[str, str] = field(default_factory=dict)

    def joined(self, opened: Opened) -> list[Joined]:
        return join(
            opened,
            self.golds,
            slices=self.slices,
            group=self.group,
            records=self.records,
            gold_id=self.gold_id,
            theirs=self.theirs,
        )


def agree_run(
    path: Path, asked: Asked, *, seed: int = 0, epsilon: float = 0.2, draw: bool = True
) -> tuple[Agreement, list[Path]]:
    """Hold a run against people; write agreement.json and agreement.md into it, and figures/ where matplotlib
    is here. The result, and the files written. Raises LocalJudgeError."""
    opened = open_run(path)
    data = asked.joined(opened)
    result = agree(opened, data, asked.golds, seed, epsilon)
    drawn: dict[str, list[str]] = {}
    if draw and figures.available():
        for held, one in zip(result.held, data, strict=True):
            drawn[held.target] = [f"{FIGURES}/{name}" for name in figures.draw(held, one, path / FIGURES)]
    write_atomically(path / "agreement.json", result.model_dump_json(indent=1) + "\n")
    write_atomically(path / "agreement.md", agreement_markdown(result, drawn))
    files = [path / "agreement.json", path / "agreement.md"]
    return result, files + [path / name for names in drawn.values() for name in names]


def calibrate_run(
    path: Path,
    asked: Asked,
    out: Path,
    *,
    method: Method | None = None,
    wanted: Sequence[float] = (),
    seed: int = 0,
    draw: bool = True,
) -> tuple[Calibration, list[Path]]:
    """Fit and write a calibration, with its reliability and risk-coverage figures beside it. Raises
    LocalJudgeError."""
    opened = open_run(path)
    calibration = calibrate(opened, asked.joined(opened), asked.golds, method=method, wanted=wanted, seed=seed)
    write(calibration, out)
    files = [out]
    if draw and figures.available():
        for name, it in calibration.evidence.items():
            stem = f"{out.stem}-{name.replace('.', '-')}"
            drawn = figures.draw_calibration(name, it, stem, out.parent / FIGURES)
            files += [out.parent / FIGURES / picture for picture in drawn]
    return calibration, files


def compare_runs(
    paths: Sequence[Path], asked: Asked, *, seed: int = 0, out: Path | None = None
) -> list[Comparison]:
    """Compare runs over the records that all of them judged; write the comparison as JSON if asked. Raises
    LocalJudgeError."""
    runs = [open_run(path) for path in paths]
    result = compare(runs, [asked.joined(run) for run in runs], asked.golds, seed)
    if out is not None:
        write_atomically(out, "[" + ",\n".join(one.model_dump_json(indent=1) for one in result) + "]\n")
    return result
