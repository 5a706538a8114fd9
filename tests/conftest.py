"""What tests share: the public data where it lies, and one running vLLM a model for the whole session."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from localjudge.errors import ModelError
from localjudge.models import LocalModel, find_model
from tests.tiny import SWITCH, tiny_model

REPOSITORY = Path(__file__).resolve().parent.parent
SHARED_DATA = Path(os.environ.get("LOCALJUDGE_SHARED", REPOSITORY.parent / "shared")) / "data"


thorough = pytest.mark.skipif(
    not os.environ.get("LOCALJUDGE_THOROUGH"), reason="takes a minute for one case: LOCALJUDGE_THOROUGH=1 runs it"
)

SMALL = ("answer-quality", "pairwise", "truthfulness")
"""The built-in judges that ask everything at once, and little; the others are large rubrics of several asks."""


def shared(name: str) -> Path:
    """A file of public data; the test is skipped where it is not laid out."""
    path = SHARED_DATA / name
    if not path.is_file():
        pytest.skip(f"public data is not here: {path}")
    return path


def shared_rows(name: str, limit: int) -> list[dict[str, Any]]:
    path = shared(name)
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line, _ in zip(lines, range(limit), strict=False)]


class Loop:
    """An event loop in a thread, on which engines outlive a single test."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def run(self, work: Coroutine[Any, Any, Any], timeout: float = 600) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout)


@pytest.fixture(scope="session")
def loop() -> Loop:
    return Loop()


@pytest.fixture(scope="session")
def embedded() -> LocalModel:
    """The embedded model, which scripts/setup brings in."""
    try:
        return find_model("smollm2-135m")
    except ModelError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def random_model(embedded: LocalModel, tmp_path_factory: pytest.TempPathFactory) -> LocalModel:
    """A tiny model with random weights and the embedded model's tokenizer: it writes anything at all, and thinks
    when its template is told to."""
    return tiny_model(tmp_path_factory.mktemp("models") / "random", thinks=SWITCH)


def _engine(loop: Loop, model: LocalModel, **arguments: Any) -> Iterator[Any]:
    pytest.importorskip("vllm")
    from localjudge.engines.vllm import VllmEngine

    engine = loop.run(VllmEngine.start(model, arguments))
    yield engine
    loop.run(engine.close())


@pytest.fixture(scope="session")
def engine(loop: Loop, embedded: LocalModel) -> Iterator[Any]:
    """Real vLLM with the embedded model."""
    yield from _engine(loop, embedded)


@pytest.fixture(scope="session")
def random_engine(loop: Loop, random_model: LocalModel) -> Iterator[Any]:
    """Real vLLM with the random model, in float32, where rounding is too small to change which of two random
    numbers is larger; it tells the probabilities of the whole vocabulary when asked."""
    yield from _engine(loop, random_model, max_logprobs=-1, dtype="float32")


VLLM = {"engine", "random_engine"}
OWN_VLLM = ("tests/engines/test_vllm_killed.py", "tests/engines/test_server.py", "tests/test_serving.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what needs vLLM, all of which scripts/test runs in one process: no two models are loaded at once."""
    for item in items:
        if item.nodeid.startswith(OWN_VLLM) or VLLM & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.vllm)
