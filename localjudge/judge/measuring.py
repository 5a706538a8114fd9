"""From answers, and what code found, to the measures, dimensions and grade that scoring declares. Pure, and it asks
nobody; `scoring` has the arithmetic, `counting` the declarations.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from localjudge.images import Picture
from localjudge.judge.checks import Measured
from localjudge.judge.counting import CountBand, Measure, Scoring, Where
from localjudge.judge.questions import CANNOT
from localjudge.judge.scoring import (
    band_of,
    deduction_score,
    error_rate_score,
    grade_of,
    half_up,
    in_band,
    mean_of_judged,
    tally_score,
    weighted_of_judged,
)
from localjudge.verdict import Answer

Finding = Mapping[str, Any]


def folded(text: str) -> str:
    """Text as quotes are compared: Unicode NFKC, and every run of white space as one blank."""
    return re.sub(r"\s+", " ", unicodedata.normalize("NFKC", text)).strip()


def texts_of(value: Any) -> list[str]:
    """Every text in a field: itself, or all texts and numbers inside its JSON, as they are shown."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for inner in value.values() for text in texts_of(inner)]
    if isinstance(value, list):
        return [text for inner in value for text in texts_of(inner)]
    return [] if value is None or isinstance(value, bool | Picture) else [str(value)]


def verified(findings: Sequence[Finding], texts: Sequence[str]) -> list[dict[str, Any]]:
    """The findings, each marked by whether its quote occurs in one of these texts. One that code found, which has
    `settled`, needs no proof."""
    folds = [folded(text) for text in texts]

    def proven(finding: Finding) -> bool:
        quote = folded(finding["quote"])
        says_something = any(character.isalnum() for character in quote)
        return "settled" in finding or (says_something and any(quote in text for text in folds))

    return [{**finding, "verified": proven(finding)} for finding in findings]


def counting(findings: Sequence[Finding]) -> list[Finding]:
    """The findings that count: those whose quote is in the record, each once, however often a model lists it."""
    met = set()
    counted = []
    for finding in findings:
        own = tuple((key, folded(str(value))) for key, value in finding.items() if key not in ("settled", "why"))
        if finding.get("verified", True) and ("settled" in finding or own not in met):
            met.add(own)
            counted.append(finding)
    return counted


def matches(finding: Finding, where: Where) -> bool:
    """Whether each field has the label, or one of the labels, that is wanted."""
    return all(
        finding.get(field) in ([labels] if isinstance(labels, str) else labels) for field, labels in where.items()
    )


def measure(scoring: Scoring, answers: Mapping[str, Answer], found: Mapping[str, Measured]) -> dict[str, Measured]:
    """measure -> its value, None where it cannot be judged, and why. found: what code measured."""
    return {name: _measure(one, scoring, answers, found) for name, one in scoring.measures.items()}


def _measure(
    one: Measure, scoring: Scoring, answers: Mapping[str, Answer], found: Mapping[str, Measured]
) -> Measured:
    for question, labels in one.unless.items():
        answer = answers.get(question)
        if answer is not None and answer.value in ([labels] if isinstance(labels, str) else labels):
            return Measured(None, ("cannot be judged",))
    value, why = _value(one, scoring, answers, found)
    if value is None:
        return Measured(None, tuple(why))
    for question, points in one.minus.items():
        answer = answers.get(question)
        if answer is not None and points.get(answer.value):
            value = deduction_score([points[answer.value]], full=value)
            why.append(f"-{points[answer.value]:g}: {question} = {answer.value}")
    return Measured(value, tuple(why))


def _value(
    one: Measure, scoring: Scoring, answers: Mapping[str, Answer], found: Mapping[str, Measured]
) -> tuple[float | None, list[str]]:
    if one.check is not None:
        measured = found.get(one.check, Measured(None, ("code could not measure it",)))
        return measured.value, list(measured.why)
    if one.question is not None:
        return _asked(one.question, scoring, answers)
    how = one.of_findings
    assert how is not None
    if how.findings not in answers:
        return None, ["not answered"]
    findings = counting(answers[how.findings].value)
    if isinstance(how, CountBand):
        return _count_band(how, findings, answers)
    if one.error_rate:
        skip = one.error_rate.skip
        judged = [finding for finding in findings if not (skip and matches(finding, skip))]
        wrong = [finding for finding in judged if matches(finding, one.error_rate.wrong)]
        why = [f"{len(wrong)} of {len(judged)} wrong", *(_told(finding) for finding in wrong)]
        return error_rate_score(len(wrong), len(judged), one.error_rate.factor), why
    points: list[tuple[float, Finding]] = []
    if one.deductions:
        points = [(one.deductions.points[finding[one.deductions.by]], finding) for finding in findings]
        return deduction_score(p for p, _ in points), [f"-{p:g}: {_told(finding)}" for p, finding in points if p]
    assert one.tally
    # What was there to be rated and was not is nobody's fault but the judge's: it leaves the items.
    rated = [finding for finding in findings if finding[one.tally.by] != CANNOT]
    items = one.tally.items - (len(findings) - len(rated))
    points = [(one.tally.points[finding[one.tally.by]], finding) for finding in rated]
    # No more than the items that there are to find: a model that lists one twice earns nothing by it.
    points = sorted(points, key=lambda pair: -pair[0])[:items]
    value = tally_score((p for p, _ in points), items, one.tally.worth)
    return value, [f"{len(points)} of {items} items, {sum(p for p, _ in points):g} points"]


def _asked(question: str, scoring: Scoring, answers: Mapping[str, Answer]) -> tuple[float | None, list[str]]:
    answer = answers.get(question)
    if answer is None or answer.value is None:
        return None, ["not answered" if answer is None else "cannot be judged"]
    if answer.expected is not None:
        return answer.expected, [str(answer.value)]
    return scoring.values[question][answer.value], [str(answer.value)]


def _count_band(
    how: CountBand, findings: Sequence[Finding], answers: Mapping[str, Answer]
) -> tuple[float | None, list[str]]:
    counted = [finding for finding in findings if matches(finding, how.where)]
    n = len({finding[how.kinds] for finding in counted} if how.kinds else counted)
    for question, most in how.at_most.items():
        if question in answers and answers[question].value in most:
            n = min(n, most[answers[question].value])
    low, high = band_of(n, how.bands)
    place = answers[how.place].value if how.place is not None and how.place in answers else None
    return in_band(low, high, place or "middle"), [f"{n} counted: {low:g} to {high:g}"]


def _told(finding: Finding) -> str:
    rest = [
        f"{key} {value}" for key, value in finding.items() if key not in ("quote", "verified", "settled", "why")
    ]
    return f"“{finding['quote']}” ({', '.join(rest)})" if rest else f"“{finding['quote']}”"


def dimensions(scoring: Scoring, measures: Mapping[str, Measured]) -> dict[str, float | None]:
    """dimension -> the mean of its measures that could be judged, rounded half up; None where none could."""
    return {
        dimension.id: mean_of_judged([measures[name].value for name in dimension.measures])
        for dimension in scoring.dimensions
    }


def overall_of(scoring: Scoring, values: Mapping[str, float | None]) -> float | None:
    """The dimensions' weighted mean, without those that could not be judged; None when none could."""
    return weighted_of_judged(values, {dimension.id: dimension.weight for dimension in scoring.dimensions})


def finished(scoring: Scoring, overall: float, cap: float | None) -> float:
    """The overall rounded, and no higher than the red lines that stand allow."""
    if scoring.decimals is not None:
        overall = half_up(overall, scoring.decimals)
    return overall if cap is None else min(overall, cap)


def grade(scoring: Scoring, overall: float, red_line: bool) -> str | None:
    if not scoring.grades:
        return None
    if red_line and scoring.grade_on_red_line is not None:
        return scoring.grade_on_red_line
    return grade_of(overall, scoring.grades)
