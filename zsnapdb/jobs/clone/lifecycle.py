"""A clone's life after it was made: stopped and started, its lease, what it is reached with, its commits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from pydantic import SecretStr

from zsnapdb.config import ServerSettings, Settings
from zsnapdb.errors import ConfigError, PreflightError, ServerError
from zsnapdb.jobs.clock import fresh_backup_id, now
from zsnapdb.jobs.clone import contract, credentials, locks, masking_policy, properties, volumes
from zsnapdb.jobs.clone.catalogue import CloneInfo, find, policy, ready
from zsnapdb.jobs.clone.contract import Tenant
from zsnapdb.jobs.clone.properties import ClonePhase
from zsnapdb.jobs.fresh import fresh_password
from zsnapdb.jobs.set_properties import BACKUP_PROPERTY, POSITION_PROPERTY, snapshot_name
from zsnapdb.jobs.undo import undone_on_error
from zsnapdb.model import SnapshotSet
from zsnapdb.mysql import applier
from zsnapdb.mysql.locks import GlobalReadLock, Terms, Watchdog, held
from zsnapdb.mysql.session import Address, Session
from zsnapdb.planning.clone import lease as leases
from zsnapdb.planning.clone.contract import ACCOUNT
from zsnapdb.planning.clone.lease import CloneLease, stamp
from zsnapdb.zfs import datasets, owned

_COMMIT_LOCK_SECONDS = 10.0
"""For how long a commit may wait for its lock, and for how long a statement that is in its way may have been running."""
_COMMIT_DEADLINE_SECONDS = 30.0
"""From the first statement of the lock to its release, the snapshot included."""
_MESSAGE_BYTES = 1000


def server_settings(settings: Settings, info: CloneInfo) -> ServerSettings:
    """Return how the clone's server is started. ConfigError if its instance is no longer configured."""
    instance = settings.instance.get(info.instance)
    if instance is None:
        raise ConfigError(
            f"clone {info.name} is of instance {info.instance}, which is not configured",
            hint="its server program and options are there",
        )
    return instance.server.model_copy(update={"options": (*instance.server.options, *info.profile.options)})


def tenant_of(settings: Settings, info: CloneInfo) -> Tenant:
    """Return the clone's server as its properties say it is."""
    layout = volumes.layout_of(info.origin, f"{info.top}/r{info.revision}", info.mount)
    copy = volumes.copy_of(info.origin, layout, info.mount, server_settings(settings, info))
    found = datasets.properties(info.top, [properties.FOLLOWS_PROPERTY])[properties.FOLLOWS_PROPERTY]
    follows = int(found.value) if found.is_local else None
    return Tenant(
        copy, info.origin, info.server_id, info.port, info.bind_address, settings.clones.accounts == "lock", follows
    )


def start(settings: Settings, name: str) -> CloneInfo:
    """Start the clone's server, after a stop, a reboot, or for the first time; it is checked again.

    A running one is left alone.

    Nothing but its datasets is needed: option file and credentials are written again if they are lost (the password is
    then a new one).
    """
    with locks.on_clone(name):
        info = ready(settings, name)
        if info.pid is None:
            start_held(settings, info)
        return find(settings, name)


def start_held(settings: Settings, info: CloneInfo, password: SecretStr | None = None) -> None:
    """Start the clone's server, its lock being held by the caller.

    `password` is what its account gets at a first start (None: a new one).
    """
    volumes.mount(info.volumes.values())
    tenant = tenant_of(settings, info)
    if info.phase is ClonePhase.NEW:
        position = contract.make_separate(tenant)
        masking_policy.ensure(
            settings.instance[info.instance].masking,
            tenant,
            position,
            instance=info.instance,
            top=info.top,
            volumes=info.volumes.values(),
        )
        contract.first_start(tenant, position, password or fresh_password())
        datasets.set_properties(
            info.top,
            {
                properties.PHASE_PROPERTY: ClonePhase.READY,
                POSITION_PROPERTY: position.short(4000),
                properties.USED_PROPERTY: stamp(now()),
            },
        )
        return
    masking_policy.refuse_unmasked(settings, info)
    contract.start_again(tenant, credentials.read(info.client_file))
    if tenant.follows is not None:
        with session(info) as opened:
            # A set's replica goes on; one that was reset has forgotten its source, and is a clone of its own.
            applier.go_on(opened)
    datasets.set_properties(info.top, {properties.USED_PROPERTY: stamp(now())})


def stop(settings: Settings, name: str) -> CloneInfo:
    """Shut the clone's server down cleanly; one that does not run is left so."""
    with locks.on_clone(name):
        info = ready(settings, name)
        info.process.stop(timeout=server_settings(settings, info).start_timeout)
        return find(settings, name)


def extend(settings: Settings, name: str, seconds: float | None) -> CloneInfo:
    """Let the clone stay for so long from now (None: the configured time); never shorter than it would."""
    terms = policy(settings.clones)
    return _with_lease(
        settings, name, lambda lease: leases.extended(lease, terms.ttl if seconds is None else seconds, terms, now())
    )


def protect(settings: Settings, name: str, seconds: float) -> CloneInfo:
    """Keep the reaper off the clone for so long from now; 0 takes the protection away."""
    return _with_lease(settings, name, lambda lease: leases.protected(lease, seconds, policy(settings.clones), now()))


def _with_lease(settings: Settings, name: str, change: Callable[[CloneLease], CloneLease]) -> CloneInfo:
    with locks.on_clone(name):
        info = ready(settings, name)
        lease = change(info.lease)
        guarded = stamp(lease.protected_until) if lease.protected_until is not None else "no"
        datasets.set_properties(
            info.top, {properties.EXPIRES_PROPERTY: stamp(lease.expires), properties.PROTECTED_PROPERTY: guarded}
        )
        return replace(info, lease=lease)


def login(settings: Settings, name: str) -> credentials.Login:
    """Return how a client reaches the clone. ServerError if its server does not run or its credentials are lost."""
    info = ready(settings, name)
    masking_policy.refuse_unmasked(settings, info)
    if info.pid is None:
        raise ServerError(f"the server of clone {name} does not run", hint=f"`zsnapdb clone start {name}`")
    password = credentials.read(info.client_file)
    if password is None:
        raise ServerError(
            f"{info.client_file} is gone",
            hint=f"`zsnapdb clone stop {name}` and `zsnapdb clone start {name}` make a new password",
        )
    return credentials.Login(info.host, info.port, info.process.socket, ACCOUNT, password)


@contextlib.contextmanager
def session(info: CloneInfo) -> Iterator[Session]:
    """Open a session to the clone's running server on its private socket.

    ServerError if its credentials are lost or refused.
    """
    password = credentials.read(info.client_file)
    if password is None:
        raise ServerError(
            f"{info.client_file} is gone",
            hint=f"`zsnapdb clone stop {info.name}` and `zsnapdb clone start {info.name}` make a new password",
        )
    with Session.open(Address(user=ACCOUNT, socket=info.process.socket), password) as opened:
        yield opened


@dataclass(frozen=True)
class Committed:
    """A new snapshot set of a clone; `set.backup_id` is what `clone create --from` takes."""

    info: CloneInfo
    set: SnapshotSet
    message: str


def message_text(message: str) -> str:
    """Return a commit's message as it is kept. PreflightError if it is too long for a property."""
    text = " ".join(message.split())
    if len(text.encode()) > _MESSAGE_BYTES:
        raise PreflightError(f"the message has more than {_MESSAGE_BYTES} bytes", hint="make it shorter")
    return text


def commit(settings: Settings, name: str, message: str) -> Committed:
    """Snapshot the clone as it is, all volumes in one moment, running or not.

    The snapshot can be cloned like a backup's.

    Writers of the clone wait for that moment (FLUSH TABLES WITH READ LOCK): so it is right whatever engines they use.
    """
    text = message_text(message)
    with locks.on_clone(name):
        info = ready(settings, name)
        if info.phase is not ClonePhase.READY:
            raise PreflightError(
                f"the server of clone {name} was never started ({info.phase})", hint=f"`zsnapdb clone start {name}`"
            )
        commit_id = fresh_backup_id()
        facts = {
            properties.COMMIT_PROPERTY: commit_id,
            BACKUP_PROPERTY: commit_id,
            properties.MESSAGE_PROPERTY: text,
            properties.CREATED_PROPERTY: stamp(now()),
        }
        short = snapshot_name(commit_id)
        names = [f"{dataset}@{short}" for dataset in info.volumes.values()]
        # A lock that was lost proves nothing of the snapshot.
        with undone_on_error(lambda: owned.destroy_set(names, commit_id)), held_still(info):
            made = volumes.snapshot(info.volumes, short, facts)
        return Committed(info, SnapshotSet(commit_id, made), text)


@contextlib.contextmanager
def held_still(info: CloneInfo) -> Iterator[None]:
    """Keep the clone's server, if it runs, from writing during the block.

    The lock is as a backup's: bounded by a deadline and a watchdog. LockNotGranted if a statement is in its way,
    LockError if it was lost before the block ended.
    """
    if info.pid is None:
        yield
        return
    lock = GlobalReadLock(longest=_COMMIT_LOCK_SECONDS, kill="never")
    terms = Terms(_COMMIT_DEADLINE_SECONDS, _COMMIT_LOCK_SECONDS)
    with session(info) as owner, session(info) as second, held(lock, owner, Watchdog(second), terms):
        yield
