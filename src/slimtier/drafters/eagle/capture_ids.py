"""Which layers of the target a draft reads. Public configs say it by two conventions:

- "output": id i is the state after layer i (SpecForge and SGLang, `eagle_config.eagle_aux_hidden_state_layer_ids`);
- "before": id i is the state that layer i reads, so what layer i - 1 gave (speculators and vLLM, the same name at top
  level).

slimtier counts outputs, and writes both, so that each program finds its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slimtier.checkpoint import OWN
from slimtier.drafters.eagle.config import default_capture
from slimtier.drafters.eagle.draft_keys import DraftKeys

IDS = "eagle_aux_hidden_state_layer_ids"
CONVENTION = "capture_convention"  # of the nested ids, in our own block


def read_capture(keys: DraftKeys, layout: str, target_layers: int | None, notes: list[str]) -> tuple[int, ...]:
    """The layers whose outputs the draft reads. Raises ModelFileError for ids that are none of the target's layers,
    that contradict each other, or that are missing and cannot be guessed."""
    convention = keys.block(OWN).get(CONVENTION, "output")
    if convention != "output":
        raise keys.wrong(f"{OWN}.{CONVENTION} is {convention!r}, not 'output'")
    nested, top = keys.block("eagle_config").get(IDS), keys.get(IDS)
    outputs = None if nested is None else _ids(keys, f"eagle_config.{IDS}", nested, 0)
    before = None if top is None else _ids(keys, IDS, top, 1)
    if outputs is not None and before is not None and outputs != before:
        if nested != top or keys.block(OWN):
            raise keys.wrong(f"{IDS} says layers {list(before)} and in eagle_config {list(outputs)}")
        notes.append(f"config.json: {IDS} has the same numbers twice, which mean different layers; outputs were taken")
    capture = outputs if outputs is not None else before
    if outputs is None and before is not None and layout != "speculators":
        notes.append(f"config.json: {IDS} at top level was read as vLLM does: outputs of layers {list(before)}")
    if capture is None:
        capture = _guess(keys, target_layers, notes)
    _check(keys, capture, target_layers)
    return capture


def _ids(keys: DraftKeys, name: str, value: Any, shift: int) -> tuple[int, ...]:
    if not isinstance(value, Sequence) or not value or not all(type(one) is int for one in value):
        raise keys.wrong(f"{name} is {value!r}, not a list of layer numbers")
    if min(value) < shift:
        what = "the embedding, before layer 0, which is no layer's output" if 0 in value else "no layer"
        raise keys.wrong(f"{name} is {list(value)}: {min(value)} is {what}")
    return tuple(one - shift for one in value)


def _guess(keys: DraftKeys, target_layers: int | None, notes: list[str]) -> tuple[int, ...]:
    if target_layers is None:
        raise keys.wrong(f"{IDS} is missing, and without the target its usual value cannot be guessed")
    guessed = default_capture(target_layers)
    if guessed[0] < 0 or not guessed[0] < guessed[1] < guessed[2]:
        raise keys.wrong(f"{IDS} is missing, and a target of {target_layers} layers is too small for the usual ones")
    notes.append(f"config.json does not say which layers are read: {list(guessed)} were guessed (outputs, EAGLE-3's)")
    return guessed


def _check(keys: DraftKeys, capture: tuple[int, ...], target_layers: int | None) -> None:
    if len(set(capture)) < len(capture):
        raise keys.wrong(f"{IDS} names a layer twice (outputs {list(capture)})")
    if target_layers is not None and max(capture) >= target_layers:
        raise keys.wrong(f"{IDS} names the output of layer {max(capture)}; the target's last is {target_layers - 1}")
    streams = keys.get("num_aux_hidden_states")
    if streams is not None and streams != len(capture):
        raise keys.wrong(f"num_aux_hidden_states is {streams}, and {len(capture)} layers are read ({list(capture)})")
