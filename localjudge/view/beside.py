"""Several runs side by side, as the report compares them, made anew when one of them has grown."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from localjudge.errors import RunError
from localjudge.report.html.compare import Compared

T = TypeVar("T")


class Beside:
    """One comparison. As with `runs.Followed`, whatever is asked of it happens in one thread of its own."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = list(paths)
        self._stamps: list[tuple[int, int]] | None = None
        self._compared: Compared | None = None
        self._overview: dict[str, Any] = {}
        self._rows: list[dict[str, Any]] = []
        self._sides: dict[str, Any] = {}
        self._one = ThreadPoolExecutor(1, thread_name_prefix="localjudge-view")

    def overview(self) -> dict[str, Any]:
        """Raises RunError for runs that cannot be compared."""
        return self._do(lambda _: self._overview)

    def rows(self) -> list[dict[str, Any]]:
        return self._do(lambda _: self._rows)

    def detail(self, name: str) -> dict[str, Any]:
        """Raises RunError for a case that there is not."""

        def told(compared: Compared) -> dict[str, Any]:
            if name not in self._sides:
                raise RunError(f"there is no case '{name}'")
            return compared.detail_of(name, self._sides[name])

        return self._do(told)

    def close(self) -> None:
        if self._compared is not None:
            self._one.submit(self._compared.close).result()
        self._one.shutdown()

    def _do(self, work: Callable[[Compared], T]) -> T:
        return self._one.submit(lambda: work(self._current())).result()

    def _current(self) -> Compared:
        stamps = [_stamp(path / "verdicts.jsonl") for path in self.paths]
        if self._compared is not None and stamps == self._stamps:
            return self._compared
        compared = Compared(self.paths)
        try:
            sides = dict(compared.pairs())
            rows = [compared.row(name, each) for name, each in sides.items()]
            overview = compared.overview()
        except BaseException:
            compared.close()
            raise
        if self._compared is not None:
            self._compared.close()
        self._compared, self._stamps = compared, stamps
        self._sides, self._rows, self._overview = sides, rows, overview
        return compared


def _stamp(path: Path) -> tuple[int, int]:
    with contextlib.suppress(OSError):
        status = path.stat()
        return status.st_ino, status.st_size
    return 0, 0
