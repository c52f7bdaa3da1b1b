"""Training on what the target writes at that moment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from slimtier.errors import ConfigError
from slimtier.loading import Loaded
from slimtier.train import online as work
from slimtier.train.answer_settings import AnswerSettings
from slimtier.train.config import read_config
from slimtier.train.online import Online, open_stream
from slimtier.train.prompts import Conversation, PromptFile
from slimtier.train.run import Outcome, Request, train
from tests.train import dialogues
from tests.train.training import SHORT, cut_off, metrics

PROMPTS = PromptFile(tuple(Conversation("own", (f"say {word}",)) for word in ("a", "b", "c", "d", "e")), {})
ANSWERS = AnswerSettings(layers=(0, 1), top_n=8, temperatures=(1.0,), max_new_tokens=12, rows=4, max_positions=96)


@pytest.fixture(autouse=True)
def short_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "_OPENING_LABELS", 200)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("target")


@pytest.fixture(scope="module")
def model(place: Path) -> Loaded:
    return dialogues.loaded(place)


def silent(done: int, of: int) -> None:
    pass


def test_batches_are_full_and_nothing_is_kept_of_those_before(model: Loaded) -> None:
    window, split, stream = open_stream(Online(model, PROMPTS), ANSWERS, 40, 3, 0, silent)
    assert {place.shard for place in split.validation} <= {0, 1, 2}
    opening = list(split.train)
    assert sum(place.labels for place in opening) >= 200
    assert min(place.shard for place in opening) >= 3
    assert int(window.sums()["count"]) > 0
    seen: set[int] = set()
    for step in range(12):
        places = stream.at(step)
        assert sum(place.labels for place in places[:-1]) < 40 <= sum(place.labels for place in places)
        numbers = {place.shard for place in places}
        assert not numbers & seen
        assert not {place.digest for place in places} & {place.digest for place in split.validation}
        for place in places:
            row = window.read(place)
            assert len(row.features) == len(row.token_ids) == place.end
            assert len(row.top_ids) == sum(stop - first for first, stop in place.segments)
        for place in opening:
            if place.shard in seen:
                with pytest.raises(KeyError):
                    window.read(place)
        seen |= numbers
    assert stream.position == max(seen) + 1 or stream.position > max(seen)


def test_a_row_depends_on_its_number_alone(model: Loaded) -> None:
    _, once, _ = open_stream(Online(model, PROMPTS), ANSWERS, 40, 3, 0, silent)
    _, again, stream = open_stream(Online(model, PROMPTS), replace(ANSWERS, rows=2), 40, 3, 50, silent)
    assert sorted(place.digest for place in once.validation) == sorted(place.digest for place in again.validation)
    assert not again.train
    assert min(place.shard for place in stream.at(7)) >= 50


def run(model: Loaded, place: Path, out: Path, *pairs: str, **request: Any) -> Outcome:
    config = read_config(None, [*SHORT, "run.validation_rows=3", "optimisation.batch_tokens=40", *pairs])
    asked = Request(None, str(place), out, replace(config, answers=ANSWERS), online=Online(model, PROMPTS), **request)
    return train(asked, lambda words: None, silent)


@pytest.fixture
def files(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny target has no tokenizer on disk."""
    from slimtier.train import begin

    monkeypatch.setattr(begin, "load_tokenizer", lambda files: dialogues.tokenizer())


@pytest.mark.usefixtures("files")
def test_a_draft_comes_of_it_and_a_run_goes_on(model: Loaded, place: Path, tmp_path: Path) -> None:
    outcome = run(model, place, tmp_path / "run", "optimisation.steps=6")
    assert outcome.finished
    assert (outcome.draft / "model.safetensors").is_file()
    assert not list((tmp_path / "run").glob("**/shard-*"))
    losses = [line["loss"] for line in metrics(tmp_path / "run")]
    assert len(losses) == 6
    state = torch.load(next((tmp_path / "run" / "checkpoints").glob("*-00000005.pt")), weights_only=True)
    assert state["position"] > 3
    with pytest.raises(ConfigError, match=r"another|begun"):
        run(model, place, tmp_path / "run", "optimisation.steps=6", "optimisation.lr=1", resume=True)


@pytest.mark.usefixtures("files")
def test_a_run_that_was_cut_off_goes_on_with_new_conversations(model: Loaded, place: Path, tmp_path: Path) -> None:
    settings = ("optimisation.steps=6", "run.checkpoint_every=2")
    with cut_off(3):
        run(model, place, tmp_path, *settings)
    before = torch.load(tmp_path / "checkpoints" / "step-00000002.pt", weights_only=True)["position"]
    outcome = run(model, place, tmp_path, *settings, resume=True)
    assert outcome.finished
    after = torch.load(tmp_path / "checkpoints" / "step-00000006.pt", weights_only=True)["position"]
    assert after > before > 3


@pytest.mark.usefixtures("files")
def test_what_cannot_be_is_refused(model: Loaded, place: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"optimisation\.steps"):
        run(model, place, tmp_path / "endless", "optimisation.steps=0")
    config = replace(read_config(None, SHORT), answers=ANSWERS)
    with pytest.raises(ConfigError, match="--online"):
        train(Request(tmp_path, str(place), tmp_path / "run", config), lambda words: None, silent)
