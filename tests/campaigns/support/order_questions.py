"""The queries of the campaign `order`: what a command calls latest, compared with the last one made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.campaigns.support.order_site import MAX_AGE, Done, Rules, Seen, Site
from tests.campaigns.support.order_truth import MadeSet, Truth

UNKNOWN = "nothing"


@dataclass
class State:
    """A round in progress: its site, its truth, and its problems so far."""

    site: Site
    truth: Truth
    rules: Rules
    problems: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    marked: dict[tuple[int, str], float] = field(default_factory=dict)
    """Times of the server's last mark in a binlog, by history and name."""
    archived: dict[str, int] = field(default_factory=dict)
    """The history in which an archived binlog was first seen."""
    replaced: dict[int, float] = field(default_factory=dict)
    """Times of replacements of datasets, by GUID."""
    prepared: dict[int, tuple[float, int]] = field(default_factory=dict)
    """Time of the last use of a prepared set and the history at that time, by the GUID of its dataset."""
    daily: MadeSet | None = None
    has_jumped: bool = False
    is_doubtful: bool = False
    """Whether the clock jumped, or the host was off, and no command has confirmed the clock since."""
    number: int = 0
    first_here: int = 0
    """The number of the first set of this host. Restored datasets have snapshots of the previous host's sets."""

    def is_clock_refusal(self, done: Done) -> bool:
        """Return whether a removing command was refused because the clock is in doubt."""
        code = done.document.get("error", {}).get("code")
        return self.is_doubtful and done.words[0] == "prune" and code == "clock-doubt"

    def altered_after(self, seen: Seen, one: MadeSet | None) -> list[MadeSet]:
        """Return the later sets of this host whose snapshots a person renamed, on one volume or on both."""
        number, here = one.number if one is not None else 0, self.here(seen)
        there = seen.on(self.site.parent, self.site.data).keys()
        later = [made for made in self.truth.sets if made.number > number and made.number >= self.first_here]
        return [made for made in later if made not in here and there & set(made.guids.values())]

    def is_right_refusal(self, done: Done, seen: Seen, one: MadeSet | None) -> bool:
        """Return whether a command refuses an older set, because snapshots of a later set were renamed."""
        error = done.document.get("error", {})
        is_refused = done.code == 4 and "a newer snapshot set of main is incomplete" in error.get("message", "")
        return is_refused and bool(self.altered_after(seen, one))

    def here(self, seen: Seen) -> list[MadeSet]:
        """Return the sets whose snapshots are on the volumes under their own names, in order of creation.

        ZFS must agree, because a transaction group does not depend on the clock.
        """
        on = seen.on(self.site.parent, self.site.data)
        sets = [
            one
            for one in self.truth.here(on)
            if one.number >= self.first_here
            and all(on[guid][0].endswith(f"@zsnapdb-{one.set_id}") for guid in one.guids.values())
        ]
        groups = [on[one.guids["parent"]][1] for one in sets]
        if groups != sorted(groups):
            raise RuntimeError(f"the campaign's order is not that of ZFS: {[(one.set_id) for one in sets]} {groups}")
        return sets

    def stored(self, seen: Seen) -> list[MadeSet]:
        """Return the backups of the repository, in order of creation."""
        return [one for one in self.truth.backups if one.set_id in seen.manifests]

    def newest(self, seen: Seen) -> MadeSet | None:
        """Return the last backup whose state no rewind or rollback took back; None if there is no such backup."""
        return next((one for one in reversed(self.stored(seen)) if one.number not in self.truth.taken_back), None)

    def ask(self, *words: str, codes: Sequence[int] = (0,)) -> Done:
        """Run a command that changes nothing. Any other exit code is a problem."""
        done = self.site.zsnapdb(*words)
        if done.code not in codes:
            self.problems.append(str(done))
        return done

    def differ(self, what: str, expected: object, got: object) -> None:
        """Record a problem if the two differ."""
        if expected != got:
            self.problems.append(f"{what}: {_shown(self.truth, got)}, made last: {_shown(self.truth, expected)}")


def _shown(truth: Truth, what: object) -> str:
    """Return ids with the numbers of their sets in the true order."""
    if isinstance(what, list):
        return f"[{', '.join(_shown(truth, one) for one in what)}]"
    one = truth.of_id(str(what))
    return f"{what} (set {one.number})" if one is not None else str(what)


def _id(one: MadeSet | None) -> str | None:
    return one.set_id if one is not None else None


def local_list(state: State, seen: Seen) -> None:
    """The host's sets are listed in the order of their creation in ZFS."""
    done = state.ask("list", "main", "--local")
    if done.code == 0:
        got = [one["backup_id"] for one in done.document["sets"]]
        state.differ("list --local", [one.set_id for one in state.here(seen)], got)


def stored_list(state: State, seen: Seen) -> None:
    """The backups are listed in the order of creation."""
    done = state.ask("list", "main")
    if done.code == 0:
        got = [one["backup_id"] for one in done.document["backups"]]
        state.differ("list", [one.set_id for one in state.stored(seen)], got)


def clone_source(state: State, seen: Seen) -> None:
    """A clone is created from the newest set of the host."""
    here, stored = state.here(seen), state.stored(seen)
    if not here and not stored:
        return
    newest = here[-1] if here else state.newest(seen)
    done = state.site.zsnapdb("clone", "create", "main", "--plan")
    if state.is_right_refusal(done, seen, newest):
        return
    if done.code != 0:
        state.problems.append(str(done))
        return
    if here and state.altered_after(seen, newest) and done.document.get("slot") is None:
        state.problems.append("clone create takes an older set, and does not name the later one that was renamed")
    slot: dict[str, Any] | None = done.document.get("slot")
    if slot is None:
        state.differ("clone create", _id(newest), done.document["backup_id"])
    else:
        judge_slot(state, slot["backup_id"])


def judge_slot(state: State, set_id: str) -> None:
    """Record a problem if a clone of the pool is from an abandoned history, or its data is too old by the true time."""
    one = state.truth.of_id(set_id)
    if one is None:
        state.problems.append(f"a clone of the pool is of {set_id}, which nobody made")
    elif one.epoch != state.truth.epoch and one.marks != state.site.marks()[: len(one.marks)]:
        state.problems.append(f"a clone of the pool is of {_shown(state.truth, set_id)}, of an abandoned history")
    elif state.site.clock.now - one.at > MAX_AGE + 5:
        state.problems.append(f"a clone of the pool is of {_shown(state.truth, set_id)}, which is older than max_age")


def base(state: State, seen: Seen) -> None:
    """The next increment is based on the newest backup with a snapshot or bookmark on the volumes."""
    bases = seen.bases_on(state.site.parent, state.site.data)
    usable = [one for one in state.stored(seen) if set(one.guids.values()) <= bases]
    done = state.ask("backup", "main", "--plan")
    if done.code == 0:
        state.differ("base of the next backup", _id(usable[-1] if usable else None), done.document["base"])


def status(state: State, seen: Seen) -> None:
    """`status` reports the newest backup and the newest drill with its result."""
    stored, drills = state.stored(seen), state.truth.drills
    done = state.ask("status", "main", codes=(0, 1, 2, 6))
    if not done.document.get("objectives") or not stored:
        return
    state.differ("status, backup", _id(state.newest(seen)), (done.document["backup"] or {}).get("backup_id"))
    if drills:
        state.differ("status, drill", drills[-1].drill_id, (done.document["drill"] or {}).get("drill_id"))
        (objective,) = [one for one in done.document["objectives"] if one["objective"] == "drill"]
        is_broken = objective["verdict"] == "broken"
        if is_broken == drills[-1].passed:
            how = "passed" if drills[-1].passed else "failed"
            state.problems.append(f"the newest drill {how}, and its objective is {objective['verdict']}")


def drill_list(state: State, _seen: Seen) -> None:
    """The drills are listed in the order of creation."""
    drills = [one.drill_id for one in state.truth.drills]
    if not drills:
        return
    done = state.ask("drills", "main")
    if done.code == 0:
        state.differ("drills", drills, [one["drill_id"] for one in done.document["drills"]])
    done = state.ask("drills", "main", "latest")
    if done.code == 0:
        state.differ("drills latest", drills[-1], done.document["drill"]["drill_id"])


def shown(state: State, seen: Seen) -> None:
    """`show latest` shows the newest backup."""
    if state.newest(seen) is not None:
        done = state.ask("show", "main", "latest")
        if done.code == 0:
            state.differ("show latest", _id(state.newest(seen)), done.document["backup"]["backup_id"])


def restore_plan(state: State, seen: Seen) -> None:
    """A restore to the latest backup restores the newest one."""
    if state.newest(seen) is None:
        return
    words = ("restore", "main", "--to", "latest-backup", "--target", f"{state.site.pool}/planned", "--plan")
    done = state.ask(*words)
    if done.code == 0:
        state.differ("restore --to latest-backup", _id(state.newest(seen)), done.document["backup_id"])


def restore_latest_plan(state: State, seen: Seen) -> None:
    """A restore to the latest state starts at the newest backup, if the server still has its history."""
    stored = state.stored(seen)
    if not stored or stored[-1].epoch != state.truth.epoch:
        return
    words = ("restore", "main", "--to", "latest", "--target", f"{state.site.pool}/planned", "--plan")
    done = state.ask(*words)
    if done.code == 0:
        state.differ("restore --to latest", _id(stored[-1]), done.document["backup_id"])


QUESTIONS: tuple[Callable[[State, Seen], None], ...] = (
    local_list,
    stored_list,
    clone_source,
    base,
    status,
    drill_list,
    shown,
    restore_plan,
    restore_latest_plan,
)
