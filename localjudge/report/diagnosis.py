"""What a run of a dual-control judge says of the one who answered: right but not for its readers, pleasing
while wrong, or uneven between them; what the gate closed and the funnel saved; and which system prompt serves
which reader.

One pass over verdicts, in memory that does not grow with the run.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Literal

from pydantic import BaseModel, ConfigDict

from localjudge.judge.dual_control import fuse
from localjudge.judge.streams import DualControl
from localjudge.verdict import Dual, Usage, Verdict

SHOWN = 5
"""Records that a finding shows."""

PROMPTS = 100
"""System prompts that are told apart; what a further one made is counted as left out."""

Pattern = Literal["style", "danger", "unstable"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Shown(_Model):
    """A record that shows a finding. high, low: of an unstable one, the personas whom it serves best and least."""

    id: str
    technical: float
    persona: float
    high: str | None = None
    low: str | None = None
    spread: float | None = None


class Found(_Model):
    """count: of the records in which both streams were judged. records: the clearest few."""

    count: int
    records: list[Shown]


class Served(_Model):
    """How well one system prompt serves one persona. fused: the mean of what the technical score and this persona's
    come to."""

    prompt_id: str
    persona: str
    mean: float
    fused: float
    n: int


class Saved(_Model):
    """What the funnel spared. skipped: records whose personas were not asked. asks, prompt, written: what those
    would have taken, estimated from the mean of the records that were; None where none was."""

    skipped: int
    asks: int | None
    prompt: int | None
    written: int | None


class Diagnosis(_Model):
    """Over the ok verdicts of a run.

    n: with both streams judged. high, low, spread: the judge's marks.
    style: technical from `high`, persona below `low`. danger: persona from `high`, and the technical score below
    `low` or the gate closed. unstable: two personas of one record further apart than `spread`.
    gate: what closed it -> records; closed: records with a closed gate.
    prompts: prompt by persona; left_out: verdicts of more prompts than are told apart. saved: None without a
    funnel.
    """

    n: int
    high: float
    low: float
    spread: float
    style: Found
    danger: Found
    unstable: Found
    closed: int
    gate: dict[str, int]
    prompts: list[Served]
    left_out: int
    saved: Saved | None


class Diagnosing:
    """Takes verdicts one by one."""

    def __init__(self, section: DualControl) -> None:
        self._section = section
        self._n = self._closed = self._skipped = self._asked = self._left_out = 0
        self._gate: Counter[str] = Counter()
        self._counts: Counter[Pattern] = Counter()
        self._shown: dict[Pattern, list[tuple[float, Shown]]] = {"style": [], "danger": [], "unstable": []}
        self._prompts: dict[str, dict[str, list[float]]] = {}
        self._usage = Usage()

    def add(self, verdict: Verdict) -> None:
        """A verdict that is ok."""
        dual = verdict.dual
        if dual is None:
            return
        self._closed += bool(dual.gate)
        self._gate.update(dual.gate)
        if dual.persona is None:
            self._skipped += 1
            return
        self._n += 1
        self._asked += 1
        self._usage += dual.persona_usage
        for pattern, clearness, shown in patterns(self._section, verdict.id, dual):
            self._counts[pattern] += 1
            kept = self._shown[pattern]
            kept.append((clearness, shown))
            kept.sort(key=lambda pair: -pair[0])  # stable: the first of equals stays
            del kept[SHOWN:]
        self._count_prompt(dual)

    def _count_prompt(self, dual: Dual) -> None:
        if dual.prompt_id is None:
            return
        if dual.prompt_id not in self._prompts and len(self._prompts) >= PROMPTS:
            self._left_out += 1
            return
        of_prompt = self._prompts.setdefault(dual.prompt_id, {})
        for persona, score in dual.personas.items():
            sums = of_prompt.setdefault(persona, [0.0, 0.0, 0])
            sums[0] += score
            sums[1] += fused_for(self._section, dual, score)
            sums[2] += 1

    def result(self) -> Diagnosis:
        marks = self._section.marks
        found = {
            name: Found(count=self._counts[name], records=[shown for _, shown in kept])
            for name, kept in self._shown.items()
        }
        saved = None
        if self._section.funnel or self._skipped:
            asked = (self._usage.asks, self._usage.prompt, self._usage.written)
            some = [round(each / self._asked * self._skipped) if self._asked else None for each in asked]
            saved = Saved(skipped=self._skipped, asks=some[0], prompt=some[1], written=some[2])
        return Diagnosis(
            n=self._n,
            high=marks.high,
            low=marks.low,
            spread=marks.spread,
            style=found["style"],
            danger=found["danger"],
            unstable=found["unstable"],
            closed=self._closed,
            gate=dict(self._gate.most_common()),
            prompts=[
                Served(prompt_id=prompt, persona=persona, mean=total / n, fused=fused / n, n=int(n))
                for prompt, personas in sorted(self._prompts.items())
                for persona, (total, fused, n) in sorted(personas.items())
            ],
            left_out=self._left_out,
            saved=saved,
        )


def fused_for(section: DualControl, dual: Dual, score: float) -> float:
    """What a record's technical score and one persona's come to, by the judge's profile and gate."""
    return fuse(section, dual.technical, score, bool(dual.gate)).overall


def patterns(section: DualControl, record_id: str, dual: Dual) -> list[tuple[Pattern, float, Shown]]:
    """What a record shows, and how clearly. Nothing of one whose personas were not asked."""
    if dual.persona is None:
        return []
    marks, gap = section.marks, dual.technical - dual.persona
    shown = Shown(id=record_id, technical=dual.technical, persona=dual.persona)
    found: list[tuple[Pattern, float, Shown]] = []
    if not dual.gate and dual.technical >= marks.high and dual.persona < marks.low:
        found.append(("style", gap, shown))
    if dual.persona >= marks.high and (dual.gate or dual.technical < marks.low):
        found.append(("danger", -gap, shown))
    if len(dual.personas) > 1:
        high = max(dual.personas, key=lambda name: dual.personas[name])
        low = min(dual.personas, key=lambda name: dual.personas[name])
        spread = dual.personas[high] - dual.personas[low]
        if spread > marks.spread and not math.isclose(spread, marks.spread):
            update = {"high": high, "low": low, "spread": spread}
            found.append(("unstable", spread, shown.model_copy(update=update)))
    return found
