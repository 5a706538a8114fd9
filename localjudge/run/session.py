"""A run from the command line: Ctrl-C and termination end it cleanly; a finished one can be reported anew."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from localjudge.errors import RunError
from localjudge.judge.spec import JudgeSpec
from localjudge.report.summary import Summary
from localjudge.run.runner import Run, write_summary
from localjudge.run.store import RunDirectory


def run_to_end(run: Run) -> Summary | None:
    """Run until all is judged; None when a signal stopped it. Verdicts reached are kept either way."""

    async def go() -> Summary | None:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(run.go())
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        try:
            return await task
        except asyncio.CancelledError:
            return None

    return asyncio.run(go())


def report_again(path: Path) -> str:
    """Write a run's summary.json and report.md anew from its verdicts; the report's text. Raises RunError."""
    if not (path / "run.json").is_file():
        raise RunError("this folder holds no run", where=str(path), fix="give the folder that `-o` named")
    directory = RunDirectory(path)
    try:
        run = directory.read_run()
        assert run is not None
        write_summary(path, JudgeSpec.model_validate(run["spec"]), run)
    finally:
        directory.close()
    return (path / "report.md").read_text(encoding="utf-8")
