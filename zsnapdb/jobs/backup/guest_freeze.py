"""The freeze of a guest's file systems during a snapshot, and the thaw that always follows.

A freeze is ended by one of the following:
- the process that began the freeze, in a `finally` block,
- the guard process (`vm/thaw_guard.py`), if that process dies or misses the deadline,
- the next run, which finds the mark file, if both processes are killed.

The Linux guest agent itself has no time limit for a freeze.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from zsnapdb.base.errors import BusyError, CommandError, DamagedError
from zsnapdb.base.files import make_private
from zsnapdb.jobs.base.events import Events
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.run_locks import exclusive_with_child
from zsnapdb.planning.vm import guest_agent_messages
from zsnapdb.planning.vm.consistency_level import Freeze
from zsnapdb.vm.guest_agent import Agent, is_frozen, thaw
from zsnapdb.vm.thaw_guard import ThawGuard, guarding

GuardOpener = Callable[[str, str, float, int], AbstractContextManager[ThawGuard]]
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_THAW_SECONDS = 30.0
_LISTING_SECONDS = 5.0
_EARLIER_GUARD_SECONDS = 30.0
"""The time in seconds for which a run waits for the guard of a killed run.

After the guard has thawed the guest, it checks for 5 s whether a late freeze request took effect.
"""


def _mark(instance: Instance) -> Path:
    """Return the path of the mark file, which contains the UUID of the frozen domain. A reboot removes the file."""
    return instance.host.run / f"freeze-{instance.name}"


def marked(instance: Instance) -> str | None:
    """Return the UUID of the domain that a run froze and did not thaw; None if no run left a domain frozen."""
    try:
        text = _mark(instance).read_text()[:64].strip()
    except OSError:
        return None
    return text if _UUID.fullmatch(text) else None


def thaw_forgotten(instance: Instance, hypervisor: Agent, *, is_running: Callable[[str], bool]) -> str | None:
    """Thaw the guest if a killed run left it frozen. Return the text of a warning; None if the guest was not frozen.

    The caller holds the instance's lock for work on the source. If the machine is no longer running, it is not frozen.
    """
    uuid = marked(instance)
    if uuid is None:
        return None
    if is_running(uuid):
        try:
            was_frozen = is_frozen(hypervisor, uuid)
            thaw(hypervisor, uuid, _THAW_SECONDS)
        except (CommandError, DamagedError) as error:
            return f"a killed run may have left the guest's file systems frozen: {error.message}; run `virsh domfsthaw`"
    else:
        was_frozen = False
    _mark(instance).unlink(missing_ok=True)
    return "a killed run had left the guest's file systems frozen; zsnapdb thawed them" if was_frozen else None


class GuestFreeze:
    """The freeze of a guest for one snapshot.

    The text `problem` says why the freeze is not valid; "" if it is valid.
    """

    def __init__(self, instance: Instance, hypervisor: Agent, uuid: str, deadline: float) -> None:
        self._instance = instance
        self._hypervisor = hypervisor
        self._uuid = uuid
        self._deadline = deadline
        self._guard: ThawGuard | None = None
        self._began = self._ended = 0.0
        self._is_held = False
        self.count = 0
        self.problem = ""
        self.mount_points: tuple[str, ...] = ()

    def remaining(self) -> float:
        """Return the seconds left until the deadline."""
        return max(0.0, self._began + self._deadline - time.monotonic())

    def prepare(self, guard: ThawGuard) -> None:
        self._guard = guard

    def ask(self) -> None:
        """Ask the guest agent for the mounted file systems.

        Set `problem` if the agent does not answer or the guest is already frozen.
        """
        try:
            if is_frozen(self._hypervisor, self._uuid):
                self.problem = "somebody else holds the guest frozen"
                return
            listed = self._hypervisor.ask_agent(self._uuid, guest_agent_messages.FILE_SYSTEMS, _LISTING_SECONDS)
            self.mount_points = guest_agent_messages.mount_points(listed)
        except (CommandError, DamagedError) as error:
            self.problem = f"the guest agent does not answer: {error.message}"

    def begin(self) -> None:
        """Freeze the file systems, unless `problem` is already set.

        Afterwards `count` file systems are frozen, or `problem` says why they may not be frozen.
        """
        self._began = time.monotonic()
        if self.problem or self._guard is None:
            return
        make_private(self._instance.host.run)
        _mark(self._instance).write_text(self._uuid)
        self._is_held = True
        try:
            self._guard.freezing()
            self.count = guest_agent_messages.count(
                self._hypervisor.ask_agent(self._uuid, guest_agent_messages.FREEZE, self._deadline)
            )
        except (CommandError, DamagedError) as error:
            self.problem = f"the guest was not frozen: {error.message}"

    def too_late(self) -> None:
        """Record that the deadline ended the freeze before the snapshot was created."""
        self.problem = self.problem or f"the snapshot was not there within freeze_deadline = {self._deadline:g} s"

    def end(self) -> None:
        """Thaw the file systems that `begin` froze. A second call is harmless.

        Set `problem` if the agent thawed fewer file systems than it had frozen, because the others were thawed earlier.
        A hook in the guest may thaw them at a deadline, Windows thaws them after 10 seconds, and an administrator may
        thaw them at any time.

        Raises:
            CommandTimeout: the agent does not confirm the thaw.
        """
        if not self._is_held or self._guard is None:
            return
        self._is_held = False
        try:
            thawed = thaw(self._hypervisor, self._uuid, _THAW_SECONDS)
        finally:
            self._ended = time.monotonic()
        if thawed.count < self.count and not self.problem:
            text = (
                "the guest is not known to have been frozen until the snapshot was there: in the end its agent thawed"
            )
            trouble = f" ({thawed.trouble})" if thawed.trouble else ""
            self.problem = f"{text} {thawed.count} of {self.count} file systems{trouble}"
        self._guard.thawed()
        _mark(self._instance).unlink(missing_ok=True)

    def result(self) -> Freeze:
        ended = self._ended or time.monotonic()
        held = (ended - self._began) * 1000 if self.count else 0.0
        return Freeze(self.count, held, self.mount_points, self.problem)


@contextlib.contextmanager
def prepared(
    instance: Instance, hypervisor: Agent, uuid: str, deadline: float, open_guard: GuardOpener = guarding
) -> Iterator[GuestFreeze]:
    """Yield a freeze that the block can begin. Afterwards thaw the guest, even if the block failed.

    If the guest cannot be frozen, the reason is recorded in `problem`, and the block runs without a freeze. A guest
    that another program froze stays frozen.

    Raises:
        CommandTimeout: the agent does not confirm the thaw after the block; the guard and the next run try again.
    """
    freeze = GuestFreeze(instance, hypervisor, uuid, deadline)
    with contextlib.ExitStack() as until_thawed:
        try:
            # Take the lock first, because a killed run's guard may still be about to thaw the guest.
            turn = until_thawed.enter_context(_turn(instance, uuid))
            freeze.ask()
            if not freeze.problem:
                freeze.prepare(until_thawed.enter_context(open_guard(instance.vms.uri, uuid, deadline, turn)))
        except (BusyError, CommandError) as error:
            freeze.problem = f"the guest was not frozen: {error.message}"
        until_thawed.callback(freeze.end)
        yield freeze


def _turn(instance: Instance, uuid: str) -> AbstractContextManager[int]:
    """Take this host's lock for freezes of the domain. If the guard outlives this run, it keeps the lock."""
    return exclusive_with_child(
        f"thaw-guard-{uuid}",
        doing=f"freezing the domain {uuid}, or left a guard that thaws it",
        patience=_EARLIER_GUARD_SECONDS,
        folder=instance.host.run,
    )


def report(freeze: Freeze, events: Events) -> None:
    """Report the frozen file systems, or warn why the freeze is not valid."""
    if freeze.counts:
        listed = f" ({', '.join(freeze.mount_points)} are mounted)" if freeze.mount_points else ""
        events.tell(f"the guest agent held {freeze.count} file systems frozen for {freeze.held_ms:.0f} ms{listed}")
    else:
        events.warn(f"the snapshot is not frozen: {freeze.problem or 'the guest agent froze no file system'}")
