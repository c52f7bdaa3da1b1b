"""How good a draft is on held-out rows: over the full vocabulary, teacher-forced, without gradients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from slimtier.drafters.eagle.network import EagleNetwork
from slimtier.train.autocast import autocast
from slimtier.train.batches import Batch
from slimtier.train.candidates import slots_at_once
from slimtier.train.unroll import StepOutput, unroll


@dataclass(frozen=True, slots=True)
class Validation:
    """For each draft step: labels, top-1 agreement with the target's argmax, and mean acceptance probability
    sum min(target_probs, draft_probs) over the target's kept tokens and one bucket for the rest.

    acceptance_length: 1 + sum over k of the share of slots whose steps 1 ... k all agree, over the slots that have a
    label at every step: what chains of that many tokens would yield at temperature 0, if the text that follows were
    the one that was captured. sampled_length: the same from the products of acceptance probabilities.

    ceiling: of what the target's kept tokens have of its probability, the share of those that the head can propose, at
    the first step: no head over these tokens is accepted more often. 1 for a head that has all; a routed one can
    propose what it picked."""

    labels: tuple[int, ...]
    top1: tuple[float, ...]
    acceptance: tuple[float, ...]
    acceptance_length: float
    sampled_length: float
    ceiling: float


@dataclass(slots=True)
class _Sums:
    labels: torch.Tensor
    top1: torch.Tensor
    acceptance: torch.Tensor
    chains: int = 0
    agreed: float = 0.0
    sampled: float = 0.0
    covered: float = 0.0


@torch.no_grad()
def validate(network: EagleNetwork, batches: Iterable[Batch], steps: int, *, bf16: bool = False) -> Validation:
    """Validate over `steps` draft steps; every slot goes on as long as its answer does. `bf16`: as in training. What
    makes the batches runs without autocast, which cannot join float16 on a CPU."""
    zeros = torch.zeros(steps, dtype=torch.float64)
    sums = _Sums(zeros.clone(), zeros.clone(), zeros.clone())
    for batch in batches:
        count = len(batch.slots)
        agreed = torch.zeros(count, steps, dtype=torch.float64)
        accepted = torch.zeros(count, steps, dtype=torch.float64)
        with autocast(batch.slots.device, bf16):
            outputs = unroll(network, batch, steps)
            compared = [_compare(network, output, batch) for output in outputs]
        sums.covered += float(compared[0][2].sum())
        for step, (output, (top1, acceptance, _)) in enumerate(zip(outputs, compared, strict=True)):
            sums.labels[step] += len(top1)
            sums.top1[step] += top1.sum()
            sums.acceptance[step] += acceptance.sum()
            slots = output.slots.cpu()
            agreed[slots, step], accepted[slots, step] = top1, acceptance
        whole = (batch.num_labels >= steps).cpu()
        sums.chains += int(whole.sum())
        sums.agreed += float(agreed[whole].cumprod(1).sum())
        sums.sampled += float(accepted[whole].cumprod(1).sum())
    counts = sums.labels.clamp(min=1)
    chains = max(1, sums.chains)
    return Validation(
        labels=tuple(int(count) for count in sums.labels),
        top1=tuple((sums.top1 / counts).tolist()),
        acceptance=tuple((sums.acceptance / counts).tolist()),
        acceptance_length=1 + sums.agreed / chains,
        sampled_length=1 + sums.sampled / chains,
        ceiling=sums.covered / float(counts[0]),
    )


def _compare(
    network: EagleNetwork, output: StepOutput, batch: Batch
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of the slots of a draft step: agreement, acceptance probability and what the head can propose of the target's
    probability, float64 [M] each, on the CPU."""
    head = network.head
    size = slots_at_once(network.config.head.vocab_size, output.hidden.device)
    top1, acceptance, covered = [], [], []
    for hidden, places in zip(torch.split(output.hidden, size), torch.split(output.labels, size), strict=True):
        logits: torch.Tensor = head.logits(hidden)  # type: ignore[operator]
        ids, target_probs = batch.top_ids[places], batch.top_logprobs[places].exp()
        logits = logits.float()
        normaliser = logits.logsumexp(1, keepdim=True)
        picked = logits.gather(1, ids)
        draft_probs = (picked - normaliser).exp()
        rests = [(1 - probs.sum(1)).clamp(min=0) for probs in (target_probs, draft_probs)]
        acceptance.append(torch.minimum(target_probs, draft_probs).sum(1) + torch.minimum(*rests))
        top1.append(logits.argmax(1) == ids[:, 0])
        covered.append((target_probs * (picked > -torch.inf)).sum(1) / target_probs.sum(1))
    return _joined(top1), _joined(acceptance), _joined(covered)


def _joined(values: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat(values).double().cpu()
