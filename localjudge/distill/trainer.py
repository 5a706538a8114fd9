"""How a student is trained, whatever it learns: transformers' Trainer over the prompts of `encoded`.

What it saves is what is trained, whole or not at all: checkpoints to go on from, the best so far, the loss curve.
Knows nothing of labels or texts, whose losses are `learning`'s.
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
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from localjudge.distill.encoded import Prompts
from localjudge.distill.student import Student
from localjudge.engines.inprocess import first_line
from localjudge.errors import RunError
from localjudge.run.store import write_atomically

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
        after so many measures without a better one; 0 never. max_steps: at most so many, 0 for all epochs; of a
        set that they do not get through, only the rows that they take are drawn and looked at.
    rationale_epochs: how often the teacher's reasons are learnt from after the labels, at most at rationale_lr,
        which is a fifth of lr by default; 0 not at all.
    dtype: of what is not trained, and of the arithmetic; what is trained is float32. None is bfloat16 where the
        hardware multiplies in it, else float32, which is then several times as fast.
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
    rationale_epochs: float = Field(0.0, ge=0)
    rationale_lr: float | None = Field(None, gt=0)
    dev_rows: int = Field(500, ge=0)
    seed: int = 0
    dtype: Literal["bfloat16", "float32"] | None = None


@dataclass(frozen=True)
class Stage:
    """One course of training. out: where its checkpoints and curve lie. max_steps: 0 for all epochs. judged_by: the
    figure of dev that is least for the best weights."""

    out: Path
    lr: float
    epochs: float
    max_steps: int = 0
    judged_by: str = "loss"


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


class StudentTrainer(Trainer):  # type: ignore[misc]
    """transformers' Trainer over prompts. What it saves is what is trained, aside first."""

    control: Any

    def __init__(
        self, student: Student, data: Prompts, dev: Prompts, how: TrainSettings, stage: Stage, progress: Progress
    ) -> None:
        self.out, self.checkpoints = stage.out, stage.out / "checkpoints"
        self.how, self.stage = how, stage
        self._data, self._dev, self._bar = data, dev, progress
        self.stopped_early = False
        arguments = TrainingArguments(
            output_dir=str(self.checkpoints),
            learning_rate=stage.lr,
            num_train_epochs=stage.epochs,
            max_steps=stage.max_steps or -1,
            per_device_train_batch_size=how.batch,
            gradient_accumulation_steps=how.accumulate,
            lr_scheduler_type="cosine",
            warmup_steps=how.warmup,
            weight_decay=how.weight_decay,
            logging_steps=10,
            logging_nan_inf_filter=False,
            save_strategy="steps",
            save_steps=how.every,
            eval_strategy="steps" if len(dev) else "no",
            eval_steps=how.every,
            seed=how.seed,
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
            callbacks=[Watch(self, progress)],
        )
        self.remove_callback(PrinterCallback)
        self.model_accepts_loss_kwargs = False
        self._prefix = data.start().to(self.args.device)

    def go(self) -> int:
        """Train, from the last checkpoint on if there is one; the best weights are then the student's. How many
        steps it was in all."""
        ended = self.out / "ended.json"
        if ended.is_file():
            told = json.loads(ended.read_text(encoding="utf-8"))
            self.take_best() if self.best_step is not None else self._take(self.checkpoints / told["last"])
            self.stopped_early = told["stopped_early"]
            return int(told["steps"])
        last = get_last_checkpoint(str(self.checkpoints)) if self.checkpoints.is_dir() else None
        self.forget_after(int(last.rpartition("-")[2]) if last else 0)
        with self._bar:
            result = self.train(resume_from_checkpoint=last)
        self.accelerator.wait_for_everyone()
        steps = int(result.global_step)
        if self.args.should_save:
            last = f"checkpoint-{steps}"
            told = {"steps": steps, "stopped_early": self.stopped_early, "last": last}
            write_atomically(ended, json.dumps(told) + "\n")
        self.take_best()
        return steps

    def first_measure(self) -> dict[str, float]:
        """The dev rows' figures before the first step, once and for all sittings; none without a dev split."""
        file = self.out / "before.json"
        if not file.is_file() and len(self._dev):
            self.out.mkdir(parents=True, exist_ok=True)
            write_atomically(file, json.dumps(self.measure()) + "\n")
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}

    @property
    def curve(self) -> Path:
        return self.out / "loss.jsonl"

    @property
    def best_step(self) -> int | None:
        file = self.out / "best" / "best.json"
        return int(json.loads(file.read_text(encoding="utf-8"))["step"]) if file.is_file() else None

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return _Order(self._data.lengths, self.how.batch * self.args.world_size, self.how.seed)

    def logits(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """(N, vocabulary) at the batch's places."""
        half = self.how.dtype == "bfloat16"
        with torch.autocast(self.args.device.type, dtype=torch.bfloat16 if half else None, enabled=half):
            logits: Tensor = model(self._prefix, batch["rows"], batch["where"])
        return logits

    def loss_of(self, logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """What is to be made less of."""
        raise NotImplementedError

    def told_of(self, logits: Tensor, batch: Mapping[str, Tensor]) -> tuple[dict[str, float], int]:
        """The sums of a dev batch's figures, loss among them, and over how many they go."""
        raise NotImplementedError

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        loss = self.loss_of(self.logits(model, inputs), inputs)
        return (loss, {}) if return_outputs else loss

    # Measures

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def measure(self) -> dict[str, float]:
        """The means of the dev rows' figures."""
        self.model.eval()
        sums: dict[str, float] = {}
        count, size = 0, 2 * self.how.batch
        by_length = np.argsort(-self._dev.lengths, kind="stable").tolist()
        for start in range(0, len(by_length), size):
            batch = self._dev.batch(by_length[start : start + size])
            batch = {name: part.to(self.args.device) for name, part in batch.items()}
            told, n = self.told_of(self.logits(self.model, batch), batch)
            sums = {name: sums.get(name, 0.0) + value for name, value in told.items()}
            count += n
        self.model.train()
        return {name: value / count for name, value in sums.items()}

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
        with whole(aside, self.out):
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
        with whole(aside, self.out):
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
def whole(aside: Path, out: Path) -> Iterator[None]:
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


class Watch(TrainerCallback):  # type: ignore[misc]
    """Writes the loss curve, keeps the best weights, stops early, and says how far it is."""

    def __init__(self, trainer: StudentTrainer, progress: Progress) -> None:
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
        with whole(aside, self._trainer.out), self._trainer.curve.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self._progress.log(state, logs or {})

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> Any:
        key = f"eval_{self._trainer.stage.judged_by}"
        told = [entry[key] for entry in state.log_history if key in entry]
        if metrics[key] <= min(told, default=math.inf) and state.is_world_process_zero:
            self._trainer.keep_best(metrics)
        patience = self._trainer.how.patience
        if patience and len(told) - 1 - told.index(min(told)) >= patience:
            control.should_training_stop = True
            self._trainer.stopped_early = True
        return control


class Progress:
    """A live bar on a terminal, a plain line now and then elsewhere."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True)
        self._said = 0.0
        self._bar: Any = None
        self._task: Any = None
        self._text = ""
        self._first: tuple[int, float] | None = None

    def __enter__(self) -> Progress:
        self._first, self._text = None, ""
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
        shown = [(name, logs[f"eval_{name}"]) for name in ("loss", "kl", "accuracy") if f"eval_{name}" in logs]
        if shown:
            self._text = "dev " + ", ".join(f"{name} {value:.3f}" for name, value in shown[-2:])
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
