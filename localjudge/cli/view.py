"""Looking at runs and labelling them in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def view(
    directories: Annotated[list[Path], typer.Argument(help="Runs' folders, or folders above them.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen on 127.0.0.1; 0 for any.")] = 8377,
    annotator: Annotated[str | None, typer.Option(help="Who labels; asked for in the page otherwise.")] = None,
    gold: Annotated[
        Path | None,
        typer.Option(help="A file for all labels; by default each run has its gold.jsonl, in its folder."),
    ] = None,
    question: Annotated[
        list[str] | None,
        typer.Option(
            help="What to label, of what agree can hold against people, such as overall; the judge's questions "
            "otherwise. Repeatable."
        ),
    ] = None,
    language: Annotated[str, typer.Option(help="Of the page: en or zh.")] = "en",
) -> None:
    """Look at runs in a browser, live while they go on, and label their cases.

    Serves this machine alone, at an address with a token in it. Labels are kept as a gold file that agree and
    calibrate take.
    """
    from localjudge.view.serve import serve

    serve(directories, port=port, annotator=annotator, gold=gold, questions=question or [], language=language)
