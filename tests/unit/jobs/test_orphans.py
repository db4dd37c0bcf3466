"""A server of a killed restore is named and ended; one that a command works on, or that belongs to somebody, is not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.support.planning_host import PlanningHost
from zsnapdb.jobs.base.run_locks import exclusive, if_free
from zsnapdb.jobs.doctor import orphan_servers
from zsnapdb.jobs.steps.restore_journal import Journals, RestoreJournal
from zsnapdb.mysql.process import discovery
from zsnapdb.mysql.process.discovery import RunningServer
from zsnapdb.zfs import destruction, mounts
from zsnapdb.zfs.mounts import MountEntry

PLACE = "tank/zsnapdb/scratch/main/drill/20261120T100000Z-000001"


@pytest.fixture
def ended(host: PlanningHost, monkeypatch: pytest.MonkeyPatch) -> list[RunningServer]:
    """Servers of an interrupted restore, of a drill, and of a restore that was handed over; those that were ended."""
    started = host.plan()
    Journals(host.settings.restore.journal).write(RestoreJournal(started))
    root = host.settings.restore.mount_root
    places = [Path(started.layout.mount), root / "drill-20261120T100000Z-000001", root / "handed-over"]
    servers = [RunningServer(number, 7, place, place / "data") for number, place in enumerate(places, 1)]
    monkeypatch.setattr(discovery, "servers_below", lambda roots, name: servers if list(roots) == [root] else [])
    copy = f"{PLACE}/drill-20261120T100000Z-000001/data"
    monkeypatch.setattr(mounts, "mounted", lambda: [MountEntry(str(places[1] / "data"), "zfs", copy)])
    monkeypatch.setattr(destruction, "is_ours", lambda name, *marks: name == PLACE)
    killed: list[RunningServer] = []

    def end(server: RunningServer, folder: str) -> bool:
        killed.append(server)
        return True

    monkeypatch.setattr(discovery, "end", end)
    return killed


def test_servers_of_a_killed_restore_and_drill_are_named_and_ended(
    host: PlanningHost, ended: list[RunningServer]
) -> None:
    leaks = orphan_servers.leaks(host.settings)
    assert [leak.instance for leak in leaks] == ["main", "main"]
    assert "process 1 of the restore to tank/zsnapdb/restored/main" in leaks[0].what
    assert "--resume" in leaks[0].hint
    assert f"process 2 of the drill copy {PLACE}" in leaks[1].what
    assert [outcome.name for outcome in orphan_servers.plan(host.settings)] == ["process 1", "process 2"]
    assert ended == []
    assert [outcome.name for outcome in orphan_servers.reap(host.settings)] == ["process 1", "process 2"]
    assert [server.pid for server in ended] == [1, 2]


def test_a_server_that_a_command_works_on_is_neither_named_nor_ended(
    host: PlanningHost, ended: list[RunningServer]
) -> None:
    with exclusive("restore-tank/zsnapdb/restored/main", doing="restoring"), exclusive("drill-main", doing="drilling"):
        assert orphan_servers.leaks(host.settings) == []
        assert orphan_servers.reap(host.settings) == []
    assert ended == []


def test_a_server_that_was_handed_over_is_neither_named_nor_ended(
    host: PlanningHost, ended: list[RunningServer]
) -> None:
    journals = Journals(host.settings.restore.journal)
    for journal in journals.under_way("main"):
        journals.finish(journal)
    assert [outcome.name for outcome in orphan_servers.reap(host.settings)] == ["process 2"]


def test_a_server_that_is_handed_over_while_reap_works_is_not_ended(
    host: PlanningHost, ended: list[RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    journals, looks = Journals(host.settings.restore.journal), Counter[str]()

    @contextmanager
    def handed_over_before_the_second_look(lock: str) -> Iterator[bool]:
        looks[lock] += 1
        if looks[lock] == 2:
            for journal in journals.under_way("main"):
                journals.forget(journal.plan.layout.top)
        with if_free(lock) as is_free:
            yield is_free

    monkeypatch.setattr(orphan_servers, "if_free", handed_over_before_the_second_look)
    assert [outcome.name for outcome in orphan_servers.reap(host.settings)] == ["process 2"]
    assert [server.pid for server in ended] == [2]
    assert set(looks.values()) == {2}
