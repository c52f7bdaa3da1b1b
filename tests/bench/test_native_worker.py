"""Our own worker, called in this process on a small random model: what it tells of an answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from slimtier.bench.workers import native
from slimtier.engine import Engine
from slimtier.models.native import load_native
from slimtier.models.resolve import resolve
from tests.models.native_models import save

PROMPT = [5, 9, 7, 5, 9, 7, 5, 9]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    save("llama", directory)
    return directory


@pytest.fixture(autouse=True)
def loaded(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `load` does, without a tokenizer's files."""
    monkeypatch.setattr("slimtier.bench.workers.native._made", {"": _Loaded(place)})


class _Loaded:
    tokenizer = None

    def __init__(self, place: Path) -> None:
        self.target = load_native(resolve(str(place)), precision="fp32", threads=1)


def generate(drafter: str, most: int = 24) -> dict[str, Any]:
    return native.generate(PROMPT, most, [], {}, drafter=drafter)


def test_every_drafter_gives_the_tokens_of_plain_decoding() -> None:
    plain, copied = generate("none"), generate("ngram")
    assert plain["token_ids"] == copied["token_ids"]
    assert len(plain["deciders"]) == 24
    assert plain["stats"]["num_drafts"] == 0
    assert copied["stats"]["num_drafts"] > 0


def test_the_split_of_a_rounds_time_adds_up() -> None:
    told = generate("ngram")
    split = told["time_split_s"]
    assert set(split) == {"draft_layer", "draft_head", "draft", "verify", "other"}
    assert split["verify"] > 0
    assert split["draft_layer"] == split["draft_head"] == 0.0
    seconds = (len(told["token_ids"]) - 1) / told["tokens_per_s"]  # the first block may have several tokens
    assert 0 < sum(split.values()) <= seconds * 1.5


def test_a_batch_is_answered_as_its_rows_alone() -> None:
    prompts = [PROMPT, PROMPT[:5], [3, 3, 8]]
    told = native.generate_batch(prompts, 12, [], {}, drafter="ngram")
    alone = [native.generate(prompt, 12, [], {}, drafter="none")["token_ids"] for prompt in prompts]
    assert told["token_ids"] == alone
    assert told["tokens_per_s"] > 0


def test_the_likelihood_is_the_sum_over_the_answer(place: Path) -> None:
    answer = generate("none", 6)["token_ids"]
    target = native._made[""].target
    wanted, row = 0.0, list(PROMPT)
    for token in answer:
        hidden, _ = target.forward(row, target.begin(1, len(row)), [len(row)])
        wanted += float(torch.log_softmax(target.head(hidden[-1:])[0].double(), -1)[token])
        row.append(token)
    assert native.log_likelihood(PROMPT, answer)["log_likelihood"] == pytest.approx(wanted, abs=1e-4)


def test_logits_are_the_same_stepwise_and_at_once() -> None:
    whole, stepwise = native.logits(PROMPT, False), native.logits(PROMPT, True)
    assert whole == stepwise  # the native runtime has the same bits
    engine = Engine(native._made[""].target)
    answer: Any = engine.generate(PROMPT, max_new_tokens=1, ignore_eos=True)
    assert whole.index(max(whole)) == answer.token_ids[0]


def test_settings_reach_the_drafter() -> None:
    told = native.generate(PROMPT, 8, [], {}, drafter="layer_skip", settings={"skip_layers": [1]})
    assert told["token_ids"] == generate("none", 8)["token_ids"]
    drawn = native.generate(PROMPT, 8, [], {"temperature": 1.0, "seed": 3}, drafter="none")
    assert (
        drawn["token_ids"]
        == native.generate(PROMPT, 8, [], {"temperature": 1.0, "seed": 3}, drafter="none")["token_ids"]
    )
