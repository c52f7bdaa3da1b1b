"""Training-time test (EAGLE-3, section 3.2): the drafter run over several draft steps at once, teacher-forced.

At step k slot t reads token x_{t+1+k} and its own state of step k - 1, at rope position t + k; it sees the keys of the
first step up to t, and its own of steps 1 ... k. Its label is the target's distribution of x_{t+2+k}.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from slimtier.drafters.eagle.network import EagleNetwork, Layer
from slimtier.train.attention import Chain, Span, attend
from slimtier.train.batches import Batch, Segment


@dataclass(frozen=True, slots=True)
class StepOutput:
    """One draft step: hidden [M_k, hidden], what the head takes; slots [M_k] of the batch; labels [M_k]."""

    hidden: torch.Tensor
    slots: torch.Tensor
    labels: torch.Tensor


def unroll(network: EagleNetwork, batch: Batch, steps: int, *, share: float = 1.0, seed: int = 0) -> list[StepOutput]:
    """Up to `steps` draft steps (fewer when no slot has a label so far ahead). `share` of each run of slots, a window
    that `seed` and the row choose, goes past the first step."""
    network_steps = _Steps(network, batch)
    outputs = [network_steps.first()]
    windows = [_window(segment, row, share, seed) for segment, row in zip(batch.segments, batch.row_seeds, strict=True)]
    for step in range(1, steps):
        spans = _later_spans(batch.segments, windows, step)
        if not spans:
            break
        outputs.append(network_steps.later(step, spans))
    return outputs


def _window(segment: Segment, row: int, share: float, seed: int) -> tuple[int, int]:
    """The part of the segment's slots that goes on: `share` of it, at least one slot, anywhere."""
    count = segment.stop - segment.first
    size = min(count, max(1, round(share * count)))
    generator = torch.Generator().manual_seed((row ^ (seed * 0x9E3779B97F4A7C15)) & (2**63 - 1))
    begin = int(torch.randint(count - size + 1, (1,), generator=generator))
    return begin, begin + size


def _later_spans(segments: Sequence[Segment], windows: Sequence[tuple[int, int]], step: int) -> list[tuple[int, Span]]:
    """The slots of draft step `step`: their first in the batch, and their span among that step's queries."""
    spans: list[tuple[int, Span]] = []
    count = 0
    for segment, (begin, end) in zip(segments, windows, strict=True):
        end = min(end, segment.stop - segment.first - step)  # further on the answer is over
        if end > begin:
            span = Span(count, count + end - begin, segment.key_row, segment.key_first + begin)
            spans.append((segment.first + begin, span))
            count = span.stop
    return spans


class _Steps:
    """The draft steps of one batch; keys and values of each layer are kept from step to step."""

    def __init__(self, network: EagleNetwork, batch: Batch) -> None:
        self.network, self.batch = network, batch
        self.layers: list[Layer] = [layer for layer in network.layers if isinstance(layer, Layer)]
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self.chains: list[Chain | None] = [None] * len(self.layers)
        self.slots = torch.arange(len(batch.slots), device=batch.slots.device)  # those of the step before
        self.state = torch.empty(0)

    def first(self) -> StepOutput:
        """Step 0. A position without a label gives keys and values only: the last layer asks nothing else of it."""
        network, batch = self.network, self.batch
        out = network.fuse(batch.features.to(network.fc.weight.dtype))
        embedded = F.embedding(batch.text[batch.key_text], network.embedding)
        positions = batch.positions
        spans = [Span(start, stop, start, start) for start, stop in batch.rows]
        for layer in self.layers:
            inputs, residual = layer.inputs(embedded, out)
            keys, values = layer.keys_values(inputs)
            self.keys.append(network.rotate(keys, batch.positions))
            self.values.append(values)
            if layer is self.layers[-1]:
                inputs, residual, positions = inputs[batch.slots], residual[batch.slots], positions[batch.slots]
                spans = [Span(s.first, s.stop, s.key_row, s.key_first) for s in batch.segments]
            queries = network.rotate(layer.queries(inputs), positions)
            out = layer.finish(residual, attend(queries, self.keys[-1], self.values[-1], spans))
        return self._output(0, out)

    def later(self, step: int, chosen: Sequence[tuple[int, Span]]) -> StepOutput:
        """Draft step 1 or later, of the slots chosen: (the first of them in the batch, their span)."""
        network, batch = self.network, self.batch
        device = self.slots.device
        slots = torch.cat([torch.arange(first, first + s.stop - s.first, device=device) for first, s in chosen])
        kept = torch.searchsorted(self.slots, slots)  # both ascend, and a slot of this step was one of the last
        self.slots = slots
        keys_of = batch.slots[slots]
        embedded = F.embedding(batch.text[batch.key_text[keys_of] + step], network.embedding)
        out, positions = self.state[kept], batch.positions[keys_of] + step
        spans = [span for _, span in chosen]
        for index, layer in enumerate(self.layers):
            inputs, residual = layer.inputs(embedded, out)
            keys, values = layer.keys_values(inputs)
            chain = _extended(self.chains[index], kept, network.rotate(keys, positions), values)
            self.chains[index] = chain
            queries = network.rotate(layer.queries(inputs), positions)
            out = layer.finish(residual, attend(queries, self.keys[index], self.values[index], spans, chain))
        return self._output(step, out)

    def _output(self, step: int, out: torch.Tensor) -> StepOutput:
        hidden = self.network.norm(out)
        self.state = hidden if self.network.config.norms.output else out
        return StepOutput(hidden, self.slots, self.batch.first_label[self.slots] + step)


def _extended(chain: Chain | None, kept: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Chain:
    """The chain of the slots that are kept, with this step's keys and values [M, kv_heads, dim] at its end."""
    if chain is None:
        return Chain(keys[:, None], values[:, None])
    return Chain(
        torch.cat((chain.keys[kept], keys[:, None]), dim=1), torch.cat((chain.values[kept], values[:, None]), dim=1)
    )
