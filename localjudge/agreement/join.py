"""A run's verdicts and people's labels, joined by record id, as arrays. Knows runs and records; computes no
figure.

What cannot be joined is counted or refused, never dropped: a label outside its scale, an id given twice, ids
that do not meet."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from localjudge.agreement.statistics import Values
from localjudge.agreement.targets import Target, Told, consensus, people_in, read_label, reader, targets_of
from localjudge.errors import LocalJudgeError, RecordsError, RunError, did_you_mean
from localjudge.judge.questions import CANNOT
from localjudge.judge.spec import JudgeSpec
from localjudge.records import BadRecord, Record, read_records
from localjudge.rows import open_rows, shown
from localjudge.run.runner import judge_of
from localjudge.run.store import RunDirectory, read_verdicts
from localjudge.verdict import STATUSES, Verdict

RESPONSES = ("response", "answer", "output", "completion", "candidate", "reply", "text")
"""Inputs that are what is judged, for the baseline of length; else the last required one."""

MOST_SLICES = 50

ANNOTATOR = "annotator"
"""The field of a gold file that says whose labels a row has. What one says of a record last counts."""

WITHDRAWN = "withdrawn"
"""The field of such a row that lists the fields in which its person now says nothing of the record."""

ABSTAINED = "said to be unjudgeable"
"""Where a verdict is ok and the judge says of this question that it cannot be judged."""


class GoldField(NamedTuple):
    """Where labels are: a field of the run's records, or of a file of its own."""

    target: str | None
    file: Path | None
    field: str
    text: str


def parse_gold(text: str) -> GoldField:
    """[TARGET=]FIELD or [TARGET=]FILE:FIELD. Raises LocalJudgeError."""
    target, equals, rest = text.partition("=")
    if not equals or not re.fullmatch(r"\w+(\.[\w.-]+)?", target):
        target, rest = "", text
    before, colon, after = rest.rpartition(":")
    file = Path(before) if colon and before and (Path(before).exists() or not Path(rest).exists()) else None
    place = after if file else rest
    if not place:
        raise LocalJudgeError(f"'{text}' names no field", where="--gold", fix="give FIELD, or FILE:FIELD")
    if file is None and Path(rest).exists() and Path(rest).suffix:
        raise LocalJudgeError(f"'{rest}' is a file", where="--gold", fix=f"name its field too: {rest}:FIELD")
    return GoldField(target or None, file, place, text)


@dataclass(frozen=True)
class Opened:
    """A run, as far as agreement needs it."""

    path: Path
    run: Mapping[str, Any]
    spec: JudgeSpec

    @property
    def title(self) -> str:
        return f"{self.spec.name}, judged by {self.run['model']['name']}"


def open_run(path: Path) -> Opened:
    """Raises RunError."""
    if not (path / "run.json").is_file():
        raise RunError("this folder holds no run", where=str(path), fix="give the folder that `-o` named")
    directory = RunDirectory(path)
    try:
        run = directory.read_run()
        assert run is not None
        return Opened(path, run, judge_of(path, run))
    finally:
        directory.close()


def _chosen(spec: JudgeSpec, gold: GoldField) -> list[Target]:
    known = targets_of(spec)
    if gold.target is None:
        asked = [name for name in known if name in {question.id for question in spec.questions}]
        # Of several questions no label can be meant for one of them: people mostly give one grade in all.
        return known[asked[0]] if len(asked) == 1 else known["overall"]
    if gold.target not in known:
        raise LocalJudgeError(
            f"the judge {spec.name} has no question '{gold.target}'",
            where=f"--gold {gold.text}",
            fix=did_you_mean(gold.target, known),
        )
    return known[gold.target]


# Both


@dataclass(frozen=True)
class Counts:
    """Where the records went.

    verdicts: of the run; judged: ok ones. used: judged and labelled, what figures stand on. not_judged:
    labelled, by status, or ABSTAINED. without_gold: judged, not labelled. without_verdict: labelled, not in the
    run.
    no_consensus: judged and labelled, but people are split evenly."""

    verdicts: int = 0
    judged: int = 0
    used: int = 0
    not_judged: dict[str, int] = field(default_factory=dict)
    without_gold: int = 0
    without_verdict: int = 0
    no_consensus: int = 0


@dataclass(frozen=True)
class Joined:
    """One target: N records that are in the run and that people labelled.

    ok: (N,), judged and with a consensus. label, number: (N,), the judge's, NaN where it is not ok; number is
    the expected one where probabilities were read. gold: (N,), the consensus: the mean of numbers, else the
    label given most often, NaN when that is none. people: (N, annotators), NaN where one gave none. p: (N,
    labels), NaN where not known. orders: (N, 2) labels of the two orders of a pair, or None. lengths: (N,) or
    (N, 2), characters, NaN where not known. groups, slices: one value a record. rest: numbers of judged records
    without gold, rest_groups theirs."""

    target: Target
    ids: list[str]
    ok: NDArray[np.bool_]
    label: Values
    number: Values
    gold: Values
    people: Values
    annotators: list[str]
    p: Values
    orders: Values | None
    order_p: Values | None
    lengths: Values
    length_of: str
    groups: list[str] | None
    slices: dict[str, list[str]]
    rest: Values
    rest_groups: list[str] | None
    counts: Counts
    notes: list[str]

    def of(self, rows: Any) -> Joined:
        """Some of the records; the counts are those of all."""
        where = np.flatnonzero(rows) if np.asarray(rows).dtype == bool else np.asarray(rows)

        def some(values: list[str]) -> list[str]:
            return [values[i] for i in where]

        return Joined(
            **{
                **self.__dict__,
                "ids": some(self.ids),
                **{name: getattr(self, name)[where] for name in _BY_RECORD},
                "orders": None if self.orders is None else self.orders[where],
                "order_p": None if self.order_p is None else self.order_p[where],
                "groups": None if self.groups is None else some(self.groups),
                "slices": {name: some(values) for name, values in self.slices.items()},
            }
        )

    @property
    def rounded(self) -> Values:
        """The consensus as a label: of a score, a mean between two points is rounded half up."""
        return np.floor(self.gold + 0.5) if self.target.kind == "score" else self.gold

    @property
    def label_or_number(self) -> Values:
        """The judge's number where the target has one, else its label."""
        return self.number if self.target.numeric else self.label

    @property
    def coded(self) -> list[float]:
        """The numbers of all labels that either side can give, the judge's lack of one included."""
        codes = self.target.codes
        more = [] if self.target.kind == "score" else [float(len(codes))]
        return codes + more


_BY_RECORD = ("ok", "label", "number", "gold", "people", "p", "lengths")


@dataclass
class _Row:
    """What a record of the run says besides its labels."""

    length: tuple[float, ...]
    group: str | None
    slices: tuple[str, ...]


def join(
    opened: Opened,
    golds: Sequence[str],
    *,
    slices: Sequence[str] = (),
    group: str | None = None,
    records: Path | None = None,
    gold_id: str | None = None,
    theirs: Mapping[str, str] | None = None,
) -> list[Joined]:
    """A run and people's labels, one `Joined` a target, in the order of the golds.

    golds: as `parse_gold` has them; several of one target are several people. slices, group: fields of the
    run's records; `group` is taken by itself where there is one. records: where these are now. gold_id: the
    field of gold files that holds the record's id. theirs: what people call a label -> what the judge calls it.

    Raises LocalJudgeError: no such field or target, labels that cannot be read, ids given twice or never met.
    """
    spec = opened.spec
    if not golds:
        known = ", ".join(targets_of(spec))
        raise LocalJudgeError(
            "no labels to hold the run against", where="--gold", fix=f"give --gold FIELD or FILE:FIELD; of: {known}"
        )
    fields = [parse_gold(text) for text in golds]
    chosen = [_chosen(spec, gold) for gold in fields]
    own = [gold for gold in fields if gold.file is None]
    source = _Source(opened, records)
    if group is not None or slices or own:
        source.must_be_there()
    labels = _Labels(theirs or {})
    rows: dict[str, _Row] = {}
    if source.there:
        rows = _read_own(
            source, own, {g.text: t for g, t in zip(fields, chosen, strict=True)}, labels, slices, group
        )
    for file in dict.fromkeys(gold.file for gold in fields if gold.file):
        _read_file(
            file,
            [(gold, targets) for gold, targets in zip(fields, chosen, strict=True) if gold.file == file],
            labels,
            gold_id,
        )
    labels.refuse_bad()
    targets = list({target.name: target for targets in chosen for target in targets}.values())
    return _meet(opened, targets, labels, rows, source, slices, group)


class _Source:
    """The records of a run, and how its ids and inputs were found in them."""

    def __init__(self, opened: Opened, records: Path | None) -> None:
        settings = opened.run["settings"]
        self.spec = opened.spec
        self.path = records or Path(opened.run["paths"]["records"])
        batch = settings.get("format") == "openai-batch"
        self.mapping: dict[str, str] = {} if batch else dict(settings.get("mapping") or {})
        self.limit: int | None = settings.get("limit")
        self.there = self.path.exists() and (records is not None or not batch)
        self.batch = batch and records is None
        if records is not None and not self.there:
            raise RecordsError("there is no such file", where=f"--records {records}")

    def must_be_there(self) -> None:
        if not self.there:
            what = (
                "holds answers of a batch, not records" if self.batch else "the run's records are not here any more"
            )
            raise RecordsError(what, where=str(self.path), fix="say where they are with --records FILE")


class _Labels:
    """Labels as they are read: target -> annotator -> id -> number. bad: what could not be read. picked, sighted:
    ids whose labels were sought for a reason, and given with the judge's verdict in sight, as a gold file says."""

    def __init__(self, theirs: Mapping[str, str]) -> None:
        self.theirs = theirs
        self.told: dict[str, dict[str, dict[str, float]]] = {}
        self.bad: list[str] = []
        self.picked: set[str] = set()
        self.sighted: set[str] = set()
        self.read = 0
        self.tie = False

    def add(
        self, gold: GoldField, targets: Sequence[Target], record: Record, value: Any, by: str | None = None
    ) -> None:
        """by: the one person whose labels these are; what they said of the record before counts no more."""
        field = gold.field if by is None else f"{gold.field}.{by}"
        nothing = value is None or value == ""
        if by is not None and (not nothing or gold.field in (record.fields.get(WITHDRAWN) or ())):
            self._forget(f"{gold.file.name}:{field}" if gold.file else field, targets, record.id)
        if nothing:
            return
        for target in targets:
            each = people_in(target, value)
            for place, one in enumerate(each):
                if one is None or one in ("", CANNOT):
                    continue
                self.read += 1
                try:
                    number = read_label(target, one, self.theirs)
                except ValueError as error:
                    self.bad.append(f"{record.where}: id {shown(record.id)}: {error}")
                    continue
                self.tie |= target.kind == "preference" and number == 2
                who = f"{field}.{place}" if len(each) > 1 else field
                who = f"{gold.file.name}:{who}" if gold.file else who
                self.told.setdefault(target.name, {}).setdefault(who, {})[record.id] = number

    def _forget(self, who: str, targets: Sequence[Target], record_id: str) -> None:
        for target in targets:
            people = self.told.get(target.name, {})
            if record_id in people.get(who, {}):
                del people[who][record_id]
                if not people[who]:
                    del people[who]

    def refuse_bad(self) -> None:
        if self.bad:
            shown_first = "\n  ".join(self.bad[:5])
            more = f"\n  and {len(self.bad) - 5} more" if len(self.bad) > 5 else ""
            raise RecordsError(
                f"{len(self.bad)} of {self.read} labels are not what the judge can give\n  {shown_first}{more}",
                where="--gold",
                fix="mend them, or say what they mean with --label theirs=ours",
            )


def _key(place: str) -> str:
    """A name for a field reached by a dotted way, that no record has."""
    return f"\0{place}"


def _found(record: Record, place: str) -> Any:
    return record.fields.get(_key(place), record.fields.get(place))


def _length(value: Any) -> float:
    if value is None:
        return math.nan
    return float(len(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)))


def judged_inputs(spec: JudgeSpec) -> list[str]:
    """The inputs that are judged, whose length a lazy judge might go by: both of each pair, or one."""
    if spec.kind == "pairwise":
        return [f"{stem}_{side}" for side in "ab" for stem in spec.pairs]
    required = [item.name for item in spec.inputs if not item.optional and item.type == "text"]
    named = [name for name in RESPONSES if name in required]
    return named[:1] or required[-1:]


def _lengths(spec: JudgeSpec, names: Sequence[str], record: Record) -> tuple[float, ...]:
    each = [_length(record.fields.get(name)) for name in names]
    if spec.kind != "pairwise":
        return tuple(each) or (math.nan,)
    half = len(each) // 2
    return (math.fsum(each[:half]), math.fsum(each[half:]))


def _read_own(
    source: _Source,
    own: Sequence[GoldField],
    targets: Mapping[str, Sequence[Target]],
    labels: _Labels,
    slices: Sequence[str],
    group: str | None,
) -> dict[str, _Row]:
    names = judged_inputs(source.spec)
    wanted = {gold.field for gold in own} | set(slices) | {group or "group"}
    mapping = {**source.mapping, **{_key(place): place for place in wanted}}
    missing = {gold.field: "--gold" for gold in own} | dict.fromkeys(slices, "--slice")
    missing |= {group: "--group"} if group else {}
    seen: set[str] = set()
    rows: dict[str, _Row] = {}
    for record in _records(source.path, mapping, source.limit):
        if isinstance(record, BadRecord):
            continue  # it has no verdict but one that says so
        if missing:
            seen.update(name for name in record.fields if not name.startswith("\0"))
            missing = {place: option for place, option in missing.items() if _found(record, place) is None}
        for gold in own:
            labels.add(gold, targets[gold.text], record, _found(record, gold.field))
        named = _found(record, group or "group")
        rows[record.id] = _Row(
            _lengths(source.spec, names, record),
            None if named is None or named == "" else _text(named),
            tuple(_text(_found(record, place)) for place in slices),
        )
    for place, option in missing.items():
        raise RecordsError(
            f"no record has a field '{place}'", where=f"{option} ({source.path})", fix=did_you_mean(place, seen)
        )
    return rows


def _text(value: Any) -> str:
    if value is None:
        return "(none)"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _records(path: Path, mapping: Mapping[str, str], limit: int | None) -> Iterator[Record | BadRecord]:
    return read_records(path, [], mapping=mapping, limit=limit)


def _names_people(file: Path) -> bool:
    """Whether each row says who labelled it, so that a record may have several; see `view.labels`."""
    first = next(iter(open_rows(file)[0]), None)
    return first is not None and first.data is not None and ANNOTATOR in first.data


def _read_file(
    file: Path, golds: Sequence[tuple[GoldField, Sequence[Target]]], labels: _Labels, gold_id: str | None
) -> None:
    mapping = {_key(gold.field): gold.field for gold, _ in golds} | ({"id": gold_id} if gold_id else {})
    missing = {gold.field for gold, _ in golds}
    seen: set[str] = set()
    bad: list[BadRecord] = []
    has_id = False
    by_person = _names_people(file)
    for record in read_records(file, [], mapping=mapping, repeats=by_person):
        if isinstance(record, BadRecord):
            bad.append(record)
            continue
        by = record.fields.get(ANNOTATOR) if by_person else None
        if by_person and (not isinstance(by, str) or not by):
            bad.append(BadRecord(record.id, record.where, f"'{ANNOTATOR}' is {shown(by)}: say who labelled it"))
            continue
        if by_person and record.fields.get("picked", "random") != "random":
            labels.picked.add(record.id)
        if by_person and record.fields.get("blind") is False:
            labels.sighted.add(record.id)
        has_id |= "id" in record.fields
        if missing:
            seen.update(name for name in record.fields if not name.startswith("\0"))
            missing = {place for place in missing if _found(record, place) is None}
        for gold, targets in golds:
            labels.add(gold, targets, record, _found(record, gold.field), by)
    if bad:
        lines = "\n  ".join(f"{record.where}: {record.problem}" for record in bad[:5])
        more = f"\n  and {len(bad) - 5} more" if len(bad) > 5 else ""
        raise RecordsError(f"{len(bad)} rows of labels cannot be joined\n  {lines}{more}", where=f"--gold {file}")
    if missing:
        place = min(missing)
        raise RecordsError(f"no row has a field '{place}'", where=f"--gold {file}", fix=did_you_mean(place, seen))
    if not has_id:
        fix = f"name the field that holds it with --gold-id; known: {', '.join(sorted(seen))}"
        raise RecordsError("the rows have no 'id' to be joined by", where=f"--gold {file}", fix=fix)


def _meet(
    opened: Opened,
    targets: Sequence[Target],
    labels: _Labels,
    rows: Mapping[str, _Row],
    source: _Source,
    slices: Sequence[str],
    group: str | None,
) -> list[Joined]:
    if labels.tie:
        # People may tie where the judge may not: it is then wrong, and the table shows it.
        targets = [_with_tie(target) for target in targets]
    sides = [_Side(target, labels.told.get(target.name, {})) for target in targets]
    grouped = group is not None or any(row.group is not None for row in rows.values())
    total = judged = 0
    statuses = dict.fromkeys(STATUSES, 0)
    for verdict in read_verdicts(opened.path):
        total += 1
        judged += verdict.status == "ok"
        statuses[verdict.status] += 1
        for side in sides:
            side.add(verdict)
    if not total:
        raise RunError("the run holds no verdicts yet", where=str(opened.path))
    if not judged:
        lost = ", ".join(f"{n} {status}" for status, n in statuses.items() if n)
        raise RunError(f"no record was judged: {lost}", where=str(opened.path))
    joined = [side.joined(opened, total, judged, rows, source, slices, grouped) for side in sides]
    for one in joined:
        one.notes.extend(_how_labelled(one.ids, labels))
    return joined


def _with_tie(target: Target) -> Target:
    if target.kind != "preference" or "tie" in target.labels:
        return target
    return Target(target.name, target.kind, (*target.labels, "tie"), question=target.question)


class _Side:
    """One target's verdicts as they pass by, beside its labels."""

    def __init__(self, target: Target, told: Mapping[str, Mapping[str, float]]) -> None:
        self.target, self.told = target, told
        self.labelled = {record_id for labels in told.values() for record_id in labels}
        self.read = reader(target)
        self.ids: list[str] = []
        self.seen: list[Told | None] = []
        self.not_judged: dict[str, int] = {}
        self.rest: list[float] = []
        self.rest_ids: list[str] = []
        self.first_id = ""

    def add(self, verdict: Verdict) -> None:
        self.first_id = self.first_id or verdict.id
        told = self.read(verdict) if verdict.status == "ok" else None
        if verdict.id in self.labelled:
            self.ids.append(verdict.id)
            self.seen.append(told)
            if told is None:
                why = ABSTAINED if verdict.status == "ok" else verdict.status
                self.not_judged[why] = self.not_judged.get(why, 0) + 1
        elif told is not None:
            self.rest.append(told.number)
            self.rest_ids.append(verdict.id)

    def joined(
        self,
        opened: Opened,
        total: int,
        judged: int,
        rows: Mapping[str, _Row],
        source: _Source,
        slices: Sequence[str],
        grouped: bool,
    ) -> Joined:
        if not self.labelled:
            raise RecordsError(f"no record has a label for '{self.target.name}'", where="--gold")
        if not self.ids:
            raise RecordsError(
                f"none of the {len(self.labelled):,} labelled ids is in the run: there are labels of "
                f"{shown(min(self.labelled))} and others, verdicts of {shown(self.first_id)} and others",
                where=str(opened.path),
                fix="is it the labels of other records? If the id is in another field: --gold-id FIELD",
            )
        if not any(self.seen):
            lost = ", ".join(f"{n} {status}" for status, n in self.not_judged.items())
            raise RecordsError(f"no labelled record was judged: {lost}", where=str(opened.path))
        nothing = Told(math.nan, math.nan)
        seen = [told or nothing for told in self.seen]
        k = len(self.target.labels)
        missing = (math.nan,) * k
        annotators = list(self.told)
        people = np.array(
            [[self.told[who].get(record_id, math.nan) for who in annotators] for record_id in self.ids]
        ).reshape(len(self.ids), len(annotators))
        gold = consensus(people, self.target)
        was_judged = np.array([told is not None for told in self.seen])
        ok = was_judged & np.isfinite(gold)
        orders = np.array([told.orders or (math.nan, math.nan) for told in seen if len(told.orders or (0, 0)) == 2])
        wide = 2 if opened.spec.kind == "pairwise" else 1
        nowhere = _Row((math.nan,) * wide, None, ("(none)",) * len(slices))
        about = [rows.get(record_id, nowhere) for record_id in self.ids]
        lengths = np.array([row.length for row in about], float)
        counts = Counts(
            verdicts=total,
            judged=judged,
            used=int(ok.sum()),
            not_judged=self.not_judged,
            without_gold=len(self.rest),
            without_verdict=len(self.labelled) - len(self.ids),
            no_consensus=int((was_judged & ~np.isfinite(gold)).sum()),
        )
        if not counts.used:
            raise RecordsError(
                "people are split evenly on every judged record: there is no consensus", where="--gold"
            )
        return Joined(
            target=self.target,
            ids=self.ids,
            ok=ok,
            label=np.array([told.label for told in seen]),
            number=np.array([told.number for told in seen]),
            gold=gold,
            people=people,
            annotators=annotators,
            p=np.array([told.p or missing for told in seen]).reshape(len(seen), k),
            orders=orders if len(orders) == len(seen) and np.isfinite(orders).any() else None,
            order_p=_order_p(seen, k),
            lengths=lengths if wide == 2 else lengths[:, 0],
            length_of=" + ".join(judged_inputs(opened.spec)),
            groups=_groups(self.ids, about) if grouped else None,
            slices={name: _few(name, [row.slices[place] for row in about]) for place, name in enumerate(slices)},
            rest=np.array(self.rest, float),
            rest_groups=_groups(self.rest_ids, [rows.get(i, nowhere) for i in self.rest_ids]) if grouped else None,
            counts=counts,
            notes=_notes(counts, self, rows),
        )


def _order_p(seen: Sequence[Told], k: int) -> Values | None:
    if not any(told.order_p for told in seen):
        return None
    missing = ((math.nan,) * k,) * 2
    return np.array([told.order_p or missing for told in seen])


def _groups(ids: Sequence[str], about: Sequence[_Row]) -> list[str]:
    """A record without a group is one of its own."""
    return [f"id:{i}" if row.group is None else f"group:{row.group}" for i, row in zip(ids, about, strict=True)]


def _few(name: str, values: list[str]) -> list[str]:
    if (n := len(set(values))) > MOST_SLICES:
        raise LocalJudgeError(
            f"'{name}' has {n} values: a slice each would tell nothing",
            where="--slice",
            fix=f"slice by a field of at most {MOST_SLICES} values",
        )
    return values


def _how_labelled(ids: Sequence[str], labels: _Labels) -> list[str]:
    found = []
    if picked := sum(record_id in labels.picked for record_id in ids):
        found.append(
            f"{picked:,} of {len(ids):,} records were not picked for labelling at random: the figures, and a "
            "corrected headline above all, speak of such records, not of the whole run"
        )
    if sighted := sum(record_id in labels.sighted for record_id in ids):
        found.append(f"{sighted:,} of {len(ids):,} records were labelled with the judge's verdict in sight")
    return found


def _notes(counts: Counts, side: _Side, rows: Mapping[str, _Row]) -> list[str]:
    found = []
    if counts.without_verdict:
        lost = sorted(side.labelled - set(side.ids))[:3]
        found.append(
            f"{counts.without_verdict:,} labelled ids are not in the run, such as {', '.join(map(shown, lost))}"
        )
    if not rows:
        found.append("the run's records were not read, so there is no baseline of length and no grouping")
    return found
