"""Law: a time at which both a server and its running copy committed is refused until a history is named."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest

from tests.unit.support.archived_backups import ProtectedServer
from tests.unit.support.archived_server import Server
from zsnapdb.base.errors import ExistsError, HistoryError, NotFound, RepositoryError
from zsnapdb.jobs.binlog.archiver import Archiver
from zsnapdb.jobs.host.binlog_spans import points_of
from zsnapdb.planning.restore.point_forms import AtTime
from zsnapdb.planning.restore.route_choice import choose


@pytest.mark.parametrize("seed", range(50))
def test_time_in_the_histories_of_two_writers_is_refused(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The events are random. An archiver runs, or starts for every round. A new one repeats a refused round."""
    random = Random(seed)
    protected = ProtectedServer.make(tmp_path, monkeypatch)
    server = protected.server
    server.commit(2)
    protected.back_up()
    server.look()
    state = server.saved()
    if random.random() < 0.5:
        server.commit()
        server.look()
    (tmp_path / "copy").mkdir()
    copy = Server(tmp_path / "copy", is_encrypted=False)
    copy.store, copy.clock = server.store, server.clock
    copy.set_back(state)
    archivers: dict[int, Archiver] = {}
    times: tuple[list[int], list[int]] = ([], [])
    starts_again = random.random() < 0.5

    def look(number: int) -> None:
        if starts_again or number not in archivers:
            archivers[number] = (server, copy)[number].archiver()
        with contextlib.suppress(RepositoryError, ExistsError):
            archivers[number].look()
            return
        archivers.pop(number)

    for number in (random.randrange(2) for _ in range(random.randint(4, 14))):
        one = (server, copy)[number]
        one.clock = max(server.clock, copy.clock)
        event = random.choice(["commit", "commit", "rotate", "look", "look", "backup"])
        if event == "commit":
            one.commit()
            times[number].append(one.clock)
        elif event == "rotate":
            one.rotate()
        elif event == "look":
            look(number)
        else:
            protected.server = one
            protected.back_up()
    for number in (0, 1, 0, 1):
        look(number)
    if not all(times):
        return
    instance, archive = protected.instance(), server.load()
    points = tuple(points_of(instance.summaries(instance.open_repository()).backups))
    now = datetime.fromtimestamp(max(server.clock, copy.clock) + 60, UTC)
    last = min(times[0][-1], times[1][-1])
    for second in range(max(times[0][0], times[1][0]), last + 1):
        moment = datetime.fromtimestamp(second, UTC) + timedelta(seconds=0.5 if second < last else 0)
        with pytest.raises((HistoryError, NotFound)):
            choose(AtTime(moment), points, archive.files, now, archive.state)
