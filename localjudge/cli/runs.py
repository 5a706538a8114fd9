"""What is done with a run that is there: report, import, export."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from localjudge.cli.options import JudgeSettings, named_pairs
from localjudge.errors import LocalJudgeError


def report(
    directories: Annotated[list[Path], typer.Argument(help="A run's folder; with --html a suite's, or several.")],
    record: Annotated[str | None, typer.Option(help="A record's id: print its own report alone.")] = None,
    html: Annotated[
        bool, typer.Option("--html", help="One page that opens anywhere; of several runs, one that compares them.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The page's file; by default report.html in the one folder.")
    ] = None,
    language: Annotated[str, typer.Option(help="en or zh: the page's labels.")] = "en",
) -> None:
    """Make a run's summary and reports anew, and print the report; or write them as a page.

    Several runs' page shows them side by side: who wins, by how much in each criterion, the cases furthest apart,
    and where two judges of the same records disagree.
    """
    from localjudge.run.session import report_again

    if not html:
        given = {"-o": out is not None, "--language": language != "en"}
        if len(directories) > 1:
            raise LocalJudgeError("several runs are compared as a page", fix="give --html and -o FILE, or one run")
        if wrong := [option for option, there in given.items() if there]:
            raise LocalJudgeError("it is of the page", where=wrong[0], fix="give --html too")
        print(report_again(directories[0], record))
        return
    from localjudge.report.html.build import write_comparison, write_report

    if record is not None:
        raise LocalJudgeError("a page is of all records", where="--record", fix="leave one of them out")
    if len(directories) == 1:
        if (directories[0] / "run.json").is_file():
            report_again(directories[0])
        print(write_report(directories[0], out, language))
        return
    if out is None:
        raise LocalJudgeError("the page of several runs needs a place", where="-o", fix="give -o FILE")
    print(write_comparison(directories, out, language))


def import_(
    judge: Annotated[str, typer.Argument(help="The judge whose questions were answered: name, folder or file.")],
    file: Annotated[
        Path, typer.Argument(help="Records with answers, as `run` reads, or an OpenAI batch's output.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The run's folder.")],
    mapping: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            help="question=field: where an answer is; also id, the judge's inputs, and preference_swapped: what "
            "the swapped order of a pair was answered, in the record's own A and B. Repeatable.",
        ),
    ] = None,
    settings: JudgeSettings = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Import the first N records only.")] = None,
    skip_invalid: Annotated[
        bool, typer.Option("--skip-invalid", help="Keep what holds no judgement as invalid_record.")
    ] = False,
    form: Annotated[
        str | None, typer.Option("--format", help="records or openai-batch; seen from the first row otherwise.")
    ] = None,
    model_name: Annotated[
        str | None, typer.Option(help="Who judged; the mapped field's or the file's name otherwise.")
    ] = None,
) -> None:
    """Make a run of judgements made elsewhere, by people or other judges.

    A record needs an id and an answer to each question but texts; the judge's inputs may be absent. Labels are the
    judge's own, to the letter, but a score may be "3" or 3.0. Flags are a list of codes, or true, false, yes or no
    for each code.
    """
    from localjudge.judge.loading import load_judge
    from localjudge.offline import silence
    from localjudge.report.markdown import opening
    from localjudge.run.importing import import_verdicts

    silence()
    summary = import_verdicts(
        load_judge(judge, settings or []),
        file,
        out,
        mapping=named_pairs(mapping or [], "--map"),
        limit=limit,
        skip_invalid=skip_invalid,
        form=form,
        model_name=model_name,
    )
    print(opening(summary))
    print(f"verdicts  {out / 'verdicts.jsonl'}\nsummary   {out / 'summary.json'}\nreport    {out / 'report.md'}")
    if not summary.statuses["ok"]:
        raise typer.Exit(1)


def export(
    directory: Annotated[Path, typer.Argument(help="A run's folder.")],
    to: Annotated[
        str,
        typer.Option(
            "--to", help="jsonl, parquet, hf, rewards (of checklists), preferences (of personas), or openai-batch."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file, or for hf the folder, to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace it if it is there.")] = False,
    model_name: Annotated[
        str | None, typer.Option(help="openai-batch: the model to ask; the run's own otherwise.")
    ] = None,
    judge: Annotated[
        str | None, typer.Option(help="openai-batch: the run's judge, if it has template files of its own.")
    ] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="With --judge: its key=value.")] = None,
    margin: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="preferences: how far apart two responses must be to be a pair.")
    ] = 0.1,
) -> None:
    """Write a run's verdicts as a flat table, one row each; or the requests that ask its judge elsewhere.

    openai-batch writes the run's asks about its records; answers come back through `localjudge import`.
    """
    from localjudge.judge.loading import load_judge
    from localjudge.offline import silence
    from localjudge.run.export import export as write

    silence()
    if settings and not judge:
        raise LocalJudgeError("there is no --judge to set it of", where="--set", fix="give --judge too")
    spec = load_judge(judge, settings or []) if judge else None
    done = write(directory, to, out, force=force, model_name=model_name, judge=spec, margin=margin)
    print(f"{done.rows} rows  {out}")
    if done.left_out:
        print(f"left out: {done.left_out} records; the first is {done.first_left_out}", file=sys.stderr)
