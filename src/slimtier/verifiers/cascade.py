"""Speculative cascades: a verifier that lets a deferral rule mix the drafter's distribution into the target's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from slimtier.errors import InputError
from slimtier.sampling import accept_probability, is_greedy, probabilities, residual, sample
from slimtier.types import Draft, SamplingParams, Verdict
from slimtier.verifiers.block import refuse_gumbel, verify_blocks
from slimtier.verifiers.cascade_rules import CascadeRule

if TYPE_CHECKING:
    from slimtier.models.base import Cache, Target
    from slimtier.noise import Noise
    from slimtier.verifiers.base import VerifyRow

# Outside, float32 has lost too much of a tempered distribution to say what it was at temperature 1: the tail as the
# temperature falls, the differences as it rises.
TEMPERATURES = (0.2, 1000.0)


class CascadeVerifier:
    """Lossy: the output follows the rule's distribution (Narasimhan et al. 2025), not the target's. Speculative
    sampling with that distribution in the target's place: a drafted token is kept with min(1, output / draft) and
    replaced from norm((output − draft)+).

    The rule looks at probabilities after bias and penalties, at temperature 1 and without filters; sampling has the
    request's temperature. The target's are at hand. The drafter's are worked back from `Draft.probs`, draft^T
    normalised; at temperature 0 they are `Draft.probs` themselves, where a drafter reports any.

    At temperature 0 both distributions are certain: the drafted token is output if the rule keeps it or it is the
    target's own, else the target's own is. token_v3 is then the verifier `lenient` (alpha = its lenience).

    Example: target (.6, .3, .1), temperature 0, token_v2 with alpha .4: a drafted token 1 is kept, for .3 is at least
    .6 − .4; with alpha .2 it is not and token 0 is output.
    """

    name = "cascade"
    lossless = False
    steady = True

    def __init__(self, target: Target, rule: str, alpha: float) -> None:
        """Raises ConfigError for a rule that there is not, and an alpha that it does not take."""
        self.target = target
        self.rule = CascadeRule(rule, alpha)
        self.wants_draft_probs = self.rule.needs_draft

    def verify(
        self, rows: Sequence[VerifyRow], drafts: Sequence[Draft], cache: Cache, capture: Sequence[int] = ()
    ) -> list[Verdict]:
        """See `Verifier.verify`. Raises InputError for gumbel coupling, under which a token is kept or not, with
        nothing to mix; and where the rule needs a distribution that the drafter does not give."""
        for row, draft in zip(rows, drafts, strict=True):
            refuse_gumbel(row.sampling, self.name)
            if self.rule.needs_draft:
                self._check(row.sampling, draft)
        return verify_blocks(self.target, rows, drafts, cache, self._judge, capture)

    def _check(self, sampling: SamplingParams, draft: Draft) -> None:
        """Whether the drafter's probabilities at temperature 1 can be had."""
        needs = f"rule {self.rule.name} looks at all of the drafter's probabilities at temperature 1"
        others = "use the rule token_v2 or token_v3"
        if not is_greedy(sampling):
            if sampling.top_k > 0 or sampling.top_p < 1.0 or sampling.min_p > 0.0:
                raise InputError(f"{needs}, and a filter hides some: leave top_k, top_p and min_p off, or {others}")
            coldest, warmest = TEMPERATURES
            if not coldest <= sampling.temperature <= warmest:
                raise InputError(
                    f"{needs}, which those at temperature {sampling.temperature:g} do not tell: "
                    f"give a temperature from {coldest:g} to {warmest:g}, or {others}"
                )
        if draft.token_ids and draft.probs is None:
            raise InputError(
                f"{needs}, and the drafter was certain of its tokens: {others}, or a drafter that draws its tokens "
                "(draft_model, layer_skip or eagle3)"
            )

    def _judge(
        self,
        drafted: int,
        draft_probs: torch.Tensor | None,
        logits: torch.Tensor,
        params: SamplingParams,
        noise: Noise,
        position: int,
    ) -> tuple[int, bool]:
        """See `sampling.judge`."""
        target_probs = probabilities(logits, params)
        certain = torch.zeros_like(target_probs)
        certain[drafted] = 1.0
        reported = certain if draft_probs is None else draft_probs
        drawn_from = certain if is_greedy(params) else reported
        draft_gate = reported if is_greedy(params) else at_temperature_1(reported, params.temperature)
        output_probs = self.rule.output_probs(drawn_from, target_probs, draft_gate, logits.float().softmax(0))
        if noise.uniform() < accept_probability(float(output_probs[drafted]), float(drawn_from[drafted])):
            return drafted, True
        return sample(residual(output_probs, drawn_from), noise.uniform()), False


def at_temperature_1(probs: torch.Tensor, temperature: float) -> torch.Tensor:
    """The distribution [vocab] whose tempered form `probs` is: probs^temperature, normalised; less the tokens that
    float32 has as 0."""
    return probs if temperature == 1.0 else (probs.log() * temperature).softmax(0)
