"""The owner of a bucket, with each right, against hosts with and without keys: nothing real goes, no loss is silent.

Each attack is made with the operations that its right allows, and undone before the next one.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.system.in_guest import Done, Lab, run
from tests.unit.support.drilled import evidence
from tests.unit.support.s3_server import BUCKET, S3Server, s3_server
from zsnapdb.base.errors import NotFound
from zsnapdb.config.settings import load
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.repository import backup_marks, drills, layout, stored_document, verifications
from zsnapdb.repository.backup_marks import Unfinished
from zsnapdb.repository.drills import Outcome, StepPart
from zsnapdb.repository.keyring import Keyring
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.verifications import Checks, Depth, VerificationRecord
from zsnapdb.store.base import Body, Store
from zsnapdb.store.layers import Layer

MADE_UP = ("fff1", "fff2", "fff3")
RANKS = {"met": 0, "warning": 1, "broken": 2, "unknown": 2}


class Denied(Exception):
    """The right does not allow the operation."""


class OwnedStore(Layer):
    """The bucket as its owner sees it. `rights` are the operations that he has beside reading and listing."""

    def __init__(self, inner: Store, rights: frozenset[str]) -> None:
        super().__init__(inner)
        self.rights, self.before = rights, dict[str, bytes | None]()
        self.findings = {item.key: inner.get(item.key) for item in inner.list("") if "/checks/" in item.key}

    def _change(self, right: str, key: str) -> None:
        if right not in self.rights:
            raise Denied(key)
        if key not in self.before:
            self.before[key] = None
            with contextlib.suppress(NotFound):
                self.before[key] = self.inner.get(key)

    def put(self, key: str, body: Body, *, only_if_absent: bool = False, sha256: str | None = None) -> None:
        self._change("put", key)
        self.inner.put(key, body)

    def replace(self, key: str, body: Body, *, tag: str) -> None:
        self._change("put", key)
        self.inner.put(key, body)

    def delete(self, key: str) -> None:
        self._change("delete", key)
        self.inner.delete(key)

    def delete_many(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.delete(key)

    def undo(self) -> None:
        """Make the bucket what it was before the owner came, without what checks found meanwhile."""
        self.inner.delete_many([item.key for item in self.inner.list("") if "/checks/" in item.key])
        self.before |= self.findings
        for key, body in self.before.items():
            if body is None:
                self.inner.delete(key)
            else:
                self.inner.put(key, body)


@dataclass
class Target:
    """A host and its bucket. `names` are its backups, oldest first, `earlier` what the bucket once held."""

    lab: Lab
    config: Path
    signs: bool
    names: list[str] = field(default_factory=list)
    earlier: dict[str, bytes] = field(default_factory=dict)
    verdicts: dict[str, int] = field(default_factory=dict)
    purged: tuple[str, ...] = ()

    def act(self, *words: str) -> Done:
        return self.lab.zsnapdb(*words, config=self.config)

    def store(self) -> tuple[Store, str]:
        return Instance.of(load(self.config), "main").open_store()

    def objects(self) -> dict[str, str]:
        """Return the tags of what is real: not of leases, the log and the findings that each command writes."""
        store, prefix = self.store()
        listed = {item.key: item.tag for item in store.list(prefix)}
        return {
            key: tag
            for key, tag in listed.items()
            if not {"checks", "evidence"} & {*key.split("/")} and "lock" not in key
        }

    def bodies(self) -> dict[str, bytes]:
        store, _ = self.store()
        return {key: store.get(key) for key in self.objects()}

    def binlogs(self) -> list[str]:
        return [row[0] for row in self.lab.sql("SHOW BINARY LOGS")]


@dataclass(frozen=True)
class Owner:
    """The owner of the bucket: a repository that believes all, and writes without a key."""

    repository: Repository
    target: Target

    @classmethod
    def of(cls, target: Target, *rights: str) -> Owner:
        store, prefix = target.store()
        owned = OwnedStore(store, frozenset(rights))
        return cls(Repository.open(owned, prefix, Keyring(), instances=("main",)), target)

    @property
    def store(self) -> OwnedStore:
        assert isinstance(self.repository._store, OwnedStore)
        return self.repository._store

    def keys(self, text: str) -> list[str]:
        return [item.key for item in self.store.list(self.repository._prefix) if text in item.key]

    def fields(self, key: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.store.get(key).partition(b"\n")[0])
        return found

    def write(self, key: str, fields: dict[str, Any]) -> None:
        self.store.put(key, stored_document.with_digest(json.dumps(fields, separators=(",", ":")).encode()))

    def manifest(self, name: str) -> str:
        return self.repository.place(layout.manifest("main", name))

    def make_up(self, *, at: datetime | None = None) -> list[str]:
        """Put three copies of the newest manifest under new ids, without data."""
        original = self.target.names[-1]
        made = f"{at:%Y%m%dT%H%M%SZ}" if at is not None else f"{original[:9]}235959Z"
        names = [f"{made}-{suffix}" for suffix in MADE_UP]
        fields = self.fields(self.manifest(original))
        for number, name in enumerate(names):
            place = {
                "createtxg": fields["createtxg"] + 10**6 + number,
                "sequence": (fields["sequence"] or 1) + 100 + number,
            }
            self.write(self.manifest(name), {**fields, "backup_id": name, **place})
        return names


Attack = Callable[[Owner], list[str]]
"""An attack returns the names of which each must be in an output of the host."""


def nothing(owner: Owner) -> list[str]:
    """He may list and read, and every change is refused: nothing is said of the repository either."""
    for change in (lambda: owner.make_up(), lambda: owner.repository.delete(layout.MARKER)):
        with pytest.raises(Denied):
            change()
    return []


def forged_manifests(owner: Owner) -> list[str]:
    return owner.make_up()


def forged_manifests_of_now(owner: Owner) -> list[str]:
    return owner.make_up(at=datetime.now(UTC) + timedelta(seconds=30))


def rewritten_manifests(owner: Owner) -> list[str]:
    for name in owner.target.names[1:]:
        owner.write(owner.manifest(name), owner.fields(owner.manifest(name)) | {"zfs_version": "rewritten"})
    return owner.target.names[1:]


def manifests_of_another_instance(owner: Owner) -> list[str]:
    name = f"{owner.target.names[-1][:9]}235959Z-eeee"
    owner.write(
        owner.manifest(name),
        owner.fields(owner.manifest(owner.target.names[-1])) | {"backup_id": name, "instance": "other"},
    )
    return [name]


def swapped_chunks(owner: Owner) -> list[str]:
    first, second = owner.target.names[-2:]
    one, two = (layout.chunk("main", name, "data", 1) for name in (first, second))
    bodies = owner.repository.get(one), owner.repository.get(two)
    owner.repository.overwrite(one, bodies[1])
    owner.repository.overwrite(two, bodies[0])
    return [first, second]


def forged_small_documents(owner: Owner) -> list[str]:
    """Drills that passed, checks that found all whole, a pin, and an unfinished backup, all by a stranger."""
    repository, newest, now = owner.repository, owner.target.names[-1], datetime.now(UTC)
    ids = [f"{now:%Y%m%dT%H%M%SZ}-{number:04x}" for number in range(12)]
    step = StepPart(kind="receive", what="x", seconds=0.001, size=10**12)
    for number, name in enumerate(ids):
        passed = evidence(Outcome.PASSED, repository.id, name)
        moved = {"started": now, "finished": now, "sequence": 10**5 + number, "backup_id": newest, "steps": (step,)}
        drills.write(repository, passed.model_copy(update={**moved, "has_read_all_pages": True}))
    good = VerificationRecord(when=now, sequence=10**6)
    findings = {name: {Depth.READ: good, Depth.LISTED: good} for name in owner.target.names}
    verifications.write(repository, "main", verifications.new_key("main", now), Checks(findings))
    backup_marks.pin(repository, "main", newest, "a stranger says so")
    Unfinished(f"{newest[:9]}000000Z-dddd", "main", "db9", "2026", {}).write(repository)
    return [ids[-1]]


def replaced_binlogs(owner: Owner) -> list[str]:
    """Put zeros in the place of archived binlogs, and descriptions of zeros."""
    descriptions = owner.keys("/files/")
    for key in descriptions:
        fields = owner.fields(key)
        fields["head"]["created"] -= 1
        owner.write(key, fields)
        for chunk in owner.keys(f"/chunks/{fields['name']}/"):
            owner.store.put(chunk, bytes(len(owner.store.get(chunk))))
    return [Path(descriptions[-1]).stem]


def zeros_after_a_good_check(owner: Owner) -> list[str]:
    """Put zeros in the place of archived binlogs that the host has just read and found whole."""
    assert owner.target.act("verify", "--deep").code == 0
    binlogs = [owner.fields(key)["name"] for key in owner.keys("/files/")]
    for name in binlogs:
        for chunk in owner.keys(f"/chunks/{name}/"):
            owner.store.put(chunk, bytes(len(owner.store.get(chunk))))
    return [f"the archived copy of {binlogs[0]} is damaged"]


def deleted_newest_replaced_by_forged(owner: Owner) -> list[str]:
    forged = owner.make_up(at=datetime.now(UTC) + timedelta(seconds=30))
    newest = owner.target.names[-1]
    owner.store.delete_many([owner.manifest(newest), *owner.keys(f"/chunks/{newest}/")])
    return [newest, *forged]


def deleted_chunks(owner: Owner) -> list[str]:
    owner.store.delete_many(owner.keys(f"/chunks/{owner.target.names[-1]}/"))
    return owner.target.names[-1:]


def deleted_marker(owner: Owner) -> list[str]:
    owner.repository.delete(layout.MARKER)
    return [layout.MARKER]


def deleted_binlogs(owner: Owner) -> list[str]:
    owner.store.delete_many(owner.keys("/binlogs/"))
    return ["this host archived binlogs"]


def rolled_back(owner: Owner) -> list[str]:
    """Put the bucket back to what it held before the newest backup."""
    for key in owner.keys("/main/"):
        if key not in owner.target.earlier and ".lock" not in key:
            owner.store.delete(key)
    for key, body in owner.target.earlier.items():
        owner.store.put(key, body)
    return owner.target.names[-1:]


def forgeries(owner: Owner) -> list[str]:
    """Each kind of manifest that the host never stored."""
    kinds = (forged_manifests, forged_manifests_of_now, manifests_of_another_instance)
    return [name for forge in kinds for name in forge(owner)]


def spoiled_content(owner: Owner) -> list[str]:
    return [*swapped_chunks(owner), *replaced_binlogs(owner)]


def deleted_chunks_and_marker(owner: Owner) -> list[str]:
    return [*deleted_chunks(owner), *deleted_marker(owner)]


WRITES, DELETES = ("put",), ("put", "delete")
ATTACKS: list[tuple[Attack, tuple[str, ...]]] = [
    (nothing, ()),
    (forgeries, WRITES),
    (forged_small_documents, WRITES),
    (rewritten_manifests, WRITES),
    (zeros_after_a_good_check, WRITES),
    (spoiled_content, WRITES),
    (deleted_newest_replaced_by_forged, DELETES),
    (deleted_chunks_and_marker, DELETES),
    (deleted_binlogs, DELETES),
    (rolled_back, DELETES),
]
LOSSES = (rewritten_manifests, deleted_newest_replaced_by_forged, deleted_binlogs, rolled_back)
"""Objects that are gone or changed: `status` raises an alarm before it reads them."""
OF_THE_ARCHIVE = (zeros_after_a_good_check, spoiled_content, deleted_binlogs, rolled_back)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module", params=[pytest.param("signs", marks=pytest.mark.any_server), "unsigned"])
def target(request: pytest.FixtureRequest, lab: Lab, s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Target:
    """A host with two backups and an archive, after a prune that left nothing to do."""
    signs = request.param == "signs"
    keep = "keep = { last = 2, local = 1, local_minimum = 1 }"
    key = tmp_path_factory.mktemp("keys") / "signing-key"
    more = (
        f'addressing = "path" }}\nencryption = {{ signing_key_file = "{key}" }}\n{keep}'
        if signs
        else f'addressing = "path" }}\n{keep}'
    )
    objectives = (
        '[instance.main.binlog]\nkeep = 0\n[instance.main.objectives]\nrpo = "2s"\nbackup_age = "2s"\n'
        'archive_lag = "2s"\ndrill_age = "1d"\nverify_age = "1s"\ndeep_verify_age = "1d"\n'
        'restore_time = "1d"\n[instance.main]'
    )
    config = lab.changed(
        ('url = "s3://backups/lab"', f'url = "s3://{BUCKET}/{request.param}"'),
        ("http://127.0.0.1:7070", s3.endpoint),
        ("/etc/zsnapdb/credentials", str(s3.settings().s3.credentials_file)),
        ("[instance.main]", objectives),
        ('addressing = "path" }', more),
    )
    found = Target(lab, config, signs)
    lab.forget_old_binlogs()
    if signs:
        assert found.act("key", "generate", "--signing-key", str(key)).code == 0
    assert found.act("init", "--new").code == 0
    lab.sql("CREATE DATABASE IF NOT EXISTS attacked")
    lab.sql(f"GRANT {'BINLOG_ADMIN' if lab.flavour == 'mysql' else 'BINLOG ADMIN'} ON *.* TO zsnapdb@localhost")
    for number in range(3):
        lab.sql(f"CREATE TABLE IF NOT EXISTS attacked.t{number} (i INT PRIMARY KEY)")
        found.names.append(found.act("backup", "--full", "--json").json["backup"]["backup_id"])
        lab.sql("FLUSH BINARY LOGS")
        assert found.act("binlog", "archive", "--once").code == 0
        found.earlier = found.bodies() if number == 1 else found.earlier
    assert found.act("prune", "--json").json["removed"] == found.names[:1]
    del found.names[0]
    found.verdicts = verdicts(found.act("status", "main", "--json"))
    assert RANKS["broken"] in found.verdicts.values()
    found.purged = tuple(found.act("binlog", "purge", "--plan", "--json").json["names"])
    assert found.purged
    return found


def verdicts(done: Done) -> dict[str, int]:
    return {one["objective"]: RANKS[one["verdict"]] for one in json.loads(done.stdout)["objectives"]}


def snapshots() -> set[str]:
    return set(run("zfs", "list", "-H", "-t", "snapshot", "-o", "name").stdout.split())


@pytest.mark.parametrize(("attack", "rights"), ATTACKS, ids=lambda one: getattr(one, "__name__", ""))
def test_nothing_real_goes_and_every_loss_is_named(target: Target, attack: Attack, rights: tuple[str, ...]) -> None:
    owner, real = Owner.of(target, *rights), target.objects()
    try:
        named = attack(owner)
        attacked, here, binlogs = target.objects(), snapshots(), target.binlogs()
        to_latest = ("restore", "main", "--to", "latest-backup", "--target", "tank/no", "--plan", "--json")
        outputs = {
            "status": target.act("status", "main", "--json"),
            "list": target.act("list", "--json"),
            "verify": target.act("verify", *(["--deep"] if attack is spoiled_content else []), "--json"),
            "prune": target.act("prune"),
            "purge": target.act("binlog", "purge", *([] if attack in OF_THE_ARCHIVE else ["--plan"]), "--json"),
            "restore": target.act(*to_latest),
        }
        told = "".join(done.stdout + done.stderr for done in outputs.values())

        left = target.objects()
        assert {key for key, body in attacked.items() if left.get(key) != body and real.get(key) == body} == set()
        assert here <= snapshots()
        assert binlogs == target.binlogs()[: len(binlogs)]

        assert [name for name in named if name not in told] == []
        status = outputs["status"]
        if attack in LOSSES:
            assert status.code == 7, status.stderr
        after = verdicts(status)
        # The host's own check before the zeros came can be younger than a second.
        renewed = {"verify-age"} if attack is zeros_after_a_good_check else set[str]()
        better = {name: rank for name, rank in target.verdicts.items() if after[name] < rank and name not in renewed}
        assert better == {}
        state = json.loads(status.stdout)
        assert state["drill"] is None
        assert state["backup"] is None or state["backup"]["backup_id"] in target.names
        if outputs["purge"].code == 0:
            assert set(outputs["purge"].json["names"]) <= set(target.purged)
        if outputs["restore"].code == 0:
            assert outputs["restore"].json["backup_id"] in target.names
        if attack is nothing:
            assert [name for name, done in outputs.items() if done.code not in (0, 2)] == []
            assert json.loads(status.stdout)["missing"] == []
    finally:
        owner.store.undo()


def test_host_that_lost_its_records_and_has_no_key_destroys_nothing(target: Target) -> None:
    if target.signs:
        return
    records = Instance.of(load(target.config), "main").host.records
    aside = records.with_name("aside")
    owner, real, here = Owner.of(target, *WRITES), target.objects(), snapshots()
    records.rename(aside)
    try:
        forged = owner.make_up()
        done = target.act("prune")
        assert done.code == 0, done.stderr
        assert "zsnapdb adopt main" in target.act("prune", "--plan").stdout
        assert real.items() <= target.objects().items()
        assert here <= snapshots()
        candidates = {one["backup_id"] for one in target.act("adopt", "main", "--plan", "--json").json["backups"]}
        assert candidates == {*target.names, *forged}
    finally:
        run("rm", "-rf", str(records))
        aside.rename(records)
        owner.store.undo()


def test_whole_archive_lets_the_binlogs_of_the_server_go(target: Target) -> None:
    """Nothing but the attacks kept the purges from it."""
    purged = target.act("binlog", "purge", "--json")
    assert purged.json["names"] == list(target.purged), purged.stderr
    assert not set(target.purged) & set(target.binlogs())
