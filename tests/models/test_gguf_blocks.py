"""Codes, scales and minima mean what ggml's own dequantisation says, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

from slimtier.models.gguf_blocks import block_codes
from tests.models.model_files import random_blocks

FORMS = {
    "Q4_0": (4, 32, True),
    "Q4_1": (4, 32, True),
    "Q4_K": (4, 32, True),
    "Q5_0": (8, 32, False),
    "Q5_1": (8, 32, True),
    "Q5_K": (8, 32, True),
    "Q6_K": (8, 16, False),
    "Q8_0": (8, 32, False),
}


@pytest.mark.parametrize("type_name", FORMS)
@pytest.mark.parametrize("rows", [1, 7])
def test_codes_are_the_files_numbers(type_name: str, rows: int) -> None:
    kind = GGMLQuantizationType[type_name]
    raw = random_blocks(type_name, rows, 768, seed=rows)
    codes = block_codes(type_name, raw.reshape(rows, -1, GGML_QUANT_SIZES[kind][1]))
    bits, group, has_mins = FORMS[type_name]
    assert (codes.bits, codes.group, codes.mins is not None) == (bits, group, has_mins)
    assert codes.codes.shape == (rows, 768)
    assert codes.codes.dtype == (np.uint8 if bits == 4 else np.int8)
    assert bits == 8 or codes.codes.max() < 16
    assert codes.scales.dtype == np.float32
    assert codes.scales.shape == (rows, 768 // group)
    values = np.repeat(codes.scales, group, axis=1) * codes.codes.astype(np.float32)
    if codes.mins is not None:
        assert codes.mins.dtype == np.float32
        values += np.repeat(codes.mins, group, axis=1)
    np.testing.assert_array_equal(values, dequantize(raw, kind))
    for array in (codes.codes, codes.scales):
        assert array.flags.c_contiguous
