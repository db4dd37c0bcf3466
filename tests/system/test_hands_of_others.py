"""Other programs promote clones, rename datasets and snapshots: nothing is lost, and no older data is the latest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .in_guest import SERVER, Lab, everything, run, zfs

pytestmark = pytest.mark.any_server
HOME = "tank/zsnapdb/clones"


@pytest.fixture
def clone(lab: Lab, first: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Create a clone of a local set that is newer than the backup."""
    assert first["backup_id"]
    assert lab.zsnapdb("snapshot", "main").code == 0
    made: dict[str, Any] = lab.zsnapdb("clone", "create", "main", "--name", "p", "--ttl", "1h", "--json").json["clone"]
    yield made
    assert lab.zsnapdb("clone", "destroy", "p").code == 0


def test_promoted_clone_keeps_the_snapshots_of_production(lab: Lab, clone: dict[str, Any]) -> None:
    before = everything()
    volumes = [str(dataset) for dataset in clone["volumes"].values()]
    for dataset in volumes:
        zfs("promote", dataset)
    moved = everything()
    refused = lab.zsnapdb("clone", "destroy", "p", "--with-foreign-snapshots")
    assert (refused.code, "`zfs promote tank/mysql/data`" in refused.stderr) == (4, True), refused.stderr
    for words in (("reset", "p", "--replace"), ("create", "main", "--name", "x")):
        said = lab.zsnapdb("clone", *words)
        assert (said.code, f"if {volumes[0]}" in said.stderr or "was promoted" in said.stderr) == (4, True), said.stderr
    assert lab.zsnapdb("reap").code == 0
    assert everything() == moved
    for dataset in ("tank/mysql", "tank/mysql/data"):
        zfs("promote", dataset)
    assert everything() == before


def test_renamed_snapshot_of_the_newest_set_lets_no_older_set_be_the_latest(lab: Lab, clone: dict[str, Any]) -> None:
    short = f"zsnapdb-{clone['backup_id']}"
    zfs("rename", f"tank/mysql/data@{short}", "tank/mysql/data@manual")
    try:
        for words in (("clone", "create", "main", "--name", "x", "--plan"),):
            refused = lab.zsnapdb(*words)
            assert (refused.code, f"left only tank/mysql@{short}" in refused.stderr) == (4, True), refused.stderr
        assert lab.zsnapdb("clone", "create", "main", "--name", "x", "--accept-older", "--plan").code == 0
    finally:
        zfs("rename", "tank/mysql/data@manual", f"tank/mysql/data@{short}")
    assert lab.zsnapdb("clone", "create", "main", "--name", "x", "--plan").code == 0


def test_clone_whose_dataset_was_renamed_is_named_and_stays(lab: Lab, clone: dict[str, Any]) -> None:
    before = everything()
    zfs("rename", "-u", f"{HOME}/p", f"{HOME}/q")
    moved = everything()
    try:
        for name in ("p", "q"):
            for verb in ("destroy", "reset", "stop"):
                refused = lab.zsnapdb("clone", verb, name)
                assert "another program renamed its dataset" in refused.stderr, (verb, name, refused.stderr)
                assert f"zfs rename -u {HOME}/q {HOME}/p" in refused.stderr
        assert f"{HOME}/q" in lab.zsnapdb("clone", "list").stderr + lab.zsnapdb("reap", "--plan").stdout
        assert lab.zsnapdb("reap").code in (0, 1)
        assert everything() == moved
    finally:
        zfs("rename", "-u", f"{HOME}/q", f"{HOME}/p")
    assert everything() == before
    assert lab.zsnapdb("clone", "reset", "p").code == 0
    assert clone["guid"] == lab.zsnapdb("clone", "show", "p", "--json").json["clone"]["guid"]


def test_guid_of_a_clone_refuses_a_later_clone_of_the_name(lab: Lab, clone: dict[str, Any]) -> None:
    assert lab.zsnapdb("clone", "destroy", "p", "--guid", clone["guid"]).code == 0
    later = lab.zsnapdb("clone", "create", "main", "--name", "p", "--heartbeat", "1h", "--json").json["clone"]
    assert later["guid"] != clone["guid"]
    before = everything()
    for words in (("reset",), ("heartbeat",), ("stop",), ("extend",), ("destroy",), ("commit",), ("login", "--new")):
        refused = lab.zsnapdb("clone", words[0], "p", *words[1:], "--guid", clone["guid"])
        assert (refused.code, "there is no clone p" in refused.stderr) == (2, True), refused.stderr
        assert everything() == before
    assert lab.zsnapdb("clone", "reset", "p", "--guid", later["guid"]).code == 0


def test_bookmark_of_replaced_data_is_no_base(lab: Lab, first: dict[str, Any]) -> None:
    """`zfs receive -F` goes back to the data of an older replica, and keeps the bookmarks of later backups."""
    places = ("tank/mysql", "tank/mysql/data")
    zfs("snapshot", "-r", "tank/mysql@replicated")
    zfs("snapshot", "-r", "tank/mysql@received")
    made = lab.zsnapdb("backup", "--json").json["backup"]
    run(SERVER, "stop")
    for place in places:
        # Production stands in for the replica. The stream is a later state of the replica.
        if place == places[0]:
            zfs("unmount", "tank/mysql/data")
        received = f"{place}@received"
        send, receive = f"zfs send -i @replicated {received} >/s", f"zfs receive -F {place} </s"
        done = run("sh", "-c", f"{send} && zfs destroy {received} && {receive}")
        assert done.code == 0, done.stderr
    for place in places:
        if zfs("get", "-H", "-o", "value", "mounted", place) == ["no"]:
            zfs("mount", place)
    run(SERVER, "start")
    left = [name.partition("zsnapdb-")[2] for name in everything() if name.startswith("tank/mysql#")]
    assert any(name.startswith(made["backup_id"]) for name in left)
    planned = lab.zsnapdb("clone", "create", "main", "--name", "x", "--plan")
    assert f"{made['backup_id']}: no volume of main has data that comes from it" in planned.stderr, planned.stderr
    later = lab.zsnapdb("backup", "--json").json["backup"]
    bases = {volume["from_guid"] for volume in later["volumes"]}
    assert bases.isdisjoint(volume["guid"] for volume in made["volumes"])
    for place in places:
        for name in ("replicated", "received"):
            zfs("destroy", f"{place}@{name}")


@pytest.mark.parametrize("change", ["inherit", "rename"])
def test_newest_set_without_properties_or_name_lets_no_older_set_be_the_latest(
    lab: Lab, clone: dict[str, Any], change: str
) -> None:
    short = f"zsnapdb-{clone['backup_id']}"
    names = [f"{place}@{short}" for place in ("tank/mysql", "tank/mysql/data")]
    state = zfs("get", "-H", "-o", "value", "zsnapdb:state", names[0])[0]
    for name in names:
        zfs("inherit", "zsnapdb:state", name) if change == "inherit" else zfs("rename", name, "@manual")
    try:
        refused = lab.zsnapdb("clone", "create", "main", "--name", "x", "--plan")
        assert (refused.code, "changed the names or zsnapdb's properties of tank/mysql" in refused.stderr) == (4, True)
    finally:
        for name in names:
            if change == "rename":
                zfs("rename", f"{name.partition('@')[0]}@manual", name)
            zfs("set", f"zsnapdb:state={state}", name)
    assert lab.zsnapdb("clone", "create", "main", "--name", "x", "--plan").code == 0


def test_mount_over_production_is_named(lab: Lab, first: dict[str, Any]) -> None:
    assert first["backup_id"]
    zfs("create", "-o", "mountpoint=/var/lib/mysql/data", "-o", "canmount=noauto", "tank/cover")
    zfs("mount", "tank/cover")
    before = everything()
    try:
        for words in (("backup",), ("snapshot", "main")):
            refused = lab.zsnapdb(*words)
            named = "on tank/mysql/data, but tank/cover was mounted over it at /var/lib/mysql/data" in refused.stderr
            assert (refused.code, named) == (4, True), refused.stderr
        assert everything() == before
    finally:
        run("umount", "/var/lib/mysql/data")
        zfs("destroy", "tank/cover")
    assert lab.zsnapdb("backup", "--plan").code == 0


def test_clone_with_a_user_does_not_become_a_clone_of_the_pool(lab: Lab, clone: dict[str, Any]) -> None:
    pool = lab.changed(("[repository.s3]\n", "[instance.main.pool]\nsize = 1\n\n[repository.s3]\n"))
    before = everything()
    try:
        zfs("set", "zsnapdb:pool=waits", f"{HOME}/p")
        planned = lab.zsnapdb("clone", "create", "main", "--name", "x", "--plan", config=pool)
        assert (planned.code, str(clone["port"]) in planned.stdout) == (0, False), planned.stderr + planned.stdout
        zfs("set", "zsnapdb:pool=not good", f"{HOME}/p")
        refused = lab.zsnapdb("clone", "destroy", "p")
        assert f"`zfs inherit zsnapdb:pool {HOME}/p` corrects it" in refused.stderr, refused.stderr
        assert lab.zsnapdb("reap", config=pool).code in (0, 1)
        assert everything() == before
    finally:
        zfs("inherit", "zsnapdb:pool", f"{HOME}/p")
