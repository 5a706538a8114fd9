"""Several candidate checklists into one: which items are the same, which are kept, and what they then weigh.

Pure and deterministic: the same candidates and the same rulings give the same list. Asks nobody; what it cannot
tell by similarity it names, and is told.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localjudge.judge.items import Dropped, Item, folded
from localjudge.judge.scoring import center, half_up

Pair = tuple[int, int]
Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Offered:
    """An item as one candidate has it. candidate: its number, from 0."""

    candidate: int
    essential: bool
    item: Item


def lexical(texts: Sequence[str]) -> Matrix:
    """How alike texts are in their words, n x n, 0 to 1: the cosine of their character 2- and 3-grams, weighed by
    tf-idf with idf = ln((1 + n) / (1 + df)) + 1 (the smoothed form of Salton & Buckley 1988 that scikit-learn has).
    Grams run across words, and Chinese, which has no blanks, needs no other rule."""
    counts = [_grams(text) for text in texts]
    places = {gram: place for place, gram in enumerate(dict.fromkeys(g for count in counts for g in count))}
    if not places:
        return np.eye(len(texts))
    table = np.zeros((len(texts), len(places)))
    for row, count in enumerate(counts):
        for gram, n in count.items():
            table[row, places[gram]] = n
    table *= np.log((1 + len(texts)) / (1 + (table > 0).sum(axis=0))) + 1
    return cosines(table)


def _grams(text: str) -> Counter[str]:
    padded = f" {folded(text)} "
    return Counter(padded[i : i + n] for n in (2, 3) for i in range(len(padded) - n + 1) if len(padded) > 2)


def cosines(vectors: Matrix) -> Matrix:
    """Of each row with each, cut to 0 to 1; a row of nothing is like nothing but itself."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(lengths > 0, lengths, 1)
    found: Matrix = np.clip(unit @ unit.T, 0, 1)
    np.fill_diagonal(found, 1)
    return found


def compared(item: Item) -> str:
    """The text by which items are held against each other."""
    return f"{item.criterion} {item.reference}"


class Clusters:
    """Items of all candidates, put together step by step.

    Two items whose criteria read the same are one. Two that a candidate lists side by side it holds apart, and so
    they stay: no cluster holds both. similarity: n x n, of `compared` texts.
    same: from here on two items are one, if their references read the same as well. different: below, they are two,
    unless their references read the same.
    """

    def __init__(self, offered: Sequence[Offered], similarity: Matrix, same: float, different: float) -> None:
        self.offered, self.similarity = offered, similarity
        self._of = list(range(len(offered)))
        self._criteria = [folded(one.item.criterion) for one in offered]
        self._references = [folded(one.item.reference) for one in offered]
        self._apart: set[Pair] = set()
        self._low = different
        alike = [
            (self._criteria[i] == self._criteria[j], float(similarity[i, j]), -i, -j)
            for i, j in itertools.combinations(range(len(offered)), 2)
            if self._criteria[i] == self._criteria[j]
            or (similarity[i, j] >= same and self._references[i] == self._references[j])
        ]
        for identical, _, i, j in sorted(alike, reverse=True):
            self._join(-i, -j, identical)

    def _members(self, i: int) -> list[int]:
        return [place for place, cluster in enumerate(self._of) if cluster == self._of[i]]

    def _kept_apart(self, i: int, j: int) -> bool:
        return any(
            (self.offered[a].candidate == self.offered[b].candidate and self._criteria[a] != self._criteria[b])
            or (min(a, b), max(a, b)) in self._apart
            for a in self._members(i)
            for b in self._members(j)
        )

    def _join(self, i: int, j: int, anyway: bool = False) -> None:
        if self._of[i] != self._of[j] and (anyway or not self._kept_apart(i, j)):
            low, high = sorted((self._of[i], self._of[j]))
            self._of = [low if cluster == high else cluster for cluster in self._of]

    def borderline(self, most: int) -> list[Pair]:
        """The pairs that similarity does not settle, the most alike first: one of each two clusters, `most` of them
        in all. Those past that are taken to be different."""
        found: dict[Pair, tuple[float, Pair]] = {}
        for i, j in itertools.combinations(range(len(self.offered)), 2):
            a, b = sorted((self._of[i], self._of[j]))
            alike = self._references[i] == self._references[j] and bool(self._references[i])
            if a == b or (self.similarity[i, j] < self._low and not alike) or self._kept_apart(i, j):
                continue
            rank = (float(self.similarity[i, j]), (-i, -j))
            found[a, b] = max(found.get((a, b), rank), rank)
        ranked = sorted(found.values(), reverse=True)[:most]
        return [(-i, -j) for _, (i, j) in ranked]

    def settle(self, pairs: Sequence[Pair], same: Sequence[bool]) -> None:
        """What was ruled on borderline pairs, in the order in which they were given."""
        for (i, j), alike in zip(pairs, same, strict=True):
            if not alike:
                self._apart.add((min(i, j), max(i, j)))
        for (i, j), alike in zip(pairs, same, strict=True):
            if alike:
                self._join(i, j)

    @property
    def found(self) -> list[list[int]]:
        """The clusters, each in the order of its items, in the order of their first ones."""
        groups: dict[int, list[int]] = {}
        for place, cluster in enumerate(self._of):
            groups.setdefault(cluster, []).append(place)
        return list(groups.values())


@dataclass(frozen=True)
class Merged:
    """essential, additional: the critical ones first, else in the order of the candidates. references: of an item,
    by its criterion, what else candidates have as its reference. contested: no essential item was in most of the
    candidates, and those are kept that are in as many as any."""

    essential: list[Item]
    additional: list[Item]
    references: dict[str, list[str]] = field(default_factory=dict)
    dropped: list[Dropped] = field(default_factory=list)
    contested: bool = False


def merge(clusters: Clusters, candidates: int, most: int) -> Merged:
    """One item a cluster that more than half of the candidates have.

    It is essential when at least half of those who have it say so; its weight is the median of theirs, half up; its
    criterion is the one most like the others; its reference the one that most have, and where none is, that of its
    criterion. most: items of each of the two lists.
    """
    one_of: list[tuple[int, bool, Item, list[str]]] = []
    for cluster in clusters.found:
        own: dict[int, Offered] = {}
        for place in cluster:
            own.setdefault(clusters.offered[place].candidate, clusters.offered[place])
        likeness = {place: float(clusters.similarity[place, cluster].sum()) for place in cluster}
        middle = clusters.offered[max(cluster, key=lambda place: (round(likeness[place], 9), -place))].item
        essential = 2 * sum(offered.essential for offered in own.values()) >= len(own)
        weight = int(half_up(center([offered.item.weight for offered in own.values()], "median")))
        reference, others = _reference(middle, [offered.item for offered in own.values()])
        item = Item.model_validate({"criterion": middle.criterion, "reference": reference, "weight": weight})
        one_of.append((len(own), essential, item, others))
    of_essential = [votes for votes, essential, _, _ in one_of if essential]
    contested = not any(2 * votes > candidates for votes in of_essential)
    least = max(of_essential, default=0) if contested else 0
    kept: dict[bool, list[tuple[Item, list[str]]]] = {True: [], False: []}
    dropped = []
    for votes, essential, item, others in one_of:
        if 2 * votes > candidates or (essential and contested and votes == least):
            kept[essential].append((item, others))
        else:
            dropped.append(Dropped(criterion=item.criterion, why=f"in {votes} of {candidates} candidates"))
    for part in kept.values():
        part.sort(key=lambda each: -each[0].weight)
        dropped += [Dropped(criterion=item.criterion, why=f"more than {most} items") for item, _ in part[most:]]
        del part[most:]
    return Merged(
        essential=[item for item, _ in kept[True]],
        additional=[item for item, _ in kept[False]],
        references={item.criterion: others for part in kept.values() for item, others in part if others},
        dropped=dropped,
        contested=contested,
    )


def _reference(middle: Item, items: Iterable[Item]) -> tuple[str, list[str]]:
    """The reference that most have, and the others."""
    spelled: dict[str, str] = {}
    votes: Counter[str] = Counter()
    for item in items:
        name = folded(item.reference) or item.reference
        spelled.setdefault(name, item.reference)
        votes[name] += 1
    own = folded(middle.reference) or middle.reference
    best = max(votes, key=lambda name: (votes[name], name == own))
    return spelled[best], [text for name, text in spelled.items() if name != best and text]


def apply_rulings(items: Sequence[Item], rulings: Sequence[Any], what: str) -> tuple[list[Item], list[Dropped]]:
    """Items after a ruling on each: {"why", "ruling", "reference"}. what: who ruled, as the reason says."""
    kept: list[Item] = []
    dropped: list[Dropped] = []
    for item, ruled in zip(items, rulings, strict=True):
        if ruled["ruling"] == "drop":
            dropped.append(Dropped(criterion=item.criterion, why=f"{what}: {ruled['why'].strip()}"))
        elif ruled["ruling"] == "repair" and ruled["reference"].strip():
            kept.append(item.model_copy(update={"reference": ruled["reference"].strip()}))
        else:
            kept.append(item)
    return kept, dropped
