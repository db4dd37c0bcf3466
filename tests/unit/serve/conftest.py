from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.support.serve_host import ServeHost


@pytest.fixture
def host(tmp_path: Path) -> Iterator[ServeHost]:
    made = ServeHost(tmp_path)
    with made.helper():
        yield made
