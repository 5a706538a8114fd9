"""The checklist kind: a checklist is written for a task, then a response is graded by it, item by item.

Writing takes several asks, each of which `complete` may find answered already: candidates, their check against a
reference answer, which items are the same, and a last check of the merged list. Who keeps checklists, so that each
is written once for all responses to its task, is the `Shelf`; without one each record has its own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic import ValidationError

from localjudge.decoding.grammar import follows
from localjudge.engines.base import Ask, AskFailed, Completion, Message
from localjudge.errors import JudgeError, LocalJudgeError
from localjudge.images import Picture
from localjudge.judge.asking import Complete, Correction, all_answered, inputs_of, settled, shown_of
from localjudge.judge.items import (
    CREDITS,
    CRITICAL,
    Checklist,
    ChecklistSettings,
    Dropped,
    Item,
    Kept,
    first_fault,
    folded,
    form_of,
    grade_schema,
    hash_of,
    listed,
    rule_schema,
    same_schema,
    write_schema,
)
from localjudge.judge.measuring import finished, grade
from localjudge.judge.merging import Clusters, Matrix, Offered, apply_rulings, compared, cosines, lexical, merge
from localjudge.judge.prompt import Shown
from localjudge.judge.questions import ChoiceQuestion
from localjudge.judge.reading import Plan, read_each
from localjudge.judge.scoring import center, weighted_mean
from localjudge.judge.spec import Input, JudgeSpec
from localjudge.records import Record
from localjudge.verdict import Answer, Graded, Verdict
from localjudge.yamlfile import shown as shown_value

MOST_PAIRS = 40
"""Pairs of items that one ask settles."""


@dataclass(frozen=True)
class Task:
    """What a checklist is for. key: a hash of text and images. reference: the answer to write it with, if any."""

    key: str
    text: dict[str, Any]
    images: list[str]
    reference: Any = None


class Shelf(Protocol):
    """Where checklists are kept."""

    async def of(self, task: Task, write: Callable[[], Awaitable[Kept]]) -> Kept:
        """The task's checklist, written if there is none."""

    def named(self, key: str) -> Kept:
        """The checklist of this key, or of a key that begins so. Raises LocalJudgeError."""


def task_of(spec: JudgeSpec, fields: Mapping[str, Any]) -> Task:
    """The inputs but the response, and but the reference answer, which is apart. fields: a record's inputs."""
    section = section_of(spec)
    text: dict[str, Any] = {}
    images: list[str] = []
    for item in spec.inputs:
        value = fields.get(item.name)
        if value is None or item.name in (section.response, section.reference):
            continue
        if isinstance(value, list) and value and all(isinstance(one, Picture) for one in value):
            images += [picture.sha256 for picture in value]
        else:
            text[item.name] = value
    reference = fields.get(section.reference) if section.reference and section.mode != "answer-free" else None
    return Task(hash_of([text, images]), text, images, reference)


def task_inputs(spec: JudgeSpec, *, reference: bool = False) -> list[Input]:
    """The inputs that say what a task is; with the reference answer, where one is to be had."""
    section = section_of(spec)
    left_out = {section.response} if reference else {section.response, section.reference}
    return [item for item in spec.inputs if item.name not in left_out]


def section_of(spec: JudgeSpec) -> ChecklistSettings:
    assert spec.checklist is not None
    return spec.checklist


async def judge(
    spec: JudgeSpec,
    record: Record,
    complete: Complete,
    model: str,
    plan: Plan | None = None,
    correct: Correction | None = None,
    shelf: Shelf | None = None,
) -> Verdict:
    """Grade one record's response by its task's checklist, which is written if need be; with a plan, credits are
    read from probabilities. Raises AskFailed: 'incomplete' when no list could be made of the candidates,
    'invalid_record' for a checklist in the record that is none, or is another task's."""
    del correct  # no calibration is made of a checklist judge
    fields = inputs_of(spec, record)
    kept = await checklist_of(spec, record, complete, shelf)
    answers, reasons = await _graded(spec, fields, kept, complete, plan)
    return verdict_of(spec, record.id, kept, answers, model, reasons)


async def checklist_of(spec: JudgeSpec, record: Record, complete: Complete, shelf: Shelf | None) -> Kept:
    """The checklist that a record is graded by: its own, else its task's. Raises AskFailed."""
    fields = inputs_of(spec, record)
    task = task_of(spec, fields)
    own = record.fields.get("checklist")
    if own not in (None, "", {}, []):
        try:
            return brought(own, task, shelf)
        except (ValueError, LocalJudgeError) as error:
            raise AskFailed("invalid_record", f"{record.where}: field 'checklist' {error}") from None

    async def write() -> Kept:
        return await write_checklist(spec, fields, task, complete)

    return await (shelf.of(task, write) if shelf else write())


def brought(value: Any, task: Task, shelf: Shelf | None = None) -> Kept:
    """A checklist that a record brings along: as it is kept, as a plain rubric, or the key of one that is kept.
    Raises ValueError, which goes on from "the checklist", and LocalJudgeError."""
    if isinstance(value, str) and not value.lstrip().startswith("{"):
        if shelf is None:
            raise ValueError(f"is '{value}', a key, and no checklists are kept here")
        return fitting(shelf.named(value), task)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"is not JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise ValueError(f'is {shown_value(value)}: write {{"essential": [...], "additional": [...]}}')
    return fitting(read_checklist(value), task)


def read_checklist(value: Any) -> Kept | Checklist:
    """A checklist out of JSON, as it is kept or as a plain rubric. Raises ValueError as `brought` does."""
    try:
        return Kept.model_validate(value) if isinstance(value, Mapping) and "task_key" in value else _plain(value)
    except ValidationError as error:
        raise ValueError(f"cannot be used: {first_fault(error)}") from None


def _plain(value: Any) -> Checklist:
    return Checklist.model_validate(value)


def fitting(checklist: Kept | Checklist, task: Task) -> Kept:
    """The checklist, if it is this task's; a plain rubric becomes it. Raises ValueError as `brought` does."""
    if not isinstance(checklist, Kept):
        return Kept(
            essential=checklist.essential,
            additional=checklist.additional,
            task_key=task.key,
            task=task.text,
            images=task.images,
        )
    if checklist.task_key != task.key:
        what = "is locked for another task" if checklist.locked else "was written for another task"
        raise ValueError(f"{what} ('{checklist.about}')")
    return checklist


# Writing


async def write_checklist(spec: JudgeSpec, fields: Mapping[str, Any], task: Task, complete: Complete) -> Kept:
    """Candidates, their check against the reference answer, the merge, and the check of what came of it."""
    section = section_of(spec)
    grounded = task.reference is not None
    shown = {name: value for name, value in shown_of(spec, fields).items() if name != section.response}
    shown[section.response] = None
    if section.reference in shown and not grounded:
        shown[section.reference] = None

    async def ask(
        step: str, schema: Mapping[str, Any], temperature: float = 0.0, seed: int = 0, **names: Any
    ) -> Any:
        told = {**spec.template_names, "grounded": grounded, "answer_form": form_of(schema), **names}
        messages = _messages(spec, step, shown, told)
        return _read(await complete(Ask(messages, schema, temperature=temperature, seed=seed)), schema)

    async def candidate(number: int) -> tuple[list[Item], list[Item], list[Dropped]]:
        schema = write_schema(section)
        temperature = section.temperature if section.candidates > 1 else 0.0
        told = await ask("write", schema, temperature, seed=number)
        met: set[str] = set()
        essential = _items([told["essential"]["first"], *told["essential"]["others"]], met)[: section.most]
        additional = _items(told["additional"], met)[: section.most]
        if not grounded or not essential:
            return essential, additional, []
        items = {f"i{place}": item for place, item in enumerate(essential, 1)}
        ruled = await ask(
            "verify", rule_schema(section, len(items)), items=Shown("items", listed(items, weights=True))
        )
        essential, dropped = apply_rulings(essential, list(ruled.values()), "the reference answer")
        return essential, additional, dropped

    told = all_answered(await settled(candidate(number) for number in range(section.candidates)))
    dropped = [one for _, _, some in told for one in some]
    lists = [(essential, additional) for essential, additional, _ in told if essential]
    if not lists:
        why = "the reference answer fulfils none of those written" if grounded else "none was written"
        raise AskFailed("incomplete", f"no checklist came about: of essential items {why}")
    offered = [
        Offered(number, essential, item)
        for number, both in enumerate(lists)
        for essential, some in ((True, both[0]), (False, both[1]))
        for item in some
    ]
    clusters = Clusters(offered, await _similarity(section, offered), *section.thresholds)
    if pairs := clusters.borderline(MOST_PAIRS):
        text = "\n\n".join(
            f"p{number}.\n"
            + "\n".join(
                f"  {side}. {_in_words(offered[place].item)}" for side, place in zip("AB", pair, strict=True)
            )
            for number, pair in enumerate(pairs, 1)
        )
        ruled = await ask("same", same_schema(len(pairs)), pairs=Shown("pairs", text))
        clusters.settle(pairs, [ruling == "same" for ruling in ruled.values()])
    merged = merge(clusters, len(lists), section.most)
    both = [*merged.essential, *merged.additional]
    ruled = await ask(
        "check",
        rule_schema(section, len(both)),
        items=Shown("items", _with_others(both, merged.references)),
    )
    rulings = list(ruled.values())
    essential, lost = apply_rulings(merged.essential, rulings[: len(merged.essential)], "the last check")
    additional, more = apply_rulings(merged.additional, rulings[len(merged.essential) :], "the last check")
    if not essential:
        raise AskFailed(
            "incomplete", f"no checklist came about: every essential item was dropped, by {lost[0].why}"
        )
    # What one candidate lost, others may have brought in.
    there = {folded(item.criterion) for item in [*essential, *additional]}
    gone = {folded(one.criterion): one for one in [*dropped, *merged.dropped, *lost, *more]}
    return Kept(
        essential=essential,
        additional=additional,
        task_key=task.key,
        task=task.text,
        images=task.images,
        grounded=grounded,
        candidates=len(lists),
        contested=merged.contested,
        dropped=[one for name, one in gone.items() if name not in there],
    )


def _messages(spec: JudgeSpec, step: str | None, shown: Mapping[str, Any], names: Mapping[str, Any]) -> Any:
    """The messages of a step, or of grading. Raises AskFailed for a record that its template does not fit."""
    try:
        templates = spec.step(step) if step else spec.templates
        return templates.messages(shown, names)
    except JudgeError as error:
        raise AskFailed("invalid_record", f"{error.where}: {error.what}") from None


def _read(completion: Completion, schema: Mapping[str, Any]) -> Any:
    if not follows(schema, completion.text):
        raise AskFailed("engine_error", "the answer is not valid: it does not follow the schema")
    return json.loads(completion.text)


def _items(told: Sequence[Mapping[str, Any]], met: set[str]) -> list[Item]:
    """What a candidate lists, without what says nothing and what it listed before."""
    found = []
    for one in told:
        name = folded(one["criterion"])
        if name and name not in met:
            met.add(name)
            found.append(Item.model_validate(dict(one)))
    return found


def _in_words(item: Item) -> str:
    return f"{item.criterion} (reference: {item.reference})" if item.reference else item.criterion


def _with_others(items: Sequence[Item], references: Mapping[str, Sequence[str]]) -> str:
    lines = []
    for number, item in enumerate(items, 1):
        lines.append(listed({f"i{number}": item}))
        lines += [f"    another reference: {text}" for text in references.get(item.criterion, ())]
    return "\n".join(lines)


async def _similarity(section: ChecklistSettings, offered: Sequence[Offered]) -> Matrix:
    texts = [compared(one.item) for one in offered]
    if section.embedding is None:
        return lexical(texts)
    from localjudge.judge.embedding import embeddings

    return cosines(await asyncio.to_thread(embeddings, section.embedding, texts))


# Grading


async def _graded(
    spec: JudgeSpec, fields: Mapping[str, Any], kept: Kept, complete: Complete, plan: Plan | None
) -> tuple[dict[str, Answer], dict[str, str]]:
    """Each item's credit by its id, and the reasons where any were written."""
    section = section_of(spec)
    shown = shown_of(spec, fields)
    if section.reference in shown:
        shown = {**shown, section.reference: None}
    items = {name: item for name, (item, _) in kept.items.items()}
    schema = grade_schema(section, len(items))
    names = {
        **spec.names_for(spec.asked, reading=plan is not None),
        "items": Shown("checklist", listed(items)),
        "answer_form": form_of(schema),
    }
    messages: tuple[Message, ...] = _messages(spec, None, shown, names)
    if plan is not None:
        [credit] = spec.questions
        assert isinstance(credit, ChoiceQuestion)
        questions = [credit.model_copy(update={"ask": f"{name}: {credit.ask.strip()}"}) for name in items]
        read = await read_each(spec, messages, questions, plan["credit"], complete)
        return {name: _expected(answer) for name, answer in zip(items, read, strict=True)}, {}
    completion = await complete(Ask(messages, schema))
    told = _read(completion, schema)
    answers = {}
    for name, one in told.items():
        distribution = completion.distributions.get(f"{name}.credit")
        answers[name] = Answer(
            value=CREDITS[one["credit"]],
            distribution={f"{CREDITS[label]:g}": p for label, p in distribution.items()} if distribution else None,
        )
    return answers, {name: one["rationale"].strip() for name, one in told.items()}


def _expected(answer: Answer) -> Answer:
    """A credit that was read, in numbers: the likeliest, and the mean."""
    likely = answer.distribution or {}
    mean = sum(CREDITS[label] * p for label, p in likely.items())
    distribution = {f"{CREDITS[label]:g}": p for label, p in likely.items()}
    return answer.model_copy(
        update={"value": CREDITS[answer.value], "distribution": distribution, "expected": mean}
    )


def critical_failures(items: Sequence[Graded]) -> list[Graded]:
    """The essential items of weight 3 that a response has nothing of."""
    return [one for one in items if one.essential and one.weight == CRITICAL and one.credit == 0]


def verdict_of(
    spec: JudgeSpec,
    record_id: str,
    kept: Kept,
    answers: Mapping[str, Answer],
    model: str,
    reasons: Mapping[str, str] | None = None,
) -> Verdict:
    """What credits come to: the sum of credit times weight over the sum of weights, of all items, of the essential
    and of the additional ones. A response with nothing of an essential item of weight 3 does not pass."""
    reasons = reasons or {}
    items = kept.items
    graded = [
        Graded(
            id=name,
            essential=essential,
            criterion=item.criterion,
            reference=item.reference,
            weight=item.weight,
            credit=answers[name].value,
            rationale=reasons.get(name),
        )
        for name, (item, essential) in items.items()
    ]
    worth = {
        name: float(answer.value if answer.expected is None else answer.expected)
        for name, answer in answers.items()
    }

    def of(kind: bool | None) -> float | None:
        own = {name: worth[name] for name, (_, essential) in items.items() if kind in (None, essential)}
        return weighted_mean(own, {name: float(items[name][0].weight) for name in own}) if own else None

    total = of(None)
    assert total is not None
    overall = finished(spec.scoring, total, None)
    mark = spec.scoring.pass_mark
    said = [f"{one.id} ({one.credit:g}): {one.rationale}" for one in graded if one.rationale]
    return Verdict(
        id=record_id,
        status="ok",
        overall=overall,
        passed=None if mark is None else overall >= mark and not critical_failures(graded),
        scores={
            name: score
            for name, kind in (("essential", True), ("additional", False))
            if (score := of(kind)) is not None
        },
        answers=dict(answers),
        items=graded,
        rationale="\n".join(said) or None,
        grade=grade(spec.scoring, overall, False),
        unsure=kept.contested,
        judge=spec.name,
        model=model,
    )


def combined(
    spec: JudgeSpec, record_id: str, judged: Sequence[Verdict], how: Literal["mean", "median"], model: str
) -> Verdict:
    """The verdict of a panel's members: their scores centred. Each may have graded by a checklist of its own, so
    that items are the members' alone; the panel passes a response that most of them pass."""
    overall = finished(spec.scoring, center([verdict.overall or 0.0 for verdict in judged], how), None)
    scores = {
        name: center(values, how)
        for name in ("essential", "additional")
        if (values := [verdict.scores[name] for verdict in judged if name in verdict.scores])
    }
    passes = [verdict.passed for verdict in judged if verdict.passed is not None]
    return Verdict(
        id=record_id,
        status="ok",
        overall=overall,
        passed=2 * sum(passes) > len(passes) if passes else None,
        scores=scores,
        grade=grade(spec.scoring, overall, False),
        judge=spec.name,
        model=model,
    )
