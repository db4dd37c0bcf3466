"""Laws of the route through the archive, for random histories of servers whose archive lost files.

No route leads to a state that no server had. What status promises is what a restore can plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.support.binlog_scenarios import (
    BACKUP_IN_A_LOST_FILE,
    NEW_SERVER_WITHOUT_ITS_ONLY_WRITE,
    OVERLAP,
    RESET_AFTER_A_TAKEOVER_AND_A_LOST_WRITE,
    RESET_BEFORE_A_LOST_FILE,
    RESET_OF_WHICH_NO_FILE_IS_LEFT,
    ROTATED_AFTER_A_LOST_WRITE,
    SET_BACK_BEHIND_A_LOST_FILE,
    SET_BACK_TO_A_CUT_FILE,
    SET_BACK_TWICE,
    TAKEN_OVER_WITH_COPIES,
)
from tests.unit.support.binlog_simulation import Simulation, restored, simulate
from tests.unit.support.binlog_window import SECOND
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import HistoryError, NotFound
from zsnapdb.base.gtid import contains, joined
from zsnapdb.planning.binlog.archive_times import complete_until
from zsnapdb.planning.binlog.recoverable_ranges import newer_beyond, window
from zsnapdb.planning.binlog.route import (
    NEWEST,
    ArchiveState,
    BackupPoint,
    EndKind,
    Route,
    RouteEnd,
    RouteFile,
    RouteMap,
    commit_time,
    follow,
)
from zsnapdb.planning.restore.point_forms import AtTime, Latest
from zsnapdb.planning.restore.route_choice import choose

SERVERS = st.sampled_from([(Flavour.MYSQL, True), (Flavour.MYSQL, False), (Flavour.MARIADB, True)])
HAPPENINGS = st.lists(
    st.tuples(
        st.sampled_from(
            ["write", "write", "write", "rotate", "rotate", "backup", "quiet", "quiet", "reset", "back", "failover"]
        ),
        st.integers(0, 20),
    ),
    min_size=5,
    max_size=40,
)
SIMULATIONS = st.builds(simulate, SERVERS, HAPPENINGS, st.sets(st.integers(0, 20), max_size=2))
"""Random histories: what happened to the server, and which of the archived files were lost."""
WHOLE = st.builds(simulate, SERVERS, HAPPENINGS, st.just(set[int]()))
"""Random histories of which no archived file was lost."""


CLOCKS = st.builds(
    simulate,
    st.sampled_from([(Flavour.MYSQL, True), (Flavour.MYSQL, False), (Flavour.MARIADB, True)]),
    st.lists(
        st.one_of(
            st.tuples(
                st.sampled_from(["write", "write", "write", "rotate", "clock", "reset", "back", "failover"]),
                st.integers(0, 20),
            ),
            st.just(("backup", 1)),
        ),
        min_size=5,
        max_size=40,
    ),
    st.sets(st.integers(0, 20), max_size=2),
)
"""Random histories with clocks that are set back; each backup records the head of its binlog."""


@given(CLOCKS)
def test_whatever_the_clocks_say_a_backup_is_found_in_its_own_binlog_and_never_elsewhere(
    simulation: Simulation,
) -> None:
    for point in simulation.points:
        route = follow(point, simulation.files)
        state = restored(simulation, route)
        assert any(history[: len(state)] == state for history in simulation.histories), route
        assert point.coordinates is not None
        own = [file for file in simulation.files if file.fingerprint == point.fingerprint]
        assert bool(route.files) >= any(file.end >= point.coordinates.offset for file in own), route


@given(SIMULATIONS)
@example(simulate((Flavour.MYSQL, True), SET_BACK_BEHIND_A_LOST_FILE, {9}))
@example(simulate((Flavour.MYSQL, True), RESET_BEFORE_A_LOST_FILE, {5}))
def test_a_route_restores_only_states_that_a_server_really_had(simulation: Simulation) -> None:
    for point in simulation.points:
        state = restored(simulation, follow(point, simulation.files, simulation.state))
        assert any(history[: len(state)] == state for history in simulation.histories), follow(point, simulation.files)


@given(SIMULATIONS)
def test_what_status_promises_is_exactly_what_a_restore_can_plan(simulation: Simulation) -> None:
    points, files = simulation.points, simulation.files
    if not points:
        return
    known = simulation.state
    promised = window(points, files, known)
    now = commit_time(10**9 * SECOND)
    alone = {route.point.taken for route in promised.routes if route.is_empty}
    last = promised.ranges[-1]
    latest = choose(Latest(accepts_older=True), points, files, now, known)
    assert latest.route.to == last.end
    assert latest.route.end == last.ends
    if newer_beyond(latest.route, files, points, lambda point: follow(point, files, known)) is None:
        assert choose(Latest(), points, files, now, known) == replace(latest, target=Latest())
    else:
        with pytest.raises(HistoryError, match="the archive leads only to"):
            choose(Latest(), points, files, now, known)
    moments = {moment for part in promised.ranges for edge in (part.start, part.end) for moment in (edge, edge + 1)}
    moments |= {file.last_commit for file in files if file.last_commit is not None}
    moments |= {moment for record in known.complete for moment in (record.until, record.until + 1)}
    for moment in moments - alone:
        is_promised = any(part.start <= moment <= part.end for part in promised.ranges)
        try:
            chosen = choose(AtTime(commit_time(moment)), points, files, now, known)
        except NotFound:
            assert not is_promised
            continue
        except HistoryError:
            continue
        is_abandoned = chosen.route.files and chosen.route.files[-1].incarnation != files[-1].incarnation
        assert is_promised or is_abandoned
        assert chosen.point.taken <= moment <= chosen.route.to


@given(WHOLE)
def test_latest_has_everything_that_the_server_has_at_the_end_or_is_refused(simulation: Simulation) -> None:
    """If the newest file of all was lost, the host's own record knows of it, not the archive."""
    if not simulation.points:
        return
    now = commit_time(10**9 * SECOND)
    try:
        chosen = choose(Latest(), simulation.points, simulation.files, now, simulation.state)
    except (NotFound, HistoryError):
        return
    newest = simulation.histories[-1]
    assert restored(simulation, chosen.route, chosen)[: len(newest)] == newest, chosen


def _is_lost_before_a_reset(simulation: Simulation, lost: set[int]) -> bool:
    """Whether the newest server, of which there is no backup yet, was reset after a file that the archive lost."""
    server = simulation.files[-1].server
    own = [at for at, file in enumerate(simulation.files) if file.server == server]
    resets = [at for at in own if simulation.files[at].number == 1]
    before = {at for at in own if resets and at < resets[-1]}
    return simulation.points[-1].server != server and bool(before & lost)


def _is_reset_forgotten(simulation: Simulation, lost: set[int], taken: int) -> bool:
    """Whether a history that began with a reset after the backup of this moment left no file, and is not the last."""
    last = simulation.files[-1].incarnation
    kept = {file.incarnation for at, file in enumerate(simulation.files) if at not in lost}
    begun = {file.incarnation: file for file in reversed(simulation.files)}
    return any(
        first.number == 1 and first.created * SECOND > taken and incarnation not in kept | {last}
        for incarnation, first in begun.items()
    )


@given(WHOLE, st.sets(st.integers(0, 20), max_size=3))
@example(simulate((Flavour.MYSQL, True), RESET_OF_WHICH_NO_FILE_IS_LEFT, set()), {1})
@example(simulate((Flavour.MYSQL, True), BACKUP_IN_A_LOST_FILE, set()), {0})
@example(simulate((Flavour.MYSQL, True), NEW_SERVER_WITHOUT_ITS_ONLY_WRITE, set()), {2})
@example(simulate((Flavour.MYSQL, True), ROTATED_AFTER_A_LOST_WRITE, set()), {2})
@example(simulate((Flavour.MYSQL, True), RESET_AFTER_A_TAKEOVER_AND_A_LOST_WRITE, set()), {4})
def test_latest_of_an_archive_with_lost_files_misses_nothing_that_the_archive_still_knows_of(
    simulation: Simulation, lost: set[int]
) -> None:
    """Any file may be lost, but not all of the newest history: the files after it say in which state they begin.

    Without GTIDs only the head of its binlog tells where a backup belongs after a server was set back twice. Nothing is
    after the newest file. If it is lost, the archive does not know what another server wrote since: to the
    archive that server is one that took over nothing yet, as an empty one that was set up for this very restore. The
    same is true of a file that was lost before that server was reset: the files after a reset begin with nothing.
    A server that is reset numbers its transactions anew. If no file of that history is left, the archive has another
    server's copies of them, and takes those for the ones before the reset: they have the same GTIDs.
    """
    files = [file for at, file in enumerate(simulation.files) if at not in lost]
    last = max(incarnation for incarnation, _ in simulation.contents)
    now = commit_time(10**9 * SECOND)
    if not simulation.points or all(file.incarnation != last for file in files):
        return
    if not simulation.has_gtids and any(point.fingerprint is None for point in simulation.points):
        return
    try:
        chosen = choose(Latest(), simulation.points, files, now, simulation.state)
    except (NotFound, HistoryError):
        return
    if _is_reset_forgotten(simulation, lost, chosen.point.taken):
        return
    newest, state = simulation.histories[-1], restored(simulation, chosen.route, chosen)
    is_told = simulation.files[-1] in files and not _is_lost_before_a_reset(simulation, lost)
    if is_told or list(chosen.files[-1:]) == list(files[-1:]):
        assert state[: len(newest)] == newest[: len(state)], chosen
    archived = {one for file in files for one in simulation.contents[file.incarnation, file.name]}
    assert not archived & set(newest) - set(state), chosen
    for file in files:
        if file.incarnation == last and file.reached is not None and chosen.route.reached is not None:
            assert contains(chosen.route.reached, file.reached), (chosen, file)


@given(SIMULATIONS)
@example(simulate((Flavour.MYSQL, True), OVERLAP, set()))
@example(simulate((Flavour.MYSQL, True), SET_BACK_TWICE, set()))
@example(simulate((Flavour.MYSQL, True), SET_BACK_TO_A_CUT_FILE, set()))
@example(simulate((Flavour.MYSQL, True), TAKEN_OVER_WITH_COPIES, set()))
def test_a_restore_to_a_time_replays_no_transaction_committed_after_it(simulation: Simulation) -> None:
    """The clocks of these servers are right, and the files of servers that follow each other overlap in time."""
    points, files = simulation.points, simulation.files
    now = commit_time(10**9 * SECOND)
    seconds = {one.second for history in simulation.histories for one in history}
    seconds |= {record.until // SECOND for record in simulation.complete}
    for second in sorted(seconds):
        try:
            chosen = choose(AtTime(commit_time(second * SECOND)), points, files, now, simulation.state)
        except (NotFound, HistoryError):
            continue
        state = restored(simulation, chosen.route, chosen)
        assert all(one.second <= second for one in state), chosen
        assert any(history[: len(state)] == state for history in simulation.histories), chosen


@given(SIMULATIONS)
def test_a_time_until_which_the_archive_is_complete_is_the_state_that_a_server_had_then(
    simulation: Simulation,
) -> None:
    now = commit_time(10**9 * SECOND)
    for record in simulation.complete:
        try:
            chosen = choose(
                AtTime(commit_time(record.until)), simulation.points, simulation.files, now, simulation.state
            )
        except (NotFound, HistoryError):
            continue
        state = restored(simulation, chosen.route, chosen)
        had = [tuple(one for one in history if one.second * SECOND <= record.until) for history in simulation.histories]
        assert state in had, chosen


LOSSES = st.builds(
    simulate,
    SERVERS,
    st.lists(
        st.tuples(
            st.sampled_from(["write", "write", "write", "rotate", "backup", "quiet", "failover", "lost", "lost"]),
            st.integers(0, 20),
        ),
        min_size=5,
        max_size=40,
    ),
    st.just(set[int]()),
)
"""Random histories of servers that were lost before they had archived their last transactions."""
_LOST_AND_TAKEN_OVER = [("backup", 1), ("write", 0), ("write", 0), ("lost", 0), ("backup", 1), ("write", 0)]


@given(LOSSES)
@example(simulate((Flavour.MYSQL, True), _LOST_AND_TAKEN_OVER, set()))
def test_a_restore_to_a_time_has_everything_that_the_server_had_then_or_says_what_may_be_lost(
    simulation: Simulation,
) -> None:
    now = commit_time(10**9 * SECOND)
    for second in sorted({one.second for history in simulation.histories for one in history}):
        moment = commit_time(second * SECOND)
        try:
            chosen = choose(AtTime(moment), simulation.points, simulation.files, now, simulation.state)
        except (NotFound, HistoryError):
            continue
        assert chosen.boundary is not None
        history = simulation.histories[int(chosen.boundary.incarnation) - 1]
        had = {one for one in history if one.second <= second}
        assert had <= set(restored(simulation, chosen.route, chosen)) or chosen.notes, chosen


def test_a_time_of_which_the_archive_is_known_to_be_complete_has_no_note() -> None:
    happened = [("backup", 1), ("write", 0), ("quiet", 0), ("failover", 0), ("backup", 1), ("write", 0)]
    simulation = simulate((Flavour.MYSQL, True), happened, set())
    now, until = commit_time(10**9 * SECOND), simulation.complete[-1].until
    chosen, later = (
        choose(AtTime(commit_time(at)), simulation.points, simulation.files, now, simulation.state)
        for at in (until, until + SECOND)
    )
    assert chosen.notes == ()
    (note,) = later.notes
    assert "is between two histories: the archive of history 001" in note


def _step_by_step(point: BackupPoint, files: Sequence[RouteFile], state: ArchiveState) -> Route:
    """Return the route of one backup, found with a map of its own for each file that it passes."""
    whole = follow(point, files, state)
    if not whole.files:
        return whole
    at, reached, visited = files.index(whole.files[0]), point.gtids, []
    step: int | RouteEnd = at
    while not isinstance(step, RouteEnd):
        visited.append(files[step])
        reached = None if point.gtids is None else joined(reached, files[step].gtids)
        alone = RouteMap(files, state)
        is_end = alone._run_end(step) == step
        step = alone._leave(step, reached) if is_end else step + 1
    times = [point.taken, *(state.until(file.last_commit) for file in visited if file.last_commit is not None)]
    complete = complete_until(visited, step, state.complete)
    to = max(times if complete is None else [*times, state.until(complete)])
    return Route(point, tuple(visited), whole.start, whole.is_start_exact, to, reached, step)


@given(st.one_of(SIMULATIONS, CLOCKS), st.randoms(use_true_random=False))
@example(simulate((Flavour.MYSQL, True), SET_BACK_TWICE, set()), Random(1))
@example(simulate((Flavour.MARIADB, True), TAKEN_OVER_WITH_COPIES, set()), Random(1))
def test_route_map_finds_the_routes_of_single_steps(simulation: Simulation, order: Random) -> None:
    points, files, state = list(simulation.points), simulation.files, simulation.state
    order.shuffle(points)
    known = RouteMap(files, state)
    for point in points:
        route = known.follow(point)
        assert route == _step_by_step(point, files, state)
        assert [files[at] for part in route.places for at in part] == list(route.files)
        assert [route.files[at] for at in range(len(route.files))] == list(route.files)
        assert route.files[1:] == tuple(route.files)[1:]
        assert list(reversed(route.files)) == list(route.files)[::-1]


SET_BACK = st.builds(
    simulate,
    st.sampled_from([(Flavour.MYSQL, True), (Flavour.MYSQL, False), (Flavour.MARIADB, True)]),
    st.lists(
        st.one_of(
            st.tuples(
                st.sampled_from(["write", "write", "write", "rotate", "back", "back", "reset", "failover"]),
                st.integers(0, 20),
            ),
            st.tuples(st.just("clock"), st.integers(-200, 200)),
            st.just(("backup", 1)),
        ),
        min_size=5,
        max_size=40,
    ),
    st.just(set[int]()),
)
"""Random histories of servers that are set back, with clocks that jump. Backups record the heads of binlogs."""
_SET_BACK_BEHIND_THE_ARCHIVE = [
    ("backup", 1),
    ("write", 0),
    ("clock", 30),
    ("back", 0),
    ("write", 0),
    ("rotate", 0),
    ("backup", 1),
]


@given(SET_BACK, st.integers(0, 20))
@example(simulate((Flavour.MYSQL, True), _SET_BACK_BEHIND_THE_ARCHIVE, set()), 3)
@example(simulate((Flavour.MARIADB, True), _SET_BACK_BEHIND_THE_ARCHIVE, set()), 3)
def test_latest_contains_the_newest_backup_by_any_clock(simulation: Simulation, unarchived: int) -> None:
    """The last files are not archived yet. Then the archive may end in a history that the server left."""
    files = simulation.files[: len(simulation.files) - unarchived]
    if not simulation.points or not files:
        return
    now = commit_time(10**9 * SECOND)
    for accepts_older in (False, True):
        try:
            chosen = choose(Latest(accepts_older), simulation.points, files, now, simulation.state)
        except (NotFound, HistoryError):
            continue
        newest = simulation.states[simulation.points[-1].backup_id]
        assert restored(simulation, chosen.route, chosen)[: len(newest)] == newest, chosen


_RESET_UNDER_A_CLOCK_BEHIND = [("backup", 1), ("clock", 60), ("reset", 0), ("write", 0)]
_TAKEN_OVER_UNDER_A_CLOCK_BEHIND = [("backup", 1), ("clock", 60), ("failover", 0), ("write", 0)]


@given(SET_BACK, st.integers(0, 20), st.sets(st.integers(0, 20), max_size=2))
@example(simulate((Flavour.MYSQL, True), _RESET_UNDER_A_CLOCK_BEHIND, set()), 0, {0})
@example(simulate((Flavour.MYSQL, False), _RESET_UNDER_A_CLOCK_BEHIND, set()), 0, {0})
@example(simulate((Flavour.MARIADB, True), _RESET_UNDER_A_CLOCK_BEHIND, set()), 0, {0})
@example(simulate((Flavour.MYSQL, True), _TAKEN_OVER_UNDER_A_CLOCK_BEHIND, set()), 0, {0})
@example(simulate((Flavour.MARIADB, True), _TAKEN_OVER_UNDER_A_CLOCK_BEHIND, set()), 0, {0})
@example(simulate((Flavour.MYSQL, False), _TAKEN_OVER_UNDER_A_CLOCK_BEHIND, set()), 0, set())
def test_latest_misses_nothing_archived_or_names_a_doubt(
    simulation: Simulation, unarchived: int, lost: set[int]
) -> None:
    """The newest history is that of the newest archived binlog or backup. The clocks jump in both directions."""
    files = simulation.files[: len(simulation.files) - unarchived]
    files = [file for at, file in enumerate(files) if at not in lost]
    if not simulation.points or not files:
        return
    try:
        chosen = choose(Latest(), simulation.points, files, commit_time(10**9 * SECOND), simulation.state)
    except (NotFound, HistoryError):
        return
    if chosen.route.end.kind is EndKind.NEWEST and chosen.route.end != NEWEST:
        assert "only times show" in chosen.route.end.reason
        return
    number = max(int(files[-1].incarnation), simulation.incarnations[simulation.points[-1].backup_id])
    archived = {one for file in files for one in simulation.contents[file.incarnation, file.name]}
    newest = set(simulation.histories[number - 1])
    assert not archived & newest - set(restored(simulation, chosen.route, chosen)), chosen
