"""The rubric kind: one response, many questions, one ask."""

from __future__ import annotations

from collections.abc import Sequence

from localjudge.judge.asking import Complete, inputs_of, rationale_of
from localjudge.judge.reading import Plan, tell
from localjudge.judge.scoring import half_up, weighted_mean
from localjudge.judge.spec import JudgeSpec
from localjudge.records import Record
from localjudge.verdict import Answer, Verdict


async def judge(
    spec: JudgeSpec, record: Record, complete: Complete, model: str, plan: Plan | None = None
) -> Verdict:
    """Judge one record; with a plan, by reading its labels' probabilities. Raises AskFailed when an ask could not
    be answered."""
    return verdict_of(spec, record.id, await tell(spec, [inputs_of(spec, record)], complete, plan), model)


def verdict_of(spec: JudgeSpec, record_id: str, told: Sequence[dict[str, Answer]], model: str) -> Verdict:
    """What the answers to the one ask come to, whoever gave them. Texts may be absent."""
    [answers] = told
    scores = {
        name: float(spec.scoring.values[name][answers[name].value])
        if name in spec.scoring.values
        else _number(answers[name])
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
        id=record_id,
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


def _number(answer: Answer) -> float:
    """A score's value: the expected one where it was read from probabilities."""
    return float(answer.value) if answer.expected is None else answer.expected
