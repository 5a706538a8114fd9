"""Personas: their files, what is refused in one, and how one is composed, named or matched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from localjudge.errors import JudgeError
from localjudge.judge.loading import load_judge
from localjudge.judge.personas import (
    Dimension,
    Library,
    compose,
    likeliest,
    named,
    read_library,
    read_personas,
    vector_of,
)
from localjudge.paths import data_dir

FOLDER = data_dir("prompts") / "dual-control"

NURSE = """\
id: night_nurse
name: Night nurse
description: Reads standing up, at three in the morning.
attributes: {expertise: expert, time: hurried}
questions:
  - id: dose
    ask: Is the dose plain?
    points:
      0: "no"
      1-2: it has to be worked out
      3: it can be read off
"""


def refusal(tmp_path: Path, text: str, library: Library | None = None) -> JudgeError:
    (tmp_path / "nurse.yaml").write_text(text)
    with pytest.raises(JudgeError) as caught:
        read_personas(tmp_path / "nurse.yaml", library)
    return caught.value


def test_a_file_is_a_persona(tmp_path: Path) -> None:
    (tmp_path / "nurse.yaml").write_text(NURSE)
    [nurse] = read_personas(tmp_path, None)
    assert (nurse.id, nurse.attributes["time"]) == ("night_nurse", ["hurried"])
    [asked] = nurse.questions
    assert asked.most == 3
    question = asked.question(nurse.id)
    assert (question.id, question.bounds, question.labels) == ("night_nurse_dose", (0, 3), [0, 1, 2, 3])
    assert question.anchors[1] == question.anchors[2] == "it has to be worked out"


@pytest.mark.parametrize(
    ("points", "line", "said"),
    [
        ('{0: "no", 0-2: some, 3: all}', 8, "the ranges 0 and 0-2 overlap: 0 would be both"),
        ('{0-1: "no", 1-3: some}', 8, "the ranges 0-1 and 1-3 overlap: 1 would be both"),
        ('{0: "no", 2: some}', 8, "between 0 and 2 there is a gap: say what earns 1"),
        ("{1: some, 2: all}", 8, "the points begin at 1: begin at 0"),
        ('{0: "no", 3-1: all}', 8, "the range 3-1 does not rise"),
        ('{0: "no", half: some}', 8, '"half" is no range of points: write 2, or 1-2'),
        ('{0: "no", 0.5: some}', 8, "0.5 is no range of points"),
        ('{0: "no", 1-12: some}', 8, "it has 13 points: a reader tells about ten apart"),
        ('{0: "no"}', 8, "at least 2"),
    ],
)
def test_ranges_that_do_not_follow_each_other_are_refused(
    tmp_path: Path, points: str, line: int, said: str
) -> None:
    text = NURSE.partition("    points:")[0] + f"    points: {points}\n"
    error = refusal(tmp_path, text)
    assert error.where == f"{tmp_path / 'nurse.yaml'}:{line}"
    assert said in error.what
    assert "dose" in error.what


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (NURSE.replace("night_nurse", "night nurse"), "use letters, digits and _"),
        (NURSE.replace("night_nurse", "composed"), "give the persona another id"),
        (NURSE.replace("description: Reads", "descripton: Reads"), "did you mean 'description'?"),
        (NURSE.replace("name: Night nurse\n", ""), "'name' is missing"),
        (NURSE + '  - {id: dose, ask: Again, points: {0: "no", 1: "yes"}}\n', "two questions have the id 'dose'"),
        (NURSE.partition("questions:")[0], "the persona 'night_nurse' has no questions"),
        ("- a list\n", "does not hold keys and values"),
    ],
)
def test_a_file_that_is_no_persona_is_told_why(tmp_path: Path, text: str, said: str) -> None:
    error = refusal(tmp_path, text)
    assert str(tmp_path / "nurse.yaml:")[:-1] in str(error.where)
    assert said in str(error)


def test_a_judge_tells_the_file_of_a_bad_persona(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(NURSE.replace("1-2: it has", "0-2: it has"))
    with pytest.raises(JudgeError) as caught:
        load_judge("dual-control", [f"dual_control.personas=[personas, {bad}]"])
    assert str(caught.value).startswith(f"{bad}:8: ")
    assert "overlap" in str(caught.value)
    for setting, said in (
        ("dual_control.personas=persona", "did you mean"),
        (f"dual_control.personas={tmp_path / 'none'}", "no such persona file"),
        ("dual_control.personas=[]", "is empty"),
        ("dual_control.personas=[personas, personas/marketer.yaml]", "two personas have the id 'marketer'"),
        ("dual_control.library=libary.yaml", "libary.yaml"),
    ):
        with pytest.raises(JudgeError) as caught:
            load_judge("dual-control", [setting])
        assert said in str(caught.value)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_built_in_personas_are_six_and_each_asks_its_own(language: str) -> None:
    spec = load_judge("dual-control", language=language)
    assert spec.dual_control is not None
    assert len(spec.dual_control.personas) == 6
    for persona in spec.dual_control.personas:
        assert len(persona.questions) >= 3 and persona.focus and persona.attributes
        if spec.dual_control.library:
            spec.dual_control.library.check(persona.attributes)


def test_both_languages_ask_the_same() -> None:
    en, zh = (load_judge("dual-control", language=language) for language in ("en", "zh"))
    assert en.schemas == zh.schemas
    assert en.scales == zh.scales
    assert en.dual_control is not None and zh.dual_control is not None
    for key in ("technical", "profiles", "gate", "marks", "match", "with_images"):
        assert getattr(en.dual_control, key) == getattr(zh.dual_control, key)
    assert list(en.dual_control.policy.codes) == list(zh.dual_control.policy.codes)  # type: ignore[union-attr]


# Composing


@pytest.fixture(scope="module")
def library() -> Library:
    return read_library(FOLDER / "library.yaml")


def test_neighbours_on_a_scale_are_near_each_other() -> None:
    scale = Dimension(values=["novice", "familiar", "expert"], scale=True)
    assert [scale.closeness("novice", other) for other in scale.values] == [1, 0.5, 0]
    assert Dimension(values=["a", "b"]).closeness("a", "b") == 0


@pytest.mark.parametrize(
    ("vector", "asked"),
    [
        ({"expertise": ["expert"], "time": ["hurried"]}, ["mechanism", "straight_to_it"]),
        (
            {"expertise": ["expert"], "time": ["hurried"], "pain_points": ["padding"]},
            ["mechanism", "straight_to_it"],
        ),
        ({"goal": ["decide"], "style": ["data"]}, ["precision", "options", "numbers"]),
        ({"expertise": ["novice"], "goal": ["solve"]}, ["from_the_start", "plain_words", "next_step"]),
        ({"style": ["data"], "pain_points": ["missing numbers"]}, ["precision", "numbers"]),
    ],
)
def test_attributes_get_the_nearest_questions_the_nearest_first(
    library: Library, vector: dict[str, list[str]], asked: list[str]
) -> None:
    assert [question.id for question in library.nearest(vector)] == asked
    assert [question.id for question in compose(vector, library).questions] == asked


def test_no_more_are_taken_than_the_library_says(library: Library) -> None:
    everything = {name: list(dimension.values) for name, dimension in library.attributes.items()}
    assert len(library.nearest(everything)) == library.take == 4


def test_who_is_far_from_every_question_is_refused(library: Library) -> None:
    with pytest.raises(ValueError, match="no question for a reader of style: narrative"):
        library.model_copy(update={"questions": library.questions[:4]}).nearest({"style": ["narrative"]})


def test_a_persona_without_questions_is_composed_when_it_is_read(tmp_path: Path, library: Library) -> None:
    (tmp_path / "nurse.yaml").write_text(NURSE.partition("questions:")[0])
    [nurse] = read_personas(tmp_path, library)
    assert [question.id for question in nurse.questions] == ["mechanism", "straight_to_it"]
    error = refusal(tmp_path, NURSE.partition("questions:")[0].replace("hurried", "hurrid"), library)
    assert error.where == f"{tmp_path / 'nurse.yaml'}:4"
    assert "did you mean 'hurried'?" in error.what


def test_a_library_speaks_of_its_own_attributes(tmp_path: Path) -> None:
    text = (FOLDER / "library.yaml").read_text()
    (tmp_path / "library.yaml").write_text(text.replace("when: {expertise: expert}", "when: {expertise: exprt}"))
    with pytest.raises(JudgeError) as caught:
        read_library(tmp_path / "library.yaml")
    assert "'exprt' is no value of 'expertise': did you mean 'expert'?" in str(caught.value)
    assert "library.yaml:" in str(caught.value.where)


# Naming and matching


def test_a_record_names_personas_once_each() -> None:
    assert named(" a, b ,a", ["a", "b"]) == ["a", "b"]
    for value, said in (([], "names nobody"), (" , ", "names nobody"), ({"a": 1}, "name one persona")):
        with pytest.raises(ValueError, match=said):
            named(value, ["a"])


def test_a_vector_is_name_and_values() -> None:
    assert vector_of({"a": "x", "b": ["y", "z"]}) == {"a": ["x"], "b": ["y", "z"]}
    wrong: list[Any] = [{}, [], "a", {"a": 1}, {"a": []}, {"a": [1]}]
    for value in wrong:
        with pytest.raises(ValueError, match="attribute"):
            vector_of(value)


def test_the_likeliest_are_taken_as_far_as_they_are_likely() -> None:
    likely = {"a": 0.2, "b": 0.5, "c": 0.3}
    assert likeliest(likely, 1, 0.0) == {"b": 1}
    assert likeliest(likely, 2, 0.3) == pytest.approx({"b": 0.625, "c": 0.375})
    assert likeliest(likely, 3, 0.25) == pytest.approx({"b": 0.625, "c": 0.375})
    assert likeliest(likely, 3, 0.1) == pytest.approx({"b": 0.5, "c": 0.3, "a": 0.2})
    assert likeliest({"a": 0.0, "b": 0.0}, 1, 0.3) == {"a": 1}
