"""Starts the server of a clone with its own identity, and checks that the server is separate from its source."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import SecretStr

from zsnapdb.base import safe_open
from zsnapdb.base.domain_types import Position
from zsnapdb.base.errors import ConsistencyError, ServerError
from zsnapdb.jobs.base.events import undone_on_error
from zsnapdb.jobs.base.host import fresh_password
from zsnapdb.jobs.clone import credentials, locks
from zsnapdb.jobs.clone.clone_info import CloneInfo, CloneRecord
from zsnapdb.jobs.dataset_copies.properties import CopyPhase
from zsnapdb.jobs.host.server_copy import Copy, check_inside, check_recovered, give_files
from zsnapdb.mysql import accounts
from zsnapdb.mysql.binlog.tail import KnownTail
from zsnapdb.mysql.probe import probe
from zsnapdb.mysql.process.discovery import is_server_program
from zsnapdb.mysql.replication import channels
from zsnapdb.mysql.session import Session
from zsnapdb.planning.clone.isolation import ACCOUNT, INTERNAL_ACCOUNT, CloneIdentity, find_isolation_breaks
from zsnapdb.planning.server_copy.copy_options import LoginAccess, ServerIdentity
from zsnapdb.planning.server_facts import ServerFacts
from zsnapdb.zfs import mounts
from zsnapdb.zfs.mounts import ForeignMount, users_of


@dataclass(frozen=True)
class CloneServer:
    """The server of a clone: its files, the record on the anchor, and whether other accounts are locked."""

    copy: Copy
    record: CloneRecord
    locks_accounts: bool

    def identity(self, init_file: str | None = None) -> ServerIdentity:
        return self.copy.identity(
            server_id=self.record.server_id,
            port=self.record.port,
            access=LoginAccess.ACCOUNTS,
            init_file=init_file,
            bind_address=self.record.bind_address,
            trusts_creators=True,
        )

    def start(self, identity: ServerIdentity, password: SecretStr) -> Session:
        """Start the server in its sandbox. Only a replica in a set may connect to other servers."""
        return self.copy.start(identity, INTERNAL_ACCOUNT, password, connects=self.record.follows is not None)


def make_separate(clone: CloneServer, known: KnownTail | None) -> Position:
    """Remove the source's identity from the files before a server starts on them. Return the recorded position.

    `known` is the last verified end of the source's newest binlog, if there is one. Afterwards the files belong to the
    account of the clone's server. If another clone's server ran on these files before they were committed, the private
    folder of that server is removed too.
    """
    copy = clone.copy
    safe_open.remove_tree(copy.folder)
    give_files(copy)
    copy.make_private()
    copy.remove_identity()
    return copy.recorded_position(known, has_gtids=clone.record.origin.has_gtids)


def first_start(
    clone: CloneServer, position: Position, password: SecretStr, before_users: Callable[[Session], None] | None = None
) -> Position:
    """Start the server, and check its position and its separation from the source. If an error occurs, stop the server.

    The data of the server must have exactly the given position. Return this position with the complete GTIDs.
    `position` may lack GTIDs that are in no binlog of the copy, for example because masking removed the binlogs.
    `before_users` is called while no user can log in. After the checks, the users' account is created with the given
    password and the clone's rights.
    """
    internal = fresh_password()
    with (
        locks.wait_for_turn(),
        undone_on_error(clone.copy.process().kill),
        _started_with_account(clone, internal) as session,
    ):
        channels.forget_channels(session)
        facts, reached = check_recovered(session, position, clone.record.origin.unlogged_gtids)
        check(session, facts, clone)
        if before_users is not None:
            before_users(session)
        make_users(session, clone, password)
    _write_files_for_later_starts(clone, password, internal)
    return replace(position, gtids=reached.gtids) if position.gtids is not None else position


def start_again(clone: CloneServer) -> None:
    """Start and check the server of a clone that was started before.

    If the file with an account's password is lost, the account gets a new password. If the internal account is created
    again, the users' account is created again too.
    """
    give_files(clone.copy)
    clone.copy.make_private()
    password, internal = credentials.read(clone.record.client_file), credentials.read(clone.record.internal_file)
    with locks.wait_for_turn(), undone_on_error(clone.copy.process().kill):
        if internal is not None:
            with clone.start(clone.identity(), internal) as session:
                check(session, probe(session), clone)
                if password is not None:
                    return
                password = fresh_password()
                make_users(session, clone, password)
        else:
            internal, password = fresh_password(), password or fresh_password()
            with _started_with_account(clone, internal) as session:
                check(session, probe(session), clone)
                make_users(session, clone, password)
    _write_files_for_later_starts(clone, password, internal)


def make_users(session: Session, clone: CloneServer, password: SecretStr) -> None:
    """Create or replace the clone's account for users, with the given password and the clone's rights."""
    hosts = credentials.hosts_of_users(clone.record.bind_address)
    accounts.make_users(session, ACCOUNT, hosts, password, clone.record.rights, clone.record.origin.flavour)


def _started_with_account(clone: CloneServer, password: SecretStr) -> Session:
    """Start the server with an init file, which it runs before it accepts connections."""
    sql = credentials.internal_account_sql(clone.record.origin, password, lock=clone.locks_accounts)
    init_file = clone.copy.write_init_file(sql)
    return clone.start(clone.identity(str(init_file)), password)


def _write_files_for_later_starts(clone: CloneServer, password: SecretStr, internal: SecretStr) -> None:
    copy, record = clone.copy, clone.record
    safe_open.remove(copy.folder / "init.sql")
    copy.write_option_file(clone.identity())
    credentials.write(record.client_file, password, record.bind_address, record.port, copy.settings.user)
    credentials.write_internal(record.internal_file, internal)


def check(session: Session, facts: ServerFacts, clone: CloneServer) -> None:
    """Check that the started server shares nothing with its source, and that the server starts no work by itself.

    Raises:
        ConsistencyError: a check failed; the message lists all failures.
    """
    awake: tuple[str, ...] = ()
    if clone.locks_accounts:
        awake = accounts.unlocked_accounts(session, clone.record.origin.flavour)
    record, identity = clone.record, clone.identity()
    promise = CloneIdentity(record.server_id, record.port, record.bind_address, identity.socket, record.follows)
    breaches = clone.copy.breaches(identity, connects=record.follows is not None)
    wrong = find_isolation_breaks(facts, record.origin, promise, awake, breaches)
    if wrong:
        raise ConsistencyError(
            "the clone's server is not separate from its source: " + "; ".join(wrong),
            hint="the clone's server was stopped; report this error",
        )
    check_inside(facts, clone.copy.root)


_FLOCK = struct.Struct("@hhqqi")
"""The fields l_type, l_whence, l_start, l_len and l_pid of struct flock (fcntl(2))."""


def with_servers_elsewhere(clones: Collection[CloneInfo]) -> Iterator[CloneInfo]:
    """Yield the clones.

    If the server of a clone is known to run in another namespace, the field `elsewhere` of the clone names that
    namespace.
    """
    silent = [one for one in clones if one.pid is None and one.phase in (CopyPhase.READY, CopyPhase.CHANGING)]
    there = mounts.mounted_elsewhere({name for one in silent for name in one.volumes.values()}) if silent else []
    for info in clones:
        yield replace(info, elsewhere=_elsewhere(info, there)) if info in silent else info


def refuse_running_elsewhere(info: CloneInfo) -> None:
    """Raise ServerError if a server in another namespace, such as a container, runs on the clone's datasets."""
    there = _elsewhere(info, mounts.mounted_elsewhere(frozenset(info.volumes.values())))
    if there:
        raise ServerError(
            f"the server of clone {info.label} runs {there}",
            hint="run the command in the container in which the clone was started, or end the server there",
        )


def _elsewhere(info: CloneInfo, there: Iterable[ForeignMount]) -> str:
    names = info.volumes.values()
    devices = {os.makedev(*map(int, mount.device.split(":"))) for mount in there if mount.source in names}
    for user in users_of(devices) if devices else ():
        if is_server_program(Path(f"/proc/{user.pid}")):
            return f"as process {user.pid} in another mount namespace"
    # InnoDB locks its system tablespace while it runs (os0file.cc, os_file_lock).
    places = [Path(entry.path) for entry in mounts.mounted() if entry.fstype == "zfs" and entry.source in names]
    return "in another PID namespace" if any(_is_locked(place / "ibdata1") for place in places) else ""


def _is_locked(file: Path) -> bool:
    """Return whether a process in any PID namespace has locked the file. This check takes no lock itself."""
    with contextlib.suppress(OSError, safe_open.UnsafeFileError), safe_open.open_to_read(file) as opened:
        asked = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        return bool(_FLOCK.unpack(fcntl.fcntl(opened.fileno(), fcntl.F_GETLK, asked))[0] != fcntl.F_UNLCK)
    return False
