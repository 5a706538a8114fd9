"""The teacher's reasons, and what explain mode would have asked to be given them.

Of every ask the texts that come before anything else is answered: they depend on nothing but what was asked. Knows
judges and verdicts, neither splits nor students.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile

from pydantic import BaseModel, ConfigDict

from localjudge.engines.base import AskFailed
from localjudge.errors import JudgeError
from localjudge.judge import pairwise
from localjudge.judge.asking import inputs_of, shown_of
from localjudge.judge.questions import Question, TextQuestion
from localjudge.judge.rubric import settled_of
from localjudge.judge.spec import JudgeSpec
from localjudge.records import Record
from localjudge.verdict import Answer, Verdict


class Reason(BaseModel):
    """One ask's messages and the texts its answer begins with: their questions' ids, and what they say."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    group: str
    system: str
    user: str
    names: list[str]
    texts: list[str]


COLUMNS = list(Reason.model_fields)


def reasons_of(spec: JudgeSpec, record: Record, verdict: Verdict, group: str) -> Iterator[Reason]:
    """A verdict's; of a pair in the record's own order. None of a panel, whose members give several, nor of a
    verdict without, as in score mode."""
    if verdict.members:
        return
    fields, answers = inputs_of(spec, record), verdict.answers
    if spec.kind == "pairwise":
        fields = pairwise.orders_of(spec, record)[0]
        answers = verdict.orders[0] if verdict.orders else answers
    for questions in spec.asks:
        texts = _first_texts(questions, answers)
        if not texts:
            continue
        try:
            settled = settled_of(spec, record.fields) if spec.kind == "rubric" else {}
            names = {**spec.names_for(questions), **settled}
            messages = spec.templates.messages(shown_of(spec, fields), names)
        except (JudgeError, AskFailed):
            return
        if any(message.images for message in messages):
            return
        yield Reason(
            id=record.id,
            group=group,
            system="".join(message.text for message in messages if message.role == "system"),
            user=messages[-1].text,
            names=list(texts),
            texts=list(texts.values()),
        )


def _first_texts(questions: Sequence[Question], answers: Mapping[str, Answer]) -> dict[str, str]:
    """Question -> text; nothing where one is not there."""
    first = [question.id for question in takewhile(lambda one: isinstance(one, TextQuestion), questions)]
    told = {name: answers[name].value for name in first if name in answers}
    return told if len(told) == len(first) and all(text and text.strip() for text in told.values()) else {}
