"""Which send streams are accepted: those that our own `zfs send` makes, of one snapshot, with the facts we expect.

Feature flags: include/sys/zfs_ioctl.h of OpenZFS. The kernel gives a BEGIN record a payload only for raw, resumed and
redacted streams (dmu_send.c), libzfs only for packages with properties (`-p`, `-R`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from zsnapdb.base.errors import DamagedError

_RAW = 24
MOST_KEY_BYTES = 1 << 16
"""The most bytes of the payload of a raw BEGIN record: the wrapped keys of the dataset, some hundred bytes."""
_FOREIGN_FEATURES = {
    0: "deduplicated blocks (-D)",
    1: "deduplicated blocks (-D)",
    16: "embedded blocks (-e)",
    20: "a resumed send (-t)",
    21: "redaction (--redact)",
    _RAW: "raw encrypted blocks (-w)",
    26: "holds (-h)",
}
"""The feature bits of streams that our send flags never make, and what they stand for."""

_CLONE = 1
"""DRR_FLAG_CLONE: the stream makes a clone of another dataset's snapshot."""

_NOT_OURS = "zsnapdb never sends such a stream: somebody else made it, or it was altered"


class DatasetKind(IntEnum):
    """What a stream is of: `drr_type` of its BEGIN record (dmu_objset_type_t in include/sys/dmu.h)."""

    FILESYSTEM = 2
    ZVOL = 3


@dataclass(frozen=True)
class BeginRecord:
    """The facts in the first record of a stream. `from_guid` is 0 for a full stream.

    `name` is the full name of the snapshot. `kind` is a value of `DatasetKind`, if the stream is good.
    `payload_size` is in bytes.
    """

    features: int
    to_guid: int
    from_guid: int
    name: str
    kind: int
    flags: int = 0
    payload_size: int = 0

    def check_ours(self, *, is_raw: bool) -> None:
        """Raise DamagedError if our own `zfs send` never makes such a stream. `is_raw`: it was sent with -w."""
        if is_raw and (not self.features >> _RAW & 1 or not 0 < self.payload_size <= MOST_KEY_BYTES):
            raise DamagedError(
                f"the stream has the features {self.features:#x} and {self.payload_size} bytes of keys: it is not the"
                " raw stream of an encrypted dataset",
                hint=_NOT_OURS,
            )
        if self.payload_size and not is_raw:
            raise DamagedError(
                f"the BEGIN record of the stream has a payload of {self.payload_size} bytes, such as properties",
                hint=_NOT_OURS,
            )
        foreign = [
            text
            for bit, text in _FOREIGN_FEATURES.items()
            if self.features >> bit & 1 and (bit, is_raw) != (_RAW, True)
        ]
        if foreign:
            raise DamagedError(f"the stream has a feature that is not accepted: {foreign[0]}", hint=_NOT_OURS)
        if self.flags & _CLONE:
            raise DamagedError("the stream is of a clone of another dataset", hint=_NOT_OURS)


@dataclass(frozen=True)
class ExpectedStream:
    """What the BEGIN record of a stream must say. `from_guid` is 0 for a full stream.

    `name` is the full name of the snapshot. `features` is None before a stream was sent. `is_raw`: it is encrypted as
    the blocks in the pool are.
    """

    name: str
    kind: DatasetKind
    to_guid: int
    from_guid: int
    features: int | None = None
    is_raw: bool = False

    def check(self, begin: BeginRecord) -> None:
        """Raise DamagedError unless the stream leads from and to the expected snapshots, under the expected name."""
        if (begin.to_guid, begin.from_guid) != (self.to_guid, self.from_guid):
            raise DamagedError(
                f"the stream leads from GUID {begin.from_guid} to {begin.to_guid}, expected from {self.from_guid} to"
                f" {self.to_guid}",
                hint="the snapshot was replaced during the backup, or chunks were exchanged",
            )
        if begin.name != self.name:
            raise DamagedError(
                f"the stream is of snapshot {begin.name!r}, expected {self.name}",
                hint="the snapshot was renamed during the backup, or chunks were exchanged",
            )
        if begin.kind != self.kind:
            raise DamagedError(
                f"the stream is of a dataset of type {begin.kind}, expected {self.kind} ({self.kind.name.lower()})",
                hint=_NOT_OURS,
            )
        if self.features is not None and begin.features != self.features:
            raise DamagedError(
                f"the stream has the features {begin.features:#x}, expected {self.features:#x}", hint=_NOT_OURS
            )
