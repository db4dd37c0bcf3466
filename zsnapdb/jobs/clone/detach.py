"""Detaches a clone from its source: the data is copied, so that the clone depends on no snapshot of the source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from zsnapdb.base.domain_types import Progress
from zsnapdb.base.errors import PreflightError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.events import Events, undone_on_error
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone import clone_info, masking_requirement, space_limits, volumes
from zsnapdb.jobs.clone.catalogue import CloneVerb, of_dataset, verb
from zsnapdb.jobs.clone.clone_info import CLONE_PROPERTY, CloneInfo, clone_mark
from zsnapdb.jobs.clone.commits import branches_to_keep
from zsnapdb.jobs.clone.destroy import drop_unused_live
from zsnapdb.jobs.clone.lifecycle import server_settings, start_locked
from zsnapdb.jobs.clone.sources import with_volumes
from zsnapdb.jobs.clone.volumes import begin_change, drop_leftovers, hide_volumes, next_number, undo_change
from zsnapdb.jobs.dataset_copies import property_fields
from zsnapdb.jobs.dataset_copies.properties import CopyPhase
from zsnapdb.jobs.host.dataset_tuning import volume_facts
from zsnapdb.jobs.host.server_copy import CopyLayout
from zsnapdb.planning.backup.send_form import SEND_FLAGS, SendForm
from zsnapdb.planning.clone.lease import SourceKind
from zsnapdb.planning.dataset_property_classes import data_values, explicit_values
from zsnapdb.planning.server_copy.source_facts import ORIGIN_PROPERTY
from zsnapdb.zfs import datasets, destruction, encryption
from zsnapdb.zfs.streams import ReceiveStream, SendStream

_BLOCK = 1 << 20


@dataclass(frozen=True)
class DetachPlan:
    """The plan of a detach: the number of bytes to copy, and the free bytes of the pool."""

    info: CloneInfo
    cost: int
    available: int


def detach(settings: Settings, host: Host, name: str, events: Events) -> CloneVerb[DetachPlan, DetachPlan]:
    """Copy the clone's data with send and receive. Afterwards the clone depends on no snapshot of its source.

    The clone's server is stopped during the copy, and started again if it was running.

    Raises:
        PreflightError: the pool has too little free space, the clone is already independent, or the copy of an
            encrypted volume would not be encrypted.
    """

    def decide(info: CloneInfo) -> tuple[DetachPlan, Callable[[], DetachPlan]]:
        planned = _detach_plan(settings, info)
        patience = server_settings(settings, info).start_timeout
        return planned, lambda: _detach(settings, host, planned, patience, events)

    return verb(settings, host, name, decide)


def _detach_plan(settings: Settings, info: CloneInfo) -> DetachPlan:
    if info.is_independent:
        raise PreflightError(f"clone {info.label} is independent already", hint="there is nothing to detach")
    if info.phase is CopyPhase.NEW and masking_requirement.is_of_prepared(info.volumes.values()):
        # Before the clone's first start, only the snapshots from which it was cloned record that the data is masked.
        raise PreflightError(
            f"clone {info.label} was never started", hint=f"run `zsnapdb clone start {info.label}` first"
        )
    _refuse_clear(info)
    cost = sum(
        int(datasets.properties(dataset, ["referenced"])["referenced"].value) for dataset in info.volumes.values()
    )
    available = space_limits.available(info)
    if available - cost < settings.clones.free_floor:
        raise PreflightError(
            f"detaching copies {cost} bytes, but the pool has {available} bytes free and must keep"
            f" {settings.clones.free_floor} free",
            hint="free space in the pool, or lower clones.free_floor",
        )
    return DetachPlan(info, cost, available)


def _refuse_clear(info: CloneInfo) -> None:
    """Raise PreflightError if the copy of an encrypted volume would not be encrypted.

    A clone inherits encryption from its origin. A received dataset inherits encryption from its parent dataset.
    """
    seen = encryption.at_rest([info.top, *info.volumes.values()])
    if seen[info.top].cipher is not None:
        return
    for dataset in sorted(info.volumes.values()):
        if seen[dataset].cipher is not None:
            raise PreflightError(
                f"{dataset} is encrypted ({seen[dataset].cipher}); its copy below {info.top} would be unencrypted",
                hint="clones keep the encryption of their source while they depend on it: do not detach this one",
            )


def _detach(settings: Settings, host: Host, planned: DetachPlan, patience: float, events: Events) -> DetachPlan:
    info = planned.info
    if info.phase is CopyPhase.CHANGING:
        drop_leftovers(info)
    info.process.stop(timeout=patience)
    revision = next_number(info)
    layout = volumes.layout_of(info.origin, f"{info.top}/r{revision}", info.mount)
    space_limits.guard(settings)
    phase_after = CopyPhase.NEW if info.phase is CopyPhase.NEW else CopyPhase.READY
    begin_change(info)
    with undone_on_error(lambda: undo_change(replace(info, phase=phase_after), revision)):
        _copy(info, layout, f"{volumes.DETACHING}-{revision}", events)
        if info.quota:
            # The data that the clone shared with the source now counts towards its quota. Increase the quota, so that
            # the space for changes stays the same.
            used = int(datasets.properties(layout.top, ["used"])["used"].value)
            grown = {"quota": str(used + info.written_quota), clone_info.GROWN_PROPERTY: str(used)}
            datasets.set_properties(layout.top, grown)
    changed = replace(info, revision=revision, phase=phase_after, branches=branches_to_keep(info))
    hide_volumes(info)
    datasets.set_properties(info.top, property_fields.property_values(changed, "revision", "phase", "branches"))
    changed = of_dataset(settings, host, info.name)
    volumes.warn_of_kept(drop_leftovers(changed), info.name, events)
    volumes.mount_for_good(changed.volumes.values())
    if info.source == SourceKind.LIVE:
        drop_unused_live(with_volumes(Instance.of(settings, info.instance).on_host(host)), info.backup_id)
    if info.pid is not None:
        start_locked(settings, host, changed)
    return replace(planned, info=of_dataset(settings, host, info.name))


def _copy(info: CloneInfo, layout: CopyLayout, short: str, events: Events) -> None:
    marks = {CLONE_PROPERTY: info.name}
    made = volumes.snapshot(info.volumes, short, marks)
    if layout.top not in layout.datasets.values():
        datasets.create(layout.top, marks)
    tuned = volume_facts(info.volumes.values())
    for role, dataset in volumes.outer_first(layout):
        options = {
            **data_values(tuned[info.volumes[role]].properties),
            **explicit_values(),
            "mountpoint": layout.mountpoints[role],
            "canmount": "noauto",
        }
        about_data = [clone_info.MASKED_PROPERTY, clone_info.MASKED_BY_PROPERTY, ORIGIN_PROPERTY]
        recorded = datasets.properties(info.volumes[role], about_data)
        options |= {clone_info.ROLE_PROPERTY: role, **marks}
        options |= {name: found.value for name, found in recorded.items() if found.is_local}
        copied_bytes = 0
        with (
            SendStream(made[role].full_name, None, SEND_FLAGS[SendForm.COMPRESSED]) as sent,
            ReceiveStream(dataset, options) as received,
        ):
            while block := sent.pipe.read(_BLOCK):
                _write_all(received, block)
                copied_bytes += len(block)
                events.progress(Progress(f"copy {role}", copied_bytes, None))
            sent.finish()
            received.finish()
        destruction.destroy_received_snapshot(f"{dataset}@{short}", made[role].guid, clone_mark(info.name))


def _write_all(stream: ReceiveStream, block: bytes) -> None:
    view = memoryview(block)
    while view:
        view = view[stream.pipe.write(view) :]
