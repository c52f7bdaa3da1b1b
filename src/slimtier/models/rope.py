"""Rotary tables: cos and sin of every position, for each way of stretching a rope."""

from __future__ import annotations

import math

import torch

from slimtier.models.config import RopeConfig


def rope_tables(rope: RopeConfig, head_dim: int, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [positions, head_dim / 2], float32, times yarn's attention factor (as transformers does)."""
    frequencies, factor = _frequencies(rope, head_dim)
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies[None, :]
    return angles.cos() * factor, angles.sin() * factor


def _frequencies(rope: RopeConfig, head_dim: int) -> tuple[torch.Tensor, float]:
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.type == "linear":
        return frequencies / rope.factor, 1.0
    if rope.type == "llama3":
        return _llama3(rope, frequencies), 1.0
    if rope.type == "yarn":
        return _yarn(rope, head_dim, frequencies)
    return frequencies, 1.0


def _llama3(rope: RopeConfig, frequencies: torch.Tensor) -> torch.Tensor:
    """Long waves are stretched by `factor`, short ones kept, those between blended (Llama 3.1)."""
    waves = 2 * math.pi / frequencies
    blend = (rope.original_positions / waves - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - blend) * frequencies / rope.factor + blend * frequencies
    stretched = torch.where(waves > rope.original_positions / rope.low_freq_factor, frequencies / rope.factor, blended)
    return torch.where(waves < rope.original_positions / rope.high_freq_factor, frequencies, stretched)


def _yarn(rope: RopeConfig, head_dim: int, frequencies: torch.Tensor) -> tuple[torch.Tensor, float]:
    """YaRN (arXiv 2309.00071): a ramp over the dimensions between stretched and kept frequencies."""

    def dimension(rotations: float) -> float:
        return head_dim * math.log(rope.original_positions / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = torch.clamp((torch.arange(head_dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001), 0, 1)
    factor = rope.attention_factor
    if factor is None:
        factor = 0.1 * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0
    return frequencies / rope.factor * ramp + frequencies * (1 - ramp), factor
