"""The dual-control kind: is a response right (the technical stream), and does it serve its reader (the persona
stream); fused, with a gate that keeps a pleasing answer from making up for a wrong one.

The steps of a record are ordinary asks, so that each is kept as it is answered: the technical ones together, then
whom the response is for, then each of these readers. The model judges; what comes of it is arithmetic (`scoring`).
"""

from __future__ import annotations

import asyncio
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localjudge.engines.base import Ask, AskFailed, Completion
from localjudge.judge.asking import (
    Complete,
    Correction,
    all_answered,
    ask_about,
    inputs_of,
    rationale_of,
    settled,
    shown_of,
)
from localjudge.judge.measuring import folded, texts_of, verified
from localjudge.judge.personas import Persona, compose, likeliest, named, vector_of
from localjudge.judge.questions import BandQuestion, FindingsQuestion, FlagsQuestion, Question, ScoreQuestion
from localjudge.judge.reading import Plan
from localjudge.judge.scoring import (
    center,
    fact_share,
    fused,
    gate_ceiling,
    unit,
    weighted_mean,
    weighted_of_judged,
)
from localjudge.judge.spec import JudgeSpec
from localjudge.judge.streams import MATCH, SAFETY, STANDINGS, DualControl, scale_of
from localjudge.records import Record
from localjudge.verdict import Answer, Decision, Dual, Suggestion, Usage, Verdict

Answers = Mapping[str, Answer]
Claim = Mapping[str, Any]

_IMAGE = re.compile(r"\W*(?:image|picture|图|图片)\s*(\d{1,3})(?!\d)", re.IGNORECASE)


async def judge(
    spec: JudgeSpec,
    record: Record,
    complete: Complete,
    model: str,
    plan: Plan | None = None,
    correct: Correction | None = None,
) -> Verdict:
    """Judge one record. Raises AskFailed when an ask failed, or for a record that names nobody there is."""
    section = section_of(spec)
    if plan is not None:
        raise AskFailed(
            "engine_error", "claims and evidence are written: a dual-control judge reads no labels alone"
        )
    fields = inputs_of(spec, record)
    readers = _readers_named(section, record)
    answers = await _technical(spec, fields, complete, correct)
    closeness = await asyncio.to_thread(_closeness, section, fields) if section.embedding else None
    technical = technical_stream(spec, answers, fields, closeness)
    mix: dict[str, float] = {}
    counted = _Counted(complete)
    people: dict[str, Persona] = {}
    if not (section.funnel and technical.gate):
        try:
            if readers is None:
                readers, matched = await _matched(spec, fields, counted, correct)
                answers |= matched
            people = {persona.id: persona for persona, _ in readers}
            mix = {persona.id: share for persona, share in readers}
            answers |= await _persona_stream(spec, fields, people.values(), counted, correct)
        except AskFailed as failure:
            raise AskFailed("incomplete", f"of the persona stream: {failure.why}") from None
    prompt_id = record.fields.get("prompt_id")
    return verdict_of(
        spec,
        record.id,
        {**answers, **technical.held},
        model,
        technical,
        people,
        mix,
        None if prompt_id is None else str(prompt_id),
        counted.usage,
    )


def section_of(spec: JudgeSpec) -> DualControl:
    assert spec.dual_control is not None
    return spec.dual_control


class _Counted:
    """`complete`, counting what it took."""

    def __init__(self, complete: Complete) -> None:
        self._complete, self.usage = complete, Usage()

    async def __call__(self, ask: Ask) -> Completion:
        done = await self._complete(ask)
        self.usage += Usage(
            asks=1, prompt=done.prompt_tokens, cached=done.cached_tokens, written=done.written_tokens
        )
        return done


# The technical stream


async def _technical(
    spec: JudgeSpec, fields: Mapping[str, Any], complete: Complete, correct: Correction | None
) -> dict[str, Answer]:
    """The answers about the material itself, each pass an ask; what needs images is asked only where there are."""
    section = section_of(spec)
    left_out = set() if _images(spec, fields) else set(section.with_images)
    if section.embedding:
        left_out.add(section.embedding.instead_of)
    passes = []
    for asked in spec.material_asks:
        kept = [question for question in asked if question.id not in left_out]
        if any(question.type != "text" for question in kept):
            passes.append(kept)
    told = all_answered(await settled(ask_about(spec, fields, asked, complete, {}) for asked in passes))
    return _merged(told, correct)


def _merged(told: Sequence[Answers], correct: Correction | None) -> dict[str, Answer]:
    return {
        name: answer
        for answers in told
        for name, answer in (correct.answers(answers, swapped=False) if correct else answers).items()
    }


def _images(spec: JudgeSpec, fields: Mapping[str, Any]) -> int:
    """How many pictures the record has."""
    return sum(len(fields[item.name] or ()) for item in spec.inputs if item.type == "images")


@dataclass(frozen=True, slots=True)
class Technical:
    """What the technical stream came to. score, parts: 0 to 1. held: answers of claims, each held against the
    record. contradicted: the claims that count as such. gate: what closes it. decisions: the policy's codes."""

    score: float
    parts: Mapping[str, float | None]
    held: Mapping[str, Answer]
    contradicted: Sequence[Claim]
    gate: Sequence[str]
    decisions: Mapping[str, Decision]


def technical_stream(
    spec: JudgeSpec, answers: Answers, fields: Mapping[str, Any], closeness: float | None = None
) -> Technical:
    """Count it. fields: the record's inputs. closeness: of task and response, where an embedding tells. Raises
    AskFailed when nothing that weighs could be judged."""
    section = section_of(spec)
    by_id = {question.id: question for question in spec.material_questions}
    held = {
        name: answer.model_copy(update={"value": hold_claims(spec, answer.value, fields)})
        for name, answer in answers.items()
        if name in section.technical and isinstance(by_id.get(name), FindingsQuestion)
    }
    decisions = _decisions(section, answers.get(SAFETY), str(fields[section.response]))
    contradicted: list[Claim] = []
    parts: dict[str, float | None] = {}
    for name in section.technical:
        question, answer = by_id[name], answers.get(name)
        if section.embedding and name == section.embedding.instead_of:
            parts[name] = closeness
        elif name in held:
            supported, wrong, unchecked = (counting(held[name].value, standing) for standing in STANDINGS)
            contradicted += wrong
            parts[name] = fact_share(len(supported), len(wrong), len(unchecked), section.worth)
        elif name == SAFETY and section.policy:
            parts[name] = float(not any(decision.stands for decision in decisions.values()))
        else:
            parts[name] = _part(spec, question, answer)
    score = weighted_of_judged(parts, section.technical)
    if score is None:
        raise AskFailed("invalid_record", "nothing that the technical score weighs could be judged of this record")
    gate = [code for code, decision in decisions.items() if decision.stands and section.gate.safety]
    if section.gate.contradicted and len(contradicted) >= section.gate.contradicted:
        gate.insert(0, "contradicted")
    if score < section.gate.floor:
        gate.insert(0, "floor")
    return Technical(score, parts, held, contradicted, gate, decisions)


def hold_claims(spec: JudgeSpec, claims: Sequence[Claim], fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The claims, each marked: `verified`, whether its quote is in the response; `evidence_in`, the input in which
    its evidence is found, or the image that it names; None where it is nowhere, so that it proves nothing."""
    section = section_of(spec)
    shown = shown_of(spec, fields)
    sources = {
        item.name: [folded(text) for text in texts_of(shown[item.name])]
        for item in spec.inputs
        if item.name != section.response and item.type != "images"
    }
    images = _images(spec, fields)

    def place(evidence: str) -> str | None:
        text = folded(evidence)
        if (named := _IMAGE.match(text)) and 1 <= int(named[1]) <= images:
            return f"image {int(named[1])}"
        if not _says_something(text):
            return None
        return next((name for name, texts in sources.items() if any(text in one for one in texts)), None)

    return [
        {**claim, "evidence_in": None if claim["standing"] == "not_checkable" else place(claim["evidence"])}
        for claim in verified(claims, [str(fields[section.response])])
    ]


def _says_something(text: str) -> bool:
    """Whether a piece of evidence could decide anything: a figure, two Chinese characters, or five letters. What is
    shorter occurs everywhere."""
    letters = [character for character in text if character.isalnum()]
    wide = sum(_wide(character) for character in letters)
    return len(letters) >= 5 or wide >= 2 or any(character.isdigit() for character in letters)


def counting(claims: Sequence[Claim], standing: str) -> list[Claim]:
    """The claims of a standing that count: each quote of the response once, as it is first listed, and, of what is
    said to be supported or contradicted, only what has its evidence in the record."""
    met: set[str] = set()
    found = []
    for claim in claims:
        if not claim["verified"] or (claim["standing"] != "not_checkable" and claim["evidence_in"] is None):
            continue
        quote = folded(claim["quote"])
        if quote not in met and claim["standing"] == standing:
            found.append(claim)
        met.add(quote)
    return found


def _part(spec: JudgeSpec, question: Question, answer: Answer | None) -> float | None:
    """A technical answer as 0 to 1, on its question's own scale; None of what was not asked or cannot be judged."""
    if answer is None or answer.value is None:
        return None
    if isinstance(question, FlagsQuestion):
        return float(not answer.value)
    low, high = scale_of(question, spec.scoring)
    if answer.expected is not None:
        value = answer.expected
    elif isinstance(question, BandQuestion):
        value = question.worth(answer.value)
    else:
        value = spec.scoring.values.get(question.id, {}).get(answer.value, answer.value)
    return unit(value, low, high)


def _decisions(section: DualControl, raised: Answer | None, response: str) -> dict[str, Decision]:
    """Each code of the policy: a word of its list decides it, else the model."""
    if section.policy is None:
        return {}
    text = folded(response).casefold()
    found = {}
    for code, rule in section.policy.codes.items():
        word = next((word for word in rule.words if _occurs(folded(word).casefold(), text)), None)
        by_model = raised is not None and code in raised.value
        if word is not None:
            found[code] = Decision(stands=True, by="code", why=f"“{word}”")
        else:
            found[code] = Decision(stands=by_model, by="model")
    return found


def _occurs(word: str, text: str) -> bool:
    """Whether a word stands in a text as a word; what is written without blanks, as Chinese is, has none, so that
    there and beside it anything goes."""
    starts = [found.start() for found in re.finditer(f"(?={re.escape(word)})", text)]
    ends = [start + len(word) for start in starts]
    return any(
        not _one_word(text[:start][-1:], word[0]) and not _one_word(word[-1], text[end : end + 1])
        for start, end in zip(starts, ends, strict=True)
    )


def _one_word(left: str, right: str) -> bool:
    return all(re.match(r"\w", side) and not _wide(side) for side in (left, right))


def _wide(character: str) -> bool:
    """Chinese, Japanese and Korean characters are."""
    return unicodedata.east_asian_width(character) in ("W", "F")


def _closeness(section: DualControl, fields: Mapping[str, Any]) -> float:
    from localjudge.judge.embedding import embeddings

    about = section.embedding
    assert about is not None
    task, response = embeddings(about.model, [str(fields[section.task]), str(fields[section.response])])
    lengths = math.sqrt(float(task @ task) * float(response @ response))
    cosine = float(task @ response) / lengths if lengths else 0.0
    return min(1.0, max(0.0, (cosine - about.low) / (about.high - about.low)))


# The persona stream


def _readers_named(section: DualControl, record: Record) -> list[tuple[Persona, float]] | None:
    """Whom a record is judged for, with their shares, as far as that is known without asking. Raises AskFailed."""
    by_id = {persona.id: persona for persona in section.personas}
    if section.match == "all" or (section.match == "model" and len(by_id) == 1 and not _names(record)):
        return [(persona, 1 / len(by_id)) for persona in section.personas]
    found: list[Persona] = []
    try:
        if _told(record, "persona"):
            found += [by_id[name] for name in named(record.fields["persona"], list(by_id))]
        if _told(record, "attributes"):
            if section.library is None:
                raise ValueError("it has 'attributes', but the judge has no library to compose a persona from")
            found.append(compose(vector_of(record.fields["attributes"]), section.library))
    except ValueError as error:
        raise AskFailed("invalid_record", f"{record.where}: {error}") from None
    if not found and section.match == "field":
        raise AskFailed("invalid_record", f"{record.where}: it names no 'persona', nor 'attributes' of one")
    return [(persona, 1 / len(found)) for persona in found] or None


def _names(record: Record) -> bool:
    return _told(record, "persona") or _told(record, "attributes")


def _told(record: Record, key: str) -> bool:
    """Whether a record says whom it is for. A table's empty cell says nothing, nor does one of empty columns."""
    value = record.fields.get(key)
    if isinstance(value, str):
        return bool(value.strip())
    if isinstance(value, Mapping):
        return any(one is not None for one in value.values())
    return value is not None and value != []


async def _matched(
    spec: JudgeSpec, fields: Mapping[str, Any], complete: Complete, correct: Correction | None
) -> tuple[list[tuple[Persona, float]], dict[str, Answer]]:
    """Whom the model takes the task to be from: the likeliest, with a second where that is likely too; where the
    engine tells no probabilities, the one that it wrote."""
    section = section_of(spec)
    [question] = section.match_questions(spec.language)
    # Who the task is from is to be read from the task: a response that flatters one reader must not choose its
    # judge.
    hidden = {section.response} if "inputs" in spec.templates.used else set()
    about = {name: None if name in hidden else value for name, value in fields.items()}
    answers = _merged([await ask_about(spec, about, [question], complete, {})], correct)
    answer = answers[MATCH]
    mix = likeliest(answer.distribution or {answer.value: 1.0}, section.most, section.second_from)
    by_id = {persona.id: persona for persona in section.personas}
    return [(by_id[name], share) for name, share in mix.items()], answers


async def _persona_stream(
    spec: JudgeSpec,
    fields: Mapping[str, Any],
    readers: Iterable[Persona],
    complete: Complete,
    correct: Correction | None,
) -> dict[str, Answer]:
    section = section_of(spec)
    asks = (
        ask_about(
            spec, fields, section.persona_questions(reader, spec.language), complete, {"persona": shown(reader)}
        )
        for reader in readers
    )
    return _merged(all_answered(await settled(asks)), correct)


def shown(persona: Persona) -> dict[str, Any]:
    """A reader as templates see one."""
    return {
        "id": persona.id,
        "name": persona.name,
        "description": persona.description,
        "attributes": {name.replace("_", " "): ", ".join(values) for name, values in persona.attributes.items()},
        "focus": persona.focus,
    }


def persona_score(persona: Persona, answers: Answers) -> float:
    """The points that a reader gave, as a part of those there were, 0 to 1."""
    earned = sum(_points(persona, asked.id, answers) for asked in persona.questions)
    return unit(earned, 0, sum(asked.most for asked in persona.questions))


def _points(persona: Persona, question: str, answers: Answers) -> float:
    answer = answers[f"{persona.id}_{question}"]
    return float(answer.value if answer.expected is None else answer.expected)


# Both


def verdict_of(
    spec: JudgeSpec,
    record_id: str,
    answers: Answers,
    model: str,
    technical: Technical,
    people: Mapping[str, Persona],
    mix: Mapping[str, float],
    prompt_id: str | None,
    persona_usage: Usage,
) -> Verdict:
    """What both streams come to. people: the readers who were asked; nobody behind a gate that the funnel heeds."""
    section = section_of(spec)
    personas = {name: persona_score(persona, answers) for name, persona in people.items()}
    persona = weighted_mean(personas, mix) if personas else None
    result = fuse(section, technical.score, persona, bool(technical.gate))
    codes = [code for code, decision in technical.decisions.items() if decision.stands]
    mark = spec.scoring.pass_mark
    passed = None
    if mark is not None or section.policy is not None or section.gate.then == "fail":
        failed = codes or (technical.gate and section.gate.then == "fail")
        passed = not failed and (mark is None or result.overall >= mark)
    scores = {"technical": technical.score, **{f"persona_{name}": score for name, score in personas.items()}}
    if persona is not None:
        scores["persona"] = persona
    return Verdict(
        id=record_id,
        status="ok",
        overall=result.overall,
        passed=passed,
        scores=scores,
        answers=dict(answers),
        rationale=rationale_of(spec, answers),
        red_lines=codes,
        decisions=dict(technical.decisions),
        dual=Dual(
            technical=technical.score,
            parts=dict(technical.parts),
            persona=persona,
            personas=personas,
            mix=dict(mix),
            gate=list(technical.gate),
            weights=result.weights,
            fused=result.fused,
            ceiling=result.ceiling,
            skipped=persona is None,
            suggestions=suggestions(spec, answers, technical, people),
            prompt_id=prompt_id,
            persona_usage=persona_usage,
        ),
        judge=spec.name,
        model=model,
    )


@dataclass(frozen=True, slots=True)
class Fused:
    overall: float
    fused: float
    weights: tuple[float, float]
    ceiling: float | None


def fuse(section: DualControl, technical: float, persona: float | None, closed: bool) -> Fused:
    """The overall of both streams by the judge's profile and gate. persona: None where nobody was asked, and the
    technical score stands alone."""
    taus, gate = section.taus, section.gate
    weights = taus.technical, taus.persona * (gate.shrink if closed else 1.0)
    together = technical if persona is None else fused(technical, persona, *weights)
    if not closed:
        return Fused(together, together, weights, None)
    ceiling = 0.0 if gate.then == "fail" else gate_ceiling(gate.floor, taus.technical, taus.persona)
    return Fused(ceiling * together, together, weights, ceiling)


_SAID = {
    "en": {
        "contradicted": "Correct “{quote}”: {place} says “{evidence}”.",
        "image": "Correct “{quote}”: {place} shows otherwise.",
        "code": "Take out what breaks {code}: {text}{word}.",
        "word": " ({word})",
        "part": "Raise “{ask}” from {points:g} of {most:g}; the top is “{top}”.",
        "reader": "For “{name}”: “{ask}” earned {points:g} of {most}, where the top is “{top}”. Said: {why}",
    },
    "zh": {
        "contradicted": "请改正“{quote}”：{place} 中写的是“{evidence}”。",
        "image": "请改正“{quote}”：{place} 显示的并非如此。",
        "code": "请删去触犯 {code} 的内容：{text}{word}。",
        "word": "（{word}）",
        "part": "“{ask}”得 {points:g} 分（满分 {most:g}），可以提高；满分的标准是“{top}”。",
        "reader": "对读者“{name}”：“{ask}”得 {points:g} 分（满分 {most}），满分的标准是“{top}”。评语：{why}",
    },
}


def suggestions(
    spec: JudgeSpec, answers: Answers, technical: Technical, people: Mapping[str, Persona]
) -> list[Suggestion]:
    """What would make the response better, drawn by code from what was found: contradicted claims, raised
    codes, the lowest technical score question below the low mark, and of each reader the question that earned
    least, if that was no more than half."""
    section, say = section_of(spec), _SAID[spec.language]
    found = []
    for claim in technical.contradicted:
        form = say["image" if claim["evidence_in"].startswith("image ") else "contradicted"]
        text = form.format(quote=claim["quote"], place=claim["evidence_in"], evidence=claim["evidence"])
        found.append(Suggestion(text=text, because="contradicted"))
    for code, decision in technical.decisions.items():
        if decision.stands and section.policy:
            word = say["word"].format(word=decision.why) if decision.why else ""
            text = say["code"].format(code=code, text=section.policy.codes[code].text, word=word)
            found.append(Suggestion(text=text, because=code))
    scored = [
        (part, question)
        for question in spec.questions
        if isinstance(question, ScoreQuestion) and (part := technical.parts.get(question.id)) is not None
    ]
    if scored:
        part, lowest = min(scored, key=lambda pair: pair[0])
        if part < section.marks.low:
            most = lowest.bounds[1]
            points = answers[lowest.id].value if lowest.id in answers else part * most
            top = lowest.anchors.get(most, str(most))
            text = say["part"].format(ask=lowest.ask, points=points, most=most, top=top)
            found.append(Suggestion(text=text, because=lowest.id))
    for reader in people.values():
        ranked = [(_points(reader, asked.id, answers) / asked.most, asked) for asked in reader.questions]
        share, asked = min(ranked, key=lambda pair: pair[0])
        if share <= 0.5:
            text = say["reader"].format(
                name=reader.name,
                ask=asked.ask,
                points=share * asked.most,
                most=asked.most,
                top=list(asked.points.values())[-1],
                why=answers[f"{reader.id}_rationale"].value,
            )
            found.append(Suggestion(text=text, because=f"{reader.id}_{asked.id}", persona=reader.id))
    return found


def combined(
    spec: JudgeSpec, record_id: str, answers: Answers, judged: Sequence[Verdict], how: Any, model: str
) -> Verdict:
    """The verdict of a panel's members: its overall and scores are theirs, centred; each code and whether it passed
    go by the most votes; the rest is as the member nearest to the overall has it. A score that half of them or
    fewer have is left out."""
    overall = center([_overall(member) for member in judged], how)
    near = min(judged, key=lambda member: abs(_overall(member) - overall))
    scores = {}
    for name in section_of(spec).score_names:
        values = [member.scores[name] for member in judged if name in member.scores]
        if 2 * len(values) > len(judged):
            scores[name] = center(values, how)
    decisions = {
        code: decision.model_copy(
            update={"stands": 2 * sum(member.decisions[code].stands for member in judged) > len(judged)}
        )
        for code, decision in near.decisions.items()
    }
    passed = None
    if near.passed is not None:
        passed = 2 * sum(bool(member.passed) for member in judged) > len(judged)
    return near.model_copy(
        update={
            "id": record_id,
            "overall": overall,
            "passed": passed,
            "scores": scores,
            "answers": {**near.answers, **answers},
            "red_lines": [code for code, decision in decisions.items() if decision.stands],
            "decisions": decisions,
            "model": model,
        }
    )


def _overall(verdict: Verdict) -> float:
    assert verdict.overall is not None
    return verdict.overall
