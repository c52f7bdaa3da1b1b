"""The EAGLE-3 drafter against a naive twin in plain torch, and bit for bit against itself in other company."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from slimtier.kernels import core, pool
from tests.kernels.eagle_twin import Twin
from tests.kernels.matrices import matrix

D, HEADS, KV_HEADS, HEAD_DIM, INNER, VOCAB, RANK, STREAMS, EPS = 32, 4, 2, 8, 56, 97, 6, 3, 1e-5
POSITIONS, CAPACITY = 160, 150
PLAIN: dict[str, Any] = {
    "norm_before_residual": False,
    "norm_output": False,
    "features": None,
    "layers": 1,
    "bias": False,
}
OPTIONS = [
    pytest.param({}, id="eagle"),
    pytest.param({"norm_before_residual": True}, id="norm-before-residual"),
    pytest.param({"norm_output": True, "features": STREAMS}, id="fc-norms-norm-output"),
    pytest.param({"features": 1, "bias": True}, id="norm-before-fc-bias"),
    pytest.param({"layers": 3}, id="three-layers"),
]


@dataclass
class Drafter:
    """The core's drafter, and its twin: hidden and state [n, D] of one row's whole history."""

    core: Any
    twin: Twin
    weights: Weights
    half: bool = False

    def stores(self, rows: int) -> list[Any]:
        return [core.KvStore(len(self.twin.layers), KV_HEADS, HEAD_DIM, CAPACITY, self.half) for _ in range(rows)]

    def forward(
        self, tokens: torch.Tensor, inputs: torch.Tensor, stores: Any, starts: Any, counts: Any, fused: bool = True
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, state = torch.full((len(tokens), D), float("nan")), torch.full((len(tokens), D), float("nan"))
        args = (tokens.int().numpy(), inputs.numpy(), fused, stores, starts, counts)
        self.core.forward(*args, hidden.numpy(), state.numpy())
        return hidden, state

    def draft(
        self,
        tokens: torch.Tensor,
        inputs: torch.Tensor,
        stores: Any,
        starts: Any,
        counts: Any,
        steps: list[int],
        stop: float = 0.0,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (len(steps), max(steps, default=0))
        ids, probabilities = torch.full(shape, 7, dtype=torch.int32), torch.full(shape, 7.0)
        args = (tokens.int().numpy(), inputs.numpy(), stores, starts, counts, steps, stop)
        self.core.draft(*args, ids.numpy(), probabilities.numpy())
        return ids, probabilities


class Weights:
    """Random weights of one kind, packed, and by identity what each float tensor was packed as."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._packed: dict[int, tuple[torch.Tensor, Any]] = {}

    def matrix(self, n: int, k: int) -> torch.Tensor:
        packed, stored = matrix(torch.randn(n, k) * k**-0.5 * 1.5, self.kind)
        self._packed[id(stored)] = (stored, packed)
        return stored

    def layer(self, width: int, biased: bool) -> dict[str, torch.Tensor | None]:
        sizes = {name: heads * HEAD_DIM for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))}
        layer = {name: self.matrix(size, width) for name, size in sizes.items()}
        layer |= {"o": self.matrix(D, HEADS * HEAD_DIM), "gate": self.matrix(INNER, D), "up": self.matrix(INNER, D)}
        layer |= {"down": self.matrix(D, INNER), "input_norm": norm(D), "mlp_norm": norm(D)}
        return layer | {f"{name}_bias": torch.randn(size) if biased else None for name, size in sizes.items()}

    def given(self, value: torch.Tensor | None) -> Any:
        """As the core takes it."""
        if value is None:
            return None
        return self._packed[id(value)][1] if id(value) in self._packed else value.numpy()


def norm(*shape: int) -> torch.Tensor:
    return 1.0 + 0.1 * torch.randn(*shape)


def build(kind: str, threads: int = 2, **changes: Any) -> Drafter:
    options = {**PLAIN, **changes}
    torch.manual_seed(sum(map(ord, str(options))))
    weights, pieces = Weights(kind), options["features"]
    angles = torch.arange(POSITIONS)[:, None] * 0.4 ** torch.arange(HEAD_DIM // 2)
    down, up = weights.matrix(RANK, D), weights.matrix(VOCAB, RANK)
    norms = {"hidden": norm(D), "final": norm(D), "features": norm(pieces, STREAMS * D // pieces) if pieces else None}
    twin = Twin(
        options=options,
        embedding=weights.matrix(VOCAB, D),
        fuse=weights.matrix(D, STREAMS * D),
        norms=norms,
        layers=[weights.layer(D if index else 2 * D, options["bias"]) for index in range(options["layers"])],
        head=up @ down,
        rope=(angles.cos(), angles.sin()),
        head_dim=HEAD_DIM,
        eps=EPS,
    )
    head = core.DraftHead.slim(weights.given(down), weights.given(up))
    return Drafter(in_core(twin, weights, head, pool(threads)), twin, weights)


def in_core(twin: Twin, weights: Weights, head: Any, threads: Any, *, fused: bool = True) -> Any:
    shape = {
        "hidden": D, "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "intermediate": INNER, "eps": EPS,
        "attention_scale": HEAD_DIM**-0.5, "attention_softcap": 0.0, "embedding_scale": 1.0, "head_softcap": 0.0,
        "gelu": False, **{name: twin.options[name] for name in ("norm_before_residual", "norm_output")},
    }  # fmt: skip
    absent = dict.fromkeys(("post_attention_norm", "post_mlp_norm", "q_norm", "k_norm"))
    rest = {**absent, "window": 0, "local_rope": False}
    layers = [rest | {name: weights.given(value) for name, value in layer.items()} for layer in twin.layers]
    norms = {name: weights.given(value) for name, value in twin.norms.items()}
    rope = tuple(table.numpy() for table in twin.rope)
    embedding, fuse = weights.given(twin.embedding), weights.given(twin.fuse) if fused else None
    return core.Drafter(shape, embedding, fuse, norms, rope, layers, head, threads)


def some(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [n] and features [n, STREAMS · D], whose streams differ in size as a target's layers do."""
    sizes = torch.tensor([0.5, 1.0, 4.0]).repeat_interleave(D)
    return torch.randint(VOCAB, (n,)), torch.randn(n, STREAMS * D) * sizes


def tolerance(kind: str) -> float:
    return 2e-5 if kind == "f32" else 2e-3


@pytest.mark.parametrize("kind", ["f32", "q8"])
@pytest.mark.parametrize("options", OPTIONS)
def test_a_forward_matches_the_twin(options, kind):
    drafter = build(kind, **options)
    rows = [some(n) for n in (70, 3, 1)]
    tokens, features = (torch.cat(parts) for parts in zip(*rows, strict=True))
    hidden, state = drafter.forward(tokens, features, drafter.stores(3), [0, 0, 0], [70, 3, 1])
    at = 0
    for row_tokens, row_features in rows:
        expected = drafter.twin.forward(row_tokens, drafter.twin.fused(row_features))
        for out, want in zip((hidden, state), expected, strict=True):
            torch.testing.assert_close(out[at : at + len(row_tokens)], want, rtol=1e-3, atol=tolerance(kind) * 10)
        at += len(row_tokens)


@pytest.mark.parametrize("kind", ["f32", "bf16", "q8"])
@pytest.mark.parametrize("options", OPTIONS)
def test_a_chain_matches_the_twin(options, kind):
    drafter = build(kind, **options)
    tokens, features = some(20)
    ids, probabilities = drafter.draft(tokens, features, drafter.stores(1), [0], [20], [6])
    expected_ids, expected_probabilities = drafter.twin.chain(tokens, features, 6)
    assert ids[0].tolist() == expected_ids
    torch.testing.assert_close(probabilities[0], torch.tensor(expected_probabilities), rtol=2e-2, atol=1e-4)


@pytest.mark.parametrize("kind", ["f32", "q8"])
@pytest.mark.parametrize("options", OPTIONS)
def test_bits_do_not_depend_on_batch_chunks_or_threads(options, kind):
    rows = [some(n) for n in (40, 7, 90)]
    counts = [40, 7, 90]
    tokens, features = (torch.cat(parts) for parts in zip(*rows, strict=True))
    drafter = build(kind, **options)
    whole = drafter.forward(tokens, features, drafter.stores(3), [0, 0, 0], counts)
    for threads in (1, 3):
        other = build(kind, threads, **options)
        assert all(map(torch.equal, other.forward(tokens, features, other.stores(3), [0, 0, 0], counts), whole))
    at = 0
    for row_tokens, row_features in rows:
        for chunk in (1, 2, 6, 17):
            store, first = drafter.stores(1), 0
            for part_tokens, part_features in zip(row_tokens.split(chunk), row_features.split(chunk), strict=True):
                part = drafter.forward(part_tokens, part_features, store, [first], [len(part_tokens)])
                last = first + len(part_tokens)
                assert all(
                    torch.equal(one, all_[at + first : at + last]) for one, all_ in zip(part, whole, strict=True)
                )
                first = last
        at += len(row_tokens)


@pytest.mark.parametrize("kind", ["f32", "q8"])
@pytest.mark.parametrize("options", OPTIONS)
def test_a_chain_is_its_steps_one_by_one(options, kind):
    """Rows of different lengths, budgets and beginnings; what was drafted before is overwritten."""
    drafter = build(kind, **options)
    stores, again = drafter.stores(4), drafter.stores(4)
    starts, steps = [0, 0, 0, 0], [5, 0, 2, 6]
    for counts in ([9, 70, 1, 3], [1, 2, 3, 1], [4, 0, 1, 2]):
        now = [0 if counts[r] == 0 else n for r, n in enumerate(steps)]
        rows = [some(n) for n in counts]
        tokens, features = (torch.cat(parts) for parts in zip(*rows, strict=True))
        ids, probabilities = drafter.draft(tokens, features, stores, starts, counts, now)
        for r, (row_tokens, row_features) in enumerate(rows):
            expected = one_by_one(drafter, row_tokens, row_features, again[r], starts[r], now[r])
            expected += [(-1, 0.0)] * (6 - now[r])
            assert list(zip(ids[r].tolist(), probabilities[r].tolist(), strict=True)) == expected
            starts[r] += counts[r]


def one_by_one(
    drafter: Drafter, tokens: torch.Tensor, features: torch.Tensor, store: Any, start: int, steps: int
) -> list[tuple[int, float]]:
    if len(tokens) == 0:
        return []
    hidden, state = drafter.forward(tokens, features, [store], [start], [len(tokens)])
    chain, position = [], start + len(tokens)
    head = drafter.core.head
    for _ in range(steps):
        token, value, probability = torch.zeros(1, dtype=torch.int32), torch.zeros(1), torch.zeros(1)
        head.argmax(pool(2), hidden[-1:].numpy(), token.numpy(), value.numpy(), probability.numpy())
        chain.append((int(token), float(probability)))
        hidden, state = drafter.forward(token, state[-1:], [store], [position], [1], fused=False)
        position += 1
    return chain


def test_a_chain_stops_before_the_first_token_that_is_unlikely():
    drafter = build("f32")
    rows = [some(n) for n in (5, 12, 8)]
    tokens, features = (torch.cat(parts) for parts in zip(*rows, strict=True))
    whole = drafter.draft(tokens, features, drafter.stores(3), [0, 0, 0], [5, 12, 8], [6, 6, 4])
    for stop in sorted({*whole[1].flatten().tolist(), 0.0, 1.1}):
        ids, probabilities = drafter.draft(tokens, features, drafter.stores(3), [0, 0, 0], [5, 12, 8], [6, 6, 4], stop)
        kept = (whole[1] >= stop).int().cumprod(1).bool() & (whole[0] >= 0)
        assert torch.equal(ids, torch.where(kept, whole[0], -1))
        assert torch.equal(probabilities, torch.where(kept, whole[1], 0.0))


def test_probabilities_need_not_be_asked_for():
    drafter = build("q8")
    tokens, features = some(5)
    ids = np.zeros((1, 4), dtype=np.int32)
    drafter.core.draft(tokens.int().numpy(), features.numpy(), drafter.stores(1), [0], [5], [4], 0.0, ids)
    assert ids.tolist() == drafter.draft(tokens, features, drafter.stores(1), [0], [5], [4])[0].tolist()


def test_without_a_fusing_matrix_features_are_used_as_they_are():
    drafter = build("f32")
    drafter.core = in_core(drafter.twin, drafter.weights, drafter.core.head, pool(2), fused=False)
    tokens, features = torch.randint(VOCAB, (9,)), torch.randn(9, D)
    out = drafter.forward(tokens, features, drafter.stores(1), [0], [9])
    for one, want in zip(out, drafter.twin.forward(tokens, features), strict=True):
        torch.testing.assert_close(one, want, rtol=1e-3, atol=2e-4)


def test_half_a_cache_changes_little():
    drafter = build("q8")
    tokens, features = some(30)
    full = drafter.forward(tokens, features, drafter.stores(1), [0], [30])
    drafter.half = True
    half = drafter.forward(tokens, features, drafter.stores(1), [0], [30])
    assert not torch.equal(half[0], full[0])
    torch.testing.assert_close(half[0], full[0], rtol=1e-2, atol=1e-2)


def test_a_score_that_is_not_finite_is_an_error():
    drafter = build("f32")
    tokens, features = some(5)
    features[4, 3] = float("nan")
    with pytest.raises(FloatingPointError, match="check its weights and the features"):
        drafter.draft(tokens, features, drafter.stores(1), [0], [5], [2])


def test_what_does_not_fit_is_refused():
    drafter = build("f32")
    tokens, features = some(3)
    store = drafter.stores(1)
    with pytest.raises(ValueError, match="inputs must be"):
        drafter.forward(tokens, features, store, [0], [3], fused=False)
    with pytest.raises(ValueError, match="longer than its cache"):
        drafter.draft(tokens, features, store, [CAPACITY - 3], [3], [4])
    with pytest.raises(ValueError, match="drafts from a new token"):
        drafter.draft(tokens, features, store * 2, [0, 0], [3, 0], [1, 1])
    with pytest.raises(ValueError, match="outside the vocabulary"):
        drafter.forward(torch.tensor([0, VOCAB, 1]), features, store, [0], [3])
    with pytest.raises(ValueError, match="another network"):
        drafter.forward(tokens, features, [core.KvStore(2, KV_HEADS, HEAD_DIM, 8, False)], [0], [3])
