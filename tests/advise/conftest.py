"""One draft for all tests of the doctor."""

from __future__ import annotations

import pytest

from slimtier.drafters.eagle.config import HeadConfig
from tests.advise.drafts import Taught, taught


@pytest.fixture(scope="session")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Taught:
    """Taught by heart: read rightly, every token it drafts is the target's."""
    return taught(tmp_path_factory.mktemp("taught"), head=HeadConfig("slim", 96, rank=24), capture=(0, 1, 2))
