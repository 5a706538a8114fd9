"""The real thing on the loopback: `localjudge serve`, and a stock vLLM server, with a model of random weights.

What localjudge's own server answers is what vLLM answers in process; a run goes on over its death and return.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import localjudge
from localjudge import serving
from localjudge.decoding.grammar import follows
from localjudge.engines import wire
from localjudge.engines.base import Ask, AskFailed, Completion, Message
from localjudge.engines.server import find_server, start_server_engine
from localjudge.engines.start import choose_engine
from localjudge.errors import EngineError
from localjudge.judge.loading import load_judge
from localjudge.models import LocalModel
from localjudge.offline import SILENT
from localjudge.run.runner import Run, Settings
from localjudge.run.store import read_verdicts
from tests.conftest import Loop
from tests.engines.test_conformance import SCHEMAS, TEXTS, Spy, numbered
from tests.engines.test_vllm import run_in
from tests.engines.test_vllm_killed import engine_processes

pytestmark = pytest.mark.vllm
SCRIPT = Path(sys.executable).with_name("localjudge")
KEY = "open-sesame"
COUNT = 100
ALIKE = ("answer-quality", "pairwise", "truthfulness")
"""The judges whose asks are put to both."""


def free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port: int = trial.getsockname()[1]
        return port


def serve(model: Path, port: int, *more: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [SCRIPT, "serve", str(model), "--port", str(port), *more],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


class Served:
    """`localjudge serve`, as it is started, killed and started again at the same port, with a key."""

    def __init__(self, model: Path, mark: str) -> None:
        self.port, self.said = free_port(), ""
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self._model, self._mark = model, mark
        self.start()

    def start(self) -> None:
        arguments = ("--engine-arg", "dtype=float32")
        self.process = serve(
            self._model, self.port, *arguments, LOCALJUDGE_API_KEY=KEY, LOCALJUDGE_TEST_MARK=self._mark
        )

    def ready(self) -> None:
        assert self.process.stdout and self.process.stderr
        self.said = self.process.stdout.readline()
        assert self.said, self.process.stderr.read()

    def kill(self) -> None:
        """Without a word, and all of its processes at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def key() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(wire.API_KEY, KEY)
        yield


@pytest.fixture(scope="module")
def stock(random_model: LocalModel) -> Iterator[str]:
    """A vLLM server that knows nothing of localjudge's marks; its URL."""
    pytest.importorskip("vllm")
    port = free_port()
    flags = "--dtype float32 --enforce-eager --gpu-memory-utilization 0.3 --max-num-seqs 32 --max-model-len 2048"
    command = (
        f"-m vllm.entrypoints.openai.api_server --served-model-name tiny --host 127.0.0.1 --port {port} {flags}"
    )
    process = subprocess.Popen(
        [sys.executable, *command.split(), "--model", str(random_model.path)],
        env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR", **SILENT},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    yield f"http://127.0.0.1:{port}/v1"
    process.terminate()
    process.wait(60)


@pytest.fixture(scope="module")
def served(stock: str, random_model: LocalModel, random_engine: Any, key: None) -> Iterator[Served]:
    """It loads while the stock server does."""
    mark = f"serving-{os.getpid()}"
    server = Served(random_model.path, mark)
    server.ready()
    yield server
    server.process.terminate()
    server.process.wait(60)
    for _ in range(50):
        if not (left := engine_processes(f"LOCALJUDGE_TEST_MARK={mark}")):
            break
        time.sleep(0.2)
    assert not left, f"processes of the server are still there: {left}"


@pytest.fixture(scope="module")
def engine(served: Served, random_model: LocalModel, loop: Loop) -> Iterator[Any]:
    found = loop.run(start_server_engine(find_server(served.url, str(random_model.path))))
    yield found
    loop.run(found.close())


@pytest.fixture
def engines(random_engine: Any, engine: Any) -> dict[str, Any]:
    return {"vllm": random_engine, "server": engine}


@pytest.fixture
def spy(loop: Loop, engines: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Spy:
    return Spy(loop, engines, monkeypatch)


def same(here: Completion, there: Completion) -> None:
    assert (here.text, here.thought, here.prompt_tokens, here.written_tokens, here.finish) == (
        there.text,
        there.thought,
        there.prompt_tokens,
        there.written_tokens,
        there.finish,
    )
    assert here.distributions.keys() == there.distributions.keys()
    for question, likely in here.distributions.items():
        assert there.distributions[question] == pytest.approx(likely, abs=1e-4)


def test_it_says_when_it_is_ready_and_what_to_type(served: Served, random_model: LocalModel) -> None:
    assert served.said == (
        f"ready: localjudge run JUDGE RECORDS -o DIR --engine server --url {served.url} -m {random_model.path}\n"
    )


def test_it_writes_the_tokens_that_vllm_writes_in_process(engines: dict[str, Any], spy: Spy) -> None:
    """At temperature 0 and, drawn by the same seeds, at 1; tight budgets, ample ones, and none set."""
    asks = []
    for name in ALIKE:
        schema = SCHEMAS[name]
        least = engines["server"].grammar(schema).least
        asks += [numbered(name, text, budget) for text in TEXTS for budget in (least, 90)]
        asks += [numbered(name, TEXTS[1], budget, 1.0, seed) for seed in (1, 2) for budget in (least, 64)]
    asks.append(numbered("truthfulness", TEXTS[0], None))
    (here, written), (there, written_there) = (spy.ask(name, asks) for name in engines)
    assert len(written) == len(asks)
    assert written == written_there
    for ask, one, other in zip(asks, here, there, strict=True):
        assert isinstance(one, Completion) and isinstance(other, Completion)
        jsonschema.validate(json.loads(other.text), ask.schema)
        same(one, other)
    assert any(completion.distributions for completion in there)


def test_it_reads_the_belief_that_vllm_reads_in_process(engines: dict[str, Any], spy: Spy) -> None:
    labels = (("A", "B"), ("1", "2", "3"), ("yes", "no"))
    for some in labels:
        assert engines["vllm"].one_token(some) == engines["server"].one_token(some)
    asks = [Ask((Message("user", text),), labels=some) for text in TEXTS for some in labels]
    here, there = (spy.ask(name, asks)[0] for name in engines)
    for one, other in zip(here, there, strict=True):
        assert other.mass == pytest.approx(one.mass, rel=1e-3)
        same(one, other)


def test_it_thinks_as_vllm_does_in_process(engines: dict[str, Any], spy: Spy) -> None:
    asks = [Ask((Message("user", f"Think of {n}."),), SCHEMAS["truthfulness"], 60, think=9) for n in range(2)]
    asks.append(Ask((Message("user", "Think of a letter."),), labels=("A", "B"), think=5))
    here, there = (spy.ask(name, asks)[0] for name in engines)
    for one, other in zip(here, there, strict=True):
        assert other.thought
        same(one, other)


def test_it_fails_with_the_same_words(engines: dict[str, Any], spy: Spy) -> None:
    long = "word " * engines["server"].context
    asks = [
        numbered("truthfulness", long, 64),
        numbered("truthfulness", TEXTS[0], 2),
        Ask((Message("user", long),), labels=("A", "B")),
    ]
    here, there = (spy.ask(name, asks)[0] for name in engines)
    for one, other in zip(here, there, strict=True):
        assert isinstance(one, AskFailed) and isinstance(other, AskFailed)
        assert (one.status, one.why) == (other.status, other.why)


def test_the_prefix_is_computed_once_there_too(engine: Any, loop: Loop) -> None:
    rubric = "Read this carefully. " * 80

    async def two() -> list[Completion]:
        asks = [Ask((Message("user", rubric + last),), SCHEMAS["truthfulness"], 20) for last in ("One.", "Two.")]
        return [await engine.complete(ask) for ask in asks]

    first, second = loop.run(two())
    assert second.cached_tokens >= 256
    assert first.prompt_tokens == second.prompt_tokens


def test_the_key_is_demanded(served: Served, random_model: LocalModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(wire.API_KEY)
    with pytest.raises(EngineError, match=r"the server wants an API key \(401 Unauthorized"):
        find_server(served.url, str(random_model.path))
    monkeypatch.setenv(wire.API_KEY, "sesame")
    with pytest.raises(EngineError, match="does not take the key in LOCALJUDGE_API_KEY"):
        find_server(served.url, str(random_model.path))


def test_another_model_of_this_disk_is_not_what_it_serves(served: Served, embedded: LocalModel) -> None:
    with pytest.raises(EngineError, match="the server serves random, not smollm2-135m: its files are"):
        find_server(served.url, embedded.name)


def test_the_python_api_judges_over_it(served: Served, random_model: LocalModel) -> None:
    rows = [{"id": str(n), "question": f"Is {n} even?", "answer": "yes"} for n in range(3)]
    with localjudge.load_model(str(random_model.path), engine="server", url=served.url, patience=60) as model:
        for settings in ({"max_tokens": 30}, {"mode": "score"}):
            verdicts = localjudge.judge_records("truthfulness", rows, model, cache_completions=False, **settings)
            assert [verdict.status for verdict in verdicts] == ["ok"] * 3


def test_the_command_line_judges_over_it_without_torch_or_vllm(
    served: Served, random_model: LocalModel, tmp_path: Path
) -> None:
    """What `pip install 'localjudge[server]'` gives, on a machine that has the model's files."""
    records = tmp_path / "records.jsonl"
    records.write_text('{"id": "1", "question": "Is water wet?", "answer": "Yes."}\n')
    for mode in ("explain", "score"):
        out = tmp_path / mode
        command = f"run truthfulness {records} -m {random_model.path} -o {out} --mode {mode} --no-cache"
        code = "import sys; sys.modules |= {'torch': None, 'vllm': None}; from localjudge.cli import main; main()"
        finished = subprocess.run(
            [sys.executable, "-c", code, *command.split(), "--engine", "server", "--url", served.url],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert finished.returncode == 0, finished.stderr
        assert [verdict.status for verdict in read_verdicts(out)] == ["ok"]
        kept = json.loads((out / "run.json").read_text())["engine"]
        assert (kept["identity"]["kind"], kept["identity"]["model"], kept["url"]) == (
            "localjudge",
            random_model.name,
            served.url,
        )
        assert KEY not in (out / "run.json").read_text()


def test_a_run_goes_on_when_the_server_dies_and_comes_back(
    served: Served, random_engine: Any, random_model: LocalModel, loop: Loop, tmp_path: Path
) -> None:
    """Nothing lost, nothing twice, and each verdict what it would have been."""
    records = tmp_path / "records.jsonl"
    rows = [
        {"id": f"r{i}", "question": f"What is {i} plus {i}?", "answer": f"It is {i + i}."} for i in range(COUNT)
    ]
    records.write_text("".join(json.dumps(row) + "\n" for row in rows))
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    choice = choose_engine("server", str(random_model.path), {"concurrency": 4}, url=served.url)
    settings = Settings(max_tokens=24)
    job = Run(load_judge("truthfulness"), records, choice.model, cut, settings, choice.start, shared_cache=False)

    def count() -> int:
        verdicts = cut / "verdicts.jsonl"
        return verdicts.read_bytes().count(b"\n") if verdicts.exists() else 0

    def kill_half_way() -> None:
        while count() < COUNT // 4 and not over.wait(0.01):
            pass
        served.kill()
        killed_at.append(count())
        time.sleep(1)  # asks meet a closed port meanwhile
        served.start()

    over = threading.Event()
    killed_at: list[int] = []
    killer = threading.Thread(target=kill_half_way)
    killer.start()
    try:
        summary = loop.run(job.go())
    finally:
        over.set()
        killer.join()
    served.ready()
    assert killed_at[0] < COUNT, "killed too late to prove anything"
    assert summary.statuses["ok"] == summary.total == COUNT

    run_in(whole, random_engine, random_model, "truthfulness", records, loop, max_tokens=24)

    def told(run: Path) -> list[tuple[str, str]]:
        beside = {"usage": True, "answers": {"truthful": {"distribution"}}}  # of which the last digits differ
        return sorted((v.id, v.model_dump_json(exclude=beside)) for v in read_verdicts(run))

    assert [record for record, _ in told(cut)] == sorted(f"r{i}" for i in range(COUNT))
    assert told(cut) == told(whole)
    for verdict in read_verdicts(cut):
        answers = {key: answer.value for key, answer in verdict.answers.items()}
        assert follows(load_judge("truthfulness").answer_schema, json.dumps(answers))


def test_a_stock_vllm_server_gives_valid_answers_or_engine_errors(stock: str, served: Served, loop: Loop) -> None:
    """Never anything else; its labels are read from the list it gives."""
    while True:  # it began to load before the other did
        try:
            choice = choose_engine("server", "tiny", url=stock)
            break
        except EngineError as error:
            assert "nothing listens" in str(error)
            time.sleep(0.5)
    engine = loop.run(choice.start())
    assert engine.identity["kind"] == "foreign"
    schema = SCHEMAS["truthfulness"]
    asks = [numbered("truthfulness", text, None, 1.0, seed) for text in TEXTS[:2] for seed in range(8)]
    asks += [Ask((Message("user", text),), labels=tuple("ABCDEFGH")) for text in TEXTS]
    asks.append(numbered("truthfulness", "word " * 3000, None))

    async def all_of() -> list[Completion | BaseException]:
        try:
            return await asyncio.gather(*map(engine.complete, asks), return_exceptions=True)
        finally:
            await engine.close()

    *outcomes, too_long = loop.run(all_of())
    assert isinstance(too_long, AskFailed) and too_long.status == "too_long"
    for ask, outcome in zip(asks[:-1], outcomes, strict=True):
        if isinstance(outcome, AskFailed):
            assert outcome.status == "engine_error"
        else:
            assert isinstance(outcome, Completion)
            assert ask.labels or follows(schema, outcome.text)
    assert any(isinstance(outcome, Completion) and outcome.text for outcome in outcomes)


# What a person gets wrong, and how it ends


def test_a_port_in_use_is_told_before_anything_loads(random_model: LocalModel) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        out, said = serve(random_model.path, port).communicate(timeout=30)
    assert (out, said) == ("", f"error: 127.0.0.1: port {port} is in use\n  give another: --port {port + 1}\n")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--host", "192.0.2.1"], "nothing can listen there: Cannot assign requested address"),
        (["--host", "no-such-host.invalid"], "nothing can listen there: "),
        (["--engine-arg", "max_num_seq=3"], "vLLM has no engine argument 'max_num_seq'\n  did you mean"),
        (["--engine-arg", "dtype=float3"], "vLLM's server does not take these engine arguments\n  its own account"),
    ],
)
def test_what_cannot_be_served(random_model: LocalModel, options: list[str], told: str) -> None:
    process = serve(random_model.path, free_port(), *options)
    out, said = process.communicate(timeout=120)
    assert (out, process.returncode) == ("", 2)
    assert told in said and "Traceback" not in said and said.count("error: ") == 1
    for log in re.findall(r"/\S+\.log", said):
        Path(log).unlink()


def test_ended_while_it_loads_it_leaves_nothing(random_model: LocalModel, tmp_path: Path) -> None:
    mark = f"loading-{os.getpid()}"
    process = serve(random_model.path, free_port(), LOCALJUDGE_TEST_MARK=mark, TMPDIR=str(tmp_path))
    time.sleep(4)
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=60)
    assert (out, process.returncode) == ("", 0)
    assert said.count("\n") == 1 and said.startswith("loading ")
    assert not engine_processes(f"LOCALJUDGE_TEST_MARK={mark}")
    assert not list(tmp_path.glob("localjudge-*"))


def test_only_good_answers_of_the_api_are_greeted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(serving.SERVES, '{"protocol": 1}')
    sent: list[Any] = []

    async def app(scope: Any, _: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": scope["status"], "headers": [(b"a", b"b")]})

    async def send(message: Any) -> None:
        sent.append((b"localjudge", b'{"protocol": 1}') in message["headers"])

    greeting = serving.Greeting(app)
    for path, status in (("/v1/models", 200), ("/v1/models", 401), ("/health", 200)):
        asyncio.run(greeting({"type": "http", "path": path, "status": status}, None, send))  # type: ignore[arg-type]
    assert sent == [True, False, False]


def test_engine_arguments_as_vllms_command_line_takes_them() -> None:
    arguments = {
        "max_num_seqs": 3,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "structured_outputs_config": {"backend": "outlines"},
        "cudagraph_capture_sizes": [1, 2],
        "quantization": None,
    }
    assert serving._flags(arguments) == [
        "--max-num-seqs",
        "3",
        "--enforce-eager",
        "--no-enable-prefix-caching",
        "--structured-outputs-config",
        '{"backend": "outlines"}',
        "--cudagraph-capture-sizes",
        "1",
        "2",
    ]
