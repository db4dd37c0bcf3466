"""The request for a clone, and the clone that the one who asked has then: made for him, or handed out."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import SecretStr

from zsnapdb.jobs.clone import credentials
from zsnapdb.jobs.clone.clone_info import CloneInfo
from zsnapdb.planning.clone.contract import ACCOUNT, AccountRights, ServerProfile

if TYPE_CHECKING:
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.clone.masking import MaskingReport
    from zsnapdb.planning.clone.masking import MaskingChoice
    from zsnapdb.planning.restore.plan import RestorePlan


LATEST = "latest"
"""The newest snapshot set on this host or in the repository."""


@dataclass(frozen=True)
class CloneRequest:
    """What the caller requests.

    `history` is the id of the binlog history with the point `at`, if there are several.
    `name` None: a random name. `ttl` (seconds) and `bind_address` None: the configured values. `point` is the plan that
    leads to `at`, if the caller has made that plan already; then no other plan is made. `requested` is what the user
    named, if the caller has made another `source` of it.
    """

    owner: str
    name: str | None = None
    source: str = LATEST
    at: str | None = None
    history: str | None = None
    point: RestorePlan | None = None
    ttl: float | None = None
    quota: int | None = None
    """How many bytes of its own it may have; None: as the configuration says."""
    heartbeat: float | None = None
    """How many seconds may pass between two heartbeats of its holder; None: none are expected."""
    profile: ServerProfile = ServerProfile.NORMAL
    bind_address: str | None = None
    starts: bool = True
    masks: bool = False
    requested: str | None = None
    rights: AccountRights = AccountRights.SCHEMAS
    accepts_older: bool = False
    """Whether the newest state may be older than something that was stored and cannot be used."""
    is_ephemeral: bool = False
    """Whether the caller makes the clone for itself, and holds `locks.as_maker` of it until it is destroyed."""
    waits: bool = False
    """Whether the clone waits in the pool of its instance until somebody asks for one."""
    fresh: bool = False
    """Whether the clone is made now, also if one waits in the pool."""
    program: Path | None = None
    """The server program that the caller names for this clone, which its settings have too; None: none."""
    follows: int | None = None
    """The port of the clone on this host that the clone will replicate from: it may connect to it."""

    @property
    def names_source(self) -> str:
        """What the user named: a source, or a point and its history."""
        at = self.at and self.at + (f" of history {self.history}" if self.history is not None else "")
        return self.requested or at or self.source


def profile_of(name: str) -> ServerProfile:
    """Return the profile of that name."""
    return ServerProfile(name)


def rights_of(*, is_admin: bool) -> AccountRights:
    """Return the rights of the users of a clone that was requested with or without `--admin`."""
    return AccountRights.ALL if is_admin else AccountRights.SCHEMAS


def random_name(instance: Instance) -> str:
    """Return a random name for a clone of the instance, or for a set of clones."""
    return f"{instance.name}-{secrets.token_hex(3)}"


@dataclass(frozen=True)
class CreateDurations:
    """How long the parts of `create` took, in seconds.

    `source`: find or make the snapshots. `clone`: clone and mark the datasets. `identity`: remove the identity of the
    source from the files. `start`: start and recovery of the server. Masking is in none of them.
    """

    source: float = 0.0
    clone: float = 0.0
    identity: float = 0.0
    start: float = 0.0


@dataclass(frozen=True)
class Created:
    """A new clone. `password` is None if its server was not started yet.

    `masking` is what masking did now, to the clone or to the set that it is made of (None: nothing), `masked` how the
    clone is masked. `is_of_pool`: it waited in the pool of its instance, and was not made now; then it was masked then.
    """

    info: CloneInfo
    password: SecretStr | None
    seconds: CreateDurations
    masking: MaskingReport | None = None
    masked: MaskingChoice | None = None
    is_of_pool: bool = False

    @property
    def login(self) -> credentials.Login | None:
        """How a client reaches the clone; None if its server was not started yet."""
        if self.password is None:
            return None
        info = self.info
        return credentials.Login(
            info.host, info.client_port, info.process.socket, ACCOUNT, self.password, info.bind_address
        )
