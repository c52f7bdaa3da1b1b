"""For all tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> None:
    """Tests are small: threads that wait for each other cost more than they bring, and results do not move."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return Path(__file__).parent.parent
