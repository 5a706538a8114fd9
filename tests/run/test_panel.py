"""Panels as runs: samples of one model, several models one after the other, killed and resumed at each step."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from localjudge.engines.base import Ask, AskFailed
from localjudge.errors import EngineError, RecordsError, RunError
from localjudge.report.summary import Summary
from localjudge.run.panel import PanelRun, member_folder
from localjudge.run.runner import Run, Settings, own_seed
from localjudge.run.session import report_again
from localjudge.run.store import read_verdicts
from tests.run.conftest import Job, by_id
from tests.scripted import ScriptedEngine

NAMES = ("first", "second", "third")


def panel(
    job: Job, *, names: tuple[str, ...] = NAMES, engines: dict[str, Any] | None = None, **options: Any
) -> PanelRun:
    members: list[Run] = []
    for name in names:
        engine = (engines or {}).get(name) or ScriptedEngine(settings={"model": name})
        own = {"model": {"name": name, "fingerprint": name}, "out": member_folder(job.out, name)}
        members.append(job.prepare(engine, **own, **options))
    return PanelRun(members, job.out, "mean", job.said.append)


def go(run: PanelRun) -> Summary:
    return asyncio.run(run.go())


def test_three_models_judge_one_after_the_other_and_decide_together(truth: Job) -> None:
    summary = go(panel(truth))
    verdicts = by_id(truth.out)
    assert summary.statuses["ok"] == len(verdicts) == 30
    for name in NAMES:
        own = {verdict.id: verdict for verdict in read_verdicts(member_folder(truth.out, name))}
        for verdict in verdicts.values():
            assert own[verdict.id] in (verdict.members or [])
    assert summary.panel is not None
    assert list(summary.panel.members) == list(NAMES)
    assert summary.panel.members["first"].judged == 30
    assert set(summary.panel.agreement) == {"truthful"}
    run = json.loads((truth.out / "run.json").read_text())
    assert run["model"]["name"] == "first + second + third"
    assert run["panel"]["members"] == {name: name for name in NAMES}
    report = report_again(truth.out)
    assert "## Panel" in report
    assert "| third" in report
    assert truth.said[0] == "member 1 of 3: first"


def test_a_panel_goes_on_where_it_was_stopped(truth: Job) -> None:
    dying = {"second": ScriptedEngine(settings={"model": "second"}, dies_after=10)}
    with pytest.raises(EngineError, match="member 'second' stopped: the scripted engine has died"):
        go(panel(truth, engines=dying))
    assert not (truth.out / "verdicts.jsonl").exists()
    assert len(by_id(member_folder(truth.out, "first"))) == 30
    first, second = ScriptedEngine(settings={"model": "first"}), ScriptedEngine(settings={"model": "second"})
    go(panel(truth, engines={"first": first, "second": second}))
    assert first.answered == 0
    assert 0 < second.answered <= 21
    again = by_id(truth.out)
    go(panel(truth))
    assert by_id(truth.out) == again
    assert len(again) == 30


def test_a_member_that_cannot_be_loaded_is_named(truth: Job) -> None:
    run = panel(truth)

    async def broken() -> Any:
        raise EngineError("CUDA out of memory", fix="take fewer")

    run.members[2].start_engine = broken
    with pytest.raises(EngineError) as told:
        go(run)
    assert "'third' stopped: CUDA out of memory" in str(told.value)
    assert "take fewer" in str(told.value)
    assert "leave the member out" in str(told.value)


def test_a_folder_belongs_to_its_panel(truth: Job) -> None:
    go(panel(truth))
    with pytest.raises(RunError, match=r"members\.third was"):
        go(panel(truth, names=("first", "second")))
    with pytest.raises(RunError, match="'first' twice"):
        panel(truth, names=("first", "first"))


def test_a_panel_that_was_killed_keeps_its_folder(truth: Job) -> None:
    dying = {"second": ScriptedEngine(settings={"model": "second"}, dies_after=1)}
    with pytest.raises(EngineError):
        go(panel(truth, engines=dying))
    with pytest.raises(RunError, match="this folder holds a panel's run"):
        truth.run(model={"name": "first", "fingerprint": "first"})
    go(panel(truth))
    alone = truth.path / "alone"
    truth.run(out=alone)
    truth.out = alone
    with pytest.raises(RunError, match="this folder holds the run of one model"):
        go(panel(truth))


def test_two_models_of_one_name_are_told_apart_or_refused(truth: Job) -> None:
    members = [
        truth.prepare(model={"name": "model", "fingerprint": mark}, out=member_folder(truth.out, "model"))
        for mark in ("one", "two")
    ]
    with pytest.raises(RunError, match="two of the panel's models would both be called 'model'"):
        PanelRun(members, truth.out, "mean")


def test_a_fault_of_the_records_is_no_members(truth: Job) -> None:
    truth.records.write_text('{"id": "x"}\n')
    with pytest.raises(RecordsError) as told:
        go(panel(truth))
    assert "member" not in str(told.value)


def test_no_two_records_are_decided_by_the_same_draws(truth: Job) -> None:
    engine = ScriptedEngine()
    seeds: list[int] = []

    def note(ask: Ask) -> None:
        seeds.append(ask.seed)

    engine.fails = note
    truth.run(engine, samples=2, temperature=1)
    assert len(set(seeds)) == 60


def test_samples_of_one_model_sit_in_one_verdict(truth: Job) -> None:
    summary = truth.run(samples=3, temperature=0.8)
    verdict = next(iter(by_id(truth.out).values()))
    assert verdict.members is not None
    assert [member.model for member in verdict.members] == ["scripted#1", "scripted#2", "scripted#3"]
    assert summary.usage.asks == 90
    assert summary.panel is not None
    alpha = summary.panel.agreement["truthful"].alpha
    assert alpha is not None and -0.5 < alpha < 0.5
    # Sample i is what a run with that seed says.
    alone = Job(truth.path / "alone", truth.judge, truth.rows) if (truth.path / "alone").mkdir() is None else truth
    alone.run(temperature=0.8, seed=2)
    other = by_id(alone.out)[verdict.id]
    assert verdict.members[2].answers == other.answers


def test_sampled_models_sit_on_a_panel_with_each_of_their_samples(truth: Job) -> None:
    summary = go(panel(truth, names=("first", "second"), samples=2, temperature=0.5))
    assert summary.panel is not None
    assert list(summary.panel.members) == ["first#1", "first#2", "second#1", "second#2"]


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"samples": 0}, "'samples' cannot be 0"),
        ({"samples": 3}, "3 samples would all be the same, since temperature is 0"),
        ({"samples": 3, "mode": "score", "temperature": 1}, "score mode reads probabilities"),
        ({"combine": "mode"}, "'combine' cannot be 'mode'"),
    ],
)
def test_samples_that_make_no_sense_are_refused(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(RunError, match=what):
        Settings.of(**settings)


def test_a_failed_member_is_tried_again(pairs: Job) -> None:
    def second(ask: Ask) -> AskFailed | None:
        return AskFailed("engine_error", "out of luck") if ask.seed == own_seed(1, ask.messages) else None

    engine = ScriptedEngine(fails=second)
    summary = pairs.run(engine, samples=3, temperature=1)
    assert summary.statuses["ok"] == 20
    assert summary.panel is not None
    assert summary.panel.members["scripted#2"].failed == 20
    summary = pairs.run(ScriptedEngine(), samples=3, temperature=1, retry_failed=True)
    assert summary.panel is not None
    assert summary.panel.members["scripted#2"].failed == 0


def test_members_that_reach_their_verdicts_in_another_order_are_joined_by_id(truth: Job) -> None:
    go(panel(truth))
    before = by_id(truth.out)
    file = member_folder(truth.out, "second") / "verdicts.jsonl"
    file.write_text("".join(reversed(file.read_text().splitlines(keepends=True))))
    go(panel(truth))
    assert by_id(truth.out) == before
    assert Path(truth.out / "summary.json").is_file()
