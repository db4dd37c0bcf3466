"""A clone: the properties of its datasets, its server process, its names and its heartbeats."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from zsnapdb.base.domain_types import PROPERTY, Flavour
from zsnapdb.base.errors import PreflightError, UsageError
from zsnapdb.base.files import make_private
from zsnapdb.base.patterns import is_mount_point, printable
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.base.snapshot_set_properties import (
    BACKUP_PROPERTY,
    INSTANCE_PROPERTY,
    POSITION_PROPERTY,
    RUN_PROPERTY,
)
from zsnapdb.jobs.clone.credentials import INTERNAL_FILE, address_of, client_host
from zsnapdb.jobs.dataset_copies.catalogue import CopyDatasets
from zsnapdb.jobs.dataset_copies.properties import CREATED_PROPERTY, CopyPhase, lease_values
from zsnapdb.jobs.dataset_copies.property_fields import (
    CREATED,
    LEASE,
    ORIGIN,
    OWNER,
    PHASE,
    Form,
    PropertyTransition,
    StoredField,
    choice,
    choice_or,
    flag,
    number,
    optional,
    own_text,
    stored_field,
    text,
)
from zsnapdb.mysql.process import server
from zsnapdb.mysql.process.server import PRIVATE_FOLDER
from zsnapdb.planning.clone.isolation import AccountRights, ServerProfile
from zsnapdb.planning.clone.lease import CloneLease, Heartbeat, read_stamp, silence_since
from zsnapdb.planning.clone.pool import PoolMark
from zsnapdb.planning.clone.space_limits import LEAST
from zsnapdb.planning.server_copy.copy_options import is_loopback
from zsnapdb.planning.server_copy.source_facts import SourceServer
from zsnapdb.zfs.command import is_number
from zsnapdb.zfs.destruction import Mark


def heartbeat_file(host: Host, name: str) -> Path:
    """Return the file of the clone's newest heartbeat.

    The file contains the boot id and the time of the monotonic clock. Its modification time is the wall-clock time of
    the heartbeat.
    """
    return host.run / "heartbeats" / name


def beat(host: Host, name: str) -> None:
    """Record a heartbeat of the clone's holder.

    Raises:
        PreflightError: the file cannot be written.
    """
    file = heartbeat_file(host, name)
    make_private(file.parent)
    try:
        opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        try:
            reading = host.reading()
            text = f"{reading.boot} {reading.steady:018.6f}\n" if reading is not None else ""
            # Write a record of constant length with a single call, so that no reader sees an incomplete record.
            os.pwrite(opened, text.encode(), 0)
            os.ftruncate(opened, len(text.encode()))
        finally:
            os.close(opened)
        now = host.latest().timestamp()
        os.utime(file, (now, now), follow_symlinks=False)
    except OSError as error:
        raise PreflightError(
            f"recording the heartbeat in {file}: {error.strerror}", hint="free space in the file system of /run"
        ) from error


def heartbeat(host: Host, name: str, every: int, created: datetime) -> Heartbeat:
    """Return the last heartbeat of a clone.

    The clone was created at `created`, and expects a heartbeat every `every` seconds.
    """
    last, silence = created, None
    with contextlib.suppress(OSError, OverflowError):
        opened = os.open(heartbeat_file(host, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            last = max(last, datetime.fromtimestamp(os.fstat(opened).st_mtime, UTC))
            written, reading = _BEAT.fullmatch(os.read(opened, _MOST_OF_BEAT)), host.reading()
        finally:
            os.close(opened)
        if written is not None and reading is not None:
            beaten = written[1].decode(), float(written[2])
            silence = silence_since(beaten, (reading.boot, reading.steady))
    return Heartbeat(every, last, silence)


_MOST_OF_BEAT = 200
_BEAT = re.compile(rb"([!-~]{1,100}) ([0-9]{1,20}\.[0-9]{6})\n")


def forget_heartbeat(host: Host, name: str) -> None:
    """Remove the heartbeats of a destroyed clone."""
    with contextlib.suppress(OSError):
        heartbeat_file(host, name).unlink(missing_ok=True)


CLONE_PROPERTY = f"{PROPERTY}:clone"
LABEL_PROPERTY = f"{PROPERTY}:label"
"""On the anchor: the clone's name for users. Without this property, the name of the dataset is used."""
ROLE_PROPERTY = f"{PROPERTY}:role"
REVISION_PROPERTY = f"{PROPERTY}:revision"
SOURCE_PROPERTY = f"{PROPERTY}:source"
USED_PROPERTY = f"{PROPERTY}:used"
COMMIT_PROPERTY = f"{PROPERTY}:commit"
MESSAGE_PROPERTY = f"{PROPERTY}:message"
PARENT_PROPERTY = f"{PROPERTY}:parent"
"""On a commit: the previous commit on its branch. For the first commit: the set from which the data was cloned."""
LOG_END_PROPERTY = f"{PROPERTY}:log-end"
"""On a commit: the end of the clone's binlog at the moment of the commit (`LogEnd`)."""
BRANCHES_PROPERTY = f"{PROPERTY}:branches"
"""On the anchor: the branches of the clone, and the current branch (`Branches`).

Without this property, the clone has only the first branch.
"""
KEPT_PROPERTY = f"{PROPERTY}:kept"
"""On every dataset of a received or prepared set: the id of the set."""
BEGUN_PROPERTY = f"{PROPERTY}:begun"
"""On the anchor: the time when the clone's data was first cloned from an instance.

A clone of a commit inherits this time.
"""
CAUSER_PROPERTY = f"{PROPERTY}:caused-by"
"""On the anchor of a received set: the subject for whom it was received.

It is not set if an administrator received the set.
"""
FOLLOWS_PROPERTY = f"{PROPERTY}:follows"
"""On the anchor of a replica in a set: the port of its replication source, which is a clone too."""
SET_PROPERTY = f"{PROPERTY}:set"
"""On the anchor of a clone in a set: the name of the set, and the clone's role in the set (source, replica, member)."""
SOURCE_PART = "source"
POINT_PROPERTY = f"{PROPERTY}:point"
"""On the anchor of a received set that a replay created: the identity of its point (`point_identity`)."""
MASKED_PROPERTY = f"{PROPERTY}:masked"
"""On every volume of a masked clone: the time when masking was complete.

On a commit: the same time, or `no` if the data is not masked.
"""
NOT_MASKED = "no"
KEY_PROPERTY = f"{PROPERTY}:key"
"""The identity of data (`CloneSource.key`).

On a prepared set and its snapshots: the identity of the unprepared source. On the anchor of a clone: the identity of
the clone's present data.
"""
HISTORY_PROPERTY = f"{PROPERTY}:history"
"""On the anchor of a clone that waits in a pool: production's state at the clone's creation (`production_history`)."""
MASKED_BY_PROPERTY = f"{PROPERTY}:masked-by"
"""On a masked clone's volumes and commits: the digest of the rules that masked the data."""
RULES_PROPERTY = f"{PROPERTY}:rules"
"""On a masked prepared set and on its snapshots: the digest of the rules that masked the data (`masking.digest`).

Also on the anchor of a clone that waits in a pool.
"""
GROWN_PROPERTY = f"{PROPERTY}:grown"
"""On a revision: the bytes by which its quota was raised for data that users did not write.

That data was copied by a detach, or belongs to commits of other clones.
"""
TAKES_OVER_PROPERTY = f"{PROPERTY}:takes-over"
"""On a revision that is taking over commits: the quota and the size of its commits before the takeover.

During the takeover the quota is larger.
"""
TAKES_NOTHING_OVER = "no"
POOL_PROPERTY = f"{PROPERTY}:pool"
"""On the anchor of a clone that was created for a pool: the clone's state in the pool (`PoolMark`)."""
POOL_OWNER = "the pool"
"""The owner of the clones in a pool. No account has this name, because the name contains a space."""
OF_DATA = (ROLE_PROPERTY, MASKED_PROPERTY, MASKED_BY_PROPERTY, GROWN_PROPERTY, TAKES_OVER_PROPERTY)
"""Properties on the datasets of a revision.

The properties stay on these datasets when the clone is handed out or swapped. A reset removes them together with the
datasets.
"""
OF_COMMITS = (COMMIT_PROPERTY, MESSAGE_PROPERTY, PARENT_PROPERTY, LOG_END_PROPERTY)
"""Properties on a commit's snapshots.

No operation changes them, because a clone with commits is neither handed out nor swapped.
"""
OF_SETS = (KEPT_PROPERTY, CAUSER_PROPERTY, POINT_PROPERTY)
"""Properties on received and prepared sets, which are not clones."""
_REQUESTED_CHARACTERS = 1000
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")


def is_clone_name(text: str) -> bool:
    """Return whether the text is a valid name for a clone."""
    return _NAME.fullmatch(text) is not None


def refuse_name(text: str) -> None:
    """Raise UsageError if the text is not a valid name for a clone."""
    if not is_clone_name(text):
        raise UsageError(f"invalid clone name {text!r}", hint="use at most 32 of: small letters, digits, - and _")


def clone_mark(name: str) -> Mark:
    """Return the mark by which every dataset and snapshot of the clone is recognised."""
    return Mark(CLONE_PROPERTY, name)


def requested_text(requested: str) -> str:
    """Return a user's text as a property value: on one line, and cut to the allowed length."""
    return printable(" ".join(requested.split()))[:_REQUESTED_CHARACTERS]


def _of(
    form: Form[Any], hand_out: PropertyTransition, swap: PropertyTransition, reset: PropertyTransition
) -> Mapping[str, StoredField]:
    return stored_field(form, hand_out=hand_out, swap=swap, reset=reset)


_STAYS, _TAKEN, _EXCHANGED = PropertyTransition.STAYS, PropertyTransition.TAKEN, PropertyTransition.EXCHANGED


def _called(name: str) -> Form[str]:
    """Return the reader and writer of a property that contains the clone's name.

    If the property contains no valid name, the reader returns the name of the dataset, which never changes.
    """

    def value(found: CopyDatasets) -> str:
        recorded = found.facts[name]
        return recorded.value if recorded.is_local and is_clone_name(recorded.value) else found.name

    return Form((name,), value, lambda text: {name: text})


def _guid(found: CopyDatasets) -> str:
    recorded = found.facts[_GUID]
    return (recorded if recorded.is_local else found.facts["guid"]).value


def _address(found: CopyDatasets) -> int | None:
    recorded = found.facts[_ADDRESS]
    is_port = recorded.is_local and is_number(recorded.value) and len(recorded.value) <= 5
    return int(recorded.value) if is_port and int(recorded.value) <= _LAST_PORT else None


def _mount(found: CopyDatasets) -> Path:
    text = found.text(_ROOT)
    if not is_mount_point(text):
        raise ValueError(f"{_ROOT} is not an absolute path")
    return Path(text)


def _lease(found: CopyDatasets) -> CloneLease:
    """Return the clone's lease. Properties record no heartbeats, so the creation counts as the last heartbeat."""
    recorded = found.facts[_HEARTBEAT]
    if not recorded.is_local or recorded.value == _NONE:
        return found.lease()
    begun = read_stamp(found.text(CREATED_PROPERTY))
    return replace(found.lease(), heartbeat=Heartbeat(found.number(_HEARTBEAT), begun))


def _lease_values(lease: CloneLease) -> dict[str, str]:
    return {**lease_values(lease), _HEARTBEAT: str(lease.heartbeat.every) if lease.heartbeat is not None else _NONE}


_GUID = f"{PROPERTY}:guid"
_ADDRESS = f"{PROPERTY}:address"
_HEARTBEAT = f"{PROPERTY}:heartbeat"
_ROOT = f"{PROPERTY}:root"
_NONE, _LAST_PORT = "no", 65535
_PORT = Form((_ADDRESS,), _address, lambda port: {_ADDRESS: str(port) if port is not None else _NONE})
_OWN_GUID = Form((_GUID, "guid"), _guid, lambda guid: {_GUID: guid})
_FOLLOWS, _HISTORY = optional(number(FOLLOWS_PROPERTY)), optional(own_text(HISTORY_PROPERTY))
_POOL = choice_or(POOL_PROPERTY, PoolMark, None)
_BRANCHES = Form(
    (BRANCHES_PROPERTY,),
    own_text(BRANCHES_PROPERTY).read,
    lambda branches: {BRANCHES_PROPERTY: branches} if branches else {},
)


@dataclass(frozen=True, kw_only=True)
class CloneClaim:
    """The owner of a clone, and the properties that no other clone may share. All are read from the anchor `top`.

    `name` is the name of the dataset, and `label` is the present name for users. `id` never changes, even if a swap
    moves the clone to another dataset. Labels and ids are unique.
    """

    name: str
    top: str
    label: str = field(default="", metadata=_of(_called(LABEL_PROPERTY), _TAKEN, _EXCHANGED, _STAYS))
    id: str = field(default="", metadata=_of(_called(f"{PROPERTY}:id"), _STAYS, _EXCHANGED, _STAYS))
    port: int = field(metadata=_of(number(f"{PROPERTY}:port", _LAST_PORT), _STAYS, _STAYS, _STAYS))
    kept_port: int | None = field(default=None, metadata=_of(_PORT, _TAKEN, _EXCHANGED, _STAYS))
    """The port at which HAProxy listens for this clone. It stays the same if the port of the server changes."""
    owner: str = field(metadata=_of(OWNER, _TAKEN, _EXCHANGED, _STAYS))
    set_words: str = field(default="", metadata=_of(text(SET_PROPERTY), _STAYS, _STAYS, _STAYS))
    """The name of the clone's set, and the clone's role in it (source, replica, member); "" outside a set."""
    key: str = field(default="", metadata=_of(own_text(KEY_PROPERTY), _STAYS, _STAYS, _TAKEN))
    """The identity of the present data (`CloneSource.key`); "" if an older version created the clone."""
    begun: str = field(default="", metadata=_of(own_text(BEGUN_PROPERTY), _STAYS, _STAYS, _TAKEN))
    """The time when the data was first cloned from an instance; "" if this time is equal to `created`.

    Clones of commits inherit this time.
    """
    created: str = field(metadata=_of(CREATED, _TAKEN, _TAKEN, _STAYS))

    def is_called(self, word: str) -> bool:
        return word in (self.label, self.id)

    @property
    def set_name(self) -> str:
        return self.set_words.partition(" ")[0] if self.part else ""

    @property
    def part(self) -> str:
        return self.set_words.partition(" ")[2]

    @property
    def since(self) -> str:
        """The time since which zsnapdb keeps the data."""
        return self.begun or self.created


@dataclass(frozen=True, kw_only=True)
class CloneRecord(CloneClaim):
    """All properties on the anchor of a clone. If a property is missing, its field has the default.

    Each field defines how these three operations change its property:
    - `hand_out`: a pool hands out the clone.
    - `swap`: the clone replaces another clone.
    - `reset`: the data of the clone is replaced. The first start on the new data then records its position and the time
      of use.
    """

    instance: str = field(metadata=_of(text(INSTANCE_PROPERTY), _STAYS, _STAYS, _STAYS))
    guid: str = field(default="", metadata=_of(_OWN_GUID, _STAYS, _EXCHANGED, _STAYS))
    """The GUID of the clone's first anchor. A swap does not change it, and no other clone with the same name has it."""
    backup_id: str = field(metadata=_of(text(BACKUP_PROPERTY), _STAYS, _STAYS, _TAKEN))
    source: str = field(metadata=_of(text(SOURCE_PROPERTY), _STAYS, _STAYS, _TAKEN))
    """The kind of source of the data."""
    requested: str = field(metadata=_of(text(f"{PROPERTY}:requested"), _STAYS, _TAKEN, _TAKEN))
    """The source or point of the data, as the user wrote it."""
    original_words: str = field(metadata=_of(text(f"{PROPERTY}:original"), _STAYS, _TAKEN, _STAYS))
    """The set from which the clone was created (as `--from` accepts it), and the source as the user wrote it."""
    original_key: str = field(default="", metadata=_of(own_text(f"{PROPERTY}:original-key"), _STAYS, _TAKEN, _STAYS))
    """The identity of the data from which the clone was created. Later renames do not change this identity."""
    flavour: Flavour = field(metadata=_of(choice(f"{PROPERTY}:flavour", Flavour), _STAYS, _STAYS, _STAYS))
    bind_address: str = field(metadata=_of(text(f"{PROPERTY}:bind"), _STAYS, _STAYS, _STAYS))
    server_id: int = field(metadata=_of(number(f"{PROPERTY}:server-id"), _STAYS, _STAYS, _STAYS))
    position: str = field(default="", metadata=_of(text(POSITION_PROPERTY), _STAYS, _STAYS, _STAYS))
    phase: CopyPhase = field(metadata=_of(PHASE, _STAYS, _STAYS, _TAKEN))
    lease: CloneLease = field(
        metadata=_of(Form((*LEASE.names, _HEARTBEAT), _lease, _lease_values), _TAKEN, _EXCHANGED, _STAYS)
    )
    profile: ServerProfile = field(metadata=_of(choice(f"{PROPERTY}:profile", ServerProfile), _STAYS, _STAYS, _STAYS))
    rights: AccountRights = field(metadata=_of(choice(f"{PROPERTY}:rights", AccountRights), _TAKEN, _TAKEN, _STAYS))
    used: str = field(default="", metadata=_of(text(USED_PROPERTY), _TAKEN, _TAKEN, _STAYS))
    revision: int = field(metadata=_of(number(REVISION_PROPERTY), _STAYS, _STAYS, _TAKEN))
    mount: Path = field(metadata=_of(Form((_ROOT,), _mount, lambda path: {_ROOT: str(path)}), _STAYS, _STAYS, _STAYS))
    origin: SourceServer = field(metadata=_of(ORIGIN, _STAYS, _STAYS, _TAKEN))
    is_ephemeral: bool = field(metadata=_of(flag(f"{PROPERTY}:ephemeral"), _STAYS, _STAYS, _STAYS))
    """Whether a command created the clone for its own use.

    The clone is removed after that command ends (`locks.lock_ephemeral_maker`).
    """
    follows: int | None = field(default=None, metadata=_of(_FOLLOWS, _STAYS, _STAYS, _STAYS))
    """The port of the clone that is its replication source."""
    pool: PoolMark | None = field(default=None, metadata=_of(_POOL, _TAKEN, _EXCHANGED, _STAYS))
    """The clone's state in the pool; None if the clone was not created for the pool of its instance."""
    rules: str = field(default="", metadata=_of(own_text(RULES_PROPERTY), _STAYS, _STAYS, _STAYS))
    """The digest of the rules that masked the clone, if it was created for a pool."""
    history: str | None = field(default=None, metadata=_of(_HISTORY, _STAYS, _STAYS, _STAYS))
    """The value of `sources.production_history` when the clone was created for a pool.

    It is None if an older version created the clone.
    """
    asks_for_masking: bool = field(metadata=_of(flag(f"{PROPERTY}:mask"), _TAKEN, _TAKEN, _STAYS))
    """Whether masking was requested. The clone is then masked at each first start on new files."""
    branches: str = field(default="", metadata=_of(_BRANCHES, _STAYS, _STAYS, _TAKEN))
    """The branches of the clone, and its current branch (`Branches`); "" if the clone has only the first branch."""
    run_id: str = field(default="", metadata=_of(own_text(RUN_PROPERTY), _TAKEN, _EXCHANGED, _STAYS))
    """The id of the run that created the clone or handed it out; "" if that run had an older version."""

    @property
    def is_of_nobody(self) -> bool:
        """Whether the clone is in the pool of its instance, in any state. If so, no user has its login."""
        return self.pool is not None and self.pool.is_of_nobody

    @property
    def client_file(self) -> Path:
        """The credentials file of the users' account."""
        return self.mount / PRIVATE_FOLDER / "client.cnf"

    @property
    def internal_file(self) -> Path:
        """The file with the password of zsnapdb's internal account in the clone."""
        return self.mount / PRIVATE_FOLDER / INTERNAL_FILE

    @property
    def original(self) -> str:
        """The snapshot set from which the clone was created, in the notation of `--from`."""
        return self.original_words.partition(" ")[0]

    @property
    def original_request(self) -> str:
        """The source that the user wrote when the clone was created."""
        return self.original_words.partition(" ")[2]


@dataclass(frozen=True, kw_only=True)
class CloneInfo(CloneRecord):
    """A clone: its record, its datasets, and its server.

    `datasets` contains the anchor and all datasets below it that have the clone's mark, parents first. `volumes` (by
    role) are the datasets of the current revision. `origins` (by role) are the snapshots from which the volumes were
    cloned ("-" or "" if the volume depends on no snapshot). `leftovers` are the datasets of other revisions. `masked`
    is the time when masking was complete, or None if the clone is not masked. `own_bytes` is the space in bytes that
    only the clone occupies, including its snapshots. `quota` is the limit of that space in bytes, or 0 for no limit.
    """

    masked: str | None
    datasets: tuple[str, ...]
    volumes: Mapping[str, str]
    origins: Mapping[str, str]
    leftovers: tuple[str, ...]
    own_bytes: int
    quota: int
    is_independent: bool
    pid: int | None
    is_led_to: bool = False
    """Whether HAProxy forwards the fixed port to the clone's server."""
    kept_bytes: int = 0
    """The part of `own_bytes` that belongs to earlier data. The clone's commits still contain this data."""
    takes_over: tuple[str, ...] = ()
    """Revisions whose takeover of commits was interrupted (`catalogue.settle_adopted_commits`)."""
    grown: int = 0
    """The part of the quota, in bytes, that was added for data from a detach or a takeover.

    A reset to new data removes this part.
    """
    elsewhere: str = ""
    """The namespace, as text, of a server whose process is not visible here; "" if unknown (`isolation_check`)."""

    @property
    def waits(self) -> bool:
        """Whether the clone waits in the pool of its instance and has no user yet."""
        return self.pool is PoolMark.WAITS

    @property
    def client_port(self) -> int:
        """The port for clients: the fixed port if HAProxy forwards it to the server, else the server's port."""
        return self.kept_port if self.kept_port is not None and self.is_led_to else self.port

    @property
    def current(self) -> str:
        """The dataset of the current revision, which contains all its volumes."""
        return f"{self.top}/r{self.revision}"

    @property
    def written_quota(self) -> int:
        """The limit in bytes of the changes that users can make to the present data; 0 for no limit."""
        others = self.kept_bytes + self.grown
        return max(LEAST, self.quota - others) if self.quota and others else self.quota

    @property
    def has_original(self) -> bool:
        """Whether the clone's data still comes from the snapshot set from which the clone was created."""
        if self.original_key:
            return self.key == self.original_key
        # Older versions recorded only the set's name.
        return self.backup_id == self.original.removeprefix("@")

    @property
    def process(self) -> server.ServerProcess:
        """The clone's server process, running or not."""
        return server.ServerProcess(self.mount / PRIVATE_FOLDER)

    @property
    def host(self) -> str:
        return client_host(self.bind_address)

    @property
    def address(self) -> str:
        """The address at which clients reach the clone, HOST:PORT."""
        return address_of(self.bind_address, self.client_port)

    @property
    def local_only(self) -> bool:
        """Whether the clone can be reached only from this host."""
        return is_loopback(self.bind_address)
