"""A snapshot set taken for a clone: the state of the running server now, proved like a backup's, but none."""

from __future__ import annotations

from zsnapdb.jobs.backup.preflight import Observed
from zsnapdb.jobs.backup.server_source import open_server
from zsnapdb.jobs.backup.snapshot_set import take
from zsnapdb.jobs.clock import fresh_backup_id
from zsnapdb.jobs.clone.sources import CloneSource, SourceKind
from zsnapdb.jobs.instance import Instance
from zsnapdb.jobs.set_properties import LIVE
from zsnapdb.mysql.paths import absolute_tablespaces
from zsnapdb.planning.server_copy.origin import Origin
from zsnapdb.zfs import snapshots


def _origin(observed: Observed) -> Origin:
    return Origin.of(observed.facts, observed.volumes, observed.mountpoints, absolute_tablespaces(observed.facts))


def origin_of_live(instance: Instance) -> Origin:
    """Return what the running server is, without taking anything. PreflightError if it is not fit for a snapshot."""
    with open_server(instance) as source:
        return _origin(source.observe())


def take_live(instance: Instance) -> CloneSource:
    """Take a snapshot set of the running server, under the least lock that is enough.

    It goes when its last clone goes.
    """
    with open_server(instance) as source:
        observed = source.observe()
        taken = take(source, observed, instance.name, fresh_backup_id(), instance.events, LIVE)
    # Its clones hold it from now on, and no backup is made of it.
    snapshots.release([snapshot.full_name for snapshot in taken.set.snapshots.values()])
    return CloneSource(SourceKind.LIVE, taken.set, _origin(observed))
