"""Live sets: snapshot sets of the running server that are taken for a clone and never stored as backups."""

from __future__ import annotations

from zsnapdb.jobs.backup.server_source import open_server, origin_of
from zsnapdb.jobs.backup.source import take
from zsnapdb.jobs.base.exclusion import alone_at_source
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.set_properties import LIVE
from zsnapdb.jobs.clone.sources import CloneSource
from zsnapdb.planning.clone.source_kind import SourceKind
from zsnapdb.planning.server_copy.origin import Origin


def origin_of_live(instance: Instance) -> Origin:
    """Return the origin of a live set without taking one. PreflightError if the server is not fit for a snapshot."""
    with open_server(instance) as source:
        return origin_of(source.observe())


def take_live(instance: Instance) -> CloneSource:
    """Take a live set under the least lock that is enough; its position is proved like that of a backup.

    The set is destroyed together with its last clone.
    """
    with open_server(instance) as source:
        observed = source.observe()
        with alone_at_source(instance):
            taken = take(
                source,
                observed,
                instance.name,
                instance.host.new_backup_id(),
                instance.events,
                LIVE,
                run_id=instance.host.run_id(),
            )
    return CloneSource(SourceKind.LIVE, taken.set, origin_of(observed))
