"""The fixture of the sample project as people write it without zsnapdb: tables are truncated and filled again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from shop.models import Base, Picture  # type: ignore[import-not-found]
from sqlalchemy import URL, Engine, NullPool, create_engine, text
from sqlalchemy.orm import Session

from zsnapdb.client.models import ReachableClone

WRITTEN = [table.name for table in Base.metadata.sorted_tables if table.name != Picture.__tablename__]


@pytest.fixture(scope="session")
def engine(zsnapdb_clone: ReachableClone) -> Engine:
    """The clone of the worker, with a copy of the tables that tests write."""
    clone = zsnapdb_clone
    url = URL.create("mysql+pymysql", clone.user, clone.password, clone.host, clone.port, "shop")
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("CREATE DATABASE first"))
        for name in WRITTEN:
            connection.execute(text(f"CREATE TABLE first.{name} LIKE shop.{name}"))
            connection.execute(text(f"INSERT INTO first.{name} SELECT * FROM shop.{name}"))
    return engine


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with Session(engine) as opened:
        yield opened
    with engine.begin() as connection:
        connection.execute(text("SET FOREIGN_KEY_CHECKS = 0"))
        for name in WRITTEN:
            connection.execute(text(f"TRUNCATE TABLE {name}"))
            connection.execute(text(f"INSERT INTO {name} SELECT * FROM first.{name}"))
