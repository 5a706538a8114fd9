"""The errors a user can meet. Each says what is wrong, where, and how to mend it; none needs a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LocalJudgeError(Exception):
    """Something the user can mend.

    what: one sentence. where: a file, line or field. fix: the exact remedy, or nothing when `what` says it all.
    """

    def __init__(self, what: str, *, where: str | None = None, fix: str | None = None) -> None:
        self.what, self.where, self.fix = what, where, fix
        super().__init__(str(self))

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        return f"{head}\n  {self.fix}" if self.fix else head


class JudgeError(LocalJudgeError):
    """A judge file, one of its templates or its grammar is wrong."""


class RecordsError(LocalJudgeError):
    """The records cannot be read, or some of them are not what the judge needs."""


class ModelError(LocalJudgeError):
    """A model is unknown, unsafe, incomplete or unfit."""


class EngineError(LocalJudgeError):
    """The engine cannot start, or has stopped for good: no further ask can be answered."""


class RunError(LocalJudgeError):
    """A run directory cannot be used."""


class BundleError(LocalJudgeError):
    """A bundle cannot be made, or is not what its maker made."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` is most likely a slip of, if any is close."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A ready remedy: the nearest known name, else all of them."""
    known = sorted(known)
    close = nearest(name, known)
    if close:
        return f"did you mean '{close}'?"
    return f"known: {', '.join(known)}" if known else "none is known here"
