"""Creates and removes bases. A base is a machine that never runs. Other machines are cloned from it.

A base is created from an image, or from a domain that is shut off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from zsnapdb.base.domain_types import pool_of
from zsnapdb.base.errors import ConsistencyError, ExistsError, PreflightError, UsageError
from zsnapdb.base.files import make_private, read_text
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.events import undone_on_error
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.dataset_copies import catalogue as copies
from zsnapdb.jobs.dataset_copies import properties as copy_properties
from zsnapdb.jobs.dataset_copies import property_fields
from zsnapdb.jobs.dataset_copies.properties import CopyPhase
from zsnapdb.jobs.vm import catalogue, clone_sources, removal
from zsnapdb.jobs.vm.catalogue import BaseRecord, MachineBase
from zsnapdb.jobs.vm.create import copy_nvram
from zsnapdb.planning.clone.lease import stamp
from zsnapdb.planning.dataset_property_classes import explicit_values
from zsnapdb.planning.vm import clone_domain, request
from zsnapdb.planning.vm.domain import parse
from zsnapdb.vm import images
from zsnapdb.vm.hypervisor import Hypervisor, MachineState, connected
from zsnapdb.vm.images import DiskImage
from zsnapdb.zfs import datasets, destruction, zvols

_MIB = 1 << 20


@dataclass(frozen=True)
class BaseRequest:
    """The request for a base with this name, from an image or from a domain.

    For an image, `domain_file` is the path of the libvirt domain XML. If it is None, the machine gets a default XML
    with `memory` bytes of memory and `cpus` processors.
    """

    name: str
    image: Path | None = None
    from_domain: str | None = None
    domain_file: Path | None = None
    memory: int = 2 << 30
    cpus: int = 2


@dataclass(frozen=True)
class MachineBasePlan:
    """The plan of `create`. `sources` contains the origin dataset of each disk.

    It is empty if the image is copied.
    """

    name: str
    anchor: str
    made_of: str
    xml: str
    image: DiskImage | None
    sources: Mapping[str, str]
    sizes: Mapping[str, int]
    nvram: Path | None
    uuid: str = ""

    @property
    def volumes(self) -> dict[str, str]:
        return {target: f"{self.anchor}/{target}" for target in self.sizes}

    @property
    def source_snapshots(self) -> dict[str, str]:
        """The snapshots of the domain's disks that `create` makes, by disk target."""
        return {target: f"{name}@{catalogue.BASE_SNAPSHOT}-{self.name}" for target, name in self.sources.items()}


def plan(settings: Settings, wanted: BaseRequest) -> MachineBasePlan:
    """Return the plan of `create`; change nothing. If the image or domain cannot be a base, an error says why."""
    request.checked_name(wanted.name)
    if (wanted.image is None) == (wanted.from_domain is None):
        raise UsageError("give either --image or --from-domain", hint="see `zsnapdb vm base create --help`")
    if wanted.image is not None:
        planned = _of_image(settings, wanted, wanted.image)
    else:
        with connected(settings.vms.uri) as hypervisor:
            planned = _of_domain(settings, hypervisor, wanted.name, wanted.from_domain or "")
    if datasets.exists(planned.anchor):
        raise ExistsError(f"the dataset {planned.anchor} exists", hint="choose another name; `zsnapdb vm base list`")
    catalogue.encode_domain(planned.xml)
    return planned


def _of_image(settings: Settings, wanted: BaseRequest, path: Path) -> MachineBasePlan:
    image = images.describe(path.absolute())
    if wanted.domain_file is None:
        xml = clone_domain.new_domain(wanted.name, {"vda": "/dev/null"}, wanted.memory, wanted.cpus)
    else:
        xml = read_text(wanted.domain_file, "the XML of the domain", "give the output of `virsh dumpxml`")
    domain = parse(xml)
    request.refuse_obstacles(domain.name, clone_domain.obstacles(xml))
    if len(domain.volumes) != 1:
        raise PreflightError(
            f"the domain {domain.name} has {len(domain.volumes)} disks, and the image is one",
            hint="give the XML of a domain with one disk, or make the base --from-domain",
        )
    size = -(-image.size // _MIB) * _MIB
    anchor = f"{catalogue.home(settings, None)}/bases/{wanted.name}"
    return MachineBasePlan(
        wanted.name,
        anchor,
        f"image {path.name}",
        xml,
        image,
        {},
        {domain.volumes[0].target: size},
        Path(domain.nvram) if domain.nvram else None,
    )


def _of_domain(settings: Settings, hypervisor: Hypervisor, name: str, domain_name: str) -> MachineBasePlan:
    known = hypervisor.named(domain_name)
    if known.state is not MachineState.OFF:
        raise PreflightError(
            f"the domain {domain_name} is {known.state}, so its disks change",
            hint=f"shut it down first: `virsh shutdown {domain_name}`",
        )
    request.refuse_obstacles(domain_name, clone_domain.obstacles(known.xml))
    sources = clone_sources.zvols_of(known.domain)
    request.refuse_other_pools([pool_of(dataset) for dataset in sources.values()])
    facts = zvols.describe(list(sources.values()))
    anchor = f"{catalogue.home(settings, pool_of(next(iter(sources.values()))))}/bases/{name}"
    nvram = Path(known.domain.nvram) if known.domain.nvram else None
    sizes = {target: facts[dataset].size for target, dataset in sources.items()}
    return MachineBasePlan(
        name, anchor, f"domain {domain_name}", known.xml, None, sources, sizes, nvram, known.domain.uuid
    )


def create(settings: Settings, host: Host, wanted: BaseRequest) -> MachineBasePlan:
    """Create the base as planned, and return the plan. If an error occurs, no part of the base remains."""
    with catalogue.on_base(wanted.name):
        planned = plan(settings, wanted)
        top = planned.anchor.rpartition("/")[0]
        datasets.ensure(top)
        mark = catalogue.base_mark(wanted.name)
        new = BaseRecord(
            name=wanted.name,
            anchor=planned.anchor,
            phase=CopyPhase.MAKING,
            created=stamp(host.latest()),
            made_of=planned.made_of,
            encoded=catalogue.encode_domain(planned.xml),
        )
        datasets.create(planned.anchor, {mark.name: wanted.name, **property_fields.properties_of(new)})
        with undone_on_error(lambda: _undo(settings, planned, new)):
            marks = {mark.name: wanted.name}
            if planned.image is not None:
                for target, dataset in planned.volumes.items():
                    zvols.create(dataset, planned.sizes[target], marks)
                    images.write(planned.image, zvols.wait_for_device(dataset, settings.vms.device_timeout))
            else:
                _clone_domain(settings, planned, marks)
            if planned.nvram is not None:
                kept = catalogue.base_nvram(settings, planned.name)
                make_private(kept.parent)
                copy_nvram(planned.nvram, kept)
            copies.snapshot_together([f"{name}@{catalogue.BASE_SNAPSHOT}" for name in planned.volumes.values()], marks)
            datasets.set_properties(planned.anchor, {copy_properties.PHASE_PROPERTY: CopyPhase.READY})
    return planned


def _clone_domain(settings: Settings, planned: MachineBasePlan, marks: Mapping[str, str]) -> None:
    taken = copies.snapshot_together(list(planned.source_snapshots.values()), marks)
    with connected(settings.vms.uri) as hypervisor:
        known = hypervisor.find(planned.uuid)
    if known is None or known.state is not MachineState.OFF:
        raise ConsistencyError(
            f"the {planned.made_of} was started while its disks were snapshotted", hint="shut it down and try again"
        )
    for snapshot, dataset in zip(taken, planned.volumes.values(), strict=True):
        datasets.clone(snapshot.full_name, snapshot.guid, dataset, {**explicit_values("volume"), **marks})


def _undo(settings: Settings, planned: MachineBasePlan, new: BaseRecord) -> None:
    volumes = {target: name for target, name in planned.volumes.items() if datasets.exists(name)}
    removal.remove_base(settings, MachineBase(**vars(new), volumes=volumes, own_bytes=0))
    mark = catalogue.base_mark(planned.name)
    for name in planned.source_snapshots.values():
        if destruction.is_ours(name, mark):
            destruction.destroy_snapshot(name, mark)


def plan_destroy(settings: Settings, name: str) -> MachineBase | None:
    """Return the base that `destroy` would remove; None if it does not exist.

    Raises PreflightError if machines depend on the base.
    """
    base = copies.find_or_none(catalogue.known_bases(settings), name)
    if base is not None:
        foreign = removal.others(base.anchor, catalogue.base_mark(name))
        removal.refuse_others(f"the base {name}", foreign, snapshots_may_go=False)
    return base


def destroy(settings: Settings, name: str) -> MachineBase | None:
    """Remove the base, and return the removed base; None if it did not exist.

    Raises PreflightError if machines depend on the base.
    """
    with catalogue.on_base(name):
        base = plan_destroy(settings, name)
        if base is not None:
            removal.remove_base(settings, base)
    return base
