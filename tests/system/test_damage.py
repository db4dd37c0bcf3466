"""A damaged object stops a restore with its name, and nothing half restored is left."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from zsnapdb.base.domain_types import new_backup_id
from zsnapdb.config.settings import load
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.repository.manifest import VolumePart
from zsnapdb.stream.chunks import seal, stream_hash

from .in_guest import CONFIG, Lab, everything

pytestmark = pytest.mark.any_server


def chunk_keys(lab: Lab, backup: dict[str, Any], role: str) -> list[str]:
    return [key for key in lab.objects() if f"/chunks/{backup['backup_id']}/{role}/" in key]


def restore(lab: Lab, backup: dict[str, Any], *texts: str) -> None:
    before = everything()
    done = lab.zsnapdb("restore", "main", "--to", backup["backup_id"], "--target", "tank/damaged")
    assert done.code == 7, done.stdout + done.stderr
    for text in (*texts, "hint:"):
        assert text in done.stderr
    assert everything() == before


@pytest.mark.parametrize("how", ["flipped", "cut", "missing", "swapped"])
def test_a_chunk_that_is_not_what_was_written(lab: Lab, first: dict[str, Any], how: str) -> None:
    store, prefix = lab.store()
    key = chunk_keys(lab, first, "data")[-1]
    good, other = store.get(key), store.get(chunk_keys(lab, first, "parent")[0])
    try:
        if how == "missing":
            store.delete(key)
        else:
            middle = len(good) // 2
            store.put(
                key,
                {
                    "flipped": good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :],
                    "cut": good[:-1],
                    "swapped": other,
                }[how],
            )
        restore(lab, first, f"chunk {key.removeprefix(prefix)}")
    finally:
        store.put(key, good)


def test_a_manifest_that_was_altered(lab: Lab, first: dict[str, Any]) -> None:
    store, prefix = lab.store()
    key = f"{prefix}main/manifests/{first['backup_id']}.json"
    good = store.get(key)
    try:
        store.put(key, good[:-30])
        restore(lab, first, first["backup_id"])
    finally:
        store.put(key, good)


def test_a_chain_with_a_hole_names_the_missing_link(lab: Lab, first: dict[str, Any]) -> None:
    following = lab.zsnapdb("backup", "--json").json["backup"]
    chain = lab.zsnapdb("show", "main", following["backup_id"], "--json").json["chain"]
    store, prefix = lab.store()
    key = f"{prefix}main/manifests/{chain[-2]}.json"
    good = store.get(key)
    store.delete(key)
    try:
        restore(lab, following, f"backup {following['backup_id']} is an increment of snapshots with GUIDs")
    finally:
        store.put(key, good)


def forge(backup: dict[str, Any], role: str, *flags: str) -> str:
    """Store a copy of the full backup whose volume is another send of the same snapshot. Every hash in it is right."""
    repository = Instance.of(load(CONFIG), "main").open_repository()
    real = repository.manifest("main", backup["backup_id"])
    backup_id = new_backup_id(real.created, int(backup["backup_id"][-4:], 16) ^ 1)
    volumes: list[VolumePart] = []
    for volume in real.volumes:
        chunks, rows = repository.chunks("main", backup_id, volume.role), []
        argv = ["zfs", "send", *(flags if volume.role == role else volume.send_flags)]
        plain = subprocess.run([*argv, f"{volume.dataset}@{volume.snapshot}"], capture_output=True, check=True).stdout
        parts = [memoryview(plain)[at : at + (8 << 20)] for at in range(0, len(plain), 8 << 20)]
        for index, part in enumerate(parts, 1):
            body, chunk = seal(part, volume.codec, 1, None, chunks.associated(index, last=index == len(parts)))
            chunks.put_chunk(index, body, chunk.stored_sha256)
            rows.append(chunk)
        sizes = {"plain_size": len(plain), "sha256": stream_hash(tuple(rows)), "chunks": tuple(rows)}
        volumes.append(volume.model_copy(update=sizes))
    repository.commit(real.model_copy(update={"backup_id": backup_id, "volumes": tuple(volumes)}))
    return backup_id


@pytest.fixture(scope="module")
def full(lab: Lab) -> dict[str, Any]:
    """A full backup, whose streams `forge` makes again."""
    backup: dict[str, Any] = lab.zsnapdb("backup", "--full", "--json").json["backup"]
    return backup


@pytest.mark.parametrize(
    ("flags", "words"),
    [(("-L", "-p"), "it is a package"), (("-R",), "it is a package"), (("-L", "-e"), "a feature that is not accepted")],
    ids=["properties", "replication", "embedded"],
)
def test_a_stream_that_no_backup_makes_is_not_received(
    lab: Lab, full: dict[str, Any], flags: tuple[str, ...], words: str
) -> None:
    """`zfs receive` would set the properties of a package, such as `sharenfs` and `setuid`."""
    store, prefix = lab.store()
    before = lab.objects()
    forged = forge(full, "data", *flags)
    try:
        restore(lab, {"backup_id": forged}, f"chunk main/chunks/{forged}/data/", words)
        verified = lab.zsnapdb("verify", "main", "--deep")
        assert (verified.code, words in verified.stdout) == (7, True), verified.stdout + verified.stderr
    finally:
        store.delete(f"{prefix}main/manifests/{forged}.json")
        for key in set(lab.objects()) - set(before):
            store.delete(key)


@pytest.mark.parametrize("how", ["emptied", "altered", "gone"])
def test_nothing_is_called_the_newest_while_the_newest_backup_cannot_be_used(
    lab: Lab, first: dict[str, Any], how: str
) -> None:
    newest = lab.zsnapdb("backup", "--json").json["backup"]["backup_id"]
    store, prefix = lab.store()
    key = f"{prefix}main/manifests/{newest}.json"
    good = store.get(key)
    store.delete(key)
    if how != "gone":
        store.put(key, {"emptied": b"", "altered": good.replace(b'"instance":"main"', b'"instance":"mine"')}[how])
    try:
        for words in (("status", "main"), ("list", "main"), ("verify", "main"), ("show", "main")):
            done = lab.zsnapdb(*words)
            assert done.code == 7, (words, done.stdout, done.stderr)
            assert newest in done.stdout + done.stderr, words
        assert newest in lab.zsnapdb("doctor").stdout
        before = everything()
        refused = lab.zsnapdb("restore", "main", "--to", "latest", "--target", "tank/older")
        assert refused.code == 7, refused.stderr
        assert f"backup {newest}: " in refused.stderr
        assert "--accept-older" in refused.stderr
        assert everything() == before
        accepted = lab.zsnapdb("restore", "main", "--target", "tank/older", "--accept-older", "--plan", "--json").json
        assert accepted["target"] != newest
        if how == "gone":
            assert "this host stored" in lab.zsnapdb("backup", "--plan").stdout
    finally:
        store.delete(key)
        store.put(key, good)
    assert newest not in lab.zsnapdb("status", "main").stderr
    assert lab.zsnapdb("restore", "main", "--target", "tank/older", "--plan", "--json").json["target"] == newest
