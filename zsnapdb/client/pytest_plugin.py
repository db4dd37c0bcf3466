"""Fixtures of pytest: a clone of a real server for each worker, and clean data for each test.

`zsnapdb_clone` is one clone for the whole session of a worker (of pytest-xdist; without it, of the session).
`zsnapdb_data` is that clone with its first data: what the test before wrote is undone. A session that is killed leaves
a clone that goes with the next `zsnapdb reap`.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import pytest

from zsnapdb.client.clones import LocalClone, LocalClones

_INSTANCE, _COMMAND, _AT = "zsnapdb_instance", "zsnapdb_command", "zsnapdb_at"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that say of which instance the clones are."""
    parser.addini(_INSTANCE, "The instance of zsnapdb that the clones are of.", default="main")
    parser.addini(
        _AT, "The point that they show: a time, a duration ago or a GTID (empty: the newest set).", default=""
    )
    parser.addini(_COMMAND, "The command that makes them, if it is not found by itself.", type="args", default=[])


@pytest.fixture(scope="session")
def zsnapdb_clones(pytestconfig: pytest.Config) -> LocalClones:
    """Return the clones of this host."""
    return LocalClones(tuple(pytestconfig.getini(_COMMAND)) or None)


@pytest.fixture(scope="session")
def zsnapdb_clone(pytestconfig: pytest.Config, zsnapdb_clones: LocalClones) -> Iterator[LocalClone]:
    """Yield a clone for this worker. Its tests share it: what one writes the next one sees."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "one")
    name = f"pytest-{worker}-{secrets.token_hex(4)}"[:32]
    at = str(pytestconfig.getini(_AT)) or None
    with zsnapdb_clones.clone(str(pytestconfig.getini(_INSTANCE)), name, at=at) as clone:
        yield clone


@pytest.fixture
def zsnapdb_data(zsnapdb_clones: LocalClones, zsnapdb_clone: LocalClone) -> Iterator[LocalClone]:
    """Yield the clone of this worker as it was at first. After the test its sessions are ended, its changes undone."""
    yield zsnapdb_clone
    zsnapdb_clones.reset(zsnapdb_clone)
