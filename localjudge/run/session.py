"""A run from the command line: Ctrl-C and termination end it cleanly; a finished one can be reported anew."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Protocol, TypeVar

from localjudge.errors import EngineError, RunError
from localjudge.run.reports import one_report, template_of, write_reports
from localjudge.run.runner import judge_of, write_summary
from localjudge.run.store import RunDirectory

T_co = TypeVar("T_co", covariant=True)


class Job(Protocol[T_co]):
    """A run of one model, of a panel or of a suite."""

    @property
    def judging(self) -> bool: ...
    @property
    def stopping(self) -> bool: ...
    def stop(self) -> None: ...
    def go(self) -> Coroutine[Any, Any, T_co]: ...


def run_to_end(run: Job[T_co]) -> T_co | None:
    """Run until all is judged; None when SIGINT or SIGTERM stopped it. Verdicts reached are kept either way.

    Call it on the main thread, where signals arrive.
    """

    async def go() -> T_co | None:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(run.go())

        def stop(*_: object) -> None:
            run.stop()
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


def report_again(path: Path, record_id: str | None = None) -> str:
    """Write a run's summary.json and report.md anew from its verdicts, and its records' own reports where its judge
    has a template for them; the report's text. With a record's id: that record's report alone, which writes
    nothing. Raises RunError, RecordsError."""
    if not (path / "run.json").is_file():
        if runs := sorted(file.parent for file in path.glob("judges/*/run.json")):
            fix = f"give one of its judges' runs: {', '.join(map(str, runs))}"
            raise RunError(
                "this is a suite's folder, and each of its judges has a run of its own", where=str(path), fix=fix
            )
        raise RunError("this folder holds no run", where=str(path), fix="give the folder that `-o` named")
    directory = RunDirectory(path)
    try:
        run = directory.read_run()
        assert run is not None
        spec = judge_of(path, run)
        if record_id is not None:
            return one_report(path, spec, run, record_id)
        write_summary(path, spec, run)
        if template_of(run) and (failed := write_reports(path, spec, run)):
            raise failed
    finally:
        directory.close()
    return (path / "report.md").read_text(encoding="utf-8")
