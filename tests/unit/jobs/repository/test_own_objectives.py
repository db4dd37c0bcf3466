"""The ages in the objectives of a host come from its own backups and binlogs, not from a second writer's."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.support.archived_backups import ProtectedServer
from tests.unit.support.archived_server import Server
from zsnapdb.base.errors import UnreachableError
from zsnapdb.config.instance import ObjectiveSettings
from zsnapdb.jobs.binlog.archiver import Archiver
from zsnapdb.jobs.health import health
from zsnapdb.jobs.health.recovery_coverage import read
from zsnapdb.planning.health.objectives import Objective, Verdict

HOUR = 3600.0
AGES = (Objective.RPO, Objective.BACKUP_AGE, Objective.ARCHIVE_LAG)


@pytest.fixture
def protected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProtectedServer:
    made = ProtectedServer.make(tmp_path, monkeypatch)
    made.objectives = ObjectiveSettings(rpo=HOUR, backup_age=HOUR, archive_lag=HOUR)
    made.server.commit(2)
    made.server.look()
    return made


def copy_writes(protected: ProtectedServer, folder: Path) -> None:
    """A copy of the server archives and backs up two hours later."""
    folder.mkdir()
    server = protected.server
    copy = Server(folder, is_encrypted=False)
    state = server.saved()
    server.commit()
    server.look()
    copy.store, copy.clock = server.store, server.clock + 7200
    copy.set_back(state)
    copy.commit(2)
    copy.look()
    protected.server = copy
    protected.back_up()


def verdicts(protected: ProtectedServer, backups: Collection[str], histories: Collection[str]) -> list[Verdict]:
    """Return the verdicts on the ages on a host with these backups and histories in its record."""
    instance = protected.instance()
    stored = replace(read(instance, instance.open_repository()), own_backups=set(backups), own_histories=set(histories))
    judged = health.judge_instance(instance, stored, health.past_drills(stored, instance), instance.host.now())
    return [one.verdict for one in judged.judgements if one.objective in AGES]


def test_objectives_count_only_backups_and_binlogs_of_this_host(protected: ProtectedServer, tmp_path: Path) -> None:
    backup = protected.back_up()
    (history,) = (one.id for one in protected.server.load().incarnations)
    assert verdicts(protected, [backup], [history]) == [Verdict.MET] * 3
    copy_writes(protected, tmp_path / "copy")
    assert verdicts(protected, [backup], [history]) == [Verdict.BROKEN] * 3
    assert verdicts(protected, [], []) == [Verdict.MET] * 3


def test_backups_and_histories_of_a_host_are_read_from_its_record(protected: ProtectedServer, tmp_path: Path) -> None:
    """The archiver of the fixture uses the record of the host, and the copy has its own record."""
    (history,) = (one.id for one in protected.server.load().incarnations)
    protected.back_up()
    backup = protected.back_up_from_here()
    copy_writes(protected, tmp_path / "copy")
    instance = protected.instance()
    stored = read(instance, instance.open_repository())
    assert (stored.own_backups, stored.own_histories) == ({backup}, {history})
    assert len(protected.server.load().incarnations) == 2


def test_binlogs_of_a_copy_in_the_history_of_this_host_do_not_count(protected: ProtectedServer, tmp_path: Path) -> None:
    """When the copy was made, all binlogs were archived. So the archiver of the copy continues their history."""
    protected.back_up_from_here()
    server = protected.server
    (tmp_path / "copy").mkdir()
    position = read(protected.instance(), protected.instance().open_repository()).archived
    assert position is not None
    copy = Server(tmp_path / "copy", is_encrypted=False)
    copy.store, copy.clock = server.store, server.clock + 7200
    copy.set_back(server.saved())
    copy.commit(2)
    assert copy.look().new_incarnation is None
    protected.server = copy
    instance, whole = protected.instance(), copy.load()
    # As with a trusted signing key, this host knows the binlogs of the copy too.
    stored = replace(read(instance, instance.open_repository()), archive=whole)
    judged = health.judge_instance(instance, stored, health.past_drills(stored, instance), instance.host.now())
    assert [one.verdict for one in judged.judgements if one.objective in AGES] == [Verdict.BROKEN] * 3
    assert ([file.number for file in whole.files], stored.archived) == ([1, 2], position)
    assert [(file.name, file.end) for file in stored.own_part.archive.files] == [(position.file, position.end)]


def test_binlogs_of_this_host_count_before_the_end_of_the_round_that_archived_them(
    protected: ProtectedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archiver catches up after three hours. It records the newest position after the last binlog."""
    protected.back_up_from_here()
    for _ in range(3):
        protected.server.clock += 3600
        protected.server.commit(2)
        protected.server.rotate()
    protected.server.commit(1)

    def lost(*_: object) -> None:
        raise UnreachableError("the store was lost during the round")

    monkeypatch.setattr(Archiver, "_archive_active", lost)
    with pytest.raises(UnreachableError):
        protected.look()
    instance = protected.instance()
    stored = read(instance, instance.open_repository())
    assert stored.archived is not None
    assert len(stored.recorded) == 3
    assert stored.own_part.archive.files == stored.archive.files
