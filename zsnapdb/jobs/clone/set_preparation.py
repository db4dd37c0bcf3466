"""Prepares a snapshot set: a server recovers a copy, the copy is masked if required, and the server is shut down.

Clones of the prepared set need neither recovery nor masking.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pydantic import SecretStr

from zsnapdb.base import safe_open
from zsnapdb.base.errors import BusyError, UnknownNameError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.events import undone_on_error
from zsnapdb.jobs.base.host import fresh_server_id
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.snapshot_set_properties import snapshot_name
from zsnapdb.jobs.clone import cached_sets, clone_info, locks, masking, masking_requirement, space_limits
from zsnapdb.jobs.clone.cached_sets import (
    PREPARED,
    RECEIVED,
    ReusableSet,
    anchor_of,
    name_of,
    oldest_first,
    prepared_form,
)
from zsnapdb.jobs.clone.catalogue import Intention, home
from zsnapdb.jobs.clone.clone_info import KEPT_PROPERTY
from zsnapdb.jobs.clone.masking import MaskingReport
from zsnapdb.jobs.clone.source_lookup import bring_here, locate
from zsnapdb.jobs.clone.sources import LATEST, CloneSource, RemoteBackup, with_volumes
from zsnapdb.jobs.clone.volumes import clone_volumes, copy_of, layout_of, mount, outer_first, remove_folders, snapshot
from zsnapdb.jobs.dataset_copies import properties as copy_properties
from zsnapdb.jobs.dataset_copies.catalogue import Verb
from zsnapdb.jobs.dataset_copies.properties import CopyPhase
from zsnapdb.jobs.host.server_copy import Copy, check_recovered, give_files
from zsnapdb.jobs.record import binlog_tail_record
from zsnapdb.planning.clone.lease import stamp
from zsnapdb.planning.server_copy.copy_options import LoginAccess
from zsnapdb.planning.server_copy.source_facts import ORIGIN_PROPERTY, SourceServer
from zsnapdb.zfs import datasets


@dataclass(frozen=True)
class PreparedSet:
    """A prepared set, and the masking report. The report is None if nothing was masked now."""

    source: CloneSource
    masking: MaskingReport | None = None


def prepare(
    settings: Settings, instance: Instance, requested: str, *, masks: bool = False, accepts_older: bool = False
) -> Verb[CloneSource | RemoteBackup, Intention, PreparedSet]:
    """Return the prepared set of the requested snapshot set. Create it if it does not exist.

    The set is masked if clones of the instance must be masked, or if the caller requests masking (`masks`). A backup
    that is only in the repository is received first. During the preparation the server runs without a network and
    without accounts. If an error occurs, no dataset of the prepared set is left. For `accepts_older`, see `locate`.

    Raises:
        ConsistencyError: the recovered server does not have exactly the recorded GTIDs.
        HookError: masking failed.
    """
    rules = masking_requirement.rules_of(instance.settings.masking, requested=masks)
    instance = with_volumes(instance)

    @contextlib.contextmanager
    def located() -> Iterator[CloneSource | RemoteBackup]:
        yield locate(settings, instance, requested, rules, accepts_older=accepts_older)

    def decide(source: CloneSource | RemoteBackup) -> tuple[Intention, Callable[[], PreparedSet]]:
        own = masking_requirement.rules_for(source, rules) if isinstance(source, CloneSource) else rules

        def make() -> PreparedSet:
            with locks.using_received(instance.name):
                here = bring_here(settings, instance, source)
                return prepare_source(settings, instance, here, masking_requirement.rules_for(here, rules))

        is_made = isinstance(source, CloneSource) and is_done(source, own)
        scripts = instance.settings.masking.run if own else ()
        return Intention(None, () if is_made else _steps(settings, source, scripts)), make

    return Verb(located, located, decide)


def _steps(
    settings: Settings, source: CloneSource | RemoteBackup, scripts: Sequence[tuple[str, ...]]
) -> tuple[str, ...]:
    if isinstance(source, RemoteBackup):
        begin = [f"receive backup {source.manifest.backup_id} from the repository", "clone the backup"]
    else:
        begin = [f"clone set {source.set.backup_id} beside {home(settings, source.pool)}"]
    return (
        *begin,
        *(f"mask it: {' '.join(words)}" for words in scripts),
        "start its server once without network",
        "compare its position with the recorded position",
        "shut it down cleanly and snapshot its volumes",
    )


def prepare_source(
    settings: Settings, instance: Instance, source: CloneSource, own: str, *, unasked: bool = False
) -> PreparedSet:
    """Return the prepared set of a set on this host.

    `own` is the digest of the rules that mask the prepared set, or "" for no masking. Create the prepared set if it
    does not exist and no other process is creating it. If the user did not request the prepared set (`unasked`), it may
    occupy at most as much space as one clone. During the creation, the space limit for all clones is lower by that
    amount. `instance` must contain its volumes. Raises the errors of `prepare`.

    Raises:
        BusyError: another process takes too long to create the prepared set.
    """
    if is_done(source, own):
        return PreparedSet(source)
    top = home(settings, source.pool)
    datasets.ensure(top)
    with locks.lock_reusable_set(PREPARED, name_of(source, own)):
        existing = prepared_form(top, source, own)
        if is_done(existing, own):
            return PreparedSet(existing)
        quota = space_limits.of_prepared_form(settings, space_limits.available_below(top)) if unasked else 0
        space_limits.guard(settings, quota)
        try:
            return _prepare(settings, instance, top, source, own, quota)
        finally:
            space_limits.guard(settings)


def forms_of(settings: Settings, instance: Instance, requested: str) -> list[ReusableSet]:
    """Return the instance's prepared sets with the given id, or one set as `prepared/NAME` or `received/NAME`.

    For `latest`, use the id of the newest prepared set. A received set must be named with its kind, so that a command
    that is run twice does not destroy it after the prepared sets.

    Raises:
        UnknownNameError: the instance has no such set.
        PreflightError: a set has clones.
    """
    known = [one for one in cached_sets.listing(settings) if one.instance == instance.name]
    prepared = [one for one in known if one.kind == PREPARED]
    ordered = oldest_first(instance, prepared, lambda one: one.set_id, lambda one: one.origin)
    newest = ordered[-1].set_id if ordered else ""
    wanted = newest if requested == LATEST else requested.removeprefix("@")
    forms = [one for one in prepared if one.set_id == wanted] or [
        one for one in known if f"{one.kind}/{one.name}" == requested
    ]
    if not forms:
        ids = ", ".join(sorted({*(one.set_id for one in prepared), *(f"{one.kind}/{one.name}" for one in known)}))
        raise UnknownNameError(
            f"no set {requested} of instance {instance.name} is prepared or received",
            hint=f"prepared or received are: {ids or 'none'}",
        )
    for form in forms:
        cached_sets.refuse_clones(form)
    return forms


def remove_forms(settings: Settings, instance: Instance, requested: str) -> list[ReusableSet]:
    """Destroy the sets that `forms_of` returns, and return them.

    Raises the errors of `forms_of` and `remove`.

    Raises:
        BusyError: a process is about to clone a received set of the instance.
    """
    gone = forms_of(settings, instance, requested)
    for form in gone:
        with contextlib.ExitStack() as locked:
            if form.kind == RECEIVED and not locked.enter_context(locks.if_none_uses_received(instance.name)):
                raise BusyError(f"a clone of {form.anchor} is being made", hint="run the command again later")
            locked.enter_context(locks.lock_reusable_set(form.kind, form.name))
            # The set may have been cloned meanwhile, or another process may have removed it.
            for now_there in cached_sets.listing(settings):
                if now_there.anchor == form.anchor:
                    cached_sets.remove(now_there)
    return gone


def is_done(source: CloneSource, rules: str) -> bool:
    """Return whether the source is prepared and masked as required.

    `rules` is the digest of the required masking rules, or "" if the source must be unmasked.
    """
    return source.is_prepared and source.rules == rules


def _prepare(
    settings: Settings, instance: Instance, top: str, source: CloneSource, rules: str, quota: int
) -> PreparedSet:
    set_id, name = source.set.backup_id, name_of(source, rules)
    anchor = anchor_of(top, PREPARED, name)
    cached_sets.remove_if_exists(top, PREPARED, name)
    root = settings.clones.mount_root / f".{name}"
    layout = layout_of(source.origin, f"{anchor}/c", root)
    copy = copy_of(source.origin, layout, root, instance.settings.server, settings.clones)
    begun = instance.host.latest()
    facts = cached_sets.facts_of(set_id, instance.name, source.origin, source.kind, begun, name, rules, source.key)
    datasets.create(anchor, facts)

    def undo() -> None:
        copy.process().kill()
        cached_sets.remove_if_exists(top, PREPARED, name)
        remove_folders(root)

    with undone_on_error(undo):
        clone_volumes(source, layout, {KEPT_PROPERTY: name}, quota)
        origin, report = _recover_once(instance, copy, source, [dataset for _, dataset in outer_first(layout)], rules)
        marks = {KEPT_PROPERTY: name, clone_info.KEY_PROPERTY: source.key}
        if rules:
            masking_requirement.refuse_snapshots(layout.datasets.values())
            marks |= {clone_info.MASKED_PROPERTY: stamp(instance.host.latest()), clone_info.RULES_PROPERTY: rules}
        elif masking_requirement.is_masked_commit(source):
            marks |= {clone_info.MASKED_PROPERTY: stamp(instance.host.latest())}
        snapshot(layout.datasets, snapshot_name(set_id), marks)
        for _, dataset in reversed(outer_first(layout)):
            datasets.unmount(dataset)
        ready = {
            copy_properties.PHASE_PROPERTY: CopyPhase.READY,
            ORIGIN_PROPERTY: origin.encode(),
            clone_info.USED_PROPERTY: stamp(instance.host.latest()),
        }
        datasets.set_properties(anchor, ready)
    remove_folders(root)
    return PreparedSet(prepared_form(top, source, rules), report)


def _recover_once(
    instance: Instance, copy: Copy, source: CloneSource, volumes: list[str], rules: str
) -> tuple[SourceServer, MaskingReport | None]:
    """Start a server without connections on the files, check its position, shut it down, and remove its identity.

    If `rules` is not empty, the files are masked first. Return the facts about the source server of the files, and the
    report about the masking.
    """
    mount(volumes)
    safe_open.remove_tree(copy.folder)
    give_files(copy)
    copy.make_private()
    copy.remove_identity()
    origin, report = source.origin, None
    position = copy.recorded_position(binlog_tail_record.read(instance, origin.flavour), has_gtids=origin.has_gtids)
    if rules:
        report = masking.mask(
            copy,
            instance.settings.masking,
            rules,
            position,
            origin.unlogged_gtids,
            instance=instance.name,
            clone=source.set.backup_id,
        )
        origin = masking_requirement.without_binlogs(origin, position)
    identity = copy.identity(server_id=fresh_server_id(), port=None, access=LoginAccess.PRIVATE_SOCKET)
    with locks.wait_for_turn(), copy.start(identity, "root", SecretStr("")) as session:
        check_recovered(session, position, origin.unlogged_gtids)
    copy.process().stop(timeout=copy.settings.start_timeout)
    copy.remove_identity()
    safe_open.remove_tree(copy.folder)
    return origin, report
