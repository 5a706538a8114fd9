"""The pairwise kind: A against B, asked in both orders; what the orders disagree on is nobody's win."""

from __future__ import annotations

from localjudge.judge.asking import Complete, answers_to, inputs_of, rationale_of
from localjudge.judge.scoring import share_of_a, vote
from localjudge.judge.spec import JudgeSpec
from localjudge.records import Record
from localjudge.verdict import Answer, Verdict

_OTHER = {"A": "B", "B": "A", "tie": "tie"}


def _swap_back(answers: dict[str, Answer]) -> dict[str, Answer]:
    """The answers to the swapped ask, with the preference in the record's own A and B; texts stay as written."""
    told = answers["preference"]
    distribution = told.distribution and {_OTHER[label]: p for label, p in told.distribution.items()}
    return {**answers, "preference": Answer(value=_OTHER[told.value], distribution=distribution)}


async def judge(spec: JudgeSpec, record: Record, complete: Complete, model: str) -> Verdict:
    """Judge one record. Raises AskFailed when an ask failed.

    `answers.preference` is A, B, tie, or inconsistent when the orders disagree; overall is the share of the orders
    that went to A, a tie counting half. An inconsistent pair has no reason of its own: both are in `orders`.
    """
    straight = inputs_of(spec, record)
    swapped = dict(straight)
    for stem in spec.pairs:
        swapped[f"{stem}_a"], swapped[f"{stem}_b"] = straight[f"{stem}_b"], straight[f"{stem}_a"]
    orders = [straight, swapped] if spec.orders == "both" else [straight]
    told = await answers_to(spec, orders, complete)
    told[1:] = [_swap_back(answers) for answers in told[1:]]
    labels = [answers["preference"].value for answers in told]
    preference = vote(labels) or "inconsistent"
    verdict_rationale, answers = None, {"preference": Answer(value=preference)}
    if preference != "inconsistent":
        answers = {**told[0], **answers} if len(told) > 1 else told[0]
        verdict_rationale = rationale_of(spec, told[0])
    return Verdict(
        id=record.id,
        status="ok",
        overall=share_of_a(labels),
        scores={"preference_a": share_of_a(labels)},
        answers=answers,
        orders=told if len(told) > 1 else None,
        rationale=verdict_rationale,
        judge=spec.name,
        model=model,
    )
