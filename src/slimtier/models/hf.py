"""Any transformers causal language model or encoder-decoder as a target: wrapped, never copied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, overload

import torch
from transformers.modeling_outputs import BaseModelOutput

from slimtier.errors import ConfigError, InputError, NonFiniteError, UnsupportedError
from slimtier.models.base import BestTwo, Cache, Reduce, TargetInfo, VocabWeight, reduced
from slimtier.models.hf_cache import HfCache, Row, cache_argument, new_row
from slimtier.models.hf_load import (
    decoder_layers,
    eos_token_ids,
    find_decoder,
    generation_setting,
    load_model,
    max_positions,
    weight_bytes,
)
from slimtier.models.hf_skip import Skipper, layer_outputs, leading, replaced_forward
from slimtier.models.rows import normal_route, refuse_precisions
from slimtier.types import Route

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PRECISIONS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
CHECK_TOKENS = 7


class HfTarget:
    """A transformers model as `Target`: its own code computes everything, row by row, without gradients.

    The model is put in evaluation mode. At construction a few tokens are run through begin, forward, crop and head,
    and compared with the model's own logits: a model that this wrapper would get wrong raises UnsupportedError.
    For an encoder-decoder (`is_encoder_decoder`) the tokens of a row are the decoder's, and begin with
    `decoder_start_token_id`, which the caller gives.
    """

    def __init__(self, model: Any, *, name: str | None = None) -> None:
        self.model = model.eval()
        self.is_encoder_decoder = bool(model.config.is_encoder_decoder)
        self.decoder_start_token_id: int | None = generation_setting(model, "decoder_start_token_id")
        self._decoder = find_decoder(model)
        self._cache_argument = cache_argument(model, self._decoder)
        self._layers = decoder_layers(self._decoder)
        self._skipper: Skipper | None = None
        self._hidden_size = 0  # the width of what the head takes, seen in the check
        self._max_positions = max_positions(self._decoder.config)
        self._num_embeddings = int(model.get_input_embeddings().weight.shape[0])
        self.info = self._checked_info(name or model.config.name_or_path or type(model).__name__)

    @classmethod
    def from_pretrained(
        cls, path_or_id: str | Path, *, precision: str = "fp32", device: str = "cpu", name: str | None = None
    ) -> HfTarget:
        """Load a hub id, a directory, or a .gguf file (whose codes become `precision`, fp32 or bf16).

        Raises ConfigError for another precision, ModelFileError for what cannot be read or lacks tensors, and
        UnsupportedError for a model that cannot be decoded from speculatively.
        """
        if precision not in DTYPES:
            raise ConfigError(f"the hf runtime has no precision {precision!r}; choose one of {', '.join(DTYPES)}")
        return cls(load_model(str(path_or_id), DTYPES[precision]).to(device), name=name or str(path_or_id))

    @torch.inference_mode()
    def begin(self, num_rows: int, capacity: int, inputs: Sequence[Sequence[int]] | None = None) -> HfCache:
        """An empty cache of `num_rows` rows. An encoder-decoder needs `inputs`, and its encoder runs once a row."""
        if not self.is_encoder_decoder:
            if inputs is not None:
                raise InputError("encoder inputs were given, but the model has no encoder; put them in the prompt")
            return HfCache([new_row(len(self._layers)) for _ in range(num_rows)], capacity)
        if inputs is None or len(inputs) != num_rows or not all(inputs):
            raise InputError(f"an encoder-decoder needs encoder inputs for each of {num_rows} rows, none of them empty")
        for tokens in inputs:
            self._validate_ids(tokens)
        encoder = self.model.get_encoder()
        rows = []
        for tokens in inputs:
            encoded = encoder(input_ids=self._ids(tokens)).last_hidden_state
            rows.append(new_row(len(self._layers), encoded))
        return HfCache(rows, capacity)

    @torch.inference_mode()
    def forward(
        self,
        tokens: Sequence[int],
        cache: Cache,
        lengths: Sequence[int],
        *,
        route: Route | None = None,
        capture: Sequence[int] = (),
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """See `Target.forward`. On any error the cache is left as it was, and the model's modules too."""
        if not isinstance(cache, HfCache):
            raise InputError(f"a cache of {type(cache).__name__} is not this runtime's; get one from begin()")
        self._validate(tokens, cache, lengths, capture)
        route = normal_route(route, len(self._layers))
        refuse_precisions(route, "hf")
        cache.claim(lengths, route)
        if not tokens:
            empty = torch.empty(0, self._hidden_size, dtype=self.model.dtype, device=self.model.device)
            return empty, tuple(empty.new_empty(0, self._decoder.config.hidden_size) for _ in capture)
        hidden = []
        try:
            with self._on(route), layer_outputs([self._layers[i] for i in capture]) as seen:
                start = 0
                for row, length, before in zip(cache.rows, lengths, cache.lengths, strict=True):
                    if length:
                        hidden.append(self._run(row, tokens[start : start + length]))
                        row.settle(before + length)  # layers whose attention is skipped saw no token
                    start += length
        except BaseException:
            for row, before in zip(cache.rows, cache.lengths, strict=True):
                row.settle(before)
            raise
        cache.append(lengths, route)
        features = tuple(torch.cat([leading(out)[0] for out in outputs]) for outputs in seen)
        return torch.cat(hidden), features

    @overload
    def head(self, hidden: torch.Tensor, reduce: Literal["logits"] = "logits") -> torch.Tensor: ...
    @overload
    def head(self, hidden: torch.Tensor, reduce: Literal["argmax"]) -> list[int]: ...
    @overload
    def head(self, hidden: torch.Tensor, reduce: Literal["best two"]) -> BestTwo: ...
    @overload
    def head(self, hidden: torch.Tensor, reduce: Reduce) -> torch.Tensor | list[int] | BestTwo: ...

    @torch.inference_mode()
    def head(self, hidden: torch.Tensor, reduce: str = "logits") -> torch.Tensor | list[int] | BestTwo:
        """See `Target.head`. The model itself computes the logits, with `hidden` in its decoder's place, so that
        whatever it does around its head (scales, soft caps, biases) is done."""
        if not len(hidden):
            logits = torch.empty(0, self.info.vocab_size, device=hidden.device)
        else:
            logits = self._logits(hidden)
            finite = (hidden.isfinite().all(-1) & logits.isfinite().all(-1)).tolist()
            if not all(finite):
                raise NonFiniteError(
                    f"row {finite.index(False)} of the logits is not finite (NaN or infinity); "
                    "check the weights, or use precision fp32"
                )
        return reduced(logits, reduce)

    def weight(self, name: VocabWeight) -> torch.Tensor:
        """See `Target.weight`."""
        module = self.model.get_input_embeddings() if name == "embedding" else self.model.get_output_embeddings()
        return module.weight.detach().float()  # type: ignore[no-any-return]

    def _run(self, row: Row, tokens: Sequence[int]) -> torch.Tensor:
        """Append `tokens` to one row: hidden [T, hidden]."""
        arguments: dict[str, Any] = {self._cache_argument: row.state}
        if row.encoded is not None:
            arguments["encoder_hidden_states"] = row.encoded
        output = self._decoder(input_ids=self._ids(tokens), use_cache=True, **arguments)
        return output.last_hidden_state[0]  # type: ignore[no-any-return]

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 [M, vocab] from hidden [M, hidden]."""
        arguments: dict[str, Any] = {"input_ids": self._ids([0])}
        if self.is_encoder_decoder:
            arguments["decoder_input_ids"] = arguments["input_ids"]
            arguments["encoder_outputs"] = BaseModelOutput(last_hidden_state=hidden[None, :1])
        with replaced_forward(self._decoder, lambda *_args, **_kwargs: _Given(hidden[None])):
            return self.model(use_cache=False, **arguments).logits[0].float()  # type: ignore[no-any-return]

    def _ids(self, tokens: Sequence[int]) -> torch.Tensor:
        """Token ids [1, T] on the model's device."""
        return torch.tensor([list(tokens)], dtype=torch.long, device=self.model.device)

    def _validate_ids(self, tokens: Sequence[int]) -> None:
        wrong = next((t for t in tokens if not 0 <= t < self._num_embeddings), None)
        if wrong is not None:
            last = self._num_embeddings - 1
            raise InputError(f"token id {wrong} is not in the vocabulary; give ids from 0 to {last}")

    def _validate(self, tokens: Sequence[int], cache: HfCache, lengths: Sequence[int], capture: Sequence[int]) -> None:
        if len(lengths) != len(cache.lengths) or min(lengths, default=0) < 0 or sum(lengths) != len(tokens):
            raise InputError(
                f"lengths {list(lengths)} do not share {len(tokens)} tokens out over {len(cache.lengths)} rows; "
                "give one length a row, which sum to the number of tokens"
            )
        limit = min(cache.capacity, self._max_positions)
        longest = max((a + b for a, b in zip(cache.lengths, lengths, strict=True)), default=0)
        if longest > limit:
            raise InputError(
                f"a row would hold {longest} tokens and may hold {limit}; shorten it or raise the capacity"
            )
        self._validate_ids(tokens)
        wrong = next((i for i in capture if not 0 <= i < len(self._layers)), None)
        if wrong is not None:
            raise InputError(f"layer {wrong} cannot be captured; the layers are 0 to {len(self._layers) - 1}")

    @contextmanager
    def _on(self, route: Route | None) -> Iterator[None]:
        """Run what is inside the block on `route`."""
        with ExitStack() as stack:
            if route is not None:
                if self._skipper is None:
                    self._skipper = Skipper(self._layers, self._probe)
                stack.enter_context(self._skipper.applied(route))
            yield

    def _check_begin(self) -> tuple[list[int], HfCache]:
        """A few tokens for a check, and an empty cache of one row."""
        count = min(CHECK_TOKENS, self._num_embeddings, self._max_positions)
        middle = (self._num_embeddings - count) // 2  # away from padding and special tokens
        tokens = list(range(middle, middle + count))
        return tokens, self.begin(1, 2 * count, [tokens] if self.is_encoder_decoder else None)

    def _probe(self) -> None:
        tokens, cache = self._check_begin()
        self._run(cache.rows[0], tokens[:1])

    @torch.inference_mode()
    def _checked_info(self, name: str) -> TargetInfo:
        """Run a few tokens in pieces, with one piece taken back, against the model's own logits for all at once."""
        tokens, cache = self._check_begin()
        ids = self._ids(tokens)
        arguments = {"input_ids": ids, "decoder_input_ids": ids} if self.is_encoder_decoder else {"input_ids": ids}
        own = self.model(use_cache=False, **arguments).logits[0].float()  # [T, vocab]
        half = len(tokens) // 2
        first, _ = self.forward(tokens[:half], cache, [half])
        self.forward(tokens[:half], cache, [half])
        cache.crop([half])
        second, _ = self.forward(tokens[half:], cache, [len(tokens) - half])
        logits = self.head(torch.cat([first, second]))
        error = float((logits - own).abs().max() / own.abs().max().clamp(min=1e-30))
        # 16-bit arithmetic differs between chunkings, more so where a router then takes another expert
        if error > (1e-4 if self.model.dtype == torch.float32 else 0.1):
            raise UnsupportedError(
                f"{name}: logits computed in pieces differ from the model's own by {error:.1e}, relative; "
                f"{type(self.model).__name__} cannot be wrapped, choose another model"
            )
        self._hidden_size = first.shape[-1]
        return TargetInfo(
            name=name,
            runtime="hf",
            precision=PRECISIONS.get(self.model.dtype, str(self.model.dtype)),
            vocab_size=own.shape[-1],
            hidden_size=self._hidden_size,
            num_layers=len(self._layers),
            max_positions=self._max_positions,
            eos_token_ids=eos_token_ids(self.model),
            exact=False,
            weight_bytes=weight_bytes(self.model, self._decoder),
        )


class _Given:
    """A decoder's output that consists of a hidden state [1, M, hidden] and of nothing else."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: Any) -> Any:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        return None
