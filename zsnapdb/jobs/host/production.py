"""Whether what was production may be moved, replaced or destroyed: facts of the kernel and of ZFS decide, no names.

Whoever moves, replaces, overwrites or destroys datasets of a server asks here first, and again right before the first
change: which files does the server that runs use, what lies inside that does not belong to it, is something mounted
elsewhere, and was what goes written to since it was replaced.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from zsnapdb.base.errors import ForeignInsideError, PreflightError
from zsnapdb.mysql.process import discovery
from zsnapdb.planning.restore.exchange import strangers
from zsnapdb.zfs import datasets, mounts, snapshots
from zsnapdb.zfs.users import family_of, users_of

_PATIENCE = 5.0
_POLL_SECONDS = 0.25


def dataset_of(folder: Path) -> str | None:
    """Return the dataset on which an open folder or file of a process lies; None if it is on no dataset of this host.

    The kernel's number of the filesystem decides, not the path: a mount may lie on top of it by now.
    """
    try:
        device = os.stat(folder).st_dev
    except OSError:
        return None
    number = f"{os.major(device)}:{os.minor(device)}"
    return next((entry.source for entry in mounts.mounted() if (entry.fstype, entry.device) == ("zfs", number)), None)


def servers_on(names: Collection[str]) -> dict[int, str]:
    """Return the processes of servers whose data directory lies on one of the datasets: pid to dataset."""
    on = {one.pid: dataset_of(Path(f"/proc/{one.pid}/cwd")) for one in discovery.server_processes()}
    return {pid: dataset for pid, dataset in on.items() if dataset is not None and dataset in names}


def refuse_strangers(places: Mapping[str, str]) -> None:
    """Raise ForeignInsideError if datasets or mounts that are no volumes lie inside the places.

    Renaming a dataset takes all below it along, and they are unmounted: what is written to their paths later would land
    on another disk. `places` are the mount points of the volumes, by dataset.
    """
    existing = [name for name in places if datasets.exists(name)]
    tops = [name for name in existing if not any(name.startswith(other + "/") for other in existing)]
    below = [name for top in tops for name in datasets.children(top, ["type"])]
    inside = strangers(places, below, [(entry.path, entry.source) for entry in mounts.mounted()])
    if inside:
        listed = ", ".join(f"{one.name} ({one.what})" for one in inside)
        raise ForeignInsideError(
            f"the datasets of the server cannot be exchanged: inside them lies what is no volume of it: {listed}",
            hint=f"move it away with `{_away(inside[0].name)}`, or name it under volumes of the instance",
        )


def _away(name: str) -> str:
    """Return a command that takes a dataset, or the mount at a path, out of the datasets of a server."""
    if name.startswith("/"):
        return f"umount {name}"
    return f"zfs rename {name} {name.partition('/')[0]}/{name.rpartition('/')[2]}"


def refuse_mounted_elsewhere(names: Collection[str], *, after_unmount: bool) -> None:
    """Raise ForeignInsideError if another mount namespace has one of the datasets mounted, and would keep it so.

    A server in a container would go on with these files while others take their place. `after_unmount`: the datasets
    were unmounted here, so every mount that is left stays.
    """
    for mount in mounts.mounted_elsewhere(names):
        if after_unmount or not mount.follows:
            raise ForeignInsideError(mount.describe(), hint=mount.remedy)


def refuse_second_mounts(places: Mapping[str, str]) -> None:
    """Raise ForeignInsideError if a dataset is mounted at a second place here, such as by a bind mount for a container.

    The old files would stay there while others take their place. `places` are as for `refuse_strangers`.
    """
    entries = [entry for entry in mounts.mounted() if entry.fstype == "zfs" and entry.source in places]
    for entry in entries:
        others = [one for one in entries if one.source == entry.source and one.path != entry.path]
        if others and entry.path != places[entry.source]:
            raise ForeignInsideError(
                f"{entry.source} is also mounted at {entry.path}, and would stay there",
                hint=f"end what uses it, then run `umount {shlex.quote(entry.path)}`",
            )


def refuse_busy(names: Collection[str], server: int | None) -> None:
    """Raise PreflightError if processes keep these datasets from being unmounted. Those that are not mounted are free.

    The process `server`, those that it descends from and those that it started end with it. Others may be about to
    close their file, so they have a few seconds.
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
    """Raise PreflightError if a server runs whose data directory lies on one of the datasets."""
    for pid, dataset in servers_on(names).items():
        raise PreflightError(
            f"{doing}, and a server still runs: process {pid} uses {dataset}",
            hint="stop that server first; `ps` shows who started it",
        )


def refuse_removal(replaced: Collection[str], places: Collection[str], seal: Mapping[str, str]) -> None:
    """Raise PreflightError unless the replaced datasets may be destroyed: all of them are judged before any goes.

    The datasets in their places exist, and a server runs from them. Nothing was written to a replaced dataset since its
    last state was snapshotted (`seal`: the name of that snapshot, by dataset). None is mounted, in any mount namespace.
    None has clones, holds, or datasets below it that were not replaced with it.
    """
    missing = [name for name in places if not datasets.exists(name)]
    if missing:
        raise PreflightError(
            f"{missing[0]} does not exist, so {', '.join(replaced)} may be the only copy of the server",
            hint="see `zfs list`; a restore or rewind that was interrupted goes on with --resume",
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
            hint="destroy clones with `zsnapdb clone destroy NAME`; a prepared form of a set goes with `zsnapdb reap`"
            " when it was not used for clones.keep_unused",
        )
    held = [name for name, use in uses.items() if use.holds]
    if held:
        raise PreflightError(
            f"snapshots of the replaced datasets are held: {', '.join(held)}",
            hint=f"see `zfs holds {held[0]}`; if nobody needs them, release them with `zfs release`",
        )
