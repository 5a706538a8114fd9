"""The pairwise kind: A against B, asked in both orders; what the orders disagree on is nobody's win."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from localjudge.judge.asking import Complete, Correction, inputs_of, rationale_of
from localjudge.judge.reading import Plan, tell
from localjudge.judge.scoring import entropy, mean_log_odds, share_of_a, vote
from localjudge.judge.spec import JudgeSpec
from localjudge.records import Record
from localjudge.verdict import Answer, Verdict

_OTHER = {"A": "B", "B": "A", "tie": "tie"}


def swap_back(answers: dict[str, Answer]) -> dict[str, Answer]:
    """The answers to the swapped ask, with the preference in the record's own A and B; texts stay as written."""
    told = answers["preference"]
    distribution = told.distribution and {_OTHER[label]: p for label, p in told.distribution.items()}
    swapped = told.model_copy(update={"value": _OTHER[told.value], "distribution": distribution})
    return {**answers, "preference": swapped}


async def judge(
    spec: JudgeSpec,
    record: Record,
    complete: Complete,
    model: str,
    plan: Plan | None = None,
    correct: Correction | None = None,
) -> Verdict:
    """Judge one record; with a plan, by reading its labels' probabilities. Raises AskFailed when an ask failed."""
    told = await tell(spec, orders_of(spec, record), complete, plan, {})
    told[1:] = [swap_back(answers) for answers in told[1:]]
    if correct:
        told = [correct.answers(answers, swapped=bool(place)) for place, answers in enumerate(told)]
    return verdict_of(spec, record.id, told, model)


def orders_of(spec: JudgeSpec, record: Record) -> list[dict[str, Any]]:
    """The inputs of each ask about a record: straight, then, unless the judge asks one order only, swapped."""
    straight = inputs_of(spec, record)
    swapped = dict(straight)
    for stem in spec.pairs:
        swapped[f"{stem}_a"], swapped[f"{stem}_b"] = straight[f"{stem}_b"], straight[f"{stem}_a"]
    return [straight, swapped] if spec.orders == "both" else [straight]


def verdict_of(spec: JudgeSpec, record_id: str, told: Sequence[dict[str, Answer]], model: str) -> Verdict:
    """What one order or two come to, whoever answered them; preferences are in the record's own A and B.

    `answers.preference` is A, B, tie, or inconsistent when the orders disagree; overall is the share of the orders
    that went to A, a tie counting half. An inconsistent pair has no reason of its own: both are in `orders`.
    """
    read = [answers["preference"] for answers in told]
    if all(answer.mass is not None for answer in read):
        return _from_probabilities(spec, record_id, told, model)
    labels = [answer.value for answer in read]
    preference = vote(labels) or "inconsistent"
    verdict_rationale, answers = None, {"preference": Answer(value=preference)}
    if preference != "inconsistent":
        answers = {**told[0], **answers} if len(told) > 1 else told[0]
        verdict_rationale = rationale_of(spec, told[0])
    return Verdict(
        id=record_id,
        status="ok",
        overall=share_of_a(labels),
        scores={"preference_a": share_of_a(labels)},
        answers=answers,
        orders=list(told) if len(told) > 1 else None,
        rationale=verdict_rationale,
        judge=spec.name,
        model=model,
    )


def _from_probabilities(spec: JudgeSpec, record_id: str, told: Sequence[dict[str, Answer]], model: str) -> Verdict:
    """A pair whose preferences were read: the orders' log-odds are averaged, so that what each order adds to the
    first place cancels out. Overall is the probability of A, and half that of a tie; equal on all counts is
    inconsistent."""
    read = [answers["preference"] for answers in told]
    likely = mean_log_odds([answer.distribution or {} for answer in read])
    best = max(likely.values())
    first = [label for label, p in likely.items() if best - p < 1e-9]
    overall = likely["A"] + 0.5 * likely.get("tie", 0.0)
    preference = Answer(
        value=first[0] if len(first) == 1 else "inconsistent",
        distribution=likely,
        entropy=entropy(likely.values()),
        mass=min(answer.mass or 0.0 for answer in read),
    )
    on_a = [(answer.distribution or {})["A"] for answer in read]
    return Verdict(
        id=record_id,
        status="ok",
        overall=overall,
        scores={"preference_a": overall},
        answers={"preference": preference},
        orders=list(told) if len(told) > 1 else None,
        order_gap=max(on_a) - min(on_a) if len(told) > 1 else None,
        judge=spec.name,
        model=model,
    )
