"""The closing machine: an answer that always ends, always valid, inside its budget.

For every state of the token index it knows `need`: the fewest tokens that are enough to end from there *whatever
labels the model goes on to choose*. With r tokens left, only tokens whose next state needs at most r - 1 are
legal; since the start's need is covered before anything is written, the set is never empty. Free texts are the
cycles of the automaton, each with the states that lead from its opening quote into it; there the model may always
be made to stop, so their need is that of the shortest way out, and each has its own quota of tokens, so that a
chatty first text cannot starve what follows.

Outside the texts, `need` is the value of a small game. An adversary picks which of the strings that the grammar
allows is to be written, we pick its cheapest spelling in tokens:

    need(s) = max over strings w from s of  min over tokens t that start w of  1 + need(s after t)

so a label is never chosen by want of room: wherever one label is legal, every label is. Taking the shortest way
out there as well would let a tight budget decide the verdict.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from localjudge.decoding.grammar import TokenIndex, openings, quotas, schema_regex
from localjudge.decoding.vocabulary import Vocabulary
from localjudge.errors import JudgeError

_FAR = 1 << 30
Ints = NDArray[np.int32]


@dataclass
class _Row:
    """The legal tokens of a state, the states they lead to, and what those cost.

    need: tokens to the end after the step. leave: tokens still inside this state's own text after the step,
    0 when the step leaves it.
    """

    tokens: Ints
    to: Ints
    need: Ints
    leave: Ints

    @cached_property
    def levels(self) -> tuple[list[int], list[int]]:
        """The distinct values of `need` and of `leave`: between two of them the legal tokens stay the same."""
        return np.unique(self.need).tolist(), np.unique(self.leave).tolist()


class Grammar:
    """A schema compiled for a vocabulary: its index and its closing tables. Shared by all asks, read only.

    least: the fewest tokens that always suffice. full: the budget at which every text may use its whole quota
    and the rest may be spelled at twice its least.
    """

    def __init__(self, schema: Mapping[str, Any], vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.quotas = quotas(schema)
        self.index = TokenIndex(schema_regex(schema), vocabulary)
        self._masks: dict[tuple[int, int, int], Ints] = {}
        self._compile([self.index.walk(text) for text in openings(schema)])
        self.least = int(self._need[self._start])
        self.full = 2 * self.least + sum(quota - 1 for quota in self.quotas)

    def _compile(self, openings: list[int]) -> None:
        rows = dict(self.index.steps())
        self._number = {state: i for i, state in enumerate(rows)}
        self._states = list(rows)
        self._start = self._number[self.index.start]
        numbers = np.zeros(max(rows) + 1, np.int32)
        numbers[self._states] = np.arange(len(rows), dtype=np.int32)
        self._rows = [
            _Row(
                np.fromiter(row.keys(), np.int32, len(row)),
                numbers[np.fromiter(row.values(), np.int64, len(row))],
                *(np.empty(0, np.int32),) * 2,
            )
            for row in rows.values()
        ]
        del rows
        self.text_of = self._find_texts([self._number[state] for state in openings])
        self._leave = self._ways_out()
        self._shortest = [int(self._leave[self._number[state]]) for state in openings]
        self._prune()
        self._need = self._needs()
        for state, row in enumerate(self._rows):
            inside = self.text_of[row.to] == self.text_of[state]
            row.need = self._need[row.to]
            row.leave = np.where(inside, self._leave[row.to], 0).astype(np.int32)
        # What each step looks up, as Python's own integers: numpy's cost more than the rest of the step.
        self.text_at: list[int] = self.text_of.tolist()
        self.final_at: list[bool] = (self._need == 0).tolist()

    def _find_texts(self, openings: list[int]) -> Ints:
        """state -> which free text it is inside of, in the order of writing, or -1."""
        n = len(self._rows)
        edges = [(state, to) for state, row in enumerate(self._rows) for to in np.unique(row.to)]
        start, end = np.array(edges, np.int32).reshape(-1, 2).T
        graph = csr_array((np.ones(len(edges), np.int8), (start, end)), shape=(n, n))
        count, component = connected_components(graph, connection="strong")
        after: dict[int, set[int]] = {c: set() for c in range(count)}
        for a, b in zip(component[start], component[end], strict=True):
            if a != b:
                after[int(a)].add(int(b))
        self._order = [int(c) for c in TopologicalSorter(after).static_order()]
        self._component = component
        looping = np.bincount(component, minlength=count) > 1
        looping[component[start[start == end]]] = True
        text_of = np.full(n, -1, np.int32)
        for text, opening in enumerate(openings):
            inside, seen = [opening], {opening}
            while inside:
                state = inside.pop()
                text_of[state] = text
                if looping[component[state]]:
                    text_of[component == component[state]] = text
                    continue
                for raw in self.index.bytes[self._states[state]].values():
                    if (to := self._number[raw]) not in seen:
                        seen.add(to)
                        inside.append(to)
        if np.any(looping[component] & (text_of < 0)):
            raise JudgeError("the grammar has a loop that is not one of its free texts")
        return text_of

    def _ways_out(self) -> Ints:
        """state -> fewest tokens to a state outside its own text; 0 outside texts."""
        inside = self.text_of >= 0
        leave = np.where(inside, _FAR, 0).astype(np.int32)
        changed = True
        while changed:
            changed = False
            for state in np.flatnonzero(inside):
                row = self._rows[state]
                same = self.text_of[row.to] == self.text_of[state]
                best = 1 + int(np.min(np.where(same, leave[row.to], 0), initial=_FAR))
                if best < leave[state]:
                    leave[state], changed = best, True
        return leave

    def _prune(self) -> None:
        """Drop tokens that enter a text where its shortest form would not do, in the middle of a character."""
        shortest = np.array([*self._shortest, 0], np.int32)
        for state, row in enumerate(self._rows):
            enters = (self.text_of[row.to] >= 0) & (self.text_of[row.to] != self.text_of[state])
            keep = ~enters | (self._leave[row.to] <= shortest[self.text_of[row.to]])
            row.tokens, row.to = row.tokens[keep], row.to[keep]

    def _needs(self) -> Ints:
        need = np.full(len(self._rows), _FAR, np.int32)
        for final in self.index.finals:
            need[self._number[final]] = 0
        members: dict[int, list[int]] = {}
        for state, component in enumerate(self._component):
            members.setdefault(int(component), []).append(state)
        for component in self._order:
            states = members[component]
            if self.text_of[states[0]] < 0:  # texts and the rest never share a component
                if need[states[0]]:
                    need[states[0]] = self._game(states[0], need)
                continue
            changed = True
            while changed:
                changed = False
                for state in states:
                    best = 1 + int(np.min(need[self._rows[state].to], initial=_FAR))
                    if best < need[state]:
                        need[state], changed = best, True
        if need[self._start] >= _FAR:
            raise JudgeError("the vocabulary cannot spell every answer that the schema allows")
        return need

    def _game(self, state: int, need: Ints) -> int:
        """need(state) of the module's docstring, by walking the strings from `state` byte by byte."""
        row = self._rows[state]
        spelled = [self.vocabulary.tokens[token] or b"" for token in row.tokens]
        order = sorted(range(len(spelled)), key=spelled.__getitem__)
        words = [spelled[i] for i in order]
        costs = 1 + need[row.to[order]]
        worst = 0
        # (first, last) of the tokens that go on from here; the raw state; bytes walked; cheapest token so far
        walk = [(0, len(words), self._states[state], b"", _FAR)]
        while walk:
            first, last, at, path, best = walk.pop()
            while first < last and len(words[first]) == len(path) > 0:
                best = min(best, int(costs[first]))
                first += 1
            at_number = self._number[at]
            if path and self.text_of[at_number] >= 0:
                if best >= _FAR:
                    best = int(np.min(costs[first:last], initial=_FAR))
                worst = max(worst, best)
                continue
            followed = 0
            here = self.index.bytes[at]
            while first < last:
                byte = words[first][len(path)]
                longer = path + bytes([byte])
                end = bisect_left(words, path + bytes([byte + 1]), first, last) if byte < 255 else last
                walk.append((first, end, here[byte], longer, best))
                first, followed = end, followed + 1
            if path and followed < max(len(here), 1):
                worst = max(worst, best)
            elif not path and followed < len(here):
                return _FAR
        return worst

    def shares(self, budget: int) -> list[int]:
        """How many tokens each text may take: its quota, or its share of what `budget` leaves over."""
        wanted = sum(quota - 1 for quota in self.quotas)
        spare = min(max(budget - self.least, 0), wanted)
        return [
            shortest + ((quota - 1) * spare // wanted if wanted else 0)
            for quota, shortest in zip(self.quotas, self._shortest, strict=True)
        ]

    def state_after(self, text: bytes) -> int:
        """The state that `text` leads to; KeyError when the grammar does not allow it."""
        return self._number[self.index.walk(text)]

    def tokens_at(self, state: int) -> list[int]:
        """The tokens that the grammar allows at `state`, whatever is left."""
        tokens: list[int] = self._rows[state].tokens.tolist()
        return tokens

    def machine(self, budget: int) -> ClosingMachine:
        """A machine for one answer of at most `budget` tokens. Raises ValueError below `least`."""
        if budget < self.least:
            raise ValueError(f"a budget of {budget} tokens is below the least, {self.least}")
        return ClosingMachine(self, budget)

    def mask(self, state: int, left: int, inside: int) -> Ints:
        """Packed bits (32 ids a word, least first) of the tokens legal with `left` tokens in all and `inside` in
        the present text; computed once for all that have the same answer.

        Where no affordable token keeps to the text's quota (half a character whose only continuations differ in
        cost), the quota gives way: the budget never does.
        """
        row = self._rows[state]
        needs, leaves = row.levels
        key = (state, bisect_left(needs, left), bisect_right(leaves, inside))
        packed = self._masks.get(key)
        if packed is None:
            affordable = row.need < left
            within = affordable & (row.leave <= inside)
            legal = row.tokens[within if within.any() else affordable]
            bits = np.zeros((len(self.vocabulary.tokens) + 31) // 32 * 32, np.uint8)
            bits[legal if len(row.tokens) else list(self.vocabulary.eos)] = 1
            packed = np.packbits(bits, bitorder="little").view(np.int32)
            self._masks[key] = packed
        return packed


class ClosingMachine:
    """One answer being written: where it stands, what is left, and how to take steps back."""

    __slots__ = ("_grammar", "_shares", "_trail", "left", "state", "used")

    def __init__(self, grammar: Grammar, budget: int) -> None:
        self._grammar = grammar
        self._shares = grammar.shares(budget)
        self.state = grammar._start
        self.left = budget
        self.used = 0
        self._trail: list[tuple[int, int]] = []

    @property
    def finished(self) -> bool:
        """The answer is whole: only the end of text is legal."""
        return self._grammar.final_at[self.state]

    def mask(self) -> Ints:
        """The legal tokens as packed bits; the end of text alone when finished."""
        text = self._grammar.text_at[self.state]
        inside = max(self._shares[text] - self.used, 0) if text >= 0 else _FAR
        return self._grammar.mask(self.state, self.left, inside)

    def legal(self) -> NDArray[np.intp]:
        """The ids that `mask` allows."""
        return np.flatnonzero(np.unpackbits(self.mask().view(np.uint8), bitorder="little"))

    def advance(self, token: int) -> bool:
        """Take a step. False, and nothing changed, when the token is not legal."""
        mask = self.mask()
        if self.finished or token >= 32 * len(mask) or not mask[token >> 5] >> (token & 31) & 1:
            return False
        grammar = self._grammar
        raw = grammar.index.step(grammar._states[self.state], token)
        if raw is None:
            return False
        self._trail.append((self.state, self.used))
        to = grammar._number[raw]
        text = grammar.text_at[to]
        self.used = 0 if text < 0 else self.used + 1 if text == grammar.text_at[self.state] else 1
        self.state = to
        self.left -= 1
        return True

    def rollback(self, steps: int) -> None:
        """Undo the last `steps` steps."""
        for _ in range(steps):
            self.state, self.used = self._trail.pop()
            self.left += 1
