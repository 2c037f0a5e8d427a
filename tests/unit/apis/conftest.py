from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.one_broker import OneBroker


@pytest.fixture
def one(tmp_path: Path) -> Iterator[OneBroker]:
    broker = OneBroker(tmp_path)
    broker.update_metadata({})
    yield broker
    broker.close()
