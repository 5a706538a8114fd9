"""List, show and check judges."""

from __future__ import annotations

from typing import Annotated

import typer

from localjudge.cli.options import JudgeSettings

app = typer.Typer(help="List, show and check judges.", invoke_without_command=True)


@app.callback()
def judges_list(context: typer.Context) -> None:
    """List the built-in judges."""
    if context.invoked_subcommand:
        return
    from localjudge.judge.loading import judge_names, load_judge

    for name in judge_names():
        spec = load_judge(name)
        print(f"{name:<20} {spec.kind:<10} {', '.join(item.name for item in spec.inputs)}\n    {spec.description}")


@app.command("show")
def judges_show(
    judge: Annotated[str, typer.Argument(help="A judge's name, folder or file.")],
    settings: JudgeSettings = None,
) -> None:
    """Show what a judge asks, of what, and the prompt it sends."""
    from localjudge.judge.show import show

    print(show(judge, settings or []))


@app.command("check")
def judges_check(
    judge: Annotated[str, typer.Argument(help="A judge's folder or file, a built-in name, or a suite's file.")],
    model: Annotated[str | None, typer.Option("--model", "-m", help="Count tokens as this model does.")] = None,
    settings: JudgeSettings = None,
) -> None:
    """Validate a judge, or a suite's; print its verdict schema, token budgets and warnings."""
    from localjudge.judge.show import check
    from localjudge.models import vocabulary_of

    print(check(judge, settings or [], *vocabulary_of(model)))
