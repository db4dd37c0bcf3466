"""Clones machines from a base or a backup. Either all requested machines are created, or none of them.

After the machines are created, zsnapdb waits until each started machine is ready.
"""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from zsnapdb.base import files, patterns, safe_open
from zsnapdb.base.errors import CommandTimeout, ConsistencyError, PreflightError, UsageError, ZsnapdbError
from zsnapdb.base.files import make_passable
from zsnapdb.base.patterns import printable
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.events import Events, undone_on_error
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.dataset_copies import properties as copy_properties
from zsnapdb.jobs.dataset_copies import property_fields
from zsnapdb.jobs.dataset_copies.properties import CopyPhase, owner_text
from zsnapdb.jobs.vm import catalogue, clone_sources, removal
from zsnapdb.jobs.vm.catalogue import Machine, MachineRecord, SeenMachine
from zsnapdb.jobs.vm.clone_sources import MachineOrigin
from zsnapdb.mysql.process.discovery import greeting_of
from zsnapdb.planning.clone.lease import CloneLease, first_lease, policy, quota_of, stamp
from zsnapdb.planning.dataset_property_classes import explicit_values
from zsnapdb.planning.vm import cloud_init, request
from zsnapdb.planning.vm.clone_domain import CloneNetwork, DomainIdentity, clone_xml
from zsnapdb.planning.vm.cloud_init import GuestIdentity
from zsnapdb.vm.hypervisor import ISOLATED_NETWORK, Hypervisor, MachineState, connected
from zsnapdb.zfs import datasets, snapshots, zvols

_POLL_SECONDS = 0.2
_READ_BYTES = 1 << 20
_TAIL_LINES = 5
_SERVER_PORT = 3306
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_GREETING_SECONDS = 5.0
"""The time in seconds to wait for a server's greeting at one address.

A server sends the greeting immediately after the connection. MySQL's connect_timeout does not apply here, because it
limits only clients.
"""


class ReadyKind(StrEnum):
    """The kind of a marker that shows that a machine is ready."""

    STARTED = "started"
    AGENT = "agent"
    SERIAL = "serial"
    SERVER = "server"


@dataclass(frozen=True)
class ReadyMarker:
    """The marker that shows that a machine is ready.

    The machine must print `text` on the serial line, or its MySQL or MariaDB server must send a greeting on the TCP
    port `port`.
    """

    kind: ReadyKind = ReadyKind.STARTED
    text: str = ""
    port: int = 0

    @property
    def words(self) -> str:
        """The marker in the form that the command line uses."""
        details = {ReadyKind.SERIAL: f":{self.text}", ReadyKind.SERVER: f":{self.port}"}
        return f"{self.kind}{details.get(self.kind, '')}"


def ready_marker(text: str) -> ReadyMarker:
    """Return the marker for `started`, `agent`, `serial:TEXT` or `server[:PORT]`. Raises UsageError for any other text.

    The default port of a server is 3306.
    """
    kind, separator, words = text.partition(":")
    if kind == ReadyKind.SERVER and (not separator or _PORT.fullmatch(words)) and int(words or _SERVER_PORT) < 1 << 16:
        return ReadyMarker(ReadyKind.SERVER, port=int(words or _SERVER_PORT))
    if kind not in set(ReadyKind) - {ReadyKind.SERVER} or (kind == ReadyKind.SERIAL) != bool(words):
        raise UsageError(
            f"{text!r} does not say what to wait for", hint="give one of: started, agent, serial:TEXT, server:PORT"
        )
    return ReadyMarker(ReadyKind(kind), words)


def refuse_unreachable(shows: ReadyMarker, network: str) -> None:
    """Raise PreflightError if the marker is a server, and this host has no address in the machine's network."""
    if shows.kind is ReadyKind.SERVER and network == f"network {ISOLATED_NETWORK}":
        raise PreflightError(
            f"this host has no address on the network {ISOLATED_NETWORK}, which --wait-for {shows.words} needs",
            hint="name another network (--network), or wait for the agent or the serial line",
        )


def wait_until_ready(
    hypervisor: Hypervisor, name: str, uuid: str, shows: ReadyMarker, log: Path, patience: float
) -> None:
    """Wait until the machine is ready.

    Raises ConsistencyError if the machine powers off before it is ready, and CommandTimeout after `patience` seconds.
    Both errors contain the last lines of the machine's serial log.
    """
    deadline = time.monotonic() + patience
    while not _is_ready(hypervisor, uuid, shows, log, deadline):
        known = hypervisor.find(uuid)
        state = MachineState.MISSING if known is None else known.state
        if state is not MachineState.RUNNING:
            raise ConsistencyError(
                f"the virtual machine {name} is {state} and not ready. Its serial line: {_tail(log)}",
                hint=f"see the log of QEMU, usually /var/log/libvirt/qemu/{name}.log",
            )
        if time.monotonic() >= deadline:
            addresses = f" {_addresses(hypervisor, uuid)}." if shows.kind is ReadyKind.SERVER else ""
            raise CommandTimeout(
                f"the virtual machine {name} did not show {shows.words} within {patience:g} s.{addresses}"
                f" Its serial line: {_tail(log)}",
                hint="raise vms.start_timeout, or wait for something else with --wait-for",
            )
        time.sleep(_POLL_SECONDS)


def _addresses(hypervisor: Hypervisor, uuid: str) -> str:
    addresses = ", ".join(printable(address) for address in hypervisor.addresses(uuid))
    return f"No server greeted at {addresses}" if addresses else "libvirt knows no address of it (is there an agent?)"


def _is_ready(hypervisor: Hypervisor, uuid: str, shows: ReadyMarker, log: Path, deadline: float) -> bool:
    if shows.kind is ReadyKind.AGENT:
        return hypervisor.agent_answers(uuid)
    if shows.kind is ReadyKind.SERIAL:
        return shows.text in _printed(log)
    if shows.kind is ReadyKind.SERVER:
        # The guest may report many addresses that never answer.
        return any(
            greeting_of(address, shows.port, min(_GREETING_SECONDS, left))
            for address in hypervisor.addresses(uuid)
            if (left := deadline - time.monotonic()) > 0
        )
    known = hypervisor.find(uuid)
    return known is not None and known.state is MachineState.RUNNING


def _printed(log: Path) -> str:
    try:
        with log.open("rb") as file:
            return file.read(_READ_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _tail(log: Path) -> str:
    lines = [printable(line) for line in _printed(log).splitlines() if line.strip()]
    return " / ".join(lines[-_TAIL_LINES:])[-500:] or "(nothing)"


_CLONED_AT_ONCE = 4


@dataclass(frozen=True)
class MachinesRequest:
    """The request for `count` clones of a source: a base, INSTANCE or INSTANCE@BACKUP (`clone_sources.py`).

    If `ttl` (seconds), `memory` (bytes), `cpus` or `network` is None, the value from the configuration or from the base
    is used. `marker` shows when a started machine is ready. `identity` says how the guest gets a new identity.
    """

    source: str
    owner: str
    template: str
    count: int = 1
    ttl: float | None = None
    memory: int | None = None
    cpus: int | None = None
    network: str | None = None
    starts: bool = True
    marker: ReadyMarker = field(default_factory=ReadyMarker)
    identity: GuestIdentity = GuestIdentity.NONE


@dataclass(frozen=True)
class PlannedMachine:
    """One clone: its name, anchor, volumes by target, and domain XML."""

    name: str
    anchor: str
    uuid: str
    volumes: Mapping[str, str]
    xml: str


@dataclass(frozen=True)
class MachinesPlan:
    """The plan of `create`."""

    origin: MachineOrigin
    machines: tuple[PlannedMachine, ...]
    network: CloneNetwork
    lease: CloneLease
    owner: str
    starts: bool
    marker: ReadyMarker
    identity: GuestIdentity


@dataclass(frozen=True)
class CreatedMachines:
    """The created machines, and the duration in seconds of each phase for all machines together."""

    plan: MachinesPlan
    machines: tuple[SeenMachine, ...]
    seconds: Mapping[str, float]


class _Phases:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def measured(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - began, 3)


def plan(settings: Settings, host: Host, wanted: MachinesRequest) -> MachinesPlan:
    """Return the plan of `create`; change nothing. If the machines cannot be created, an error says why."""
    _refuse_wrong_usage(settings, wanted)
    with connected(settings.vms.uri) as hypervisor:
        return _plan(settings, host, hypervisor, wanted)


def _plan(settings: Settings, host: Host, hypervisor: Hypervisor, wanted: MachinesRequest) -> MachinesPlan:
    names = request.names(wanted.template, wanted.count)
    if wanted.starts:
        refuse_unreachable(wanted.marker, _chosen_network(settings, wanted.network).words)
    origin = clone_sources.find(settings, hypervisor, wanted.source)
    known = catalogue.known_machines(settings)
    domains = hypervisor.domains()
    # Machines with unreadable properties count too: their names and datasets are in use.
    taken = [*(machine.name for machine in known.copies), *(item.name for item in known.unreadable)]
    request.refuse_taken(names, taken, [d.domain.name for d in domains])
    request.admit_requests(
        quota_of(settings, is_subject=bool(patterns.current_subject())),
        owner_text(wanted.owner),
        [*(machine.owner for machine in known.copies), *("" for _ in known.unreadable)],
        datasets.available(datasets.existing(origin.home)),
        wanted.count,
    )
    return MachinesPlan(
        origin=origin,
        machines=tuple(_machine(settings, origin, name, wanted) for name in names),
        network=_network(settings, wanted, hypervisor),
        lease=first_lease(wanted.ttl, policy(settings.clones), host.latest()),
        owner=owner_text(wanted.owner),
        starts=wanted.starts,
        marker=wanted.marker,
        identity=wanted.identity,
    )


def _refuse_wrong_usage(settings: Settings, wanted: MachinesRequest) -> None:
    """Raise UsageError if the request contradicts itself or the configuration. No other program is queried."""
    names = request.names(wanted.template, wanted.count)
    if wanted.identity is GuestIdentity.CLOUD_INIT:
        cloud_init.refuse_no_host_name(names)
    request.origin_name(wanted.source)
    _chosen_network(settings, wanted.network)


def _chosen_network(settings: Settings, name: str | None) -> CloneNetwork:
    """Return the network of the clones.

    `NAME` means the libvirt network with that name, and `bridge:NAME` means a bridge of the host. The default is the
    isolated network.
    """
    chosen = name or settings.vms.network or ISOLATED_NETWORK
    kind, separator, bridge = chosen.partition(":")
    if separator and (kind != "bridge" or not bridge):
        raise UsageError(f"{chosen!r} is not a network", hint="give the name of a libvirt network, or bridge:NAME")
    return CloneNetwork("bridge", bridge) if separator else CloneNetwork("network", chosen)


def _network(settings: Settings, wanted: MachinesRequest, hypervisor: Hypervisor) -> CloneNetwork:
    network = _chosen_network(settings, wanted.network)
    if network.kind == "network" and network.name != ISOLATED_NETWORK:
        known = hypervisor.networks()
        if network.name not in known:
            raise PreflightError(
                f"libvirt has no network {network.name}", hint=f"known networks: {', '.join(known) or 'none'}"
            )
    return network


def _machine(settings: Settings, origin: MachineOrigin, name: str, wanted: MachinesRequest) -> PlannedMachine:
    anchor = f"{origin.home}/machines/{name}"
    volumes = {target: f"{anchor}/{target}" for target in origin.snapshots}
    own, seed_image = str(uuid.uuid4()), catalogue.machine_file(settings, name, catalogue.SEED)
    identity = DomainIdentity(
        name=name,
        uuid=own,
        generation=str(uuid.uuid4()),
        dataset=anchor,
        disks={target: str(zvols.link_of(dataset)) for target, dataset in volumes.items()},
        network=_chosen_network(settings, wanted.network),
        serial_log=str(catalogue.machine_file(settings, name, catalogue.SERIAL_LOG)),
        nvram=str(catalogue.machine_file(settings, name, catalogue.NVRAM)),
        memory=wanted.memory,
        cpus=wanted.cpus,
        seed=str(seed_image) if wanted.identity is GuestIdentity.CLOUD_INIT else None,
    )
    return PlannedMachine(name, anchor, own, volumes, clone_xml(origin.xml, identity))


def create(settings: Settings, host: Host, wanted: MachinesRequest, events: Events) -> CreatedMachines:
    """Create all requested machines, and start them if requested.

    If an error occurs, all created machines are removed. If a part cannot be removed, `doctor` reports it, and `reap`
    removes it later.
    """
    _refuse_wrong_usage(settings, wanted)
    phases = _Phases()
    with connected(settings.vms.uri) as hypervisor, contextlib.ExitStack() as locked:
        locked.enter_context(clone_sources.locked(wanted.source))
        for name in request.names(wanted.template, wanted.count):
            locked.enter_context(catalogue.on_machine(name))
        with catalogue.names():
            planned = _plan(settings, host, hypervisor, wanted)
            datasets.ensure(planned.machines[0].anchor.rpartition("/")[0])
            locked.enter_context(undone_on_error(lambda: _remove_all(settings, hypervisor, planned)))
            for machine in planned.machines:
                datasets.create(machine.anchor, _facts(planned, machine, host.latest()))
        _execute(settings, hypervisor, planned, phases, events)
        names = {machine.name for machine in planned.machines}
        made = [machine for machine in catalogue.machines(settings) if machine.name in names]
        return CreatedMachines(planned, tuple(catalogue.observe(hypervisor, m) for m in made), phases.seconds)


def _facts(planned: MachinesPlan, machine: PlannedMachine, created: datetime) -> dict[str, str]:
    new = MachineRecord(
        name=machine.name,
        anchor=machine.anchor,
        base=planned.origin.name,
        uuid=machine.uuid,
        phase=CopyPhase.MAKING,
        created=stamp(created),
        owner=planned.owner,
        lease=planned.lease,
        network=planned.network.words,
        grade=planned.origin.grade,
        identity=planned.identity,
    )
    return {catalogue.MACHINE_PROPERTY: machine.name, **property_fields.properties_of(new)}


def _execute(
    settings: Settings, hypervisor: Hypervisor, planned: MachinesPlan, phases: _Phases, events: Events
) -> None:
    with phases.measured("clone"):
        _clone_all(planned)
    with phases.measured("device"):
        verify_devices(settings, [dataset for machine in planned.machines for dataset in machine.volumes.values()])
    with phases.measured("define"):
        if planned.network == CloneNetwork("network", ISOLATED_NETWORK):
            hypervisor.make_isolated_network()
        for machine in planned.machines:
            if planned.origin.nvram is not None:
                first = catalogue.machine_file(settings, machine.name, catalogue.FIRST_NVRAM)
                make_passable(first.parent)
                copy_nvram(planned.origin.nvram, first)
                copy_nvram(first, catalogue.machine_file(settings, machine.name, catalogue.NVRAM))
            if planned.identity is GuestIdentity.CLOUD_INIT:
                seed = catalogue.machine_file(settings, machine.name, catalogue.SEED)
                make_passable(seed.parent)
                seed.write_bytes(cloud_init.image(cloud_init.seed_files(machine.name, machine.uuid)))
                seed.chmod(0o644)
            prepare_log(settings, machine.name)
            hypervisor.define(machine.xml)
    if planned.starts:
        with phases.measured("start"):
            for machine in planned.machines:
                verify_devices(settings, list(machine.volumes.values()))
                hypervisor.start(machine.uuid)
                events.tell(f"virtual machine {machine.name} is started")
        with phases.measured("ready"):
            for machine in planned.machines:
                log = catalogue.machine_file(settings, machine.name, catalogue.SERIAL_LOG)
                wait_until_ready(
                    hypervisor, machine.name, machine.uuid, planned.marker, log, settings.vms.start_timeout
                )
    anchors = [machine.anchor for machine in planned.machines]
    datasets.set_on_all(anchors, {copy_properties.PHASE_PROPERTY: CopyPhase.READY})


def _clone_all(planned: MachinesPlan) -> None:
    """Clone the volumes of all machines in parallel, so that the requests need not wait one after another for ZFS.

    Each single request would wait for its own transaction group. If an error occurs, no further machine is cloned. The
    function returns only when no request is still running.
    """
    pool = ThreadPoolExecutor(_CLONED_AT_ONCE, thread_name_prefix="clone")
    try:
        for cloned in [pool.submit(_clone_volumes, planned, machine) for machine in planned.machines]:
            cloned.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _clone_volumes(planned: MachinesPlan, machine: PlannedMachine) -> None:
    marks = {catalogue.MACHINE_PROPERTY: machine.name}
    for target, dataset in machine.volumes.items():
        datasets.clone(
            planned.origin.snapshots[target],
            planned.origin.guids[target],
            dataset,
            {**explicit_values("volume"), **marks},
        )
    pending = snapshots.PendingSnapshots.of(
        [f"{dataset}@{catalogue.START_SNAPSHOT}" for dataset in machine.volumes.values()], marks
    )
    pending.start()
    pending.finish()


def verify_devices(settings: Settings, volumes: list[str]) -> None:
    """Wait until each volume has a device node that belongs to this volume.

    Raises ConsistencyError if a volume has no such device node after `vms.device_timeout`.
    """
    for dataset in volumes:
        zvols.wait_for_device(dataset, settings.vms.device_timeout)


def copy_nvram(source: Path, target: Path) -> None:
    """Copy `source` to the NVRAM file `target` in an existing folder. Only this account can read the copy.

    The guest of the new machine can read the copy, and QEMU's account may own the folder of `source`. Raises
    PreflightError if a file cannot be read or written, or `source` is a link.
    """
    try:
        files.replace(target, safe_open.read_bytes(source))
    except OSError as error:
        raise PreflightError(
            f"copying the NVRAM file {source}: {error.strerror}",
            hint="see <nvram> in the XML of the domain; if the file is that of a base, make the base again",
        ) from error


def prepare_log(settings: Settings, name: str) -> Path:
    """Create the folder of the machine's serial log, and remove an old log."""
    log = catalogue.machine_file(settings, name, catalogue.SERIAL_LOG)
    make_passable(log.parent)
    log.unlink(missing_ok=True)
    return log


def _remove_all(settings: Settings, hypervisor: Hypervisor, planned: MachinesPlan) -> None:
    """Remove all created parts of each machine. If a machine cannot be removed, continue with the next machine."""
    failures: list[str] = []
    made = {machine.name: machine for machine in catalogue.machines(settings)}
    for item in planned.machines:
        machine: Machine | None = made.get(item.name)
        if machine is None or machine.uuid != item.uuid:
            continue
        try:
            removal.remove_machine(settings, hypervisor, machine)
        except ZsnapdbError as error:
            failures.append(f"{item.name}: {error.message}")
    if failures:
        raise PreflightError("; ".join(failures), hint="run `zsnapdb reap`")
