"""A training set in one student's tokens: the prompts of score mode and the ids of their labels, the prompts of
explain mode and the reasons that follow.

The lower layers' outputs for the whole set lie here too, on disk, computed once and gone on with after a kill.
Knows the student's tokenizer and layers, not how it is trained.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from localjudge.distill.data import Asked
from localjudge.distill.student import Student, common_prefix
from localjudge.engines.base import Message
from localjudge.engines.inprocess import AskCodec
from localjudge.errors import ModelError, RunError
from localjudge.run.store import write_atomically

_STEP = 256  # rows between two notes of how far the lower layers are


@dataclass(frozen=True)
class Labels:
    """How questions are shown to a student, and its ids for their labels.

    keys: of the questions, in an order. shown: key -> labels as shown. tails: key -> the end of the user's message.
    ids: (Q, K, M) of question, label and spelling; there: which of these there are. worth: (Q, K), NaN for none.
    """

    keys: list[str]
    shown: dict[str, list[str]]
    tails: dict[str, str]
    ids: Tensor
    there: Tensor
    worth: Tensor


def read_labels(questions: Mapping[str, Asked], codec: AskCodec, student: str) -> Labels:
    """Each question's labels as themselves where each is one token of the student's, else as letters. Raises
    ModelError where neither is."""
    shown, tails, spelled = {}, {}, {}
    for key, asked in questions.items():
        form = next((form for form in asked.forms if codec.one_token(form.labels)), None)
        if form is None:
            tried = " nor ".join(", ".join(form.labels) for form in asked.forms)
            raise ModelError(
                f"teacher and student have different label tokens: of '{key}', neither {tried} "
                f"are single tokens of {student}",
                fix="give another --student, or a judge whose labels are digits or letters",
            )
        shown[key], tails[key] = form.labels, form.tail
        spelled[key] = [codec.label_ids(label) for label in form.labels]
    keys = list(questions)
    most = max(len(labels) for labels in spelled.values())
    widest = max(len(ids) for labels in spelled.values() for ids in labels)
    ids = torch.zeros(len(keys), most, widest, dtype=torch.long)
    there = torch.zeros(len(keys), most, widest, dtype=torch.bool)
    worth = torch.full((len(keys), most), math.nan)
    for q, key in enumerate(keys):
        for k, own in enumerate(spelled[key]):
            ids[q, k, : len(own)] = torch.tensor(own)
            there[q, k, : len(own)] = True
        for k, value in enumerate(questions[key].worth or ()):
            worth[q, k] = math.nan if value is None else value
    return Labels(keys, shown, tails, ids, there, worth)


@dataclass
class Prompts:
    """Prompts as a student reads them, which all begin alike.

    prefix: the ids that all prompts begin with. rests: what follows in each. kept: where the lower layers' outputs
    lie, if they do.
    """

    prefix: list[int]
    rests: list[NDArray[np.int32]]
    kept: Lower | None = field(default=None, kw_only=True)

    def __len__(self) -> int:
        return len(self.rests)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row after the prefix."""
        return np.array([len(rest) for rest in self.rests], dtype=np.int64)

    def rows(self, places: Sequence[int]) -> Tensor:
        """What follows the prefix in these rows, padded on the right: ids (B, S), or the lower layers' outputs."""
        lengths = [len(self.rests[i]) for i in places]
        if self.kept is not None:
            return self.kept.rows(places, lengths)
        rows = torch.zeros(len(places), max(lengths), dtype=torch.long)
        for row, i in zip(rows, places, strict=True):
            row[: len(self.rests[i])] = torch.from_numpy(self.rests[i].astype(np.int64))
        return rows

    def batch(self, places: Sequence[int]) -> dict[str, Tensor]:
        """These rows, and what else their loss takes."""
        return {"rows": self.rows(places)}

    def start(self) -> Tensor:
        """What goes before every row: the prefix's ids, or the lower layers' outputs of them."""
        return self.kept.prefix if self.kept is not None else torch.tensor(self.prefix, dtype=torch.long)


@dataclass
class Encoded(Prompts):
    """Prompts after which a label comes.

    asked: (N,) the place of its question in Labels.keys. target: (N, K). weight: (N,).
    """

    asked: NDArray[np.int64]
    target: NDArray[np.float32]
    weight: NDArray[np.float32]

    def batch(self, places: Sequence[int]) -> dict[str, Tensor]:
        """`rows`, `where` each ends, `asked`, `target`, `weight`."""
        at = list(places)
        return {
            "rows": self.rows(at),
            "where": torch.tensor([len(self.rests[i]) - 1 for i in at]),
            "asked": torch.from_numpy(self.asked[at]),
            "target": torch.from_numpy(self.target[at]),
            "weight": torch.from_numpy(self.weight[at]),
        }


@dataclass
class Written(Prompts):
    """Prompts with the answer in them. learnt: of each row, which of its tokens are to be learnt."""

    learnt: list[NDArray[np.bool_]]

    def batch(self, places: Sequence[int]) -> dict[str, Tensor]:
        """`rows`; `where` (B, S), the tokens after which comes one to be learnt; `next` (N,), those, row by row."""
        rows = self.rows(places)
        where = torch.zeros(rows.shape[:2], dtype=torch.bool)
        for row, i in zip(where, places, strict=True):
            row[: len(self.rests[i]) - 1] = torch.from_numpy(self.learnt[i][1:])
        told = np.concatenate([self.rests[i][self.learnt[i]] for i in places])
        return {"rows": rows, "where": where, "next": torch.from_numpy(told.astype(np.int64))}


def encode(parts: Sequence[Any], labels: Labels, codec: AskCodec) -> list[Encoded]:
    """Datasets of `data.Row`s as the prompts of score mode, which all begin with one prefix. Raises ModelError when
    a prompt does not fit the student's context."""
    place = {key: i for i, key in enumerate(labels.keys)}
    width = labels.worth.shape[1]
    prompts = [
        [
            codec.encoder.encode(_messages(system, f"{user}\n\n{labels.tails[asked]}"))
            for system, user, asked in zip(part["system"], part["user"], part["asked"], strict=True)
        ]
        for part in parts
    ]
    _refuse_long([len(ids) + 1 for own in prompts for ids in own], codec.context)
    n = common_prefix([ids for own in prompts for ids in own])
    found = []
    for part, own in zip(parts, prompts, strict=True):
        target = np.zeros((len(own), width), dtype=np.float32)
        for row, likely in zip(target, part["target"], strict=True):
            row[: len(likely)] = likely
        found.append(
            Encoded(
                prefix=(own or [[]])[0][:n],
                rests=[np.array(ids[n:], dtype=np.int32) for ids in own],
                asked=np.array([place[key] for key in part["asked"]], dtype=np.int64),
                target=target,
                weight=np.array(part["weight"], dtype=np.float32),
            )
        )
    return found


def encode_reasons(parts: Sequence[Any], codec: AskCodec) -> list[Written]:
    """Datasets of `reasons.Reason`s as the prompts of explain mode and the texts that follow, of which all between
    the quotation marks, and the one that ends it, is to be learnt. Raises ModelError when one does not fit the
    student's context."""
    told = [
        [
            _with_answer(
                codec, _messages(row["system"], row["user"]), dict(zip(row["names"], row["texts"], strict=True))
            )
            for row in part
        ]
        for part in parts
    ]
    _refuse_long([len(ids) for own in told for ids, _ in own], codec.context)
    n = min(
        common_prefix([ids for own in told for ids, _ in own]),
        min((int(learnt.argmax()) - 1 for own in told for _, learnt in own), default=0),
    )
    return [
        Written(
            prefix=[] if not own else own[0][0][:n],
            rests=[np.array(ids[n:], dtype=np.int32) for ids, _ in own],
            learnt=[learnt[n:] for _, learnt in own],
        )
        for own in told
    ]


def _with_answer(
    codec: AskCodec, messages: Sequence[Message], texts: Mapping[str, str]
) -> tuple[list[int], NDArray[np.bool_]]:
    """The ids of a prompt and the beginning of its answer, and which of them are in one of the answer's texts."""
    prompt = codec.encoder.encode(messages)
    answer, spans = b"", []
    for name, text in texts.items():
        answer += (b"," if answer else b"{") + f'"{name}":"'.encode()
        begin = len(answer)
        # What the grammar lets a model write: no line breaks, and no escapes but of the two.
        plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        answer += json.dumps(plain, ensure_ascii=False)[1:].encode()
        spans.append((begin, len(answer)))
    written = codec.encoder.encode_text(answer.decode())
    ends = np.cumsum([len(codec.vocabulary.tokens[i] or b"") for i in written])
    starts = np.concatenate(([0], ends[:-1]))
    learnt = np.zeros(len(written), dtype=np.bool_)
    for begin, end in spans:
        learnt |= (ends > begin) & (starts < end)
    return prompt + written, np.concatenate((np.zeros(len(prompt), dtype=np.bool_), learnt))


def _messages(system: str, user: str) -> list[Message]:
    return [*([Message("system", system)] if system else []), Message("user", user)]


def _refuse_long(lengths: Sequence[int], context: int) -> None:
    """lengths: tokens of each prompt and what is to come after it."""
    over = sum(length > context for length in lengths)
    if over:
        raise ModelError(
            f"the student has no room for {over} of {len(lengths)} prompts: the longest takes {max(lengths)} "
            f"tokens with its answer, and its context holds {context}",
            fix="give a --student with a longer context, or make the set of shorter records",
        )


class Lower:
    """The frozen layers' outputs for a whole set, in a file that is mapped into memory: the prefix's, and of every
    row those of its own tokens, one row after another."""

    def __init__(self, folder: Path, dtype: torch.dtype, width: int, starts: NDArray[np.int64]) -> None:
        self._starts, self._width, self._dtype = starts, width, dtype
        self._bits = np.int16 if dtype == torch.bfloat16 else np.float32
        self._folder = folder
        self.prefix = torch.empty(0)
        self._map: Any = None

    def _open(self, anew: bool, tokens: int) -> None:
        file, shape = self._folder / "hidden.bin", (tokens, self._width)
        if anew:
            with file.open("wb") as made:
                size = math.prod(shape) * np.dtype(self._bits).itemsize
                made.truncate(size)
                if hasattr(os, "posix_fallocate"):
                    # To run out of disk in what is mapped ends the process, without a word.
                    os.posix_fallocate(made.fileno(), 0, size)
        self._map = np.memmap(file, dtype=self._bits, mode="r+", shape=shape)

    def rows(self, places: Sequence[int], lengths: Sequence[int]) -> Tensor:
        """(B, S, d), zeros after a row's end."""
        found = torch.zeros(len(places), max(lengths), self._width, dtype=self._dtype)
        for row, i, n in zip(found, places, lengths, strict=True):
            own = np.array(self._map[self._starts[i] : self._starts[i] + n])
            row[:n] = torch.from_numpy(own).view(self._dtype)
        return found

    def _put(self, place: int, values: Tensor) -> None:
        own = values.contiguous().view(torch.int16) if self._dtype == torch.bfloat16 else values
        self._map[self._starts[place] : self._starts[place] + len(values)] = own.cpu().numpy()


def keep_lower(
    student: Student,
    data: Prompts,
    folder: Path,
    identity: Mapping[str, Any],
    batch: int = 32,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Run the frozen layers once over all of `data`, and let it read their outputs from `folder` from then on.

    identity: what decides them; outputs of another are made anew. tell: how many rows are done, of how many. Goes
    on where it was stopped. Raises RunError when the disk is full.
    """
    lengths = data.lengths
    tokens = int(lengths.sum())
    starts = np.concatenate(([0], np.cumsum(lengths)))[:-1]
    device = next(student.plain.parameters()).device
    dtype = next(student.plain.parameters()).dtype
    key = hashlib.sha256(
        json.dumps([identity, student.frozen, tokens, str(dtype), data.prefix], sort_keys=True).encode()
        + b"".join(rest.tobytes() for rest in data.rests)
    ).hexdigest()
    width = int(student.body.embed_tokens.weight.shape[1])
    lower = Lower(folder, dtype, width, starts)
    note = folder / "lower.json"
    done = 0
    if note.is_file() and (folder / "hidden.bin").is_file():
        told = json.loads(note.read_text(encoding="utf-8"))
        done = told["done"] if told["key"] == key else 0
    prefix = torch.tensor(data.prefix, device=device)
    by_length = np.argsort(-lengths, kind="stable")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lower._open(not done, tokens)
        was = student.training
        student.eval()
        ids = data.rows(by_length[:1].tolist()).to(device)
        lower.prefix = student.lower(prefix, ids)[0].cpu()
        for begin in range(done, len(data), batch):
            places = by_length[begin : begin + batch].tolist()
            _, hidden = student.lower(prefix, data.rows(places).to(device))
            for values, place in zip(hidden, places, strict=True):
                lower._put(place, values[: lengths[place]])
            now = min(begin + batch, len(data))
            tell(now, len(data))
            if now == len(data) or now % _STEP < batch:
                lower._map.flush()
                write_atomically(note, json.dumps({"key": key, "done": now}))
        student.train(was)
    except OSError as error:
        what = f"the lower layers' outputs ({tokens * width * 2 / 2**30:.1f} GiB) cannot be kept: {error.strerror}"
        raise RunError(
            what, where=str(folder), fix="make room, or train all layers with --freeze-layers 0"
        ) from error
    data.kept = lower
