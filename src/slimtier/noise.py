"""Counter-based randomness: what a request draws depends on its seed and its own history, never on its batch."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

_SMALLEST = 2.0**-64  # keeps -log(v) finite for the lowest draw
_LARGEST = 1.0 - 2.0**-24  # the largest float32 below 1


def _key(*parts: object) -> int:
    """A 128-bit Philox key; any Python integers and words are welcome as parts."""
    digest = hashlib.blake2b("\x1f".join(str(part) for part in parts).encode(), digest_size=16).digest()
    return int.from_bytes(digest, "little")


class Noise:
    """The random numbers of one request (Philox 4x64, Salmon et al. 2011, keyed by a hash of the seed).

    `uniform` walks through a stream of its own: verifier and drafter of one request hold the same seed and different
    streams. `gumbel` belongs to a position and is the same in every stream.
    """

    def __init__(self, seed: int, stream: str = "") -> None:
        self.seed = seed
        self.stream = stream
        self._bits = np.random.Philox(key=_key("uniform", seed, stream))
        self._gumbel_key = _key("gumbel", seed)

    @classmethod
    def of(cls, seed: int | None, index: int = 0, stream: str = "") -> Noise:
        """The noise of sample `index` of a request. A seed of None is drawn from the system: draw it once and use
        `fork` for the other streams."""
        if seed is None:
            seed = int.from_bytes(os.urandom(16), "little")
        return cls(seed if index == 0 else _key("sample", seed, index), stream)

    def fork(self, stream: str) -> Noise:
        """The same seed, and so the same `gumbel`, with another stream of uniforms, from its start."""
        return Noise(self.seed, stream)

    def uniform(self) -> float:
        """The stream's next number in [0, 1), with 53 random bits."""
        return float(int(self._bits.random_raw()) >> 11) * 2.0**-53

    def gumbel(self, position: int, vocab_size: int) -> torch.Tensor:
        """Standard Gumbel noise, float32 [vocab_size], for the token at `position` (its index in prompt + output).

        A larger vocabulary has the same noise at the smaller one's ids, so models of padded vocabularies share it.
        """
        import torch

        counter = position << 128  # a position's block of 2^128 counters cannot run into the next one's
        raw = np.random.Philox(key=self._gumbel_key, counter=counter).random_raw(vocab_size)
        draws = torch.from_numpy((raw >> np.uint64(1)).view(np.int64)).to(torch.float32)
        # -log1p(-v) of a float32 v keeps the small values' precision: they become the large noise that decides.
        draws.mul_(2.0**-63).clamp_(_SMALLEST, _LARGEST)
        return draws.neg_().log1p_().neg_().log_().neg_()
