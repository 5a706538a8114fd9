"""What of a verdict people's labels can speak of: how a label of theirs, and an answer of the judge's, is read
as a number. Knows judges and verdicts; not files, nor figures."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from localjudge.agreement.statistics import Values, ratio
from localjudge.errors import RunError
from localjudge.judge.questions import BandQuestion, ChoiceQuestion, FlagsQuestion, ScoreQuestion
from localjudge.judge.scoring import half_up, mean_log_odds
from localjudge.judge.spec import JudgeSpec
from localjudge.rows import shown
from localjudge.verdict import Answer, Verdict

Kind = Literal["preference", "choice", "flag", "passed", "score", "overall"]

_WORDS = {
    True: ("true", "yes", "pass", "passed", "1"),
    False: ("false", "no", "fail", "failed", "0"),
}


@dataclass(frozen=True)
class Target:
    """What people's labels speak of.

    name: a question, question.code of a flag, `overall`, `passed`, `grade`, dimensions.NAME, measures.NAME, or
    red_lines.CODE. labels: what can be given, in the judge's own order, numbered from 0; of a score, its
    points; none of what is a number, as an overall or a dimension. bounds: of a score or a number. question:
    the part of the verdict that answers it. undecided: what the judge's lack of a label is called; its number
    is len(labels)."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    bounds: tuple[float, float] | None = None
    question: str = ""
    code: str = ""

    @property
    def numeric(self) -> bool:
        return self.kind in ("score", "overall")

    @property
    def undecided(self) -> str:
        return "inconsistent" if self.kind == "preference" else "undecided"

    @property
    def codes(self) -> list[float]:
        """The labels as numbers: a score's points, else 0, 1, ..."""
        return (
            [float(label) for label in self.labels]
            if self.kind == "score"
            else [*map(float, range(len(self.labels)))]
        )


def targets_of(spec: JudgeSpec) -> dict[str, list[Target]]:
    """What can be held against people: name -> the target, or the several that the codes of flags are."""
    found: dict[str, list[Target]] = {}
    labels: tuple[str, ...]
    for question in spec.questions if not spec.checklist else ():  # whose items are each task's own: `items`
        name = question.id
        if spec.dual_control and name in spec.dual_control.not_of_all:
            continue
        if spec.kind == "pairwise" and name == "preference":
            labels = ("A", "B", "tie") if spec.tie else ("A", "B")
            found[name] = [Target(name, "preference", labels, question=name)]
        elif isinstance(question, ScoreQuestion):
            low, high = question.bounds
            labels = tuple(map(str, question.labels))
            found[name] = [Target(name, "score", labels, (float(low), float(high)), question=name)]
        elif isinstance(question, ChoiceQuestion | BandQuestion):
            found[name] = [Target(name, "choice", tuple(question.options), question=name)]
        elif isinstance(question, FlagsQuestion):
            found |= _codes(name, list(question.codes))
    if spec.kind == "pairwise":
        return found
    if spec.red_lines:
        found |= _codes("red_lines", [line.code for line in spec.red_lines])
    for part, names in (
        ("dimensions", [dimension.id for dimension in spec.scoring.dimensions]),
        ("measures", list(spec.scoring.measures)),
    ):
        found |= {
            f"{part}.{name}": [Target(f"{part}.{name}", "overall", (), (0.0, 100.0), part, name)] for name in names
        }
    if spec.scoring.grades:
        found["grade"] = [Target("grade", "choice", tuple(spec.scoring.grades), question="grade")]
    found["overall"] = [Target("overall", "overall", (), spec.bounds, "overall")]
    if spec.scoring.pass_mark is not None or spec.veto or spec.red_lines:
        found["passed"] = [Target("passed", "passed", ("fail", "pass"), question="passed")]
    return found


def _codes(name: str, codes: list[str]) -> dict[str, list[Target]]:
    each = [Target(f"{name}.{code}", "flag", ("no", "yes"), None, name, code) for code in codes]
    return {name: each} | {target.name: [target] for target in each}


# Labels


def read_label(target: Target, value: Any, theirs: Mapping[str, str]) -> float:
    """A person's label as a number: a score's points or an overall as it is, else its place among the labels.

    theirs: what people call a label -> what the judge calls it. Raises ValueError.
    """
    if not isinstance(value, list | dict):
        value = theirs.get(value if isinstance(value, str) else json.dumps(value), value)
    if target.kind == "flag":
        return float(_flag(target, value))
    if target.kind == "passed":
        return float(_yes(value))
    if target.numeric:
        return _number(target, value)
    text = value if isinstance(value, str) else json.dumps(value)
    if isinstance(value, bool) and text not in target.labels:
        text = "yes" if value else "no"
    labels = (*target.labels, "tie") if target.kind == "preference" else target.labels
    if text not in labels:
        raise ValueError(f"{shown(value)} is not one of {', '.join(target.labels)}")
    return float(labels.index(text))


def _yes(value: Any) -> bool:
    word = (value if isinstance(value, str) else json.dumps(value)).casefold()
    for meaning, words in _WORDS.items():
        if word in words:
            return meaning
    raise ValueError(f"{shown(value)} is neither true nor false")


def _flag(target: Target, value: Any) -> bool:
    """A list of the codes that apply, code -> whether it does, or of one code alone yes or no."""
    if isinstance(value, str) and value[:1] in "[{":
        try:
            value = json.loads(value)
        except ValueError:
            raise ValueError(f"{shown(value)} is no JSON") from None
    if isinstance(value, list):
        return target.code in value
    if isinstance(value, dict):
        if target.code not in value:
            raise ValueError(f"says nothing of {target.code}")
        return _yes(value[target.code])
    return _yes(value)


def _number(target: Target, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{shown(value)} is not a number")
    assert target.bounds is not None
    low, high = target.bounds
    if not low <= number <= high:
        raise ValueError(f"{shown(value)} is outside the scale {low:g} to {high:g}")
    return number


def people_in(target: Target, value: Any) -> list[Any]:
    """One field may hold several people's labels: a list. A flag's list of codes is one person's."""
    if isinstance(value, str) and value[:1] == "[" and target.kind != "flag":
        try:
            value = json.loads(value)
        except ValueError:
            return [value]
    several = isinstance(value, list) and (
        target.kind != "flag" or any(isinstance(v, list | dict | bool) for v in value)
    )
    return value if several else [value]


# The judge's side


@dataclass(frozen=True)
class Told:
    """What one verdict says of a target. label: NaN for none at all; number: what its score counts as."""

    label: float
    number: float
    p: tuple[float, ...] | None = None
    orders: tuple[float, ...] | None = None
    order_p: tuple[tuple[float, ...], ...] | None = None


def reader(target: Target) -> Callable[[Verdict], Told | None]:
    """What an ok verdict says of a target, None where the judge says that it cannot be judged. The label is its
    place, or len(labels) when the judge is undecided."""
    none = float(len(target.labels))
    places = {label: float(place) for place, label in enumerate(target.labels)}

    def likely(distribution: Mapping[str, float] | None) -> tuple[float, ...] | None:
        if not distribution or any(label not in distribution for label in target.labels if label != "tie"):
            return None
        return tuple(distribution.get(label, 0.0) for label in target.labels)

    def answer_of(verdict: Verdict) -> Answer:
        if target.question not in verdict.answers:
            raise RunError(f"the verdict of '{verdict.id}' does not answer '{target.question}'")
        return verdict.answers[target.question]

    def preference(verdict: Verdict) -> Told:
        answer = answer_of(verdict)
        orders = [order["preference"] for order in verdict.orders or []]
        p = likely(answer.distribution)
        order_p = tuple(read for order in orders if (read := likely(order.distribution)))
        if p is None and order_p and len(order_p) == len(orders):
            p = likely(mean_log_odds([order.distribution or {} for order in orders]))
        each = tuple(places.get(order.value, none) for order in orders) or None
        overall = math.nan if verdict.overall is None else verdict.overall
        return Told(places.get(answer.value, none), overall, p, each, order_p if len(order_p) == 2 else None)

    def choice(verdict: Verdict) -> Told | None:
        answer = answer_of(verdict)
        if answer.value is None and target.question not in verdict.split:
            return None
        label = places.get(str(answer.value), none)
        return Told(label, label, likely(answer.distribution))

    def score(verdict: Verdict) -> Told | None:
        answer = answer_of(verdict)
        number = answer.value if answer.expected is None else answer.expected
        if number is None:
            return None
        label = half_up(number) if answer.value is None else float(answer.value)
        return Told(label, float(number), likely(answer.distribution))

    def flag(verdict: Verdict) -> Told:
        # A declared red line is decided by the judge's own rules, of which the model's answer may be only one.
        declared = verdict.decisions.get(target.code) if target.question == "red_lines" else None
        if declared is not None and declared.by == "code":
            return Told(float(declared.stands), float(declared.stands))
        answer = verdict.answers.get(target.question) or Answer(value=verdict.red_lines)
        raised = (answer.distribution or {}).get(target.code)
        label = float(target.code in (answer.value or []) if declared is None else declared.stands)
        return Told(label, label, None if raised is None else (1 - raised, raised))

    def passed(verdict: Verdict) -> Told:
        label = none if verdict.passed is None else float(verdict.passed)
        return Told(label, label)

    def grade(verdict: Verdict) -> Told:
        label = places.get(str(verdict.grade), none)
        return Told(label, label)

    def number(verdict: Verdict) -> Told | None:
        found = verdict.overall
        if target.question == "dimensions":
            found = verdict.dimensions.get(target.code)
        elif target.question == "measures":
            found = verdict.measures[target.code].value if target.code in verdict.measures else None
        return None if found is None else Told(found, found)

    if target.question == "grade":
        return grade
    readers: dict[Kind, Callable[[Verdict], Told | None]] = {
        "preference": preference,
        "choice": choice,
        "score": score,
        "flag": flag,
        "passed": passed,
        "overall": number,
    }
    return readers[target.kind]


def consensus(people: Values, target: Target) -> Values:
    """What people agree on, (N,): the mean of numbers, else the label given more often than any other, NaN when
    that is none."""
    given = np.isfinite(people)
    n = given.sum(1)
    if target.numeric:
        return ratio(np.where(given, people, 0).sum(1), n)
    k = max(len(target.labels), 3)
    votes = np.stack([(people == label).sum(1) for label in range(k)], 1)
    most = votes.max(1, initial=0)
    alone = (votes == most[:, None]).sum(1) == 1
    return np.where((most > 0) & alone, votes.argmax(1), np.nan).astype(float)
