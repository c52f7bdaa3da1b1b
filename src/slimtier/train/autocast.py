"""Multiplying in bfloat16 where that is what the device is fast at; weights and their updates stay float32."""

from __future__ import annotations

import torch

_CPU_UNITS = ("avx512_bf16", "amx_bf16")


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether the device has units for it. Without them it is many times slower than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities = torch.cpu.get_capabilities()
    return device.type == "cpu" and any(capabilities.get(unit, False) for unit in _CPU_UNITS)


def autocast(device: torch.device, wanted: bool) -> torch.autocast:
    """A context in which linear layers and products of matrices are in bfloat16, if wanted and fast."""
    return torch.autocast(device.type, torch.bfloat16, enabled=wanted and multiplies_bfloat16(device))
