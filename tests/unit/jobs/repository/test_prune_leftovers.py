"""Leftovers are swept after their time. What is of an unfinished backup or of somebody else stays."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.unit.support.pruning import check_whole, manifests, plan, prune
from tests.unit.support.stored_backups import DyingStore, Site, id_of, store_backup
from zsnapdb.base.errors import ClockDoubtError
from zsnapdb.jobs.repository import prune as job
from zsnapdb.jobs.repository.prune_facts import NOTHING_LOCAL
from zsnapdb.planning.repository.document_digests import MARKS
from zsnapdb.repository import layout, stored_document
from zsnapdb.repository.crypto_keys import SigningKey
from zsnapdb.store.base import StoredObject
from zsnapdb.store.local import LocalStore


def leave(site: Site, name: str, *keys: str) -> None:
    for key in keys or (layout.chunk("main", name, "data", 1),):
        LocalStore(site.folder).put(key, b"left")


def test_leftovers_are_swept_only_after_their_time(site: Site) -> None:
    site.fill([None])
    old = f"{datetime.now(UTC) - timedelta(days=400):%Y%m%dT%H%M%SZ}-0000"
    leave(site, old)
    assert [(s.leftover.backup_id, s.remove) for s in plan(site).leftovers] == [(old, False)]
    assert prune(site).swept == ()
    site.later(days=6.9)
    assert prune(site).swept == ()
    site.later(days=7.1)
    assert prune(site).swept == (old,)
    assert not [key for key in site.objects() if old in key]


def foreign(name: str, line: bytes) -> bytes:
    return json.dumps(json.loads(line) | {"backup_id": name}).encode() + b"\n"


def unreadable(name: str, line: bytes) -> bytes:
    return b"{"


def empty(name: str, line: bytes) -> bytes:
    return b""


def of_another_instance(name: str, line: bytes) -> bytes:
    return json.dumps(json.loads(line) | {"backup_id": name, "instance": "other"}).encode() + b"\n"


def of_a_later_format(name: str, line: bytes) -> bytes:
    return json.dumps(json.loads(line) | {"backup_id": name, "format": 99}).encode() + b"\n"


def signed_by_a_stranger(name: str, line: bytes) -> bytes:
    changed = json.dumps(json.loads(line) | {"backup_id": name}).encode()
    return stored_document.with_signature(changed, SigningKey.new().sign(changed))


def truncated(name: str, line: bytes) -> bytes:
    return foreign(name, line)[:100]


@pytest.mark.parametrize("signs", [False, True], ids=["unsigned", "signs"])
@pytest.mark.parametrize(
    "manifest",
    [foreign, unreadable, empty, of_another_instance, of_a_later_format, signed_by_a_stranger, truncated],
    ids=lambda made: made.__name__,
)
def test_chunks_of_any_manifest_are_never_swept(
    site: Site, manifest: Callable[[str, bytes], bytes], signs: bool
) -> None:
    """No object below the id of a manifest is a leftover, at any age and with any manifest."""
    names = site.fill([None])
    if signs:
        site.begin_to_sign()
    store = LocalStore(site.folder)
    line = store.get(layout.manifest("main", names[0])).partition(b"\n")[0]
    old = f"{datetime.now(UTC) - timedelta(days=400):%Y%m%dT%H%M%SZ}"
    kept, swept = f"{old}-0000", f"{old}-0001"
    for name in (kept, swept):
        leave(site, name)
    store.put(layout.manifest("main", kept), manifest(kept, line))
    site.later(days=3650)
    assert prune(site).swept == (swept,)
    assert [key for key in site.objects("main/chunks/") if kept in key] == [layout.chunk("main", kept, "data", 1)]


def test_clock_ahead_delays_a_sweep_and_brings_none_forward(site: Site) -> None:
    """A host whose clock jumps counts with the time that its steady clock proves, until a person confirms the jump."""
    site.fill([None])
    old = f"{datetime.now(UTC) - timedelta(days=400):%Y%m%dT%H%M%SZ}-0000"
    leave(site, old)

    def swept(ahead: float, *, is_confirmed: bool = False) -> tuple[str, ...]:
        site.later(days=ahead)
        instance = replace(site.instance(), host=replace(site.host, steady=lambda: ("boot", 1000.0)))
        with contextlib.suppress(ClockDoubtError):
            return job.prune(instance, local=NOTHING_LOCAL, trusts_clock=is_confirmed).swept
        return ()

    assert swept(0.0) == ()
    for ahead in (8.0, 400.0, 36500.0, 0.0):
        assert swept(ahead) == ()
        assert any(old in key for key in site.objects())
    assert swept(8.0, is_confirmed=True) == (old,)


def test_parts_of_no_archived_binlog_are_swept_only_after_their_time(site: Site) -> None:
    site.fill([None])
    store = LocalStore(site.folder)
    store.put("main/binlogs/incarnations/20261121T101112Z-7f3a.json", b"?")
    parts = [
        "main/binlogs/20261121T101112Z-7f3a/chunks/binlog.000007/00aa/00000001",
        "main/binlogs/20261121T101112Z-7f3a/segments/binlog.000008/0000000000000000-0000000000000005-0001",
    ]
    foreign = [
        "main/binlogs/20261121T101112Z-7f3a/chunks/binlog.000007/README",
        "main/binlogs/another/chunks/binlog.000007/00aa/00000001",
    ]
    for key in (*parts, *foreign):
        store.put(key, b"12345")
    assert [(s.leftover.name, s.leftover.size, s.remove) for s in plan(site).binlog_leftovers] == [
        ("binlog.000007", 5, False),
        ("binlog.000008", 5, False),
    ]
    site.later(days=6.9)
    assert prune(site).swept == ()
    site.later(days=7.1)
    assert plan(site).freed == 10
    assert prune(site).swept == ("20261121T101112Z-7f3a/binlog.000007", "20261121T101112Z-7f3a/binlog.000008")
    assert [key for key in site.objects() if "/binlogs/" in key] == [
        *foreign,
        "main/binlogs/incarnations/20261121T101112Z-7f3a.json",
    ]


def test_a_leftover_with_an_id_from_the_future_is_not_swept(site: Site) -> None:
    site.fill([None])
    leave(site, f"{datetime.now(UTC) + timedelta(days=900):%Y%m%dT%H%M%SZ}-0000")
    site.later(days=30)
    assert prune(site).swept == ()


def mark(site: Site, name: str, *from_guids: int | None) -> None:
    snapshots = {str(n): {"name": "tank/data@x", "guid": 1, "from_guid": guid} for n, guid in enumerate(from_guids)}
    facts = {"repository_id": site.instance().open_repository().id, "backup_id": name, "instance": "main"}
    document = {"format": 1, **facts, "host": "db1", "snapshots": snapshots}
    line = json.dumps(document).encode()
    repository = site.instance().open_repository()
    repository.overwrite(layout.unfinished_backup("main", name), repository.keyring.signed(line, MARKS))


def test_what_an_unfinished_backup_builds_on_stays_until_its_mark_is_swept(site: Site) -> None:
    names = site.fill([None, None, None, None])
    site.keep = "last = 1"
    started = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-ffff"
    leave(site, started)
    mark(site, started, 20, 21)
    result = prune(site)
    assert manifests(site) == [names[1], names[3]]
    assert result.swept == ()
    site.later(days=8)
    assert prune(site).removed == (names[1],)
    assert not [key for key in site.objects() if started in key]


def test_a_mark_that_does_not_say_what_it_builds_on_keeps_everything(site: Site) -> None:
    site.fill([None, None, None])
    site.keep = "last = 1"
    LocalStore(site.folder).put(layout.unfinished_backup("main", f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-ffff"), b"{")
    assert prune(site).removed == ()


def test_a_mark_beside_its_manifest_means_nothing_and_goes_with_it(site: Site) -> None:
    names = site.fill([None, None])
    site.keep = "last = 1"
    mark(site, names[0], 10, 11)
    assert prune(site).removed == (names[0],)
    assert site.objects("main/unfinished/") == []


def test_objects_with_other_keys_than_ours_are_never_removed(site: Site) -> None:
    names = site.fill([None, None])
    site.keep = "last = 1"
    foreign = [
        f"main/chunks/{names[0]}/notes.txt",
        f"main/chunks/{names[0]}/data/00000001.bak",
        "main/chunks/by-hand/data/00000001",
        "main/elsewhere/00000001",
        "main/manifests/README",
        "other/chunks/20200101T000000Z-0000/data/00000001",
    ]
    leave(site, "", *foreign)
    site.later(days=30)
    prune(site)
    prune(site)
    assert manifests(site) == [names[1]]
    assert set(foreign) <= set(site.objects())


def test_chunks_whose_manifest_is_not_listed_but_there_are_left_alone(site: Site) -> None:
    """A listing that lags must not make a good backup look like garbage."""
    site.fill([None])
    names = [id_of(0, datetime.now(UTC), 9, timedelta(days=1))]
    store_backup(site.instance().open_repository(), names[0], 7, None)

    class Lagging(DyingStore):
        def list(self, prefix: str) -> Iterator[StoredObject]:
            return (item for item in super().list(prefix) if item.key != layout.manifest("main", names[0]))

    site.later(days=30)
    with site.opening(Lagging):
        result = prune(site)
    assert result.swept == ()
    assert "has a manifest that the store did not list" in result.notes[0]
    check_whole(site)
