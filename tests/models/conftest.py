"""The real default model, fetched once into the user's cache."""

from __future__ import annotations

import pytest

from slimtier.models.resolve import ModelFiles, resolve


@pytest.fixture(scope="session")
def smollm2() -> ModelFiles:
    return resolve("smollm2-135m")
