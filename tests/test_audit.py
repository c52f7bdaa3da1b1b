"""The audit of an answer, held to a loop over its tokens without any cache."""

from __future__ import annotations

import pytest
import torch

from slimtier.audit import audit
from slimtier.decode import PREFILL_CHUNK
from slimtier.errors import NonFiniteError
from slimtier.sampling import process
from slimtier.types import SamplingParams
from tests.stubs import StubTarget, plain_tokens, seeded_normal

PROMPT = [3, 1, 4, 1, 5]
SETTINGS = {
    "greedy": SamplingParams(),
    "penalties": SamplingParams(
        repetition_penalty=1.3, presence_penalty=1.0, no_repeat_ngram=2, logit_bias={7: 2.0, 9: float("-inf")}
    ),
    "T1": SamplingParams(temperature=1.0, top_k=5),
}


def naive(
    target: StubTarget, prompt: list[int], output: list[int], params: SamplingParams, inputs: tuple[int, ...] = ()
) -> tuple[list[bool], list[float]]:
    """For each token, worked out from scratch: whether it differs, and its shortfall."""
    differs, shortfall = [], []
    for place, token in enumerate(output):
        history = [*prompt, *output[:place]]
        logits = process(target.logits_of((*inputs, *history)), history, len(prompt), params)
        probs = logits.double().softmax(0)
        differs.append(token != int(probs.argmax()))
        shortfall.append(float(1 - probs[token] / probs.max()))
    return differs, shortfall


def spoiled(tokens: list[int], vocab_size: int) -> list[int]:
    """Every third token another one."""
    return [(token + 1) % vocab_size if place % 3 == 1 else token for place, token in enumerate(tokens)]


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("count", [1, 11, PREFILL_CHUNK + 5])
def test_as_a_loop_over_the_tokens(name: str, count: int) -> None:
    target, params = StubTarget(48), SETTINGS[name]
    output = spoiled(plain_tokens(target, PROMPT, count), 48)
    differs, shortfall = naive(target, PROMPT, output, params)
    found = audit(target, PROMPT, output, params)
    assert list(found.differs) == differs
    assert found.shortfall == pytest.approx(shortfall, abs=1e-5)
    assert found.mean == sum(differs) / count
    assert found.divergence == (None if name == "T1" else found.mean)


def test_what_the_target_wrote_does_not_differ() -> None:
    target = StubTarget(48)
    for params in (SETTINGS["greedy"], SETTINGS["penalties"]):
        found = audit(target, PROMPT, plain_tokens(target, PROMPT, 20, params), params)
        assert found.divergence == 0.0
        assert set(found.shortfall) == {0.0}


def test_a_token_is_judged_after_what_was_really_written() -> None:
    """The stream parts at the first token, and is the target's own from there: one token differs, not all."""
    target = StubTarget(48)
    wrong = (plain_tokens(target, PROMPT, 1)[0] + 1) % 48
    output = [wrong, *plain_tokens(target, [*PROMPT, wrong], 9)]
    assert audit(target, PROMPT, output).differs == (True, *[False] * 9)
    assert output[1:] != plain_tokens(target, PROMPT, 10)[1:]


def test_logits_only_where_a_token_differs() -> None:
    target = StubTarget(48)
    output = plain_tokens(target, PROMPT, 8)
    output[3] = (output[3] + 1) % 48
    audit(target, PROMPT, output)
    assert target.heads == [("argmax", 8), ("logits", sum(naive(target, PROMPT, output, SamplingParams())[0]))]


def test_an_encoder_decoder_reads_the_prompt_in_its_encoder() -> None:
    target = StubTarget(48)
    target.is_encoder_decoder, target.decoder_start_token_id = True, 2  # type: ignore[attr-defined]
    output = plain_tokens(target, [2], 7, inputs=PROMPT)
    assert audit(target, PROMPT, output).mean == 0.0
    output[4] = (output[4] + 1) % 48
    differs, _ = naive(target, [2], output, SamplingParams(), tuple(PROMPT))
    assert list(audit(target, PROMPT, output).differs) == differs


def test_quantiles() -> None:
    target = StubTarget(48)
    output = spoiled(plain_tokens(target, PROMPT, 30), 48)
    found = audit(target, PROMPT, output)
    quantiles = found.shortfall_quantiles((0.0, 0.5, 1.0))
    assert quantiles[0.0] == 0.0
    assert quantiles[0.5] == sorted(found.shortfall)[14] / 2 + sorted(found.shortfall)[15] / 2
    assert quantiles[1.0] == max(found.shortfall) > 0.5


def test_an_empty_answer() -> None:
    found = audit(StubTarget(48), PROMPT, [])
    assert (found.differs, found.mean, found.shortfall_quantiles()) == ((), 0.0, {})


def test_a_tie_falls_to_the_lowest_id_and_falls_short_of_nothing() -> None:
    logits = seeded_normal(48, "tie")
    logits[[20, 30]] = 9.0
    target = StubTarget(48, logits_of=lambda history: logits)
    found = audit(target, PROMPT, [20, 30])
    assert (found.differs, found.shortfall) == ((False, True), (0.0, 0.0))


def test_a_model_that_is_not_finite_is_told() -> None:
    target = StubTarget(48, logits_of=lambda history: torch.full((48,), float("nan")))
    with pytest.raises(NonFiniteError):
        audit(target, PROMPT, [1, 2])
