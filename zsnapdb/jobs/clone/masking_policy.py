"""No unmasked clone is handed out where the policy forbids it: decided and done between the clone's making and its first start."""

from __future__ import annotations

from collections.abc import Collection

from zsnapdb.config import MaskingSettings, Settings
from zsnapdb.errors import PreflightError
from zsnapdb.gtid import GtidSet
from zsnapdb.jobs.clock import now
from zsnapdb.jobs.clone import masking
from zsnapdb.jobs.clone.catalogue import CloneInfo
from zsnapdb.jobs.clone.contract import Tenant
from zsnapdb.jobs.clone.masking import MaskingReport
from zsnapdb.jobs.clone.properties import MASK_PROPERTY, MASKED_PROPERTY
from zsnapdb.model import Position
from zsnapdb.planning.clone.lease import stamp
from zsnapdb.planning.clone.masking import is_masked
from zsnapdb.planning.server_copy.origin import ORIGIN_PROPERTY, Origin
from zsnapdb.zfs import datasets


def planned(settings: MaskingSettings, *, asked: bool) -> bool:
    """Whether a new clone is to be masked (unless what it is made from was).

    Its files that mask are looked at now, before anything is touched.
    """
    wanted = is_masked(required=settings.required, configured=bool(settings.run), requested=asked, already=False)
    if wanted:
        masking.check(settings)
    return wanted


def ensure(
    settings: MaskingSettings, tenant: Tenant, position: Position, *, instance: str, top: str, volumes: Collection[str]
) -> MaskingReport | None:
    """Mask the clone whose anchor is `top` and whose volumes are these, if the policy or its maker asks for it.

    None where nothing was to be done.

    Only when it is complete do its datasets say so. A clone of a masked clone's snapshot is masked already.
    """
    asked = datasets.properties(top, [MASK_PROPERTY])[MASK_PROPERTY] == datasets.Property("yes", "local")
    inherited = all(_origin_is_masked(dataset) for dataset in volumes)
    report = None
    if is_masked(required=settings.required, configured=bool(settings.run), requested=asked, already=inherited):
        report = masking.mask(
            tenant.copy,
            settings,
            position,
            tenant.origin.unlogged_gtids,
            instance=instance,
            clone=top.rpartition("/")[2],
        )
    if report is not None or inherited:
        facts = {MASKED_PROPERTY: stamp(now())}
        if report is not None:
            facts[ORIGIN_PROPERTY] = without_binlogs(tenant.origin, position).encode()
        for dataset in volumes:
            datasets.set_properties(dataset, facts)
    return report


def without_binlogs(origin: Origin, position: Position) -> Origin:
    """Return the origin of a copy whose binlogs were removed: from then on its GTIDs up to the position are in none of them.

    MySQL keeps them in mysql.gtid_executed (refman 8.4, "mysql.gtid_executed Table").
    """
    if not isinstance(position.gtids, GtidSet):
        return origin
    return origin.model_copy(update={"unlogged": str(position.gtids.union(origin.unlogged_gtids or GtidSet.parse("")))})


def _origin_is_masked(dataset: str) -> bool:
    """Whether the snapshot the dataset is a clone of is of a masked dataset: it has the property from there."""
    origin = datasets.properties(dataset, ["origin"])["origin"].value
    return (
        origin not in ("", datasets.UNSET)
        and datasets.properties(origin, [MASKED_PROPERTY])[MASKED_PROPERTY].value != datasets.UNSET
    )


def refuse_unmasked(settings: Settings, info: CloneInfo) -> None:
    """Raise PreflightError if masking is required for the clone's instance, and this clone, started before that was so, is not masked."""
    instance = settings.instance.get(info.instance)
    if instance is None or not instance.masking.required:
        return
    if not all(
        datasets.properties(dataset, [MASKED_PROPERTY])[MASKED_PROPERTY].is_local for dataset in info.volumes.values()
    ):
        raise PreflightError(
            f"clone {info.name} is not masked, and instance {info.instance} requires it",
            hint=f"`zsnapdb clone reset {info.name}` masks it",
        )
