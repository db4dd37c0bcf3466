"""The request for a clone, and the result: a new clone, or a clone from the pool."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import SecretStr

from zsnapdb.jobs.clone import credentials
from zsnapdb.jobs.clone.clone_info import CloneInfo
from zsnapdb.planning.clone.isolation import ACCOUNT, AccountRights, ServerProfile

if TYPE_CHECKING:
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.clone.masking import MaskingReport
    from zsnapdb.planning.clone.masking import MaskingChoice
    from zsnapdb.planning.restore.plan import RestorePlan


LATEST = "latest"
"""The newest snapshot set on this host or in the repository."""


@dataclass(frozen=True)
class CloneRequest:
    """A caller's request for a clone.

    `history` is the id of the binlog history that contains the point `at`; it is needed if several histories contain
    the point. If `name` is None, the clone gets a random name. If `ttl` (seconds) or `bind_address` is None, the
    configured value is used. `point` is the plan that restores the point `at`, if the caller has already made this
    plan. `requested` is the source that the user wrote, if the caller replaced it with another `source`.
    """

    owner: str
    name: str | None = None
    source: str = LATEST
    at: str | None = None
    history: str | None = None
    point: RestorePlan | None = None
    ttl: float | None = None
    quota: int | None = None
    """The limit of the clone's own data in bytes. If it is None, the configured limit is used."""
    heartbeat: float | None = None
    """The longest time in seconds between two heartbeats of the holder; None if no heartbeats are expected."""
    profile: ServerProfile = ServerProfile.NORMAL
    bind_address: str | None = None
    starts: bool = True
    masks: bool = False
    requested: str | None = None
    rights: AccountRights = AccountRights.SCHEMAS
    accepts_older: bool = False
    """Whether an older state is accepted if the newest stored backup cannot be used."""
    is_ephemeral: bool = False
    """Whether the caller creates the clone for its own use.

    The caller holds `locks.lock_ephemeral_maker` until the clone is destroyed.
    """
    waits: bool = False
    """Whether the clone waits in the pool of its instance until a user requests it."""
    fresh: bool = False
    """Whether a new clone is created even if a suitable clone waits in the pool."""
    program: Path | None = None
    """The server program that the caller chose for this clone.

    The settings that the caller passes already name this program. If this is None, the configured program is used.
    """
    follows: int | None = None
    """The port of the clone on this host that will be the replication source.

    The new clone may connect to this port.
    """

    @property
    def names_source(self) -> str:
        """The source that the user wrote, or the point and its binlog history."""
        at = self.at and self.at + (f" of history {self.history}" if self.history is not None else "")
        return self.requested or at or self.source


def profile_of(name: str) -> ServerProfile:
    """Return the profile with the given name."""
    return ServerProfile(name)


def rights_of(*, is_admin: bool) -> AccountRights:
    """Return the rights of the users of a clone that was requested with or without `--admin`."""
    return AccountRights.ALL if is_admin else AccountRights.SCHEMAS


def random_name(instance: Instance) -> str:
    """Return a random name for a clone of the instance, or for a set of clones."""
    return f"{instance.name}-{secrets.token_hex(3)}"


@dataclass(frozen=True)
class CreateDurations:
    """The durations of the parts of `create`, in seconds.

    `source` is the time to find or create the snapshots, and `clone` is the time to clone and mark the datasets.
    `identity` is the time to remove the identity of the source from the files. `start` is the time to start and recover
    the server. No duration includes masking.
    """

    source: float = 0.0
    clone: float = 0.0
    identity: float = 0.0
    start: float = 0.0


@dataclass(frozen=True)
class Created:
    """A new clone. `password` is None if the clone's server was not started yet.

    `masking` is the report about the masking of the clone or its source; None if this command masked nothing. `masked`
    says how the clone is masked. `is_of_pool` is set if the clone was created earlier and waited in the pool of its
    instance.
    """

    info: CloneInfo
    password: SecretStr | None
    seconds: CreateDurations
    masking: MaskingReport | None = None
    masked: MaskingChoice | None = None
    is_of_pool: bool = False

    @property
    def login(self) -> credentials.Login | None:
        """The login of the clone's users; None if the clone's server was not started yet."""
        if self.password is None:
            return None
        info = self.info
        return credentials.Login(
            info.host, info.client_port, info.process.socket, ACCOUNT, self.password, info.bind_address
        )
