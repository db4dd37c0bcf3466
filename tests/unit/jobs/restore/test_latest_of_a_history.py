"""Where several servers wrote under one name and nothing proves which one went on, a binlog history names one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.support.archived_backups import ProtectedServer
from tests.unit.support.archived_server import Server
from zsnapdb.base.errors import HistoryError
from zsnapdb.report.repository.protection import StatusView

OTHER = "4e11fa47-71ca-11e1-9e33-c80aa9429562"


def test_latest_of_two_servers_is_refused_until_a_history_names_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    protected = ProtectedServer.make(tmp_path, monkeypatch, has_gtids=False)
    first = protected.server
    (tmp_path / "other").mkdir()
    second = Server(tmp_path / "other", OTHER, has_gtids=False, is_encrypted=False)
    second.store = first.store
    for number, server in enumerate((first, second)):
        protected.server = server
        server.clock += 3600 * number
        server.commit()
        protected.back_up()
        server.commit(2)
        server.look()
    with pytest.raises(HistoryError, match="several servers wrote backups under the name main") as refused:
        protected.plan()
    assert "--history" in refused.value.hint
    for backup, incarnation in zip(protected.backups, first.load().incarnations, strict=True):
        assert protected.plan(history=incarnation.id).backup_id == backup


def test_latest_is_refused_if_a_copy_left_production_an_older_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copied machine archived and backed up. An archiver of an earlier version continued production's history."""
    protected = ProtectedServer.make(tmp_path, monkeypatch)
    production = protected.server
    production.commit(2)
    protected.back_up()
    state = production.saved()
    production.commit()
    archiver = production.archiver()
    archiver.look()
    (tmp_path / "copy").mkdir()
    copy = Server(tmp_path / "copy", is_encrypted=False)
    copy.store, copy.clock = production.store, production.clock
    copy.set_back(state)
    copy.commit(2)
    copy.look()
    protected.server = copy
    protected.back_up()
    # The host of production knows that it archived a transaction that the newest history lacks.
    (left, other) = production.load().incarnations
    with pytest.raises(HistoryError, match=f"that this host archived in history {left.id}") as refused:
        protected.plan()
    assert (refused.value.exit_code, f"--history {left.id}` or `--history {other.id}`" in refused.value.hint) == (
        7,
        True,
    )
    production.clock = copy.clock
    production.commit(3)
    with monkeypatch.context() as patched:
        patched.setattr(archiver._others, "reason_to_begin", lambda *_: None)
        archiver.look()
    with pytest.raises(HistoryError, match=f"in history {left.id}, up to") as refused:
        protected.plan()
    assert f"`--history {left.id}` or `--history {other.id}`" in refused.value.hint
    assert "UNPROTECTED" in StatusView(protected.status()).text()
    assert protected.plan(history=left.id).point.gtids == f"{production.uuid}:1-6"
    # The archiver of this version begins a history, and the next backup of production leads into it.
    production.commit()
    assert other.id in str(archiver.look().new_incarnation)
    protected.server = production
    with pytest.raises(HistoryError):
        protected.plan()
    protected.back_up()
    production.commit()
    archiver.look()
    assert protected.plan().point.gtids == f"{production.uuid}:1-8"
    assert "UNPROTECTED" not in StatusView(protected.status()).text()
