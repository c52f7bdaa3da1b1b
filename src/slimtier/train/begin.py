"""The network before its first step, and the target it is for."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from slimtier.drafters.eagle.load import DraftFiles
from slimtier.drafters.eagle.network import EagleNetwork
from slimtier.drafters.eagle.target_record import TargetRecord, vocabulary_hash
from slimtier.drafters.eagle.whole import whole_head
from slimtier.errors import ConfigError, VocabularyError
from slimtier.models.native import open_weights
from slimtier.models.resolve import resolve
from slimtier.models.tensors import ModelWeights
from slimtier.models.tokenizer import Tokenizer, load_tokenizer
from slimtier.train.batches import load
from slimtier.train.config import TrainConfig
from slimtier.train.fitting import first_rows, soften, state_moments
from slimtier.train.former import read_former, take_over
from slimtier.train.induction import has_room, start_induction
from slimtier.train.shards import CaptureInfo, RowPlace, Rows
from slimtier.train.tokens import always_kept, meant, token_counts, trimmed_ids
from slimtier.train.warm import (
    ScaledLinear,
    Statistics,
    as_drafted,
    eagle_config,
    read_embedding,
    read_head,
    smoothed,
    start_body,
    start_head,
    statistics_of,
)

_SOFTENING_LABELS, _MOMENT_LABELS = 512, 8192


@dataclass(frozen=True, slots=True)
class Target:
    """The model that a draft is trained for: its files, opened, and what the draft records of it."""

    weights: ModelWeights
    tokenizer: Tokenizer
    record: TargetRecord


def open_target(model: str, info: CaptureInfo) -> Target:
    """The model `model`, which must be the one that was captured: ConfigError or VocabularyError if it is not."""
    files = resolve(model)
    weights, tokenizer = open_weights(files), load_tokenizer(files)
    config = weights.config
    sizes = (config.vocab.size, config.hidden_size, config.num_layers)
    if sizes != (info.vocab_size, info.hidden_size, info.num_layers):
        raise ConfigError(
            f"the capture is of {info.model} (vocabulary {info.vocab_size}, hidden {info.hidden_size}, "
            f"{info.num_layers} layers), {model} has {sizes[0]}, {sizes[1]} and {sizes[2]}: name the captured model"
        )
    own = hashlib.sha256(tokenizer.backend.to_str().encode()).hexdigest()
    if info.tokenizer_sha256 not in (None, own):
        raise VocabularyError(f"{model} has another tokenizer than {info.model} had when captured: capture it again")
    template = None if tokenizer.chat_template is None else tokenizer.chat_template.encode()
    record = TargetRecord(
        name=Path(model).name if Path(model).is_absolute() else model,
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab.size,
        max_positions=config.max_positions,
        vocab_sha256=vocabulary_hash(tokenizer),
        chat_template_sha256=None if template is None else hashlib.sha256(template).hexdigest(),
    )
    return Target(weights, tokenizer, record)


def blank(target: Target, info: CaptureInfo, config: TrainConfig) -> EagleNetwork:
    """The network in its form but without its weights: what a state of a run is loaded into."""
    shape = eagle_config(target.weights, info, config.drafter)
    torch.manual_seed(config.optimisation.seed)
    network = EagleNetwork(shape, read_embedding(target.weights), target.weights.config.max_positions)
    if not (shape.norms.before_fc or shape.norms.fc):
        network.fc = ScaledLinear(network.fc, torch.ones(network.fc.in_features))
    return network


def begin(
    target: Target, capture: Rows, rows: Sequence[RowPlace], config: TrainConfig, start: Path | None
) -> EagleNetwork:
    """The network before its first step on `rows`, float32 on the CPU; `start`: a draft directory whose weights it
    takes over, all of them if its head is of the same form, else the body. Save `plain_state` of it."""
    network = blank(target, capture.info, config)
    statistics = statistics_of(capture)
    former = None if start is None else read_former(start, network.config, network.embedding)
    scaled, network.fc = network.fc, nn.Linear(network.fc.in_features, network.fc.out_features, bias=False)
    if former is not None and former.config.head == network.config.head:
        take_over(network, former, with_head=True)
    else:
        _solve(network, target, capture, rows, config, statistics, former)
    if isinstance(scaled, ScaledLinear):
        network.fc = ScaledLinear(network.fc, statistics.stream_scale)
    return network


def _solve(
    network: EagleNetwork,
    target: Target,
    capture: Rows,
    rows: Sequence[RowPlace],
    config: TrainConfig,
    statistics: Statistics,
    former: DraftFiles | None,
) -> None:
    """Set the head, and the body too where there is no former draft to take it from."""
    frequencies = meant(capture, rows)
    if former is None:
        start_body(network, config.init, target.weights, statistics, frequencies)
        head, moments = read_head(target.weights), as_drafted(statistics.yty / statistics.count)
    else:
        take_over(network, former, with_head=False)
        head = whole_head(former, read_head(target.weights))
        moments = state_moments(network, load(capture, first_rows(rows, _MOMENT_LABELS)))
    ids = _trimmed(target, capture, rows, config)
    start_head(network, config.init.head, head, moments, frequencies, ids)
    if former is None:
        _induce(network, capture, rows, frequencies, config)
    if config.init.head != "random":
        soften(network, load(capture, first_rows(rows, _SOFTENING_LABELS)), config.loss)


def _induce(
    network: EagleNetwork,
    capture: Rows,
    rows: Sequence[RowPlace],
    frequencies: torch.Tensor,
    config: TrainConfig,
) -> None:
    init = config.init
    if init.layer == "token" and init.head != "random" and init.induction_steps and has_room(network.config):
        seed = config.optimisation.seed
        start_induction(network, capture, rows, smoothed(frequencies), config.loss, init.induction_steps, seed)


def plain_state(network: EagleNetwork) -> dict[str, torch.Tensor]:
    """The state of an ordinary EagleNetwork that does the same."""
    state = network.state_dict()
    if isinstance(network.fc, ScaledLinear):
        state["fc.weight"] = network.fc.folded()
        del state["fc.scale"]
    return state


def _trimmed(target: Target, capture: Rows, rows: Sequence[RowPlace], config: TrainConfig) -> torch.Tensor | None:
    if config.drafter.head != "trimmed":
        return None
    counts = token_counts(capture, rows, config.drafter.trim_counts)
    return trimmed_ids(counts, config.drafter.size, always_kept(target.tokenizer, len(counts)))
