"""Prepares a snapshot set: recovers its server once and shuts it down, so that clones of the set need no recovery."""

from __future__ import annotations

from pydantic import SecretStr

from zsnapdb.base import server_files
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.random_values import fresh_server_id
from zsnapdb.jobs.base.set_properties import snapshot_name
from zsnapdb.jobs.base.undo import undone_on_error
from zsnapdb.jobs.clone import fetch, locks, reusable_sets
from zsnapdb.jobs.clone.catalogue import home
from zsnapdb.jobs.clone.locate import locate
from zsnapdb.jobs.clone.properties import KEPT_PROPERTY
from zsnapdb.jobs.clone.reusable_sets import PREPARED, anchor_of, facts_of, prepared_form
from zsnapdb.jobs.clone.sources import CloneSource, with_volumes
from zsnapdb.jobs.clone.volumes import (
    NOT_MOUNTED,
    clone_volumes,
    copy_of,
    give,
    layout_of,
    mount,
    outer_first,
    remove_folders,
    snapshot,
)
from zsnapdb.jobs.copies import properties as copy_properties
from zsnapdb.jobs.copies.properties import CopyPhase
from zsnapdb.jobs.record import tail_record
from zsnapdb.jobs.server_copy.prepare import Copy, check_recovered
from zsnapdb.mysql.binlog.known_tail import KnownTail
from zsnapdb.planning.server_copy.identity import Access
from zsnapdb.zfs import datasets


def prepare(settings: Settings, instance: Instance, requested: str, *, accepts_older: bool = False) -> CloneSource:
    """Prepare the requested snapshot set and return its prepared form; a set that is prepared already is returned.

    A backup that is only in the repository is received first. The server runs without network and without accounts
    meanwhile. ConsistencyError if it does not come up with exactly the recorded GTIDs. After an error nothing of the
    prepared form is left. `accepts_older` is as for `locate`.
    """
    instance = with_volumes(instance)
    source = fetch.bring_here(settings, instance, locate(settings, instance, requested, accepts_older=accepts_older))
    top = home(settings, source.pool)
    datasets.ensure(top, NOT_MOUNTED)
    with locks.on_reusable_set(PREPARED, source.set.backup_id):
        existing = prepared_form(top, source)
        return existing if existing.is_prepared else _prepare(settings, instance, top, source)


def _prepare(settings: Settings, instance: Instance, top: str, source: CloneSource) -> CloneSource:
    """Make the prepared form under its lock, and return it."""
    set_id, anchor = source.set.backup_id, anchor_of(top, PREPARED, source.set.backup_id)
    reusable_sets.remove_if_exists(top, PREPARED, set_id)
    root = settings.clones.mount_root / f".{set_id}"
    layout = layout_of(source.origin, f"{anchor}/c", root)
    copy = copy_of(source.origin, layout, root, instance.settings.server, settings.clones)
    datasets.create(
        anchor, {**NOT_MOUNTED, **facts_of(set_id, instance.name, source.origin, source.kind, instance.host.now())}
    )

    def undo() -> None:
        copy.process().kill()
        reusable_sets.remove_if_exists(top, PREPARED, set_id)
        remove_folders(root)

    with undone_on_error(undo):
        clone_volumes(source, layout, {KEPT_PROPERTY: set_id})
        known = tail_record.read(instance, source.origin.flavour)
        _recover_once(copy, source, known, [dataset for _, dataset in outer_first(layout)])
        snapshot(layout.datasets, snapshot_name(set_id), {KEPT_PROPERTY: set_id})
        for _, dataset in reversed(outer_first(layout)):
            datasets.unmount(dataset)
        datasets.set_properties(anchor, {copy_properties.PHASE_PROPERTY: CopyPhase.READY})
    remove_folders(root)
    return prepared_form(top, source)


def _recover_once(copy: Copy, source: CloneSource, known: KnownTail | None, volumes: list[str]) -> None:
    """Start an unreachable server on the files, check its position, shut it down, and remove its identity."""
    mount(volumes)
    server_files.remove_tree(copy.folder)
    give(copy)
    copy.make_private()
    copy.remove_identity()
    position = copy.recorded_position(known, has_gtids=source.origin.has_gtids)
    identity = copy.identity(server_id=fresh_server_id(), port=None, access=Access.PRIVATE_SOCKET)
    with locks.turn(), copy.start(identity, "root", SecretStr("")) as session:
        check_recovered(session, position, source.origin.unlogged_gtids)
    copy.process().stop(timeout=copy.settings.start_timeout)
    copy.remove_identity()
    server_files.remove_tree(copy.folder)
