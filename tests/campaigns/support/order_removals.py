"""Checks of removals in the campaign `order`: nothing that the rules keep under a right clock is removed."""

from __future__ import annotations

import random
import re
import time

from tests.campaigns.support.order_questions import State
from tests.campaigns.support.order_site import LEASE, Seen
from tests.campaigns.support.order_truth import kept, kept_backups, may_go
from tests.campaigns.support.order_verbs import backup, note_set
from zsnapdb.planning.clock_guard import RECORDED_EVERY

SLACK = 3.0
"""Seconds between the campaign's reading of the clock and a command's own."""
AT_LAST = 3 * 86400.0
"""Seconds after the last command, after which everything that no rule keeps must be removed."""
_CONFIRMATION = re.compile(r"`(zsnapdb [^`\n]*clock[^`\n]*)`")
"""The command that a message about a doubtful clock reports."""
_TOLD = {"daily", "rollback", "replace host", "import"}
"""Verbs of an administrator, which remove on purpose."""


def judge(state: State, verb: str, before: Seen, after: Seen, epoch: int) -> None:
    """Record a problem for each removal of a verb that was too early. `epoch` is the history at its start."""
    _note(state, after)
    if verb not in _TOLD:
        _snapshots(state, verb, before, after)
        _datasets(state, verb, before, after)
        _binlogs(state, verb, before, after, epoch)
    _repository(state, verb, before, after)


def _note(state: State, after: Seen) -> None:
    for name in after.archived:
        state.archived.setdefault(name, state.truth.epoch)


def _snapshots(state: State, verb: str, before: Seen, after: Seen) -> None:
    # The verb's own set counts as well: it is the newest.
    made = [one for one in state.here(after) if not set(one.guids.values()) <= before.snapshots.keys()]
    here = [*state.here(before), *made]
    stored = {one.number for one in state.stored(after)}
    wrong = set()
    for guid in before.snapshots.keys() - after.snapshots.keys():
        name = before.snapshots[guid][0]
        dataset, _, label = name.partition("@")
        one = state.truth.of_guid(guid)
        if dataset not in (state.site.parent, state.site.data):
            # It was removed with its dataset, which is checked itself, or the dataset still exists.
            if "-replaced-" in dataset and dataset in after.datasets.values():
                state.problems.append(f"{verb}: {name} of a replaced server is gone")
        elif one is None or one not in here:
            if not label.startswith("zsnapdb-"):
                state.problems.append(f"{verb}: {name}, which another one made, is gone")
        elif not may_go(one, here, stored, state.rules.local, state.rules.most, state.site.clock.now):
            wrong.add(one.number)
    if wrong:
        kind = {one.number: "stored" if one.is_stored else "local" for one in here}
        what = ", ".join(f"set {number} ({kind[number]})" for number in sorted(wrong))
        has = ", ".join(f"{one.number} {'stored' if one.is_stored else 'local'}" for one in here)
        state.problems.append(f"{verb}: gone too early from the host: {what}; it had {has}; rules {state.rules}")


def _datasets(state: State, verb: str, before: Seen, after: Seen) -> None:
    now = state.site.clock.now
    for guid in before.datasets.keys() - after.datasets.keys():
        name = before.datasets[guid]
        clone = next((one for one in state.truth.clones.values() if guid in one.datasets), None)
        if clone is not None and not clone.is_slot and now < clone.until - SLACK:
            left = clone.until - now
            state.problems.append(f"{verb}: clone {clone.name} is gone with {left:.0f} s of its lease left")
        if guid in state.replaced and now < state.replaced[guid] + LEASE - SLACK:
            age = now - state.replaced[guid]
            state.problems.append(f"{verb}: the replaced {name} is gone after {age:.0f} s of {LEASE:.0f}")
        if guid in state.prepared:
            used, epoch = state.prepared[guid]
            if epoch == state.truth.epoch and now < used + LEASE - SLACK:
                state.problems.append(f"{verb}: the prepared {name} is gone after {now - used:.0f} s of {LEASE:.0f}")
        if name in (state.site.parent, state.site.data):
            state.problems.append(f"{verb}: {name} is gone")


def _repository(state: State, verb: str, before: Seen, after: Seen) -> None:
    had = {one.number: one for one in state.stored(before)}
    has = {one.number for one in state.stored(after)}
    stay = kept_backups(state.truth, set(had) | has, state.rules.keep, state.site.clock.now)
    gone = sorted(stay - has)
    if gone:
        names = ", ".join(f"set {number}" for number in gone)
        what = f"{names} of {sorted(had)}; {state.rules.keep}"
        state.problems.append(f"{verb}: gone too early from the repository: {what}")
    for name in before.archived - after.archived:
        file, epoch = name.rpartition("/")[2].removesuffix(".json"), state.archived.get(name)
        needed = [one for one in had.values() if one.number in stay and one.epoch == epoch and one.binlog <= file]
        if needed:
            state.problems.append(f"{verb}: the archived {name} is gone, which follows set {needed[0].number}")


def _binlogs(state: State, verb: str, before: Seen, after: Seen, epoch: int) -> None:
    if verb != "purge":
        return
    for name in set(before.binlogs) - set(after.binlogs):
        written = state.marked.get((epoch, name))
        age = state.site.clock.now - written if written is not None else None
        if age is not None and age < LEASE - SLACK:
            state.problems.append(f"{verb}: the server's {name} is gone {age:.0f} s after it was written")


def settle(state: State) -> None:
    """With the right clock, nothing that must stay is removed. Days later, after confirmation, expired objects are."""
    was_doubtful = state.is_doubtful
    _keep_house(state, "reap", "snapshot main", "prune main")
    state.site.clock.pass_time(AT_LAST)
    state.site.boot()
    state.is_doubtful = True
    state.said.append(f"{AT_LAST / 86400:.0f} days later")
    for number in range(3):
        # A command reports a doubtful clock if it keeps an object because of it, which can be the second snapshot.
        hints = sorted(set(_CONFIRMATION.findall(_keep_house(state, "reap", "snapshot main", "prune main"))))
        for words in hints:
            state.said.append(words)
            done = state.site.zsnapdb(*words.split()[1:])
            if done.code != 0:
                state.problems.append(f"a hint does not work: {done}")
            state.is_doubtful = False
        if number and not hints:
            break
    if state.has_jumped or was_doubtful:
        # The age of an object that was created under a doubtful clock starts when the clock is confirmed.
        _confirm(state)
        if any(_expired(state).values()):
            # Times recorded after the last record of the clocks count as too early after a reboot. Write the record.
            time.sleep(RECORDED_EVERY + 1)
            _keep_house(state, "reap")
            _confirm(state)
    _leftovers(state, is_timed=not state.has_jumped and not was_doubtful)


def _confirm(state: State) -> None:
    """Let two leases pass while the host is off, and confirm its clock."""
    state.site.clock.pass_time(2 * LEASE)
    state.site.boot()
    _keep_house(state, "reap --trust-clock", "snapshot main", "prune main")


def _keep_house(state: State, *commands: str) -> str:
    """Run the removing commands, and check the removals. Return their output."""
    site, said = state.site, ""
    for words in (command.split() for command in commands):
        before, marks = site.look(), site.marks()
        done = site.zsnapdb(*words)
        said += f"{done.out}\n{done.err}\n"
        if done.code != 0 and not state.is_clock_refusal(done):
            state.problems.append(f"with the clock right again, {done}")
        if words[0] == "snapshot" and done.code == 0:
            note_set(state, before, done.document["backup_id"], marks)
        judge(state, words[0], before, site.look(), state.truth.epoch)
    return said


def _expired(state: State) -> dict[str, list[str]]:
    """Return what exists although its lease is over, by kind."""
    seen = state.site.look()
    return {
        "clones": [
            one.name
            for one in state.truth.clones.values()
            if not one.is_slot and set(one.datasets) & set(seen.datasets)
        ],
        "replaced datasets": [seen.datasets[guid] for guid in state.replaced if guid in seen.datasets],
        "prepared sets": [seen.datasets[guid] for guid in state.prepared if guid in seen.datasets],
    }


def _leftovers(state: State, *, is_timed: bool) -> None:
    """Record the objects that still exist although no rule keeps them.

    If the clock was wrong or in doubt (`is_timed` is not set), rules by time may keep objects of that period, because
    their age is unknown.
    """
    site, seen = state.site, state.site.look()
    for kind, names in _expired(state).items():
        if names:
            state.problems.append(f"stays {AT_LAST / LEASE:.0f} times as long as it should: {kind} {', '.join(names)}")
    used = [
        name for name in seen.datasets.values() if any(part in name for part in ("/clones/", "/prepared/", "-repl"))
    ]
    if used:
        return
    here, stored = state.here(seen), state.stored(seen)
    local = [one for one in here if not one.is_stored]
    if is_timed or state.rules.local.is_by_number:
        late = {one.number for one in local} - kept(local, state.rules.local, site.clock.now)
        if late:
            state.problems.append(f"stays on the host: sets {sorted(late)}; {state.rules.local}")
    is_one_server = all(one.epoch == state.truth.epoch for one in stored)
    if is_one_server and (is_timed or state.rules.keep.is_by_number):
        # Backups of an unknown time count as created with the next backup of a known time. So make one.
        state.said.append(f"backup ({backup(state, seen, random.Random(0))})")
        _keep_house(state, "prune main")
        numbers = {one.number for one in state.stored(site.look())}
        late = numbers - kept_backups(state.truth, numbers, state.rules.keep, site.clock.now)
        if late:
            state.problems.append(f"stays in the repository: {sorted(late)} of {sorted(numbers)}; {state.rules.keep}")
