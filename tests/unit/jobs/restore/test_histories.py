"""A restore says when the archive does not lead to the state that was asked for, and so does status."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.support.archived_backups import ProtectedServer
from tests.unit.support.events import Recorder
from zsnapdb.base.errors import HistoryError
from zsnapdb.jobs.binlog.archive_run import NewHistoryWatch
from zsnapdb.jobs.doctor import instance_checks
from zsnapdb.planning.backup.fitness import Severity
from zsnapdb.planning.binlog.route_elements import EndKind
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.planning.restore.steps import Replay
from zsnapdb.report.repository.protection import StatusView


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


def test_a_plan_names_its_last_transaction_although_the_last_binlog_adds_none(protected: ProtectedServer) -> None:
    protected.server.rotate()
    protected.server.look()
    last = protected.plan().point.last
    assert (last.file if last else None, last.gtid if last else None) == (
        "binlog.000005",
        f"{protected.server.uuid}:10" if protected.server.has_gtids else None,
    )
    if protected.server.has_gtids:
        before = protected.plan(f"before-{protected.server.uuid}:6").point
        assert before.last is not None
        assert (before.last.file, before.last.gtid) == ("binlog.000002", f"{protected.server.uuid}:5")


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
    older = protected.plan(accepts_older=True)
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
    assert replayed(protected.plan(accepts_older=True)) == FILES


def test_after_a_reset_latest_status_and_doctor_say_that_the_next_backup_is_needed(protected: ProtectedServer) -> None:
    protected.server.reset()
    protected.server.commit(3)
    protected.server.look()
    with pytest.raises(HistoryError, match=r"binlogs were reset: binlog\.000001 begins a new history"):
        protected.plan()
    shown = StatusView(protected.status())
    assert (
        "UNPROTECTED   nothing later than 2023-11-14T22:14:21.000000Z can be restored before the next backup"
        in shown.text()
    )
    unprotected = shown.fields()["unprotected"]
    assert unprotected is not None
    assert unprotected["kind"] == "reset"
    (finding,) = [
        f for f in instance_checks.describe_stored(protected.instance()) if "before the next backup" in f.detail
    ]
    assert (finding.severity, finding.hint) == (Severity.WARNING, "run `zsnapdb backup main`")
    protected.back_up()
    protected.server.commit()
    protected.server.look()
    assert replayed(protected.plan()) == ["binlog.000001"]
    assert StatusView(protected.status()).fields()["unprotected"] is None
    assert not any(
        "before the next backup" in found.detail for found in instance_checks.describe_stored(protected.instance())
    )


def test_an_archive_that_is_only_behind_the_newest_backup_asks_for_nothing(protected: ProtectedServer) -> None:
    protected.server.commit()
    backup = protected.back_up()
    assert protected.plan().backup_id == backup
    assert protected.status().window.unprotected is None


class Backup:
    """A started backup that ends with the next of the codes when it is polled."""

    def __init__(self, codes: list[int | None]) -> None:
        self.codes = codes

    def poll(self) -> int | None:
        return self.codes.pop(0)


@pytest.mark.parametrize("automatic", [True, False])
def test_the_archiver_asks_for_a_backup_when_a_history_begins_or_starts_it_itself(
    protected: ProtectedServer, automatic: bool
) -> None:
    said: list[str] = []
    instance = protected.instance()
    binlog = instance.settings.binlog.model_copy(update={"backup_on_new_history": automatic})
    instance = replace(
        instance, settings=instance.settings.model_copy(update={"binlog": binlog}), events=Recorder(said)
    )
    started: list[Backup] = []
    now = [0.0]

    def start() -> Backup:
        started.append(Backup([None, 6] if not started else [0]))
        return started[-1]

    watch = NewHistoryWatch(instance, start, lambda: now[0])
    archiver = protected.server.archiver()
    watch.after(archiver.look())
    assert (said, started) == ([], [])
    protected.server.reset()
    protected.server.commit()
    for _ in range(5):
        watch.after(archiver.look())
    assert sum("can be restored before the next backup" in line for line in said) == 1
    assert len(started) == (1 if automatic else 0)
    assert automatic == any("ended with 6" in line for line in said)
    now[0] = 301.0
    watch.after(archiver.look())
    protected.back_up()
    for _ in range(3):
        watch.after(archiver.look())
        now[0] += 400.0
    assert len(started) == (2 if automatic else 0)
