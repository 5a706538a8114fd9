"""localjudge judges the outputs of language models wholly on one's own machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from localjudge.api import judge_records, judge_records_async, load_model
    from localjudge.judge.loading import load_judge
    from localjudge.verdict import Verdict

__version__ = "0.1.0"
__all__ = ["Verdict", "__version__", "judge_records", "judge_records_async", "load_judge", "load_model"]

_HOMES = {
    "Verdict": "localjudge.verdict",
    "judge_records": "localjudge.api",
    "judge_records_async": "localjudge.api",
    "load_judge": "localjudge.judge.loading",
    "load_model": "localjudge.api",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that `localjudge --help` need not import what it does not use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'localjudge' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
