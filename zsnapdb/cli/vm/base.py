"""`zsnapdb vm base create`, `list` and `destroy`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zsnapdb.cli.opened import on_host
from zsnapdb.cli.options import AsJson, ConfigFile, PlanOnly
from zsnapdb.cli.output import show
from zsnapdb.cli.vm.options import BaseName


def create(
    name: BaseName,
    image: Annotated[
        Path | None,
        typer.Option("--image", metavar="FILE", help="Copy this image (raw or qcow2) to a zvol.", show_default=False),
    ] = None,
    from_domain: Annotated[
        str | None,
        typer.Option(
            "--from-domain",
            metavar="DOMAIN",
            help="Clone the zvols of this domain of libvirt, which must be shut off.",
            show_default=False,
        ),
    ] = None,
    domain_xml: Annotated[
        Path | None,
        typer.Option(
            "--domain-xml",
            metavar="FILE",
            help="With --image: the XML of the machine.",
            show_default="a plain machine with virtio devices",
        ),
    ] = None,
    memory: Annotated[
        str, typer.Option("--memory", metavar="SIZE", help="With --image: the memory of the plain machine.")
    ] = "2GiB",
    cpus: Annotated[
        int, typer.Option("--cpus", metavar="N", min=1, help="With --image: its number of processors.")
    ] = 2,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Make a base from an image, or from a domain that is shut off. Machines are cloned from a base."""
    from zsnapdb.base.quantities import parse_size
    from zsnapdb.jobs.vm import base as job
    from zsnapdb.report.vm import base as report

    settings, host = on_host(config)
    request = job.BaseRequest(name, image, from_domain, domain_xml, parse_size(memory), cpus)
    if plan:
        show(report.BasePlanView(job.plan(settings, request)), json)
        return
    show(report.BaseCreatedView(job.create(settings, host, request)), json)


def list_bases(config: ConfigFile = None, json: AsJson = False) -> None:
    """List the bases."""
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.vm import catalogue
    from zsnapdb.report.vm import base as report

    show(report.BasesView(catalogue.bases(load(config))), json)


def destroy_base(name: BaseName, config: ConfigFile = None, plan: PlanOnly = False, json: AsJson = False) -> None:
    """Destroy a base that no machine depends on. A base that does not exist is not an error."""
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.vm import base as job
    from zsnapdb.report.vm import base as report

    settings = load(config)
    if plan:
        show(report.BaseDestroyPlanView(name, job.plan_destroy(settings, name)), json)
        return
    show(report.BaseDestroyedView(name, job.destroy(settings, name)), json)
