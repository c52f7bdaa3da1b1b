"""Whether sampled output follows the target's distribution: many draws from a model so small that every probability can
be written down."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VOCABULARY, LENGTH = 8, 3  # 512 outcomes
DRAWS, ROWS = 12000, 1500
PROMPT = (3, 1, 4, 3, 1)  # which goes on as it began, says an n-gram
LEAST_EXPECTED = 5.0  # outcomes that are rarer are counted together
ALARM = 1e-4  # a true sampler falls below this once in ten thousand runs
DRAFTERS: dict[str, dict[str, Any]] = {
    "always": {"skip": ()},
    "sometimes": {"skip": (1,)},
    "by copying": {"ngram": True},
}


@dataclass(frozen=True, slots=True)
class DrawsCheck:
    """`accepts`: how the drafter was meant to do; `acceptance_rate`: how it did. `p_value`: of Pearson's chi-square
    test of the draws against the target's distribution over all texts of `LENGTH` tokens."""

    accepts: str
    draws: int
    acceptance_rate: float
    p_value: float
    verdict: str


def check_draws(seed: int, draws: int = DRAWS) -> Iterator[DrawsCheck]:
    """One check for each kind of drafter, at temperature 1, on the native runtime."""
    with tempfile.TemporaryDirectory() as place:
        target = _small_target(Path(place), seed)
        wanted = _distribution(target)
        for accepts, how in DRAFTERS.items():
            counts, rate = _drawn(target, how, seed, draws)
            p_value = chi_square(counts, wanted, draws)
            yield DrawsCheck(accepts, draws, rate, p_value, "as the target" if p_value > ALARM else "defect")


def chi_square(counts: Counter[Any], wanted: dict[Any, float], draws: int) -> float:
    """The p-value of Pearson's test; an outcome that cannot be is p = 0."""
    import torch

    if any(outcome not in wanted for outcome in counts):
        return 0.0
    statistic, cells, rare, rare_expected = 0.0, 0, 0, 0.0
    for outcome, probability in wanted.items():
        expected = probability * draws
        if expected < LEAST_EXPECTED:
            rare, rare_expected = rare + counts[outcome], rare_expected + expected
            continue
        statistic, cells = statistic + (counts[outcome] - expected) ** 2 / expected, cells + 1
    if rare_expected:
        statistic, cells = statistic + (rare - rare_expected) ** 2 / rare_expected, cells + 1
    halves = torch.tensor([(cells - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(halves[0], halves[1]))


def _small_target(place: Path, seed: int) -> Any:
    """A random Llama of two layers on the native runtime."""
    import torch
    import transformers

    from slimtier.models.native import load_native
    from slimtier.models.resolve import resolve

    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=0.4,
        bos_token_id=0,
        eos_token_id=0,
    )
    logging: Any = transformers.logging
    logging.disable_progress_bar()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        transformers.LlamaForCausalLM(config).save_pretrained(place)
    return load_native(resolve(str(place)), precision="fp32", threads=1)


def _distribution(target: Any) -> dict[tuple[int, ...], float]:
    """The probability of each text of LENGTH tokens, token by token without any drafter."""
    import torch

    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(LENGTH):
        longer: dict[tuple[int, ...], float] = {}
        for text, probability in found.items():
            row = [*PROMPT, *text]
            hidden, _ = target.forward(row, target.begin(1, len(row)), [len(row)])
            probs = torch.softmax(target.head(hidden[-1:])[0].double(), -1).tolist()
            longer |= {(*text, token): probability * probs[token] for token in range(VOCABULARY)}
        found = longer
    return found


def _drawn(target: Any, how: dict[str, Any], seed: int, draws: int) -> tuple[Counter[tuple[int, ...]], float]:
    from slimtier.drafters.model import ModelDrafter
    from slimtier.drafters.ngram import NgramDrafter
    from slimtier.engine import Engine
    from slimtier.types import Route

    layers = target.info.num_layers
    skipping = Route.skipping(layers, how.get("skip", ()))
    drafter = NgramDrafter(min_ngram=1) if "ngram" in how else ModelDrafter(target, route=skipping)
    engine = Engine(target, drafter, num_speculative_tokens=LENGTH - 1)
    counts: Counter[tuple[int, ...]] = Counter()
    drafted = accepted = 0
    for number in range(-(-draws // ROWS)):
        rows = min(ROWS, draws - counts.total())
        asked: dict[str, Any] = {
            "max_new_tokens": LENGTH,
            "ignore_eos": True,
            "temperature": 1.0,
            "seed": seed * 1000 + number,
        }
        results: Any = engine.generate(list(PROMPT), n=rows, **asked)
        for result in results if isinstance(results, list) else [results]:
            counts[tuple(result.token_ids)] += 1
            drafted += result.stats.num_draft_tokens
            accepted += result.stats.num_accepted_tokens
    return counts, accepted / drafted if drafted else 0.0
