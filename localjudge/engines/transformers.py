"""The transformers engine: any causal model that transformers loads, on a CPU or one GPU, without vLLM; vision
models among them, which are shown pictures.

Asks that wait are put into batches of like length, one batch at a time in a thread. The same codec, grammar and
closing machine as under vLLM, so the same asks get the same statuses; slower, since nothing is shared between
prompts and a batch takes as long as its longest answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from localjudge.decoding.closing import Grammar
from localjudge.engines.base import Ask, AskFailed, Completion
from localjudge.engines.chat import ChatEncoder
from localjudge.engines.inprocess import (
    LONGEST_CONTEXT,
    AskCodec,
    Prepared,
    aside,
    check_torchvision,
    cpu_dtype,
    first_line,
    vision_of,
)
from localjudge.errors import EngineError, did_you_mean
from localjudge.models import LocalModel
from localjudge.offline import silence

DTYPES = ("bfloat16", "float16", "float32")

ARGUMENTS = {
    "device": "where to compute: 'cuda', 'cuda:1', 'cpu'; the first GPU, else the CPU",
    "dtype": f"{', '.join(DTYPES)}; bfloat16, and float32 on a CPU that is faster in it and has the memory",
    "batch_size": "answers written at once; 32 on a GPU, 16 on a CPU",
    "max_model_len": f"tokens of prompt and answer; the model's context, at most {LONGEST_CONTEXT}",
    "attn_implementation": "one of transformers' own: 'sdpa', 'eager', ...",
}

SPEED_ONLY = {"batch_size", "max_model_len", "device"}
"""Arguments that decide how fast, not what: a run may go on with others. (max_model_len shows in `context`, and of
the device only its kind decides.)"""

IDLE = 0.005
"""Seconds without a new ask after which those that wait are taken for a whole batch."""


@dataclass(eq=False)
class _Job:
    """An ask that waits, and what became of it.

    prepared: for an answer that is to be written. budget: the most tokens. done: the completion or, of a thought,
    its ids. row: what is written, once it is being written.
    """

    ask: Ask
    does: Literal["think", "write", "read"]
    prompt: list[int]
    budget: int
    prepared: Prepared | None
    done: asyncio.Future[Any]
    row: Any = field(default=None)

    def size_with(self, others: Sequence[_Job]) -> tuple[int, int]:
        """Of a batch of this and others: its tokens from the first of the longest prompt to the last of the
        longest answer, and the same times its rows, which is what memory goes by."""
        jobs = [self, *others]
        length = max(len(job.prompt) for job in jobs) + max(job.budget for job in jobs)
        return length, length * len(jobs)


class TransformersEngine:
    """A model in this process. Make it with `start`, on the loop that is to use it; `close` it in the end."""

    def __init__(
        self, model: LocalModel, writer: Any, encoder: ChatEncoder, arguments: Mapping[str, Any], context: int
    ) -> None:
        """writer: a `decoding.transformers_processor.TokenModel`. arguments: all that are known, filled in."""
        self._writer, self._encoder = writer, encoder
        self.context = context
        self._batch_size: int = arguments["batch_size"]
        # Four batches wait for each one that is written, so that there is something to sort by length.
        self.concurrency = 4 * self._batch_size
        self._identity = {
            "engine": "transformers",
            "versions": _versions(),
            "model": model.name,
            "model_fingerprint": model.fingerprint,
            "chat_template": model.template_hash,
            "context": context,
            "device": arguments["device"].partition(":")[0],
            "dtype": arguments["dtype"],
            "arguments": {name: value for name, value in arguments.items() if name not in SPEED_ONLY},
        }
        self._provenance = {"arguments": dict(arguments)}
        self._codec = AskCodec(encoder, context, self._identity)
        self._room: int | None = None  # batches of more tokens have been too much for the memory
        self._waiting: list[_Job] = []
        self._writing: list[_Job] = []
        self._news = asyncio.Event()
        self._over: EngineError | None = None
        self._server = asyncio.create_task(self._serve())

    @classmethod
    async def start(
        cls, model: LocalModel, arguments: Mapping[str, Any] | None = None, *, verbose: bool = False
    ) -> TransformersEngine:
        """Load `model`. arguments: some of ARGUMENTS. verbose: leave transformers' own log on stderr.

        Raises EngineError.
        """
        silence()
        given = check_arguments(arguments or {})
        check_torchvision()
        try:
            import torch
            import transformers

            from localjudge.decoding.transformers_processor import TokenModel
        except ImportError as error:
            raise EngineError(
                f"the transformers engine lacks a library: {first_line(error)}",
                fix="pip install 'localjudge[transformers]'",
            ) from error
        if not verbose:
            transformers.utils.logging.set_verbosity_error()
            transformers.utils.logging.disable_progress_bar()
        device = given.get("device") or ("cuda" if torch.cuda.is_available() else "cpu")
        chosen = {
            "dtype": cpu_dtype(model) if device.startswith("cpu") else "bfloat16",
            "batch_size": 16 if device.startswith("cpu") else 32,
            "max_model_len": min(model.context, LONGEST_CONTEXT),
            **given,
            "device": device,
        }
        if chosen["max_model_len"] > model.context:
            raise EngineError(f"max_model_len={chosen['max_model_len']} is more than the model's {model.context}")
        encoder = ChatEncoder(model.path, vision_of(model))
        kind = transformers.AutoModelForImageTextToText if model.vision else transformers.AutoModelForCausalLM
        try:
            loaded = kind.from_pretrained(
                model.path,
                dtype=getattr(torch, chosen["dtype"]),
                attn_implementation=chosen.get("attn_implementation"),
                trust_remote_code=False,
                local_files_only=True,
                use_safetensors=True,
            )
            loaded = loaded.eval().to(device)
        except Exception as error:
            raise EngineError(f"transformers could not load the model: {first_line(error)}") from error
        # A model's own settings may hold penalties, further ends of text, or a beam: none of them is the judge's.
        loaded.generation_config = transformers.GenerationConfig(
            eos_token_id=encoder.eos_id, pad_token_id=encoder.eos_id
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            model.path, trust_remote_code=False, local_files_only=True
        )
        return cls(model, TokenModel(loaded, tokenizer), encoder, chosen, chosen["max_model_len"])

    @property
    def identity(self) -> Mapping[str, Any]:
        return self._identity

    @property
    def provenance(self) -> Mapping[str, Any]:
        return self._provenance

    def key(self, ask: Ask) -> str:
        return self._codec.key(ask)

    def grammar(self, schema: Mapping[str, Any]) -> Grammar:
        """The schema compiled for this model; once a schema."""
        return self._codec.grammar(schema)

    def one_token(self, labels: Sequence[str]) -> bool:
        return self._codec.one_token(labels)

    async def complete(self, ask: Ask) -> Completion:
        thought = None
        if ask.think:
            prompt, most = await aside(ask, partial(self._codec.thinking, ask))
            thought = await self._do(ask, "think", prompt, most) if most else []
        if ask.labels:
            prompt = await aside(ask, partial(self._codec.label_prompt, ask, thought))
            completion = await self._do(ask, "read", prompt, 1)
        else:
            prepared = await aside(ask, partial(self._codec.prepare, ask, thought))
            completion = await self._do(ask, "write", prepared.prompt, prepared.budget, prepared)
        return completion if thought is None else self._codec.after(thought, completion)

    async def _do(
        self,
        ask: Ask,
        does: Literal["think", "write", "read"],
        prompt: list[int],
        budget: int,
        prepared: Prepared | None = None,
    ) -> Any:
        """Wait for the batch that does this. Raises AskFailed and EngineError."""
        if self._over:
            raise self._over
        job = _Job(ask, does, prompt, budget, prepared, asyncio.get_running_loop().create_future())
        self._waiting.append(job)
        self._news.set()
        try:
            return await job.done
        finally:
            if job.row is not None:
                job.row.stopped = True  # of no effect but where the asker was cancelled

    async def close(self) -> None:
        """Fails what still waits, and returns when the batch that is being written has been let go."""
        self._end(EngineError("the engine is closed"))
        await self._server
        self._writer = None  # its memory is for whoever comes next

    def _end(self, why: EngineError) -> None:
        """No further ask can be answered."""
        self._over = self._over or why
        for job in self._waiting + self._writing:
            if not job.done.done():
                job.done.set_exception(self._over)
            if job.row is not None:
                job.row.stopped = True
        self._waiting.clear()
        self._news.set()

    async def _serve(self) -> None:
        """Batch after batch, until the engine is over."""
        try:
            while not self._over:
                await self._news.wait()
                await self._gather()
                self._writing = self._next_batch()
                if not self._writing:
                    self._news.clear()
                    continue
                outcomes = await asyncio.to_thread(self._write, self._writing)
                for job, outcome in zip(self._writing, outcomes, strict=True):
                    if job.done.done():
                        continue
                    if isinstance(outcome, AskFailed):
                        job.done.set_exception(outcome)
                    else:
                        job.done.set_result(outcome)
        except EngineError as error:
            self._end(error)
        except Exception as error:
            self._end(EngineError(f"transformers has stopped: {first_line(error)}"))

    async def _gather(self) -> None:
        """Wait until no more asks come, or there are enough to choose from."""
        seen = -1
        while seen < len(self._waiting) < self.concurrency and not self._over:
            seen = len(self._waiting)
            await asyncio.sleep(IDLE)

    def _next_batch(self) -> list[_Job]:
        """The ask that has waited longest and those of its kind nearest in length, as many as fit together."""
        self._waiting = [job for job in self._waiting if not job.done.done()]
        if not self._waiting:
            return []
        oldest = self._waiting[0]
        alike = [job for job in self._waiting if job.does == oldest.does]
        batch: list[_Job] = []
        for job in sorted(alike, key=lambda job: abs(len(job.prompt) - len(oldest.prompt))):
            length, size = job.size_with(batch)
            # A row that has ended is padded to the end of the batch, which may not be beyond the last position
            # that the model knows.
            if batch and (length > self.context or size > (self._room or size)):
                break
            batch.append(job)
            if len(batch) == self._batch_size:
                break
        self._waiting = [job for job in self._waiting if job not in batch]
        return batch

    def _write(self, batch: Sequence[_Job]) -> list[Any]:
        """In a thread: each job's completion, or why there is none.

        A batch that fails is tried again in halves, so that what one ask does is not the others' fault, and less
        memory may do. Raises EngineError.
        """
        import torch

        try:
            return self._write_at_once(batch)
        except Exception as error:
            if isinstance(error, torch.OutOfMemoryError):
                self._room = batch[0].size_with(batch[1:])[1] // 2
            elif isinstance(error, getattr(torch, "AcceleratorError", ())):
                raise EngineError(
                    f"the GPU has failed: {first_line(error)}", fix="finished verdicts are kept"
                ) from error
            if len(batch) == 1:
                return [AskFailed("engine_error", f"transformers: {first_line(error)}")]
        # Out of the handler: the error holds on to the memory of what failed.
        with contextlib.suppress(Exception):
            torch.cuda.empty_cache()
        half = len(batch) // 2
        return self._write(batch[:half]) + self._write(batch[half:])

    def _write_at_once(self, batch: Sequence[_Job]) -> list[Any]:
        return self._read_labels(batch) if batch[0].does == "read" else self._write_texts(batch)

    def _read_labels(self, batch: Sequence[_Job]) -> list[Any]:
        from localjudge.decoding.transformers_processor import read

        tokens = [[token for label in job.ask.labels for token in self._codec.label_ids(label)] for job in batch]
        found = read(self._writer, [job.prompt for job in batch], tokens, self._seen(batch))
        return [
            _outcome(partial(self._codec.reading, job.ask, job.prompt, known))
            for job, known in zip(batch, found, strict=True)
        ]

    def _write_texts(self, batch: Sequence[_Job]) -> list[Any]:
        from localjudge.decoding.transformers_processor import Row, write

        for job in batch:
            grammar = job.prepared.grammar if job.prepared else self._free_text
            watched = {}
            if job.prepared and self._codec.label_tokens(job.prepared):
                watched = {place.state: list(place.tokens) for place in job.prepared.places}
            job.row = Row(grammar, job.budget, job.ask.temperature, job.ask.seed, watched)
            if job.done.done():
                job.row.stopped = True
        rows = [job.row for job in batch]
        written = write(self._writer, [job.prompt for job in batch], rows, self._seen(batch))
        return [
            _outcome(partial(self._completion, job, ids)) if job.prepared else ids
            for job, ids in zip(batch, written, strict=True)
        ]

    def _seen(self, batch: Sequence[_Job]) -> dict[str, Any]:
        """The model's inputs of the pictures in a batch, beside the ids."""
        import torch

        pictures = [picture for job in batch for picture in job.ask.pictures]
        vision, marker = self._encoder.vision, self._encoder.marker
        if not pictures or vision is None:
            return {}
        model = self._writer.model
        found = {
            name: value.to(model.device, model.dtype if value.is_floating_point() else None)
            for name, value in vision.numbers(pictures, marker).items()
        }
        kinds: dict[str, dict[int, int]] = {}
        for picture in pictures:
            for name, known in vision.see(picture, marker).kinds.items():
                kinds.setdefault(name, {}).update(known)
        longest = max(len(job.prompt) for job in batch)
        for name, known in kinds.items():
            told = [[0] * (longest - len(job.prompt)) + [known.get(i, 0) for i in job.prompt] for job in batch]
            found[name] = torch.tensor(told, device=model.device)
        return found

    @cached_property
    def _free_text(self) -> Any:
        from localjudge.decoding.transformers_processor import FreeText

        return FreeText(self._codec.vocabulary, self._codec.thought_ends)

    def _completion(self, job: _Job, ids: list[int]) -> Completion:
        """Raises AskFailed."""
        if job.row.broken:
            raise AskFailed("engine_error", "transformers wrote a token that the grammar does not allow")
        assert job.prepared is not None
        finish = "stop" if ids[-1] in self._codec.vocabulary.eos else "length"
        return self._codec.completion(job.prepared, ids, finish, logprobs=job.row.logprobs)


def _outcome(complete: Callable[[], Completion]) -> Completion | AskFailed:
    try:
        return complete()
    except AskFailed as failure:
        return failure


def check_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The same, each known and of its type. Raises EngineError."""
    for name, value in arguments.items():
        if name not in ARGUMENTS:
            raise EngineError(
                f"the transformers engine has no argument '{name}'", fix=did_you_mean(name, ARGUMENTS)
            )
        if name in ("batch_size", "max_model_len"):
            good = isinstance(value, int) and not isinstance(value, bool) and value > 0
        else:
            good = isinstance(value, str) and (name != "dtype" or value in DTYPES)
        if not good:
            raise EngineError(f"the engine argument '{name}' cannot be {value!r}", fix=f"{name}: {ARGUMENTS[name]}")
    return dict(arguments)


def _versions() -> dict[str, str]:
    found = {}
    for package in ("transformers", "torch", "outlines", "outlines_core"):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
