"""Prepares copied volumes for the start of a server: their paths, binlog indices, identity and option files."""

from __future__ import annotations

import contextlib
import glob
import os
import socket
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from posixpath import relpath

from pydantic import SecretStr

from zsnapdb.base import safe_open
from zsnapdb.base.domain_types import Flavour, Position
from zsnapdb.base.errors import ConsistencyError, PreflightError, ServerError
from zsnapdb.base.gtid import GtidSet, contains
from zsnapdb.base.patterns import below
from zsnapdb.base.safe_open import Owner
from zsnapdb.config.settings import ServerSettings
from zsnapdb.mysql.binlog.binlog_keys import BinlogKeys, missing_key
from zsnapdb.mysql.binlog.tail import LOG_LISTS, KnownTail, find_position
from zsnapdb.mysql.probe import probe, published_position
from zsnapdb.mysql.process import process_managers, programs, server, time_zone
from zsnapdb.mysql.process.process_managers import Limits
from zsnapdb.mysql.process.written_paths import links_in, written_paths
from zsnapdb.mysql.schema import tablespace_overwrite
from zsnapdb.mysql.session import Address, Session
from zsnapdb.mysql.tls import client_options
from zsnapdb.planning.server_copy import copy_options
from zsnapdb.planning.server_copy.copy_options import (
    LoginAccess,
    PathMap,
    ServerIdentity,
    binlog_paths,
    is_loopback,
    log_files,
    option_file,
    rewrite_index,
    tls_keys,
)
from zsnapdb.planning.server_copy.plugins import option_lines
from zsnapdb.planning.server_copy.sandbox import Sandbox, is_shown, sandbox_of
from zsnapdb.planning.server_copy.source_facts import advice, kept_statements, missing_options
from zsnapdb.planning.server_facts import ServerFacts, ServerPlugins
from zsnapdb.planning.server_time_zone import ServerZone, difference, expected_offsets, given_zone
from zsnapdb.planning.sql_quoting import option_value


@dataclass(frozen=True)
class CopyLayout:
    """The locations of a copy's volumes: the dataset and the mount point of each role.

    `top` is the parent of all these datasets.
    """

    top: str
    datasets: Mapping[str, str]
    mountpoints: Mapping[str, str]


def lay_out(source: Mapping[str, tuple[str, str]], top: str, mount: str) -> CopyLayout:
    """Return the layout of a copy under the dataset `top`, mounted at `mount`.

    `source` maps each role to a dataset and a mount point. If one volume contains all others, the volumes keep their
    structure below `top`. Otherwise each volume is directly below `top`, with its role as the name. Raises DamagedError
    if a mount point is outside `mount`.
    """
    outer = next(
        (d for d, _ in source.values() if all(o == d or o.startswith(d + "/") for o, _ in source.values())), None
    )
    if outer is None:
        return CopyLayout(
            top, {role: f"{top}/{role}" for role in source}, {role: below(mount, role) for role in source}
        )
    outer_mount = next(point for dataset, point in source.values() if dataset == outer)
    mountpoints = {}
    for role, (_, point) in source.items():
        inner = relpath(point, outer_mount)
        if inner == ".":
            mountpoints[role] = mount
        else:
            mountpoints[role] = below(mount, role if inner.split("/")[0] == ".." else inner)
    return CopyLayout(top, {role: top + dataset[len(outer) :] for role, (dataset, _) in source.items()}, mountpoints)


@dataclass(frozen=True)
class Copy:
    """A mounted copy of an instance's files: the source server, and the locations of the volumes.

    `key_files` are the files, if known, from which the source server read the keys of encrypted tables. `buffer_pool`
    is the buffer pool's size in bytes for servers that run only for one task; None for the configured size. `plugins`
    are the plugins of the source server, and `zone` is the time zone of its process, or None if unknown.
    """

    flavour: Flavour
    version: str
    variables: Mapping[str, str]
    paths: PathMap
    root: Path
    settings: ServerSettings
    key_files: tuple[str, ...] = ()
    buffer_pool: int | None = None
    plugins: ServerPlugins | None = None
    zone: ServerZone | None = None

    @property
    def for_one_task(self) -> tuple[str, ...]:
        """The lines at the end of the option file of a server that runs only for one task."""
        return copy_options.buffer_pool_lines(self.buffer_pool)

    @property
    def folder(self) -> Path:
        """The private folder of the server that runs on the copy."""
        return self.root / server.PRIVATE_FOLDER

    @property
    def datadir(self) -> Path:
        return Path(self.paths.translate(self.variables["datadir"]))

    @property
    def keys(self) -> BinlogKeys:
        """The keys of the copy's binlogs.

        If the copied files include a keyring, this keyring is used first, because it contains the matching keys.
        """
        inside = [self.paths.translate(file) for file in self.key_files if self.paths.has(file)]
        return BinlogKeys(tuple(Path(file) for file in (*inside, *self.key_files)))

    def key_objection(self, binlog_key: str | None) -> PreflightError | None:
        """Return why binlogs of the copy that are encrypted with the key cannot be read; None if they can be read.

        The copy's server needs the binlogs for its recovery, so it must see the keyring too. If the keyring is on a
        volume, its file in the mounted copy is used, because this file has the content from the moment of the snapshot.
        """
        if binlog_key is None or any(self.paths.has(file) for file in self.key_files):
            return None
        files = [Path(file) for file in self.key_files]
        if BinlogKeys(tuple(files)).key(binlog_key) is None:
            return missing_key(binlog_key, "the binlog of the copied server", files)
        hidden = hidden_files(self.settings, self.key_files)
        if len(hidden) < len(self.key_files):
            return None
        return PreflightError(
            f"the binlog of the copied server is encrypted, and its sandbox lacks {', '.join(hidden)}",
            hint="add the file to server.sandbox_reads of the instance",
        )

    def process(self) -> server.ServerProcess:
        """Return the process object for the copy's server, whether the server is running or not."""
        return server.ServerProcess(self.folder)

    def make_private(self) -> None:
        """Create the private folder.

        In every list of binlogs and relay logs, replace the source's paths with paths in the copy. Afterwards no list
        contains a path of the source.
        """
        self._refuse_links()
        server.make_private_folder(self.folder, self.settings.user)
        self.turn_lists()

    def remove_identity(self) -> None:
        """Remove the identity of the source: its UUID, its persisted variables and its TLS keys."""
        server.remove_uuid(self.datadir)
        server.remove_persisted(self.datadir)
        self.remove_keys()

    def remove_keys(self) -> None:
        """Remove the source's TLS keys from the copy: both the keys that the source created and the configured keys."""
        server.remove_keys(self.datadir)
        for file in tls_keys(self.variables, self.paths):
            # A path from the manifest may be a folder on the copy, or one of its parent folders may be a file.
            with contextlib.suppress(IsADirectoryError, NotADirectoryError):
                safe_open.remove(Path(file))

    def turn_lists(self) -> None:
        """In every list of binlogs and relay logs, replace the source's paths with paths in the copy.

        Afterwards no list contains a path of the source.
        """
        for base, index in log_files(self.variables):
            folder = os.path.dirname(self.paths.translate(base))
            main = Path(self.paths.translate(index))
            # Replication channels have separate indices in the same folder: relay-CHANNEL.index.
            stems = {os.path.basename(base), main.stem}
            beside = {
                file
                for stem in stems
                for suffix in LOG_LISTS
                for file in main.parent.glob(f"{glob.escape(stem)}*{suffix}")
            }
            for file in sorted({main, *beside}):
                if os.path.lexists(file):
                    safe_open.rewrite_text(file, rewrite_index(safe_open.read_text(file), folder))

    def _refuse_links(self) -> None:
        """Raise PreflightError if a link leads from the data directory out of the copy: a server would write there."""
        top = os.path.realpath(self.root)
        for link in links_in(str(self.datadir)):
            if not link.path.startswith(top + "/"):
                raise PreflightError(
                    f"{link.what} points to {link.path}, outside the copy",
                    hint="a server on the copy would open the source's file; it was not started",
                )

    def render(self, identity: ServerIdentity, last: Sequence[str] = ()) -> str:
        """Return the option file for the identity, with the lines `last` at its end.

        Raises PreflightError if a path of the source is outside the copy.
        """
        site = self.settings.options
        options = (*site, *option_lines(self.plugins, site, reads_rows=identity.access is LoginAccess.ACCOUNTS))
        return option_file(self.flavour, self.variables, self.paths, identity, options, last)

    def write_option_file(self, identity: ServerIdentity, last: Sequence[str] = ()) -> None:
        """Write the option file for the identity.

        Settings that no option can set are set by SQL statements at each start.
        """
        if self._statements and identity.access is LoginAccess.ACCOUNTS and identity.init_file is None:
            identity = replace(identity, init_file=str(self._write_statements("settings.sql", "")))
        server.write_private(Path(identity.option_file), self.render(identity, last), self.settings.user)

    def write_init_file(self, sql: str) -> Path:
        """Write an init file that contains the settings of the source, followed by the given statements.

        Return the file's path.
        """
        return self._write_statements("init.sql", sql)

    @property
    def _statements(self) -> tuple[str, ...]:
        return kept_statements(self.variables)

    def _write_statements(self, name: str, sql: str) -> Path:
        path = self.folder / name
        server.write_private(path, "".join(f"{line}\n" for line in self._statements) + sql, self.settings.user)
        return path

    def recorded_position(self, known: KnownTail | None = None, *, has_gtids: bool) -> Position:
        """Return the position that the copy must reach by its recovery: the end of the newest binlog in the copy.

        `known` is a position up to which an earlier run has read the binlog. If the binlog in the copy contains it,
        only the bytes after it are read.
        """
        paths = binlog_paths(self.variables, "log_bin")
        if self.variables.get("log_bin") != "ON" or paths is None:
            return Position(self.flavour, None, None, "no binlog")
        base, index = (Path(self.paths.translate(path)) for path in paths)
        return find_position(index, base.parent, self.flavour, known, has_gtids=has_gtids, keys=self.keys).position

    def identity(
        self,
        *,
        server_id: int,
        port: int | None,
        access: LoginAccess,
        init_file: str | None = None,
        bind_address: str = "127.0.0.1",
        trusts_creators: bool = False,
    ) -> ServerIdentity:
        return ServerIdentity(
            server_id, port, str(self.folder), self.settings.user, access, init_file, bind_address, trusts_creators
        )

    def sandbox(
        self, program: Path, identity: ServerIdentity, *, connects: bool = False, reads: Sequence[Path] = ()
    ) -> Sandbox | None:
        """Return the sandbox for the copy's server; None if the configuration disables sandboxes.

        `reads` are additional files that the server may see.
        """
        if self.settings.sandbox == "off":
            return None
        shown = [str(path) for path in (*self.settings.sandbox_reads, *reads)]
        source, volumes = zip(*self.paths.pairs, strict=True)
        programs = (str(program), os.path.realpath(program))
        made = sandbox_of(str(self.folder), volumes, source, programs, self.settings.options, shown)
        is_open = identity.port is not None and not is_loopback(identity.bind_address)
        return replace(made, connects=connects, answers_beyond=is_open)

    def breaches(self, identity: ServerIdentity, *, connects: bool = False) -> tuple[str, ...]:
        """Return descriptions of all ways in which the running server can reach objects outside its sandbox."""
        program = programs.choose_program(self.settings, self.flavour, self.version)
        made = self.sandbox(program, identity, connects=connects)
        return () if made is None else self.process().breaches(made)

    def start(
        self,
        identity: ServerIdentity,
        user: str,
        password: SecretStr,
        last: Sequence[str] = (),
        *,
        connects: bool = False,
        reads: Sequence[Path] = (),
    ) -> Session:
        """Write the option file, start the server in its sandbox and return a session on its private socket.

        Raises PreflightError, without starting a server, if the server program does not match the version of the files.
        If `connects` is set, the server may connect to other servers. `reads` contains additional files of the host
        that the server may see.
        """
        binary = programs.fitting_program(self.settings, self.flavour, self.version).path
        self.write_option_file(identity, last)
        login = Address(user=user, socket=Path(identity.socket))
        limits = Limits(self.settings.memory, self.settings.processors, self.settings.nice)
        manager = process_managers.choose(self.settings.manager)
        try:
            session = self.process().start(
                binary,
                self.settings.user,
                login,
                password,
                timeout=self.settings.start_timeout,
                manager=manager,
                limits=limits,
                sandbox=self.sandbox(binary, identity, connects=connects, reads=reads),
                zone=self.given_zone,
            )
        except ServerError as error:
            missing = missing_options(self.variables, self.settings.options)
            hint = advice(missing, error.message, absent_files(self.key_files))
            raise ServerError(error.message, hint=hint or error.hint) from error
        try:
            self._check_zone(session)
        except BaseException:
            session.close()
            self.process().kill()
            raise
        return session

    @property
    def given_zone(self) -> str | None:
        """The time zone for the server's process; None for the time zone of this host."""
        return None if self.zone is None else given_zone(self.zone, time_zone.host_zones(self.zone))

    def _check_zone(self, session: Session) -> None:
        """Raise ConsistencyError unless the started server has the local times that the plan expects."""
        if self.zone is None:
            return
        seen = time_zone.offsets_of(session)
        when = difference(expected_offsets(time_zone.host_zones(self.zone)), seen)
        if when is not None:
            raise ConsistencyError(
                f"the server was started with the time zone {self.zone.describe()}, but its times differ {when}",
                hint="it was stopped; set default_time_zone in server.options, and report this",
            )


def absent_files(paths: Sequence[str]) -> tuple[str, ...]:
    """Return the paths in the list at which this host has no file."""
    return tuple(path for path in paths if not os.path.exists(path))


def hidden_files(settings: ServerSettings, paths: Sequence[str]) -> tuple[str, ...]:
    """Return the paths in the list that the server of a copy cannot see in its sandbox."""
    reads = [str(path) for path in settings.sandbox_reads]
    return tuple(path for path in paths if settings.sandbox != "off" and not is_shown(path, settings.options, reads))


def check_recovered(
    session: Session, expected: Position, unlogged: GtidSet | None = None
) -> tuple[ServerFacts, Position]:
    """Return the facts about the started copy, and its position.

    Raises ConsistencyError unless the GTIDs are exactly the expected GTIDs, and the server can read its encrypted
    tables.

    `unlogged` contains the GTIDs that are in no binlog of the source. The copy may have these GTIDs in addition.
    """
    facts = probe(session)
    reached = published_position(session, facts)
    allowed = expected.gtids
    if unlogged is not None and isinstance(expected.gtids, GtidSet):
        allowed = expected.gtids.union(unlogged)
    if expected.gtids is not None and (
        reached.gtids is None
        or allowed is None
        or not (contains(reached.gtids, expected.gtids) and contains(allowed, reached.gtids))
    ):
        raise ConsistencyError(
            f"the server started with GTIDs {reached.gtids}, the backup's are {expected.gtids}",
            hint="the copy is not in the recorded state and must not be used; keep its error log and report this",
        )
    tablespace_overwrite.check(session, facts)
    return facts, reached


def check_inside(facts: ServerFacts, root: Path) -> None:
    """Raise ConsistencyError if the started copy writes to a path outside its own mount."""
    top = os.path.realpath(root)
    for path in written_paths(facts):
        if path.path != top and not path.path.startswith(top + "/"):
            raise ConsistencyError(
                f"the copy's server uses {path.what} = {path.path}, outside {top}",
                hint="the server was stopped; this is a bug in zsnapdb, please report it",
            )


def change_of_owner(recorded: Owner | None, user: str) -> str | None:
    """Return the change of the files' owner as text; None if the owner does not change or was not recorded."""
    if recorded is None:
        return None
    owner = Owner(*server.account(user))
    if recorded == owner:
        return None
    return f"files are given from uid {recorded.uid}, gid {recorded.gid} to {user} (uid {owner.uid}, gid {owner.gid})"


def give_files(copy: Copy, recorded: Owner | None = None) -> int:
    """Change the owner of a copy's mounted files to the account of the copy's server. The server must be stopped.

    Return the number of changed files. Only files of the source server's account are changed. If `recorded` is None,
    the owner of the data directory is taken as this account. The owner of the data directory is changed last, so an
    interrupted call can be repeated.
    """
    owner = Owner(*server.account(copy.settings.user))
    former = recorded or _owner_of(copy.datadir, owner)
    if former is None or former == owner:
        return 0
    places = [Path(place) for _, place in copy.paths.pairs]
    root = Path(os.path.commonpath(places))
    given = sum(
        safe_open.give_tree(root, place.relative_to(root).parts, owner, former, copy.datadir) for place in places
    )
    return given + safe_open.give_folder(copy.datadir, owner, former)


def _owner_of(datadir: Path, owner: Owner) -> Owner | None:
    """Return the owner of the data directory; None if the owner is root or already the account `owner`."""
    with safe_open.folder(datadir) as at:
        status = os.fstat(at)
    assert stat.S_ISDIR(status.st_mode), "it was opened as a folder"
    return None if status.st_uid in (0, owner.uid) else Owner(status.st_uid, status.st_gid)


def port_is_free(port: int) -> bool:
    """Return whether the port is now free on the loopback address."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def client_text(address: Address, password: SecretStr) -> str:
    """Return the text of an option file for a client."""
    lines = ["[client]", f"user={option_value(address.user)}", f"password={option_value(password.get_secret_value())}"]
    lines += (
        [f"socket={option_value(str(address.socket))}"]
        if address.socket
        else [f"host={option_value(address.host)}", f"port={address.port}"]
    )
    lines += () if address.socket else client_options(address.tls, address.host)
    return "\n".join([*lines, ""])


@contextlib.contextmanager
def client_file(address: Address, password: SecretStr, more: str = "") -> Iterator[Path]:
    """Write an option file for a client, with the lines `more` at the end. Remove the file after the block.

    The file is in a new folder that only this account can enter. If the file were in a folder of the server's account,
    that account could replace it with one that names a plugin. A client that runs as root would load this plugin
    (refman 8.4, "plugin_dir").
    """
    with tempfile.TemporaryDirectory(prefix="zsnapdb-client-") as folder:
        file = Path(folder, "client.cnf")
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(client_text(address, password) + more)
        yield file
