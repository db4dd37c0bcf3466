"""An archiver records until when its archive is complete: at once, and then once a minute while nothing new comes."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.unit.support.archived_backups import ProtectedServer
from tests.unit.support.archived_server import Server
from tests.unit.support.events import Recorder
from tests.unit.support.faulty_store import Fault, FaultyStore
from zsnapdb.base.domain_types import BinlogCoordinates
from zsnapdb.base.errors import NotFound, RepositoryError, ServerError
from zsnapdb.jobs.binlog import archiver as archiving
from zsnapdb.jobs.binlog.archive_round import Round
from zsnapdb.jobs.binlog.archiver import Archiver, CompletenessRecorder
from zsnapdb.jobs.repository.protection_status import ProtectionStatus
from zsnapdb.mysql.session import Session
from zsnapdb.planning.binlog.archive_times import CommitHorizon
from zsnapdb.planning.restore.steps import Replay
from zsnapdb.planning.server_facts import Dialect
from zsnapdb.report.repository.protection import StatusView

SECOND = 1_000_000


class Watch:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def recorder(server: Server, watch: Watch) -> CompletenessRecorder:
    return CompletenessRecorder(Recorder(server.reported), 60.0, watch)


def horizon(server: Server, later: int = 0) -> CommitHorizon:
    """Return what the server says `later` seconds after its last commit."""
    end = BinlogCoordinates(f"binlog.{server.number:06d}", len(server.newest.data))
    return CommitHorizon((server.clock + later) * SECOND, end)


def recorded(server: Server) -> list[tuple[str, int, int]]:
    return [(record.name, record.end, record.until) for record in server.load().state.complete]


FORMS = Dialect()


def refuse(*_: object) -> None:
    raise RepositoryError("denied")


def round_of(recorder: CompletenessRecorder, archiver: Archiver, reached: CommitHorizon) -> Round:
    return recorder.after(archiver.look(), reached, archiver.archive)


def test_the_first_round_records_and_later_rounds_only_after_a_quiet_minute(
    server: Server, recorder: CompletenessRecorder, watch: Watch
) -> None:
    archiver = server.archiver()
    server.commit(2)
    reached = horizon(server, 5)
    assert round_of(recorder, archiver, reached).complete_until == reached.until
    first = ("binlog.000001", len(server.newest.data), reached.until)
    assert recorded(server) == [first]
    watch.seconds = 59
    assert round_of(recorder, archiver, horizon(server, 59)).complete_until is None
    watch.seconds = 60
    server.commit()
    assert round_of(recorder, archiver, horizon(server, 59)).complete_until is None
    assert recorded(server) == [first]
    reached = horizon(server, 60)
    assert round_of(recorder, archiver, reached).complete_until == reached.until
    assert recorded(server) == [("binlog.000001", len(server.newest.data), reached.until)]
    server.check()


def test_what_the_server_wrote_after_the_files_were_read_keeps_the_time_out(
    server: Server, recorder: CompletenessRecorder
) -> None:
    archiver = server.archiver()
    server.commit(2)
    result = archiver.look()
    server.commit()
    assert recorder.after(result, horizon(server), archiver.archive).complete_until is None
    assert recorded(server) == []


def test_each_incarnation_has_a_record_of_its_own(server: Server, recorder: CompletenessRecorder, watch: Watch) -> None:
    archiver = server.archiver()
    server.commit(2)
    before = horizon(server, 5)
    round_of(recorder, archiver, before)
    server.reset()
    server.commit()
    watch.seconds = 100
    round_of(recorder, archiver, horizon(server))
    watch.seconds = 200
    after = horizon(server, 60)
    round_of(recorder, archiver, after)
    assert [until for _, _, until in recorded(server)] == [before.until, after.until]


def test_a_repository_that_refuses_the_record_is_warned_of_once(server: Server, recorder: CompletenessRecorder) -> None:
    store = FaultyStore(server.store)
    archiver = server.archiver(store)
    server.commit()
    result = archiver.look()
    store.faults["put"] = [Fault.DENIED, Fault.DENIED]
    for _ in range(2):
        assert recorder.after(result, horizon(server), archiver.archive).complete_until is None
    assert [text for text in server.reported if "until which the archive is complete cannot be recorded" in text] == [
        server.reported[-1]
    ]
    assert recorder.after(result, horizon(server), archiver.archive).complete_until is not None


def test_a_server_that_does_not_tell_is_warned_of_and_archiving_goes_on(
    server: Server, recorder: CompletenessRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(_: Session, forms: Dialect) -> CommitHorizon:
        raise ServerError("SHOW MASTER STATUS: denied")

    monkeypatch.setattr(archiving, "commit_horizon", refusing)
    monkeypatch.setattr(archiving, "clock", lambda _: 0.0)
    monkeypatch.setattr(archiving, "dialect", lambda _: FORMS)
    assert recorder.before(object.__new__(Session)) is None
    assert "denied" in server.reported[-1]
    result = server.look()
    assert recorder.after(result, None, server.archive()) == result


def test_the_server_is_asked_only_if_a_record_may_be_due(
    server: Server, recorder: CompletenessRecorder, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, questions = server.clock + 100, list[Session]()

    def forms_of(session: Session) -> Dialect:
        questions.append(session)
        return FORMS

    monkeypatch.setattr(archiving, "dialect", forms_of)
    monkeypatch.setattr(archiving, "commit_horizon", lambda *_: horizon(server))
    monkeypatch.setattr(archiving, "clock", lambda _: float(now))
    session = object.__new__(Session)
    server.commit()
    archiver = server.archiver()
    assert round_of(recorder, archiver, recorder.before(session) or horizon(server)).complete_until is not None
    assert recorder.before(session) is None
    watch.seconds = 60
    assert recorder.before(session) == horizon(server)
    watch.seconds = 0
    now = server.clock - 1
    assert recorder.before(session) == horizon(server)
    assert len(questions) == 1, "which statements it understands is asked once"


def test_a_repository_that_refused_a_record_is_not_asked_in_every_round(
    server: Server, recorder: CompletenessRecorder, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "commit_horizon", lambda *_: horizon(server))
    monkeypatch.setattr(archiving, "clock", lambda _: float(server.clock + 100))
    monkeypatch.setattr(archiving, "dialect", lambda _: FORMS)
    session = object.__new__(Session)
    server.commit()
    archiver = server.archiver()
    with monkeypatch.context() as refused:
        refused.setattr(type(archiver.archive), "note_complete", refuse)
        assert round_of(recorder, archiver, horizon(server)).complete_until is None
    assert recorder.before(session) is None
    watch.seconds += 60
    assert recorder.before(session) == horizon(server)


def test_a_clock_that_is_set_back_takes_the_record_back(server: Server, recorder: CompletenessRecorder) -> None:
    archiver = server.archiver()
    server.commit()
    round_of(recorder, archiver, horizon(server, 500))
    server.commit()
    reached = horizon(server, 5)
    assert round_of(recorder, archiver, reached).complete_until == reached.until
    assert [until for _, _, until in recorded(server)] == [reached.until]


@pytest.fixture(params=["GTIDs", "file positions"])
def protected(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProtectedServer:
    """A server with a backup and archived binlogs, which is quiet since its last commit."""
    made = ProtectedServer.make(tmp_path, monkeypatch, has_gtids=request.param == "GTIDs")
    made.server.commit()
    made.back_up()
    for _ in range(2):
        made.server.commit(2)
        made.server.rotate()
    made.server.commit()
    return made


def quiet(protected: ProtectedServer, seconds: int) -> None:
    """Archive, and record that nothing was committed for so long."""
    archiver = protected.server.archiver()
    recorder = CompletenessRecorder(Recorder(protected.server.reported), 60.0)
    assert round_of(recorder, archiver, horizon(protected.server, seconds)).complete_until is not None


def after_last_commit(protected: ProtectedServer, seconds: float) -> str:
    return (datetime.fromtimestamp(protected.server.clock, UTC) + timedelta(seconds=seconds)).isoformat()


def test_a_restore_to_a_time_on_a_quiet_server_replays_to_its_last_commit(protected: ProtectedServer) -> None:
    protected.server.look()
    with pytest.raises(NotFound, match="after the end of the archive"):
        protected.plan(after_last_commit(protected, 20))
    quiet(protected, 50)
    planned, latest = protected.plan(after_last_commit(protected, 20)), protected.plan()
    replays = [step for step in planned.steps if isinstance(step, Replay)]
    assert replays == [step for step in latest.steps if isinstance(step, Replay)]
    assert planned.point.last is not None
    # For the time the last transaction was read; of `latest` only the latest time of its binlog is known.
    assert replace(planned.point.last, time_of="binlog") == latest.point.last
    protected.plan(after_last_commit(protected, 50))
    with pytest.raises(NotFound, match="after the end of the archive"):
        protected.plan(after_last_commit(protected, 50.5))


@pytest.mark.parametrize("is_rotated", [False, True])
def test_commit_of_a_clock_ahead_hides_no_archive_that_stands_still(
    protected: ProtectedServer, is_rotated: bool
) -> None:
    """One commit has a time of next year. Then the clock is right again, and later the archiver dies."""
    server, year = protected.server, 365 * 86400
    server.clock += year
    server.commit()
    server.clock -= year
    if is_rotated:
        server.rotate()
    server.commit()
    quiet(protected, 50)
    alive = protected.status()
    assert alive.archive_lag == pytest.approx(10, abs=2)
    recorded_at = server.clock + 50
    server.clock += 7200
    dead = protected.status()
    assert dead.archive_lag == pytest.approx(7210, abs=2)
    point = dead.health.facts.newest_point
    assert point is not None
    assert point.timestamp() == pytest.approx(recorded_at, abs=2)


def test_what_status_promises_of_a_quiet_server_is_what_a_restore_plans(protected: ProtectedServer) -> None:
    quiet(protected, 50)
    status = protected.status()
    until = (protected.server.clock + 50) * SECOND
    assert (status.window.ranges[-1].end, status.complete_until) == (until, until)
    assert status.archive_lag == pytest.approx(10, abs=2)
    view = StatusView(status)
    stamp = f"{datetime.fromtimestamp(until / SECOND, UTC):%Y-%m-%dT%H:%M:%S}.000000Z"
    assert f"complete      until {stamp}, " in view.text()
    binlog = view.fields()["binlog"]
    assert binlog is not None
    assert binlog["complete_until"] == stamp
    protected.plan(stamp)
    # More commits take nothing back.
    protected.server.clock += 51
    protected.server.commit()
    protected.server.look()
    protected.plan(stamp)
    assert protected.status().window.ranges[-1].end == protected.server.clock * SECOND


def test_after_a_reset_the_recorded_time_counts_for_the_old_history_alone(protected: ProtectedServer) -> None:
    quiet(protected, 10)
    late = after_last_commit(protected, 5)
    protected.server.clock += 20
    protected.server.reset()
    protected.server.commit()
    protected.server.look()
    planned = protected.plan(late)
    assert [log.file for step in planned.steps if isinstance(step, Replay) for log in step.logs] == [
        f"binlog.{number:06d}" for number in (1, 2, 3)
    ]
    assert protected.status().window.unprotected is not None


def incarnation(status: ProtectionStatus) -> str:
    assert status.last is not None
    return status.last.incarnation


@pytest.mark.parametrize("commits", [0, 1])
def test_status_of_a_rewound_server_is_about_its_new_history(protected: ProtectedServer, commits: int) -> None:
    """A quiet server commits nothing after a rewind, but its archive still leads to the present."""
    server = protected.server
    server.rotate()
    state = server.saved()
    server.commit(2)
    quiet(protected, 5)
    old = incarnation(protected.status())
    server.set_back(state)
    server.clock += 100
    server.look()
    assert incarnation(protected.status()) == old, "nothing is known of the new history yet"
    server.commit(commits)
    quiet(protected, 30)
    status, until = protected.status(), (server.clock + 30) * SECOND
    assert status.complete_until == until
    # Without GTIDs, nothing proves that the new history continues the backup.
    assert (status.window.ranges[-1].end == until) is server.has_gtids
    assert incarnation(status) != old
    assert status.last_commit == (server.clock * SECOND if commits else None)
    assert ("no transaction yet" in StatusView(status).text()) is not bool(commits)


def test_a_new_incarnation_is_recorded_in_its_second_round(server: Server, recorder: CompletenessRecorder) -> None:
    """A record of the incarnation before says nothing about it, so `status` would show a gap for a minute."""
    archiver = server.archiver()
    server.commit(2)
    state = server.saved()
    server.commit(2)
    assert round_of(recorder, archiver, horizon(server, 5)).complete_until is not None
    server.set_back(state)
    started = recorder.after(archiver.look(), None, archiver.archive)
    assert (started.new_incarnation is None, started.complete_until) == (False, None)
    server.clock += 10
    assert round_of(recorder, archiver, horizon(server, 5)).complete_until == (server.clock + 5) * SECOND
