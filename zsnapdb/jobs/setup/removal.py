"""The removal of an instance from schedule and configuration of this host. Data, backups and keys are kept."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from zsnapdb.base.errors import PreflightError, ZsnapdbError
from zsnapdb.base.text_files import read_text
from zsnapdb.config.settings import DEFAULT_PATH, load
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.run_locks import exclusive
from zsnapdb.jobs.clone import catalogue
from zsnapdb.jobs.clone.sources import with_volumes
from zsnapdb.jobs.setup import configuration as setup_configuration
from zsnapdb.planning.setup.configuration import without
from zsnapdb.planning.setup.layout import PACKAGED_UNITS, UNIT, UNIT_FILE, configuration_in, cron_file
from zsnapdb.planning.setup.removal import RemovalAction, RemovalFacts, RemovalPlan, plan_removal
from zsnapdb.zfs import command


def plan(instance: str | None, configuration: Path | None) -> RemovalPlan:
    """Return the plan of the removal; nothing is changed.

    Raises PreflightError if the caller is not root, UsageError if the instance is not configured.
    """
    if os.geteuid() != 0:
        raise PreflightError("a setup is removed as root", hint="run it as root")
    path = (configuration or DEFAULT_PATH).absolute()
    settings = load(path)
    chosen = Instance.of(settings, instance)
    name, own = chosen.name, chosen.settings
    text = read_text(path, "the configuration", "run setup as root")
    written = setup_configuration.written_tables(path, name)
    rest = without(text, name, written)
    others = len(settings.instance) - 1
    unit = Path(UNIT_FILE)
    is_own = unit.exists() and _read_by(unit) == str(path)
    cron = Path(cron_file(name))
    identity = chosen.repository.encryption.identity_file
    return plan_removal(
        RemovalFacts(
            instance=name,
            configuration=str(path),
            rest="" if not others else rest,
            has_agent=Path("/run/systemd/system").is_dir() and (is_own or _is_packaged(path)),
            own_unit=str(unit) if is_own else "",
            cron=str(cron) if cron.exists() else "",
            account="" if own.user == "root" or own.socket is None else own.user,
            socket=str(own.socket or ""),
            datasets=_datasets(chosen),
            repository=chosen.repository.url,
            identity=str(identity) if identity is not None else "",
            clones=sum(clone.instance == name for clone in catalogue.listing(settings, chosen.host)),
        )
    )


def execute(planned: RemovalPlan, tell: Callable[[str], None] = lambda _: None) -> RemovalPlan:
    """Do the steps of the plan that zsnapdb itself performs. Each can be repeated."""
    facts = planned.facts
    with exclusive("setup", doing="removing a setup from this host"):
        for step in planned.steps:
            if step.action is None:
                continue
            tell(step.title)
            for line in step.lines:
                command.run(line.split())
            if step.action is RemovalAction.CONFIGURATION:
                setup_configuration.remove(Path(facts.configuration), facts.rest or "", facts.instance)
                continue
            for file in step.files:
                # Keep it, as the user may have changed it. systemd and cron ignore files with this suffix.
                with contextlib.suppress(FileNotFoundError):
                    os.replace(file, f"{file}.before")
            if facts.own_unit in step.files:
                command.run(["systemctl", "daemon-reload"])
    return planned


def _read_by(unit: Path) -> str:
    return configuration_in(read_text(unit, "the unit", "run setup as root")) or str(DEFAULT_PATH)


def _is_packaged(configuration: Path) -> bool:
    return configuration == DEFAULT_PATH and any(Path(folder, UNIT).exists() for folder in PACKAGED_UNITS)


def _datasets(instance: Instance) -> tuple[str, ...]:
    """Return the datasets of the instance; none if they are not configured and its server does not answer."""
    try:
        return tuple(sorted(with_volumes(instance).volumes.values()))
    except ZsnapdbError:
        return ()
