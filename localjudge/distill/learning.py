"""What a student learns: how likely the teacher holds each label and then, if wanted, the teacher's reasons.

Of labels

    loss = KL(teacher || student, over the labels)
         + `expected` x (the teacher's expected worth - the student's)^2
         - `mass` x log(the student's belief on any label)

where the student's distribution is what score mode would read. Of reasons, the mean cross-entropy of their tokens
after the prompts of explain mode; nothing else of an answer is learnt from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from localjudge.distill.encoded import Labels
from localjudge.distill.trainer import StudentTrainer


def label_loss(
    logits: Tensor, batch: Mapping[str, Tensor], labels: Labels, expected: float, mass: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of a batch; the student's log-probabilities over its labels (B, K), -inf for those that are not
    there; and its log label mass (B,)."""
    asked, target = batch["asked"], batch["target"]
    device = logits.device
    ids, there, worth = (part.to(device)[asked] for part in (labels.ids, labels.there, labels.worth))
    spelled = logits.log_softmax(-1).gather(1, ids.flatten(1)).view(ids.shape)
    each = spelled.masked_fill(~there, -torch.inf).logsumexp(-1)
    belief = each.logsumexp(-1)
    student = each - belief[:, None]
    # 0 log 0 is 0; of a label that is not there both are.
    kl = torch.where(target > 0, target * (target.clamp(min=1e-30).log() - student), 0.0).sum(-1)
    counts = ~worth.isnan()
    value = worth.nan_to_num()

    def mean(likely: Tensor) -> Tensor:
        judged = torch.where(counts, likely, 0.0)
        return (judged * value).sum(-1) / judged.sum(-1).clamp(min=1e-9)

    valued = counts.any(-1) & (torch.where(counts, target, 0.0).sum(-1) > 1e-6)
    apart = torch.where(valued, mean(student.exp()) - mean(target), 0.0) ** 2
    loss = (batch["weight"] * (kl + expected * apart - mass * belief)).mean()
    return loss, student, belief


class LabelTrainer(StudentTrainer):
    """Of labels. dev: mean kl, accuracy (the likeliest labels are the same), mass (its mean), loss."""

    def __init__(self, labels: Labels, *given: Any) -> None:
        self._labels = labels
        super().__init__(*given)

    def loss_of(self, logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        return label_loss(logits, batch, self._labels, self.how.expected, self.how.mass)[0]

    def told_of(self, logits: Tensor, batch: Mapping[str, Tensor]) -> tuple[dict[str, float], int]:
        loss, student, belief = label_loss(logits, batch, self._labels, self.how.expected, self.how.mass)
        target = batch["target"]
        kl = torch.where(target > 0, target * (target.clamp(min=1e-30).log() - student), 0.0).sum(-1)
        told = {
            "loss": loss.item() * len(target),
            "kl": kl.sum().item(),
            "accuracy": (student.argmax(-1) == target.argmax(-1)).sum().item(),
            "mass": belief.exp().sum().item(),
        }
        return told, len(target)


class ReasonTrainer(StudentTrainer):
    """Of reasons. dev: the mean loss of their tokens."""

    def loss_of(self, logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(logits, batch["next"])

    def told_of(self, logits: Tensor, batch: Mapping[str, Tensor]) -> tuple[dict[str, float], int]:
        loss = nn.functional.cross_entropy(logits, batch["next"], reduction="sum")
        return {"loss": loss.item()}, len(batch["next"])
