"""The loss of a batch and its gradients.

The head and the loss run over a few hundred slots at a time and go backward at once, into the gradient of the hidden
states; so their scores, by far the largest tensors, never exist for a whole batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from slimtier.drafters.eagle.heads.routed import RoutedHead
from slimtier.drafters.eagle.heads.trimmed import TrimmedHead
from slimtier.drafters.eagle.network import EagleNetwork
from slimtier.train.batches import Batch
from slimtier.train.candidates import Candidates, all_candidates, shared_candidates, slots_at_once
from slimtier.train.config import LossPart
from slimtier.train.losses import labels_of, losses_of
from slimtier.train.parallel import Ranks
from slimtier.train.unroll import StepOutput, unroll


@dataclass(frozen=True, slots=True)
class Unrolling:
    """How a batch is unrolled: draft steps, the weight's decay, the part of the slots that goes past the first."""

    steps: int
    decay: float
    share: float


@dataclass(frozen=True, slots=True)
class Report:
    """Of a batch, over all processes: the loss, and for each draft step its labels, mean acceptance probability and
    share of slots whose first choice is the target's."""

    loss: float
    labels: tuple[int, ...]
    acceptance: tuple[float, ...]
    top1: tuple[float, ...]


class Gradients:
    """Adds up the gradients of a network over batches."""

    def __init__(self, network: EagleNetwork, loss: LossPart, ranks: Ranks) -> None:
        self.network, self.loss, self.ranks = network, loss, ranks
        head = network.head
        ids = head.ids if isinstance(head, TrimmedHead) else None
        self._all = all_candidates(network.config.head.vocab_size, ids, network.embedding.device)

    def add(self, batch: Batch | None, how: Unrolling, seed: int) -> Report:
        """Forward and backward of this process's part of a batch (None: it has none); the sum of all processes'
        gradients is that of the whole batch's loss: the sum over draft steps of decay^k times the mean over labels."""
        candidates = self._candidates(batch, seed)
        outputs = [] if batch is None else unroll(self.network, batch, how.steps, share=how.share, seed=seed)
        counts = torch.zeros(how.steps, dtype=torch.float64)
        for step, output in enumerate(outputs):
            assert batch is not None
            counts[step] = int(self._all.known[batch.top_ids[output.labels, 0]].sum())
        counts = self.ranks.total(counts)
        sums = torch.zeros(how.steps, 3, dtype=torch.float64)  # loss, acceptance, top1
        slopes = []
        for step, output in enumerate(outputs):
            assert batch is not None
            weight = how.decay**step / max(1.0, float(counts[step]))
            slope, sums[step] = self._head(output, batch, candidates, weight)
            slopes.append(slope)
        torch.autograd.backward([output.hidden for output in outputs], slopes)
        self.ranks.sum_gradients(self.network.parameters())
        sums = self.ranks.total(sums) / counts.clamp(min=1)[:, None]
        decays = how.decay ** torch.arange(how.steps)
        seen = int((counts > 0).sum())
        return Report(
            loss=float((sums[:, 0] * decays).sum()),
            labels=tuple(int(count) for count in counts[:seen]),
            acceptance=tuple(sums[:seen, 1].tolist()),
            top1=tuple(sums[:seen, 2].tolist()),
        )

    @torch.no_grad()
    def loss_of(self, batch: Batch) -> float:
        """The mean loss of the first draft step over the whole vocabulary, without gradients."""
        (output,) = unroll(self.network, batch, 1)
        sums = torch.zeros(3, dtype=torch.float64)
        for rows, places in self._chunks(output.hidden, output.labels, self._all):
            sums += self._loss(rows, places, batch, self._all)[1]
        return float(sums[0]) / max(1, int(self._all.known[batch.top_ids[output.labels, 0]].sum()))

    def _candidates(self, batch: Batch | None, seed: int) -> Candidates:
        if not self.loss.candidates:
            return self._all
        top_ids = torch.zeros(0, 1, dtype=torch.int64) if batch is None else batch.top_ids
        return shared_candidates(self._all, top_ids, self.loss.candidates, seed, self.ranks.total)

    def _head(
        self, output: StepOutput, batch: Batch, candidates: Candidates, weight: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The gradient of a draft step's hidden states, and the sums [3] of loss, acceptance and top1."""
        hidden = output.hidden.detach().requires_grad_()
        sums = torch.zeros(3, dtype=torch.float64)
        for rows, places in self._chunks(hidden, output.labels, candidates):
            total, parts = self._loss(rows, places, batch, candidates)
            torch.autograd.backward(total * weight)
            sums += parts
        assert hidden.grad is not None
        return hidden.grad, sums

    def _chunks(
        self, hidden: torch.Tensor, labels: torch.Tensor, candidates: Candidates
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        width = len(candidates.known) if candidates.ids is None else len(candidates.ids)
        size = slots_at_once(width, hidden.device)
        return zip(torch.split(hidden, size), torch.split(labels, size), strict=True)

    def _loss(
        self, hidden: torch.Tensor, places: torch.Tensor, batch: Batch, candidates: Candidates
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum of the loss over slots with the labels `places`, and the sums [3] of loss, acceptance and top1."""
        head, part = self.network.head, self.loss
        labels = labels_of(batch.top_ids[places], batch.top_logprobs[places], candidates)
        scores: torch.Tensor = head.scores(hidden, candidates.ids)  # type: ignore[operator]
        losses = losses_of(scores.float(), labels, candidates, part.kind, part.eta)
        total = losses.loss.sum()
        if isinstance(head, RoutedHead):
            routed = head.router.scores(hidden, candidates.ids).float()
            total = total + part.router * losses_of(routed, labels, candidates, part.kind, part.eta).loss.sum()
        usable = labels.usable
        sums = (total.detach(), losses.acceptance[usable].sum(), losses.top1[usable].sum())
        return total, torch.stack([each.double().cpu() for each in sums])
