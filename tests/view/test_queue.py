"""What is labelled next: the same random order for all people, else where a label tells most."""

from __future__ import annotations

from typing import Any

import pytest

from localjudge.judge.spec import JudgeSpec
from localjudge.verdict import Answer, Verdict
from localjudge.view.queue import Facts, Pick, between, can_pick, facts_of, next_case

JUDGE = JudgeSpec.model_validate(
    {
        "name": "mixed",
        "inputs": ["text"],
        "questions": [
            {"id": "polite", "type": "score", "ask": "How polite", "scale": [1, 5]},
            {"id": "faults", "type": "flags", "ask": "Faults", "codes": {"LIE": "", "SPAM": ""}},
        ],
        "scoring": {"pass": 3},
    }
)


def verdict(
    record_id: str = "r", overall: float = 3.0, answers: dict[str, Answer] | None = None, **more: Any
) -> Verdict:
    told = answers or {"polite": Answer(value=3)}
    made = {"passed": overall >= 3, "judge": "mixed", "model": "m", **more}
    return Verdict(id=record_id, status="ok", overall=overall, answers=told, **made)


def facts(record_id: str = "r", **options: Any) -> Facts:
    return facts_of(JUDGE, verdict(record_id, **options))


def order_of(cases: dict[str, Facts], pick: Pick, **options: Any) -> list[str]:
    done: list[str] = []
    while (found := next_case(cases, pick, done=done, **options)) is not None:
        done.append(found)
    return done


def score(p: float, **more: Any) -> dict[str, Answer]:
    return {"polite": Answer(value=3, distribution={"3": p, "4": 1 - p}, **more)}


def test_the_random_order_is_one_for_all_and_stays_when_records_come() -> None:
    few = {f"r{i}": facts(f"r{i}") for i in range(20)}
    order = order_of(few, "random")
    assert sorted(order) == sorted(few)
    assert order != list(few)
    assert order_of(dict(reversed(few.items())), "random") == order
    more = order_of({f"r{i}": facts(f"r{i}") for i in range(40)}, "random")
    assert [record_id for record_id in more if record_id in few] == order


def test_what_was_skipped_comes_last_and_what_was_not_judged_never() -> None:
    cases = {f"r{i}": facts(f"r{i}") for i in range(5)}
    first = next_case(cases, "random")
    assert first is not None
    assert order_of(cases, "random", later={first})[-1] == first
    failed = Verdict(id="x", status="too_long", error="long", judge="mixed", model="m")
    assert next_case({"x": facts_of(JUDGE, failed)}, "random") is None
    assert next_case({}, "random") is None


def test_least_sure_first() -> None:
    cases = {
        "sure": facts(answers=score(0.99)),
        "torn": facts(answers=score(0.51)),
        "not read": facts(),
        "unsure": facts(answers=score(0.97), unsure=True),
        "flag": facts(answers={"faults": Answer(value=[], distribution={"LIE": 0.3, "SPAM": 0.01})}),
    }
    assert order_of(cases, "least-sure") == ["unsure", "torn", "flag", "sure", "not read"]


def test_pairs_whose_orders_disagree_are_the_least_sure() -> None:
    swayed = facts(answers={"preference": Answer(value="inconsistent")})
    gap = facts(answers={"preference": Answer(value="A")}, order_gap=0.7)
    assert (swayed.doubt, gap.doubt) == (1.0, 0.7)


def test_members_that_disagree_first() -> None:
    def panel(sd: float, lie: float) -> Facts:
        told = {
            "polite": Answer(value=3, distribution={"3": 1.0}, sd=sd, expected=3.0),
            "faults": Answer(value=[], distribution={"LIE": lie, "SPAM": 0.0}),
        }
        return facts(answers=told, members=[verdict(), verdict()])

    cases = {"one": panel(0, 0), "scores": panel(1.2, 0), "flags": panel(0.1, 0.5), "most": panel(2, 0.5)}
    assert {name: one.apart for name, one in cases.items()} == pytest.approx(
        {"one": 0.0, "scores": 0.6, "flags": 1.0, "most": 1.0}
    )
    assert order_of(cases, "disagreements")[2:] == ["scores", "one"]


def test_two_runs_that_disagree_first() -> None:
    mine = {name: facts(overall=3.0) for name in ("same", "near", "far", "alone")}
    theirs = {"same": facts(overall=3.0), "near": facts(overall=4.0), "far": facts(overall=2.9)}
    assert between(mine["near"], [theirs["near"]]) == 0.25
    assert between(mine["far"], [theirs["far"]]) == 1.0, "one passes, the other fails"
    assert between(mine["alone"], []) is None
    assert order_of(mine, "disagreements", others=[theirs]) == ["far", "near", "same", "alone"]


def test_only_what_means_something_is_offered() -> None:
    assert can_pick([facts()], others=False) == ["random"]
    assert can_pick([facts(answers=score(0.9))], others=True) == ["random", "least-sure", "disagreements"]
    assert can_pick([facts(members=[verdict()])], others=False) == ["random", "disagreements"]
