"""What `zsnapdb setup` finds on a host, and what it is told. `jobs/setup.py` gathers the facts. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from zsnapdb.model import Flavour

DEFAULT_PAGE = 16384


@dataclass(frozen=True)
class FoundServer:
    """A running server: its process, the account and program of it, its sockets and its data directory.

    `filesystem` and `dataset` are those of the data directory ("" where there is none). `page_size` and `version` are
    None if nobody may ask the server. `used` is the size of the data directory in bytes.
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

    @property
    def is_on_zfs(self) -> bool:
        """Whether the data directory lies on a ZFS dataset."""
        return self.filesystem == "zfs" and bool(self.dataset)


@dataclass(frozen=True)
class FoundPool:
    """An imported pool and how many bytes are free in it."""

    name: str
    free: int


@dataclass(frozen=True)
class SetupFacts:
    """What was found on the host. `configuration` is the path of the configuration, `is_configured` if it is there."""

    servers: tuple[FoundServer, ...]
    pools: tuple[FoundPool, ...]
    zfs_release: tuple[int, ...]
    has_systemd: bool
    configuration: str
    is_configured: bool


@dataclass(frozen=True)
class SetupAnswers:
    """What a person decides. None: setup decides, or refuses if it cannot.

    `repository` is an address such as s3://bucket/prefix or file:///folder. `encrypt`: whether backups are encrypted.
    """

    repository: str
    instance: str = "main"
    socket: str | None = None
    pool: str | None = None
    credentials_file: str | None = None
    endpoint: str | None = None
    encrypt: bool = True
