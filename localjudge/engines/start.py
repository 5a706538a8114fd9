"""An engine by its name, as the command line and the Python API give it, and the model that it is to run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from localjudge.engines.base import Engine
from localjudge.errors import EngineError, did_you_mean
from localjudge.models import LocalModel, ServedModel

ENGINES = ("vllm", "transformers", "server")


@dataclass(frozen=True, slots=True)
class Choice:
    """A model and how to start its engine; nothing is loaded yet. loading: what starting it does, in words."""

    model: LocalModel | ServedModel
    loading: str
    start: Callable[[], Awaitable[Engine]]


def choose_engine(
    name: str,
    model: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    url: str | None = None,
    verbose: bool = False,
    reading: bool = False,
) -> Choice:
    """Find the model on this disk, or ask the server at `url` for it; the engine starts later.

    model: a folder, a card's name or, with a server that is not localjudge's own, the name it is served under.
    arguments: the engine's own. reading: it is to read labels, as in score mode, and be quick at that. Raises
    ModelError and EngineError. It waits for a server: call it in a thread where a loop is running.
    """
    from localjudge.models import find_model

    given = dict(arguments or {})
    if name not in ENGINES:
        raise EngineError(f"there is no engine '{name}'", fix=did_you_mean(name, ENGINES))
    if name == "server":
        from localjudge.engines.server import find_server, start_server_engine

        if url is None:
            raise EngineError("--engine server needs --url", fix="as in: --url http://127.0.0.1:8000/v1")
        server = find_server(url, model, given)
        kept = "" if server.greeting else " (not localjudge's own: its answers are checked, but not guaranteed)"
        told = f"asking {server.model.name} at {server.url}{kept}"
        return Choice(server.model, told, lambda: start_server_engine(server))
    if url is not None:
        raise EngineError(
            f"--url is of no use to the {name} engine", fix="give --engine server too, or leave it out"
        )
    local = find_model(model)

    async def start() -> Engine:
        if name == "transformers":
            from localjudge.engines.transformers import TransformersEngine

            return await TransformersEngine.start(local, given, verbose=verbose)
        from localjudge.engines.vllm import VllmEngine

        return await VllmEngine.start(local, given, verbose=verbose, reading=reading)

    return Choice(local, f"loading {local.name} ({local.path})", start)
