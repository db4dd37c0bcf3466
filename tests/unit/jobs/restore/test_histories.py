"""A restore says when the archive does not lead to the state that was asked for, and so does status."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.support.archived_backups import ProtectedServer
from zsnapdb.errors import HistoryError
from zsnapdb.planning.binlog.history import EndKind
from zsnapdb.planning.restore.steps import Replay, RestorePlan


@pytest.fixture(params=["GTIDs", "file positions"])
def protected(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProtectedServer:
    """A server with a backup in its first binlog, four rotated binlogs and an active binlog, all archived."""
    made = ProtectedServer.make(tmp_path, monkeypatch, has_gtids=request.param == "GTIDs")
    made.server.commit()
    made.back_up()
    for _ in range(4):
        made.server.commit(2)
        made.server.rotate()
    made.server.commit()
    made.server.look()
    return made


def replayed(planned: RestorePlan) -> list[str]:
    return [part.file for step in planned.steps if isinstance(step, Replay) for part in step.logs]


FILES = [f"binlog.{number:06d}" for number in range(1, 6)]


def test_latest_replays_every_archived_binlog(protected: ProtectedServer) -> None:
    assert replayed(protected.plan()) == FILES
    assert protected.status().window.ranges[-1].ends.kind is EndKind.NEWEST


def remove(description: Path) -> None:
    description.unlink()


def cut(description: Path) -> None:
    description.write_bytes(description.read_bytes()[:-9])


def alter(description: Path) -> None:
    description.write_bytes(
        description.read_bytes().replace(b'"rotated"', b'"rotateD"').replace(b"binlog.", b"binl0g.")
    )


@pytest.mark.parametrize(
    ("damage", "place", "kind", "left"),
    [
        (remove, "files/binlog.000003.json", EndKind.GAP, FILES[:2]),
        (cut, "files/binlog.000003.json", EndKind.UNREADABLE, FILES[:2]),
        (alter, "files/binlog.000003.json", EndKind.UNREADABLE, FILES[:2]),
        (cut, "files/binlog.000004.json", EndKind.UNREADABLE, FILES[:3]),
        (alter, "active/binlog.000005", EndKind.UNREADABLE, FILES[:4]),
        (cut, "files/binlog.000001.json", EndKind.UNREADABLE, []),
    ],
)
def test_a_missing_or_damaged_description_ends_every_route_and_is_named(
    protected: ProtectedServer, damage: object, place: str, kind: EndKind, left: list[str]
) -> None:
    (description,) = protected.objects(place)
    damage(description)  # type: ignore[operator]
    with pytest.raises(HistoryError, match=r"binlog\.00000") as refused:
        protected.plan()
    assert refused.value.exit_code == 7
    assert protected.status().window.ranges[-1].ends.kind is kind
    older = protected.plan(accept_older=True)
    assert replayed(older) == left
    assert any("the archive reaches no further" in note for note in older.point.notes)


def test_an_unreadable_history_ends_every_route_that_may_lead_into_it(protected: ProtectedServer) -> None:
    protected.server.reset()
    protected.server.commit()
    protected.server.look()
    cut(max(protected.objects("incarnations/"), key=lambda path: path.stat().st_mtime_ns))
    with pytest.raises(HistoryError, match="a later history of the archive cannot be read"):
        protected.plan()


def test_a_segment_that_is_missing_between_others_ends_the_route(protected: ProtectedServer) -> None:
    for _ in range(2):
        protected.server.commit()
        protected.server.look()
    protected.objects("active/binlog.000005")[1].unlink()
    with pytest.raises(HistoryError, match="lacks the segment of binlog"):
        protected.plan()
    assert replayed(protected.plan(accept_older=True)) == FILES
