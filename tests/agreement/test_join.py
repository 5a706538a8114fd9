"""Verdicts meet labels by id alone; whatever does not meet, or is no label, is counted or told."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from localjudge import cli
from localjudge.agreement.join import join, open_run, parse_gold
from localjudge.errors import LocalJudgeError
from localjudge.judge.loading import load_judge
from tests.agreement.conftest import ABSOLUTE, MIXED, Imported, figures, held_of, judge_file, value_of
from tests.run.conftest import write_rows

PAIRS = [
    {
        "id": f"p{i}",
        "preference": "AB"[i % 2],
        "label": "AB"[i % 3 % 2],
        "response_a": "a" * i,
        "response_b": "bbbb",
    }
    for i in range(60)
]


@pytest.fixture
def pairs(imported: Imported) -> Path:
    return imported("pairwise", PAIRS)


def refused(run: Path, *golds: str, **options: Any) -> str:
    with pytest.raises(LocalJudgeError) as caught:
        held_of(run, *golds, **options)
    return str(caught.value)


# Joining


def test_labels_of_the_records_and_labels_in_a_file_are_the_same_labels(pairs: Path, tmp_path: Path) -> None:
    shuffled = random.Random(1).sample(PAIRS, len(PAIRS))
    beside = write_rows(tmp_path / "gold.jsonl", [{"id": row["id"], "human": row["label"]} for row in shuffled])
    own, other = held_of(pairs, "label"), held_of(pairs, f"{beside}:human")
    assert own.figures[0].value == sum(row["preference"] == row["label"] for row in PAIRS) / 60
    assert figures(own) == figures(other)
    csv = tmp_path / "gold.csv"
    csv.write_text("key,human\n" + "".join(f"{row['id']},{row['label']}\n" for row in shuffled))
    assert figures(held_of(pairs, f"{csv}:human", gold_id="key")) == figures(own)


def test_what_is_judged_without_a_label_and_labelled_without_a_verdict_is_counted(
    pairs: Path, tmp_path: Path
) -> None:
    some = [{"id": row["id"], "human": row["label"]} for row in PAIRS[:40]]
    gold = write_rows(tmp_path / "gold.jsonl", [*some, {"id": "q1", "human": "A"}, {"id": "p50", "human": None}])
    held = held_of(pairs, f"{gold}:human")
    counts = {name: held.counts[name] for name in ("verdicts", "used", "without_gold", "without_verdict")}
    assert counts == {"verdicts": 60, "used": 40, "without_gold": 20, "without_verdict": 1}
    assert "1 labelled ids are not in the run, such as 'q1'" in held.notes[0]


def test_records_that_could_not_be_judged_are_told_by_status(imported: Imported) -> None:
    rows = [{**row, "preference": "C"} if i < 5 else row for i, row in enumerate(PAIRS)]
    held = held_of(imported("pairwise", rows, skip_invalid=True), "label")
    assert held.counts["not_judged"] == {"invalid_record": 5}
    assert value_of(held, "accuracy", "n") == 55
    assert value_of(held, "accuracy_of_all", "n") == 60
    right = sum(row["preference"] == row["label"] for row in rows)
    assert value_of(held, "accuracy_of_all") == pytest.approx(right / 60)


def test_people_s_words_for_labels_can_be_told(imported: Imported) -> None:
    words = {"A": "first", "B": "second"}
    run = imported("pairwise", [{**row, "human": words[row["label"]]} for row in PAIRS])
    assert "'first' is not one of A, B" in refused(run, "human")
    held = held_of(run, "human", theirs={"first": "A", "second": "B"})
    assert figures(held) == figures(held_of(run, "label"))


def test_a_tie_of_people_that_the_judge_may_not_give_is_an_error_of_the_judge(imported: Imported) -> None:
    held = held_of(
        imported("pairwise", [{**row, "label": "tie"} if i < 6 else row for i, row in enumerate(PAIRS)]), "label"
    )
    assert held.labels == ["A", "B", "tie"]
    assert held.confusion
    assert sum(row[2] for row in held.confusion.table) == 6
    assert value_of(held, "accuracy_ties_dropped", "n") == 54


def test_the_judge_s_own_mapping_of_ids_holds_for_labels_too(imported: Imported) -> None:
    rows = [{**{k: v for k, v in row.items() if k != "id"}, "key": {"n": row["id"]}} for row in PAIRS]
    run = imported("pairwise", rows, mapping={"id": "key.n"})
    assert held_of(run, "label").counts["used"] == 60


def test_records_without_ids_are_known_by_their_content(imported: Imported) -> None:
    rows = [{k: v for k, v in row.items() if k != "id"} | {"n": i} for i, row in enumerate(PAIRS)]
    assert held_of(imported("pairwise", rows), "label").counts["used"] == 60


def test_records_that_were_moved_are_asked_for(pairs: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere.jsonl"
    shutil.move(tmp_path / "run.jsonl", moved)
    assert "the run's records are not here any more" in refused(pairs, "label")
    assert held_of(pairs, "label", records=moved).counts["used"] == 60
    gold = write_rows(tmp_path / "gold.jsonl", [{"id": row["id"], "human": row["label"]} for row in PAIRS])
    held = held_of(pairs, f"{gold}:human")
    assert value_of(held, "accuracy", "longer") is None
    assert any("no baseline of length" in note for note in held.notes)


# Every kind of question


def test_scores_choices_flags_passes_and_overall(imported: Imported, tmp_path: Path) -> None:
    rng = random.Random(3)
    rows = [
        {
            "id": str(i),
            "response": "x" * rng.randint(1, 50),
            "good": rng.randint(1, 5),
            "tone": rng.choice(["warm", "cold", "flat"]),
            "lines": rng.sample(["HARM", "LIE"], rng.randint(0, 2)),
        }
        for i in range(80)
    ]
    for row in rows:
        row["people"] = {
            "good": max(1, row["good"] - rng.randint(0, 1)),
            "mean": row["good"] + rng.choice([-0.5, 0, 0.5]) if 1 < row["good"] < 5 else row["good"],
            "tone": row["tone"] if rng.random() < 0.7 else "flat",
            "lines": row["lines"] if rng.random() < 0.8 else [],
            "passed": "pass" if row["good"] >= 3 and not row["lines"] else "fail",
        }
    run = imported(judge_file(tmp_path, MIXED), rows)
    golds = [
        "good=people.good",
        "tone=people.tone",
        "lines=people.lines",
        "passed=people.passed",
        "overall=people.mean",
    ]
    found = {data.target.name: data for data in join(open_run(run), golds)}
    assert list(found) == ["good", "tone", "lines.HARM", "lines.LIE", "passed", "overall"]
    assert all(data.counts.used == 80 for data in found.values())
    passed = held_of(run, "passed=people.passed")
    assert value_of(passed, "accuracy") == 1
    assert [one.label for one in passed.by_label] == ["fail", "pass"]
    harm = held_of(run, "lines.HARM=people.lines")
    assert value_of(harm, "recall") == 1 > value_of(harm, "precision")
    assert value_of(held_of(run, "overall=people.mean"), "pearson") > 0.9
    tone = held_of(run, "tone=people.tone")
    assert {"accuracy", "macro_f1", "kappa", "alpha_nominal"} == set(figures(tone))
    assert value_of(held_of(run, "people.mean"), "mae") is not None, "of several questions, the overall is meant"


@pytest.mark.parametrize(
    ("target", "value", "told"),
    [
        ("good", 7, "7 is outside the scale 1 to 5"),
        ("good", "four", "'four' is not a number"),
        ("good", True, "true is not a number"),
        ("tone", "Warm", "'Warm' is not one of warm, cold, flat"),
        ("lines.HARM", {"LIE": True}, "says nothing of HARM"),
        ("passed", "maybe", "'maybe' is neither true nor false"),
        ("overall", 5.5, "5.5 is outside the scale 1 to 5"),
    ],
)
def test_a_label_that_the_judge_cannot_give_is_refused_with_its_place(
    imported: Imported, tmp_path: Path, target: str, value: Any, told: str
) -> None:
    rows = [{"id": f"r{i}", "good": 3, "tone": "warm", "lines": [], "human": value} for i in range(7)]
    message = refused(imported(judge_file(tmp_path, MIXED), rows), f"{target}=human")
    assert "--gold: 7 of 7 labels are not what the judge can give" in message
    assert f"run.jsonl:1: id 'r0': {told}" in message
    assert "and 2 more" in message


# Several people


def test_several_people_as_one_field_several_or_one_list_are_the_same_people(
    imported: Imported, tmp_path: Path
) -> None:
    rng = random.Random(5)
    rows = [
        {
            "id": str(i),
            "response": "x",
            "quality": (q := rng.randint(1, 5)),
            "votes": [min(5, q + rng.randint(0, 1)) for _ in "abc"],
        }
        for i in range(50)
    ]
    run = imported(judge_file(tmp_path, ABSOLUTE), rows)
    one, three = held_of(run, "votes"), held_of(run, "votes.0", "votes.1", "votes.2")
    assert figures(one) == figures(three)
    assert one.people
    assert one.people.annotators == ["votes.0", "votes.1", "votes.2"]
    assert value_of(one, "accuracy", "people") is not None
    assert one.alt_test


def test_where_people_are_split_evenly_there_is_no_consensus_and_no_label(imported: Imported) -> None:
    rows = [{**row, "votes": [row["label"], "A" if i < 8 else row["label"]]} for i, row in enumerate(PAIRS)]
    split = sum(row["label"] == "B" for row in rows[:8])
    held = held_of(imported("pairwise", rows), "votes")
    assert held.counts["no_consensus"] == split > 0
    assert value_of(held, "accuracy", "n") == 60 - split
    assert held.people
    assert held.people.pairwise.n == 60, "people's own agreement is told of all that they labelled"


# What is refused


def test_an_id_labelled_twice(pairs: Path, tmp_path: Path) -> None:
    gold = write_rows(tmp_path / "gold.jsonl", [{"id": "p1", "human": "A"}, {"id": "p1", "human": "B"}])
    message = refused(pairs, f"{gold}:human")
    assert "1 rows of labels cannot be joined" in message
    assert "gold.jsonl:2: id 'p1' was used before, at line 1" in message


def test_labels_of_other_records(pairs: Path, tmp_path: Path) -> None:
    gold = write_rows(tmp_path / "gold.jsonl", [{"id": f"x{i}", "human": "A"} for i in range(9)])
    message = refused(pairs, f"{gold}:human")
    assert (
        "none of the 9 labelled ids is in the run: there are labels of 'x0' and others, verdicts of 'p0'" in message
    )
    no_id = write_rows(tmp_path / "no_id.jsonl", [{"key": row["id"], "human": row["label"]} for row in PAIRS])
    message = refused(pairs, f"{no_id}:human")
    assert "the rows have no 'id'" in message
    assert "known: human, key" in message


def test_fields_files_targets_and_runs_that_are_not_there(pairs: Path, tmp_path: Path) -> None:
    message = refused(pairs, "lable")
    assert "no record has a field 'lable'" in message
    assert "did you mean 'label'?" in message
    assert "no record has a field 'langage'" in refused(pairs, "label", slices=["langage"])
    assert "no record has a field 'topic'" in refused(pairs, "label", group="topic")
    gold = write_rows(tmp_path / "gold.jsonl", [{"id": row["id"], "human": row["label"]} for row in PAIRS])
    assert "did you mean 'human'?" in refused(pairs, f"{gold}:humam")
    assert "gold.jsonl'?" in refused(pairs, f"{tmp_path}/gould.jsonl:human")
    message = refused(pairs, "preferance=label")
    assert "the judge pairwise has no question 'preferance'" in message
    assert "did you mean 'preference'?" in message
    assert "is a file" in refused(pairs, str(gold))
    assert "no labels to hold the run against" in refused(pairs)
    assert "holds no run" in refused(tmp_path, "label")
    assert "60 values" in refused(pairs, "label", slices=["id"])
    assert parse_gold("preference=a.jsonl:b.c") == ("preference", Path("a.jsonl"), "b.c", "preference=a.jsonl:b.c")


def test_a_run_of_which_nothing_was_judged(imported: Imported, tmp_path: Path) -> None:
    run = imported("pairwise", PAIRS)
    lines = [json.loads(line) for line in (run / "verdicts.jsonl").read_text().splitlines()]
    failed = [{**line, "status": "engine_error", "overall": None, "answers": {}} for line in lines]
    (run / "verdicts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in failed))
    assert "no record was judged: 60 engine_error" in refused(run, "label")
    (run / "verdicts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [*failed[:59], lines[59]]))
    gold = write_rows(tmp_path / "gold.jsonl", [{"id": "p3", "human": "A"}])
    assert "no labelled record was judged: 1 engine_error" in refused(run, f"{gold}:human")
    (run / "verdicts.jsonl").write_text("")
    assert "holds no verdicts yet" in refused(run, "label")


def test_compressed_labels_and_the_command_line(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gold = tmp_path / "gold.jsonl.gz"
    with gzip.open(gold, "wt") as file:
        file.writelines(json.dumps({"id": row["id"], "human": row["label"]}) + "\n" for row in PAIRS)
    monkeypatch.setattr("sys.argv", ["localjudge", "agree", str(pairs), "--gold", f"{gold}:human", "--no-figures"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert "60 of 60 verdicts held against people." in out
    assert "one answer" in out
    result = json.loads((pairs / "agreement.json").read_text())
    assert result["held"][0]["figures"][0]["name"] == "accuracy"
    page = (pairs / "agreement.md").read_text()
    assert page.startswith("# pairwise against people, judged by run")
    assert "| accuracy " in page
    monkeypatch.setattr("sys.argv", ["localjudge", "agree", str(pairs), "--gold", "nothing"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_records_that_hang_together_are_resampled_together(imported: Imported) -> None:
    rng = random.Random(2)
    rows = [{**row, "label": rng.choice("AB"), "topic": i // 6} for i, row in enumerate(PAIRS)]
    run = imported("pairwise", rows)
    apart, together = held_of(run, "label"), held_of(run, "label", group="topic")
    assert (apart.grouped, together.grouped) == (False, True)
    assert value_of(apart, "accuracy", "method") == "wilson"
    assert value_of(together, "accuracy", "method") == "bca"
    assert any("only 10 groups" in note for note in together.notes)
    named = imported("pairwise", [{**row, "group": i // 6} for i, row in enumerate(PAIRS)], "named")
    assert held_of(named, "label").grouped, "a field called group is taken by itself"


def test_judges_that_are_built_in_have_what_can_be_held_against_people() -> None:
    from localjudge.agreement.targets import targets_of

    assert list(targets_of(load_judge("answer-quality")))[-2:] == ["overall", "passed"]
    assert list(targets_of(load_judge("pairwise"))) == ["preference"]
