"""Which of the target's layers a draft reads, in each convention of naming them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from slimtier.drafters.eagle import layout_config
from slimtier.drafters.eagle.config import default_capture
from slimtier.drafters.eagle.load import read_draft
from slimtier.errors import ModelError, ModelFileError
from tests.drafters.eagle.draft_files import (
    EAGLE,
    LAYERS,
    full_state,
    prefix,
    read_config,
    speculators,
    write_draft,
)


def without_ids(config: dict[str, Any] = EAGLE) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != "eagle_config"}


TOP = "eagle_aux_hidden_state_layer_ids"


@pytest.mark.parametrize(
    ("config", "capture", "note"),
    [
        (EAGLE, (1, 3, 4), None),
        (speculators(), (1, 3, 4), None),
        (EAGLE | {TOP: [2, 4, 5]}, (1, 3, 4), None),
        (EAGLE | {TOP: [1, 3, 4]}, (1, 3, 4), "the same numbers twice"),
        (without_ids() | {TOP: [2, 4, 5]}, (1, 3, 4), "read as vLLM does"),
        (without_ids(), (1, 3, 4), r"do(es)? not say which layers are read: \[1, 3, 4\] were guessed"),
        (speculators(**{TOP: None}), (1, 3, 4), "guessed"),
        (EAGLE | {"eagle_config": {TOP: [0, 6, 7]}}, (0, 6, 7), None),
        (EAGLE | {"num_aux_hidden_states": 3}, (1, 3, 4), None),
    ],
)
def test_captured_layers(tmp_path: Path, config: dict[str, Any], capture: tuple[int, ...], note: str | None) -> None:
    """By whichever convention they are written, the same outputs are read; a guess is said (B31)."""
    files = read_config(tmp_path, config, full_state(prefix("speculators" if "speculators_version" in config else "")))
    assert files.config.capture == capture
    if note is None:
        assert files.notes == ()
    else:
        (said,) = files.notes
        assert re.search(note, said)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (EAGLE | {"eagle_config": {TOP: [1, 3, 8]}}, "names the output of layer 8; the target's last is 7"),
        (EAGLE | {"eagle_config": {TOP: [1, 3, 3]}}, "names a layer twice"),
        (EAGLE | {"eagle_config": {TOP: [-1, 3, 4]}}, "-1 is no layer"),
        (EAGLE | {"eagle_config": {TOP: [1.0, 3, 4]}}, "not a list of layer numbers"),
        (EAGLE | {"eagle_config": {TOP: []}}, "not a list of layer numbers"),
        (EAGLE | {TOP: [3, 4, 5]}, r"says layers \[2, 3, 4\] and in eagle_config \[1, 3, 4\]"),
        (without_ids() | {TOP: [0, 4, 5]}, "0 is the embedding, before layer 0"),
        (EAGLE | {"num_aux_hidden_states": 4}, "num_aux_hidden_states is 4, and 3 layers are read"),
    ],
)
def test_layers_that_cannot_be_captured(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelFileError, match=words):
        read_config(tmp_path, config)


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"capture_convention": "before"}, "capture_convention is 'before', not 'output'"),
        ({"capture_convention": "output"}, r"says layers \[0, 2, 3\] and in eagle_config \[1, 3, 4\]"),
        ({"format": 2}, "format 2, which a later slimtier wrote"),
        ({"head_norm": True}, r"slimtier\.head_norm = True may change"),
    ],
)
def test_our_own_block_is_strict(own: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        layout_config.read_config(Path("config.json"), EAGLE | {TOP: [1, 3, 4], "slimtier": own}, LAYERS)


@pytest.mark.parametrize("layers", range(1, 7))
def test_a_target_too_small_to_guess(tmp_path: Path, layers: int) -> None:
    path = write_draft(tmp_path, without_ids(), full_state())
    with pytest.raises(ModelFileError, match=f"a target of {layers} layers is too small for the usual ones"):
        read_draft(path, layers)


def test_a_guess_takes_the_target(tmp_path: Path) -> None:
    path = write_draft(tmp_path, without_ids(), full_state())
    with pytest.raises(ModelFileError, match="without the target its usual value cannot be guessed"):
        read_draft(path)
    assert read_draft(path, 30).config.capture == default_capture(30) == (1, 14, 26)
