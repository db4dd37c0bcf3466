"""Writes the option file of a server on a copy, with separate paths and identity and no background activity. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from posixpath import basename, join, normpath, relpath

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import PreflightError
from zsnapdb.planning.server_copy.source_facts import kept_lines, option_name
from zsnapdb.planning.server_family import family

_PATHS = (
    "innodb_data_home_dir",
    "innodb_log_group_home_dir",
    "innodb_undo_directory",
    "innodb_doublewrite_dir",
    "aria_log_dir_path",
)
_QUIET = (
    *("event_scheduler=OFF", "loose_skip_replica_start=ON", "loose_skip_slave_start=ON"),
    *("loose_persisted_globals_load=OFF", "loose_mysqlx=OFF", "loose_extra_port=0"),
    *("loose_group_replication_start_on_boot=OFF", "loose_wsrep_on=OFF", "loose_rpl_semi_sync_source_enabled=OFF"),
    *("loose_rpl_semi_sync_replica_enabled=OFF", "loose_rpl_semi_sync_master_enabled=OFF"),
    *("loose_rpl_semi_sync_slave_enabled=OFF", "read_only=OFF", "loose_binlog_expire_logs_seconds=0"),
    *("loose_expire_logs_days=0", "loose_super_read_only=OFF"),
)
"""Options that stop all background actions of the copy, and its purge of binlogs.

With the prefix `loose_`, a server ignores an option that it does not know.
"""


BRIEF = ("loose_innodb_buffer_pool_load_at_startup=OFF", "loose_innodb_buffer_pool_dump_at_shutdown=OFF")
"""Options for a server that runs only briefly.

A server with these options does not load the pages that the source had in memory. The list of these pages
(ib_buffer_pool) stays unchanged for the server that users get.
"""


_NO_KEYS = (
    "loose_auto_generate_certs=OFF",
    "loose_sha256_password_auto_generate_rsa_keys=OFF",
    "loose_caching_sha2_password_auto_generate_rsa_keys=OFF",
)


_REFUSED = frozenset(
    (
        *("admin_address", "create_admin_listener_thread", "init_file", "general_log_file", "slow_query_log_file"),
        *("innodb_tmpdir", "innodb_temp_tablespaces_dir", "innodb_directories", "skip_grant_tables", "initialize"),
        "bootstrap",
    )
)
"""Options that a configuration may not set, because later lines cannot override them.

They open a port, run statements, write elsewhere or let anyone log in.
"""


_DATA_FILE_SIZE = re.compile(r"[0-9]+[KMGkmg]?(:[A-Za-z0-9]+)*|")


class LoginAccess(Enum):
    """The users who may log in: accounts in the data or, at the first start, any user who can open the socket."""

    ACCOUNTS = "accounts"
    PRIVATE_SOCKET = "private socket"


@dataclass(frozen=True)
class PathMap:
    """The mount points of the source and of the copy, as pairs."""

    pairs: tuple[tuple[str, str], ...]

    def has(self, path: str) -> bool:
        clean, roots = normpath(path), [normpath(source) for source, _ in self.pairs]
        return any(clean == root or clean.startswith(root.rstrip("/") + "/") for root in roots)

    def translate(self, path: str) -> str:
        """Return the path in the copy that corresponds to a path of the source.

        Raises PreflightError if the path is not on a volume, because the copy must not use such a path.
        """
        clean = normpath(path)
        for source, target in sorted(self.pairs, key=lambda pair: -len(pair[0])):
            root = normpath(source)
            if clean == root:
                return normpath(target)
            if clean.startswith(root.rstrip("/") + "/"):
                return join(normpath(target), clean[len(root.rstrip("/")) + 1 :])
        raise PreflightError(
            f"the server used {path}, which is on none of the backup's volumes",
            hint="move the file to a volume of the instance and back up again; a copy would open the source's file",
        )


@dataclass(frozen=True)
class ServerIdentity:
    """The identity of a server on a copy, with its private folder. If `port` is None, the server has no network.

    If `trusts_creators` is set, accounts that may create triggers and functions in a schema need no additional global
    privilege.
    """

    server_id: int
    port: int | None
    folder: str
    user: str
    access: LoginAccess
    init_file: str | None = None
    bind_address: str = "127.0.0.1"
    trusts_creators: bool = False

    @property
    def socket(self) -> str:
        return join(self.folder, "server.sock")

    @property
    def pid_file(self) -> str:
        return join(self.folder, "server.pid")

    @property
    def error_log(self) -> str:
        return join(self.folder, "error.log")

    @property
    def option_file(self) -> str:
        return join(self.folder, "server.cnf")

    @property
    def temporary(self) -> str:
        return join(self.folder, "tmp")


def _absolute(value: str, datadir: str) -> str:
    return value if value.startswith("/") else join(datadir, value)


def binlog_paths(variables: Mapping[str, str], kind: str) -> tuple[str, str] | None:
    """Return the absolute base name and index of the source's binlog (`log_bin`) or relay log (`relay_log`)."""
    datadir = variables["datadir"]
    base = variables.get(f"{kind}_basename", "")
    if not base:
        return None
    base = _absolute(base, datadir)
    index = variables.get(f"{kind}_index", "") or f"{base}.index"
    return base, _absolute(index, datadir)


def option_file(
    flavour: Flavour,
    variables: Mapping[str, str],
    paths: PathMap,
    identity: ServerIdentity,
    extra: Sequence[str],
    last: Sequence[str] = (),
) -> str:
    """Return the option file of a server on a copy of the files.

    The argument `extra` contains the configured lines. They cannot restore a path, an identity or an activity of the
    source, because later lines override them. The argument `last` contains lines for the current task, which override
    all other lines. Raises PreflightError if the source used a path outside its volumes, or if a line is refused.
    """
    _refuse_options(extra)
    lines = [*kept_lines(flavour, variables, extra), *extra]
    lines += _data_lines(flavour, variables, paths)
    lines += _log_lines(variables, paths)
    lines += _QUIET
    lines += _identity_lines(identity)
    lines += last
    if any("\n" in line or "\r" in line for line in lines):
        raise PreflightError(
            "a recorded variable or a configured option contains a line break",
            hint="check server.options; otherwise the manifest was altered",
        )
    return (
        "# Written by zsnapdb for a server on a copy: its own paths and identity, nothing that acts by"
        f" itself.\n[{family(flavour).option_section}]\n" + "\n".join(lines) + "\n"
    )


def _data_lines(flavour: Flavour, variables: Mapping[str, str], paths: PathMap) -> list[str]:
    datadir = variables["datadir"]
    lines = [f"datadir={paths.translate(datadir)}"]
    for name in _PATHS:
        value = variables.get(name, "")
        if value and (family(flavour).has_aria or name != "aria_log_dir_path"):
            lines.append(f"{name}={paths.translate(_absolute(value, datadir))}")
    if variables.get("innodb_data_file_path"):
        files = variables["innodb_data_file_path"].split(";")
        home = _absolute(variables.get("innodb_data_home_dir", ""), datadir)
        lines.append("innodb_data_file_path=" + ";".join(_data_file(file, home, paths) for file in files))
    return lines


def _log_lines(variables: Mapping[str, str], paths: PathMap) -> list[str]:
    """Return the options that put binlogs and relay logs into the copy.

    The copy has a binlog only if the source has one.
    """
    lines = ["skip_log_bin"]
    binlog = binlog_paths(variables, "log_bin")
    if variables.get("log_bin") == "ON" and binlog is not None:
        lines = [f"log_bin={paths.translate(binlog[0])}", f"log_bin_index={paths.translate(binlog[1])}"]
    relay = binlog_paths(variables, "relay_log")
    if relay is not None:
        lines += [f"relay_log={paths.translate(relay[0])}", f"relay_log_index={paths.translate(relay[1])}"]
    return lines


def _identity_lines(identity: ServerIdentity) -> list[str]:
    lines = [
        f"user={identity.user}",
        f"server_id={identity.server_id}",
        f"socket={identity.socket}",
        f"pid_file={identity.pid_file}",
        f"log_error={identity.error_log}",
        f"tmpdir={identity.temporary}",
        f"secure_file_priv={identity.temporary}",
    ]
    if identity.port is None:
        # A server that accepts connections only on a socket needs no TLS keys, and creating them takes seconds.
        lines += ["skip_networking=ON", *_NO_KEYS]
    else:
        lines += ["skip_networking=OFF", f"bind_address={identity.bind_address}", f"port={identity.port}"]
    if identity.access is LoginAccess.PRIVATE_SOCKET:
        lines += ["skip_grant_tables", *BRIEF]
    if identity.trusts_creators:
        # Without this option, a server with a binlog demands SUPER (refman 8.4, "Stored Program Binary Logging").
        lines.append("loose_log_bin_trust_function_creators=ON")
    if identity.init_file is not None:
        lines.append(f"init_file={identity.init_file}")
    return lines


def _refuse_options(extra: Sequence[str]) -> None:
    """Raise PreflightError if a later line of the file cannot override a configured option."""
    for line in extra:
        if option_name(line) in _REFUSED or line.lstrip().startswith(("[", "!")):
            raise PreflightError(
                f"server.options has {line!r}", hint="remove the line: the server of a copy must not set this option"
            )


def _data_file(part: str, home: str, paths: PathMap) -> str:
    """Return a file of innodb_data_file_path (name:size:…) for the copy. InnoDB prepends `home` to a relative name."""
    name, colon, rest = part.partition(":")
    if _DATA_FILE_SIZE.fullmatch(rest) is None:
        raise PreflightError(
            f"the backup says that the server had {part[:80]!r} in innodb_data_file_path, which points outside the"
            f" copy",
            hint="the manifest was altered; restore another backup, see `zsnapdb list`",
        )
    if name.startswith("/"):
        return paths.translate(name) + colon + rest
    # A name with `..` may lead to another volume, whose relative path in the copy may differ.
    return relpath(paths.translate(join(home, name)), paths.translate(home)) + colon + rest


def rewrite_index(text: str, folder: str) -> str:
    """Return a binlog or relay log index that lists the same file names in `folder`. Every line ends in a newline."""
    return "".join(f"{join(folder, basename(line))}\n" for line in text.split("\n") if line)


def tls_keys(variables: Mapping[str, str], paths: PathMap) -> tuple[str, ...]:
    """Return the paths, in the copy, of the source's configured private keys that are on the source's volumes."""
    named = [variables.get(name, "") for name in ("ssl_key", "admin_ssl_key")]
    absolute = [_absolute(value, variables["datadir"]) for value in named if value]
    return tuple(dict.fromkeys(paths.translate(path) for path in absolute if paths.has(path)))


def log_files(variables: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the base name and the index, on the source, of each log whose index a copy must rewrite."""
    return tuple(paths for kind in ("log_bin", "relay_log") if (paths := binlog_paths(variables, kind)) is not None)


def is_loopback(address: str) -> bool:
    """Return whether a server that listens on this address can be reached only from this host."""
    return address == "localhost" or address == "::1" or address.startswith("127.")


OPTION = "innodb_buffer_pool_size"
DEFAULT_BUFFER_POOL = 128 << 20
"""The buffer pool size if no option sets it (manuals of MySQL 8.4 and MariaDB, "innodb_buffer_pool_size")."""
_CHUNK = 128 << 20
"""A server rounds its buffer pool up to a multiple of this size (refman 8.4, "innodb_buffer_pool_chunk_size")."""
_OF_FREE = 0.5
"""The fraction of free memory for the buffer pool. The rest is for the ARC during a receive, and for production."""
_UNKNOWN = 8 << 30
"""The limit of the buffer pool in bytes if the source's size is not recorded, as in older backups."""
_OF_LIMIT = 0.6
"""The buffer pool's fraction of `server.memory`. A server needs more memory, and is killed above `server.memory`."""


def buffer_pool(
    options: Sequence[str], variables: Mapping[str, str], free: int | None, limit: int | None
) -> int | None:
    """Return the buffer pool size in bytes if it must exceed the default; None if the option must not be set.

    - `options`: the configured lines; if one of these lines sets the size, it has precedence
    - `variables`: the variables of the backup's server, whose size was sufficient
    - `free`: bytes of memory that are available without swapping, if known
    - `limit`: the maximum memory of the server in bytes (`server.memory`)
    """
    if free is None or any(option_name(line) == OPTION for line in options):
        return None
    bounds = [int(free * _OF_FREE)]
    if limit is not None:
        bounds.append(int(limit * _OF_LIMIT))
    had = variables.get(OPTION, "")
    bounds.append(int(had) if had.isdecimal() else _UNKNOWN)
    least = min(bounds) // _CHUNK * _CHUNK
    return least if least > DEFAULT_BUFFER_POOL else None


def current_buffer_pool(planned: int | None, now: int | None) -> int | None:
    """Return the smaller of the planned and the current size.

    Less memory may be available when a restore is continued.
    """
    return min(planned, now) if planned is not None and now is not None else None


def buffer_pool_lines(size: int | None) -> tuple[str, ...]:
    """Return the lines of the option file for a buffer pool of this size in bytes.

    If the size is None, there are no lines.
    """
    return (f"{OPTION}={size}",) if size is not None else ()
