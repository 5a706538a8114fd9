"""A judge in words: what it asks, the prompt it sends, the schema it enforces, and what that costs in tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from localjudge.decoding.vocabulary import Vocabulary
from localjudge.judge.loading import example_fields, load_judge
from localjudge.judge.spec import JudgeSpec
from localjudge.judge.streams import DualControl
from localjudge.judge.suite import find_suite, load_suite


def show(judge: str, settings: Iterable[str]) -> str:
    """What a judge asks, of what, how it counts, and its prompt with the fields' names in their places.

    Where inputs are JSON, what templates look for in them cannot be made up: then the templates themselves.
    """
    spec = load_judge(judge, settings)
    # A dual-control judge's readers have their own lines; the prompt is that of all which is asked of the material.
    asked = [question for questions in spec.material_asks for question in questions]
    names = spec.names_for(asked) if spec.dual_control else spec.template_names
    optional = [f"{item.name} (optional)" if item.optional else item.name for item in spec.inputs]
    lines = [
        f"{spec.name} {spec.version}: {spec.kind}, {spec.language}",
        spec.description,
        "",
        f"inputs     {', '.join(optional)}",
        f"questions  {', '.join(f'{question.id} ({question.type})' for question in asked)}",
        f"overall    {_overall(spec)}",
        *(f"pass       {one.id}: {', '.join(one.questions)}" for one in spec.passes),
        *(f"red line   {line.code} ({line.by}): {line.text}" for line in spec.red_lines),
        *(f"view       {item.name}: {item.view}" for item in spec.inputs if item.view),
    ]
    if any(item.type == "json" for item in spec.inputs):
        prompt = [(f"{role} template", source.text) for role, source in spec.templates.sources.items()]
    else:
        messages = spec.templates.messages(example_fields(spec, "[{}]"), names)
        prompt = [(message.role, "".join(map(str, message.parts))) for message in messages]
    for head, text in prompt:
        lines += ["", f"--- {head} ---", text]
    return "\n".join(lines)


def _overall(spec: JudgeSpec) -> str:
    if spec.kind == "pairwise":
        half = ["for a tie"] * spec.tie + ["when the two orders disagree"] * (spec.orders == "both")
        return "1 when A wins, 0 when B wins" + (f", a half {' or '.join(half)}" if half else "")
    scoring = spec.scoring
    if spec.checklist:
        passes = "" if scoring.pass_mark is None else f"; passes from {scoring.pass_mark:g}, unless a 3 has none"
        return f"credit (none 0, half 0.5, full 1) of each item, weighted by the item's 1 to 3{passes}"
    if spec.dual_control:
        return _fused(spec.dual_control, scoring.pass_mark)
    if scoring.dimensions:
        parts = ", ".join(f"{part.id} x {part.weight:g} %" for part in scoring.dimensions)
        mean = f"weighted mean of {parts}, without what cannot be judged"
    elif scoring.overall is not None:
        mean = f"the score '{scoring.overall}'"
    else:
        mean = _mean(spec)
    mark = scoring.pass_mark
    passes = f"; passes from {mark:g}" if mark is not None else ""
    fatal = [*spec.veto, *(line.code for line in spec.red_lines if line.fails)]
    return mean + passes + (f"; fails by any of {', '.join(fatal)}" if fatal else "")


def _fused(section: DualControl, mark: float | None) -> str:
    taus, gate = section.taus, section.gate
    parts = ", ".join(f"{name} x {weight:g}" for name, weight in section.technical.items())
    closed = [f"technical below {gate.floor:g}"]
    closed += [f"{gate.contradicted} contradicted"] * bool(gate.contradicted)
    closed += ["a safety flag"] * gate.safety
    shrunk = f"persona x {gate.shrink:g}, and below whatever is in front of it"
    passes = f"; passes from {mark:g}" if mark is not None else ""
    lines = [
        f"{section.profile}: technical x {taus.technical:g}, persona x {taus.persona:g}{passes}",
        f"technical  weighted mean of {parts}, without what cannot be judged",
        f"gate       closed by {', '.join(closed)}; behind it {'0' if gate.then == 'fail' else shrunk}",
        *(f"persona    {one.id}: {', '.join(asked.id for asked in one.questions)}" for one in section.personas),
    ]
    return "\n".join(lines)


def _mean(spec: JudgeSpec) -> str:
    weights = ", ".join(f"{name} x {spec.scoring.weights.get(name, 1):g}" for name in spec.counted)
    return f"weighted mean of {weights}" if weights else "1 without a red line, else 0"


def check(judge: str, settings: Iterable[str], vocabulary: Vocabulary, counted: str) -> str:
    """A judge's answer schema, its least and set token budgets in this vocabulary, and warnings; of a suite's file,
    those of its judges.

    counted: whose vocabulary it is, in words.
    """
    file = find_suite(judge) if Path(judge).is_file() else None
    if file is None:
        return _checked(load_judge(judge, settings), vocabulary, counted)
    suite = load_suite(file, settings)
    head = [f"{suite.spec.name} is a valid suite of {len(suite.judges)} judges"]
    for name, entry in suite.entries.items():
        taken = f"records that are '{entry.when}'" if entry.when else "all records"
        head.append(f"judge         {name}: {taken}, {'beside' if entry.beside else 'as'} '{entry.category}'")
    told = (_checked(spec, vocabulary, counted) for spec in suite.judges.values())
    return "\n\n".join(["\n".join(head), *told])


def _checked(spec: JudgeSpec, vocabulary: Vocabulary, counted: str) -> str:
    from localjudge.decoding.closing import Grammar

    lines = [f"{spec.name} {spec.version} is a valid {spec.kind} judge ({spec.digest[:12]})"]
    for place, schema in enumerate(spec.schemas):
        grammar = Grammar(schema, vocabulary)
        lines += [
            "",
            *([f"pass          {spec.ask_names[place]}"] if spec.ask_names else []),
            json.dumps(schema, ensure_ascii=False, indent=2),
            "",
            f"least budget  {grammar.least} tokens an answer ({counted})",
            f"set budget    {grammar.full} tokens an answer",
        ]
    return "\n".join([*lines, *(f"warning       {warning}" for warning in spec.warnings())])
