"""Checklists: written ahead, shown, edited, locked, brought in and out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from localjudge import guard
from localjudge.cli.options import (
    Engine,
    EngineArg,
    EngineName,
    JudgeSettings,
    Language,
    Mapping,
    Seed,
    Url,
    Verbose,
    engine_arguments,
    named_pairs,
    stopped,
)

app = typer.Typer(help="Checklists: write, review and lock what responses are graded by.", no_args_is_help=True)

Key = Annotated[str, typer.Argument(help="A checklist's key, or how it begins.")]
Judge = Annotated[str, typer.Option("--judge", help="The checklist judge whose inputs say what a task is.")]


@app.command()
def write(
    judge: Annotated[str, typer.Argument(help="A checklist judge's name, folder or file.")],
    records: Annotated[Path, typer.Argument(help="Records with tasks; responses may be absent.")],
    model: Annotated[str, typer.Option("--model", "-m", help="A model's folder, or the name of a card.")],
    mapping: Mapping = None,
    settings: JudgeSettings = None,
    language: Language = None,
    limit: Annotated[int | None, typer.Option(min=1, help="The first N records only.")] = None,
    skip_invalid: Annotated[bool, typer.Option("--skip-invalid", help="Leave bad records out.")] = False,
    seed: Seed = 0,
    engine: Engine = EngineName.vllm,
    url: Url = None,
    engine_arg: EngineArg = None,
    verbose: Verbose = False,
) -> None:
    """Write the checklist of each task, or find it where it is written already, and grade nothing."""
    from localjudge.engines.start import choose_engine
    from localjudge.judge.loading import load_judge
    from localjudge.offline import silence
    from localjudge.run.runner import Settings
    from localjudge.run.session import run_to_end
    from localjudge.run.writing import WriteRun

    silence()
    spec = load_judge(judge, settings or [], language)
    chosen = Settings.of(
        mapping=named_pairs(mapping or [], "--map"), limit=limit, skip_invalid=skip_invalid, seed=seed
    )
    if url:
        guard.allow_url(url)
    choice = choose_engine(engine, model, engine_arguments(engine_arg), url=url, verbose=verbose)

    async def start() -> Any:
        print(choice.loading, file=sys.stderr, flush=True)
        return await choice.start()

    told = run_to_end(WriteRun(spec, records, choice.model, chosen, start))
    if told is None:
        stopped()
    for kept in told.kept:
        print(_line(kept))
    for where, why in told.failed:
        print(f"{where}: {why}", file=sys.stderr)
    print(f"{told.asks} asks, {told.reused} of them answered from earlier completions", file=sys.stderr)
    if told.failed:
        raise typer.Exit(1)


def _line(kept: Any) -> str:
    marks = [mark for mark in ("locked", "edited", "contested") if getattr(kept, mark)]
    if not (kept.locked or kept.written_by):  # only what a model wrote is found again by that model's runs
        marks.append("brought along and used by nothing until it is locked")
    counts = f"{len(kept.essential)} essential, {len(kept.additional)} additional"
    return f"{(kept.key or '')[:12]}  {counts}{''.join(f', {mark}' for mark in marks)}: {kept.about}"


@app.command()
def show(
    what: Annotated[
        str | None, typer.Argument(help="A key, a run's folder, or records; nothing for a list.")
    ] = None,
    judge: Judge = "checklist",
    mapping: Mapping = None,
) -> None:
    """Print checklists, as people edit them."""
    from localjudge.run.checklists import all_kept, as_yaml, checklists_of

    if what is None:
        for _, kept in all_kept():
            print(_line(kept))
        return
    print("\n".join(as_yaml(kept) for kept in checklists_of(what, judge, named_pairs(mapping or [], "--map"))))


@app.command()
def edit(key: Key) -> None:
    """Open a checklist in $EDITOR and keep what comes back, if it is one."""
    from localjudge.run.checklists import edit as edit_checklist

    kept = edit_checklist(key)
    print(_line(kept) if kept else "nothing changed")


@app.command()
def lock(
    keys: Annotated[list[str], typer.Argument(help="Checklists' keys, or how they begin.")],
    undo: Annotated[bool, typer.Option("--undo", help="Unlock them.")] = False,
) -> None:
    """Lock checklists: used for their tasks whatever the model is, and never written anew."""
    from localjudge.run.checklists import lock as lock_checklist
    from localjudge.run.checklists import unlock

    for key in keys:
        print(_line(unlock(key) if undo else lock_checklist(key)))


@app.command("import")
def import_(
    records: Annotated[Path, typer.Argument(help="Records with the tasks, and a checklist in a field of each.")],
    field: Annotated[str, typer.Option(help="That field: {essential: [{criterion, reference, weight}], ...}.")] = (
        "checklist"
    ),
    judge: Judge = "checklist",
    mapping: Mapping = None,
    force: Annotated[bool, typer.Option("--force", help="In the place of others that are locked.")] = False,
) -> None:
    """Bring checklists in, as JSON, and lock each for its task."""
    from localjudge.judge.loading import load_judge
    from localjudge.run.checklists import import_checklists

    told = import_checklists(
        load_judge(judge), records, field, mapping=named_pairs(mapping or [], "--map"), force=force
    )
    for kept in told:
        print(_line(kept))


@app.command()
def export(
    what: Annotated[str, typer.Argument(help="A checklist's key, or a run's folder.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file to write; by default it is printed.")
    ] = None,
) -> None:
    """Write a checklist as plain JSON; of a run, a line a record: its id, rubric and scoring."""
    from localjudge.run.checklists import exported
    from localjudge.run.store import write_atomically

    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in exported(what))
    if out is None:
        print(text, end="")
    else:
        write_atomically(out, text)
        print(out)
