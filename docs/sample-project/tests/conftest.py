"""Each worker of pytest has a clone of the production server; each test finds its data as it was at first."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import URL, NullPool, create_engine
from sqlalchemy.orm import Session

from zsnapdb.client.models import ReachableClone


@pytest.fixture
def session(zsnapdb_data: ReachableClone) -> Iterator[Session]:
    """A session with the shop. What a test commits is undone after it, so code under test may commit."""
    url = URL.create(
        "mysql+pymysql",
        username=zsnapdb_data.user,
        password=zsnapdb_data.password,
        host=zsnapdb_data.host,
        port=zsnapdb_data.port,
        database="shop",
    )
    # A reset ends the sessions of the clone: no connection outlives a test.
    engine = create_engine(url, poolclass=NullPool)
    with Session(engine) as opened:
        yield opened
