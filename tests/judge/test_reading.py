"""Score mode: answers from the probabilities of labels, by hand."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from localjudge.engines.base import Ask, AskFailed, Completion
from localjudge.errors import JudgeError
from localjudge.judge import pairwise, rubric
from localjudge.judge.loading import load_judge
from localjudge.judge.reading import confidence, plan_labels, tied
from localjudge.judge.spec import JudgeSpec
from localjudge.records import Record
from localjudge.verdict import Answer, Verdict

QUALITY = {"correctness": 0.4, "instruction_following": 0.3, "completeness": 0.2, "clarity": 0.1}
PAIR = Record("p", {"instruction": "Say hi.", "response_a": "Hi!", "response_b": "No."}, "here:1")


def any_label(labels: Sequence[str]) -> bool:
    return True


def letters_only(labels: Sequence[str]) -> bool:
    return all(len(label) == 1 and label.isalpha() for label in labels)


def reader(likely: Callable[[Ask], Mapping[str, float]], mass: float = 0.9) -> Any:
    """A `complete` that gives the labels these probabilities, and keeps what it was asked."""
    asked: list[Ask] = []

    async def complete(ask: Ask) -> Completion:
        assert not ask.schema
        asked.append(ask)
        return Completion("", 10, 0, 1, "labels", {"": dict(likely(ask))}, mass)

    complete.asked = asked  # type: ignore[attr-defined]
    return complete


def judged(kind: Any, spec: JudgeSpec, record: Record, complete: Any, fits: Any = any_label) -> Verdict:
    verdict: Verdict = asyncio.run(kind.judge(spec, record, complete, "m", plan_labels(spec, fits)))
    return verdict


def user(ask: Ask) -> str:
    return ask.messages[-1].text


def test_a_score_is_the_expectation_over_its_labels() -> None:
    spec = load_judge("answer-quality")
    record = Record("r", {"instruction": "Say hi.", "response": "Hi!"}, "here:1")
    likely = {"1": 0.1, "2": 0.1, "3": 0.1, "4": 0.3, "5": 0.4}
    complete = reader(lambda ask: likely, mass=0.7)
    verdict = judged(rubric, spec, record, complete)
    mean = 0.1 + 0.2 + 0.3 + 1.2 + 2.0
    answer = verdict.answers["clarity"]
    assert answer.value == 5
    assert answer.expected == pytest.approx(mean)
    assert answer.sd == pytest.approx(math.sqrt(sum(p * (int(k) - mean) ** 2 for k, p in likely.items())))
    assert answer.entropy == pytest.approx(-sum(p * math.log2(p) for p in likely.values()))
    assert answer.mass == 0.7
    assert verdict.overall == pytest.approx(mean)
    assert verdict.rationale is None
    assert len(complete.asked) == 4


def test_the_asks_of_a_record_differ_in_their_last_lines_only() -> None:
    spec = load_judge("answer-quality")
    complete = reader(lambda ask: dict.fromkeys("12345", 0.2))
    judged(rubric, spec, Record("r", {"instruction": "i", "response": "A" * 200}, ""), complete)
    systems = {ask.messages[0].text for ask in complete.asked}
    assert len(systems) == 1
    assert "JSON of its own" in systems.pop()
    texts = [user(ask) for ask in complete.asked]
    shared = texts[0].index("Now answer")
    assert {text[:shared] for text in texts} == {texts[0][:shared]}
    assert len(set(texts)) == 4
    assert "one line of JSON" not in "".join(texts)
    assert all(ask.labels == ("1", "2", "3", "4", "5") for ask in complete.asked)


def test_a_choice_is_its_likeliest_label() -> None:
    record = Record("r", {"question": "Is it?", "answer": "It is."}, "")
    verdict = judged(rubric, load_judge("truthfulness"), record, reader(lambda ask: {"yes": 0.4, "no": 0.6}))
    assert verdict.answers["truthful"].value == "no"
    assert verdict.answers["truthful"].distribution == {"yes": 0.4, "no": 0.6}
    assert (verdict.overall, verdict.passed) == (0.0, False)
    assert confidence(verdict.answers["truthful"]) == 0.6


def test_labels_that_are_not_one_token_are_shown_as_letters() -> None:
    spec = load_judge("truthfulness")
    assert plan_labels(spec, letters_only) == {"truthful": {"A": "yes", "B": "no"}}
    complete = reader(lambda ask: {"A": 0.8, "B": 0.2})
    record = Record("r", {"question": "Is it?", "answer": "It is."}, "")
    verdict = judged(rubric, spec, record, complete, letters_only)
    assert verdict.answers["truthful"].value == "yes"
    assert verdict.answers["truthful"].distribution == {"yes": 0.8, "no": 0.2}
    assert "A = yes: it claims nothing false" in user(complete.asked[0])


def test_a_model_whose_tokens_fit_nothing_is_refused() -> None:
    with pytest.raises(JudgeError, match="single tokens"):
        plan_labels(load_judge("truthfulness"), lambda labels: False)


def test_flags_are_read_code_by_code(tmp_path: Path) -> None:
    (tmp_path / "judge.yaml").write_text(
        "name: safe\ninputs: [response]\nquestions:\n"
        "  - {id: lines, type: flags, ask: Which apply, codes: {R1: insults, R2: threatens}}\n"
    )
    spec = load_judge(tmp_path)
    complete = reader(
        lambda ask: {"yes": 0.9, "no": 0.1} if "R2: threatens" in user(ask)[-120:] else {"yes": 0.2, "no": 0.8}
    )
    verdict = judged(rubric, spec, Record("r", {"response": "Or else."}, ""), complete)
    assert verdict.answers["lines"].value == ["R2"]
    assert verdict.answers["lines"].distribution == {"R1": 0.2, "R2": 0.9}
    assert (verdict.red_lines, verdict.passed, verdict.overall) == (["R2"], False, 0.0)


def first_place(p: float) -> Callable[[Ask], dict[str, float]]:
    """A judge with a leaning to what is shown first, and none for what it says."""
    return lambda ask: {"A": p, "B": 1 - p}


def test_a_mere_leaning_to_the_first_place_cancels_out() -> None:
    verdict = judged(pairwise, load_judge("pairwise"), PAIR, reader(first_place(0.9)))
    assert verdict.overall == pytest.approx(0.5)
    assert verdict.answers["preference"].value == "inconsistent"
    assert verdict.order_gap == pytest.approx(0.8)


def test_the_orders_log_odds_are_averaged() -> None:
    spec = load_judge("pairwise")

    def likely(ask: Ask) -> dict[str, float]:
        straight = user(ask).index("Hi!") < user(ask).index("No.")
        return {"A": 0.9, "B": 0.1} if straight else {"A": 0.4, "B": 0.6}

    verdict = judged(pairwise, spec, PAIR, reader(likely))
    odds = (math.log(0.9 / 0.1) + math.log(0.6 / 0.4)) / 2
    assert verdict.overall == pytest.approx(1 / (1 + math.exp(-odds)))
    assert verdict.answers["preference"].value == "A"
    assert verdict.order_gap == pytest.approx(0.3)
    assert verdict.orders is not None
    assert [order["preference"].value for order in verdict.orders] == ["A", "A"]
    assert verdict.orders[1]["preference"].distribution == {"B": 0.4, "A": 0.6}


def test_a_failed_read_fails_as_a_failed_ask_does() -> None:
    async def complete(ask: Ask) -> Completion:
        if user(ask).index("Hi!") > user(ask).index("No."):
            raise AskFailed("engine_error", "gone")
        return Completion("", 10, 0, 1, "labels", {"": {"A": 0.5, "B": 0.5}}, 1.0)

    with pytest.raises(AskFailed) as caught:
        judged(pairwise, load_judge("pairwise"), PAIR, complete)
    assert caught.value.status == "incomplete"


def test_one_failed_read_among_several_is_incomplete() -> None:
    asked: list[str] = []

    async def complete(ask: Ask) -> Completion:
        asked.append(user(ask))
        if len(asked) == 3:
            raise AskFailed("too_long", "no room")
        return Completion("", 10, 0, 1, "labels", {"": dict.fromkeys(ask.labels, 0.2)}, 1.0)

    with pytest.raises(AskFailed) as caught:
        judged(
            rubric, load_judge("answer-quality"), Record("r", {"instruction": "i", "response": "r"}, ""), complete
        )
    assert caught.value.status == "incomplete"
    assert "1 of 4" in caught.value.why
    assert len(asked) == 4


def test_a_tie_is_noticed() -> None:
    assert tied(Answer(value="yes", distribution={"yes": 0.5, "no": 0.5}))
    assert tied(Answer(value=["R1"], distribution={"R1": 0.9, "R2": 0.5}))
    assert not tied(Answer(value=1, distribution={"1": 0.4, "2": 0.3, "3": 0.3}))


def test_templates_of_one_s_own_get_the_question_at_their_end(tmp_path: Path) -> None:
    (tmp_path / "judge.yaml").write_text(
        "name: mine\ninputs: [response]\nquestions:\n"
        "  - {id: ok, type: choice, ask: Is it ok, options: [good, bad]}\n"
        "scoring: {values: {ok: {good: 1, bad: 0}}}\n"
    )
    (tmp_path / "user.j2").write_text("Look: {{ response }}")
    complete = reader(lambda ask: {"good": 0.7, "bad": 0.3})
    verdict = judged(rubric, load_judge(tmp_path), Record("r", {"response": "x"}, ""), complete)
    assert verdict.overall == 1.0
    assert user(complete.asked[0]).startswith("Look: <response ")
    assert user(complete.asked[0]).endswith("Answer with one of these and nothing else: good, bad")
