"""Our closing machine as a logits processor inside outlines' generator for transformers models.

The generator is outlines' own (`outlines.Generator(model, processor=...)`), so are the model and the processor's
base. The model is extended in two places, to take token ids and to give them back: outlines' own takes strings and
has the tokenizer look for control tokens in them, so that a candidate's `<|im_end|>` would end its turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from outlines.generator import Generator
from outlines.models.transformers import Transformers
from outlines.processors import OutlinesLogitsProcessor

from localjudge.decoding.closing import Grammar, Ints
from localjudge.decoding.vocabulary import Vocabulary


class FreeText:
    """In the place of a grammar: any text at all, until one of `ends` is written.

    vocabulary: the model's, but that its answers end with those.
    """

    def __init__(self, vocabulary: Vocabulary, ends: Sequence[int]) -> None:
        self.vocabulary = Vocabulary(list(vocabulary.tokens), ends)
        size = (len(self.vocabulary.tokens) + 31) // 32 * 32
        bits = np.zeros(size, np.uint8)
        bits[[i for i, text in enumerate(self.vocabulary.tokens) if text] + list(self.vocabulary.eos)] = 1
        self._mask: Ints = np.packbits(bits, bitorder="little").view(np.int32)

    def machine(self, budget: int) -> FreeText:
        return self

    state = -1
    finished = True

    def mask(self) -> Ints:
        return self._mask

    def advance(self, token: int) -> bool:
        return True


class Row:
    """One answer of a batch as it is written.

    budget: tokens, at least `grammar.least`. temperature: 0 takes the likeliest token. seed: of this row's own
    chances, so that what is drawn does not depend on the other rows.
    watched: states of the machine -> tokens whose log-probabilities over the legal ones are wanted there.
    logprobs: those, before any temperature; one mapping a token written.
    stopped: nobody waits for this answer any more; it ends at the next step. May be set from any thread.
    broken: what was written is no answer, since it took a token that is not legal, or was stopped.
    """

    def __init__(
        self,
        grammar: Grammar | FreeText,
        budget: int,
        temperature: float = 0.0,
        seed: int = 0,
        watched: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        self.grammar, self.budget = grammar, budget
        self.temperature, self.seed = temperature, seed
        self.watched = watched or {}
        self.stopped = False
        self.reset()

    def reset(self) -> None:
        self.machine = self.grammar.machine(self.budget)
        self.ended = self.broken = False
        self.logprobs: list[dict[int, float]] = []
        self._chances: torch.Generator | None = None

    def chances(self, device: torch.device) -> torch.Generator:
        """This row's own source of random numbers."""
        if self._chances is None:
            self._chances = torch.Generator(device).manual_seed(self.seed)
        return self._chances

    def watch(self, logits: torch.Tensor) -> None:
        """The legal tokens' logits at this step, those of others being minus infinity."""
        if self.ended:
            return
        tokens = list(self.watched.get(self.machine.state, ()))
        self.logprobs.append(_logprobs(logits, tokens) if tokens else {})

    def take(self, token: int) -> None:
        """The next token, whatever it is."""
        if self.ended:
            return
        if token in self.grammar.vocabulary.eos:
            self.ended, self.broken = True, not self.machine.finished
        elif not self.machine.advance(token):
            self.ended = self.broken = True


def _logprobs(logits: torch.Tensor, tokens: Sequence[int]) -> dict[int, float]:
    """token -> log-probability of one row's logits."""
    return dict(zip(tokens, torch.log_softmax(logits, -1)[list(tokens)].tolist(), strict=True))


class ClosingProcessor(OutlinesLogitsProcessor):  # type: ignore[misc]
    """Keeps each row of a batch to its grammar and its budget, and draws for those that have a temperature.

    To be used with greedy decoding. What it allows at a step depends on the rows' last tokens alone, so padding on
    the left is nothing to it.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        super().__init__("torch")
        self.rows = rows
        vocabulary = rows[0].grammar.vocabulary
        end = np.zeros((len(vocabulary.tokens) + 31) // 32 * 32, np.uint8)
        end[list(vocabulary.eos)] = 1
        self._end = np.packbits(end, bitorder="little").view(np.int32)
        self.reset()

    def reset(self) -> None:
        self._begun = False
        for row in self.rows:
            row.reset()

    def process_logits(self, input_ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        if self._begun:
            for row, token in zip(self.rows, input_ids[:, -1].tolist(), strict=True):
                row.take(token)
        self._begun = True
        packed = np.stack([self._end if row.ended or row.stopped else row.machine.mask() for row in self.rows])
        octets = torch.from_numpy(packed.view(np.uint8)).to(logits.device)
        bits = torch.arange(8, dtype=torch.uint8, device=logits.device)
        legal = (octets[..., None] >> bits & 1).bool().flatten(1)[:, : logits.shape[1]]
        width = legal.shape[1]  # some models have more logits than their tokenizer has tokens
        logits[:, :width].masked_fill_(~legal, -torch.inf)
        logits[:, width:] = -torch.inf
        for row, own in zip(self.rows, logits, strict=True):
            row.watch(own)
        drawn = [i for i, row in enumerate(self.rows) if row.temperature > 0 and not row.ended]
        if drawn:
            logits[drawn] = self._draw(logits[drawn], [self.rows[i] for i in drawn])
        return logits

    def _draw(self, logits: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
        """Logits whose likeliest token is one drawn from the softmax of those given: Gumbel's noise is added.

        Finding where the probabilities sum to a random share would need one random number, not one a token. But
        then a change of the logits' last digits, as other rows bring about, moves the bounds of all tokens, and of
        a flat softmax over 50,000 it would often draw another; here it must meet a tie.
        """
        noise = torch.empty_like(logits)
        for own, row in zip(noise, rows, strict=True):
            own.uniform_(generator=row.chances(logits.device))
        noise.clamp_(min=2**-25).log_().neg_().log_().neg_()
        heat = torch.tensor([[row.temperature] for row in rows], device=logits.device)
        drawn = (logits - logits.amax(-1, keepdim=True)) / heat + noise
        # Not what is illegal, should the largest be no number.
        return torch.where(logits == -torch.inf, logits, drawn)


class ReadingProcessor(OutlinesLogitsProcessor):  # type: ignore[misc]
    """Changes nothing; keeps the log-probabilities of some tokens as the first of each row's answer.

    logprobs: token -> log-probability over the whole vocabulary, one mapping a row.
    """

    def __init__(self, tokens: Sequence[Sequence[int]]) -> None:
        super().__init__("torch")
        self.tokens = tokens
        self.logprobs: list[dict[int, float]] = []

    def process_logits(self, input_ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        self.logprobs = [_logprobs(own, tokens) for own, tokens in zip(logits, self.tokens, strict=True)]
        return logits


class TokenModel(Transformers):  # type: ignore[misc]
    """outlines' transformers model, given prompts as token ids and giving ids back, unread."""

    def _prepare_model_inputs(
        self, model_input: Sequence[Sequence[int]], is_batch: bool = False
    ) -> tuple[Sequence[Sequence[int]], dict[str, torch.Tensor]]:
        longest = max(map(len, model_input))
        padding = self.tokenizer.pad_token_id
        ids = [[padding] * (longest - len(prompt)) + list(prompt) for prompt in model_input]
        attended = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in model_input]
        device = self.model.device
        return model_input, {
            "input_ids": torch.tensor(ids, device=device),
            "attention_mask": torch.tensor(attended, device=device),
        }

    def _decode_generation(self, generated_ids: torch.Tensor) -> list[list[int]]:
        ids: list[list[int]] = generated_ids.tolist()
        return ids


def write(
    model: TokenModel, prompts: Sequence[Sequence[int]], rows: Sequence[Row], seen: Mapping[str, Any] | None = None
) -> list[list[int]]:
    """Write all rows' answers in one batch. seen: further inputs of the model, of the pictures in the prompts.

    Returns each row's ids, the end of text last where it was written inside the budget. `row.broken` says which
    are not to be used.
    """
    longest = max(row.budget for row in rows)
    batch = Generator(model, processor=ClosingProcessor(rows)).batch(
        prompts, max_new_tokens=longest, do_sample=False, use_cache=True, **(seen or {})
    )
    answers = []
    for row, ids in zip(rows, batch, strict=True):
        row.take(ids[-1])  # what a batch ends with is not put to the processor any more
        row.broken |= not row.machine.finished
        eos = row.grammar.vocabulary.eos
        end = next((i for i, token in enumerate(ids) if token in eos), len(ids))
        answers.append(ids[: min(end + 1, row.budget)])
    return answers


def read(
    model: TokenModel,
    prompts: Sequence[Sequence[int]],
    tokens: Sequence[Sequence[int]],
    seen: Mapping[str, Any] | None = None,
) -> list[dict[int, float]]:
    """For each prompt, the log-probabilities of these tokens right after it, over the whole vocabulary. seen: as of
    `write`."""
    processor = ReadingProcessor(tokens)
    Generator(model, processor=processor).batch(
        prompts, max_new_tokens=1, do_sample=False, use_cache=True, **(seen or {})
    )
    return processor.logprobs
