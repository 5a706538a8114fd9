"""What a run of a dual-control judge says of the one who answered, and the pairs that it gives to train on. The
verdicts are made here, so that each finding is known beforehand."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from localjudge.errors import LocalJudgeError, RunError
from localjudge.judge.dual_control import fuse, section_of
from localjudge.judge.loading import load_judge
from localjudge.judge.spec import JudgeSpec
from localjudge.paths import data_dir
from localjudge.report.diagnosis import PROMPTS, SHOWN, Diagnosis
from localjudge.report.markdown import markdown
from localjudge.report.summary import Summary, summarize
from localjudge.run.export import export
from localjudge.run.preferences import pairs
from localjudge.run.store import read_verdicts
from localjudge.verdict import Dual, Usage, Verdict
from tests.run.conftest import Job, own_cache
from tests.scripted import ScriptedEngine

__all__ = ["own_cache"]


@pytest.fixture(scope="module")
def spec() -> JudgeSpec:
    return load_judge("dual-control")


def verdict(
    spec: JudgeSpec, record_id: str, technical: float, gate: Iterable[str] = (), **personas: float
) -> Verdict:
    """prompt_id: what comes before the first '-' of the id."""
    gate = list(gate)
    persona = sum(personas.values()) / len(personas) if personas else None
    result = fuse(section_of(spec), technical, persona, bool(gate))
    return Verdict(
        id=record_id,
        status="ok",
        overall=result.overall,
        scores={"technical": technical, **({"persona": persona} if persona is not None else {})},
        dual=Dual(
            technical=technical,
            parts={},
            persona=persona,
            personas=personas,
            mix=dict.fromkeys(personas, 1 / max(1, len(personas))),
            gate=gate,
            weights=result.weights,
            fused=result.fused,
            ceiling=result.ceiling,
            skipped=persona is None,
            prompt_id=record_id.partition("-")[0] or None,
            persona_usage=Usage(asks=2, prompt=300, cached=200, written=50) if personas else Usage(),
        ),
        judge=spec.name,
        model="m",
    )


def diagnosis(spec: JudgeSpec, *verdicts: Verdict) -> Diagnosis:
    found = summarize(verdicts, spec).diagnosis
    assert found is not None
    return found


def test_each_pattern_is_found_with_the_records_that_show_it(spec: JudgeSpec) -> None:
    found = diagnosis(
        spec,
        verdict(spec, "a-dry", 0.9, marketer=0.2),
        verdict(spec, "a-drier", 0.95, marketer=0.1),
        verdict(spec, "a-flatters", 0.8, ["contradicted"], marketer=1.0),
        verdict(spec, "b-lies", 0.3, ["floor"], marketer=0.7),
        verdict(spec, "b-uneven", 0.8, marketer=1.0, first_time_user=0.5),
        verdict(spec, "b-even", 0.8, marketer=0.9, first_time_user=0.5),
        verdict(spec, "b-good", 0.9, marketer=0.9),
        verdict(spec, "b-poor", 0.2, ["floor"], marketer=0.2),
    )
    assert [one.id for one in found.style.records] == ["a-drier", "a-dry"]
    assert [one.id for one in found.danger.records] == ["b-lies", "a-flatters"]
    [uneven] = found.unstable.records
    assert (uneven.id, uneven.high, uneven.low, uneven.spread) == ("b-uneven", "marketer", "first_time_user", 0.5)
    assert (found.n, found.closed, found.gate, found.saved) == (8, 3, {"floor": 2, "contradicted": 1}, None)


def test_the_clearest_few_are_shown_and_all_are_counted(spec: JudgeSpec) -> None:
    found = diagnosis(spec, *(verdict(spec, f"p-{i}", 0.9, marketer=i / 100) for i in range(40)))
    assert found.style.count == 40
    assert [one.id for one in found.style.records] == [f"p-{i}" for i in range(SHOWN)]


def test_prompts_are_set_against_personas(spec: JudgeSpec) -> None:
    verdicts = [
        verdict(spec, "warm-1", 0.8, marketer=1.0),
        verdict(spec, "warm-2", 0.8, ["contradicted"], marketer=1.0),
        verdict(spec, "terse-1", 0.8, marketer=0.6, impatient_expert=1.0),
        verdict(spec, "-none", 0.8, marketer=1.0),
    ]
    found = {(one.prompt_id, one.persona): one for one in diagnosis(spec, *verdicts).prompts}
    assert list(found) == [("terse", "impatient_expert"), ("terse", "marketer"), ("warm", "marketer")]
    warm, terse = found["warm", "marketer"], found["terse", "marketer"]
    assert (warm.mean, warm.n, terse.mean) == (1.0, 2, 0.6)
    assert warm.fused < terse.fused, "who pleases by being wrong serves nobody"
    told = report(spec, verdicts)
    assert "0.70 (1), best" in told and "0.58 (2)" in told
    many = [verdict(spec, f"p{i}-x", 0.8, marketer=1.0) for i in range(PROMPTS + 3)]
    assert diagnosis(spec, *many).left_out == 3


def test_the_funnel_says_what_it_saved(spec: JudgeSpec) -> None:
    own = load_judge("dual-control", ["dual_control.funnel=true"])
    judged = [verdict(own, f"p-{i}", 0.9, marketer=0.9) for i in range(4)]
    skipped = [verdict(own, f"q-{i}", 0.2, ["floor"]) for i in range(3)]
    saved = diagnosis(own, *judged, *skipped).saved
    assert saved is not None
    assert (saved.skipped, saved.asks, saved.prompt, saved.written) == (3, 6, 900, 150)
    told = report(own, [*judged, *skipped])
    assert "spared 3 records the personas: about 6 asks, 900 tokens read and 150 written" in told
    none = diagnosis(own, *skipped).saved
    assert none is not None and (none.skipped, none.asks) == (3, None)
    nothing = diagnosis(own, *judged).saved
    assert nothing is not None and (nothing.skipped, nothing.asks) == (0, 0)


def report(spec: JudgeSpec, verdicts: list[Verdict]) -> str:
    run = {"judge": {"name": spec.name}, "model": {"name": "m"}}
    return markdown(summarize(verdicts, spec), run)


def test_the_report_tells_it_in_words(spec: JudgeSpec) -> None:
    told = report(
        spec, [verdict(spec, "x-<b>", 0.9, ["contradicted"], marketer=1.0), verdict(spec, "y-2", 0.9, marketer=0.2)]
    )
    assert "> **Warning**: 1 response pleased the reader and failed on the facts" in told
    assert (
        "- **1 record** right, but not for its reader (technical from 0.7, persona below 0.5): mend the style"
        in told
    )
    assert "- **1 record** pleasing while wrong" in told
    assert "  - x-&lt;b>: technical 0.90, persona 1.00" in told
    assert "The gate was closed for 1 record: contradicted 1." in told
    assert "spared" not in told


# Preference pairs


def candidate(name: str, passed: bool = True, otherwise: float | None = None, **scores: float) -> dict[str, Any]:
    return {
        "id": name,
        "case": "c",
        "system": "Be kind.",
        "prompt": "Why?",
        "response": f"Because {name}.",
        "passed_gate": passed,
        "scores": scores,
        "otherwise": otherwise,
    }


def test_pairs_are_of_one_persona_each_and_far_enough_apart() -> None:
    told = list(
        pairs(
            [
                candidate("a", marketer=0.9, expert=0.3),
                candidate("b", marketer=0.5, expert=0.8),
                candidate("c", marketer=0.85),
            ],
            0.1,
        )
    )
    assert [(one["persona"], one["chosen_id"], one["rejected_id"]) for one in told] == [
        ("marketer", "a", "b"),
        ("marketer", "c", "b"),
        ("expert", "b", "a"),
    ]
    assert told[0]["prompt"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Why?"},
    ]
    assert told[0]["chosen"] == [{"role": "assistant", "content": "Because a."}]
    assert told[0]["margin"] == pytest.approx(0.4)


def test_nothing_is_chosen_that_failed_the_gate_and_what_was_spared_can_be_rejected() -> None:
    wrong, worse = candidate("wrong", passed=False, marketer=0.25), candidate("worse", passed=False, otherwise=0.05)
    assert list(pairs([wrong, worse], 0.1)) == []
    told = list(pairs([wrong, worse, candidate("right", marketer=0.5)], 0.1))
    assert [(one["chosen_id"], one["rejected_id"]) for one in told] == [("right", "wrong"), ("right", "worse")]


def test_ties_twins_and_other_prompts_are_no_pairs() -> None:
    twin = {**candidate("twin", marketer=0.2), "response": "Because a."}
    assert list(pairs([candidate("a", marketer=0.9), twin, candidate("b", marketer=0.9)], 0.0)) == list(
        pairs([twin, candidate("b", marketer=0.9)], 0.0)
    )
    other = {**candidate("o", marketer=0.2), "system": "Be terse."}
    [one] = pairs([candidate("a", marketer=0.9), other], 0.1)
    assert [message["role"] for message in one["prompt"]] == ["user"]


# A run of the examples


@pytest.fixture
def examples(tmp_path: Path) -> Job:
    lines = (data_dir("prompts") / "dual-control" / "examples" / "records.jsonl").read_text(encoding="utf-8")
    return Job(tmp_path, "dual-control", [json.loads(line) for line in lines.splitlines()])


OPEN = ("dual_control.policy=policy.yaml", "dual_control.gate={floor: 0.01, safety: false}")
"""A gate that the scripted engine's answers, which are drawn, mostly pass."""


def run(job: Job, *settings: str, engine: ScriptedEngine | None = None) -> Summary:
    return job.run(engine, judge_settings=settings)


def test_the_examples_are_judged_reported_and_exported(examples: Job) -> None:
    engine = ScriptedEngine()
    summary = run(examples, *OPEN, engine=engine)
    assert summary.statuses["ok"] == summary.total == 12
    assert summary.diagnosis is not None and summary.diagnosis.prompts
    assert summary.usage.asks == sum(engine.asked.values())
    assert {"technical", "persona", "persona_marketer", "persona_composed"} <= set(summary.scores)
    assert "persona_match" in summary.histograms and "composed_options" in summary.histograms
    assert "sceptical_buyer_decision" not in summary.histograms, "nobody was matched to that reader"
    told = (examples.out / "reports" / "move-complete.md").read_text(encoding="utf-8")
    assert "## Technical stream" in told and "## Persona stream" in told
    out = examples.path / "pairs.jsonl"
    done = export(examples.out, "preferences", out, margin=0.0)
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert done.rows == len(rows) > 0
    verdicts = {each.id: each for each in read_verdicts(examples.out)}
    for row in rows:
        assert row["chosen_id"].partition("-")[0] == row["rejected_id"].partition("-")[0] == row["case"]
        chosen, rejected = (verdicts[row[key]] for key in ("chosen_id", "rejected_id"))
        assert row["margin"] == pytest.approx(row["chosen_score"] - row["rejected_score"])
        assert chosen.dual is not None and rejected.dual is not None and not chosen.dual.gate
        assert row["persona"] in chosen.dual.personas
        assert [message["role"] for message in row["prompt"]] == ["user"]
        assert "\n\n" in row["prompt"][0]["content"], "the task and the context"
    table = examples.path / "pairs.parquet"
    assert export(examples.out, "preferences", table, margin=0.0).rows == len(rows)
    from pyarrow import parquet

    assert parquet.read_table(table).to_pylist() == rows
    flat = examples.path / "flat.jsonl"
    export(examples.out, "jsonl", flat)
    [first, *_] = [json.loads(line) for line in flat.read_text(encoding="utf-8").splitlines()]
    assert "score_technical" in first and "answer_marketer_voice" in first


def test_the_chinese_judge_reports_in_chinese(tmp_path: Path) -> None:
    row = {
        "id": "壶",
        "task": "水没开就跳闸，为什么？",
        "context": "开盖 20 秒后断电。",
        "response": "请盖好盖子。",
    }
    job = Job(tmp_path, str(data_dir("prompts") / "dual-control" / "judge.zh.yaml"), [row])
    assert job.run().statuses["ok"] == 1
    [report] = (job.out / "reports").iterdir()
    told = report.read_text(encoding="utf-8")
    assert "## 技术评审" in told and "## 读者评审" in told and "Technical" not in told
    [verdict] = read_verdicts(job.out)
    assert verdict.dual is not None
    assert all(not one.text.isascii() for one in verdict.dual.suggestions)


def test_what_has_no_personas_has_no_preferences_and_asks_in_steps_are_no_batch(
    examples: Job, tmp_path: Path
) -> None:
    run(examples, *OPEN)
    with pytest.raises(RunError, match="so no batch holds them"):
        export(examples.out, "openai-batch", tmp_path / "batch.jsonl")
    (tmp_path / "other").mkdir()
    other = Job(tmp_path / "other", "truthfulness", [{"id": "1", "question": "q", "answer": "a"}])
    other.run()
    with pytest.raises(LocalJudgeError, match="'truthfulness' is a rubric judge"):
        export(other.out, "preferences", tmp_path / "none.jsonl")


def test_the_funnel_asks_less_and_judges_the_rest_alike(examples: Job) -> None:
    plain, narrow = ScriptedEngine(), ScriptedEngine()
    run(examples, engine=plain)
    whole = {each.id: each for each in read_verdicts(examples.out)}
    summary = examples.run(
        narrow, judge_settings=["dual_control.funnel=true"], out=examples.path / "narrow", shared_cache=False
    )
    spared = {each.id: each for each in read_verdicts(examples.path / "narrow")}
    assert summary.diagnosis is not None and summary.diagnosis.saved is not None
    assert summary.diagnosis.saved.skipped == sum(bool(each.dual and each.dual.gate) for each in whole.values()) > 0
    assert sum(narrow.asked.values()) < sum(plain.asked.values())
    for record_id, each in whole.items():
        assert each.dual is not None and spared[record_id].dual is not None
        assert spared[record_id].dual.technical == each.dual.technical  # type: ignore[union-attr]
        if not each.dual.gate:
            assert spared[record_id].overall == each.overall
