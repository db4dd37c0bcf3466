"""Makes a clone: planned, its datasets cloned, its server started and checked; or nothing of it stays."""

from __future__ import annotations

import re
import secrets
import socket
import time
from dataclasses import dataclass

from pydantic import SecretStr

from zsnapdb.config import Settings
from zsnapdb.errors import ExistsError, PreflightError
from zsnapdb.jobs.clone.catalogue import CloneInfo, find, home, listing
from zsnapdb.jobs.clone.contract import ACCOUNT, start
from zsnapdb.jobs.clone.destroy import CLONES_LOCK, LOCK_PATIENCE, destroy_marked
from zsnapdb.jobs.clone.marks import CLONE_PROPERTY, CREATED_PROPERTY, FLAVOUR_PROPERTY, PORT_PROPERTY, ROLE_PROPERTY, ROOT_PROPERTY
from zsnapdb.jobs.common import BACKUP_PROPERTY, INSTANCE_PROPERTY, POSITION_PROPERTY, Instance, exclusive, find_set, now, undone_on_error
from zsnapdb.jobs.copies import Copy, Layout, lay_out, refuse_absolute
from zsnapdb.jobs.masking import MASKED_PROPERTY, MaskingReport
from zsnapdb.jobs.masking import check as check_masking
from zsnapdb.jobs.masking import mask as run_masking
from zsnapdb.jobs.observe import KEPT_PROPERTIES, with_found_volumes
from zsnapdb.model import Position, SnapshotSet
from zsnapdb.mysql import server
from zsnapdb.mysql.paths import absolute_tablespaces, with_real_paths
from zsnapdb.mysql.probe import probe
from zsnapdb.planning.facts import ServerFacts
from zsnapdb.planning.identity import Access, PathMap
from zsnapdb.planning.masking import is_masked
from zsnapdb.planning.ports import choose_port
from zsnapdb.zfs import datasets
from zsnapdb.zfs.mounts import mounted

_NAME = re.compile(r"^[a-z0-9][a-z0-9_-]{0,31}$")


@dataclass(frozen=True)
class Created:
    """A new clone that answers: how to reach it, and how long its parts took, in seconds."""

    info: CloneInfo
    user: str
    password: SecretStr
    position: Position
    clone_seconds: float
    start_seconds: float
    masking: MaskingReport | None = None

    @property
    def dsn(self) -> str:
        """A URL with the password in it: for the person who asked, not for logs."""
        return f"mysql://{self.user}:{self.password.get_secret_value()}@127.0.0.1:{self.info.port}/"


@dataclass(frozen=True)
class ClonePlan:
    """What making a clone does: from which snapshot set, into which datasets, on which port."""

    name: str
    facts: ServerFacts
    chosen: SnapshotSet
    layout: Layout
    copy: Copy
    port: int
    masked: bool = False


def plan(settings: Settings, instance: Instance, wanted: str, name: str | None, *, mask: bool = False) -> ClonePlan:
    """Return what `create` would do; changes nothing. Refuses what would fail: a name or folder taken, no port, no server program."""
    masking = instance.settings.masking
    masked = is_masked(required=masking.required, configured=bool(masking.run), asked=mask, already=False)
    if masked:
        check_masking(masking)
    with instance.session() as session:
        facts = with_real_paths(probe(session))
    instance = with_found_volumes(instance, facts)
    refuse_absolute(absolute_tablespaces(facts))
    chosen = find_set(instance, wanted)
    name = name or f"{instance.name}-{secrets.token_hex(3)}"
    if not _NAME.match(name):
        raise PreflightError(f"clone name {name!r}", hint="small letters, digits, - and _, at most 32")
    server.find_binary(instance.settings.server.binary, facts.flavour)
    server.account(instance.settings.server.user)
    pool = next(iter(instance.volumes.values())).split("/", 1)[0]
    top = f"{home(settings, pool)}/{name}"
    if datasets.exists(top):
        raise ExistsError(f"the clone {name} exists: {top}", hint="name another, or `zsnapdb clone destroy` it")
    port = choose_port(settings.clones.first_port, settings.clones.last_port, {info.port for info in listing(settings)}, _port_is_free)
    source = {role: (dataset, _mountpoint(dataset)) for role, dataset in instance.volumes.items()}
    planned = lay_out(source, top, str(settings.clones.mount_root / name))
    root = settings.clones.mount_root / name
    if root.exists() and any(root.iterdir()):
        raise ExistsError(f"{root}, where the clone would be mounted, is not empty", hint="name another, or empty the folder")
    copy = Copy(
        facts.flavour,
        facts.variables,
        PathMap(tuple((point, planned.mountpoints[role]) for role, (_, point) in source.items())),
        root,
        instance.settings.server,
    )
    copy.render(copy.identity(server_id=1, port=port, access=Access.ACCOUNTS))
    return ClonePlan(name, facts, chosen, planned, copy, port, masked)


def create(settings: Settings, instance: Instance, wanted: str, name: str | None, *, mask: bool = False) -> Created:
    """Make a clone of the local snapshot set `wanted` (a backup id or latest) and start its server.

    Afterwards it answers on a port of its own with a fresh account, shares neither identity, path nor replication with
    its source, and stands at exactly the recorded position; or it is gone again and the error says why.
    """
    # Under the lock two runs never take the same name or port; the slow start is outside it.
    with exclusive(CLONES_LOCK, doing="making or destroying a clone", patience=LOCK_PATIENCE):
        planned = plan(settings, instance, wanted, name, mask=mask)
        began = time.monotonic()
        with undone_on_error(lambda: _undo(planned)):
            _clone_datasets(instance, planned)
    cloned = time.monotonic()
    facts, copy = planned.facts, planned.copy
    with undone_on_error(lambda: _remove_failed(planned)):
        position = copy.recorded_position(has_gtids=facts.has_gtids)
        datasets.set_properties(planned.layout.top, {POSITION_PROPERTY: position.describe()[:4000]})
        report = _mask(instance, planned, position) if planned.masked else None
        masked = time.monotonic()
        password = start(copy, facts, position, planned.port)
    return Created(find(settings, planned.name), ACCOUNT, password, position, cloned - began, time.monotonic() - masked, report)


def _mask(instance: Instance, plan: ClonePlan, position: Position) -> MaskingReport:
    """Mask the clone before its server has an address; only then do its datasets say that they are masked."""
    report = run_masking(plan.copy, plan.facts, instance.settings.masking, position, instance=instance.name, clone=plan.name)
    for dataset in {plan.layout.top, *plan.layout.datasets.values()}:
        datasets.set_properties(dataset, {MASKED_PROPERTY: f"{now():%Y-%m-%dT%H:%M:%SZ}"})
    return report


def _mountpoint(dataset: str) -> str:
    for entry in reversed(mounted()):
        if entry.source == dataset and entry.fstype == "zfs" and not entry.is_bind:
            return entry.path
    raise PreflightError(f"dataset {dataset} is not mounted", hint="a clone needs to know the paths its source uses: `zfs mount`")


def _port_is_free(port: int) -> bool:
    with socket.socket() as probe_socket:
        try:
            probe_socket.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _clone_datasets(instance: Instance, plan: ClonePlan) -> None:
    """Clone every volume, outermost first, each marked in the command that makes it."""
    planned, name = plan.layout, plan.name
    facts_of_clone = {
        CLONE_PROPERTY: name,
        INSTANCE_PROPERTY: instance.name,
        BACKUP_PROPERTY: plan.chosen.backup_id,
        PORT_PROPERTY: str(plan.port),
        CREATED_PROPERTY: f"{now():%Y-%m-%dT%H:%M:%SZ}",
        FLAVOUR_PROPERTY: plan.facts.flavour.value,
        ROOT_PROPERTY: str(plan.copy.root),
    }
    parent = planned.top.rpartition("/")[0]
    if not datasets.exists(parent):
        datasets.create(parent, {"mountpoint": "none", "canmount": "off"})
    if planned.top not in planned.datasets.values():
        datasets.create(planned.top, {"mountpoint": "none", "canmount": "off", **facts_of_clone})
    for role, dataset in sorted(planned.datasets.items(), key=lambda item: len(item[1])):
        snapshot = plan.chosen.snapshots[role]
        tuned = datasets.properties(snapshot.dataset, KEPT_PROPERTIES)
        options = {key: found.value for key, found in tuned.items() if found.value != datasets.UNSET}
        options |= {"mountpoint": planned.mountpoints[role], "canmount": "on", ROLE_PROPERTY: role}
        options |= facts_of_clone if dataset == planned.top else {CLONE_PROPERTY: name}
        datasets.clone(snapshot.full_name, dataset, options)


def _undo(plan: ClonePlan) -> None:
    destroy_marked(plan.name, {plan.layout.top, *plan.layout.datasets.values()}, plan.copy.root)


def _remove_failed(plan: ClonePlan) -> None:
    """Leave nothing of a clone that did not come up: its server is ended, its datasets, each proved ours, are destroyed."""
    with exclusive(CLONES_LOCK, doing="making or destroying a clone", patience=LOCK_PATIENCE):
        plan.copy.process().kill()
        _undo(plan)
