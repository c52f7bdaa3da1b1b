"""The systems that can be compared: ours and the peers, and the options that each takes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from slimtier.config import json_or_text, refuse_unknown
from slimtier.errors import ConfigError
from slimtier.provenance import without_place
from slimtier.tiers import LOSSY

Weights = Literal["name", "dense", "gguf"]  # what a worker is given: the model's name, a float32 checkpoint, its file
Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SystemType:
    """`worker`: its module of bench.workers. `load` and `answer`: options with their defaults; systems that differ in
    an option of `load` have a process each. `choices`: of an option whose values are few. `samples`: it can draw, not
    only take the most probable token. `batches`: it answers several prompts at once."""

    worker: str
    weights: Weights
    load: Options = field(default_factory=dict)
    answer: Options = field(default_factory=dict)
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    samples: bool = False
    batches: bool = False


TYPES: dict[str, SystemType] = {
    "slimtier": SystemType(
        "native",
        "name",
        load={"precision": "auto", "runtime": "auto"},
        answer={"drafter": "auto", "verifier": "lossless", "num_speculative_tokens": 0, "tiers": "", "route": ""},
        samples=True,
        batches=True,
    ),
    "transformers": SystemType(
        "hf",
        "dense",
        load={"attention": "eager"},
        answer={"method": "plain", "num_assistant_tokens": 5, "exit_layer": 10, "assistant": ""},
        choices={"method": ("plain", "lookup", "early_exit", "assisted"), "attention": ("eager", "sdpa")},
        samples=True,
    ),
    "llama.cpp": SystemType(
        "llama", "gguf", answer={"method": "plain", "num_pred_tokens": 2}, choices={"method": ("plain", "lookup")}
    ),
    "vllm": SystemType(
        "vllm",
        "dense",
        load={"method": "plain", "num_speculative_tokens": 5, "draft": "auto"},
        choices={"method": ("plain", "ngram", "eagle3")},
        samples=True,
        batches=True,
    ),
    "economize": SystemType(
        "economize", "dense", load={"technique": "lookup"}, choices={"technique": ("lookup", "layer_skip")}
    ),
    "flashspec": SystemType("flashspec", "dense"),
}
OURS = "slimtier"


@dataclass(frozen=True, slots=True)
class System:
    """One way to answer: a type and the options that were given. `settings`: of ours, those of drafter and verifier."""

    name: str
    type: str
    options: Options = field(default_factory=dict)
    settings: Options = field(default_factory=dict)

    @property
    def kind(self) -> SystemType:
        return TYPES[self.type]

    @property
    def lossless(self) -> bool | None:
        """Whether its output is its target's by its rule; of peers we do not say."""
        if self.type != OURS:
            return None
        return self.answering()["verifier"] == "lossless" and self.answering()["tiers"] not in LOSSY

    def loading(self) -> dict[str, Any]:
        """The options its process is started with, defaults filled in."""
        return {name: self.options.get(name, default) for name, default in self.kind.load.items()}

    def answering(self) -> dict[str, Any]:
        """The options that go with each request."""
        chosen = {name: self.options.get(name, default) for name, default in self.kind.answer.items()}
        return {**chosen, "settings": dict(self.settings)} if self.type == OURS else chosen

    def process(self) -> str:
        """Systems with the same words share a process."""
        return json.dumps([self.type, self.loading()], sort_keys=True)

    def to_dict(self) -> dict[str, Any]:
        """Type and everything it is run with; of a place on this machine only the last part."""
        options = {**self.loading(), **self.answering()}
        settings = _without_places(options.pop("settings", {}))
        return {"type": self.type, "options": _without_places(options) | ({"settings": settings} if settings else {})}


def _without_places(options: Options) -> dict[str, Any]:
    return {key: without_place(value) if isinstance(value, str) else value for key, value in options.items()}


def read_system(given: Mapping[str, Any]) -> System:
    """A system from its name, its type and options, checked.

    Raises ConfigError for an unknown type, option or choice, or a value of another kind.
    """
    options = dict(given)
    type_ = str(options.pop("type", OURS))
    refuse_unknown([type_], tuple(TYPES), "system")
    kind = TYPES[type_]
    name = str(options.pop("name", "")) or name_of(type_, options)
    known = {**kind.load, **kind.answer}
    settings = {key: value for key, value in options.items() if key not in known} if type_ == OURS else {}
    refuse_unknown([key for key in options if key not in settings], tuple(known), f"option of {type_}")
    chosen = {key: _checked(type_, key, value, known[key]) for key, value in options.items() if key in known}
    for key, choices in kind.choices.items():
        if chosen.get(key, known[key]) not in choices:
            raise ConfigError(f"{type_} has no {key} {chosen[key]!r}: choose one of {', '.join(choices)}")
    if type_ == OURS:
        _check_ours(chosen, settings)
    return System(name, type_, chosen, settings)


def name_of(type_: str, options: Mapping[str, Any]) -> str:
    """What a system is called that was given no name: its type, and its options' values."""
    return " ".join([type_, *(f"{key}={value}" if isinstance(value, (int, list)) else str(value).rpartition("/")[2]
                              for key, value in options.items())])  # fmt: skip


def parse_system(text: str) -> System:
    """A system from the words of a command line: TYPE or TYPE:option=value,option=value."""
    type_, _, rest = text.partition(":")
    options: dict[str, Any] = {}
    for part in re.split(r",(?![^\[]*\])", rest) if rest else ():
        key, equals, value = part.partition("=")
        if not equals or not key:
            raise ConfigError(f"--system {text!r}: {part!r} is not OPTION=VALUE; write slimtier:drafter=ngram")
        options[key.strip()] = json_or_text(value.strip())
    if "type" in options:
        raise ConfigError(f"--system {text!r}: the type stands before the colon")
    return read_system({"type": type_, **options})


def _checked(type_: str, key: str, value: Any, default: Any) -> Any:
    wanted = type(default)
    if isinstance(value, bool) or not isinstance(value, wanted):
        words = {int: "a whole number", str: "a text"}[wanted]
        raise ConfigError(f"{type_}: {key} is {value!r}: give {words}")
    if wanted is int and value < 0:
        raise ConfigError(f"{type_}: {key} is {value}: give 0 or more")
    return value


def _check_ours(chosen: Mapping[str, Any], settings: Options) -> None:
    from slimtier.loading import RunOptions
    from slimtier.registry import check_settings

    RunOptions(chosen.get("runtime", "auto"), chosen.get("precision", "auto"))
    tiers = (chosen.get("tiers") or None, chosen.get("route") or None)
    check_settings(chosen.get("drafter", "auto"), chosen.get("verifier", "lossless"), settings, *tiers)
