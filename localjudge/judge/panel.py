"""Several verdicts on one record, of several models or several samples of one, as the verdict of a panel.

Scores are centred, choices and flags go by the most votes, and a tie is stated, never broken. Knows verdicts only,
not who asked for them or how they were reached.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from localjudge.judge import checklist, dual_control, rubric
from localjudge.judge.checks import Checked, Measured, Settled
from localjudge.judge.questions import (
    CANNOT,
    BandQuestion,
    ChoiceQuestion,
    FindingsQuestion,
    FlagsQuestion,
    Question,
    ScoreQuestion,
    TextQuestion,
)
from localjudge.judge.scoring import center, entropy, half_up, spread
from localjudge.judge.spec import JudgeSpec
from localjudge.verdict import Answer, Status, Usage, Verdict

Combine = Literal["mean", "median"]


def combine(spec: JudgeSpec, record_id: str, members: Sequence[Verdict], how: Combine, model: str) -> Verdict:
    """One verdict out of those of a panel's members, which it keeps.

    What is written, texts and findings, is that of the member nearest to the panel's overall.

    Most of the members must have judged the record; else the panel could not judge it either, for the reason that
    most of those who failed have. Raises ValueError without members.
    """
    if not members:
        raise ValueError("a panel without members")
    judged = [member for member in members if member.status == "ok"]
    usage = sum((member.usage for member in members), Usage())
    if 2 * len(judged) <= len(members):
        failed = [member for member in members if member.status != "ok"]
        status: Status = Counter(member.status for member in failed).most_common(1)[0][0]
        why = next(member.error for member in failed if member.status == status)
        error = f"{len(failed)} of {len(members)} members could not judge it: {why}"
        return Verdict(
            id=record_id,
            status=status,
            error=error,
            judge=spec.name,
            model=model,
            members=list(members),
            usage=usage,
        )
    answers, split = _answers(spec, judged, how)
    if spec.kind == "pairwise":
        overall = center([_overall(member) for member in judged], how)
        verdict = Verdict(
            id=record_id,
            status="ok",
            overall=overall,
            scores={"preference_a": overall},
            answers=answers,
            judge=spec.name,
            model=model,
        )
    elif spec.kind == "checklist":
        verdict = checklist.combined(spec, record_id, judged, how, model)
    elif spec.kind == "dual_control":
        verdict = dual_control.combined(spec, record_id, answers, judged, how, model)
    else:
        verdict = _rubric(spec, record_id, answers, judged, how, model)
    nearest = min(judged, key=lambda member: abs(_overall(member) - _overall(verdict)))
    written = {
        question.id: nearest.answers[question.id]
        for question in spec.asked
        if isinstance(question, TextQuestion | FindingsQuestion)
        and question.id in nearest.answers
        and spec.kind == "rubric"
    }
    return verdict.model_copy(
        update={
            "answers": verdict.answers if spec.kind == "dual_control" else {**written, **answers},
            "rationale": nearest.rationale,
            "members": list(members),
            "split": split,
            "unsure": bool(split) or 2 * sum(member.unsure for member in judged) > len(judged),
            "usage": usage,
        }
    )


def _rubric(
    spec: JudgeSpec, record_id: str, answers: dict[str, Answer], judged: Sequence[Verdict], how: Combine, model: str
) -> Verdict:
    """The verdict of a rubric's combined answers. What code settled is settled; measures are centred as scores."""
    settled = {
        code: Settled(decision.stands, decision.why)
        for code, decision in judged[0].decisions.items()
        if decision.by == "code"
    }
    measures: dict[str, Measured] = {}
    for name in spec.scoring.measures:
        values = [value for member in judged if (value := member.measures[name].value) is not None]
        told = ", ".join(f"{value:g}" for value in values)
        why = f"{how} of {told}" if values else ""
        if 2 * len(values) <= len(judged):
            why = f"{len(judged) - len(values)} of {len(judged)} members could not judge it"
        measures[name] = Measured(center(values, how) if 2 * len(values) > len(judged) else None, (why,))
    return rubric.assembled(spec, record_id, answers, model, Checked(red_lines=settled), measures)


def _overall(verdict: Verdict) -> float:
    assert verdict.overall is not None
    return verdict.overall


def _answers(spec: JudgeSpec, judged: Sequence[Verdict], how: Combine) -> tuple[dict[str, Answer], list[str]]:
    """The members' answers as one each, and the questions (question.code of flags) that they are split on."""
    answers: dict[str, Answer] = {}
    split: list[str] = []
    for question in spec.own_questions:
        told = [member.answers[question.id] for member in judged if question.id in member.answers]
        if not told:
            continue
        middle: dict[str, float] = {}
        numbers = [number for answer in told if (number := _number(spec, question, answer)) is not None]
        # As many who could not judge it as could: then the panel cannot.
        if 2 * len(numbers) > len(told):
            middle = {"expected": center(numbers, how), "sd": spread(numbers)}
        if isinstance(question, FlagsQuestion):
            shares = {code: sum(code in answer.value for answer in told) / len(told) for code in question.codes}
            split += [f"{question.id}.{code}" for code, share in shares.items() if share == 0.5]
            raised = [code for code, share in shares.items() if share > 0.5]
            answers[question.id] = Answer(value=raised, distribution=shares)
        elif isinstance(question, ScoreQuestion):
            votes = _votes([CANNOT if answer.value is None else str(answer.value) for answer in told])
            value = int(half_up(middle["expected"])) if middle else None
            if 2 * len(numbers) == len(told):
                split.append(question.id)
            answers[question.id] = Answer(
                value=value, distribution=votes, entropy=entropy(votes.values()), **middle
            )
        elif isinstance(question, ChoiceQuestion | BandQuestion):
            votes = _votes([CANNOT if answer.value is None else answer.value for answer in told])
            first = [label for label, share in votes.items() if share == max(votes.values())]
            if len(first) > 1:
                split.append(question.id)
            answers[question.id] = Answer(
                value=first[0] if len(first) == 1 and first[0] != CANNOT else None,
                distribution=votes,
                entropy=entropy(votes.values()),
                **middle,
            )
    return answers, split


def _number(spec: JudgeSpec, question: Question, answer: Answer) -> float | None:
    """What a member's answer counts; None of a label that counts nothing."""
    return rubric.number_of(spec, question.id, answer) if _counts(spec, question) else None


def _counts(spec: JudgeSpec, question: Question) -> bool:
    return isinstance(question, ScoreQuestion | BandQuestion) or question.id in spec.scoring.values


def _votes(labels: Sequence[str]) -> dict[str, float]:
    """label -> share of the members that gave it, the most frequent first."""
    return {label: n / len(labels) for label, n in Counter(labels).most_common()}


def ratings(spec: JudgeSpec, verdict: Verdict) -> Mapping[str, tuple[list[str], list[float] | None]]:
    """What the members of a panel's verdict answered, for their agreement: question, or question.code of flags ->
    their labels and, of a question that counts, the numbers of those who could judge it."""
    found: dict[str, tuple[list[str], list[float] | None]] = {}
    if spec.checklist:
        return found  # each member may have a checklist of its own
    judged = [member for member in verdict.members or () if member.status == "ok"]
    for question in spec.own_questions:
        told = [member.answers[question.id] for member in judged if question.id in member.answers]
        if isinstance(question, FlagsQuestion):
            for code in question.codes:
                found[f"{question.id}.{code}"] = [str(code in answer.value) for answer in told], None
        elif isinstance(question, ScoreQuestion | ChoiceQuestion | BandQuestion):
            labels = [CANNOT if answer.value is None else str(answer.value) for answer in told]
            numbers = [number for answer in told if (number := _number(spec, question, answer)) is not None]
            found[question.id] = labels, numbers if _counts(spec, question) else None
    return found
