"""How the streams of a backup are sent: plain, compressed or encrypted as the blocks lie in the pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class SendForm(StrEnum):
    """The form of all streams of a chain. It never changes within the chain."""

    PLAIN = "plain"
    COMPRESSED = "compressed"
    RAW = "raw"


AUTO = "auto"
"""The value of the setting `send` by which zsnapdb chooses the form of each chain."""

SEND_FLAGS: Mapping[SendForm, tuple[str, ...]] = {
    SendForm.PLAIN: ("-L",),
    SendForm.COMPRESSED: ("-L", "-c"),
    SendForm.RAW: ("-L", "-w"),
}
"""The flags of `zfs send` for each form. All backups of a chain use the same flags.

-L keeps records over 128 KiB undivided. -c sends blocks compressed as they are in the pool, -w encrypted as they are
there. -D, -R, -p and -e are never used (zfs-send(8)).
"""
_CHOSEN_BY_AUTO = (SendForm.PLAIN, SendForm.COMPRESSED)

_LITTLE = 0.9
"""A pool that stores more than this share of its data's bytes compresses too little to send the blocks as they lie."""
_AS_SMALL = 1.1


@dataclass(frozen=True)
class ZstdEffect:
    """What zstd makes of the data: the compressed bytes by the plain bytes, and where that was seen.

    `seconds` of a processor for a GiB; None if they are not known.
    """

    ratio: float
    where: str
    seconds: float | None = None

    def describe(self) -> str:
        """Return the facts in a few words."""
        cost = f" for {self.seconds:.1f} s of a processor per GiB" if self.seconds is not None else ""
        return f"zstd {self.ratio:.0%} {self.where}{cost}"


@dataclass(frozen=True)
class Compressibility:
    """What is known about the data before a new chain begins, in bytes and processors.

    `logical` is the data before the pool's compression, `lying` what the pool stores (`logicalreferenced` and
    `referenced`, zfsprops(7)). `zstd` is None if nothing is known. `level` is the first zstd level of a plain stream;
    0: it is stored as it is.
    """

    logical: int
    lying: int
    zstd: ZstdEffect | None
    level: int
    processors: int


@dataclass(frozen=True)
class FormChoice:
    """The form of the streams of the next backup, and why."""

    form: SendForm
    reason: str


def forms_of(setting: str) -> tuple[SendForm, ...]:
    """Return the forms that a backup may have by the setting `send`."""
    return _CHOSEN_BY_AUTO if setting == AUTO else (SendForm(setting),)


def form_of(flags: tuple[str, ...]) -> SendForm | None:
    """Return the form that `zfs send` makes with these flags. None if zsnapdb does not send with them."""
    return next((form for form, known in SEND_FLAGS.items() if known == flags), None)


def choose_form(known: Compressibility) -> FormChoice:
    """Return the form of a new chain where the setting is `auto`.

    What is scarce decides. On one processor it is the processor, which the server needs. Else it is the bytes: plain
    streams that zstd compresses are mostly smaller than the blocks of the pool. Where they are not, the blocks are sent
    as they lie, because that costs nothing.
    """
    lying = known.lying / known.logical if known.logical else 1.0
    if lying > _LITTLE:
        return FormChoice(SendForm.PLAIN, f"the pool stores {lying:.0%} of the data's bytes, so it saves little")
    pool = f"the pool stores {lying:.0%} of the data's bytes"
    if known.level == 0:
        return FormChoice(SendForm.COMPRESSED, f"{pool}, and level 0 saves none")
    seen = f", {known.zstd.describe()}" if known.zstd is not None else ""
    if known.processors <= 1:
        return FormChoice(SendForm.COMPRESSED, f"{pool}{seen}, and the server needs the only processor")
    if known.zstd is None:
        return FormChoice(SendForm.PLAIN, "nothing is known of what zstd saves")
    if lying <= known.zstd.ratio * _AS_SMALL:
        return FormChoice(SendForm.COMPRESSED, f"{pool}{seen}: zstd would cost processor time and save little")
    return FormChoice(SendForm.PLAIN, f"{pool}{seen}")


LOWEST, HIGHEST = 1, 12
_BUSY, _LEISURELY = 0.85, 0.55
"""Shares of the processors' time.

The next higher level costs at most half as much again. So a step up from the lower share stays below the upper share.
"""


def next_level(level: int, *, busy: float, elapsed: float, processors: int) -> int:
    """Return the level after `elapsed` seconds in which all workers together were `busy` seconds with making chunks.

    The level goes one step down if the processors are the bottleneck: the network (or the source) waits for them. The
    level goes one step up if the processors have time to spare: then fewer bytes have to travel. The time that a worker
    waits for a processor counts as busy.
    """
    load = busy / (max(elapsed, 1e-9) * processors)
    if load > _BUSY:
        return max(level - 1, LOWEST)
    if load < _LEISURELY:
        return min(level + 1, HIGHEST)
    return level
