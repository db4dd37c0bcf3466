"""Which clones there are on this host, as their datasets tell it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from zsnapdb.config import Settings
from zsnapdb.errors import NotThere, PreflightError
from zsnapdb.jobs.clone.marks import CLONE_PROPERTY, CREATED_PROPERTY, FLAVOUR_PROPERTY, PORT_PROPERTY, ROLE_PROPERTY, ROOT_PROPERTY
from zsnapdb.jobs.common import BACKUP_PROPERTY, INSTANCE_PROPERTY, POSITION_PROPERTY
from zsnapdb.jobs.copies import PRIVATE_FOLDER
from zsnapdb.model import Flavour
from zsnapdb.mysql import server
from zsnapdb.zfs import datasets

_FACTS = (
    CLONE_PROPERTY,
    ROLE_PROPERTY,
    INSTANCE_PROPERTY,
    BACKUP_PROPERTY,
    PORT_PROPERTY,
    CREATED_PROPERTY,
    FLAVOUR_PROPERTY,
    ROOT_PROPERTY,
    POSITION_PROPERTY,
)
_LOOK = (*_FACTS, "used")


@dataclass(frozen=True)
class CloneInfo:
    """A clone as its datasets tell it. `own_bytes` is what it alone occupies."""

    name: str
    instance: str
    backup_id: str
    flavour: Flavour
    port: int
    created: str
    position: str
    top: str
    datasets: tuple[str, ...]
    mount: Path
    own_bytes: int
    pid: int | None


def home(settings: Settings, pool: str) -> str:
    """Return the dataset all clones in the pool live under: configured, or zsnapdb/clones. PreflightError if it is configured elsewhere."""
    chosen = settings.clones.dataset or f"{pool}/zsnapdb/clones"
    if chosen.split("/", 1)[0] != pool:
        raise PreflightError(f"clones.dataset {chosen} is not in the pool {pool} of the instance", hint="a ZFS clone lives in the pool of its snapshot")
    return chosen


def listing(settings: Settings) -> list[CloneInfo]:
    """Return the clones on this host, oldest first, whether their instance is still configured or not. Only datasets marked by us, locally, count."""
    homes = [settings.clones.dataset] if settings.clones.dataset else [f"{pool}/zsnapdb/clones" for pool in datasets.pools()]
    found = {info.top: info for top in homes if datasets.exists(top) for info in _below(top)}
    return sorted(found.values(), key=lambda info: info.created)


def _below(home_dataset: str) -> Iterator[CloneInfo]:
    groups: dict[str, dict[str, dict[str, datasets.Property]]] = {}
    for dataset, properties in datasets.children(home_dataset, _LOOK).items():
        if properties[CLONE_PROPERTY].is_local:
            groups.setdefault(properties[CLONE_PROPERTY].value, {})[dataset] = properties
    for name, members in groups.items():
        top = min(members, key=len)
        facts = members[top]
        if not facts[PORT_PROPERTY].is_local:
            continue
        mount = Path(facts[ROOT_PROPERTY].value)
        flavour = Flavour(facts[FLAVOUR_PROPERTY].value)
        yield CloneInfo(
            name=name,
            instance=facts[INSTANCE_PROPERTY].value,
            backup_id=facts[BACKUP_PROPERTY].value,
            flavour=flavour,
            port=int(facts[PORT_PROPERTY].value),
            created=facts[CREATED_PROPERTY].value,
            position=facts[POSITION_PROPERTY].value,
            top=top,
            datasets=tuple(sorted(members, key=len)),
            mount=mount,
            own_bytes=int(facts["used"].value),
            pid=server.ServerProcess(mount / PRIVATE_FOLDER).pid(),
        )


def find(settings: Settings, name: str) -> CloneInfo:
    """Return the clone of that name; NotThere names those there are."""
    known = listing(settings)
    for info in known:
        if info.name == name:
            return info
    raise NotThere(f"there is no clone {name!r}", hint=f"known: {', '.join(i.name for i in known) or 'none'}")
