"""The closing machine: an answer that always ends, always valid, inside its budget.

For every state of the token index it knows `need`: the fewest tokens that are enough to end from there *whatever
labels the model goes on to choose*. With r tokens left, only tokens whose next state needs at most r - 1 are
legal; since the start's need is covered before anything is written, the set is never empty. Free texts are cycles
of the automaton, each with the states that lead from its opening quote into it; there the model may always be made
to stop, so their need is that of the shortest way out, and each has its own quota of tokens, so that a chatty first
text cannot starve what follows.

Outside the texts, `need` is the value of a small game. An adversary picks which of the strings that the grammar
allows is to be written, we pick its cheapest spelling in tokens:

    need(s) = max over strings w from s of  min over tokens t that start w of  1 + need(s after t)

so a label is never chosen by want of room: wherever one label is legal, every label is. Taking the shortest way
out there as well would let a tight budget decide the verdict.

A list is a cycle too, around its item. Whether it has any item is the adversary's choice, as a label is: an empty
list says something. Whether another item follows is ours, and in the game none does: the comma after an item and
every token across it, those that *go on*, are no moves of it. Without them texts are the only cycles left. A token
that goes on is legal where the state it leads to is affordable like any other; that state's need covers the whole
item, the end of the list and all that comes after it. One that goes on and already chooses a label of the next item
would make that label cheaper than its rivals, so there is none: the label is chosen by a token of its own.

A list's quota holds for all its items together. Inside a list the game's tokens end at its closing bracket, so that

    need(s) = tokens to the end of the list from s + need(after the list)

and no more is needed to keep the quota than to hold back, while the list is written, all tokens beyond its share
and the need of what follows: what is left over is then this list's budget, and labels are as safe in it as in the
whole. Each item's texts share what its list has left when the item begins.
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

from localjudge.decoding.grammar import QUOTA, Part, TokenIndex, parts, schema_regex
from localjudge.decoding.vocabulary import Vocabulary
from localjudge.errors import JudgeError

_FAR = 1 << 30
_QUOTE, _COMMA, _BACKSLASH, _CLOSE = b'",\\]'
Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]


@dataclass
class _Row:
    """The legal tokens of a state, the states they lead to, and what those cost.

    need: tokens to the end after the step. leave: tokens still inside this state's own text after the step,
    0 when the step leaves it. on: which tokens go on to another item of a list; a single False where none do.
    """

    tokens: Ints
    to: Ints
    need: Ints
    leave: Ints
    on: Bools | np.bool_ = np.False_

    @cached_property
    def levels(self) -> tuple[list[int], list[int]]:
        """The distinct values of `need` and of `leave`: between two of them the legal tokens stay the same."""
        return np.unique(self.need).tolist(), np.unique(self.leave).tolist()

    def keep(self, kept: Bools) -> None:
        if not kept.all():
            self.tokens, self.to = self.tokens[kept], self.to[kept]
            self.on = self.on[kept] if isinstance(self.on, np.ndarray) else self.on


@dataclass
class _Share:
    """What a text or a list may take, in tokens.

    shortest: always. extra: how much more its quota allows. wanted: what it and all that share with it would take
    beyond their shortest.
    """

    shortest: int
    extra: int
    wanted: int = 0

    def of(self, spare: int) -> int:
        """With `spare` tokens to share: its quota, or its part of them."""
        return self.shortest + (self.extra * min(spare, self.wanted) // self.wanted if self.wanted else 0)


class Grammar:
    """A schema compiled for a vocabulary: its index and its closing tables. Shared by all asks, read only.

    least: the fewest tokens that always suffice. full: the budget at which every text and list may use its whole
    quota and the rest may be spelled at twice its least.
    """

    def __init__(self, schema: Mapping[str, Any], vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.index = TokenIndex(schema_regex(schema), vocabulary)
        self._masks: dict[tuple[int, int, int], Ints] = {}
        found = list(parts(schema))
        self._compile(
            [part for part in found if part.kind == "string"], [part for part in found if part.kind == "array"]
        )
        self.least = int(self._need[self._start])
        self.full = 2 * self.least + self._wanted

    def _compile(self, texts: list[Part], lists: list[Part]) -> None:
        rows: dict[int, dict[int, int]] = {state: {} for state in self.index.bytes}  # also where no token ends
        rows.update(self.index.steps())
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
        self._bytes = self.index.bytes  # less the commas that go on to another item
        self.text_of = self._find_texts([self.state_after(part.before + b'"') for part in texts])
        self.list_of = self._find_lists(lists)
        self._leave = self._ways_out()
        self._shortest = [int(self._leave[self.state_after(part.before + b'"')]) for part in texts]
        self._prune()
        self._order_states()
        self._need = self._needs()
        self._share_out(texts, lists)
        for state, row in enumerate(self._rows):
            inside = (self.text_of[row.to] == self.text_of[state]) & ~row.on
            row.need = self._need[row.to]
            row.leave = np.where(inside, self._leave[row.to], 0).astype(np.int32)
        # What each step looks up, as Python's own integers: numpy's cost more than the rest of the step.
        self.text_at: list[int] = self.text_of.tolist()
        self.list_at: list[int] = self.list_of.tolist()
        self.need_at: list[int] = self._need.tolist()
        self.final_at: list[bool] = (self._need == 0).tolist()
        self.on_at: dict[int, frozenset[int]] = {
            state: frozenset(row.tokens[row.on].tolist()) for state, row in enumerate(self._rows) if row.on.any()
        }

    def _find_texts(self, openings: list[int]) -> Ints:
        """state -> which free text it is inside of, in the order of writing, or -1."""
        text_of = np.full(len(self._rows), -1, np.int32)
        for text, opening in enumerate(openings):
            text_of[opening] = text
            inside = [(opening, False)]
            while inside:
                state, escaped = inside.pop()
                for byte, raw in self.index.bytes[self._states[state]].items():
                    to = self._number[raw]
                    if text_of[to] != text and (escaped or byte != _QUOTE):
                        text_of[to] = text
                        inside.append((to, byte == _BACKSLASH and not escaped))
        return text_of

    def _find_lists(self, lists: list[Part]) -> Ints:
        """state -> which list it is inside of, from after `[` until before `]`, or -1. Finds what goes on."""
        list_of = np.full(len(self._rows), -1, np.int32)
        self._opens = [self.state_after(part.before + b"[") for part in lists]
        self._closes = [self.state_after(part.before + b"[]") for part in lists]
        ends = set()
        for place, (opening, close) in enumerate(zip(self._opens, self._closes, strict=True)):
            list_of[opening] = place
            inside = [opening]
            while inside:
                state = inside.pop()
                here = self.index.bytes[self._states[state]]
                for to in {self._number[raw] for raw in here.values()}:
                    if to == close and state != opening:
                        ends.add(self._states[state])
                    elif to != close and list_of[to] < 0:
                        list_of[to] = place
                        inside.append(to)
        if ends:
            self._bytes = {
                raw: {byte: to for byte, to in here.items() if byte != _COMMA} if raw in ends else here
                for raw, here in self.index.bytes.items()
            }
            self._find_what_goes_on(ends)
        return list_of

    def _find_what_goes_on(self, ends: set[int]) -> None:
        """Mark the tokens across the comma after an item; drop those that choose a label behind it as well.

        ends: the raw states after an item.
        """
        pieces = self.vocabulary.tokens
        comma = np.array([piece is not None and b"," in piece for piece in pieces])
        quoted = comma & np.array([piece is not None and b'"' in piece for piece in pieces])
        for state, row in enumerate(self._rows):
            candidates = np.flatnonzero((comma if self.text_of[state] < 0 else quoted)[row.tokens])
            on, kept = np.zeros(len(row.tokens), bool), np.ones(len(row.tokens), bool)
            for i in candidates.tolist():
                at, gone = self._states[state], False
                for byte in pieces[row.tokens[i]] or b"":
                    here = self.index.bytes[at]
                    if gone and self.text_of[self._number[at]] < 0:
                        rivals = here.keys() - {_COMMA, _CLOSE} if at in ends else here.keys() - {byte}
                        kept[i] &= not rivals
                    gone |= byte == _COMMA and at in ends
                    at = here[byte]
                on[i] = gone
            if on.any():
                row.on = on
                row.keep(kept)

    def _ways_out(self) -> Ints:
        """state -> fewest tokens to a state outside its own text; 0 outside texts."""
        inside = self.text_of >= 0
        leave = np.where(inside, _FAR, 0).astype(np.int32)
        played = {state: self._moves(state)[1] for state in np.flatnonzero(inside).tolist()}
        changed = True
        while changed:
            changed = False
            for state, to in played.items():
                same = self.text_of[to] == self.text_of[state]
                best = 1 + int(np.min(np.where(same, leave[to], 0), initial=_FAR))
                if best < leave[state]:
                    leave[state], changed = best, True
        return leave

    def _moves(self, state: int) -> tuple[Ints, Ints]:
        """The game's tokens at a state and where they lead: none that goes on, none across the end of its list."""
        row, place = self._rows[state], self.list_of[state]
        if place >= 0:
            played = ((self.list_of[row.to] == place) | (row.to == self._closes[place])) & ~row.on
        elif row.on.any():
            played = ~row.on
        else:
            return row.tokens, row.to
        return row.tokens[played], row.to[played]

    def _prune(self) -> None:
        """Drop tokens that enter a text where its shortest form would not do, in the middle of a character."""
        shortest = np.array([*self._shortest, 0], np.int32)
        for state, row in enumerate(self._rows):
            enters = (self.text_of[row.to] >= 0) & ((self.text_of[row.to] != self.text_of[state]) | row.on)
            row.keep(~enters | (self._leave[row.to] <= shortest[self.text_of[row.to]]))

    def _order_states(self) -> None:
        """The strong components of what is played, what comes last in an answer first."""
        edges = []
        for state, raw in enumerate(self._states):
            edges += [(state, to) for to in np.unique(self._moves(state)[1]).tolist()]
            if self._opens:  # a list's opening before all that can enter it, whichever tokens there are
                edges += [(state, self._number[to]) for to in set(self._bytes[raw].values())]
        start, end = np.array(edges, np.int32).reshape(-1, 2).T
        n = len(self._rows)
        graph = csr_array((np.ones(len(edges), np.int8), (start, end)), shape=(n, n))
        count, component = connected_components(graph, connection="strong")
        after: dict[int, set[int]] = {c: set() for c in range(count)}
        for a, b in zip(component[start], component[end], strict=True):
            if a != b:
                after[int(a)].add(int(b))
        members: list[list[int]] = [[] for _ in range(count)]
        for state, c in enumerate(component):
            members[c].append(state)
        self._order = [members[c] for c in TopologicalSorter(after).static_order()]
        looping = np.bincount(component, minlength=count) > 1
        looping[component[start[start == end]]] = True
        if np.any(looping[component] & (self.text_of < 0)):
            raise JudgeError("the grammar has a loop that is not one of its texts or lists")

    def _needs(self) -> Ints:
        need = np.full(len(self._rows), _FAR, np.int32)
        for final in self.index.finals:
            need[self._number[final]] = 0
        for states in self._order:
            for state in states if self._opens else ():
                self._drop_dear_entries(state, need)
            if self.text_of[states[0]] < 0:  # texts and the rest never share a component
                if need[states[0]]:
                    need[states[0]] = self._game(states[0], need)
                continue
            played = [(state, self._moves(state)[1]) for state in states]
            changed = True
            while changed:
                changed = False
                for state, to in played:
                    best = 1 + int(np.min(need[to], initial=_FAR))
                    if best < need[state]:
                        need[state], changed = best, True
        if need[self._start] >= _FAR:
            raise JudgeError("the vocabulary cannot spell every answer that the schema allows")
        return need

    def _drop_dear_entries(self, state: int, need: Ints) -> None:
        """Drop tokens into a list that leave more of it to write than its opening: its share may not cover that."""
        row = self._rows[state]
        place = self.list_of[row.to]
        enters = (place >= 0) & (place != self.list_of[state])
        if enters.any():
            row.keep(~enters | (need[row.to] <= need[np.array(self._opens, np.int32)[place]]))

    def _game(self, state: int, need: Ints) -> int:
        """need(state) of the module's docstring, by walking the strings from `state` byte by byte."""
        tokens, to = self._moves(state)
        spelled = [self.vocabulary.tokens[token] or b"" for token in tokens.tolist()]
        order = sorted(range(len(spelled)), key=spelled.__getitem__)
        words = [spelled[i] for i in order]
        costs = 1 + need[to[order]]
        close = self._closes[self.list_of[state]] if self.list_of[state] >= 0 else -1
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
            here = self._bytes[at] if at_number != close else {}
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

    def _share_out(self, texts: list[Part], lists: list[Part]) -> None:
        """What each text and list may take: a text in a list shares with those of its item, all else in the
        answer."""
        self.texts = [
            _Share(shortest, part.schema[QUOTA] - 1) for part, shortest in zip(texts, self._shortest, strict=True)
        ]
        self.rest = [int(self._need[close]) for close in self._closes]
        self.lists = []
        for part, opening, rest in zip(lists, self._opens, self.rest, strict=True):
            shortest = int(self._need[opening]) - rest
            self.lists.append(_Share(shortest, max(part.schema[QUOTA] - shortest, 0)))
        scopes: dict[tuple[str, ...] | None, list[_Share]] = {None: [*self.lists]}
        for part, share in zip(texts, self.texts, strict=True):
            scopes.setdefault(part.within, []).append(share)
        for scope in scopes.values():
            wanted = sum(share.extra for share in scope)
            for share in scope:
                share.wanted = wanted
        self._wanted = sum(share.extra for share in scopes[None])

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
    """One answer being written: where it stands, what is left, and how to take steps back.

    left: tokens of the budget. room: tokens that the present text may still take. held: of those left, what the
    present list is not to touch. spare: what the texts of the present item, or outside lists all texts and lists,
    may take beyond their shortest.
    """

    __slots__ = ("_grammar", "_spare", "_trail", "held", "left", "room", "spare", "state")

    def __init__(self, grammar: Grammar, budget: int) -> None:
        self._grammar = grammar
        self.state = grammar._start
        self.left = budget
        self.spare = self._spare = budget - grammar.least
        self.held = 0
        self.room = _FAR
        self._trail: list[tuple[int, int, int, int]] = []

    @property
    def finished(self) -> bool:
        """The answer is whole: only the end of text is legal."""
        return self._grammar.final_at[self.state]

    def mask(self) -> Ints:
        """The legal tokens as packed bits; the end of text alone when finished."""
        return self._grammar.mask(self.state, self.left - self.held, self.room)

    def legal(self) -> NDArray[np.intp]:
        """The ids that `mask` allows."""
        return np.flatnonzero(np.unpackbits(self.mask().view(np.uint8), bitorder="little"))

    def advance(self, token: int) -> bool:
        """Take a step. False, and nothing changed, when the token is not legal."""
        mask = self.mask()
        if self.finished or token >= 32 * len(mask) or not mask[token >> 5] >> (token & 31) & 1:
            return False
        grammar, state = self._grammar, self.state
        raw = grammar.index.step(grammar._states[state], token)
        if raw is None:
            return False
        self._trail.append((state, self.room, self.held, self.spare))
        self.state = to = grammar._number[raw]
        self.left -= 1
        on = state in grammar.on_at and token in grammar.on_at[state]
        text, place = grammar.text_at[to], grammar.list_at[to]
        moved = place != grammar.list_at[state]
        if moved:
            self.held, self.spare = 0, self._spare
            if place >= 0:
                self.held = max(self.left - grammar.lists[place].of(self._spare) - grammar.rest[place], 0)
        if place >= 0 and (on or moved):
            self.spare = self.left - self.held - grammar.need_at[to]
        if text < 0:
            self.room = _FAR
        elif text == grammar.text_at[state] and not on:
            self.room = max(self.room - 1, 0)
        else:
            self.room = grammar.texts[text].of(self.spare) - 1
        return True

    def rollback(self, steps: int) -> None:
        """Undo the last `steps` steps."""
        for _ in range(steps):
            self.state, self.room, self.held, self.spare = self._trail.pop()
            self.left += 1
