"""Where the package's own data and its caches lie. Makes nothing and remembers nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import platformdirs


def data_dir(kind: Literal["prompts", "models"]) -> Path:
    """The folder of built-in judges or model cards, in an installed wheel or in a checkout.

    The wheel's comes first: beside an installed package, a folder called `models` is somebody else's.
    """
    package = Path(__file__).resolve().parent
    installed = package / "_data" / kind
    return installed if installed.is_dir() else package.parent / kind


def cache_dir() -> Path:
    """Where fetched models and remembered hashes are kept; LOCALJUDGE_CACHE says another place."""
    chosen = os.environ.get("LOCALJUDGE_CACHE")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("localjudge", appauthor=False))
