"""The shipped bucket policies, on a real S3 server with users: every role can do its work, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from tests.unit.support.archived_server import Server
from tests.unit.support.manifests import stored_manifests
from tests.unit.support.s3_server import BUCKET, PREFIX, S3Server, s3_server, statements
from tests.unit.support.world import World, made
from zsnapdb.base.errors import RepositoryError
from zsnapdb.config.fleet import FleetSettings
from zsnapdb.config.repository import KeepSettings
from zsnapdb.jobs.backup import run as backup
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.repository import fleet_status, prune, verify
from zsnapdb.jobs.repository.fleet_status import FleetRequest
from zsnapdb.jobs.repository.protection_status import status
from zsnapdb.jobs.repository.prune_facts import NOTHING_LOCAL
from zsnapdb.repository import backup_marks, layout
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.binlog_archive_contents import Archive
from zsnapdb.repository.keyring import Keyring
from zsnapdb.repository.layout import Key
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.verifications import Depth
from zsnapdb.store.base import Store
from zsnapdb.store.layers import open_store
from zsnapdb.store.s3_client import NOT_ALLOWED, error_code

ROLES = {
    "host": "iam-policy.json",
    "writer": "iam-policy-write-only.json",
    "pruner": "iam-policy-prune.json",
    "restorer": "iam-policy-restore.json",
    "monitor": "iam-policy-monitoring.json",
}
ID, NAME, ATTEMPT = "20260101T101112Z-7f3a", "binlog.000007", "0123456789abcdef"
DESCRIPTIONS: dict[str, Key] = {
    "marker": layout.MARKER,
    "manifest": layout.manifest("tried", ID),
    "mark": layout.unfinished_backup("tried", ID),
    "check": layout.VerificationKey("tried/checks/20260101T101112Z-0123abcd.json"),
    "pin": layout.pin("tried", ID),
    "drill": layout.drill("tried", ID),
    "evidence": layout.evidence("tried", 1),
    "lease": layout.lease("tried/writer"),
    "incarnation": layout.incarnation("tried", ID),
    "complete": layout.complete("tried", ID),
    "binlog": layout.rotated_binlog("tried", ID, NAME),
    "segment": layout.segment("tried", ID, NAME, 0, 10),
}
BINLOG_BODIES: dict[str, Key] = {
    "segment body": layout.segment_body("tried", ID, NAME, 0, 10, ATTEMPT),
    "binlog chunk": layout.binlog_chunk("tried", ID, NAME, ATTEMPT, 1),
}
KEYS = {**DESCRIPTIONS, **BINLOG_BODIES, "chunk": layout.chunk("tried", ID, "data", 1)}
EVERYTHING = frozenset(KEYS)


@dataclass(frozen=True)
class Rights:
    """The kinds of objects that a role may read, write and remove."""

    get: frozenset[str] = frozenset()
    put: frozenset[str] = frozenset()
    delete: frozenset[str] = frozenset()


RIGHTS = {
    "host": Rights(
        EVERYTHING, EVERYTHING, frozenset({"segment", "segment body", "binlog chunk", "mark", "check", "pin"})
    ),
    "writer": Rights(frozenset(DESCRIPTIONS) | frozenset(BINLOG_BODIES), EVERYTHING),
    "pruner": Rights(
        frozenset(DESCRIPTIONS),
        frozenset({"lease", "evidence"}),
        frozenset({"manifest", "chunk", "mark", "incarnation", "complete", "binlog", "segment"} | set(BINLOG_BODIES)),
    ),
    "restorer": Rights(EVERYTHING),
    "monitor": Rights(frozenset(DESCRIPTIONS)),
}


def give_role(s3: S3Server, user: str | None) -> None:
    """Make the policy of the user's role that of the bucket. The owner of the bucket (None) needs none."""
    if user is not None:
        s3.allow(statements(ROLES[user], user=user))


@dataclass(frozen=True)
class Place:
    """A store with a user for each role, a host that backs up, and a server whose binlogs are archived."""

    s3: S3Server
    world: World
    server: Server

    def store(self, user: str | None) -> Store:
        """Open the store as a user, with the policy of the user's role alone, or as the owner of the bucket."""
        give_role(self.s3, user)
        return open_store(self.s3.settings(user))[0]

    def instance(self, user: str | None) -> Instance:
        instance = self.world.instance
        host = replace(instance.host, open_store=lambda settings, tell: (self.store(user), PREFIX))
        return replace(instance, host=host)

    def back_up(self, user: str, **options: bool) -> str:
        done = backup.backup(self.instance(user), opener=self.world.open_source, **options)
        return done.manifest.backup_id

    def archive(self, user: str | None) -> BinlogArchive:
        """Return the archive of binlogs, beside the backups."""
        keyring = Keyring(self.world.recipients, self.world.folder / "identity")
        return BinlogArchive(Repository.open(self.store(user), PREFIX, keyring), "main")

    def archive_binlogs(self, user: str) -> Archive:
        """Archive segments of an active binlog, and then the rotated file that replaces them."""
        for _ in range(2):
            self.server.commit(3)
            self.server.archiver(among=self.archive(user)).look()
        self.server.rotate()
        self.server.archiver(among=self.archive(user)).look()
        return self.archive(None).load()


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    """A server with a user for each role, and with the shipped policies."""
    with s3_server() as server:
        for user in ROLES:
            server.add_user(user)
        yield server


@pytest.fixture(scope="module")
def place(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("world")
    with made(folder) as world:
        yield Place(s3, world, Server(tmp_path_factory.mktemp("binlogs")))


@pytest.fixture(scope="module")
def stored(place: Place) -> tuple[str, str]:
    """A full backup, an increment and archived binlogs, all stored by the user that may only write."""
    return place.back_up("writer"), place.back_up("writer")


def test_who_may_only_write_backs_up_and_archives_binlogs(place: Place, stored: tuple[str, str]) -> None:
    archived = place.archive_binlogs("writer")
    backups = stored_manifests(Repository.open(place.store(None), PREFIX))
    full, following = (manifest for manifest in backups if manifest.backup_id in stored)
    assert following.volumes[0].from_guid == full.volumes[0].guid
    assert archived.damaged == ()
    assert [file.name for file in archived.of(archived.incarnations[-1].id) if file.is_rotated]


def test_who_may_restore_reads_backups_and_binlogs(place: Place, stored: tuple[str, str], tmp_path: Path) -> None:
    place.archive_binlogs("host")
    repository = Repository.open(
        place.store("restorer"), PREFIX, Keyring(identity_file=place.world.folder / "identity")
    )
    manifest = repository.manifest("main", stored[1])
    for volume in manifest.volumes:
        chunks = repository.chunks_of(manifest, volume.role)
        read = [len(chunks.get_chunk(number)) for number, _ in enumerate(volume.chunks, 1)]
        assert read == [chunk.stored_size for chunk in volume.chunks]
    archive = place.archive("restorer")
    archived = archive.load()
    archive.fetch(archived.of(archived.incarnations[-1].id)[0], tmp_path / "binlog")


def test_who_may_monitor_sees_the_state_of_an_instance_and_of_a_fleet(
    place: Place, stored: tuple[str, str], tmp_path: Path
) -> None:
    seen = status(place.instance("monitor"))
    assert seen.newest is not None
    assert seen.newest.backup_id == stored[1]
    assert seen.damaged == ()
    settings = FleetSettings(repository={"production": place.s3.settings("monitor")}, cache=tmp_path / "cache")
    host = place.instance("monitor").host
    for changed in (1, 0):
        state = fleet_status.status(settings, FleetRequest(), host)
        assert [(one.error, one.changed) for one in state.repositories] == [(None, changed)]
        assert [one.facts.health.newest_point for one in state.rows if one.facts] == [seen.health.facts.newest_point]


def test_who_may_prune_removes_what_expired(place: Place, stored: tuple[str, str]) -> None:
    kept = place.back_up("host", full=True)
    backup_marks.pin(Repository.open(place.store("host"), PREFIX), "main", kept, "kept")
    instance = place.instance("pruner")
    settings = instance.settings.model_copy(update={"keep": KeepSettings(last=1)})
    pruned = prune.prune(replace(instance, settings=settings), local=NOTHING_LOCAL, trusts_clock=True)
    assert sorted(pruned.removed) == sorted(stored)
    assert verify.verify(place.instance("host"), Depth.LISTED).is_whole


@pytest.mark.parametrize("user", ROLES)
def test_a_role_may_do_nothing_but_its_work(s3: S3Server, user: str) -> None:
    owner, client = s3.client(), s3.client(user)
    rights = RIGHTS[user]
    give_role(s3, user)
    for kind, key in KEYS.items():
        name = PREFIX + key
        tried: dict[str, Callable[[], object]] = {
            "get": partial(client.get_object, Bucket=BUCKET, Key=name),
            "put": partial(client.put_object, Bucket=BUCKET, Key=name, Body=b"{}"),
            "delete": partial(client.delete_object, Bucket=BUCKET, Key=name),
        }
        for what, request in tried.items():
            owner.put_object(Bucket=BUCKET, Key=name, Body=b"{}")
            assert answer(request) == ("done" if kind in getattr(rights, what) else "denied"), (what, kind)
    owner.delete_object(Bucket=BUCKET, Key=f"{PREFIX}{layout.MARKER}")
    assert answer(partial(client.list_objects_v2, Bucket=BUCKET, Prefix=PREFIX)) == "done"
    outside: list[Callable[[], object]] = [
        partial(client.put_object, Bucket=BUCKET, Key="other/zsnapdb.json", Body=b""),
        partial(client.get_object, Bucket=BUCKET, Key="other/zsnapdb.json"),
        partial(client.list_objects_v2, Bucket=BUCKET),
        partial(client.list_objects_v2, Bucket=BUCKET, Prefix="other/"),
        partial(client.list_object_versions, Bucket=BUCKET, Prefix=PREFIX),
        partial(client.delete_bucket_policy, Bucket=BUCKET),
        partial(client.put_bucket_versioning, Bucket=BUCKET, VersioningConfiguration={"Status": "Suspended"}),
    ]
    assert [answer(request) for request in outside] == ["denied"] * len(outside)


def answer(request: Callable[[], object]) -> str:
    """Send a request. Return whether the server did it, or denied it."""
    try:
        request()
    except ClientError as error:
        code = error_code(error)
        return "denied" if code in NOT_ALLOWED else code
    return "done"


def test_what_is_missing_is_not_denied_below_a_listed_prefix(s3: S3Server) -> None:
    """A provider may deny to read a missing object to an account whose right to list has a condition."""
    give_role(s3, "monitor")
    store, prefix = open_store(s3.settings("monitor"))
    assert prefix == PREFIX
    store.check()
    with pytest.raises(RepositoryError, match="AccessDenied"):
        open_store(s3.settings("monitor", url=f"s3://{BUCKET}/other"))[0].check()
