"""Backups under load are pruned by the retention policy, verified, damaged and copied.

A listed backup always restores to exactly its position.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.lab.inside import ledger
from zsnapdb.config.settings import load
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.store.base import Store
from zsnapdb.store.layers import open_store

from .in_guest import SOCKET, Done, Lab, everything, zfs

pytestmark = pytest.mark.any_server

KEEP = "[instance.main.server]"
URL = 'url = "s3://backups/lab"'
VOLUMES = '{ parent = "tank/mysql", data = "tank/mysql/data" }'
OTHER_ROLES = '{ logs = "tank/mysql", files = "tank/mysql/data" }'


@dataclass
class History:
    """Two chains in a repository of their own: the second began because the volumes' roles changed. Oldest first."""

    lab: Lab
    config: Path
    backups: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ids(self) -> list[str]:
        return [b["backup_id"] for b in self.backups]

    def zsnapdb(self, *words: str) -> Done:
        return self.lab.zsnapdb(*words, config=self.config)

    def listed(self) -> list[str]:
        return [b["backup_id"] for b in self.zsnapdb("list", "main", "--json").json["backups"]]

    def store(self) -> tuple[Store, str]:
        return open_store(Instance.of(load(self.config), "main").repository)

    def size(self) -> int:
        store, prefix = self.store()
        return sum(item.size for item in store.list(f"{prefix}main/chunks/"))


@pytest.fixture(scope="module")
def history(lab: Lab, first: dict[str, Any]) -> History:
    rules = f"[instance.main.keep]\nlast = 2\n\n{KEEP}"
    before = lab.elsewhere((URL, 'url = "s3://backups/retention"'), (KEEP, rules))
    after = lab.changed((URL, 'url = "s3://backups/retention"'), (KEEP, rules), (VOLUMES, OTHER_ROLES))
    past = History(lab, after)
    workers = {row[0]: row[1] for row in lab.sql("SELECT worker, MAX(number) FROM ledger.journal GROUP BY worker")}
    load_ = ledger.Load(SOCKET, rate=7.0, first_number=workers)
    load_.start()
    try:
        for config in (before, before, after, after, after):
            load_.wait_for(20)
            past.backups.append(lab.zsnapdb("backup", "--json", config=config).json["backup"])
    finally:
        load_.stop()
    assert load_.failures == []
    assert [b["full"] for b in past.backups] == [True, False, True, False, False]
    return past


def local(backup_id: str) -> list[str]:
    """Snapshots and bookmarks of a backup on this host."""
    names = zfs("list", "-H", "-t", "snapshot,bookmark", "-o", "name", "-r", "tank/mysql")
    return [name for name in names if name.endswith(f"zsnapdb-{backup_id}")]


def test_damage_of_every_kind_is_found_and_what_it_means_is_said(history: History) -> None:
    whole = history.zsnapdb("verify", "main", "--deep", "--json").json
    assert (whole["whole"], set(whole["verified"]), whole["restorable"]) == (True, set(history.ids), history.ids)
    assert whole["bytes"] == history.size()
    store, prefix = history.store()
    chunk = f"{prefix}main/chunks/{history.ids[2]}/files/00000001"
    good = store.get(chunk)
    for how, body in (
        ("cut", good[:-1]),
        ("flipped", good[:99] + bytes([good[99] ^ 1]) + good[100:]),
        ("missing", None),
    ):
        store.delete(chunk)
        if body is not None:
            store.put(chunk, body)
        done = history.zsnapdb("verify", "main", "--deep")
        assert done.code == 7, (how, done.stdout, done.stderr)
        assert chunk.removeprefix(prefix) in done.stdout
        assert f"needed by {history.ids[3]}, {history.ids[4]}" in done.stdout
        assert f"2 of 5 backups can be restored, the newest is {history.ids[1]}" in done.stdout
    store.put(chunk, good)
    assert history.zsnapdb("verify", "main").code == 7, "what reading found, only reading clears"
    manifest = f"{prefix}main/manifests/{history.ids[0]}.json"
    body = store.get(manifest)
    store.put(manifest, body[:-30])
    done = history.zsnapdb("verify", "main", "--deep")
    assert done.code == 7
    assert history.ids[0] in done.stdout
    store.put(manifest, body)
    assert history.zsnapdb("verify", "main", "--deep").code == 0
    assert history.zsnapdb("verify", "main", "--deep", "--older-than", "1h", "--json").json["verified"] == []


def test_a_copy_elsewhere_restores_when_the_original_is_gone(lab: Lab, history: History) -> None:
    folder = Path("/srv/s3/second-site")
    folder.mkdir()
    config = lab.folder / "two-sites.toml"
    config.write_text(history.config.read_text() + f'\n[repository.second]\nurl = "file://{folder}"\n')
    copied = lab.zsnapdb("copy", "main", "--to", "second", "--json", config=config).json
    assert (sorted(copied["copied"]), copied["bytes"]) == (history.ids, history.size())
    again = lab.zsnapdb("copy", "main", "--to", "second", "--json", config=config).json
    assert (again["copied"], again["bytes"]) == ([], 0)
    assert lab.zsnapdb("verify", "main", "--deep", "--repository", "second", config=config).code == 0
    alone = lab.folder / "second-site.toml"
    alone.write_text(history.config.read_text().replace('url = "s3://backups/retention"', f'url = "file://{folder}"'))
    restored = lab.zsnapdb(
        "restore", "main", "--to", history.ids[3], "--target", "tank/second-site", "--json", config=alone
    ).json
    assert restored["gtids"] == history.backups[3]["position"]["gtids"]


def test_pruning_frees_space_and_leaves_backups_that_restore_exactly(lab: Lab, history: History) -> None:
    """One snapshot of the removed chain is cloned and another has a hold: both stay, and the prune continues."""
    lab.zsnapdb("clone", "create", "main", "--name", "pruned", "--from", history.ids[0], "--json").json  # noqa: B018 - asserts success
    held_snapshot = f"tank/mysql@zsnapdb-{history.ids[1]}"
    zfs("hold", "foreign", held_snapshot)
    try:
        before = history.size(), everything()
        planned = history.zsnapdb("prune", "main", "--plan", "--json").json
        assert (history.size(), everything()) == before
        assert [b["backup_id"] for b in planned["backups"] if not b["keep"]] == history.ids[:2]
        result = history.zsnapdb("prune", "main", "--json").json
        assert (result["removed"], result["bytes"]) == (history.ids[1::-1], planned["bytes"])
        assert history.size() == before[0] - planned["bytes"]
        assert history.listed() == history.ids[2:]
        assert set(local(history.ids[0])) == {
            f"tank/mysql/data@zsnapdb-{history.ids[0]}",
            f"tank/mysql@zsnapdb-{history.ids[0]}",
        }
        assert local(history.ids[1]) == [held_snapshot]
        assert all(len(local(name)) == 4 for name in history.ids[2:])
    finally:
        zfs("release", "foreign", held_snapshot)
        assert lab.zsnapdb("clone", "destroy", "pruned").code == 0
    left = {*local(history.ids[0]), *local(history.ids[1])}
    assert set(history.zsnapdb("prune", "main", "--json").json["destroyed"]) == left
    assert local(history.ids[0]) == local(history.ids[1]) == []
    assert history.zsnapdb("verify", "main", "--deep").code == 0
    for number, backup in enumerate(history.backups[2:]):
        restored = history.zsnapdb(
            "restore", "main", "--to", backup["backup_id"], "--target", f"tank/kept-{number}", "--json"
        ).json
        assert restored["gtids"] == backup["position"]["gtids"]
    following = history.zsnapdb("backup", "--json").json["backup"]
    assert [v["from_guid"] for v in following["volumes"]] == [v["guid"] for v in history.backups[-1]["volumes"]]


def test_snapshots_of_other_repositories_and_other_people_are_left_alone(
    lab: Lab, first: dict[str, Any], history: History
) -> None:
    foreign = "tank/mysql@zsnapdb-20200101T000000Z-0000"
    zfs("snapshot", foreign)
    zfs("bookmark", foreign, foreign.replace("@", "#"))
    try:
        assert history.zsnapdb("prune", "main").code == 0
        assert len(local("20200101T000000Z-0000")) == 2
        assert len(local(first["backup_id"])) >= 2, "it is in another repository"
    finally:
        zfs("destroy", foreign)
        zfs("destroy", foreign.replace("@", "#"))


def test_a_pin_outlasts_the_rules(history: History) -> None:
    name = history.listed()[0]
    assert history.zsnapdb("pin", "main", name, "--reason", "for the auditors").code == 0
    history.zsnapdb("backup", "--json").json  # noqa: B018 - asserts success
    plan = history.zsnapdb("prune", "main", "--plan")
    assert f"{name}" in plan.stdout
    assert "pinned: for the auditors" in plan.stdout
    assert history.zsnapdb("pin", "main", name, "--remove").code == 0
    assert "pinned" not in history.zsnapdb("prune", "main", "--plan").stdout


def test_a_bucket_that_lost_all_but_one_manifest_takes_no_local_snapshot_with_it(history: History) -> None:
    store, prefix = history.store()
    listed = history.listed()
    kept = {f"{prefix}main/manifests/{name}.json": store.get(f"{prefix}main/manifests/{name}.json") for name in listed}
    assert len(kept) > 2
    for key in list(kept)[:-1]:
        store.delete(key)
    before = everything()
    try:
        done = history.zsnapdb("prune", "main")
        assert done.code == 7, done.stdout + done.stderr
        assert f"the repository lacks {len(listed) - 1} backups that this host stored" in done.stderr
        assert everything() == before
    finally:
        for key, body in list(kept.items())[:-1]:
            store.put(key, body)
    assert history.listed() == listed
