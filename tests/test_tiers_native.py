"""Tiers of a tiny model on the kernels: bit for bit what plain decoding and caches computed afresh give."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from slimtier.drafters.auto import AutoDrafter
from slimtier.drafters.eagle.open import open_drafter
from slimtier.drafters.model import ModelDrafter
from slimtier.drafters.ngram import NgramDrafter
from slimtier.drafters.none import NoDrafter
from slimtier.drafters.tiered import TieredDrafter
from slimtier.engine import Engine
from slimtier.errors import ConfigError
from slimtier.models.native import load_native
from slimtier.models.resolve import resolve
from slimtier.models.route_file import ModelIdentity, RouteFile
from slimtier.tiers import join
from slimtier.types import Draft, Route, Verdict
from slimtier.verifiers.base import VerifyRow
from tests.drafters.eagle.drafts import save_random
from tests.models.native_models import save
from tests.small_tokenizer import small_tokenizer
from tests.test_engine import many, one

PROMPTS = [[5, 9, 13, 7, 9, 13], [21], torch.randint(3, 96, (70,), generator=torch.Generator().manual_seed(7)).tolist()]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("llama")
    save("llama", directory)
    small_tokenizer(96).save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def targets(llama: Path) -> dict[str, Any]:
    return {name: load_native(resolve(str(llama)), precision=name, threads=1) for name in ("fp32", "q8", "q4")}


@pytest.fixture(scope="module")
def draft(llama: Path, targets: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random(targets["fp32"], tmp_path_factory.mktemp("drafts") / "draft")


def make_drafter(name: str, target: Any, draft: Path) -> Any:
    if name in ("eagle", "auto"):
        network = open_drafter(draft, target, precision="fp32")
        return network if name == "eagle" else AutoDrafter(network=network)
    makers = {
        "none": NoDrafter,
        "ngram": NgramDrafter,
        "layer_skip": lambda: ModelDrafter(target, Route.skipping(4, [1, 2]), name="layer_skip"),
    }
    return makers[name]()


class Watched:
    """A verifier that looks at the cache after each round: what the target wrote, and after it the slim verifier, must
    give the next token the hidden state that caches computed afresh give it, to the last bit. `unverified` counts
    rounds that the target did not see."""

    def __init__(self, verifier: Any) -> None:
        self.verifier = verifier
        self.name, self.lossless, self.steady = verifier.name, verifier.lossless, verifier.steady
        self.wants_draft_probs = getattr(verifier, "wants_draft_probs", False)
        self.rounds = self.unverified = 0

    def verify(
        self, rows: Sequence[VerifyRow], drafts: Sequence[Draft], cache: Any, capture: Sequence[int] = ()
    ) -> list[Verdict]:
        verdicts: list[Verdict] = self.verifier.verify(rows, drafts, cache, capture)
        for place, (row, verdict) in enumerate(zip(rows, verdicts, strict=True)):
            self.look([*row.token_ids, *verdict.token_ids], cache, place)
        return verdicts

    def look(self, tokens: list[int], cache: Any, place: int) -> None:
        target, slim = self.verifier.target, getattr(self.verifier, "slim", None)
        lengths, verified = list(cache.lengths), cache.verified[place]
        assert lengths[place] == len(tokens) - 1
        cache.keep([*range(len(lengths)), place])  # on a copy of the row
        idle = [0] * len(lengths)
        if verified < lengths[place]:
            self.unverified += 1
            said, _ = slim.forward(tokens[-1:], cache, [*idle, 1])
            afresh = target.begin(1, 256)
            target.forward(tokens[:verified], afresh, [verified])
            assert torch.equal(said, slim.forward(tokens[verified:], afresh, [len(tokens) - verified])[0][-1:])
        cache.crop([*lengths, verified])
        said, _ = target.forward([tokens[verified]], cache, [*idle, 1])
        assert torch.equal(said, target.forward(tokens[: verified + 1], target.begin(1, 256), [verified + 1])[0][-1:])
        cache.keep(range(len(lengths)))
        self.rounds += 1


CASES = [
    ("fp32", "none", "q4", 11),
    ("fp32", "ngram", "q8,q4", "11,5"),
    ("fp32", "eagle", "skip:0.5", 4),
    ("fp32", "auto", "q8,q4", 3),
    ("fp32", "layer_skip", "none,q8,q4", "6,4,2"),
    ("fp32", "eagle", "q4", 6),
    ("q8", "none", "none", 5),
    ("q8", "layer_skip", "skip:0.25", 1),
    ("q8", "eagle", "q4", 30),
    ("q8", "auto", "skip:0.25,skip:0.5", "7,3"),
    ("q4", "ngram", "skip:0.5", 3),
    ("q4", "none", "q8", 4),
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"frequency_penalty": 1.0, "logit_bias": {7: 1.5}},
    {"temperature": 1.0, "coupling": "gumbel", "seed": 3, "top_p": 0.9},
]


@pytest.mark.parametrize(("precision", "drafter", "route", "flush"), CASES)
def test_exact_tiers_give_the_targets_own_tokens(
    precision: str, drafter: str, route: str, flush: Any, targets: dict[str, Any], draft: Path
) -> None:
    """Rows of unequal lengths that end at different rounds; then the turns of a chat."""
    target = targets[precision]
    joined = join(target, make_drafter(drafter, target, draft), 4, "exact", route, {"flush": flush})
    verifier = Watched(joined.verifier)
    engine = Engine(target, joined.drafter, verifier, num_speculative_tokens=joined.num_speculative_tokens)
    plain = Engine(target)
    for options in OPTIONS:
        own = many(plain.generate(PROMPTS, max_new_tokens=24, ignore_eos=True, **options))
        ends = {"eos_token_ids": [own[0].token_ids[9], own[2].token_ids[4]], "max_new_tokens": 24, **options}
        want, found = (many(each.generate(PROMPTS, **ends)) for each in (plain, engine))
        assert [each.token_ids for each in found] == [each.token_ids for each in want]
        assert [each.finish_reason for each in found] == [each.finish_reason for each in want]
    assert verifier.rounds > 5
    assert verifier.unverified == 0
    tokens = list(PROMPTS[0])
    for turn in range(2):
        result = one(engine.generate(tokens, max_new_tokens=10, ignore_eos=True))
        assert (result.stats.num_cached_tokens > 0) == (turn > 0)
        assert result.token_ids == one(Engine(target).generate(tokens, max_new_tokens=10, ignore_eos=True)).token_ids
        tokens += [*result.token_ids, 8, 9]
    context = target.info.max_positions
    result = one(engine.generate([5, 6] * (context // 2 - 5), max_new_tokens=99, ignore_eos=True))
    assert result.finish_reason == "context"
    assert result.stats.num_output_tokens == 10


def test_a_slim_verifier_that_is_the_target_is_never_corrected(targets: dict[str, Any]) -> None:
    for precision, route in (("fp32", "none"), ("q4", "q4"), ("q8", "q8")):
        for temperature in (0.0, 1.0):
            joined = join(targets[precision], NoDrafter(), 4, "exact", route, {"flush": 4})
            engine = Engine(targets[precision], joined.drafter, joined.verifier, num_speculative_tokens=4)
            options = {"temperature": temperature, "seed": 1, "logit_bias": {2: -100.0}}  # at an end a run would stop
            found = one(engine.generate(PROMPTS[0], max_new_tokens=25, **options))
            assert (found.stats.mean_acceptance_length, found.stats.num_target_calls) == (5.0, 5)


@pytest.mark.parametrize(
    ("drafter", "route", "gate"),
    [
        ("eagle", "skip:0.25", {}),
        ("ngram", "q4", {"gate": "conservative", "margin": 0.3}),
        ("layer_skip", "skip:0.5", {"gate": "aggressive", "margin": 0.2}),
        ("none", "q8", {"margin": 0.2}),
        ("auto", "skip:0.25", {"accept": 0.3, "escalate": 0.05}),
    ],
)
def test_lossy_tiers_keep_a_cache_of_two_known_parts(
    drafter: str, route: str, gate: dict[str, Any], targets: dict[str, Any], draft: Path
) -> None:
    """And a request after another one on the same engine is the request on a new one."""
    target = targets["fp32"]

    def engine_of() -> Engine:
        joined = join(target, make_drafter(drafter, target, draft), 4, "paper", route, gate)
        return Engine(target, joined.drafter, Watched(joined.verifier), num_speculative_tokens=4)

    engine = engine_of()
    found = many(engine.generate(PROMPTS, max_new_tokens=24))
    assert not any(each.lossless for each in found)
    tokens = list(PROMPTS[0])
    for turn in range(3):
        result = one(engine.generate(tokens, max_new_tokens=10, ignore_eos=True))
        assert result.token_ids == one(engine_of().generate(tokens, max_new_tokens=10, ignore_eos=True)).token_ids
        assert turn == 0 or result.stats.num_cached_tokens > 0
        tokens += [*result.token_ids, 8, 9]
    verifier: Any = engine.verifier
    assert 0 < verifier.unverified < verifier.rounds
    decided = sum((each.stats.tiers.decided for each in found), start=found[0].stats.tiers.decided.copy())
    assert decided["target"] > 0
    assert decided["drafter"] + decided["slim"] > 0


class Comparing(TieredDrafter):
    """Before each run, the features that its drafter was told of are those of a fresh read of the row."""

    compared = 0

    def propose(self, contexts: Any, limits: Any) -> list[Draft]:
        for context in contexts:
            row = self.inner._rows.get(context.key)  # type: ignore[attr-defined]
            told = self.inner.told.get(context.key, [])  # type: ignore[attr-defined]
            tokens = list(context.token_ids)[:-1]
            target = self.verifier.target.target  # type: ignore[attr-defined]
            _, streams = target.forward(tokens, target.begin(1, 256), [len(tokens)], capture=self.capture)
            assert row is None or row.end == len(tokens)
            assert torch.equal(torch.cat(told) if told else torch.cat(streams, -1)[:0], torch.cat(streams, -1))
            self.compared += 1
        return super().propose(contexts, limits)


def test_a_trained_drafter_has_exactly_the_targets_features(targets: dict[str, Any], draft: Path) -> None:
    """Of all positions kept, after each of the target's verdicts."""
    target = targets["fp32"]
    inner = open_drafter(draft, target, precision="fp32")
    told: dict[int, list[torch.Tensor]] = {}
    inner.told = told  # type: ignore[attr-defined]
    own_read, own_observe = inner.read, inner.observe

    def put(key: int, start: int, features: torch.Tensor) -> None:
        held = torch.cat(told.get(key, [features[:0]]))
        assert len(held) >= start
        told[key] = [held[:start], features]

    def read(readings: Any) -> None:
        for reading in readings:
            if reading.features is not None:
                put(reading.key, reading.start, reading.features)
        own_read(readings)

    def observe(keys: Any, verdicts: Any) -> None:
        for key, verdict in zip(keys, verdicts, strict=True):
            put(key, len(torch.cat(told[key])), verdict.features)
        own_observe(keys, verdicts)

    inner.read, inner.observe = read, observe  # type: ignore[method-assign]
    joined = join(target, inner, 3, "exact", "skip:0.5", {"flush": 5})
    outer: Any = joined.drafter
    drafter = Comparing(inner, outer.verifier, 5, 3)
    engine = Engine(target, drafter, joined.verifier, num_speculative_tokens=5)
    found = many(engine.generate([PROMPTS[0], PROMPTS[2]], max_new_tokens=24, ignore_eos=True))
    want = many(Engine(target).generate([PROMPTS[0], PROMPTS[2]], max_new_tokens=24, ignore_eos=True))
    assert [each.token_ids for each in found] == [each.token_ids for each in want]
    assert drafter.compared > 8


def test_from_a_directory_and_a_route_file(llama: Path, tmp_path: Path) -> None:
    choices: dict[str, Any] = {"drafter": "ngram", "precision": "q8", "threads": 1}
    plain = Engine.from_pretrained(str(llama), **choices)
    want = one(plain.generate("the cat sat on the cat", max_new_tokens=20, ignore_eos=True))
    path = tmp_path / "route.json"
    identity = ModelIdentity.of(plain.target)
    RouteFile(identity, Route(("q4",) * 4, ("q4", "skip", "q4", "q4"), "q8")).write(path)
    for tiers, route in (("exact", "q4"), ("exact", None), ("exact", path), ("observe", str(path)), ("paper", path)):
        engine = Engine.from_pretrained(str(llama), tiers=tiers, route=route, **choices)
        result = one(engine.generate("the cat sat on the cat", max_new_tokens=20, ignore_eos=True))
        assert result.run.tiers == tiers
        assert result.lossless == (tiers != "paper")
        assert tiers == "paper" or (result.token_ids, result.text) == (want.token_ids, want.text)
        found = json.loads(json.dumps(result.to_dict(), allow_nan=False))["stats"]
        assert sum(found["decided"].values()) == 20
        assert found["num_slim_calls"] > 0
    RouteFile(replace(identity, digest="0" * 16), Route.full(4)).write(path)
    with pytest.raises(ConfigError, match="search one for this model"):
        Engine.from_pretrained(str(llama), tiers="exact", route=path, **choices)
