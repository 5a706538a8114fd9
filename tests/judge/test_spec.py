"""judge.yaml: what a judge is, and what is said of each thing that can be wrong with one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from localjudge.errors import JudgeError
from localjudge.judge.asking import inputs_of, shown_of
from localjudge.judge.loading import judge_names, load_judge
from localjudge.judge.rubric import settled_of
from localjudge.judge.spec import JudgeSpec
from localjudge.paths import data_dir
from localjudge.records import Record, read_records

TEN_LINES = """\
name: mine
inputs: [question, answer]
rationale: 60
questions:
  - id: good
    type: score
    ask: Is it good?
    anchors:
      1: bad
      5: good
"""

CHOICE = """\
name: mine
inputs: [answer]
questions:
  - {id: true_or_not, type: choice, ask: Is it true, options: [yes, no]}
scoring:
  values: {true_or_not: {yes: 1, no: 0}}
"""

PAIR = """\
name: mine
kind: pairwise
inputs: [task, text_a, text_b]
questions:
  - id: preference
    type: choice
    ask: Which?
"""


def judge(folder: Path, text: str | bytes, **templates: str) -> Path:
    """A judge's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "judge.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    for role, template in templates.items():
        (folder / f"{role}.j2").write_text(template, encoding="utf-8")
    return folder


def refusal(path: str | Path, *settings: str) -> JudgeError:
    """What loading says, which is never in the words of a library."""
    with pytest.raises(JudgeError) as caught:
        load_judge(path, settings)
    said = str(caught.value)
    for foreign in ("Input should", "pydantic", "Traceback", "object at 0x", "tuple", "dictionary", "localjudge."):
        assert foreign not in said
    return caught.value


def prompt(spec: JudgeSpec, **fields: object) -> str:
    shown = {item.name: fields.get(item.name) for item in spec.inputs}
    return "\n".join(message.text for message in spec.templates.messages(shown, spec.template_names))


# What works


def test_the_built_in_judges_are_known() -> None:
    assert {"answer-quality", "pairwise", "truthfulness"} <= set(judge_names())
    assert "_default" not in judge_names()


@pytest.mark.parametrize("name", sorted(judge_names()))
def test_a_built_in_judge_is_named_as_its_folder_and_gives_no_warning(name: str) -> None:
    spec = load_judge(name)
    assert spec.name == name
    assert spec.description
    assert spec.warnings() == []


@pytest.mark.parametrize("name", sorted(judge_names()))
def test_a_built_in_judge_can_judge_its_own_examples(name: str) -> None:
    spec = load_judge(name)
    records = list(read_records(data_dir("prompts") / name / "examples" / "records.jsonl", spec.inputs))
    assert len(records) >= 6
    for record in records:
        assert isinstance(record, Record), record.problem
        names = settled_of(spec, record.fields) if spec.kind == "rubric" else {}
        shown = shown_of(spec, inputs_of(spec, record))
        for questions in spec.asks:
            messages = spec.templates.messages(shown, {**spec.names_for(questions), **names})
            if spec.checklist:  # a reference answer is for who writes, not for who grades
                messages += spec.step("verify").messages(shown, spec.template_names)
            text = "\n".join(message.text for message in messages)
            for item in spec.inputs:
                if (value := shown[item.name]) is not None:
                    told = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)
                    assert told in text


def test_ten_lines_are_a_judge(tmp_path: Path) -> None:
    spec = load_judge(judge(tmp_path, TEN_LINES))
    assert [question.id for question in spec.asked] == ["rationale", "good"]
    assert list(spec.answer_schema["properties"]) == ["rationale", "good"]
    assert spec.answer_schema["properties"]["good"] == {"enum": [1, 2, 3, 4, 5]}
    assert (spec.version, spec.language, spec.kind, spec.counted) == ("1", "en", "rubric", ["good"])
    assert spec.warnings() == []
    text = prompt(spec, question="Why?", answer="Because.")
    for expected in ("Is it good?", "1 = bad", "5 = good", "Why?", "Because.", '{"rationale":"...","good":<1-5>}'):
        assert expected in text


def test_a_judge_is_its_folder_its_file_or_a_file_of_another_name(tmp_path: Path) -> None:
    folder = judge(tmp_path / "a", TEN_LINES)
    other = folder / "mine.yaml"
    other.write_text(TEN_LINES)
    digests = {load_judge(path).digest for path in (folder, str(folder), folder / "judge.yaml", other)}
    assert len(digests) == 1


def test_templates_beside_the_judge_come_before_the_default_and_its_own_before_those(tmp_path: Path) -> None:
    folder = judge(tmp_path, TEN_LINES, user="Beside: {{ question }} {{ answer }}")
    spec = load_judge(folder)
    assert "Beside:" in prompt(spec, question="q", answer="a")
    assert "You are an impartial judge" in prompt(spec, question="q", answer="a")
    judge(tmp_path, TEN_LINES + "user: 'Inside: {{ question }} {{ answer }}'\nsystem: ''\n")
    inside = prompt(load_judge(folder), question="q", answer="a")
    assert inside.startswith("Inside:")
    assert "impartial" not in inside


def test_a_chinese_judge_asks_in_chinese(tmp_path: Path) -> None:
    for text in (TEN_LINES, PAIR):
        spec = load_judge(judge(tmp_path, text + "language: zh\n"))
        said = prompt(spec, **{item.name: "材料" for item in spec.inputs})
        assert "你是一名公正的评审" in said
        assert "JSON" in said
        assert "You are" not in said


@pytest.mark.parametrize(
    "label", ["yes", "no", "on", "off", "y", "n", "1:30", "007", "+1", "=", "2024-01-01", "1_000"]
)
def test_a_label_stays_the_text_that_was_written(tmp_path: Path, label: str) -> None:
    text = CHOICE.replace("[yes, no]", f"[{label}, other]").replace("yes: 1, no: 0", f"{label}: 1, other: 0")
    [question] = load_judge(judge(tmp_path, text)).questions
    assert question.json_schema() == {"enum": [label, "other"]}


def test_whole_numbers_can_be_labels_and_codes(tmp_path: Path) -> None:
    text = CHOICE.replace("[yes, no]", "[1, 2]").replace("yes: 1, no: 0", "1: 1, 2: 0")
    text = text.replace("scoring:", "  - {id: lines, type: flags, ask: Any, codes: {7: harm}}\nscoring:")
    spec = load_judge(judge(tmp_path, text))
    assert spec.answer_schema["properties"]["true_or_not"] == {"enum": ["1", "2"]}
    assert spec.answer_schema["properties"]["lines"]["required"] == ["7"]


def test_options_may_be_labels_alone_or_labels_with_meanings_some_of_them_empty(tmp_path: Path) -> None:
    bare = load_judge(judge(tmp_path, CHOICE))
    said = load_judge(judge(tmp_path, CHOICE.replace("[yes, no]", "{yes: all of it is, no: }")))
    assert bare.answer_schema == said.answer_schema
    assert "yes = all of it is" in prompt(said, answer="a")
    assert "no =" not in prompt(said, answer="a")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: b"\xef\xbb\xbf" + text.encode(),
        lambda text: b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode(),
    ],
    ids=["windows", "bom", "windows with bom"],
)
def test_line_ends_and_byte_order_marks_change_nothing(tmp_path: Path, spoil: Callable[[str], bytes]) -> None:
    text = TEN_LINES + "user: |\n  {{ question }}\n  {{ answer }}\n"
    plain = load_judge(judge(tmp_path / "plain", text))
    assert load_judge(judge(tmp_path / "spoilt", spoil(text))).digest == plain.digest


def test_yaml_may_be_merged_and_repeated_by_anchors(tmp_path: Path) -> None:
    text = TEN_LINES.replace(
        "rationale: 60", "rationale: &few 60\nscoring:\n  <<: {pass: 2, decimals: 1}\n  pass: 3"
    )
    spec = load_judge(judge(tmp_path, text + "  - {id: why, type: text, ask: Why, budget: *few}\n"))
    assert (spec.scoring.pass_mark, spec.scoring.decimals) == (3, 1)
    assert spec.answer_schema["properties"]["why"]["x-tokens"] == 60


def test_a_judge_survives_the_run_directory(tmp_path: Path) -> None:
    text = TEN_LINES.replace("answer]", "(answer), {name: extra, type: json}]").replace(
        "      5: good",
        """\
      5: good
  - {id: sure, type: choice, ask: Sure, options: {1: yes, 2: no}}
  - {id: lines, type: flags, ask: Any, codes: {7: harm, L-2: lie}}
  - {id: why, type: text, ask: Why, budget: 9}
scoring: {weights: {good: 0.5}, values: {sure: {1: 5, 2: 1}}, pass: 3, decimals: 2, veto: []}""",
    )
    specs = [load_judge(judge(tmp_path, text)), *map(load_judge, judge_names())]
    for spec in specs:
        stored = json.loads(json.dumps(spec.model_dump(mode="json", by_alias=True)))
        assert JudgeSpec.model_validate(stored).model_dump() == spec.model_dump()


# Overrides and the digest


def test_settings_override_the_file() -> None:
    plain = load_judge("pairwise")
    tie = load_judge("pairwise", ["tie=true"])
    assert plain.answer_schema["properties"]["preference"] == {"enum": ["A", "B"]}
    assert tie.answer_schema["properties"]["preference"] == {"enum": ["A", "B", "tie"]}
    assert '"A"|"B"|"tie"' in tie.templates.messages({"instruction": "i"}, tie.template_names)[0].text
    quick = load_judge("answer-quality", ["rationale=0", "scoring.pass=4"])
    assert "rationale" not in quick.answer_schema["properties"]
    assert quick.scoring.pass_mark == 4
    assert quick.scoring.weights == load_judge("answer-quality").scoring.weights
    assert any("without a reason" in warning for warning in quick.warnings())
    assert load_judge("truthfulness", ["scoring.decimals=2"]).scoring.decimals == 2
    assert load_judge("truthfulness", ["task=Be strict."]).task == "Be strict."
    last = load_judge("truthfulness", ["rationale=7", "rationale=9"])
    assert last.rationale == 9


def test_whatever_makes_the_judge_is_in_its_digest(tmp_path: Path) -> None:
    folder = judge(tmp_path, TEN_LINES)
    digest = load_judge(folder).digest
    assert load_judge(judge(tmp_path / "copy", "# the same\n" + TEN_LINES)).digest == digest
    changed = {
        load_judge(folder, [setting]).digest
        for setting in ("rationale=61", "scoring.pass=3", "scoring.weights.good=2", "version=2", "task=Be kind.")
    }
    changed |= {load_judge(judge(tmp_path, TEN_LINES.replace("5: good", "5: fine"))).digest}
    changed |= {load_judge(judge(tmp_path, TEN_LINES, user="{{ question }}{{ answer }}")).digest}
    changed |= {load_judge(judge(tmp_path, TEN_LINES, user="{{ answer }}{{ question }}")).digest}
    assert len(changed) == 8
    assert digest not in changed


@pytest.mark.parametrize(
    ("setting", "where", "says"),
    [
        ("tie", "--set", "'tie' is not of the form key=value"),
        ("=1", "--set", "not of the form key=value"),
        ("scoring..pass=1", "--set", "not of the form key=value"),
        ("rationale.more=1", "--set", "'rationale.more' does not lead to a setting"),
        ("questions.0.scale=[1, 3]", "--set", "does not lead to a setting"),
        ("rationale=[1", "--set", "'[1' is not a YAML value"),
        ("rationale=many", "--set rationale=many", "'rationale' should be a whole number, not \"many\""),
        ("rationale=", "--set rationale=", "'rationale' is empty"),
        ("rational=0", "--set rational=0", "did you mean 'rationale'?"),
        ("scoring.weights.god=2", "--set scoring.weights.god=2", "did you mean 'good'?"),
        ("scoring.pass=9", "--set scoring.pass=9", "the overall lies between 1 and 5"),
        ("tie=true", "--set tie=true", "'tie' is for pairwise judges"),
        ("user='{{ question }} {{ anwser }}'", "--set user:1", "did you mean 'answer'?"),
    ],
)
def test_a_wrong_setting_is_told_as_a_setting(tmp_path: Path, setting: str, where: str, says: str) -> None:
    error = refusal(judge(tmp_path, TEN_LINES), setting)
    assert error.where == where
    assert says in str(error)


# Mistakes in the file: (what is replaced, by what, the line it is told with, what is said)

TYPING = [
    ("rationale: 60", "rationale: many", 3, "'rationale' should be a whole number, not \"many\""),
    ("rationale: 60", "rationale: true", 3, "'rationale' should be a whole number, not true"),
    ("rationale: 60", "rationale: 60.5", 3, "'rationale' should be a whole number, not 60.5"),
    ("rationale: 60", "rationale: '60'", 3, "'rationale' should be a whole number, not \"60\""),
    ("rationale: 60", "rationale: -1", 3, "'rationale' should be at least 0, not -1"),
    ("rationale: 60", "rationale:", 3, "'rationale' is empty: it should be a whole number"),
    ("name: mine", "name: 3", 1, "'name' should be text, not 3: put it in quotes"),
    ("name: mine", "name: My Judge", 1, "cannot be a name: use small letters"),
    ("name: mine\n", "", 1, "'name' is missing"),
    ("[question, answer]", "question", 2, "'inputs' should be a list, not \"question\""),
    ("[question, answer]", "[]", 2, "'inputs' is empty"),
    ("[question, answer]", "[question, 3]", 2, "should be keys and values, not 3"),
    ("[question, answer]", "[question, (answer]", 2, "'(answer' is not a name"),
    ("[question, answer]", "[question, my answer]", 2, "'my answer' is not a name"),
    ("[question, answer]", "[question, {name: answer, type: jsno}]", 2, "did you mean 'json'?"),
    ("type: score", "type: scroe", 5, "'questions.good' has the unknown type 'scroe': did you mean 'score'?"),
    ("type: score", "type: number", 5, "unknown type 'number': use one of text, score, choice, flags"),
    ("    type: score\n", "", 5, "'questions.good' needs a 'type'"),
    ("id: good", "id: is it good", 5, "letters, digits and _, and no digit first"),
    ("ask: Is it good?", "ask:", 7, "'questions.good.ask' is empty"),
    ("ask: Is it good?", "ask: '  '", 7, "'questions.good.ask' is empty"),
    ("ask: Is it good?", "ask: [Is it good]", 7, "'questions.good.ask' should be text, not a list"),
    ("      1: bad", "      low: bad", 9, "'questions.good.anchors.low' should be a whole number, not \"low\""),
    ("      1: bad", "      1.5: bad", 9, "should be a whole number, not 1.5"),
    ("      1: bad", "      true: bad", 8, "true is not a whole number"),
    ("      1: bad", "      1:", 9, "'questions.good.anchors.1' is empty: it should be text"),
    ("      1: bad\n", "", 5, "a score needs a scale, such as [1, 5], or at least two anchors"),
]

UNKNOWN_KEYS = [
    ("rationale: 60", "rational: 60", 3, "'rational' is not a known key: did you mean 'rationale'?"),
    ("inputs:", "imputs:", 2, "'imputs' is not a known key: did you mean 'inputs'?"),
    ("    ask:", "    aks:", 7, "'questions.good.aks' is not a known key: did you mean 'ask'?"),
    ("    anchors:", "    ancors:", 8, "'questions.good.ancors' is not a known key: did you mean 'anchors'?"),
    ("rationale: 60", "scoring:\n  wieghts: {good: 1}", 4, "did you mean 'weights'?"),
    ("rationale: 60", "scoring:\n  pass_mark: 4", 4, "did you mean 'pass'?"),
    ("rationale: 60", "weights: {good: 1}", 3, "did you mean 'scoring.weights'?"),
    ("rationale: 60", "colour: blue", 3, "'colour' is not a known key: known: checklist, checks, description,"),
    ("rationale: 60", "kind: rubrik", 3, "'kind' cannot be \"rubrik\": did you mean 'rubric'?"),
    ("rationale: 60", "language: fr", 3, "'language' cannot be \"fr\": use 'en' or 'zh'"),
    ("rationale: 60", "order: labels-frist", 3, "did you mean 'labels-first'?"),
]

YAML = [
    ("rationale: 60", "name: yours", 3, "the key 'name' was given before, on line 1"),
    ("    anchors:", "    ask: Again?\n    anchors:", 8, "the key 'ask' was given before, on line 7"),
    ("      5: good", "      1: good", 10, "the key '1' was given before, on line 9"),
    ("    ask:", "\task:", 7, "indent with spaces, not with tabs"),
    ("    ask:", "   ask:", 7, "check the indentation"),
    ("Is it good?", "Is it: good?", 7, "put a text that holds ': ' in quotes"),
    ("Is it good?", "*Is it good?", 7, "in quotes"),
    ("Is it good?", "@Is it good?", 7, "in quotes"),
    ("Is it good?", "'Is it good?", 11, "close what is opened here"),
    ("[question, answer]", "[question, answer", 3, "close the [ or the {"),
    ("name: mine", "name: !!python/name:os.system mine", 1, "without tags"),
    ("name: mine", "name: !mine mine", 1, "without tags"),
    ("name: mine", "name: mine\n---\nname: other", 2, "leave one document"),
    ("name: mine", "name: mine\n[a, b]: c", 2, "unhashable key"),
    ("name: mine", "name: mine\nuser: {{ answer }}", 2, "put a text that begins with {{ in quotes"),
    ("ask: Is it good?", "ask: [Is it good?]", 7, "put a text with a ? in quotes"),
    ("Is it good?", '"a \\ud800 b"', 7, "a lone surrogate is no character"),
]

QUESTIONS = [
    ("    anchors:", "    scale: [5, 1]\n    anchors:", 8, "the scale [5, 1] does not rise"),
    ("    anchors:", "    scale: [3, 3]\n    anchors:", 8, "the scale [3, 3] does not rise"),
    ("    anchors:", "    scale: [0, 1000]\n    anchors:", 8, "over 101 points"),
    ("    anchors:", "    scale: 1-5\n    anchors:", 8, "a scale is two whole numbers, such as [1, 5]"),
    ("    anchors:", "    scale: [1, 3, 5]\n    anchors:", 8, "a scale is two whole numbers"),
    ("    anchors:", "    scale: [true, 5]\n    anchors:", 8, "a scale is two whole numbers"),
    ("    anchors:", "    scale: [1, 5.0]\n    anchors:", 8, "a scale is two whole numbers"),
    ("    anchors:", "    scale: [1, 4]\n    anchors:", 11, "the anchor 5 lies outside the scale [1, 4]"),
    ("      5: good", "      5: good\n  - clarity", 11, 'should be keys and values, not "clarity"'),
    (
        "      5: good",
        "      5: good\n  - {id: good, type: text, ask: Why}",
        11,
        "two questions have the id 'good'",
    ),
    (
        "      5: good",
        "      5: good\n  - {id: rationale, type: text, ask: W}",
        11,
        "give the question another id",
    ),
    ("      5: good", "      5: good\n  - {id: why, type: text, ask: W, budget: 0}", 11, "at least 1, not 0"),
    (
        "      5: good",
        "      5: good\n  - {id: b, type: score, ask: And, scale: [0, 10]}",
        11,
        "'b' has the scale 0-10, 'good' has 1-5, so their mean would mean nothing: give them one scale",
    ),
    ("      5: good", "      5: good\n  - {id: c, type: choice, ask: W, options: [a]}", 11, "at least 2 entries"),
    (
        "      5: good",
        "      5: good\n  - {id: c, type: choice, ask: W, options: [a, a]}",
        11,
        "'a' is listed twice",
    ),
    (
        "      5: good",
        "      5: good\n  - {id: c, type: choice, ask: W, options: {1: , '1': }}",
        11,
        "'1' is listed",
    ),
    (
        "      5: good",
        "      5: good\n  - {id: c, type: choice, ask: W, options: [true, a]}",
        11,
        "true is not text",
    ),
    ("      5: good", "      5: good\n  - {id: c, type: choice, ask: W, options: [~, a]}", 11, "put it in quotes"),
    (
        "      5: good",
        "      5: good\n  - {id: c, type: choice, ask: W, options: [1.10, a]}",
        11,
        "put it in quotes",
    ),
    ("      5: good", "      5: good\n  - {id: c, type: choice, ask: W, options: ['', a]}", 11, "cannot be empty"),
    (
        "      5: good",
        "      5: good\n  - {id: f, type: flags, ask: W, codes: {}}",
        11,
        "'questions.f.codes' is empty",
    ),
    (
        "      5: good",
        "      5: good\n  - {id: f, type: flags, ask: W, codes: [A]}",
        11,
        "keys and values, not a list",
    ),
    ("      5: good", "      5: good\n  - {id: f, type: flags, ask: W, codes: {A B: x}}", 11, "cannot be a name"),
    (
        "      5: good",
        "      5: good\n  - {id: f, type: flags, ask: W, codes: {A: x}}\n"
        "  - {id: g, type: flags, ask: W, codes: {A: y}}",
        12,
        "the code 'A' is in 'f' and in 'g'",
    ),
    ("[question, answer]", "[question, question]", 2, "the input 'question' is listed twice"),
    ("[question, answer]", "[questions, answer]", 2, "'questions' means something else in templates"),
    ("[question, answer]", "[none, answer]", 2, "'none' means something else in templates"),
    ("rationale: 60", "tie: true", 3, "'tie' is for pairwise judges"),
    ("rationale: 60", "orders: single", 3, "'orders' is for pairwise judges"),
]

SCORING = [
    ("rationale: 60", "scoring: {weights: {god: 2}}", 3, "names 'god', which is no question: did you mean 'good'?"),
    ("rationale: 60", "scoring: {weights: {rationale: 2}}", 3, "names 'rationale', which is no question"),
    ("rationale: 60", "scoring: {weights: {good: 0}}", 3, "leaves every question without weight"),
    ("rationale: 60", "scoring: {weights: {good: -1}}", 3, "should be at least 0, not -1"),
    ("rationale: 60", "scoring: {weights: {good: heavy}}", 3, 'should be a number, not "heavy"'),
    ("rationale: 60", "scoring: {weights: {good: true}}", 3, "should be a number, not true"),
    ("rationale: 60", "scoring: {weights: {good: .nan}}", 3, "should be a finite number"),
    ("rationale: 60", "scoring: {pass: .inf}", 3, "should be a finite number"),
    ("rationale: 60", "scoring: {pass: 1:30}", 3, 'should be a number, not "1:30"'),
    ("rationale: 60", "scoring: {pass: 7}", 3, "scoring.pass is 7, but the overall lies between 1 and 5"),
    ("rationale: 60", "scoring: {decimals: 9}", 3, "should be at most 6, not 9"),
    ("rationale: 60", "scoring: {values: {good: {yes: 1}}}", 3, "scoring.values is for choices; 'good' is a score"),
    ("rationale: 60", "scoring: {veto: [good]}", 3, "scoring.veto is for flags; 'good' is a score"),
    ("rationale: 60", "scoring: {veto: [god]}", 3, "did you mean 'good'?"),
    ("rationale: 60", "scoring: {veto: good}", 3, "'scoring.veto' should be a list, not \"good\""),
    ("rationale: 60", "scoring: 3", 3, "'scoring' should be keys and values, not 3"),
]


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [*TYPING, *UNKNOWN_KEYS, *YAML, *QUESTIONS, *SCORING],
    ids=lambda x: repr(x)[:50],
)
def test_a_mistake_is_told_once_with_its_line_and_its_remedy(
    tmp_path: Path, old: str, new: str, line: int, says: str
) -> None:
    assert old in TEN_LINES
    error = refusal(judge(tmp_path, TEN_LINES.replace(old, new, 1)))
    assert error.where == f"{tmp_path / 'judge.yaml'}:{line}"
    assert says in str(error)
    assert len(str(error).splitlines()) <= 2


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        (
            "{yes: 1, no: 0}",
            "{yes: 1}",
            6,
            "scoring.values.true_or_not must give each of yes, no, and nothing else",
        ),
        ("{yes: 1, no: 0}", "{yes: 1, no: 0, maybe: 2}", 6, "and nothing else"),
        ("{yes: 1, no: 0}", "{yes: 1, no: none at all}", 6, "'scoring.values.true_or_not.no' should be a number"),
        ("scoring:\n  values: {true_or_not: {yes: 1, no: 0}}\n", "", 3, "nothing to score: ask a score, a choice"),
        ("scoring:", "scoring:\n  pass: 2", 6, "scoring.pass is 2, but the overall lies between 0 and 1"),
        ("scoring:", "scoring:\n  weights: {true_or_not: 0}", 6, "leaves every question without weight"),
    ],
)
def test_a_choice_that_counts_must_say_what_each_label_is_worth(
    tmp_path: Path, old: str, new: str, line: int, says: str
) -> None:
    error = refusal(judge(tmp_path, CHOICE.replace(old, new)))
    assert error.where == f"{tmp_path / 'judge.yaml'}:{line}"
    assert says in str(error)


def test_a_weight_for_what_gives_no_number_is_refused(tmp_path: Path) -> None:
    text = TEN_LINES + "  - {id: why, type: text, ask: Why}\nscoring: {weights: {why: 2}}\n"
    assert "weighs 'why', which gives no number" in str(refusal(judge(tmp_path, text)))


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("[task, text_a, text_b]", "[task]", 3, "needs inputs in pairs, such as response_a and response_b"),
        ("[task, text_a, text_b]", "[text_a]", 3, "needs inputs in pairs"),
        ("[task, text_a, text_b]", "[text_a, text_b, note_b]", 3, "'note_b' has no counterpart 'note_a'"),
        (
            "    ask: Which?",
            "    ask: Which?\n  - {id: s, type: score, ask: x, scale: [1, 2]}",
            8,
            "'s' is neither",
        ),
        ("id: preference", "id: prefrence", 5, "needs a choice 'preference' of A, B: is 'prefrence' meant?"),
        ("id: preference", "id: winner", 4, "needs a choice 'preference' of A, B"),
        ("type: choice", "type: choice\n    options: [left, right]", 7, "leave its options out"),
        ("type: choice", "type: text", 5, "needs a choice 'preference'"),
        ("kind: pairwise", "kind: pairwise\ntie: yes", 3, "'tie' should be true or false, not \"yes\""),
        ("    ask: Which?", "    ask: Which?\nscoring: {pass: 0.5}", 8, "it takes no 'scoring'"),
        ("questions:\n", "questions: preference\nold:\n", 4, "'questions' should be a list, not \"preference\""),
    ],
)
def test_a_pairwise_judge_prefers_and_does_nothing_else(
    tmp_path: Path, old: str, new: str, line: int, says: str
) -> None:
    assert load_judge(judge(tmp_path, PAIR)).pairs == ["text"]
    error = refusal(judge(tmp_path, PAIR.replace(old, new)))
    assert error.where == f"{tmp_path / 'judge.yaml'}:{line}"
    assert says in str(error)


def test_two_mistakes_are_both_told_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = TEN_LINES.replace("rationale: 60", "rationale: many").replace("    anchors:", "    ancors:")
    error = refusal(judge(tmp_path, text + "colour: blue\n"))
    first, second, third = str(error).splitlines()
    assert first.startswith(f"{tmp_path / 'judge.yaml'}:3: 'rationale' should be")
    assert second.strip().startswith("line 8: 'questions.good.ancors' is not a known key: did you mean 'anchors'?")
    assert third.strip().startswith("line 11: 'colour' is not a known key")


@pytest.mark.parametrize(
    ("content", "line", "says"),
    [
        (b"", 1, "the file is empty"),
        (b"# nothing yet\n", 1, "the file is empty"),
        (b"- name: mine\n", 1, "does not hold keys and values"),
        (b"mine\n", 1, "does not hold keys and values"),
        (b"name: mine\ntask: caf\xe9\n", 2, "the file is not UTF-8"),
        ("name: mine\n".encode("utf-16"), 1, "save it as UTF-8"),
        (b"name: mine\ntask: a\x00b\n", None, "the character U+0000 on line 2 is not allowed"),
        (b"rationale: " + b"9" * 5000, None, "a number in it is too long"),
        (b"[" * 5000, None, "it is nested too deeply"),
    ],
)
def test_a_file_that_is_no_judge_at_all(tmp_path: Path, content: bytes, line: int | None, says: str) -> None:
    error = refusal(judge(tmp_path, content))
    assert error.where == f"{tmp_path / 'judge.yaml'}" + (f":{line}" if line else "")
    assert says in str(error)


def test_a_judge_that_is_not_there(tmp_path: Path) -> None:
    assert "did you mean 'pairwise'?" in str(refusal("pairwsie"))
    assert "known: answer-quality, checklist, completability, dual-control, pairwise, " in str(refusal("zebra"))
    folder = judge(tmp_path / "mine", TEN_LINES)
    assert f"did you mean '{folder / 'judge.yaml'}'?" in str(refusal(folder / "jugde.yaml"))
    assert "there is no such judge file" in str(refusal(tmp_path / "nothing" / "at" / "all"))
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "there is no judge.yaml in this folder" in str(refusal(empty))
    (empty / "judge.yml").write_text(TEN_LINES)
    assert f"give {empty / 'judge.yml'}" in str(refusal(empty))
    assert load_judge(empty / "judge.yml").name == "mine"


# Templates


@pytest.mark.parametrize(
    ("template", "line", "says"),
    [
        ("{{ question }}\n", None, "no template shows the input 'answer'"),
        ("{{ question }}\n{{ answer | length }}\n", None, "no template shows the input 'answer'"),
        ("{{ question }}\n{{ answer }}\n{% if answer %}\n", 3, "the template is broken"),
        ("{{ question }}\n{{ answer }}\n{{ answer\n", 3, "the template is broken"),
        ("{{ question }}\n{{ anwser }}\n", 2, "'anwser', which there is not\n  did you mean 'answer'?"),
        ("{{ question }}\n{{ answer }}\n{% if judge.tie %}\n{{ quesiton }}\n{% endif %}", 4, "'quesiton'"),
        ("{{ question }}\n{{ answer.foo }}\n", 2, "'answer' has no 'foo'"),
        ("{{ question }}\n{{ answer | baer }}\n", 2, "No filter named 'baer'"),
        ("{{ question }}\n{{ answer }}\n{% include 'x' %}\n", 3, "the template failed"),
        ("{{ question }}\n{{ answer }}\n{{ 1 // 0 }}\n", 3, "the template failed"),
        ("", 1, "the user template writes nothing"),
    ],
)
@pytest.mark.parametrize("inside", [False, True], ids=["beside", "inside"])
def test_a_mistake_in_a_template_is_told_with_its_line(
    tmp_path: Path, template: str, line: int | None, says: str, inside: bool
) -> None:
    if inside:
        block = "\n".join(f"  {text}" for text in template.splitlines())
        error = refusal(judge(tmp_path, TEN_LINES + f"user: |\n{block}\n"))
        place = f"judge.yaml:{2 if line is None else 11 + line if template else 11}"
    else:
        error = refusal(judge(tmp_path, TEN_LINES, user=template))
        place = "judge.yaml:2" if line is None else f"user.j2:{line}" if template else "judge.yaml:1"
    assert error.where == str(tmp_path / place)
    assert says in str(error)


def test_an_optional_input_must_be_guarded(tmp_path: Path) -> None:
    text = TEN_LINES.replace("answer]", "(answer)]")
    error = refusal(judge(tmp_path, text, user="{{ question }}\n{{ answer }}"))
    assert error.where == f"{tmp_path / 'user.j2'}:2"
    assert "use it between {% if answer %} and {% endif %}" in str(error)
    spec = load_judge(judge(tmp_path, text, user="{{ question }}{% if answer %}{{ answer }}{% endif %}"))
    assert "<answer" not in prompt(spec, question="q")
    assert "<answer" in prompt(spec, question="q", answer="a")


def test_templates_over_json_are_held_to_names_that_there_are(tmp_path: Path) -> None:
    text = TEN_LINES.replace("answer]", "{name: answer, type: json}]")
    spec = load_judge(judge(tmp_path, text, user="{{ question }}{{ answer.title }}"))
    assert "Tea" in prompt(spec, question="q", answer={"title": "Tea"})
    assert "did you mean 'answer'?" in str(refusal(judge(tmp_path, text, user="{{ question }}{{ anwser.title }}")))
    assert "shows the input 'answer'" in str(refusal(judge(tmp_path, text, user="{{ question }}")))


def test_a_template_of_another_name_is_not_passed_over(tmp_path: Path) -> None:
    error = refusal(judge(tmp_path, TEN_LINES, users="{{ question }} {{ answer }}"))
    assert error.where == str(tmp_path / "users.j2")
    assert "a judge's templates are system.j2, user.j2 and report.md.j2" in str(error)


def test_a_template_that_is_not_utf_8_is_refused_with_its_line(tmp_path: Path) -> None:
    judge(tmp_path, TEN_LINES)
    (tmp_path / "user.j2").write_bytes(b"{{ question }}\n{{ answer }} caf\xe9")
    error = refusal(tmp_path)
    assert error.where == f"{tmp_path / 'user.j2'}:2"
    assert "save it as UTF-8" in str(error)


# Warnings


@pytest.mark.parametrize(
    ("text", "settings", "says"),
    [
        (TEN_LINES, ["rationale=0"], "without a reason"),
        (TEN_LINES, ["order=labels-first"], "only defends them"),
        (TEN_LINES.replace("    anchors:\n      1: bad\n      5: good\n", "    scale: [1, 5]\n"), [], "no anchors"),
        (TEN_LINES.replace("5: good", "50: good"), [], "50 points"),
        (PAIR, ["rationale=9", "orders=single"], "only one order"),
        (
            TEN_LINES + "  - {id: sure, type: choice, ask: Sure, options: [y, n]}\n"
            "scoring: {values: {sure: {y: 1, n: 0}}}\n",
            [],
            "'sure' gives 0 to 1, the scores 1 to 5",
        ),
    ],
)
def test_what_is_allowed_but_often_a_mistake_is_said(
    tmp_path: Path, text: str, settings: list[str], says: str
) -> None:
    [warning] = load_judge(judge(tmp_path, text), settings).warnings()
    assert says in warning
