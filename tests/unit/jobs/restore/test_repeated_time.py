"""A time that lies in two histories of a server is refused by every command that takes a time; a history decides it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import pytest

from tests.unit.support.archived_backups import ProtectedServer
from tests.unit.support.planning_host import no_snapshot
from zsnapdb.base.domain_types import Snapshot, SnapshotSet
from zsnapdb.base.errors import AmbiguousPointError, NotFound, UsageError
from zsnapdb.config.settings import Settings, parse
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.snapshot_set_properties import POSITION_PROPERTY, STORED
from zsnapdb.jobs.clone import create_plan, query
from zsnapdb.jobs.clone.query import Candidate, Moment, MomentMatch
from zsnapdb.jobs.clone.request import CloneRequest
from zsnapdb.jobs.host.local_snapshot_sets import DescribedSet
from zsnapdb.jobs.trial import drill, rescue
from zsnapdb.mysql.process import process_managers
from zsnapdb.mysql.process import programs as client_programs
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.planning.restore.point_forms import parse_time
from zsnapdb.planning.restore.steps import Replay
from zsnapdb.planning.sql_quoting import TableName
from zsnapdb.zfs import snapshots


@dataclass(frozen=True)
class Repeated:
    """A server that was set back. `time` and `gtids` lie in its `old` and in its `new` history."""

    protected: ProtectedServer
    folder: Path
    backup: str
    time: str
    gtids: str
    old: str
    new: str

    @property
    def settings(self) -> Settings:
        return parse(self.protected.site.text(), "test")

    @property
    def instance(self) -> Instance:
        return self.protected.instance()


def host_has(monkeypatch: pytest.MonkeyPatch, sets: Sequence[Candidate]) -> None:
    """Let the host have these snapshot sets."""
    known = [
        DescribedSet(
            SnapshotSet(one.backup_id, {"data": Snapshot("tank/mysql", f"zsnapdb-{one.backup_id}", 1, 1)}),
            STORED,
            {"creation": f"{one.made.timestamp():.0f}", POSITION_PROPERTY: one.position},
        )
        for one in sets
    ]
    monkeypatch.setattr(query, "described_sets", lambda instance, *states, more: known)


def moment(server_clock: int) -> str:
    return datetime.fromtimestamp(server_clock, UTC).isoformat()


@pytest.fixture
def repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repeated:
    protected = ProtectedServer.make(tmp_path, monkeypatch)
    server = protected.server
    server.commit()
    backup = protected.back_up()
    server.commit()
    server.rotate()
    server.look()
    state = server.saved()
    server.commit(2)
    server.look()
    gone = server.clock
    gtids = f"{server.uuid}:1-{server.executed}"
    server.clock += 100
    server.set_back(state)
    server.commit(5)
    server.look()
    old, new = (incarnation.id for incarnation in server.load().incarnations)
    for module, name, answer in (
        (client_programs, "find", Path("/usr/bin/program")),
        (process_managers, "version_of", "9.7.4"),
    ):
        monkeypatch.setattr(module, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(create_plan, "plan_for", planned_clone)
    monkeypatch.setattr(snapshots, "describe", no_snapshot)
    monkeypatch.setattr(query, "described_sets", lambda instance, *states, more: [])
    return Repeated(protected, tmp_path, backup, moment(gone), gtids, old, new)


def planned_clone(
    settings: object, instance: object, request: CloneRequest, made_from: create_plan.PlannedSource
) -> SimpleNamespace:
    return SimpleNamespace(made_from=made_from)


def restored(made: Repeated, to: str, history: str | None) -> RestorePlan:
    return made.protected.plan(to, **({} if history is None else {"history": history}))


def rescued(made: Repeated, to: str, history: str | None) -> RestorePlan:
    into = rescue.destination(made.settings, into=str(made.folder / "new.sql"), instance=None, password_file=None)
    request = rescue.RescueRequest(TableName("shop", "orders"), to, into, None, None, 60.0, history=history)
    return rescue.plan(made.settings, made.instance, made.instance.open_repository(), request).restore


def drilled(made: Repeated, to: str, history: str | None) -> RestorePlan:
    repository = made.instance.open_repository()
    return drill.plan(made.settings, made.instance, repository, drill.DrillRequest(to, seed=1, history=history)).restore


def cloned(made: Repeated, to: str, history: str | None) -> RestorePlan:
    planned = create_plan.plan(made.settings, made.instance, CloneRequest(owner="test", at=to, history=history))
    assert isinstance(planned.made_from.source, RestorePlan)
    return planned.made_from.source


def questioned(made: Repeated, to: str, history: str | None) -> RestorePlan:
    found = query.find_moment(made.settings, made.instance, to, history)
    assert found.match is MomentMatch.REPLAY
    assert found.point is not None
    return found.point


Planner = Callable[[Repeated, str, str | None], RestorePlan]


@pytest.mark.parametrize("planner", [restored, rescued, drilled, cloned, questioned])
def test_every_command_takes_the_same_words_for_a_point(
    repeated: Repeated, planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = planner(repeated, repeated.time, repeated.new).point
    moment = parse_time(repeated.time)
    instance = repeated.instance
    clock = replace(instance.host, now=lambda: moment + timedelta(minutes=10))
    monkeypatch.setattr(ProtectedServer, "instance", lambda _server: replace(instance, host=clock))
    there = f"{moment.astimezone(ZoneInfo('Europe/Berlin')):%Y-%m-%d %H:%M:%S.%f} Europe/Berlin"
    for words in (there, "10m", "600s", " 10 m "):
        assert planner(repeated, words, repeated.new).point == point
    for wrong in ("an hour ago", "2026-11-20", "2026-11-20T10:00:00"):
        with pytest.raises(UsageError):
            planner(repeated, wrong, repeated.new)


@pytest.mark.parametrize("planner", [restored, rescued, drilled, cloned, questioned])
def test_a_point_in_two_histories_is_refused_and_named_until_a_history_is_chosen(
    repeated: Repeated, planner: Planner
) -> None:
    for point in (repeated.time, repeated.gtids):
        with pytest.raises(AmbiguousPointError, match=f"2 histories .* {repeated.new} .*{repeated.old} ") as refused:
            planner(repeated, point, None)
        assert (refused.value.exit_code, "--history" in refused.value.hint) == (2, True)
        ends = {
            history: [
                log.incarnation
                for step in planner(repeated, point, history).steps
                if isinstance(step, Replay)
                for log in step.logs
            ][-1]
            for history in (repeated.old, repeated.new)
        }
        assert ends[repeated.old] == repeated.old
        assert (ends[repeated.new] == repeated.new) == (point == repeated.gtids)
    with pytest.raises(NotFound, match="no history nowhere"):
        planner(repeated, repeated.time, "nowhere")


def test_a_snapshot_set_does_not_answer_for_a_moment_in_two_histories(
    repeated: Repeated, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = datetime.fromtimestamp(1_700_000_000, UTC)
    known = [
        query.Candidate(repeated.backup, made, "binlog.000001:500 " + f"{repeated.protected.server.uuid}:1"),
        query.Candidate("20300101T000000Z-0001", made, f"binlog.000002:500 {repeated.gtids}"),
    ]
    host_has(monkeypatch, known)
    for point in (repeated.time, repeated.gtids):
        with pytest.raises(AmbiguousPointError):
            query.find_moment(repeated.settings, repeated.instance, point)
    found = query.find_moment(repeated.settings, repeated.instance, repeated.gtids, repeated.new)
    assert (found.match, found.history) == (MomentMatch.REPLAY, repeated.new)
    assert f"of history {repeated.new} up to" in found.describe()
    assert query.find_moment(repeated.settings, repeated.instance, repeated.backup).match is MomentMatch.SNAPSHOT


@pytest.mark.parametrize(
    ("newest", "match"), [("2020-01-01", MomentMatch.REPLAY), ("2040-01-01", MomentMatch.SNAPSHOT)]
)
def test_the_latest_state_of_a_question_is_what_the_archive_leads_to_or_a_newer_snapshot_set(
    repeated: Repeated, monkeypatch: pytest.MonkeyPatch, newest: str, match: MomentMatch
) -> None:
    sets = [
        Candidate(backup_id, datetime.fromisoformat(f"{made}T00:00:00Z"), "binlog.000001:157")
        for backup_id, made in ((repeated.backup, "2020-01-01"), ("20400101T000000Z-0001", newest))
    ]
    host_has(monkeypatch, sets)
    latest = query.find_moment(repeated.settings, repeated.instance, "latest")
    assert latest.match is match
    backup = query.find_moment(repeated.settings, repeated.instance, "latest-backup")
    assert (backup.backup_id, backup.match) == (sets[-1].backup_id, MomentMatch.SNAPSHOT)
    if match is MomentMatch.REPLAY:
        assert latest.point is not None
        assert latest.point.point.gtids == restored(repeated, "latest", None).point.gtids


class BothAreFoundError(Exception):
    """The arguments are the histories of the two moments that would be compared."""


@pytest.fixture
def compare(repeated: Repeated, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a comparison of two moments that ends when both moments are found. The host has the set of the backup."""
    seen: list[str | None] = []
    stored = Candidate(repeated.backup, datetime(2020, 1, 1, tzinfo=UTC), "binlog.000001:157")

    @contextmanager
    def past(settings: Settings, instance: Instance, found: Moment) -> Iterator[None]:
        seen.append(found.history)
        if len(seen) == 2:
            raise BothAreFoundError(*seen)
        yield

    def compared(begin: str, end: str, history: str, end_history: str | None = None) -> None:
        seen.clear()
        query.diff(
            repeated.settings,
            repeated.instance,
            "shop.orders",
            begin,
            end,
            lambda *_: None,
            history=history,
            end_history=end_history,
        )

    monkeypatch.setattr(query, "past", past)
    host_has(monkeypatch, [stored])
    return compared


def test_a_comparison_applies_a_history_to_each_moment_that_is_in_one(
    repeated: Repeated, compare: Callable[..., None]
) -> None:
    old, new = repeated.old, repeated.new
    for end, end_history, histories in (
        ("latest", None, (old, None)),
        (repeated.gtids, None, (old, old)),
        (repeated.gtids, new, (old, new)),
    ):
        with pytest.raises(BothAreFoundError) as reached:
            compare(repeated.time, end, old, end_history)
        assert reached.value.args == histories
    with pytest.raises(UsageError, match="--history does not apply"):
        compare(repeated.backup, "latest", old)
