"""A route's divergence, held to logits worked out from scratch at every position."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from slimtier.route import judge as judge_module
from slimtier.route.calibration import Text
from slimtier.route.judge import Judge
from slimtier.route.objective import Divergence, divergences
from slimtier.types import Route
from tests.models.hf_models import ENCODER_TOKENS, own_logits, target_of
from tests.route.planted import PlantedTarget, judge_of, texts_of

ROUTE = Route.skipping(8, [2, 5])


def naive(target: PlantedTarget, texts: list[Text], route: Route) -> Divergence:
    parts = []
    for text in texts:
        for place in range(text.start, text.stop):
            pair = (target.logits_of(text.token_ids[:place], on).log_softmax(-1)[None] for on in (None, route))
            parts.append(divergences(*pair))
    return Divergence.mean(parts)


@pytest.mark.parametrize("chunk", [1, 4, 64])
def test_an_evaluation(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(judge_module, "_CHUNK", chunk)
    target = PlantedTarget((4, 5))
    texts = texts_of(target)
    judge = Judge(target, texts)  # type: ignore[arg-type]
    assert judge.positions == 15
    expected = naive(target, texts, ROUTE)
    assert expected.r > 0.01
    for _ in range(2):  # the cache is as it was
        assert list(judge(ROUTE).to_dict().values()) == pytest.approx(list(expected.to_dict().values()), rel=1e-4)


def test_stretches_in_the_middle_of_answers() -> None:
    target = PlantedTarget()
    texts = [Text(text.token_ids, text.start + 1, text.stop - 1) for text in texts_of(target)]
    expected = naive(target, texts, ROUTE)
    assert Judge(target, texts)(ROUTE).kl == pytest.approx(expected.kl, rel=1e-4)  # type: ignore[arg-type]


def test_the_thresholds_are_used() -> None:
    target = PlantedTarget()
    texts = texts_of(target)
    strict, loose = (Judge(target, texts, alpha, 0.5)(ROUTE) for alpha in (0.0, 0.9))  # type: ignore[arg-type]
    assert strict.r > loose.r
    assert strict.kl == loose.kl


def test_the_target_itself_and_what_is_planted_are_at_no_distance() -> None:
    judge = judge_of(PlantedTarget((4, 5, 10)))
    skipped = Route.skipping(8, [2])
    for route in (Route.full(8), skipped):
        assert max(judge(route).to_dict().values()) < 1e-6


def test_one_forward_an_evaluation() -> None:
    target = PlantedTarget()
    judge = judge_of(target)
    target.calls.clear()
    judge(ROUTE)
    assert target.calls == [(5, 5, 5)]


def test_the_cache_is_cropped_when_an_evaluation_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    target = PlantedTarget()
    judge = judge_of(target)
    expected, forward = judge(ROUTE), target.forward

    def broken(*args: Any, **options: Any) -> Any:
        forward(*args, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(target, "forward", broken)
    with pytest.raises(KeyboardInterrupt):
        judge(ROUTE)
    monkeypatch.undo()
    assert judge(ROUTE) == expected


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_transformers_models(family: str) -> None:
    target = target_of(family)
    encodes = family == "t5"
    ids, layers = [0, 11, 5, 40, 33, 8, 21], target.info.num_layers
    texts = [Text(tuple(ids), 3, 7, tuple(ENCODER_TOKENS[0]) if encodes else ())]
    judge = Judge(target, texts)
    (own, on_route) = next(iter(judge.log_probs(Route.skipping(layers, [1]))))
    expected = own_logits(target.model, ids)[2:6].log_softmax(-1)
    torch.testing.assert_close(own, expected, rtol=0, atol=1e-3)
    assert (own - on_route).abs().max() > 0.05
    assert judge(Route.full(layers)).kl < 1e-6
