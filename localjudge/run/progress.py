"""How far a run is: a live bar on a terminal, one plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

PLAIN_EVERY = 30.0
"""Seconds between two plain lines."""


class RunProgress:
    """Counts verdicts as they come. total: records in all; done: those judged before this session."""

    def __init__(self, total: int, done: int, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._total, self._before = total, done
        self._statuses: Counter[str] = Counter()
        self._started = self._said = time.monotonic()
        self._bar: Progress | None = None
        self._task: Any = None

    def __enter__(self) -> RunProgress:
        self._started = self._said = time.monotonic()
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("judging"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[statuses]}"),
                console=self._console,
            )
            self._task = self._bar.add_task(
                "judging", total=self._total, completed=self._before, rate="", statuses=""
            )
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    @property
    def judged(self) -> int:
        return self._statuses.total()

    def add(self, status: str) -> None:
        self._statuses[status] += 1
        if self._bar:
            self._bar.update(self._task, advance=1, rate=self._rate(), statuses=self._failures())
        elif time.monotonic() - self._said >= PLAIN_EVERY:
            self._said = time.monotonic()
            print(self.line(), file=sys.stderr, flush=True)

    def line(self) -> str:
        """Where the run stands, in one line."""
        done = self._before + self.judged
        parts = [f"{done} of {self._total} judged"]
        if self.judged:
            left = (self._total - done) * (time.monotonic() - self._started) / self.judged
            parts += [self._rate(), f"{_duration(left)} left", self._failures()]
        return ", ".join(part for part in parts if part)

    def _rate(self) -> str:
        seconds = time.monotonic() - self._started
        return f"{self.judged / seconds:.1f} verdicts/s" if seconds > 0 else ""

    def _failures(self) -> str:
        return " ".join(f"{status}: {n}" for status, n in sorted(self._statuses.items()) if status != "ok")


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
