"""Prunes of a site's repository, and the checks after them."""

from __future__ import annotations

import json

from tests.unit.support.manifests import stored_manifests
from tests.unit.support.stored_backups import Site
from zsnapdb.jobs.repository import prune as job
from zsnapdb.jobs.repository.prune import PrunePlan, PruneResult
from zsnapdb.jobs.repository.prune_facts import NOTHING_LOCAL
from zsnapdb.planning.backup_chain import restore_chain
from zsnapdb.planning.repository.retention import Unrestorable
from zsnapdb.repository import layout


def prune(site: Site, unrestorable: Unrestorable = Unrestorable.KEEP) -> PruneResult:
    return job.prune(site.instance(), local=NOTHING_LOCAL, unrestorable=unrestorable, trusts_clock=bool(site.ahead))


def plan(site: Site) -> PrunePlan:
    return job.plan(site.instance(), local=NOTHING_LOCAL, trusts_clock=bool(site.ahead))


def manifests(site: Site) -> list[str]:
    return site.instance().open_repository().backup_ids("main")


def forge(site: Site, original: str, suffix: str, **changes: object) -> str:
    """Store a copy of a manifest under a new id of a later time, without data. Return the id."""
    repository = site.instance().open_repository()
    fields = json.loads(repository.get(layout.manifest("main", original)).partition(b"\n")[0])
    name = f"{original[:9]}235959Z-{suffix}"
    fields |= {"backup_id": name, **changes}
    repository.put(layout.manifest("main", name), json.dumps(fields, separators=(",", ":")).encode() + b"\n")
    return name


def check_whole(site: Site) -> None:
    """Check that every listed backup has its chain, and every chunk with the size in its manifest."""
    repository = site.instance().open_repository()
    sizes = repository.sizes(layout.all_chunks("main"))
    backups = stored_manifests(repository)
    for backup in backups:
        restore_chain(backups, backup)
        for volume in backup.volumes:
            for index, chunk in enumerate(volume.chunks, 1):
                assert sizes[layout.chunk("main", backup.backup_id, volume.role, index)] == chunk.stored_size
