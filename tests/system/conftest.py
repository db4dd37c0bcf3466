"""System tests run inside a guest of the lab: real ZFS, a real server, a real S3 server. See docs/lab.md."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import flavours
from tests.lab.inside import ledger
from tests.lab.inside.zygote import Zygote

from .in_guest import SOCKET, Lab, everything, holds


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    flavours.leave_to_the_other(config, items)
    leave_to_guests(items, Path(__file__).parent)


def leave_to_guests(items: list[pytest.Item], folder: Path) -> None:
    """Skip the tests below the folder, unless this is a guest of the lab."""
    if "LAB_FLAVOUR" not in os.environ:
        reason = f"runs in a guest of the lab: python3 tests/lab test tests/{folder.name}"
        for item in items:
            if Path(item.fspath).is_relative_to(folder):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("lab")
    zygote = Zygote(folder / "zygote")
    ledger.set_up(SOCKET)
    program = Path("/opt/mysql/bin/innochecksum")
    if os.environ["LAB_FLAVOUR"] == "mysql" and not program.exists():
        # MySQL's own innochecksum, started as the lab starts every program of its MySQL.
        program.write_text(Path("/opt/mysql/bin/mysqldump").read_text().replace("mysqldump", "innochecksum"))
        program.chmod(0o755)
    yield Lab(os.environ["LAB_FLAVOUR"], folder, zygote)
    zygote.close()


@pytest.fixture(scope="session")
def first(lab: Lab) -> dict[str, Any]:
    """A first, full backup."""
    backup: dict[str, Any] = lab.zsnapdb("backup", "--json").json["backup"]
    return backup


@pytest.fixture
def unchanged(lab: Lab, first: dict[str, Any]) -> Iterator[None]:
    """Whatever the test does, afterwards no dataset, snapshot, bookmark, hold or object has come or gone."""
    before = everything(), holds(), lab.objects()
    yield
    assert (everything(), holds(), lab.objects()) == before


@pytest.fixture
def load_running(lab: Lab) -> Iterator[ledger.Load]:
    """The ledger's load, running through the test."""
    workers = {row[0]: row[1] for row in lab.sql("SELECT worker, MAX(number) FROM ledger.journal GROUP BY worker")}
    load = ledger.Load(SOCKET, first_number=workers)
    load.start()
    load.wait_for(30)
    yield load
    load.stop()
    assert load.failures == []
