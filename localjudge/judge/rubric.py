"""The rubric kind: one response, many questions, one ask."""

from __future__ import annotations

from localjudge.judge.asking import Complete, answers_to, inputs_of, rationale_of
from localjudge.judge.scoring import half_up, weighted_mean
from localjudge.judge.spec import JudgeSpec
from localjudge.records import Record
from localjudge.verdict import Verdict


async def judge(spec: JudgeSpec, record: Record, complete: Complete, model: str) -> Verdict:
    """Judge one record. Raises AskFailed when its ask could not be answered."""
    [answers] = await answers_to(spec, [inputs_of(spec, record)], complete)
    scores = {
        name: float(spec.scoring.values[name][answers[name].value])
        if name in spec.scoring.values
        else float(answers[name].value)
        for name in spec.counted
    }
    red_lines = [code for name in spec.veto for code in answers[name].value]
    overall = weighted_mean(scores, spec.scoring.weights) if scores else float(not red_lines)
    if spec.scoring.decimals is not None:
        overall = half_up(overall, spec.scoring.decimals)
    passed = None
    if spec.scoring.pass_mark is not None or spec.veto:
        mark = spec.scoring.pass_mark
        passed = not red_lines and (mark is None or overall >= mark)
    return Verdict(
        id=record.id,
        status="ok",
        overall=overall,
        passed=passed,
        scores=scores,
        answers=answers,
        rationale=rationale_of(spec, answers),
        red_lines=red_lines,
        judge=spec.name,
        model=model,
    )
