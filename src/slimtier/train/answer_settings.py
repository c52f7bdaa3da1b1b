"""How the target answers when it is captured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slimtier.drafters.eagle.config import default_capture
from slimtier.errors import InputError


@dataclass(frozen=True, slots=True)
class AnswerSettings:
    """`layers`: outputs of these are kept (none: those of EAGLE-3); `top_n`: of the target's probabilities;
    `temperatures`: conversation i is answered at temperatures[i % len]; above 0 a token is drawn from the top_n.
    `drawn_turns`: conversation i goes on for drawn_turns[i % len] turns that the target writes for the user, and every
    drawn_every-th conversation (0: none) is the target's from its first word. `rows`: conversations at a time;
    `max_positions`: where one ends."""

    layers: tuple[int, ...] = ()
    top_n: int = 64
    temperatures: tuple[float, ...] = (0.0, 0.7, 0.0, 1.0)
    max_new_tokens: int = 256
    max_prompt_tokens: int = 1024
    max_positions: int = 2048
    drawn_turns: tuple[int, ...] = (0,)
    drawn_every: int = 0
    rows: int = 64
    seed: int = 0

    def temperature_of(self, number: int) -> float:
        """Of the answers of a conversation."""
        return self.temperatures[number % len(self.temperatures)]


def with_layers(settings: AnswerSettings, num_layers: int) -> AnswerSettings:
    """With the layers named that will be captured, and checked."""
    return replace(settings, layers=layers_of(settings.layers or default_capture(num_layers), num_layers))


def layers_of(capture: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """The layers to capture, checked: distinct, ascending, there."""
    layers = tuple(capture)
    if not layers or list(layers) != sorted(set(layers)) or layers[0] < 0 or layers[-1] >= num_layers:
        raise InputError(
            f"layers {list(layers)} cannot be captured: name distinct layers from 0 to {num_layers - 1}, ascending"
        )
    return layers
