"""Two backups of the same snapshots, an increment and a full one: the later one counts, and no point is lost by it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.planning.repository.test_retention import NOW, Stored, Volume, histories, kept, law, rules
from zsnapdb.base.domain_types import Snapshot, SnapshotSet
from zsnapdb.config.repository import KeepSettings
from zsnapdb.planning.backup_chain import ChainPolicy, ReasonKind, choose_base, restore_chain
from zsnapdb.planning.creation_order import in_order
from zsnapdb.planning.repository.host_backup_record import (
    BackupRecord,
    RecordedBackup,
    RecordedVolume,
    RemovedBackup,
    missing_backups,
    order_of,
)
from zsnapdb.planning.repository.local_snapshot_sets import (
    LocalBookmark,
    LocalLimits,
    LocalSnapshot,
    RepositoryAfterPrune,
)
from zsnapdb.planning.repository.local_snapshot_sets import (
    decide as decide_locally,
)
from zsnapdb.planning.repository.retention import NEEDED_BY, RetentionFacts, Unrestorable, decide

FULL, INCREMENT, LAST = "20261101T000000Z-0000", "20261102T000000Z-7f3a", "20261103T000000Z-0000"
CONSOLIDATED = "20261102T000000Z-7f3b"


def stored(backup_id: str, guid: int, base: int | None) -> Stored:
    return Stored(backup_id, (Volume("data", guid, base),), createtxg=guid)


CHAIN = [stored(FULL, 1, None), stored(INCREMENT, 2, 1), stored(CONSOLIDATED, 2, None), stored(LAST, 3, 2)]


def ids(links: object) -> list[str]:
    return [link.backup_id for link in links]  # type: ignore[attr-defined]


def test_what_builds_on_the_snapshots_builds_on_the_later_backup_of_them() -> None:
    assert ids(restore_chain(CHAIN, CHAIN[-1])) == [CONSOLIDATED, LAST]
    assert ids(restore_chain(CHAIN, CHAIN[1])) == [FULL, INCREMENT]


def test_a_damaged_one_of_them_is_not_restored_while_the_other_is_there() -> None:
    assert ids(restore_chain(CHAIN, CHAIN[-1], {CONSOLIDATED})) == [FULL, INCREMENT, LAST]
    left = [link for link in CHAIN if link.backup_id != INCREMENT]
    assert ids(restore_chain(left, CHAIN[-1], {CONSOLIDATED})) == [CONSOLIDATED, LAST]


def test_the_next_backup_is_an_increment_of_the_consolidated_one_and_no_full_one_is_due() -> None:
    """`longest` and `full_every` count from the consolidated full backup."""
    policy = ChainPolicy(full_every=20 * 86400.0 - 1, longest=2)
    chain = in_order(CHAIN[:3])
    due = choose_base(chain[:2], {"data": {2}}, [("-L",)], now=NOW, policy=policy)
    assert due.why is ReasonKind.CHAIN_LENGTH
    planned = choose_base(chain, {"data": {2}}, [("-L",)], now=NOW, policy=policy)
    assert (planned.why, planned.base and planned.base.backup_id) == (ReasonKind.INCREMENT, CONSOLIDATED)


def test_the_later_one_counts_and_the_chain_before_it_expires() -> None:
    retention = decide(in_order(CHAIN), KeepSettings(last=2, minimum=1), NOW)
    assert kept(retention) == {CONSOLIDATED, LAST}
    assert retention.removal_order == (INCREMENT, FULL)
    (why,) = (d.reasons for d in retention.decisions if d.backup_id == INCREMENT)
    assert why == (f"{CONSOLIDATED} has the same snapshots, and counts instead",)
    assert retention.replaced == {INCREMENT: CONSOLIDATED}


def test_a_damaged_consolidated_backup_replaces_nothing() -> None:
    damaged = RetentionFacts(faulty={CONSOLIDATED: "verify found a chunk missing"})
    retention = decide(in_order(CHAIN), KeepSettings(last=2, minimum=1), NOW, damaged, Unrestorable.REMOVE)
    assert kept(retention) == {FULL, INCREMENT, LAST}


def consolidated(link: Stored) -> Stored:
    return replace(
        link, backup_id=f"{link.backup_id}~", volumes=tuple(replace(v, from_guid=None) for v in link.volumes)
    )


@law
@given(history=histories(), keep=rules, numbers=st.sets(st.integers(0, 24)))
def test_a_consolidation_costs_no_point_that_a_rule_keeps(
    history: list[Stored], keep: KeepSettings, numbers: set[int]
) -> None:
    def points(names: set[str]) -> set[str]:
        return {name.rstrip("~") for name in names}

    plain = decide(history, keep, NOW)
    ruled = {d.backup_id for d in plain.decisions if d.keep and not all(r.startswith(NEEDED_BY) for r in d.reasons)}
    more = [
        made for number, link in enumerate(history) for made in [link, consolidated(link)][: 1 + (number in numbers)]
    ]
    # An id has no such sign; it only makes the second backup of the same snapshots come right after the first.
    named = [
        replace(link, backup_id=link.backup_id.replace("~", "") + "f" * link.backup_id.count("~")) for link in more
    ]
    left = kept(decide(named, keep, NOW))
    assert points(ruled) <= {name[:21] for name in left}
    for link in named:
        if link.backup_id in left:
            assert set(ids(restore_chain(named, link))) <= left


def local(backup_id: str, guid: int) -> LocalSnapshot:
    return LocalSnapshot(f"tank/x@zsnapdb-{backup_id}", backup_id, guid, "here", 0, (), 10, createtxg=guid)


def test_the_snapshots_on_the_host_outlive_their_own_backup_and_then_go_with_the_other() -> None:
    """They are what the next increment builds on."""
    snapshots, marks = [local(INCREMENT, 2)], [LocalBookmark(f"tank/x#zsnapdb-{INCREMENT}", INCREMENT, 2)]
    after = RepositoryAfterPrune("here", {CONSOLIDATED}, {INCREMENT: {2}}, CONSOLIDATED, {}, {2: CONSOLIDATED})
    decisions = decide_locally(snapshots, marks, after, LocalLimits(0, 0))
    assert not any(d.remove for d in decisions)
    assert {d.reason for d in decisions} == {"the next increment builds on this snapshot", "its backup stays"}
    later = RepositoryAfterPrune("here", {LAST}, {CONSOLIDATED: {2}}, LAST, {INCREMENT: {2}}, {3: LAST})
    gone = decide_locally([*snapshots, local(LAST, 3)], marks, later, LocalLimits(None, 1))
    assert {d.name: d.remove for d in gone if d.backup_id == INCREMENT} == {
        snapshots[0].name: True,
        marks[0].name: True,
    }


def test_a_limit_of_the_host_takes_the_snapshots_under_their_own_name() -> None:
    after = RepositoryAfterPrune("here", {CONSOLIDATED, LAST}, {INCREMENT: {2}}, LAST, {}, {2: CONSOLIDATED, 3: LAST})
    decisions = decide_locally([local(INCREMENT, 2), local(LAST, 3)], [], after, LocalLimits(1, 1))
    assert [(d.backup_id, d.remove) for d in decisions] == [(INCREMENT, True), (LAST, False)]


def recorded(backup_id: str, guid: int) -> RecordedBackup:
    volume = RecordedVolume(role="data", dataset="tank/x", guid=guid, from_guid=None, send_flags=("-L",))
    return RecordedBackup(backup_id=backup_id, volumes=(volume,), writer="a server", pool_guid=1, createtxg=guid)


def local_set(backup_id: str, guid: int) -> SnapshotSet:
    return SnapshotSet(backup_id, {"data": Snapshot("tank/x", f"zsnapdb-{backup_id}", guid, guid)})


RECORD = BackupRecord(
    instance="main",
    repository_id="r",
    url="file:///r",
    stored=(recorded(FULL, 1), recorded(INCREMENT, 2), recorded(LAST, 3)),
)


def test_the_memory_of_the_host_passes_to_the_backup_that_has_the_snapshots() -> None:
    """In the same place: it was not stored after what is newer."""
    after = RECORD.with_successor(INCREMENT, recorded(CONSOLIDATED, 2))
    after = after.with_removed([RemovedBackup(backup_id=INCREMENT, guids=(2,))])
    assert [backup.backup_id for backup in after.stored] == [FULL, CONSOLIDATED, LAST]
    assert RECORD.with_successor("20261109T000000Z-0000", recorded(CONSOLIDATED, 2)) == RECORD


def test_another_backup_of_the_same_snapshots_was_not_stored_after_them() -> None:
    after = RECORD.with_successor(INCREMENT, recorded(CONSOLIDATED, 2))
    after = after.with_removed([RemovedBackup(backup_id=INCREMENT, guids=(2,))])
    assert RECORD.stored_after(local_set(INCREMENT, 2), 1) == (LAST,)
    assert after.stored_after(local_set(INCREMENT, 2), 1) == (LAST,)
    assert after.stored_after(local_set(FULL, 1), 1) == (CONSOLIDATED, LAST)


def test_a_local_set_is_placed_by_its_transaction_group_whatever_its_id_says() -> None:
    assert RECORD.stored_after(local_set("20361102T000000Z-0000", 2), 1) == (LAST,)
    assert RECORD.stored_after(local_set("20061102T000000Z-0000", 9), 1) == ()
    assert RECORD.stored_after(local_set("20061102T000000Z-0000", 1), 2) == ()


def test_an_original_that_another_host_pruned_is_no_alarm_until_the_other_backup_is_gone_too() -> None:
    def missed(*there: Any) -> list[tuple[str, bool]]:
        found = missing_backups(RECORD, [], there, (), KeepSettings(last=3, minimum=1), NOW)
        return [(backup.backup_id, backup.is_expired) for backup in found]

    full, last, twin = recorded(FULL, 1), recorded(LAST, 3), recorded(CONSOLIDATED, 2)
    assert missed(full, twin, last) == [(INCREMENT, True)]
    assert missed(full, last) == [(INCREMENT, False)]


def test_the_newest_backup_of_a_clock_that_was_behind_is_missed_and_not_called_expired() -> None:
    newest = recorded("20250101T000000Z-0000", 9)
    record = RECORD.with_stored(newest)
    there: Any = (recorded(FULL, 1), recorded(INCREMENT, 2), recorded(LAST, 3))
    for known in (record, record.model_copy(update={"stored": tuple(map(unplaced, record.stored))})):
        found = missing_backups(known, [], there, (), KeepSettings(last=1, minimum=1), NOW)
        assert [(backup.backup_id, backup.is_expired) for backup in found] == [(newest.backup_id, False)]
        assert order_of(known, [], there)[-1] == newest.backup_id


def unplaced(backup: RecordedBackup) -> RecordedBackup:
    """Return the backup as an earlier version recorded it."""
    return backup.model_copy(update={"pool_guid": None, "createtxg": None})


def test_an_unreadable_backup_protects_what_is_before_it_whatever_its_id_says() -> None:
    unreadable = {"20250101T000000Z-0000": "damaged"}
    order = (FULL, INCREMENT, CONSOLIDATED, *unreadable, LAST)
    kept = decide(CHAIN, KeepSettings(last=1, minimum=1), NOW, RetentionFacts(unreadable=unreadable, order=order)).kept
    assert {FULL, INCREMENT, CONSOLIDATED} <= kept
