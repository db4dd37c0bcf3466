"""A clone, as the properties of its datasets describe it, its server process, and what it is called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from zsnapdb.base.model import Flavour
from zsnapdb.jobs.clone.credentials import INTERNAL_FILE, client_host
from zsnapdb.jobs.copies.properties import CopyPhase
from zsnapdb.mysql.process import server
from zsnapdb.mysql.process.server import PRIVATE_FOLDER
from zsnapdb.planning.clone.contract import AccountRights, ServerProfile
from zsnapdb.planning.clone.lease import CloneLease
from zsnapdb.planning.clone.pool import PoolMark
from zsnapdb.planning.clone.room import LEAST
from zsnapdb.planning.server_copy.origin import Origin


@dataclass(frozen=True)
class CloneClaim:
    """What a clone has that no other may have, and whose it is. Its anchor alone says so.

    `name`, `label`, `id`, `top`, `port`, `address`, `owner`, `set_name`, `key` and `begun` are those of CloneInfo.
    """

    name: str
    label: str
    id: str
    top: str
    port: int
    address: int | None
    owner: str
    set_name: str = ""
    key: str = ""
    begun: str = ""

    def is_called(self, word: str) -> bool:
        """Whether people call it so."""
        return word in (self.label, self.id)


@dataclass(frozen=True)
class CloneInfo:
    """A clone as the properties of its datasets describe it.

    `name` is that of its dataset, `label` what people call it, and `id` what never changes for its holder. No two
    clones have a label or an id in common.
    `top` is the anchor. `datasets` are the anchor and all datasets below it that carry the clone's name, outer datasets
    first. `volumes` (by role) are the datasets of the current revision, `origins` (by role) the snapshots that these
    were cloned from ("-" or "" for one that depends on none); `leftovers` are the datasets of other revisions.
    `source` is the kind of source that the data is of, `requested` what the user named to get this data. `original` is
    the snapshot set that the clone was created from, as `--from` takes it, and `original_request` what the user named
    then. `masked` is when masking was complete (None: not masked). `set_name` and `part` are those of a clone in a set,
    else empty. `own_bytes` is the space that only the clone occupies, snapshots included, and `quota` the most that it
    may have of that (0: no limit).
    """

    name: str
    instance: str
    backup_id: str
    source: str
    requested: str
    original: str
    original_request: str
    masked: str | None
    set_name: str
    part: str
    flavour: Flavour
    port: int
    bind_address: str
    server_id: int
    created: str
    position: str
    phase: CopyPhase
    owner: str
    lease: CloneLease
    profile: ServerProfile
    rights: AccountRights
    used: str
    top: str
    revision: int
    datasets: tuple[str, ...]
    volumes: Mapping[str, str]
    origins: Mapping[str, str]
    leftovers: tuple[str, ...]
    mount: Path
    own_bytes: int
    quota: int
    is_independent: bool
    origin: Origin
    pid: int | None
    is_ephemeral: bool = False
    """Whether a command made it for itself. The clone goes when that command is gone (`locks.as_maker`)."""
    follows: int | None = None
    """The port of the clone that it replicates from."""
    label: str = ""
    id: str = ""
    guid: str = ""
    """The GUID of its anchor, or of that which its holder got first: another clone of the same name has another one."""
    address: int | None = None
    """The port that it keeps, at which HAProxy listens."""
    is_led_to: bool = False
    """Whether HAProxy leads that port to its server."""
    pool: PoolMark | None = None
    """Where it is, if it was made for the pool of its instance."""
    rules: str = ""
    """Of a clone that was made for a pool: the digest of the rules by which it was masked."""
    history: str | None = None
    """Of a clone that was made for a pool: `sources.production_history` then (None: an older version made it)."""
    asks_for_masking: bool = False
    """Whether its request asks for masking, at every first start of new files."""
    begun: str = ""
    """When its data was cloned from an instance first, as its anchor says; "": at `created`."""
    branches: str = ""
    """Its branches, as its anchor records them (`Branches`); "" if it is on the first one."""
    kept_bytes: int = 0
    """How many bytes of its own are of data that it had before, which its commits keep."""
    takes_over: tuple[str, ...] = ()
    """Revisions that took something over when the process that was at work was killed (`taken_over.settle`)."""
    grown: int = 0
    """How many bytes of its quota are for what it was detached with, or took over. Other data does not get them."""
    key: str = ""
    """The identity of the data that it has (`CloneSource.key`); "": an older version made it."""
    original_key: str = ""
    """The identity of the data that it was created from."""
    elsewhere: str = ""
    """Where its server runs if that is no process that is seen here (`elsewhere`), in words; "": not known."""
    run_id: str = ""
    """The id of the run that made it, or handed it out; "" if an older version did."""

    @property
    def waits(self) -> bool:
        """Whether it waits in the pool of its instance and is nobody's yet."""
        return self.pool is PoolMark.WAITS

    @property
    def is_of_nobody(self) -> bool:
        """Whether it is in the pool of its instance, good or not: nobody has its login."""
        return self.pool is not None and self.pool.is_of_nobody

    @property
    def client_port(self) -> int:
        """The port at which clients reach it: the one that it keeps, or that of its server where HAProxy is away."""
        return self.address if self.address is not None and self.is_led_to else self.port

    @property
    def claim(self) -> CloneClaim:
        """What no other clone may have."""
        held = (self.set_name, self.key, self.begun or self.created)
        return CloneClaim(self.name, self.label, self.id, self.top, self.port, self.address, self.owner, *held)

    def is_called(self, word: str) -> bool:
        """Whether people call it so."""
        return self.claim.is_called(word)

    @property
    def current(self) -> str:
        """The dataset of the current revision, which has all its volumes."""
        return f"{self.top}/r{self.revision}"

    @property
    def written_quota(self) -> int:
        """The most that its users may write into the data that it has now, in bytes (0: no limit)."""
        others = self.kept_bytes + self.grown
        return max(LEAST, self.quota - others) if self.quota and others else self.quota

    @property
    def has_original(self) -> bool:
        """Whether the data is that of the snapshot set that the clone was created from."""
        if self.original_key:
            return self.key == self.original_key
        # Of clones of older versions the names are known alone.
        return self.backup_id == self.original.removeprefix("@")

    @property
    def process(self) -> server.ServerProcess:
        """The clone's server process, running or not."""
        return server.ServerProcess(self.mount / PRIVATE_FOLDER)

    @property
    def client_file(self) -> Path:
        """The credentials file of the account of the clone's users."""
        return self.mount / PRIVATE_FOLDER / "client.cnf"

    @property
    def internal_file(self) -> Path:
        """The file with the password of the account with which zsnapdb itself works in the clone."""
        return self.mount / PRIVATE_FOLDER / INTERNAL_FILE

    @property
    def host(self) -> str:
        """The address at which a client on this host reaches the clone."""
        return client_host(self.bind_address)
