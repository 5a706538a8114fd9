"""The kinds of judge, with answers that are written here: what comes of them is checked by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from localjudge.engines.base import Ask, AskFailed, Completion
from localjudge.errors import EngineError
from localjudge.judge import pairwise, rubric
from localjudge.judge.loading import load_judge
from localjudge.judge.spec import JudgeSpec
from localjudge.records import Record
from localjudge.verdict import Verdict

KINDS = {"rubric": rubric.judge, "pairwise": pairwise.judge}


class Script:
    """Answers each ask with what `say` makes of it: a mapping, a text, or an exception. Keeps the asks."""

    def __init__(self, say: Callable[[Ask], Any]) -> None:
        self.say, self.asks, self.answered = say, list[Ask](), 0

    async def __call__(self, ask: Ask) -> Completion:
        self.asks.append(ask)
        await asyncio.sleep(0)
        said = self.say(ask)
        if isinstance(said, Exception):
            raise said
        self.answered += 1
        text = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
        distributions = {"preference": {"A": 0.9, "B": 0.1}, "good": {"4": 1.0}}
        return Completion(text, 10, 0, 5, "stop", distributions)


def verdict(spec: JudgeSpec, script: Script, **fields: Any) -> Verdict:
    return asyncio.run(KINDS[spec.kind](spec, Record("r1", fields, "here:1"), script, "a-model"))


def failure(spec: JudgeSpec, script: Script, **fields: Any) -> AskFailed:
    with pytest.raises(AskFailed) as caught:
        verdict(spec, script, **fields)
    return caught.value


# Rubrics

QUALITY = {"rationale": "Fine.", "correctness": 4, "instruction_following": 3, "completeness": 5, "clarity": 2}
ASKED = {"instruction": "Say hi.", "response": "Hi."}


def test_a_rubric_s_overall_is_the_weighted_mean_of_its_scores() -> None:
    spec = load_judge("answer-quality")
    script = Script(lambda ask: QUALITY)
    told = verdict(spec, script, **ASKED)
    assert told.overall == (3 * 4 + 3 * 3 + 2 * 5 + 1 * 2) / 9
    assert told.scores == {"correctness": 4, "instruction_following": 3, "completeness": 5, "clarity": 2}
    assert {name: answer.value for name, answer in told.answers.items()} == QUALITY
    assert (told.id, told.status, told.rationale, told.orders) == ("r1", "ok", "Fine.", None)
    assert (told.judge, told.model, told.red_lines) == ("answer-quality", "a-model", [])
    [ask] = script.asks
    assert ask.schema == spec.answer_schema
    assert [message.role for message in ask.messages] == ["system", "user"]
    assert "Hi." in ask.messages[1].text
    assert "<reference" not in ask.messages[1].text


@pytest.mark.parametrize(
    ("points", "overall", "passed"),
    [
        ((5, 5, 5, 5), 5, True),
        ((4, 3, 3, 4), 31 / 9, False),
        ((4, 3, 4, 3), 32 / 9, True),
        ((1, 1, 1, 1), 1, False),
    ],
)
def test_a_pass_mark_is_met_or_missed(points: tuple[int, ...], overall: float, passed: bool) -> None:
    spec = load_judge("answer-quality")
    said = {**QUALITY, **dict(zip(spec.counted, points, strict=True))}
    told = verdict(spec, Script(lambda ask: said), **ASKED)
    assert (told.overall, told.passed) == (overall, passed)


def test_a_mark_that_is_just_met_is_met_and_without_one_nothing_passes_or_fails() -> None:
    script = Script(lambda ask: {**QUALITY, "correctness": 5, "instruction_following": 3})
    settings = [f"scoring.weights.{name}=0" for name in ("completeness", "clarity")]
    assert verdict(load_judge("answer-quality", [*settings, "scoring.pass=4"]), script, **ASKED).passed is True
    assert verdict(load_judge("answer-quality", [*settings, "scoring.pass=4.01"]), script, **ASKED).passed is False
    assert verdict(load_judge("answer-quality", [*settings, "scoring.pass=null"]), script, **ASKED).passed is None


@pytest.mark.parametrize(("label", "overall", "passed"), [("yes", 1, True), ("no", 0, False)])
def test_a_choice_counts_for_what_its_label_is_worth(label: str, overall: float, passed: bool) -> None:
    said = {"rationale": "So it is.", "truthful": label}
    told = verdict(load_judge("truthfulness"), Script(lambda ask: said), question="q", answer="a")
    assert (told.overall, told.scores, told.passed) == (overall, {"truthful": overall}, passed)
    assert told.answers["truthful"].value == label


SAFE = """\
name: safe
inputs: [response]
questions:
  - {id: good, type: score, ask: Good, scale: [1, 5]}
  - {id: tone, type: choice, ask: Tone, options: {warm: , cold: }}
  - {id: lines, type: flags, ask: Lines, codes: {HARM: it harms, LIE: it lies}}
  - {id: notes, type: flags, ask: Notes, codes: {LONG: it is long}}
  - {id: why, type: text, ask: Why}
scoring:
  weights: {good: 2}
  values: {tone: {warm: 5, cold: 2}}
  decimals: 1
  veto: [lines]
"""
FINE = {
    "good": 4,
    "tone": "cold",
    "lines": {"HARM": False, "LIE": False},
    "notes": {"LONG": True},
    "why": "Because.",
}


@pytest.fixture
def safe(tmp_path: Path) -> Callable[..., JudgeSpec]:
    (tmp_path / "judge.yaml").write_text(SAFE)
    return lambda *settings: load_judge(tmp_path, settings)


def test_scores_and_choices_are_weighed_together_and_rounded_half_up(safe: Callable[..., JudgeSpec]) -> None:
    told = verdict(safe(), Script(lambda ask: FINE), response="r")
    assert told.overall == 3.3, "(2 x 4 + 1 x 2) / 3"
    assert told.scores == {"good": 4, "tone": 2}
    assert told.answers["notes"].value == ["LONG"]
    assert told.answers["good"].distribution == {"4": 1.0}
    assert (told.passed, told.red_lines, told.rationale) == (True, [], "Because.")
    half = verdict(
        safe("scoring.weights={}", "scoring.decimals=0"), Script(lambda ask: {**FINE, "good": 5}), response="r"
    )
    assert half.overall == 4, "(5 + 2) / 2 is 3.5"


@pytest.mark.parametrize("good", [1, 5])
def test_one_red_line_fails_whatever_the_overall(safe: Callable[..., JudgeSpec], good: int) -> None:
    said = {**FINE, "good": good, "tone": "warm", "lines": {"HARM": True, "LIE": True}}
    told = verdict(safe("scoring.pass=2"), Script(lambda ask: said), response="r")
    assert (told.passed, told.red_lines) == (False, ["HARM", "LIE"])
    assert told.overall == (5 if good == 5 else 2.3), "a veto does not touch the numbers"


def test_without_a_word_every_flag_is_a_red_line_and_an_empty_list_makes_none(
    safe: Callable[..., JudgeSpec],
) -> None:
    told = verdict(safe("scoring.veto=null"), Script(lambda ask: FINE), response="r")
    assert (told.passed, told.red_lines) == (False, ["LONG"])
    told = verdict(safe("scoring.veto=[]"), Script(lambda ask: FINE), response="r")
    assert (told.passed, told.red_lines) == (None, [])


def test_flags_alone_give_one_or_nothing(tmp_path: Path) -> None:
    (tmp_path / "judge.yaml").write_text(
        "name: lines\ninputs: [response]\nquestions:\n  - {id: lines, type: flags, ask: Any, codes: {HARM: harm}}\n"
    )
    spec = load_judge(tmp_path)
    for raised in (False, True):
        told = verdict(spec, Script(lambda ask, raised=raised: {"lines": {"HARM": raised}}), response="r")
        assert (told.overall, told.passed) == (float(not raised), not raised)
        assert (told.scores, told.rationale) == ({}, None)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("", "the answer is not valid: the answer is not JSON"),
        ('{"rationale": "cut of', "the answer is not valid: the answer is not JSON"),
        (
            {**QUALITY, "clarity": 6},
            "the answer is not valid: the answer to 'clarity' is 6, which is not on the scale",
        ),
        ({**QUALITY, "rationale": ""}, "the answer to 'rationale' is not a text"),
        ({"clarity": 5}, "does not have exactly the keys rationale, correctness"),
        ("[" * 10_000, "the answer is not JSON"),
        (json.dumps({**QUALITY, "rationale": "\ud800"}), "surrogates not allowed"),
    ],
)
def test_an_answer_that_is_not_valid_is_a_failure_and_never_a_score(said: Any, why: str) -> None:
    failed = failure(load_judge("answer-quality"), Script(lambda ask: said), **ASKED)
    assert failed.status == "engine_error"
    assert why in failed.why


@pytest.mark.parametrize("status", ["too_long", "engine_error"])
def test_an_ask_that_fails_keeps_its_own_status(status: Any) -> None:
    failed = failure(load_judge("answer-quality"), Script(lambda ask: AskFailed(status, "so it is")), **ASKED)
    assert (failed.status, failed.why) == (status, "so it is")


def test_an_engine_that_is_lost_is_not_a_record_s_failure() -> None:
    for name, fields in (
        ("answer-quality", ASKED),
        ("pairwise", {"instruction": "i", "response_a": "a", "response_b": "b"}),
    ):
        with pytest.raises(EngineError):
            verdict(load_judge(name), Script(lambda ask: EngineError("it is gone")), **fields)


def test_a_record_without_what_its_template_looks_for_is_invalid_and_the_next_is_judged(tmp_path: Path) -> None:
    (tmp_path / "judge.yaml").write_text(
        "name: titles\ninputs: [{name: report, type: json}]\nuser: '{{ report.title }}'\n"
        "questions:\n  - {id: good, type: score, ask: Good, scale: [1, 5]}\n"
    )
    spec, script = load_judge(tmp_path), Script(lambda ask: {"good": 4})
    failed = failure(spec, script, report={"name": "Tea"})
    assert failed.status == "invalid_record"
    assert failed.why == f"{tmp_path / 'judge.yaml'}:3: the template failed: 'report' has no 'title'"
    assert script.asks == []
    assert verdict(spec, script, report={"title": "Tea"}).overall == 4


# Pairs

PAIR = {"instruction": "Say hi.", "response_a": "Hi from FIRST.", "response_b": "Hi from SECOND."}


def shows_first(ask: Ask) -> bool:
    """Whether the record's own first response is in the first place."""
    text = ask.messages[-1].text
    return text.index("FIRST") < text.index("SECOND")


def orders(straight: Any, swapped: Any) -> Script:
    """Answers by the order in which the two are shown; a label is made a whole answer."""

    def say(ask: Ask) -> Any:
        said = straight if shows_first(ask) else swapped
        return {"rationale": f"I say {said}.", "preference": said} if isinstance(said, str) else said

    return Script(say)


@pytest.mark.parametrize(
    ("straight", "swapped", "preference", "overall"),
    [
        ("A", "B", "A", 1),
        ("B", "A", "B", 0),
        ("A", "A", "inconsistent", 0.5),
        ("B", "B", "inconsistent", 0.5),
        ("tie", "tie", "tie", 0.5),
        ("A", "tie", "inconsistent", 0.75),
        ("tie", "B", "inconsistent", 0.75),
        ("B", "tie", "inconsistent", 0.25),
        ("tie", "A", "inconsistent", 0.25),
    ],
)
def test_both_orders_make_one_preference(straight: str, swapped: str, preference: str, overall: float) -> None:
    script = orders(straight, swapped)
    told = verdict(load_judge("pairwise", ["tie=true"]), script, **PAIR)
    assert (told.answers["preference"].value, told.overall) == (preference, overall)
    assert told.scores == {"preference_a": overall}
    assert told.passed is None
    assert told.orders is not None
    back = {"A": "B", "B": "A", "tie": "tie"}[swapped]
    assert [order["preference"].value for order in told.orders] == [straight, back]
    assert [order["rationale"].value for order in told.orders] == [f"I say {straight}.", f"I say {swapped}."]
    assert told.orders[0]["preference"].distribution == {"A": 0.9, "B": 0.1}
    assert told.orders[1]["preference"].distribution == {"B": 0.9, "A": 0.1}
    assert told.rationale == (None if preference == "inconsistent" else f"I say {straight}.")


def test_the_second_ask_shows_the_two_the_other_way_round_and_the_rest_alike() -> None:
    script = orders("A", "B")
    verdict(load_judge("pairwise"), script, **PAIR)
    straight, swapped = script.asks
    assert shows_first(straight)
    assert not shows_first(swapped)
    assert straight.messages[0] == swapped.messages[0]
    places = str.maketrans({"\n": " "})
    first, second = (ask.messages[1].text.translate(places) for ask in script.asks)
    assert first.index("<response_a") < first.index("FIRST") < first.index("<response_b") < first.index("SECOND")
    assert (
        second.index("<response_a") < second.index("SECOND") < second.index("<response_b") < second.index("FIRST")
    )
    assert first.split("<response_a")[0] == second.split("<response_a")[0], "a prefix to be cached"


def test_every_pair_of_inputs_is_swapped(tmp_path: Path) -> None:
    (tmp_path / "judge.yaml").write_text(
        "name: two-pairs\nkind: pairwise\ninputs: [text_a, text_b, (note_a), (note_b), plain]\n"
        "questions:\n  - {id: preference, type: choice, ask: Which}\n"
    )
    script = Script(lambda ask: {"preference": "A"})
    fields = {"text_a": "T-A", "text_b": "T-B", "note_b": "N-B", "plain": "P"}
    verdict(load_judge(tmp_path), script, **fields)
    swapped = script.asks[1].messages[1].text
    assert [swapped.index(text) for text in ("T-B", "T-A", "N-B", "P")] == sorted(
        swapped.index(text) for text in ("T-B", "T-A", "N-B", "P")
    )
    assert "<note_a" in swapped
    assert "<note_b" not in swapped


def test_one_order_alone_is_taken_at_its_word() -> None:
    script = orders("B", "B")
    told = verdict(load_judge("pairwise", ["orders=single"]), script, **PAIR)
    assert (told.answers["preference"].value, told.overall, told.orders) == ("B", 0, None)
    assert told.answers["preference"].distribution == {"A": 0.9, "B": 0.1}
    assert told.rationale == "I say B."
    assert len(script.asks) == 1


@pytest.mark.parametrize("failing", ["straight", "swapped"])
@pytest.mark.parametrize(
    "what", [AskFailed("too_long", "8200 tokens"), AskFailed("engine_error", "oops"), {"preference": "A"}]
)
def test_one_failed_order_makes_the_pair_incomplete_and_the_other_is_still_asked(failing: str, what: Any) -> None:
    script = orders(what, "B") if failing == "straight" else orders("A", what)
    failed = failure(load_judge("pairwise"), script, **PAIR)
    assert failed.status == "incomplete"
    assert failed.why.startswith("1 of 2 asks failed: ")
    assert len(script.asks) == 2
    assert script.answered == (2 if isinstance(what, dict) else 1)


def test_when_both_orders_fail_the_first_says_why() -> None:
    script = orders(AskFailed("too_long", "first"), AskFailed("engine_error", "second"))
    failed = failure(load_judge("pairwise"), script, **PAIR)
    assert (failed.status, failed.why) == ("too_long", "first")
    script = orders({"preference": "A"}, {"rationale": "x", "preference": "C"})
    assert failure(load_judge("pairwise"), script, **PAIR).status == "engine_error"


def test_an_invalid_preference_is_told_by_its_name() -> None:
    failed = failure(load_judge("pairwise", ["orders=single"]), orders("C", "C"), **PAIR)
    assert failed.status == "engine_error"
    assert "the answer to 'preference' is \"C\", which is not one of A, B" in failed.why
