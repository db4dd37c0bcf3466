"""A restore: plan the chain, preflight, receive into new datasets, first recovery, check of the position, hand over."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from zsnapdb.config import Settings
from zsnapdb.errors import ConsistencyError, DamagedError, ExistsError, NotThere, PreflightError
from zsnapdb.jobs.common import BACKUP_PROPERTY, INSTANCE_PROPERTY, Instance, Report, exclusive, undone_on_error
from zsnapdb.jobs.copies import Copy, Layout, check_inside, check_recovered, lay_out, refuse_absolute
from zsnapdb.jobs.observe import KEPT_PROPERTIES
from zsnapdb.model import PROPERTY, Position, Progress
from zsnapdb.mysql import server
from zsnapdb.planning.chain import restore_chain
from zsnapdb.planning.identity import Access, Identity, PathMap
from zsnapdb.repository import layout as keys
from zsnapdb.repository.manifest import Manifest, VolumePart
from zsnapdb.repository.repository import Repository
from zsnapdb.stream.download import download
from zsnapdb.zfs import datasets
from zsnapdb.zfs.streams import ReceiveStream

RESTORED_PROPERTY = f"{PROPERTY}:restored"


@dataclass(frozen=True)
class RestorePlan:
    """What a restore will do: the backups to receive, the full one first, and where to."""

    chain: tuple[Manifest, ...]
    layout: Layout
    mount: Path

    @property
    def target(self) -> Manifest:
        return self.chain[-1]


@dataclass(frozen=True)
class RestoreResult:
    """A restored instance: its datasets are mounted, its server has recovered once and stands at `position`."""

    plan: RestorePlan
    position: Position
    option_file: Path
    receive_seconds: float
    recovery_seconds: float


def choose(repository: Repository, instance: str, wanted: str) -> Manifest:
    """Return the manifest of the wanted backup: an id, or `latest`. NotThere if there is none."""
    if wanted != "latest":
        return repository.manifest(instance, wanted)
    known = repository.backup_ids(instance)
    if not known:
        raise NotThere(f"the repository holds no backup of instance {instance}", hint="see `zsnapdb list`")
    return repository.manifest(instance, known[-1])


def plan(settings: Settings, instance: Instance, repository: Repository, wanted: str, top: str) -> RestorePlan:
    """Return the plan. Refuses, before anything is fetched: an existing target, a missing pool, a broken chain, no server program."""
    target = choose(repository, instance.name, wanted)
    refuse_absolute(target.server.absolute_tablespaces)
    chain = restore_chain(repository.catalogue(instance.name).manifests, target) if not target.is_full else (target,)
    for manifest in chain:
        # A key that does not fit is found now, not after the download of the backups before it.
        repository.ciphers(manifest)
    source = {volume.role: (volume.dataset, volume.mountpoint) for volume in target.volumes}
    mount = settings.restore.mount_root / top.rpartition("/")[2]
    planned = lay_out(source, top, str(mount))
    _refuse_existing(top, mount)
    server.find_binary(instance.settings.server.binary, target.server.flavour)
    server.account(instance.settings.server.user)
    found = RestorePlan(chain, planned, mount)
    # Paths that cannot be translated are found now, not after the download.
    copy_of(instance, found).render(_alone(copy_of(instance, found), found))
    return found


def _alone(copy: Copy, planned: RestorePlan) -> Identity:
    """Return the identity of a first look: the server it was, reachable for nobody but us."""
    return copy.identity(server_id=planned.target.server.server_id, port=None, access=Access.PRIVATE_SOCKET)


def _refuse_existing(top: str, mount: Path) -> None:
    pool, _, rest = top.partition("/")
    if not rest:
        raise PreflightError(f"the target {top} is a whole pool", hint="name a new dataset in it, such as tank/restored")
    if not datasets.exists(pool):
        raise PreflightError(f"the target's pool {pool} does not exist", hint="see `zpool list`")
    parent = top.rpartition("/")[0]
    if not datasets.exists(parent):
        raise PreflightError(f"{parent}, the parent of the target {top}, does not exist", hint="create it, or name a target directly in the pool")
    if datasets.exists(top):
        raise ExistsError(f"the target dataset {top} exists", hint="name a new one; a restore never writes into a dataset that is there")
    if mount.exists() and any(mount.iterdir()):
        raise ExistsError(f"{mount}, where the restored files would be mounted, is not empty", hint="name another target, or empty the folder")


def restore(settings: Settings, instance: Instance, wanted: str, top: str, report: Report) -> RestoreResult:
    """Restore a backup into new datasets below `top` and prove it by starting its server once.

    On an error before the first recovery the new datasets are removed again; after it they are left for a look.
    """
    with exclusive(f"restore-{top}", doing=f"restoring to {top}"):
        return _restore(settings, instance, wanted, top, report)


def _restore(settings: Settings, instance: Instance, wanted: str, top: str, report: Report) -> RestoreResult:
    repository = instance.open_repository()
    planned = plan(settings, instance, repository, wanted, top)
    started = time.monotonic()
    receive_chain(instance, repository, planned, report)
    with undone_on_error(lambda: remove_received(planned.layout)):
        for volume in _outer_first(planned.target.volumes, planned.layout):
            datasets.mount(planned.layout.datasets[volume.role])
    received = time.monotonic()
    position, option_file = _first_recovery(instance, planned)
    return RestoreResult(planned, position, option_file, received - started, time.monotonic() - received)


def receive_chain(instance: Instance, repository: Repository, planned: RestorePlan, report: Report) -> None:
    """Receive all the plan's backups into new datasets, proved, with the properties they had, not mounted. On an error the datasets are gone again."""
    with undone_on_error(lambda: remove_received(planned.layout)):
        for manifest in planned.chain:
            for volume in _outer_first(manifest.volumes, planned.layout):
                _receive(instance, repository, manifest, volume, planned, report)
        _check_guids(planned)
        _give_properties(instance, planned)


def _outer_first(volumes: Sequence[VolumePart], planned: Layout) -> list[VolumePart]:
    return sorted(volumes, key=lambda volume: len(planned.datasets[volume.role]))


def remove_received(planned: Layout) -> None:
    """Remove the datasets of the layout that a restore made."""
    for dataset in sorted({planned.top, *planned.datasets.values()}, key=len, reverse=True):
        _remove_received(dataset)


def _remove_received(dataset: str) -> None:
    """Remove a dataset this restore made: it carries our mark, set locally. Its received snapshots go first."""
    if not datasets.exists(dataset):
        return
    if not datasets.properties(dataset, [RESTORED_PROPERTY])[RESTORED_PROPERTY].is_local:
        return
    datasets.destroy_snapshots_of(dataset)
    datasets.destroy(dataset)


def _receive(instance: Instance, repository: Repository, manifest: Manifest, volume: VolumePart, planned: RestorePlan, report: Report) -> None:
    """Receive one volume's stream. Every chunk is proved before a byte of it is handed on."""
    dataset = planned.layout.datasets[volume.role]
    properties = {}
    if volume.from_guid is None:
        if planned.layout.top not in planned.layout.datasets.values() and not datasets.exists(planned.layout.top):
            datasets.create(planned.layout.top, {"mountpoint": "none", "canmount": "off", RESTORED_PROPERTY: planned.target.backup_id})
        properties = {"canmount": "noauto", "mountpoint": planned.layout.mountpoints[volume.role], RESTORED_PROPERTY: planned.target.backup_id}
    chunks = repository.chunks_of(manifest, volume.role)
    total = volume.plain_size
    with ReceiveStream(dataset, properties) as stream:
        # A reader that went away is `zfs receive` giving up; finish() says why.
        with contextlib.suppress(BrokenPipeError):
            download(
                chunks,
                volume.chunk_list(),
                volume.codec,
                stream.pipe,
                concurrency=instance.repository.stream.concurrency,
                name=lambda index: f"chunk {keys.chunk(instance.name, manifest.backup_id, volume.role, index)}",
                on_bytes=lambda done: report(Progress(f"receive {volume.role} of {manifest.backup_id}", done, total)),
                ciphers=repository.ciphers(manifest),
            )
        stream.finish()


def _check_guids(planned: RestorePlan) -> None:
    for volume in planned.target.volumes:
        name = f"{planned.layout.datasets[volume.role]}@{volume.snapshot}"
        if datasets.guid(name) != volume.guid:
            raise DamagedError(f"{name} was received with another GUID than {volume.guid}", hint="the repository's chain is mixed up; restore another backup")


def _give_properties(instance: Instance, planned: RestorePlan) -> None:
    for volume in _outer_first(planned.target.volumes, planned.layout):
        dataset = planned.layout.datasets[volume.role]
        kept = {name: value for name, value in volume.properties.items() if name in KEPT_PROPERTIES}
        datasets.set_properties(dataset, {**kept, INSTANCE_PROPERTY: instance.name, BACKUP_PROPERTY: planned.target.backup_id})


def copy_of(instance: Instance, planned: RestorePlan) -> Copy:
    """Return the restored files as a copy a server can be started on."""
    pairs = tuple((volume.mountpoint, planned.layout.mountpoints[volume.role]) for volume in planned.target.volumes)
    facts = planned.target.server
    root = Path(planned.layout.mountpoints[min(planned.layout.mountpoints, key=lambda role: len(planned.layout.mountpoints[role]))])
    return Copy(facts.flavour, facts.variables, PathMap(pairs), root, instance.settings.server)


def _check_binlog(copy: Copy, planned: RestorePlan) -> None:
    """Raise ConsistencyError unless the received binlogs end where the manifest says: for servers without GTIDs the only proof."""
    recorded = planned.target.position.position(planned.target.server.flavour)
    if recorded.coordinates is None:
        return
    found = copy.recorded_position(has_gtids=False)
    if found.coordinates != recorded.coordinates:
        raise ConsistencyError(
            f"the received binlogs end at {found.coordinates}, the manifest says {recorded.coordinates}",
            hint="the copy was not started; restore another backup",
        )


def _first_recovery(instance: Instance, planned: RestorePlan) -> tuple[Position, Path]:
    """Start the server once on the restored files, with its own binlogs, unreachable for all but us; check; shut down.

    It must recover to exactly the recorded GTIDs. It keeps the identity it had: a restored server is that server.
    """
    copy = copy_of(instance, planned)
    copy.make_private()
    _check_binlog(copy, planned)
    alone = _alone(copy, planned)
    process = copy.process()
    with undone_on_error(process.kill):
        with copy.start(alone, "root", SecretStr("")) as session:
            facts, position = check_recovered(session, planned.target.position.position(planned.target.server.flavour))
            check_inside(facts, planned.mount)
        process.stop(timeout=instance.settings.server.start_timeout)
    for dataset in planned.layout.datasets.values():
        datasets.set_properties(dataset, {"canmount": "on"})
    copy.write_option_file(copy.identity(server_id=planned.target.server.server_id, port=None, access=Access.ACCOUNTS))
    return position, Path(alone.option_file)
