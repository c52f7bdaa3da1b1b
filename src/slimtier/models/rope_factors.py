"""Recognising llama3's rope scaling in the divisors a GGUF file stores instead of its parameters."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slimtier.models.config import RopeConfig

_TOLERANCE = 1e-4


def llama3_factors(rope: RopeConfig, head_dim: int) -> NDArray[np.float64]:
    """What llama3 scaling divides each frequency by, [head_dim / 2].

    With w a frequency's wavelength and n = original_positions: 1 below n / high_freq_factor, `factor` above
    n / low_freq_factor, and 1 / ((1 - s) / factor + s) between, s = (n / w - low) / (high - low)
    (transformers, `_compute_llama3_parameters`).
    """
    turns = rope.original_positions / _wavelengths(rope.theta, head_dim)
    smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    smooth = np.clip(smooth, 0.0, 1.0)
    divisors: NDArray[np.float64] = 1.0 / ((1.0 - smooth) / rope.factor + smooth)
    return divisors


def llama3_rope(factors: NDArray[np.float32], theta: float, head_dim: int) -> RopeConfig | None:
    """The rope whose llama3 divisors are `factors`, or None when there is none (or more than one)."""
    if factors.shape != (head_dim // 2,) or not np.isfinite(factors).all() or factors.min() < 1.0:
        return None
    if (factors == 1.0).all():
        return RopeConfig(theta)
    factor = float(factors.max())
    between = (factors > 1.0) & (factors < factor)
    if between.sum() < 2:
        return None
    # s is linear in 1 / w, and only its two coefficients matter: fix low_freq_factor = 1
    smooth = (1.0 / factors[between].astype(np.float64) - 1.0 / factor) / (1.0 - 1.0 / factor)
    slope, offset = np.polyfit(1.0 / _wavelengths(theta, head_dim)[between], smooth, 1)
    high = 1.0 - 1.0 / offset
    rope = RopeConfig(
        theta,
        "llama3",
        factor,
        original_positions=round(slope * (high - 1.0)),
        high_freq_factor=round(high, 3),
    )
    matches = np.allclose(llama3_factors(rope, head_dim), factors, rtol=_TOLERANCE)
    return rope if matches else None


def _wavelengths(theta: float, head_dim: int) -> NDArray[np.float64]:
    exponents = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
    wavelengths: NDArray[np.float64] = 2.0 * np.pi * theta**exponents
    return wavelengths
