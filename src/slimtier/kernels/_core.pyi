"""slimtier's compiled CPU kernels: weights packed for the instruction set at hand, a thread pool, a decoder, a drafter.

Arrays are C-contiguous numpy arrays of the type named, on the CPU; outputs are written into an array of the caller's.
A shape that does not fit, or an index out of range, raises ValueError before anything is written. Long calls release
the interpreter lock. The calls of a Decoder or a Drafter share its scratch memory: one at a time each.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

Kind = Literal["f32", "f16", "bf16", "q8", "q4"]
Floats = NDArray[np.float32]

class TopK(TypedDict):
    values: list[float]  # [m * k], largest first; the lower id first among equals
    ids: list[int]  # [m * k]
    logsumexp: list[float]  # [m], over the whole vocabulary

class Pool:
    """Threads that share out the chunks of a forward pass; which thread takes which never changes a result."""

    def __init__(self, threads: int) -> None: ...
    @property
    def size(self) -> int: ...

class Matrix:
    """A weight matrix [n, k] in the order in which the kernels read it."""

    @staticmethod
    def from_floats(values: Floats, kind: str = "f32") -> Matrix:
        """values [n, k], kept as kind f32, f16 or bf16 (rounded to nearest even)."""
    @staticmethod
    def from_codes(codes: NDArray[np.uint8], scales: Floats, mins: Floats | None, group: int, bits: int) -> Matrix:
        """weight = scale * code + min. codes [n, k]: int8 viewed as uint8 (bits 8) or 0 … 15 (bits 4); scales and mins
        [n, ceil(k / group)]. Groups of 32, or of 16 for 8 bits without mins; 4 bits need mins."""
    @property
    def n(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def kind(self) -> Kind:
        """How it is multiplied."""
    @property
    def stored(self) -> Kind: ...
    def in_floats(self) -> Matrix:
        """The same bytes, but codes are multiplied in float32 as what they mean: the bits of `from_floats` of these
        values."""
    def in_integers(self) -> Matrix:
        """The same bytes, but codes are multiplied as integers, by rounded activations."""
    def shares(self, other: Matrix, /) -> bool:
        """Whether both are the same bytes."""
    def row(self, row: int, out: Floats, /) -> None:
        """Row `row` as float32, into out [k]."""
    def linear(self, pool: Pool, x: Floats, out: Floats, /) -> None:
        """out [t, n] = x [t, k] times this matrix transposed."""

class KvStore:
    """Keys and values of one row of a batch, for `capacity` tokens in every layer: float16 if `half`, else float32.
    The capacity is rounded up to a multiple of 8; memory is touched as it fills."""

    def __init__(self, layers: int, kv_heads: int, head_dim: int, capacity: int, half: bool) -> None: ...
    @property
    def capacity(self) -> int: ...
    def copy_from(self, other: KvStore, length: int) -> None:
        """Take over the first `length` tokens of a store of the same layers, heads and element."""

class Decoder:
    """A Llama-family decoder: all layers of a forward pass in one call, and its head."""

    def __init__(
        self,
        shape: Mapping[str, float],
        embedding: Matrix,
        head: Matrix,
        final_norm: Floats,
        ropes: Sequence[tuple[Floats, Floats]],
        layers: Sequence[Mapping[str, Any]],
        pool: Pool,
    ) -> None:
        """`shape`: hidden, heads, kv_heads, head_dim, intermediate, eps, attention_scale, attention_softcap,
        embedding_scale, head_softcap, gelu. `ropes`: cos and sin [positions, head_dim / 2], and a second pair if a
        layer has local_rope. A layer: Matrix q k v o gate up down; vectors or None input_norm post_attention_norm
        mlp_norm post_mlp_norm q_norm k_norm q_bias k_bias v_bias; window (0 = all keys); local_rope."""
    def forward(
        self,
        tokens: NDArray[np.int32],
        stores: Sequence[KvStore],
        starts: Sequence[int],
        counts: Sequence[int],
        attention: Sequence[int],
        mlp: Sequence[int],
        capture: Sequence[int],
        hidden: Floats,
        features: Floats,
        /,
    ) -> None:
        """Append counts[r] of the packed tokens [N] to row r at position starts[r]. `attention` and `mlp`: a flag a
        layer, 0 = skipped, empty = all run. Writes hidden [N, hidden] after the final norm and, for each layer in
        `capture`, the residual stream after it, features [len(capture), N, hidden]."""
    def logits(self, hidden: Floats, out: Floats, /) -> None:
        """out [m, vocab] from hidden [m, hidden]."""
    def argmax(self, hidden: Floats, ids: NDArray[np.int32], values: Floats, seconds: Floats | None = None) -> None:
        """The largest logit of each row and its lowest id, and the second largest, ids, values and seconds [m]; a NaN
        wins, so that it is seen."""
    def topk(self, hidden: Floats, k: int, /) -> TopK: ...
    def timing(self) -> dict[str, int]:
        """Nanoseconds since the last reset, by kind of work: linear, attention, other, head."""
    def reset_timing(self) -> None: ...

class DraftHead:
    """What gives a drafter's hidden states scores over the target's vocabulary. One call at a time a head."""

    @staticmethod
    def full(weights: Matrix) -> DraftHead:
        """scores = weights · hidden, weights [vocab, width]."""
    @staticmethod
    def slim(down: Matrix, up: Matrix) -> DraftHead:
        """scores = up · (down · hidden), down [rank, width], up [vocab, rank]."""
    @staticmethod
    def trimmed(weights: Matrix, ids: NDArray[np.int32], vocab: int) -> DraftHead:
        """Scores of some target ids only: row i of weights [n, width] is that of ids[i] (in any order, none twice)."""
    @staticmethod
    def routed(down: Matrix, up: Matrix, exact: Matrix, candidates: int) -> DraftHead:
        """The slim scores choose the `candidates` best rows (the lower id first among equals) of exact [vocab, width],
        whose scores these are; `exact` is copied, row by row."""
    @property
    def width(self) -> int: ...
    @property
    def vocab(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """Bytes of weights that are read for one token."""
    def argmax(
        self, pool: Pool, hidden: Floats, ids: NDArray[np.int32], values: Floats, probabilities: Floats | None = None
    ) -> None:
        """For each row of hidden [m, width] the largest score and its lowest id, [m] each; a NaN wins. Probabilities:
        e^value / Σ e^score over all that have a score. Scores are never written."""
    def logits(self, pool: Pool, hidden: Floats, out: Floats) -> None:
        """out [m, vocab], -inf where the head has no score."""

class Drafter:
    """An EAGLE-3 drafter (arXiv 2503.01840). Position t of a row holds token t + 1 and the target's features of t."""

    def __init__(
        self,
        shape: Mapping[str, float],
        embedding: Matrix,
        fuse: Matrix | None,
        norms: Mapping[str, Floats | None],
        rope: tuple[Floats, Floats],
        layers: Sequence[Mapping[str, Any]],
        head: DraftHead,
        pool: Pool,
    ) -> None:
        """`shape`: as for a Decoder (head_softcap is not used), and norm_before_residual (the residual is the normed
        feature) and norm_output (the state after the final norm is fed back). `fuse` [hidden, features], None: features
        are hidden wide. `norms`: hidden and final [hidden]; features None or [pieces, features / pieces], one norm for
        each piece of the features. `layers` as for a Decoder, but q, k and v of the first take 2 · hidden:
        [input_norm of the embedding; hidden norm of the feature]."""
    @property
    def head(self) -> DraftHead: ...
    def forward(
        self,
        tokens: NDArray[np.int32],
        inputs: Floats,
        fused: bool,
        stores: Sequence[KvStore],
        starts: Sequence[int],
        counts: Sequence[int],
        hidden: Floats,
        state: Floats,
        /,
    ) -> None:
        """Append counts[r] of the packed tokens [N] to row r at position starts[r]. `inputs`: features [N, features] if
        `fused`, else states [N, hidden]. Writes hidden [N, hidden], for the head, and the state to feed back."""
    def draft(
        self,
        tokens: NDArray[np.int32],
        features: Floats,
        stores: Sequence[KvStore],
        starts: Sequence[int],
        counts: Sequence[int],
        steps: Sequence[int],
        stop_below: float,
        ids: NDArray[np.int32],
        probabilities: Floats | None = None,
        go_on: float = 0.0,
    ) -> None:
        """Append as forward does, then draft greedily from each row's last position: up to steps[r] tokens, ended
        before the first whose probability is below `stop_below`, and after one where the product of all probabilities
        of the row is below `go_on`. Writes ids [rows, most steps] (-1 past the end) and
        the winners' probabilities (0 past the end). A row of 0 steps only stores its keys and values. Drafted keys lie
        past the row, to be overwritten. Raises FloatingPointError when a score is not finite."""
    def timing(self) -> dict[str, int]:
        """Nanoseconds since the last reset, by kind of work: linear, attention, other, head."""
    def reset_timing(self) -> None: ...

def isa() -> str:
    """The instruction set in use: avx512, avx2, neon or plain; SLIMTIER_ISA chooses."""

def has_isa(name: str, /) -> bool:
    """Whether this build and machine run that instruction set."""

def rms_norm(x: Floats, weight: Floats, eps: float, out: Floats, /) -> None:
    """out = x / sqrt(mean(x²) + eps) * weight over rows x [t, k]."""

def act_mul(gate: Floats, up: Floats, gelu: bool, out: Floats, /) -> None:
    """out = silu(gate) * up, or gelu (tanh approximation)."""

def rope(x: Floats, cos: Floats, sin: Floats, scale: float, /) -> None:
    """Rotate the halves of x [heads, head_dim] in place by angles cos and sin [head_dim / 2], then times `scale`."""

def softcap(x: Floats, cap: float, /) -> None:
    """x = cap * tanh(x / cap), in place."""

def attention(
    pool: Pool,
    q: Floats,
    k: Floats,
    v: Floats,
    start: int,
    chunk: int,
    window: int,
    softcap: float,
    half: bool,
    out: Floats,
    /,
) -> None:
    """Causal attention of q [t, heads, head_dim] (scaled) at positions start …, `chunk` queries at a time, over k and v
    [tokens, kv_heads, head_dim] kept as float16 if `half`: for the tests."""
