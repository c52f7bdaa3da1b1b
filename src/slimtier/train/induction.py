"""A first layer whose second key-value head is an induction head (Olsson et al. 2022): it finds where the text so far
went on from the same words, and copies what came then.

Position t holds the token x_{t+1}, and its feature what the target knows having read up to x_t. So one layer is enough
here: a query made of x_{t+1} meets a key made of the feature of a position j with x_j = x_{t+1}, and what is to be
copied is that position's own token x_{j+1}. First such queries and keys are solved for, then a few hundred steps teach
them to tell by all that the features know which of the matches to point at, or none (`pointer.py`).

Much of what a model writes it has written before, so this is worth as much as all that regression finds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from slimtier.drafters.eagle.config import EagleConfig
from slimtier.drafters.eagle.heads.slim import SlimHead
from slimtier.drafters.eagle.heads.trimmed import TrimmedHead
from slimtier.drafters.eagle.network import EagleNetwork, Layer
from slimtier.train.batches import Batch, load
from slimtier.train.config import LossPart
from slimtier.train.fitting import first_rows, loss_of
from slimtier.train.own_token import direction_of_ones, halves
from slimtier.train.pointer import fit_pointer
from slimtier.train.shards import RowPlace, Rows

_REACH = 600.0  # over so many positions a pair of dimensions must not turn by more than 1 radian
_MATCH = 10.0  # score of a match, about
_NOTHING = 0.55  # score of the first position, where a query goes that matches nothing, in those of a match
_PENALTY = 1e-2
_SPREAD_PENALTY = 0.1
_LEAST_RAISE = 1e-3
_GAINS = (0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0)  # what a copied token's score rises by
_SOLVED_LABELS, _TRIED_LABELS = 8192, 1024


def has_room(config: EagleConfig) -> bool:
    """Whether the layer has a second key-value head."""
    return config.num_kv_heads > 1


def start_induction(
    network: EagleNetwork,
    capture: Rows,
    rows: Sequence[RowPlace],
    frequencies: torch.Tensor,
    loss: LossPart,
    steps: int,
    seed: int,
) -> None:
    """Set the layer's second key-value head, and the query heads that share it. frequencies [vocab], sum 1: how often
    each token comes; `steps` of fitting on `rows`. fc, the norms and the head must be set before."""
    layer = network.layers[0]
    assert isinstance(layer, Layer)
    solved = load(capture, first_rows(rows, _SOLVED_LABELS))
    _solve_match(network, layer, solved)
    fit_pointer(network, capture, rows, steps, seed)
    opening = solved.text[solved.key_text[[begin for begin, _ in solved.rows]]]
    written = _solve_copy(network, layer, frequencies, opening)
    tried = load(capture, first_rows(rows, _TRIED_LABELS))
    columns = _of_second(layer.config)
    with torch.no_grad():
        found = []
        for gain in _GAINS:
            layer.o_proj.weight[:, columns] = written * gain
            found.append((loss_of(network, tried, loss), gain))
        layer.o_proj.weight[:, columns] = written * min(found)[1]


def _of_second(config: EagleConfig) -> slice:
    """The rows of q_proj, the columns of o_proj."""
    size = config.num_heads // config.num_kv_heads * config.head_dim
    return slice(size, 2 * size)


@torch.no_grad()
def _solve_match(network: EagleNetwork, layer: Layer, batch: Batch) -> None:
    """Queries and keys from the canonical correlation of a token's embedding with the feature of its position, in the
    dimensions that hardly turn; one more pair of dimensions scores the first position for every query."""
    config = layer.config
    hidden, dim, group = config.hidden_size, config.head_dim, config.num_heads // config.num_kv_heads
    features = layer.hidden_norm(network.fuse(batch.features.float())).double()
    inner = batch.positions > 0
    tokens = batch.text[batch.key_text - 1]
    embedded = F.rms_norm(network.embedding[tokens], (hidden,), eps=config.norm_eps).double()
    pairs = slow_pairs(network)
    asked, told = _canonical(embedded[inner], features[inner], tokens[inner], 2 * len(pairs) - 2)
    one = direction_of_ones(embedded, torch.full((len(embedded),), 1 / len(embedded)))
    first = direction_of_ones(features, torch.where(inner, 0.0, 1 / (~inner).sum()), features[inner])
    unit = math.sqrt(math.sqrt(dim))  # attention divides by sqrt(dim)
    matched = torch.tensor([*pairs[:-1], *(pair + dim // 2 for pair in pairs[:-1])])
    query, key = (torch.zeros(dim, 2 * hidden, dtype=torch.float64) for _ in range(2))
    query[matched, :hidden], key[matched, hidden:] = asked * unit, told * unit
    query[pairs[-1], :hidden] = one * unit * _NOTHING * _MATCH
    key[pairs[-1], hidden:] = first * unit
    layer.q_proj.weight[_of_second(config)] = query.repeat(group, 1).float()
    layer.k_proj.weight[dim : 2 * dim] = key.float()


def slow_pairs(network: EagleNetwork) -> list[int]:
    """The pairs of dimensions (i, i + dim / 2) that positions turn least, at least four."""
    half = network.config.head_dim // 2
    turned = torch.atan2(network.sin[1, :half], network.cos[1, :half]).abs()
    slow = int((turned * _REACH < 1.0).sum())
    return sorted(turned.argsort()[: max(4, slow)].tolist())


def _canonical(
    left: torch.Tensor, right: torch.Tensor, tokens: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Maps [count, hidden] of left and right [N, hidden] whose outputs correlate most, scaled so that their product is
    about _MATCH where both are of one token. Each of `tokens` [N] weighs as the root of how often it comes, since what
    is worth copying is not what is frequent. The means are taken out without a bias."""
    weights = torch.bincount(tokens)[tokens].double().rsqrt()
    weights /= weights.sum()
    means = [weights @ x for x in (left, right)]
    centred = [x - mean for x, mean in zip((left, right), means, strict=True)]
    roots = [_inverse_root(x.T * weights @ x) for x in centred]
    mixed = roots[0] @ (centred[0].T * weights @ centred[1]) @ roots[1]
    u, sizes, v = torch.linalg.svd(mixed)
    scale = math.sqrt(_MATCH / float(sizes[:count].square().sum()))
    maps = (u[:, :count].T @ roots[0], v[:count] @ roots[1])
    asked, told = (
        (one - torch.outer(one @ mean, direction_of_ones(x, weights))) * scale
        for one, mean, x in zip(maps, means, (left, right), strict=True)
    )
    return asked, told


def _inverse_root(moments: torch.Tensor) -> torch.Tensor:
    values, vectors = torch.linalg.eigh(moments + torch.diag(moments.diagonal() * _PENALTY))
    root: torch.Tensor = vectors / values.clamp(min=float(values.max()) * 1e-9).sqrt() @ vectors.T
    return root


@torch.no_grad()
def _solve_copy(network: EagleNetwork, layer: Layer, frequencies: torch.Tensor, opening: torch.Tensor) -> torch.Tensor:
    """Set the values; returns what o_proj does with them if a copied token's score is to rise by about 1. `opening`:
    tokens at first positions, which are looked at where there is nothing to copy, so they have no value."""
    config = layer.config
    hidden, dim, group = config.hidden_size, config.head_dim, config.num_heads // config.num_kv_heads
    normed = F.rms_norm(network.embedding, (hidden,), eps=config.norm_eps)
    raising = _raising(_rows(network) * network.norm.weight, frequencies.float())
    weights = frequencies.float().sqrt()
    weights /= weights.sum()
    moments = (normed.T * weights @ normed).double()
    cross = (normed.T * weights @ raising).double()
    passed = torch.linalg.solve(moments + torch.diag(moments.diagonal() * _PENALTY), cross).T
    silent = normed[opening].mean(0).double()
    passed = passed - torch.outer(passed @ silent, silent) / silent.square().sum()
    read, written = halves(passed, moments, dim)
    layer.v_proj.weight[dim : 2 * dim] = 0.0
    layer.v_proj.weight[dim : 2 * dim, :hidden] = read.float()
    spread: torch.Tensor = written.repeat(1, group) / group
    return spread.float()


def _raising(rows: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    """[vocab, hidden]: what added to a state raises one token's score by 1 and the others' least, in squares weighed by
    their frequencies (as in a linear discriminant); rows [vocab, hidden]: what the scores of a state are made with."""
    rows = rows - frequencies @ rows
    spread = (rows.T * frequencies @ rows).double()
    values = torch.linalg.eigvalsh(spread)
    typical = values[values > values.max() * 1e-6].mean()
    solved = rows @ torch.linalg.inv(spread + torch.eye(len(spread)) * typical * _SPREAD_PENALTY).float()
    raising: torch.Tensor = solved / (solved * rows).sum(1, keepdim=True).clamp(min=_LEAST_RAISE)
    return raising


def _rows(network: EagleNetwork) -> torch.Tensor:
    """The head's rows [vocab, hidden]; 0 for tokens that it has not."""
    head: Any = network.head
    if isinstance(head, SlimHead):
        return head.up @ head.down
    weight: torch.Tensor = head.weight
    if isinstance(head, TrimmedHead):
        return torch.zeros_like(network.embedding).index_copy(0, head.ids, weight)
    return weight
