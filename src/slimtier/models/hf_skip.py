"""Run a transformers decoder on a route: silence the attention or the MLP of some layers, and put them back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from slimtier.errors import UnsupportedError
from slimtier.types import Route

ATTENTION_NAMES = ("self_attn", "attn", "attention", "self_attention")
MLP_NAMES = ("mlp", "block_sparse_moe", "feed_forward")


@contextmanager
def replaced_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Have `module` compute `forward` inside the block; its own forward (wrapped by others or not) comes back after."""
    own = module.__dict__.get("forward")
    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        if own is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = own


@contextmanager
def layer_outputs(modules: Sequence[nn.Module]) -> Iterator[list[list[Any]]]:
    """Collect what each module returns inside the block: one list a module, one entry a call."""
    seen: list[list[Any]] = [[] for _ in modules]
    with ExitStack() as stack:
        for module, outputs in zip(modules, seen, strict=True):
            handle = module.register_forward_hook(lambda _m, _a, out, outputs=outputs: outputs.append(out))
            stack.callback(handle.remove)
        yield seen


def leading(output: Any) -> torch.Tensor:
    """The tensor of a module's output, which may be a tuple that begins with it."""
    tensor: torch.Tensor = output[0] if isinstance(output, tuple) else output
    return tensor


@dataclass(frozen=True, slots=True)
class Sublayer:
    """The attention or the MLP of one layer. `arity`: how many values it returns as a tuple; 0 = a bare tensor."""

    module: nn.Module
    arity: int

    def silent(self) -> Callable[..., Any]:
        """A forward that adds nothing to the residual stream: zeros in the place of the sublayer's output."""
        own = self.module.forward

        def run_and_discard(*args: Any, **kwargs: Any) -> Any:
            output = own(*args, **kwargs)
            return (torch.zeros_like(output[0]), *output[1:])

        def skip(*args: Any, **kwargs: Any) -> Any:
            zero = torch.zeros_like(args[0] if args else kwargs["hidden_states"])
            if not self.arity:
                return zero
            # T5's layers hand the position bias of the first one on, as the second value
            rest = [kwargs.get("position_bias"), *[None] * self.arity][: self.arity - 1]
            return (zero, *rest)

        # The first T5 layer computes the position bias that all the others use: it has to run
        return run_and_discard if getattr(self.module, "has_relative_attention_bias", False) else skip


def _find(layer: nn.Module) -> tuple[nn.Module, nn.Module]:
    """The attention and the MLP of a decoder layer: Llama-like, GPT-like, mixture-of-experts, or T5's."""
    parts = getattr(layer, "layer", None)
    if isinstance(parts, nn.ModuleList) and hasattr(parts[0], "SelfAttention"):
        return parts[0].SelfAttention, parts[-1].DenseReluDense  # type: ignore[return-value]
    attention = next((getattr(layer, name) for name in ATTENTION_NAMES if hasattr(layer, name)), None)
    mlp = next((getattr(layer, name) for name in MLP_NAMES if hasattr(layer, name)), None)
    if attention is None or mlp is None:
        raise UnsupportedError(f"no attention and MLP to skip found in {type(layer).__name__}; run it without a route")
    return attention, mlp


class Skipper:
    """The sublayers of a decoder, and how to silence them.

    `probe` runs the decoder on one token. It is called twice: to learn what each sublayer returns, and to see that a
    layer with both silenced hands its input on unchanged (a T5 layer still has its cross-attention, and is not held
    to that). Raises UnsupportedError when a layer has another structure.
    """

    def __init__(self, layers: Sequence[nn.Module], probe: Callable[[], object]) -> None:
        found = [_find(layer) for layer in layers]
        modules = [module for pair in found for module in pair]
        with layer_outputs(modules) as seen:
            probe()
        outputs = [calls[0] for calls in seen]
        sublayers = [Sublayer(m, len(o) if isinstance(o, tuple) else 0) for m, o in zip(modules, outputs, strict=True)]
        self.attention = sublayers[0::2]
        self.mlp = sublayers[1::2]
        self._check(layers, probe)

    def _check(self, layers: Sequence[nn.Module], probe: Callable[[], object]) -> None:
        unchanged: list[bool] = []

        def compare(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            given = args[0] if args else kwargs["hidden_states"]
            unchanged.append(
                isinstance(getattr(module, "layer", None), nn.ModuleList) or torch.equal(given, leading(output))
            )

        nothing = Route.skipping(len(layers), range(len(layers)))
        with ExitStack() as stack:
            for layer in layers:
                stack.callback(layer.register_forward_hook(compare, with_kwargs=True).remove)
            stack.enter_context(self.applied(nothing))
            probe()
        if not all(unchanged):
            kind = type(layers[unchanged.index(False)]).__name__
            raise UnsupportedError(f"{kind} is more than the sum of its sublayers; run it without a route")

    @contextmanager
    def applied(self, route: Route) -> Iterator[None]:
        """Silence what `route` skips inside the block; everything is restored after it, also on an error."""
        kept = [*zip(self.attention, route.runs_attention, strict=True), *zip(self.mlp, route.runs_mlp, strict=True)]
        with ExitStack() as stack:
            for sublayer, runs in kept:
                if not runs:
                    stack.enter_context(replaced_forward(sublayer.module, sublayer.silent()))
            yield
