"""Verdicts become a training set: what is learnt is what is asked, and nothing leaks from one side to the other."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from localjudge import cli
from localjudge.distill.data import (
    DataSettings,
    Recipe,
    make,
    near_duplicates,
    questions_of,
    read_recipe,
    read_split,
    shingles,
)
from localjudge.engines.base import Ask, Completion
from localjudge.errors import RecordsError, RunError
from localjudge.judge.asking import inputs_of
from localjudge.judge.loading import load_judge
from localjudge.judge.pairwise import verdict_of as pair_verdict
from localjudge.judge.panel import combine
from localjudge.judge.reading import plan_labels, readings_of
from localjudge.judge.rubric import settled_of, verdict_of
from localjudge.judge.spec import JudgeSpec
from localjudge.records import Record, scan_records
from localjudge.run.importing import import_verdicts
from localjudge.verdict import Answer, Verdict

pytest.importorskip("datasets")


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_run(
    folder: Path, spec: JudgeSpec, rows: Sequence[Mapping[str, Any]], verdicts: Sequence[Verdict], **changed: Any
) -> Path:
    """A run as the runner leaves it, of verdicts that are given."""
    folder.mkdir(parents=True)
    records = write_rows(folder / "records.jsonl", rows)
    run = {
        "judge": {key: getattr(spec, key) for key in ("name", "version", "digest", "kind", "language")},
        "model": {"name": "teacher", "fingerprint": "0" * 64},
        "records": {"digest": scan_records(records, spec.inputs).digest if rows else "", "total": len(rows)},
        "settings": {"mapping": {}, "limit": None, "mode": "score"},
        "engine": None,
        "spec": spec.model_dump(mode="json", by_alias=True),
        "paths": {"records": str(records)},
        "sessions": [],
        **changed,
    }
    (folder / "run.json").write_text(json.dumps(run), encoding="utf-8")
    lines = "".join(verdict.model_dump_json() + "\n" for verdict in verdicts)
    (folder / "verdicts.jsonl").write_text(lines, encoding="utf-8")
    return folder


def truths(n: int, per_group: int = 2) -> list[dict[str, Any]]:
    """Answers to questions of unlike words, true and false in turn."""
    words = random.Random(1).sample([f"{a}{b}" for a in "bcdfgklmnprst" for b in ("ab", "ele", "iro", "onu")], 50)
    return [
        {
            "id": f"t{i}",
            "question": f"{words[i // per_group % 50]} {i // per_group} {words[i // per_group * 7 % 50]}?",
            "answer": f"{words[i % 50]} {words[i * 3 % 50]} {i} {words[i * 11 % 50]}",
            "label": "yes" if i % 2 else "no",
        }
        for i in range(n)
    ]


@pytest.fixture
def truth() -> JudgeSpec:
    return load_judge("truthfulness")


@pytest.fixture
def people(tmp_path: Path, truth: JudgeSpec) -> Path:
    """A run of people's labels on 200 answers."""
    file = write_rows(tmp_path / "rows.jsonl", truths(200))
    import_verdicts(truth, file, tmp_path / "people", mapping={"truthful": "label"})
    return tmp_path / "people"


def all_rows(folder: Path) -> list[dict[str, Any]]:
    return [{**row, "split": split} for split in ("train", "dev", "test") for row in read_split(folder, split)]


def test_labels_become_targets_and_prompts_are_those_of_score_mode(
    tmp_path: Path, truth: JudgeSpec, people: Path
) -> None:
    recipe = make([people], tmp_path / "set", DataSettings())
    assert recipe == read_recipe(tmp_path / "set")
    rows = all_rows(tmp_path / "set")
    assert len(rows) == 200 == sum(recipe.rows.values())
    by_id = {row["id"]: row for row in rows}
    for told in truths(200):
        assert by_id[told["id"]]["target"] == ([1.0, 0.0] if told["label"] == "yes" else [0.0, 1.0])
    # What score mode sends, to a model that has yes and no as tokens, and to one that has letters alone.
    for place, one_token in enumerate((lambda labels: True, lambda labels: "yes" not in labels)):
        sent: list[Ask] = []

        async def complete(ask: Ask, sent: list[Ask] = sent) -> Completion:
            sent.append(ask)
            shares = {label: 1 / len(ask.labels) for label in ask.labels}
            return Completion("", 1, 0, 1, "labels", {"": shares}, mass=1.0)

        record = Record("t3", truths(4)[3], "")
        plan = plan_labels(truth, one_token)
        fields = inputs_of(truth, record)
        asyncio.run(readings_of(truth, [fields], complete, plan, settled_of(truth, fields)))
        [ask] = sent
        form = recipe.questions["truthful"].forms[place]
        assert form.labels == list(ask.labels)
        row = by_id["t3"]
        assert [message.text for message in ask.messages] == [row["system"], f"{row['user']}\n\n{form.tail}"]


def test_distributions_are_kept_failures_and_low_mass_are_not(tmp_path: Path, truth: JudgeSpec) -> None:
    rows = truths(8)
    verdicts = []
    for i, row in enumerate(rows):
        if i == 0:
            verdicts.append(Verdict(id="t0", status="too_long", error="x", judge="truthfulness", model="m"))
            continue
        likely = {"no": 0.1 * i, "yes": 1 - 0.1 * i}
        answer = Answer(value=max(likely, key=likely.__getitem__), distribution=likely, mass=0.2 if i == 1 else 0.9)
        verdicts.append(verdict_of(truth, row["id"], [{"truthful": answer}], "m"))
    run = write_run(tmp_path / "run", truth, rows, verdicts)
    recipe = make([run], tmp_path / "set", DataSettings(dev=0, test=0))
    assert recipe.left_out == {"too_long": 1, "low label mass": 1}
    targets = {row["id"]: row["target"] for row in all_rows(tmp_path / "set")}
    assert targets == {f"t{i}": pytest.approx([1 - 0.1 * i, 0.1 * i]) for i in range(2, 8)}


def test_a_panel_teaches_the_mixture_of_its_members(tmp_path: Path, truth: JudgeSpec) -> None:
    rows = truths(2)

    def said(row: Mapping[str, Any], p: float, model: str) -> Verdict:
        answer = Answer(value="yes" if p > 0.5 else "no", distribution={"yes": p, "no": 1 - p}, mass=0.9)
        return verdict_of(truth, row["id"], [{"truthful": answer}], model)

    failed = Verdict(id="t1", status="engine_error", error="x", judge="truthfulness", model="c")
    verdicts = [
        combine(
            truth, "t0", [said(rows[0], p, m) for m, p in zip("abc", (0.9, 0.8, 0.1), strict=True)], "mean", "p"
        ),
        combine(truth, "t1", [said(rows[1], 0.2, "a"), said(rows[1], 0.4, "b"), failed], "mean", "p"),
    ]
    run = write_run(tmp_path / "run", truth, rows, verdicts)
    make([run], tmp_path / "set", DataSettings(dev=0, test=0))
    targets = [row["target"] for row in all_rows(tmp_path / "set")]
    assert targets == [pytest.approx([0.6, 0.4]), pytest.approx([0.3, 0.7])]


def test_pairs_are_learnt_in_both_orders_and_those_that_disagree_count_less(tmp_path: Path) -> None:
    spec = load_judge("pairwise")
    words = ("ox", "bee", "cat", "dog")
    rows = [
        {"id": word, "instruction": f"Draw {word}", "response_a": f"{word} one", "response_b": f"two {word} three"}
        for word in words
    ]
    told = [("A", "A"), ("B", "B"), ("A", "B"), ("A", "A")]
    verdicts = [
        pair_verdict(spec, row["id"], [{"preference": Answer(value=value)} for value in values], "m")
        for row, values in zip(rows, told, strict=True)
    ]
    # The last is read, and its orders pull apart: 0.9 and 0.6 of A, whose mean log-odds are 0.786.
    read = [{"preference": Answer(value="A", distribution={"A": p, "B": 1 - p}, mass=1.0)} for p in (0.9, 0.6)]
    verdicts[3] = pair_verdict(spec, "dog", read, "m")
    run = write_run(tmp_path / "run", spec, rows, verdicts)
    recipe = make([run], tmp_path / "set", DataSettings(dev=0, test=0))
    assert recipe.left_out == {"the orders disagree": 2}
    found = {(row["id"], row["order"]): row for row in all_rows(tmp_path / "set")}
    assert found["ox", "straight"]["target"] == [1.0, 0.0]
    assert found["ox", "swapped"]["target"] == [0.0, 1.0]
    straight, swapped = (found["bee", order]["user"] for order in ("straight", "swapped"))
    assert straight.index("bee one") < straight.index("two bee three")
    assert swapped.index("bee one") > swapped.index("two bee three")
    assert found["dog", "straight"]["target"] == pytest.approx([0.786, 0.214], abs=1e-3)
    assert found["dog", "swapped"]["target"] == found["dog", "straight"]["target"][::-1]
    assert recipe.balance["train"]["preference"] == {"A": 3.0, "B": 3.0}

    make([run], tmp_path / "weighed", DataSettings(dev=0, test=0, inconsistent=0.25))
    weighed = [row for row in all_rows(tmp_path / "weighed") if row["id"] == "cat"]
    assert [(row["target"], row["weight"]) for row in weighed] == [([0.5, 0.5], 0.25)] * 2


def test_every_type_of_question_has_its_labels_and_their_worth(tmp_path: Path) -> None:
    file = tmp_path / "judge.yaml"
    file.write_text(
        """
name: many
inputs: [text]
questions:
  - {id: grade, type: score, ask: How good., scale: [1, 5], cannot: true}
  - {id: depth, type: score, ask: How deep., scale: [1, 5]}
  - {id: tone, type: choice, ask: Which tone., options: {warm: w, cold: c, flat: f}}
  - {id: wrong, type: flags, ask: What is wrong., codes: {rude: It is rude., vague: It is vague.}}
"""
    )
    spec = load_judge(file)
    asked = questions_of(spec)
    assert list(asked) == ["grade", "depth", "tone", "wrong.rude", "wrong.vague"]
    assert asked["grade"].worth == [0.0, 0.25, 0.5, 0.75, 1.0, None]
    assert [form.labels for form in asked["grade"].forms] == [
        ["1", "2", "3", "4", "5", "cannot_judge"],
        list("ABCDEF"),
    ]
    assert asked["tone"].worth is None
    assert "It is vague." in asked["wrong.vague"].forms[0].tail
    rows = [{"id": f"r{i}", "text": f"{word} {word}{i}"} for i, word in enumerate(("ab", "cd"))]
    verdicts = [
        verdict_of(
            spec,
            f"r{i}",
            [
                {
                    name: Answer(value=value)
                    for name, value in zip(("grade", "depth", "tone", "wrong"), told, strict=True)
                }
            ],
            "m",
        )
        for i, told in enumerate([(None, 2, "cold", ["vague"]), (4, 3, "warm", [])])
    ]
    run = write_run(tmp_path / "run", spec, rows, verdicts)
    make([run], tmp_path / "set", DataSettings(dev=0, test=0, smoothing=0.1), judge=spec)
    found = {(row["id"], row["asked"]): row["target"] for row in all_rows(tmp_path / "set")}
    assert len(found) == 10
    assert found["r0", "grade"] == pytest.approx([0.1 / 6] * 5 + [0.9 + 0.1 / 6])
    assert found["r1", "tone"] == pytest.approx([0.9 + 0.1 / 3, 0.1 / 3, 0.1 / 3])
    assert found["r0", "wrong.vague"] == pytest.approx([0.95, 0.05])
    assert found["r1", "wrong.rude"] == pytest.approx([0.05, 0.95])


def test_a_group_is_on_one_side_and_twins_are_not_on_both(tmp_path: Path, truth: JudgeSpec, people: Path) -> None:
    recipe = make([people], tmp_path / "set", DataSettings(dev=0.2, test=0.2))
    rows = all_rows(tmp_path / "set")
    sides: dict[str, set[str]] = {}
    for row in rows:
        sides.setdefault(row["group"], set()).add(row["split"])
    assert all(len(side) == 1 for side in sides.values())
    assert len(sides) == 100
    assert all(recipe.rows[split] > 10 for split in ("train", "dev", "test"))
    assert make([people], tmp_path / "again", DataSettings(dev=0.2, test=0.2)) == recipe

    # Splits that the records carry, of which one group and two texts leak.
    own = truths(60)
    for i, row in enumerate(own):
        row["split"] = ("train", "train", "train", "validation", "test")[i // 2 % 5]
    long = " ".join(f"word{i}" for i in range(20))
    own += [
        {"id": "in-test", "question": "zig zag?", "answer": long, "label": "yes", "split": "test"},
        {"id": "same-group", "question": "Zig, ZAG", "answer": "no more", "label": "no", "split": "train"},
        {
            "id": "near",
            "question": "zig zag",
            "answer": f"{long} twice",
            "group": "x",
            "label": "no",
            "split": "train",
        },
        {"id": "dev-near", "question": "zig zag", "answer": long, "group": "y", "label": "no", "split": "dev"},
    ]
    import_verdicts(truth, write_rows(tmp_path / "own.jsonl", own), tmp_path / "own", mapping={"truthful": "label"})
    recipe = make([tmp_path / "own"], tmp_path / "own-set", DataSettings(split_field="split"))
    kept = {row["id"]: row["split"] for row in all_rows(tmp_path / "own-set")}
    assert kept["in-test"] == "test"
    assert not kept.keys() & {"same-group", "near", "dev-near"}
    assert kept["t6"] == "dev"
    assert recipe.left_out == {
        "its group is in dev or test too": 1,
        "all but the same is in dev or test too": 1,
        "all but the same is in test too": 1,
    }


def test_near_texts_are_those_that_comparing_all_with_all_finds() -> None:
    draw = random.Random(0)
    texts = [" ".join(draw.choice("abcdef") for _ in range(draw.randint(1, 14))) for _ in range(150)]
    texts += [f"{text} {draw.choice('abc')}" for text in texts[:40]]
    sets = [shingles(text) for text in texts]
    one, other = sets[::2], sets[1::2]
    for least in (0.3, 0.5, 0.8, 1.0):
        brute = [any(len(a & b) / len(a | b) >= least for b in other) for a in one]
        assert near_duplicates(one, other, least) == brute
        assert any(brute)
        assert not all(brute)


def test_gold_that_is_trained_on_is_refused(tmp_path: Path, people: Path) -> None:
    recipe = make([people], tmp_path / "set", DataSettings())
    train, test = (
        [row["id"] for row in all_rows(tmp_path / "set") if row["split"] == s] for s in ("train", "test")
    )
    by_id = {row["id"]: row for row in truths(200)}
    apart = write_rows(tmp_path / "apart.jsonl", [by_id[id] for id in test])
    assert make([people], tmp_path / "good", DataSettings(), gold=[apart]).digest == recipe.digest
    by_name = write_rows(tmp_path / "ids.jsonl", [{"id": test[0]}, {"id": train[0]}])
    with pytest.raises(
        RecordsError, match=r"ids\.jsonl: 1 of its records are in the training split \(ids\.jsonl:2"
    ):
        make([people], tmp_path / "bad", DataSettings(), gold=[by_name])
    other = {**by_id[train[1]], "id": "other", "answer": by_id[train[1]]["answer"].upper()}
    by_text = write_rows(tmp_path / "texts.jsonl", [other])
    with pytest.raises(RecordsError, match="1 of its records are in the training split"):
        make([people], tmp_path / "bad", DataSettings(), gold=[by_text])
    assert not (tmp_path / "bad").exists()
    near = {**by_id[train[2]], "id": "near", "question": f"{' '.join(f'word{i}' for i in range(20))}?"}
    long = write_rows(tmp_path / "long.jsonl", [{**near, "id": f"n{i}", "label": ("yes", "no")[i]} for i in (0, 1)])
    refusal = {**near, "question": near["question"].replace("word0", "Word1")}
    by_near = write_rows(tmp_path / "near.jsonl", [refusal, {"id": "far", "answer": "z"}, {"id": "far"}])
    import_verdicts(load_judge("truthfulness"), long, tmp_path / "long", mapping={"truthful": "label"})
    with pytest.raises(RecordsError, match=r"1 of its records are in the training split \(near\.jsonl:1\)"):
        make([people, tmp_path / "long"], tmp_path / "bad", DataSettings(dev=0, test=0), gold=[by_near])
    nameless = write_rows(tmp_path / "nameless.jsonl", [{"label": "yes"}])
    with pytest.raises(RecordsError, match="neither an id nor what was judged"):
        make([people], tmp_path / "bad", DataSettings(), gold=[nameless])


def test_gold_is_known_by_the_names_that_the_run_was_told_of(tmp_path: Path, truth: JudgeSpec) -> None:
    rows = [{"q": row["question"], "a": row["answer"], "label": row["label"]} for row in truths(20)]
    mapping = {"truthful": "label", "question": "q", "answer": "a"}
    file = write_rows(tmp_path / "rows.jsonl", rows)
    import_verdicts(truth, file, tmp_path / "run", mapping=mapping)
    with pytest.raises(RecordsError, match="20 of its records are in the training split"):
        make([tmp_path / "run"], tmp_path / "set", DataSettings(dev=0, test=0), gold=[file])


def test_records_of_two_runs_may_have_the_same_ids(tmp_path: Path, truth: JudgeSpec) -> None:
    for split, rows in (("train", truths(40)), ("test", truths(80)[40:])):
        own = [{**row, "id": str(i), "split": split} for i, row in enumerate(rows)]
        if split == "test":
            own[0] = {
                **own[0],
                "question": "Other?",
                "answer": f"{truths(6)[5]['question']} {truths(6)[5]['answer']}",
            }
            own[1] = {**truths(40)[7], "id": "1", "split": "test", "group": "another"}
        file = write_rows(tmp_path / f"{split}.jsonl", own)
        import_verdicts(truth, file, tmp_path / split, mapping={"truthful": "label"})
    runs = [tmp_path / "train", tmp_path / "test"]
    recipe = make(runs, tmp_path / "set", DataSettings(split_field="split"))
    # The seventh is in test, as the second record there; the text of no other is.
    assert recipe.left_out == {"all but the same is in dev or test too": 1}
    assert "7" not in {row["id"] for row in all_rows(tmp_path / "set") if row["split"] == "train"}


def test_records_that_are_no_longer_those_of_the_run_are_refused(
    tmp_path: Path, truth: JudgeSpec, people: Path
) -> None:
    run = json.loads((people / "run.json").read_text())
    file = Path(run["paths"]["records"])
    before = file.read_text()
    file.write_text(before.replace("?", "!!", 1))
    with pytest.raises(RecordsError, match=r"no longer the records of the run\n  put them back"):
        make([people], tmp_path / "set", DataSettings())
    other = tmp_path / "elsewhere.jsonl"
    other.write_text(before)
    assert make([people], tmp_path / "set", DataSettings(), records=other).rows["train"] > 100

    # The answers of a batch come without what they are of.
    lines = [
        {
            "custom_id": row["id"],
            "response": {
                "status_code": 200,
                "body": {
                    "choices": [{"message": {"content": json.dumps({"rationale": "so", "truthful": row["label"]})}}]
                },
            },
        }
        for row in truths(40)
    ]
    import_verdicts(truth, write_rows(tmp_path / "batch.jsonl", lines), tmp_path / "batch")
    with pytest.raises(RunError, match=r"without the records.*\n.*--records"):
        make([tmp_path / "batch"], tmp_path / "batch-set", DataSettings())
    made = make([tmp_path / "batch"], tmp_path / "batch-set", DataSettings(), records=other)
    assert sum(made.rows.values()) == 40, made.left_out


def test_what_cannot_be_learnt_from_is_refused(tmp_path: Path, truth: JudgeSpec, people: Path) -> None:
    def refused(runs: list[Path], match: str, out: str = "set", **settings: Any) -> None:
        with pytest.raises((RunError, RecordsError), match=match):
            make(runs, tmp_path / out, DataSettings(**settings))

    one_sided = [{**row, "label": "yes"} for row in truths(40)]
    import_verdicts(
        truth, write_rows(tmp_path / "y.jsonl", one_sided), tmp_path / "y", mapping={"truthful": "label"}
    )
    refused([tmp_path / "y"], "every answer in the training set is 'yes'")
    failed = [Verdict(id=f"t{i}", status="engine_error", error="x", judge="j", model="m") for i in range(4)]
    empty = write_run(tmp_path / "empty", truth, truths(4), failed)
    refused([empty], r"the training set is empty; left out: 4 \(engine_error\)")
    refused([tmp_path], "holds no run")
    refused([], "no run to learn from")
    refused([people], "no field 'splitt'", split_field="splitt")
    refused([people], "which is no split", split_field="answer")
    refused([people], "leave nothing to train on", dev=0.5, test=0.5)
    other = load_judge("truthfulness", ["rationale=0"])
    moved = write_run(tmp_path / "other", other, truths(4), [])
    refused([people, moved], "another judge")
    items = write_run(tmp_path / "items", load_judge("checklist"), [], [])
    refused([items], "'checklist' is of the kind checklist")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine").write_text("")
    refused([people], "is there already, and is no training set", out="taken")
    with pytest.raises(RunError, match="is no training set"):
        make([people], tmp_path / "taken", DataSettings(), force=True)
    with pytest.raises(RunError, match="holds no training set"):
        read_recipe(tmp_path / "taken")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "recipe.json").write_text("{}")
    with pytest.raises(RunError, match="recipe cannot be read"):
        read_recipe(broken)
    (tmp_path / "set").mkdir()
    assert isinstance(make([people], tmp_path / "set", DataSettings()), Recipe)
    refused([people], "is there already\n  .*--force")
    make([people], tmp_path / "set", DataSettings(seed=1), force=True)


def test_the_command_says_what_it_made_and_what_is_wrong(
    tmp_path: Path, people: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*words: Any) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["localjudge", "distill", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return (int(caught.value.code or 0), *capsys.readouterr())

    code, out, _ = call("data", people, "-o", tmp_path / "set")
    recipe = read_recipe(tmp_path / "set")
    assert code == 0
    assert f"train {recipe.rows['train']:>8} rows, {recipe.groups['train']} groups" in out
    assert "truthful: yes " in out
    for words, told in (
        (("--inconsistent", "often"), "--inconsistent: 'often' is neither drop nor a factor"),
        (("--dev", "2"), "--dev: 2.0: input should be less than 1"),
        (("--group", "questoin"), "did you mean 'question'?"),
        (("--set", "a=1"), "--set: there is no --judge"),
        ((), "is there already"),
    ):
        code, out, error = call("data", people, "-o", tmp_path / "set", *(("--force",) if words else ()), *words)
        assert code == 2, words
        assert told in error
        assert "Traceback" not in error
    assert read_recipe(tmp_path / "set") == recipe
