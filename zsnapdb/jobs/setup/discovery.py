"""Gathers the facts for a setup of this host, and makes its plan. `jobs/setup/steps.py` executes the plan."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from zsnapdb.base import files
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import ConfigError, NotFound, PreflightError, ServerError, UsageError, ZsnapdbError
from zsnapdb.config.errors import invalid_instance_name
from zsnapdb.config.repository import STORE_ADDRESSES, parse_address
from zsnapdb.config.settings import DEFAULT_PATH, load
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.record import host_backup_record
from zsnapdb.jobs.repository import init
from zsnapdb.jobs.setup import configuration as setup_configuration
from zsnapdb.jobs.setup import examples
from zsnapdb.jobs.setup import move as setup_files
from zsnapdb.jobs.setup import move as setup_move
from zsnapdb.jobs.setup.later_steps import look_ahead
from zsnapdb.jobs.steps import move_state
from zsnapdb.mysql.connection import greeting
from zsnapdb.mysql.process import discovery
from zsnapdb.mysql.process.discovery import DiscoveredProcess
from zsnapdb.mysql.process.server import find_binary
from zsnapdb.mysql.session import Address
from zsnapdb.planning.backup.placement import MountedFilesystem, mount_of
from zsnapdb.planning.server_family import flavour_in
from zsnapdb.planning.setup.facts import FoundPool, FoundServer, SetupAnswers, SetupFacts
from zsnapdb.planning.setup.layout import (
    CRON_FOLDER,
    PACKAGED_UNITS,
    UNIT,
    UNIT_FILE,
    configuration_in,
    configuration_of_cron,
    cron_file,
    cron_text,
    unit_text,
)
from zsnapdb.planning.setup.move import MoveStep, dataset_names, decide
from zsnapdb.planning.setup.plan import SetupPlan, StartedMove, plan_setup
from zsnapdb.repository import drills
from zsnapdb.zfs import datasets, encryption, version
from zsnapdb.zfs.mounts import mounted

__all__ = ["SetupAnswers", "gather", "plan"]
_PATIENCE = 5.0
"""The time in seconds for which an unreachable repository is retried when passed drills are looked up."""


def plan(answers: SetupAnswers, configuration: Path | None = None) -> SetupPlan:
    """Return the plan for this host; change nothing.

    Raises PreflightError if the caller is not root, because only root sees the sockets of all servers. Raises
    UsageError if the name of the instance is not valid.
    """
    if os.geteuid() != 0:
        raise PreflightError("setup looks at the sockets of every server", hint="run it as root")
    for why in invalid_instance_name(answers.instance):
        raise UsageError(why, hint="give --instance, or `instance` of the answer file, another name, such as main")
    started, facts = _interrupted_move(), gather((configuration or DEFAULT_PATH).absolute(), answers)
    planned = plan_setup(facts, answers, started)
    if planned.refusals and not planned.lacks_move:
        return planned
    return plan_setup(replace(facts, later=look_ahead(facts, planned)), answers, started)


def _interrupted_move() -> StartedMove | None:
    """Return the interrupted move and its next step.

    If the move has already started the server on ZFS, wait until the server accepts connections.
    """
    record = move_state.recorded()
    if record is None:
        return None
    decision = decide(record.move, move_state.observe(record))
    if decision.step is MoveStep.FINISH:
        setup_move.wait_until_it_runs(record.move)
    return StartedMove(record.move, decision)


def gather(configuration: Path, answers: SetupAnswers) -> SetupFacts:
    """Return the facts about this host: servers, pools, systemd, configuration, keys."""
    mounts = [MountedFilesystem(entry.path, entry.fstype, entry.source, entry.is_bind) for entry in mounted()]
    pools, processes = datasets.pools(), discovery.server_processes()
    signing_key = configuration.parent / "signing-key"
    cron_now, cron_reads = _cron(Path(cron_file(answers.instance)))
    return SetupFacts(
        servers=tuple(_server(process, mounts, is_alone=len(processes) == 1) for process in processes),
        pools=tuple(FoundPool(name, datasets.available(name)) for name in pools),
        zfs_release=version.kernel_release(),
        has_systemd=Path("/run/systemd/system").is_dir(),
        configuration=str(configuration),
        configured=setup_configuration.settings_in(configuration),
        recipient=_recipient(configuration.parent / "identity"),
        signer=init.public_parts(None, signing_key).signer if signing_key.exists() else None,
        unit=_missing_unit(configuration),
        cron=cron_text(own_command(), answers.instance, str(configuration)) if Path(CRON_FOLDER).is_dir() else None,
        cron_now=cron_now if cron_reads == str(configuration) else None,
        cron_reads=cron_reads,
        grants={flavour: examples.grants(flavour) for flavour in Flavour},
        datasets=frozenset(
            name for pool in pools for name in dataset_names(pool, answers.instance) if datasets.exists(name)
        ),
        passed_drill=_passed_drill(configuration, answers.instance),
        written=setup_configuration.written_tables(configuration, answers.instance),
        agent_reads=_agent_reads(),
        missing_folder=_missing_folder(answers.repository),
    )


def _missing_folder(url: str) -> str | None:
    """Return the folder of the repository if this folder does not exist; else None.

    Raises ConfigError if the address is invalid.
    """
    try:
        address = parse_address(url)
    except ValueError as error:
        raise ConfigError(str(error), hint=f"use {' or '.join(STORE_ADDRESSES)}") from None
    folder = Path("/", address.path)
    return str(folder) if address.scheme == "file" and not folder.is_dir() else None


def _passed_drill(configuration: Path, instance: str) -> str | None:
    """Return the newest passed drill of this host; None if there is none, no configuration or no repository.

    A drill of another host proves nothing about this host, which may have taken over the repository.
    """
    try:
        own = Instance.of(load(configuration), instance).impatient(_PATIENCE)
        repository = own.open_repository()
        for drill_id in reversed(host_backup_record.drilled_here(own, repository)):
            with contextlib.suppress(NotFound):
                if drills.read(repository, instance, drill_id).outcome is drills.Outcome.PASSED:
                    return drill_id
    except ZsnapdbError:
        pass
    return None


def _cron(file: Path) -> tuple[str | None, str | None]:
    """Return the text of the instance's cron file, and the configuration that its jobs read, if it has settings."""
    if not file.is_file():
        return None, None
    text = files.read_text(file, "the cron file", "run setup as root")
    named = configuration_of_cron(text) or str(DEFAULT_PATH)
    return text, named if setup_configuration.settings_in(Path(named)) is not None else None


def _recipient(identity: Path) -> str | None:
    if not identity.exists():
        return None
    (recipient, *_) = init.public_parts(identity, None).recipients
    return recipient


def _agent_reads() -> str | None:
    """Return the path of the configuration that this host's agent reads.

    Return None if the agent has no systemd unit, or if the configuration contains no settings.
    """
    unit = next(
        (file for file in (Path(UNIT_FILE), *(Path(folder, UNIT) for folder in PACKAGED_UNITS)) if file.exists()), None
    )
    if unit is None:
        return None
    said = configuration_in(files.read_text(unit, "the unit of the agent", "run setup as root"))
    configuration = Path(said) if said is not None else DEFAULT_PATH
    return str(configuration) if setup_configuration.settings_in(configuration) is not None else None


def _missing_unit(configuration: Path) -> str | None:
    """Return the systemd unit that setup must create for the agent; None if an existing unit reads `configuration`."""
    is_packaged = configuration == DEFAULT_PATH and any(Path(folder, UNIT).exists() for folder in PACKAGED_UNITS)
    own = files.read_text(Path(UNIT_FILE), "the unit", "run setup as root") if Path(UNIT_FILE).exists() else None
    if is_packaged if own is None else configuration_in(own) == str(configuration):
        return None
    return unit_text(examples.find(UNIT).text, own_command(), str(configuration))


def own_command() -> tuple[str, ...]:
    """Return the command line that starts zsnapdb from any folder: the installed command, or Python with the module."""
    program = shutil.which(sys.argv[0])
    if program is not None and os.path.basename(program) == "zsnapdb":
        return (os.path.abspath(program),)
    return (sys.executable, "-m", "zsnapdb")


def _server(process: DiscoveredProcess, mounts: list[MountedFilesystem], *, is_alone: bool) -> FoundServer:
    mount = mount_of(process.datadir, mounts)
    flavour, said, seen = flavour_in(process.program), None, None
    if process.sockets:
        try:
            said = greeting(Address("root", Path(process.sockets[0])))
            flavour = flavour_in(said, process.program)
            seen = discovery.seen_by_root(Path(process.sockets[0]))
        except ServerError:
            said = None
    is_zfs = mount is not None and mount.fstype == "zfs" and not mount.is_bind
    dataset = mount.source if mount is not None and is_zfs else ""
    return FoundServer(
        pid=process.pid,
        account=process.account,
        program=process.program,
        sockets=process.sockets,
        datadir=process.datadir,
        flavour=flavour,
        filesystem=mount.fstype if mount is not None else "unknown",
        dataset=dataset,
        cipher=encryption.at_rest([dataset])[dataset].cipher if dataset else None,
        version=said,
        page_size=seen.page_size if seen is not None else None,
        used=0 if is_zfs else setup_files.size_of_files(Path(process.datadir)),
        lets_root_in=seen is not None,
        is_read_only=seen is not None and seen.is_read_only,
        has_socket_login=seen is not None and seen.has_socket_login,
        binary=_binary(process, flavour),
        has_binlog=seen is None or bool(seen.paths.get("log_bin_basename")),
        lacks_names=seen is not None and seen.row_metadata not in ("", "FULL"),
        server_id_file=setup_files.server_id_file(flavour) if is_alone else "",
        service=discovery.service_of(process.pid),
        option_folder=setup_files.option_folder(flavour),
        files=None if is_zfs or seen is None else setup_files.files_of(process, flavour, seen, mounts),
    )


def _binary(process: DiscoveredProcess, flavour: Flavour) -> str:
    """Return the path of the server program if it must be configured; "" if zsnapdb finds it without a setting."""
    try:
        usual = os.path.realpath(find_binary(None, flavour))
    except PreflightError:
        usual = ""
    return "" if process.is_by_loader or usual == os.path.realpath(process.program) else process.program
