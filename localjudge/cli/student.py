"""distill evaluate, card and rounds: a student measured, told of, and taught again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localjudge.cli.agreement import GoldId, Group, Labels, RecordsNow
from localjudge.cli.options import (
    Engine,
    EngineArg,
    EngineName,
    JudgeSettings,
    Language,
    Mapping,
    Mode,
    Seed,
    Verbose,
    engine_arguments,
    named_pairs,
    stopped,
)
from localjudge.errors import LocalJudgeError

if TYPE_CHECKING:
    from localjudge.engines.start import Choice
    from localjudge.run.runner import Run


def evaluate(
    student: Annotated[str, typer.Argument(help="A run's folder; or a model, which then judges --records.")],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="A folder for evaluation.json and .md; a student's own gets its card too."
        ),
    ],
    untrained: Annotated[
        str | None, typer.Option(help="The student before its training: a run, or a model.")
    ] = None,
    teacher: Annotated[str | None, typer.Option(help="The teacher: a run, or a model.")] = None,
    gold: Annotated[
        list[str] | None, typer.Option("--gold", help="What people say, as for `localjudge agree`. Repeatable.")
    ] = None,
    name: Annotated[
        str, typer.Option(help="What this set of records is called; others are kept beside it.")
    ] = "test",
    audit: Annotated[
        list[Path] | None, typer.Option(help="The -o of a `localjudge audit` of one of these. Repeatable.")
    ] = None,
    agreement: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Wanted of a cascade; by default the teacher's less one point."),
    ] = None,
    price_per_hour: Annotated[float | None, typer.Option(min=0.0, help="What this machine costs an hour.")] = None,
    hardware: Annotated[str | None, typer.Option(help="What this machine is, in your words.")] = None,
    judge: Annotated[str | None, typer.Option(help="Models: the judge they are asked.")] = None,
    judged: Annotated[
        Path | None, typer.Option("--judge-records", help="Models: the records that each judges.")
    ] = None,
    mapping: Mapping = None,
    settings: JudgeSettings = None,
    language: Language = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Models: judge the first N records only.")] = None,
    mode: Annotated[Mode, typer.Option(help="Models: as for run.")] = "score",
    label: Labels = None,
    gold_id: GoldId = None,
    group: Group = None,
    records: RecordsNow = None,
    engine: Engine = EngineName.vllm,
    engine_arg: EngineArg = None,
    seed: Seed = 0,
    verbose: Verbose = False,
) -> None:
    """Measure a student: agreement with people and with its teacher, what it keeps of that, speed and cost.

    Models judge one after the other here, without the completion cache, so that their speeds may be compared.
    """
    from localjudge.agreement.writing import Asked
    from localjudge.distill.card import evaluation_markdown
    from localjudge.distill.evaluate import Evaluations, Role, Wanted
    from localjudge.distill.evaluating import EvaluationRun
    from localjudge.engines.start import choose_engine
    from localjudge.judge.loading import load_judge
    from localjudge.offline import silence
    from localjudge.run.runner import Run, Settings
    from localjudge.run.session import run_to_end

    silence()
    roles: dict[Role, str | None] = {"untrained": untrained, "student": student, "teacher": teacher}
    named = {role: value for role, value in roles.items() if value is not None}
    runs = {role: Path(value) for role, value in named.items() if (Path(value) / "run.json").is_file()}
    given: dict[Role, Path | Run] = dict(runs)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    if len(runs) < len(named):
        if judge is None or judged is None:
            other = next(value for role, value in named.items() if role not in runs)
            raise LocalJudgeError(
                f"'{other}' holds no run, and as a model it is told neither a judge nor records",
                fix="give a run's folder; or --judge and --judge-records, and the model judges them",
            )
        spec = load_judge(judge, settings or [], language)
        how = Settings.of(mode=mode, mapping=named_pairs(mapping or [], "--map"), limit=limit, seed=seed)

        def starting(choice: Choice) -> Any:
            async def start() -> Any:
                say(choice.loading)
                return await choice.start()

            return start

        for role in named.keys() - runs.keys():
            arguments = engine_arguments(engine_arg)
            choice = choose_engine(engine, named[role], arguments, verbose=verbose, reading=mode == "score")
            given[role] = Run(
                spec=spec,
                records=judged,
                model=choice.model,
                directory=out / "runs" / name / role,
                settings=how,
                start_engine=starting(choice),
                shared_cache=False,
                say=say,
            )
    asked = Asked(gold or [], [], group, records, gold_id, named_pairs(label or [], "--label"))
    wanted = Wanted(name, asked, agreement, price_per_hour, hardware, seed, audit or [])
    done = run_to_end(EvaluationRun(given, out, wanted, say))
    if done is None:
        stopped()
    found, files = done
    print(evaluation_markdown(Evaluations(sets={found.name: found})))
    print("\n".join(map(str, files)))


def card(
    folder: Annotated[Path, typer.Argument(help="A student's folder, with the distill.json of its training.")],
    name: Annotated[
        str | None, typer.Option(help="Make a model of this name of it: a card.yaml, beside the adapter.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The folder to make it in; by default models/NAME.")
    ] = None,
    base: Annotated[str, typer.Option(help="The model that the adapter was trained on.")] = "smollm2-135m",
    title: Annotated[str | None, typer.Option(help="The model's title.")] = None,
    notes: Annotated[str, typer.Option(help="A few words for the card.")] = "",
    evaluation: Annotated[
        Path | None, typer.Option(help="The -o of `distill evaluate`, whose figures it is to tell.")
    ] = None,
) -> None:
    """Write a student's model card (README.md) anew; with --name, make its adapter a model that `-m NAME` takes."""
    from localjudge.distill.card import publish, take_evaluation, write_card

    if name is None:
        if evaluation is not None:
            take_evaluation(folder, evaluation)
        print(write_card(folder))
        return
    made = publish(
        folder, out or Path("models") / name, base, title=title or name, notes=notes, evaluated=evaluation
    )
    print(made)


def cut(
    model: Annotated[str, typer.Argument(help="A model's name or folder, as for run -m.")],
    layers: Annotated[int, typer.Option(min=1, help="How many of its layers to keep, from the lowest.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The smaller model's folder.")],
) -> None:
    """Make a smaller model of a model's lower layers: a student that is cheap, and has all to learn."""
    from localjudge.distill.cut import cut as shorten
    from localjudge.models import find_model

    print(shorten(find_model(model), layers, out))


def rounds(
    judge: Annotated[str, typer.Argument(help="A built-in judge's name, or a judge's folder or file.")],
    records: Annotated[Path, typer.Argument(help="As for run; labels are not needed.")],
    student: Annotated[str, typer.Option(help="The model that learns.")],
    teacher: Annotated[str, typer.Option(help="The model that labels.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="A folder for all of it; the same command goes on in it.")
    ],
    per_round: Annotated[int, typer.Option(min=1, help="Records that the teacher labels a round.")] = 500,
    most: Annotated[int, typer.Option("--rounds", min=1, help="At most so many.")] = 4,
    agreement: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Stop at this agreement with the teacher.")
    ] = None,
    hold_out: Annotated[int, typer.Option(min=1, help="Records to measure on, which are in no round.")] = 300,
    group: Group = None,
    mapping: Mapping = None,
    settings: JudgeSettings = None,
    language: Language = None,
    mode: Annotated[
        Mode, typer.Option(help="How the teacher judges; the student is read from in any case.")
    ] = "score",
    min_mass: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Leave out what the teacher read with less label mass.")
    ] = 0.5,
    full: Annotated[bool, typer.Option("--full", help="Train whole layers, not LoRA's matrices.")] = False,
    freeze_layers: Annotated[int | None, typer.Option(min=0, help="As for distill train.")] = None,
    lr: Annotated[float | None, typer.Option(help="As for distill train.")] = None,
    epochs: Annotated[float, typer.Option(help="As for distill train.")] = 2.0,
    batch: Annotated[int, typer.Option(help="As for distill train.")] = 16,
    engine: Engine = EngineName.vllm,
    engine_arg: EngineArg = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Share no completions with other runs.")] = False,
    seed: Seed = 0,
    verbose: Verbose = False,
) -> None:
    """Label what the student is least sure of, train it again on all that is labelled, and so on.

    Ends when the student agrees with the teacher as wanted, on records held out, or after so many rounds.
    """
    from localjudge.distill.rounds import Rounds, RoundsRun, rounds_markdown, training
    from localjudge.engines.start import choose_engine
    from localjudge.judge.loading import load_judge
    from localjudge.models import find_model
    from localjudge.offline import silence
    from localjudge.run.runner import Run, Settings
    from localjudge.run.session import run_to_end

    silence()
    spec = load_judge(judge, settings or [], language)
    base = find_model(student)
    learn, trained_with = training(
        base, full=full, freeze_layers=freeze_layers, lr=lr, epochs=epochs, batch=batch, seed=seed
    )
    arguments = engine_arguments(engine_arg)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def run_of(model: str, of: Path, directory: Path) -> Run:
        how = mode if model == teacher else "score"
        choice = choose_engine(engine, model, arguments, verbose=verbose, reading=how == "score")

        async def start() -> Any:
            say(choice.loading)
            return await choice.start()

        return Run(
            spec=spec,
            records=of,
            model=choice.model,
            directory=directory,
            settings=Settings.of(mode=how, seed=seed),
            start_engine=start,
            shared_cache=not no_cache,
            say=say,
        )

    job = RoundsRun(
        spec=spec,
        records=records,
        mapping=named_pairs(mapping or [], "--map"),
        student=student,
        teacher=teacher,
        directory=out,
        how=Rounds(per_round, most, agreement, hold_out, group, min_mass, seed),
        run_of=run_of,
        learn=learn,
        made_by={"mode": mode, "training": trained_with},
        say=say,
    )
    found = run_to_end(job)
    if found is None:
        stopped()
    print(rounds_markdown(found))
    print(f"model     {found[-1].model}\nrounds    {out / 'rounds.md'}")
