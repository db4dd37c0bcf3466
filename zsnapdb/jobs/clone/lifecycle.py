"""Jobs on an existing clone: start and stop its server, change its lease, connect to it, and send heartbeats.

With `hold`, a test program resets its clone by writing one line, and need not start a command for each reset.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from pydantic import SecretStr

from zsnapdb.base import program_start
from zsnapdb.base.domain_types import Position
from zsnapdb.base.errors import (
    ConfigError,
    NotFound,
    PreflightError,
    ServerError,
    UnknownNameError,
    UsageError,
    ZsnapdbError,
)
from zsnapdb.base.files import make_passable
from zsnapdb.base.program_start import search_path
from zsnapdb.base.safe_open import Owner, write_text
from zsnapdb.config.settings import ServerSettings, Settings
from zsnapdb.jobs.base.clock_record import removal_time
from zsnapdb.jobs.base.events import Events
from zsnapdb.jobs.base.host import Host, fresh_password
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.snapshot_set_properties import POSITION_PROPERTY
from zsnapdb.jobs.clone import (
    cached_sets,
    clone_info,
    credentials,
    expected_clone,
    isolated_start,
    kept_ports,
    locks,
    masking_requirement,
    reset_baseline,
    space_limits,
    volumes,
)
from zsnapdb.jobs.clone.catalogue import (
    CloneVerb,
    Intention,
    claims,
    find,
    locked_clone,
    of_dataset,
    ready,
    refuse_label,
    refuse_other,
    require_lease,
    verb,
)
from zsnapdb.jobs.clone.clone_info import CloneInfo
from zsnapdb.jobs.clone.credentials import Login
from zsnapdb.jobs.clone.isolated_start import CloneServer, refuse_running_elsewhere
from zsnapdb.jobs.clone.masking import MaskingReport
from zsnapdb.jobs.clone.volumes import revert_interrupted_change
from zsnapdb.jobs.dataset_copies import properties as copy_properties
from zsnapdb.jobs.dataset_copies.properties import CopyPhase
from zsnapdb.jobs.record import binlog_tail_record
from zsnapdb.mysql.process import programs
from zsnapdb.mysql.replication import channels
from zsnapdb.mysql.session import Address, Session
from zsnapdb.planning.clone import lease as leases
from zsnapdb.planning.clone.client_commands import client_arguments
from zsnapdb.planning.clone.isolation import ACCOUNT, INTERNAL_ACCOUNT
from zsnapdb.planning.clone.lease import CloneLease, Heartbeat, stamp
from zsnapdb.planning.clone.masking import planned_lines
from zsnapdb.planning.server_family import family
from zsnapdb.zfs import datasets

POSITION_BYTES = 4000
"""The maximum length in bytes of a position on the anchor of a clone."""


def server_settings(settings: Settings, info: CloneInfo) -> ServerSettings:
    """Return the settings of the clone's server.

    Raises:
        ConfigError: the instance of the clone is not configured.
    """
    instance = settings.instance.get(info.instance)
    if instance is None:
        raise ConfigError(
            f"the instance {info.instance} of clone {info.label} is not configured",
            hint=f"add [instance.{info.instance}] to the configuration: the clone needs its server program and options",
        )
    return instance.server.model_copy(update={"options": (*instance.server.options, *info.profile.options)})


def server_of(settings: Settings, info: CloneInfo) -> CloneServer:
    """Return the clone's server as described by the properties of the clone."""
    layout = volumes.layout_of(info.origin, f"{info.top}/r{info.revision}", info.mount)
    copy = volumes.copy_of(info.origin, layout, info.mount, server_settings(settings, info), settings.clones)
    return CloneServer(copy, info, settings.clones.accounts == "lock")


@dataclass(frozen=True)
class FirstStart:
    """The result of `start_first`. The clone's files no longer contain the source's identity.

    `masking` is the report about the masking, or None if nothing was masked. `separate_at` is the monotonic time in
    seconds at which the removal of the identity and the masking were both complete.
    """

    position: Position
    masking: MaskingReport | None
    separate_at: float


def start_first(
    instance: Instance,
    clone: CloneServer,
    rules: str,
    volumes: Collection[str],
    password: SecretStr | None,
    *,
    is_noted: bool = True,
) -> FirstStart:
    """Remove the source's identity from the files, mask the files unless `rules` is empty, and start the server.

    `password` is the password for the users. Without a password, the files are not masked and the server is not
    started. If `is_noted` is set, the state of the clone is recorded, so that a later reset is fast.
    """
    position = isolated_start.make_separate(clone, binlog_tail_record.read(instance, clone.record.flavour))
    if password is None:
        return FirstStart(position, None, time.monotonic())
    host = instance.host
    report = masking_requirement.ensure(instance.settings.masking, host, clone, position, rules, volumes)
    separate_at = time.monotonic()
    note = partial(reset_baseline.note, host, clone, rules) if is_noted else None
    return FirstStart(isolated_start.first_start(clone, position, password, note), report, separate_at)


def start(settings: Settings, host: Host, name: str, events: Events) -> CloneVerb[Intention, CloneInfo]:
    """Start and check the clone's server, after a stop or a reboot, or for the first time.

    A running server is not changed. Only the clone's datasets are needed: if an option file or credentials file is
    lost, it is written again. If the credentials are lost, a new password is created. An interrupted reset, detach or
    switch is completed or reverted.
    """

    def decide(info: CloneInfo) -> tuple[Intention, Callable[[], CloneInfo]]:
        steps = _start_steps(settings, info) if info.pid is None else ()
        if info.phase is CopyPhase.CHANGING:
            steps += ("end its interrupted change: it keeps its old data",)
        return Intention(info, steps), partial(_start, settings, host, info, events)

    return verb(settings, host, name, decide)


def _start(settings: Settings, host: Host, info: CloneInfo, events: Events) -> CloneInfo:
    if info.pid is None:
        start_locked(settings, host, info)
    # After an interrupted reset, there may be old data next to new data on which no server was started, or new data
    # next to the data of a running server.
    if info.leftovers or info.phase is CopyPhase.CHANGING:
        volumes.warn_of_kept(revert_interrupted_change(info), info.name, events)
    return kept_ports.open_to(settings, of_dataset(settings, host, info.name), events)


def _start_steps(settings: Settings, info: CloneInfo) -> tuple[str, ...]:
    refuse_running_elsewhere(info)
    program = programs.fitting_program(server_settings(settings, info), info.flavour, info.origin.version)
    how = (
        f"start {program.path} on port {info.port} of {info.bind_address}, and check that the"
        " clone is separate from its source"
    )
    if info.phase is not CopyPhase.NEW:
        masking_requirement.refuse_unmasked(settings, info)
        return (how,)
    masking = settings.instance[info.instance].masking
    masks = masking_requirement.masks_at_start(settings, info) and masking.run
    scripts = tuple(f"mask the clone: {' '.join(words)}" for words in masking.run if masks)
    lines = planned_lines(info.origin.flavour) if masks else ()
    return (*scripts, *lines, "write its credentials with a new password", how)


def start_locked(settings: Settings, host: Host, info: CloneInfo, password: SecretStr | None = None) -> None:
    """Start the clone's server. The caller must hold the clone's lock.

    At the first start, the users' account gets the given password. If `password` is None, a new password is created.
    """
    refuse_running_elsewhere(info)
    volumes.mount(info.volumes.values())
    clone = server_of(settings, info)
    if info.phase is CopyPhase.NEW:
        instance = Instance.of(settings, info.instance).on_host(host)
        rules = masking_requirement.rules_of_clone(settings, info)
        started = start_first(instance, clone, rules, info.volumes.values(), password or fresh_password())
        datasets.set_properties(
            info.top,
            {
                copy_properties.PHASE_PROPERTY: CopyPhase.READY,
                POSITION_PROPERTY: started.position.short(POSITION_BYTES),
                clone_info.USED_PROPERTY: stamp(host.latest()),
            },
        )
        return
    masking_requirement.refuse_unmasked(settings, info)
    isolated_start.start_again(clone)
    if info.follows is not None:
        with session(info) as opened:
            # A replica in a set continues to replicate, unless a reset has ended its replication.
            channels.continue_applier(opened)
    datasets.set_properties(info.top, {clone_info.USED_PROPERTY: stamp(host.latest())})


def stop(settings: Settings, host: Host, name: str) -> CloneVerb[Intention, CloneInfo]:
    """Shut the clone's server down cleanly, if it is running.

    Raises:
        ServerError: the server runs in another mount namespace.
    """

    def decide(info: CloneInfo) -> tuple[Intention, Callable[[], CloneInfo]]:
        if info.pid is None:
            refuse_running_elsewhere(info)
        patience = server_settings(settings, info).start_timeout

        def shut_down() -> CloneInfo:
            info.process.stop(timeout=patience)
            return of_dataset(settings, host, info.name)

        steps = (f"shut down process {info.pid} cleanly; the data stays",) if info.pid is not None else ()
        return Intention(info, steps), shut_down

    return verb(settings, host, name, decide, needs_lease=False)


def extend(
    settings: Settings, host: Host, name: str, seconds: float | None, quota: int | None = None
) -> CloneVerb[Intention, CloneInfo]:
    """Extend the lease, so that it ends `seconds` from now.

    The default for `seconds` is `clones.ttl`. If the lease already ends later, it is not changed. `quota` is the new
    limit in bytes for the clone's own data. If only `quota` is given, the lease is not changed.
    """
    longer = copy_properties.extension(settings, seconds, host.latest())

    def decide(info: CloneInfo) -> tuple[Intention, Callable[[], CloneInfo]]:
        if quota is None:
            return _with_lease(settings, host, info, longer)
        steps, grow = space_limits.extension(settings, host, info, quota)
        if seconds is None:
            return Intention(info, steps), grow
        more, lease = _with_lease(settings, host, info, longer)
        return Intention(info, steps + more.steps), lambda: replace(grow(), lease=lease().lease)

    return verb(settings, host, name, decide, needs_lease=False)


def protect(settings: Settings, host: Host, name: str, seconds: float) -> CloneVerb[Intention, CloneInfo]:
    """Protect the clone from the reaper for `seconds` from now; 0 removes the protection."""
    change = copy_properties.protection(settings, seconds, host.latest())
    return verb(settings, host, name, lambda info: _with_lease(settings, host, info, change), needs_lease=False)


def _with_lease(
    settings: Settings, host: Host, info: CloneInfo, change: Callable[[CloneLease], CloneLease]
) -> tuple[Intention, Callable[[], CloneInfo]]:
    """Return the steps of a change of the lease, and a function that performs them.

    Raises:
        PreflightError: the change is not allowed, or the data of a subject's clone would exceed its maximum age.
    """
    time = removal_time(host)
    now = cached_sets.settled(info, time)
    after = cached_sets.require(settings, change(now.lease), now.lease, now.since)

    def record() -> CloneInfo:
        lease = leases.changed(cached_sets.settle(info, time).lease, after, time)
        datasets.set_properties(info.top, copy_properties.lease_values(lease))
        return replace(now, lease=lease)

    return Intention(info, copy_properties.lease_steps("clone", info.lease, after)), record


def rename(settings: Settings, host: Host, name: str, new: str) -> CloneInfo:
    """Change the label of the clone. The id, port, login and lease stay the same.

    Raises:
        UsageError: the name is not allowed.
        ExistsError: another clone has the name.
    """
    clone_info.refuse_name(new)
    with locked_clone(settings, host, name) as info, locks.names_and_ports():
        refuse_label([other for other in claims(settings).copies if other.name != info.name], new)
        datasets.set_properties(info.top, {clone_info.LABEL_PROPERTY: new})
        return replace(info, label=new)


def beat(settings: Settings, host: Host, name: str) -> CloneInfo:
    """Record a heartbeat of the clone's holder.

    Raises:
        PreflightError: the clone expects no heartbeats, or its lease has ended, so that no heartbeat keeps it.
    """
    info = ready(settings, host, name)
    if info.lease.heartbeat is None:
        raise PreflightError(
            f"no heartbeats are expected for clone {name}",
            hint="make a clone with --heartbeat, such as 60s",
            about=(info.owner,),
        )
    require_lease(host, info)
    clone_info.beat(host, info.name)
    now_there = Heartbeat(info.lease.heartbeat.every, host.latest(), 0.0)
    return replace(info, lease=replace(info.lease, heartbeat=now_there))


def heartbeat_while(settings: Settings, host: Host, name: str, process: int) -> CloneInfo:
    """Send heartbeats for the clone until the process `process` on this host has ended.

    Return the last observed state of the clone. The first heartbeat raises the errors of `beat`. After the first
    heartbeat, only the removal of the clone raises an error. Other errors are ignored when the clone is read, because
    the holder of the clone did not cause them.

    Raises:
        NotFound: there is no such process.
        UnknownNameError: the clone no longer exists.
        PreflightError: the clone is being destroyed.
    """
    try:
        watched = os.pidfd_open(process)
    except OSError as error:
        raise NotFound(
            f"there is no process {process} to send heartbeats for: {error.strerror}", hint="name a process that runs"
        ) from error
    try:
        return heartbeat_until(settings, host, name, lambda seconds: bool(select.select([watched], [], [], seconds)[0]))
    finally:
        os.close(watched)


def heartbeat_until(settings: Settings, host: Host, name: str, has_ended: Callable[[float], bool]) -> CloneInfo:
    """Send heartbeats until `has_ended` returns True.

    The argument of `has_ended` is the time in seconds for which it may wait. Return the last observed state of the
    clone. For the errors, see `heartbeat_while`.
    """
    info = beat(settings, host, name)
    every = info.lease.heartbeat.every if info.lease.heartbeat is not None else 0
    # Send three heartbeats per interval, so that one late heartbeat does not make the clone expire.
    while not has_ended(every / 3):
        with contextlib.suppress(PreflightError):
            clone_info.beat(host, info.name)
        try:
            now = ready(settings, host, name)
        except UnknownNameError:
            clone_info.forget_heartbeat(host, info.name)
            raise
        except PreflightError:
            raise
        except ZsnapdbError:
            continue
        info = refuse_other(info, now)
    return info


def login(settings: Settings, host: Host, name: str) -> Login:
    """Return the login with which clients connect to the clone.

    Raises:
        PreflightError: the clone's server is not running.
        ServerError: the credentials are lost.
    """
    info = ready(settings, host, name)
    masking_requirement.refuse_unmasked(settings, info)
    require_running(info)
    password = _password(info, info.client_file)
    # The credentials file is in the folder of a dataset. Check that the clone still has this dataset, so that the file
    # belongs to the clone.
    again = ready(settings, host, info.id)
    if (again.name, again.guid) != (info.name, info.guid):
        raise UnknownNameError(
            f"the clone {name} no longer exists",
            hint="see `zsnapdb clone list`, or `zsnapdb-clone list` for your own",
            about=(),
        )
    return Login(info.host, info.client_port, info.process.socket, ACCOUNT, password, info.bind_address)


def require_running(info: CloneInfo) -> None:
    """Raise PreflightError if the clone's server is not running; ServerError if it runs in another mount namespace."""
    if info.pid is None:
        refuse_running_elsewhere(info)
        raise PreflightError(
            f"the server of clone {info.label} does not run",
            hint=f"run `zsnapdb clone start {info.label}`",
            about=(info.owner,),
        )


def _password(info: CloneInfo, file: Path) -> SecretStr:
    password = credentials.read(file)
    if password is None:
        raise ServerError(
            f"the credentials file {file} no longer exists",
            hint=f"run `zsnapdb clone stop {info.label}`, then `zsnapdb clone start {info.label}` for a new password",
        )
    return password


@contextlib.contextmanager
def session(info: CloneInfo) -> Iterator[Session]:
    """Open a session of the internal account to the clone's running server on its private socket.

    Raises:
        ServerError: the credentials are lost, or the server refuses them.
    """
    password = _password(info, info.internal_file)
    with Session.open(Address(user=INTERNAL_ACCOUNT, socket=info.process.socket), password) as opened:
        yield opened


def open_client(settings: Settings, host: Host, name: str, login: Login, words: Sequence[str]) -> NoReturn:
    """Replace this process with the client, which logs in to the clone with `login`.

    `words` are the client's arguments. The client gets its option file as an open file descriptor. The file itself is
    not safe to use: the clone's server could replace it with a file that names a plugin, and the client would load that
    plugin as root.

    Raises:
        PreflightError: this host has no client program.
    """
    info = find(settings, host, name)
    beside = programs.choose_program(server_settings(settings, info), info.flavour, info.origin.version).parent
    path = os.pathsep.join((str(beside), str(beside.parent / "bin"), search_path()))
    installed = (shutil.which(name, path=path) for name in family(info.flavour).client_programs)
    program = next(filter(None, installed), None)
    if program is None:
        raise PreflightError(
            f"no client program for {info.flavour} is installed", hint="install the client, or use --dsn or --env"
        )
    options = os.memfd_create("client.cnf", 0)
    # Clients ignore an option file that is writable for all accounts.
    os.fchmod(options, 0o600)
    os.write(options, login.option_file.encode())
    program_start.become_user(client_arguments(program, f"/proc/self/fd/{options}", login.host, login.port, words))


@dataclass(frozen=True)
class ServerLog:
    """The last lines of a server's error log, at most 64 KiB.

    The text is not trusted, because the clone's server and users wrote it.
    """

    info: CloneInfo
    lines: tuple[str, ...]


def tail(settings: Settings, host: Host, name: str, lines: int) -> ServerLog:
    """Return the last lines of the server's error log. The server may be stopped. No link is followed."""
    info = find(settings, host, name)
    expected_clone.require(info, name)
    return ServerLog(info, tuple(info.process.log_tail(lines).splitlines()))


LOGIN_FOLDER = Path("/run/zsnapdb-clone")
"""The folder of the login files. An account can open its own files in this folder, but cannot list the folder."""


def write_login(settings: Settings, host: Host, name: str, uid: int, gid: int, folder: Path = LOGIN_FOLDER) -> Path:
    """Write the login of a running clone to a file that only the account `uid` can read, and return the file.

    Raises:
        PreflightError: the server is not running, the lease has ended, or the folder cannot be created
        ServerError: the credentials are lost
    """
    require_lease(host, ready(settings, host, name))
    text = credentials.text_for_clones(login(settings, host, name))
    make_passable(folder)
    file = folder / f"{name}.cnf"
    write_text(file, text, Owner(uid, gid), 0o400)
    return file


def forget_login(name: str, folder: Path = LOGIN_FOLDER) -> None:
    """Remove the login file of a clone, if it exists."""
    (folder / f"{name}.cnf").unlink(missing_ok=True)


_LONGEST = 1000
"""The maximum length of a request line in bytes. All valid request lines are shorter."""
_RESET = b"reset"
_POLL_SECONDS = 3600.0


@dataclass
class RequestLines:
    """The request lines that arrive on a file descriptor.

    `has_ended` is set when the descriptor is closed and all lines were returned.
    """

    descriptor: int
    _is_closed: bool = field(init=False, default=False)
    _begun: bytes = field(init=False, default=b"")
    _whole: list[bytes] = field(init=False, default_factory=list)

    @property
    def has_ended(self) -> bool:
        return self._is_closed and not self._whole

    def within(self, seconds: float) -> bytes | None:
        """Return the next line; None if no line arrives within `seconds`.

        Raises:
            UsageError: a line is too long.
        """
        if not self._whole and not self._is_closed and select.select([self.descriptor], [], [], seconds)[0]:
            part = os.read(self.descriptor, 4096)
            self._is_closed = not part
            *self._whole, self._begun = (self._begun + part).split(b"\n")
            if max(map(len, (*self._whole, self._begun))) > _LONGEST:
                raise UsageError("a line of stdin is too long", hint="write `reset` on a line of its own")
        return self._whole.pop(0) if self._whole else None


def hold(settings: Settings, host: Host, name: str, descriptor: int, reset: Callable[[CloneInfo], None]) -> CloneInfo:
    """Send heartbeats for the clone.

    Whenever the line `reset` is read, call the function `reset` with the state that the clone had at the start. If the
    lease requires no heartbeats, none are sent. Raises the errors of `heartbeat_while`.

    Raises:
        UsageError: a line is not `reset`.
    """
    info, lines = ready(settings, host, name), RequestLines(descriptor)

    def has_ended(seconds: float) -> bool:
        # Read one line, then send a heartbeat if one is due. Then the clone does not expire during a long series of
        # resets.
        line = lines.within(seconds)
        if line is not None:
            if line.strip() != _RESET:
                raise UsageError(f"unknown request on stdin: {line[:80]!r}", hint="write `reset` on a line of its own")
            reset(info)
        return lines.has_ended

    if info.lease.heartbeat is not None:
        return heartbeat_until(settings, host, info.id, has_ended)
    while not has_ended(_POLL_SECONDS):
        pass
    return info
