"""Is the judge right? Runs held against people, against each other, and against changes that should not matter."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from localjudge import guard
from localjudge.cli.options import (
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

Gold = Annotated[
    list[str],
    typer.Option(
        "--gold",
        help="[QUESTION=]FIELD of the run's records, or [QUESTION=]FILE:FIELD: what people say. A field may hold "
        "a list, one label a person. QUESTION may also be overall, passed, or flags.CODE, and of a checklist judge "
        "items: credits by item. Repeatable: several people, or several questions.",
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
    from localjudge.agreement.items import ITEMS, agree_items
    from localjudge.agreement.render import print_agreement
    from localjudge.agreement.writing import Asked, agree_run

    for text in [text for text in gold if text.startswith(ITEMS)]:
        held, file = agree_items(directory, text.removeprefix(ITEMS), records)
        print(f"{held.markdown()}\n{file}")
    if not (gold := [text for text in gold if not text.startswith(ITEMS)]):
        return
    asked = Asked(gold, slices or [], group, records, gold_id, named_pairs(label or [], "--label"))
    result, files = agree_run(directory, asked, seed=seed, epsilon=epsilon, draw=not no_figures)
    print_agreement(result)
    print("\n".join(map(str, files)))


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

    asked = Asked(gold, [], group, records, gold_id, named_pairs(label or [], "--label"))
    print_comparison(compare_runs(directories, asked, seed=seed, out=out))
    if out:
        print(out)


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

    asked = Asked(gold, [], group, records, gold_id, named_pairs(label or [], "--label"))
    result, files = calibrate_run(
        directory, asked, out, method=method, wanted=agreement or [], seed=seed, draw=not no_figures
    )
    print_calibration(result)
    print("\n".join(map(str, files)))


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
    arguments = engine_arguments(engine_arg)
    if url:
        guard.allow_url(url)
    spec = load_judge(judge, settings or [], language)
    wordings = load_wordings(judge, settings or [], language)
    chosen = Settings.of(
        mode=mode, seed=seed, limit=limit, mapping=named_pairs(mapping or [], "--map"), skip_invalid=skip_invalid
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
        stopped()
    print_audit(found)
    print(f"{out / 'audit.json'}\n{out / 'audit.md'}")
    if not found.outcomes:
        raise typer.Exit(1)
