"""The properties on the anchor of a copy. Each property is declared once, at its field in the record.

The declaration says how the property is read and written. It also says how the property changes when the copy is handed
out, replaces another copy, or gets other data. All code that reads or writes the property uses its declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Generic, TypeVar

from zsnapdb.jobs.dataset_copies.catalogue import CopyDatasets
from zsnapdb.jobs.dataset_copies.properties import (
    CHANGED_PROPERTY,
    CREATED_PROPERTY,
    EXPIRES_PROPERTY,
    OWNER_PROPERTY,
    PHASE_PROPERTY,
    PROTECTED_PROPERTY,
    lease_values,
)
from zsnapdb.planning.server_copy.source_facts import ORIGIN_PROPERTY, decode
from zsnapdb.zfs.datasets import Property

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)


class PropertyTransition(StrEnum):
    """The way in which a command changes a property of a copy.

    - stays: the value stays the same.
    - taken: the value comes from the request, the new holder or the new data.
    - exchanged: the two clones of a swap exchange their values.
    """

    STAYS = "stays"
    TAKEN = "taken"
    EXCHANGED = "exchanged"


@dataclass(frozen=True)
class Form(Generic[T]):
    """The properties that store a record's field, and the functions that read and write the field's value.

    Reading an invalid value raises ValueError.
    """

    names: tuple[str, ...]
    read: Callable[[CopyDatasets], T]
    write: Callable[[T], Mapping[str, str]]


@dataclass(frozen=True)
class StoredField:
    """The declaration of a field: how it is read and written, and how each command changes it."""

    form: Form[Any]
    fates: Mapping[str, PropertyTransition]


def stored_field(form: Form[Any], **fates: PropertyTransition) -> Mapping[str, StoredField]:
    """Return the metadata of a field of a record."""
    return {"stored": StoredField(form, fates)}


def declared(record: type) -> Mapping[str, StoredField]:
    """Return the declarations of the record's fields by field name."""
    return {each.name: each.metadata["stored"] for each in fields(record) if "stored" in each.metadata}


def columns(record: type) -> tuple[str, ...]:
    """Return the properties from which a record is read."""
    return tuple(name for each in declared(record).values() for name in each.form.names)


def read(record: type, found: CopyDatasets) -> dict[str, Any]:
    """Return the stored fields of the record from the properties of the copy.

    Raises:
        ValueError: a property is invalid.
        DamagedError: a property is invalid.
    """
    return {name: each.form.read(found) for name, each in declared(record).items()}


def properties_of(copy: object) -> dict[str, str]:
    """Return the properties of a new copy. These are the properties of all fields that have a value."""
    return {name: value for name, value in property_values(copy, *declared(type(copy))).items() if value}


def changed_by(verb: str, copy: object, *fates: PropertyTransition) -> dict[str, str]:
    """Return the properties that the command `verb` changes in one of the ways `fates`, with their values in `copy`."""
    return property_values(copy, *(name for name, each in declared(type(copy)).items() if each.fates[verb] in fates))


def property_values(copy: object, *names: str) -> dict[str, str]:
    """Return the properties and their values for the fields of the copy with the given names."""
    forms = {name: declared(type(copy))[name].form for name in names}
    return {key: text for name, form in forms.items() for key, text in form.write(getattr(copy, name)).items()}


def text(name: str) -> Form[str]:
    """Return the `Form` of a property that is one line of text."""
    return Form((name,), lambda found: found.text(name), lambda value: {name: value})


def plain(name: str) -> Form[str]:
    """Return the `Form` of a property that contains any text. The value may be inherited."""
    return Form((name,), lambda found: found.facts[name].value, lambda value: {name: value})


def own_text(name: str) -> Form[str]:
    """Return the `Form` of a property that contains text.

    The text is "" unless the property is set on the anchor itself.
    """
    return Form((name,), lambda found: _own(found.facts[name]), lambda value: {name: value})


def number(name: str, most: int | None = None) -> Form[int]:
    """Return the `Form` of a property that is a whole number up to `most`."""

    def value(found: CopyDatasets) -> int:
        known = found.number(name)
        if most is not None and known > most:
            raise ValueError(f"{name} is {known}")
        return known

    return Form((name,), value, lambda known: {name: str(known)})


def flag(name: str) -> Form[bool]:
    """Return the `Form` of a flag property. The flag is true only if "yes" is set on the anchor itself."""
    return Form((name,), lambda found: _own(found.facts[name]) == "yes", lambda value: {name: "yes" if value else "no"})


def choice(name: str, kind: type[E]) -> Form[E]:
    """Return the `Form` of a property that contains one word of a fixed list."""
    return Form((name,), lambda found: kind(found.text(name)), lambda value: {name: value.value})


def choice_or(name: str, kind: type[E], otherwise: T) -> Form[E | T]:
    """Return the `Form` of a property that contains one word of a fixed list.

    Any other value is read as `otherwise`. `otherwise` itself is never written.
    """
    known = {word.value: word for word in kind}
    return Form(
        (name,),
        lambda found: known.get(_own(found.facts[name]), otherwise),
        lambda value: {name: value.value} if isinstance(value, StrEnum) else {},
    )


def optional(form: Form[T]) -> Form[T | None]:
    """Return the `Form` for an optional property. The value is None unless the property is set on the anchor itself."""
    (name,) = form.names
    return Form(
        (name,),
        lambda found: form.read(found) if found.facts[name].is_local else None,
        lambda value: form.write(value) if value is not None else {},
    )


def _own(recorded: Property) -> str:
    return recorded.value if recorded.is_local else ""


PHASE = Form((PHASE_PROPERTY,), CopyDatasets.phase, lambda phase: {PHASE_PROPERTY: phase.value})
ORIGIN = Form(
    (ORIGIN_PROPERTY,),
    lambda found: decode(found.facts[ORIGIN_PROPERTY].value, found.anchor),
    lambda origin: {ORIGIN_PROPERTY: origin.encode()},
)
CREATED = text(CREATED_PROPERTY)
OWNER = text(OWNER_PROPERTY)
LEASE = Form((EXPIRES_PROPERTY, PROTECTED_PROPERTY, CHANGED_PROPERTY), CopyDatasets.lease, lease_values)
