"""The test of draws: a true sampler passes, a wrong one does not."""

from __future__ import annotations

from collections import Counter

import pytest

from slimtier.bench.draws import check_draws, chi_square
from slimtier.drafters.model import ModelDrafter


def test_draws_follow_the_target_whatever_the_drafter() -> None:
    found = list(check_draws(seed=2, draws=1500))
    assert [one.accepts for one in found] == ["always", "sometimes", "by copying"]
    assert all(one.verdict == "as the target" for one in found)
    always, sometimes, copying = (one.acceptance_rate for one in found)
    assert always == 1.0
    assert 0.2 < sometimes < 0.95
    assert copying < sometimes


def test_a_draft_that_lies_about_its_distribution_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ModelDrafter.propose

    def lying(self: ModelDrafter, contexts: list[object], limits: list[int]) -> object:
        drafts = honest(self, contexts, limits)  # type: ignore[arg-type]
        for draft in drafts:
            if draft.probs is not None:
                draft.probs.copy_(draft.probs.flip(-1))
        return drafts

    monkeypatch.setattr(ModelDrafter, "propose", lying)
    verdicts = {one.accepts: one.verdict for one in check_draws(seed=2, draws=1500)}
    assert verdicts["sometimes"] == "defect"
    assert verdicts["by copying"] == "as the target"


def test_chi_square_is_pearsons() -> None:
    scipy = pytest.importorskip("scipy.stats")
    wanted = {(0,): 0.5, (1,): 0.3, (2,): 0.2}
    counts = Counter({(0,): 480, (1,): 330, (2,): 190})
    assert chi_square(counts, wanted, 1000) == pytest.approx(scipy.chisquare([480, 330, 190], [500, 300, 200]).pvalue)
    assert chi_square(Counter({(9,): 1}), wanted, 1) == 0.0
