"""Fixtures for pytest: a clone of a real server for each worker, and original data for each test.

`zsnapdb_clone` is one clone for the whole session, or with pytest-xdist one clone for each worker. `zsnapdb_data` is
the same clone with its original data, because the changes of the previous test are undone. If a session is killed, the
next `zsnapdb reap` after the heartbeat time destroys the session's clone.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol, Unpack

import pytest

from zsnapdb.client.api_protocol import CloneOptions
from zsnapdb.client.clones import LocalClones
from zsnapdb.client.connection import URL
from zsnapdb.client.models import CloneReset, ReachableClone

_INSTANCE, _COMMAND, _AT, _URL, _TTL = (f"zsnapdb_{name}" for name in ("instance", "command", "at", "url", "ttl"))
_CONNECT_SECONDS = 5.0
_SLOW_SECONDS = 2.0
_HAS_WARNED = pytest.StashKey[bool]()


class SessionClones(Protocol):
    """The source of clones: this host, or another host over HTTP."""

    def clone(
        self, instance: str, name: str, **options: Unpack[CloneOptions]
    ) -> AbstractContextManager[ReachableClone]:
        """Yield a new clone until the block ends."""

    def reset(self, clone: ReachableClone) -> CloneReset:
        """Reset a clone to its original data."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that select the instance of the clones."""
    parser.addini(_INSTANCE, "The instance of zsnapdb that the clones are of.", default="main")
    parser.addini(
        _AT, "The point that they show: a time, a duration ago or a GTID (empty: the newest set).", default=""
    )
    parser.addini(_TTL, "How long they stay at most, such as 1h (empty: as the site has it).", default="")
    parser.addini(_COMMAND, "The command that makes them, if it is not found by itself.", type="args", default=[])
    parser.addini(
        _URL, f"The `zsnapdb serve` that makes them, if it is not this host; {URL} comes before it.", default=""
    )


@pytest.fixture(scope="session")
def zsnapdb_clones(pytestconfig: pytest.Config) -> Iterator[SessionClones]:
    """Yield the clones of this host, or of the host whose URL is configured."""
    url = os.environ.get(URL) or str(pytestconfig.getini(_URL))
    if not url:
        yield LocalClones(tuple(pytestconfig.getini(_COMMAND)) or None)
        return
    try:
        from zsnapdb.client.http import Client
    except ImportError as error:
        raise pytest.UsageError(f"{error}; clones over HTTP need httpx: `pip install httpx`") from error
    with Client(url) as client:
        yield client


@pytest.fixture(scope="session")
def zsnapdb_clone(pytestconfig: pytest.Config, zsnapdb_clones: SessionClones) -> Iterator[ReachableClone]:
    """Yield a clone for this worker. All tests of the worker share it and see each other's changes."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "one")
    name = f"pytest-{worker}-{secrets.token_hex(4)}"[:32]
    at, ttl = (str(pytestconfig.getini(one)) or None for one in (_AT, _TTL))
    with zsnapdb_clones.clone(str(pytestconfig.getini(_INSTANCE)), name, at=at, ttl=ttl) as clone:
        if clone.local_only and not isinstance(zsnapdb_clones, LocalClones):
            _require_connection(clone)
        yield clone


def _require_connection(clone: ReachableClone) -> None:
    """Fail the setup of all tests if this computer cannot reach a clone that listens only on its own host."""
    try:
        socket.create_connection((clone.host, clone.port), _CONNECT_SECONDS).close()
    except OSError as error:
        pytest.fail(
            f"clone {clone.name} listens only on its own host, and {clone.host}:{clone.port} does not answer here: "
            f"{error}\nhint: run the tests on that host, or ask an administrator to set `clones.bind_address`",
            pytrace=False,
        )


@pytest.fixture
def zsnapdb_data(
    pytestconfig: pytest.Config, zsnapdb_clones: SessionClones, zsnapdb_clone: ReachableClone
) -> Iterator[ReachableClone]:
    """Yield the clone of this worker with its original data.

    After the test, the clone's sessions are ended and the test's changes are undone. The first slow reset of the
    session gives a warning with the reason.
    """
    yield zsnapdb_clone
    begun = time.monotonic()
    done = zsnapdb_clones.reset(zsnapdb_clone)
    seconds = time.monotonic() - begun
    if done.reason and seconds >= _SLOW_SECONDS and _HAS_WARNED not in pytestconfig.stash:
        pytestconfig.stash[_HAS_WARNED] = True
        reason = "".join(one if one.isprintable() else "?" for one in done.reason)
        warnings.warn(
            f"the reset after this test took {seconds:.1f} s, because its changes could not be undone: "
            f"{reason}. Later slow resets give no warning.",
            pytest.PytestWarning,
            stacklevel=1,
        )
