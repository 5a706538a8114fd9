"""run and serve: what loads a model."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from localjudge import guard
from localjudge.cli.options import (
    Combine,
    Engine,
    EngineArg,
    EngineName,
    JudgeSettings,
    Language,
    Mapping,
    Mode,
    Seed,
    Url,
    Verbose,
    engine_arguments,
    named_pairs,
    stopped,
)
from localjudge.errors import LocalJudgeError

if TYPE_CHECKING:
    from localjudge.agreement.calibrate import Calibrated
    from localjudge.engines.start import Choice
    from localjudge.judge.items import Checklist, Kept
    from localjudge.judge.spec import JudgeSpec
    from localjudge.run.runner import Settings
    from localjudge.run.suite import SuiteRun


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
    escalate_to: Annotated[
        str | None,
        typer.Option(help="A second, larger model, which judges what the first one doubts: a cascade of the two."),
    ] = None,
    below: Annotated[
        float | None,
        typer.Option(
            min=0.0, max=1.0, help="Doubt is less confidence than this; by default what --calibration asks for."
        ),
    ] = None,
    checklist: Annotated[
        Path | None,
        typer.Option(help="Checklist judge: grade every record by this one, JSON or YAML; not by one it writes."),
    ] = None,
    gold: Annotated[
        str | None,
        typer.Option(help="Checklist judge: in the end, kappa against people's item credits, FIELD or FILE:FIELD."),
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Judge again what ended as engine_error or incomplete.")
    ] = False,
    funnel: Annotated[
        bool, typer.Option("--funnel", help="Dual control: ask no persona about what the gate has failed.")
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
    from localjudge.engines.start import choose_engine
    from localjudge.judge.loading import load_judge
    from localjudge.judge.suite import find_suite, load_suite
    from localjudge.offline import silence
    from localjudge.report.markdown import opening
    from localjudge.run.cascade import CascadeRun
    from localjudge.run.panel import PanelRun, member_folder
    from localjudge.run.runner import Run, Settings
    from localjudge.run.session import run_to_end
    from localjudge.run.suite import SuiteRun, model_folder

    silence()
    found = None if no_suite else find_suite(judge)
    suite = load_suite(found, settings or [], language) if found else None
    of_suites = {"--checks-only": checks_only, "--fresh": fresh, "--output-format": output_format != "full"}
    _check_what_is_asked(judge, suite is not None, of_suites, model or [], checks_only, calibration)
    _check_cascade(suite is not None, model or [], escalate_to, below, calibration)
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
        mapping=named_pairs(mapping or [], "--map"),
        limit=limit,
        skip_invalid=skip_invalid,
    )
    arguments = engine_arguments(engine_arg)
    if url:
        guard.allow_url(url)
    choices = [
        choose_engine(engine, name, arguments, url=url, verbose=verbose, reading=mode == "score")
        for name in (*(model or ()), *([escalate_to] if escalate_to else []))
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
    spec = _with_funnel(judge, settings or [], language) if funnel else load_judge(judge, settings or [], language)
    given = _checklist(spec, checklist, gold, records, chosen, len(choices))
    correct = _correction(calibration, spec, choices[0], mode, doubts=escalate_to is not None and below is None)

    def of(choice: Choice, directory: Path, correct: Calibrated | None = correct) -> Run:
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
            checklist=given,
            say=say,
        )

    job: Run | PanelRun | CascadeRun
    if escalate_to:
        student, teacher = choices
        job = CascadeRun(
            of(student, member_folder(out, student.model.name)),
            of(teacher, member_folder(out, teacher.model.name), None),
            out,
            below,
            say,
        )
    elif len(choices) == 1:
        job = of(choices[0], out)
    else:
        members = [of(choice, member_folder(out, choice.model.name)) for choice in choices]
        job = PanelRun(members, out, combine, say)
    summary = run_to_end(job)
    if summary is None:
        stopped()
    print(opening(summary))
    print(f"verdicts  {out / 'verdicts.jsonl'}\nsummary   {out / 'summary.json'}\nreport    {out / 'report.md'}")
    _write_page(out, spec.language)
    _end(summary.statuses["ok"], out, gold)


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


def _end(judged: int, out: Path, gold: str | None) -> None:
    if not judged:
        raise typer.Exit(1)
    if gold is None:
        return
    from localjudge.agreement.items import agree_items

    held, file = agree_items(out, gold)
    print(f"agreement {file}\n\n{held.markdown()}")


def _checklist(
    spec: JudgeSpec, file: Path | None, gold: str | None, records: Path, chosen: Settings, models: int
) -> Kept | Checklist | None:
    """The checklist of --checklist. Raises LocalJudgeError for what is of checklist judges alone, and, before
    anything is judged, for credits of --gold that are not there or are none."""
    for option, value in (("--checklist", file), ("--gold", gold)):
        if value is not None and not spec.checklist:
            fix = "`localjudge agree` holds a run against people" if option == "--gold" else "leave it out"
            raise LocalJudgeError(f"'{spec.name}' is a {spec.kind} judge, without items", where=option, fix=fix)
    if gold is not None:
        from localjudge.agreement.items import people_credits

        if models > 1:
            what = "each of several models grades by a list of its own: there are no items of them all"
            fix = "leave it out, and then: localjudge agree OUT/members/NAME --gold items=FIELD"
            raise LocalJudgeError(what, where="--gold", fix=fix)
        people_credits(gold, records, chosen.mapping, chosen.limit)
    if file is None:
        return None
    from localjudge.run.checklists import read_file

    return read_file(file)


def _with_funnel(judge: str, settings: list[str], language: str | None) -> JudgeSpec:
    from localjudge.judge.loading import load_judge

    spec = load_judge(judge, settings, language)
    if spec.kind != "dual_control":
        what = f"'{spec.name}' is a {spec.kind} judge, which has no gate"
        raise LocalJudgeError(what, where="--funnel", fix="leave it out")
    return load_judge(judge, [*settings, "dual_control.funnel=true"], language)


def _correction(
    calibration: Path | None, spec: JudgeSpec, choice: Choice, mode: Mode, *, doubts: bool
) -> Calibrated | None:
    """doubts: it must say from which confidence on a verdict is not in doubt."""
    if calibration is None:
        return None
    from localjudge.agreement.calibrate import Calibrated

    correct = Calibrated.load(calibration, spec, choice.model.fingerprint, mode)
    if doubts and not correct.has_threshold:
        what = "it holds no confidence that a wanted agreement is had from"
        fix = "calibrate with --agreement 0.9, or give --below"
        raise LocalJudgeError(what, where=f"--calibration {calibration}", fix=fix)
    return correct


def _check_cascade(
    suite: bool, models: list[str], escalate_to: str | None, below: float | None, calibration: Path | None
) -> None:
    if escalate_to is None:
        if below is not None:
            what = "says when a record goes to a second model"
            raise LocalJudgeError(what, where="--below", fix="name that model: --escalate-to MODEL")
        return
    if suite or len(models) != 1:
        what = "a suite is judged by one model" if suite else "a cascade has one first model"
        fix = "--no-suite takes the judge alone" if suite else "give one -m"
        raise LocalJudgeError(what, where="--escalate-to", fix=fix)
    if below is None and calibration is None:
        fix = "give --below 0.8, or a --calibration file with a threshold"
        raise LocalJudgeError("nothing says what is in doubt", where="--escalate-to", fix=fix)


def _write_page(folder: Path, language: str) -> None:
    """What is judged is whole without it: that it cannot be written is no error."""
    from localjudge.report.html.build import write_report

    try:
        print(f"{'page':<10}{write_report(folder, language=language)}")
    except LocalJudgeError as error:
        print(f"warning: no page: {error}", file=sys.stderr)


def _run_suites(jobs: Iterable[SuiteRun]) -> None:
    from localjudge.run.session import run_to_end

    scored = 0
    for job in jobs:
        told = run_to_end(job)
        if told is None:
            stopped()
        scored += told.scored
        print(told.opening)
        for key, file in (("report", "report.md"), ("results", "results.json"), ("projects", "projects")):
            print(f"{key:<10}{Path(told.folder) / file}")
        if job.model is not None:
            _write_page(Path(told.folder), next(iter(job.suite.judges.values())).language)
    if not scored:
        raise typer.Exit(1)


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

    arguments = engine_arguments(engine_arg)
    guard.allow(host)
    serve_model(
        model,
        host=host,
        port=port,
        arguments=arguments,
        verbose=verbose,
        say=lambda text: print(text, flush=True),
    )
