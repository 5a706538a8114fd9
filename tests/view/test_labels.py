"""The gold file: a label saved is on the disk, nothing is written over, and `agree` reads it as it is."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from localjudge.agreement.join import join, open_run
from localjudge.agreement.targets import read_label
from localjudge.errors import LocalJudgeError, RecordsError, RunError
from localjudge.judge.loading import load_judge
from localjudge.judge.questions import CANNOT
from localjudge.judge.spec import JudgeSpec
from localjudge.view.labels import GoldFile, Label, Refused, asked_of, check_name
from tests.view.conftest import Job, lines_of, truth_rows, write_rows

JUDGE = """
name: mixed
inputs: [text]
questions:
  - {id: polite, type: score, ask: How polite, anchors: {1: rude, 3: so so, 5: kind}, cannot: true}
  - {id: tone, type: choice, ask: Which tone, options: {warm: friendly, cold: distant}}
  - {id: faults, type: flags, ask: What is wrong, codes: {SPAM: advertises, LIE: lies}}
  - {id: why, type: text, ask: Why}
scoring: {values: {tone: {warm: 5, cold: 1}}, pass: 3}
"""


def mixed(path: Path, *names: str) -> GoldFile:
    return GoldFile(path, asked_of(JudgeSpec.model_validate(yaml.safe_load(JUDGE)), names))


def said(record_id: str, who: str = "ann", **answers: Any) -> Label:
    return Label(record_id, who, answers)


# What is asked


def test_a_person_is_asked_what_agree_can_hold_against_them(tmp_path: Path) -> None:
    form = [one.form() for one in mixed(tmp_path / "gold.jsonl").asked.values()]
    polite, tone, faults = form
    assert [option["key"] for option in polite["options"]] == ["1", "2", "3", "4", "5"]
    assert [option["means"] for option in polite["options"]] == ["rude", "", "so so", "", "kind"]
    assert polite["cannot"] == CANNOT
    assert tone["options"] == [
        {"value": "warm", "key": "1", "means": "friendly"},
        {"value": "cold", "key": "2", "means": "distant"},
    ]
    assert (faults["how"], [option["value"] for option in faults["options"]]) == ("some", ["SPAM", "LIE"])
    overall, passed = mixed(tmp_path / "gold.jsonl", "overall", "passed").asked.values()
    assert (overall.how, overall.bounds) == ("number", (1.0, 5.0))
    assert [(value, key) for value, key, _ in passed.options] == [(True, "y"), (False, "n")]
    with pytest.raises(LocalJudgeError, match="did you mean 'polite'"):
        mixed(tmp_path / "gold.jsonl", "polit")


def test_every_built_in_judge_can_be_labelled() -> None:
    for name in ("answer-quality", "truthfulness", "scenario-review", "replay-review", "checklist", "dual-control"):
        for asked in asked_of(load_judge(name)):
            keys = [key for _, key, _ in asked.options if key]
            assert len(keys) == len(set(keys))
            for value, _, _ in asked.options:
                asked.check([value] if asked.how == "some" else value)
    for tie, keys in (("false", ["a", "b"]), ("true", ["a", "b", "t"])):
        [preference] = asked_of(load_judge("pairwise", [f"tie={tie}"]))
        assert [key for _, key, _ in preference.options] == keys


@pytest.mark.parametrize(
    ("scale", "how", "keys"),
    [
        ([1, 5], "one", "12345"),
        ([0, 9], "one", "0123456789"),
        ([-2, 2], "one", "12345"),  # by place
        ([0, 10], "number", ""),
        ([1, 100], "number", ""),
    ],
)
def test_a_scale_is_chosen_by_its_points_or_typed(scale: list[int], how: str, keys: str) -> None:
    question = {"id": "q", "type": "score", "ask": "How", "scale": scale}
    [asked] = asked_of(JudgeSpec.model_validate({"name": "j", "inputs": ["text"], "questions": [question]}))
    assert (asked.how, "".join(key for _, key, _ in asked.options)) == (how, keys)
    assert asked.whole


def test_a_question_that_is_called_as_a_part_of_the_file_is_refused() -> None:
    judge = JudgeSpec.model_validate(yaml.safe_load(JUDGE.replace("id: polite", "id: time")))
    with pytest.raises(LocalJudgeError, match="'time' of the judge mixed"):
        asked_of(judge)


@pytest.mark.parametrize("name", ["", "  ", "a\nb\0", "x" * 61, None, 7, ["ann"]])
def test_what_is_no_name(name: Any) -> None:
    with pytest.raises(Refused):
        check_name(name)


# Kept


def test_labels_are_lines_that_are_only_added_to(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "gold.jsonl"
    gold = mixed(path)
    gold.add(said("r1", polite=4, tone="warm", faults=[]))
    first = path.read_bytes()
    gold.add(said("r2", faults=["LIE"], polite=CANNOT))
    gold.add(Label("r1", "bob", {"polite": 2}, blind=False, picked="least-sure"))
    gold.add(said("r1", polite=5))
    assert path.read_bytes().startswith(first)
    lines = lines_of(path)
    assert [line["id"] for line in lines] == ["r1", "r2", "r1", "r1"]
    assert (
        lines[0].items() >= {"polite": 4, "tone": "warm", "faults": [], "annotator": "ann", "blind": True}.items()
    )
    assert lines[2].items() >= {"blind": False, "picked": "least-sure"}.items()
    assert lines[3]["withdrawn"] == ["tone", "faults"]
    for each in (gold, mixed(path)):
        assert each.counts() == {"ann": 2, "bob": 1}
        assert {who: label.answers for who, label in each.of("r1").items()} == {
            "ann": {"polite": 5},
            "bob": {"polite": 2},
        }
        assert list(each.by("ann")) == ["r2", "r1"]


def test_undo_takes_back_the_last_and_then_the_one_before(tmp_path: Path) -> None:
    gold = mixed(tmp_path / "gold.jsonl")
    for record_id in ("r1", "r2", "r3"):
        gold.add(said(record_id, polite=3))
    gold.add(said("r9", "bob", polite=1))
    assert [gold.undo("ann").id for _ in range(2)] == ["r3", "r2"]  # type: ignore[union-attr]
    assert list(mixed(tmp_path / "gold.jsonl").by("ann")) == ["r1"]
    assert gold.undo("ann")
    assert gold.undo("ann") is None
    assert gold.undo("nobody") is None
    assert gold.counts() == {"bob": 1}
    assert len(lines_of(tmp_path / "gold.jsonl")) == 7, "what was taken back is still told"


def test_other_questions_labels_stay(tmp_path: Path) -> None:
    """A second sitting about another question does not take back what was said in the first."""
    path = tmp_path / "gold.jsonl"
    mixed(path, "polite").add(said("r1", polite=4))
    mixed(path, "tone").add(said("r1", tone="cold"))
    assert mixed(path).of("r1")["ann"].answers == {"polite": 4, "tone": "cold"}


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ({"polite": 9}, "9 is outside the scale 1 to 5"),
        ({"polite": 4.5}, "4.5 is no whole number"),
        ({"polite": True}, "true is not a number"),
        ({"polite": [4]}, "is not one label"),
        ({"tone": "wram"}, "is not one of warm, cold"),
        ({"tone": CANNOT}, "is not one of warm, cold"),
        ({"faults": ["LYE"]}, "did you mean 'LIE'"),
        ({"faults": "LIE"}, "is no list of codes"),
        ({"why": "so"}, "nothing is asked of 'why'"),
        ({"annotator": "eve"}, "nothing is asked of 'annotator'"),
        ({}, "no question is answered"),
    ],
)
def test_what_is_no_label_is_not_kept(tmp_path: Path, answers: Mapping[str, Any], told: str) -> None:
    gold = mixed(tmp_path / "gold.jsonl")
    with pytest.raises(Refused) as caught:
        gold.add(said("r1", **answers))
    assert told in str(caught.value)
    assert not gold.path.exists()


# What happens to files


def test_two_viewers_and_many_threads_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "gold.jsonl"
    files = [mixed(path), mixed(path)]

    def label(who: int) -> None:
        for i in range(20):
            files[who % 2].add(said(f"r{i}", f"p{who}", polite=1 + i % 5))

    threads = [threading.Thread(target=label, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lines_of(path)) == 80
    assert mixed(path).counts() == dict.fromkeys((f"p{who}" for who in range(4)), 20)
    files[0].refresh()
    assert files[0].counts() == mixed(path).counts()


def test_a_torn_last_line_is_put_aside_and_an_unended_one_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "gold.jsonl"
    mixed(path).add(said("r1", polite=4))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"id": "r2", "poli')
    gold = mixed(path)
    assert gold.counts() == {"ann": 1}
    assert path.read_bytes() == whole + b'{"id": "r2", "poli', "to look changes nothing"
    gold.add(said("r3", polite=2))
    assert [line["id"] for line in lines_of(path)] == ["r1", "r3"]
    assert path.with_name("gold.jsonl.torn").read_bytes() == b'{"id": "r2", "poli\n'
    assert "gold.jsonl.torn" in gold.torn[0]
    path.write_bytes(path.read_bytes().rstrip(b"\n"))  # an editor that ends no last line
    gold.add(said("r4", polite=2))
    assert [line["id"] for line in lines_of(path)] == ["r1", "r3", "r4"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("nonsense", "it is not JSON"),
        ('["r1"]', "is no object"),
        ('{"polite": 4, "annotator": "ann"}', "it has no 'id'"),
        ('{"id": "r1", "polite": 4}', "it has no 'annotator'"),
        ('{"id": "r1", "polite": "four", "annotator": "ann"}', "'polite': 'four' is not a number"),
        ('{"id": "r1", "tone": "hot", "annotator": "ann"}', "is not one of warm, cold"),
        ('{"id": "r1", "tone": "hot", "annotator": "ann", "withdrawn": "tone"}', "is not one of"),
        ('{"id": "r1", "annotator": "ann", "withdrawn": "tone"}', "no list of questions"),
        ("[" * 100_000, "it is not JSON"),
    ],
)
def test_what_was_edited_into_nonsense_is_told_with_its_line_and_left_as_it_is(
    tmp_path: Path, line: str, told: str
) -> None:
    path = tmp_path / "gold.jsonl"
    gold = mixed(path)
    gold.add(said("r1", polite=4))
    edited = path.read_text(encoding="utf-8") + line + "\n"
    path.write_text(edited, encoding="utf-8")
    with pytest.raises(RecordsError) as caught:
        mixed(path)
    assert told in str(caught.value)
    assert f"{path}:2: this line is no label" in str(caught.value)
    with pytest.raises(RecordsError):  # also in a viewer that was open meanwhile, before it writes
        gold.add(said("r2", polite=3))
    with pytest.raises(RecordsError):
        gold.undo("ann")
    assert path.read_text(encoding="utf-8") == edited
    path.write_text(edited.replace(line, ""), encoding="utf-8")
    gold.add(said("r2", polite=3))
    assert gold.counts() == {"ann": 2}


def test_what_people_change_by_hand_counts_at_once(tmp_path: Path) -> None:
    path = tmp_path / "gold.jsonl"
    gold = mixed(path)
    gold.add(said("r1", polite=4))
    path.write_text('{"id": 7, "polite": 2, "annotator": "bob"}\n\n', encoding="utf-8")
    gold.refresh()
    assert gold.counts() == {"bob": 1}
    assert gold.of("7")["bob"].answers == {"polite": 2}


def test_a_disk_that_is_full_takes_no_half_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "gold.jsonl"
    gold = mixed(path)
    gold.add(said("r1", polite=4))
    before, write = path.read_bytes(), os.write

    def full(file: int, data: bytes) -> int:
        if len(data) < 60:
            raise OSError(28, "No space left on device")
        return write(file, data[:60])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(RunError, match="could not be saved: No space left"):
        gold.add(said("r2", polite=3))
    assert path.read_bytes() == before
    monkeypatch.undo()
    assert gold.counts() == {"ann": 1}
    gold.add(said("r2", polite=3))
    assert gold.counts() == {"ann": 2}


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "gold.jsonl", tmp_path):
        with pytest.raises(RunError, match="the gold file cannot be read"):
            mixed(path)
    gold = mixed(tmp_path / "gold.jsonl")
    (tmp_path / "gold.jsonl").mkdir()
    with pytest.raises(RunError):
        gold.add(said("r1", polite=4))


# What agree reads


def test_agree_reads_it_as_it_is(tmp_path: Path) -> None:
    job = Job(tmp_path, "truthfulness", truth_rows(8))
    job.run()
    opened = open_run(job.out)
    [asked] = asked_of(opened.spec)
    labels = [value for value, _, _ in asked.options]
    gold = GoldFile(tmp_path / "gold.jsonl", [asked])

    def give(record_id: str, who: str, place: int, **how: Any) -> None:
        gold.add(Label(record_id, who, {asked.name: labels[place]}, **how))

    for i in range(6):
        give(f"t{i}", "ann", i % 2)
        give(f"t{i}", "bob", 1, blind=i > 1)
    give("t0", "ann", 1, picked="least-sure")  # changed her mind
    gold.undo("bob")
    [joined] = join(opened, [f"{gold.path}:{asked.name}"])
    assert joined.annotators == [f"gold.jsonl:{asked.name}.{who}" for who in ("ann", "bob")]
    told = {record_id: list(row) for record_id, row in zip(joined.ids, joined.people, strict=True)}
    number = [read_label(asked.targets[0], label, {}) for label in labels]
    assert told["t0"] == [number[1], number[1]]
    assert told["t2"] == [number[0], number[1]]
    assert told["t5"][0] == number[1]
    assert told["t5"][1] != told["t5"][1], "bob took back what he said of t5"
    notes = "\n".join(joined.notes)
    assert "1 of 6 records were not picked for labelling at random" in notes
    assert "2 of 6 records were labelled with the judge's verdict in sight" in notes


def test_agree_reads_labels_a_row_a_person_from_elsewhere(tmp_path: Path) -> None:
    job = Job(tmp_path, "truthfulness", truth_rows(4))
    job.run()
    opened = open_run(job.out)
    [asked] = asked_of(opened.spec)
    label = asked.options[0][0]
    rows = [{"id": f"t{i}", "said": label, "annotator": who} for i in range(4) for who in ("x", "y")]
    path = write_rows(tmp_path / "long.jsonl", rows)
    [joined] = join(opened, [f"{path}:said"])
    assert joined.people.shape == (4, 2)
    write_rows(path, [*rows, {"id": "t0", "said": label, "annotator": None}])
    with pytest.raises(RecordsError, match=r"long\.jsonl:9: 'annotator' is null: say who labelled it"):
        join(opened, [f"{path}:said"])
    csv = tmp_path / "long.csv"
    csv.write_text(
        "id,said,annotator\n" + "".join(f"{row['id']},{row['said']},{row['annotator']}\n" for row in rows)
    )
    [other] = join(opened, [f"{csv}:said"])
    assert (other.people == joined.people).all()


def test_lines_hold_what_json_cannot_break(tmp_path: Path) -> None:
    gold = mixed(tmp_path / "gold.jsonl")
    gold.add(said('r"\n\u2028é', "Zoë 李", polite=4))
    assert len((tmp_path / "gold.jsonl").read_bytes().splitlines()) == 1
    assert json.loads((tmp_path / "gold.jsonl").read_bytes())["annotator"] == "Zoë 李"
    assert mixed(gold.path).of('r"\n\u2028é')["Zoë 李"].answers == {"polite": 4}
