"""A checklist judge's credits against people's, item by item: the golden test.

People's credits lie in a field of the run's records (or of a file of its own, by id): a mapping of an item's id or
criterion to 0, 0.5 or 1, or a scoring, [{"criterion", "credit"}, ...].
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from localjudge.agreement.agree import Figure, resampled
from localjudge.agreement.join import open_run, parse_gold
from localjudge.agreement.statistics import Pairs, accuracy, kappa, quadratic_kappa, told
from localjudge.errors import LocalJudgeError, RecordsError, RunError, did_you_mean
from localjudge.judge.items import CREDITS, by_item, read_credits
from localjudge.records import BadRecord, Record, read_records
from localjudge.report.markdown import count, table
from localjudge.run.reports import records_file
from localjudge.run.store import read_verdicts, write_atomically
from localjudge.verdict import Verdict

STATISTICS = {"kappa": kappa, "weighted kappa": quadratic_kappa, "same credit": accuracy}
"""Cohen's kappa; its form in which none against full weighs four times half against full; and the plain share."""

KINDS = ("essential", "additional", "all")

FILE = "items_agreement.json"

ITEMS = "items="
"""How `agree --gold` says that credits of items are meant."""


class ItemAgreement(BaseModel):
    """kinds: essential, additional or all -> figures over its items, with 95 % intervals over records, as the items
    of one record hang together. records: judged, with credits by people. unknown: credits for what is no item of
    the record's checklist; unlabelled: items of these records without a credit by people."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gold: str
    kinds: dict[str, list[Figure]]
    records: int
    unknown: int
    unlabelled: int

    def markdown(self) -> str:
        rows = [
            [
                kind,
                f"{figures[0].n:,}",
                *("–" if one.value is None else f"{one.value:.3f}{_between(one)}" for one in figures),
            ]
            for kind, figures in self.kinds.items()
            if figures[0].n
        ]
        head = table(["items", "n", *STATISTICS], rows, [1, 2, 3, 4])
        more = [f"without a credit by people: {count(self.unlabelled, 'item')} of these"] * bool(self.unlabelled)
        for_none = f"{count(self.unknown, 'credit')} by people for what is no item of the record's checklist"
        more += [for_none] * bool(self.unknown)
        said = "; ".join([f"Credits of {count(self.records, 'record')} against '{self.gold}'", *more])
        return f"{head}\n\n{said}. In brackets 95 % intervals over records."


def _between(figure: Figure) -> str:
    return "" if figure.low is None or figure.high is None else f" ({figure.low:.3f} to {figure.high:.3f})"


def item_agreement(
    gold: str, verdicts: Iterable[Verdict], theirs: Mapping[str, Mapping[str, float]], seed: int = 0
) -> ItemAgreement:
    """theirs: record's id -> item's id or criterion -> credit. Raises LocalJudgeError when none of it meets an
    item."""
    ours: dict[str, list[tuple[str, float, float]]] = {kind: [] for kind in KINDS}
    records = unknown = unlabelled = 0
    for verdict in verdicts:
        given = theirs.get(verdict.id)
        if not given or not verdict.items:
            continue
        found = by_item(given, {item.id: item.criterion for item in verdict.items})
        records += 1
        unknown += max(0, len(given) - len(found))
        unlabelled += len(verdict.items) - len(found)
        for item in verdict.items:
            if item.id in found:
                pair = (verdict.id, item.credit, found[item.id])
                for kind in ("essential" if item.essential else "additional", "all"):
                    ours[kind].append(pair)
    if not ours["all"]:
        fix = "name items by their id (i1, i2, ...) or criterion, as `localjudge checklist show DIR` prints them"
        raise LocalJudgeError("no credit by people is for an item that was graded", where=f"--gold {gold}", fix=fix)
    return ItemAgreement(
        gold=gold,
        kinds={kind: _figures(pairs, seed) for kind, pairs in ours.items()},
        records=records,
        unknown=unknown,
        unlabelled=unlabelled,
    )


def _figures(credits: Sequence[tuple[str, float, float]], seed: int) -> list[Figure]:
    pairs, cell = Pairs.of([a for _, a, _ in credits], [b for _, _, b in credits], sorted(CREDITS.values()))
    bounds = resampled(pairs, cell, STATISTICS, [name for name, _, _ in credits], seed) if credits else {}
    figures = []
    for name, statistic in STATISTICS.items():
        value = told(statistic(pairs, pairs.counts)) if credits else None
        bound = bounds.get(name) if value is not None else None
        figures.append(
            Figure(
                name=name,
                value=value,
                low=bound and bound.low,
                high=bound and bound.high,
                method=bound and bound.method,
                n=len(credits),
            )
        )
    return figures


def people_credits(
    gold: str, records: Path, mapping: Mapping[str, str], limit: int | None
) -> dict[str, dict[str, float]]:
    """Record's id -> item's id or criterion -> credit.

    gold: FIELD of the run's records, or FILE:FIELD. mapping, limit: of the run. Raises LocalJudgeError when there
    are none, or one is no credit.
    """
    place = parse_gold(gold)
    own = place.file is None
    theirs: dict[str, dict[str, float]] = {}
    met: set[str] = set()
    for record in read_records(
        place.file or records, [], mapping=mapping if own else {}, limit=limit if own else None
    ):
        if isinstance(record, BadRecord):
            continue
        if len(met) < 1000:
            met.update(record.fields)
        if record.fields.get(place.field) not in (None, "", {}, []):
            theirs[record.id] = _credits(record, place.field)
    if not theirs:
        what = f"no record has credits in '{place.field}'"
        fix = None if place.field in met else did_you_mean(place.field, met)
        raise RecordsError(what, where=f"--gold {gold}", fix=fix)
    return theirs


def agree_items(directory: Path, gold: str, records: Path | None = None) -> tuple[ItemAgreement, Path]:
    """Hold a checklist judge's run against people's credits, and write it into the run's folder.

    gold: FIELD of the run's records, or FILE:FIELD. Raises LocalJudgeError.
    """
    opened = open_run(directory)
    if not opened.spec.checklist:
        what = f"the judge {opened.spec.name} grades no items"
        raise RunError(what, where=str(directory), fix=f"localjudge agree {directory} --gold {gold}")
    settings = opened.run["settings"]
    own = records or records_file(directory, opened.run)
    theirs = people_credits(gold, own, settings["mapping"], settings["limit"])
    result = item_agreement(gold, read_verdicts(directory), theirs)
    write_atomically(directory / FILE, result.model_dump_json(indent=1) + "\n")
    return result, directory / FILE


def _credits(record: Record, field: str) -> dict[str, float]:
    try:
        return read_credits(record.fields[field])
    except ValueError as error:
        raise RecordsError(f"the credits in '{field}' {error}", where=record.where) from None
