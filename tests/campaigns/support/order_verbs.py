"""The verbs of the campaign `order`: commands of zsnapdb, and actions of an administrator.

Each verb returns its result, and records problems in the state.
"""

from __future__ import annotations

import random
import re
import subprocess
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import pymysql

from tests.campaigns.support.field_host import command
from tests.campaigns.support.order_questions import State, judge_slot
from tests.campaigns.support.order_site import LEASE, REPOSITORY, Done, Seen
from tests.campaigns.support.order_truth import MadeClone, MadeDrill, MadeSet, Marks
from zsnapdb.base.domain_types import Flavour, backup_time

DAY = 86400.0
JUNK = 900_000_000
"""A number that only a clone has."""


@dataclass(frozen=True)
class Verb:
    """The function of a verb, its seconds on each flavour (MySQL, MariaDB), and whether it is possible now.

    `removes` has parts of the names of datasets that it may remove on purpose.
    """

    play: Callable[[State, Seen, random.Random], str]
    seconds: tuple[float, float]
    can: Callable[[State, Seen], bool] = lambda _state, _seen: True

    def cost(self, flavour: Flavour) -> float:
        return self.seconds[0 if flavour is Flavour.MYSQL else 1]


def _failed(state: State, done: Done) -> str:
    """Record the failure of a command that had to succeed. Only a removal may be refused because of the clock."""
    if state.is_clock_refusal(done):
        return "refused: the clock"
    state.problems.append(str(done))
    return f"failed ({done.code})"


def note_set(state: State, seen: Seen, set_id: str, marks: Marks, *, is_stored: bool = False) -> MadeSet | str:
    """Record the set that a command just created."""
    after = state.site.look()
    on = after.on(state.site.parent, state.site.data)
    roles = {state.site.parent: "parent", state.site.data: "data"}
    guids = {
        roles[name.split("@")[0]]: guid
        for guid, (name, _) in on.items()
        if name.endswith(f"@zsnapdb-{set_id}") and guid not in seen.snapshots
    }
    if set(guids) != {"parent", "data"}:
        return f"{set_id} has no snapshots"
    binlog = after.binlogs[-1] if after.binlogs else ""
    state.number += 1
    one = MadeSet(state.number, set_id, marks, state.site.clock.now, state.truth.epoch, guids, is_stored, None, binlog)
    state.truth.sets.append(one)
    return one


def _base_of(state: State, backup: dict[str, Any]) -> int | None:
    guid = backup["volumes"][0]["from_guid"]
    one = state.truth.of_guid(guid) if guid is not None else None
    return one.number if one is not None else None


def snapshot(state: State, seen: Seen, _chance: random.Random) -> str:
    marks = state.site.marks()
    done = state.site.zsnapdb("snapshot", "main")
    if done.code != 0:
        return _failed(state, done)
    one = note_set(state, seen, done.document["backup_id"], marks, is_stored=False)
    if isinstance(one, str):
        state.problems.append(one)
        return one
    return f"set {one.number}"


def _backup(state: State, seen: Seen, *more: str) -> str:
    marks = state.site.marks()
    stored = [one.set_id for one in state.stored(seen)]
    bases = seen.bases_on(state.site.parent, state.site.data)
    usable = [one for one in state.stored(seen) if set(one.guids.values()) <= bases]
    done = state.site.zsnapdb("backup", "main", *more)
    if done.code != 0:
        return _failed(state, done)
    backup = done.document["backup"]
    one = note_set(state, seen, backup["backup_id"], marks, is_stored=True)
    if isinstance(one, str) or one.set_id in stored:
        state.problems.append(f"backup made no new one: {backup['backup_id']}")
        return "no new backup"
    one.base = _base_of(state, backup)
    if not more:
        state.differ("base of a backup", usable[-1].number if usable else None, one.base)
    return f"set {one.number}, {'full' if one.base is None else f'of set {one.base}'}"


def backup(state: State, seen: Seen, _chance: random.Random) -> str:
    return _backup(state, seen)


def full(state: State, seen: Seen, _chance: random.Random) -> str:
    return _backup(state, seen, "--full")


def _local(state: State, seen: Seen) -> list[MadeSet]:
    return [one for one in state.here(seen) if not one.is_stored]


def store_latest(state: State, seen: Seen, _chance: random.Random) -> str:
    newest = _local(state, seen)[-1]
    done = state.site.zsnapdb("backup", "main", "--set", "latest")
    if state.is_right_refusal(done, seen, newest):
        return "refused: renamed"
    if done.code != 0:
        return _failed(state, done)
    stored = done.document["backup"]
    state.differ("backup --set latest", newest.set_id, stored["backup_id"])
    one = state.truth.of_id(stored["backup_id"])
    if one is not None:
        one.is_stored, one.base = True, _base_of(state, stored)
        return f"set {one.number}"
    return "?"


def archive(state: State, _seen: Seen, _chance: random.Random) -> str:
    state.site.sql("FLUSH BINARY LOGS")
    done = state.site.zsnapdb("binlog", "archive", "main", "--once")
    return "done" if done.code == 0 else _failed(state, done)


def _removing(*words: str) -> Callable[[State, Seen, random.Random], str]:
    def play(state: State, _seen: Seen, _chance: random.Random) -> str:
        done = state.site.zsnapdb(*words)
        return "done" if done.code == 0 else _failed(state, done)

    return play


def clone(state: State, seen: Seen, chance: random.Random) -> str:
    here = state.here(seen)
    name = f"c{state.number}-{len(state.truth.clones)}"
    more = ("--from", "latest") if chance.random() < 0.3 else ()
    done = state.site.zsnapdb("clone", "create", "main", "--name", name, *more)
    if state.is_right_refusal(done, seen, here[-1]):
        return "refused: renamed"
    if done.code != 0:
        return _failed(state, done)
    clone_ = done.document["clone"]
    held = _held_by(state, done.document)
    if done.document["of_pool"]:
        judge_slot(state, clone_["backup_id"])
        one = state.truth.of_id(clone_["backup_id"])
        state.differ(f"rows of the clone {name} of the pool", list(one.marks) if one else None, list(held))
    else:
        state.differ("clone create", here[-1].set_id, clone_["backup_id"])
        state.differ(f"rows of the clone {name}", list(here[-1].marks), list(held))
    _note_clone(state, name, held, done.document)
    return f"{name} of {clone_['backup_id']}"


def _held_by(state: State, created: dict[str, Any]) -> Marks:
    login = (str(created["user"]), str(created["password"]))
    try:
        return state.site.marks(int(created["clone"]["port"]), login)
    except pymysql.MySQLError as error:
        state.problems.append(f"clone {created['clone']['name']} does not answer: {error}")
        return ()


def _note_clone(state: State, name: str, marks: Marks, made: dict[str, Any], *, is_slot: bool = False) -> None:
    after = state.site.look()
    top = min(made["clone"]["datasets"], key=len)
    guids = {guid for guid, dataset in after.datasets.items() if dataset == top}
    for known in [one for one in state.truth.clones.values() if set(one.datasets) & guids]:
        del state.truth.clones[known.name]
    login = (str(made.get("user", "")), str(made.get("password", "")))
    until, port = state.site.clock.now + LEASE, int(made["clone"]["port"])
    state.truth.clones[name] = MadeClone(name, marks, until, guids, is_slot, port, login)


def prepare(state: State, seen: Seen, _chance: random.Random) -> str:
    newest = state.here(seen)[-1]
    done = state.site.zsnapdb("clone", "prepare", "main")
    if done.code != 0:
        return _failed(state, done)
    state.differ("clone prepare", newest.set_id, done.document["backup_id"])
    top = str(done.document["snapshots"]["parent"]).rpartition("/c@")[0]
    for guid, name in state.site.look().datasets.items():
        if name == top:
            state.prepared[guid] = (state.site.clock.now, state.truth.epoch)
    return f"set {newest.number}"


def pool(state: State, seen: Seen, _chance: random.Random) -> str:
    newest = state.here(seen)[-1]
    done = state.site.zsnapdb("clone", "pool", "main")
    if done.code != 0:
        return _failed(state, done)
    clones = {one["name"]: one for one in state.site.zsnapdb("clone", "list").document.get("clones", [])}
    for name in done.document["made"]:
        if name in clones:
            state.differ("clone pool", newest.set_id, clones[name]["backup_id"])
            _note_clone(state, name, newest.marks, {"clone": clones[name]}, is_slot=True)
    return f"made {len(done.document['made'])}, dropped {len(done.document['dropped'])}"


def _handed(state: State, seen: Seen) -> list[str]:
    """Return the names of the existing clones that have a user."""
    known = state.truth.clones.values()
    return [one.name for one in known if not one.is_slot and set(one.datasets) & set(seen.datasets)]


def reset(state: State, seen: Seen, chance: random.Random) -> str:
    name = chance.choice(_handed(state, seen))
    known = state.truth.clones[name]
    is_latest = chance.random() < 0.6 and bool(state.here(seen))
    more = ("--from", "latest") if is_latest else ()
    state.site.sql(f"INSERT INTO past.marks VALUES ({JUNK})", port=known.port, login=known.login)
    done = state.site.zsnapdb("clone", "reset", name, *more)
    if done.code != 0:
        return _failed(state, done)
    expected = state.here(seen)[-1].marks if is_latest else known.marks
    held, what = state.site.marks(known.port, known.login), "latest" if is_latest else "its own"
    state.differ(f"rows of the clone {name} after a reset to {what}", list(expected), list(held))
    known.marks = expected
    return f"{name} to {what}"


def destroy(state: State, seen: Seen, chance: random.Random) -> str:
    name = chance.choice(_handed(state, seen))
    known = state.truth.clones[name]
    done = state.site.zsnapdb("clone", "destroy", name)
    if done.code != 0:
        return _failed(state, done)
    known.until = 0.0
    return name


def drill(state: State, seen: Seen, chance: random.Random) -> str:
    passes = chance.random() < 0.5
    newest = state.newest(seen)
    if newest is None:
        return "not possible: the state of every backup was taken back"
    state.site.configure(state.rules, drill_passes=passes)
    point = "latest" if newest.epoch == state.truth.epoch and chance.random() < 0.5 else "latest-backup"
    done = state.site.zsnapdb("drill", "main", "--to", point)
    state.site.configure(state.rules)
    if done.code != (0 if passes else 11) or "drill" not in done.document:
        return _failed(state, done)
    made = done.document["drill"]
    state.differ(f"drill --to {point}", newest.set_id, made["backup_id"])
    state.truth.drills.append(MadeDrill(made["drill_id"], passes))
    return f"{made['drill_id']} {'passed' if passes else 'failed'}"


def query(state: State, seen: Seen, chance: random.Random) -> str:
    stored, here = state.stored(seen), state.here(seen)
    at = chance.choice(("latest", "latest-backup"))
    question = "SELECT GROUP_CONCAT(number ORDER BY number) AS marks FROM past.marks"
    done = state.site.zsnapdb("query", "main", question, "--at", at)
    if done.code != 0:
        return _failed(state, done)
    held = tuple(int(number) for number in re.findall(r"\d+", str(done.document.get("rows", ""))))
    if at == "latest-backup":
        newest = here[-1] if here else state.newest(seen)
        state.differ("query --at latest-backup", list(newest.marks if newest is not None else ()), list(held))
    else:
        least = [one.marks for one in (*here[-1:], *stored[-1:]) if one.epoch == state.truth.epoch]
        now = state.site.marks()
        # Archived transactions and those in binlogs may be replayed; abandoned ones may not.
        is_right = held == now[: len(held)] and all(len(held) >= len(marks) for marks in least)
        if not is_right:
            state.problems.append(f"query --at latest: {held}, the server has {now}, sets of this history {least}")
    return f"at {at}"


def rewind(state: State, seen: Seen, chance: random.Random) -> str:
    one = chance.choice(_targets(state, seen))
    old = {name: guid for guid, name in seen.datasets.items() if name in (state.site.parent, state.site.data)}
    state.site.soil()
    done = state.site.zsnapdb("rewind", "main", "--to", one.set_id, "--yes", "--no-backup")
    if done.code != 0:
        return _failed(state, done)
    state.replaced |= dict.fromkeys(old.values(), state.site.clock.now)
    state.differ(f"rows after a rewind to {one.set_id}", list(one.marks), list(state.site.marks()))
    state.truth.taken_back |= {made.number for made in state.truth.sets if made.marks != one.marks[: len(made.marks)]}
    state.truth.epoch += 1
    return f"to set {one.number}"


def _targets(state: State, seen: Seen) -> list[MadeSet]:
    """Return the sets of the present history, to which the server can be set back."""
    return [one for one in state.here(seen) if one.epoch == state.truth.epoch]


def rollback(state: State, seen: Seen, chance: random.Random) -> str:
    """An administrator rolls back both volumes with ZFS itself; later changes are lost."""
    one = chance.choice(_targets(state, seen))
    state.site.stop()
    for name in (state.site.data, state.site.parent):
        command("zfs", "rollback", "-r", f"{name}@zsnapdb-{one.set_id}")
    state.site.start()
    left = state.site.look().bases_on(state.site.parent, state.site.data)
    later = [made for made in state.truth.backups if made.number > one.number]
    state.truth.taken_back |= {made.number for made in later if not set(made.guids.values()) & left}
    state.truth.epoch += 1
    return f"to set {one.number}"


def _is_bare(state: State, seen: Seen) -> bool:
    """Return whether no dataset was created from the volumes' snapshots."""
    own = ("/zsnapdb/clones/", "/zsnapdb/prepared/", "/zsnapdb/received/", "-replaced-")
    return not any(part in name for name in seen.datasets.values() for part in own)


def rename_datasets(state: State, _seen: Seen, chance: random.Random) -> str:
    to = chance.choice([name for name in ("mysql", "db", "server") if not state.site.parent.endswith(f"/{name}")])
    state.site.rename(f"{state.site.pool}/{to}")
    return state.site.parent


def rename_snapshots(state: State, seen: Seen, chance: random.Random) -> str:
    """An administrator renames the snapshots of a set, on both volumes or on one."""
    one = chance.choice(state.here(seen))
    names = (state.site.parent, state.site.data)
    for name in names if chance.random() < 0.6 else names[:1]:
        command("zfs", "rename", f"{name}@zsnapdb-{one.set_id}", f"{name}@by-hand-{state.number}-{one.number}")
    return f"set {one.number}"


def import_pool(state: State, _seen: Seen, chance: random.Random) -> str:
    to = chance.choice([name for name in ("tank", "tonk", "tunk") if name != state.site.pool])
    state.site.import_as(to)
    return to


def replace_host(state: State, seen: Seen, _chance: random.Random) -> str:
    stored = state.stored(seen)
    newest, before = stored[-1], state.site.marks()
    # A host without a record accepts no backup from the future.
    error = max(backup_time(one.set_id).timestamp() for one in stored) - state.site.clock.now
    if state.site.clock.error < error:
        state.site.set_clock(error + 60)
    backup_id = state.site.replace_host()
    state.differ("restore --to latest on another host", newest.set_id, backup_id)
    held = state.site.marks()
    if held != before[: len(held)] or len(held) < len(newest.marks):
        state.problems.append(f"restore --to latest on another host: {held}, the newest backup has {newest.marks}")
    state.truth.epoch += 1
    state.truth.clones.clear()
    state.truth.taken_back.clear()
    state.first_here = state.number + 1
    return f"{len(held)} marks"


def daily(state: State, _seen: Seen, _chance: random.Random) -> str:
    """Another program creates a snapshot, and renames the previous one."""
    for name in (state.site.parent, state.site.data):
        for words in (("destroy", f"{name}@daily.1"), ("rename", f"{name}@daily", f"{name}@daily.1")):
            subprocess.run(["zfs", *words], capture_output=True, check=False)
    marks = state.site.marks()
    command("zfs", "snapshot", "-r", f"{state.site.parent}@daily")
    state.daily = MadeSet(0, "@daily", marks, state.site.clock.now, state.truth.epoch, {})
    return "done"


def clone_daily(state: State, _seen: Seen, chance: random.Random) -> str:
    assert state.daily is not None
    name = f"d{state.number}-{len(state.truth.clones)}"
    if chance.random() < 0.4:
        done = state.site.zsnapdb("clone", "prepare", "main", "--from", "@daily")
        if done.code != 0:
            return _failed(state, done)
    done = state.site.zsnapdb("clone", "create", "main", "--name", name, "--from", "@daily")
    if done.code != 0:
        return _failed(state, done)
    held = _held_by(state, done.document)
    state.differ(f"rows of the clone {name} of @daily", list(state.daily.marks), list(held))
    _note_clone(state, name, held, done.document)
    return name


def vanish(state: State, seen: Seen, _chance: random.Random) -> str:
    """The newest backup is deleted in the repository and must be reported missing. Then it is put back."""
    newest = state.stored(seen)[-1]
    manifest = REPOSITORY / "main" / "manifests" / f"{newest.set_id}.json"
    body = manifest.read_bytes()
    manifest.unlink()
    try:
        for words in (("list", "main"), ("status", "main")):
            done = state.site.zsnapdb(*words)
            missing = [name for one in done.document.get("missing", []) for name in one["backups"]]
            if newest.set_id not in missing:
                state.problems.append(f"{words[0]} does not miss {newest.set_id} (set {newest.number}): {done}")
            if done.code != 7:
                state.problems.append(f"{words[0]} ended with {done.code} without {newest.set_id}, which was deleted")
    finally:
        manifest.write_bytes(body)
    return f"set {newest.number}"


def time_off(state: State, _seen: Seen, chance: random.Random) -> str:
    """The host is off for some time, and is booted again."""
    seconds = chance.choice((600.0, 2 * LEASE, 30 * 3600.0, 3 * DAY))
    state.site.clock.pass_time(seconds)
    state.site.boot()
    state.is_doubtful = True
    return f"{seconds / 3600:.1f} h"


def _has(kind: str) -> Callable[[State, Seen], bool]:
    def can(state: State, seen: Seen) -> bool:
        have: dict[str, Collection[object]] = {
            "here": state.here(seen),
            "local": _local(state, seen),
            "stored": state.stored(seen),
            "clone": _handed(state, seen),
            "target": _targets(state, seen)[:-1],
        }
        return bool(have[kind])

    return can


def _stored_of_now(state: State, seen: Seen) -> bool:
    stored = state.stored(seen)
    return bool(stored) and stored[-1].epoch == state.truth.epoch and state.site.pool != "second"


VERBS: dict[str, Verb] = {
    "snapshot": Verb(snapshot, (1.0, 1.0)),
    "backup": Verb(backup, (1.5, 1.5)),
    "full": Verb(full, (1.5, 1.5)),
    "store latest": Verb(store_latest, (1.5, 1.5), _has("local")),
    "archive": Verb(archive, (0.7, 0.7)),
    "purge": Verb(_removing("binlog", "purge", "main"), (0.7, 0.7)),
    "prune": Verb(_removing("prune", "main"), (0.7, 0.7)),
    "reap": Verb(_removing("reap"), (1.0, 1.0)),
    "clone": Verb(clone, (8.0, 4.0), _has("here")),
    "prepare": Verb(prepare, (8.0, 5.0), _has("here")),
    "pool": Verb(pool, (8.0, 5.0), lambda state, seen: state.rules.pool and bool(state.here(seen))),
    "reset": Verb(reset, (5.0, 3.0), _has("clone")),
    "destroy": Verb(destroy, (1.5, 1.0), _has("clone")),
    "drill": Verb(drill, (16.0, 9.0), _has("stored")),
    "query": Verb(query, (7.0, 4.5), _has("stored")),
    "rewind": Verb(rewind, (18.0, 18.0), _has("target")),
    "rollback": Verb(rollback, (5.0, 4.0), lambda state, seen: _has("target")(state, seen) and _is_bare(state, seen)),
    "rename datasets": Verb(rename_datasets, (0.3, 0.3), _is_bare),
    "rename snapshots": Verb(rename_snapshots, (0.3, 0.3), _has("here")),
    "import": Verb(import_pool, (5.0, 4.0), lambda s, seen: _is_bare(s, seen) and s.site.pool != "second"),
    "replace host": Verb(replace_host, (16.0, 12.0), lambda s, seen: _is_bare(s, seen) and _stored_of_now(s, seen)),
    "daily": Verb(daily, (0.3, 0.3), lambda state, _seen: not state.truth.clones),
    "clone daily": Verb(clone_daily, (10.0, 6.0), lambda state, _seen: state.daily is not None),
    "vanish": Verb(vanish, (1.2, 1.2), _has("stored")),
    "time off": Verb(time_off, (0.0, 0.0)),
}
THEMES: dict[str, tuple[str, ...]] = {
    "sets": (
        "snapshot",
        "snapshot",
        "backup",
        "store latest",
        "prune",
        "rename snapshots",
        "rename datasets",
        "vanish",
    ),
    "retention": ("backup", "backup", "full", "snapshot", "snapshot", "prune", "prune", "archive", "purge", "time off"),
    "clones": ("snapshot", "backup", "clone", "clone", "reset", "destroy", "reap", "reap", "prepare", "time off"),
    "pool": ("snapshot", "backup", "pool", "clone", "pool", "reap", "time off"),
    "drills": ("backup", "drill", "drill", "prune", "archive"),
    "questions": ("snapshot", "backup", "query", "query", "archive", "store latest"),
    "rewinds": ("snapshot", "backup", "pool", "rewind", "rewind", "clone", "query", "reap", "prune", "store latest"),
    "moves": ("snapshot", "backup", "rollback", "import", "rename datasets", "store latest", "prune", "archive"),
    "hosts": ("snapshot", "backup", "archive", "replace host", "backup", "prune", "snapshot", "store latest"),
    "others": ("daily", "daily", "clone daily", "snapshot", "clone", "rename snapshots", "reap"),
}
