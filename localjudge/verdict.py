"""The verdict: what is kept of one record's judgement, and how it may fail to be one."""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

Status = Literal["ok", "too_long", "invalid_record", "engine_error", "incomplete"]
STATUSES: tuple[Status, ...] = get_args(Status)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Answer(_Model):
    """One question's answer.

    distribution: label -> probability, where the engine read it; of flags, code -> that it applies.
    expected, sd: of a score that was read from probabilities, the mean and the standard deviation over its labels;
        of a panel's, its members' mean or median and their standard deviation. A panel's distribution is the share
        of its members that gave each label, and its value is None where none was given most often.
    entropy: of the distribution, in bits. mass: how much of the model's belief was on any label at all; of several
        reads the least.
    """

    value: Any
    distribution: dict[str, float] | None = None
    expected: float | None = None
    sd: float | None = None
    entropy: float | None = None
    mass: float | None = None


class Measurement(_Model):
    """One indicator of 0 to 100; value is None where it cannot be judged, and it then counts nothing."""

    value: float | None
    why: list[str] = Field(default_factory=list)


class Decision(_Model):
    """Who decided a red line, and why."""

    stands: bool
    by: Literal["code", "model"]
    why: str = ""


class Graded(_Model):
    """One item of a checklist, and what the response earned on it: 0, 0.5 or 1."""

    id: str
    essential: bool
    criterion: str
    reference: str
    weight: int
    credit: float
    rationale: str | None = None


class Usage(_Model):
    """Tokens and asks behind a verdict.

    reused: asks answered from the completion cache, without the engine; their tokens count all the same.
    cached: the part of `prompt` that the engine did not compute again.
    """

    asks: int = 0
    reused: int = 0
    prompt: int = 0
    cached: int = 0
    written: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            asks=self.asks + other.asks,
            reused=self.reused + other.reused,
            prompt=self.prompt + other.prompt,
            cached=self.cached + other.cached,
            written=self.written + other.written,
        )


class Suggestion(_Model):
    """What would make a response better, in the judge's language. persona: whom it would serve; None of what the
    technical stream found. because: what in the answers says so: a question's id, or a code."""

    text: str
    because: str
    persona: str | None = None


class Dual(_Model):
    """Both streams of a dual-control judge; every score is 0 to 1.

    technical: the weighted mean of `parts` (question -> score), without those that are None: they could not be
        judged. personas: persona -> its score; mix: persona -> its share in `persona`, which is None where nobody
        was asked (skipped: the funnel spared it).
    gate: what closed it (`floor`, `contradicted`, or a code); empty: it is open.
    weights: of the technical and the persona stream, as they were fused. fused: what they came to; ceiling: what a
        closed gate multiplies that by, None of an open one.
    prompt_id: the system prompt that made the response, where the record says. persona_usage: what of the verdict's
        usage the readers took, and the choice of them.
    """

    technical: float
    parts: dict[str, float | None]
    persona: float | None = None
    personas: dict[str, float] = Field(default_factory=dict)
    mix: dict[str, float] = Field(default_factory=dict)
    gate: list[str] = Field(default_factory=list)
    weights: tuple[float, float]
    fused: float
    ceiling: float | None = None
    skipped: bool = False
    suggestions: list[Suggestion] = Field(default_factory=list)
    prompt_id: str | None = None
    persona_usage: Usage


class Verdict(_Model):
    """One line of verdicts.jsonl.

    overall: present exactly when status is 'ok'; its scale is the judge's own.
    passed: None when the judge sets no pass mark, or the record could not be judged.
    answers: question id -> answer. A list of findings has each with `verified`: whether its quote is in the record;
        and where code knew better or as well, `settled` and `why`.
    measures, dimensions, grade: of a judge whose scoring has them; a dimension that cannot be judged is None.
    red_lines: the codes that stand. decisions: of a judge that declares red lines, each of them.
    orders: what each order of a pair was answered, straight then swapped. Preferences are in the record's own A and
        B; the swapped order's texts are as they were written, with A and B exchanged.
    dual: of a dual-control judge, both its streams.
    order_gap: of a pair that was read from probabilities, how far the two orders are apart on A (0 to 1).
    unsure: the label mass or the confidence was below what the run asked for, or a panel was split; the verdict
        counts all the same.
    items: of a checklist, each of its items with its credit, which is in `answers` under its id as well.
    members: of a panel, the verdict of each member, whose `model` names it. split: the questions (question.code of
        flags) on which as many of them say one thing as another; a flag is then not raised.
    decided_by: of a cascade, the model whose verdict this is.
    error: what went wrong, in one sentence, when status is not 'ok'.
    """

    id: str
    status: Status
    overall: float | None = None
    passed: bool | None = None
    scores: dict[str, float] = Field(default_factory=dict)
    answers: dict[str, Answer] = Field(default_factory=dict)
    orders: list[dict[str, Answer]] | None = None
    rationale: str | None = None
    red_lines: list[str] = Field(default_factory=list)
    decisions: dict[str, Decision] = Field(default_factory=dict)
    measures: dict[str, Measurement] = Field(default_factory=dict)
    dimensions: dict[str, float | None] = Field(default_factory=dict)
    grade: str | None = None
    dual: Dual | None = None
    order_gap: float | None = None
    unsure: bool = False
    items: list[Graded] | None = None
    members: list[Verdict] | None = None
    split: list[str] = Field(default_factory=list)
    decided_by: str | None = None
    error: str | None = None
    judge: str
    model: str
    usage: Usage = Usage()

    @model_validator(mode="after")
    def _a_failure_is_never_a_score(self) -> Verdict:
        if self.status == "ok":
            if self.overall is None:
                raise ValueError("an ok verdict needs an overall")
        elif self.overall is not None or self.passed is not None:
            raise ValueError(f"a verdict that is {self.status} cannot have an overall or a pass")
        return self
