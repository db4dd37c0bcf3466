"""Laws of a restore to a time: whatever times sessions write into their events, the archiver's looks keep it right.

A server commits at true times. Its sessions write any times into their events. The archiver looks now and then, also
after the clock of its host was set, and a binlog is rotated at any moment.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.planning.restore.test_points import NOON, UUID, Log, at, mysql, point
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import AmbiguousPointError, NotFound
from zsnapdb.base.gtid import GtidSet
from zsnapdb.jobs.host.binlog_spans import SpanBuilder
from zsnapdb.mysql.binlog.transactions import BinlogTransaction
from zsnapdb.planning.binlog.archive_times import (
    MOST_STRETCHES,
    TOLERANCE,
    ArchiverObservation,
    CommitTimeEvidence,
    Sighting,
    Stretch,
    sighting_between,
    with_stretch,
)
from zsnapdb.planning.binlog.route import NOTHING_KNOWN, RouteFile, commit_time, follow
from zsnapdb.planning.restore.point_forms import AtTime
from zsnapdb.planning.restore.replays import Scanned, find_stop
from zsnapdb.planning.restore.route_choice import choose
from zsnapdb.repository.binlog_descriptions import SpanPart

SECOND, SIZE, HEAD = 1_000_000, 10, 100
START = round(NOON.timestamp()) * SECOND
NEAR = TOLERANCE
"""How exact a restore to a time is where events have whole seconds, and the time in which their statement began."""


@dataclass(frozen=True)
class Commit:
    """A commit at a true time, and the time in its events. It was seen by a look and by none before."""

    when: int
    stamp: int
    file: int
    seen: Sighting

    @property
    def is_lie(self) -> bool:
        return abs(self.stamp - self.when) >= NEAR

    @property
    def is_unseen_lie(self) -> bool:
        return self.is_lie and self.seen.agrees(self.stamp)


@dataclass(frozen=True)
class Act:
    """What a session does: it waits (tenths of a second), commits, and may lie by some seconds. A look may follow."""

    wait: int
    lie: int | None
    is_looked_at: bool
    is_rotated: bool


@dataclass(frozen=True)
class Story:
    commits: tuple[Commit, ...]
    files: tuple[Log, ...]
    scanned: tuple[tuple[Scanned, ...], ...]
    end: int


def tell(acts: Sequence[Act]) -> Story:
    """Return what becomes of the acts: the archive as the archiver describes it, and the truth."""
    now, before, waiting = START + 300_000, ArchiverObservation(START, 0), list[tuple[int, int, int]]()
    commits: list[Commit] = []
    spans: list[SpanPart] = []
    number = 0
    for place, act in enumerate(acts):
        now += act.wait * SECOND // 10
        stamp = (now - 900_000 * (place % 2)) if act.lie is None else now + act.lie * SECOND
        waiting.append((now, max(0, stamp // SECOND * SECOND), number))
        if not (act.is_looked_at or act.is_rotated or place == len(acts) - 1):
            continue
        now += 100_000
        look = ArchiverObservation(now, now - START)
        seen = sighting_between(before, look)
        commits += [Commit(*one, seen) for one in waiting]
        own = [one for one in commits if one.file == number]
        known = spans[number] if number < len(spans) else SpanPart(start=0, end=HEAD)
        witness = CommitTimeEvidence(seen, known.stretches, known.end)
        archived = [one for one in own if HEAD + SIZE * (own.index(one) + 1) <= known.end]
        fresh = described(own, len(archived), known.end, witness)
        span = known.then(fresh, Flavour.MARIADB)
        if act.is_rotated:
            span = described(own, 0, 0, witness)
        spans[number:] = [span]
        before, waiting = look, []
        number += act.is_rotated
    return Story(tuple(commits), *archive(commits, spans), now)


def described(own: Sequence[Commit], skip: int, start: int, witness: CommitTimeEvidence) -> SpanPart:
    builder = SpanBuilder(start, start, witness)
    for place, one in list(enumerate(own))[skip:]:
        begin = HEAD + SIZE * place
        builder.add(BinlogTransaction(begin, begin + SIZE, None, one.stamp, is_exact=False))
    return builder.span()


def archive(
    commits: Sequence[Commit], spans: Sequence[SpanPart]
) -> tuple[tuple[Log, ...], tuple[tuple[Scanned, ...], ...]]:
    files, scans, done = [], [], 0
    for number, span in enumerate(spans):
        own = [one for one in commits if one.file == number]
        reader = CommitTimeEvidence(stretches=span.stretches, end=span.end)
        scans.append(tuple(scan(done + place, place, one, reader) for place, one in enumerate(own)))
        assert span.first_commit is not None
        assert span.last_commit is not None
        previous = mysql(1, done) if done else GtidSet()
        first, last = commit_time(span.first_commit), commit_time(span.last_commit)
        gtids = mysql(done + 1, done + len(own))
        name = f"binlog.{number + 1:06d}"
        files.append(Log("a", name, UUID, previous, gtids, HEAD, HEAD + SIZE * len(own), first, last))
        done += len(own)
    return tuple(files), tuple(scans)


def scan(number: int, place: int, one: Commit, reader: CommitTimeEvidence) -> Scanned:
    begin = HEAD + SIZE * place
    seen = reader.contradiction(begin, begin + SIZE, one.stamp)
    between = None
    if seen is not None:
        between = None if seen.earliest is None else commit_time(seen.earliest), commit_time(seen.latest)
    return Scanned(f"{UUID}:{number + 1}", begin, begin + SIZE, commit_time(one.stamp), is_exact=False, between=between)


def restored_to(story: Story, moment: int) -> tuple[int, int] | None:
    """Return how many commits a restore has at least and at most: two numbers if it is refused; None: no such time."""
    backup = point("20261120T120000Z-0001", Flavour.MYSQL, UUID, GtidSet(), "binlog.000001", HEAD)
    backup = replace(backup, fingerprint=story.files[0].fingerprint)
    now = commit_time(story.end + 3600 * SECOND)
    try:
        chosen = choose(AtTime(commit_time(moment)), (backup,), story.files, now)
    except NotFound:
        return None
    names = [file.name for file in story.files]

    def read(file: RouteFile) -> Sequence[Scanned]:
        return story.scanned[names.index(file.name)]

    try:
        place, offset = find_stop(chosen, HEAD, read, now)
    except AmbiguousPointError as refusal:
        first = re.search(rf"after {UUID}:(\d+)", refusal.message)
        last = re.search(rf"before {UUID}:(\d+)", refusal.message)
        after = re.search(r"before binlog\.(\d+)", refusal.message)
        beyond = sum(len(one) for one in story.scanned[: int(after[1]) - 1]) if after else len(story.commits)
        return int(first[1]) if first else 0, int(last[1]) - 1 if last else beyond
    count = sum(len(one) for one in story.scanned[:place]) + (offset - HEAD) // SIZE
    return count, count


LIES = st.one_of(st.none(), st.none(), st.integers(-60, 60), st.sampled_from([-200_000_000, 100_000_000, -3600, 3600]))
STORIES = st.lists(st.builds(Act, st.integers(0, 80), LIES, st.booleans(), st.booleans()), min_size=1, max_size=12).map(
    tell
)
HONEST = st.lists(
    st.builds(Act, st.integers(0, 80), st.none(), st.booleans(), st.booleans()), min_size=1, max_size=12
).map(tell)
LOADED = [
    Act(10, None, is_looked_at=True, is_rotated=False),
    Act(60, None, is_looked_at=False, is_rotated=False),
    Act(20, -200_000_000, is_looked_at=False, is_rotated=False),
    Act(20, None, is_looked_at=True, is_rotated=False),
]
"""Rows are deleted, then old ones are loaded, and then the server goes on."""


def moments(story: Story) -> list[int]:
    """Return the times that are worth a restore: at and beside the commits and the times in events."""
    edges = {time for one in story.commits for time in (one.when, one.stamp, one.seen.latest)}
    return [START, *sorted(edge + step for edge in edges for step in (-1, 0, SECOND) if START <= edge <= story.end)]


@given(STORIES)
@example(tell(LOADED))
def test_no_session_moves_a_restore_by_more_than_the_time_between_two_looks(story: Story) -> None:
    for moment in moments(story):
        reached = restored_to(story, moment)
        if reached is None:
            continue
        least, most = reached
        for place, one in enumerate(story.commits):
            width = one.seen.latest - (one.seen.earliest or START) if any(o.is_unseen_lie for o in story.commits) else 0
            if place < least:
                assert one.when <= moment + NEAR + width, (place, reached, moment - START)
            if place >= most:
                assert one.when >= moment - NEAR - width, (place, reached, moment - START)


@given(HONEST)
def test_a_time_is_always_placed_if_no_session_lies(story: Story) -> None:
    for moment in moments(story):
        reached = restored_to(story, moment)
        if reached is not None:
            assert reached[0] == reached[1]
    latest = max(commit.stamp for commit in story.commits)
    assert latest < START or restored_to(story, latest) is not None


@given(STORIES)
def test_a_description_promises_no_time_after_the_last_look(story: Story) -> None:
    for file in story.files:
        assert (file.last - timedelta(microseconds=TOLERANCE)) <= commit_time(story.end)


def test_loaded_old_rows_do_not_move_the_stop_behind_a_later_deletion() -> None:
    story = tell(LOADED)
    assert restored_to(story, story.commits[0].when + 3 * SECOND) == (1, 1)
    assert restored_to(story, story.commits[2].when + SECOND // 5) == (2, 3)


def test_without_a_witness_two_commits_that_contradict_each_other_prove_nothing() -> None:
    acts = [Act(10, lie, is_looked_at=False, is_rotated=False) for lie in (None, 30, None, None)]
    story = tell([acts[0], Act(60, None, is_looked_at=False, is_rotated=False), Act(20, -6, False, False), acts[3]])
    assert restored_to(story, story.commits[0].when + 3 * SECOND) == (1, 3)


@given(st.integers(-7200, 7200), st.integers(0, 600), st.integers(0, 600))
def test_a_clock_that_was_set_between_two_looks_widens_what_was_seen(step: int, before: int, after: int) -> None:
    passed = (before + after) * SECOND
    second = ArchiverObservation(START + passed + step * SECOND, passed)
    seen = sighting_between(ArchiverObservation(START, 0), second)
    for time in (START, START + before * SECOND, START + (before + step) * SECOND, second.wall):
        assert (seen.earliest or 0) - NEAR <= time <= seen.latest + NEAR


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=3 * MOST_STRETCHES))
def test_many_stretches_are_joined_and_none_is_lost(parts: list[tuple[int, int]]) -> None:
    stretches: tuple[Stretch, ...] = ()
    whole = []
    for place, (early, late) in enumerate(parts):
        whole.append(Stretch(10 * place, 10 * place + 5, Sighting(early, early + late)))
        stretches = with_stretch(stretches, whole[-1])
    assert len(stretches) <= MOST_STRETCHES
    reader = CommitTimeEvidence(stretches=stretches, end=10 * len(parts))
    for one in whole:
        seen = reader.contradiction(one.start, one.end, 0)
        assert seen is not None
        assert (seen.earliest or 0) <= (one.sighting.earliest or 0) <= one.sighting.latest <= seen.latest


def test_a_time_after_the_last_commit_needs_a_proof() -> None:
    story = tell([Act(10, None, False, False), Act(10, 100_000_000, False, False)])
    assert restored_to(story, story.commits[1].when + SECOND // 20) == (1, 2)
    assert restored_to(story, story.end) == (2, 2)
    assert at(0) == NOON


def test_descriptions_without_looks_are_bounded_by_the_backup_and_the_present() -> None:
    """They are those of an archive that was written before looks were recorded."""
    told = tell([*LOADED, Act(20, 100_000_000, is_looked_at=True, is_rotated=False)])
    scanned = tuple(tuple(replace(one, between=None) for one in file) for file in told.scanned)
    file = replace(told.files[0], first=at(-200_000_000), last=at(100_000_000))
    story = replace(told, files=(file,), scanned=scanned)
    assert restored_to(story, story.commits[0].when + 3 * SECOND) == (1, 1)
    assert restored_to(story, story.commits[2].when + SECOND // 5) == (2, 3)
    assert restored_to(story, story.end) == (4, 5)
    backup = point("20261120T120000Z-0001", Flavour.MYSQL, UUID, GtidSet(), "binlog.000001", HEAD)
    backup = replace(backup, fingerprint=file.fingerprint)
    now = commit_time(story.end)
    assert follow(backup, story.files, NOTHING_KNOWN.at(now)).to == story.end
