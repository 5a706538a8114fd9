"""The rubric kind: one response, many questions, in one ask or several; red lines, findings, weights and grades."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from localjudge.engines.base import AskFailed
from localjudge.judge.asking import Complete, Correction, inputs_of, rationale_of, shown_of
from localjudge.judge.checks import Checked, Measured, run_check, settle
from localjudge.judge.measuring import dimensions, finished, grade, measure, overall_of, texts_of, verified
from localjudge.judge.questions import FindingsQuestion
from localjudge.judge.reading import Plan, tell
from localjudge.judge.scoring import weighted_of_judged
from localjudge.judge.spec import RED_LINES, JudgeSpec
from localjudge.records import Record
from localjudge.verdict import Answer, Decision, Measurement, Verdict


async def judge(
    spec: JudgeSpec,
    record: Record,
    complete: Complete,
    model: str,
    plan: Plan | None = None,
    correct: Correction | None = None,
) -> Verdict:
    """Judge one record; with a plan, by reading its labels' probabilities. Raises AskFailed when an ask could not
    be answered, and for a record that the judge's checks cannot read."""
    fields = inputs_of(spec, record)
    checked = checked_of(spec, record.fields)
    told = await tell(spec, [fields], complete, plan, _settled_names(spec, checked))
    if correct:
        told = [correct.answers(answers, swapped=False) for answers in told]
    return verdict_of(spec, record.id, told, model, fields, checked)


def checked_of(spec: JudgeSpec, fields: Mapping[str, Any]) -> Checked:
    """What code finds in a record, whose fields may be more than the judge's inputs. Raises AskFailed."""
    if spec.checks is None:
        return Checked()
    try:
        return run_check(spec.checks, fields, spec.language)
    except ValueError as error:
        raise AskFailed("invalid_record", str(error)) from None


def settled_of(spec: JudgeSpec, fields: Mapping[str, Any]) -> dict[str, Any]:
    """What templates are told of these inputs that code has settled. Raises AskFailed."""
    return _settled_names(spec, checked_of(spec, fields))


def _settled_names(spec: JudgeSpec, checked: Checked) -> dict[str, Any]:
    """`settled`: the red lines that code decided; their `why` has no word of the record's. `tables`: what else it
    found."""
    lines = [
        {"code": line.code, "text": line.text, "stands": found.stands, "why": found.bare}
        for line in spec.red_lines
        if line.by != "model" and (found := checked.red_lines.get(line.code))
    ]
    return {"settled": lines, "tables": checked.tables}


def verdict_of(
    spec: JudgeSpec,
    record_id: str,
    told: Sequence[dict[str, Answer]],
    model: str,
    fields: Mapping[str, Any] | None = None,
    checked: Checked | None = None,
) -> Verdict:
    """What the answers come to, whoever gave them. Texts may be absent. fields: the record's inputs, against which
    findings are held; without them they count as they are."""
    [answers] = told
    checked = checked or Checked()
    if fields is not None:
        answers = {name: _held(spec, name, answer, fields) for name, answer in answers.items()}
    return assembled(spec, record_id, answers, model, checked, measure(spec.scoring, answers, checked.measures))


def assembled(
    spec: JudgeSpec,
    record_id: str,
    answers: Mapping[str, Answer],
    model: str,
    checked: Checked,
    measures: Mapping[str, Measured],
) -> Verdict:
    """The verdict of these answers and measures. Raises AskFailed when nothing of the record could be judged."""
    scoring = spec.scoring
    decisions = _decisions(spec, answers, checked)
    red_lines = [code for name in spec.veto for code in answers[name].value]
    red_lines += [code for code, decision in decisions.items() if decision.stands]
    scores = {name: number for name in spec.counted if (number := number_of(spec, name, answers[name])) is not None}
    parts: dict[str, float | None] = {}
    overall: float | None
    if scoring.dimensions:
        parts = dimensions(scoring, measures)
        scores = {name: value for name, value in parts.items() if value is not None}
        overall = overall_of(scoring, parts)
    elif scoring.overall is not None:
        overall = scores.get(scoring.overall)
    elif spec.counted:
        overall = weighted_of_judged(scores, scoring.weights)
    else:
        overall = float(not red_lines)
    if overall is None:
        raise AskFailed("invalid_record", "nothing that counts could be judged of this record")
    overall = finished(scoring, overall, _cap(spec, red_lines))
    fails = [line.code for line in spec.red_lines if not line.fails]
    failing = [code for code in red_lines if code not in fails]
    passed = None
    if scoring.pass_mark is not None or spec.veto or spec.red_lines:
        passed = not failing and (scoring.pass_mark is None or overall >= scoring.pass_mark)
    return Verdict(
        id=record_id,
        status="ok",
        overall=overall,
        passed=passed,
        scores=scores,
        answers=dict(answers),
        rationale=rationale_of(spec, answers),
        red_lines=red_lines,
        decisions=decisions,
        measures={name: Measurement(value=one.value, why=list(one.why)) for name, one in measures.items()},
        dimensions=parts,
        grade=grade(scoring, overall, bool(red_lines)),
        judge=spec.name,
        model=model,
    )


def _held(spec: JudgeSpec, name: str, answer: Answer, fields: Mapping[str, Any]) -> Answer:
    """An answer of findings, held against the record; any other as it is."""
    question = next((question for question in spec.asked if question.id == name), None)
    if not isinstance(question, FindingsQuestion):
        return answer
    findings = [dict(finding) for finding in answer.value]
    if spec.checks is not None:
        findings = settle(spec.checks, name, findings, fields, spec.language)
    shown = shown_of(spec, fields)
    texts = [text for item in question.quoted_from or shown for text in texts_of(shown.get(item))]
    return answer.model_copy(update={"value": verified(findings, texts)})


def _decisions(spec: JudgeSpec, answers: Mapping[str, Answer], checked: Checked) -> dict[str, Decision]:
    """Every red line that the judge declares: what code settled stands, whatever the model says."""
    raised = answers[RED_LINES].value if RED_LINES in answers else []
    decided = {}
    for line in spec.red_lines:
        found = checked.red_lines.get(line.code) if line.by != "model" else None
        if found:
            decided[line.code] = Decision(stands=found.stands, by="code", why=found.why)
        elif line.by == "code":
            decided[line.code] = Decision(stands=False, by="code")
        else:
            decided[line.code] = Decision(stands=line.code in raised, by="model")
    return decided


def _cap(spec: JudgeSpec, red_lines: Sequence[str]) -> float | None:
    caps = [line.cap for line in spec.red_lines if line.code in red_lines and line.cap is not None]
    if red_lines and spec.scoring.cap is not None:
        caps.append(spec.scoring.cap)
    return min(caps, default=None)


def number_of(spec: JudgeSpec, question: str, answer: Answer) -> float | None:
    """What the answer to a question that counts is worth: the expected value where there is one, as of a score that
    was read from probabilities; None where it cannot be judged."""
    if answer.expected is not None or answer.value is None:
        return answer.expected
    values = spec.scoring.values.get(question)
    return float(answer.value if values is None else values[answer.value])
