"""`zsnapdb vm clone`."""

from __future__ import annotations

import getpass
import os
from typing import Annotated

import typer

from zsnapdb.cli.opened import on_host
from zsnapdb.cli.options import AsJson, ConfigFile, PlanOnly
from zsnapdb.cli.output import show
from zsnapdb.cli.vm.options import CloneSourceName, WaitFor

NameTemplate = Annotated[
    str,
    typer.Option(
        "--name-template",
        metavar="TEMPLATE",
        help="The name of each clone; {n} becomes its number.",
        show_default=False,
    ),
]
MachineTtl = Annotated[
    str | None,
    typer.Option(
        "--ttl", metavar="DURATION", help="How long the lease lasts, for example 2h.", show_default="clones.ttl"
    ),
]
MachineOwner = Annotated[
    str | None, typer.Option("--owner", metavar="NAME", help="The owner of the clones.", show_default="the caller")
]
MachineMemory = Annotated[
    str | None, typer.Option("--memory", metavar="SIZE", help="The memory.", show_default="that of the base")
]
MachineProcessors = Annotated[
    int | None,
    typer.Option("--cpus", metavar="N", min=1, help="The number of processors.", show_default="that of the base"),
]
MachineNetwork = Annotated[
    str | None,
    typer.Option(
        "--network",
        metavar="NAME",
        help="A network of libvirt, or bridge:NAME of this host, for all interfaces.",
        show_default="vms.network, else a network that leads to other clones only",
    ),
]
GuestIdentityOption = Annotated[
    str,
    typer.Option(
        "--identity",
        metavar="HOW",
        help="How the guest gets a host name, a machine-id and ssh host keys of its own: none (it keeps those"
        " of the source), or cloud-init (by a NoCloud CD; the guest needs cloud-init).",
    ),
]


def clone(
    source: CloneSourceName,
    name_template: NameTemplate,
    count: Annotated[
        int, typer.Option("--count", metavar="N", help="How many clones to make: all of them, or none.")
    ] = 1,
    ttl: MachineTtl = None,
    owner: MachineOwner = None,
    memory: MachineMemory = None,
    cpus: MachineProcessors = None,
    network: MachineNetwork = None,
    identity: GuestIdentityOption = "none",
    no_start: Annotated[bool, typer.Option("--no-start", help="Define the machines and do not start them.")] = False,
    wait_for: WaitFor = "started",
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Clone virtual machines from a base, or from a backup of a machine on this host, and start them."""
    from zsnapdb.base.quantities import parse_duration, parse_size
    from zsnapdb.cli.progress import Terminal
    from zsnapdb.jobs.vm import create as job
    from zsnapdb.jobs.vm import readiness
    from zsnapdb.report.vm import machines as report

    settings, host = on_host(config)
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
        marker=readiness.marker(wait_for),
        identity=job.chosen_identity(identity),
    )
    if plan:
        show(report.MachinesPlanView(job.plan(settings, host, request)), json)
        return
    show(report.MachinesMadeView(job.create(settings, host, request, Terminal())), json)
