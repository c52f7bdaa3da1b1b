"""What happens to logits before temperature."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from slimtier.errors import InputError
from slimtier.penalties import changes_logits, process
from slimtier.types import SamplingParams

LOGITS = torch.tensor([2.0, -1.0, 0.5, 3.0, 0.0, -2.0])
ROW = [3, 1, 3, 4, 1]  # two prompt tokens, three of output


def test_nothing_asked_changes_nothing() -> None:
    params = SamplingParams(temperature=0.7, top_k=3, top_p=0.9, min_p=0.1, seed=3)
    assert not changes_logits(params)
    assert torch.equal(process(LOGITS, ROW, 2, params), LOGITS)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (SamplingParams(logit_bias={0: -100.0, 5: 1.5}), [-98.0, -1.0, 0.5, 3.0, 0.0, -0.5]),
        (SamplingParams(logit_bias={3: float("-inf")}), [2.0, -1.0, 0.5, float("-inf"), 0.0, -2.0]),
        (SamplingParams(repetition_penalty=2.0), [2.0, -2.0, 0.5, 1.5, 0.0, -2.0]),
        (SamplingParams(presence_penalty=1.0), [2.0, -2.0, 0.5, 2.0, -1.0, -2.0]),
        (SamplingParams(frequency_penalty=0.5), [2.0, -1.5, 0.5, 2.5, -0.5, -2.0]),
        (SamplingParams(no_repeat_ngram=2), [2.0, -1.0, 0.5, float("-inf"), 0.0, -2.0]),
        (SamplingParams(no_repeat_ngram=6), LOGITS.tolist()),
        (SamplingParams(no_repeat_ngram=1), [2.0, float("-inf"), 0.5, float("-inf"), float("-inf"), -2.0]),
    ],
)
def test_each_by_hand(params: SamplingParams, expected: list[float]) -> None:
    before = LOGITS.clone()
    assert process(LOGITS, ROW, 2, params).tolist() == pytest.approx(expected)
    assert torch.equal(LOGITS, before), "the model's own logits are not written to"


def test_output_penalties_do_not_see_the_prompt() -> None:
    params = SamplingParams(presence_penalty=1.0, frequency_penalty=1.0)
    assert torch.equal(process(LOGITS, ROW, len(ROW), params), LOGITS)


def test_frequency_counts_and_presence_does_not() -> None:
    params = SamplingParams(presence_penalty=10.0, frequency_penalty=1.0)
    assert process(LOGITS, [0, 4, 4, 4], 1, params)[4] == 0.0 - 10.0 - 3.0


def test_the_order_is_bias_then_repetition_then_output_penalties_then_processors() -> None:
    params = SamplingParams(
        logit_bias={4: 4.0}, repetition_penalty=2.0, presence_penalty=1.0, processors=(lambda ids, logits: logits * 10,)
    )
    assert process(LOGITS, ROW, 2, params)[4] == (((0.0 + 4.0) / 2.0) - 1.0) * 10


def test_agrees_with_transformers() -> None:
    from transformers.generation import logits_process as reference

    generator = torch.Generator().manual_seed(0)
    for trial in range(30):
        logits = torch.randn(50, generator=generator) * 3
        row = torch.randint(0, 8 if trial % 2 else 50, (1 + trial,), generator=generator).tolist()
        ids = torch.tensor([row])
        repetition = reference.RepetitionPenaltyLogitsProcessor(1.3)(ids, logits[None].clone())[0]
        assert torch.equal(process(logits, row, 1, SamplingParams(repetition_penalty=1.3)), repetition)
        for size in (1, 2, 3):
            banned = reference.NoRepeatNGramLogitsProcessor(size)(ids, logits[None].clone())[0]
            assert torch.equal(process(logits, row, 1, SamplingParams(no_repeat_ngram=size)), banned)


def test_a_processor_sees_the_row_and_may_write_to_its_logits() -> None:
    seen: list[Sequence[int]] = []

    def ban_the_last(token_ids: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        seen.append(token_ids)
        logits[token_ids[-1]] = -torch.inf
        return logits

    before = LOGITS.clone()
    assert process(LOGITS, ROW, 2, SamplingParams(processors=(ban_the_last,)))[1] == -torch.inf
    assert list(seen[0]) == ROW
    assert torch.equal(LOGITS, before)


@pytest.mark.parametrize("returned", [None, torch.zeros(5), torch.zeros(1, 6), [0.0] * 6])
def test_a_processor_that_returns_no_logits_is_named(returned: object) -> None:
    def careless(token_ids: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        return returned  # type: ignore[return-value]

    with pytest.raises(InputError, match="careless"):
        process(LOGITS, ROW, 2, SamplingParams(processors=(careless,)))
