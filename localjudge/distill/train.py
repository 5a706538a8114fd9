"""A student learns a training set: labels as score mode reads them and, if wanted, the reasons of explain mode.

LoRA through peft, or whole layers. Everything can be killed at any moment and gone on with: the lower layers'
outputs, the steps, the best so far. Knows what becomes of a training; how it goes is for `trainer`, what is learnt
for `learning`.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from accelerate import PartialState
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.utils import logging as hf_logging

import localjudge
from localjudge import adapters
from localjudge.distill.data import Recipe, read_recipe, read_split
from localjudge.distill.encoded import (
    Encoded,
    Labels,
    Prompts,
    Written,
    encode,
    encode_reasons,
    keep_lower,
    read_labels,
)
from localjudge.distill.learning import LabelTrainer, ReasonTrainer
from localjudge.distill.student import LINEAR, Student, fuse
from localjudge.distill.trainer import Progress, Stage, StudentTrainer, TrainSettings, whole
from localjudge.engines.chat import ChatEncoder
from localjudge.engines.inprocess import LONGEST_CONTEXT, AskCodec, first_line, multiplies_bfloat16
from localjudge.errors import ModelError, RunError
from localjudge.model_files import hash_files, hash_weights, read_json
from localjudge.models import LocalModel
from localjudge.run.store import claim, hold, write_atomically

DONE = "trained.json"


@dataclass(frozen=True)
class Trained:
    """What came of it. adapter: its folder, None of whole layers. model: the merged folder, None where it was not
    wanted. steps, seconds: of labels and reasons. dev: figures of the final weights on the dev split.
    stopped_early: before all steps. before_reasons: dev's figures before reasons were learnt, where they were."""

    adapter: Path | None
    model: Path | None
    steps: int
    seconds: float
    dev: dict[str, float]
    stopped_early: bool
    before_reasons: dict[str, float] | None = None


@dataclass(frozen=True)
class _Sets:
    """What is learnt from, in the student's tokens. train, dev: of labels. reasons: train and dev, or none."""

    labels: Labels
    train: Encoded
    dev: Encoded
    reasons: Sequence[Written]


def train(
    folder: Path,
    base: LocalModel,
    out: Path,
    settings: TrainSettings,
    *,
    start: Path | None = None,
    merge: bool = True,
    keep_cache: bool = False,
) -> Trained:
    """Train `base` on the training set in `folder`; what comes of it is written to `out`. The same call goes on
    with one that was stopped.

    start: an adapter's folder, of the same base, rank and layers, to learn on from.

    Raises RunError, ModelError before anything is trained for a set or a student that will not do, RunError when
    the folder is another's, or the disk is full; the last checkpoint is then whole.
    """
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    recipe = read_recipe(folder)
    begun_from = _begun_from(start, settings) if start else None
    held = hold(out, "training") if PartialState().is_main_process else None
    try:
        with PartialState().main_process_first():
            _claim(out, base, recipe, settings, begun_from)
            finished = _finished(out, settings, merge, base)
        if finished is not None:
            return finished
        settings = settings.model_copy(update={"dtype": settings.dtype or _fast_dtype()})
        sets = _encoded(folder, recipe, base, settings)
        student = _student(base, sets, settings)
        if start:
            _take_adapter(student, start, settings)
        done, told = _learn(student, base, sets, out, settings)
        if PartialState().is_main_process:
            told = {**_origin(base, recipe, sets.labels, begun_from), **told, "versions": _versions()}
            _write_results(student, base, out, settings, told, merge)
            write_atomically(out / DONE, json.dumps(done) + "\n")
            if not keep_cache:
                shutil.rmtree(out / "cache", ignore_errors=True)
        return Trained(*_folders(out, settings, merge), **done)
    finally:
        if held:
            held.release()


def _folders(out: Path, settings: TrainSettings, merge: bool) -> tuple[Path | None, Path | None]:
    """Of the adapter and the model, each None where there is none."""
    return None if settings.full else out / "adapter", out / "model" if merge or settings.full else None


def _encoded(folder: Path, recipe: Recipe, base: LocalModel, settings: TrainSettings) -> _Sets:
    """Raises RunError, ModelError."""
    if settings.rationale_epochs and not recipe.reasons.get("train"):
        fix = "make it with `localjudge distill data --rationales`, of runs in explain mode"
        raise RunError("there are no rationales in this training set", where=str(folder), fix=fix)
    codec = AskCodec(ChatEncoder(base.path), min(base.context, LONGEST_CONTEXT), {})
    labels = read_labels(recipe.questions, codec, base.name)
    rows = read_split(folder, "train")
    taken = settings.max_steps * settings.batch * settings.accumulate * PartialState().num_processes
    if taken:
        rows = rows.select(_some(len(rows), taken, settings.seed))

    def dev_of(split: Any) -> Any:
        return split.select(_some(len(split), settings.dev_rows, settings.seed))

    train_set, dev_set = encode([rows, dev_of(read_split(folder, "dev"))], labels, codec)
    dev_set.prefix = train_set.prefix
    reasons: list[Written] = []
    if settings.rationale_epochs:
        own = folder / "reasons"
        reasons = encode_reasons([read_split(own, "train"), dev_of(read_split(own, "dev"))], codec)
        reasons[1].prefix = reasons[0].prefix
    return _Sets(labels, train_set, dev_set, reasons)


def _student(base: LocalModel, sets: _Sets, settings: TrainSettings) -> Student:
    """The base with what is to be trained. Raises ModelError."""
    torch.manual_seed(settings.seed)
    student = load_student(base, settings)
    probe = sets.train.batch(np.argsort(-sets.train.lengths, kind="stable")[[0, -1]].tolist())
    device = next(student.plain.parameters()).device
    if not student.agrees(sets.train.start().to(device), probe["rows"].to(device), probe["where"].to(device)):
        if student.frozen:
            raise ModelError(
                f"the layers of {base.name} ({base.architecture}) cannot be run one by one, so none can be frozen",
                fix="--freeze-layers 0",
            )
        student.explicit = False
    return _adapted(student, settings)


def _learn(
    student: Student, base: LocalModel, sets: _Sets, out: Path, settings: TrainSettings
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train the student, its labels and then its reasons. The figures of `Trained`, and what is told of them."""
    progress = Progress()

    def run_lower(parts: Mapping[str, Prompts]) -> None:
        for name, part in parts.items():
            if not student.frozen or not len(part):
                continue
            with PartialState().main_process_first():  # the others find it done
                keep_lower(
                    student,
                    part,
                    out / "cache" / name,
                    {"model": base.fingerprint},
                    2 * settings.batch,
                    lambda done, total, name=name: progress.say(f"lower layers, {name}: {done} of {total} rows"),  # type: ignore[misc]
                )

    run_lower({"train": sets.train, "dev": sets.dev})
    lr = settings.lr or (1e-4 if settings.full else 5e-4)
    stage = Stage(out, lr, settings.epochs, settings.max_steps, judged_by="kl")
    trainer: StudentTrainer = LabelTrainer(sets.labels, student, sets.train, sets.dev, settings, stage, progress)
    steps, seconds = trainer.go(), trainer.seconds()
    dev = trainer.measure() if len(sets.dev) else {}
    chosen = {"lr": lr, "freeze_layers": student.frozen}
    told = {"steps": steps, "seconds": round(seconds, 1), "best_step": trainer.best_step, "dev": dev}
    write_curve(out)
    if sets.reasons:
        learnt, held_out = sets.reasons
        run_lower({"reasons": learnt, "reasons-dev": held_out})
        own = Stage(out / "reasons", settings.rationale_lr or lr / 5, settings.rationale_epochs)
        reasons = ReasonTrainer(student, learnt, held_out, settings, own, progress)
        before, own_steps = reasons.first_measure(), reasons.go()
        after = reasons.measure() if len(held_out) else {}
        chosen["rationale_lr"] = own.lr
        told["rationales"] = {
            "rows": len(learnt),
            "steps": own_steps,
            "seconds": round(reasons.seconds(), 1),
            "dev": {"before": before, "after": after},
        }
        told["dev_before_rationales"], dev = dev, trainer.measure() if len(sets.dev) else {}
        told["dev"] = dev
        steps, seconds = steps + own_steps, seconds + reasons.seconds()
        write_curve(own.out)
    done = {"steps": steps, "seconds": seconds, "dev": dev, "stopped_early": trainer.stopped_early}
    done["before_reasons"] = told.get("dev_before_rationales")
    return done, {"settings": {**settings.model_dump(), **chosen}, "results": told}


def _origin(
    base: LocalModel, recipe: Recipe, labels: Labels, begun_from: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What went into a training, without a word of where it was made."""
    return {
        "localjudge": localjudge.__version__,
        "base": {
            "name": base.name,
            "fingerprint": base.fingerprint,
            "weights": hash_weights(base.path),
            "chat_template": base.template_hash,
        },
        "judge": {key: value for key, value in recipe.judge.items() if key != "spec"},
        "teachers": [
            {
                **{key: teacher[key] for key in ("model", "mode", "rows")},
                "records": {key: teacher["records"][key] for key in ("digest", "total")},
            }
            for teacher in recipe.teachers
        ],
        "data": {
            "digest": recipe.digest,
            "rows": recipe.rows,
            "groups": recipe.groups,
            "balance": recipe.balance,
            "settings": recipe.settings.model_dump(),
        },
        "labels": labels.shown,
        **({"start": begun_from} if begun_from else {}),
    }


def _finished(out: Path, settings: TrainSettings, merge: bool, base: LocalModel) -> Trained | None:
    """What came of a training that has ended, merged now if it was not; None where something is left to do."""
    from localjudge.distill.merge import write_merged

    adapter, model = _folders(out, settings, merge)
    if not (out / DONE).is_file() or not (adapter or out / "model").is_dir():
        return None
    if model is not None and not model.is_dir() and PartialState().is_main_process:
        write_merged(out / "adapter", base.path, model)
    return Trained(adapter, model, **json.loads((out / DONE).read_text(encoding="utf-8")))


def _some(n: int, most: int, seed: int) -> list[int]:
    """At most so many of n places, drawn, in order."""
    if n <= most:
        return list(range(n))
    return sorted(np.random.default_rng(seed).choice(n, most, replace=False).tolist())


def _claim(
    out: Path, base: LocalModel, recipe: Recipe, settings: TrainSettings, begun_from: Mapping[str, Any] | None
) -> None:
    """Make the folder this training's. Raises RunError when it is another's."""
    file = out / "training.json"
    made_by = {
        "student": {"name": base.name, "fingerprint": base.fingerprint},
        "data": recipe.digest,
        "settings": settings.model_dump(),
        **({"start": begun_from["sha256"]} if begun_from else {}),
    }
    begun = any(path.name not in (file.name, ".lock") for path in out.iterdir())
    if begun and not file.is_file():
        raise RunError("this folder holds something else", where=str(out), fix="give another -o")
    if not begun:
        file.unlink(missing_ok=True)
    claim(file, made_by, "another training", "give another -o, or train with what began it")


def load_student(base: LocalModel, settings: TrainSettings) -> Student:
    """The base model, untrained, where it is to be computed. Raises ModelError."""
    device = PartialState().device
    try:
        causal = AutoModelForCausalLM.from_pretrained(
            base.path,
            dtype=torch.float32 if settings.dtype == "float32" else torch.bfloat16,
            trust_remote_code=False,
            local_files_only=True,
            use_safetensors=True,
        )
    except Exception as error:
        raise ModelError(f"transformers could not load it: {first_line(error)}", where=str(base.path)) from error
    causal.requires_grad_(False)
    causal.config.use_cache = False
    depth = int(causal.config.get_text_config().num_hidden_layers)
    frozen = settings.freeze_layers
    if frozen is None:
        frozen = round(0.4 * depth) if device.type == "cpu" else 0
    if frozen >= depth:
        raise ModelError(
            f"{base.name} has {depth} layers: with {frozen} frozen there is nothing to train",
            fix=f"give --freeze-layers from 0 to {depth - 1}",
        )
    return Student(causal.to(device), frozen)


def _adapted(student: Student, settings: TrainSettings) -> Student:
    """The student with what is to be trained: LoRA's matrices, or whole layers in float32."""
    if settings.full:
        if not hasattr(student.body, "layers"):
            raise ModelError("the layers of this architecture are not known", fix="leave out --full: LoRA does")
        for layer in student.body.layers[student.frozen :]:
            layer.float().requires_grad_(True)
        student.body.norm.float().requires_grad_(True)
        return student
    from peft import LoraConfig, get_peft_model

    where: dict[str, Any] = {"target_modules": "all-linear"}
    if hasattr(student.body, "layers"):
        layers = student.body.layers
        inside = {
            name.rpartition(".")[2] for name, part in layers[0].named_modules() if isinstance(part, nn.Linear)
        }
        where = {
            "target_modules": [name for name in LINEAR if name in inside] or sorted(inside),
            "layers_to_transform": list(range(student.frozen, len(layers))),
            "layers_pattern": "layers",
        }
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        task_type="CAUSAL_LM",
        **where,
    )
    adapted = Student(get_peft_model(student.causal, config), student.frozen)
    adapted.explicit = student.explicit
    # Its matrices are cast where they are used, and the activations not at all.
    for part in adapted.modules():
        if hasattr(part, "cast_input_dtype_enabled"):
            part.cast_input_dtype_enabled = False
    fuse(adapted.causal)
    return adapted


def _fast_dtype() -> Literal["bfloat16", "float32"]:
    """bfloat16 where the device multiplies in it itself."""
    device = PartialState().device.type
    half = (
        multiplies_bfloat16()
        if device == "cpu"
        else device != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)
    )
    return "bfloat16" if half else "float32"


def _begun_from(start: Path, settings: TrainSettings) -> dict[str, Any]:
    """What is told of an adapter to learn on from: its hash, and how it was trained if that is known."""
    if settings.full:
        raise RunError("whole layers do not begin from an adapter", where="--start", fix="leave out --full")
    weights = start / adapters.WEIGHTS
    if not weights.is_file():
        what = f"there is no {adapters.WEIGHTS} in it"
        raise ModelError(what, where=str(start), fix="give the adapter folder of a training, or its name")
    told: dict[str, Any] = {"sha256": hash_files([weights])[weights]}
    if (start / adapters.PROVENANCE).is_file():
        own = read_json(start / adapters.PROVENANCE)
        told |= {key: own[key] for key in ("start", "settings", "results") if key in own}
        told["data"] = (own.get("data") or {}).get("digest")
    return told


def _take_adapter(student: Student, start: Path, settings: TrainSettings) -> None:
    """Let LoRA's matrices be an adapter's. Raises ModelError where it has others."""
    from peft import get_peft_model_state_dict, set_peft_model_state_dict
    from safetensors.torch import load_file

    scale = adapters.scale_of(start / adapters.CONFIG)
    if scale != settings.alpha / settings.rank:
        what = f"its matrices count {scale:g} times, here {settings.alpha:g} / {settings.rank}"
        raise ModelError(what, where=str(start), fix="give the --rank and --alpha that it was trained with")
    held = load_file(start / adapters.WEIGHTS)
    own = get_peft_model_state_dict(student.causal)
    for name in sorted(own.keys() | held.keys()):
        if name not in own or name not in held or own[name].shape != held[name].shape:
            there, here = (list(of[name].shape) if name in of else "not there" for of in (held, own))
            raise ModelError(
                f"{name} is {there} in the adapter, {here} in the student",
                where=str(start),
                fix="give the --student, --rank and --freeze-layers that it was trained with",
            )
    set_peft_model_state_dict(student.causal, held)


# What is written in the end


def _write_results(
    student: Student, base: LocalModel, out: Path, settings: TrainSettings, told: Mapping[str, Any], merge: bool
) -> None:
    from localjudge.distill.merge import write_adapter, write_merged, write_whole

    with whole(out / ".adapter.tmp", out):
        if settings.full:
            write_whole(student, base.path, out / "model", told)
            return
        write_adapter(student, base.name, out / "adapter", told)
        if merge:
            write_merged(out / "adapter", base.path, out / "model")


def write_curve(out: Path) -> None:
    """loss.png of loss.jsonl, where matplotlib is."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    lines = [json.loads(line) for line in (out / "loss.jsonl").read_text(encoding="utf-8").splitlines()]
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, label in (("loss", "train, loss"), ("eval_loss", "dev, loss"), ("eval_accuracy", "dev, accuracy")):
        points = [(line["step"], float(line[name])) for line in lines if name in line]
        if points:
            axes.plot(*zip(*points, strict=True), label=label)
    axes.set_xlabel("step")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(out / "loss.png", dpi=120)


def _versions() -> dict[str, str]:
    found = {}
    for package in ("torch", "transformers", "peft", "accelerate", "datasets"):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
