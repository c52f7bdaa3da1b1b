"""A trained draft that another run goes on from: its body as it is or with layers added, its head as it is or turned
into another kind."""

from __future__ import annotations

from pathlib import Path

import torch

from slimtier.drafters.eagle.config import EagleConfig
from slimtier.drafters.eagle.load import DraftFiles, read_draft
from slimtier.drafters.eagle.network import EagleNetwork, Layer
from slimtier.errors import ConfigError
from slimtier.train.warm import random_layer

_BODY = (
    "hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim", "target_hidden_size", "capture",
    "norms", "rope", "norm_eps",
)  # fmt: skip


def read_former(path: Path, shape: EagleConfig, embedding: torch.Tensor) -> DraftFiles:
    """The draft in the directory `path`; ConfigError unless its body has the form that is trained, and reads the
    target's embedding [vocab, hidden]."""
    files = read_draft(path)
    for name in _BODY:
        theirs, mine = getattr(files.config, name), getattr(shape, name)
        if theirs != mine:
            raise ConfigError(f"{path} has {name} {theirs}, the drafter to train {mine}: set [drafter] to what it has")
    if files.config.num_layers > shape.num_layers:
        raise ConfigError(
            f"{path} has {files.config.num_layers} layers, the drafter to train {shape.num_layers}: layers can be "
            f"added, not left out; set drafter.layers = {files.config.num_layers}"
        )
    if files.head_source != "file":
        raise ConfigError(f"{path} borrows its head from the target: start from a draft with a head of its own")
    own = files.tensors.get("embedding")
    if own is not None and not torch.equal(torch.from_numpy(own.dense()), embedding):
        raise ConfigError(f"{path} has an embedding that is not its target's: start from a draft without one")
    return files


def take_over(network: EagleNetwork, files: DraftFiles, *, with_head: bool) -> None:
    """Give the network the draft's weights; a layer that the draft has not changes nothing yet."""
    for layer in list(network.layers)[files.config.num_layers :]:
        assert isinstance(layer, Layer)
        random_layer(layer)
    names = [name for name in files.tensors if name != "embedding" and (with_head or not name.startswith("head."))]
    state = {name: torch.from_numpy(files.tensors[name].dense()) for name in names}
    if with_head and files.ids is not None:
        state["head.ids"] = torch.from_numpy(files.ids)
    network.load_state_dict(state, strict=False)
