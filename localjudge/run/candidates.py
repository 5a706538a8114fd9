"""Candidates for the same things, from what was judged of them: who is ahead, by how much, how surely, and why.

Means stand on the cases that all candidates were judged on, differences on those that both were; what could not be
judged is counted. Pure: knows verdicts and the judge, no files; its sentences are made of numbers, in the judge's
language.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations

from pydantic import BaseModel, ConfigDict

from localjudge.judge.spec import JudgeSpec
from localjudge.verdict import Verdict

ENOUGH = 8
"""Cases that an interval takes: below, it says little that the cases themselves do not."""
CONFIDENCE = 0.95
TOLD = 3
"""Differences that a reason names."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Judged(_Model):
    """What one verdict says of a candidate. values: dimension, or score -> number; None: it cannot be judged."""

    id: str
    status: str
    overall: float | None
    passed: bool | None
    grade: str | None
    red_lines: list[str]
    values: dict[str, float | None]


class Standing(_Model):
    """winner: None where nobody is ahead. reason: two or three sentences; sentences: candidate -> one."""

    winner: str | None
    reason: str
    sentences: dict[str, str]


class Case(_Model):
    """candidates: those that have a record of it."""

    case: str
    candidates: dict[str, Judged]
    standing: Standing


class Candidate(_Model):
    """One candidate over all its cases.

    judged: those with an ok verdict; failed: status -> the others. overall, values: means over the common cases, of
    those that could be judged. passed, grades, red_lines: cases, of the common ones.
    """

    name: str
    records: int
    judged: int
    failed: dict[str, int]
    overall: float | None
    values: dict[str, float | None]
    passed: int | None
    grades: dict[str, int]
    red_lines: dict[str, int]


class Difference(_Model):
    """The first less the second, paired: the mean over the n cases on which both have the value.

    low, high: the 95 % interval, Student's t on the paired differences; None below 8 cases.
    """

    value: str
    first: str
    second: str
    n: int
    difference: float
    low: float | None
    high: float | None


class Comparison(_Model):
    """One judge's part of comparison.json. category: of a suite. common: cases on which every candidate was judged.
    left_out: verdicts whose record names no candidate or no case."""

    judge: str
    language: str
    category: str | None
    by: str
    titles: dict[str, str]
    scales: dict[str, tuple[float, float]]
    candidates: list[Candidate]
    cases: list[Case]
    common: int
    left_out: int
    differences: list[Difference]
    standing: Standing
    warnings: list[str]


WORDS: dict[str, dict[str, str]] = {
    "en": {
        "ahead": "{0} is ahead of {1} by {2} ({3} against {4}{5}){6}.",
        "cases": " over {0} cases",
        "interval": "; 95 % interval {0} to {1}",
        "zero": "; 95 % interval {0} to {1}, so it may be chance",
        "few": "; too few cases for an interval",
        "same": "; the same in each case",
        "one": "",
        "even": "Nobody is ahead: {0} have {1} each{2}.",
        "passes": "{0} have {1} each{2}, but {3} passes more often ({4}).",
        "space": " ",
        "none": "There is no case on which every candidate was judged.",
        "alone": "No other candidate has this case.",
        "most": "Its largest leads: {0}.",
        "behind": "It is behind in {0}.",
        "lines": "Red lines: {0}.",
        "line": "{0} in {1} of {2} ({3})",
        "line of one": "{0} {3}",
        "clean": "{0} none",
        "list": ", ",
        "and": "; ",
        "sentence": "overall {0}{1}; strongest in {2}, weakest in {3}{4}{5}.",
        "plain": "overall {0}{1}{2}{3}.",
        "grade": ", grade {0}",
        "crossed": "; red lines: {0}",
        "failed": "; {0} not judged",
        "unjudged": "not judged ({0}).",
        "nothing": "no case that all were judged on{0}.",
        "by_model": "The same records, judged by different models: what differs is who judges, not what is judged.",
        "both": "The runs differ in the model that judges and in the records: the differences are of both.",
        "settings": "The runs were made with different settings: {0}.",
        "lost": "{0}: {1} of {2} could not be judged, and count nothing.",
        "uncommon": "{0} of {1} cases were not judged for every candidate, and are in no mean.",
        "left": "{0} verdict(s) are of records that name no candidate or no case.",
    },
    "zh": {
        "ahead": "{0} 领先 {1} {2} 分（{3} 对 {4}{5}）{6}。",
        "cases": "，依据 {0} 个案例",
        "interval": "，95% 区间为 {0} 至 {1}",
        "zero": "，95% 区间为 {0} 至 {1}，可能出于偶然",
        "few": "，案例太少，不给区间",
        "same": "，每个案例差距相同",
        "one": "",
        "even": "没有胜出者：{0} 均为 {1} 分{2}。",
        "passes": "{0} 均为 {1} 分{2}，但 {3} 通过更多（{4}）。",
        "space": "",
        "none": "没有任何案例是各方都已评审的。",
        "alone": "这个案例没有其他候选者。",
        "most": "领先最多的是：{0}。",
        "behind": "不足之处：{0}。",
        "lines": "红线：{0}。",
        "line": "{0} 有 {1}/{2} 例（{3}）",
        "line of one": "{0} {3}",
        "clean": "{0} 无",
        "list": "、",
        "and": "；",
        "sentence": "综合 {0} 分{1}；最强的是 {2}，最弱的是 {3}{4}{5}。",
        "plain": "综合 {0} 分{1}{2}{3}。",
        "grade": "，等级 {0}",
        "crossed": "；红线：{0}",
        "failed": "；{0} 个未能评审",
        "unjudged": "未能评审（{0}）。",
        "nothing": "没有各方都已评审的案例{0}。",
        "by_model": "同一批记录由不同模型评审：差别在于谁来评，而不在被评的内容。",
        "both": "各次运行的评审模型与记录都不相同：差别由两者共同造成。",
        "settings": "各次运行的设置不同：{0}。",
        "lost": "{0}：{2} 个中有 {1} 个未能评审，不计入任何分数。",
        "uncommon": "{1} 个案例中有 {0} 个并非各方都已评审，不进入平均值。",
        "left": "{0} 个评审结果的记录没有写明候选者或案例。",
    },
}


def judged_of(spec: JudgeSpec, verdict: Verdict) -> Judged:
    told: Mapping[str, float | None] = verdict.dimensions if spec.scoring.dimensions else verdict.scores
    return Judged(
        id=verdict.id,
        status=verdict.status,
        overall=verdict.overall,
        passed=verdict.passed,
        grade=verdict.grade,
        red_lines=verdict.red_lines,
        values={name: told.get(name) for name in _values(spec)} if verdict.status == "ok" else {},
    )


def _values(spec: JudgeSpec) -> list[str]:
    return [name for name in spec.scales if name != spec.scoring.overall]


def compared(
    spec: JudgeSpec,
    names: Sequence[str],
    found: Mapping[str, Mapping[str, Judged]],
    by: str,
    category: str | None = None,
    left_out: int = 0,
    warnings: Sequence[str] = (),
) -> Comparison:
    """names: the candidates. found: case -> candidate -> what was judged of it."""
    words = WORDS[spec.language]
    common = [told for told in found.values() if all(name in told and told[name].status == "ok" for name in names)]
    candidates = [_candidate(spec, name, found, common) for name in names]
    told = list(warnings)
    for one in candidates:
        if one.failed:
            told.append(words["lost"].format(one.name, one.records - one.judged, one.records))
    if len(common) < len(found):
        told.append(words["uncommon"].format(len(found) - len(common), len(found)))
    if left_out:
        told.append(words["left"].format(left_out))
    return Comparison(
        judge=spec.name,
        language=spec.language,
        category=category,
        by=by,
        # Few of many readers are asked, and a checklist may have no additional items: no failure to judge.
        titles={
            name: _title(spec, name)
            for name in _values(spec)
            if spec.kind == "rubric"
            or any(one.values.get(name) is not None for of in found.values() for one in of.values())
        },
        scales={**{name: spec.scales[name] for name in _values(spec)}, "overall": spec.bounds},
        candidates=candidates,
        cases=[
            Case(case=case, candidates=dict(of), standing=standing(spec, [n for n in names if n in of], [of]))
            for case, of in found.items()
        ],
        common=len(common),
        left_out=left_out,
        differences=[
            difference
            for first, second in combinations(names, 2)
            for value in ("overall", *_values(spec))
            if (difference := paired(value, first, second, list(found.values()))) is not None
        ],
        standing=standing(spec, names, list(found.values())),
        warnings=told,
    )


def _candidate(
    spec: JudgeSpec, name: str, found: Mapping[str, Mapping[str, Judged]], common: Sequence[Mapping[str, Judged]]
) -> Candidate:
    own = [told[name] for told in found.values() if name in told]
    shared = [told[name] for told in common]
    failed = Counter(one.status for one in own if one.status != "ok")
    grades = Counter(one.grade for one in shared)
    return Candidate(
        name=name,
        records=len(own),
        judged=len(own) - failed.total(),
        failed=dict(failed),
        overall=_mean([one.overall for one in shared]),
        values={value: _mean([one.values[value] for one in shared]) for value in _values(spec)},
        passed=None if any(one.passed is None for one in shared) else sum(bool(one.passed) for one in shared),
        grades={grade: grades[grade] for grade in spec.scoring.grades},
        red_lines=dict(Counter(code for one in shared for code in one.red_lines)),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _value(judged: Judged, value: str) -> float | None:
    return judged.overall if value == "overall" else judged.values.get(value)


def paired(value: str, first: str, second: str, cases: Sequence[Mapping[str, Judged]]) -> Difference | None:
    """None when no case has the value of both."""
    apart = [
        a - b
        for told in cases
        if first in told
        and second in told
        and (a := _value(told[first], value)) is not None
        and (b := _value(told[second], value)) is not None
    ]
    if not apart:
        return None
    mean = math.fsum(apart) / len(apart)
    low = high = None
    if len(apart) >= ENOUGH:
        from scipy.special import stdtrit  # scipy.stats takes twice as long to import

        sd = math.sqrt(math.fsum((one - mean) ** 2 for one in apart) / (len(apart) - 1))
        half = float(stdtrit(len(apart) - 1, (1 + CONFIDENCE) / 2)) * sd / math.sqrt(len(apart))
        low, high = mean - half, mean + half
    return Difference(value=value, first=first, second=second, n=len(apart), difference=mean, low=low, high=high)


def standing(spec: JudgeSpec, names: Sequence[str], cases: Sequence[Mapping[str, Judged]]) -> Standing:
    """Who is ahead over the cases that all of these were judged on, and why."""
    words = WORDS[spec.language]
    common = [told for told in cases if all(name in told and told[name].status == "ok" for name in names)]
    means = {name: _mean([told[name].overall for told in common]) for name in names}
    ranked = sorted(((mean, name) for name, mean in means.items() if mean is not None), key=lambda pair: -pair[0])
    sentences = {name: _sentence(spec, name, cases, common) for name in names}
    if not ranked or len(names) == 1:
        return Standing(winner=None, reason=words["alone" if len(names) == 1 else "none"], sentences=sentences)
    (best, winner) = ranked[0]
    even = [name for mean, name in ranked if best - mean < 1e-9]
    lines = _red_lines(words, names, common)
    over = words["cases"].format(len(common)) if len(common) > 1 else ""
    if len(even) > 1:
        # At the same overall, what passes is ahead of what a red line fails.
        passes = {name: sum(bool(told[name].passed) for told in common) for name in even}
        more = [name for name, n in passes.items() if n == max(passes.values())]
        each = words["list"].join(f"{name} {n}" for name, n in passes.items())
        told = words["passes" if len(more) == 1 else "even"].format(
            words["list"].join(even), _number(spec, best), over, more[0], each
        )
        first = more[0] if len(more) == 1 else None
        return Standing(winner=first, reason=words["space"].join([told, *lines]), sentences=sentences)
    (next_best, second) = ranked[1]
    overall = paired("overall", winner, second, common)
    assert overall is not None
    told = words["ahead"].format(
        winner,
        second,
        _number(spec, overall.difference),
        _number(spec, best),
        _number(spec, next_best),
        over,
        _sureness(spec, overall),
    )
    return Standing(
        winner=winner,
        reason=words["space"].join([told, *_why(spec, winner, second, common), *lines]),
        sentences=sentences,
    )


def _sureness(spec: JudgeSpec, difference: Difference) -> str:
    words, low, high = WORDS[spec.language], difference.low, difference.high
    if low is None or high is None:
        return words["one" if difference.n == 1 else "few"]
    if high - low < 1e-9:
        return words["same"]
    return words["zero" if low <= 0 <= high else "interval"].format(_number(spec, low), _number(spec, high))


def _why(spec: JudgeSpec, winner: str, second: str, common: Sequence[Mapping[str, Judged]]) -> list[str]:
    """The values that the difference comes from, the heaviest first, and those in which the winner is behind."""
    words = WORDS[spec.language]
    weights = {dimension.id: dimension.weight for dimension in spec.scoring.dimensions} or spec.scoring.weights
    apart = [
        (
            difference.difference * weights.get(value, 1.0),
            f"{_title(spec, value)} {_signed(spec, value, difference)}",
        )
        for value in _values(spec)
        if (difference := paired(value, winner, second, common)) is not None
    ]
    ahead = [told for by, told in sorted(apart, key=lambda pair: -pair[0]) if by > 1e-9][:TOLD]
    behind = [told for by, told in sorted(apart, key=lambda pair: pair[0]) if by < -1e-9][:TOLD]
    return [
        words[key].format(words["list"].join(told)) for key, told in (("most", ahead), ("behind", behind)) if told
    ]


def _red_lines(words: Mapping[str, str], names: Sequence[str], common: Sequence[Mapping[str, Judged]]) -> list[str]:
    told = []
    for name in names:
        crossed = [case[name].red_lines for case in common if case[name].red_lines]
        codes = words["list"].join(dict.fromkeys(code for codes in crossed for code in codes))
        key = "clean" if not crossed else "line" if len(common) > 1 else "line of one"
        told.append((bool(crossed), words[key].format(name, len(crossed), len(common), codes)))
    if not any(crossed for crossed, _ in told):
        return []
    return [words["lines"].format(words["and"].join(line for _, line in told))]


def _sentence(
    spec: JudgeSpec, name: str, cases: Sequence[Mapping[str, Judged]], common: Sequence[Mapping[str, Judged]]
) -> str:
    words = WORDS[spec.language]
    own = [told[name] for told in cases if name in told]
    failed = [one.status for one in own if one.status != "ok"]
    lost = words["failed"].format(len(failed)) if failed else ""
    if not common:
        if len(failed) == len(own):
            return words["unjudged"].format(words["list"].join(dict.fromkeys(failed)))
        return words["nothing"].format(lost)
    shared = [told[name] for told in common]
    overall = _mean([one.overall for one in shared])
    assert overall is not None
    grades = words["list"].join(
        grade if len(shared) == 1 else f"{grade} × {n}"
        for grade, n in Counter(one.grade for one in shared).items()
        if grade
    )
    graded = words["grade"].format(grades) if grades else ""
    codes = words["list"].join(dict.fromkeys(code for one in shared for code in one.red_lines))
    crossed = words["crossed"].format(codes) if codes else ""
    values = [
        (mean, value)
        for value in _values(spec)
        if (mean := _mean([one.values[value] for one in shared])) is not None
    ]
    if len({mean for mean, _ in values}) < 2:
        return words["plain"].format(_number(spec, overall), graded, crossed, lost)
    strong, weak = max(values, key=lambda pair: pair[0]), min(values, key=lambda pair: pair[0])
    told = [f"{_title(spec, value)} {_number(spec, mean, value)}" for mean, value in (strong, weak)]
    return words["sentence"].format(_number(spec, overall), graded, *told, crossed, lost)


def _title(spec: JudgeSpec, value: str) -> str:
    return next((one.title for one in spec.scoring.dimensions if one.id == value and one.title), value)


def _number(spec: JudgeSpec, number: float, value: str = "overall") -> str:
    low, high = spec.bounds if value == "overall" else spec.scales[value]
    return shown(number, high - low)


def shown(number: float, span: float) -> str:
    """To a tenth on a scale of more than ten points, else to a hundredth; whole numbers without a point."""
    text = f"{number:.{1 if span > 10 else 2}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _signed(spec: JudgeSpec, value: str, difference: Difference) -> str:
    text = _number(spec, difference.difference, value)
    return text if text.startswith("-") else f"+{text}"
