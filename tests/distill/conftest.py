"""Trainings of tiny models: their matrices only lose by being shared among threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    try:
        import torch
    except ImportError:  # whatever needs it skips by itself
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
