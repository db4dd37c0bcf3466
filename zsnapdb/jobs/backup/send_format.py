"""The choice of the form in which the streams of the next backup are sent."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zsnapdb.base import safe_open
from zsnapdb.base.safe_open import UnsafeFileError
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.planning.backup.send_form import (
    AUTO,
    SEND_FLAGS,
    Compressibility,
    FormChoice,
    SendForm,
    ZstdEffect,
    choose_form,
    form_of,
)
from zsnapdb.repository.catalogue import Summary
from zsnapdb.stream.chunks import Workspace, room_for
from zsnapdb.zfs import datasets

_BLOCK, _BLOCKS = 128 << 10, 64
_MOST_FILES = 100_000
"""The number of files that are read; a larger volume is judged by these."""


@dataclass(frozen=True)
class _File:
    path: Path
    size: int


def zstd_effect(mountpoints: Iterable[Path], level: int) -> ZstdEffect | None:
    """Return the effect of zstd with this level on 64 blocks of the files below the mount points.

    None if no file that this account may read has nonzero bytes. Only these file systems are read, and no link is
    followed.
    """
    files = [file for mountpoint in mountpoints for file in _some_files(mountpoint)]
    blocks = list(_blocks(files))
    plain = b"".join(blocks)
    if not plain:
        return None
    began = time.thread_time()
    size = Workspace().compress(plain, level, memoryview(bytearray(room_for(len(plain)))))
    return ZstdEffect(
        size / len(plain), f"in {len(blocks)} sampled blocks", (time.thread_time() - began) / len(plain) * (1 << 30)
    )


def _some_files(mountpoint: Path) -> list[_File]:
    found: list[_File] = []
    # A backup must not fail because a sample of it cannot be read.
    with contextlib.suppress(OSError, UnsafeFileError):
        found.extend(itertools.islice(_files(mountpoint), _MOST_FILES))
    return found


def _files(mountpoint: Path) -> Iterator[_File]:
    with safe_open.folder(mountpoint) as top:
        device = os.stat(top).st_dev
        for folder, below, names, at in os.fwalk(".", dir_fd=top):
            # Another volume may be mounted inside.
            below[:] = [name for name in below if _device(name, at) == device]
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    status = os.stat(name, dir_fd=at, follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode) and status.st_size:
                        yield _File(mountpoint / folder / name, status.st_size)


def _device(name: str, at: int) -> int | None:
    try:
        return os.stat(name, dir_fd=at, follow_symlinks=False).st_dev
    except FileNotFoundError:
        return None


def _blocks(files: list[_File]) -> Iterator[bytes]:
    """Yield blocks evenly from the files as if they were one file.

    Blocks of zeros are left out, because streams omit them.
    """
    ends = list(itertools.accumulate(file.size for file in files))
    step = max(_BLOCK, ends[-1] // _BLOCKS) if ends else _BLOCK
    wanted, before = step // 2, 0
    for file, end in zip(files, ends, strict=True):
        while wanted < end:
            block = _read(file.path, (wanted - before) // _BLOCK * _BLOCK)
            if block.strip(b"\0"):
                yield block
            wanted += step
        before = end


def _read(path: Path, offset: int) -> bytes:
    # The server may have removed the file, or its account may have replaced it.
    with contextlib.suppress(OSError, UnsafeFileError), safe_open.open_to_read(path) as file:
        return os.pread(file.fileno(), _BLOCK, offset)
    return b""


_LYING, _LOGICAL, _MOUNTED, _MOUNTPOINT = "referenced", "logicalreferenced", "mounted", "mountpoint"


def choose(
    instance: Instance, volumes: Mapping[str, str], base: Summary | None, stored: Sequence[Summary]
) -> FormChoice:
    """Return the form of the next backup. An increment has the form of its base. `volumes` are datasets by role."""
    setting = instance.repository.stream.send
    if setting != AUTO:
        return FormChoice(SendForm(setting), "by the setting send")
    if base is not None:
        continued = form_of(base.volumes[0].send_flags)
        assert continued is not None, "a base was sent with flags of ours"
        return FormChoice(continued, "as the rest of the chain")
    by_dataset = datasets.properties_of(list(volumes.values()), [_LYING, _LOGICAL, _MOUNTED, _MOUNTPOINT])
    level = instance.upload_settings().level
    mounted = [Path(each[_MOUNTPOINT].value) for each in by_dataset.values() if each[_MOUNTED].value == "yes"]
    return choose_form(
        Compressibility(
            logical=sum(int(values[_LOGICAL].value) for values in by_dataset.values()),
            lying=sum(int(values[_LYING].value) for values in by_dataset.values()),
            zstd=_stored_effect(stored) or (zstd_effect(mounted, level) if level else None),
            level=level,
            processors=len(os.sched_getaffinity(0)),
        )
    )


def _stored_effect(stored: Sequence[Summary]) -> ZstdEffect | None:
    """Return the effect of zstd on the newest plain full backup; None if there is none. `stored`: oldest first."""
    plain = SEND_FLAGS[SendForm.PLAIN]
    for backup in reversed(stored):
        if backup.is_full and all(v.send_flags == plain for v in backup.volumes) and backup.plain_size:
            return ZstdEffect(backup.stored_size / backup.plain_size, "in the last plain full backup")
    return None
