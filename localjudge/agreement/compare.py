"""Two judges or more on the same records and labels: which is closer to people, and is it chance?

Knows joined arrays and statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from localjudge.agreement.agree import NUMBER_STATISTICS, label_statistics
from localjudge.agreement.intervals import (
    DRAWS,
    Method,
    Units,
    bca,
    bootstrap_p,
    holm,
    leave_out,
    mcnemar,
    resampled,
)
from localjudge.agreement.join import Joined, Opened
from localjudge.agreement.statistics import Pairs, Statistic, Values, told
from localjudge.errors import LocalJudgeError, RunError

Flags = NDArray[np.bool_]

COMPARED = ("accuracy", "macro_f1", "f1", "kappa", "quadratic_kappa", "spearman", "pearson", "mae")


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Difference(_Model):
    """One figure of the first judge, of the second, and the second less the first, with its 95 % interval.

    p: of no difference: McNemar's exact for accuracy of records that stand alone, else from the paired
    bootstrap.
    adjusted: by Holm, over all that one comparison tells."""

    figure: str
    first: float | None
    second: float | None
    difference: float | None
    low: float | None
    high: float | None
    method: Method | None
    p: float | None
    adjusted: float | None
    test: Literal["mcnemar", "bootstrap"] | None


class Between(_Model):
    """only_first, only_second: records about which only one of the two is right."""

    first: str
    second: str
    n: int
    only_first: int
    only_second: int
    same_answer: float
    differences: list[Difference]


class Comparison(_Model):
    """comparison.json. left_out: labelled records that not all of the judges judged."""

    format: Literal[1] = 1
    target: str
    judges: list[str]
    runs: list[str]
    gold: list[str]
    seed: int
    grouped: bool
    n: int
    left_out: int
    between: list[Between]


def names_of(runs: Sequence[Opened]) -> list[str]:
    """Short names that tell the runs apart: the model's, the judge's, both, or the folder."""
    ways = (
        [run.run["model"]["name"] for run in runs],
        [run.spec.name for run in runs],
        [f"{run.spec.name}/{run.run['model']['name']}" for run in runs],
        [run.path.name for run in runs],
    )
    return next((names for names in ways if len(set(names)) == len(names)), [str(run.path) for run in runs])


def compare(
    runs: Sequence[Opened], joined: Sequence[Sequence[Joined]], golds: Sequence[str], seed: int = 0
) -> list[Comparison]:
    """Every two of the runs, one comparison a target. joined: for each run, its targets in the same order.

    Raises RunError for runs that share no judged record, and for judges whose labels differ.
    """
    if len(runs) < 2:
        raise LocalJudgeError("one run is nothing to compare", fix="give two runs or more")
    names = names_of(runs)
    return [
        _compare_one(runs, names, [each[place] for each in joined], golds, seed) for place in range(len(joined[0]))
    ]


def _compare_one(
    runs: Sequence[Opened], names: Sequence[str], data: Sequence[Joined], golds: Sequence[str], seed: int
) -> Comparison:
    first = data[0].target
    for run, one in zip(runs, data, strict=True):
        if (one.target.kind, set(one.target.labels) - {"tie"}) != (first.kind, set(first.labels) - {"tie"}):
            raise RunError(
                f"'{first.name}' has other labels in this run: {', '.join(one.target.labels) or 'none'}; "
                f"in {runs[0].path} {', '.join(first.labels) or 'none'}",
                where=str(run.path),
                fix="compare runs whose judges ask the same",
            )
    places = [{record_id: i for i, record_id in enumerate(one.ids) if one.ok[i]} for one in data]
    shared = [record_id for record_id in places[0] if all(record_id in place for place in places)]
    labelled = set().union(*(one.ids for one in data))
    if not shared:
        raise RunError("no labelled record was judged in all of the runs", fix="compare runs of the same records")
    rows = [one.of([place[record_id] for record_id in shared]) for one, place in zip(data, places, strict=True)]
    between = [_between(rows[i], rows[j], names[i], names[j], seed) for i, j in combinations(range(len(rows)), 2)]
    return Comparison(
        target=first.name,
        judges=list(names),
        runs=[str(run.path) for run in runs],
        gold=list(golds),
        seed=seed,
        grouped=rows[0].groups is not None,
        n=len(shared),
        left_out=len(labelled) - len(shared),
        between=_adjusted(between),
    )


def _between(one: Joined, other: Joined, first: str, second: str, seed: int) -> Between:
    if one.target.kind == "preference":
        one, other = _same_codes(one), _same_codes(other)
    found: list[Difference] = []
    right = []
    if one.target.kind != "overall":
        chosen = {name: s for name, s in label_statistics(one).items() if name in COMPARED}
        found += _differences(one, chosen, one.label, other.label, one.rounded, _codes(one, other), seed)
        right = [one.label == one.rounded, other.label == one.rounded]
        found[0] = _by_mcnemar(found[0], *right) if one.groups is None else found[0]
    if one.target.numeric:
        chosen = {name: s for name, s in NUMBER_STATISTICS.items() if name in COMPARED}
        found += _differences(one, chosen, one.number, other.number, one.gold, None, seed)
    same = one.label_or_number == other.label_or_number
    return Between(
        first=first,
        second=second,
        n=len(one.ids),
        only_first=int((right[0] & ~right[1]).sum()) if right else 0,
        only_second=int((right[1] & ~right[0]).sum()) if right else 0,
        same_answer=float(same.mean()),
        differences=found,
    )


def _same_codes(data: Joined) -> Joined:
    """Inconsistent is 3 whether or not the judge may tie."""
    undecided = data.label == len(data.target.labels)
    return Joined(**{**data.__dict__, "label": np.where(undecided, 3.0, data.label)})


def _codes(one: Joined, other: Joined) -> list[float]:
    return [0.0, 1.0, 2.0, 3.0] if one.target.kind == "preference" else sorted({*one.coded, *other.coded})


def _differences(
    data: Joined,
    chosen: dict[str, Statistic],
    x: Values,
    z: Values,
    y: Values,
    labels: Sequence[float] | None,
    seed: int,
) -> list[Difference]:
    """Both judges' figures on the same resamples of records, or of groups."""
    triples, cell = np.unique(np.column_stack([x, z, y]), axis=0, return_inverse=True)
    known = np.unique(triples) if labels is None else np.asarray(labels, float)
    counts = np.bincount(cell.ravel(), minlength=len(triples)).astype(float)
    sides = [Pairs(triples[:, i], triples[:, 2], counts, known) for i in (0, 1)]
    several = list(chosen.values())

    def figures(counts: Values) -> Values:
        a, b = (np.stack([statistic(side, counts) for statistic in several], -1) for side in sides)
        return b - a

    units = Units.of(cell.ravel(), len(triples), data.groups)
    rng = np.random.default_rng(seed)
    estimate = figures(units.counts[None])[0]
    drawn = resampled(units, figures, rng, DRAWS) if units.n > 1 else np.full((1, len(several)), np.nan)
    left_out, weights = leave_out(units, figures, rng)
    found = []
    for i, (name, statistic) in enumerate(chosen.items()):
        bound = bca(estimate[i], drawn[:, i], left_out[:, i], weights)
        p = bootstrap_p(drawn[:, i])
        found.append(
            Difference(
                figure=name,
                first=told(statistic(sides[0], counts)),
                second=told(statistic(sides[1], counts)),
                difference=told(estimate[i]),
                low=bound.low,
                high=bound.high,
                method=bound.method,
                p=p,
                adjusted=None,
                test=None if p is None else "bootstrap",
            )
        )
    return found


def _by_mcnemar(difference: Difference, first: Flags, second: Flags) -> Difference:
    p = mcnemar(int((first & ~second).sum()), int((second & ~first).sum()))
    return difference.model_copy(update={"p": p, "test": "mcnemar"})


def _adjusted(between: Sequence[Between]) -> list[Between]:
    known = [(i, j) for i, b in enumerate(between) for j, d in enumerate(b.differences) if d.p is not None]
    adjusted = dict(zip(known, holm([between[i].differences[j].p or 0.0 for i, j in known]), strict=True))
    return [
        b.model_copy(
            update={
                "differences": [
                    d.model_copy(update={"adjusted": adjusted.get((i, j))}) for j, d in enumerate(b.differences)
                ]
            }
        )
        for i, b in enumerate(between)
    ]
