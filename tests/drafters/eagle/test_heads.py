"""A head's logits do not depend on how many states are asked about at once."""

from __future__ import annotations

import pytest
import torch

from tests.train.networks import network


@pytest.mark.parametrize("kind", ["full", "slim", "trimmed", "routed"])
def test_many_states_get_the_logits_of_each(kind: str) -> None:
    net = network(kind)
    hidden = torch.randn(8, net.config.hidden_size, generator=torch.Generator().manual_seed(1))
    together = net.head.logits(hidden)  # type: ignore[operator]
    each = torch.cat([net.head.logits(row) for row in hidden.split(1)])  # type: ignore[operator]
    torch.testing.assert_close(together, each, atol=1e-5, rtol=1e-5)
    if kind == "routed":
        assert (together > -torch.inf).sum(1).tolist() == [net.config.head.size] * 8
