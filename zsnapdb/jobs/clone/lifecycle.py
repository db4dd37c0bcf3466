"""Jobs on an existing clone: start and stop its server, change its lease, connect to it."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from pydantic import SecretStr

from zsnapdb.base import program_start
from zsnapdb.base.errors import (
    ConfigError,
    NotThere,
    PreflightError,
    ServerError,
    UnknownNameError,
    UsageError,
    ZsnapdbError,
)
from zsnapdb.base.program_start import search_path
from zsnapdb.config.settings import ServerSettings, Settings
from zsnapdb.jobs.base.events import Events
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.random_values import fresh_password
from zsnapdb.jobs.base.removal_time import removal_time
from zsnapdb.jobs.base.set_properties import POSITION_PROPERTY
from zsnapdb.jobs.clone import (
    address,
    contract,
    credentials,
    handed,
    heartbeat,
    locks,
    masking_policy,
    meant,
    properties,
    reusable_sets,
    volumes,
)
from zsnapdb.jobs.clone.catalogue import claims, find, held, of_dataset, ready, refuse_label, refuse_other
from zsnapdb.jobs.clone.clone_info import CloneInfo
from zsnapdb.jobs.clone.contract import CloneServer
from zsnapdb.jobs.clone.credentials import Login
from zsnapdb.jobs.clone.elsewhere import refuse_running_elsewhere
from zsnapdb.jobs.clone.handed import HandedData
from zsnapdb.jobs.clone.revision import mend
from zsnapdb.jobs.copies import properties as copy_properties
from zsnapdb.jobs.copies.properties import CopyPhase
from zsnapdb.jobs.record import tail_record
from zsnapdb.mysql.process import server_program
from zsnapdb.mysql.replication import applier
from zsnapdb.mysql.session import Address, Session
from zsnapdb.planning.clone import lease as leases
from zsnapdb.planning.clone.client_arguments import client_arguments
from zsnapdb.planning.clone.contract import ACCOUNT, INTERNAL_ACCOUNT
from zsnapdb.planning.clone.lease import CloneLease, Heartbeat, policy, stamp
from zsnapdb.planning.clone.source_kind import SourceKind
from zsnapdb.planning.family import family
from zsnapdb.zfs import datasets


def server_settings(settings: Settings, info: CloneInfo) -> ServerSettings:
    """Return the settings of the clone's server. ConfigError if its instance is no longer configured."""
    instance = settings.instance.get(info.instance)
    if instance is None:
        raise ConfigError(
            f"the instance {info.instance} of clone {info.label} is not configured",
            hint=f"add [instance.{info.instance}] to the configuration: the clone needs its server program and options",
        )
    return instance.server.model_copy(update={"options": (*instance.server.options, *info.profile.options)})


def server_of(settings: Settings, info: CloneInfo) -> CloneServer:
    """Return the clone's server as the properties of the clone describe it."""
    layout = volumes.layout_of(info.origin, f"{info.top}/r{info.revision}", info.mount)
    copy = volumes.copy_of(info.origin, layout, info.mount, server_settings(settings, info), settings.clones)
    return CloneServer(
        copy,
        info.origin,
        info.server_id,
        info.port,
        info.bind_address,
        settings.clones.accounts == "lock",
        info.rights,
        info.follows,
    )


def start(settings: Settings, host: Host, name: str, events: Events) -> CloneInfo:
    """Start and check the clone's server: after a stop, after a reboot, or for the first time.

    A running server is left alone. Only the clone's datasets are needed: a lost option file or credentials file is
    written again. Lost credentials get a new password. Afterwards no reset, detach or switch is half done.
    """
    with held(settings, host, name) as info:
        if info.pid is None:
            start_locked(settings, host, info)
        # An interrupted reset leaves its new data never started, beside the old, or its server at work beside new data.
        if info.leftovers or info.phase is CopyPhase.CHANGING:
            volumes.warn_of_kept(mend(info), info.name, events)
        return address.open_to(settings, of_dataset(settings, host, info.name), events)


def start_locked(settings: Settings, host: Host, info: CloneInfo, password: SecretStr | None = None) -> None:
    """Start the clone's server; the caller holds the clone's lock.

    `password` is the password that the clone's account gets at a first start (None: a new password).
    """
    refuse_running_elsewhere(info)
    volumes.mount(info.volumes.values())
    clone = server_of(settings, info)
    if info.phase is CopyPhase.NEW:
        instance = Instance.of(settings, info.instance).on_host(host)
        rules = masking_policy.rules_of(instance.settings.masking, requested=info.asks_for_masking)
        position = contract.make_separate(clone, tail_record.read(instance, info.flavour))
        masking_policy.ensure(
            settings.instance[info.instance].masking,
            host,
            clone,
            position,
            instance=info.instance,
            name=info.name,
            rules=rules,
            is_of_commit=info.source == SourceKind.COMMIT,
            volumes=info.volumes.values(),
        )
        data = HandedData(info.name, info.backup_id, info.revision, rules, clone.locks_accounts)
        position = contract.first_start(
            clone,
            position,
            password or fresh_password(),
            lambda session: handed.note(host, data, clone.copy, session),
        )
        datasets.set_properties(
            info.top,
            {
                copy_properties.PHASE_PROPERTY: CopyPhase.READY,
                POSITION_PROPERTY: position.short(4000),
                properties.USED_PROPERTY: stamp(host.latest()),
            },
        )
        return
    masking_policy.refuse_unmasked(settings, info)
    contract.start_again(clone)
    if clone.follows is not None:
        with session(info) as opened:
            # A replica of a set continues to replicate. A replica that was reset has no source any more.
            applier.go_on(opened)
    datasets.set_properties(info.top, {properties.USED_PROPERTY: stamp(host.latest())})


def stop(settings: Settings, host: Host, name: str) -> CloneInfo:
    """Shut the clone's server down cleanly, if it runs. ServerError if it runs in another mount namespace."""
    with held(settings, host, name) as info:
        if info.pid is None:
            refuse_running_elsewhere(info)
        info.process.stop(timeout=server_settings(settings, info).start_timeout)
        return of_dataset(settings, host, info.name)


def extend(settings: Settings, host: Host, name: str, seconds: float | None) -> CloneInfo:
    """Extend the lease to `seconds` from now (None: clones.ttl). The lease is never made shorter."""
    return _with_lease(settings, host, name, lambda info: extended_lease(settings, host, info, seconds))


def protect(settings: Settings, host: Host, name: str, seconds: float) -> CloneInfo:
    """Protect the clone from the reaper for `seconds` from now; 0 removes the protection."""
    return _with_lease(settings, host, name, lambda info: protected_lease(settings, host, info, seconds))


def extended_lease(settings: Settings, host: Host, info: CloneInfo, seconds: float | None) -> CloneLease:
    """Return the lease of the clone after an extension. The errors are those of `leases.extended`, and of its age."""
    lease = leases.extended(info.lease, seconds, policy(settings.clones), host.latest())
    return reusable_sets.require(settings, lease, info.lease, info.since)


def protected_lease(settings: Settings, host: Host, info: CloneInfo, seconds: float) -> CloneLease:
    """Return the lease of the clone with another protection. The errors are as for an extension."""
    lease = leases.protected(info.lease, seconds, policy(settings.clones), host.latest())
    return reusable_sets.require(settings, lease, info.lease, info.since)


def rename(settings: Settings, host: Host, name: str, new: str) -> CloneInfo:
    """Give the clone another name for people; its id, port, login and lease stay.

    UsageError if no clone may have that name, ExistsError if another has it.
    """
    if not properties.is_clone_name(new):
        raise UsageError(f"invalid clone name {new!r}", hint="use at most 32 of: small letters, digits, - and _")
    with held(settings, host, name) as info, locks.names_and_ports():
        refuse_label([other for other in claims(settings).copies if other.name != info.name], new)
        datasets.set_properties(info.top, {properties.LABEL_PROPERTY: new})
        return replace(info, label=new)


def beat(settings: Settings, host: Host, name: str) -> CloneInfo:
    """Note that the holder of the clone is there. PreflightError if no heartbeats are expected of it."""
    info = ready(settings, host, name)
    if info.lease.heartbeat is None:
        raise PreflightError(
            f"no heartbeats are expected for clone {name}",
            hint="make a clone with --heartbeat, such as 60s",
            about=(info.owner,),
        )
    heartbeat.beat(host, info.name)
    now_there = Heartbeat(info.lease.heartbeat.every, host.latest())
    return replace(info, lease=replace(info.lease, heartbeat=now_there))


def beat_while(settings: Settings, host: Host, name: str, process: int) -> CloneInfo:
    """Beat until that process of this host has ended. Return the clone as it was last.

    NotThere if there is no such process, and the errors of `beat` at the first beat. Later only the end of the clone
    is one: UnknownNameError, or PreflightError as soon as it is being destroyed. What else goes wrong with a look at
    the clone says nothing about its holder.
    """
    try:
        watched = os.pidfd_open(process)
    except OSError as error:
        raise NotThere(
            f"there is no process {process} to beat for: {error.strerror}", hint="name a process that runs"
        ) from error
    try:
        return beat_until(settings, host, name, lambda seconds: bool(select.select([watched], [], [], seconds)[0]))
    finally:
        os.close(watched)


def beat_until(settings: Settings, host: Host, name: str, has_ended: Callable[[float], bool]) -> CloneInfo:
    """Beat until `has_ended`, which waits for so many seconds. Return the clone as it was last; see `beat_while`."""
    info = beat(settings, host, name)
    every = info.lease.heartbeat.every if info.lease.heartbeat is not None else 0
    # Three beats in the time of one: one that is late ends no clone.
    while not has_ended(every / 3):
        with contextlib.suppress(PreflightError):
            heartbeat.beat(host, info.name)
        try:
            now = ready(settings, host, name)
        except UnknownNameError:
            heartbeat.forget(host, info.name)
            raise
        except PreflightError:
            raise
        except ZsnapdbError:
            continue
        info = refuse_other(info, now)
    return info


def _with_lease(settings: Settings, host: Host, name: str, change: Callable[[CloneInfo], CloneLease]) -> CloneInfo:
    with held(settings, host, name) as info:
        time = removal_time(host)
        info = reusable_sets.settle(info, time)
        lease = leases.changed(info.lease, change(info), time)
        datasets.set_properties(info.top, copy_properties.lease_values(lease))
        return replace(info, lease=lease)


def login(settings: Settings, host: Host, name: str) -> credentials.Login:
    """Return how a client reaches the clone. ServerError if its server does not run or its credentials are lost."""
    info = ready(settings, host, name)
    masking_policy.refuse_unmasked(settings, info)
    if info.pid is None:
        refuse_running_elsewhere(info)
        raise ServerError(f"the server of clone {name} does not run", hint=f"run `zsnapdb clone start {name}`")
    password = _password(info, info.client_file)
    # The file is in the folder of a dataset. It was this clone's if the clone still has the same one.
    again = ready(settings, host, info.id)
    if (again.name, again.guid) != (info.name, info.guid):
        raise UnknownNameError(
            f"the clone {name} is gone", hint="see `zsnapdb clone list`, or `zsnapdb-clone list` for your own", about=()
        )
    return credentials.Login(info.host, info.client_port, info.process.socket, ACCOUNT, password)


def _password(info: CloneInfo, file: Path) -> SecretStr:
    password = credentials.read(file)
    if password is None:
        raise ServerError(
            f"the credentials file {file} is gone",
            hint=f"run `zsnapdb clone stop {info.label}`, then `zsnapdb clone start {info.label}` for a new password",
        )
    return password


@contextlib.contextmanager
def session(info: CloneInfo) -> Iterator[Session]:
    """Open a session of the internal account to the clone's running server on its private socket.

    ServerError if the credentials are lost, or if the server refuses them.
    """
    password = _password(info, info.internal_file)
    with Session.open(Address(user=INTERNAL_ACCOUNT, socket=info.process.socket), password) as opened:
        yield opened


def open_client(settings: Settings, host: Host, name: str, login: Login, words: Sequence[str]) -> NoReturn:
    """Replace this process by the client, logged in to the clone with its `login`; `words` are its arguments.

    The client gets its option file as an open file. The credentials file of the clone lies where its server can replace
    it, for example by one that names a plugin, which the client would load as root.
    PreflightError if this host has no client program.
    """
    info = find(settings, host, name)
    beside = server_program.chosen(server_settings(settings, info), info.flavour, info.origin.version).parent
    path = os.pathsep.join((str(beside), str(beside.parent / "bin"), search_path()))
    installed = (shutil.which(name, path=path) for name in family(info.flavour).client_programs)
    program = next(filter(None, installed), None)
    if program is None:
        raise PreflightError(
            f"no client program for {info.flavour} is installed", hint="install the client, or use --dsn or --env"
        )
    options = os.memfd_create("client.cnf", 0)
    # Clients ignore an option file that everybody may write.
    os.fchmod(options, 0o600)
    os.write(options, login.option_file.encode())
    program_start.become(client_arguments(program, f"/proc/self/fd/{options}", login.host, login.port, words))


@dataclass(frozen=True)
class ServerLog:
    """The last lines of the log, at most 64 KiB. The server's account, and whoever uses the clone, chose their text."""

    info: CloneInfo
    lines: tuple[str, ...]


def tail(settings: Settings, host: Host, name: str, lines: int) -> ServerLog:
    """Return the last lines of the error log of the clone's server, whether it runs or not. No link is followed."""
    info = find(settings, host, name)
    meant.require(info, name)
    return ServerLog(info, tuple(info.process.log_tail(lines).splitlines()))
