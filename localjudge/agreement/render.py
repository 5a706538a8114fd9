"""Agreement as text: a table for the terminal, agreement.md for readers. Knows results; computes nothing."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2

from localjudge.agreement.agree import Agreement, Figure, Held
from localjudge.agreement.headline import Headline
from localjudge.report.markdown import count, percent, plain, table

if TYPE_CHECKING:
    from rich.console import Console

    from localjudge.agreement.calibrate import Calibration, Threshold
    from localjudge.agreement.compare import Comparison

NAMES = {
    "accuracy": "accuracy",
    "accuracy_of_all": "accuracy, not judged counted as wrong",
    "accuracy_mean_of_orders": "accuracy, mean of both orders",
    "both_orders_right": "right in both orders",
    "consistent": "same in both orders",
    "accuracy_ties_dropped": "accuracy, ties dropped",
    "within_one": "within one point",
    "kappa": "Cohen's kappa",
    "quadratic_kappa": "weighted kappa (quadratic)",
    "alpha_nominal": "Krippendorff's alpha, nominal",
    "alpha_ordinal": "Krippendorff's alpha, ordinal",
    "alpha_interval": "Krippendorff's alpha, interval",
    "spearman": "Spearman",
    "kendall": "Kendall's tau-b",
    "pearson": "Pearson",
    "icc": "ICC(A,1)",
    "mae": "mean absolute error",
    "bias": "judge minus people",
    "precision": "precision",
    "recall": "recall",
    "f1": "F1",
    "macro_f1": "macro F1",
    "ece": "ECE",
    "pairwise": "pairs of people agree",
}
PERCENT = {
    "accuracy",
    "accuracy_of_all",
    "accuracy_mean_of_orders",
    "both_orders_right",
    "consistent",
    "accuracy_ties_dropped",
    "within_one",
    "precision",
    "recall",
    "pairwise",
}
COLUMNS = {
    "constant": "one answer",
    "longer": "longer",
    "shuffled": "shuffled",
    "people": "a person",
    "judge_there": "judge there",
}
LEGEND = {
    "constant": "one answer: the commonest label, or the median, given to all",
    "longer": "longer: the longer response preferred, or rated higher",
    "shuffled": "shuffled: the judge's own answers dealt out at random",
    "people": "a person: each annotator against the consensus of the others, the mean",
    "judge_there": "judge there: the judge against these same",
}
BY = {
    "wilson": "Wilson's",
    "bca": "BCa bootstrap",
    "percentile": "percentile bootstrap",
    "jackknife": "jackknife of blocks",
    "debiased": "bootstrap, less what chance adds",
}


def number(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    if name in PERCENT:
        return percent(value)
    return f"{value:+.3f}" if name == "bias" else f"{value:.3f}"


def span(name: str, low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return "–"
    if name in PERCENT:
        return f"{100 * low:.1f} to {100 * high:.1f}"
    sign = "+" if name == "bias" else ""
    return f"{low:{sign}.3f} to {high:{sign}.3f}"


def columns_of(figures: Sequence[Figure]) -> list[str]:
    """The baselines that any of the figures has."""
    return [column for column in COLUMNS if any(getattr(figure, column) is not None for figure in figures)]


def header(figures: Sequence[Figure]) -> list[str]:
    return ["figure", "judge", "95 % interval", "n", *(COLUMNS[column] for column in columns_of(figures))]


def rows(figures: Sequence[Figure]) -> list[list[str]]:
    columns = columns_of(figures)
    return [
        [
            NAMES.get(figure.name, figure.name),
            number(figure.name, figure.value),
            span(figure.name, figure.low, figure.high),
            f"{figure.n:,}",
            *(number(figure.name, getattr(figure, column)) for column in columns),
        ]
        for figure in figures
    ]


def methods(figures: Sequence[Figure]) -> str:
    """How the intervals were made, in words."""
    used: dict[str, list[str]] = {}
    for figure in figures:
        if figure.method:
            used.setdefault(figure.method, []).append(NAMES.get(figure.name, figure.name))
    if len(used) == 1:
        return f"Intervals: {BY[next(iter(used))]}."
    return "Intervals: " + "; ".join(f"{BY[method]} ({', '.join(names)})" for method, names in used.items()) + "."


def standing(held: Held) -> str:
    """What the figures stand on, and what is not among it."""
    c = held.counts
    said = [f"{c['used']:,} of {c['verdicts']:,} verdicts held against people"]
    lost = [f"{n:,} {status}" for status, n in c["not_judged"].items()]
    if lost:
        said.append(f"labelled but not judged: {', '.join(lost)}")
    if c["no_consensus"]:
        said.append(f"{c['no_consensus']:,} on which people are split evenly")
    if c["without_gold"]:
        said.append(f"{c['without_gold']:,} judged without a label")
    if c["without_verdict"]:
        said.append(f"{c['without_verdict']:,} labelled without a verdict")
    return "; ".join(said) + (". Resampled by group." if held.grouped else ".")


def headline_said(it: Headline, scale_is_share: bool) -> str:
    """The corrected headline in two sentences."""
    name = "accuracy" if scale_is_share else "mae"
    best = it.ppi if it.applies == "ppi" else it.rogan_gladen
    assert best is not None
    how = "PPI++" if it.applies == "ppi" else "Rogan-Gladen"
    said = (
        f"The judge says {it.what} {number(name, it.judge)} over {it.n_judged:,} records. Corrected by the "
        f"{it.n_labelled:,} labelled ones: {number(name, best.value)} ({span(name, best.low, best.high)}, {how}); "
        f"from the labels alone {number(name, it.labels_only.value)} "
        f"({span(name, it.labels_only.low, it.labels_only.high)}). Why {how}: {it.why}."
    )
    if it.more_labels:
        said += f" To halve the interval, label {it.more_labels:,} in all."
    return said


def agreement_markdown(agreement: Agreement, pictures: dict[str, list[str]]) -> str:
    """agreement.md. pictures: target -> the names of its figures, beside the page."""
    return _template("agreement.md.j2").render(agreement=agreement, pictures=pictures)


@functools.cache
def _template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters.update(plain=plain, percent=percent, count=count)
    environment.globals.update(
        table=table,
        rows=rows,
        header=header,
        methods=methods,
        standing=standing,
        number=number,
        span=span,
        columns_of=columns_of,
        headline_said=headline_said,
        LEGEND=LEGEND,
    )
    file = Path(__file__).parent.parent / "report" / name
    return environment.from_string(file.read_text(encoding="utf-8"))


# The terminal


def console() -> Console:
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)


def print_agreement(agreement: Agreement) -> None:
    out = console()
    for held in agreement.held:
        out.print(
            f"[bold]{_safe(agreement.judge)} · {_safe(held.target)}[/bold], judged by {_safe(agreement.model)}"
        )
        out.print(_safe(standing(held)))
        _print_table(header(held.figures), rows(held.figures))
        out.print(f"[dim]{methods(held.figures)} {_legend(held.figures)}[/dim]")
        if held.people:
            p = held.people
            out.print(
                f"People among themselves ({len(p.annotators)}): {number('pairwise', p.pairwise.value)} of pairs "
                f"of labels equal ({span('pairwise', p.pairwise.low, p.pairwise.high)}), "
                f"{NAMES[p.alpha.name]} {number(p.alpha.name, p.alpha.value)}"
            )
        if held.alt_test:
            out.print(alt_said(held))
        if held.headline:
            out.print(_safe(headline_said(held.headline, not held.labels or held.kind not in ("score", "overall"))))
        for note in held.notes:
            out.print(f"[yellow]note[/yellow]  {_safe(note)}")
        out.print()


def alt_said(held: Held) -> str:
    test = held.alt_test
    assert test is not None
    told = "may stand in for one of the people" if test.passed else "may not stand in for one of the people"
    return (
        f"Alt-test (epsilon {test.epsilon:g}): the judge {told}: it wins against "
        f"{sum(a.won for a in test.annotators)} of {len(test.annotators)}; as close to the others as a person in "
        f"{percent(test.advantage)}."
    )


def _legend(figures: Sequence[Figure]) -> str:
    told = "; ".join(LEGEND[column] for column in columns_of(figures))
    return told[:1].upper() + told[1:] + "." if told else ""


def _safe(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _print_table(head: Sequence[str], body: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, name in enumerate(head):
        shown.add_column(name, justify="left" if place == 0 else "right", no_wrap=True)
    for row in body:
        shown.add_row(*map(_safe, row))
    out = Console(highlight=False)
    wide = Console(highlight=False, width=max(out.width, 200)) if not out.is_terminal else out
    wide.print(shown)


def print_comparison(found: Sequence[Comparison]) -> None:
    out = console()
    for it in found:
        out.print(f"[bold]{_safe(it.target)}[/bold]: {count(it.n, 'record')} judged by all and labelled")
        if it.left_out:
            out.print(f"{it.left_out:,} labelled records left out: not all of the judges judged them")
        for pair in it.between:
            out.print(
                f"\n[bold]{_safe(pair.first)}[/bold] and [bold]{_safe(pair.second)}[/bold]: same answer to "
                f"{percent(pair.same_answer)}; only the first is right about {pair.only_first:,}, only the second "
                f"about {pair.only_second:,}"
            )
            body = [
                [
                    NAMES.get(d.figure, d.figure),
                    number(d.figure, d.first),
                    number(d.figure, d.second),
                    "–" if d.difference is None else _difference(d.figure, d.difference),
                    span(d.figure, d.low, d.high),
                    "–" if d.p is None else _p(d.p),
                    "–" if d.adjusted is None else _p(d.adjusted),
                    {"mcnemar": "McNemar, exact", "bootstrap": "paired bootstrap", None: "–"}[d.test],
                ]
                for d in pair.differences
            ]
            _print_table(
                ["figure", pair.first, pair.second, "second less first", "95 % interval", "p", "p, Holm", "by"],
                body,
            )


def _difference(name: str, value: float) -> str:
    return f"{100 * value:+.1f} %" if name in PERCENT else f"{value:+.3f}"


def _p(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def print_calibration(calibration: Calibration) -> None:
    out = console()
    for name, it in calibration.evidence.items():
        method = calibration.calibrators[name].method
        out.print(
            f"[bold]{_safe(calibration.judge)} · {_safe(name)}[/bold], judged by {_safe(calibration.model)}: "
            f"{method}, from {count(it.n, 'label')}; told of held-out records ({it.folds} parts, groups whole)"
        )
        body = [
            [what, f"{before:.3f}", f"{after:.3f}"]
            for what, before, after in (
                ("ECE", it.before.ece, it.after.ece),
                ("log loss", it.before.log_loss, it.after.log_loss),
                ("Brier", it.before.brier, it.after.brier),
            )
        ]
        _print_table(["", "as judged", "calibrated"], body)
        for t in it.thresholds:
            out.print(threshold_said(t))
        for note in it.notes:
            out.print(f"[yellow]note[/yellow]  {_safe(note)}")


def threshold_said(it: Threshold) -> str:
    if it.confidence is None or it.coverage is None or it.accuracy is None:
        return f"No confidence gives an agreement of {percent(it.wanted)}."
    sure = "assured with 95 % probability" if it.assured else "so here, not assured: label more to be sure"
    return (
        f"For an agreement of {percent(it.wanted)}: confidence {it.confidence:.4f} or more keeps "
        f"{percent(it.coverage)} of verdicts, of which {percent(it.accuracy)} agree ({sure})."
    )
