"""An audit as text: a table for the terminal, audit.md for readers. Knows findings; computes nothing."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import jinja2

from localjudge.agreement.audit import Audit, Estimate, Finding
from localjudge.report.markdown import count, cut, percent, plain, table

HEADER = ("perturbation", "n", "changed its mind", "95 %", "shift", "95 %", "direction", "verdict")
_STYLES = {"serious": "red", "slight": "yellow", "none seen": "green"}


def audit_markdown(audit: Audit) -> str:
    """audit.md."""
    return _template().render(
        audit=audit,
        header=HEADER,
        rows=[row(finding) for finding in audit.findings],
        legend=legend(audit),
        standing=standing(audit),
        provenance=[
            ("judge", f"{audit.judge} {audit.judge_digest}"),
            ("model", f"{audit.model} {audit.fingerprint}"),
            ("engine", json.dumps(audit.engine, ensure_ascii=False)),
            ("records", f"{audit.records} {audit.records_digest}"),
            ("text", audit.text or "–"),
            ("seed", audit.seed),
            ("localjudge", audit.localjudge),
        ],
    )


def print_audit(audit: Audit) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, name in enumerate(HEADER):
        shown.add_column(name, justify="right" if 0 < place < 6 else "left", no_wrap=True)
    for finding in audit.findings:
        *cells, verdict = row(finding)
        style = _STYLES.get(finding.grade, "dim")
        shown.add_row(*map(escape, cells), f"[{style}]{verdict}[/{style}]")
    out = Console(highlight=False, soft_wrap=True)
    out.print(f"[bold]{escape(audit.judge)}[/bold] audited, judged by {escape(audit.model)}")
    out.print(escape(f"As they are: {standing(audit)}."))
    table_out = out if out.is_terminal else Console(highlight=False, width=200)
    table_out.print(shown)
    for line in legend(audit):
        out.print(f"[dim]{escape(line)}[/dim]")
    for finding in audit.findings:
        if finding.wants:
            out.print(f"[dim]{finding.name} does not apply: it wants {escape(finding.wants)}[/dim]")
    for note in audit.notes:
        out.print(f"[yellow]note[/yellow]  {escape(note)}")


def row(finding: Finding) -> list[str]:
    n = f"{finding.n:,}" if finding.n else "–"
    mind = "–" if finding.flips is None else percent(finding.flips.value)
    shift = "–" if finding.shift is None else f"{100 * finding.shift.value:+.1f} %"
    direction = finding.direction or "–"
    return [
        finding.name,
        n,
        mind,
        _span(finding.flips),
        shift,
        _span(finding.shift, "+"),
        direction,
        finding.grade,
    ]


def _span(it: Estimate | None, sign: str = "") -> str:
    return "–" if it is None else f"{100 * it.low:{sign}.1f} to {100 * it.high:{sign}.1f}"


def standing(audit: Audit) -> str:
    said = [f"{n:,} {label}" for label, n in list(audit.outcomes.items())[:6]]
    if len(audit.outcomes) > 6:
        said.append(f"{len(audit.outcomes) - 6} other outcomes")
    said += [f"{n:,} not judged ({status})" for status, n in audit.failed.items()]
    if audit.bad:
        said.append(f"{audit.bad:,} bad records left out")
    return ", ".join(said) or "nothing was judged"


def legend(audit: Audit) -> list[str]:
    """What the columns are, and what the verdicts stand on."""
    slight, serious = (percent(audit.thresholds[name]) for name in ("slight_over", "serious_from"))
    pairs = audit.kind == "pairwise"
    of = "share of the preference" if pairs else "overall, as a share of its scale"
    lines = [
        f"n: records{', each text of a pair changed in turn' if pairs else ''}. Shift: of the changed text's {of}"
        + ("; of order, what a text has when first over what it has when second." if pairs else "."),
        f"Verdict, on the intervals alone: serious when one lies wholly at {serious} or beyond, slight beyond "
        f"{slight}, none seen when both end below {serious}, else too few to tell; so too under "
        f"{audit.thresholds['fewest']:g} records.",
        f"Direction: where the shift's interval lies beyond {slight}. A judge that changes its mind neither way is "
        "unsteady; one that does so one way is biased.",
        "Whatever is added makes a text longer as well: hold self-praise, instruction and the fakes against "
        "padding. Against it need not be a fault: what is added does make a text worse.",
    ]
    if audit.grouped:
        lines.append("Records of one group count as hanging together.")
    return lines


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters.update(plain=plain, cut=cut, count=count)
    environment.globals.update(table=table)
    file = Path(__file__).parent.parent / "report" / "audit.md.j2"
    return environment.from_string(file.read_text(encoding="utf-8"))
