"""The conditions of a drill on this host that can be checked before there is a backup."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import ZsnapdbError
from zsnapdb.base.quantities import size
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.restore.backup_selection import client_programs, replayer_of
from zsnapdb.jobs.trial import scratch_datasets
from zsnapdb.jobs.trial.drill import innochecksum_for
from zsnapdb.mysql.process import process_managers, programs, server
from zsnapdb.planning.backup.fitness import FitnessFinding, unfit
from zsnapdb.planning.server_space import START_BYTES
from zsnapdb.zfs import datasets


def judge_host(
    settings: Settings, instance: Instance, flavour: Flavour, version: str, *, replays: bool
) -> list[FitnessFinding]:
    """Return a finding for each program or account of a drill that this host lacks.

    The drill restores a server of this version. If `replays` is set, it replays archived binlogs.
    """
    own = instance.settings.server
    checks: list[Callable[[], object]] = [
        lambda: server.account(own.user),
        lambda: process_managers.choose(own.manager),
        lambda: innochecksum_for(instance, flavour, programs.fitting_program(own, flavour, version).path),
    ]
    if replays and replayer_of(settings, flavour, version) == "client":
        checks.append(lambda: client_programs(instance, flavour, version))
    return list(_findings(checks))


def _findings(checks: Sequence[Callable[[], object]]) -> Iterator[FitnessFinding]:
    for check in checks:
        try:
            check()
        except ZsnapdbError as error:
            yield unfit("drill", error.message, error.hint)


def referenced(volumes: Sequence[str]) -> int:
    """Return the bytes that the volumes take in their pool without their snapshots."""
    return sum(int(read["referenced"].value) for read in datasets.properties_of(list(volumes), ["referenced"]).values())


def judge_room(instance: Instance, volumes: Sequence[str]) -> list[FitnessFinding]:
    """Return a finding if the pool lacks room for the copy of a drill, which is as large as the volumes."""
    try:
        home = datasets.existing(scratch_datasets.home(instance, tuple(volumes)))
        free = datasets.available(home)
        needed = START_BYTES + referenced(volumes)
    except ZsnapdbError as error:
        return [unfit("drill", error.message, error.hint)]
    if free >= needed:
        return []
    what = f"a drill restores a copy of {size(needed)}, and {home} has {size(free)} free"
    return [
        unfit("drill", what, f"free space, or name a dataset of another pool under [instance.{instance.name}.drill]")
    ]
