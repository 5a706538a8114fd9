"""The Python API: judge records from a script, a notebook or one's own event loop.

Engines live on one event loop of our own, in a thread of its own, so that the plain call works where a loop is
running already (a notebook), and a loaded model serves any number of calls.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from localjudge.engines.base import Engine
from localjudge.engines.start import choose_engine
from localjudge.errors import RunError
from localjudge.judge.loading import load_judge
from localjudge.judge.panel import combine
from localjudge.judge.spec import JudgeSpec
from localjudge.models import LocalModel, ServedModel, find_model
from localjudge.offline import silence
from localjudge.paths import cache_dir
from localjudge.records import BadRecord, Record, read_records
from localjudge.rows import Source
from localjudge.run.checklists import shared_folder
from localjudge.run.runner import (
    Settings,
    bound_kind,
    check_model,
    check_sees,
    judge_record,
    judge_stream,
    label_plan,
    scan,
    shelf_of,
)
from localjudge.run.store import CompletionCache
from localjudge.verdict import Verdict

T = TypeVar("T")
Records = str | Path | Sequence[Mapping[str, Any]]


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="localjudge", daemon=True).start()
    return loop


def _submit(work: Coroutine[Any, Any, T]) -> Future[T]:
    return asyncio.run_coroutine_threadsafe(work, _loop())


def _wait(future: Future[T]) -> T:
    """Its result. What breaks into the waiting, as Ctrl-C does, stops the work too."""
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


@dataclass(frozen=True)
class LoadedModel:
    """A model in its engine, ready to judge. Close it, or use it as a context manager."""

    model: LocalModel | ServedModel
    engine: Engine

    def close(self) -> None:
        _wait(_submit(self.engine.close()))

    def __enter__(self) -> LoadedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _load(
    model: str, engine: str, engine_args: Mapping[str, Any], url: str | None = None, reading: bool = False
) -> LoadedModel:
    choice = await asyncio.to_thread(choose_engine, engine, model, engine_args, url=url, reading=reading)
    return LoadedModel(choice.model, await choice.start())


def load_model(
    model: str,
    *,
    engine: Literal["vllm", "transformers", "server"] = "vllm",
    url: str | None = None,
    reading: bool = False,
    **engine_args: Any,
) -> LoadedModel:
    """Load a model, by its folder or card's name, into an engine. engine_args: any of that engine's arguments.
    url: the server's, for engine='server', as in http://127.0.0.1:8000/v1. reading: it is for score mode, and on a
    CPU quicker at that; it explains all the same, slower.

    While it loads, what this process prints goes to vLLM's log. Raises ModelError and EngineError. In a script,
    call it under `if __name__ == "__main__":`, since vLLM starts its own process by importing the script anew.
    """
    return _wait(_submit(_load(model, engine, engine_args, url, reading)))


async def _judge(
    spec: JudgeSpec,
    records: Records,
    model: str | LoadedModel | Sequence[str | LoadedModel],
    settings: Settings,
    cache_completions: bool,
) -> list[Verdict]:
    if not isinstance(model, str | LoadedModel):
        if not model:
            raise RunError("a panel without models", where="model")
        own = [await _judge(spec, records, member, settings, cache_completions) for member in model]
        name = " + ".join(verdicts[0].model for verdicts in own if verdicts)
        panels = [
            [each for verdict in told for each in verdict.members or [verdict]] for told in zip(*own, strict=True)
        ]
        return [combine(spec, told[0].id, told, settings.combine, name) for told in panels]
    source = Path(records) if isinstance(records, str | Path) else records
    known = find_model(model) if isinstance(model, str) else model.model
    check_model(spec, known, settings)
    found = scan(source, spec, settings)
    check_sees(known, found)
    # What another's server holds under a name may change: its completions are not kept.
    kept = cache_completions and (isinstance(model, str) or model.model.path is not None)
    completions = CompletionCache(cache_dir() / "completions.sqlite") if kept else None
    try:
        loaded = (
            await _load(model, "vllm", {}, reading=settings.mode == "score") if isinstance(model, str) else model
        )
        try:
            return await _judge_all(spec, source, found.total, loaded, settings, completions)
        finally:
            if isinstance(model, str):
                await loaded.engine.close()
    finally:
        if completions:
            completions.close()


async def _judge_all(
    spec: JudgeSpec,
    source: Source,
    total: int,
    loaded: LoadedModel,
    settings: Settings,
    completions: CompletionCache | None,
) -> list[Verdict]:
    places: dict[str, int] = {}
    verdicts: list[Verdict | None] = [None] * total
    plan = label_plan(spec, loaded.engine, settings)
    how = bound_kind(spec, shelf_of(spec, loaded.model, settings, shared_folder() if completions else None))

    async def judge(record: Record | BadRecord) -> Verdict:
        return await judge_record(
            spec, record, loaded.engine, loaded.model.name, settings, completions, plan, how=how
        )

    def keep(verdict: Verdict) -> None:
        verdicts[places[verdict.id]] = verdict

    def stream() -> Any:
        for place, record in enumerate(
            read_records(source, spec.inputs, mapping=settings.mapping, limit=settings.limit)
        ):
            places[record.id] = place
            yield record

    await judge_stream(judge, stream(), keep, loaded.engine.concurrency)
    return [verdict for verdict in verdicts if verdict is not None]


def _start(
    judge: str | Path | JudgeSpec,
    records: Records,
    model: str | LoadedModel | Sequence[str | LoadedModel],
    cache_completions: bool,
    settings: Mapping[str, Any],
) -> Future[list[Verdict]]:
    silence()
    spec = judge if isinstance(judge, JudgeSpec) else load_judge(judge)
    return _submit(_judge(spec, records, model, Settings.of(**settings), cache_completions))


def judge_records(
    judge: str | Path | JudgeSpec,
    records: Records,
    model: str | LoadedModel | Sequence[str | LoadedModel],
    *,
    cache_completions: bool = True,
    **settings: Any,
) -> list[Verdict]:
    """Judge records and wait; one verdict a record, in their order.

    judge: a built-in judge's name, a judge's folder or file, or what `load_judge` gave. records: a file, or rows as
    mappings. model: what `load_model` gave, or a name or folder, which is loaded for this call alone; several of
    either are a panel, and judge one after the other. settings: the fields of `localjudge.run.runner.Settings`
    (mode, temperature, seed, max_tokens, samples, combine, think, mapping, limit, skip_invalid, ...).

    Raises LocalJudgeError for what is wrong with any of them; what goes wrong with one record is in its verdict's
    `status`.
    """
    return _wait(_start(judge, records, model, cache_completions, settings))


async def judge_records_async(
    judge: str | Path | JudgeSpec,
    records: Records,
    model: str | LoadedModel | Sequence[str | LoadedModel],
    *,
    cache_completions: bool = True,
    **settings: Any,
) -> list[Verdict]:
    """`judge_records`, to be awaited. Cancelling it stops the judging."""
    return await asyncio.wrap_future(_start(judge, records, model, cache_completions, settings))
