"""Where several servers wrote under one name and nothing proves which one went on, a binlog history names one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.support.archived_backups import ProtectedServer
from tests.unit.support.archived_server import Server
from zsnapdb.base.errors import HistoryError

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
