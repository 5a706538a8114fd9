"""Which case a person is to label next: at random, where the judge is least sure, or where judges disagree.

Pure. The random order is the same for all people and all runs of the same records, so that people's labels meet and
their agreement can be measured; it does not change when records are added.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from typing import Literal, NamedTuple, get_args

from localjudge.judge.questions import ScoreQuestion
from localjudge.judge.reading import confidence
from localjudge.judge.spec import JudgeSpec
from localjudge.verdict import Answer, Verdict

Pick = Literal["random", "least-sure", "disagreements"]
PICKS: tuple[Pick, ...] = get_args(Pick)


class Facts(NamedTuple):
    """What of a verdict the order goes by.

    ok: whether it was judged; what was not is nothing to hold a label against. overall: from 0 to 1 on its scale.
    doubt: 0 to 1, how far from sure the least sure answer is, over 1 where the run calls it unsure; None where no
    probability was read. apart: 0 to 1, how far the members of a panel are apart; None without a panel.
    """

    ok: bool
    overall: float | None
    passed: bool | None
    doubt: float | None
    apart: float | None
    dice: bytes


def facts_of(spec: JudgeSpec, verdict: Verdict) -> Facts:
    low, high = (0.0, 1.0) if spec.kind == "pairwise" else spec.bounds
    share = None if verdict.overall is None or high <= low else (verdict.overall - low) / (high - low)
    return Facts(
        ok=verdict.status == "ok",
        overall=share,
        passed=verdict.passed,
        doubt=_doubt(verdict),
        apart=_apart(spec, verdict) if verdict.members else None,
        dice=hashlib.sha256(verdict.id.encode()).digest()[:8],
    )


def _doubt(verdict: Verdict) -> float | None:
    told = [answer for answers in (verdict.answers, *(verdict.orders or ())) for answer in answers.values()]
    doubts = [1 - confidence(answer) for answer in told if answer.distribution]
    if verdict.order_gap is not None:
        doubts.append(verdict.order_gap)
    if any(answer.value == "inconsistent" for answer in verdict.answers.values()):
        doubts.append(1.0)
    if verdict.unsure:
        return 1.0 + max(doubts, default=0.0)
    return max(doubts, default=None)


def _apart(spec: JudgeSpec, verdict: Verdict) -> float:
    """The greatest disagreement on any question: of a score the standard deviation over half its scale, the most it
    can be; of flags and labels how likely two members differ, over the most two labels allow."""
    scales = {q.id: q.bounds for q in spec.questions if isinstance(q, ScoreQuestion)}
    return max((_spread(answer, scales.get(name)) for name, answer in verdict.answers.items()), default=0.0)


def _spread(answer: Answer, scale: tuple[int, int] | None) -> float:
    shares = list((answer.distribution or {}).values())
    if isinstance(answer.value, list):
        return max((2 * min(p, 1 - p) for p in shares), default=0.0)
    if scale and answer.sd is not None:
        return min(1.0, 2 * answer.sd / (scale[1] - scale[0]))
    return min(1.0, 2 * (1 - sum(p * p for p in shares))) if shares else 0.0


def between(mine: Facts, others: Iterable[Facts]) -> float | None:
    """How far other runs' verdicts are from this one: 1 where one passes and one fails, else how far their overalls
    are. None where no other judged it."""
    found = None
    for other in others:
        if not other.ok or mine.overall is None or other.overall is None:
            continue
        split = None not in (mine.passed, other.passed) and mine.passed != other.passed
        found = max(found or 0.0, 1.0 if split else abs(mine.overall - other.overall))
    return found


def can_pick(facts: Iterable[Facts], others: bool) -> list[Pick]:
    """The ways of picking that mean something for this run. others: whether other runs are on the same records."""
    told = list(facts)
    found: list[Pick] = ["random"]
    if any(one.doubt is not None for one in told):
        found.append("least-sure")
    if others or any(one.apart is not None for one in told):
        found.append("disagreements")
    return found


def next_case(
    facts: Mapping[str, Facts],
    pick: Pick,
    *,
    done: Collection[str] = (),
    later: Collection[str] = (),
    others: Iterable[Mapping[str, Facts]] = (),
) -> str | None:
    """The id of the case to label next, None when all are done.

    done: those that this person has labelled. later: those that they skipped; these come again when nothing else is
    left. others: the same of other runs on the same records.
    """
    runs = list(others)

    def rank(record_id: str, one: Facts) -> tuple[bool, float, bytes]:
        want = 0.0
        if pick == "least-sure":
            want = -1.0 if one.doubt is None else one.doubt
        elif pick == "disagreements":
            outside = between(one, (run[record_id] for run in runs if record_id in run))
            want = max(-1.0 if one.apart is None else one.apart, -1.0 if outside is None else outside)
        return record_id in later, -want, one.dice

    waiting = ((record_id, one) for record_id, one in facts.items() if one.ok and record_id not in done)
    best = min(waiting, key=lambda item: rank(*item), default=None)
    return best[0] if best else None
