"""Fault tests start guests of their own, so that a power cut can end one. They run on the lab's host side."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.lab import flavours
from tests.lab.guest import Guest, Lab


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if lost := flavours.without_flavour([item for item in items if "tests/faults" in str(item.fspath)]):
        raise pytest.UsageError(f"the mark {flavours.MARK} is for tests that run once per flavour; not for {lost}")
    flavours.leave_to_the_other(config, items)
    if "ZSNAPDB_LAB_CACHE" not in os.environ:
        for item in items:
            if "tests/faults" in str(item.fspath):
                item.add_marker(pytest.mark.skip(reason="needs the lab: python3 tests/lab test tests/faults"))


@pytest.fixture(scope="session")
def lab() -> Lab:
    return Lab.ready()


@pytest.fixture(params=["mysql", "mariadb"])
def guest(request: pytest.FixtureRequest, lab: Lab) -> Iterator[Guest]:
    with Guest.boot(lab, request.param) as booted:
        yield booted
