"""A damaged object stops a restore with its name, and nothing half restored is left."""

from __future__ import annotations

from typing import Any

import pytest

from .in_guest import Lab, everything


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
