"""The student: a causal language model asked for what comes after some of its prompts' tokens.

All prompts of a batch begin alike, so what they share goes through the layers once and its keys and values are put
before each row's own; lower layers that are not trained are run once for the whole set, not once an epoch. Both are
explicit calls of a Llama-like model's decoder layers (Llama, Qwen, Mistral, SmolLM, ...): `agrees` tells whether
they say of a model what its own forward says. Knows nothing of judges, labels or losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class _LowRank(torch.autograd.Function):  # type: ignore[misc]
    """x W' + (x A') B', of rows x (T, in), W (out, in), A (r, in), B (out, r). What autograd would make of the sum
    passes over every activation three times more, which on a CPU takes as long as the product itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
        inner = x @ a.T
        ctx.save_for_backward(x, weight, a, b, inner)
        return torch.addmm(x @ weight.T, inner, b.T)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (out,) = gradients
        x, weight, a, b, inner = ctx.saved_tensors
        through = out @ b
        return torch.addmm(out @ weight, through, a), None, through.T @ x, out.T @ inner


def fuse(causal: Any) -> int:
    """Let peft's plain LoRA layers compute as `_LowRank` does, the same to rounding; how many there are. Not where
    they drop out."""
    from peft.tuners.lora import Linear

    count = 0
    for layer in causal.modules():
        if isinstance(layer, Linear) and isinstance(layer.lora_dropout["default"], nn.Identity):
            layer.forward = partial(_low_rank, layer)
            count += 1
    return count


def _low_rank(layer: Any, x: Tensor) -> Tensor:
    base = layer.base_layer
    kind = base.weight.dtype
    a = layer.lora_A["default"].weight.to(kind)
    b = (layer.lora_B["default"].weight * layer.scaling["default"]).to(kind)
    out: Tensor = _LowRank.apply(x.reshape(-1, x.shape[-1]).to(kind), base.weight, a, b)
    out = out.view(*x.shape[:-1], -1)
    return out if base.bias is None else out + base.bias


class _Prefix:
    """What a decoder layer takes for its cache: keeps the prefix's keys and values in one pass, and in the next
    puts them before those of every row."""

    def __init__(self) -> None:
        self._kept: tuple[Tensor, Tensor] | None = None

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if self._kept is None:
            self._kept = keys, values
            return keys, values
        rows = len(keys)
        k, v = (kept.expand(rows, -1, -1, -1) for kept in self._kept)
        return torch.cat((k, keys), dim=2), torch.cat((v, values), dim=2)


class Student(nn.Module):  # type: ignore[misc]
    """causal: transformers' model, or peft's around it. frozen: how many of its lower layers are not trained.

    explicit: whether its layers may be called one by one; otherwise every prompt goes through the model's own
    forward, whole.
    """

    def __init__(self, causal: Any, frozen: int = 0) -> None:
        super().__init__()
        self.causal = causal
        self.frozen = frozen
        self.explicit = all(hasattr(self.body, part) for part in ("layers", "embed_tokens", "rotary_emb", "norm"))

    @property
    def plain(self) -> Any:
        """transformers' own model."""
        return self.causal.get_base_model() if hasattr(self.causal, "get_base_model") else self.causal

    @property
    def body(self) -> Any:
        return self.plain.base_model

    @property
    def depth(self) -> int:
        return int(self.plain.config.get_text_config().num_hidden_layers)

    def through(self, prefix: Tensor, rows: Tensor, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Hidden states of a shared prefix (1, P, d) and of what follows it in each row (B, S, d), padded on the
        right, through the layers from `start` up to `stop`."""
        body, p, s = self.body, prefix.shape[1], rows.shape[1]
        at = torch.arange(p + s, device=rows.device)
        turns = body.rotary_emb(rows, position_ids=at[None])
        before, after = [tuple(part[:, cut] for part in turns) for cut in (slice(0, p), slice(p, p + s))]
        mask = (at[None, :] <= at[p:, None])[None, None]
        for layer in body.layers[start:stop]:
            kept = _Prefix() if p else None
            if p:
                prefix = layer(
                    prefix,
                    position_embeddings=before,
                    position_ids=at[None, :p],
                    past_key_values=kept,
                    use_cache=True,
                )
            rows = layer(
                rows,
                attention_mask=mask,
                position_embeddings=after,
                position_ids=at[None, p:],
                past_key_values=kept,
                use_cache=bool(p),
            )
        return prefix, rows

    def embedded(self, ids: Tensor) -> Tensor:
        hidden: Tensor = self.body.embed_tokens(ids)
        return hidden

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def lower(self, prefix: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Token ids (P,) and (B, S) through the frozen layers: what `forward` takes in their place."""
        return self.through(self.embedded(prefix[None]), self.embedded(rows), 0, self.frozen)

    def forward(self, prefix: Tensor, rows: Tensor, where: Tensor) -> Tensor:
        """The logits (N, vocabulary) after some tokens, in float32.

        prefix: ids (P,) of what all prompts begin with, P may be 0. rows: ids (B, S) of the rest, padded on the
        right. Or what `lower` makes of the two. where: (B,) one place in each row, where its prompt ends; or a mask
        (B, S), read row by row.
        """
        if not self.explicit:
            return self._whole(prefix, rows, where)
        start = 0
        if rows.is_floating_point():
            start = self.frozen
        else:
            prefix, rows = self.embedded(prefix[None]), self.embedded(rows)
        _, hidden = self.through(prefix, rows, start, self.depth)
        if where.dtype == torch.bool:
            picked = hidden[where]
        else:
            picked = hidden[torch.arange(len(hidden), device=hidden.device), where]
        logits: Tensor = self.plain.get_output_embeddings()(self.body.norm(picked))
        return logits.float()

    def _whole(self, prefix: Tensor, rows: Tensor, where: Tensor) -> Tensor:
        """The same by the model's own forward, of whole prompts."""
        logits: Tensor
        if where.dtype == torch.bool:  # what pads them comes after all that is looked at
            ids = torch.cat((prefix.expand(len(rows), -1), rows), dim=1)
            logits = self.causal(input_ids=ids, use_cache=False).logits[:, len(prefix) :][where]
            return logits.float()
        prompts = [torch.cat((prefix, row[: end + 1])) for row, end in zip(rows, where.tolist(), strict=True)]
        longest = max(map(len, prompts))  # padded on the left, so that all end at one place
        ids = torch.stack([nn.functional.pad(prompt, (longest - len(prompt), 0)) for prompt in prompts])
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=ids.device)
        at = torch.arange(longest, device=ids.device)[None] - (longest - lengths)[:, None]
        told = self.causal(
            input_ids=ids,
            attention_mask=(at >= 0).long(),
            position_ids=at.clamp(min=0),
            use_cache=False,
            logits_to_keep=1,
        )
        logits = told.logits[:, -1]
        return logits.float()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def agrees(self, prefix: Tensor, rows: Tensor, where: Tensor) -> bool:
        """Whether layer by layer comes to what the model's own forward does: the Kullback-Leibler divergence of the
        next token is below 1e-5 in float32, 1e-2 in half precision. Prompts longer than these may still differ
        where a model attends through a window."""
        if not self.explicit:
            return False
        was = self.training
        self.eval()
        try:
            ours, theirs = (f(prefix, rows, where).log_softmax(-1) for f in (self.forward, self._whole))
        except Exception:  # of any kind: its layers want to be called otherwise
            return False
        finally:
            self.train(was)
        apart = (theirs.exp() * (theirs - ours)).sum(-1).max().item()
        return bool(apart < (1e-5 if next(self.plain.parameters()).dtype == torch.float32 else 1e-2))


def common_prefix(prompts: Sequence[list[int]]) -> int:
    """How many ids all of these begin with; at least one is left to each."""
    if not prompts:
        return 0
    low, high = min(prompts), max(prompts)
    most = min(min(map(len, prompts)) - 1, len(low), len(high))
    return next((i for i in range(most) if low[i] != high[i]), max(most, 0))
