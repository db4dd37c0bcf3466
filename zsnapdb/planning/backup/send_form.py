"""Chooses the format (plain, compressed or raw) and the chunk size of a backup's send streams. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from zsnapdb.base.errors import ConfigError


class SendForm(StrEnum):
    """The format of the streams of a chain. All streams of the chain have the same format."""

    PLAIN = "plain"
    COMPRESSED = "compressed"
    RAW = "raw"


AUTO = "auto"
"""The value of the setting `send` with which zsnapdb chooses the format of each chain."""

SEND_FLAGS: Mapping[SendForm, tuple[str, ...]] = {
    SendForm.PLAIN: ("-L",),
    SendForm.COMPRESSED: ("-L", "-c"),
    SendForm.RAW: ("-L", "-w"),
}
"""The flags of `zfs send` for each format. All backups of a chain use the same flags.

`-L` keeps records over 128 KiB undivided. `-c` sends blocks compressed as in the pool, `-w` encrypted as in the pool.
No format uses `-D`, `-R`, `-p` or `-e` (zfs-send(8)).
"""
_CHOSEN_BY_AUTO = (SendForm.PLAIN, SendForm.COMPRESSED)

_LITTLE = 0.9
"""Compressed streams save too little if a pool stores more than this share of the data's uncompressed bytes."""
_AS_SMALL = 1.1


@dataclass(frozen=True)
class ZstdEffect:
    """The effect of zstd on the data (compressed bytes divided by plain bytes), and where this was measured.

    `seconds` is the processor time in seconds per GiB, or None if unknown.
    """

    ratio: float
    where: str
    seconds: float | None = None

    def describe(self) -> str:
        cost = f" for {self.seconds:.1f} s of a processor per GiB" if self.seconds is not None else ""
        return f"zstd {self.ratio:.0%} {self.where}{cost}"


@dataclass(frozen=True)
class Compressibility:
    """The known facts about the data and the host before a new chain starts, in bytes and processors.

    The data has `logical` bytes before the pool's compression, and the pool stores `lying` bytes of it
    (`logicalreferenced` and `referenced`, zfsprops(7)). `zstd` is the measured effect of zstd, or None if unknown.
    `level` is the zstd level at which a plain stream starts, or 0 if zsnapdb would store the stream uncompressed.
    """

    logical: int
    lying: int
    zstd: ZstdEffect | None
    level: int
    processors: int


@dataclass(frozen=True)
class FormChoice:
    """The stream format of the next backup, and the reason."""

    form: SendForm
    reason: str


def forms_of(setting: str) -> tuple[SendForm, ...]:
    """Return the formats that the setting `send` allows."""
    return _CHOSEN_BY_AUTO if setting == AUTO else (SendForm(setting),)


def form_of(flags: tuple[str, ...]) -> SendForm | None:
    """Return the stream format that uses these flags; None if there is no such format."""
    return next((form for form, known in SEND_FLAGS.items() if known == flags), None)


def choose_form(known: Compressibility) -> FormChoice:
    """Return the format of a new chain if the setting `send` is `auto`.

    The scarcest resource decides. On a host with one processor, this is processor time, because the server needs it. On
    a host with more processors, it is storage, and plain streams with zstd are mostly smaller than the pool's blocks.
    If zstd does not make the streams smaller, the blocks are sent as the pool compressed them, because that costs no
    processor time.
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
"""The zstd level falls if more than the first share of the processors' time is used. Below the second share, it rises.

The next higher level costs at most 50 % more, so one step up from the lower share stays below the upper share.
"""


def next_level(level: int, *, busy: float, elapsed: float, processors: int) -> int:
    """Return the zstd level for the next period. All workers together spent `busy` of `elapsed` seconds on chunks.

    If the network or the source had to wait for the processors, the level is reduced by one step. If the processors
    have time to spare, the level is raised by one step, so that fewer bytes are sent. The time that a worker waits for
    a processor counts as busy.
    """
    load = busy / (max(elapsed, 1e-9) * processors)
    if load > _BUSY:
        return max(level - 1, LOWEST)
    if load < _LEISURELY:
        return min(level + 1, HIGHEST)
    return level


MOST_ROWS = 780_000
"""The maximum number of chunks in a manifest. At 170 bytes or less per chunk, the manifest fits into 128 MiB."""
WANTED_ROWS = 650_000
"""A chunk size is chosen so that there are at most this many chunks.

The limit is lower than MOST_ROWS, because size estimates are some percent too low.
"""
WINDOW = 224 << 20
"""The maximum number of uncompressed bytes of all chunks in memory together.

It applies if zsnapdb has chosen a larger chunk size.
"""
_MIB = 1 << 20
_LARGEST = 1 << 30


def decide_chunk_size(configured: int, sizes: Sequence[int]) -> int:
    """Return the chunk size in bytes for a backup whose streams have these estimated sizes.

    This is the configured size, or the smallest larger size that results in at most WANTED_ROWS chunks.
    """
    if sum(sizes) <= configured * WANTED_ROWS:
        return configured
    mebibytes = -(-sum(sizes) // (WANTED_ROWS * _MIB))
    return max(configured, min(_LARGEST, mebibytes * _MIB))


_LEAST_CHUNKS = 32
"""The minimum number of chunks of a stream, so that every worker has chunks, and the last chunk is small."""


def decide_first_chunk(least: int, most: int, sizes: Sequence[int]) -> int:
    """Return the size of the first chunks for a backup with streams of these estimated sizes, in bytes.

    The size starts at `least`, and is doubled until it reaches `most`, or until the largest stream would have fewer
    than 32 chunks.
    """
    size = least
    while 2 * size <= min(most, max(sizes, default=0) // _LEAST_CHUNKS):
        size *= 2
    return size


def decide_workers(configured: int, chunk_size: int, configured_size: int) -> int:
    """Return the number of parallel workers for chunks of this size in bytes.

    This is the configured number, unless the chunks are larger than the configured size. For larger chunks, the number
    is limited. All chunks in memory together then have at most WINDOW bytes, or at most the bytes that the configured
    size and number allow.
    """
    if chunk_size <= configured_size:
        return configured
    window = max(WINDOW, (configured + 1) * configured_size)
    return max(1, min(configured, window // chunk_size - 1))


def check_rows(stream: str, size: int | None, chunk_size: int) -> None:
    """Check that a manifest can list all chunks of a stream of about `size` bytes (None if the size is unknown).

    Raises ConfigError if the stream would have too many chunks of this size.
    """
    if size is not None and size // chunk_size > MOST_ROWS:
        raise ConfigError(
            f"the stream of {stream} has about {size} bytes: {size // chunk_size} chunks of {chunk_size} bytes,"
            f" but a manifest can list at most {MOST_ROWS}",
            hint="raise stream.chunk_size of the repository; `zsnapdb backup --fresh` gives up a backup that was"
            " started with the old size",
        )
