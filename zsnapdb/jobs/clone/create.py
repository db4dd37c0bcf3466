"""Makes a clone: planned, its datasets cloned, its server started and checked; or nothing of it stays."""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pydantic import SecretStr

from zsnapdb.config import Settings
from zsnapdb.errors import ExistsError, NotThere, PreflightError
from zsnapdb.jobs.backup.low_priority import stepped_back
from zsnapdb.jobs.clock import now
from zsnapdb.jobs.clone import contract, credentials, fetch, locks, masking_policy, prepared, properties
from zsnapdb.jobs.clone.catalogue import CloneInfo, find, home, listing, policy
from zsnapdb.jobs.clone.contract import Tenant
from zsnapdb.jobs.clone.destroy import drop_live, remove_all
from zsnapdb.jobs.clone.live_set import origin_of_live, take_live
from zsnapdb.jobs.clone.masking import MaskingReport
from zsnapdb.jobs.clone.properties import CLONE_PROPERTY, ClonePhase
from zsnapdb.jobs.clone.sources import (
    LATEST,
    LIVE_STATE,
    CloneSource,
    Remote,
    SourceKind,
    find_local,
    origin_in,
    with_volumes,
)
from zsnapdb.jobs.clone.volumes import NOT_MOUNTED, clone_volumes, copy_of, layout_of
from zsnapdb.jobs.fresh import fresh_password, fresh_server_id
from zsnapdb.jobs.instance import Instance
from zsnapdb.jobs.pools import pool_for_copy
from zsnapdb.jobs.server_copy.ports import port_is_free
from zsnapdb.jobs.server_copy.prepare import Copy, CopyLayout, refuse_absolute
from zsnapdb.jobs.set_properties import BACKUP_PROPERTY, INSTANCE_PROPERTY, POSITION_PROPERTY
from zsnapdb.jobs.undo import undone_on_error
from zsnapdb.model import Position, pool_of
from zsnapdb.mysql import server
from zsnapdb.planning.chain import restore_chain
from zsnapdb.planning.clone.contract import ACCOUNT
from zsnapdb.planning.clone.lease import CloneLease, Quota, admit, first_lease, stamp
from zsnapdb.planning.clone.ports import choose_port
from zsnapdb.planning.clone.profile import ServerProfile
from zsnapdb.planning.restore.steps import RestorePlan
from zsnapdb.planning.server_copy.origin import ORIGIN_PROPERTY, Origin
from zsnapdb.repository.manifest import server_source
from zsnapdb.zfs import datasets

_NAME = re.compile(r"^[a-z0-9][a-z0-9_-]{0,31}$")
_POSITION_BYTES = 4000


@dataclass(frozen=True)
class CloneRequest:
    """What is asked for: `name` None for one made up, `ttl` (seconds) and `bind_address` None for what is configured.

    `point` is the plan that leads to `at`, where one was made already: then none is made again.
    """

    owner: str
    name: str | None = None
    source: str = LATEST
    at: str | None = None
    point: RestorePlan | None = None
    ttl: float | None = None
    profile: ServerProfile = ServerProfile.NORMAL
    bind_address: str | None = None
    starts: bool = True
    masks: bool = False


@dataclass(frozen=True)
class ClonePlan:
    """What making a clone does.

    `source` is what it is made of: snapshots that are here, a backup to be received, or the plan that leads to a point;
    None for a fresh snapshot set.

    `snapshots` by role, as far as they exist; `receives` are backups to be fetched first, oldest first; `replays`
    counts the batches of archived binlogs that are applied first.
    """

    name: str
    instance: str
    kind: SourceKind
    source: CloneSource | Remote | RestorePlan | None
    set_id: str
    snapshots: Mapping[str, str]
    receives: tuple[str, ...]
    is_prepared: bool
    replays: int
    origin: Origin
    anchor: str
    layout: CopyLayout
    copy: Copy
    port: int
    bind_address: str
    lease: CloneLease
    owner: str
    profile: ServerProfile
    starts: bool
    masks: bool


@dataclass(frozen=True)
class Seconds:
    """How long the parts of making a clone took: finding or making its snapshots, cloning and marking, making the files separate, start and recovery."""

    source: float
    clone: float
    identity: float
    start: float


@dataclass(frozen=True)
class Created:
    """A new clone. `password` is None where its server was not started yet."""

    info: CloneInfo
    password: SecretStr | None
    position: Position
    seconds: Seconds
    masking: MaskingReport | None = None

    @property
    def login(self) -> credentials.Login | None:
        """How to reach it, once its server has been started."""
        if self.password is None:
            return None
        return credentials.Login(self.info.host, self.info.port, self.info.process.socket, ACCOUNT, self.password)


def profile_of(name: str) -> ServerProfile:
    """Return the profile of that name."""
    return ServerProfile(name)


def plan(settings: Settings, instance: Instance, wish: CloneRequest) -> ClonePlan:
    """Return what `create` would do; changes nothing.

    Refuses what would fail: a name or folder taken, a quota, no port, no server program.
    """
    return _plan(settings, with_volumes(instance), wish)


def _plan(settings: Settings, instance: Instance, wish: CloneRequest) -> ClonePlan:
    if wish.at is not None:
        repository = instance.open_repository()
        top = home(settings, _own_pool(settings, instance))
        point = wish.point or fetch.point_plan(settings, instance, repository, top, wish.at)
        origin = origin_in(repository.manifest(instance.name, point.backup_id))
        return _plan_for(
            settings,
            instance,
            wish,
            SourceKind.POINT,
            point,
            point.backup_id,
            origin,
            {},
            (),
            replays=len(point.replays),
            is_prepared=True,
        )
    if wish.source == LIVE_STATE:
        return _plan_for(settings, instance, wish, SourceKind.LIVE, None, "", origin_of_live(instance), {}, ())
    found = locate(settings, instance, wish.source)
    if isinstance(found, Remote):
        receives = tuple(manifest.backup_id for manifest in found.chain)
        return _plan_for(
            settings,
            instance,
            wish,
            SourceKind.REPOSITORY,
            found,
            found.manifest.backup_id,
            origin_in(found.manifest),
            {},
            receives,
        )
    return _plan_from(settings, instance, wish, found)


def _plan_from(settings: Settings, instance: Instance, wish: CloneRequest, source: CloneSource) -> ClonePlan:
    names = {role: snapshot.full_name for role, snapshot in source.set.snapshots.items()}
    return _plan_for(
        settings,
        instance,
        wish,
        source.kind,
        source,
        source.set.backup_id,
        source.origin,
        names,
        (),
        is_prepared=source.is_prepared,
    )


def locate(settings: Settings, instance: Instance, wanted: str) -> CloneSource | Remote:
    """Return the snapshot set: on this host (prepared, if it was), received earlier, or a backup that is only in the repository."""
    local = find_local(settings, instance, wanted)
    if local is not None:
        return prepared.prepared(home(settings, local.pool), local)
    repository = instance.open_repository()
    known = repository.backup_ids(instance.name)
    if wanted == LATEST and known:
        wanted = known[-1]
    if wanted not in known:
        point = prepared.find_point(settings, instance.name, wanted)
        if point is not None:
            return point
        raise NotThere(
            f"instance {instance.name} has no snapshot set {wanted}, neither on this host nor in the repository",
            hint="see `zsnapdb list`",
        )
    target = repository.manifest(instance.name, wanted)
    server_source(target)
    top = home(settings, pool_for(settings, [volume.dataset for volume in target.volumes]))
    received = prepared.find_received(top, target.backup_id)
    if received is not None:
        return prepared.prepared(top, received)
    return Remote(restore_chain(repository.catalogue(instance.name).manifests, target))


def pool_for(settings: Settings, volumes: list[str]) -> str:
    """Return the pool for clones of what lay on these datasets: configured, else the same one, else the only one.

    PreflightError if none fits.
    """
    if settings.clones.dataset is not None:
        return pool_of(settings.clones.dataset)
    return pool_for_copy(volumes[0], "set clones.dataset")


def _own_pool(settings: Settings, instance: Instance) -> str:
    return pool_for(settings, list(instance.volumes.values()))


def _plan_for(
    settings: Settings,
    instance: Instance,
    wish: CloneRequest,
    kind: SourceKind,
    source: CloneSource | Remote | RestorePlan | None,
    set_id: str,
    origin: Origin,
    snapshots: Mapping[str, str],
    receives: tuple[str, ...],
    *,
    is_prepared: bool = False,
    replays: int = 0,
) -> ClonePlan:
    refuse_absolute(origin.absolute_tablespaces)
    masks = masking_policy.planned(instance.settings.masking, asked=wish.masks)
    name = wish.name or f"{instance.name}-{secrets.token_hex(3)}"
    if not _NAME.match(name):
        raise PreflightError(f"clone name {name!r}", hint="small letters, digits, - and _, at most 32")
    server.find_binary(instance.settings.server.binary, origin.flavour)
    server.account(instance.settings.server.user)
    used = [snapshot.partition("@")[0] for snapshot in snapshots.values()]
    pool = pool_of(used[0]) if used else pool_for(settings, [place.dataset for place in origin.volumes.values()])
    anchor = f"{home(settings, pool)}/{name}"
    if datasets.exists(anchor):
        raise ExistsError(f"the clone {name} exists: {anchor}", hint="name another, or `zsnapdb clone destroy` it")
    there = listing(settings)
    limits = settings.clones
    free = int(datasets.properties(pool, ["available"])["available"].value)
    admit(Quota(limits.per_owner, limits.total, limits.free_floor), wish.owner, [info.owner for info in there], free)
    lease = first_lease(wish.ttl, policy(limits), now())
    port = choose_port(
        limits.first_port, limits.last_port, {info.port for info in there} | set(limits.reserved_ports), port_is_free
    )
    root = limits.mount_root / name
    if root.exists() and any(root.iterdir()):
        raise ExistsError(
            f"{root}, where the clone would be mounted, is not empty", hint="name another, or empty the folder"
        )
    layout = layout_of(origin, f"{anchor}/r1", root)
    options = (*instance.settings.server.options, *wish.profile.options)
    copy = copy_of(origin, layout, root, instance.settings.server.model_copy(update={"options": options}))
    bind = wish.bind_address or limits.bind_address
    tenant = Tenant(copy, origin, 1, port, bind, limits.accounts == "lock")
    copy.render(tenant.identity())
    return ClonePlan(
        name=name,
        instance=instance.name,
        kind=kind,
        source=source,
        set_id=set_id,
        snapshots=snapshots,
        receives=receives,
        is_prepared=is_prepared,
        replays=replays,
        origin=origin,
        anchor=anchor,
        layout=layout,
        copy=copy,
        port=port,
        bind_address=bind,
        lease=lease,
        owner=wish.owner,
        profile=wish.profile,
        starts=wish.starts,
        masks=masks,
    )


def create(settings: Settings, instance: Instance, wish: CloneRequest) -> Created:
    """Make a clone and start its server.

    Afterwards it answers on a port of its own with a fresh account, shares neither identity, path, account nor
    replication with its source, and stands at exactly the recorded position; or it is gone again and the error says
    why.
    """
    instance = with_volumes(instance)
    wish = replace(wish, name=wish.name or f"{instance.name}-{secrets.token_hex(3)}")
    began = time.monotonic()
    with contextlib.ExitStack() as held:
        held.enter_context(locks.on_clone(str(wish.name), patience=0))
        # What would be refused is refused before anything is taken or fetched; what was planned is what is fetched.
        source = _obtain(settings, instance, _plan(settings, instance, wish).source, held)
        found = time.monotonic()
        with undone_on_error(lambda: drop_live(source)), stepped_back():
            planned, server_id = _make_datasets(settings, instance, wish, source)
            cloned = time.monotonic()
            with undone_on_error(lambda: remove_all(planned.anchor, planned.name, planned.copy.root)):
                tenant = Tenant(
                    planned.copy,
                    planned.origin,
                    server_id,
                    planned.port,
                    planned.bind_address,
                    settings.clones.accounts == "lock",
                )
                position = contract.make_separate(tenant)
                separate = time.monotonic()
                password = report_of_masking = None
                if planned.starts:
                    volumes = planned.layout.datasets.values()
                    report_of_masking = masking_policy.ensure(
                        instance.settings.masking,
                        tenant,
                        position,
                        instance=instance.name,
                        top=planned.anchor,
                        volumes=volumes,
                    )
                    separate = time.monotonic()
                    password = fresh_password()
                    contract.first_start(tenant, position, password)
                phase = ClonePhase.READY if planned.starts else ClonePhase.NEW
                facts = {
                    POSITION_PROPERTY: position.short(_POSITION_BYTES),
                    properties.PHASE_PROPERTY: phase,
                    properties.USED_PROPERTY: stamp(now()),
                }
                datasets.set_properties(planned.anchor, facts)
    prepared.mark_used(planned.anchor.rpartition("/")[0], planned.set_id)
    masking_seconds = report_of_masking.seconds if report_of_masking is not None else 0.0
    seconds = Seconds(found - began, cloned - found, separate - cloned - masking_seconds, time.monotonic() - separate)
    return Created(find(settings, planned.name), password, position, seconds, report_of_masking)


def _obtain(
    settings: Settings,
    instance: Instance,
    planned: CloneSource | Remote | RestorePlan | None,
    held: contextlib.ExitStack,
) -> CloneSource:
    """Return the snapshots to clone: exactly what was planned, taken or received now if need be.

    A fresh set stays locked until `held` is left: so no sweep takes it for a leak.
    """
    if planned is None:
        held.enter_context(locks.on_live_sets(instance.name))
        return take_live(instance)
    if isinstance(planned, RestorePlan):
        top = home(settings, _own_pool(settings, instance))
        return fetch.reach(settings, instance, instance.open_repository(), top, planned)
    if isinstance(planned, Remote):
        pool = pool_for(settings, [volume.dataset for volume in planned.manifest.volumes])
        return fetch.fetch(settings, instance, home(settings, pool), planned)
    return planned


def prepare(settings: Settings, instance: Instance, wanted: str) -> CloneSource:
    """Recover the snapshot set once and shut its server down cleanly, so that clones of it need no recovery.

    A remote one is received first.
    """
    instance = with_volumes(instance)
    found = locate(settings, instance, wanted)
    if isinstance(found, Remote):
        pool = pool_for(settings, [volume.dataset for volume in found.manifest.volumes])
        found = fetch.fetch(settings, instance, home(settings, pool), found)
    top = home(settings, found.pool)
    if not datasets.exists(top):
        datasets.create(top, NOT_MOUNTED)
    return prepared.prepare(settings, instance, top, found)


def _make_datasets(
    settings: Settings, instance: Instance, wish: CloneRequest, source: CloneSource
) -> tuple[ClonePlan, int]:
    """Take name and port by making the anchor, then clone every volume below it. On an error nothing of it stays."""
    server_id = fresh_server_id()
    with locks.names_and_ports():
        # Under the lock two runs never take the same name or port; the slow parts are outside it.
        planned = _plan_from(settings, instance, wish, source)
        parent = planned.anchor.rpartition("/")[0]
        if not datasets.exists(parent):
            datasets.create(parent, NOT_MOUNTED)
        datasets.create(planned.anchor, {**NOT_MOUNTED, **_facts(planned, server_id)})
    with undone_on_error(lambda: remove_all(planned.anchor, planned.name, planned.copy.root)), locks.turn():
        clone_volumes(source, planned.layout, {CLONE_PROPERTY: planned.name}, canmount="on")
    return planned, server_id


def _facts(planned: ClonePlan, server_id: int) -> dict[str, str]:
    return {
        CLONE_PROPERTY: planned.name,
        properties.PHASE_PROPERTY: ClonePhase.MAKING,
        INSTANCE_PROPERTY: planned.instance,
        BACKUP_PROPERTY: planned.set_id,
        properties.SOURCE_PROPERTY: planned.kind,
        ORIGIN_PROPERTY: planned.origin.encode(),
        properties.PORT_PROPERTY: str(planned.port),
        properties.BIND_PROPERTY: planned.bind_address,
        properties.SERVER_ID_PROPERTY: str(server_id),
        properties.CREATED_PROPERTY: stamp(now()),
        properties.FLAVOUR_PROPERTY: planned.origin.flavour,
        properties.ROOT_PROPERTY: str(planned.copy.root),
        properties.REVISION_PROPERTY: "1",
        properties.OWNER_PROPERTY: planned.owner,
        properties.EXPIRES_PROPERTY: stamp(planned.lease.expires),
        properties.PROFILE_PROPERTY: planned.profile,
        properties.MASK_PROPERTY: "yes" if planned.masks else "no",
    }
