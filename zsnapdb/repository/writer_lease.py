"""Leases, which ensure that a name has at most one owner at a time across all hosts.

Conditional writes to the store decide who is the owner. Clocks of different hosts are not compared.

Invariants:
- A lease is taken only by a conditional write, which succeeds if no lease exists, or replaces exactly the version that
  was read.
- Before an owner uses its lease, it attempts a write that the store must refuse. This proves that the store checks the
  conditions of writes.
- A lease of another owner may be taken if the owner gave it back, or if the owner's process is known to have ended.
- A lease may also be taken if it did not change for its full duration while this process watched it. The process uses
  its monotonic clock, so changes to the wall clock of either host have no effect.
- An owner renews its lease by replacing its own version. Once another owner has replaced that version, the lease is
  lost for good.
- `confirm` renews the lease immediately, so that the process still owns it when the next action starts.
- A lease has an unknown owner if no trusted key signed it, or if it is for another repository or name. Such a lease
  does not prove that its owner gave it back or has ended, so it may be taken only after its full duration.
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

from zsnapdb.base.errors import (
    BusyError,
    ChangedError,
    DamagedError,
    ExistsError,
    LeaseError,
    NotFound,
    PreflightError,
    RepositoryError,
)
from zsnapdb.base.untrusted_text import fields_of
from zsnapdb.repository import layout, marker
from zsnapdb.repository.layout import LeaseKey
from zsnapdb.repository.repository import Repository
from zsnapdb.store.base import Version

SECONDS = 30.0
"""Seconds for which a lease stays valid without a renewal by its owner."""

_BEATS = 3
"""The number of renewals within SECONDS."""

_LONGEST = 1024
"""Maximum number of characters of a text in a lease."""

HELD, FREE = "held", "free"

_UNKNOWN = "unreadable "


_REFUSALS, _PAUSE = 10, 0.5
"""Maximum number of write attempts that the store may refuse while no lease can be read, and the seconds between
attempts.
"""


@dataclass(frozen=True)
class Holder:
    """The content of a lease: its owner, start and purpose, and the seconds for which it is valid without renewal.

    `beat` counts the renewals. `expires` is only shown to people. `repository_id` and `name` identify the lease.
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
    repository_id: str = ""
    name: str = ""
    format: int = 1

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def parse(cls, version: Version) -> Holder:
        """Return the holder in the object.

        If the object is unreadable, the owner is unknown, and the duration is the default, which is also the maximum.
        """
        try:
            document = fields_of(version.body)
            holder = cls(**{name: document[name] for name in cls.__dataclass_fields__})  # type: ignore[arg-type]
            _check(holder)
            return replace(holder, seconds=min(holder.seconds, SECONDS))
        except (ValueError, KeyError, TypeError):
            return cls._unknown(version.tag)

    @classmethod
    def _unknown(cls, tag: str) -> Holder:
        return cls(f"{_UNKNOWN}{tag}", "an unknown host", 0, "", "something unknown", "an unknown time", 0, "", SECONDS)

    @classmethod
    def believed(cls, repository: Repository, key: LeaseKey, version: Version) -> Holder:
        """Return the holder, as `parse` does.

        The owner is also unknown if no trusted key signed the lease, or if the lease is for another repository or name.
        """
        try:
            line = repository.keyring.verified(version.body, key)
        except DamagedError:
            return cls._unknown(version.tag)
        holder = cls.parse(replace(version, body=line))
        is_of_place = (holder.repository_id, holder.name) == (repository.id, key.removesuffix(".lock"))
        return holder if is_of_place else cls._unknown(version.tag)

    def describe(self) -> str:
        """Return a short description of the owner, in printable characters."""
        if self.owner.startswith(_UNKNOWN):
            return "an unknown process (the lease cannot be read, is of another repository, or no known key signed it)"
        return f"process {self.pid} on {self.host}, {self.doing} since {self.since}"


def _check(holder: Holder) -> None:
    """Raise ValueError if the content is invalid for a lease.

    Any account with write access to the bucket may have created it.
    """
    texts = (holder.owner, holder.host, holder.process, holder.doing, holder.since, holder.expires, holder.state)
    numbers = (holder.pid, holder.beat, holder.seconds)
    if not all(isinstance(text, str) and text.isprintable() and len(text) <= _LONGEST for text in texts):
        raise ValueError("a text in the lease is not a short line")
    if not all(isinstance(number, int | float) and 0 <= number < 1 << 63 for number in numbers):
        raise ValueError("a number of the lease is out of range")


def _kernel() -> str:
    """Return the identity of this kernel boot and process namespace. Process ids are valid only within both.

    The result is "" if it is unknown.
    """
    with contextlib.suppress(OSError):
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    return ""


def _started(pid: int) -> str:
    """Return the start time of the process in ticks since boot (proc(5), stat, field 22).

    The result is "" if the process does not exist.
    """
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


def has_ended(holder: Holder) -> bool:
    """Whether the holder was a process of this host's current boot, and has ended.

    The result is always False for a process under another kernel.
    """
    kernel = _kernel()
    return (
        bool(kernel)
        and holder.process.startswith(f"{kernel} ")
        and holder.process != f"{kernel} {_started(holder.pid)}"
    )


class WriterLease:
    """A lease of this process. A thread renews the lease until it is given back or lost."""

    def __init__(self, repository: Repository, key: LeaseKey, me: Holder, tag: str) -> None:
        self._repository, self._key, self._me, self._tag = repository, key, me, tag
        self._lost: Holder | None = None
        self._writing = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)
        self._thread.start()

    def _keep(self) -> None:
        while not self._end.wait(self._me.seconds / _BEATS):
            # If the store is unreachable, it is unknown whether the lease is lost. If another process takes the lease,
            # a later read shows this.
            with contextlib.suppress(RepositoryError):
                self.confirm()

    def check(self) -> None:
        """Raise LeaseError if the lease is known to be lost."""
        if self._lost is not None:
            raise LeaseError(
                f"the lease {self._key} was lost to {self._lost.describe()}",
                hint=(
                    "this process was stopped or cut off for longer than the lease is valid; no backup was completed;"
                    " run the command again"
                ),
            )

    def confirm(self) -> None:
        """Renew the lease now.

        Raises LeaseError if the lease is lost, and RepositoryError if the store cannot be reached.
        """
        with self._writing:
            self.check()
            self._write(replace(self._me, beat=self._me.beat + 1, expires=_after(self._me.seconds)))

    def _write(self, me: Holder) -> None:
        # A replacement is also refused if it repeats this process's own request, whose answer was lost. The next read
        # shows this.
        body = _body(self._repository, me)
        with contextlib.suppress(ChangedError):
            self._repository.replace(self._key, body, tag=self._tag)
        try:
            version = self._repository.read_version(self._key)
        except NotFound:
            self._lost = replace(me, owner="", host="nobody", doing="removed by hand")
            self.check()
            raise
        current = Holder.believed(self._repository, self._key, version)
        if version.body != body and current.owner != me.owner:
            self._lost = current
            self.check()
        self._me, self._tag = me, version.tag

    def give_back(self) -> None:
        """Give the lease back. If the store cannot be reached now, the lease expires by itself."""
        self._end.set()
        self._thread.join()
        with self._writing, contextlib.suppress(RepositoryError):
            if self._lost is None:
                self._write(replace(self._me, beat=self._me.beat + 1, state=FREE))


def _body(repository: Repository, me: Holder) -> bytes:
    return repository.keyring.signed_if_able(me.encode())


def _after(seconds: float) -> str:
    return _text(datetime.now(UTC) + timedelta(seconds=seconds))


def _text(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


@dataclass(frozen=True)
class _LeaseTags:
    """The tag of a lease that this process took, and the tag of the version that it replaced ("" if none existed)."""

    tag: str
    replaced: str


def _take(
    repository: Repository,
    key: LeaseKey,
    me: Holder,
    tell: Callable[[str], None],
    steady: Callable[[], float],
    sleep: Callable[[float], None],
    has_ended: Callable[[Holder], bool],
    patience: float,
) -> _LeaseTags:
    """Take the lease. Raises BusyError if its owner is still alive after `patience` seconds."""
    watched, since, body, replaced = "", 0.0, _body(repository, me), ""
    give_up, refused = steady() + patience, 0
    while True:
        try:
            version = repository.read_version(key)
        except NotFound:
            try:
                repository.put(key, body)
            except ExistsError:
                refused += 1
                if refused == _REFUSALS:
                    raise RepositoryError(
                        f"the store reports the lease {key} as existing when it is written, but as missing when it is"
                        f" read",
                        hint=f"remove every version of {key} in the bucket while no zsnapdb runs, then run the"
                        f" command again",
                    ) from None
                sleep(_PAUSE)
            continue
        holder = Holder.believed(repository, key, version)
        if version.body == body or holder.owner == me.owner:
            return _LeaseTags(version.tag, replaced)
        if holder.state != FREE:
            if version.tag != watched and watched:
                if steady() >= give_up:
                    raise BusyError(
                        f"another zsnapdb holds the lease {key}: {holder.describe()}",
                        hint="wait until it ends (--wait DURATION does); only one process may write at a time",
                    )
                watched, since = version.tag, steady()
            if not watched and not has_ended(holder):
                watched, since = version.tag, steady()
                tell(f"waiting up to {holder.seconds:g} s for a sign of life of {holder.describe()}")
            if watched and steady() - since < holder.seconds:
                sleep(min(1.0, holder.seconds / 10))
                continue
            tell(f"taking over from {holder.describe()}: {'it gave no sign of life' if watched else 'it has ended'}")
        # After a refusal, either another process took the lease first, or the answer to this process's own write was
        # lost. The next read shows which of the two happened.
        replaced = version.tag
        with contextlib.suppress(ChangedError):
            repository.replace(key, body, tag=version.tag)


def _prove_exclusive(repository: Repository, key: LeaseKey, me: Holder, taken: _LeaseTags) -> None:
    """Raise RepositoryError if the store would admit a second writer because it ignores the conditions of writes.

    In such a store, the lease is left in the state "given back".
    """
    body = _body(repository, replace(me, beat=me.beat + 1, state=FREE))
    try:
        if not taken.replaced:
            marker.prove_absence(repository, key, body)
        marker.prove_version(repository, key, body, taken.replaced or marker.impossible_version(taken.tag))
    except PreflightError as error:
        raise RepositoryError(
            f"the lease {key} does not exclude other writers, so nothing was written: {error.message}", hint=error.hint
        ) from error


def prove_exclusive(repository: Repository, name: str) -> None:
    """Raise PreflightError if the store would let two owners take the lease.

    Raises NotFound if the lease was never taken.
    """
    key = layout.lease(name)
    version = repository.read_version(key)
    marker.prove_version(repository, key, version.body + b"\n", marker.impossible_version(version.tag))


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
    has_ended: Callable[[Holder], bool] = has_ended,
    patience: float = 0.0,
) -> Iterator[WriterLease]:
    """Hold the lease `name` (such as main/writer) in the repository during the block.

    `tell` is called with a message about each wait, and whenever another owner's lease is taken. `has_ended` returns
    whether an owner's process is known to have ended.

    Raises:
        BusyError: another owner is alive. It takes at most `seconds` to detect this, and up to `patience` seconds to
        wait for the owner's end. RepositoryError: the store would admit a second owner.
    """
    key = layout.lease(name)
    since = _text(datetime.now(UTC))
    me = Holder(
        secrets.token_hex(8),
        socket.gethostname(),
        os.getpid(),
        f"{_kernel()} {_started(os.getpid())}",
        doing,
        since,
        1,
        _after(seconds),
        seconds,
        repository_id=repository.id,
        name=name,
    )
    taken = _take(repository, key, me, tell, steady, sleep, has_ended, patience)
    writer_lease = WriterLease(repository, key, me, taken.tag)
    try:
        _prove_exclusive(repository, key, me, taken)
        yield writer_lease
    except BaseException:
        # A run that failed does not wait for an unreachable store.
        repository.give_up()
        raise
    finally:
        writer_lease.give_back()


def holder(repository: Repository, name: str) -> Holder | None:
    """Return the holder in the lease; None if the lease is free. The process of the holder may already have ended."""
    key = layout.lease(name)
    try:
        current = Holder.believed(repository, key, repository.read_version(key))
    except NotFound:
        return None
    return current if current.state != FREE else None
