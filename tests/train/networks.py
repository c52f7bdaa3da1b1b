"""Small random drafters and a batch for them."""

from __future__ import annotations

from pathlib import Path

import torch

from slimtier.drafters.eagle.config import EagleConfig, HeadConfig, NormConfig
from slimtier.drafters.eagle.heads.trimmed import TrimmedHead
from slimtier.drafters.eagle.network import EagleNetwork
from slimtier.models.config import RopeConfig
from slimtier.train.batches import Batch, load
from slimtier.train.shards import open_capture
from tests.train.captures import HEADS, HIDDEN, KV_HEADS, STREAMS, VOCAB, WIDE

PLAIN = NormConfig()
HEAD_CONFIGS = {
    "full": HeadConfig("full", VOCAB),
    "slim": HeadConfig("slim", VOCAB, rank=4),
    "trimmed": HeadConfig("trimmed", VOCAB, size=40),
    "routed": HeadConfig("routed", VOCAB, rank=4, size=16),
}


def network(head: str = "slim", layers: int = 1, norms: NormConfig = PLAIN) -> EagleNetwork:
    """Wide weights, so that nothing is near zero."""
    torch.manual_seed(3)
    config = EagleConfig(
        hidden_size=HIDDEN,
        intermediate_size=WIDE,
        num_layers=layers,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HIDDEN // HEADS,
        target_hidden_size=HIDDEN,
        capture=tuple(range(STREAMS)),
        norm_eps=1e-5,
        rope=RopeConfig(),
        head=HEAD_CONFIGS[head],
        norms=norms,
    )
    made = EagleNetwork(config, torch.randn(VOCAB, HIDDEN), 128)
    for weight in made.parameters():
        if weight.dim() == 2:
            torch.nn.init.normal_(weight, std=0.3)
        else:
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    if isinstance(made.head, TrimmedHead):
        made.head.ids.copy_(torch.randperm(VOCAB)[:40].sort().values)
    return made


def whole_batch(capture: Path) -> Batch:
    """All rows of a capture directory."""
    opened = open_capture(capture)
    return load(opened, opened.rows)
