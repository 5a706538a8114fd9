"""Somebody who writes, merges and grades checklists as a test says, step by step."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from localjudge.engines.base import Ask, Completion
from tests.scripted import ScriptedEngine

Row = tuple[str, str, int]
"""Criterion, reference, weight."""

LABELS = {0: "none", 0.5: "half", 1: "full"}


def step_of(ask: Ask) -> str:
    if ask.labels:
        return "read"
    first, inner = next(iter(ask.schema["properties"].items()))
    if first == "p1":
        return "same"
    if first != "i1":
        return "write"
    if "credit" in inner["properties"]:
        return "grade"
    return "verify" if "cannot do without" in ask.messages[-1].text else "check"


def items_in(ask: Ask) -> dict[str, str]:
    """The criteria that an ask lists, by id."""
    [fenced] = re.findall(
        r"<(?:items|checklist) (\w+)>\n(.*?)\n</(?:items|checklist) \1>", ask.messages[-1].text, re.S
    )
    return dict(re.findall(r"^(i\d+)\. (.*)$", fenced[1], re.M))


def pairs_in(ask: Ask) -> dict[str, tuple[str, str]]:
    found = re.findall(r"^(p\d+)\.\n  A\. (.*)\n  B\. (.*)$", ask.messages[-1].text, re.M)
    return {name: (a, b) for name, a, b in found}


def response_in(ask: Ask) -> str:
    [(_, text)] = re.findall(r"<response (\w+)>\n(.*?)\n</response \1>", ask.messages[-1].text, re.S)
    return str(text)


def _items(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [{"criterion": a, "reference": b or "-", "weight": c} for a, b, c in rows]


class Evaluator:
    """candidates: (essential, additional) of each, the last one again for those past it. same: whether two items,
    as a pair shows them, are one. verify, check: criterion -> ruling, or (ruling, reference); what is not named is
    kept. credit: (criterion, response) -> 0, 0.5 or 1."""

    def __init__(
        self,
        *candidates: tuple[Sequence[Row], Sequence[Row]],
        same: Callable[[str, str], bool] = lambda a, b: False,
        verify: Mapping[str, str | tuple[str, str]] | None = None,
        check: Mapping[str, str | tuple[str, str]] | None = None,
        credit: Callable[[str, str], float] = lambda criterion, response: 1,
    ) -> None:
        self.candidates, self.same, self.credit = candidates, same, credit
        self.rulings = {"verify": verify or {}, "check": check or {}}
        self.asks: list[Ask] = []

    @property
    def steps(self) -> Counter[str]:
        return Counter(step_of(ask) for ask in self.asks)

    def say(self, ask: Ask, number: int | None = None) -> Any:
        """number: of the candidate, where the ask's seed does not tell."""
        step = step_of(ask)
        if step == "write":
            place = ask.seed if number is None else number
            essential, additional = self.candidates[min(place, len(self.candidates) - 1)]
            first, *others = _items(essential)
            said = {"essential": {"first": first, "others": others}, "additional": _items(additional)}
            return {"plan": "Count.", **said} if "plan" in ask.schema["properties"] else said
        if step == "same":
            return {name: "same" if self.same(a, b) else "different" for name, (a, b) in pairs_in(ask).items()}
        if step == "grade":
            response = response_in(ask)
            return {
                name: {"rationale": f"Of {criterion}.", "credit": LABELS[self.credit(criterion, response)]}
                for name, criterion in items_in(ask).items()
            }
        ruled = {}
        for name, criterion in items_in(ask).items():
            told = self.rulings[step].get(criterion, "keep")
            ruling, reference = (told, "as it is") if isinstance(told, str) else told
            ruled[name] = {"why": f"{ruling} it", "ruling": ruling, "reference": reference}
        return ruled

    async def __call__(self, ask: Ask) -> Completion:
        self.asks.append(ask)
        await asyncio.sleep(0)
        if ask.labels:
            shares = dict(zip(ask.labels, (0.2, 0.2, 0.6), strict=True))
            return Completion("", 10, 0, 1, "labels", {"": shares}, mass=0.9)
        return Completion(json.dumps(self.say(ask)), 10, 0, 5, "stop")


class EvaluatorEngine(ScriptedEngine):
    """The same as an engine, which runs count by."""

    def __init__(self, evaluator: Evaluator, **options: Any) -> None:
        super().__init__(**options)
        self.evaluator = evaluator
        self._candidates: Counter[str] = Counter()

    @property
    def steps(self) -> Counter[str]:
        return self.evaluator.steps

    async def complete(self, ask: Ask) -> Completion:
        completion = await super().complete(ask)
        self.evaluator.asks.append(ask)
        if ask.labels:
            return completion
        text = ask.messages[-1].text
        number = self._candidates[text]
        self._candidates[text] += step_of(ask) == "write"
        return Completion(json.dumps(self.evaluator.say(ask, number)), 10, 0, 5, "stop")
