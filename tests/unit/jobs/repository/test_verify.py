"""Verify reports every kind of damage and its consequences, and records them. A store error is never a finding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.unit.support.archived_server import Server
from tests.unit.support.stored_backups import DyingStore, Killed, Site, dies, stream
from tests.unit.support.streams import record
from zsnapdb.base.errors import RepositoryError
from zsnapdb.jobs.base.events import SILENT
from zsnapdb.jobs.repository import verify as job
from zsnapdb.jobs.repository.verify import VerifyResult, observe_binlogs
from zsnapdb.planning.repository.verification import due
from zsnapdb.report.repository.prune import VerifyView
from zsnapdb.repository import binlog_archive, layout
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.verifications import Checks, Depth, VerificationRecord
from zsnapdb.store.base import StoredObject
from zsnapdb.store.local import LocalStore

NOW = datetime(2026, 11, 20, tzinfo=UTC)


def verify(site: Site, depth: Depth = Depth.LISTED, **more: Any) -> VerifyResult:
    return job.verify(site.instance(), depth, **more)


both = pytest.mark.parametrize("depth", list(Depth))


@both
def test_what_was_written_is_whole(site: Site, depth: Depth) -> None:
    names = site.fill([None, 0, 1])
    result = verify(site, depth)
    assert result.is_whole
    assert set(result.plan.chosen) == set(names) == set(result.meaning.restorable)
    assert (result.size > 0) == (depth is Depth.READ)


def flip(body: bytes) -> bytes:
    return body[:50] + bytes([body[50] ^ 1]) + body[51:]


DAMAGE: dict[str, tuple[Callable[[LocalStore, str, str], None], tuple[Depth, ...], str]] = {
    "missing": (lambda store, key, other: store.delete(key), (Depth.LISTED, Depth.READ), "is missing"),
    "cut": (
        lambda store, key, other: store.put(key, store.get(key)[:-1]),
        (Depth.LISTED, Depth.READ),
        "bytes, the manifest says",
    ),
    "flipped": (
        lambda store, key, other: store.put(key, flip(store.get(key))),
        (Depth.READ,),
        "do not have the SHA-256",
    ),
    "swapped": (lambda store, key, other: store.put(key, store.get(other)), (Depth.READ,), "chunk main/chunks"),
}


@both
@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_chunk_is_named_with_what_needs_it(site: Site, what: str, depth: Depth) -> None:
    names = site.fill([None, 0, 1, None])
    damage, seen_by, words = DAMAGE[what]
    key = layout.chunk("main", names[1], "data", 2)
    damage(LocalStore(site.folder), key, layout.chunk("main", names[0], "data", 2))
    result = verify(site, depth)
    if depth not in seen_by:
        assert result.is_whole
        return
    assert list(result.damage) == [names[1]]
    assert len(result.damage[names[1]]) == 1
    assert key in result.damage[names[1]][0]
    assert words in result.damage[names[1]][0]
    assert result.meaning.dependents == {names[1]: (names[2],)}
    assert result.meaning.restorable == (names[0], names[3])


def test_every_damaged_chunk_of_a_volume_is_named(site: Site) -> None:
    (name,) = site.fill([None])
    store = LocalStore(site.folder)
    store.put(layout.chunk("main", name, "data", 1), flip(store.get(layout.chunk("main", name, "data", 1))))
    store.delete(layout.chunk("main", name, "data", 3))
    store.put(layout.chunk("main", name, "parent", 2), b"")
    assert len(verify(site, Depth.READ).damage[name]) == 3


@both
def test_a_damaged_manifest_is_found_even_if_this_host_knows_what_it_said(site: Site, depth: Depth) -> None:
    names = site.fill([None, 0, None])
    verify(site, depth)
    store, key = LocalStore(site.folder), layout.manifest("main", names[0])
    store.put(key, b"x" * len(store.get(key)))
    result = verify(site, depth)
    assert list(result.damage) == [names[0]]
    assert result.meaning.restorable == (names[2],)


@both
def test_a_gap_in_a_chain_is_found(site: Site, depth: Depth) -> None:
    names = site.fill([None, 0, None])
    LocalStore(site.folder).delete(layout.manifest("main", names[0]))
    result = verify(site, depth)
    assert not result.is_whole
    assert list(result.meaning.broken) == [names[1]]
    assert result.meaning.restorable == (names[2],)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda guid: stream(guid, 7777, 1), "leads from GUID 7777"),
        (lambda guid: b"\0" * 4 + b"\x08" + stream(guid, None, 1)[5:], "payload of 8 bytes, such as properties"),
        (lambda guid: stream(guid, None, 1)[:312] + record(10, guid=guid) + stream(guid, None, 1)[312:], "REDACT"),
        (lambda guid: stream(guid, None, 1)[:-312], "before its END record"),
        (lambda guid: stream(guid, None, 1) + b"more", "after its END record"),
        (lambda guid: stream(guid, None, 1)[:312] + b"\xff" * 312 + stream(guid, None, 1)[312:], "unknown type"),
    ],
)
def test_reading_finds_a_stream_that_is_not_what_the_manifest_says(
    site: Site, made: Callable[[int], bytes], words: str
) -> None:
    """Its hashes are right: it was stored like that."""
    (name,) = site.fill([None], made)
    assert verify(site, Depth.LISTED).is_whole
    result = verify(site, Depth.READ)
    assert words in result.damage[name][0]


def test_a_store_that_refuses_is_an_error_and_nothing_is_called_missing(site: Site) -> None:
    names = site.fill([None, None])

    class Denied(DyingStore):
        def get(self, key: str) -> bytes:
            if f"/chunks/{names[0]}/" in key:
                raise RepositoryError("denied")
            return super().get(key)

    with site.opening(Denied), pytest.raises(RepositoryError, match="denied"):
        verify(site, Depth.READ)
    assert verify(site).is_whole


def test_what_was_found_is_remembered_and_not_looked_at_again_until_its_time(site: Site) -> None:
    names = site.fill([None, 0, None])
    assert verify(site, limit=1).plan.chosen == (names[2],)
    assert verify(site, older_than=86400, limit=1).plan.chosen == (names[1],)
    assert verify(site, older_than=86400).plan.chosen == (names[0],)
    assert verify(site, older_than=86400).plan.chosen == ()
    assert len(site.objects("main/checks/")) == 1
    site.later(days=2)
    assert set(verify(site, older_than=86400).plan.chosen) == set(names)


def test_the_result_says_which_backups_were_read_and_when(site: Site) -> None:
    names = site.fill([None, 0, None])
    assert verify(site, Depth.LISTED).last_reads == {}
    result = verify(site, Depth.READ, limit=2)
    assert set(result.last_reads) == set(result.plan.chosen)
    assert f"2 of {len(names)} backups were read in full" in VerifyView(result).text()
    assert verify(site, Depth.LISTED).last_reads == result.last_reads


def test_a_deep_look_counts_as_a_listing_and_not_the_other_way(site: Site) -> None:
    site.fill([None])
    verify(site, Depth.LISTED)
    assert len(verify(site, Depth.READ, older_than=86400).plan.chosen) == 1
    assert verify(site, Depth.LISTED, older_than=86400).plan.chosen == ()


@both
def test_object_replaced_under_its_id_was_never_verified(site: Site, depth: Depth) -> None:
    _, second = site.fill([None, 0])
    assert verify(site, depth, older_than=86400).is_whole
    assert job.plan(site.instance(), depth, older_than=86400).chosen == ()
    repository = site.instance().open_repository()
    before = repository.manifest("main", second)
    repository.delete(layout.manifest("main", second))
    repository.commit(before.model_copy(update={"created": before.created - timedelta(seconds=1)}))
    assert job.plan(site.instance(), depth, older_than=86400).chosen == (second,)
    assert verify(site, depth, older_than=86400).plan.chosen == (second,)
    assert job.plan(site.instance(), depth, older_than=86400).chosen == ()


def test_finding_of_an_earlier_version_counts_without_a_digest() -> None:
    checks = Checks({"a": {Depth.READ: VerificationRecord(when=NOW)}})
    assert checks.about({"a": "0" * 64}).whole_since("a", Depth.READ) == NOW
    assert checks.about({}).whole_since("a", Depth.READ) is None


def test_damage_that_only_reading_shows_stays_known_until_it_is_read_again(site: Site) -> None:
    (name,) = site.fill([None])
    store, key = LocalStore(site.folder), layout.chunk("main", name, "data", 1)
    good = store.get(key)
    store.put(key, flip(good))
    assert not verify(site, Depth.READ).is_whole
    assert not verify(site, Depth.LISTED, older_than=86400).is_whole
    store.put(key, good)
    assert not verify(site, Depth.LISTED).is_whole
    assert verify(site, Depth.READ, older_than=86400).is_whole
    assert verify(site, Depth.LISTED, older_than=86400).is_whole


def test_who_may_not_write_still_learns_what_is_damaged(site: Site) -> None:
    site.fill([None])

    def refuse(what: str, key: str) -> None:
        raise RepositoryError("denied")

    site.wraps["here"] = lambda store: DyingStore(store, refuse)
    result = verify(site)
    assert (result.is_whole, result.unrecorded) == (True, "denied")


def test_a_run_that_is_cut_off_keeps_what_it_has_found(site: Site) -> None:
    names = site.fill([None, None, None])

    class Cut(DyingStore):
        def list(self, prefix: str) -> Iterator[StoredObject]:
            if names[0] in prefix:
                raise RepositoryError("gone")
            return super().list(prefix)

    with site.opening(Cut), pytest.raises(RepositoryError):
        verify(site)
    assert verify(site, older_than=86400).plan.chosen == (names[0],)


def test_killed_while_it_tidies_its_findings_none_is_lost(site: Site) -> None:
    names = site.fill([None, None])
    LocalStore(site.folder).delete(layout.chunk("main", names[0], "data", 1))
    assert not verify(site).is_whole
    for moment in (1, 2):
        for after in (False, True):
            with site.opening(dies(moment, after=after)), pytest.raises(Killed):
                verify(site)
            result = job.plan(site.instance(), Depth.LISTED)
            assert list(result.known.damaged()) == [names[0]]


def test_a_backup_that_is_pruned_meanwhile_is_no_damage(site: Site) -> None:
    names = site.fill([None, None])

    class Pruned(DyingStore):
        def list(self, prefix: str) -> Iterator[StoredObject]:
            if f"/chunks/{names[0]}/" in prefix:
                LocalStore(site.folder).delete(layout.manifest("main", names[0]))
                LocalStore(site.folder).delete(layout.chunk("main", names[0], "data", 1))
            return super().list(prefix)

    site.wraps["here"] = Pruned
    result = verify(site)
    assert result.is_whole
    assert result.meaning.restorable == (names[1],)


def test_the_most_pressing_come_first() -> None:
    since = {
        "a": NOW - timedelta(days=1),
        "b": None,
        "c": NOW - timedelta(days=9),
        "d": None,
        "e": NOW + timedelta(days=1),
    }
    # A check of the future says nothing: a clock was wrong.
    assert due(since, NOW, None, None) == ("e", "d", "b", "c", "a")
    assert due(since, NOW, 5 * 86400, None) == ("e", "d", "b", "c")
    assert due(since, NOW, None, 1) == ("e",)


def test_findings_of_runs_that_overlapped_are_put_together() -> None:
    good, bad = VerificationRecord(when=NOW), VerificationRecord(when=NOW - timedelta(hours=1), damage=("x",))
    assert Checks({"a": {Depth.LISTED: good, Depth.READ: bad}}).damaged() == {"a": ("x",)}
    assert Checks({"a": {Depth.LISTED: bad, Depth.READ: good}}).damaged() == {}
    assert Checks({"a": {Depth.LISTED: bad}}).damaged() == {"a": ("x",)}
    assert Checks({"a": {Depth.LISTED: bad}}).whole_since("a", Depth.LISTED) is None
    assert Checks({"a": {Depth.READ: good}}).whole_since("a", Depth.LISTED) == NOW


def archived_segment(site: Site) -> str:
    """An active binlog of two segments; the key of the second one's body."""
    site.fill([None])
    archive = BinlogArchive(site.instance().open_repository(), "main")
    (site.folder.parent / "server").mkdir()
    server = Server(site.folder.parent / "server")
    for _ in range(2):
        server.commit()
        server.archiver(among=archive).look()
    (file,) = archive.load().files
    return archive.segment_body_key(file.incarnation, file.segments[-1])


@both
def test_archived_binlogs_are_verified_too(site: Site, depth: Depth) -> None:
    key = archived_segment(site)
    assert verify(site, depth).is_whole
    LocalStore(site.folder).delete(key)
    result = verify(site, depth)
    assert (result.is_whole, result.damage) == (False, {})
    assert list(result.binlogs.values()) == [(f"{key} is missing",)]


def test_a_flipped_byte_of_an_archived_binlog_is_found_by_reading_alone(site: Site) -> None:
    key, store = archived_segment(site), LocalStore(site.folder)
    body = store.get(key)
    store.put(key, body[:8] + bytes([body[8] ^ 1]) + body[9:])
    assert verify(site).is_whole
    result = verify(site, Depth.READ)
    assert [key in text for (text,) in result.binlogs.values()] == [True]


def test_a_binlog_that_changes_while_it_is_looked_at_is_not_called_damaged(site: Site) -> None:
    archived_segment(site)
    planned = job.plan(site.instance(), Depth.LISTED)
    archive = BinlogArchive(site.instance().open_repository(), "main")
    binlog_archive.remove(archive, planned.binlogs[0])
    looks = list(observe_binlogs(archive, planned.binlogs, Depth.LISTED, 2, SILENT))
    assert [(damage, size) for _, damage, size in looks] == [(None, 0)]
