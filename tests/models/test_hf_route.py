"""Routes on the hf runtime against copies of the models whose skipped sublayers write zeros."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from slimtier.errors import InputError, UnsupportedError
from slimtier.models.hf import HfTarget
from slimtier.types import Route
from tests.models.hf_models import (
    FAMILIES,
    LAYERS,
    VOCAB,
    assert_close,
    begin,
    build,
    num_hooks,
    one_thread,
    own_logits,
    sequence,
    target_of,
)


@pytest.fixture(scope="module", autouse=True)
def _threads() -> Iterator[None]:
    with one_thread():
        yield


def silenced(model: Any, route: Route) -> Any:
    """A copy of the model in which the skipped sublayers write zeros: their last projection is zero."""
    copied = copy.deepcopy(model)
    decoder = copied.get_decoder()
    layers = next(m for m in decoder.modules() if isinstance(m, nn.ModuleList))
    for layer, attention, mlp in zip(layers, route.runs_attention, route.runs_mlp, strict=True):
        for name, parameter in layer.named_parameters():
            in_attention = "attn." in name or "SelfAttention" in name
            in_mlp = "mlp." in name or "DenseReluDense" in name
            last = any(part in name for part in ("o_proj", "down_proj", "c_proj", ".o.", ".wo."))
            if last and ((in_attention and not attention) or (in_mlp and not mlp)):
                nn.init.zeros_(parameter)
    return copied


ROUTES = {
    "whole_layer": Route.skipping(LAYERS, [1]),
    "first_attention": Route(("skip", "full", "full"), ("full", "full", "full")),
    "mlp_only": Route(("full", "full", "full"), ("skip", "full", "skip")),
    "mixed": Route(("skip", "full", "skip"), ("full", "skip", "full")),
}


@pytest.mark.parametrize("name", ROUTES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_route_equals_a_model_whose_sublayers_write_zeros(family: str, name: str) -> None:
    target, tokens, route = target_of(family), sequence(16, 5), ROUTES[name]
    expected = own_logits(silenced(target.model, route), tokens)
    cache = begin(target, 1)
    hidden, _ = target.forward(tokens[:6], cache, [6], route=route)
    target.forward(tokens[:5], cache, [5], route=route)
    cache.crop([6])
    later, _ = target.forward(tokens[6:], cache, [10], route=route)
    assert_close(target.head(torch.cat([hidden, later])), expected)
    assert (expected - own_logits(target.model, tokens)).abs().max() > 1e-2
    full, _ = target.forward(tokens, begin(target, 1), [16])  # the model is itself again
    assert_close(target.head(full), own_logits(target.model, tokens))


def test_a_cache_belongs_to_the_route_that_wrote_it() -> None:
    target, route = target_of("llama"), ROUTES["whole_layer"]
    cache = begin(target, 1)
    target.forward([5, 6], cache, [2], route=route)
    with pytest.raises(InputError, match="another route"):
        target.forward([7], cache, [1])
    target.forward([7], cache, [1], route=route)
    cache.crop([0])
    tokens = sequence(6, 6)
    hidden, _ = target.forward(tokens, cache, [6], route=Route.full(LAYERS))
    assert_close(target.head(hidden), own_logits(target.model, tokens))
    target.forward([7], cache, [1])  # the full route is no route
    with pytest.raises(InputError, match="3"):
        target.forward([7], begin(target, 1), [1], route=Route.full(2))


@pytest.mark.parametrize("family", ["llama", "gpt2", "t5"])
def test_an_error_inside_the_model_leaves_no_trace(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, tokens, route = target_of(family), sequence(12, 7), ROUTES["mixed"]
    cache = begin(target, 2)
    target.forward(tokens[:4] * 2, cache, [4, 4], route=route)
    before = num_hooks(target), [set(module.__dict__) for module in target.model.modules()]

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("out of memory")

    calls: list[int] = []
    layer, own = target._layers[1], target._layers[1].forward

    def broken_on_the_second_row(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return own(*args, **kwargs) if len(calls) == 1 else broken()

    monkeypatch.setattr(layer, "forward", broken_on_the_second_row)
    with pytest.raises(RuntimeError, match="out of memory"):
        target.forward(tokens[4:7] * 2, cache, [3, 3], route=route, capture=(0, 2))
    monkeypatch.delattr(layer, "forward")
    assert (num_hooks(target), [set(module.__dict__) for module in target.model.modules()]) == before
    assert cache.lengths == [4, 4]
    hidden, _ = target.forward(tokens[4:] * 2, cache, [8, 8], route=route)
    model = silenced(target.model, route)
    assert_close(target.head(hidden), torch.cat([own_logits(model, tokens, row)[4:] for row in (0, 1)]))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (transformers.BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4), "BloomBlock is more than"),
        (
            transformers.OPTConfig(
                vocab_size=VOCAB,
                hidden_size=32,
                word_embed_proj_dim=32,
                ffn_dim=48,
                num_hidden_layers=2,
                num_attention_heads=4,
            ),
            "found in OPTDecoderLayer",
        ),
    ],
)
def test_layers_of_another_structure_run_but_take_no_route(config: Any, words: str) -> None:
    target, tokens = HfTarget(build(config)), sequence(9, 8)
    hidden, _ = target.forward(tokens, begin(target, 1), [9])
    assert_close(target.head(hidden), own_logits(target.model, tokens))
    with pytest.raises(UnsupportedError, match=words):
        target.forward(tokens, begin(target, 1), [9], route=Route.skipping(2, [0]))
    hidden, _ = target.forward(tokens, begin(target, 1), [9])
    assert_close(target.head(hidden), own_logits(target.model, tokens))
