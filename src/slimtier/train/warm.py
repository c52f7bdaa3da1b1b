"""Where a draft's weights start, before any step of training: solved from what was captured, copied from the target,
or random."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from slimtier.drafters.eagle.config import EagleConfig, HeadConfig, NormConfig
from slimtier.drafters.eagle.heads.full import FullHead
from slimtier.drafters.eagle.heads.routed import RoutedHead
from slimtier.drafters.eagle.heads.slim import SlimHead
from slimtier.drafters.eagle.heads.trimmed import TrimmedHead
from slimtier.drafters.eagle.network import EagleNetwork, Layer
from slimtier.errors import ConfigError, ModelFileError
from slimtier.models.tensors import ModelWeights
from slimtier.train.config import DrafterPart, InitPart
from slimtier.train.own_token import start_own_token
from slimtier.train.shards import STATISTICS, CaptureInfo, Rows

_STD = 0.02
_NARROWING = 8  # hidden / rank of a slim head
_SMOOTHING = 0.1  # of token frequencies
_ERROR = 0.1  # variance of a draft's error, of that of y


@dataclass(frozen=True, slots=True)
class Statistics:
    """Normal equations of the capture: x = [embedding(x_{t+1}); streams of t], y = the target's final hidden state of
    t + 1. xtx [D, D], xty [D, hidden], yty [hidden, hidden] float64, sums over `count` positions."""

    xtx: torch.Tensor
    xty: torch.Tensor
    yty: torch.Tensor
    count: int

    @property
    def stream_scale(self) -> torch.Tensor:
        """[streams · hidden] the root mean square of each element of the streams."""
        return (self.xtx.diagonal()[len(self.yty) :] / self.count).sqrt().float()

    @property
    def token_scale(self) -> torch.Tensor:
        """[hidden] the root mean square of each element of the embedding."""
        return (self.xtx.diagonal()[: len(self.yty)] / self.count).sqrt().float()

    @property
    def state_scale(self) -> torch.Tensor:
        """[hidden] the root mean square of each element of y."""
        return (self.yty.diagonal() / self.count).sqrt().float()


class ScaledLinear(nn.Linear):
    """x -> weight · (x · scale), scale [in] fixed: a layer of which each input counts alike, so that one step of the
    optimiser means as much for each. Residual streams have a few elements that are hundreds of times the others."""

    scale: torch.Tensor

    def __init__(self, layer: nn.Linear, sizes: torch.Tensor) -> None:
        """The same map as `layer`, for inputs of root mean square `sizes` [in]."""
        super().__init__(layer.in_features, layer.out_features, bias=False)
        self.register_buffer("scale", 1 / sizes.clamp(min=1e-6))
        with torch.no_grad():
            self.weight.copy_(layer.weight / self.scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x * self.scale)

    def folded(self) -> torch.Tensor:
        """The weight [out, in] of the plain layer that does the same."""
        return self.weight.detach() * self.scale


def statistics_of(rows: Rows) -> Statistics:
    """Raises ModelFileError when they are not there, or not numbers."""
    sums = rows.sums()
    try:
        statistics = Statistics(sums["xtx"], sums["xty"], sums["yty"], int(sums["count"]))
    except KeyError as error:
        raise ModelFileError(f"the capture's {STATISTICS} has no {error}: capture again") from error
    if statistics.count < 1 or not bool(statistics.yty.isfinite().all() and statistics.xtx.isfinite().all()):
        raise ModelFileError(f"the capture's {STATISTICS} has no usable sums: capture again")
    return statistics


def read_embedding(target: ModelWeights) -> torch.Tensor:
    """The target's embedding [vocab, hidden], float32, as it enters the first layer."""
    embedding = torch.from_numpy(target.tensors["model.embed_tokens.weight"].dense())
    return embedding * target.config.vocab.embedding_scale


def read_head(target: ModelWeights) -> torch.Tensor:
    """The target's head [vocab, hidden], float32."""
    name = "model.embed_tokens.weight" if target.config.vocab.tied else "lm_head.weight"
    return torch.from_numpy(target.tensors[name].dense())


def eagle_config(target: ModelWeights, info: CaptureInfo, part: DrafterPart) -> EagleConfig:
    """The drafter that the config asks for, in the target's dimensions."""
    model = target.config
    attention, hidden = model.attention, model.hidden_size
    rank = (part.rank or max(1, hidden // _NARROWING)) if part.head in ("slim", "routed") else 0
    size = part.size if part.head in ("trimmed", "routed") else 0
    if size > model.vocab.size or rank > hidden:
        raise ConfigError(f"a head of {size} rows and rank {rank} is more than the model's own: give less")
    return EagleConfig(
        hidden_size=hidden,
        intermediate_size=part.intermediate_size or model.intermediate_size,
        num_layers=part.layers,
        num_heads=attention.num_heads,
        num_kv_heads=attention.num_kv_heads,
        head_dim=attention.head_dim,
        target_hidden_size=info.hidden_size,
        capture=info.layers,
        norm_eps=model.norm_eps,
        rope=model.rope,
        head=HeadConfig(part.head, model.vocab.size, rank, size),
        norms=NormConfig(part.norm_before_residual, part.norm_before_fc, part.fc_norm, part.norm_output),
    )


def start_body(
    network: EagleNetwork, init: InitPart, target: ModelWeights, statistics: Statistics, frequencies: torch.Tensor
) -> None:
    """Set fc, layers and the last norm; frequencies [vocab]: how often each token comes. The branches of a random
    layer start silent, so that what was solved for fc is what the head sees first."""
    with torch.no_grad():
        for layer in network.layers:
            assert isinstance(layer, Layer)
            random_layer(layer)
        nn.init.normal_(network.fc.weight, std=network.fc.in_features**-0.5)
        network.fc.weight.div_(statistics.stream_scale.clamp(min=1e-6))
        if init.layer.isdecimal():
            _copy_layer(network, target, int(init.layer))
        # the residual stream carries y with each element at its own scale, so that all of them are about 1
        scale = statistics.state_scale.clamp(min=1e-6)
        network.norm.weight.copy_(scale)
        if init.layer == "token":
            _pass_token(network, statistics, init.ridge, frequencies)
        elif init.fc == "ridge":
            network.fc.weight.copy_(ridge(statistics, init.ridge, with_token=False) / scale[:, None])


def _pass_token(network: EagleNetwork, statistics: Statistics, penalty: float, frequencies: torch.Tensor) -> None:
    """fc and the first layer from one regression: on the streams and the embedding."""
    hidden = network.config.hidden_size
    solved = ridge(statistics, penalty, with_token=True) / statistics.state_scale.clamp(min=1e-6)[:, None]
    network.fc.weight.copy_(solved[:, hidden:])
    length = statistics.token_scale.square().mean().sqrt()  # the layer reads the embedding normed
    layer = network.layers[0]
    assert isinstance(layer, Layer)
    start_own_token(layer, network.embedding, smoothed(frequencies), solved[:, :hidden] * length)


def smoothed(frequencies: torch.Tensor) -> torch.Tensor:
    """[vocab] float64, sum 1, none of them 0."""
    return _SMOOTHING / len(frequencies) + (1 - _SMOOTHING) * frequencies.double() / frequencies.sum()


def random_layer(layer: Layer) -> None:
    """Random weights, but for the branches' last ones: a layer that changes nothing yet."""
    for name, weight in layer.named_parameters():
        if weight.dim() == 2:
            silent = name.startswith(("o_proj", "down_proj"))
            nn.init.zeros_(weight) if silent else nn.init.normal_(weight, std=_STD)
        else:
            nn.init.ones_(weight)


def ridge(statistics: Statistics, penalty: float, *, with_token: bool) -> torch.Tensor:
    """[hidden, D]: the linear map from a position's streams (with_token: from the next token's embedding and them) to
    the target's next final state with the least squared error; `penalty` is relative to the diagonal, of which a few
    elements are hundreds of times the others."""
    skipped = 0 if with_token else len(statistics.yty)
    gram = statistics.xtx[skipped:, skipped:]
    gram = gram + torch.diag(gram.diagonal() * penalty)
    solved: torch.Tensor = torch.linalg.solve(gram, statistics.xty[skipped:])
    return solved.T.float()


def _copy_layer(network: EagleNetwork, target: ModelWeights, index: int) -> None:
    """Take the first layer from layer `index` of the target; the embedding's half of its inputs starts at 0."""
    config, attention = target.config, target.config.attention
    if not 0 <= index < config.num_layers:
        raise ConfigError(f"init.layer is {index}: the target's layers are 0 to {config.num_layers - 1}")
    if attention.qkv_bias or attention.qk_norm or config.post_norms or config.activation != "silu":
        raise ConfigError(
            f"a layer of {config.architecture} has parts that the drafter has not: set init.layer to random"
        )
    layer = network.layers[0]
    assert isinstance(layer, Layer)
    if network.config.intermediate_size != config.intermediate_size:
        raise ConfigError("init.layer needs the target's intermediate size: set drafter.intermediate_size to 0")

    def read(name: str) -> torch.Tensor:
        return torch.from_numpy(target.tensors[f"model.layers.{index}.{name}.weight"].dense())

    for name, factor in (("q_proj", attention.scale * attention.head_dim**0.5), ("k_proj", 1.0), ("v_proj", 1.0)):
        weight = getattr(layer, name).weight
        weight[:, : config.hidden_size] = 0.0
        weight[:, config.hidden_size :] = read(f"self_attn.{name}") * factor
    layer.o_proj.weight.copy_(read("self_attn.o_proj"))
    for name in ("gate_proj", "up_proj", "down_proj"):
        getattr(layer, name).weight.copy_(read(f"mlp.{name}"))
    layer.hidden_norm.weight.copy_(read("input_layernorm"))
    layer.post_attention_layernorm.weight.copy_(read("post_attention_layernorm"))


def start_head(
    network: EagleNetwork,
    kind: str,
    head: torch.Tensor,
    moments: torch.Tensor,
    frequencies: torch.Tensor,
    ids: torch.Tensor | None,
) -> None:
    """Set the head from another, `head` [vocab, hidden] (kind random: not at all). Second moments [hidden, hidden] of
    what it will take and frequencies [vocab], how often the target means each token, weigh an activation-svd; `ids`:
    a trimmed head's."""
    own = network.head
    if isinstance(own, TrimmedHead):
        assert ids is not None
        own.ids.copy_(ids)
        head = head[ids]
    if kind == "random":
        return
    with torch.no_grad():
        if isinstance(own, (FullHead, TrimmedHead, RoutedHead)):
            own.weight.copy_(head)
        slim = own.router if isinstance(own, RoutedHead) else own
        if isinstance(slim, SlimHead):
            weighted = kind == "activation-svd"
            down, up = low_rank(head, len(slim.down), *((moments, frequencies) if weighted else (None, None)))
            slim.down.copy_(down)
            slim.up.copy_(up)


def as_drafted(moments: torch.Tensor) -> torch.Tensor:
    """Second moments of y and some error, as a draft's states have it: without it directions in which y hardly varies
    would be read with great gain."""
    return moments + torch.diag(moments.diagonal() * _ERROR)


def low_rank(
    head: torch.Tensor, rank: int, moments: torch.Tensor | None, frequencies: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """down [rank, hidden] and up [vocab, rank] with the least squared error of up · down · y against head · y: over
    states y of second moments `moments` [hidden, hidden], each token's error weighed by its frequency [vocab] (None:
    all directions, all tokens alike). What the logits of a state have in common is left out, a softmax does not see
    it. down · y has mean square 1."""
    hidden = head.shape[1]
    if moments is None:
        moments = torch.eye(hidden, dtype=torch.float64)
    weights = smoothed(torch.ones(len(head)) if frequencies is None else frequencies)
    rows = head.double()
    rows = rows - weights @ rows
    values, vectors = torch.linalg.eigh(moments)
    values = values.clamp(min=float(values.max()) * 1e-9)
    root = vectors * values.sqrt() @ vectors.T
    inverse = vectors / values.sqrt() @ vectors.T
    _, axes = torch.linalg.eigh(root @ (rows.T * weights @ rows) @ root)
    axes = axes[:, -rank:].flip(1)
    return (axes.T @ inverse).float(), (rows @ (root @ axes)).float()
