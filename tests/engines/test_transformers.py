"""The transformers engine on a model of random weights: the same promises as under vLLM, without vLLM."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from localjudge.decoding.closing import Grammar
from localjudge.decoding.grammar import QUOTA
from localjudge.decoding.vocabulary import Vocabulary
from localjudge.engines import inprocess
from localjudge.engines.base import Ask, AskFailed, Message
from localjudge.engines.transformers import TransformersEngine
from localjudge.errors import EngineError
from localjudge.judge.loading import load_judge
from localjudge.models import LocalModel
from localjudge.run.store import read_verdicts
from tests.conftest import SMALL, Loop

torch = pytest.importorskip("torch")
pytest.importorskip("outlines")

HELLO = (Message("user", "Say anything."),)
SCHEMA = load_judge("truthfulness").answer_schema
AN_ANSWER = {
    "type": "object",
    "properties": {"why": {"type": "string", QUOTA: 5}, "label": {"enum": ["yes", "no"]}},
    "required": ["why", "label"],
    "additionalProperties": False,
}
ON_CPU = {"device": "cpu", "dtype": "float32"}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Matrices of this size only lose by being shared among threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def engine(loop: Loop, random_model: LocalModel) -> Iterator[TransformersEngine]:
    engine = loop.run(TransformersEngine.start(random_model, {**ON_CPU, "batch_size": 100}))
    yield engine
    loop.run(engine.close())


@pytest.fixture
def fresh(loop: Loop, random_model: LocalModel, engine: Any) -> Iterator[TransformersEngine]:
    """One that a test may break, of smaller batches, around the same loaded model."""

    async def make() -> TransformersEngine:
        arguments = {**engine.provenance["arguments"], "batch_size": 8}
        return TransformersEngine(random_model, engine._writer, engine._encoder, arguments, engine.context)

    fresh = loop.run(make())
    yield fresh
    loop.run(fresh.close())


def all_of(loop: Loop, engine: Any, asks: list[Ask]) -> list[Any]:
    """The completions, and the failures in their places."""

    async def ask_all() -> list[Any]:
        return await asyncio.gather(*map(engine.complete, asks), return_exceptions=True)

    return loop.run(ask_all())


def check(completion: Any, ask: Ask) -> None:
    jsonschema.validate(json.loads(completion.text), ask.schema)
    assert ask.budget is None or completion.written_tokens <= ask.budget


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """The batches that are written from here on."""
    seen: list[list[Any]] = []
    write = TransformersEngine._write_at_once

    def spy(self: TransformersEngine, batch: Any) -> Any:
        seen.append(list(batch))
        return write(self, batch)

    monkeypatch.setattr(TransformersEngine, "_write_at_once", spy)
    return seen


@pytest.mark.parametrize("name", SMALL)
def test_a_model_of_random_weights_writes_only_valid_answers(name: str, engine: Any, loop: Loop) -> None:
    """Temperature 1, the least budget and others, 50 completions each: none invalid, every label to be had."""
    spec = load_judge(name)
    least = engine.grammar(spec.answer_schema).least
    for budget in (least, least + 1, 64):
        asks = [Ask(HELLO, spec.answer_schema, budget, temperature=1.0, seed=seed) for seed in range(50)]
        answers = []
        for ask, completion in zip(asks, all_of(loop, engine, asks), strict=True):
            check(completion, ask)
            answers.append(json.loads(completion.text))
        for question in spec.questions:
            assert {answer[question.id] for answer in answers} == set(question.labels), (budget, question.id)


def test_an_ask_gets_the_same_answer_alone_and_in_any_company(
    engine: Any, batches: list[list[Any]], loop: Loop
) -> None:
    """Prompts of other lengths, other judges, budgets and temperatures in one batch: each keeps to its own."""
    asks = []
    for i in range(12):
        schema = load_judge(SMALL[i % 3]).answer_schema
        budget = engine.grammar(schema).least + (0, 1, 30, 120)[i % 4]
        messages = (Message("user", "Say anything. " * (1 + 3 * i)),)
        asks.append(Ask(messages, schema, budget, temperature=(0.0, 0.7, 1.0)[i // 4], seed=i))
    together = all_of(loop, engine, asks)
    assert [len(batch) for batch in batches] == [12]
    for ask, completion in zip(asks, together, strict=True):
        check(completion, ask)
    for i in (0, 3, 4, 7, 11):
        [alone] = all_of(loop, engine, [asks[i]])
        assert (alone.text, alone.written_tokens) == (together[i].text, together[i].written_tokens)
        for question, likely in together[i].distributions.items():
            assert alone.distributions[question] == pytest.approx(likely, abs=1e-5)
    assert len({completion.text for completion in together}) > 9  # short answers of two may well be alike
    assert all(completion.cached_tokens == 0 for completion in together)


def test_labels_are_read_and_each_label_written_has_its_distribution(
    engine: Any, batches: list[list[Any]], loop: Loop
) -> None:
    """Reading and writing go into batches of their own; a label's place gives the probabilities it was drawn from,
    whatever the temperature."""
    assert engine.one_token(["A", "B"])
    reads = [Ask((Message("user", "Which? " * i),), labels=("A", "B")) for i in range(1, 6)]
    schema = load_judge("answer-quality").answer_schema
    cold = Ask(HELLO, schema, 60)
    done = all_of(loop, engine, [*reads, cold])
    assert sorted(len(batch) for batch in batches) == [1, 5]
    for reading in done[:-1]:
        assert reading.text == ""
        assert 0 < reading.mass <= 1
        assert sum(reading.distributions[""].values()) == pytest.approx(1)
    [alone] = all_of(loop, engine, reads[:1])
    assert alone.distributions[""] == pytest.approx(done[0].distributions[""], abs=1e-5)
    answer = json.loads(done[-1].text)
    assert done[-1].distributions
    for question, likely in done[-1].distributions.items():
        assert sum(likely.values()) == pytest.approx(1)
        assert likely[str(answer[question])] == max(likely.values())
    too_long = Ask((Message("user", "word " * engine.context),), labels=("A", "B"))
    assert all_of(loop, engine, [too_long])[0].status == "too_long"


def test_seeds_decide_and_temperature_zero_has_none(engine: Any, loop: Loop) -> None:
    warm = Ask(HELLO, SCHEMA, 60, temperature=1.0, seed=1)
    asks = [warm, warm, replace(warm, seed=2), replace(warm, temperature=0.0), Ask(HELLO, SCHEMA, 60, seed=2)]
    one, again, other, cold, cold_too = all_of(loop, engine, asks)
    assert one == again != other
    assert cold == cold_too != one
    keys = [engine.key(ask) for ask in asks]
    assert keys[0] == keys[1] != keys[2]
    assert keys[3] == keys[4] != keys[0]


def test_a_prompt_too_long_is_its_own_ask_s_failure(engine: Any, loop: Loop) -> None:
    long = Ask((Message("user", "word " * (engine.context + 10)),), SCHEMA)
    tight = Ask(HELLO, SCHEMA, engine.grammar(SCHEMA).least - 1)
    fine = Ask(HELLO, SCHEMA, 20)
    failure, too_tight, completion = all_of(loop, engine, [long, tight, fine])
    assert isinstance(failure, AskFailed) and isinstance(too_tight, AskFailed)
    assert failure.status == too_tight.status == "too_long"
    assert str(engine.context) in failure.why
    assert str(len(engine._encoder.encode(long.messages))) in failure.why
    assert str(tight.budget) in too_tight.why
    check(completion, fine)


def test_the_context_left_is_the_budget_and_no_company_goes_beyond_it(
    engine: Any, batches: list[list[Any]], loop: Loop
) -> None:
    """Room for exactly the least answer is enough, beside short prompts with much to say: no row, ended or not, is
    padded to a position that the model has not."""
    least = engine.grammar(SCHEMA).least
    message = Message("user", "a" + " a" * (engine.context - least))
    while (over := len(engine._encoder.encode((message,))) + least - engine.context) > 0:
        message = Message("user", message.text[: -2 * over])
    asks = [Ask((message,), SCHEMA, temperature=1.0), *(Ask(HELLO, SCHEMA, 100, 1.0, seed) for seed in range(3))]
    for ask, completion in zip(asks, all_of(loop, engine, asks), strict=True):
        check(completion, ask)
    assert [len(batch) for batch in batches] == [1, 3]
    for batch in batches:
        prompts, budgets = zip(*((len(job.prompt), job.budget) for job in batch), strict=True)
        assert max(prompts) + max(budgets) <= engine.context
    [failure] = all_of(loop, engine, [replace(asks[0], messages=(Message("user", message.text + " a"),))])
    assert failure.status == "too_long"


def test_batches_are_of_like_length_and_nobody_waits_for_ever(
    fresh: Any, batches: list[list[Any]], loop: Loop
) -> None:
    lengths = [1, 100, 2, 101, 3, 102, 4, 103, 5, 104, 6, 105, 7, 106, 8, 107]
    asks = [Ask((Message("user", "word " * length),), SCHEMA, 16) for length in lengths]
    for ask, completion in zip(asks, all_of(loop, fresh, asks), strict=True):
        check(completion, ask)
    assert [len(batch) for batch in batches] == [8, 8]
    for batch in batches:
        prompts = [len(job.prompt) for job in batch]
        assert max(prompts) - min(prompts) < 10


def test_a_failing_row_does_not_take_others_with_it(
    fresh: Any, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One prompt with an id that the model has not, and one answer whose machine refuses its third token."""
    prepare = fresh._codec.prepare

    class Stubborn:
        def __init__(self, machine: Any) -> None:
            self._machine, self._steps = machine, 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self._machine, name)

        def advance(self, token: int) -> bool:
            self._steps += 1
            return self._steps < 3 and self._machine.advance(token)

    class StubbornGrammar:
        def __getattr__(self, name: str) -> Any:
            return getattr(grammar, name)

        def machine(self, budget: int) -> Any:
            return Stubborn(grammar.machine(budget))

    grammar = fresh.grammar(SCHEMA)

    def broken(ask: Ask, thought: Any = None) -> Any:
        prepared = prepare(ask)
        if ask.seed == 2:
            return replace(prepared, prompt=[*prepared.prompt, 10**6])
        return replace(prepared, grammar=StubbornGrammar()) if ask.seed == 4 else prepared

    monkeypatch.setattr(fresh._codec, "prepare", broken)
    asks = [Ask(HELLO, SCHEMA, 30, temperature=1.0, seed=seed) for seed in range(6)]
    for ask, outcome in zip(asks, all_of(loop, fresh, asks), strict=True):
        if ask.seed in (2, 4):
            assert isinstance(outcome, AskFailed)
            assert outcome.status == "engine_error"
        else:
            check(outcome, ask)


def test_too_little_memory_halves_the_batches(fresh: Any, loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    write = fresh._write_at_once
    tried: list[int] = []
    most = 2

    def scarce(batch: Any) -> Any:
        tried.append(len(batch))
        if len(batch) > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return write(batch)

    monkeypatch.setattr(fresh, "_write_at_once", scarce)
    asks = [Ask(HELLO, SCHEMA, 20, temperature=1.0, seed=seed) for seed in range(8)]
    for ask, completion in zip(asks, all_of(loop, fresh, asks), strict=True):
        check(completion, ask)
    assert tried == [8, 4, 2, 2, 4, 2, 2]
    tried.clear()
    all_of(loop, fresh, asks)
    assert tried == [2, 2, 2, 2]
    most = 0
    for failure in all_of(loop, fresh, asks):
        assert isinstance(failure, AskFailed)
        assert (failure.status, "out of memory" in failure.why) == ("engine_error", True)


def test_a_gpu_that_fails_ends_the_engine(fresh: Any, loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(batch: Any) -> Any:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(fresh, "_write_at_once", fail)
    asks = [Ask(HELLO, SCHEMA, 20, seed=seed) for seed in range(20)]
    for failure in all_of(loop, fresh, asks) + all_of(loop, fresh, asks[:1]):
        assert isinstance(failure, EngineError)
        assert "device-side assert" in str(failure)


def test_who_stops_waiting_frees_the_engine(fresh: Any, loop: Loop) -> None:
    """Cancelled asks are dropped, waiting or half written; those that come after are answered."""
    endless = Ask(HELLO, load_judge("answer-quality").answer_schema, 1500, temperature=1.0)

    async def cancel_then_ask() -> tuple[list[Any], Any]:
        tasks = [asyncio.create_task(fresh.complete(endless)) for _ in range(20)]
        while not any(job.row for job in fresh._writing):
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        gone = await asyncio.gather(*tasks, return_exceptions=True)
        return gone, await fresh.complete(Ask(HELLO, SCHEMA, 20))

    gone, completion = loop.run(cancel_then_ask(), timeout=30)
    assert all(isinstance(end, asyncio.CancelledError) for end in gone)
    assert json.loads(completion.text)


def test_closing_fails_what_is_not_written(fresh: Any, loop: Loop) -> None:
    async def close_amid() -> list[Any]:
        tasks = [asyncio.create_task(fresh.complete(Ask(HELLO, SCHEMA, 60, 1.0, seed))) for seed in range(20)]
        while not any(job.row for job in fresh._writing):
            await asyncio.sleep(0.01)
        await fresh.close()
        return await asyncio.gather(*tasks, fresh.complete(Ask(HELLO, SCHEMA)), return_exceptions=True)

    for failure in loop.run(close_amid(), timeout=30):
        assert isinstance(failure, EngineError)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"batchsize": 3}, "did you mean 'batch_size'"),
        ({"batch_size": 0}, "answers written at once"),
        ({"dtype": "int4"}, "bfloat16, float16, float32"),
        ({"max_model_len": 10**6}, "more than the model's 2048"),
        ({"device": "abacus"}, "abacus"),
        ({"attn_implementation": "none"}, "attn_implementation"),
    ],
)
def test_a_wrong_argument_is_refused(
    arguments: dict[str, Any], says: str, random_model: LocalModel, loop: Loop
) -> None:
    with pytest.raises(EngineError) as caught:
        loop.run(TransformersEngine.start(random_model, arguments))
    assert says in str(caught.value)


def test_identity_names_what_decides_and_not_what_only_speeds(engine: Any, fresh: Any, loop: Loop) -> None:
    assert engine.identity == fresh.identity
    assert engine.provenance != fresh.provenance
    assert engine.identity["dtype"] == "float32"
    assert engine.identity["device"] == "cpu"
    json.dumps([engine.identity, engine.provenance])


def test_a_run_through_the_command_line(random_model: LocalModel, tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    rows = [{"id": str(i), "question": f"Is {i} odd?", "answer": "Yes."} for i in range(3)]
    records.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "out"
    command = f"run truthfulness {records} -m {random_model.path} -o {out} --no-cache --engine transformers"
    finished = subprocess.run(
        [sys.executable, "-m", "localjudge", *command.split(), "--engine-arg", "dtype=float32"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert "Warning" not in finished.stderr
    assert [verdict.status for verdict in read_verdicts(out)] == ["ok"] * 3
    assert json.loads((out / "run.json").read_text())["engine"]["identity"]["engine"] == "transformers"


# The logits processor alone


def test_what_is_drawn_follows_the_probabilities() -> None:
    from localjudge.decoding.transformers_processor import ClosingProcessor, Row

    grammar = Grammar(AN_ANSWER, Vocabulary.of_bytes())
    rows = [Row(grammar, grammar.least, temperature=2.0, seed=seed) for seed in range(4000)]
    wanted = torch.tensor([0.5, 0.3, 0.0, 0.2])
    chosen = ClosingProcessor(rows)._draw((2 * wanted.log()).repeat(4000, 1), rows).argmax(-1)
    counts = torch.bincount(chosen, minlength=4) / 4000
    assert counts.tolist() == pytest.approx(wanted.tolist(), abs=0.035)  # four deviations and more
    assert counts[2] == 0


@pytest.mark.parametrize("filler", [float("nan"), float("inf"), float("-inf"), 3e38, 0.0])
@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1.0])
@pytest.mark.parametrize("width", [257, 300])
def test_a_model_that_computes_nonsense_still_writes_a_valid_answer(
    filler: float, temperature: float, width: int
) -> None:
    """Overflow in float16 gives such logits; and some models have more logits than their tokenizer has tokens."""
    from localjudge.decoding.transformers_processor import ClosingProcessor, Row

    grammar = Grammar(AN_ANSWER, Vocabulary.of_bytes())
    rows = [Row(grammar, grammar.least + extra, temperature, seed=extra) for extra in range(3)]
    processor = ClosingProcessor(rows)
    ids = torch.zeros((3, 4), dtype=torch.long)
    for _ in range(grammar.least + 4):
        logits = processor(ids, torch.full((3, width), filler))
        ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], 1)
    for row, written in zip(rows, ids[:, 4:].tolist(), strict=True):
        assert row.ended
        if filler != float("-inf"):  # where nothing is likelier than what is not legal, there is nothing to choose
            assert not row.broken
            jsonschema.validate(json.loads(grammar.vocabulary.text(written)), AN_ANSWER)


def test_a_cpu_computes_in_what_it_is_fast_in(
    embedded: LocalModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU without bfloat16 instructions bfloat16 takes several times as long."""
    monkeypatch.setattr(inprocess, "multiplies_bfloat16", lambda: True)
    assert inprocess.cpu_dtype(embedded) == "bfloat16"
    monkeypatch.setattr(inprocess, "multiplies_bfloat16", lambda: False)
    assert inprocess.cpu_dtype(embedded) == "float32"
    quantized = replace(embedded, path=tmp_path)
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "awq"}}')
    assert inprocess.cpu_dtype(quantized) == "bfloat16"
    pages = {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(inprocess.os, "sysconf", pages.__getitem__)
    assert inprocess.cpu_dtype(embedded) == "bfloat16"  # there is no memory for twice the weights
