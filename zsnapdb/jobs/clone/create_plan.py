"""The plan of a new clone: source, name, port, lease and folders. Planning changes nothing."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from zsnapdb.base.domain_types import pool_of
from zsnapdb.base.errors import ExistsError, PreflightError
from zsnapdb.config.settings import CloneSettings, ServerSettings, Settings
from zsnapdb.jobs.base.host import Host, fresh_server_id
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone import (
    cached_sets,
    catalogue,
    expected_clone,
    haproxy_socket,
    kept_ports,
    masking_requirement,
    space_limits,
)
from zsnapdb.jobs.clone.catalogue import home
from zsnapdb.jobs.clone.clone_info import CloneClaim, CloneRecord, refuse_name, requested_text
from zsnapdb.jobs.clone.isolated_start import CloneServer
from zsnapdb.jobs.clone.request import LATEST, CloneRequest, random_name
from zsnapdb.jobs.clone.source_lookup import home_for, locate, origin_of_live, pool_for
from zsnapdb.jobs.clone.sources import LIVE_STATE, CloneSource, RemoteBackup, origin_at, origin_in, with_volumes
from zsnapdb.jobs.clone.space_limits import PoolSpace
from zsnapdb.jobs.clone.volumes import copy_of, layout_of
from zsnapdb.jobs.dataset_copies.catalogue import KnownCopies
from zsnapdb.jobs.dataset_copies.properties import CopyPhase, owner_text
from zsnapdb.jobs.host import startup_requirements
from zsnapdb.jobs.host.server_copy import Copy, CopyLayout, port_is_free
from zsnapdb.jobs.host.startup_requirements import refuse_alternate_root
from zsnapdb.jobs.restore.backup_selection import first_manifest
from zsnapdb.jobs.restore.offline_repository import open_for_restore, reopen
from zsnapdb.mysql.process import programs, server
from zsnapdb.planning.clone.kept_ports import choose_port
from zsnapdb.planning.clone.lease import CloneLease, SourceKind, admit, first_lease, policy, quota_of, stamp
from zsnapdb.planning.clone.masking import MaskingCase, MaskingChoice, masking_choice
from zsnapdb.planning.restore.plan import RestoreOrigin, RestorePlan
from zsnapdb.planning.server_copy.source_facts import SourceServer, notes_on
from zsnapdb.zfs import datasets


@dataclass(frozen=True)
class PlannedSource:
    """The source of a planned clone.

    `source` is a snapshot set on this host, a backup that must be received, or the plan of a restore to a point. If
    `source` is None, a snapshot set is created now. `snapshots` contains the existing snapshots by role. `receives`
    contains the backups to receive first, oldest first. `replays` is the number of batches of archived binlogs to
    replay first. `rules` is the digest of the rules that masked the source, or "" if it is not masked. `masking` says
    how the clone is masked.
    """

    kind: SourceKind
    source: CloneSource | RemoteBackup | RestorePlan | None
    set_id: str
    origin: SourceServer
    masking: MaskingChoice
    snapshots: Mapping[str, str] = field(default_factory=dict)
    receives: tuple[str, ...] = ()
    is_prepared: bool = False
    replays: int = 0
    rules: str = ""

    @property
    def pool(self) -> str | None:
        """The pool of the snapshots; None if there are no snapshots yet."""
        return next((pool_of(snapshot.partition("@")[0]) for snapshot in self.snapshots.values()), None)


@dataclass(frozen=True, kw_only=True)
class ClonePlan(CloneRecord):
    """The plan of `create` for a request: the source of the clone, and the first record for the clone's anchor.

    `home` is the state of the clones' parent dataset at planning time.
    """

    request: CloneRequest
    made_from: PlannedSource
    layout: CopyLayout
    copy: Copy
    quota: int
    home: PoolSpace

    @property
    def notes(self) -> tuple[str, ...]:
        """The settings of the source that the clone's server does not use, with reasons."""
        zones = time.tzname if self.origin.zone is None else None
        return (
            *notes_on(self.origin.variables, self.copy.settings.options, zones),
            *startup_requirements.zone_differences(self.copy.settings, self.origin),
        )


def plan(settings: Settings, instance: Instance, request: CloneRequest) -> ClonePlan:
    """Return the plan of `create`; change nothing.

    Raises:
        PreflightError: a quota, the lease, the ports, the server program or the account does not allow the clone.
        ExistsError: the name or the folder is in use.
    """
    instance = with_volumes(instance)
    return plan_for(settings, instance, request, planned_source(settings, instance, request))


def plan_from(
    settings: Settings, instance: Instance, request: CloneRequest, source: CloneSource, masking: MaskingChoice
) -> ClonePlan:
    """Return the plan of a clone from exactly the snapshots in `source`. `instance` must contain its volumes."""
    return plan_for(settings, instance, request, _of_snapshots(source, masking))


def planned_source(settings: Settings, instance: Instance, request: CloneRequest) -> PlannedSource:
    """Return the source of the clone, and how the clone is masked; change nothing.

    `instance` must contain its volumes.
    """
    rules = masking_requirement.rules_of(instance.settings.masking, requested=request.masks)
    if request.at is not None:
        from zsnapdb.jobs.clone import source_fetch

        known = request.point
        repository = reopen(instance, known) if known is not None else open_for_restore(instance, RestoreOrigin.AUTO)
        top = home_for(settings, list(instance.volumes.values()))
        point = known or source_fetch.point_plan(
            settings,
            instance,
            repository,
            top,
            request.at,
            accepts_older=request.accepts_older,
            history=request.history,
        )
        origin = origin_at(first_manifest(instance, repository, point), point)
        masking = _masking(settings, request, SourceKind.POINT, rules)
        return PlannedSource(
            SourceKind.POINT, point, point.backup_id, origin, masking, is_prepared=True, replays=len(point.replays)
        )
    if request.source == LIVE_STATE:
        masking = _masking(settings, request, SourceKind.LIVE, rules)
        return PlannedSource(SourceKind.LIVE, None, "", origin_of_live(instance), masking)
    source = locate(settings, instance, request.source, rules, accepts_older=request.accepts_older)
    if isinstance(source, CloneSource):
        own = masking_requirement.rules_for(source, rules)
        masking = _masking(settings, request, source.kind, own, source.rules, is_stored=source.is_stored)
        return _of_snapshots(source, masking)
    masking = _masking(settings, request, SourceKind.REPOSITORY, rules, is_stored=True)
    receives = tuple(manifest.backup_id for manifest in source.chain)
    backup = source.manifest
    return PlannedSource(SourceKind.REPOSITORY, source, backup.backup_id, origin_in(backup), masking, receives=receives)


def _masking(
    settings: Settings,
    request: CloneRequest,
    kind: SourceKind,
    rules: str,
    source_rules: str = "",
    *,
    is_stored: bool = False,
) -> MaskingChoice:
    return masking_choice(
        MaskingCase(
            kind,
            rules,
            source_rules,
            is_stored=is_stored,
            names_latest=request.names_source == LATEST,
            starts=request.starts,
            is_ephemeral=request.is_ephemeral,
            keep_unused=settings.clones.keep_unused,
        )
    )


def _of_snapshots(source: CloneSource, masking: MaskingChoice) -> PlannedSource:
    names = {role: snapshot.full_name for role, snapshot in source.set.snapshots.items()}
    prepared, rules = source.is_prepared, source.rules
    set_id = source.set.backup_id
    return PlannedSource(source.kind, source, set_id, source.origin, masking, names, (), prepared, rules=rules)


def _home_of(settings: Settings, made_from: PlannedSource) -> str:
    """Return the parent dataset of clones in the source's pool. Raise PreflightError if the pool has an altroot."""
    pool = made_from.pool or pool_for(settings, [place.dataset for place in made_from.origin.volumes.values()])
    refuse_alternate_root(pool)
    return home(settings, pool)


def plan_for(settings: Settings, instance: Instance, request: CloneRequest, made_from: PlannedSource) -> ClonePlan:
    """Return the plan of `create` with the source `made_from`; change nothing. Raises the errors of `plan`."""
    name, origin = request.name or random_name(instance), made_from.origin
    refuse_name(name)
    _check_host(settings, instance, origin)
    top = _home_of(settings, made_from)
    anchor = f"{top}/{name}"
    _require_free(name, anchor)
    limits, seen = settings.clones, space_limits.read_pool_space(top)
    space_limits.refuse_source(settings, top, made_from.source)
    known = catalogue.claims(settings)
    lease, port, kept = _admitted(settings, instance.host, request, name, seen.free, known)
    begun = cached_sets.kept_since(made_from.source, known.copies, instance.host)
    cached_sets.require(settings, lease, None, begun)
    root = limits.mount_root / name
    _refuse_files_in(root)
    layout = layout_of(origin, f"{anchor}/r1", root)
    options = (*instance.settings.server.options, *request.profile.options)
    copy = copy_of(origin, layout, root, instance.settings.server.model_copy(update={"options": options}), limits)
    if (missing := copy.key_objection(origin.binlog_key)) is not None:
        raise missing
    requested, source = requested_text(request.names_source), made_from.source
    key = source.key if isinstance(source, CloneSource) else ""
    planned = ClonePlan(
        name=name,
        top=anchor,
        phase=CopyPhase.MAKING,
        instance=instance.name,
        backup_id=made_from.set_id,
        source=made_from.kind,
        requested=requested,
        original_words=f"{'@' * (made_from.kind is SourceKind.SNAPSHOT)}{made_from.set_id} {requested}",
        key=key,
        original_key=key,
        origin=origin,
        flavour=origin.flavour,
        port=port,
        kept_port=kept,
        bind_address=request.bind_address or limits.bind_address,
        server_id=fresh_server_id(),
        created=stamp(instance.host.latest()),
        begun=begun,
        mount=root,
        revision=1,
        owner=owner_text(request.owner),
        lease=lease,
        profile=request.profile,
        rights=request.rights,
        asks_for_masking=masking_requirement.masks_new_clone(instance.settings.masking, requested=request.masks),
        is_ephemeral=request.is_ephemeral,
        run_id=instance.host.run_id(),
        request=request,
        made_from=made_from,
        layout=layout,
        copy=copy,
        quota=space_limits.new_clone_quota(settings, seen.free, request.quota),
        home=seen,
    )
    copy.render(CloneServer(copy, planned, limits.accounts == "lock").identity())
    return planned


def _check_host(settings: Settings, instance: Instance, origin: SourceServer) -> None:
    server = instance.settings.server
    programs.fitting_program(server, origin.flavour, origin.version)
    startup_requirements.refuse_unstartable(server, origin)
    for text in startup_requirements.zone_differences(server, origin):
        instance.events.warn(text)
    check_account(server, settings.clones)


def _require_free(name: str, anchor: str) -> None:
    """Raise ExistsError if another clone has the name. The error does not identify that clone."""
    if datasets.exists(anchor):
        raise ExistsError(
            f"the name {name} is taken by another clone",
            hint=f"choose another name, or run `zsnapdb clone destroy {name}`",
            about=(),
        )


def _refuse_files_in(root: Path) -> None:
    if root.exists() and any(root.iterdir()):
        raise ExistsError(
            f"the folder {root}, where the clone would be mounted, is not empty",
            hint=f"choose another name; `findmnt -R {root}` shows whether a dataset is mounted there",
        )


def _admitted(
    settings: Settings, host: Host, request: CloneRequest, name: str, free: int, known: KnownCopies[CloneClaim]
) -> tuple[CloneLease, int, int | None]:
    """Return the lease of a new clone, the port of its server, and its fixed port.

    `free` is the free space of the pool in bytes, and `known` contains the existing clones.

    Raises:
        PreflightError: a quota, the lease or the ports do not allow the clone.
        ExistsError: another clone has the name.
    """
    limits, clones = settings.clones, known.copies
    catalogue.refuse_label(clones, name)
    quota = quota_of(settings, is_subject=bool(expected_clone.current_causer()))
    if request.waits or request.is_ephemeral:
        quota = replace(quota, per_owner=0)
    # The owner of a clone with unreadable properties is unknown, but such a clone counts for the limits of this host.
    owners = [*(claim.owner for claim in clones), *("" for _ in known.unreadable)]
    admit(quota, owner_text(request.owner), owners, free)
    lease = first_lease(request.ttl, policy(limits), host.latest(), request.heartbeat)
    used = {claim.port for claim in clones} | set(limits.reserved_ports) | haproxy_socket.routed_ports(limits.address)
    port = choose_port(limits.first_port, limits.last_port, used, port_is_free)
    if request.waits or request.is_ephemeral:
        return lease, port, None
    return lease, port, kept_ports.choose(settings, clones, request.bind_address or limits.bind_address)


_MAKE_ACCOUNT = "useradd --system --user-group --no-create-home --shell /usr/sbin/nologin"


def check_account(source: ServerSettings, clones: CloneSettings) -> None:
    """Raise PreflightError unless the configured account can run clones' servers.

    A configured account must exist, and file permissions must prevent it from reading the source's files. So it must be
    neither root nor the account of the source's server, and must not share a group with either.
    """
    name = clones.server_user
    if name is None:
        server.account(source.user)
        return
    try:
        own = pwd.getpwnam(name)
    except KeyError:
        raise PreflightError(
            f"the account {name} of clones.server_user does not exist", hint=f"make it: `{_MAKE_ACCOUNT} {name}`"
        ) from None
    # If a host has only clones, the account of the source's server may not exist there.
    others = [entry for entry in pwd.getpwall() if entry.pw_name in ("root", source.user)]
    if own.pw_uid in (0, *(other.pw_uid for other in others)):
        raise PreflightError(
            f"the account {name} of clones.server_user is that of {'root' if own.pw_uid == 0 else source.user}",
            hint=f"use a separate account, such as one made by `{_MAKE_ACCOUNT} zsnapdb-clone`",
        )
    if {0, *(other.pw_gid for other in others)} & set(os.getgrouplist(name, own.pw_gid)):
        raise PreflightError(
            f"the account {name} of clones.server_user is in a group of {source.user} or root: it could read files of"
            " the source",
            hint=f"see `id {name}`, and take it out of these groups",
        )
