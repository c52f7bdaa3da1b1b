"""Drafters and verifiers by name, and the settings each takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from slimtier.errors import ConfigError
from slimtier.options import refuse_unknown
from slimtier.tiers import SETTINGS as TIERS_SETTINGS
from slimtier.tiers import TIER_SETTINGS, check_tiers
from slimtier.types import Route

if TYPE_CHECKING:
    from slimtier.drafters.base import Drafter
    from slimtier.loading import Loaded
    from slimtier.verifiers.base import Verifier
    from slimtier.verifiers.cascade_rules import CascadeRule

Made = TypeVar("Made")
Load = Callable[[str], "Loaded"]  # loads another model the way the target was loaded


@dataclass(frozen=True, slots=True)
class Entry(Generic[Made]):
    """How a drafter or a verifier is made; `required` settings have no default. `num_speculative_tokens` is how far
    the drafter drafts unless told otherwise. `check` raises ConfigError for settings that cannot be together."""

    build: Callable[[Loaded, Mapping[str, Any], Load], Made]
    settings: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    num_speculative_tokens: int = 5
    check: Callable[[Mapping[str, Any]], Any] | None = None


def _none(loaded: Loaded, settings: Mapping[str, Any], load: Load) -> Drafter:
    from slimtier.drafters.none import NoDrafter

    return NoDrafter()


def _ngram(loaded: Loaded, settings: Mapping[str, Any], load: Load) -> Drafter:
    from slimtier.drafters.ngram import NgramDrafter

    return NgramDrafter(**settings)


def _auto(loaded: Loaded, settings: Mapping[str, Any], load: Load) -> Drafter:
    from slimtier.drafters.auto import AutoDrafter
    from slimtier.drafters.cost import price_of
    from slimtier.drafters.eagle.open import find_draft, open_drafter, shipped_draft

    ngram = {name: value for name, value in settings.items() if name in NGRAM_SETTINGS}
    draft, info = str(settings.get("draft", "auto")), loaded.target.info
    if getattr(loaded.target, "is_encoder_decoder", False) or draft == "none":
        return AutoDrafter(**ngram, precision=price_of(info))
    path = shipped_draft(info.name) if draft == "auto" else find_draft(draft, info)
    if path is None:
        return AutoDrafter(**ngram, precision=price_of(info))
    precision = settings.get("draft_precision", "auto")
    network = open_drafter(path, loaded.target, loaded.tokenizer, precision=precision)
    return AutoDrafter(**ngram, network=network, precision=price_of(info))


def _draft_model(loaded: Loaded, settings: Mapping[str, Any], load: Load) -> Drafter:
    from slimtier.drafters.model import ModelDrafter
    from slimtier.drafters.vocabulary import check_vocabulary

    _refuse_encoder(loaded)
    other = load(str(settings["draft_model"]))
    info = loaded.target.info
    check_vocabulary(other.target.info, info, _vocabulary(other), _vocabulary(loaded))
    return ModelDrafter(other.target, name="draft_model", vocab_size=info.vocab_size)


def _layer_skip(loaded: Loaded, settings: Mapping[str, Any], load: Load) -> Drafter:
    from slimtier.drafters.model import ModelDrafter

    _refuse_encoder(loaded)
    count = loaded.target.info.num_layers
    layers = _layers(settings["skip_layers"])
    if not all(0 <= layer < count for layer in layers):
        raise ConfigError(f"skip_layers is {settings['skip_layers']!r}: the model's layers are 0 to {count - 1}")
    return ModelDrafter(loaded.target, route=Route.skipping(count, layers), name="layer_skip")


def _eagle3(loaded: Loaded, settings: Mapping[str, Any], load: Load) -> Drafter:
    from slimtier.drafters.eagle.open import find_draft, open_drafter

    _refuse_encoder(loaded)
    return open_drafter(
        find_draft(str(settings.get("draft", "auto")), loaded.target.info),
        loaded.target,
        loaded.tokenizer,
        confidence=settings.get("confidence", 0.0),
        precision=settings.get("draft_precision", "auto"),
    )


def _lossless(loaded: Loaded, settings: Mapping[str, Any], load: Load) -> Verifier:
    from slimtier.verifiers.lossless import LosslessVerifier

    return LosslessVerifier(loaded.target)


def _lenient(loaded: Loaded, settings: Mapping[str, Any], load: Load) -> Verifier:
    from slimtier.verifiers.lenient import LenientVerifier

    return LenientVerifier(loaded.target, lenience=settings["lenience"])


def _cascade(loaded: Loaded, settings: Mapping[str, Any], load: Load) -> Verifier:
    from slimtier.verifiers.cascade import CascadeVerifier

    return CascadeVerifier(loaded.target, settings["rule"], settings["alpha"])


def _cascade_rule(settings: Mapping[str, Any]) -> CascadeRule:
    from slimtier.verifiers.cascade_rules import CascadeRule

    return CascadeRule(settings["rule"], settings["alpha"])


NGRAM_SETTINGS = ("min_ngram", "max_ngram")
DRAFT_SETTINGS = ("draft", "draft_precision")
DRAFT_PRECISIONS = ("auto", "fp32", "q8")
DRAFTERS: dict[str, Entry[Drafter]] = {
    "auto": Entry(
        _auto, (*NGRAM_SETTINGS, *DRAFT_SETTINGS), num_speculative_tokens=12
    ),  # a limit: it drafts as far as pays
    "ngram": Entry(_ngram, NGRAM_SETTINGS),
    "draft_model": Entry(_draft_model, ("draft_model",), ("draft_model",)),
    "layer_skip": Entry(_layer_skip, ("skip_layers",), ("skip_layers",)),
    "eagle3": Entry(_eagle3, (*DRAFT_SETTINGS, "confidence")),
    "none": Entry(_none),
}
VERIFIERS: dict[str, Entry[Verifier]] = {
    "lossless": Entry(_lossless),
    "lenient": Entry(_lenient, ("lenience",), ("lenience",)),
    "cascade": Entry(_cascade, ("rule", "alpha"), ("rule", "alpha"), check=_cascade_rule),
}
_ENTRIES: tuple[Entry[Any], ...] = (*DRAFTERS.values(), *VERIFIERS.values())
SETTINGS = (*{name: None for entry in _ENTRIES for name in entry.settings}, *TIER_SETTINGS)


def check_settings(
    drafter: str, verifier: str, settings: Mapping[str, Any], tiers: str | None = None, route: Any = None
) -> None:
    """ConfigError, before anything is loaded, for an unknown name, a setting that nothing chosen takes, a setting that
    is missing, or a value that cannot be."""
    check_tiers(tiers, route, {name: settings[name] for name in settings if name in TIER_SETTINGS}, verifier)
    chosen: list[tuple[str, str, Mapping[str, Entry[Any]]]]
    chosen = [("drafter", drafter, DRAFTERS), ("verifier", verifier, VERIFIERS)]
    for kind, name, entries in chosen:
        refuse_unknown([name], tuple(entries), kind)
        for required in entries[name].required:
            if required not in settings:
                raise ConfigError(f"{kind} {name} needs the setting {required}: add {required}=...")
    refuse_unknown(settings, SETTINGS, "setting")
    used = {*DRAFTERS[drafter].settings, *VERIFIERS[verifier].settings, *(TIER_SETTINGS if tiers else ())}
    for name in settings:
        if name not in used:
            raise ConfigError(
                f"setting {name!r} is not used by drafter {drafter} or verifier {verifier}: {_owner(name)}"
            )
    for name, value in settings.items():
        if name in _CHECKS:
            _CHECKS[name](value)
    for entry in (DRAFTERS[drafter], VERIFIERS[verifier]):
        if entry.check is not None:
            entry.check(settings)


def settings_of(entry: Entry[Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the settings that the entry takes."""
    return {name: value for name, value in settings.items() if name in entry.settings}


def _owner(setting: str) -> str:
    owners = [f"--drafter {name}" for name, entry in DRAFTERS.items() if setting in entry.settings]
    owners += [f"--verifier {name}" for name, entry in VERIFIERS.items() if setting in entry.settings]
    owners += [f"--tiers {name}" for name, settings in TIERS_SETTINGS.items() if setting in settings]
    return f"choose {' or '.join(owners)}, or leave it out"


def _vocabulary(loaded: Loaded) -> dict[int, str]:
    """Token id -> token."""
    return {token_id: token for token, token_id in loaded.tokenizer.backend.get_vocab(with_added_tokens=True).items()}


def _refuse_encoder(loaded: Loaded) -> None:
    if getattr(loaded.target, "is_encoder_decoder", False):
        raise ConfigError(f"{loaded.target.info.name} is an encoder-decoder: choose --drafter ngram or none")


def _layers(value: Any) -> list[int]:
    """Layer numbers from 5, [5, 16] or "5,16"."""
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, (list, tuple)) else [value]
    try:
        layers = [int(part) for part in parts]
    except (TypeError, ValueError):
        layers = []
    if not layers:
        raise ConfigError(f"skip_layers is {value!r}: give layer numbers, such as 5,16,17")
    return layers


def _lenience(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
        raise ConfigError(f"lenience is {value!r}: give a number above 0 and below 1")


def _draft(value: Any) -> None:
    if value not in ("auto", "none") and not (isinstance(value, (str, Path)) and Path(value).expanduser().is_dir()):
        raise ConfigError(
            f"draft is {str(value)!r}: give the directory of a draft, or auto for the one that is shipped"
        )


def _confidence(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise ConfigError(f"confidence is {value!r}: give a number from 0 (never stop early) and below 1")


def _draft_precision(value: Any) -> None:
    if value not in DRAFT_PRECISIONS:
        raise ConfigError(f"draft_precision is {value!r}: choose one of {', '.join(DRAFT_PRECISIONS)}")


def _ngram_size(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"an n-gram size of {value!r}: min_ngram and max_ngram are whole numbers, 1 or more")


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "skip_layers": _layers,
    "lenience": _lenience,
    "confidence": _confidence,
    "draft": _draft,
    "draft_precision": _draft_precision,
    "min_ngram": _ngram_size,
    "max_ngram": _ngram_size,
}
