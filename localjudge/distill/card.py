"""An evaluation as text, and a student's model card: README.md beside its weights, from distill.json, which its
training wrote, and evaluation.json. Knows these files; computes nothing."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from localjudge.adapters import CONFIG, PROVENANCE, WEIGHTS, merge
from localjudge.agreement.agree import Figure
from localjudge.agreement.render import NAMES, PERCENT
from localjudge.distill.curve import Point
from localjudge.distill.evaluate import FILE, Against, Cascade, Evaluation, Evaluations, Judged, read
from localjudge.errors import LocalJudgeError, ModelError, RunError
from localjudge.model_files import hash_files, hash_weights, read_json
from localjudge.models import CARD, Adapter, ModelCard, Source, find_model, load_card
from localjudge.report.markdown import percent, plain, table
from localjudge.run.store import write_atomically, writing

ROWS = 9
"""Points of a cascade's curve that are shown."""


def _value(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    return percent(value) if name in PERCENT else f"{value:.3f}"


def _figure(figure: Figure) -> str:
    told = _value(figure.name, figure.value)
    if figure.low is None or figure.high is None:
        return told
    low, high = (_value(figure.name, bound).removesuffix(" %") for bound in (figure.low, figure.high))
    return f"{told} ({low} to {high})"


def _agreement(judges: Sequence[Judged], sides: Mapping[str, Sequence[Against]]) -> list[str]:
    """A table a target: the judges down, the figures across."""
    targets = list(dict.fromkeys(one.target for told in sides.values() for one in told))
    lines = []
    for target in targets:
        rows, names = [], list[str]()
        for judge in judges:
            one = next((one for one in sides[judge.role] if one.target == target), None)
            if one is None:
                continue
            names = [figure.name for figure in one.figures]
            rows.append([judge.role, judge.model, f"{one.n:,}", *map(_figure, one.figures)])
        header = ["judge", "model", f"n of {target}", *(NAMES.get(name, name) for name in names)]
        lines += [table(header, rows, range(2, len(header))), ""]
    return lines


def _speed(evaluation: Evaluation) -> list[str]:
    def told(value: float | None, form: str) -> str:
        return "–" if value is None else format(value, form)

    rows = [
        [
            judge.role,
            f"{judge.judged:,} of {judge.verdicts:,}",
            told(judge.speed.per_second, ",.2f"),
            told(judge.speed.prompt, ",.0f"),
            told(judge.speed.computed, ",.0f"),
            told(judge.speed.written, ",.1f"),
            "–" if judge.speed.parameters is None else f"{judge.speed.parameters / 1e6:,.0f} M",
            told(judge.speed.relative, ".3f"),
            told(judge.speed.cost, ",.4f"),
        ]
        for judge in evaluation.judges
    ]
    header = [
        "judge",
        "judged",
        "verdicts/s",
        "prompt",
        "computed",
        "written",
        "parameters",
        "relative",
        "a thousand",
    ]
    where = f" on {plain(evaluation.hardware)}" if evaluation.hardware else ""
    price = f", at {evaluation.price:g} an hour" if evaluation.price is not None else ""
    return [
        table(header, rows, range(1, len(header))),
        "",
        f"Tokens a verdict: in the prompt, computed without those that the engine had cached, and written{where}. "
        "relative: what a verdict costs, the teacher's being 1, by time where both are known, else by tokens times "
        f"parameters. a thousand: the cost of so many verdicts{price}.",
        "",
    ]


def _point(point: Point) -> str:
    cost = [
        f"{percent(share)} of the teacher's {what}"
        for share, what in ((point.work, "work"), (point.time, "time"))
        if share is not None
    ]
    return (
        f"below {point.below:.3f}: {percent(point.escalated)} escalated, agreement {percent(point.agreement)} "
        f"({_bounds(point.low, point.high)})" + "".join(f", {part}" for part in cost)
    )


def _elsewhere(cascade: Cascade) -> str:
    told = cascade.held_out
    if told is None:
        return ""
    return (
        f"; chosen on one half of them and judged on the other, both ways, {percent(told.escalated)} are escalated "
        f"and the agreement is {percent(told.agreement)} ({_bounds(told.low, told.high)})"
    )


def _bounds(low: float, high: float) -> str:
    return f"{percent(low).removesuffix(' %')} to {percent(high).removesuffix(' %')}"


def _cascade(cascade: Cascade) -> list[str]:
    """Its curve, thinned, and what was chosen."""
    points = cascade.points
    step = max(1, (len(points) - 1) / (ROWS - 1)) if len(points) > ROWS else 1
    places = sorted({round(i * step) for i in range(min(ROWS, len(points)))})
    rows = [
        [
            f"{point.below:.3f}",
            percent(point.escalated),
            percent(point.agreement),
            _bounds(point.low, point.high),
            "–" if point.work is None else percent(point.work),
            "–" if point.time is None else percent(point.time),
        ]
        for point in (points[i] for i in places)
    ]
    whose = "people" if cascade.of == "people" else "the teacher"
    chosen = (
        f"For an agreement of {percent(cascade.wanted)} the cheapest is {_point(cascade.chosen)}."
        if cascade.chosen
        else f"No threshold has an agreement of {percent(cascade.wanted)} on these records"
        + (f"; the best is {_point(cascade.best)}." if cascade.best else ".")
    )
    return [
        f"{plain(cascade.target)}, agreement with {whose}, {cascade.n:,} records:",
        "",
        table(["below", "escalated", "agreement", "95 %", "work", "time"], rows, range(6)),
        "",
        f"{chosen} It was chosen on these same records{_elsewhere(cascade)}.",
        "Intervals are as if records stood alone.",
        "",
    ]


def _set(evaluation: Evaluation, level: str) -> Iterable[str]:
    judges = evaluation.judges
    yield from (f"{level} {plain(evaluation.name)}", "")
    grouped = "; intervals by groups of records" if evaluation.grouped else ""
    yield f"Judge {plain(evaluation.judge)}, digest {evaluation.judge_digest[:12]}{grouped}."
    yield ""
    if evaluation.gold:
        yield from (f"Agreement with people ({plain(', '.join(evaluation.gold))}), 95 % intervals:", "")
        yield from _agreement(judges, {judge.role: judge.people for judge in judges})
    if any(judge.teacher for judge in judges):
        yield from ("Agreement with the teacher:", "")
        yield from _agreement(judges, {judge.role: judge.teacher for judge in judges})
    for kept in evaluation.kept:
        if kept.share is not None:
            bounds = "" if kept.low is None else f" ({_bounds(kept.low, kept.high or 0)})"
            yield (
                f"- The student keeps {percent(kept.share)}{bounds} of the teacher's "
                f"{NAMES.get(kept.figure, kept.figure)} on {plain(kept.target)}."
            )
    for judge in judges:
        for question, nats in judge.distance.items():
            yield f"- KL(teacher || {judge.role}) on {plain(question)}: {nats:.4f} nats."
    yield ""
    for comparison in evaluation.compared:
        for between in comparison.between:
            for it in between.differences:
                if it.figure not in ("accuracy", "kappa") or it.difference is None:
                    continue
                bounds = "" if it.low is None or it.high is None else f" ({it.low:+.3f} to {it.high:+.3f})"
                p = "" if it.adjusted is None else f", p {it.adjusted:.2g} (Holm)"
                yield (
                    f"- {plain(comparison.target)}, {NAMES.get(it.figure, it.figure)}: {between.second} less "
                    f"{between.first} {it.difference:+.3f}{bounds}{p}."
                )
    yield ""
    yield from _speed(evaluation)
    if evaluation.cascades:
        yield from (f"{level}# Cascade", "")
        for cascade in evaluation.cascades:
            yield from _cascade(cascade)
    if evaluation.audits:
        rows = [
            [
                audit.role,
                audit.name,
                f"{audit.n:,}",
                "–" if audit.flips is None else percent(audit.flips),
                "–" if audit.low is None or audit.high is None else _bounds(audit.low, audit.high),
                audit.grade,
            ]
            for audit in evaluation.audits
        ]
        header = ["judge", "changed", "n", "mind changed", "95 %", "verdict"]
        yield from (f"{level}# Audit", "", table(header, rows, [2, 3]), "")
    for note in evaluation.notes:
        yield f"- Note: {plain(note)}."
    if evaluation.notes:
        yield ""


def _joined(lines: Iterable[str]) -> str:
    """Without a blank line after another."""
    kept: list[str] = []
    for line in lines:
        if line or (kept and kept[-1]):
            kept.append(line)
    return "\n".join(kept).rstrip() + "\n"


def evaluation_markdown(evaluations: Evaluations) -> str:
    """evaluation.md, set by set."""
    lines = ["# The student, measured", ""]
    for evaluation in evaluations.sets.values():
        lines += _set(evaluation, "##")
    return _joined(lines)


# The model card


_HEADINGS = {"settings": "Recipe", "results": "Training", "start": "Went on from"}
"""What the parts of distill.json are called, where not as they are."""


def _flat(key: str, value: Any) -> list[tuple[str, str]]:
    """Dotted key -> value, of what is inside of it."""
    if isinstance(value, list) and any(isinstance(one, Mapping) for one in value):
        value = value[0] if len(value) == 1 else {str(place): one for place, one in enumerate(value, 1)}
    if isinstance(value, Mapping) and value:
        return [row for name, inner in value.items() for row in _flat(f"{key}.{name}" if key else name, inner)]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return [] if value is None else [(key, text if len(text) <= 300 else text[:300] + "…")]


def _limits(evaluations: Evaluations, card: ModelCard | None) -> list[str]:
    sets = list(evaluations.sets.values())
    judges = sorted({plain(one.judge) for one in sets})
    found = []
    if judges:
        found.append(
            f"It was taught one thing: {', '.join(judges)}, read from probabilities (--mode score). "
            "Other questions, and reasons in words, are not what it was trained for."
        )
    if len(sets) < 2:
        found.append("Out of the domain of its training set it was not measured.")
    if card and card.languages:
        found.append(f"Languages: {plain(card.languages)}.")
    found.append(
        "It takes over its teacher's mistakes and leanings, and adds its own; where verdicts matter, hold a sample "
        "against people (`localjudge agree`) and send what it doubts to a larger judge (`--escalate-to`)."
    )
    return found


def write_card(folder: Path) -> Path:
    """Write README.md into a student's folder, of what lies there: distill.json, and evaluation.json and card.yaml
    if there are such. Raises ModelError."""
    if not (folder / PROVENANCE).is_file():
        fix = "give the folder that `localjudge distill train` wrote: its -o, and in it adapter or model"
        raise ModelError(f"holds no {PROVENANCE}, which a training writes", where=str(folder), fix=fix)
    provenance = read_json(folder / PROVENANCE)
    evaluations = read(folder)
    card = load_card(folder / CARD) if (folder / CARD).is_file() else None
    name = card.name if card else folder.resolve().name
    judge = next((one.judge for one in evaluations.sets.values()), None)
    judge = judge or (provenance.get("judge") or {}).get("name", "JUDGE")
    lines: list[str] = []
    if card:
        base = card.source.adapter.base if card.source.adapter else None
        head = {"license": card.licence.lower(), "base_model": base, "library_name": "peft" if base else None}
        lines += ["---", *(f"{key}: {value}" for key, value in head.items() if value), "---", ""]
    lines += [f"# {plain(card.title if card else name)}", ""]
    if card and card.notes:
        lines += [card.notes.strip(), ""]
    lines += [
        "A small judge, distilled with localjudge.",
        "",
        "```",
        f"localjudge run {judge} records.jsonl -m {name if card else folder.name} --mode score -o runs/first",
        "```",
        "",
    ]
    scalars: list[tuple[str, str]] = []
    parts: list[str] = []
    for key, value in provenance.items():
        if not isinstance(value, Mapping | list):
            scalars += _flat(key, value)
        elif rows := _flat("", value):
            heading = _HEADINGS.get(key, key.replace("_", " ").capitalize())
            parts += [f"## {plain(heading)}", "", table(["what", "value"], rows), ""]
    if scalars:
        lines += ["## Made by", "", table(["what", "value"], scalars), ""]
    lines += parts
    if evaluations.sets:
        lines += ["## Measured", ""]
        for evaluation in evaluations.sets.values():
            lines += _set(evaluation, "###")
    lines += ["## Limits", "", *(f"- {limit}" for limit in _limits(evaluations, card))]
    write_atomically(folder / "README.md", _joined(lines))
    return folder / "README.md"


def _without_folders(value: Any) -> Any:
    """Where things lay on the machine that trained it is nobody's business: of a path its last part is kept."""
    if isinstance(value, Mapping):
        return {key: _without_folders(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_folders(inner) for inner in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def take_evaluation(folder: Path, evaluated: Path) -> None:
    """Put the evaluation in the folder `evaluated`, if it holds one, beside a student's weights. Raises
    LocalJudgeError."""
    if not (evaluated / FILE).is_file():
        fix = "give the -o of `localjudge distill evaluate`"
        raise LocalJudgeError(f"holds no {FILE}", where=str(evaluated), fix=fix)
    whole = Evaluations.model_validate(_without_folders(read(evaluated).model_dump(mode="json")))
    write_atomically(folder / FILE, whole.model_dump_json(indent=1) + "\n")


def publish(
    adapter: Path, out: Path, base: str, *, title: str, notes: str = "", evaluated: Path | None = None
) -> Path:
    """Make of a trained adapter a folder that is a model by its name, the folder's: the adapter, what is told of
    it, card.yaml with the hashes of it and of its base, and README.md. Raises ModelError and RunError.

    base: the model that it was trained on, by its card's name. evaluated: where it was measured, if not there.
    Merging is tried before anything is written.
    """
    name = out.name
    model = find_model(base)
    if model.card is None:
        raise ModelError(f"{base} has no card for an adapter to build on", fix="give the name of a card")
    for file in (WEIGHTS, CONFIG, PROVENANCE):
        if not (adapter / file).is_file():
            raise ModelError(f"has no {file}, so it is not a trained adapter", where=str(adapter))
    if out.exists() and not (out / CARD).is_file():
        raise RunError("is in the way, and no model's folder", where=str(out), fix="give another -o")
    with tempfile.TemporaryDirectory() as temp:
        merge(adapter, model.path, Path(temp))
    card = ModelCard(
        name=name,
        title=title,
        licence=model.card.licence,
        licence_url=model.card.licence_url,
        source=Source(
            adapter=Adapter(
                base=model.card.name,
                base_weights=hash_weights(model.path),
                sha256=hash_files([adapter / WEIGHTS], fresh=True)[adapter / WEIGHTS],
            )
        ),
        parameters=model.card.parameters,
        context=model.card.context,
        memory_gib_bf16=model.card.memory_gib_bf16,
        languages=model.card.languages,
        notes=notes,
    )
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        if adapter.resolve() != out.resolve():
            shutil.copyfile(adapter / WEIGHTS, out / WEIGHTS)
        for file in (CONFIG, PROVENANCE, FILE):
            if (adapter / file).is_file():
                told = _without_folders(read_json(adapter / file))
                told |= {"base_model_name_or_path": model.card.name} if file == CONFIG else {}
                (out / file).write_text(json.dumps(told, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    whole = card.model_dump(mode="json", exclude_defaults=True)
    write_atomically(out / CARD, yaml.safe_dump(whole, sort_keys=False, allow_unicode=True, width=110))
    if evaluated is not None:
        take_evaluation(out, evaluated)
    write_card(out)
    return out
