"""The commands of `zsnapdb vm`."""

from __future__ import annotations

import getpass
import os
from pathlib import Path
from typing import Annotated

from zsnapdb.cli import options
from zsnapdb.cli.command_context import configuration, host_context
from zsnapdb.cli.options import argument, flag, option
from zsnapdb.cli.output import show

MachineName = Annotated[str, argument("NAME", "Name of the virtual machine.")]
BaseName = Annotated[str, argument("BASE", "Name of the base.")]
CloneSourceName = Annotated[
    str, argument("SOURCE", "Base, or INSTANCE[@BACKUP] of a virtual machine. Default: its newest backup.")
]
WaitFor = Annotated[
    str,
    option(
        "--wait-for",
        "WHAT",
        "Readiness of a machine: started, agent, serial:TEXT (serial output), or server:PORT (database greeting).",
    ),
]


def create(
    name: BaseName,
    image: Annotated[Path | None, option("--image", "FILE", "Image (raw or qcow2) to copy to a zvol.")] = None,
    from_domain: Annotated[
        str | None, option("--from-domain", "DOMAIN", "Domain of libvirt whose zvols are cloned. It must be shut off.")
    ] = None,
    domain_xml: Annotated[
        Path | None,
        option(
            "--domain-xml",
            "FILE",
            "With --image: XML file of the machine.",
            show_default="a plain machine with virtio devices",
        ),
    ] = None,
    memory: Annotated[str, option("--memory", "SIZE", "With --image: memory of the plain machine.")] = "2GiB",
    cpus: Annotated[int, option("--cpus", "N", "With --image: number of processors.", min=1)] = 2,
    config: options.ConfigFile = None,
    plan: options.PlanOnly = False,
    json: options.AsJson = False,
) -> None:
    """Create a base from an image, or from a domain that is shut off. Machines are cloned from a base."""
    from zsnapdb.base.quantities import parse_size
    from zsnapdb.jobs.vm import base as job
    from zsnapdb.report import machines as report

    settings, host = host_context(config)
    request = job.BaseRequest(name, image, from_domain, domain_xml, parse_size(memory), cpus)
    if plan:
        show(report.BasePlanView(job.plan(settings, request)), json)
        return
    show(report.BaseCreatedView(job.create(settings, host, request)), json)


def list_bases(config: options.ConfigFile = None, json: options.AsJson = False) -> None:
    """List the bases."""
    from zsnapdb.jobs.vm import catalogue
    from zsnapdb.report import machines as report

    show(report.BasesView(catalogue.bases(configuration(config))), json)


def destroy_base(
    name: BaseName, config: options.ConfigFile = None, plan: options.PlanOnly = False, json: options.AsJson = False
) -> None:
    """Destroy a base that no machine depends on. It is not an error if the base does not exist."""
    from zsnapdb.jobs.vm import base as job
    from zsnapdb.report import machines as report

    settings = configuration(config)
    if plan:
        show(report.BaseDestroyPlanView(name, job.plan_destroy(settings, name)), json)
        return
    show(report.BaseDestroyedView(name, job.destroy(settings, name)), json)


NameTemplate = Annotated[str, option("--name-template", "TEMPLATE", "Name of each clone; {n} becomes its number.")]
MachineTtl = Annotated[
    str | None, option("--ttl", "DURATION", "Length of the lease, for example 2h.", show_default="clones.ttl")
]
MachineOwner = Annotated[str | None, option("--owner", "NAME", "Owner of the clones.", show_default="the caller")]
MachineMemory = Annotated[
    str | None, option("--memory", "SIZE", "Memory of each clone.", show_default="that of the base")
]
MachineProcessors = Annotated[
    int | None, option("--cpus", "N", "Number of processors of each clone.", min=1, show_default="that of the base")
]
MachineNetwork = Annotated[
    str | None,
    option(
        "--network",
        "NAME",
        "Network of libvirt, or bridge:NAME of this host, for all interfaces.",
        show_default="vms.network, else a network that leads to other clones only",
    ),
]
GuestIdentityOption = Annotated[
    str,
    option(
        "--identity",
        "HOW",
        "Host name, machine-id and ssh keys: none (those of the source) or cloud-init (NoCloud CD).",
    ),
]


def clone(
    source: CloneSourceName,
    name_template: NameTemplate,
    count: Annotated[int, option("--count", "N", "Number of clones. All of them are created, or none.")] = 1,
    ttl: MachineTtl = None,
    owner: MachineOwner = None,
    memory: MachineMemory = None,
    cpus: MachineProcessors = None,
    network: MachineNetwork = None,
    identity: GuestIdentityOption = "none",
    no_start: Annotated[bool, flag("--no-start", "Define the machines without a start.")] = False,
    wait_for: WaitFor = "started",
    config: options.ConfigFile = None,
    plan: options.PlanOnly = False,
    json: options.AsJson = False,
) -> None:
    """Clone virtual machines from a base, or from a backup of a machine on this host, and start them."""
    from zsnapdb.base.quantities import parse_duration, parse_size
    from zsnapdb.cli.progress import Terminal
    from zsnapdb.jobs.vm import create
    from zsnapdb.jobs.vm import create as job
    from zsnapdb.planning.vm.cloud_init import guest_identity
    from zsnapdb.report import machines as report

    settings, host = host_context(config)
    request = job.MachinesRequest(
        source=source,
        owner=owner or os.environ.get("SUDO_USER") or getpass.getuser(),
        template=name_template,
        count=count,
        ttl=parse_duration(ttl) if ttl is not None else None,
        memory=parse_size(memory) if memory is not None else None,
        cpus=cpus,
        network=network,
        starts=not no_start,
        marker=create.ready_marker(wait_for),
        identity=guest_identity(identity),
    )
    if plan:
        show(report.MachinesPlanView(job.plan(settings, host, request)), json)
        return
    show(report.MachinesMadeView(job.create(settings, host, request, Terminal())), json)


def list_machines(config: options.ConfigFile = None, json: options.AsJson = False) -> None:
    """List the cloned virtual machines."""
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.vm import lifecycle
    from zsnapdb.report import machines as report

    known = lifecycle.listing(configuration(config))
    show(report.MachinesView(known.copies, THIS_HOST.now(), known.unreadable), json)


def start(
    name: MachineName,
    wait_for: WaitFor = "started",
    config: options.ConfigFile = None,
    plan: options.PlanOnly = False,
    json: options.AsJson = False,
) -> None:
    """Start a virtual machine."""
    from zsnapdb.jobs.vm import create, lifecycle
    from zsnapdb.report import machines as report

    verb = lifecycle.start(configuration(config), name, create.ready_marker(wait_for))
    show(
        report.MachineStepView(verb.plan(), "start") if plan else report.MachineChangedView(verb.run(), "started"), json
    )


def stop(
    name: MachineName, config: options.ConfigFile = None, plan: options.PlanOnly = False, json: options.AsJson = False
) -> None:
    """Shut down a virtual machine. If the guest does not shut down in time, power the machine off."""
    from zsnapdb.jobs.vm import lifecycle
    from zsnapdb.report import machines as report

    verb = lifecycle.stop(configuration(config), name)
    show(
        report.MachineStepView(verb.plan(), "stop") if plan else report.MachineChangedView(verb.run(), "stopped"), json
    )


def reset(
    name: MachineName,
    wait_for: WaitFor = "started",
    config: options.ConfigFile = None,
    plan: options.PlanOnly = False,
    json: options.AsJson = False,
) -> None:
    """Reset a virtual machine to the disks with which it was cloned. Name, addresses and lease stay the same."""
    from zsnapdb.jobs.vm import create, lifecycle
    from zsnapdb.report import machines as report

    verb = lifecycle.reset(configuration(config), name, create.ready_marker(wait_for))
    show(report.MachineStepView(verb.plan(), "reset") if plan else report.MachineChangedView(verb.run(), "reset"), json)


def extend(
    name: MachineName, ttl: options.LeaseFromNow = None, config: options.ConfigFile = None, json: options.AsJson = False
) -> None:
    """Extend the lease of a virtual machine. A lease is never shortened."""
    from zsnapdb.base.quantities import parse_duration
    from zsnapdb.jobs.vm import lifecycle
    from zsnapdb.report import machines as report

    seconds = parse_duration(ttl) if ttl is not None else None
    show(report.MachineChangedView(lifecycle.extend(*host_context(config), name, seconds), "extended"), json)


def protect(
    name: MachineName, time: options.ProtectionFromNow, config: options.ConfigFile = None, json: options.AsJson = False
) -> None:
    """Protect a virtual machine from `zsnapdb reap` for some time."""
    from zsnapdb.base.quantities import parse_duration
    from zsnapdb.jobs.vm import lifecycle
    from zsnapdb.report import machines as report

    show(
        report.MachineChangedView(lifecycle.protect(*host_context(config), name, parse_duration(time)), "protected"),
        json,
    )


def destroy(
    name: MachineName,
    with_foreign_snapshots: options.WithForeignSnapshots = False,
    config: options.ConfigFile = None,
    plan: options.PlanOnly = False,
    json: options.AsJson = False,
) -> None:
    """End a virtual machine and destroy its domain and zvols. It is not an error if the machine does not exist."""
    from zsnapdb.jobs.vm import lifecycle
    from zsnapdb.report import machines as report

    verb = lifecycle.destroy(configuration(config), name, snapshots_may_go=with_foreign_snapshots)
    if plan:
        show(report.MachineDestroyPlanView(name, verb.plan()), json)
    else:
        show(report.MachineDestroyedView(name, verb.run()), json)
