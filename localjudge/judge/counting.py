"""How a rubric's answers become numbers, as judge.yaml declares it: weights, measures, dimensions, grades and red
lines. Declarations and their checks alone; `measuring` and `rubric` apply them, `scoring` has the arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from localjudge.errors import did_you_mean
from localjudge.judge.checks import About
from localjudge.judge.questions import (
    BandQuestion,
    ChoiceQuestion,
    FindingsQuestion,
    FlagsQuestion,
    Label,
    Question,
    ScoreQuestion,
    spelled,
)
from localjudge.yamlfile import Complaint, Number, Whole

Name = Annotated[str, spelled(r"[A-Za-z_][A-Za-z0-9_]*", "letters, digits and _, and no digit first")]
Where = dict[str, Label | list[Label]]
Points = dict[Label, Annotated[Number, Field(ge=0)]]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ErrorRate(_Part):
    """max(0, 100 - factor x E / N): N findings, less those that match `skip`, E of them matching `wrong`. Cannot be
    judged when N is 0."""

    findings: str
    wrong: Annotated[Where, Field(min_length=1)]
    skip: Where = Field(default_factory=dict)
    factor: Annotated[Number, Field(gt=0)] = 200


class Deductions(_Part):
    """100 less the points of each finding, by its field `by`; not below 0."""

    findings: str
    by: str
    points: Points


class Tally(_Part):
    """min(100, 100 x points / (items x worth)): each finding's points by its field `by`, for a set number of items
    that are worth at most so much each."""

    findings: str
    by: str
    points: Points
    items: Annotated[Whole, Field(ge=1)]
    worth: Annotated[Number, Field(gt=0)]


class CountBand(_Part):
    """A band by how many findings there are, those that match `where` if it is given, or how many kinds of them by
    the field `kinds`. bands: [least count, low, high], the highest count first, the last from 0. place: a choice of
    low, middle and high that says where in the band; without one the middle. at_most: question -> label -> the
    most that is counted when it is answered so, as where a high band asks for more than a number."""

    findings: str
    where: Where = Field(default_factory=dict)
    kinds: str | None = None
    bands: Annotated[list[tuple[Whole, Number, Number]], Field(min_length=1)]
    place: str | None = None
    at_most: dict[str, dict[Label, Whole]] = Field(default_factory=dict)

    @field_validator("bands")
    @classmethod
    def _bands_fall_to_nothing(cls, bands: list[tuple[int, float, float]]) -> list[tuple[int, float, float]]:
        for (more, low, _), (less, _, high) in pairwise(bands):
            if less >= more:
                raise ValueError(
                    f"the band from {less} does not come after the one from {more}: highest count first"
                )
            if high >= low:
                raise ValueError(
                    f"the band from {less} reaches {high:g}, into the one from {more}, which begins at {low:g}"
                )
        if bands[-1][0] != 0:
            raise ValueError(f"no band holds counts below {bands[-1][0]}: let the last one begin at 0")
        for count, low, high in bands:
            if not 0 <= low <= high <= 100:
                raise ValueError(
                    f"the band from {count} is {low:g} to {high:g}: give two numbers that rise, 0 to 100"
                )
        return bands


_HOWS = ("error_rate", "deductions", "tally", "count_band", "question", "check")


class Measure(_Part):
    """One indicator, 0 to 100, in exactly one way: by findings, by a question (a band, or a choice with
    values), or by what code measured. minus: question -> label -> points taken off the result, not below 0. unless:
    question -> label, or one of several, with which this cannot be judged."""

    error_rate: ErrorRate | None = None
    deductions: Deductions | None = None
    tally: Tally | None = None
    count_band: CountBand | None = None
    question: str | None = None
    check: str | None = None
    minus: dict[str, Points] = Field(default_factory=dict)
    unless: Where = Field(default_factory=dict)
    title: str = ""

    @model_validator(mode="after")
    def _one_way(self) -> Measure:
        given = [how for how in _HOWS if getattr(self, how) is not None]
        if len(given) != 1:
            told = f"it has {' and '.join(given)}" if given else "it has none"
            raise ValueError(f"a measure is made in one way of {', '.join(_HOWS)}: {told}")
        return self

    @property
    def of_findings(self) -> ErrorRate | Deductions | Tally | CountBand | None:
        return self.error_rate or self.deductions or self.tally or self.count_band


class Dimension(_Part):
    """The mean of some measures, rounded half up to whole points; weight: its part of the overall."""

    id: Name
    title: str = ""
    weight: Annotated[Number, Field(gt=0)]
    measures: Annotated[list[str], Field(min_length=1)]


class RedLine(_Part):
    """by: who decides: the model, code, or both (code where it can, else the model). fails: a record on which it
    stands does not pass. cap: the most that its overall can be."""

    code: Annotated[Label, spelled(r"[A-Za-z0-9_.-]+", "letters, digits, '_', '.' and '-'")]
    text: Annotated[str, Field(min_length=1)]
    by: Literal["model", "code", "both"] = "model"
    fails: bool = True
    cap: Number | None = None


class Scoring(_Part):
    """How answers become numbers.

    weights: question id -> weight; questions left out weigh 1. values: question id -> label -> number, for choices
    that count. pass_mark (`pass` in YAML): least overall that passes. decimals: round the overall half up.
    veto: flags questions of which a single raised code fails the record. cap: the most that an overall can be where
    any red line stands.
    overall: the score question that is the overall; by default the weighted mean of all that count.
    measures, dimensions: instead of questions, indicators of 0 to 100 and what they are the means of; the
    dimensions' weights sum to 100, and the overall is their weighted mean, without those that cannot be judged.
    grades: name -> [low, high] of the overall, the best first, without a gap. grade_on_red_line: whatever it is.
    """

    weights: dict[str, Annotated[Number, Field(ge=0)]] = Field(default_factory=dict)
    values: dict[str, dict[Label, Number]] = Field(default_factory=dict)
    pass_mark: Number | None = Field(default=None, alias="pass")
    decimals: Annotated[Whole, Field(ge=0, le=6)] | None = None
    veto: list[str] | None = None
    cap: Number | None = None
    overall: str | None = None
    measures: dict[Name, Measure] = Field(default_factory=dict)
    dimensions: list[Dimension] = Field(default_factory=list)
    grades: dict[Label, tuple[Number, Number]] = Field(default_factory=dict)
    grade_on_red_line: Label | None = None

    @model_validator(mode="after")
    def _grades_leave_no_gap(self) -> Scoring:
        step = 10 ** -(self.decimals or 0)
        for name, (low, high) in self.grades.items():
            if low > high:
                raise Complaint(f"the grade {name} is {low:g} to {high:g}, which does not rise", "grades", name)
        for (better, (low, top)), (worse, (_, high)) in pairwise(self.grades.items()):
            if high > top:
                raise Complaint(f"the grade {worse} is better than {better}: the best first", "grades", worse)
            if abs(low - high - step) > 1e-9:
                what = f"between the grades {worse} (to {high:g}) and {better} (from {low:g})"
                kind = "a gap" if low - high > step else "an overlap"
                what += f" there is {kind}: let {worse} end at {low - step:g}"
                raise Complaint(what, "grades", worse)
        if self.grades and self.decimals is None:
            raise Complaint("grades need a rounded overall: set 'decimals'", "grades")
        if self.grade_on_red_line is not None and self.grade_on_red_line not in self.grades:
            what = (
                f"there is no grade '{self.grade_on_red_line}': {did_you_mean(self.grade_on_red_line, self.grades)}"
            )
            raise Complaint(what, "grade_on_red_line")
        return self


def check_measures(scoring: Scoring, questions: Sequence[Question], by_code: Sequence[str] | None) -> None:
    """That measures and dimensions name what there is. by_code: what code measures; None where no code looks.

    Raises Complaint, with the place in judge.yaml."""
    by_id = {question.id: question for question in questions}
    for name, measure in scoring.measures.items():
        at = ("scoring", "measures", name)
        if (how := measure.of_findings) is not None:
            _check_findings(how, by_id, (*at, next(key for key in _HOWS if getattr(measure, key) is how)))
        elif measure.question is not None:
            asked = _known(measure.question, by_id, (*at, "question"))
            counts = isinstance(asked, BandQuestion) or asked.id in scoring.values
            if not counts:
                what = (
                    f"'{asked.id}' is no band, nor a choice with scoring.values, so it gives no number of 0 to 100"
                )
                raise Complaint(what, *at, "question")
            if any(not 0 <= worth <= 100 for worth in scoring.values.get(asked.id, {}).values()):
                what = f"scoring.values of '{asked.id}' leaves 0 to 100, and a measure may not"
                raise Complaint(what, "scoring", "values", asked.id)
        elif by_code is None:
            raise Complaint(f"'{measure.check}' is measured by code, but the judge names no 'checks'", *at, "check")
        elif measure.check not in by_code:
            what = f"no code measures '{measure.check}': {did_you_mean(str(measure.check), by_code)}"
            raise Complaint(what, *at, "check")
        most = measure.count_band.at_most if measure.count_band else {}
        for place, mentioned in (
            ((*at, "minus"), measure.minus),
            ((*at, "unless"), measure.unless),
            ((*at, "count_band", "at_most"), most),
        ):
            for question_id, labels in mentioned.items():
                there = (*place, question_id)
                known = _labels(_known(question_id, by_id, there), there)
                _check_labels([labels] if isinstance(labels, str) else labels, known, there)
    _check_dimensions(scoring)


def _check_dimensions(scoring: Scoring) -> None:
    if scoring.measures and not scoring.dimensions:
        raise Complaint("measures need 'dimensions' that they are of", "scoring", "measures")
    used: dict[str, str] = {}
    for place, dimension in enumerate(scoring.dimensions):
        if dimension.id in [other.id for other in scoring.dimensions[:place]]:
            raise Complaint(f"two dimensions have the id '{dimension.id}'", "scoring", "dimensions", place, "id")
        for i, name in enumerate(dimension.measures):
            if name not in scoring.measures:
                what = f"'{name}' is no measure: {did_you_mean(name, scoring.measures)}"
                raise Complaint(what, "scoring", "dimensions", place, "measures", i)
            if name in used:
                what = f"'{name}' is in '{used[name]}' already: it would count twice"
                raise Complaint(what, "scoring", "dimensions", place, "measures", i)
            used[name] = dimension.id
    if unused := [name for name in scoring.measures if name not in used]:
        raise Complaint(f"'{unused[0]}' is in no dimension, so it counts nothing", "scoring", "measures", unused[0])
    total = sum(dimension.weight for dimension in scoring.dimensions)
    if scoring.dimensions and abs(total - 100) > 1e-9:
        told = " + ".join(f"{dimension.weight:g}" for dimension in scoring.dimensions)
        raise Complaint(f"the dimensions' weights sum to {total:g}, not 100: {told}", "scoring", "dimensions")


def _known(question_id: str, by_id: Mapping[str, Question], at: tuple[Any, ...]) -> Question:
    if question_id not in by_id:
        raise Complaint(f"'{question_id}' is no question: {did_you_mean(question_id, by_id)}", *at)
    return by_id[question_id]


def _labels(question: Question, at: tuple[Any, ...]) -> Iterable[str]:
    if not isinstance(question, ChoiceQuestion):
        raise Complaint(f"'{question.id}' is a {question.type}: only choices have labels", *at)
    return question.options


def _check_findings(
    how: ErrorRate | Deductions | Tally | CountBand, by_id: Mapping[str, Question], at: tuple[Any, ...]
) -> None:
    asked = _known(how.findings, by_id, (*at, "findings"))
    if not isinstance(asked, FindingsQuestion):
        raise Complaint(f"'{asked.id}' is a {asked.type}, not findings", *at, "findings")
    if isinstance(how, Deductions | Tally):
        options = _options(asked, how.by, (*at, "by"))
        _check_labels(how.points, options, (*at, "points"))
        if missing := [label for label in options if label not in how.points]:
            raise Complaint(f"no points are given for {how.by} '{missing[0]}'", *at, "points")
        return
    for key in ("wrong", "skip", "where"):
        for field, labels in getattr(how, key, {}).items():
            _check_labels(
                [labels] if isinstance(labels, str) else labels,
                _options(asked, field, (*at, key)),
                (*at, key, field),
            )
    if isinstance(how, CountBand):
        if how.kinds is not None:
            _options(asked, how.kinds, (*at, "kinds"))
        if how.place is not None:
            places = set(_labels(_known(how.place, by_id, (*at, "place")), (*at, "place")))
            if places != {"low", "middle", "high"}:
                raise Complaint(f"'{how.place}' must be a choice of low, middle and high", *at, "place")


def _options(question: FindingsQuestion, field: str, at: tuple[Any, ...]) -> list[str]:
    """The labels that a field of findings can have."""
    options = question.labels_of(field)
    if options is None:
        known = [name for name in question.fields if question.labels_of(name)]
        raise Complaint(
            f"findings of '{question.id}' have no field '{field}' with labels: {did_you_mean(field, known)}", *at
        )
    return options


def _check_labels(given: Iterable[str], known: Iterable[str], at: tuple[Any, ...]) -> None:
    known = list(known)
    for label in given:
        if label not in known:
            raise Complaint(f"'{label}' is none of {', '.join(known)}: {did_you_mean(label, known)}", *at)


def check_red_lines(red_lines: Sequence[RedLine], questions: Sequence[Question], checks: About | None) -> None:
    """checks: the code that looks at a record. Raises Complaint."""
    taken = {code: q.id for q in questions if isinstance(q, FlagsQuestion) for code in q.codes}
    for place, line in enumerate(red_lines):
        if line.code in [other.code for other in red_lines[:place]]:
            raise Complaint(f"two red lines have the code '{line.code}'", "red_lines", place, "code")
        if line.code in taken:
            what = f"the code '{line.code}' is in the question '{taken[line.code]}' too: give it another name"
            raise Complaint(what, "red_lines", place, "code")
        if line.by != "model" and checks is None:
            what = f"'{line.code}' is decided by code, but the judge names no 'checks'"
            raise Complaint(what, "red_lines", place, "by")
        if line.by != "model" and checks is not None and line.code not in checks.codes:
            what = f"no code decides '{line.code}': {did_you_mean(line.code, checks.codes)}"
            raise Complaint(what, "red_lines", place, "by")


def check_ends(scoring: Scoring, red_lines: Sequence[RedLine], low: float, high: float) -> None:
    """That caps lie in the overall's range, low to high, and grades cover it. Raises Complaint."""
    for place, line in enumerate(red_lines):
        if line.cap is not None and not low <= line.cap <= high:
            what = f"the cap {line.cap:g} of '{line.code}' is no overall, which lies between {low:g} and {high:g}"
            raise Complaint(what, "red_lines", place, "cap")
    if scoring.cap is not None and not low <= scoring.cap <= high:
        what = f"scoring.cap is {scoring.cap:g}, but the overall lies between {low:g} and {high:g}"
        raise Complaint(what, "scoring", "cap")
    if scoring.grades:
        best, worst = next(iter(scoring.grades)), list(scoring.grades)[-1]
        if scoring.grades[best][1] < high:
            what = f"no grade holds an overall of {high:g}: let {best} end there"
            raise Complaint(what, "scoring", "grades", best)
        if scoring.grades[worst][0] > low:
            what = f"no grade holds an overall of {low:g}: let {worst} begin there"
            raise Complaint(what, "scoring", "grades", worst)


def overall_question(scoring: Scoring, questions: Sequence[Question]) -> None:
    """Raises Complaint when scoring.overall is no score question, or there are measures too."""
    if scoring.overall is None:
        return
    by_id = {question.id: question for question in questions}
    asked = _known(scoring.overall, by_id, ("scoring", "overall"))
    if not isinstance(asked, ScoreQuestion):
        raise Complaint(f"the overall must be a score; '{asked.id}' is a {asked.type}", "scoring", "overall")
    if scoring.dimensions or scoring.weights:
        other = "dimensions" if scoring.dimensions else "weights"
        raise Complaint(
            f"the overall is '{asked.id}' alone, so 'scoring.{other}' would count nothing", "scoring", other
        )
