"""A tiny random model learns a planted rule from verdicts: whether a text has the word zebra in it."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import math
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("peft")
pytest.importorskip("datasets")

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from localjudge.cli import app
from localjudge.distill import encoded as encoding
from localjudge.distill import train as training
from localjudge.distill import trainer as room
from localjudge.distill.data import Asked, DataSettings, Form, make, read_split
from localjudge.distill.encoded import Encoded, Labels, encode_reasons, keep_lower, read_labels
from localjudge.distill.learning import label_loss
from localjudge.distill.student import LINEAR, Student, common_prefix, fuse
from localjudge.distill.train import Trained, train
from localjudge.distill.trainer import TrainSettings
from localjudge.engines.chat import ChatEncoder
from localjudge.engines.inprocess import AskCodec
from localjudge.engines.transformers import TransformersEngine
from localjudge.errors import ModelError, RunError
from localjudge.judge.loading import load_judge
from localjudge.models import LocalModel, find_model
from localjudge.records import Record
from localjudge.run.importing import import_verdicts
from localjudge.run.runner import Settings, judge_record, label_plan
from localjudge.run.store import hold
from tests.distill.test_data import write_rows
from tests.tiny import tiny_model

JUDGE = """
name: zebra
inputs: [text]
system: You look for animals.
user: "{{ text | bare }}"
rationale: 0
questions:
  - {id: has, type: choice, ask: Is it there., options: {"yes": it is, "no": it is not}}
scoring:
  values: {has: {"yes": 1, "no": 0}}
"""
OTHERS = (
    "ox",
    "bee",
    "cat",
    "dog",
    "elk",
    "fox",
    "gnu",
    "hen",
    "ibis",
    "jay",
    "koi",
    "lark",
    "mole",
    "newt",
    "owl",
)
HOW = TrainSettings(
    rank=8, alpha=16, lr=1e-2, freeze_layers=1, epochs=6, every=16, dev_rows=40, dtype="float32", batch=16
)


def texts(n: int) -> list[dict[str, Any]]:
    draw = random.Random(0)
    rows = []
    for i in range(n):
        words = [draw.choice(OTHERS) for _ in range(draw.randint(3, 5))]
        if i % 2:
            words[draw.randrange(len(words))] = "zebra"
        rows.append({"id": f"r{i}", "group": str(i), "text": " ".join(words), "label": ["no", "yes"][i % 2]})
    return rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("distill")


@pytest.fixture(scope="module")
def base(folder: Path, embedded: LocalModel) -> LocalModel:
    return tiny_model(folder / "tiny")


@pytest.fixture(scope="module")
def data(folder: Path) -> Path:
    """A training set of 320 texts, from people's labels imported as a run."""
    (folder / "zebra.yaml").write_text(JUDGE)
    rows = write_rows(folder / "rows.jsonl", texts(320))
    import_verdicts(load_judge(folder / "zebra.yaml"), rows, folder / "run", mapping={"has": "label"})
    make([folder / "run"], folder / "set", DataSettings(near=1.0, dev=0.2, test=0.1))
    return folder / "set"


@pytest.fixture(scope="module")
def trained(folder: Path, data: Path, base: LocalModel) -> Trained:
    return train(data, base, folder / "out", HOW)


def curve_of(out: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (out / "loss.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


# The whole way


def test_the_student_learns_the_rule_and_judges_by_it(folder: Path, data: Path, trained: Trained) -> None:
    assert trained.dev["accuracy"] > 0.9
    assert trained.steps >= 40
    assert not (folder / "out" / "cache").exists()
    assert (folder / "out" / "loss.png").is_file()
    told = json.loads((folder / "out" / "adapter" / "distill.json").read_text())
    assert told["labels"] == {"has": ["yes", "no"]}
    assert told["settings"]["freeze_layers"] == 1
    assert told["results"]["dev"] == trained.dev
    assert str(folder) not in json.dumps(told)  # what is handed on does not say where it was made
    assert sorted(load_file(trained.adapter / "adapter.safetensors"))[0] == (  # type: ignore[operator]
        "base_model.model.model.layers.1.mlp.down_proj.lora_A.weight"
    )

    # The merged folder is a model like any other, and score mode reads off it what was learnt.
    spec = load_judge(folder / "zebra.yaml")
    model = find_model(str(trained.model))

    async def right() -> float:
        engine = await TransformersEngine.start(model, {"dtype": "float32"})
        settings = Settings(mode="score")
        plan = label_plan(spec, engine, settings)
        rows = texts(400)[320:]
        verdicts = await asyncio.gather(
            *(judge_record(spec, Record(r["id"], r, ""), engine, "m", settings, None, plan) for r in rows)
        )
        await engine.close()
        return sum(v.answers["has"].value == r["label"] for v, r in zip(verdicts, rows, strict=True)) / len(rows)

    assert asyncio.run(right()) > 0.9


def test_rounds_of_real_models_end_with_a_student_that_agrees(
    folder: Path, trained: Trained, base: LocalModel, tmp_path: Path
) -> None:
    """The model that knows the rule teaches one that does not, through the command line and a real engine."""
    write_rows(tmp_path / "rows.jsonl", [{**row, "label": None} for row in texts(260)])
    command = ["distill", "rounds", str(folder / "zebra.yaml"), str(tmp_path / "rows.jsonl")]
    command += ["--student", str(base.path), "--teacher", str(trained.model), "-o", str(tmp_path / "rounds")]
    command += ["--engine", "transformers", "--no-cache", "--per-round", "100", "--rounds", "2", "--hold-out", "40"]
    command += ["--lr", "1e-2", "--freeze-layers", "1", "--epochs", "6"]
    refused = CliRunner().invoke(app, [*command, "--min-mass", "1"])
    assert refused.exit_code == 1 and "low label mass" in str(refused.exception)
    assert "--min-mass" in str(refused.exception)
    # So small a teacher believes in its labels but little; the same folder goes on.
    result = CliRunner().invoke(app, [*command, "--min-mass", "0"])
    assert result.exit_code == 0, result.output
    told = [
        json.loads((tmp_path / "rounds" / name / "round.json").read_text())
        for name in ("held-out", "round-1", "round-2")
    ]
    assert [one["labelled"] for one in told] == [0, 100, 200]
    assert told[0]["agreement"] < 0.75 and told[2]["agreement"] > 0.85
    assert find_model(told[2]["model"]).path == tmp_path / "rounds" / "round-2" / "training" / "model"
    assert told[2]["model"] in result.output


class Killed(BaseException):
    """As abrupt as it gets in one process."""


def test_killed_and_gone_on_with_it_ends_where_it_would_have(
    folder: Path, data: Path, base: LocalModel, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = folder / "killed"
    step_of = room.Watch.on_step_end

    def dies(self: Any, args: Any, state: Any, control: Any, **more: Any) -> Any:
        if state.global_step == 21:
            raise Killed
        return step_of(self, args, state, control, **more)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(room.Watch, "on_step_end", dies)
        train(data, base, out, HOW)
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["checkpoint-16"]
    with (out / "loss.jsonl").open("a") as file:
        file.write('{"step": 1')
    again = train(data, base, out, HOW)
    assert curve_of(out) == curve_of(folder / "out")  # and so are two trainings of one seed
    one, other = (load_file(done.adapter / "adapter.safetensors") for done in (again, trained))  # type: ignore[operator]
    assert all((one[name] == other[name]).all() for name in other)
    assert again.dev == trained.dev
    # Asked once more it has nothing left to do, but to merge what was not.
    shutil.rmtree(again.model)  # type: ignore[arg-type]
    with monkeypatch.context() as patch:
        patch.setattr(training, "load_student", None)
        assert train(data, base, out, HOW) == again
    merged = [(done.model / "model.safetensors").read_bytes() for done in (again, trained)]  # type: ignore[operator]
    assert merged[0] == merged[1]


def test_a_disk_that_fills_up_leaves_the_last_checkpoint_whole(
    folder: Path, data: Path, base: LocalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = folder / "full-disk"
    how = HOW.model_copy(update={"max_steps": 6, "every": 2})
    save = room.StudentTrainer._save

    def fails(self: Any, output_dir: str, state_dict: Any = None) -> None:
        if "checkpoint-4" in output_dir:
            Path(output_dir).mkdir(parents=True)
            (Path(output_dir) / "trained.safetensors").write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        save(self, output_dir, state_dict)

    with monkeypatch.context() as patch:
        patch.setattr(room.StudentTrainer, "_save", fails)
        with pytest.raises(RunError, match=r"No space left on device; checkpoint-2 is whole\n.*make room"):
            train(data, base, out, how)
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["checkpoint-2"]
    assert not (out / "aside").exists()
    assert train(data, base, out, how).steps == 6


def test_a_training_that_comes_apart_says_so_and_keeps_nothing_of_it(
    folder: Path, data: Path, base: LocalModel
) -> None:
    with pytest.raises(RunError, match=r"the loss is nan at step \d+.*\n.*a smaller --lr"):
        train(data, base, folder / "apart", HOW.model_copy(update={"lr": 1e30, "every": 5}))
    assert not list((folder / "apart" / "checkpoints").glob("*"))
    assert not (folder / "apart" / "best").exists()


def test_whole_layers_can_be_trained_and_training_can_end_early(folder: Path, data: Path, base: LocalModel) -> None:
    out = folder / "whole"
    how = HOW.model_copy(update={"full": True, "lr": 1e-9, "every": 1, "patience": 2, "accumulate": 2})
    done = train(data, base, out, how)
    assert done.adapter is None
    assert done.stopped_early
    assert done.steps < 10
    before, after = (load_file(path / "model.safetensors") for path in (base.path, done.model))  # type: ignore[operator]
    assert before.keys() == after.keys()
    assert find_model(str(done.model)).template_hash == base.template_hash


def test_two_trainings_are_not_let_into_one_folder(
    folder: Path, data: Path, base: LocalModel, trained: Trained
) -> None:
    """Two that went on with one training at once would each have written over what the other kept."""
    held = hold(folder / "out", "training")
    try:
        with pytest.raises(RunError, match="another training is using this folder"):
            train(data, base, folder / "out", HOW)
    finally:
        held.release()


def test_a_training_goes_on_from_an_adapter(folder: Path, data: Path, base: LocalModel, trained: Trained) -> None:
    assert trained.adapter
    how = HOW.model_copy(update={"max_steps": 3, "lr": 1e-9, "seed": 7})
    further = train(data, base, folder / "further", how, start=trained.adapter)
    assert further.steps == 3
    # At no rate to speak of it is as good as what it began from, which took sixty steps.
    assert further.dev["accuracy"] == pytest.approx(trained.dev["accuracy"], abs=0.05)
    assert further.adapter
    told = json.loads((further.adapter / "distill.json").read_text())
    weights = (trained.adapter / "adapter.safetensors").read_bytes()
    assert told["start"]["sha256"] == hashlib.sha256(weights).hexdigest()
    assert told["start"]["results"]["steps"] == trained.steps
    # What was begun from is part of what the folder is of.
    with pytest.raises(RunError, match="another training"):
        train(data, base, folder / "further", how)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"rank": 4, "alpha": 8}, r"is \[8, 128\] in the adapter, \[4, 128\] in the student"),
        ({"alpha": 8}, "its matrices count 2 times, here 8 / 8"),
        ({"freeze_layers": 0}, "is not there in the adapter"),
        ({"full": True}, "leave out --full"),
    ],
)
def test_an_adapter_that_is_not_of_this_training_is_refused(
    folder: Path, data: Path, base: LocalModel, trained: Trained, changed: dict[str, Any], told: str, tmp_path: Path
) -> None:
    with pytest.raises((ModelError, RunError), match=told):
        train(data, base, tmp_path / "no", HOW.model_copy(update=changed), start=trained.adapter)


# Reasons


@pytest.fixture(scope="module")
def reasoned(folder: Path, embedded: LocalModel) -> Path:
    """The same texts with a teacher's reasons, which are as simple as the rule."""
    (folder / "reasons.yaml").write_text(JUDGE.replace("rationale: 0", "rationale: 20"))
    rows = texts(200)
    for row in rows:
        row["why"] = {"yes": 'It says "zebra" in it.', "no": "There is none to be seen."}[row["label"]]
    file = write_rows(folder / "reasons.jsonl", rows)
    mapping = {"has": "label", "rationale": "why"}
    import_verdicts(load_judge(folder / "reasons.yaml"), file, folder / "reasons-run", mapping=mapping)
    how = DataSettings(near=1.0, dev=0.2, test=0.1, rationales=True)
    recipe = make([folder / "reasons-run"], folder / "reasons-set", how)
    assert recipe.reasons == recipe.rows
    return folder / "reasons-set"


def test_a_student_learns_the_teachers_reasons_after_its_labels(
    folder: Path, reasoned: Path, base: LocalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = folder / "reasons-out"
    how = HOW.model_copy(update={"rationale_epochs": 8.0, "rationale_lr": 1e-2})
    step_of = room.Watch.on_step_end

    def dies(self: Any, args: Any, state: Any, control: Any, **more: Any) -> Any:
        if self._trainer.out.name == "reasons" and state.global_step == 20:
            raise Killed
        return step_of(self, args, state, control, **more)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(room.Watch, "on_step_end", dies)
        train(reasoned, base, out, how)
    labels = (out / "loss.jsonl").read_text()
    done = train(reasoned, base, out, how)
    assert (out / "loss.jsonl").read_text() == labels  # the labels were not learnt again
    assert done.adapter
    results = json.loads((done.adapter / "distill.json").read_text())["results"]
    # So few matrices cannot hold both; what that did to the labels is told.
    assert results["dev_before_rationales"]["accuracy"] > 0.9
    assert results["dev"] == done.dev != results["dev_before_rationales"]
    told = results["rationales"]
    # So small a head, of random numbers, cannot be surer: what is likeliest is what it gives.
    assert told["dev"]["after"]["loss"] < told["dev"]["before"]["loss"] - 3
    assert (out / "reasons" / "loss.png").is_file()

    # Of the tokens of reasons that it was not taught it finds most, where it found none.
    codec = AskCodec(ChatEncoder(base.path), base.context, {})
    [held_out] = encode_reasons([read_split(reasoned / "reasons", "test")], codec)
    batch = held_out.batch(range(len(held_out)))

    def right(model: Path) -> float:
        student = Student(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32))
        with torch.no_grad():
            logits = student(held_out.start(), batch["rows"], batch["where"])
        return (logits.argmax(-1) == batch["next"]).float().mean().item()

    assert done.model
    assert right(base.path) < 0.1
    assert right(done.model) > 0.7


def test_of_an_answer_only_its_texts_are_learnt(base: LocalModel) -> None:
    codec = AskCodec(ChatEncoder(base.path), base.context, {})
    row = {
        "system": "Judge.",
        "user": "a text",
        "names": ["why", "more"],
        "texts": ["Two\nlines, \u201cquoted\u201d.", "x"],
    }
    other = {**row, "user": "another text", "names": ["why"], "texts": ['A "quote".']}
    [set_of] = encode_reasons([[row, other]], codec)
    learnt = [
        b"".join(codec.vocabulary.tokens[i] or b"" for i in rest[mask]).decode()
        for rest, mask in zip(set_of.rests, set_of.learnt, strict=True)
    ]
    assert "Two lines, \u201cquoted\u201d." in learnt[0]
    assert 'A \\"quote\\"."' in learnt[1]
    assert "why" not in learnt[0] + learnt[1]
    batch = set_of.batch([0, 1])
    assert batch["where"].sum() == len(batch["next"])
    for i, row_ids in enumerate(batch["rows"]):
        at = batch["where"][i].nonzero()[:, 0]
        assert torch.equal(row_ids[at + 1], torch.from_numpy(set_of.rests[i][set_of.learnt[i]].astype(np.int64)))


def test_a_set_without_reasons_has_none_to_learn(data: Path, base: LocalModel, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no rationales in this training set\n.*--rationales"):
        train(data, base, tmp_path / "out", HOW.model_copy(update={"rationale_epochs": 1.0}))


# What it is made of


def a_batch(n: int = 5, prefix: int = 12) -> tuple[Any, Any, Any]:
    """Ids of a shared prefix, of what follows in each row, and where that ends."""
    draw = torch.Generator().manual_seed(0)
    rows = torch.randint(5, 4000, (n, 17), generator=draw)
    return torch.randint(5, 4000, (prefix,), generator=draw), rows, torch.tensor([16, 3, 9, 0, 12][:n])


def a_student(base: LocalModel, frozen: int = 0, fused: bool = False) -> Student:
    causal = AutoModelForCausalLM.from_pretrained(base.path, dtype=torch.float32)
    causal.requires_grad_(False)
    torch.manual_seed(3)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=list(LINEAR), init_lora_weights=False)
    adapted = get_peft_model(causal, config)
    if fused:
        assert fuse(adapted) == 2 * len(LINEAR)
    return Student(adapted, frozen)


def gradients(student: Student, logits: Any) -> Any:
    logits.log_softmax(-1)[:, 7].mean().backward()
    return torch.cat([part.grad.flatten() for part in student.parameters() if part.requires_grad])


@pytest.mark.parametrize("prefix", [12, 0])
def test_a_shared_prefix_changes_nothing(base: LocalModel, prefix: int) -> None:
    start, rows, last = a_batch(prefix=prefix)
    shared, plain = a_student(base, fused=True), a_student(base)
    assert shared.agrees(start, rows, last)
    several = torch.zeros(rows.shape, dtype=torch.bool)
    several[0, [3, 16]] = several[2, 9] = True
    picked = shared(start, rows, several)
    assert torch.allclose(picked, plain._whole(start, rows, several), atol=1e-4)
    assert torch.allclose(picked[1:], shared(start, rows, last)[[0, 2]], atol=1e-4)
    ours, theirs = shared(start, rows, last), plain._whole(start, rows, last)
    assert (ours - theirs).abs().max() < 1e-5
    one, other = gradients(shared, ours), gradients(plain, theirs)
    assert (one - other).abs().max() < 1e-5 * max(1.0, other.abs().max().item())


def test_layers_of_another_make_are_noticed(base: LocalModel, monkeypatch: pytest.MonkeyPatch) -> None:
    student = a_student(base)
    batch = a_batch()
    monkeypatch.setattr(student.body.rotary_emb, "forward", lambda rows, position_ids: ())
    assert not student.agrees(*batch)
    monkeypatch.undo()
    scaled = student.body.embed_tokens
    monkeypatch.setattr(student, "embedded", lambda ids: 8 * scaled(ids))  # as a model that scales them does not
    assert not student.agrees(*batch)
    student.explicit = False
    assert (student(*batch) - student._whole(*batch)).abs().max() == 0


def encoded(rows: int = 9) -> Encoded:
    start, ids, last = a_batch()
    return Encoded(
        prefix=start.tolist(),
        rests=[ids[i % 5, : last[i % 5] + 1].numpy().astype(np.int32) for i in range(rows)],
        asked=np.zeros(rows, dtype=np.int64),
        target=np.zeros((rows, 2), dtype=np.float32),
        weight=np.ones(rows, dtype=np.float32),
    )


def test_lower_layers_are_run_once_and_gone_on_with(
    base: LocalModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "_STEP", 3)
    student = a_student(base, frozen=1)
    plain = encoded()
    expected = student(torch.tensor(plain.prefix), *(plain.batch(range(9))[name] for name in ("rows", "where")))
    asked: list[int] = []
    lower = student.lower

    def counts(prefix: Any, rows: Any) -> Any:
        asked.append(len(rows))
        return lower(prefix, rows)

    student.lower = counts  # type: ignore[method-assign]

    def dies(done: int, total: int) -> None:
        if done >= 6:
            raise Killed

    kept = encoded()
    with pytest.raises(Killed):
        keep_lower(student, kept, tmp_path / "cache", {"model": "a"}, 3, dies)
    # The first three rows were done and noted; one row tells the prefix.
    asked.clear()
    keep_lower(student, kept, tmp_path / "cache", {"model": "a"}, 3)
    assert sum(asked) == 1 + 6
    batch = kept.batch(range(9))
    assert batch["rows"].is_floating_point()
    assert (student(kept.start(), batch["rows"], batch["where"]) - expected).abs().max() < 1e-5
    # Those of another model are made anew; those of this one never again.
    asked.clear()
    keep_lower(student, encoded(), tmp_path / "cache", {"model": "a"}, 3)
    assert sum(asked) == 1
    keep_lower(student, encoded(), tmp_path / "cache", {"model": "b"}, 3)
    assert sum(asked) == 2 + 9


def test_lower_layers_that_the_disk_has_no_room_for_are_refused(
    base: LocalModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(encoding.os, "posix_fallocate", full)
    with pytest.raises(
        RunError, match=r"cannot be kept: No space left on device\n  make room, or .*--freeze-layers 0"
    ):
        keep_lower(a_student(base, frozen=1), encoded(), tmp_path / "cache", {"model": "a"})


def test_the_loss_is_what_its_formula_says() -> None:
    # Two questions: a scale of three, whose labels each have two spellings, and a choice without worth.
    labels = Labels(
        keys=["grade", "tone"],
        shown={},
        tails={},
        ids=torch.tensor([[[1, 2], [3, 4], [5, 6]], [[7, 0], [8, 0], [0, 0]]]),
        there=torch.tensor([[[True, True]] * 3, [[True, False], [True, False], [False, False]]]),
        worth=torch.tensor([[0.0, 0.5, math.nan], [math.nan] * 3]),
    )
    logits = torch.randn(2, 12, generator=torch.Generator().manual_seed(1))
    target = np.array([[0.2, 0.5, 0.3], [1.0, 0.0, 0.0]])
    batch = {
        "asked": torch.tensor([0, 1]),
        "target": torch.tensor(target, dtype=torch.float32),
        "weight": torch.tensor([1.0, 0.25]),
    }
    loss, student, belief = label_loss(logits, batch, labels, 0.5, 0.1)
    p = np.exp(logits.double().numpy())
    p /= p.sum(-1, keepdims=True)
    first, second = p[0, 1:7].reshape(3, 2).sum(-1), p[1, 7:9]
    mass = np.array([first.sum(), second.sum()])
    first, second = first / mass[0], second / mass[1]
    kl = np.array([(target[0] * np.log(target[0] / first)).sum(), -np.log(second[0])])
    apart = np.array([(first[1] * 0.5 / (first[0] + first[1]) - 0.5 * 0.5 / 0.7) ** 2, 0.0])
    whole = (np.array([1.0, 0.25]) * (kl + 0.5 * apart - 0.1 * np.log(mass))).mean()
    assert loss.item() == pytest.approx(whole, abs=1e-6)
    assert student[0].exp().tolist() == pytest.approx(first.tolist(), abs=1e-6)
    assert belief.exp().tolist() == pytest.approx(mass.tolist(), abs=1e-6)


def test_a_common_prefix_leaves_each_prompt_something() -> None:
    assert common_prefix([[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 3, 4, 6]]) == 3
    assert common_prefix([[1, 2, 3], [1, 2, 3]]) == 2
    assert common_prefix([[1], [1, 2]]) == 0
    assert common_prefix([[1, 2], [3]]) == 0
    assert common_prefix([]) == 0


# What will not do


def test_what_cannot_be_trained_is_refused_before_it_is(
    folder: Path, data: Path, base: LocalModel, trained: Trained, tmp_path: Path
) -> None:
    codec = AskCodec(ChatEncoder(base.path), 2048, {})
    long = Asked(question="q", code=None, labels=["x"], worth=None, forms=[Form(labels=["cannot say"], tail="")])
    with pytest.raises(ModelError, match="different label tokens: of 'q', neither cannot say are single tokens"):
        read_labels({"q": long}, codec, "tiny")
    small = tiny_model(tmp_path / "small", max_position_embeddings=40)
    with pytest.raises(ModelError, match=r"no room for 2\d\d of \d+ prompts: the longest takes \d+ tokens"):
        train(data, small, tmp_path / "a", HOW)
    for layers in (2, 3):  # the folder is free, since nothing was begun
        with pytest.raises(ModelError, match=rf"has 2 layers: with {layers} frozen there is .*\n.* from 0 to 1"):
            train(data, base, tmp_path / "b", HOW.model_copy(update={"freeze_layers": layers}))
    with pytest.raises(RunError, match=r"another training:\n  settings.lr was 0.01, is now 0.1"):
        train(data, base, folder / "out", HOW.model_copy(update={"lr": 0.1}))
    with pytest.raises(RunError, match="holds something else"):
        train(data, base, data, HOW)
    with pytest.raises(RunError, match="holds no training set"):
        train(tmp_path, base, tmp_path / "c", HOW)
