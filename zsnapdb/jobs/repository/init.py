"""Makes a repository's marker, writes it again where it was lost, or brings its list of recipients up to date."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from enum import StrEnum

from zsnapdb.config import Settings
from zsnapdb.errors import ConfigError, NotThere
from zsnapdb.repository import layout
from zsnapdb.repository.keyring import Keyring
from zsnapdb.repository.marker import FORMAT, Marker
from zsnapdb.repository.objects import RepositoryObjects
from zsnapdb.repository.repository import Repository
from zsnapdb.store.open import open_store


class InitStep(StrEnum):
    """What there is to do."""

    CREATE = "create"
    REBUILD = "rebuild"
    RECIPIENTS = "recipients"
    NOTHING = "nothing"


@dataclass(frozen=True)
class InitPlan:
    """What the marker should be, and why it is not yet. `before` has the recipients it lists now."""

    name: str
    url: str
    step: InitStep
    marker: Marker
    before: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Place:
    """A configured repository, opened as far as its store."""

    name: str
    url: str
    objects: RepositoryObjects
    keyring: Keyring
    instances: tuple[str, ...]


def _place(settings: Settings, name: str | None) -> _Place:
    known = ", ".join(sorted(settings.repository))
    if name is None:
        if len(settings.repository) != 1:
            raise ConfigError("several repositories are configured and none was named", hint=f"name one of: {known}")
        name = next(iter(settings.repository))
    if name not in settings.repository:
        raise ConfigError(f"repository {name!r} is not configured", hint=f"known: {known}")
    found = settings.repository[name]
    instances = tuple(sorted(key for key, instance in settings.instance.items() if instance.repository == name))
    return _Place(name, found.url, RepositoryObjects(*open_store(found)), Keyring.of(found.encryption), instances)


def plan(settings: Settings, name: str | None) -> InitPlan:
    """Return what there is to do for the named (or only) repository.

    ConfigError if a configured key cannot be used; changes nothing.
    """
    place = _place(settings, name)
    place.keyring.check_signing()
    wanted = place.keyring.recipients
    place.objects.check()
    try:
        marker = Marker.read(place.objects)
    except NotThere:
        return _without_marker(place)
    step = InitStep.RECIPIENTS if wanted and wanted != marker.recipients else InitStep.NOTHING
    return InitPlan(
        place.name,
        place.url,
        step,
        marker.with_recipients(wanted) if step is InitStep.RECIPIENTS else marker,
        marker.recipients,
    )


def _without_marker(place: _Place) -> InitPlan:
    try:
        found = Repository.among(place.objects, place.keyring, instances=place.instances)
    except NotThere:
        return InitPlan(
            place.name, place.url, InitStep.CREATE, Marker(FORMAT, secrets.token_hex(8), place.keyring.recipients)
        )
    recipients = place.keyring.recipients or found.recipients
    return InitPlan(place.name, place.url, InitStep.REBUILD, Marker(FORMAT, found.id, recipients), found.recipients)


def init(settings: Settings, name: str | None) -> InitPlan:
    """Do it and return what was done.

    ExistsError or ChangedError if somebody else wrote the marker meanwhile; theirs is left.
    """
    planned = plan(settings, name)
    place = _place(settings, planned.name)
    if planned.step in (InitStep.CREATE, InitStep.REBUILD):
        planned.marker.write(place.objects)
    elif planned.step is InitStep.RECIPIENTS:
        version = place.objects.read_version(layout.MARKER)
        changed = Marker.parse(version.body, place.objects.place(layout.MARKER)).with_recipients(
            planned.marker.recipients
        )
        place.objects.replace(layout.MARKER, changed.encode(), tag=version.tag)
    return planned
