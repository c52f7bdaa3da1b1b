"""The network before its first step, and the target it is for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import torch

from slimtier.drafters.eagle.config import EagleConfig
from slimtier.drafters.eagle.load import DraftFiles, read_draft
from slimtier.drafters.eagle.network import EagleNetwork
from slimtier.drafters.eagle.target_record import TargetRecord, vocabulary_hash
from slimtier.errors import ConfigError, VocabularyError
from slimtier.models.native import open_weights
from slimtier.models.resolve import resolve
from slimtier.models.tensors import ModelWeights
from slimtier.models.tokenizer import Tokenizer, load_tokenizer
from slimtier.train.batches import Batch, load
from slimtier.train.config import LossPart, TrainConfig
from slimtier.train.gradients import Gradients
from slimtier.train.parallel import Ranks
from slimtier.train.shards import Capture, CaptureInfo, RowPlace
from slimtier.train.tokens import always_kept, meant, token_counts, trimmed_ids
from slimtier.train.warm import ScaledLinear, eagle_config, read_ends, read_statistics, start_body, start_head

_SOFTENING_LABELS = 512
_SCALES = tuple(1.2**power for power in range(-8, 2))


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


def begin(
    target: Target, capture: Capture, rows: Sequence[RowPlace], config: TrainConfig, start: Path | None
) -> EagleNetwork:
    """The network to train on `rows`, float32 on the CPU; `start`: a draft directory whose weights it takes over, all
    of them if its head is of the same form, else the body. Its fc is a ScaledLinear: save `plain_state` of it."""
    ends = read_ends(target.weights)
    shape = eagle_config(target.weights, capture.info, config.drafter)
    torch.manual_seed(config.optimisation.seed)
    network = EagleNetwork(shape, ends.embedding, target.weights.config.max_positions)
    former = None if start is None else _former(start, shape)
    statistics = read_statistics(capture.directory)
    frequencies = meant(capture, rows)
    if former is None:
        start_body(network, config.init, target.weights, statistics, frequencies)
    if former is None or former.config.head != shape.head:
        ids = _trimmed(target, capture, rows, config)
        start_head(network, config.init.head, ends.head, statistics, frequencies, ids)
    if former is not None:
        network.load_state_dict(_taken_over(former, shape), strict=False)
    elif config.init.head != "random":
        soften(network, load(capture, _some(rows)), config.loss)
    if not (shape.norms.before_fc or shape.norms.fc):
        network.fc = ScaledLinear(network.fc, statistics.stream_scale)
    return network


def _some(rows: Sequence[RowPlace]) -> list[RowPlace]:
    """The first rows that have so many labels together."""
    before = accumulate((row.labels for row in rows), initial=0)
    return [row for row, labels in zip(rows, before, strict=False) if labels < _SOFTENING_LABELS]


def soften(network: EagleNetwork, batch: Batch, loss: LossPart) -> None:
    """Scale the last norm so that the loss of the first draft step is least: what was solved points in the right
    direction, but a norm makes each state as long as the target's, however unsure it is."""
    gradients = Gradients(network, replace(loss, candidates=0), Ranks())
    with torch.no_grad():
        whole = network.norm.weight.clone()
        found = []
        for scale in _SCALES:
            network.norm.weight.copy_(whole * scale)
            found.append((gradients.loss_of(batch), scale))
        network.norm.weight.copy_(whole * min(found)[1])


def plain_state(network: EagleNetwork) -> dict[str, torch.Tensor]:
    """The state of an ordinary EagleNetwork that does the same."""
    state = network.state_dict()
    if isinstance(network.fc, ScaledLinear):
        state["fc.weight"] = network.fc.folded()
        del state["fc.scale"]
    return state


def _trimmed(target: Target, capture: Capture, rows: Sequence[RowPlace], config: TrainConfig) -> torch.Tensor | None:
    if config.drafter.head != "trimmed":
        return None
    counts = token_counts(capture, rows, config.drafter.trim_counts)
    return trimmed_ids(counts, config.drafter.size, always_kept(target.tokenizer, len(counts)))


def _former(path: Path, shape: EagleConfig) -> DraftFiles:
    """The draft to go on from; ConfigError unless its body is of the form that is trained."""
    files = read_draft(path)
    for name in ("hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "capture",
                 "norms", "rope", "norm_eps"):  # fmt: skip
        theirs, mine = getattr(files.config, name), getattr(shape, name)
        if theirs != mine:
            raise ConfigError(f"{path} has {name} {theirs}, the drafter to train {mine}: set [drafter] to what it has")
    if files.head_source != "file":
        raise ConfigError(f"{path} borrows its head from the target: start from a draft with a head of its own")
    return files


def _taken_over(files: DraftFiles, shape: EagleConfig) -> Mapping[str, torch.Tensor]:
    whole = files.config.head == shape.head
    names = [name for name in files.tensors if name != "embedding" and (whole or not name.startswith("head."))]
    state = {name: torch.from_numpy(files.tensors[name].dense()) for name in names}
    if whole and files.ids is not None:
        state["head.ids"] = torch.from_numpy(files.ids)
    return state
