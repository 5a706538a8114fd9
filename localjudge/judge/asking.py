"""What every kind of judge does: take a record's inputs, make an ask of them, and account for the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from localjudge.engines.base import Ask, AskFailed, Completion
from localjudge.errors import JudgeError
from localjudge.judge.questions import Question, TextQuestion, answer_schema, read_answers
from localjudge.judge.spec import JudgeSpec
from localjudge.judge.views import apply_view
from localjudge.records import Record
from localjudge.verdict import Answer

T = TypeVar("T")
Complete = Callable[[Ask], Awaitable[Completion]]


class Correction(Protocol):
    """What is made of answers before they come to a verdict, as a calibration does."""

    def answers(self, answers: Mapping[str, Answer], swapped: bool) -> dict[str, Answer]:
        """One order's answers, corrected; swapped: of the swapped order, but in the record's own A and B."""

    def unsure(self, answers: Mapping[str, Answer]) -> bool:
        """Whether a verdict of these answers is to be marked so."""


def inputs_of(spec: JudgeSpec, record: Record) -> dict[str, Any]:
    """The record's fields that the judge names, None for an optional one that is absent."""
    return {item.name: record.fields.get(item.name) for item in spec.inputs}


def shown_of(spec: JudgeSpec, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs as the judge is shown them: of JSON that has a view, that."""
    return {
        item.name: value
        if (value := fields[item.name]) is None or item.view is None
        else apply_view(item.view, value)
        for item in spec.inputs
    }


async def answers_to(
    spec: JudgeSpec, orders: Sequence[Mapping[str, Any]], complete: Complete, names: Mapping[str, Any]
) -> list[dict[str, Answer]]:
    """Put the judge's questions about each of these inputs, in one ask or in several, and read the answers.

    names: what templates are told besides. Every ask is let finish, so that what did succeed is kept for the next
    try. Raises AskFailed: its own status when all failed, 'incomplete' when only some did.
    """

    parts = range(len(spec.asks))
    told = all_answered(
        await settled(ask_about(spec, fields, asked, complete, names) for fields in orders for asked in spec.asks)
    )
    return [
        {name: answer for answers in told[i : i + len(parts)] for name, answer in answers.items()}
        for i in range(0, len(told), len(parts))
    ]


async def ask_about(
    spec: JudgeSpec,
    fields: Mapping[str, Any],
    questions: Sequence[Question],
    complete: Complete,
    names: Mapping[str, Any],
) -> dict[str, Answer]:
    """Put these questions about these inputs in one ask, and read the answers. Raises AskFailed."""
    try:
        messages = spec.templates.messages(shown_of(spec, fields), {**spec.names_for(questions), **names})
    except JudgeError as error:
        # The templates were tried when the judge was loaded: it is this record that does not fit them.
        raise AskFailed("invalid_record", f"{error.where}: {error.what}") from None
    completion = await complete(Ask(messages=messages, schema=answer_schema(questions)))
    try:
        return read_answers(completion.text, questions, completion.distributions)
    except ValueError as error:
        raise AskFailed("engine_error", f"the answer is not valid: {error}") from None


async def settled(asks: Iterable[Awaitable[T]]) -> list[T | AskFailed]:
    """Let every ask come to its end, so that what did succeed is kept for the next try. What is not a failure of
    one ask is raised."""
    told: list[T | AskFailed] = []
    for result in await asyncio.gather(*asks, return_exceptions=True):
        if isinstance(result, BaseException) and not isinstance(result, AskFailed):
            raise result
        told.append(result)
    return told


def all_answered(told: Sequence[T | AskFailed]) -> list[T]:
    """What the asks of one record were answered. Raises AskFailed: the first one when all failed, 'incomplete' when
    only some did."""
    failures = [result for result in told if isinstance(result, AskFailed)]
    if not failures:
        return [result for result in told if not isinstance(result, AskFailed)]
    if len(failures) == len(told):
        raise failures[0]
    raise AskFailed("incomplete", f"{len(failures)} of {len(told)} asks failed: {failures[0].why}")


def rationale_of(spec: JudgeSpec, answers: Mapping[str, Answer]) -> str | None:
    """The texts of an answer, as one. An imported answer may lack some."""
    texts = [
        answers[question.id].value
        for question in spec.asked
        if isinstance(question, TextQuestion) and question.id in answers
    ]
    return "\n".join(texts) or None
