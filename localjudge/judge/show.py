"""A judge in words: what it asks, the prompt it sends, the schema it enforces, and what that costs in tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable

from localjudge.decoding.vocabulary import Vocabulary
from localjudge.judge.spec import JudgeSpec, load_judge


def show(judge: str, settings: Iterable[str]) -> str:
    """What a judge asks, of what, how it counts, and its prompt with the fields' names in their places.

    Where inputs are JSON, what templates look for in them cannot be made up: then the templates themselves.
    """
    spec = load_judge(judge, settings)
    optional = [f"{item.name} (optional)" if item.optional else item.name for item in spec.inputs]
    lines = [
        f"{spec.name} {spec.version}: {spec.kind}, {spec.language}",
        spec.description,
        "",
        f"inputs     {', '.join(optional)}",
        f"questions  {', '.join(f'{question.id} ({question.type})' for question in spec.asked)}",
        f"overall    {_overall(spec)}",
    ]
    if any(item.type == "json" for item in spec.inputs):
        prompt = [(f"{role} template", source.text) for role, source in spec.templates.sources.items()]
    else:
        messages = spec.templates.messages(
            {item.name: f"[{item.name}]" for item in spec.inputs}, spec.template_names
        )
        prompt = [(message.role, message.text) for message in messages]
    for head, text in prompt:
        lines += ["", f"--- {head} ---", text]
    return "\n".join(lines)


def _overall(spec: JudgeSpec) -> str:
    if spec.kind == "pairwise":
        half = ["for a tie"] * spec.tie + ["when the two orders disagree"] * (spec.orders == "both")
        return "1 when A wins, 0 when B wins" + (f", a half {' or '.join(half)}" if half else "")
    weights = ", ".join(f"{name} x {spec.scoring.weights.get(name, 1):g}" for name in spec.counted)
    mean = f"weighted mean of {weights}" if weights else "1 without a red line, else 0"
    mark = spec.scoring.pass_mark
    passes = f"; passes from {mark:g}" if mark is not None else ""
    return mean + passes + (f"; fails by any of {', '.join(spec.veto)}" if spec.veto else "")


def check(judge: str, settings: Iterable[str], vocabulary: Vocabulary, counted: str) -> str:
    """A judge's answer schema, its least and set token budgets in this vocabulary, and warnings.

    counted: whose vocabulary it is, in words.
    """
    from localjudge.decoding.closing import Grammar

    spec = load_judge(judge, settings)
    grammar = Grammar(spec.answer_schema, vocabulary)
    lines = [
        f"{spec.name} {spec.version} is a valid {spec.kind} judge ({spec.digest[:12]})",
        "",
        json.dumps(spec.answer_schema, ensure_ascii=False, indent=2),
        "",
        f"least budget  {grammar.least} tokens an answer ({counted})",
        f"set budget    {grammar.full} tokens an answer",
        *(f"warning       {warning}" for warning in spec.warnings()),
    ]
    return "\n".join(lines)
