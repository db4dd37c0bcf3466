"""`zsnapdb vm list`, `start`, `stop`, `reset`, `extend`, `protect` and `destroy`."""

from __future__ import annotations

from zsnapdb.cli.opened import on_host
from zsnapdb.cli.options import (
    AsJson,
    ConfigFile,
    LeaseFromNow,
    PlanOnly,
    ProtectionFromNow,
    WithForeignSnapshots,
)
from zsnapdb.cli.output import show
from zsnapdb.cli.vm.options import MachineName, WaitFor


def list_machines(config: ConfigFile = None, json: AsJson = False) -> None:
    """List the virtual machines that were cloned."""
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.vm import life
    from zsnapdb.report.vm import machines as report

    known = life.listing(load(config))
    show(report.MachinesView(known.copies, THIS_HOST.now(), known.unreadable), json)


def start(
    name: MachineName,
    wait_for: WaitFor = "started",
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Start a virtual machine."""
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.vm import life, readiness
    from zsnapdb.report.vm import machines as report

    settings, marker = load(config), readiness.marker(wait_for)
    if plan:
        show(report.MachineStepView(life.plan_start(settings, name, marker), "start"), json)
        return
    show(report.MachineChangedView(life.start(settings, name, marker), "started"), json)


def stop(name: MachineName, config: ConfigFile = None, plan: PlanOnly = False, json: AsJson = False) -> None:
    """Shut a virtual machine down; take its power if its guest does not end in time."""
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.vm import life
    from zsnapdb.report.vm import machines as report

    settings = load(config)
    if plan:
        show(report.MachineStepView(life.plan_stop(settings, name), "stop"), json)
        return
    show(report.MachineChangedView(life.stop(settings, name), "stopped"), json)


def reset(
    name: MachineName,
    wait_for: WaitFor = "started",
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Give a virtual machine the disks again that it was cloned with. Name, addresses and lease stay."""
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.vm import life, readiness
    from zsnapdb.report.vm import machines as report

    settings, marker = load(config), readiness.marker(wait_for)
    if plan:
        show(report.MachineStepView(life.plan_reset(settings, name, marker), "reset"), json)
        return
    show(report.MachineChangedView(life.reset(settings, name, marker), "reset"), json)


def extend(
    name: MachineName,
    ttl: LeaseFromNow = None,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Extend the lease of a virtual machine. A lease is never shortened."""
    from zsnapdb.base.quantities import parse_duration
    from zsnapdb.jobs.vm import life
    from zsnapdb.report.vm import machines as report

    seconds = parse_duration(ttl) if ttl is not None else None
    show(report.MachineChangedView(life.extend(*on_host(config), name, seconds), "extended"), json)


def protect(
    name: MachineName,
    time: ProtectionFromNow,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Protect a virtual machine from `zsnapdb reap` for some time."""
    from zsnapdb.base.quantities import parse_duration
    from zsnapdb.jobs.vm import life
    from zsnapdb.report.vm import machines as report

    show(report.MachineChangedView(life.protect(*on_host(config), name, parse_duration(time)), "protected"), json)


def destroy(
    name: MachineName,
    with_foreign_snapshots: WithForeignSnapshots = False,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """End a virtual machine and destroy its domain and zvols. A machine that does not exist is not an error."""
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.vm import life
    from zsnapdb.report.vm import machines as report

    settings = load(config)
    if plan:
        planned = life.plan_destroy(settings, name, snapshots_may_go=with_foreign_snapshots)
        show(report.MachineDestroyPlanView(name, planned), json)
        return
    gone = life.destroy(settings, name, snapshots_may_go=with_foreign_snapshots)
    show(report.MachineDestroyedView(name, gone), json)
