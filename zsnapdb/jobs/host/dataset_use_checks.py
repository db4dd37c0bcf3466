"""Checks whether a server's datasets may be moved, replaced or destroyed, with facts from the kernel and ZFS.

Every job that moves, replaces, overwrites or destroys such datasets runs the checks at its start, and repeats them
directly before the first change. The checks find files that a running server uses, foreign datasets and mounts below
the datasets, further mounts of the datasets, and writes since the datasets were replaced.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from zsnapdb.base.domain_types import PROPERTY, Snapshot, SnapshotSet, is_backup_id
from zsnapdb.base.errors import ForeignInsideError, PreflightError
from zsnapdb.base.patterns import ROLE
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.snapshot_set_properties import (
    BACKUP_PROPERTY,
    INSTANCE_PROPERTY,
    REPLACED,
    STATE_PROPERTY,
    snapshot_name,
)
from zsnapdb.mysql.process import discovery
from zsnapdb.mysql.process.discovery import is_server_program
from zsnapdb.mysql.process.written_paths import BASENAMES, DIRECTORIES
from zsnapdb.planning import creation_order
from zsnapdb.planning.backup.fitness import Cover, OtherView
from zsnapdb.planning.clone.lease import FOREVER, JudgedLease, LeaseVerdict, read_stamp, stamp
from zsnapdb.planning.restore.dataset_exchange import strangers
from zsnapdb.planning.restore.steps import PromotePart, place_of, replaced_suffix
from zsnapdb.planning.server_copy.source_facts import ORIGIN_PROPERTY, SourceServer
from zsnapdb.zfs import datasets, destruction, mounts, snapshots
from zsnapdb.zfs.datasets import Property
from zsnapdb.zfs.destruction import Mark
from zsnapdb.zfs.mounts import family_of, users_of

_PATIENCE = 5.0
_POLL_SECONDS = 0.25


def dataset_of(folder: Path) -> str | None:
    """Return the dataset that contains a process's open folder or file; None if no dataset contains it.

    The filesystem's device number is compared, because another mount may now cover the path.
    """
    try:
        device = os.stat(folder).st_dev
    except OSError:
        return None
    number = f"{os.major(device)}:{os.minor(device)}"
    return next((entry.source for entry in mounts.mounted() if (entry.fstype, entry.device) == ("zfs", number)), None)


def servers_on(names: Collection[str]) -> dict[int, str]:
    """Return the server processes whose data directory is on one of the datasets, as a map from pid to dataset."""
    on = {one.pid: dataset_of(Path(f"/proc/{one.pid}/cwd")) for one in discovery.server_processes()}
    return {pid: dataset for pid, dataset in on.items() if dataset is not None and dataset in names}


def refuse_strangers(places: Mapping[str, str]) -> None:
    """Raise ForeignInsideError if there are datasets or mounts inside `places` that are not volumes of the instance.

    If a dataset is renamed, its children are renamed and unmounted too. Programs that write to the paths of these
    children would then write to another dataset. `places` are the mount points of the volumes, by dataset.
    """
    existing = [name for name in places if datasets.exists(name)]
    tops = [name for name in existing if not any(name.startswith(other + "/") for other in existing)]
    below = [name for top in tops for name in datasets.children(top, ["type"])]
    inside = strangers(places, below, [(entry.path, entry.source) for entry in mounts.mounted()])
    if inside:
        listed = ", ".join(f"{one.name} ({one.what})" for one in inside)
        raise ForeignInsideError(
            f"the datasets of the server cannot be exchanged: they contain datasets that are not its volumes: {listed}",
            hint=f"move it away with `{_away(inside[0].name)}`"
            + ("" if inside[0].covers else ", or add it to `volumes` of the instance"),
        )


def _away(name: str) -> str:
    """Return the command with which a user can move a dataset or a mount out of a server's datasets."""
    if name.startswith("/"):
        return f"umount {name}"
    return f"zfs rename {name} {name.partition('/')[0]}/{name.rpartition('/')[2]}"


def refuse_mounted_elsewhere(names: Collection[str], *, after_unmount: bool) -> None:
    """Raise ForeignInsideError if another mount namespace would keep one of the datasets mounted.

    A server in a container would keep using these files while they are replaced. `after_unmount` says that the datasets
    are already unmounted in this namespace. A mount that then still exists in another namespace will stay.
    """
    for mount in mounts.mounted_elsewhere(names):
        if after_unmount or not mount.follows:
            raise ForeignInsideError(mount.describe(), hint=mount.remedy)


def refuse_second_mounts(places: Mapping[str, str]) -> None:
    """Raise ForeignInsideError if a dataset is mounted twice here, for example by a bind mount for a container.

    The second mount would still show the old files after the replacement. `places` maps each dataset to the mount point
    of its volume.
    """
    entries = [entry for entry in mounts.mounted() if entry.fstype == "zfs" and entry.source in places]
    for entry in entries:
        others = [one for one in entries if one.source == entry.source and one.path != entry.path]
        if others and entry.path != places[entry.source]:
            raise ForeignInsideError(
                f"{entry.source} is also mounted at {entry.path}, and would stay there",
                hint=f"stop the programs that use it, then run `umount {shlex.quote(entry.path)}`",
            )


def refuse_covering(points: Collection[str], own: Collection[str]) -> None:
    """Raise PreflightError if a mount at one of the points would cover a running server or another filesystem.

    The replaced server has no datasets at these mount points. `own` contains the datasets that the restore exchanges.
    """
    for point in sorted(points):
        for entry in mounts.mounted():
            if entry.source not in own and Path(entry.path).is_relative_to(point):
                raise PreflightError(
                    f"the restored server belongs at {point}, but {entry.source} is mounted at {entry.path}",
                    hint=f"if nobody needs it there, unmount it: `umount {shlex.quote(entry.path)}`",
                )
        for process in discovery.server_processes():
            if _working_folder(process.pid).is_relative_to(point):
                raise PreflightError(
                    f"the restored server belongs at {point}, but a server runs there: process {process.pid}",
                    hint="stop that server first; `ps` shows who started it",
                )


def _working_folder(pid: int) -> Path:
    """Return the working directory of a server process. It is the server's data directory.

    Return "/" if the process has ended, or if the directory has another path on this host, for example if the server
    runs in a container.
    """
    link = f"/proc/{pid}/cwd"
    try:
        folder = Path(os.readlink(link))
        return folder if os.path.samestat(os.stat(link), os.stat(folder)) else Path("/")
    except OSError:
        return Path("/")


def refuse_busy(names: Collection[str], server: int | None) -> None:
    """Raise PreflightError if processes prevent ZFS from unmounting the given datasets.

    The process `server`, its ancestors and its children are ignored, because they end when the server is stopped. The
    check waits a few seconds for other processes to close their files.
    """
    devices = mounts.devices_of(names)
    ends = family_of(server) if server is not None else set()
    deadline = time.monotonic() + _PATIENCE
    while users := [user for user in users_of(devices) if user.pid not in ends]:
        if time.monotonic() > deadline:
            listed = ", ".join(user.describe() for user in users[:5])
            raise PreflightError(
                f"the datasets of the server could not be unmounted: {listed}",
                hint="leave that folder, or end that program; nothing was stopped",
            )
        time.sleep(_POLL_SECONDS)


def refuse_running(names: Collection[str], doing: str) -> None:
    """Raise PreflightError if a running server has its data directory on one of the datasets."""
    for pid, dataset in servers_on(names).items():
        raise PreflightError(
            f"{doing}, and a server still runs: process {pid} uses {dataset}",
            hint="stop that server first; `ps` shows who started it",
        )


def refuse_removal(replaced: Collection[str], places: Collection[str], seal: Mapping[str, str]) -> None:
    """Raise PreflightError unless all replaced datasets may be destroyed.

    All of these conditions must be met:

    - The datasets that replaced them exist, and a server runs on these datasets.
    - Nothing was written to a replaced dataset since the snapshot of its last state (`seal` maps each dataset to that
      snapshot).
    - No replaced dataset is mounted in any mount namespace.
    - No replaced dataset has clones, holds, or children that were not replaced with it.
    """
    missing = [name for name in places if not datasets.exists(name)]
    if missing:
        raise PreflightError(
            f"{missing[0]} does not exist, so {', '.join(replaced)} may be the only copy of the server",
            hint="see `zfs list`; continue an interrupted restore or rewind with --resume",
        )
    if not servers_on(places):
        raise PreflightError(
            f"no server runs from {', '.join(places)}, so nothing proves that it replaced {', '.join(replaced)}",
            hint="start the server; then run `zsnapdb reap` again",
        )
    _refuse_use(replaced)
    for name in replaced:
        if name not in seal:
            raise PreflightError(
                f"{name} has no snapshot of its last state, so nothing proves that nobody has written to it since",
                hint=f"if nobody needs it, destroy it yourself; see `zfs list -r {name}`",
            )
        key = f"written@{seal[name].partition('@')[2]}"
        written = datasets.properties(name, [key])[key].value
        if written != "0":
            raise PreflightError(
                f"{name} was written to since it was replaced: {written} bytes since {seal[name]}",
                hint="somebody used it; if nobody needs it, destroy it yourself",
            )


def _refuse_use(replaced: Collection[str]) -> None:
    seen = datasets.properties_of(list(replaced), ["mounted"])
    mounted = [name for name, values in seen.items() if values["mounted"].value != "no"]
    if mounted:
        raise PreflightError(
            f"{mounted[0]} was replaced by a restore, and is mounted", hint="unmount it if nobody needs it any more"
        )
    refuse_mounted_elsewhere(replaced, after_unmount=True)
    below = {name for one in replaced for name in datasets.children(one, ["type"])} - set(replaced)
    if below:
        raise PreflightError(
            f"{', '.join(sorted(below))} lies below a replaced dataset, and was not replaced with it",
            hint="move it elsewhere with `zfs rename`, or destroy it yourself",
        )
    uses = snapshots.uses(replaced)
    clones = [clone for use in uses.values() for clone in use.clones]
    if clones:
        raise PreflightError(
            f"{', '.join(clones)} depend on the replaced datasets {', '.join(replaced)}",
            hint="destroy clones with `zsnapdb clone destroy NAME`; `zsnapdb reap` removes a prepared set that was"
            " not used for clones.keep_unused",
        )
    held = [name for name, use in uses.items() if use.holds]
    if held:
        raise PreflightError(
            f"snapshots of the replaced datasets are held: {', '.join(held)}",
            hint=f"see `zfs holds {held[0]}`; if nobody needs them, release them with `zfs release`",
        )


REPLACED_PROPERTY = f"{PROPERTY}:replaced"
"""On every dataset that a restore replaced: the id of the restore."""
_INSTANCE = f"{PROPERTY}:replaced-instance"
_ROLE = f"{PROPERTY}:replaced-role"
_AT = f"{PROPERTY}:replaced-at"
_ROLE_FORM = re.compile(ROLE)


@dataclass(frozen=True)
class ReplacedServer:
    """The datasets of a server that a restore replaced, by role, and the bytes that only these datasets use.

    `replaced` is the time in UTC. `sealed` contains the snapshots of the server's last state by role, if they exist.
    """

    restore_id: str
    instance: str
    replaced: datetime
    datasets: Mapping[str, str]
    used: int
    sealed: Mapping[str, Snapshot]

    @property
    def set(self) -> SnapshotSet | None:
        """The snapshot set of the server's last state; None if a snapshot is missing."""
        whole = set(self.sealed) == set(self.datasets) and len({s.createtxg for s in self.sealed.values()}) == 1
        return SnapshotSet(self.restore_id, dict(self.sealed)) if whole else None

    def expires(self, keep: float | None) -> datetime | None:
        """Return when the datasets expire: `keep` seconds after they were replaced.

        The result is None if the datasets never expire.
        """
        return None if keep is None or self.replaced == FOREVER else self.replaced + timedelta(seconds=keep)

    def judge(self, keep: float | None, now: datetime) -> JudgedLease:
        expires = self.expires(keep)
        if expires is None:
            return JudgedLease(LeaseVerdict.KEEP, "restore.keep_replaced is not set")
        return JudgedLease(LeaseVerdict.KEEP if expires > now else LeaseVerdict.REAP, f"kept until {stamp(expires)}")


def refuse_other_datasets(guids: Mapping[str, int | None]) -> None:
    """Raise PreflightError if one of the existing datasets has another GUID than the given one (None for any)."""
    known = {name: guid for name, guid in guids.items() if guid is not None and datasets.exists(name)}
    seen = datasets.properties_of(list(known), ["guid"]) if known else {}
    for name, guid in known.items():
        if seen[name]["guid"].value != str(guid):
            raise PreflightError(
                f"{name} is not the dataset that the restore saw under this name",
                hint=f"another program renamed datasets; put the one with the GUID {guid} back under this name, see"
                " `zfs list -o name,guid`, then run the command again with --resume",
            )


def mark(parts: Sequence[PromotePart], restore_id: str, instance: str, now: datetime) -> None:
    """Mark the replaced datasets. This is the last step of an exchange, because only marked datasets can be removed.

    If an interrupted run has already marked a dataset, the recorded time stays.
    """
    refuse_other_datasets({part.old: part.old_guid for part in parts if part.old is not None})
    for part in parts:
        if part.old is None:
            continue
        # A volume inherits the property from a parent volume, so use only values that are set locally.
        if not destruction.is_ours(part.old, Mark(REPLACED_PROPERTY, restore_id)):
            values = {REPLACED_PROPERTY: restore_id, _INSTANCE: instance, _ROLE: part.role, _AT: stamp(now)}
            datasets.set_properties(part.old, values)


def settle(server: ReplacedServer, now: datetime) -> ReplacedServer:
    """Set the recorded time of a server's replacement to `now`, because the clock was wrong during the replacement."""
    for name in server.datasets.values():
        datasets.set_properties(name, {_AT: stamp(now)})
    return replace(server, replaced=now)


def seal(parts: Sequence[PromotePart], restore_id: str, instance: str, origin: SourceServer) -> bool:
    """Create atomic snapshots of the last state of the replaced datasets, unless an earlier run has created them.

    Return False if a new dataset did not replace an old one. In this case, the old datasets are not a complete server
    and cannot be cloned.
    """
    olds = [part.old for part in parts if part.old is not None]
    names = [f"{old}@{snapshot_name(restore_id)}" for old in olds]
    is_whole = len(olds) == len(parts)
    if not olds or any(datasets.exists(name) for name in names):
        return is_whole
    facts = {
        BACKUP_PROPERTY: restore_id,
        INSTANCE_PROPERTY: instance,
        STATE_PROPERTY: REPLACED,
        ORIGIN_PROPERTY: origin.encode(),
    }
    snapshots.by_command(names, facts)
    return is_whole


def listing(instance: Instance) -> list[ReplacedServer]:
    """Return the replaced servers of the instance whose datasets are next to its volumes, oldest first.

    `instance` must contain its volumes. Datasets with invalid properties are left out.
    """
    columns = [REPLACED_PROPERTY, _INSTANCE, _ROLE, _AT, "used"]
    members: dict[str, dict[str, dict[str, Property]]] = defaultdict(dict)
    for top, restore_id in _tops(instance).items():
        for name, values in datasets.children(top, columns).items():
            mark = values[REPLACED_PROPERTY]
            is_own = mark.is_local and (mark.value, values[_INSTANCE].value) == (restore_id, instance.name)
            if is_own and _ROLE_FORM.fullmatch(values[_ROLE].value):
                members[restore_id][name] = values
    servers = [_server(instance, restore_id, parts) for restore_id, parts in sorted(members.items())]
    # Order by the snapshot of the last state, which was created when the server was replaced. Servers without such a
    # snapshot come first.
    return creation_order.by_creation(
        servers, lambda one: next((sealed.createtxg for sealed in one.sealed.values()), 0)
    )


def _tops(instance: Instance) -> dict[str, str]:
    """Return the replaced datasets next to the outermost volumes of the instance, with the restore ids.

    A replaced dataset that a user put back into use may still have the properties of a replaced dataset. So its name
    must also end like the name of a replaced dataset.
    """
    volumes = instance.volumes.values()
    outermost = [name for name in volumes if not any(name.startswith(other + "/") for other in volumes)]
    parents = sorted({name.rpartition("/")[0] for name in outermost} - {""})
    return {
        name: mark.value
        for parent in parents
        if datasets.exists(parent)
        for name, values in datasets.children(parent, [REPLACED_PROPERTY], depth=1).items()
        if (mark := values[REPLACED_PROPERTY]).is_local
        and is_backup_id(mark.value)
        and name.endswith(replaced_suffix(mark.value))
        and name not in volumes
    }


def _server(instance: Instance, restore_id: str, parts: Mapping[str, dict[str, Property]]) -> ReplacedServer:
    sealed = {}
    for marked in snapshots.list_owned(parts, [STATE_PROPERTY]):
        if marked.snapshot.name == snapshot_name(restore_id) and marked.properties[STATE_PROPERTY] == REPLACED:
            sealed[parts[marked.snapshot.dataset][_ROLE].value] = marked.snapshot
    return ReplacedServer(
        restore_id,
        instance.name,
        # An unreadable time is treated as later than all others, so such datasets are kept.
        max(read_stamp(values[_AT].value) for values in parts.values()),
        {values[_ROLE].value: name for name, values in parts.items()},
        # The property `used` of a dataset includes the space of its children (zfsprops(7)).
        sum(
            int(values["used"].value)
            for name, values in parts.items()
            if not any(name.startswith(other + "/") for other in parts)
        ),
        sealed,
    )


def find_replaced(instance: Instance, restore_id: str) -> ReplacedServer | None:
    """Return the server that the given restore replaced; None if the server's datasets do not exist on this host."""
    return next((server for server in listing(instance) if server.restore_id == restore_id), None)


def refuse_replaced_removal(server: ReplacedServer, under_way: Mapping[str, str]) -> None:
    """Raise PreflightError unless all datasets of the replaced server may be destroyed; change nothing.

    The conditions of `refuse_removal` apply. In addition, no dataset may belong to a restore in progress. `under_way`
    maps the datasets of such restores to instances.
    """
    names = list(server.datasets.values())
    places = {name: place_of(name, server.restore_id) for name in names}
    busy = [name for name in (*names, *places.values()) if name in under_way]
    if busy:
        raise PreflightError(
            f"{busy[0]} belongs to an unfinished restore of {under_way[busy[0]]}",
            hint=f"end it first: `zsnapdb status {under_way[busy[0]]}` shows the commands",
        )
    seal = {snapshot.dataset: snapshot.full_name for snapshot in server.sealed.values()}
    refuse_removal(names, list(places.values()), seal)


def remove(server: ReplacedServer, under_way: Mapping[str, str]) -> None:
    """Destroy the datasets of a replaced server with all their snapshots.

    Raises PreflightError like `refuse_removal`; in that case nothing was destroyed. Raises NotOursError if a dataset
    lacks the mark of a replaced dataset.
    """
    refuse_replaced_removal(server, under_way)
    mark = Mark(REPLACED_PROPERTY, server.restore_id)
    destruction.destroy_datasets(server.datasets.values(), mark, with_snapshots=True)


def other_view(variables: Mapping[str, str], peer: int | None, proc: Path = Path("/proc")) -> OtherView | None:
    """Return a path setting of the server that names a different folder on this host; None if there is none.

    `peer` is the process at the other end of the connection, according to the kernel. For TCP connections, `peer` is
    None. If `peer` runs a server program, only that process is examined. Otherwise all server processes that are
    visible to this account are examined; only root sees all.
    """
    datadir = variables["datadir"].rstrip("/")
    if peer is not None and is_server_program(proc / str(peer)):
        pid: int | None = peer
    else:
        pid = _by_folder(datadir, proc, is_ours=variables.get("hostname") == os.uname().nodename)
    if pid is None:
        return None
    for setting, path, theirs in _folders({**variables, "datadir": datadir}, proc / str(pid)):
        if _identity(theirs) is not None and _identity(theirs) != _identity(Path(path)):
            cover = _cover(proc, pid, path) if setting == "datadir" else None
            return OtherView(setting, path, pid, _place_here(theirs, path), cover)
    return None


def _cover(proc: Path, pid: int, datadir: str) -> Cover | None:
    """Return the mount that hides the process's data directory from this host; None if no mount does.

    A process keeps using the directory that it entered before something was mounted over the path.
    """
    folder = proc / str(pid) / "cwd"
    try:
        if os.readlink(proc / str(pid) / "ns/mnt") != os.readlink(proc / "self/ns/mnt"):
            return None
        path, seen = Path(os.readlink(folder)), os.stat(folder)
    except OSError:
        return None
    here = [entry for entry in mounts.mounted() if path.is_relative_to(entry.path)]
    own = [entry for entry in here if entry.device == f"{os.major(seen.st_dev)}:{os.minor(seen.st_dev)}"]
    is_elsewhere = str(path) != os.path.realpath(datadir) or _identity(path) == (seen.st_dev, seen.st_ino)
    if not own or own[-1] is here[-1] or is_elsewhere:
        return None
    return Cover(here[-1].source, own[-1].source, here[-1].path)


def _folders(variables: Mapping[str, str], process: Path) -> Iterator[tuple[str, str, Path]]:
    """Yield each folder setting, its value, and the path under /proc at which the process sees the folder."""
    yield "datadir", variables["datadir"], process / "cwd"
    named = [(name, variables.get(name, "")) for name in DIRECTORIES if name != "datadir"]
    named += [(name, os.path.dirname(variables.get(name, ""))) for name in BASENAMES]
    for name, path in named:
        if path.startswith("/"):
            yield name, path, process / "root" / path.lstrip("/")


def _by_folder(datadir: str, proc: Path, *, is_ours: bool) -> int | None:
    """Return the server process with the data directory `datadir`, if this path is a different folder on this host.

    `is_ours` says that the server reports this host's name. If `is_ours` is set and a server process uses the folder at
    this path on this host, that process is the server. In this case the result is None.
    """
    here = _identity(Path(datadir))
    others = []
    for pid in sorted(int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal()):
        process = proc / str(pid)
        theirs = _identity(process / "cwd") if is_server_program(process) else None
        if theirs is None:
            continue
        if theirs == here:
            if is_ours:
                return None
        elif theirs == _identity(process / "root" / datadir.lstrip("/")) or _cover(proc, pid, datadir) is not None:
            others.append(pid)
    return others[0] if others else None


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(folder)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _place_here(theirs: Path, path: str) -> str:
    """Return the folder's path on this host: a mount point plus the end of the server's path; "" if it is unknown."""
    wanted = _identity(theirs)
    if wanted is None:
        return ""
    device = f"{os.major(wanted[0])}:{os.minor(wanted[0])}"
    parts = Path(path).parts[1:]
    places = (
        Path(entry.path, *parts[len(parts) - count :])
        for entry in mounts.mounted()
        if entry.device == device
        for count in range(len(parts) + 1)
    )
    return next((str(place) for place in places if _identity(place) == wanted), "")
