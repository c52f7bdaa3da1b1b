"""Keywords of a request, checked: sampling, when it ends, what is reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from slimtier.config import refuse_unknown as refuse_unknown
from slimtier.errors import InputError
from slimtier.types import SamplingParams, StopParams

SAMPLING_OPTIONS = tuple(field.name for field in fields(SamplingParams))
STOP_OPTIONS = tuple(field.name for field in fields(StopParams))
OPTIONS = (*SAMPLING_OPTIONS, *STOP_OPTIONS, "logprobs", "n")

ANY_VOCABULARY = 2**62  # while the model is not known


@dataclass(frozen=True, slots=True)
class Options:
    """A request without its prompt. `logprobs`: each token's and the top n (None = no); `n`: how many answers."""

    sampling: SamplingParams
    stop: StopParams
    logprobs: int | None = None
    n: int = 1


def read_options(
    given: Mapping[str, Any], sampling: SamplingParams | None = None, vocab_size: int = ANY_VOCABULARY
) -> Options:
    """Options from keywords, checked; a keyword goes before the same field of `sampling`.

    Raises ConfigError for an unknown name, InputError for a value of the wrong kind or out of range.
    """
    from slimtier.sampling import validate

    refuse_unknown(given, OPTIONS, "option")
    values = {name: _READ[name](name, value) if name in _READ else value for name, value in given.items()}
    n, logprobs = values.pop("n", 1), values.pop("logprobs", None)
    if n < 1:
        raise InputError(f"n is {n}: give 1 or more answers")
    if logprobs is not None and logprobs > vocab_size:
        raise InputError(f"logprobs is {logprobs}: the model's vocabulary has only {vocab_size} tokens")
    stop = StopParams(**{name: values.pop(name) for name in STOP_OPTIONS if name in values})
    params = replace(sampling or SamplingParams(), **values)
    validate(params, vocab_size)
    return Options(params, stop, logprobs, n)


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < 0:
        raise InputError(f"{name} is {value!r}: give a whole number, 0 or more")
    return int(value)


def _whole_or_none(name: str, value: Any) -> int | None:
    return None if value is None else _whole(name, value)


def _token_ids(name: str, value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    return tuple(_whole(name, one) for one in (value if isinstance(value, (list, tuple, set, frozenset)) else [value]))


def _truth(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{name} is {value!r}: give true or false")
    return value


def _texts(name: str, value: Any) -> tuple[str, ...]:
    stops = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, (list, tuple)) else None
    if stops is None or not all(isinstance(one, str) and one for one in stops):
        raise InputError(f"{name} is {value!r}: give a text or a list of texts, none of them empty")
    return stops


def _bias(name: str, value: Any) -> dict[int, float]:
    """Keys may be texts of digits, as JSON has them."""
    try:
        return {int(token_id): float(bias) for token_id, bias in value.items()}
    except (AttributeError, TypeError, ValueError):
        raise InputError(f"{name} is {value!r}: give a mapping of token ids to numbers") from None


def _callables(name: str, value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


_READ: dict[str, Callable[[str, Any], Any]] = {
    "n": _whole,
    "logprobs": _whole_or_none,
    "max_new_tokens": _whole,
    "eos_token_ids": _token_ids,
    "ignore_eos": _truth,
    "stop": _texts,
    "logit_bias": _bias,
    "processors": _callables,
}
