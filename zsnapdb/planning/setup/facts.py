"""Facts about a host for `zsnapdb setup`, gathered by `jobs/setup/discovery.py`, and the user's answers. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from zsnapdb.base.domain_types import Flavour

DEFAULT_PAGE = 16384
_URL_HOST = re.compile(r"://(?:[^/?#]*@)?([^/?#@]*)")


@dataclass(frozen=True)
class FoundFiles:
    """Facts that decide whether and how setup can move a server's files to ZFS. Missing names and paths are "".

    The systemd unit of the server is `service`. If `is_mount` is set, the data directory itself is a mount point. The
    field `binlog` is the path of the binlogs without the number, and `binlog_index` is the path of their index. The
    field `elsewhere` contains the settings with files outside the data directory. The field `obstacles` contains the
    paths in the data directory that are neither regular files nor folders. The field `option_folder` is a folder of
    option files that the server reads. The field `taken` contains existing paths that a move would create.
    """

    service: str
    is_mount: bool = False
    binlog: str = ""
    binlog_index: str = ""
    has_relay_logs: bool = False
    elsewhere: tuple[str, ...] = ()
    obstacles: tuple[str, ...] = ()
    option_folder: str = ""
    taken: tuple[str, ...] = ()


@dataclass(frozen=True)
class FoundServer:
    """A running server: its process, account, program, sockets and data directory.

    - `filesystem`, `dataset`: the file system and the dataset of the data directory; "" if there is none
    - `page_size`, `version`: None if root cannot query the server
    - `used`: the size of the data directory in bytes
    - `lets_root_in`: whether the system's root can log in as the server's root by the socket, without a password
    - `has_socket_login`: whether other accounts can also log in by the socket (MySQL's plugin auth_socket is active)
    - `binary`: the program to write into the configuration, or "" if the program in the usual folders is right
    - `has_binlog`: whether the server writes binlogs or cannot be queried
    - `lacks_names`: whether the server could write column names to binlogs, but does not
    - `server_id_file`: a file that only this server reads and to which a rewind may write a new server_id, or ""
    - `service`: the systemd unit that runs the server
    - `option_folder`: a folder whose option files the server reads, or ""
    - `files`: None if the files are on ZFS or the server cannot be queried
    - `cipher`: the cipher of the dataset; None if ZFS does not encrypt it
    """

    pid: int
    account: str
    program: str
    sockets: tuple[str, ...]
    datadir: str
    flavour: Flavour
    filesystem: str
    dataset: str = ""
    version: str | None = None
    page_size: int | None = None
    used: int = 0
    lets_root_in: bool = False
    is_read_only: bool = False
    has_socket_login: bool = False
    binary: str = ""
    has_binlog: bool = True
    lacks_names: bool = False
    server_id_file: str = ""
    service: str = ""
    option_folder: str = ""
    files: FoundFiles | None = None
    cipher: str | None = None

    @property
    def is_on_zfs(self) -> bool:
        return self.filesystem == "zfs" and bool(self.dataset)


@dataclass(frozen=True)
class FoundPool:
    """An imported pool with its free bytes."""

    name: str
    free: int


@dataclass(frozen=True)
class WrittenTables:
    """The record of earlier setups of an instance on this host.

    - `tables`: the paths of the configuration tables that they created
    - `keys`: the paths of all keys that they wrote or found, and ("cron", JOB) for each line of the cron file
    """

    tables: tuple[tuple[str, ...], ...] = ()
    keys: frozenset[tuple[str, ...]] = frozenset()


NOTHING_WRITTEN = WrittenTables()


@dataclass(frozen=True)
class SetupRefusal:
    """A reason against the start of setup, with a hint for the user."""

    why: str
    hint: str


@dataclass(frozen=True)
class LaterFacts:
    """Facts for the last steps of setup, observed before its first change.

    - `refusals`: the conditions of later steps that are not met
    - `has_repository`: whether a repository already exists at the address
    - `backups`: the number of backups of the instance in this repository
    - `maker`: another host that made such backups, if this host made none; "" if no other host is known
    """

    refusals: tuple[SetupRefusal, ...] = ()
    has_repository: bool = False
    backups: int = 0
    maker: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class SetupFacts:
    """The facts about the host.

    - `configuration`, `configured`: the path and the text of the configuration; the text is None if the file does not
      exist or contains only comments
    - `recipient`: the recipient in the existing identity file; None if there is no such file
    - `unit`: the text of the agent's unit for this host; None if a suitable unit exists
    - `grants`: the statements that create the account, by flavour
    """

    servers: tuple[FoundServer, ...]
    pools: tuple[FoundPool, ...]
    zfs_release: tuple[int, ...]
    has_systemd: bool
    configuration: str
    configured: str | None = None
    recipient: str | None = None
    signer: str | None = None
    """The public part of the signing key next to the configuration; None if there is none."""
    unit: str | None = None
    cron: str | None = None
    """The text of the cron file; None on a host without a folder for it."""
    grants: Mapping[Flavour, str] = field(default_factory=dict)
    datasets: frozenset[str] = frozenset()
    """Existing datasets with names that a move would choose."""
    passed_drill: str | None = None
    """The newest passed drill of this host with the existing configuration; None if none is known."""
    missing_folder: str | None = None
    """The folder of the repository, if it is a folder on this host that does not exist."""
    written: WrittenTables | None = None
    """The record of earlier setups of the instance; None if there is none."""
    cron_now: str | None = None
    """The text of the existing cron file; None if there is no such file for this configuration."""
    cron_reads: str | None = None
    """The non-empty configuration that the jobs in the existing cron file read."""
    later: LaterFacts = LaterFacts()
    agent_reads: str | None = None
    """The non-empty configuration that the agent of this host reads; None if the agent has no unit."""


@dataclass(frozen=True)
class SetupAnswers:
    """The decisions of the user. If a decision is None, setup decides, or refuses to run if it cannot decide.

    - `repository`: an address such as s3://bucket/prefix or file:///folder
    - `encrypt`: whether backups are encrypted
    - `binary`: the server program for copies of the server
    - `move`: whether the server may be stopped while its files are moved to ZFS
    - `proof`: whether setup ends with doctor, a backup and a drill
    - `notify`: the target for failures: an e-mail address, a URL, or the absolute path of a program
    - `sign`: whether this host signs its stored documents
    """

    repository: str
    instance: str = "main"
    socket: str | None = None
    pool: str | None = None
    credentials_file: str | None = None
    endpoint: str | None = None
    encrypt: bool = True
    binary: str | None = None
    move: bool = False
    proof: bool = True
    notify: str | None = None
    sign: bool = True
    binlogs: bool = False
    """Whether the server may be restarted once to turn its binlogs on."""
    take_over: bool = False
    """Whether this host continues the backups of another host, for example of a lost host."""

    @property
    def printed_target(self) -> str:
        """The target for failures in messages. The URL of a webhook is a secret, except for its host."""
        host = _URL_HOST.search(self.notify or "")
        return f"the webhook at {host[1]}" if host is not None else self.notify or ""


_PATH = re.compile(r"(?m)^(?P<name>[a-z_]+) = (?P<path>/.*)$")


PROBE = "loose_zsnapdb_probe"
"""An option without effect. It shows where the server reads an option file (refman 8.4, "Program Option Modifiers")."""


def with_option_file(option_file: str, options: str) -> str:
    """Return the options with the settings of the option file in the place of the option PROBE.

    The settings are missing if the server does not read the file.
    """
    settings = " ".join(f"--{line.replace(' = ', '=')}" for line in option_file.split("\n") if " = " in line)
    return re.sub(rf"--{PROBE.replace('_', '[-_]')}=1", lambda _: settings, options)


def overridden(option_file: str, options: str) -> tuple[str, ...]:
    """Return the settings in the option file whose paths a server would not use, with the values that it would use.

    The result is empty if the server would use all paths. The argument `options` contains the server's options,
    including its command line, as `--print-defaults` prints them.
    """
    wrong = []
    for setting in _PATH.finditer(option_file):
        name, path = setting["name"], setting["path"]
        found = list(re.finditer(rf"(?:^|\s)--(?:loose[-_])?{name.replace('_', '[-_]')}=", options))
        rest = options[found[-1].end() :] if found else ""
        if not found:
            wrong.append(f"{name} is not set")
        elif not re.match(rf"{re.escape(path)}/?(?:\s|$)", rest):
            wrong.append(f"{name} = {rest.split(maxsplit=1)[0] if rest.split() else ''}")
    return tuple(wrong)
