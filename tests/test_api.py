"""Judging from Python: in a script, in a notebook, on one's own event loop."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import localjudge
from localjudge import api, judge_records, judge_records_async, load_judge
from localjudge.api import LoadedModel
from localjudge.engines.base import Ask, AskFailed
from localjudge.errors import EngineError, JudgeError, ModelError, RecordsError, RunError
from localjudge.run.runner import Settings, own_seed
from tests.scripted import ScriptedEngine, scripted_model, write_tokenizer

ROWS = [{"id": f"t{i}", "question": f"Is {i} even?", "answer": f"It is number {i}."} for i in range(30)]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCALJUDGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "completions.sqlite"


def loaded(engine: ScriptedEngine | None = None, path: Path = Path()) -> LoadedModel:
    return LoadedModel(scripted_model(path), engine or ScriptedEngine())


def by_name(monkeypatch: pytest.MonkeyPatch, load: Callable[..., Any]) -> None:
    """A model called `scripted`, loaded so."""
    monkeypatch.setattr(api, "find_model", lambda name: scripted_model(Path()))
    monkeypatch.setattr(api, "_load", load)


def backwards() -> ScriptedEngine:
    """Later asks are answered sooner."""

    class Backwards(ScriptedEngine):
        async def complete(self, ask: Ask) -> Any:
            self.delay = 0.03 - 0.001 * self.asked.total()
            return await super().complete(ask)

    return Backwards(concurrency=30)


def test_a_verdict_a_record_in_their_order() -> None:
    engine = backwards()
    with loaded(engine) as model:
        verdicts = judge_records("truthfulness", ROWS, model)
    assert [verdict.id for verdict in verdicts] == [row["id"] for row in ROWS]
    assert all(isinstance(verdict, localjudge.Verdict) and verdict.status == "ok" for verdict in verdicts)
    assert all(
        verdict.overall == (verdict.answers["truthful"].value == "yes") and verdict.rationale
        for verdict in verdicts
    )
    assert engine.most_in_flight == 30
    assert engine.closed == 1


def test_records_may_be_a_file(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    from_rows = judge_records("truthfulness", ROWS, loaded())
    assert [v.model_dump(exclude={"usage"}) for v in judge_records("truthfulness", file, loaded())] == [
        v.model_dump(exclude={"usage"}) for v in from_rows
    ]
    assert [v.id for v in judge_records("truthfulness", str(file), loaded(), limit=3)] == ["t0", "t1", "t2"]


def test_a_judge_may_be_a_name_a_file_or_loaded_already(tmp_path: Path) -> None:
    spec = load_judge("truthfulness", ["scoring.pass=0"])
    assert all(verdict.passed for verdict in judge_records(spec, ROWS, loaded()))
    file = tmp_path / "judge.yaml"
    file.write_text(
        "name: own\ninputs: [answer]\nuser: '{{ answer }}'\n"
        "questions: [{id: good, type: score, ask: 'How good?', scale: [1, 3]}]\n"
    )
    for judge in (file, str(file), tmp_path):
        assert {verdict.judge for verdict in judge_records(judge, ROWS, loaded())} == {"own"}


def test_the_plain_call_works_where_a_loop_runs_already() -> None:
    """As in a notebook, whose cells run on its loop."""

    async def cell() -> list[localjudge.Verdict]:
        return judge_records("truthfulness", ROWS, loaded())

    assert len(asyncio.run(cell())) == 30


def test_the_awaited_call_leaves_its_loop_free() -> None:
    async def go() -> tuple[list[localjudge.Verdict], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.001)
                ticks += 1

        ticking = asyncio.ensure_future(tick())
        verdicts = await judge_records_async("truthfulness", ROWS, loaded(ScriptedEngine(delay=0.02)))
        ticking.cancel()
        return verdicts, ticks

    verdicts, ticks = asyncio.run(go())
    assert [verdict.id for verdict in verdicts] == [row["id"] for row in ROWS]
    assert ticks > 10


def test_one_model_serves_many_calls_at_once() -> None:
    engine = ScriptedEngine(delay=0.005)

    async def go() -> list[list[localjudge.Verdict]]:
        model = loaded(engine)
        calls = [judge_records_async("truthfulness", ROWS[n:], model, cache_completions=False) for n in range(4)]
        return await asyncio.gather(*calls)

    assert [len(verdicts) for verdicts in asyncio.run(go())] == [30, 29, 28, 27]
    assert engine.most_in_flight > engine.concurrency
    assert engine.closed == 0


def test_a_model_given_twice_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engines: list[ScriptedEngine] = []

    async def load(model: str, engine: str, arguments: dict[str, Any], *_: Any, **__: Any) -> LoadedModel:
        engines.append(ScriptedEngine(speed=arguments))
        return loaded(engines[-1])

    by_name(monkeypatch, load)
    with localjudge.load_model("scripted", max_num_seqs=4) as model:
        for _ in range(2):
            judge_records("truthfulness", ROWS, model)
        assert len(engines) == 1
        assert engines[0].closed == 0
    assert engines[0].closed == 1
    assert engines[0].provenance["arguments"]["max_num_seqs"] == 4
    judge_records("truthfulness", ROWS, "scripted")  # by its name, it is loaded for one call
    assert [engine.closed for engine in engines] == [1, 1]


def test_settings_are_those_of_a_run(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    engine = ScriptedEngine()
    seen: list[Ask] = []
    engine.fails = seen.append
    rows = [{"id": row["id"], "question": row["question"], "text": row["answer"]} for row in ROWS]
    judge_records(
        "truthfulness",
        rows,
        loaded(engine, tmp_path),
        temperature=0.5,
        seed=7,
        max_tokens=99,
        limit=5,
        mapping={"answer": "text"},
    )
    assert len(seen) == 5
    assert {(ask.temperature, ask.budget) for ask in seen} == {(0.5, 99)}
    assert all(ask.seed == own_seed(7, ask.messages) for ask in seen)
    with pytest.raises(RunError, match="did you mean 'temperature'"):
        judge_records("truthfulness", ROWS, loaded(), temprature=1)
    assert Settings().temperature == 0


def test_completions_are_stored_unless_not_wanted(own_cache: Path) -> None:
    judge_records("truthfulness", ROWS, loaded(), cache_completions=False)
    assert not own_cache.exists()
    judge_records("truthfulness", ROWS, loaded())
    engine = ScriptedEngine()
    verdicts = judge_records("truthfulness", ROWS, loaded(engine))
    assert engine.asked.total() == 0
    assert {verdict.usage.reused for verdict in verdicts} == {1}


def test_a_bad_row_says_which(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [*ROWS[:4], {"id": "t4", "question": "Is 4 even?", "answer": 4}, *ROWS[5:]]
    with pytest.raises(
        RecordsError, match=r"1 of 30 records cannot be judged\n  records row 5: field 'answer' is 4"
    ):
        judge_records("truthfulness", rows, loaded())
    verdicts = judge_records("truthfulness", rows, loaded(), skip_invalid=True)
    assert [verdict.id for verdict in verdicts] == [row["id"] for row in ROWS]
    assert verdicts[4].status == "invalid_record"
    assert verdicts[4].error is not None
    assert verdicts[4].error.startswith("records row 5: field 'answer' is 4")
    assert {verdict.status for verdict in verdicts[:4] + verdicts[5:]} == {"ok"}


def test_one_id_twice_still_gives_a_verdict_a_record() -> None:
    rows = [ROWS[0], {**ROWS[1], "id": "t0"}, ROWS[2]]
    verdicts = judge_records("truthfulness", rows, loaded(), skip_invalid=True)
    assert [(verdict.id, verdict.status) for verdict in verdicts] == [
        ("t0", "ok"),
        ("t0#2", "invalid_record"),
        ("t2", "ok"),
    ]


def test_no_records_are_no_verdicts() -> None:
    with pytest.raises(RecordsError, match="no records"):
        judge_records("truthfulness", [], loaded())


def test_what_fails_of_one_record_is_in_its_verdict() -> None:
    def fails(ask: Ask) -> AskFailed | None:
        return AskFailed("too_long", "scripted") if "Is 7 even?" in ask.messages[-1].text else None

    verdicts = judge_records("truthfulness", ROWS, loaded(ScriptedEngine(fails=fails)))
    assert [verdict.id for verdict in verdicts if verdict.status == "too_long"] == ["t7"]


@pytest.mark.parametrize(
    ("judge", "records", "model", "error"),
    [
        ("truthfulnes", ROWS, loaded, JudgeError),
        ("truthfulness", "no-such-file.jsonl", loaded, RecordsError),
        ("truthfulness", ROWS, lambda: "no-such-model", ModelError),
        ("truthfulness", ROWS, lambda: loaded(ScriptedEngine(dies_after=3)), EngineError),
    ],
)
def test_what_is_wrong_with_all_of_it_is_an_error(
    judge: str, records: Any, model: Callable[[], Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        judge_records(judge, records, model())

    async def go() -> None:
        await judge_records_async(judge, records, model())

    with pytest.raises(error):
        asyncio.run(go())


def test_a_spoilt_cache_is_told_before_the_model_loads(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_cache.parent.mkdir()
    own_cache.write_text("no database" * 100)

    async def load(*_: Any) -> LoadedModel:
        raise AssertionError("it loads")

    by_name(monkeypatch, load)
    with pytest.raises(RunError, match="cache cannot be used"):
        judge_records("truthfulness", ROWS, "scripted")


def idle(engine: ScriptedEngine) -> bool:
    for _ in range(200):
        if not engine.in_flight:
            return True
        time.sleep(0.01)
    return False


def test_cancelling_the_awaited_call_stops_the_judging() -> None:
    engine = ScriptedEngine(hangs=lambda ask: True)

    async def go() -> None:
        call = asyncio.ensure_future(judge_records_async("truthfulness", ROWS, loaded(engine)))
        while engine.in_flight < 8:
            await asyncio.sleep(0.001)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(go())
    assert idle(engine)


def test_ctrl_c_in_the_plain_call_stops_the_judging(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ScriptedEngine(hangs=lambda ask: True)
    main = threading.main_thread().ident
    assert main == threading.get_ident()

    def interrupt() -> None:
        import signal

        while engine.in_flight < 8:
            time.sleep(0.001)
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        judge_records("truthfulness", ROWS, loaded(engine))
    assert idle(engine)


def test_several_models_are_a_panel() -> None:
    def named(name: str) -> LoadedModel:
        return LoadedModel(scripted_model(Path(), name=name), ScriptedEngine(settings={"model": name}))

    members = [named(name) for name in ("a", "b", "c")]
    verdicts = judge_records("truthfulness", ROWS, members)
    own = [judge_records("truthfulness", ROWS, member) for member in members]
    for verdict, *told in zip(verdicts, *own, strict=True):
        assert verdict.model == "a + b + c"
        assert [member.answers for member in verdict.members or []] == [each.answers for each in told]
        yes = sum(each.answers["truthful"].value == "yes" for each in told)
        assert verdict.answers["truthful"].value == ("yes" if yes > 1 else "no")
    with pytest.raises(RunError, match="a panel without models"):
        judge_records("truthfulness", ROWS, [])
