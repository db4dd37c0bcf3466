"""Leases: at most one owner of a name at a time, on all hosts.

The store decides, by conditional writes; no clock is compared with another.

Invariants:
- A lease is taken only by a conditional write: on absence, or in place of exactly the version that was read.
- It is taken from somebody else only if it was given back, if its process is known to be gone, or if it did not
  change for its whole
  duration while the taker watched, by the taker's steady clock. A wall clock that steps, on either host, changes
  nothing.
- An owner renews it by replacing its own version. Once another version stands there it is lost, and stays lost.
- `confirm` renews it at once: what follows it was begun as the owner.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from zsnapdb.errors import ChangedError, ExistsError, LeaseError, NotThere, RepositoryError
from zsnapdb.repository import layout
from zsnapdb.repository.layout import LeaseKey
from zsnapdb.repository.repository import Repository
from zsnapdb.store.base import Version

SECONDS = 30.0
"""How long a lease stands without a sign of its owner."""

_BEATS = 3
"""Signs of life within that time."""

HELD, FREE = "held", "free"


@dataclass(frozen=True)
class Holder:
    """What a lease says: who has it, since when, for what, and how long it stands without a new beat.

    `expires` is for people.
    """

    owner: str
    host: str
    pid: int
    process: str
    doing: str
    since: str
    beat: int
    expires: str
    seconds: float
    state: str = HELD
    format: int = 1

    def encode(self) -> bytes:
        """Return the stored form."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def parse(cls, version: Version) -> Holder:
        """Return what the object says.

        One that cannot be read is held by nobody knows whom, and stands for the usual time.
        """
        try:
            found = json.loads(version.body)
            return cls(**{name: found[name] for name in cls.__dataclass_fields__})
        except (ValueError, KeyError, TypeError):
            return cls(
                f"unreadable {version.tag}",
                "an unknown host",
                0,
                "",
                "something unknown",
                "an unknown time",
                0,
                "",
                SECONDS,
            )

    def describe(self) -> str:
        """Return who has it, in a few words."""
        return f"process {self.pid} on {self.host}, {self.doing} since {self.since}"


def _kernel() -> str:
    """Return what names this boot of this kernel and this process namespace: process ids mean the same only within both."""
    with contextlib.suppress(OSError):
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    return ""


def _started(pid: int) -> str:
    """Return when the process started, in ticks since boot (proc(5), stat, field 22), or "" if there is no such process."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


def _own_process() -> str:
    return f"{_kernel()} {_started(os.getpid())}"


def _is_gone(holder: Holder) -> bool:
    """Whether the holder was a process of this very kernel and has ended. Of any other nothing is known."""
    kernel = _kernel()
    return (
        bool(kernel)
        and holder.process.startswith(f"{kernel} ")
        and holder.process != f"{kernel} {_started(holder.pid)}"
    )


class WriterLease:
    """A lease in our hands, renewed in the background until it is given back or lost."""

    def __init__(self, repository: Repository, key: LeaseKey, me: Holder, tag: str) -> None:
        self._repository, self._key, self._me, self._tag = repository, key, me, tag
        self._lost: Holder | None = None
        self._writing = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)
        self._thread.start()

    def _keep(self) -> None:
        while not self._end.wait(self._me.seconds / _BEATS):
            # A store that cannot be asked decides nothing: whoever takes the lease meanwhile will be seen.
            with contextlib.suppress(RepositoryError):
                self.confirm()

    def check(self) -> None:
        """Raise LeaseError if the lease is known to be lost."""
        if self._lost is not None:
            raise LeaseError(
                f"the lease {self._key} was lost to {self._lost.describe()}",
                hint=(
                    "this process was stopped or cut off for longer than the lease stands; nothing was called good, run"
                    " it again"
                ),
            )

    def confirm(self) -> None:
        """Renew the lease now. LeaseError if it is lost, RepositoryError if the store cannot be asked."""
        with self._writing:
            self.check()
            self._write(replace(self._me, beat=self._me.beat + 1, expires=_after(self._me.seconds)))

    def _write(self, me: Holder) -> None:
        # A replacement that is refused may be one of ours whose answer was lost: what stands there tells.
        with contextlib.suppress(ChangedError):
            self._repository.replace(self._key, me.encode(), tag=self._tag)
        try:
            version = self._repository.read_version(self._key)
        except NotThere:
            self._lost = replace(me, owner="", host="nobody", doing="removed by hand")
            self.check()
            raise
        found = Holder.parse(version)
        if found.owner != me.owner:
            self._lost = found
            self.check()
        self._me, self._tag = me, version.tag

    def give_back(self) -> None:
        """End it. A store that cannot be asked now lets it run out."""
        self._end.set()
        self._thread.join()
        with self._writing, contextlib.suppress(RepositoryError):
            if self._lost is None:
                self._write(replace(self._me, beat=self._me.beat + 1, state=FREE))


def _after(seconds: float) -> str:
    return _text(datetime.now(UTC) + timedelta(seconds=seconds))


def _text(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def _take(
    repository: Repository,
    key: LeaseKey,
    me: Holder,
    tell: Callable[[str], None],
    steady: Callable[[], float],
    sleep: Callable[[float], None],
) -> str:
    """Make the lease ours and return its tag. LeaseError if its owner is alive."""
    watched, since = "", 0.0
    while True:
        try:
            version = repository.read_version(key)
        except NotThere:
            with contextlib.suppress(ExistsError):
                repository.put(key, me.encode())
            continue
        holder = Holder.parse(version)
        if holder.owner == me.owner:
            return version.tag
        if holder.state != FREE:
            if version.tag != watched and watched:
                raise LeaseError(
                    f"another zsnapdb has the lease {key}: {holder.describe()}",
                    hint="let it end; of two writers only one may write at a time",
                )
            if not watched and not _is_gone(holder):
                watched, since = version.tag, steady()
                tell(f"waiting up to {holder.seconds:g} s for a sign of life of {holder.describe()}")
            if watched and steady() - since < holder.seconds:
                sleep(min(1.0, holder.seconds / 10))
                continue
            tell(f"taking over from {holder.describe()}: {'it gave no sign of life' if watched else 'it has ended'}")
        # Refused: somebody else was quicker, or the answer to our own write was lost. Reading again tells.
        with contextlib.suppress(ChangedError):
            repository.replace(key, me.encode(), tag=version.tag)


@contextlib.contextmanager
def lease(
    repository: Repository,
    name: str,
    *,
    doing: str,
    tell: Callable[[str], None],
    seconds: float = SECONDS,
    steady: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[WriterLease]:
    """Be the only owner of `name` (such as main/writer) in the repository while the block runs.

    LeaseError if another owner is alive, which takes at most `seconds` to see. `tell` hears of waiting and of a
    take-over.
    """
    key = layout.lease(name)
    since = _text(datetime.now(UTC))
    me = Holder(
        secrets.token_hex(8),
        socket.gethostname(),
        os.getpid(),
        _own_process(),
        doing,
        since,
        1,
        _after(seconds),
        seconds,
    )
    held = WriterLease(repository, key, me, _take(repository, key, me, tell, steady, sleep))
    try:
        yield held
    except BaseException:
        # What ends this run does not wait for a store that cannot be reached.
        repository.give_up()
        raise
    finally:
        held.give_back()


def holder(repository: Repository, name: str) -> Holder | None:
    """Return who has the lease, as it says; None if nobody has. Whether that one is alive only watching would tell."""
    try:
        found = Holder.parse(repository.read_version(layout.lease(name)))
    except NotThere:
        return None
    return found if found.state != FREE else None
