"""The class of each ZFS property, which decides whether copies and replacements of production get the property.

Pure. A property is in exactly one class. An unknown property, for example from a newer OpenZFS release, is treated as
PLACE. So copies never get an unknown property. A replacement of production gets it only if it was set on production.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from zsnapdb.base.domain_types import PROPERTY

DatasetKind = Literal["filesystem", "volume"]


class PropertyClass(StrEnum):
    """The treatment of a property.

    - DATA: with few exceptions, a copy gets the value that its source has locally or inherits.
    - EXPLICIT: a copy gets a fixed value, regardless of the values on its parent datasets.
    - PLACE: the property belongs to the location of a dataset. Only a replacement of production gets the property.
    - FACT: ZFS reports the property or fixes it on creation; it cannot be set.
    """

    DATA = "data"
    EXPLICIT = "explicit"
    PLACE = "place"
    FACT = "fact"


@dataclass(frozen=True)
class ClassifiedProperty:
    """A property with its class and the reason.

    A copy gets the value in `value`. If it is None, the copy gets the value of its source (DATA), or the job that
    creates the copy chooses a value. The property exists since the OpenZFS release `since`; (2, 1) also stands for all
    older releases. The field `kinds` contains the dataset types that have the property.
    """

    name: str
    kind: PropertyClass
    reason: str
    value: str | None = None
    since: tuple[int, int] = (2, 1)
    kinds: frozenset[DatasetKind] = frozenset({"filesystem"})


_BOTH: frozenset[DatasetKind] = frozenset({"filesystem", "volume"})
_VOLUME: frozenset[DatasetKind] = frozenset({"volume"})


def _data(name: str, reason: str, **more: object) -> ClassifiedProperty:
    return ClassifiedProperty(name, PropertyClass.DATA, reason, **more)  # type: ignore[arg-type]


def _explicit(name: str, value: str | None, reason: str, **more: object) -> ClassifiedProperty:
    return ClassifiedProperty(name, PropertyClass.EXPLICIT, reason, value, **more)  # type: ignore[arg-type]


def _place(name: str, reason: str, **more: object) -> ClassifiedProperty:
    return ClassifiedProperty(name, PropertyClass.PLACE, reason, **more)  # type: ignore[arg-type]


def _facts(reason: str, *names: str) -> list[ClassifiedProperty]:
    return [ClassifiedProperty(name, PropertyClass.FACT, reason, kinds=_BOTH) for name in names]


_SELECTED = "the limit or reservation is meant for production, not for copies"
_LABEL = "the security module of a host labels its own mounts"
_DEFAULTS_OF_USERS = "the limit applies to accounts of the source's host"

CLASSIFIED: tuple[ClassifiedProperty, ...] = (
    _data("recordsize", "with the same record size, the server is as fast as on the source"),
    _data("compression", "new blocks take as much space as on the source", kinds=_BOTH),
    _data("checksum", "new blocks have the same checksums as on the source", kinds=_BOTH),
    _data("copies", "new blocks are stored as safely as on the source", kinds=_BOTH),
    _data("redundant_metadata", "metadata is stored as safely as on the source", kinds=_BOTH),
    _data("sync", "a commit is as durable as on the source", kinds=_BOTH),
    _data("logbias", "synchronous writes use the method that was chosen for the source", kinds=_BOTH),
    _data("primarycache", "the server's cache and the ZFS cache share the memory as on the source", kinds=_BOTH),
    _data("secondarycache", "cache devices are used as on the source", kinds=_BOTH),
    _data("prefetch", "reads behave as on the source", since=(2, 2), kinds=_BOTH),
    _data(
        "direct",
        "always disabled: with direct writes, a server with page compression may not stop cleanly",
        value="disabled",
        since=(2, 3),
    ),
    _data("atime", "if opening a file writes nothing on the source, it writes nothing on the copy"),
    _data("relatime", "access times are written as on the source"),
    _data("xattr", "extended attributes are stored as on the source"),
    _data("acltype", "access control lists of files have the same meaning"),
    _data("aclinherit", "access control lists of new files are created as on the source"),
    _data("aclmode", "access control lists change with the file mode as on the source"),
    _data("dnodesize", "new files are stored as on the source"),
    _data("exec", "a server may load libraries from its dataset if this is allowed on the source"),
    _explicit("readonly", "off", "the server of a copy must write", kinds=_BOTH),
    _explicit("setuid", "off", "the files are untrusted, so set-user-id programs must not work"),
    _explicit("devices", "off", "the files are untrusted, so device files must not work"),
    _explicit("sharenfs", "off", "a copy is not shared on the network"),
    _explicit("sharesmb", "off", "a copy is not shared on the network"),
    _explicit(
        "dedup", "off", "a clone already shares its blocks, and the deduplication table costs memory", kinds=_BOTH
    ),
    _explicit("snapdir", "hidden", "the server must not find the folder .zfs among its databases"),
    _explicit("snapdev", "hidden", "snapshots of a copy need no devices", kinds=_VOLUME),
    _explicit("nbmand", "off", "mandatory locks of other systems would block the server"),
    _explicit("vscan", "off", "no virus scanner opens the files"),
    _explicit("canmount", None, "zsnapdb mounts a copy; after the handover the host mounts it at boot"),
    _explicit("mountpoint", None, "a copy has its own folder"),
    _explicit("volmode", None, "the host must not see the partitions on the disk of a copy", kinds=_BOTH),
    _place("quota", _SELECTED),
    _place("refquota", _SELECTED),
    _place("reservation", _SELECTED, kinds=_BOTH),
    _place("refreservation", _SELECTED, kinds=_BOTH),
    _place("filesystem_limit", _SELECTED),
    _place("snapshot_limit", _SELECTED, kinds=_BOTH),
    *(
        _place(f"default{who}{what}quota", _DEFAULTS_OF_USERS, since=(2, 4))
        for who in ("user", "group", "project")
        for what in ("", "obj")
    ),
    _place("special_small_blocks", "the place of small blocks depends on the devices of the pool", kinds=_BOTH),
    _place("overlay", "the parent datasets decide whether a dataset may be mounted over a folder with files"),
    _place("zoned", "a dataset of a container belongs to that container"),
    _place("jailed", "a dataset of a jail belongs to that jail"),
    _place("mlslabel", _LABEL, kinds=_BOTH),
    _place("context", _LABEL, kinds=_BOTH),
    _place("fscontext", _LABEL, kinds=_BOTH),
    _place("defcontext", _LABEL, kinds=_BOTH),
    _place("rootcontext", _LABEL, kinds=_BOTH),
    _place("longname", "no file of a server has a name of more than 255 bytes", since=(2, 3)),
    _place("volthreading", "the host decides how it handles requests to a disk", since=(2, 3), kinds=_VOLUME),
    *_facts(
        "fixed when the dataset is created; a stream or a clone contains the value",
        *("casesensitivity", "normalization", "utf8only", "version", "volblocksize", "volsize"),
    ),
    *_facts(
        "set when an encrypted dataset is created or received",
        *("encryption", "encryptionroot", "keyformat", "keylocation", "keystatus", "pbkdf2iters"),
    ),
    *_facts(
        "ZFS reports it",
        *("available", "clones", "compressratio", "createtxg", "creation", "defer_destroy", "filesystem_count"),
        *("guid", "logicalreferenced", "logicalused", "mounted", "name", "objsetid", "origin"),
        *("receive_resume_token", "redact_snaps", "refcompressratio", "referenced", "snapshot_count", "type", "used"),
        *("usedbychildren", "usedbydataset", "usedbyrefreservation", "usedbysnapshots", "userrefs", "written"),
    ),
    ClassifiedProperty("snapshots_changed", PropertyClass.FACT, "ZFS reports it", since=(2, 2), kinds=_BOTH),
)
"""All properties that `zfs get all` shows on OpenZFS 2.1 to 2.4."""

_OLDEST = (2, 1)
_BY_NAME = {one.name: one for one in CLASSIFIED}
_NATIVE_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_USER_NAME = re.compile(r"(?=[^:]*:)[a-z0-9:+._-]{1,255}")

SPACE = ("quota", "refquota", "snapshot_limit", "filesystem_limit", "refreservation", "reservation")
"""Space limits and reservations, in the order in which they are set.

Whether they can be set depends on the space that the dataset uses.
"""
GUARANTEES = ("reservation", "refreservation")
"""The reservations.

A pool may not have enough space for the reservations of production and of its replacement at the same time.
"""
TEXTS = frozenset(
    {"mountpoint", "sharenfs", "sharesmb", "keylocation", "mlslabel", "context", "fscontext", "defcontext"}
    | {"rootcontext"}
)
"""The native properties that accept any text."""


def property_class(name: str) -> PropertyClass:
    """Return the class of a property. User properties and unknown native properties are PLACE."""
    if name.startswith(f"{PROPERTY}:"):
        return PropertyClass.FACT
    known = _BY_NAME.get(name)
    return PropertyClass.PLACE if known is None else known.kind


def is_native_name(name: str) -> bool:
    """Return whether the text is a valid name of a native property."""
    return _NATIVE_NAME.fullmatch(name) is not None


def is_user_name(name: str) -> bool:
    """Return whether the text is a valid name of a user property (zfsprops(7), "User Properties")."""
    return _USER_NAME.fullmatch(name) is not None and not name.startswith("-")


def names_of(kind: PropertyClass, dataset: DatasetKind) -> tuple[str, ...]:
    """Return the names of the properties of a class that exist for this dataset type."""
    return tuple(one.name for one in CLASSIFIED if one.kind is kind and dataset in one.kinds)


def explicit_values(dataset: DatasetKind = "filesystem") -> dict[str, str]:
    """Return the fixed values that every copy gets."""
    return {
        one.name: one.value
        for one in CLASSIFIED
        if one.kind is PropertyClass.EXPLICIT and one.value is not None and dataset in one.kinds
    }


def data_values(
    recorded: Mapping[str, str], dataset: DatasetKind = "filesystem", unknown: Collection[str] = ()
) -> dict[str, str]:
    """Return the recorded property values of the source that a copy gets.

    The argument `unknown` contains the properties that this host's OpenZFS does not know.
    """
    names = set(names_of(PropertyClass.DATA, dataset)).difference(unknown)
    return {name: _BY_NAME[name].value or value for name, value in recorded.items() if name in names}


def newer_names(recorded: Iterable[str]) -> list[str]:
    """Return the names of DATA properties that do not exist in the oldest supported OpenZFS release."""
    data = {one.name for one in CLASSIFIED if one.kind is PropertyClass.DATA and one.since > _OLDEST}
    return sorted(data.intersection(recorded))


def carried_names(own: Iterable[str]) -> list[str]:
    """Return the local properties of production that its replacement gets.

    These are all properties that can be set, except `mountpoint` and `canmount`, which the exchange of the datasets
    sets. The properties of the encryption key are also left out, because ZFS sets them when it creates or receives a
    dataset.
    """
    left_out = {"mountpoint", "canmount"}
    return sorted(name for name in own if name not in left_out and property_class(name) is not PropertyClass.FACT)


def removed_names(own: Collection[str], wanted: Collection[str]) -> list[str]:
    """Return the local properties of the replacement that production does not have."""
    return sorted(set(carried_names(own)) - set(wanted))
