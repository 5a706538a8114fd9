"""`localjudge` in a process of its own with a scripted engine in vLLM's place, to be killed, limited and measured.

    python -m tests.run.child run JUDGE RECORDS -m scripted -o OUT ...

SCRIPTED, in the environment, is JSON: `loading`, seconds that loading the model blocks for, as vLLM does;
`loading_awaits`, seconds that it does not; `loading_fails`, with what; `forks`, whether the engine has a process
that outlives this one; `model`, other fields of the model; `file_limit`, bytes that a file may have; `usage`, a
file that gets the CPU seconds and the peak memory. The rest goes to ScriptedEngine: `log` as a path, `hangs` and
`fails` as a text that such an ask contains.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import multiprocessing
import os
import resource
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import localjudge.cli
import localjudge.models
import localjudge.run.session
from localjudge.engines.base import Ask, AskFailed
from localjudge.errors import EngineError
from localjudge.models import LocalModel
from tests.scripted import ScriptedEngine, scripted_model


def contains(text: str, ask: Ask) -> bool:
    return any(text in message.text for message in ask.messages)


def main() -> None:
    told: dict[str, Any] = json.loads(os.environ.get("SCRIPTED", "{}"))
    model = scripted_model(Path(), **told.pop("model", {}))
    loading, loading_awaits = told.pop("loading", 0), told.pop("loading_awaits", 0)
    loading_fails, forks = told.pop("loading_fails", None), told.pop("forks", False)
    if limit := told.pop("file_limit", None):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    if usage := told.pop("usage", None):
        atexit.register(report_usage, Path(usage), os.times())
    if hangs := told.pop("hangs", None):
        told["hangs"] = lambda ask: contains(hangs, ask)
    if fails := told.pop("fails", None):
        told["fails"] = lambda ask: AskFailed("engine_error", "scripted") if contains(fails, ask) else None
    if "log" in told:
        told["log"] = Path(told["log"])

    class VllmEngine:
        @staticmethod
        async def start(*_: Any, **__: Any) -> ScriptedEngine:
            print("loading", flush=True)
            time.sleep(loading)
            await asyncio.sleep(loading_awaits)
            if loading_fails:
                raise EngineError(loading_fails)
            if forks:
                engine = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,), daemon=True)
                engine.start()
                print(engine.pid, flush=True)
            print("judging", flush=True)
            return ScriptedEngine(**told)

    def find_model(name: str) -> LocalModel:
        return model

    stub = ModuleType("localjudge.engines.vllm")
    stub.VllmEngine = VllmEngine  # type: ignore[attr-defined]
    sys.modules[stub.__name__] = stub
    localjudge.models.find_model = find_model  # type: ignore[assignment]
    localjudge.cli.main()


def report_usage(path: Path, start: os.times_result) -> None:
    now = os.times()
    # Not ru_maxrss: it begins at what the parent process had when it forked.
    [peak] = [line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line]
    used = {"user": now.user - start.user, "system": now.system - start.system, "peak": int(peak) * 1024}
    path.write_text(json.dumps(used))


if __name__ == "__main__":
    main()
