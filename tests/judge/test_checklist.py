"""The checklist kind: lists are written, merged and graded by, with answers that are written here."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localjudge.engines.base import AskFailed
from localjudge.errors import JudgeError, ModelError
from localjudge.images import example
from localjudge.judge import checklist
from localjudge.judge.checklist import brought, critical_failures, read_checklist, task_of
from localjudge.judge.embedding import check_embedding, embeddings
from localjudge.judge.items import (
    Checklist,
    Item,
    Kept,
    by_item,
    folded,
    form_of,
    grade_schema,
    read_credits,
    rubric_of,
    scoring,
    write_schema,
)
from localjudge.judge.loading import load_judge
from localjudge.judge.merging import Clusters, Offered, compared, cosines, lexical, merge
from localjudge.judge.reading import plan_labels
from localjudge.judge.spec import JudgeSpec
from localjudge.models import LocalModel
from localjudge.records import Record
from localjudge.verdict import Verdict
from tests.evaluator import Evaluator, Row, items_in, pairs_in, step_of

SPEC = load_judge("checklist")


def graded(evaluator: Evaluator, spec: JudgeSpec = SPEC, **fields: Any) -> Verdict:
    fields = {"task": "Do it.", "response": "Done.", **fields}
    return asyncio.run(checklist.judge(spec, Record("r1", fields, "here:1"), evaluator, "a-model"))


def failure(evaluator: Evaluator, spec: JudgeSpec = SPEC, **fields: Any) -> AskFailed:
    with pytest.raises(AskFailed) as caught:
        graded(evaluator, spec, **fields)
    return caught.value


def kept(evaluator: Evaluator, spec: JudgeSpec = SPEC, **fields: Any) -> Kept:
    fields = {"task": "Do it.", "response": "Done.", **fields}
    return asyncio.run(checklist.checklist_of(spec, Record("r1", fields, "here:1"), evaluator, None))


def credits_by(earned: dict[str, dict[str, float]]) -> Any:
    """What each response earns: the response -> a word of the criterion -> credit; 0 for what is not named."""

    def credit(criterion: str, response: str) -> float:
        return next((worth for word, worth in earned[response].items() if word in criterion), 0)

    return credit


# Worked cases


def test_the_count_that_names_the_planes_as_well_comes_out_above_the_bare_one() -> None:
    """Both say three, all that was asked; what tells them apart is additional."""
    essential: list[Row] = [("States how many planes are visible", "3", 3)]
    models = {"top": "F-22", "middle": "P-51", "bottom": "F-16"}
    additional: list[Row] = [(f"Names the type of the {place} plane", name, 1) for place, name in models.items()]
    bare, full = "Three.", "Three: an F-22 above a P-51 above an F-16."
    earned = {bare: {"how many": 1.0}, full: {"": 1.0}}
    evaluator = Evaluator((essential, additional), credit=credits_by(earned))
    a, b = (graded(evaluator, task="How many planes are visible?", response=text) for text in (bare, full))
    assert (a.overall, b.overall) == (3 / 6, 1.0)
    assert a.scores == {"essential": 1.0, "additional": 0.0}
    assert b.scores == {"essential": 1.0, "additional": 1.0}
    assert [(item.id, item.essential, item.reference, item.credit) for item in a.items or []] == [
        ("i1", True, "3", 1),
        ("i2", False, "F-22", 0),
        ("i3", False, "P-51", 0),
        ("i4", False, "F-16", 0),
    ]
    assert {name: answer.value for name, answer in a.answers.items()} == {"i1": 1, "i2": 0, "i3": 0, "i4": 0}


def test_an_answer_about_one_of_two_doors_fails_what_the_question_means_as_well() -> None:
    essential: list[Row] = [
        ("Says that the white gate is open", "open", 3),
        ("Says that the black door is closed", "closed", 3),
    ]
    additional: list[Row] = [("Says how the shed door at the left stands", "closed", 1)]
    one, both = "Yes, the gate is open.", "The gate is open, the black door is closed."
    earned = {one: {"gate": 1.0}, both: {"gate": 1.0, "black": 1.0}}
    evaluator = Evaluator((essential, additional), credit=credits_by(earned))
    spec = load_judge("checklist", ["scoring.pass=0.4"])
    a, b = (graded(evaluator, spec, task="Is the door open?", response=text) for text in (one, both))
    assert (a.overall, b.overall) == (3 / 7, 6 / 7)
    assert [item.criterion for item in critical_failures(a.items or [])] == ["Says that the black door is closed"]
    assert not critical_failures(b.items or [])
    # 3/7 is over the mark, and yet an essential item of weight 3 has nothing.
    assert (a.passed, b.passed) == (False, True)
    assert "i2 (0): Of Says that the black door is closed." in str(a.rationale)


def test_noticing_the_wrong_country_is_worth_more_than_half_of_a_list() -> None:
    essential: list[Row] = [("Names the most used app with its share", "Tinder, 48 %", 3)]
    additional: list[Row] = [
        ("Doubts that the figures are of Mexico", "a Spanish flag stands beside the title", 1),
        ("Lists the other apps with their shares", "Bumble 21 %, Badoo 17 %, others 14 %", 1),
    ]
    reads, doubts = "Tinder, 48 %, before Bumble.", "Tinder, 48 %, but that flag is Spain's."
    earned = {reads: {"most used": 1.0, "other apps": 0.5}, doubts: {"most used": 1.0, "Doubts": 1.0}}
    evaluator = Evaluator((essential, additional), credit=credits_by(earned))
    a, b = (graded(evaluator, task="Most popular app in Mexico?", response=text) for text in (reads, doubts))
    assert (a.overall, b.overall) == (3.5 / 5, 4 / 5)
    assert (a.scores["additional"], b.scores["additional"]) == (0.25, 0.5)


# Merging


def test_five_candidates_become_one_list() -> None:
    """A stray item, duplicates in other words, and wrong references: one candidate's, and one that all have."""
    count = ["States how many planes are visible", "Gives the number of aircraft", "Counts the planes"]
    top = ["Names the type of the top plane", "Tells what kind of plane flies on top"]
    candidates: list[tuple[list[Row], list[Row]]] = [
        ([(count[0], "3", 3)], [(top[0], "F-22", 1), ("Names the type of the lowest plane", "F-15", 1)]),
        ([(count[1], "three", 3)], [(top[1], "F-22", 2), ("Names the type of the lowest plane", "F-15", 1)]),
        ([(count[2], "4", 3)], [(top[0], "F-22", 1), ("Has an attractive style", "yes", 1)]),
        ([(count[0], "3", 2), ("Names the pilot", "unknown", 3)], [("Has an attractive style", "yes", 1)]),
        (
            [(count[1], "3", 3)],
            [("Names the type of the lowest plane", "F-15", 1), ("Has an attractive style", "", 2)],
        ),
    ]

    def same(a: str, b: str) -> bool:
        return any(a.startswith(tuple(words)) and b.startswith(tuple(words)) for words in (count, top))

    evaluator = Evaluator(
        *candidates,
        same=same,
        check={"Names the type of the lowest plane": ("repair", "F-16"), "Has an attractive style": "drop"},
    )
    spec = load_judge("checklist", ["checklist.candidates=5"])
    told = kept(evaluator, spec, task="How many planes are visible?")
    [only] = told.essential
    assert only.criterion in count
    assert (only.reference, only.weight) == ("3", 3)
    assert [(item.criterion in top, item.reference, item.weight) for item in told.additional] == [
        (True, "F-22", 1),
        (False, "F-16", 1),
    ]
    gone = {one.criterion: one.why for one in told.dropped}
    assert gone == {"Names the pilot": "in 1 of 5 candidates", "Has an attractive style": "the last check: drop it"}
    assert (told.candidates, told.contested, told.grounded) == (5, False, False)
    assert evaluator.steps == {"write": 5, "same": 1, "check": 1}
    [check] = [ask for ask in evaluator.asks if step_of(ask) == "check"]
    assert "another reference: 4" in check.messages[1].text
    # Only what similarity leaves open was asked: nothing of what one candidate lists side by side.
    [pairs] = [pairs_in(ask) for ask in evaluator.asks if step_of(ask) == "same"]
    assert not any("pilot" in a and count[0] in b for a, b in pairs.values())


def test_a_reference_answer_drops_and_repairs_what_it_does_not_fulfil() -> None:
    rows: list[Row] = [("States the boiling point", "100 °C", 3), ("Names the inventor", "Celsius", 3)]
    evaluator = Evaluator(
        (rows, []), verify={"States the boiling point": ("repair", "95 °C"), "Names the inventor": "drop"}
    )
    told = kept(evaluator, reference="At 95 °C.")
    assert [item.model_dump() for item in told.essential] == [
        {"criterion": "States the boiling point", "reference": "95 °C", "weight": 3}
    ]
    assert told.grounded
    assert evaluator.steps == {"write": 3, "verify": 3, "check": 1}
    assert all("At 95 °C." in ask.messages[1].text for ask in evaluator.asks)
    # Without it, or with a judge that is to look at none, nothing is verified, and nothing of it is shown.
    for spec, fields in (
        (SPEC, {}),
        (load_judge("checklist", ["checklist.mode=answer-free"]), {"reference": "At 95 °C."}),
    ):
        evaluator = Evaluator((rows, []))
        assert not kept(evaluator, spec, **fields).grounded
        assert evaluator.steps == {"write": 3, "check": 1}
        assert not any("At 95 °C." in ask.messages[1].text for ask in evaluator.asks)


def test_a_candidate_of_which_nothing_essential_is_left_has_no_vote() -> None:
    good: tuple[list[Row], list[Row]] = ([("Right", "1", 3)], [])
    bad: tuple[list[Row], list[Row]] = ([("Wrong", "2", 3)], [("Odd", "3", 1)])
    told = kept(Evaluator(good, bad, bad, verify={"Wrong": "drop"}), reference="1")
    assert [item.criterion for item in told.essential] == ["Right"]
    assert (told.candidates, told.additional) == (1, [])
    error = failure(Evaluator(bad, verify={"Wrong": "drop"}), reference="1")
    assert (error.status, error.why) == (
        "incomplete",
        "no checklist came about: of essential items the reference answer fulfils none of those written",
    )
    error = failure(Evaluator(good, check={"Right": "drop"}))
    assert error.why == "no checklist came about: every essential item was dropped, by the last check: drop it"


def test_candidates_that_share_nothing_essential_make_a_contested_list() -> None:
    lists: list[tuple[list[Row], list[Row]]] = [
        ([(word, "", 2)], [("Polite", "", 1)]) for word in ("Xylem", "Quartz", "Bark")
    ]
    evaluator = Evaluator(*lists)
    told = kept(evaluator)
    assert told.contested
    assert [item.criterion for item in told.essential] == ["Xylem", "Quartz", "Bark"]
    assert [item.criterion for item in told.additional] == ["Polite"]
    assert graded(Evaluator(*lists)).unsure


def offered(*items: tuple[int, bool, str, str, int]) -> list[Offered]:
    return [
        Offered(candidate, essential, Item(criterion=criterion, reference=reference, weight=weight))  # type: ignore[arg-type]
        for candidate, essential, criterion, reference, weight in items
    ]


def clusters_of(items: list[Offered], same: float = 0.85, different: float = 0.1) -> Clusters:
    return Clusters(items, lexical([compared(one.item) for one in items]), same, different)


def test_weights_are_medians_half_up_and_kinds_go_by_half_of_those_who_have_it() -> None:
    items = offered(
        (0, True, "A", "x", 1), (1, True, "a.", "x", 2), (2, False, "A", "y", 3), (3, False, "A", "x", 2)
    )
    merged = merge(clusters_of(items), 4, 10)
    assert merged.essential == [Item(criterion="A", reference="x", weight=2)]
    assert merged.references == {"A": ["y"]}
    merged = merge(clusters_of(items[:2]), 2, 10)
    assert merged.essential[0].weight == 2  # of 1 and 2
    assert merge(clusters_of(items[1:]), 3, 10).additional[0].criterion == "a."


def test_what_one_candidate_lists_side_by_side_stays_apart() -> None:
    items = offered(
        (0, True, "Names the left plane", "F-22", 1),
        (0, True, "Names the right plane", "F-22", 1),
        (1, True, "Names the left plane", "F-22", 1),
    )
    clusters = clusters_of(items, same=0.3, different=0.0)
    assert clusters.found == [[0, 2], [1]]
    assert clusters.borderline(10) == []


def test_what_was_ruled_apart_stays_apart_though_a_third_is_like_both() -> None:
    items = offered(
        (0, True, "open gate", "", 1), (1, True, "gate that is open", "", 1), (2, True, "gate open wide", "", 1)
    )
    clusters = clusters_of(items, same=1.0, different=0.0)
    pairs = clusters.borderline(10)
    assert sorted(pairs) == [(0, 1), (0, 2), (1, 2)]
    ruled = [(0, 1), (1, 2)]
    clusters.settle(pairs, [pair in ruled for pair in pairs])
    assert sorted(map(len, clusters.found)) == [1, 2]


@given(st.permutations(range(6)))
def test_a_majority_is_the_same_whatever_the_order_of_candidates(order: list[int]) -> None:
    words = ["alpha", "alpha", "alpha", "beta", "beta", "gamma"]
    items = offered(*((order[i], True, word, "", 1 + i % 3) for i, word in enumerate(words)))
    merged = merge(clusters_of(items), 5, 10)
    assert [(item.criterion, item.weight) for item in merged.essential] == [("alpha", 2)]
    assert {one.criterion for one in merged.dropped} == {"beta", "gamma"}


@pytest.mark.parametrize(
    ("a", "b", "c"),
    [
        ("States how many planes are visible", "States the number of planes that are visible", "Names the app"),
        ("指出图中飞机的数量", "说出图中有多少架飞机", "门是否关着"),
    ],
)
def test_likeness_is_in_the_words(a: str, b: str, c: str) -> None:
    told = lexical([a, b, c, a.upper() + " !"])
    assert told.shape == (4, 4)
    assert np.allclose(told, told.T)
    assert np.allclose(np.diag(told), 1)
    assert told[0, 1] > told[0, 2]
    assert told[0, 3] == pytest.approx(1)
    assert np.array_equal(told, lexical([a, b, c, a.upper() + " !"]))


@pytest.mark.parametrize(
    ("a", "b"), [("x < 3", "x > 3"), ("-5 °C", "5 °C"), ("C++", "C"), ("3.5", "35"), ("की", "का")]
)
def test_signs_that_mean_something_are_kept(a: str, b: str) -> None:
    assert folded(a) != folded(b)
    assert folded(f" “{a}”!  ") == folded(a.upper() + ".")


def test_nothing_is_like_nothing_but_itself() -> None:
    assert np.array_equal(lexical(["...", "!"]), np.eye(2))
    assert np.array_equal(cosines(np.array([[0.0, 0.0], [1.0, 0.0]])), np.eye(2))


def test_items_are_compared_by_a_local_model_where_one_is_named(random_model: LocalModel, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    texts = ["the gate is open", "门是关着的", "the gate is open"]
    told = embeddings(str(random_model.path), texts)
    assert told.shape[0] == 3
    assert np.allclose(told[0], told[2])
    assert not np.allclose(told[0], told[1])
    # However they are padded: alone, a text is what it is beside longer ones.
    assert np.allclose(embeddings(str(random_model.path), texts[1:2])[0], told[1], atol=1e-5)
    spec = load_judge("checklist", [f"checklist.embedding={random_model.path}"])
    assert [item.criterion for item in kept(Evaluator(([("Counts", "3", 3)], [])), spec).essential] == ["Counts"]
    with pytest.raises(ModelError, match="there is no embedding model in this folder"):
        check_embedding(str(tmp_path))


# Grading


def test_credits_are_bound_by_id_whatever_the_items_say() -> None:
    """Two items that read alike but for a word: an answer by position or by text could exchange them."""
    rows: list[Row] = [("The left one is red", "red", 3), ("The right one is red", "red", 1)]
    told = graded(Evaluator((rows, []), credit=lambda criterion, _: float("right" in criterion)))
    assert told.answers["i1"].value == 0
    assert told.answers["i2"].value == 1
    assert told.overall == 1 / 4
    schema = grade_schema(SPEC.checklist, 2)  # type: ignore[arg-type]
    assert schema["required"] == ["i1", "i2"]
    assert form_of(schema).startswith('{"i1":{"rationale":"<rationale>","credit":"none"|"half"|"full"},"i2":')


def test_nothing_but_the_checklist_is_shown_to_the_one_who_grades() -> None:
    evaluator = Evaluator(([("Counts", "3", 3)], []))
    graded(evaluator, reference="There are 3.", context="a photo")
    [ask] = [ask for ask in evaluator.asks if step_of(ask) == "grade"]
    assert items_in(ask) == {"i1": "Counts"}
    assert "reference: 3" in ask.messages[1].text
    assert "There are 3." not in ask.messages[1].text
    assert "weight" not in ask.messages[1].text
    # What two responses share comes first, so that its prefix is computed once.
    assert (
        ask.messages[1].text.index("a photo")
        < ask.messages[1].text.index("Counts")
        < ask.messages[1].text.index("Done.")
    )


def test_in_score_mode_credits_are_read_and_their_means_count() -> None:
    plan = plan_labels(SPEC, lambda labels: all(len(label) == 1 for label in labels))
    assert plan == {"credit": {"A": "none", "B": "half", "C": "full"}}
    evaluator = Evaluator(([("Counts", "3", 3)], [("Polite", "", 1)]))
    record = Record("r1", {"task": "Do it.", "response": "Done."}, "here:1")
    told = asyncio.run(checklist.judge(SPEC, record, evaluator, "a-model", plan))
    assert evaluator.steps == {"write": 3, "check": 1, "read": 2}
    assert told.overall == pytest.approx(0.2 * 0 + 0.2 * 0.5 + 0.6 * 1)
    assert told.answers["i1"].distribution == {"0": 0.2, "0.5": 0.2, "1": 0.6}
    assert (told.answers["i1"].value, told.answers["i1"].mass, told.rationale) == (1, 0.9, None)
    ends = [ask.messages[-1].text.rpartition("Now answer this question only.")[2] for ask in evaluator.asks[-2:]]
    assert ["i1: How much" in ends[0], "i2: How much" in ends[1]] == [True, True]
    assert len({ask.messages[-1].text.rpartition("Now answer")[0] for ask in evaluator.asks[-2:]}) == 1


def test_pictures_are_shown_at_every_step_and_make_another_task() -> None:
    evaluator = Evaluator(([("Counts", "3", 3)], []))
    one, two = example("one"), example("two")
    graded(evaluator, images=[one, two])
    assert all([picture for _, picture in ask.messages[1].images] == [one, two] for ask in evaluator.asks)
    tasks = [task_of(SPEC, {"task": "Do it.", "images": images}) for images in ([one], [two], [one, two], None)]
    assert len({task.key for task in tasks}) == 4
    assert tasks[2].images == [one.sha256, two.sha256]
    # Neither a response nor a reference is a part of the task.
    other = task_of(SPEC, {"task": "Do it.", "images": [one], "response": "x", "reference": "y"})
    assert (other.key, other.reference) == (tasks[0].key, "y")


def test_an_answer_out_of_form_is_an_engine_error() -> None:
    evaluator = Evaluator(([("Counts", "3", 3)], []))
    told = evaluator.say
    evaluator.say = lambda ask, number=None: {"i1": {}} if step_of(ask) == "grade" else told(ask)  # type: ignore[method-assign]
    error = failure(evaluator)
    assert (error.status, error.why) == ("engine_error", "the answer is not valid: it does not follow the schema")


# Checklists that come with records


RUBRIC = {
    "essential": [{"criterion": "States the number", "reference": 3, "weight": 3}],
    "additional": [{"criterion": "Names the types", "reference": "F-22", "weight": 1}],
}


@pytest.mark.parametrize("given", [RUBRIC, json.dumps(RUBRIC)])
def test_a_record_s_own_checklist_is_taken_instead(given: Any) -> None:
    evaluator = Evaluator(([("Never written", "", 1)], []))
    told = graded(evaluator, checklist=given)
    assert evaluator.steps == {"grade": 1}
    assert rubric_of(told.items or []) == {**RUBRIC, "essential": [{**RUBRIC["essential"][0], "reference": "3"}]}
    assert scoring(told.items or [])[0] == {
        "criterion": "States the number",
        "rationale": "Of States the number.",
        "credit": 1,
    }


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"essential": []}, "cannot be used: 'essential': list should have at least 1 item"),
        (
            {"essential": [{"criterion": "A", "weight": 4}]},
            "cannot be used: 'essential.1.weight': input should be 1, 2 or 3",
        ),
        (
            {"essential": [{"criterion": "A"}, {"criterion": "a!"}]},
            "'essential.2.criterion': the criterion 'a!' is listed twice",
        ),
        ({"essential": [{"criterion": " "}]}, "'essential.1.criterion': string should have at least 1 character"),
        ({"essentials": []}, "cannot be used: 'essential': field required"),
        ("{broken", "is not JSON"),
        ([1], 'is a list: write {"essential": [...], "additional": [...]}'),
        ("abcdef123456", "is 'abcdef123456', a key, and no checklists are kept here"),
    ],
)
def test_what_is_no_checklist_is_told(given: Any, why: str) -> None:
    error = failure(Evaluator(), checklist=given)
    assert error.status == "invalid_record"
    assert error.why.startswith("here:1: field 'checklist' ")
    assert why in error.why


def test_a_checklist_of_another_task_is_refused() -> None:
    task = task_of(SPEC, {"task": "How many planes are visible?"})
    own = brought(RUBRIC, task).model_copy(update={"locked": True})
    assert brought(own.model_dump(), task) == own
    error = failure(Evaluator(), checklist=own.model_dump())
    assert error.why == ("here:1: field 'checklist' is locked for another task ('How many planes are visible?')")


@pytest.mark.parametrize(
    "given",
    [
        {"i1": 1, "i2": 0.5, "i3": None},
        {"states the NUMBER.": "full", "Names the types": "half"},
        [
            {"criterion": "States the number", "credit": 1},
            {"criterion": "Names the types", "rationale": "", "credit": 0.5},
        ],
        json.dumps({"i1": 1, "i2": 0.5}),
    ],
)
def test_people_s_credits_come_in_several_forms(given: Any) -> None:
    criteria = {"i1": "States the number", "i2": "Names the types"}
    assert by_item(read_credits(given), criteria) == {"i1": 1.0, "i2": 0.5}


@pytest.mark.parametrize("given", [{"i1": 2}, {"i1": True}, {"i1": "good"}, 3, "no", [{"credit": 1}]])
def test_what_is_no_credit_is_told(given: Any) -> None:
    with pytest.raises(ValueError, match=r"are |give 'i1'"):
        read_credits(given)


def test_a_checklist_is_read_in_both_of_its_forms() -> None:
    plain = read_checklist(RUBRIC)
    assert type(plain) is Checklist
    assert plain.items["i2"] == (Item(criterion="Names the types", reference="F-22", weight=1), False)
    assert Checklist.model_validate(plain.rubric()) == plain


# The judge


@pytest.mark.parametrize(
    ("lines", "line", "why"),
    [
        ("inputs: [task, answer]", 4, "'response' is no input"),
        ("inputs: [task, (response)]", 4, "there is nothing to grade without it"),
        ("inputs: [response]", 4, "there is no input that says what the task is"),
        ("inputs: [task, response, checklist]", 4, "a record's 'checklist' is taken in place"),
        ("inputs: [task, response, items]", 4, "'items' means something else in a checklist's templates"),
        ("inputs: [task, response]\nrationale: 80", 5, "it takes no 'rationale'"),
        ("inputs: [task, response]\nscoring: {weights: {a: 1}}", 5, "of 'scoring' it takes no 'weights'"),
        ("inputs: [task, response]\nscoring: {pass: 3}", 5, "the overall lies between 0 and 1"),
        ("inputs: [task, response]\nchecklist: {temperature: 0}", 5, "all 3 candidates would be the same"),
        (
            "inputs: [task, response]\nchecklist: {same: 0.05}",
            5,
            "'same' is 0.05, which is not above 'different', 0.1",
        ),
        ("inputs: [task, (reference), response]\nchecklist: {mode: grounded}", 5, "needs 'reference' as an input"),
        ("inputs: [task, response]\nchecklist: {referense: x}", 5, "did you mean 'reference'?"),
        ("inputs: [task, response]\nchecklist: {reference: gold}", 5, "'gold' is no input"),
        (
            "inputs: [task, response]\nquestions: [{id: good, type: text, ask: Good}]",
            5,
            "asks one question, 'credit'",
        ),
    ],
)
def test_a_judge_that_does_not_hang_together_is_refused_with_its_line(
    tmp_path: Path, lines: str, line: int, why: str
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"name: mine\nversion: 1\nkind: checklist\n{lines}\n")
    with pytest.raises(JudgeError) as caught:
        load_judge(file)
    assert why in str(caught.value)
    assert f"{file}:{line}" in str(caught.value)


def test_a_rubric_has_no_checklist_section(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "name: mine\ninputs: [a]\nchecklist: {}\nquestions: [{id: q, type: score, ask: 'Ok?', scale: [1, 5]}]\n"
    )
    with pytest.raises(JudgeError, match="a section 'checklist' is of judges of that kind alone"):
        load_judge(file)


def test_templates_of_its_own_go_beside_the_judge(tmp_path: Path) -> None:
    (tmp_path / "judge.yaml").write_text("name: mine\nkind: checklist\ninputs: [task, response]\n")
    (tmp_path / "write.j2").write_text("Mine: {{ task }} {{ answer_form }}")
    spec = load_judge(tmp_path)
    evaluator = Evaluator(([("Counts", "3", 3)], []))
    told = graded(evaluator, spec)
    assert told.status == "ok"
    assert evaluator.asks[0].messages[1].text.startswith("Mine: <task")
    assert spec.writing_digest != load_judge("checklist").writing_digest
    (tmp_path / "wrote.j2").write_text("")
    with pytest.raises(JudgeError, match=r"a judge's templates are system\.j2, user\.j2, write\.j2"):
        load_judge(tmp_path)


def test_the_mark_and_the_report_make_no_other_lists() -> None:
    """What grades is no part of what writes: a pass mark changed later leaves the lists as they are."""
    assert load_judge("checklist", ["scoring.pass=0.5"]).writing_digest == SPEC.writing_digest
    assert load_judge("checklist", ["checklist.candidates=5"]).writing_digest != SPEC.writing_digest


def test_the_chinese_judge_asks_in_chinese() -> None:
    spec = load_judge("checklist", language="zh")
    evaluator = Evaluator(([("说出数量", "3", 3)], []), same=lambda a, b: True)
    told = graded(evaluator, spec, task="图中有几架飞机？", reference="3 架")
    assert told.overall == 1
    text = "".join(message.text for ask in evaluator.asks for message in ask.messages)
    assert "请编写一份清单" in text
    assert not any(word in text for word in (" the ", "Answer with", "checklist that"))
    assert spec.report is not None
    assert "必备项" in spec.report.text


def test_the_first_essential_item_is_always_there() -> None:
    schema = write_schema(SPEC.checklist)  # type: ignore[arg-type]
    assert schema["properties"]["essential"]["required"] == ["first", "others"]
    assert list(schema["properties"]) == ["plan", "essential", "additional"]
