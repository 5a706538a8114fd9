"""A summary as report.md, to be read in a terminal as well as rendered.

Whatever a model, a record or a path says passes through `plain`, so that it is shown and never obeyed. Knows the
summary and run.json; counts nothing.
"""

from __future__ import annotations

import functools
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from localjudge.report.summary import Mean, Pairwise, Panel, Share, Summary

BAR = 40
RATIONALE = 400
SMALL_SAMPLE = 30
MANY_INCONSISTENT = 0.2
LITTLE_AGREEMENT = 0.4


def markdown(summary: Summary, run: Mapping[str, Any]) -> str:
    """report.md of a run. run: run.json."""
    return _template().render(
        summary=summary,
        run=run,
        scores=_scores(summary),
        members=_members(summary),
        agreement=_agreement(summary),
        sides=_sides(summary),
        served=_served(summary),
        opening=opening(summary),
        warnings=warnings(summary),
        provenance=provenance(run),
    )


def warnings(summary: Summary) -> list[str]:
    """What a reader of the numbers should know first."""
    found = []
    pairs = summary.pairwise
    if pairs:
        if pairs.win_rate_a and pairs.win_rate_a.n < SMALL_SAMPLE:
            found.append(f"small sample: the win rate stands on {count(pairs.win_rate_a.n, 'decided pair')}.")
    elif summary.overall and summary.overall.n < SMALL_SAMPLE:
        found.append(f"small sample: the mean stands on {count(summary.overall.n, 'verdict')}.")
    if pairs and pairs.inconsistent_share and pairs.inconsistent_share.share > MANY_INCONSISTENT:
        found.append(
            f"the judge contradicted itself on {percent(pairs.inconsistent_share.share)} of the pairs when they "
            "were swapped."
        )
    if summary.diagnosis and (danger := summary.diagnosis.danger.count):
        found.append(f"{count(danger, 'response')} pleased the reader and failed on the facts: see the diagnosis.")
    if summary.panel:
        found += _panel_warnings(summary.panel)
    judged = summary.statuses["ok"]
    for question, histogram in summary.histograms.items():
        given = [(label, n) for label, n in histogram.items() if n]
        if judged > 1 and len(given) == 1 and given[0][1] == judged:
            found.append(f"the judge gave every record the same label for {plain(question)}: {plain(given[0][0])}.")
    return found


def _panel_warnings(panel: Panel) -> list[str]:
    found = []
    for question, agreement in panel.agreement.items():
        if agreement.alpha is not None and agreement.alpha < LITTLE_AGREEMENT:
            found.append(f"the members hardly agree on {plain(question)}: alpha {agreement.alpha:.2f}.")
    for name, member in panel.members.items():
        if member.failed:
            found.append(
                f"{plain(name)} could not judge {count(member.failed, 'record')}: the others decided them."
            )
    return found


def opening(summary: Summary) -> str:
    """The result in words, with what it stands on."""
    judged = summary.statuses["ok"]
    if not summary.total:
        return (
            f"None of {count(summary.records, 'record')} judged so far."
            if summary.records
            else "There were no records."
        )
    if summary.total < summary.records:
        said = [f"{summary.total:,} of {count(summary.records, 'record')} so far, {judged:,} of them judged."]
    elif judged == summary.total:
        said = [f"All {count(judged, 'record')} judged." if judged > 1 else "The one record was judged."]
    else:
        lost = [f"{n:,} {status}" for status, n in summary.statuses.items() if n and status != "ok"]
        said = [
            f"{judged:,} of {count(summary.total, 'record')} judged; "
            f"{summary.total - judged:,} could not be: {', '.join(lost)}."
        ]
    if not summary.overall:
        said.append("Nothing was judged, so there is no result.")
    elif summary.pairwise:
        pairs = summary.pairwise
        rate = pairs.win_rate_a
        said.append(f"A won {rate_of(rate, 'decided pairs')}." if rate else "No pair was decided.")
        rest = [f"{n:,} {what}" for n, what in undecided(pairs) if n]
        if rest:
            said.append(f"Not decided: {', '.join(rest)}.")
    else:
        mean = summary.overall
        said.append(f"Mean overall {number(mean.mean, mean)}{_in_brackets(mean)}, n = {mean.n:,}.")
    if summary.passed:
        said.append(f"{rate_of(summary.passed, 'passed')}.")
    if summary.unsure:
        said.append(f"{count(summary.unsure, 'verdict')} unsure, counted all the same.")
    return " ".join(said)


def undecided(pairs: Pairwise) -> list[tuple[int, str]]:
    """How many pairs nobody won, and why."""
    return [(pairs.ties, "tied"), (pairs.inconsistent, "inconsistent"), (pairs.split, "split between the members")]


def count(n: int, what: str) -> str:
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def number(value: float, mean: Mean) -> str:
    """`value` to three decimals on a scale no wider than 1, else to two."""
    return f"{value:,.{3 if mean.scale[1] - mean.scale[0] <= 1 else 2}f}"


def percent(part: float) -> str:
    return f"{100 * part:.1f} %"


def percents(low: float, high: float) -> str:
    return f"{100 * low:.1f} to {100 * high:.1f}, 95 %"


def rate_of(rate: Share, what: str) -> str:
    return f"{rate.count:,} of {rate.n:,} {what} ({percent(rate.share)}; {percents(rate.low, rate.high)})"


def position(first_place: Mean) -> str:
    low, high = first_place.low, first_place.high
    if low is None or high is None:
        return percent(first_place.mean)
    told = "the same in every pair" if low == high else percents(low, high)
    return f"{percent(first_place.mean)} ({told})"


def interval(mean: Mean) -> str:
    if mean.low is None or mean.high is None:
        return "–"
    if mean.low == mean.high:
        return "all equal"
    return f"{number(mean.low, mean)} to {number(mean.high, mean)}"


def _in_brackets(mean: Mean) -> str:
    told = interval(mean)
    return {"–": "", "all equal": " (all equal)"}.get(told, f" ({told}, 95 %)")


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60} min"


def fold(text: str) -> str:
    """One line, without the controls that move a terminal's cursor or turn the direction of writing."""
    return " ".join("".join(_tame(c) for c in text).split())


def _tame(c: str) -> str:
    if c in "\u200c\u200d":  # joiners: Persian, Hindi and emoji are misspelt without them
        return c
    return {"Cc": " ", "Cf": "", "Cs": "\N{REPLACEMENT CHARACTER}"}.get(unicodedata.category(c), c)


def cut(text: str, most: int = RATIONALE) -> str:
    """One line of about `most` characters, cut between words where there are spaces (Chinese has none)."""
    line = fold(text)
    if len(line) <= most:
        return line
    head = line[:most]
    space = head.rfind(" ", most - 60)
    return (head[:space] if space > 0 else head).rstrip(" ,;:，；：、") + "…"


def plain(value: Any) -> str:
    """Text that Markdown shows as it is, in one line.

    `<` and entities become entities, since not every renderer takes a backslash before them; the rest gets one.
    """
    line = re.sub(r"&(?=#?\w+;)", "&amp;", fold(str(value))).replace("<", "&lt;")
    line = re.sub(r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", line)
    # A heading, quote, underline or list at the start; of `1.` it is the dot that takes the backslash.
    return re.sub(r"^(?:(?=[#>=]|[-+](?:[-\s]|$))|(\d+)(?=[.)](?:\s|$)))", r"\1\\", line)


def width(text: str) -> int:
    """Columns in a terminal: Chinese takes two."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _pad(text: str, columns: int, right: bool = False) -> str:
    space = " " * (columns - width(text))
    return space + text if right else text + space


def table(header: Sequence[str], rows: Sequence[Sequence[Any]], right: Sequence[int] = ()) -> str:
    """A table whose source is aligned too. right: the columns of numbers."""
    cells = [list(header), *([plain(cell) or " " for cell in row] for row in rows)]
    widths = [max(3, *(width(row[i]) for row in cells)) for i in range(len(header))]
    lines = [
        "| " + " | ".join(_pad(cell, widths[i], i in right) for i, cell in enumerate(row)) + " |" for row in cells
    ]
    rule = ["-" * (columns + 1) + ":" if i in right else "-" * (columns + 2) for i, columns in enumerate(widths)]
    return "\n".join([lines[0], "|" + "|".join(rule) + "|", *lines[1:]])


def bars(histogram: Mapping[str, int], of: int) -> str:
    """Labels, bars as long as their counts, and the share of `of` verdicts, for a code block."""
    names = {label: fold(label) for label in histogram}
    label_width = max(width(name) for name in names.values())
    longest = max(histogram.values())
    digits = len(f"{longest:,}")
    return "\n".join(
        f"  {_pad(names[label], label_width)}  {_bar(n, longest):<{BAR}}  {n:>{digits},}  {percent(n / of):>7}"
        for label, n in histogram.items()
    )


def _bar(n: int, longest: int) -> str:
    """To an eighth of a character; whatever is not nothing shows."""
    eighths = max(bool(n), round(8 * BAR * n / longest)) if longest else 0
    return ("█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8]).rstrip()


def _scores(summary: Summary) -> list[list[Any]]:
    named = {"overall": summary.overall, **summary.scores} if summary.overall else {}
    return [
        [
            name,
            number(mean.mean, mean),
            interval(mean),
            mean.method,
            "–" if mean.sd is None else number(mean.sd, mean),
            f"{mean.n:,}",
            f"{mean.missing:,}",
            f"{mean.scale[0]:g} to {mean.scale[1]:g}",
        ]
        for name, mean in named.items()
        if mean
    ]


def _members(summary: Summary) -> list[list[Any]]:
    if summary.panel is None:
        return []
    return [
        [
            name,
            f"{member.judged:,}",
            f"{member.failed:,}",
            *((number(mean.mean, mean), interval(mean)) if (mean := member.overall) else ("–", "–")),
        ]
        for name, member in summary.panel.members.items()
    ]


def _agreement(summary: Summary) -> list[list[Any]]:
    if summary.panel is None:
        return []
    return [
        [
            question,
            "all equal" if it.alpha is None else f"{it.alpha:.3f}",
            it.metric,
            percent(it.unanimous.share) if it.unanimous else "–",
            f"{it.split:,}",
        ]
        for question, it in summary.panel.agreement.items()
    ]


def _sides(summary: Summary) -> list[list[Any]]:
    if summary.cascade is None:
        return []
    both = summary.cascade.student, summary.cascade.teacher
    return [[side.model, f"{side.judged:,}", f"{side.decided:,}", f"{side.tokens:,}"] for side in both]


def _served(summary: Summary) -> list[list[Any]]:
    """Prompts by personas, with a header; nothing where records name no prompts."""
    served = summary.diagnosis.prompts if summary.diagnosis else []
    if not served:
        return []
    personas = sorted({one.persona for one in served})
    best = {name: max(one.fused for one in served if one.persona == name) for name in personas}
    told = {
        (one.prompt_id, one.persona): f"{one.fused:.2f} ({one.n:,})"
        + (", best" if one.fused == best[one.persona] else "")
        for one in served
    }
    prompts = list(dict.fromkeys(one.prompt_id for one in served))
    return [
        ["prompt_id", *personas],
        *([prompt, *(told.get((prompt, name), "–") for name in personas)] for prompt in prompts),
    ]


def provenance(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    """run.json flattened: dotted key -> value."""

    def flat(key: str, value: Any) -> list[tuple[str, str]]:
        if isinstance(value, Mapping) and value:
            return [row for name, inner in value.items() for row in flat(f"{key}.{name}", inner)]
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        return [] if value is None else [(key, text)]

    first = ("judge", "model", "panel", "cascade", "engine", "records", "settings", "localjudge", "started")
    return [row for key in first if key in run for row in flat(key, run[key])]


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters.update(
        plain=plain, cut=cut, percent=percent, rate=rate_of, position=position, duration=duration, count=count
    )
    environment.globals.update(table=table, bars=bars, number=number)
    return environment.from_string(Path(__file__).with_name("report.md.j2").read_text(encoding="utf-8"))
