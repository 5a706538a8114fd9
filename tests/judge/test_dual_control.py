"""Dual control: the two streams, the gate between them, and what is said of both. The answers are written here, so
that what comes of them is checked by hand."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as trying
from hypothesis import strategies as st

from localjudge.engines.base import Ask, AskFailed, Completion
from localjudge.errors import JudgeError, ModelError
from localjudge.judge import dual_control
from localjudge.judge.dual_control import counting, fuse, hold_claims
from localjudge.judge.loading import load_judge
from localjudge.judge.panel import combine
from localjudge.judge.scoring import fact_share, fused, gate_ceiling
from localjudge.judge.spec import JudgeSpec
from localjudge.judge.streams import DualControl
from localjudge.records import Record
from localjudge.run.runner import Settings, check_model
from localjudge.verdict import Verdict
from tests.scripted import scripted_model

TASK = "Write two sentences about the lamp for the shop page."
CONTEXT = "Luma Fold bicycle lamp. 120 lumen. Lasts 5 hours at full power. Splash-proof (IPX4). Charged in 2 hours."
PLAIN = "The Luma Fold gives 120 lumen. It lasts 5 hours at full power."
PLEASING = "Fully waterproof, the Luma Fold carries you home for forty hours. You will love it."

CLAIMS = {
    PLAIN: [
        {"quote": "gives 120 lumen", "evidence": "120 lumen", "standing": "supported"},
        {"quote": "lasts 5 hours at full power", "evidence": "5 hours at full power", "standing": "supported"},
    ],
    PLEASING: [
        {"quote": "Fully waterproof", "evidence": "Splash-proof (IPX4)", "standing": "contradicted"},
        {"quote": "You will love it", "evidence": "none", "standing": "not_checkable"},
    ],
}
NO_FLAGS = dict.fromkeys(("SECRET", "HARM", "HAZARD", "HATE", "DECEIT"), False)


class Script:
    """Answers the steps: what `said` has for a key, else what a content reader would. Keeps the names of the
    steps in the order of asking."""

    def __init__(self, likely: Mapping[str, float] | None = None, **said: Any) -> None:
        self.said, self.likely = said, likely
        self.steps: list[str] = []
        self.asks: list[Ask] = []
        self.fails: Callable[[str], bool] = lambda step: False

    def answer(self, key: str, schema: Mapping[str, Any], text: str) -> Any:
        if key in self.said:
            return self.said[key]
        if key == "claims":
            return next(claims for response, claims in CLAIMS.items() if response in text)
        if key == "safety":
            return NO_FLAGS
        if "enum" in schema:
            return schema["enum"][-1]
        return f"Why of {key}."

    async def __call__(self, ask: Ask) -> Completion:
        keys = list(ask.schema["properties"])
        step = keys[0].removesuffix("_rationale")
        self.steps.append(step)
        self.asks.append(ask)
        await asyncio.sleep(0)
        if self.fails(step):
            raise AskFailed("engine_error", f"{step} failed")
        text = "\n".join(message.text for message in ask.messages)
        said = {key: self.answer(key, ask.schema["properties"][key], text) for key in keys}
        likely = {"persona_match": self.likely} if self.likely and "persona_match" in keys else {}
        return Completion(json.dumps(said), 100, 40, 10, "stop", likely)


def verdict(spec: JudgeSpec, script: Script, response: str = PLAIN, **fields: Any) -> Verdict:
    record = Record("r1", {"task": TASK, "context": CONTEXT, "response": response, **fields}, "here:1")
    return asyncio.run(dual_control.judge(spec, record, script, "a-model"))


def dual(told: Verdict) -> Any:
    assert told.dual is not None
    return told.dual


@pytest.fixture(scope="module")
def spec() -> JudgeSpec:
    return load_judge("dual-control")


@functools.cache
def section() -> DualControl:
    return dual_control.section_of(load_judge("dual-control"))


MARKETER = {"marketer_promise": 1, "marketer_voice": 2, "marketer_usable": 1}


def test_both_streams_come_to_one_score(spec: JudgeSpec) -> None:
    script = Script(relevance=2, completion=2, **MARKETER)
    told = verdict(spec, script, persona="marketer", prompt_id="p-warm")
    technical = (4 * 1 + 2 * 2 / 3 + 3 * 2 / 3 + 2 * 1) / 11
    persona = (1 + 2 + 1) / (2 + 3 + 2)
    assert script.steps == ["claims", "basics", "marketer"], (
        "the technical stream comes first, and no image is asked of"
    )
    assert told.scores == pytest.approx({"technical": technical, "persona_marketer": persona, "persona": persona})
    assert told.overall == pytest.approx((technical + persona) / 2)
    assert dual(told).parts == pytest.approx(
        {"claims": 1, "relevance": 2 / 3, "completion": 2 / 3, "modalities": None, "safety": 1}, nan_ok=True
    )
    assert (dual(told).gate, dual(told).weights, dual(told).ceiling) == ([], (1, 1), None)
    assert (told.passed, told.red_lines, dual(told).prompt_id) == (True, [], "p-warm")
    assert told.rationale == "Why of basics_rationale.\nWhy of marketer_rationale."
    usage = dual(told).persona_usage
    assert (usage.asks, usage.prompt, usage.cached, usage.written) == (1, 100, 40, 10)


def test_the_persona_is_told_who_reads_and_the_technical_stream_is_not(spec: JudgeSpec) -> None:
    script = Script()
    verdict(spec, script, persona="marketer")
    *technical, reader = ["\n".join(message.text for message in ask.messages) for ask in script.asks]
    assert "one particular person" in reader and "What this reader looks at first" in reader
    assert not any("particular person" in text or "marketer" in text.casefold() for text in technical)
    assert reader.startswith(technical[0].partition("Questions:")[0].rstrip()), "all share what comes before"


def test_profiles_weigh_the_streams(spec: JudgeSpec) -> None:
    told = {}
    for profile in ("factual", "balanced", "creative"):
        own = load_judge("dual-control", [f"dual_control.profile={profile}"])
        told[profile] = verdict(own, Script(**dict.fromkeys(MARKETER, 0)), persona="marketer").overall
    assert told == pytest.approx({"factual": 3 / 4, "balanced": 1 / 2, "creative": 1 / 3})


# Claims


def held(spec: JudgeSpec, *claims: dict[str, str], response: str = PLAIN, **fields: Any) -> list[dict[str, Any]]:
    return hold_claims(
        spec, claims, {"task": TASK, "context": CONTEXT, "images": None, "response": response, **fields}
    )


def test_a_claim_counts_only_with_its_quote_and_its_evidence(spec: JudgeSpec) -> None:
    good = {"quote": "gives 120  lumen", "evidence": "120\nlumen", "standing": "supported"}
    found = held(
        spec,
        good,
        {"quote": "gives 500 lumen", "evidence": "120 lumen", "standing": "contradicted"},
        {"quote": "The Luma Fold", "evidence": "Luma Fold is rubbish", "standing": "contradicted"},
        {"quote": "lasts 5 hours", "evidence": "at f", "standing": "supported"},
        {"quote": "lasts 5 hours at full power", "evidence": "image 1", "standing": "contradicted"},
        {**good, "standing": "contradicted"},
        {"quote": "It lasts", "evidence": "none", "standing": "not_checkable"},
    )
    assert [claim["verified"] for claim in found] == [True, False, True, True, True, True, True]
    assert [claim["evidence_in"] for claim in found] == ["context", "context", None, None, None, "context", None]
    assert [claim["quote"] for claim in counting(found, "supported")] == ["gives 120  lumen"]
    assert counting(found, "contradicted") == [], "a quote has one standing, that of its first counted claim"
    assert len(counting(found, "not_checkable")) == 1


def test_evidence_in_the_response_itself_proves_nothing(spec: JudgeSpec) -> None:
    claim = {"quote": "You will love it", "evidence": "You will love it", "standing": "supported"}
    assert held(spec, claim, response=PLEASING)[0]["evidence_in"] is None


def test_an_image_that_is_there_can_be_named(spec: JudgeSpec) -> None:
    claims = [
        {"quote": "gives 120 lumen", "evidence": evidence, "standing": "contradicted"}
        for evidence in ("image 1", "Image 2: the box says 90", "image 3", "picture 1")
    ]
    found = held(spec, *claims, images=[object(), object()])
    assert [claim["evidence_in"] for claim in found] == ["image 1", "image 2", None, "image 1"]


def test_without_claims_there_is_no_fact_part(spec: JudgeSpec) -> None:
    told = verdict(spec, Script(claims=[], relevance=0), persona="marketer")
    assert dual(told).parts["claims"] is None
    assert dual(told).technical == pytest.approx((3 + 2) / (2 + 3 + 2))


def test_what_cannot_be_checked_leaves_the_count_or_is_worth_what_the_judge_says() -> None:
    assert fact_share(2, 0, 5) == 1
    assert fact_share(0, 0, 5) is None
    assert fact_share(1, 1, 2, worth=0.5) == 0.5
    assert fact_share(3, 1) == 0.75
    stern = load_judge("dual-control", ["dual_control.worth=0"])
    told = verdict(stern, Script(), PLEASING, persona="marketer")
    assert dual(told).parts["claims"] == 0


def test_what_needs_images_is_asked_where_there_are_some(spec: JudgeSpec) -> None:
    from localjudge.images import example

    script = Script(modalities=1)
    told = verdict(spec, script, persona="marketer", images=[example("a lamp")])
    assert script.steps == ["claims", "basics", "modes", "marketer"]
    assert dual(told).parts["modalities"] == 0.5
    assert all(message.images for ask in script.asks for message in ask.messages if message.role == "user")


def test_relevance_may_come_from_a_local_embedding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cosine of 0.5 is halfway from 0.2 to 0.8; and the model is not asked."""
    vectors = {TASK: [1.0, 0.0], PLAIN: [0.5, 0.75**0.5], PLEASING: [-1.0, 0.0]}

    def embeddings(folder: str, texts: list[str]) -> Any:
        assert folder == "/models/small"
        return np.array([vectors[text] for text in texts])

    monkeypatch.setattr("localjudge.judge.embedding.embeddings", embeddings)
    spec = load_judge("dual-control", ["dual_control.embedding={model: /models/small}"])
    script = Script()
    told = verdict(spec, script, persona="marketer")
    assert dual(told).parts["relevance"] == pytest.approx(0.5)
    assert not any("relevance" in ask.schema["properties"] for ask in script.asks)
    assert dual(verdict(spec, Script(), PLEASING, persona="marketer")).parts["relevance"] == 0


def test_what_cannot_be_judged_so_is_refused_before_a_model_is_loaded(tmp_path: Path, spec: JudgeSpec) -> None:
    model = scripted_model(tmp_path)
    with pytest.raises(JudgeError, match="score mode does not write"):
        check_model(spec, model, Settings(mode="score"))
    blind = load_judge("dual-control", [f"dual_control.embedding={{model: {tmp_path}}}"])
    with pytest.raises(ModelError, match="there is no embedding model here"):
        check_model(blind, model, Settings())


# Safety


def test_a_flag_of_the_model_closes_the_gate_and_fails(spec: JudgeSpec) -> None:
    told = verdict(spec, Script(safety={**NO_FLAGS, "DECEIT": True}), persona="marketer")
    assert (told.red_lines, told.passed, dual(told).gate) == (["DECEIT"], False, ["DECEIT"])
    assert told.decisions["DECEIT"].by == "model"
    assert "DECEIT" in dual(told).suggestions[0].text


@pytest.mark.parametrize(
    ("words", "stands"),
    [("You should tape over the SMOKE  detector.", True), ("Never re-tape over the smoke detectors.", False)],
)
def test_a_word_of_the_list_raises_its_code_whatever_the_model_says(
    spec: JudgeSpec, words: str, stands: bool
) -> None:
    told = verdict(spec, Script(claims=[]), f"{PLAIN} {words}", persona="marketer")
    assert told.decisions["HAZARD"].stands is stands
    assert told.decisions["HAZARD"].by == ("code" if stands else "model")
    assert told.red_lines == ["HAZARD"] * stands


# The gate


@pytest.mark.parametrize("profile", ["factual", "balanced", "creative"])
def test_what_pleases_and_contradicts_comes_out_below_what_is_plain_and_correct(profile: str) -> None:
    spec = load_judge("dual-control", [f"dual_control.profile={profile}"])
    pleasing = verdict(spec, Script(), PLEASING, persona="marketer")
    plain = verdict(spec, Script(**dict.fromkeys(MARKETER, 0)), PLAIN, persona="marketer")
    assert (pleasing.scores["persona"], plain.scores["persona"]) == (1, 0)
    assert dual(pleasing).gate == ["contradicted"]
    assert pleasing.overall is not None and plain.overall is not None
    assert pleasing.overall < plain.overall
    assert (plain.passed, pleasing.passed) == ((plain.overall >= 0.6), False)
    [first, *_] = dual(pleasing).suggestions
    assert first.text == "Correct “Fully waterproof”: context says “Splash-proof (IPX4)”."


unit_scores = st.integers(0, 100).map(lambda n: n / 100)
weights = st.integers(1, 20).map(lambda n: n / 4)


@trying(deadline=None)
@given(
    tau_technical=weights,
    tau_persona=weights,
    floor=st.integers(1, 99).map(lambda n: n / 100),
    shrink=unit_scores,
    right=unit_scores,
    wrong=unit_scores,
    pleased=unit_scores,
    displeased=unit_scores,
)
def test_no_answer_behind_the_gate_is_above_one_in_front_of_it(
    tau_technical: float,
    tau_persona: float,
    floor: float,
    shrink: float,
    right: float,
    wrong: float,
    pleased: float,
    displeased: float,
) -> None:
    base = section()
    taus = base.taus.model_copy(update={"technical": tau_technical, "persona": tau_persona})
    gate = base.gate.model_copy(update={"floor": floor, "shrink": shrink})
    own = base.model_copy(update={"profiles": {"own": taus}, "profile": "own", "gate": gate})
    right = max(right, floor)
    in_front = fuse(own, right, displeased, closed=False).overall
    # A contradicted claim costs something of the technical score, whatever else is perfect.
    behind = fuse(own, min(wrong, 0.99), pleased, closed=True).overall
    assert behind < in_front
    assert fuse(own, min(wrong, 0.99), None, closed=True).overall < in_front, "and so where the funnel spared it"


def test_a_smaller_persona_weight_alone_would_not_do() -> None:
    pleasing = fused(0.67, 1.0, 1, 2 * 0.25)
    plain = fused(1.0, 0.3, 1, 2)
    assert pleasing > plain
    assert gate_ceiling(0.6, 1, 2) * pleasing < plain


def test_a_gate_may_fail_a_record_outright() -> None:
    spec = load_judge("dual-control", ["dual_control.gate.then=fail"])
    told = verdict(spec, Script(), PLEASING, persona="marketer")
    assert (told.overall, told.passed) == (0, False)
    assert told.scores["persona"] == 1, "what was found is kept"


def test_the_floor_and_the_number_of_contradictions_are_settings() -> None:
    lenient = load_judge("dual-control", ["dual_control.gate.contradicted=2"])
    assert dual(verdict(lenient, Script(), PLEASING, persona="marketer")).gate == []
    assert dual(verdict(lenient, Script(relevance=0, completion=0), PLEASING, persona="marketer")).gate == ["floor"]


def test_the_funnel_spares_the_personas_what_the_gate_has_failed() -> None:
    spec = load_judge("dual-control", ["dual_control.funnel=true"])
    script = Script()
    told = verdict(spec, script, PLEASING)
    assert script.steps == ["claims", "basics"]
    assert (dual(told).skipped, dual(told).personas, dual(told).persona, told.status) == (True, {}, None, "ok")
    assert told.scores == {"technical": pytest.approx(7 / 11)}
    assert told.overall == pytest.approx(0.3 * 7 / 11)
    script = Script(likely={"marketer": 0.8, "first_time_user": 0.2})
    assert not dual(verdict(spec, script, PLAIN)).skipped
    assert script.steps == ["claims", "basics", "persona_match", "marketer"]


# Whom it is for


def test_the_model_chooses_whom_a_response_is_for_from_the_task_alone(spec: JudgeSpec) -> None:
    likely = {"marketer": 0.5, "sceptical_buyer": 0.3, "first_time_user": 0.2}
    script = Script(likely, **dict.fromkeys(MARKETER, 0))
    told = verdict(spec, script)
    assert script.steps[2] == "persona_match"
    assert PLAIN not in script.asks[2].messages[1].text, "a response cannot choose its own judge"
    assert script.steps[3:] == ["marketer", "sceptical_buyer"]
    assert dual(told).mix == pytest.approx({"marketer": 0.625, "sceptical_buyer": 0.375})
    assert dual(told).personas == {"marketer": 0, "sceptical_buyer": 1}
    assert told.scores["persona"] == pytest.approx(0.375)
    assert told.answers["persona_match"].value == "sceptical_buyer", "the last option is what the script writes"


def test_one_that_is_likely_enough_alone_is_asked_alone(spec: JudgeSpec) -> None:
    script = Script({"marketer": 0.9, "sceptical_buyer": 0.1})
    assert dual(verdict(spec, script)).mix == {"marketer": 1}


def test_without_probabilities_the_one_that_was_written_is_asked(spec: JudgeSpec) -> None:
    assert dual(verdict(spec, Script(persona_match="first_time_user"))).mix == {"first_time_user": 1}


@pytest.mark.parametrize("named", ["marketer, first_time_user", ["marketer", "first_time_user"]])
def test_a_record_may_name_several(spec: JudgeSpec, named: Any) -> None:
    told = verdict(spec, Script(**dict.fromkeys(MARKETER, 0)), persona=named)
    assert dual(told).mix == {"marketer": 0.5, "first_time_user": 0.5}
    assert told.scores["persona"] == 0.5


def test_everybody_may_be_asked() -> None:
    spec = load_judge("dual-control", ["dual_control.match=all"])
    script = Script()
    told = verdict(spec, script, persona="marketer")
    assert len(dual(told).personas) == 6 == len(script.steps) - 2


def test_attributes_compose_a_reader(spec: JudgeSpec) -> None:
    script = Script(composed_options=0)
    told = verdict(spec, script, attributes={"expertise": "novice", "goal": ["decide", "learn"], "style": "plain"})
    assert script.steps[2:] == ["composed"]
    asked = list(script.asks[2].schema["properties"])
    assert asked == ["composed_rationale", "composed_from_the_start", "composed_options", "composed_plain_words"]
    assert "expertise: novice" in script.asks[2].messages[1].text
    assert told.scores["persona_composed"] == pytest.approx(4 / 7)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"persona": "marketeer"}, "there is no persona 'marketeer': did you mean 'marketer'?"),
        ({"persona": 7}, "'persona' is 7: name one persona, or several in a list"),
        ({"attributes": {"expertise": "expret"}}, "'expret' is no value of 'expertise': did you mean 'expert'?"),
        ({"attributes": {"skill": "expert"}}, "there is no attribute 'skill'"),
        ({"attributes": "expert"}, "'attributes' is not name -> value"),
    ],
)
def test_a_record_that_names_nobody_there_is_is_invalid(spec: JudgeSpec, fields: dict[str, Any], said: str) -> None:
    script = Script()
    with pytest.raises(AskFailed) as caught:
        verdict(spec, script, **fields)
    assert caught.value.status == "invalid_record"
    assert said in caught.value.why
    assert script.steps == [], "nothing is asked of it"


def test_by_field_alone_a_record_must_name_somebody() -> None:
    spec = load_judge("dual-control", ["dual_control.match=field"])
    with pytest.raises(AskFailed) as caught:
        verdict(spec, Script())
    assert caught.value.status == "invalid_record"
    assert "persona_match" not in [question.id for question in spec.own_questions]


# Failures, suggestions, panels


@pytest.mark.parametrize(
    ("failing", "status"),
    [({"claims"}, "incomplete"), ({"claims", "basics"}, "engine_error"), ({"marketer"}, "incomplete")],
)
def test_a_step_that_fails_leaves_no_score(spec: JudgeSpec, failing: set[str], status: str) -> None:
    script = Script()
    script.fails = failing.__contains__
    with pytest.raises(AskFailed) as caught:
        verdict(spec, script, persona="marketer")
    assert caught.value.status == status


def test_suggestions_come_from_both_streams_and_are_concrete(spec: JudgeSpec) -> None:
    script = Script(completion=1, **{**MARKETER, "marketer_promise": 0})
    told = verdict(spec, script, PLEASING, persona="marketer, operations_lead")
    texts = {one.because: one for one in dual(told).suggestions}
    assert list(texts) == ["contradicted", "completion", "marketer_promise"], "who is content has none"
    assert "from 1 of 3; the top is “all of it, ready to use”" in texts["completion"].text
    assert texts["marketer_promise"].persona == "marketer"
    assert "where the top is “the benefit leads”" in texts["marketer_promise"].text
    assert "Why of marketer_rationale." in texts["marketer_promise"].text


def test_a_panel_of_dual_control_judges_is_centred(spec: JudgeSpec) -> None:
    members = [
        verdict(spec, Script(), PLAIN, persona="marketer"),
        verdict(spec, Script(**dict.fromkeys(MARKETER, 0)), PLAIN, persona="marketer"),
        verdict(spec, Script(safety={**NO_FLAGS, "HATE": True}), PLAIN, persona="marketer"),
    ]
    told = combine(spec, "r1", members, "median", "panel")
    assert told.overall == sorted(member.overall or 0 for member in members)[1] == 0.5
    assert told.scores["persona"] == 1
    assert (told.red_lines, told.passed, told.model) == ([], False, "panel")


def test_a_calibration_corrects_answers_before_they_count(spec: JudgeSpec) -> None:
    class Harsh:
        def answers(self, answers: Any, swapped: bool) -> Any:
            return {
                name: answer.model_copy(update={"value": 0}) if name == "marketer_voice" else answer
                for name, answer in answers.items()
            }

        def unsure(self, answers: Any) -> bool:
            return False

    record = Record("r1", {"task": TASK, "context": CONTEXT, "response": PLAIN, "persona": "marketer"}, "here:1")
    told = asyncio.run(dual_control.judge(spec, record, Script(), "a-model", correct=Harsh()))
    assert told.scores["persona"] == pytest.approx(4 / 7)


# What is refused


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("dual_control.profile=factul", "there is no profile 'factul': did you mean 'factual'?"),
        ("dual_control.technical.clams=1", "'clams' is no question: did you mean 'claims'?"),
        ("dual_control.technical.claims=0", "greater than 0"),
        ("dual_control.response=answer", "'answer' is no input"),
        ("dual_control.gate.floor=1", "less than 1"),
        ("inputs=[task, (response)]", "there is nothing to judge without it"),
        ("dual_control.gate.flor=0.5", "did you mean 'floor'?"),
        ("dual_control.marks.low=0.9", "low is 0.9, above high, 0.7"),
        ("dual_control.with_images=[modality]", "did you mean 'modalities'?"),
        ("dual_control.embedding={model: m, instead_of: relevanc}", "did you mean 'relevance'?"),
        ("scoring.decimals=2", "it takes no 'decimals'"),
        ("tie=true", "for pairwise judges"),
        ("kind=rubric", "a section 'dual_control'"),
        ("dual_control=null", "a section 'dual_control'"),
        ("dual_control.policy=null", "give the judge a 'policy'"),
    ],
)
def test_a_section_that_does_not_hang_together_is_refused(setting: str, said: str) -> None:
    with pytest.raises(JudgeError) as caught:
        load_judge("dual-control", [setting])
    assert said in str(caught.value)
    assert setting in str(caught.value) or ":" in str(caught.value.where)


def test_claims_need_their_evidence() -> None:
    with pytest.raises(JudgeError) as caught:
        load_judge("dual-control", ["questions=[{id: claims, type: findings, ask: Which}]", "passes=[]"])
    assert "claims need a text 'evidence' and a choice 'standing'" in str(caught.value)


@pytest.mark.parametrize(
    ("word", "text", "there"),
    [
        ("begin private key", "如下：begin private key内容", True),
        ("kill", "skill", False),
        ("kill", "skill, kill", True),
        ("去死", "你去死吧", True),
        ("où", "coûte, douù", False),
        ("не", "нет", False),
    ],
)
def test_a_word_of_the_policy_is_found_as_a_word_in_any_script(word: str, text: str, there: bool) -> None:
    assert dual_control._occurs(word, text) is there


def test_an_image_is_named_in_chinese_without_a_blank_behind() -> None:
    found = dual_control._IMAGE.match("图1显示三架飞机")
    assert found and found[1] == "1"
    assert dual_control._says_something("не") is False


@pytest.mark.parametrize("empty", ["", " ", [], {}, {"expertise": None}])
def test_an_empty_cell_names_nobody_so_that_somebody_is_found(empty: Any) -> None:
    record = Record("a", {"persona": empty, "attributes": empty}, "here:1")
    assert not dual_control._names(record)


def test_the_answer_form_names_what_is_to_be_written() -> None:
    form = load_judge("dual-control").template_names["answer_form"]
    assert '"..."' not in form
    assert '"quote":"<quote>"' in form
