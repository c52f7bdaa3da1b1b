"""Draft, slim verifier and target along a text, held to the distributions themselves."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from slimtier.drafters.eagle.open import open_drafter
from slimtier.drafters.ngram import NgramDrafter
from slimtier.errors import ConfigError
from slimtier.models.base import Target
from slimtier.route.calibration import Text
from slimtier.route.geometry import Geometry, analyse, draft_log_probs
from slimtier.route.objective import cost, kl, total_variation
from slimtier.types import Draft, Route
from tests.advise.drafts import PROMPTS, Taught, features_of, taught
from tests.route.planted import VOCAB, PlantedTarget, judge_of, texts_of
from tests.stubs import ScriptedDrafter, drawn, seeded_normal

ROUTE = Route.skipping(8, [3])


def drafted_probs(history: tuple[int, ...]) -> torch.Tensor:
    probs = seeded_normal(VOCAB, "draft", history[-2:]).softmax(0)
    return torch.cat([torch.zeros(2), probs[2:] / probs[2:].sum()])  # the first two tokens are never proposed


def test_every_pair_at_every_position() -> None:
    target = PlantedTarget()
    judge = judge_of(target)
    told: list[tuple[int, int]] = []
    found = analyse(drawn(drafted_probs), judge, ROUTE, lambda done, total: told.append((done, total)))
    assert told[-1] == (15, 15)
    place = 0
    for text in judge.texts:
        for position in range(text.start, text.stop):
            history = text.token_ids[:position]
            p = drafted_probs(history).log().clamp_min(-1e4)[None]
            u, q = (target.logits_of(history, route).log_softmax(-1)[None] for route in (ROUTE, None))
            expected = {
                "kl_draft_target": kl(p, q),
                "kl_draft_slim": kl(p, u),
                "kl_slim_target": kl(u, q),
                "tv_draft_target": total_variation(p, q),
                "tv_draft_slim": total_variation(p, u),
                "tv_slim_target": total_variation(u, q),
                "usefulness": cost(q, p) - cost(u, p) - cost(q, u),
            }
            assert found.columns.keys() == expected.keys()
            for name, value in expected.items():
                assert found.columns[name][place] == pytest.approx(float(value), rel=1e-4, abs=1e-5), name
            place += 1
    assert place == 15


def test_means_and_shares() -> None:
    columns = {
        "kl_draft_target": [1.0, 4.0, 2.0, 2.0],
        "kl_draft_slim": [1.0, 1.0, 1.0, 3.0],
        "kl_slim_target": [1.0, 1.0, 1.0, 0.0],
        "usefulness": [-1.0, 0.0, 2.0, 3.0],
    }
    found = Geometry("draft", columns)
    assert found.means["usefulness"] == 1.0
    assert found.useful_share == 0.5
    assert found.shorter_share == 0.5
    assert found.to_dict()["positions"] == 4


def test_a_slim_verifier_that_is_the_target_is_as_far_from_the_draft() -> None:
    found = analyse(drawn(drafted_probs), judge_of(PlantedTarget()), Route.full(8))
    assert found.means["kl_draft_slim"] == pytest.approx(found.means["kl_draft_target"], rel=1e-5)
    assert found.means["usefulness"] == pytest.approx(0.0, abs=1e-5)
    assert found.means["kl_slim_target"] < 1e-6


@pytest.mark.parametrize("drafter", [NgramDrafter(), ScriptedDrafter(lambda context, limit: Draft((1,)))])
def test_a_drafter_without_a_distribution_is_refused(drafter: Any) -> None:
    with pytest.raises(ConfigError, match="reports no distribution"):
        analyse(drafter, judge_of(PlantedTarget()), ROUTE)


def test_the_drafter_is_told_to_forget() -> None:
    drafter = drawn(drafted_probs)
    target = PlantedTarget()
    texts = texts_of(target)
    for text in texts:
        assert len(list(draft_log_probs(drafter, target, text))) == 5  # type: ignore[arg-type]
    assert drafter.forgotten == [0, 0, 0]


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Taught:
    return taught(tmp_path_factory.mktemp("draft"), steps=0, capture=(0, 1, 2))


def test_an_eagle_draft_is_its_network_on_the_targets_features(draft: Taught) -> None:
    """The network in torch on all of the text at once: slot t speaks of token t + 2."""
    target: Target = draft.target
    with warnings.catch_warnings(action="ignore"):
        drafter = open_drafter(draft.path, target, precision="fp32")
    ids = [*PROMPTS[0], 5, 80, 41, 7, 7, 19, 33, 2]
    found = torch.stack(list(draft_log_probs(drafter, target, Text(tuple(ids), 4, 10))))
    features, network = features_of(target, draft.network, ids), draft.network
    slots = torch.arange(len(ids) - 1)

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
        scores = scores.masked_fill(slots[:, None] < slots, -torch.inf)
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)

    with torch.inference_mode():
        hidden, _ = network(torch.tensor(ids[1:]), network.fuse(features), slots, attend)
        expected = network.head.logits(hidden).log_softmax(-1)[2:8]  # type: ignore[operator]
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-4)
