"""Score mode: nothing is written; each question is an ask of its own for the probabilities of its labels.

The asks of one record share everything up to the question, so that all but the first find their prefix computed.
Texts are not asked. A label that is not one token for the model is shown as a letter instead.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from localjudge.engines.base import Ask, AskFailed, Completion, Message
from localjudge.errors import JudgeError
from localjudge.judge.asking import Complete, all_answered, answers_to, settled, shown_of
from localjudge.judge.questions import CANNOT, BandQuestion, ChoiceQuestion, FlagsQuestion, Question, ScoreQuestion
from localjudge.judge.scoring import entropy, expectation
from localjudge.judge.spec import JudgeSpec
from localjudge.verdict import Answer

Plan = Mapping[str, Mapping[str, str]]
"""Question -> label as it is shown to the model -> the question's own label."""

FLAG = ("yes", "no")


def own_labels(question: Question) -> list[str]:
    """A question's labels as text; yes and no for each of its flags; none for a text or findings."""
    if isinstance(question, FlagsQuestion):
        return list(FLAG)
    labels = [str(label) for label in getattr(question, "labels", [])]
    return [*labels, *[CANNOT] * getattr(question, "cannot", False)]


def plan_labels(spec: JudgeSpec, one_token: Callable[[Sequence[str]], bool]) -> dict[str, dict[str, str]]:
    """How each question's labels are shown to a model: as they are where each is one token, else as letters.

    Raises JudgeError when not even letters will do.
    """
    plan = {}
    for question in spec.own_questions:
        labels = own_labels(question)
        if not labels:
            continue
        letters = list(string.ascii_uppercase[: len(labels)])
        shown = next((form for form in (labels, letters) if len(form) == len(labels) and one_token(form)), None)
        if shown is None:
            raise JudgeError(
                f"the {len(labels)} labels of '{question.id}' cannot be read as single tokens of this model",
                fix="give it at most 26 labels, or judge with --mode explain",
            )
        plan[question.id] = dict(zip(shown, labels, strict=True))
    if not plan:
        raise JudgeError(f"'{spec.name}' has no labels to read", fix="judge with --mode explain")
    return plan


def _meaning(question: Question, label: str) -> str:
    if isinstance(question, ScoreQuestion):
        return question.anchors.get(int(label), "") if label != CANNOT else ""
    if isinstance(question, BandQuestion):
        return question.options[label].text if label != CANNOT else ""
    return question.options.get(label, "") if isinstance(question, ChoiceQuestion) else ""


def tail_of(spec: JudgeSpec, question: Question, shown: Mapping[str, str], code: str | None) -> str:
    """The end of the user's message: one question, and its labels."""
    asked = f"{code}: {question.codes[code]}" if code and isinstance(question, FlagsQuestion) else ""
    lines = []
    for label, own in shown.items():
        meaning = _meaning(question, own)
        named = "" if label == own else own
        if named or meaning:
            lines.append(f"{label} = {': '.join(part for part in (named, meaning) if part)}")
    return spec.tail(question=question.ask.strip(), code=asked, meanings=lines, labels=list(shown))


def _answer(question: Question, read: Sequence[Completion], shown: Mapping[str, str]) -> Answer:
    """One read, or one a code of flags, as an answer in the question's own labels."""
    told = [{shown[label]: p for label, p in completion.distributions[""].items()} for completion in read]
    mass = min(completion.mass or 0.0 for completion in read)
    if isinstance(question, FlagsQuestion):
        raised = {code: likely["yes"] for code, likely in zip(question.codes, told, strict=True)}
        return Answer(value=[code for code, p in raised.items() if p > 0.5], distribution=raised, mass=mass)
    [likely] = told
    best = max(likely, key=likely.__getitem__)
    bits = entropy(likely.values())
    if best == CANNOT and getattr(question, "cannot", False):
        return Answer(value=None, distribution=likely, entropy=bits, mass=mass)
    if isinstance(question, ScoreQuestion | BandQuestion):
        of = question.worth if isinstance(question, BandQuestion) else float
        worth = {label: of(label) for label in likely if label != CANNOT}
        judged = math.fsum(likely[label] for label in worth)
        mean, sd = expectation({worth[label]: likely[label] / judged for label in worth})
        value = int(best) if isinstance(question, ScoreQuestion) else best
        return Answer(value=value, distribution=likely, expected=mean, sd=sd, entropy=bits, mass=mass)
    return Answer(value=best, distribution=likely, entropy=bits, mass=mass)


def confidence(answer: Answer) -> float:
    """The probability of what was answered; of flags, that of the least certain code."""
    likely = answer.distribution or {}
    if isinstance(answer.value, list):
        return min((max(p, 1 - p) for p in likely.values()), default=1.0)
    return max(likely.values(), default=1.0)


def tied(answer: Answer) -> bool:
    """Whether two labels are likeliest: then the one given is no more than the first of them."""
    likely = answer.distribution or {}
    if isinstance(answer.value, list):
        return any(abs(p - 0.5) < 1e-9 for p in likely.values())
    best, second = ([*sorted(likely.values(), reverse=True), 0.0, 0.0])[:2]
    return best - second < 1e-9


async def readings_of(
    spec: JudgeSpec, orders: Sequence[Mapping[str, Any]], complete: Complete, plan: Plan, names: Mapping[str, Any]
) -> list[dict[str, Answer]]:
    """Read every question's labels about each of these inputs. Raises AskFailed as `asking.answers_to` does."""
    reads = [
        (question, code)
        for question in spec.own_questions
        if question.id in plan
        for code in (question.codes if isinstance(question, FlagsQuestion) else (None,))
    ]

    async def about(fields: Mapping[str, Any]) -> list[Completion | AskFailed]:
        try:
            told = {**spec.names_for(spec.asked, reading=True), **names}
            *before, user = spec.templates.messages(shown_of(spec, fields), told)
        except JudgeError as error:
            return [AskFailed("invalid_record", f"{error.where}: {error.what}")] * len(reads)

        async def ask(question: Question, code: str | None) -> Completion:
            shown = plan[question.id]
            message = dataclasses.replace(user, text=f"{user.text}\n\n{tail_of(spec, question, shown, code)}")
            return await complete(Ask((*before, message), labels=tuple(shown)))

        # The first read fills the prefix cache that the others then find.
        first = await settled([ask(*reads[0])])
        return first + await settled(ask(*read) for read in reads[1:])

    told = await asyncio.gather(*(about(fields) for fields in orders))
    completions = iter(all_answered([read for reads_of_one in told for read in reads_of_one]))
    answers = []
    for _ in orders:
        of: dict[str, list[Completion]] = {}
        for question, _code in reads:
            of.setdefault(question.id, []).append(next(completions))
        answers.append(
            {
                question.id: _answer(question, of[question.id], plan[question.id])
                for question in spec.own_questions
                if question.id in of
            }
        )
    return answers


async def read_each(
    spec: JudgeSpec,
    messages: Sequence[Message],
    questions: Sequence[Question],
    shown: Mapping[str, str],
    complete: Complete,
) -> list[Answer]:
    """Read the labels of each of these questions, none of them flags, at the end of the same messages. shown: as a
    plan has it, for all of them. Raises AskFailed as `asking.answers_to` does."""
    *before, user = messages

    async def ask(question: Question) -> Completion:
        message = dataclasses.replace(user, text=f"{user.text}\n\n{tail_of(spec, question, shown, None)}")
        return await complete(Ask((*before, message), labels=tuple(shown)))

    first = await settled([ask(questions[0])])
    told = all_answered(first + await settled(ask(question) for question in questions[1:]))
    return [_answer(question, [completion], shown) for question, completion in zip(questions, told, strict=True)]


async def tell(
    spec: JudgeSpec,
    orders: Sequence[Mapping[str, Any]],
    complete: Complete,
    plan: Plan | None,
    names: Mapping[str, Any],
) -> list[dict[str, Answer]]:
    """Answers about each of these inputs: read with a plan, written without one. names: what templates are told
    besides the inputs and the questions."""
    if plan is None:
        return await answers_to(spec, orders, complete, names)
    return await readings_of(spec, orders, complete, plan, names)
