"""slimtier inside transformers: `model.generate(..., custom_generate=slimtier.custom_generate(...))`."""

from __future__ import annotations

import inspect
import itertools
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from transformers import AutoTokenizer, GenerationMixin, PreTrainedModel
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from slimtier import decode
from slimtier.drafters.base import Drafter
from slimtier.drafters.model import ModelDrafter
from slimtier.drafters.vocabulary import check_vocabulary
from slimtier.engine import check_count
from slimtier.errors import ConfigError, InputError
from slimtier.hf_columns import Columns, Recorder, RowProcessor, RowText
from slimtier.hf_request import Prompts, read_prompts, refuse
from slimtier.loading import Loaded
from slimtier.models.hf import HfTarget
from slimtier.models.hf_load import load_model
from slimtier.models.resolve import resolve
from slimtier.registry import DRAFTERS, VERIFIERS, check_settings, settings_of
from slimtier.sampling import Noise
from slimtier.sequence import Request, Sequence
from slimtier.types import SamplingParams, StopParams
from slimtier.verifiers.base import Verifier


def custom_generate(
    *,
    drafter: str = "auto",
    verifier: str = "lossless",
    num_speculative_tokens: int | None = None,
    **settings: Any,
) -> CustomGenerate:
    """What `generate` of a transformers model takes as `custom_generate`: its own loop, with speculation.

    >>> speculate = slimtier.custom_generate(drafter="ngram")
    >>> model.generate(**inputs, custom_generate=speculate, max_new_tokens=64)

    Drafters, verifiers and their settings are those of `Engine.from_pretrained`; `draft_model` may be a model object
    too. Greedy output is what plain generate gives, near-ties of the model's own rounding apart; sampled output has
    the same distribution, and is repeatable with torch.manual_seed. Raises ConfigError for a name or setting that is
    unknown or does not fit; a call raises ConfigError or InputError for an option of generate that cannot be served.
    """
    check_settings(drafter, verifier, settings)
    if num_speculative_tokens is None:
        num_speculative_tokens = DRAFTERS[drafter].num_speculative_tokens
    check_count(num_speculative_tokens)
    draft = settings.get("draft_model", "")
    if not isinstance(draft, (str, os.PathLike, PreTrainedModel)):
        raise ConfigError(f"draft_model is {draft!r}: give a model's name or directory, or a transformers model")
    return CustomGenerate(drafter, verifier, num_speculative_tokens, settings)


@dataclass(frozen=True, slots=True)
class Parts:
    """What decodes for one model."""

    target: HfTarget
    drafter: Drafter
    verifier: Verifier


class CustomGenerate:
    """A decoding method of transformers' `generate`; see `custom_generate`. It serves one thread, and keeps the parts
    made for the last model it was called for (and with them that model)."""

    def __init__(self, drafter: str, verifier: str, num_speculative_tokens: int, settings: Mapping[str, Any]) -> None:
        self._drafter = drafter
        self._verifier = verifier
        self._num_speculative_tokens = num_speculative_tokens
        self._settings = dict(settings)
        self._keys = itertools.count()
        self._parts: Parts | None = None

    def __call__(
        self,
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        synced_gpus: bool = False,
        streamer: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        """What `GenerationMixin._sample` is given and gives: ids [B, L + output], or the output class around them."""
        dropped = {"synced_gpus": synced_gpus, "streamer": streamer, **_dropped_arguments()}
        refuse(model, generation_config, logits_processor, len(input_ids), dropped)
        prompts = read_prompts(model, input_ids, generation_config.num_return_sequences or 1, model_kwargs)
        parts = self._parts_for(model)
        budget = max(1, stopping_criteria.max_length - input_ids.shape[1])
        _check_length(parts.target, prompts, budget)
        recorder = Recorder(parts.verifier, len(prompts.tokens(0)))
        with_scores, with_logits = (_wants(generation_config, name) for name in ("output_scores", "output_logits"))
        pad = generation_config._pad_token_tensor
        columns = Columns(
            input_ids,
            stopping_criteria,
            0 if pad is None else int(pad),
            dropped["streamer"],
            recorder.scores if with_scores else None,
        )
        rows = self._rows(prompts, columns, tuple(logits_processor), generation_config.do_sample, budget)
        self._decode(parts, recorder if with_scores or with_logits else parts.verifier, prompts, rows, columns)
        if dropped["streamer"] is not None:
            dropped["streamer"].end()
        if not generation_config.return_dict_in_generate:
            return columns.input_ids
        output: Any = GenerateEncoderDecoderOutput if model.config.is_encoder_decoder else GenerateDecoderOnlyOutput
        return output(
            sequences=columns.input_ids,
            scores=recorder.scores(columns.count) if with_scores else None,
            logits=recorder.logits(columns.count) if with_logits else None,
        )

    def _rows(
        self, prompts: Prompts, columns: Columns, processors: tuple[Any, ...], do_sample: bool, budget: int
    ) -> list[Sequence]:
        """A sequence for each row. Temperature and filters are among the processors, as generate has them."""
        # the seed comes from torch's generator, so that torch.manual_seed repeats an answer; greedy leaves it alone
        seed = int(torch.randint(2**62, ())) if do_sample else 0
        rows = []
        for row, padding in enumerate(prompts.padding):
            hidden = tuple(prompts.input_ids[row, :padding].tolist())
            processor = RowProcessor(processors, row, len(prompts.padding), hidden, prompts.input_ids.device)
            noise = Noise.of(seed, row, "verifier")
            request = Request(
                sampling=SamplingParams(
                    temperature=1.0 if do_sample else 0.0, processors=(processor,) if processors else (), seed=seed
                ),
                stop=StopParams(max_new_tokens=budget),
                eos_token_ids=frozenset(),  # the columns know
                context=sys.maxsize,  # checked before
                target_noise=noise,
                draft_noise=noise.fork("drafter"),
            )
            rows.append(Sequence(next(self._keys), request, prompts.tokens(row), RowText(columns, row)))
        return rows

    def _decode(
        self, parts: Parts, verifier: Verifier, prompts: Prompts, rows: list[Sequence], columns: Columns
    ) -> None:
        capacity = max(len(row.token_ids) + row.left() for row in rows)
        cache, copies = prompts.begin(parts.target, capacity), prompts.copies
        drafter, keys = parts.drafter, [row.key for row in rows]
        try:
            decode.prefill(parts.target, cache, [row.token_ids for row in rows[::copies]], drafter, keys[::copies])
            if copies > 1:
                decode.fork(cache, drafter, rows, copies)
            for _ in decode.generate(drafter, verifier, cache, rows, self._num_speculative_tokens):
                if columns.ended:  # rows that ran ahead of the last column need not learn of it
                    break
        finally:
            if drafter.capture:
                drafter.reset(keys)

    def _parts_for(self, model: Any) -> Parts:
        if self._parts is None or self._parts.target.model is not model:
            target = HfTarget(model)

            def load_other(name: str) -> Loaded:
                return Loaded(_load_beside(target, name), None)

            loaded, drafting, verifying = Loaded(target, None), DRAFTERS[self._drafter], VERIFIERS[self._verifier]
            if "draft_model" in drafting.settings:
                drafter: Drafter = _model_drafter(self._settings["draft_model"], target)
            else:
                drafter = drafting.build(loaded, settings_of(drafting, self._settings), load_other)
            verifier = verifying.build(loaded, settings_of(verifying, self._settings), load_other)
            self._parts = Parts(target, drafter, verifier)
        return self._parts


def _dropped_arguments() -> Mapping[str, Any]:
    """The arguments of the generate call that this is called from. For a callable, transformers' generate forgets its
    streamer, synced_gpus and assistant_model instead of passing them on: they are read where they still stand."""
    code = inspect.unwrap(GenerationMixin.generate).__code__
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    names = ("streamer", "synced_gpus", "assistant_model")
    return {} if frame is None else {name: frame.f_locals.get(name) for name in names}


def _check_length(target: HfTarget, prompts: Prompts, budget: int) -> None:
    longest = prompts.input_ids.shape[1] - min(prompts.padding)
    room = target.info.max_positions + 1 - longest  # the last token is not fed back
    if budget > room:
        raise InputError(
            f"the prompt has {longest} tokens and may grow by {budget}, and the model holds "
            f"{target.info.max_positions}: give max_new_tokens of at most {max(room, 0)}, or a shorter prompt"
        )


def _wants(generation_config: Any, output: str) -> bool:
    return bool(generation_config.return_dict_in_generate and getattr(generation_config, output))


def _load_beside(target: HfTarget, name: str) -> HfTarget:
    """Another model, in the target's precision and on its device."""
    files = resolve(name)
    return HfTarget(load_model(str(files.path), target.model.dtype).to(target.model.device), name=files.name)


def _model_drafter(given: Any, target: HfTarget) -> ModelDrafter:
    """A drafter of a transformers model, or of the name of one."""
    if target.is_encoder_decoder:
        raise ConfigError(f"{target.info.name} is an encoder-decoder: choose drafter ngram or none")
    if isinstance(given, PreTrainedModel):
        if given.training:
            raise InputError("draft_model is in training mode: call draft_model.eval() first")
        draft = HfTarget(given)
    else:
        draft = _load_beside(target, str(given))
    check_vocabulary(draft.info, target.info, *_vocabularies(draft, target))
    return ModelDrafter(draft, name="draft_model", vocab_size=target.info.vocab_size)


def _vocabularies(draft: HfTarget, target: HfTarget) -> tuple[Mapping[int, str] | None, Mapping[int, str] | None]:
    """Token id -> token of each model's own tokenizer; only asked for where the number of tokens differs, which for
    models of one family is padding."""
    if draft.info.vocab_size == target.info.vocab_size:
        return None, None
    names = draft.model.config.name_or_path, target.model.config.name_or_path
    try:
        first, second = (AutoTokenizer.from_pretrained(name).get_vocab() for name in names)
    except (OSError, ValueError):  # a model made without files
        return None, None
    return _inverted(first), _inverted(second)


def _inverted(vocabulary: Mapping[str, int]) -> dict[int, str]:
    return {token_id: token for token, token_id in vocabulary.items()}
