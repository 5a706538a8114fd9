"""A run from the command line: Ctrl-C and termination end it cleanly; a finished one can be reported anew."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from localjudge.errors import EngineError, RunError
from localjudge.report.summary import Summary
from localjudge.run.runner import Run, judge_of, write_summary
from localjudge.run.store import RunDirectory


def run_to_end(run: Run) -> Summary | None:
    """Run until all is judged; None when SIGINT or SIGTERM stopped it. Verdicts reached are kept either way.

    Call it on the main thread, where signals arrive.
    """

    async def go() -> Summary | None:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(run.go())

        def stop(*_: object) -> None:
            run.stopping = True
            loop.call_soon_threadsafe(task.cancel)
            # Reading records and loading a model do not give way to the loop, and take minutes: break into them.
            if not run.judging and asyncio.current_task(loop) is task:
                raise asyncio.CancelledError

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            return await task
        except asyncio.CancelledError:
            return None
        except EngineError:
            if run.stopping:  # the engine's process was told to stop as well, and was quicker
                return None
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    return asyncio.run(go())


def report_again(path: Path) -> str:
    """Write a run's summary.json and report.md anew from its verdicts; the report's text. Raises RunError."""
    if not (path / "run.json").is_file():
        raise RunError("this folder holds no run", where=str(path), fix="give the folder that `-o` named")
    directory = RunDirectory(path)
    try:
        run = directory.read_run()
        assert run is not None
        write_summary(path, judge_of(path, run), run)
    finally:
        directory.close()
    return (path / "report.md").read_text(encoding="utf-8")
