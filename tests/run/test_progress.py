"""A run says how far it is: in a bar on a terminal, in a line now and then elsewhere."""

from __future__ import annotations

import io
import re
import time

import pytest
from rich.console import Console

from localjudge.run.progress import RunProgress


class Clock:
    """A clock that the story moves."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("localjudge.run.progress.time.monotonic", clock.monotonic)
    return clock


def test_elsewhere_one_line_is_said_every_half_minute(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with RunProgress(10_000, 4_000, Console(file=io.StringIO())) as shown:
        for second in range(1, 101):
            clock.now = 1000.0 + second
            shown.add("engine_error" if second % 50 == 0 else "ok")
            shown.add("too_long" if second == 1 else "ok")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "4059 of 10000 judged, 2.0 verdicts/s, 0:50:21 left, too_long: 1",
        "4119 of 10000 judged, 2.0 verdicts/s, 0:49:25 left, engine_error: 1 too_long: 1",
        "4179 of 10000 judged, 2.0 verdicts/s, 0:48:47 left, engine_error: 1 too_long: 1",
    ]
    assert shown.judged == 200


def test_the_line_says_where_the_run_stands(clock: Clock) -> None:
    shown = RunProgress(100, 20, Console(file=io.StringIO()))
    for _ in range(40):
        shown.add("ok")
    clock.now += 10
    assert shown.line() == "60 of 100 judged, 4.0 verdicts/s, 0:00:10 left"
    clock.now += 7200
    assert "2:00:10 left" in shown.line()


def test_before_the_first_verdict_nothing_is_promised(clock: Clock) -> None:
    shown = RunProgress(100, 20, Console(file=io.StringIO()))
    clock.now += 10
    assert shown.line() == "20 of 100 judged"


def test_on_a_terminal_there_is_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    screen = io.StringIO()
    with RunProgress(50, 10, Console(file=screen, force_terminal=True, width=120)) as shown:
        for n in range(40):
            shown.add("too_long" if n < 3 else "ok")
            time.sleep(0.005)
    told = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()).replace("\r", "\n").splitlines()
    last = next(line for line in reversed(told) if "judging" in line)
    assert "50/50" in last
    assert "verdicts/s" in last
    assert "too_long: 3" in last
    assert any(" 10/50" in line for line in told)
    assert capsys.readouterr().err == ""


def test_a_bar_is_taken_down_when_the_run_fails() -> None:
    screen = io.StringIO()
    with pytest.raises(KeyError), RunProgress(5, 0, Console(file=screen, force_terminal=True)) as shown:
        shown.add("ok")
        raise KeyError
    assert screen.getvalue().rstrip("\n").endswith("\x1b[?25h")  # the cursor is back
