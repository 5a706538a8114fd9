"""The command line: reads options, calls the package, prints. No logic. Each module holds some of the commands."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer

from localjudge import guard
from localjudge.cli import agreement, airgap, checklist, distill, judges, models, run, runs, student, view
from localjudge.errors import LocalJudgeError

app = typer.Typer(
    name="localjudge",
    help="Judge the outputs of language models wholly on your own machines.",
    epilog="Any command takes --debug: the full account of an error.",
    no_args_is_help=True,
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(judges.app, name="judges")
app.add_typer(models.app, name="models")
app.add_typer(checklist.app, name="checklist")
app.add_typer(distill.app, name="distill")
distill.app.command("evaluate")(student.evaluate)
distill.app.command("card")(student.card)
distill.app.command("cut")(student.cut)
distill.app.command("rounds")(student.rounds)
COMMANDS: dict[str, Callable[..., None]] = {
    "run": run.run,
    "serve": run.serve,
    "report": runs.report,
    "import": runs.import_,
    "export": runs.export,
    "bundle": airgap.bundle,
    "verify": airgap.verify,
    "doctor": airgap.doctor,
    "agree": agreement.agree,
    "compare": agreement.compare,
    "compare-judges": agreement.compare_judges,
    "calibrate": agreement.calibrate,
    "audit": agreement.audit,
    "view": view.view,
}
for name, command in COMMANDS.items():
    app.command(name)(command)


def main() -> NoReturn:
    """The console script."""
    guard.watch()
    debug = "--debug" in sys.argv
    if debug:
        sys.argv.remove("--debug")
    try:
        app()
        sys.exit(0)
    except LocalJudgeError as error:
        if debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if debug:
            raise
        print(f"error: {error.filename or 'a file'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(2)


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Judge the outputs of language models wholly on your own machines."""
    if version:
        from localjudge import __version__

        print(f"localjudge {__version__}")
        raise typer.Exit
