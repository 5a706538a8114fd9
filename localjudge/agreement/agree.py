"""The figures of one run against people, each with its interval and beside what would be had for nothing.

Knows joined arrays and statistics; not files, nor how a figure is shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from localjudge.agreement import statistics
from localjudge.agreement.headline import AltTest, Headline, alt_test, headline
from localjudge.agreement.intervals import UNKNOWN, Interval, Method, Units, ece_interval, intervals
from localjudge.agreement.join import Joined, Opened
from localjudge.agreement.statistics import Pairs, Statistic, Values, told
from localjudge.agreement.targets import Kind, consensus
from localjudge.report.summary import wilson

BINS = 10
SMALL = 30
FEW_GROUPS = 20
CURVE = 50
MOST_PRODUCT = 20_000
SHUFFLES = 5


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Figure(_Model):
    """One figure of n records. None is not defined, or not known.

    method: how the 95 % interval was made. constant: what one answer to all would have had, the commonest label
    or the median. longer: what always preferring the longer one, or rating by length, would have had. shuffled:
    what the judge's own answers would have had were they dealt out at random. people: the mean of each
    annotator against the consensus of the others; judge_there: the judge against these same, over these same
    records."""

    name: str
    value: float | None
    low: float | None
    high: float | None
    method: Method | None
    n: int
    constant: float | None = None
    longer: float | None = None
    shuffled: float | None = None
    people: float | None = None
    judge_there: float | None = None


class LabelFigures(_Model):
    """One label: how often the judge gave it and people did, and how well it is found."""

    label: str
    judge: int
    gold: int
    precision: Figure
    recall: Figure
    f1: Figure


class Confusion(_Model):
    """How often what the judge says (rows) meets what people say (columns)."""

    judge: list[str]
    gold: list[str]
    table: list[list[int]]


class Bin(_Model):
    """Verdicts of a confidence above low and up to high. share: of them right."""

    low: float
    high: float
    n: int
    confidence: float | None
    share: float | None
    share_low: float | None
    share_high: float | None


class Kept(_Model):
    """Of the verdicts of at least this confidence: which share of all they are, and which share of them is
    right."""

    confidence: float
    coverage: float
    accuracy: float
    low: float
    high: float


class Confidence(_Model):
    """What the probability of the judge's own label is worth. brier: of all labels' probabilities."""

    n: int
    ece: Figure
    brier: float | None
    reliability: list[Bin]
    risk_coverage: list[Kept]


class People(_Model):
    """How far people agree among themselves. pairwise: the mean share of equal labels over pairs of them;
    alpha: Krippendorff's, ordinal for a scale, interval for numbers, else nominal."""

    annotators: list[str]
    pairwise: Figure
    alpha: Figure


class Slice(_Model):
    field: str
    value: str
    figures: list[Figure]


class Held(_Model):
    """One target held against people."""

    target: str
    kind: Kind
    labels: list[str]
    counts: dict[str, Any]
    grouped: bool
    length_of: str
    figures: list[Figure]
    by_label: list[LabelFigures]
    confusion: Confusion | None
    confidence: Confidence | None
    people: People | None
    alt_test: AltTest | None
    headline: Headline | None
    slices: list[Slice]
    notes: list[str]


class Agreement(_Model):
    """agreement.json."""

    format: Literal[1] = 1
    run: str
    judge: str
    judge_digest: str
    model: str
    gold: list[str]
    seed: int
    held: list[Held]


MAIN = ("accuracy", "kappa", "quadratic_kappa", "spearman", "mae", "f1")
"""What is told of each slice, as far as it applies."""


def agree(
    opened: Opened,
    joined: Sequence[Joined],
    golds: Sequence[str],
    seed: int = 0,
    epsilon: float = 0.2,
) -> Agreement:
    """All figures of a run. epsilon: of the alt-test, how much better than the judge a person would have to be
    for the cost (0.2 for experts, 0.1 for a crowd)."""
    return Agreement(
        run=str(opened.path),
        judge=opened.spec.name,
        judge_digest=opened.run["judge"]["digest"],
        model=opened.run["model"]["name"],
        gold=list(golds),
        seed=seed,
        held=[hold(data, seed, epsilon) for data in joined],
    )


def hold(data: Joined, seed: int = 0, epsilon: float = 0.2) -> Held:
    """One target's figures."""
    judged = data.of(data.ok)
    slices = [
        Slice(field=name, value=value, figures=main_figures(judged.of(np.array(values) == value), seed))
        for name, values in judged.slices.items()
        for value in sorted(set(values), key=_natural)
    ]
    several = (np.isfinite(data.people).sum(1) > 1).any()
    return Held(
        target=data.target.name,
        kind=data.target.kind,
        labels=list(data.target.labels),
        counts=data.counts.__dict__,
        grouped=data.groups is not None,
        length_of=data.length_of,
        figures=all_figures(data, judged, seed),
        by_label=_by_label(judged, seed),
        confusion=_confusion(judged),
        confidence=_confidence(judged, seed),
        people=_people(data, seed) if several else None,
        alt_test=alt_test(judged.label_or_number, judged.people, judged.target.numeric, epsilon),
        headline=headline(data),
        slices=slices,
        notes=[*data.notes, *_warnings(judged)],
    )


def _natural(text: str) -> tuple[bool, float, str]:
    try:
        return (False, float(text), text)
    except ValueError:
        return (True, 0.0, text)


# Which figures


def label_statistics(data: Joined) -> dict[str, Statistic]:
    """What is counted of labels, by name; shares first."""
    k = len(data.target.labels)
    found: dict[str, Statistic] = {"accuracy": statistics.accuracy}
    if data.target.kind == "score":
        found |= {
            "within_one": statistics.within_one,
            "kappa": statistics.kappa,
            "quadratic_kappa": statistics.quadratic_kappa,
            "alpha_nominal": statistics.pair_alpha("nominal"),
            "alpha_ordinal": statistics.pair_alpha("ordinal"),
        }
        return found
    if _binary(data):
        found |= {"precision": statistics.precision(1), "recall": statistics.recall(1), "f1": statistics.f1(1)}
    elif data.target.kind != "preference":
        found["macro_f1"] = lambda pairs, counts: statistics.macro_f1(pairs, counts, k)
    return {**found, "kappa": statistics.kappa, "alpha_nominal": statistics.pair_alpha("nominal")}


NUMBER_STATISTICS: dict[str, Statistic] = {
    "alpha_interval": statistics.pair_alpha("interval"),
    "spearman": statistics.spearman,
    "kendall": statistics.kendall,
    "pearson": statistics.pearson,
    "icc": statistics.icc,
    "mae": statistics.mae,
    "bias": statistics.bias,
}
RANKS = ("spearman", "kendall", "pearson")
SHARES = ("accuracy", "within_one", "precision", "recall")


def _binary(data: Joined) -> bool:
    """Whether one label is what is looked for: a flag that is raised, a record that passes."""
    return data.target.kind in ("flag", "passed")


def all_figures(data: Joined, judged: Joined, seed: int) -> list[Figure]:
    """data: with what was not judged; judged: without."""
    found = []
    seen = data.of(np.isfinite(data.label))  # where people are split evenly too: it is where they differ most
    if data.target.kind != "overall":
        found += _label_figures(judged, label_statistics(judged), seed, seen)
        found[1:1] = _other_shares(data, judged, seed)
    if data.target.numeric:
        found += _number_figures(judged, NUMBER_STATISTICS, seed, seen)
    return found


def main_figures(judged: Joined, seed: int) -> list[Figure]:
    found = []
    if judged.target.kind != "overall":
        chosen = {name: s for name, s in label_statistics(judged).items() if name in MAIN}
        found += _label_figures(judged, chosen, seed)
    if judged.target.numeric:
        found += _number_figures(judged, {name: NUMBER_STATISTICS[name] for name in ("spearman", "mae")}, seed)
    return found


def share(name: str, hits: Values, groups: Sequence[str] | None, seed: int, **more: Any) -> Figure:
    """The mean of hits, one a record. Wilson's interval where each is 0 or 1 and records stand alone, else BCa."""
    n = len(hits)
    if not n:
        return Figure(name=name, value=None, low=None, high=None, method=None, n=0, **more)
    value = float(hits.mean())
    alone = groups is None or len(set(groups)) == n
    if alone and np.isin(hits, (0, 1)).all():
        low, high = wilson(float(hits.sum()), n)
        return Figure(name=name, value=value, low=low, high=high, method="wilson", n=n, **more)
    pairs, cell = Pairs.of(hits, np.zeros(n))
    units = Units.of(cell, len(pairs.x), groups)
    [found] = intervals(units, lambda counts: (statistics.weigh(counts, pairs.x) / counts.sum(-1))[:, None], seed)
    if found.low is None:
        found = _of_groups(value, groups)
    return Figure(name=name, value=value, low=found.low, high=found.high, method=found.method, n=n, **more)


def _of_groups(value: float, groups: Sequence[str] | None) -> Interval:
    """Wilson's, of a share that is the same in all resamples of groups: each group tells as much as one record."""
    n = len(set(groups or []))
    return Interval(*wilson(value * n, n), "wilson") if n > 1 else UNKNOWN


def resampled(
    pairs: Pairs, cell: Any, chosen: Mapping[str, Statistic], groups: Sequence[str] | None, seed: int
) -> dict[str, Interval]:
    """BCa intervals of several statistics from the same resamples."""
    several = list(chosen.values())

    def figures(counts: Values) -> Values:
        return np.stack([statistic(pairs, counts) for statistic in several], -1)

    return dict(zip(chosen, intervals(Units.of(cell, len(pairs.x), groups), figures, seed), strict=True))


def _label_figures(
    judged: Joined, chosen: Mapping[str, Statistic], seed: int, seen: Joined | None = None
) -> list[Figure]:
    labels = judged.coded
    x, y = judged.label, judged.rounded
    pairs, cell = Pairs.of(x, y, labels)
    shares = {name for name in chosen if name in SHARES and judged.groups is None}
    rest = {name: statistic for name, statistic in chosen.items() if name not in shares}
    bounds = resampled(pairs, cell, rest, judged.groups, seed) if rest and len(x) else {}
    mode = float(np.bincount(y.astype(int) - int(min(labels))).argmax() + min(labels)) if len(y) else 0.0
    longer = _longer(judged)
    beside = seen and {
        "constant": _values(np.full(len(y), mode), y, labels, chosen),
        "longer": _values(longer, y, labels, chosen) if longer is not None else {},
        "shuffled": _shuffled(pairs, chosen, seed),
        **_beside_people(seen, labels, chosen, numbers=False),
    }
    found = []
    for name, statistic in chosen.items():
        value = told(statistic(pairs, pairs.counts)) if len(x) else None
        bound = bounds.get(name, UNKNOWN)
        n = len(x)
        if name in shares and value is not None:
            of = _base(name, pairs)
            bound = Interval(*wilson(value * of, int(of)), "wilson")
        elif name in SHARES and value is not None and bound.low is None:
            bound = _of_groups(value, judged.groups)
        found.append(
            Figure(
                name=name,
                value=value,
                low=bound.low,
                high=bound.high,
                method=bound.method,
                n=n,
                **{column: values.get(name) for column, values in (beside or {}).items()},
            )
        )
    return found


def _base(name: str, pairs: Pairs) -> float:
    """How many records a share is a share of."""
    if name == "precision":
        return float(pairs.counts @ (pairs.coded[0] == 1))
    if name == "recall":
        return float(pairs.counts @ (pairs.coded[1] == 1))
    return float(pairs.counts.sum())


def _number_figures(
    judged: Joined, chosen: Mapping[str, Statistic], seed: int, seen: Joined | None = None
) -> list[Figure]:
    x, y = judged.number, judged.gold
    pairs, cell = Pairs.of(x, y)
    bounds = resampled(pairs, cell, chosen, judged.groups, seed) if len(x) else {}
    length = judged.lengths
    known = np.isfinite(length).all() if len(length) else False
    ranks = {name: statistic for name, statistic in chosen.items() if name in RANKS}
    beside = seen and {
        "constant": _values(np.full(len(y), np.median(y) if len(y) else 0), y, None, chosen),
        "longer": _values(length, y, None, ranks) if known else {},
        "shuffled": _shuffled(pairs, chosen, seed),
        **_beside_people(seen, None, chosen, numbers=True),
    }
    return [
        Figure(
            name=name,
            value=told(statistic(pairs, pairs.counts)) if len(x) else None,
            low=bounds.get(name, UNKNOWN).low,
            high=bounds.get(name, UNKNOWN).high,
            method=bounds.get(name, UNKNOWN).method,
            n=len(x),
            **{column: values.get(name) for column, values in (beside or {}).items()},
        )
        for name, statistic in chosen.items()
    ]


def _other_shares(data: Joined, judged: Joined, seed: int) -> list[Figure]:
    """Shares that need more than the labels' table: what was not judged counted as wrong, the two orders, ties."""
    found = []
    labelled = np.isfinite(data.gold)
    if not data.ok[labelled].all():
        all_of = data.of(labelled)
        hits = (all_of.ok & (all_of.label == all_of.rounded)).astype(float)
        found.append(share("accuracy_of_all", hits, all_of.groups, seed))
    if data.target.kind != "preference":
        return found
    if judged.orders is not None:
        asked = judged.of(np.isfinite(judged.orders).all(1))
        assert asked.orders is not None
        right = (asked.orders == asked.gold[:, None]).astype(float)
        longer = _longer(asked)
        found += [
            share(
                "accuracy_mean_of_orders",
                right.mean(1),
                asked.groups,
                seed,
                longer=None if longer is None or not len(asked.ids) else float((longer == asked.gold).mean()),
            ),
            share("both_orders_right", right.all(1).astype(float), asked.groups, seed),
            share("consistent", (asked.orders[:, 0] == asked.orders[:, 1]).astype(float), asked.groups, seed),
        ]
    decided = (judged.gold < 2) & (judged.label < 2)
    if not decided.all():
        two = judged.of(decided)
        longer = _longer(two)
        more = {
            "constant": _most(two.gold),
            "longer": None if longer is None or not len(two.ids) else float((longer == two.gold).mean()),
            "people": _two_way(data.of(np.isfinite(data.label))),
        }
        found.append(
            share("accuracy_ties_dropped", (two.label == two.gold).astype(float), two.groups, seed, **more)
        )
    return found


def _most(gold: Values) -> float | None:
    return float(np.bincount(gold.astype(int)).max() / len(gold)) if len(gold) else None


def _two_way(data: Joined) -> float | None:
    """People against the others' consensus where neither ties."""
    each = []
    for person, others, _ in _left_out(data):
        kept = (person < 2) & (others < 2)
        if kept.any():
            each.append(float((person[kept] == others[kept]).mean()))
    return float(np.mean(each)) if each else None


# What would be had for nothing


def _values(
    x: Values, y: Values, labels: Sequence[float] | None, chosen: Mapping[str, Statistic]
) -> dict[str, float | None]:
    if not len(y):
        return {}
    pairs, _ = Pairs.of(x, y, labels)
    return {name: told(statistic(pairs, pairs.counts)) for name, statistic in chosen.items()}


def _shuffled(pairs: Pairs, chosen: Mapping[str, Statistic], seed: int) -> dict[str, float | None]:
    """On the product of the margins, which is what shuffling comes to on average; with very many values, the
    mean of a few shuffles."""
    x, wx = _margin(pairs.x, pairs.counts)
    y, wy = _margin(pairs.y, pairs.counts)
    if not len(x):
        return {}
    if len(x) * len(y) <= MOST_PRODUCT:
        apart = Pairs(
            np.repeat(x, len(y)), np.tile(y, len(x)), np.outer(wx, wy).ravel() / pairs.counts.sum(), pairs.labels
        )
        return {name: _no_noise(told(statistic(apart, apart.counts))) for name, statistic in chosen.items()}
    rng = np.random.default_rng(seed)
    rows_x, rows_y = (np.repeat(v, pairs.counts.astype(int)) for v in (pairs.x, pairs.y))
    each = [_values(rng.permutation(rows_x), rows_y, pairs.labels.tolist(), chosen) for _ in range(SHUFFLES)]
    found: dict[str, float | None] = {}
    for name in chosen:
        known = [value for one in each if (value := one[name]) is not None]
        found[name] = float(np.mean(known)) if known else None
    return found


def _no_noise(value: float | None) -> float | None:
    return 0.0 if value is not None and abs(value) < 1e-12 else value


def _margin(values: Values, counts: Values) -> tuple[Values, Values]:
    levels, place = np.unique(values, return_inverse=True)
    return levels, np.bincount(place, weights=counts, minlength=len(levels)).astype(float)


def _longer(data: Joined) -> Values | None:
    """Of pairs, the longer one as a label; equal lengths are a tie. None where lengths are not known."""
    if data.target.kind != "preference" or data.lengths.ndim != 2 or not np.isfinite(data.lengths).all():
        return None
    a, b = data.lengths.T
    tie = float(data.target.labels.index("tie")) if "tie" in data.target.labels else float(len(data.target.labels))
    return np.where(a > b, 0.0, np.where(a < b, 1.0, tie))


# People


def _left_out(data: Joined) -> list[tuple[Values, Values, NDArray[np.bool_]]]:
    """Each annotator's labels, the consensus of the others, and which records these are: those that have both."""
    found = []
    for i in range(data.people.shape[1]):
        person = data.people[:, i]
        others = consensus(np.delete(data.people, i, 1), data.target)
        both = np.isfinite(person) & np.isfinite(others)
        if both.any():
            found.append((person[both], others[both], both))
    return found


def _beside_people(
    data: Joined, labels: Sequence[float] | None, chosen: Mapping[str, Statistic], *, numbers: bool
) -> dict[str, dict[str, float | None]]:
    """Each annotator, and the judge, against the consensus of the others; the means."""
    if data.people.shape[1] < 2:
        return {}
    judge = data.number if numbers else data.label
    theirs: dict[str, list[float]] = {name: [] for name in chosen}
    ours: dict[str, list[float]] = {name: [] for name in chosen}
    for person, others, both in _left_out(data):
        x, y = person, others
        if not numbers and data.target.kind == "score":
            x, y = np.floor(x + 0.5), np.floor(y + 0.5)
        for into, side in ((theirs, x), (ours, judge[both])):
            for name, value in _values(side, y, labels, chosen).items():
                if value is not None:
                    into[name].append(value)

    def means(of: dict[str, list[float]]) -> dict[str, float | None]:
        return {name: float(np.mean(values)) if values else None for name, values in of.items()}

    return {"people": means(theirs), "judge_there": means(ours)}


def _people(data: Joined, seed: int) -> People:
    people = data.people if data.target.kind != "score" else np.floor(data.people + 0.5)
    metric: statistics.Metric = {"score": "ordinal", "overall": "interval"}.get(data.target.kind, "nominal")  # type: ignore[assignment]
    rows = np.sort(people[np.isfinite(people).sum(1) > 1], axis=1)
    kept = [g for g, many in zip(data.groups or [], np.isfinite(people).sum(1) > 1, strict=False) if many]
    seen, cell = np.unique(rows, axis=0, return_inverse=True)
    known = np.unique(seen[np.isfinite(seen)])
    given = np.isfinite(seen).sum(1)
    equal = np.stack([(seen == label).sum(1) for label in known], 1)
    share_of = (equal * (equal - 1)).sum(1) / (given * (given - 1))

    def pairwise(counts: Values) -> Values:
        return statistics.ratio(statistics.weigh(counts, share_of), counts.sum(-1))

    if len(known) <= 200:
        each = statistics.coincidences_of(seen, known).reshape(len(seen), -1)

        def alpha(counts: Values) -> Values:
            table = statistics.weigh(counts, each).reshape(*counts.shape[:-1], len(known), len(known))
            return statistics.alpha(table, known, metric)
    else:

        def alpha(counts: Values) -> Values:
            return _interval_alpha(seen, given, counts)

    def figures(counts: Values) -> Values:
        return np.stack([pairwise(counts), alpha(counts)], -1)

    units = Units.of(cell.ravel(), len(seen), kept or None)
    estimate = figures(units.counts[None])[0]
    bounds = intervals(units, figures, seed)
    pair, of_alpha = (
        Figure(name=name, value=told(value), low=b.low, high=b.high, method=b.method, n=len(rows))
        for name, value, b in zip(("pairwise", f"alpha_{metric}"), estimate, bounds, strict=True)
    )
    return People(annotators=data.annotators, pairwise=pair, alpha=of_alpha)


def _interval_alpha(seen: Values, given: Values, counts: Values) -> Values:
    """Krippendorff's alpha for numbers from sums, without a table of all values."""
    filled = np.where(np.isfinite(seen), seen, 0)
    middle = float(filled.sum() / np.isfinite(seen).sum())
    moved = np.where(np.isfinite(seen), seen - middle, 0)
    total, squares = moved.sum(1), (moved**2).sum(1)
    apart = 2 * (given * squares - total**2) / (given - 1)
    n, s, q, off = np.moveaxis(statistics.weigh(counts, np.stack([given, total, squares, apart], 1)), -1, 0)
    spread = 2 * (n * q - s**2)
    return 1 - statistics.ratio(off * (n - 1), np.where(spread > statistics.SAME, spread, 0))


# Labels one by one, the table, confidence


def _by_label(judged: Joined, seed: int) -> list[LabelFigures]:
    if judged.target.kind not in ("choice", "flag", "passed") or not len(judged.ids):
        return []
    pairs, cell = Pairs.of(judged.label, judged.rounded, judged.coded)
    x, y = pairs.coded
    found = []
    for place, label in enumerate(judged.target.labels):
        chosen = {
            "precision": statistics.precision(place),
            "recall": statistics.recall(place),
            "f1": statistics.f1(place),
        }
        bounds = resampled(pairs, cell, chosen, judged.groups, seed)
        n_judge, n_gold = int(pairs.counts @ (x == place)), int(pairs.counts @ (y == place))
        figures = {}
        for name, statistic in chosen.items():
            value, bound = told(statistic(pairs, pairs.counts)), bounds[name]
            n = {"precision": n_judge, "recall": n_gold}.get(name, len(judged.ids))
            if name != "f1" and judged.groups is None and value is not None:
                bound = Interval(*wilson(value * n, n), "wilson")
            figures[name] = Figure(name=name, value=value, low=bound.low, high=bound.high, method=bound.method, n=n)
        found.append(LabelFigures(label=label, judge=n_judge, gold=n_gold, **figures))
    return found


def _confusion(judged: Joined) -> Confusion | None:
    if judged.target.kind == "overall":
        return None
    labels = [*judged.target.labels]
    codes = judged.target.codes
    rows = labels
    row_codes = list(codes)
    if judged.target.kind != "score" and (judged.label == len(labels)).any():
        rows, row_codes = [*labels, judged.target.undecided], [*codes, float(len(labels))]
    gold = judged.rounded
    table = [[int(((judged.label == r) & (gold == c)).sum()) for c in codes] for r in row_codes]
    return Confusion(judge=rows, gold=labels, table=table)


def confidences(judged: Joined) -> tuple[Values, Values, NDArray[np.bool_]]:
    """Of the records whose labels' probabilities are known: the probability of the judge's own label, whether
    it is right, and which records these are. An undecided judge is as sure as of its likeliest label."""
    known = np.isfinite(judged.p).all(1) if judged.p.shape[1] else np.zeros(len(judged.ids), bool)
    p = judged.p[known]
    label = judged.label[known]
    place = label - judged.target.codes[0] if judged.target.kind == "score" else label
    inside = place < p.shape[1]
    column = np.where(inside, place, 0).astype(int)
    own: Values = np.take_along_axis(p, column[:, None], 1)[:, 0] if len(p) else np.empty(0)
    sure: Values = np.where(inside, own, p.max(1, initial=0))
    right: Values = (label == judged.rounded[known]).astype(float)
    return sure, right, np.asarray(known, bool)


def _confidence(judged: Joined, seed: int) -> Confidence | None:
    sure, right, known = confidences(judged)
    if not len(sure):
        return None
    pairs, cell = Pairs.of(sure, right)
    statistic = statistics.ece_of(BINS)
    groups = [g for g, k in zip(judged.groups, known, strict=True) if k] if judged.groups else None
    bound = ece_interval(pairs, Units.of(cell, len(pairs.x), groups), BINS, seed)
    value = told(statistic(pairs, pairs.counts))
    first = judged.target.codes[0] if judged.target.kind == "score" else 0
    truth = (judged.rounded[known] - first).astype(int)
    return Confidence(
        n=len(sure),
        ece=Figure(name="ece", value=value, low=bound.low, high=bound.high, method=bound.method, n=len(sure)),
        brier=statistics.brier(judged.p[known], truth),
        reliability=reliability(sure, right),
        risk_coverage=risk_coverage(sure, right),
    )


def reliability(sure: Values, right: Values, bins: int = BINS) -> list[Bin]:
    """How often verdicts of each confidence are right."""
    place = statistics.bin_of(sure, bins)
    found = []
    for b in range(bins):
        inside = place == b
        n = int(inside.sum())
        low, high = wilson(float(right[inside].sum()), n) if n else (None, None)
        found.append(
            Bin(
                low=b / bins,
                high=(b + 1) / bins,
                n=n,
                confidence=float(sure[inside].mean()) if n else None,
                share=float(right[inside].mean()) if n else None,
                share_low=low,
                share_high=high,
            )
        )
    return found


def risk_coverage(sure: Values, right: Values, points: int = CURVE) -> list[Kept]:
    """Accuracy of the most confident, from all of them down; at most `points` thresholds, each one of the
    confidences seen."""
    order = np.argsort(-sure, kind="stable")
    sure, hits = sure[order], np.cumsum(right[order])
    n = len(sure)
    last = np.flatnonzero(np.append(np.diff(sure) != 0, True))  # equal confidences stay or go together
    if len(last) > points:
        last = last[np.unique(np.linspace(0, len(last) - 1, points).round().astype(int))]
    found = []
    for i in last[::-1]:
        low, high = wilson(float(hits[i]), int(i) + 1)
        found.append(
            Kept(
                confidence=float(sure[i]),
                coverage=(int(i) + 1) / n,
                accuracy=float(hits[i] / (i + 1)),
                low=low,
                high=high,
            )
        )
    return found


def _warnings(judged: Joined) -> list[str]:
    found = []
    n = len(judged.ids)
    if n < SMALL:
        found.append(f"small sample: the figures stand on {n} records")
    if judged.groups is not None:
        groups = len(set(judged.groups))
        if groups < FEW_GROUPS:
            found.append(f"only {groups} groups: intervals from so few are too narrow")
    gold = judged.rounded
    if len(np.unique(gold)) == 1:
        found.append("people gave every record the same label: kappa and correlations are not defined")
    elif len(np.unique(judged.number if judged.target.numeric else judged.label)) == 1:
        found.append("the judge gave every record the same answer")
    if not judged.target.numeric and n >= SMALL:
        most = np.bincount(gold.astype(int)).max() / n
        if most > 0.9:
            found.append(
                f"{100 * most:.0f} % of the labels are one: accuracy is easy to have, look at kappa and recall"
            )
    return found
