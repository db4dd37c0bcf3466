"""Parsers of a repository's objects, as a fuzzer calls them. Each uses the result as commands do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import cast
from unittest import mock

from tests.unit.support import binlog_archive
from zsnapdb.base.errors import DamagedError, NotFound
from zsnapdb.base.gtid import GtidPosition, GtidSet
from zsnapdb.base.patterns import below
from zsnapdb.config.repository import EncryptionSettings
from zsnapdb.repository import backup_marks, catalogue, drills, layout, verifications
from zsnapdb.repository.binlog_archive_contents import load
from zsnapdb.repository.keyring import Keyring
from zsnapdb.repository.manifest import Manifest, expected_stream, is_of_server
from zsnapdb.repository.manifest_source import ServerSourcePart
from zsnapdb.repository.marker import Marker
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.writer_lease import Holder
from zsnapdb.store.base import Store, StoredObject, Version

ID = "20261120T101112Z-7f3a"
NOW = datetime(2026, 11, 22, tzinfo=UTC)
INSTANCE = "main"
GTIDS = "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5:9"


class OneObject:
    """A store with the same bytes under every key. It lists the given keys."""

    def __init__(self, body: bytes, *keys: str) -> None:
        self.body, self.keys = body, keys

    def check(self) -> None: ...

    def get(self, key: str) -> bytes:
        return self.body

    def list(self, prefix: str) -> Iterator[StoredObject]:
        return (StoredObject(key, len(self.body), NOW) for key in self.keys if key.startswith(prefix))


def repository_of(body: bytes, *keys: str) -> Repository:
    return Repository(cast(Store, OneObject(body, *keys)), "", "id-1")


def signed(document: bytes) -> bytes:
    signature = {"signature": {"key": "A" * 43 + "=", "value": "B" * 86 + "=="}}
    return document + b"\n" + json.dumps(signature).encode() + b"\n"


def manifest(body: bytes, folder: Path) -> None:
    repository = repository_of(body, layout.manifest(INSTANCE, ID))
    message = ""
    try:
        one = repository.manifest(INSTANCE, ID)
    except DamagedError as error:
        message = str(error)
    else:
        _use_manifest(one)
        assert catalogue.Summary.of(one, "0" * 64).created <= datetime.max.replace(tzinfo=UTC)
    assert len(message) < 10_000


def _use_manifest(one: Manifest) -> None:
    assert (one.instance, one.backup_id) == (INSTANCE, ID)
    _ = one.writer, one.is_full, one.plain_size, one.stored_size, one.guids(), f"{one.created:%Y-%m-%d}"
    _ = (NOW - one.created).total_seconds(), one.created.astimezone(UTC)
    for volume in one.volumes:
        assert below("/srv/copy", volume.role).startswith("/srv/copy/")
        expected_stream(volume)
    if isinstance(one.source, ServerSourcePart):
        assert is_of_server(one)
        _ = one.source.position.position(one.source.server.flavour), f"{int(one.source.lock.held_ms)}"
    one.encode()


def archive(body: bytes, key: str) -> None:
    incarnation = binlog_archive.INCARNATION.model_copy(update={"repository_id": "id-1"})
    objects = {layout.incarnation(INSTANCE, incarnation.id): incarnation.encode() + b"\n", key: body}
    store = OneObject(b"", *objects)
    with mock.patch.object(store, "get", lambda path: _object(objects, path)):
        known = load(Repository(cast(Store, store), "", "id-1"), INSTANCE)
    for error in known.damaged:
        assert len(str(error)) < 10_000
    for file in known.files:
        _ = file.previous, file.gtids, file.reached, file.number, file.server, file.stored_size, file.is_anonymous
        for moment in (file.first_commit, file.last_commit, file.created * 1_000_000):
            assert moment is None or datetime.fromtimestamp(moment / 1e6, UTC)


def _object(objects: Mapping[str, bytes], path: str) -> bytes:
    if path not in objects:
        raise NotFound(path)
    return objects[path]


def pin(body: bytes, folder: Path) -> None:
    for one in backup_marks.pins(repository_of(body, layout.pin(INSTANCE, ID)), INSTANCE).values():
        assert one.backup_id == ID
        assert (one.reason + one.since).isprintable()
        assert len(one.reason) <= 1 << 20


def mark(body: bytes, folder: Path) -> None:
    for mark in backup_marks.unfinished(repository_of(body, layout.unfinished_backup(INSTANCE, ID)), INSTANCE):
        assert mark.host.isprintable()
        assert all(below("/root", role) for role in mark.snapshots)
        mark.may_build_on([1])


def checks(body: bytes, folder: Path) -> None:
    known = verifications.read(repository_of(body, layout.verification(INSTANCE, NOW, 1)), INSTANCE)
    _ = known.damaged(), known.damaging()
    for by_depth in known.findings.values():
        for record in by_depth.values():
            assert (NOW - record.when).total_seconds() < 1e12
            assert record.since is None or record.since.astimezone(UTC)


def drill(body: bytes, folder: Path) -> None:
    evidence = drills.read(repository_of(body, layout.drill(INSTANCE, ID)), INSTANCE, ID)
    _ = evidence.outcome, evidence.seconds, drills.timings([evidence]), f"{evidence.started:%Y}"
    assert all(int(step.seconds) >= 0 for step in evidence.steps)


def lease(body: bytes, folder: Path) -> None:
    holder = Holder.parse(Version(body, "tag"))
    assert holder.describe().isprintable()
    assert 0 <= holder.seconds <= 3600
    assert int(holder.pid) >= 0
    holder.encode()


def marker(body: bytes, folder: Path) -> None:
    known = Marker.parse(body, "m")
    assert below("/cache", known.id).startswith("/cache/")


def signature(body: bytes, folder: Path) -> None:
    keyring = Keyring.of(EncryptionSettings())
    assert b"\n" not in keyring.verified(body, "document")


def gtids(body: bytes, folder: Path) -> None:
    text = body.decode(errors="replace")
    for kind in (GtidSet, GtidPosition):
        try:
            known = kind.parse(text)
        except ValueError:
            continue
        str(known)
        if isinstance(known, GtidSet):
            known.minus(GtidSet.parse(GTIDS)).count()
            known.union(GtidSet.parse(GTIDS))


def keys(body: bytes, folder: Path) -> None:
    path = body.decode(errors="replace")
    for prefix in (
        layout.manifests(INSTANCE),
        layout.pins(INSTANCE),
        layout.all_chunks(INSTANCE),
        layout.segments(INSTANCE, ID),
    ):
        key = prefix.parse(path)
        assert key is None or below("/bucket", key).startswith("/bucket/main/")
