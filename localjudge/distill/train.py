"""A student learns a training set: transformers' Trainer, with a loss at the label position alone.

    loss = KL(teacher || student, over the labels)
         + `expected` x (the teacher's expected worth - the student's)^2
         - `mass` x log(the student's belief on any label)

where the student's distribution is what score mode would read. LoRA through peft, or whole layers. Everything can
be killed at any moment and gone on with: the lower layers' outputs, the steps, the best so far.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from accelerate import PartialState
from pydantic import BaseModel, ConfigDict, Field
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint
from transformers.utils import logging as hf_logging

import localjudge
from localjudge.distill.data import Recipe, read_recipe, read_split
from localjudge.distill.encoded import Encoded, Labels, encode, keep_lower, read_labels
from localjudge.distill.student import LINEAR, Student, fuse
from localjudge.engines.chat import ChatEncoder
from localjudge.engines.inprocess import LONGEST_CONTEXT, AskCodec, first_line
from localjudge.errors import ModelError, RunError
from localjudge.model_files import hash_weights
from localjudge.models import LocalModel
from localjudge.run.store import claim, write_atomically

DONE = "trained.json"

PLAIN_EVERY = 30.0
"""Seconds between two lines of progress where there is no terminal."""


class TrainSettings(BaseModel):
    """How to train.

    full: train whole layers instead of LoRA's matrices of `rank` (scaled by alpha / rank, with `dropout`).
    freeze_layers: how many of the lower layers are not trained; None is 40 % of them on a CPU, none on a GPU.
    lr: the highest; None is 5e-4 for LoRA, 1e-4 for whole layers. It rises over the first `warmup` share of the
        steps and falls as a cosine. batch x accumulate rows (and x GPUs) make a step.
    expected, mass: the weights of the loss's second and third part.
    every: steps between two measures on at most dev_rows rows, which are checkpoints too. patience: training stops
        after so many measures without a better one; 0 never. max_steps: at most so many, 0 for all epochs.
    dtype: of what is not trained, and of the arithmetic; what is trained is float32.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    full: bool = False
    rank: int = Field(24, ge=1)
    alpha: float = Field(48, gt=0)
    dropout: float = Field(0.0, ge=0, lt=1)
    freeze_layers: int | None = Field(None, ge=0)
    lr: float | None = Field(None, gt=0)
    epochs: float = Field(2.0, gt=0)
    batch: int = Field(16, ge=1)
    accumulate: int = Field(1, ge=1)
    warmup: float = Field(0.05, ge=0, lt=1)
    weight_decay: float = Field(0.01, ge=0)
    expected: float = Field(0.5, ge=0)
    mass: float = Field(0.1, ge=0)
    every: int = Field(100, ge=1)
    patience: int = Field(0, ge=0)
    max_steps: int = Field(0, ge=0)
    dev_rows: int = Field(500, ge=0)
    seed: int = 0
    dtype: Literal["bfloat16", "float32"] = "bfloat16"


def label_loss(
    logits: Tensor, batch: Mapping[str, Tensor], labels: Labels, expected: float, mass: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of a batch; the student's log-probabilities over its labels (B, K), -inf for those that are not
    there; and its log label mass (B,)."""
    asked, target = batch["asked"], batch["target"]
    device = logits.device
    ids, there, worth = (part.to(device)[asked] for part in (labels.ids, labels.there, labels.worth))
    spelled = logits.log_softmax(-1).gather(1, ids.flatten(1)).view(ids.shape)
    each = spelled.masked_fill(~there, -torch.inf).logsumexp(-1)
    belief = each.logsumexp(-1)
    student = each - belief[:, None]
    # 0 log 0 is 0; of a label that is not there both are.
    kl = torch.where(target > 0, target * (target.clamp(min=1e-30).log() - student), 0.0).sum(-1)
    counts = ~worth.isnan()
    value = worth.nan_to_num()

    def mean(likely: Tensor) -> Tensor:
        judged = torch.where(counts, likely, 0.0)
        return (judged * value).sum(-1) / judged.sum(-1).clamp(min=1e-9)

    valued = counts.any(-1) & (torch.where(counts, target, 0.0).sum(-1) > 1e-6)
    apart = torch.where(valued, mean(student.exp()) - mean(target), 0.0) ** 2
    loss = (batch["weight"] * (kl + expected * apart - mass * belief)).mean()
    return loss, student, belief


@dataclass(frozen=True)
class Trained:
    """What came of it. adapter: its folder, None of whole layers. model: the merged folder, None where it was not
    wanted. dev: figures of the best weights on the dev split. stopped_early: before all steps."""

    adapter: Path | None
    model: Path | None
    steps: int
    seconds: float
    dev: dict[str, float]
    stopped_early: bool


def train(
    folder: Path,
    base: LocalModel,
    out: Path,
    settings: TrainSettings,
    *,
    merge: bool = True,
    keep_cache: bool = False,
) -> Trained:
    """Train `base` on the training set in `folder`; what comes of it is written to `out`. The same call goes on
    with one that was stopped.

    Raises RunError, ModelError before anything is trained for a set or a student that will not do, RunError when
    the disk is full; the last checkpoint is then whole.
    """
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    recipe = read_recipe(folder)
    with PartialState().main_process_first():
        _claim(out, base, recipe, settings)
        done = _finished(out, base, settings, merge)
    if done is not None:
        return done
    codec = AskCodec(ChatEncoder(base.path), min(base.context, LONGEST_CONTEXT), {})
    labels = read_labels(recipe.questions, codec, base.name)
    train_rows, dev_rows = read_split(folder, "train"), read_split(folder, "dev")
    dev_rows = dev_rows.select(_some(len(dev_rows), settings.dev_rows, settings.seed))
    train_set, dev_set = encode([train_rows, dev_rows], labels, codec)
    dev_set.prefix = train_set.prefix

    torch.manual_seed(settings.seed)
    student = load_student(base, settings)
    probe = train_set.batch(np.argsort(-train_set.lengths, kind="stable")[[0, -1]].tolist())
    device = next(student.plain.parameters()).device
    agrees = student.agrees(train_set.start().to(device), probe["rows"].to(device), probe["last"].to(device))
    if not agrees:
        if student.frozen:
            raise ModelError(
                f"the layers of {base.name} ({base.architecture}) cannot be run one by one, so none can be frozen",
                fix="--freeze-layers 0",
            )
        student.explicit = False
    student = _adapted(student, settings)
    progress = _Progress()
    if student.frozen:
        identity = {"model": base.fingerprint}
        for name, part in (("train", train_set), ("dev", dev_set)):
            if not len(part):
                continue
            with PartialState().main_process_first():  # the others find it done
                keep_lower(
                    student,
                    part,
                    out / "cache" / name,
                    identity,
                    2 * settings.batch,
                    lambda done, total, name=name: progress.say(f"lower layers, {name}: {done} of {total} rows"),  # type: ignore[misc]
                )
    trainer = _LabelTrainer(student, train_set, dev_set, labels, settings, out, progress)
    started = time.monotonic()
    last = get_last_checkpoint(str(trainer.checkpoints)) if trainer.checkpoints.is_dir() else None
    trainer.forget_after(int(last.rpartition("-")[2]) if last else 0)
    with progress:
        result = trainer.train(resume_from_checkpoint=last)
    trainer.accelerator.wait_for_everyone()
    trainer.take_best()
    dev = trainer.measure() if len(dev_set) else {}
    seconds = time.monotonic() - started
    told = {
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
        "settings": {**settings.model_dump(), **trainer.chosen},
        "results": {
            "steps": result.global_step,
            "seconds": round(trainer.seconds(), 1),
            "best_step": trainer.best_step,
            "dev": dev,
        },
        "versions": _versions(),
    }
    adapter, model = None if settings.full else out / "adapter", out / "model" if merge or settings.full else None
    if PartialState().is_main_process:
        _write_results(student, base, out, settings, told, merge)
        write_curve(out)
        ended = {
            "steps": result.global_step,
            "seconds": seconds,
            "dev": dev,
            "stopped_early": trainer.stopped_early,
        }
        write_atomically(out / DONE, json.dumps(ended) + "\n")
        if not keep_cache:
            shutil.rmtree(out / "cache", ignore_errors=True)
    return Trained(adapter, model, result.global_step, seconds, dev, trainer.stopped_early)


def _finished(out: Path, base: LocalModel, settings: TrainSettings, merge: bool) -> Trained | None:
    """What came of a training that has ended, merged now if it was not; None where something is left to do."""
    from localjudge.distill.merge import write_merged

    adapter, model = None if settings.full else out / "adapter", out / "model" if merge or settings.full else None
    if not (out / DONE).is_file() or not (adapter or out / "model").is_dir():
        return None
    if model is not None and not model.is_dir() and PartialState().is_main_process:
        write_merged(out / "adapter", base.path, model)
    told = json.loads((out / DONE).read_text(encoding="utf-8"))
    return Trained(adapter=adapter, model=model, **told)


def _some(n: int, most: int, seed: int) -> list[int]:
    """At most so many of n places, drawn, in order."""
    if n <= most:
        return list(range(n))
    return sorted(np.random.default_rng(seed).choice(n, most, replace=False).tolist())


def _claim(out: Path, base: LocalModel, recipe: Recipe, settings: TrainSettings) -> None:
    """Make the folder this training's. Raises RunError when it is another's."""
    file = out / "training.json"
    made_by = {
        "student": {"name": base.name, "fingerprint": base.fingerprint},
        "data": recipe.digest,
        "settings": settings.model_dump(),
    }
    begun = out.is_dir() and any(path != file for path in out.iterdir())
    if begun and not file.is_file():
        raise RunError("this folder holds something else", where=str(out), fix="give another -o")
    out.mkdir(parents=True, exist_ok=True)
    if not begun:
        file.unlink(missing_ok=True)
    claim(file, made_by, "another training", "give another -o, or train with what began it")


def load_student(base: LocalModel, settings: TrainSettings) -> Student:
    """The base model, untrained, where it is to be computed. Raises ModelError."""
    device = PartialState().device
    try:
        causal = AutoModelForCausalLM.from_pretrained(
            base.path,
            dtype=getattr(torch, settings.dtype),
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


class _Order(torch.utils.data.Sampler[int]):  # type: ignore[misc]
    """Every row once an epoch, in an order that is drawn from the seed and the epoch alone, rows of like length
    near each other: of each 50 batches the longest come together, so that little is padding."""

    def __init__(self, lengths: Any, batch: int, seed: int) -> None:
        self._lengths, self._batch, self._seed, self._epoch = lengths, batch, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[int]:
        random = np.random.default_rng([self._seed, self._epoch])
        order = random.permutation(len(self._lengths))
        batches: list[Any] = []
        for start in range(0, len(order), 50 * self._batch):
            near = order[start : start + 50 * self._batch]
            near = near[np.argsort(-self._lengths[near], kind="stable")]
            batches += [near[i : i + self._batch] for i in range(0, len(near), self._batch)]
        short = [batch for batch in batches if len(batch) < self._batch]
        batches = [batch for batch in batches if len(batch) == self._batch]
        for i in random.permutation(len(batches)):
            yield from batches[i].tolist()
        for batch in short:
            yield from batch.tolist()


class _Places(torch.utils.data.Dataset[int]):  # type: ignore[misc]
    """The places of rows, which the collator makes batches of."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: int) -> int:
        return place


class _LabelTrainer(Trainer):  # type: ignore[misc]
    """transformers' Trainer over an encoded set. What it saves is what is trained, aside first."""

    control: Any

    def __init__(
        self,
        student: Student,
        data: Encoded,
        dev: Encoded,
        labels: Labels,
        settings: TrainSettings,
        out: Path,
        progress: _Progress,
    ) -> None:
        self.out, self.checkpoints = out, out / "checkpoints"
        self._data, self._dev, self._labels, self._own = data, dev, labels, settings
        lr = settings.lr or (1e-4 if settings.full else 5e-4)
        self.chosen = {"lr": lr, "freeze_layers": student.frozen}
        self.stopped_early = False
        arguments = TrainingArguments(
            output_dir=str(self.checkpoints),
            learning_rate=lr,
            num_train_epochs=settings.epochs,
            max_steps=settings.max_steps or -1,
            per_device_train_batch_size=settings.batch,
            gradient_accumulation_steps=settings.accumulate,
            lr_scheduler_type="cosine",
            warmup_steps=settings.warmup,
            weight_decay=settings.weight_decay,
            logging_steps=10,
            logging_nan_inf_filter=False,
            save_strategy="steps",
            save_steps=settings.every,
            eval_strategy="steps" if len(dev) else "no",
            eval_steps=settings.every,
            seed=settings.seed,
            use_cpu=next(student.plain.parameters()).device.type == "cpu",
            report_to="none",
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_pin_memory=False,
        )
        super().__init__(
            model=student,
            args=arguments,
            data_collator=data.batch,
            train_dataset=_Places(len(data)),
            eval_dataset=_Places(len(dev)) if len(dev) else None,
            callbacks=[_Watch(self, progress)],
        )
        self.remove_callback(PrinterCallback)
        self.model_accepts_loss_kwargs = False
        self._prefix = data.start().to(self.args.device)

    @property
    def curve(self) -> Path:
        return self.out / "loss.jsonl"

    @property
    def best_step(self) -> int | None:
        file = self.out / "best" / "best.json"
        return int(json.loads(file.read_text(encoding="utf-8"))["step"]) if file.is_file() else None

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return _Order(self._data.lengths, self._own.batch * self.args.world_size, self._own.seed)

    def _logits(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        half = self._own.dtype != "float32"
        with torch.autocast(
            self.args.device.type, dtype=getattr(torch, self._own.dtype) if half else None, enabled=half
        ):
            logits: Tensor = model(self._prefix, batch["rows"], batch["last"])
        return logits

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        logits = self._logits(model, inputs)
        loss, _, _ = label_loss(logits, inputs, self._labels, self._own.expected, self._own.mass)
        return (loss, {}) if return_outputs else loss

    # Measures

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def measure(self) -> dict[str, float]:
        """The dev rows: mean kl, accuracy (the likeliest labels are the same), mass (its mean), loss."""
        self.model.eval()
        sums = dict.fromkeys(("loss", "kl", "accuracy", "mass"), 0.0)
        size = 2 * self._own.batch
        by_length = np.argsort(-self._dev.lengths, kind="stable").tolist()
        for start in range(0, len(by_length), size):
            places = by_length[start : start + size]
            batch = {name: part.to(self.args.device) for name, part in self._dev.batch(places).items()}
            logits = self._logits(self.model, batch)
            loss, student, belief = label_loss(logits, batch, self._labels, self._own.expected, self._own.mass)
            target = batch["target"]
            kl = torch.where(target > 0, target * (target.clamp(min=1e-30).log() - student), 0.0).sum(-1)
            sums["loss"] += loss.item() * len(places)
            sums["kl"] += kl.sum().item()
            sums["accuracy"] += (student.argmax(-1) == target.argmax(-1)).sum().item()
            sums["mass"] += belief.exp().sum().item()
        self.model.train()
        return {name: value / len(by_length) for name, value in sums.items()}

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        metrics = {f"eval_{name}": value for name, value in self.measure().items()}
        self.refuse_nan(metrics["eval_loss"])
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def refuse_nan(self, loss: float) -> None:
        """Raise RunError where training has come apart; checkpoints are from before."""
        if not math.isfinite(loss):
            what = f"the loss is {loss} at step {self.state.global_step}: the student has come apart"
            raise RunError(what, where=str(self.out), fix="give another -o and a smaller --lr, or --dtype float32")

    # What is kept

    def _trained(self) -> dict[str, Tensor]:
        model = self.accelerator.unwrap_model(self.model)
        return {
            name: part.detach().cpu().contiguous() for name, part in model.named_parameters() if part.requires_grad
        }

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        from safetensors.torch import save_file

        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        save_file(self._trained(), folder / "trained.safetensors")

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        self._take(Path(resume_from_checkpoint))

    def _take(self, folder: Path) -> None:
        from safetensors.torch import load_file

        model = self.accelerator.unwrap_model(self.model)
        own = dict(model.named_parameters())
        with torch.no_grad():
            for name, part in load_file(folder / "trained.safetensors").items():
                own[name].copy_(part)

    def _get_output_dir(self, trial: Any) -> str:
        return str(self.out / "aside")

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        aside = self.out / "aside"
        name = f"checkpoint-{self.state.global_step}"
        with _whole(aside, self.out):
            if self.args.should_save:
                shutil.rmtree(aside, ignore_errors=True)
            self.accelerator.wait_for_everyone()
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                self._put(aside / name, self.checkpoints / name)
        if self.args.should_save:
            shutil.rmtree(aside, ignore_errors=True)
            old = sorted(self.checkpoints.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
            for path in old[:-2]:
                shutil.rmtree(path, ignore_errors=True)

    def _put(self, made: Path, place: Path) -> None:
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(place, ignore_errors=True)
        made.replace(place)

    def keep_best(self, metrics: Mapping[str, float]) -> None:
        aside = self.out / "aside-best"
        with _whole(aside, self.out):
            shutil.rmtree(aside, ignore_errors=True)
            self._save(str(aside))
            told = {"step": self.state.global_step, **metrics}
            (aside / "best.json").write_text(json.dumps(told) + "\n", encoding="utf-8")
            self._put(aside, self.out / "best")

    def take_best(self) -> None:
        """The weights that did best on dev become the student's, where there is a dev split."""
        if (self.out / "best" / "trained.safetensors").is_file():
            self._take(self.out / "best")

    def forget_after(self, step: int) -> None:
        """Drop from the curve what comes after the checkpoint that training goes on from."""
        if self.curve.is_file():
            lines = self.curve.read_text(encoding="utf-8").splitlines()
            write_atomically(self.curve, "".join(f"{line}\n" for line in lines if _step_of(line) <= step))

    def seconds(self) -> float:
        """Of all sittings, by the curve."""
        if not self.curve.is_file():
            return 0.0
        return max((json.loads(line)["seconds"] for line in self.curve.read_text().splitlines()), default=0.0)


def _step_of(line: str) -> float:
    """The step that a line of the curve is of; later than all of one that was torn."""
    try:
        return float(json.loads(line)["step"])
    except ValueError:
        return math.inf


@contextlib.contextmanager
def _whole(aside: Path, out: Path) -> Iterator[None]:
    """What the disk refuses of a checkpoint, as a RunError that says what is still there."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        left = sorted((out / "checkpoints").glob("checkpoint-*"))
        kept = f"{left[-1].name} is whole" if left else "there is none before it"
        raise RunError(
            f"a checkpoint cannot be written: {first_line(error)}; {kept}",
            where=str(out),
            fix="make room, and run the same command again: it goes on from there",
        ) from error


class _Watch(TrainerCallback):  # type: ignore[misc]
    """Writes the loss curve, keeps the best weights, stops early, and says how far it is."""

    def __init__(self, trainer: _LabelTrainer, progress: _Progress) -> None:
        self._trainer, self._progress = trainer, progress
        self._started = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._started = time.monotonic() - self._trainer.seconds()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        self._progress.step(state)
        # A mean loss of steps from before a checkpoint and after could not be had again from there.
        control.should_log = control.should_log or state.global_step % args.save_steps == 0
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if "loss" in (logs or {}):
            self._trainer.refuse_nan(float(logs["loss"]))
        if not state.is_world_process_zero or "train_runtime" in (logs or {}):
            return
        line = {"step": state.global_step, "seconds": round(time.monotonic() - self._started, 1), **(logs or {})}
        aside = self._trainer.out / "aside"
        with _whole(aside, self._trainer.out), self._trainer.curve.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self._progress.log(state, logs or {})

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> Any:
        told = [entry["eval_kl"] for entry in state.log_history if "eval_kl" in entry]
        if metrics["eval_kl"] <= min(told, default=math.inf) and state.is_world_process_zero:
            self._trainer.keep_best(metrics)
        patience = self._trainer._own.patience
        if patience and len(told) - 1 - told.index(min(told)) >= patience:
            control.should_training_stop = True
            self._trainer.stopped_early = True
        return control


class _Progress:
    """A live bar on a terminal, a plain line now and then elsewhere."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True)
        self._said = 0.0
        self._bar: Any = None
        self._task: Any = None
        self._text = ""
        self._first: tuple[int, float] | None = None

    def __enter__(self) -> _Progress:
        if self._console.is_terminal:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("training"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[told]} left"),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._task = self._bar.add_task("training", total=None, told="")
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def say(self, text: str) -> None:
        if self._console.is_terminal:
            self._console.print(text, end="\r")
        elif time.monotonic() - self._said >= PLAIN_EVERY:
            self._said = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    def log(self, state: Any, logs: Mapping[str, Any]) -> None:
        if "eval_kl" in logs:
            self._text = f"dev kl {logs['eval_kl']:.3f}, accuracy {logs['eval_accuracy']:.3f}"
            if not self._bar:
                print(f"step {state.global_step}: {self._text}", file=sys.stderr, flush=True)
        elif "loss" in logs and not self._text.startswith("dev"):
            self._text = f"loss {float(logs['loss']):.3f}"

    def step(self, state: Any) -> None:
        now = time.monotonic()
        self._first = self._first or (state.global_step, now)
        if self._bar:
            self._bar.update(self._task, completed=state.global_step, total=state.max_steps, told=self._text)
            return
        done, since = state.global_step - self._first[0], now - self._first[1]
        if done and now - self._said >= PLAIN_EVERY:
            left = since / done * (state.max_steps - state.global_step)
            self._said = now
            parts = [
                f"step {state.global_step} of {state.max_steps}",
                f"{since / done:.2f} s a step",
                f"{left / 60:.0f} min left",
                self._text,
            ]
            print(", ".join(part for part in parts if part), file=sys.stderr, flush=True)


# What is written in the end


def _write_results(
    student: Student, base: LocalModel, out: Path, settings: TrainSettings, told: Mapping[str, Any], merge: bool
) -> None:
    from localjudge.distill.merge import write_adapter, write_merged, write_whole

    with _whole(out / ".adapter.tmp", out):
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
