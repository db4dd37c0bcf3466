"""Plans the move of a server's files to ZFS: the commands, and the paths before, during and after the move. Pure.

The move does not change the old files. Until they are renamed, the server can be started on them at any time. After
that, it can be started only on the copies. A data directory that is a mount point cannot be renamed. In this case, a
change of the option file takes the place of the renaming.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from zsnapdb.base.domain_types import PROPERTY, SNAPSHOT_PREFIX, Flavour
from zsnapdb.planning.server_family import family
from zsnapdb.planning.setup.facts import DEFAULT_PAGE, PROBE, FoundFiles, FoundServer
from zsnapdb.planning.setup.layout import KeptLogs, NewDataset, dataset_pair

MOVE_PROPERTY = f"{PROPERTY}:move"
"""The property on the datasets of a move: the source data directory.

Files are removed only in datasets with this property.
"""
MOVE_SNAPSHOT = f"{SNAPSHOT_PREFIX}move-"
"""The prefix of a move's snapshots. These snapshots also have MOVE_PROPERTY, and are destroyed after the move."""
MOVE_RECORD = "/var/lib/zsnapdb/setup/move.json"
"""The file of this host with the record of an unfinished move."""
_LOGS = re.compile(r"#innodb_redo|ib_logfile[0-9]+|aria_log_control|aria_log\.[0-9]+")
"""Redo and engine logs in a data directory (refman 8.4, "Redo Log"; MariaDB manual, "Aria Storage Engine")."""
FRAGMENT = "zz-zsnapdb-zfs.cnf"
"""The name of the option file. Files of a folder are read in alphabetical order, and the last value counts (my_dir)."""


@dataclass(frozen=True)
class MovePlaces:
    """The paths of a move: the new path of old files, and the outer dataset's mount points after and during copying."""

    old: str
    mount: str
    staging: str


def places(datadir: str, *, is_mount: bool) -> MovePlaces:
    """Return the paths of a move. A mount point is not renamed, so the copy is placed next to it."""
    if is_mount:
        return MovePlaces(datadir, f"{datadir}-zfs", f"{datadir}-zfs")
    return MovePlaces(f"{datadir}.before-zfs", datadir, f"{datadir}.on-zfs")


def dataset_names(pool: str, instance: str) -> tuple[str, ...]:
    """Return possible names for the outer dataset, best name first."""
    return (f"{pool}/mysql", f"{pool}/mysql-{instance}")


@dataclass(frozen=True)
class ServerMove:
    """A move of one server's files, with all facts that are needed to continue it after an interruption."""

    server: FoundServer
    files: FoundFiles
    places: MovePlaces
    datasets: tuple[NewDataset, ...]
    option_file: str

    @property
    def is_renaming(self) -> bool:
        """Whether the data directory is renamed. If not, only the option file makes the server use the copies."""
        return self.places.old != self.server.datadir

    @property
    def fragment(self) -> str:
        return f"{self.files.option_folder}/{FRAGMENT}"

    @property
    def option_probe(self) -> str:
        """An option file in the place of `option_file`, with an option without effect."""
        section = next(line for line in self.option_file.split("\n") if line.startswith("["))
        return f"{section}\n{PROBE} = 1\n"

    @property
    def datadir(self) -> str:
        return f"{self.places.mount}/data"

    @property
    def creations(self) -> tuple[tuple[str, ...], ...]:
        """The commands that create the datasets and mount the outer dataset at the staging path."""
        return tuple(
            ("zfs", "create", *(word for pair in self._options(new) for word in ("-o", pair)), new.name)
            for new in self.datasets
        )

    def _options(self, new: NewDataset) -> list[str]:
        values = {**new.properties, MOVE_PROPERTY: self.server.datadir}
        if new is self.datasets[0]:
            values["mountpoint"] = self.places.staging
        return [f"{key}={value}" for key, value in values.items()]

    @property
    def stop(self) -> tuple[str, ...]:
        return ("systemctl", "stop", self.files.service)

    @property
    def start(self) -> tuple[str, ...]:
        return ("systemctl", "start", self.files.service)

    @property
    def rename(self) -> tuple[str, ...]:
        return ("mv", "-T", self.server.datadir, self.places.old)

    def mount_at(self, path: str) -> tuple[str, ...]:
        return ("zfs", "set", f"mountpoint={path}", self.datasets[0].name)

    @property
    def started(self) -> str:
        """The shell line that a user runs to start the server on the copies after the switch."""
        words = [self.mount_at(self.places.mount), self.start] if self.is_renaming else [self.start]
        return f"`{' && '.join(self.shown(words))}`"

    @property
    def forgotten(self) -> str:
        """The instruction for a user to make zsnapdb forget the move. Following it changes nothing else."""
        return f"remove {MOVE_RECORD}"

    def given_up(self, *, is_switched: bool) -> str:
        """Return the shell line that a user runs to return to the old files. It renames the datasets and keeps them."""
        name = self.datasets[0].name
        words: list[Sequence[str]] = [self.stop] if is_switched else []
        words += [("zfs", "set", "mountpoint=none", name), ("zfs", "rename", name, f"{name}-unused")]
        # The folder is empty when nothing is mounted on it. `rm -d` removes only empty folders.
        words.append(("rm", "-df", self.fragment, MOVE_RECORD, self.places.staging))
        if is_switched and self.is_renaming:
            words += [("rmdir", self.server.datadir), ("mv", "-T", self.places.old, self.server.datadir)]
        words += [self.start] if is_switched else []
        return f"`{' && '.join(self.shown(words))}`"

    def is_log(self, name: str) -> bool:
        """Return whether this entry of the data directory is moved to the outer dataset.

        Binlogs are handled separately.
        """
        return _LOGS.fullmatch(name) is not None

    @property
    def binlog_folder(self) -> str:
        return self.files.binlog.rpartition("/")[0]

    @property
    def binlog_name(self) -> str:
        return self.files.binlog.rpartition("/")[2]

    @property
    def index(self) -> str:
        return self.files.binlog_index.rpartition("/")[2]

    def is_binlog(self, name: str) -> bool:
        """Return whether this entry of the binlog folder is a binlog or MariaDB's binlog state."""
        return (
            bool(self.files.binlog)
            and re.fullmatch(rf"{re.escape(self.binlog_name)}\.([0-9]+|state)", name) is not None
        )

    def listed(self, index: str) -> str:
        names = [line.rpartition("/")[2] for line in index.split("\n") if line]
        return "".join(f"{self.places.mount}/{name}\n" for name in names)

    def shown(self, words: Sequence[Sequence[str]]) -> tuple[str, ...]:
        return tuple(shlex.join(command) for command in words)


def objections(server: FoundServer) -> tuple[str, ...]:
    """Return the reasons why setup cannot move the server's files."""
    files = server.files
    if files is None:
        return ("the files do not lie on ZFS, and root may not ask the server for them: let root log in by the socket",)
    why = []
    if not files.service:
        why.append(f"setup stops and starts a server by systemd, and process {server.pid} is no service of it")
    why += [f"{name} leads out of {server.datadir}: files there are not moved" for name in files.elsewhere]
    why += [f"{path} is not a regular file or folder of {server.datadir}" for path in files.obstacles]
    if not files.option_folder:
        why.append("no folder of option files was found, such as /etc/mysql/conf.d or /etc/my.cnf.d")
    why += [
        f"{path} is there already, from another move: look what it is, and give it another name" for path in files.taken
    ]
    return tuple(why)


def planned_move(server: FoundServer, files: FoundFiles, dataset: str, release: tuple[int, ...]) -> ServerMove:
    """Return the move of the server's files to the new dataset `dataset` and its child."""
    where = places(server.datadir, is_mount=files.is_mount)
    kept = KeptLogs(files.binlog.rpartition("/")[2], files.has_relay_logs)
    layout = dataset_pair(dataset, server.flavour, server.page_size or DEFAULT_PAGE, release, where.mount, kept)
    return ServerMove(server, files, where, layout.datasets, layout.option_file)


def option_folders(flavour: Flavour) -> tuple[str, ...]:
    """Return the folders in which a server may read option files, best folder first."""
    return (family(flavour).option_folder, "/etc/mysql/conf.d", "/etc/my.cnf.d")


class MovePhase(StrEnum):
    """The latest phase that a move has certainly reached, according to its record.

    - UNKNOWN: the record was written by a release that did not record phases
    - PLANNED: at most a part of the copies exists
    - COPIED: the copies have been found equal to the old files, and have a snapshot
    - SWITCHED: the replacement of the old files by the copies was about to start
    - STARTED: the server was observed running on the copies
    """

    UNKNOWN = "unknown"
    PLANNED = "planned"
    COPIED = "copied"
    SWITCHED = "switched"
    STARTED = "started"


class ServedPlace(StrEnum):
    """The files that the running server uses, as reported by the kernel."""

    NOWHERE = "nowhere"
    OLD = "old"
    NEW = "new"
    OTHER = "other"


class CopiesState(StrEnum):
    """The content of the move's datasets.

    UNFINISHED means that the copies of this move are incomplete. UNCHANGED means that the copies have not changed since
    they were compared with the old files; CHANGED means that they have. UNPROVED means files of unknown origin.
    UNMOUNTED means that the content is not visible.
    """

    EMPTY = "empty"
    UNFINISHED = "unfinished"
    UNCHANGED = "unchanged"
    CHANGED = "changed"
    UNPROVED = "unproved"
    UNMOUNTED = "unmounted"


class OldState(StrEnum):
    """Whether the old files have changed since the comparison with the copies.

    UNPROVED means that their state at the time of the comparison is unknown.
    """

    SAME = "same"
    CHANGED = "changed"
    GONE = "gone"
    UNPROVED = "unproved"


class MoveStep(StrEnum):
    """The next step of a move. COPY stops the server, copies its files, switches to the copies, and starts the server.

    START starts the server on the copies. FINISH only records the end, because the server already runs on the copies.
    """

    COPY = "copy"
    START = "start"
    FINISH = "finish"


@dataclass(frozen=True)
class MoveFacts:
    """The observed state of an interrupted move.

    - `where`: a text for messages about the server's process and its data directory; "" if there is none
    - `is_switched`: the old files have their new name, or the option file contains the paths of the copies
    - `in_the_way`: a path with other files at the mount point of the copies; "" if there is none
    """

    phase: MovePhase
    is_switched: bool
    runs: ServedPlace
    copies: CopiesState
    old: OldState
    where: str = ""
    in_the_way: str = ""


@dataclass(frozen=True)
class MoveDecision:
    """The next step of a move.

    If no step is possible, the step is None, and the decision contains the reason and a hint.
    """

    step: MoveStep | None
    why: str = ""
    hint: str = ""


_NEVER_COPIED = "its copies never took the place of the old files"
_MAY_BE_NEWER = {
    CopiesState.CHANGED: "they were changed after they were copied: they may be newer than the old files",
    CopiesState.UNPROVED: "nothing proves that they are older than the old files",
}


def decide(move: ServerMove, facts: MoveFacts) -> MoveDecision:
    """Return the next step of an interrupted move. No step stops a server that runs on the copies."""
    if facts.runs is ServedPlace.NEW:
        return MoveDecision(MoveStep.FINISH)
    if facts.runs is ServedPlace.OTHER:
        return MoveDecision(
            None,
            f"the server of {move.files.service} runs neither on its old files nor on their copies: {facts.where}",
            f"it was not stopped; if it runs where you want it, {move.forgotten}",
        )
    if facts.is_switched and facts.runs is ServedPlace.NOWHERE:
        return _starting(move, facts)
    return _copying(move, facts)


def _starting(move: ServerMove, facts: MoveFacts) -> MoveDecision:
    if facts.phase in (MovePhase.PLANNED, MovePhase.COPIED):
        return MoveDecision(
            None,
            f"{move.places.old if move.is_renaming else move.fragment} is there, and this move did not put it there:"
            f" {_NEVER_COPIED}",
            f"look what it is; to give the move up: {move.given_up(is_switched=False)}",
        )
    if facts.in_the_way:
        return MoveDecision(
            None,
            f"{facts.in_the_way} has files, and the copies are to be mounted there",
            f"see who made them, move them away, run the same setup again; else: {move.given_up(is_switched=True)}",
        )
    if facts.old is OldState.CHANGED and facts.phase is not MovePhase.STARTED:
        return MoveDecision(
            None,
            f"the files in {move.places.old} were changed after they were copied, and the copies are to be started",
            f"if the copies are right, start them: {move.started}, and run the same setup again; if the old files are:"
            f" {move.given_up(is_switched=True)}",
        )
    return MoveDecision(MoveStep.START)


def _copying(move: ServerMove, facts: MoveFacts) -> MoveDecision:
    give_up = move.given_up(is_switched=facts.is_switched)
    if facts.is_switched and facts.runs is ServedPlace.OLD and facts.copies in _MAY_BE_NEWER:
        # Another option file, which is read later, sets the old data directory, and the move's option file sets the
        # logs.
        return MoveDecision(
            None,
            f"the server runs on {move.server.datadir} and may write its logs to {move.datasets[0].name}",
            f"it was not stopped: make a dump first. Then find option files besides {move.fragment} that set datadir",
        )
    if facts.phase is MovePhase.STARTED:
        return MoveDecision(
            None,
            f"the server ran on {move.datasets[0].name} before, and its old files are older: they are not copied there",
            f"to continue with the old files unchanged: {give_up}",
        )
    if facts.old is OldState.GONE:
        return MoveDecision(
            None,
            f"the files of the server are not in {move.server.datadir}, and not in use anywhere",
            f"look for them; {move.datasets[1].name} may have a copy: `zfs mount {move.datasets[1].name}`",
        )
    if facts.copies is CopiesState.UNMOUNTED:
        names = [new.name for new in move.datasets]
        return MoveDecision(
            None,
            f"{' and '.join(names)} are not mounted below {move.places.staging}: their contents cannot be checked",
            f"`{' && '.join(f'zfs mount {name}' for name in names)}`, then run the same setup again; else: {give_up}",
        )
    if facts.copies in _MAY_BE_NEWER:
        return MoveDecision(
            None,
            f"{move.datasets[0].name} and {move.datasets[1].name} have files, and {_MAY_BE_NEWER[facts.copies]}."
            " Nothing is copied over them",
            f"compare {move.server.datadir} with {move.places.staging}; to continue with the old files: {give_up}",
        )
    return MoveDecision(MoveStep.COPY)


def may_go_back(facts: MoveFacts) -> bool:
    """Return whether the old files may be put back.

    This is allowed only if no server is running on the copies and the copies have never changed.
    """
    return (
        facts.runs is not ServedPlace.NEW
        and facts.phase is MovePhase.SWITCHED
        and facts.copies is CopiesState.UNCHANGED
        and facts.old is not OldState.GONE
    )
