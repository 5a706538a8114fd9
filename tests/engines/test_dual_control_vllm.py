"""The dual-control judge end to end in real vLLM with the smallest model: it judges badly, but validly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from localjudge.judge.loading import load_judge
from localjudge.judge.questions import answer_schema
from localjudge.models import LocalModel
from localjudge.paths import data_dir
from localjudge.run.store import read_verdicts
from tests.conftest import Loop
from tests.engines.test_vllm import run_in

pytestmark = pytest.mark.vllm


def test_every_example_is_judged_validly(engine: Any, embedded: LocalModel, loop: Loop, tmp_path: Path) -> None:
    records = data_dir("prompts") / "dual-control" / "examples" / "records.jsonl"
    summary = run_in(tmp_path, engine, embedded, "dual-control", records, loop, max_tokens=100)
    assert summary.statuses["ok"] == summary.total == 12
    assert summary.diagnosis is not None and summary.diagnosis.n == 12
    spec = load_judge("dual-control")
    asks = {question.id: questions for questions in spec.asks for question in questions}
    own = ("verified", "evidence_in")
    for verdict in read_verdicts(tmp_path):
        dual = verdict.dual
        assert dual is not None and verdict.overall is not None
        assert 0 <= verdict.overall <= 1
        assert sum(dual.mix.values()) == pytest.approx(1)
        for name, answer in verdict.answers.items():
            [question] = [question for question in asks[name] if question.id == name]
            value = answer.value
            if question.type == "flags":
                value = {code: code in value for code in question.codes}
            if question.type == "findings":
                value = [{key: each for key, each in claim.items() if key not in own} for claim in value]
            jsonschema.validate({name: value}, answer_schema([question]))
    matched = next(verdict for verdict in read_verdicts(tmp_path) if verdict.id == "ramp-good")
    assert matched.answers["persona_match"].distribution is not None, "whom it is for was read from probabilities"
    assert matched.dual is not None and set(matched.dual.mix) <= set(matched.answers["persona_match"].distribution)
    told = (tmp_path / "reports" / "kettle-pleasing.md").read_text(encoding="utf-8")
    assert "## Technical stream" in told
    assert json.loads((tmp_path / "summary.json").read_text())["diagnosis"]["prompts"]
