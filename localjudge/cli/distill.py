"""A small judge learns from a large one's verdicts: distill data, distill train."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from localjudge.cli.options import JudgeSettings, Seed
from localjudge.errors import LocalJudgeError

app = typer.Typer(help="Distil a small judge from a large one's verdicts, or from people's.", no_args_is_help=True)


@app.command()
def data(
    runs: Annotated[list[Path], typer.Argument(help="Runs of one judge, by any model, panel or people.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The training set's folder.")],
    judge: Annotated[str | None, typer.Option(help="The runs' judge, if it has template files of its own.")] = None,
    settings: JudgeSettings = None,
    group: Annotated[
        str | None,
        typer.Option(
            help="The records' field never on both sides of a split; `group`, else the first input's text."
        ),
    ] = None,
    split_field: Annotated[
        str | None, typer.Option(help="The records' field that says train, dev or test.")
    ] = None,
    dev: Annotated[float, typer.Option(help="The share of groups held out to stop by.")] = 0.1,
    test: Annotated[float, typer.Option(help="The share of groups held out to measure on.")] = 0.1,
    min_mass: Annotated[float, typer.Option(help="Leave out what the teacher read with less label mass.")] = 0.5,
    inconsistent: Annotated[
        str, typer.Option(help="Pairs whose orders disagree: drop, or the factor that they count.")
    ] = "drop",
    smoothing: Annotated[
        float, typer.Option(help="Of a label without probabilities, how much goes to all labels.")
    ] = 0.0,
    near: Annotated[
        float, typer.Option(help="Texts that share so much of their word triples are the same text.")
    ] = 0.8,
    hard: Annotated[
        bool, typer.Option("--hard", help="Take the teacher's likeliest label alone, not its probabilities.")
    ] = False,
    rationales: Annotated[
        bool, typer.Option("--rationales", help="Also keep the teacher's reasons, for train --rationale-epochs.")
    ] = False,
    records: Annotated[
        Path | None, typer.Option(help="What the runs judged, if not in the file they name: a batch's records.")
    ] = None,
    gold: Annotated[
        list[Path] | None, typer.Option(help="A file whose records must not be trained on. Repeatable.")
    ] = None,
    seed: Seed = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace the folder if it is a training set.")] = False,
) -> None:
    """Make a training set of runs: what was asked, and how likely the teacher held each label.

    Only ok verdicts count. Groups, and texts that are all but the same, are never on both sides of a split.
    """
    from pydantic import ValidationError

    from localjudge.distill.data import DataSettings, make
    from localjudge.judge.loading import load_judge
    from localjudge.offline import silence

    silence()
    if settings and not judge:
        raise LocalJudgeError("there is no --judge to set it of", where="--set", fix="give --judge too")
    try:
        how = DataSettings(
            group=group,
            split_field=split_field,
            dev=dev,
            test=test,
            seed=seed,
            min_mass=min_mass,
            inconsistent=0.0 if inconsistent == "drop" else float(inconsistent),
            smoothing=smoothing,
            near=near,
            hard=hard,
            rationales=rationales,
        )
    except ValidationError as error:
        raise _refused(error) from None
    except ValueError:
        raise LocalJudgeError(
            f"'{inconsistent}' is neither drop nor a factor", where="--inconsistent", fix="give drop, or 0 to 1"
        ) from None
    spec = load_judge(judge, settings or []) if judge else None
    recipe = make(runs, out, how, judge=spec, records=records, gold=gold or [], force=force)
    for split, counts in recipe.balance.items():
        print(f"{split:<6}{recipe.rows[split]:>8} rows, {recipe.groups[split]} groups")
        for key, of in counts.items():
            whole = sum(of.values()) or 1
            print(f"      {key}: " + ", ".join(f"{label} {100 * n / whole:.1f} %" for label, n in of.items()))
    if recipe.reasons:
        print("reasons " + ", ".join(f"{n} {split}" for split, n in recipe.reasons.items()))
    for why, n in sorted(recipe.left_out.items(), key=lambda item: -item[1]):
        print(f"left out {n}: {why}")
    print(f"training set  {out}")


@app.command()
def train(
    folder: Annotated[Path, typer.Argument(help="A training set, of `distill data`.")],
    student: Annotated[str, typer.Option(help="The model that learns: a name or a folder, as for run -m.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where all that comes of it goes.")],
    full: Annotated[bool, typer.Option("--full", help="Train whole layers, not LoRA's matrices.")] = False,
    rank: Annotated[int, typer.Option(help="Of LoRA's matrices.")] = 24,
    alpha: Annotated[float, typer.Option(help="LoRA's matrices count alpha / rank.")] = 48,
    dropout: Annotated[float, typer.Option(help="Before LoRA's matrices; on a CPU it takes its time.")] = 0.0,
    freeze_layers: Annotated[
        int | None,
        typer.Option(min=0, help="Lower layers that are not trained, and run once; 40 % on a CPU, 0 on a GPU."),
    ] = None,
    lr: Annotated[float | None, typer.Option(help="The highest rate; 5e-4, with --full 1e-4.")] = None,
    epochs: Annotated[float, typer.Option(help="How often each row is learnt from.")] = 2.0,
    batch: Annotated[int, typer.Option(help="Rows at a time.")] = 16,
    accumulate: Annotated[int, typer.Option(help="Batches a step.")] = 1,
    expected: Annotated[float, typer.Option(help="The weight of the squared error of the expected score.")] = 0.5,
    mass: Annotated[float, typer.Option(help="The weight of -log of the belief on any label.")] = 0.1,
    every: Annotated[int, typer.Option(help="Steps between two measures on dev, which are checkpoints too.")] = 100,
    patience: Annotated[int, typer.Option(help="Stop after so many measures without a better one; 0 never.")] = 0,
    dev_rows: Annotated[int, typer.Option(help="The most rows of dev to measure on.")] = 500,
    max_steps: Annotated[int, typer.Option(help="Stop after so many steps; 0 after all epochs.")] = 0,
    rationale_epochs: Annotated[
        float, typer.Option(help="Then learn the teacher's reasons, each so often; 0 not at all.")
    ] = 0.0,
    rationale_lr: Annotated[float | None, typer.Option(help="The highest rate for them; a fifth of --lr.")] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="bfloat16 or float32, of what is not trained; what this hardware is fast in."),
    ] = None,
    start: Annotated[
        str | None, typer.Option(help="An adapter to learn on from, a name or a folder: of the same --student.")
    ] = None,
    seed: Seed = 0,
    merge: Annotated[bool, typer.Option(help="Also write the model with what it learnt in its weights.")] = True,
    keep_cache: Annotated[bool, typer.Option("--keep-cache", help="Keep the frozen layers' outputs.")] = False,
) -> None:
    """Train a student on a training set. The same command goes on with one that was stopped."""
    from pydantic import ValidationError

    from localjudge.models import adapter_folder, find_model
    from localjudge.offline import silence

    silence()
    base = find_model(student)
    begin = adapter_folder(start) if start else None
    try:
        from localjudge.distill.train import train as learn
        from localjudge.distill.trainer import TrainSettings
    except ImportError as error:
        raise LocalJudgeError(
            f"training needs a package that is missing: {error.name}", fix="pip install 'localjudge[train]'"
        ) from error
    try:
        settings = TrainSettings(
            full=full,
            rank=rank,
            alpha=alpha,
            dropout=dropout,
            freeze_layers=freeze_layers,
            lr=lr,
            epochs=epochs,
            batch=batch,
            accumulate=accumulate,
            expected=expected,
            mass=mass,
            every=every,
            patience=patience,
            dev_rows=dev_rows,
            max_steps=max_steps,
            rationale_epochs=rationale_epochs,
            rationale_lr=rationale_lr,
            dtype=dtype,
            seed=seed,
        )
    except ValidationError as error:
        raise _refused(error) from None
    try:
        done = learn(folder, base, out, settings, start=begin, merge=merge, keep_cache=keep_cache)
    except KeyboardInterrupt:
        print("stopped; its checkpoints are kept: run the same command again to go on", file=sys.stderr)
        raise typer.Exit(130) from None
    print(f"{done.steps} steps, {done.seconds / 60:.1f} min" + (", stopped early" if done.stopped_early else ""))
    if done.dev:
        print("dev   " + ", ".join(f"{name} {value:.4f}" for name, value in done.dev.items()))
    if done.before_reasons:
        before = ", ".join(f"{name} {value:.4f}" for name, value in done.before_reasons.items())
        print(f"      before the reasons: {before}")
    if done.adapter:
        print(f"adapter  {done.adapter}")
    if done.model:
        print(f"model    {done.model}")


def _refused(error: Any) -> LocalJudgeError:
    """A setting's ValidationError, as what the option was given."""
    first = error.errors()[0]
    where = f"--{str(first['loc'][0]).replace('_', '-')}"
    return LocalJudgeError(f"{first['input']}: {first['msg'].lower()}", where=where)
