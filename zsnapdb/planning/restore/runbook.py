"""Writes instructions for a person about each step of a restore. Pure.

Each page lists the zsnapdb command, the commands that it runs, checks that show its success, and instructions for a
failure. Every kind of step has a page in this module; the type checker rejects a kind without one.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from posixpath import join
from typing import assert_never

from zsnapdb.planning.foreign_snapshots import NO_SNAPSHOTS
from zsnapdb.planning.restore import steps
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.planning.server_facts import place_options
from zsnapdb.planning.trial.drill import Timing, expected_seconds

_LEFT_OUT = " ".join(f"-o {name}={value}" for name, value in NO_SNAPSHOTS.items())
_MIB = 1 << 20


@dataclass(frozen=True)
class Look:
    """A command that shows whether a step succeeded, with the output that means success (None if any output does)."""

    command: str
    expected: str | None = None


@dataclass(frozen=True)
class RunbookPage:
    """One numbered step for a person. If known, `seconds` is the duration of this step in past drills."""

    title: str
    command: str
    underneath: tuple[str, ...]
    looks: tuple[Look, ...]
    if_not: tuple[str, ...]
    seconds: float | None


@dataclass(frozen=True)
class Commands:
    """Builds the `zsnapdb restore` commands for a plan.

    The field `where` contains the arguments that select the dataset `top`, and `options` those for the handover.
    """

    instance: str
    to: str
    top: str
    where: tuple[str, ...]
    options: tuple[str, ...]
    config: str | None

    def _line(self, *words: str) -> str:
        config = ("--config", self.config) if self.config is not None else ()
        return shlex.join(["zsnapdb", "restore", self.instance, *words, *config])

    def begin(self, through: str) -> str:
        """Return the command that creates the plan and executes it up to the end of the step `through`."""
        return self._line("--to", self.to, *self.where, *self.options, "--stop-after", through)

    def go_on(self, through: str) -> str:
        """Return the command that continues the restore up to the end of the step `through`."""
        return self._line("--resume", "--target", self.top, "--stop-after", through)

    def give_up(self) -> str:
        """Return the command that abandons the restore and removes its datasets."""
        return self._line("--abandon", "--target", self.top)

    def start(self) -> str:
        """Return the command that starts a server that the restore left stopped.

        Root must not start it with its option file, because the server's account can change this file.
        """
        return self._line("--continue-to", "here", "--handover", "run", "--target", self.top)


def pinned(planned: RestorePlan) -> str:
    """Return a value for `--to` that still means the same state later.

    The value is the requested point, or the backup id if nothing is replayed after the backup.
    """
    return planned.requested if planned.replays else planned.backup_id


def entries(planned: RestorePlan, commands: Commands, history: Sequence[Timing]) -> tuple[RunbookPage, ...]:
    """Return the page of each step, in order."""
    pages = []
    for number, step in enumerate(planned.steps):
        command = commands.go_on(step.name) if number else commands.begin(step.name)
        pages.append(_entry(planned, step, command, commands, expected_seconds(step.kind, size_of(step), history)))
    return tuple(pages)


def size_of(step: steps.Step | steps.MachineStep) -> int:
    """Return the number of bytes that the step transfers; 0 if its duration does not depend on bytes."""
    if isinstance(step, steps.Receive):
        return step.plain_bytes
    return step.size if isinstance(step, steps.Replay) else 0


def root(planned: RestorePlan) -> str:
    """Return the folder above all restored files."""
    return min(planned.layout.mountpoints.values(), key=len)


def private(planned: RestorePlan, name: str) -> str:
    """Return the path of a file in the restored server's private folder."""
    return join(root(planned), ".zsnapdb", name)


def _get(dataset: str, name: str) -> str:
    return shlex.join(["zfs", "get", "-H", "-p", "-o", "value", name, dataset])


def _program(planned: RestorePlan) -> str:
    return "mariadbd" if planned.flavour.value == "mariadb" else "mysqld"


def _start_line(planned: RestorePlan) -> str:
    zone = ["env", f"TZ={planned.zone.name}"] if planned.zone is not None and planned.zone.name is not None else []
    return shlex.join([*zone, _program(planned), f"--defaults-file={private(planned, 'server.cnf')}"])


def _entry(
    planned: RestorePlan, step: steps.Step, command: str, commands: Commands, seconds: float | None
) -> RunbookPage:
    underneath, looks, if_not = _page_text(planned, step, commands)
    title = step.describe()
    return RunbookPage(title[:1].upper() + title[1:], command, underneath, looks, if_not, seconds)


_Words = tuple[tuple[str, ...], tuple[Look, ...], tuple[str, ...]]


def _page_text(planned: RestorePlan, step: steps.Step, commands: Commands) -> _Words:
    match step:
        case steps.Preflight():
            return _preflight(planned, step)
        case steps.MakeTop():
            return _make_top(planned, step)
        case steps.Receive():
            return _receive(planned, step, commands)
        case steps.CloneSnapshot():
            return _clone(planned, step)
        case steps.MountVolumes():
            return _mount(planned, step)
        case steps.Recover() | steps.CheckServer() | steps.ResumedRun():
            return _recover(planned, step, commands)
        case steps.Replay():
            return _replay(planned, step)
        case steps.LeaveStopped():
            return _stopped_text(planned, commands)
        case steps.ReadOnlyStart():
            return _looked(planned)
        case steps.ParallelRun() | steps.MakeReplica():
            return _running(planned, step)
        case steps.Promote():
            return _promote(planned, step)
        case _:
            assert_never(step)


def _preflight(planned: RestorePlan, step: steps.Preflight) -> _Words:
    underneath = (
        (
            f"zfs list -o space {step.parent}: about {step.plain_bytes // _MIB} MiB are received,"
            f" {step.stored_bytes // _MIB} MiB of them fetched"
        ),
        f"zpool get all {step.pool}: the features the streams need (bits {step.features:#x})",
        f"{_program(planned)} --version: of the series of {step.server_version}, not older",
        *(
            f"a listing of {planned.instance}/chunks/{backup_id}/: every chunk, with its size"
            for backup_id in (step.backups if step.fetches else ())
        ),
    )
    if_not = (
        "Each line that does not begin with ok says what to do. Nothing was touched; run the command again.",
        "Not enough space: choose another pool with --target POOL/NAME, and print the runbook again with that option.",
        "A chunk is missing: print the runbook for an older backup; `zsnapdb list` shows the backups.",
    )
    return underneath, (), if_not


def _make_top(planned: RestorePlan, step: steps.MakeTop) -> _Words:
    marks = f"{_LEFT_OUT} -o zsnapdb:restored={planned.restore_id}"
    made = f"zfs create -o mountpoint=none -o canmount=off {marks} {step.dataset}"
    return (
        (made,),
        (Look(_get(step.dataset, "zsnapdb:restored"), planned.restore_id),),
        ("Another dataset has that name and is not ours: name another --target.",),
    )


def _receive(planned: RestorePlan, step: steps.Receive, commands: Commands) -> _Words:
    key = "" if step.key_location is None else f"-o keylocation={step.key_location} "
    properties = (
        f"-o canmount=noauto -o mountpoint={step.mountpoint} {_LEFT_OUT} -o zsnapdb:restored={planned.restore_id} {key}"
        if step.from_guid is None
        else ""
    )
    underneath = (
        (
            f"the objects {planned.instance}/chunks/{step.backup_id}/{step.role}/00000001 and on,"
            f" {step.stored_bytes // _MIB} MiB, each proved and unpacked"
        ),
        f"zfs receive -u {properties}{step.dataset}",
    )
    if_not = (
        "The network or the store failed: run the command again; received volumes are not fetched again.",
        "It says that there is no unfinished restore: nothing was received, and all was removed. Repeat step 1.",
        (
            f"The repository is damaged (exit 7): run `{commands.give_up()}`, then print the runbook for an older"
            " backup."
        ),
    )
    return underneath, (Look(_get(f"{step.dataset}@{step.snapshot}", "guid"), str(step.guid)),), if_not


def _clone(planned: RestorePlan, step: steps.CloneSnapshot) -> _Words:
    properties = (
        f"-o canmount=noauto -o mountpoint={step.mountpoint} {_LEFT_OUT} -o zsnapdb:restored={planned.restore_id}"
    )
    underneath = (
        f"zfs clone {properties} {step.origin} {step.dataset}",
        f"zfs snapshot -o zsnapdb:restored={planned.restore_id} {step.dataset}@{step.snapshot}",
    )
    if_not = ("The snapshot is gone: print the runbook again with --origin repository.",)
    return underneath, (Look(_get(step.dataset, "origin"), step.origin),), if_not


def _mount(planned: RestorePlan, step: steps.MountVolumes) -> _Words:
    underneath = []
    keys = planned.with_own_keys
    for part in step.parts:
        underneath.append(
            shlex.join(
                ["zfs", "set", *(f"{name}={value}" for name, value in sorted(part.properties.items())), part.dataset]
            )
        )
        if part.dataset in keys:
            underneath.append(shlex.join(["zfs", "load-key", part.dataset]))
        underneath.append(shlex.join(["zfs", "mount", part.dataset]))
    looks = tuple(Look(_get(part.dataset, "mounted"), "yes") for part in step.parts)
    if_not = [
        "A mount point is not empty: move its files away, and run the command again.",
        *(
            "A key cannot be loaded: bring the key that the server had at the time of the backup to the key_file of"
            " the instance, and run the command again."
            for _ in keys[:1]
        ),
    ]
    return tuple(underneath), looks, tuple(if_not)


def _recover(
    planned: RestorePlan, step: steps.Recover | steps.CheckServer | steps.ResumedRun, commands: Commands
) -> _Words:
    start = _start_line(planned) + ", on a private socket, without network, replication and events"
    underneath = (
        start,
        f"its GTIDs must be {step.gtids}" if step.gtids is not None else "its transactions have no GTIDs",
        "a clean shutdown",
    )
    log = private(planned, "error.log")
    if_not = (
        (
            f"The server did not start: the end of {log} says why. If its recovery is too slow, raise"
            " server.start_timeout and run the command again."
        ),
        (
            f"The position differs (exit 11): do not use the server. Run `{commands.give_up()}`, then print the runbook"
            " for an older backup."
        ),
    )
    return underneath, (Look(shlex.join(["test", "-s", log])),), if_not


def _replay(planned: RestorePlan, step: steps.Replay) -> _Words:
    first, last = step.logs[0], step.logs[-1]
    underneath = (
        f"the archived binlogs {first.file} to {last.file} of {planned.instance}, {step.size // _MIB} MiB",
        "applied by the server itself, unreachable, event scheduler and replication off; then it is shut down",
        *(f"zfs snapshot {dataset}@zsnapdb-restore-{step.name}" for dataset in planned.layout.datasets.values()),
    )
    names = [f"{dataset}@zsnapdb-restore-{step.name}" for dataset in sorted(planned.layout.datasets.values(), key=len)]
    looks = tuple(Look(shlex.join(["zfs", "list", "-H", "-t", "snapshot", "-o", "name", name]), name) for name in names)
    return (
        underneath,
        looks,
        ("Run the command again: it rolls back to the snapshot before this step, and repeats the replay.",),
    )


def _stopped_text(planned: RestorePlan, commands: Commands) -> _Words:
    option_file = private(planned, "server.cnf")
    start = commands.start() if planned.point.gtids is not None else "restore it again with --handover run"
    underneath = (f"writes {option_file}", f"to start it: {start}")
    return (
        underneath,
        (Look(shlex.join(["test", "-s", option_file])),),
        (f"The end of {private(planned, 'error.log')} says why the server did not start.",),
    )


def _looked(planned: RestorePlan) -> _Words:
    underneath = (
        *(f"zfs snapshot {dataset}@zsnapdb-restore-handover" for dataset in sorted(planned.layout.datasets.values())),
        _start_line(planned),
        "SET GLOBAL read_only = ON; MySQL: super_read_only",
    )
    return (
        underneath,
        (Look(shlex.join(["test", "-S", private(planned, "server.sock")])),),
        (f"The end of {private(planned, 'error.log')} says why the server did not start.",),
    )


def _running(planned: RestorePlan, step: steps.ParallelRun | steps.MakeReplica) -> _Words:
    underneath = [
        f"a new auto.cnf, server_id {step.server_id}, port {step.port} on this host alone",
        _start_line(planned),
    ]
    if isinstance(step, steps.MakeReplica):
        underneath.append(
            f"CHANGE REPLICATION SOURCE TO {step.source_user}@{step.source_host}:{step.source_port}, START REPLICA,"
            " wait until it has caught up"
        )
    if_not = [
        (
            f"The end of {private(planned, 'error.log')} says why the server did not start. If the port is taken,"
            f" `ss -ltnp sport = :{step.port}` shows by whom."
        )
    ]
    if isinstance(step, steps.MakeReplica):
        if_not.append(
            "The replica does not connect: check the account, and its host, on the source. The source no longer has the"
            " binlogs: restore a newer point."
        )
    return tuple(underneath), (Look(shlex.join(["test", "-S", private(planned, "server.sock")])),), tuple(if_not)


def _promote(planned: RestorePlan, step: steps.Promote) -> _Words:
    renames = tuple(shlex.join(["zfs", "rename", old, new]) for old, new in step.renames)
    by_hand = (f"set server_id = {step.server_id} in the server's option file before it is started",)
    places = tuple(f"its option file must have: {line}" for line in place_options(planned.variables))
    underneath = (*renames, *(by_hand if step.server_id is not None else ()), *places)
    looks = tuple(Look(_get(part.place, "mountpoint"), part.mountpoint) for part in step.parts)
    undo = "; ".join(shlex.join(["zfs", "rename", new, old]) for old, new in reversed(step.renames))
    underneath = (
        "before the stop: SHOW REPLICAS (MariaDB: SHOW REPLICA HOSTS) names the replicas that must be rebuilt",
        *underneath,
        (
            "after the start, on the host of each replica, because it has transactions that the server lacks and would"
            f" follow it all the same: zsnapdb restore {planned.instance} --handover replica --source HOST:PORT"
            " --source-user USER"
        ),
        f"when all are rebuilt: zsnapdb rewind {planned.instance} --replicas-rebuilt",
    )
    if_not = (
        (
            "A dataset is busy: the old server still runs, or a shell is in its folder. Stop it, and run the command"
            " again."
        ),
        f"To go back by hand: {undo}",
    )
    return underneath, looks, if_not
