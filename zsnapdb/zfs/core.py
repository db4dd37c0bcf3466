"""Makes a snapshot set by one call of libzfs_core, in this process.

The lock lasts as long as the snapshot. The snapshot itself takes about two milliseconds; starting the `zfs` command
takes many times that. `zfs snapshot` calls lzc_snapshot() too: one request to the kernel, one transaction group, all
snapshots or none (libzfs_core.h: "The snapshots are created atomically"; the library's interface is committed). If the
library cannot be loaded, the command is run instead.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from collections.abc import Mapping, Sequence

from zsnapdb.errors import CommandError, ExistsError, NotThere, PreflightError, ZsnapdbError

_NAMES = (
    ("libzfs_core.so.3", "libnvpair.so.3"),
    ("libzfs_core.so.1", "libnvpair.so.1"),
    ("libzfs_core.so", "libnvpair.so"),
)
"""File names in OpenZFS 2.0-2.4 on Linux, in 0.8 and older, and in any version with development links."""

_UNIQUE_NAME = 1
"""NV_UNIQUE_NAME in nvpair.h."""

_KNOWN = {
    errno.EEXIST: (ExistsError, "choose another name; nothing is overwritten"),
    errno.ENOENT: (NotThere, "check the dataset with `zfs list`"),
    errno.EPERM: (
        PreflightError,
        "run as root or grant the permission with `zfs allow` (see `zsnapdb example zfs-allow.md`)",
    ),
    errno.EACCES: (
        PreflightError,
        "run as root or grant the permission with `zfs allow` (see `zsnapdb example zfs-allow.md`)",
    ),
    errno.ENOSPC: (PreflightError, "free space in the pool: `zfs list -o space`"),
    errno.EDQUOT: (PreflightError, "raise the quota of the dataset, or remove snapshots: `zfs list -o space`"),
    errno.EXDEV: (PreflightError, "all datasets of an instance must be in one pool"),
}


class Core:
    """The libraries libzfs_core and libnvpair, loaded and initialised."""

    def __init__(self, core: ctypes.CDLL, nvpair: ctypes.CDLL) -> None:
        self._core = core
        self._nvpair = nvpair

    def snapshot(self, names: Sequence[str], properties: Mapping[str, str]) -> None:
        """Make all snapshots, each with the user properties, in one transaction group.

        If one fails, none is made and the reason is raised.
        """
        snapshots, values, failed = self._list(), self._list(), ctypes.c_void_p()
        try:
            for name in names:
                self._add(self._nvpair.nvlist_add_boolean(snapshots, os.fsencode(name)))
            for key, value in properties.items():
                self._add(self._nvpair.nvlist_add_string(values, os.fsencode(key), os.fsencode(value)))
            status = self._core.lzc_snapshot(snapshots, values, ctypes.byref(failed))
            if status != 0:
                raise _failure(names, status, self._errors(failed))
        finally:
            for nvlist in (snapshots, values, failed):
                if nvlist:
                    self._nvpair.nvlist_free(nvlist)

    def _list(self) -> ctypes.c_void_p:
        nvlist = ctypes.c_void_p()
        self._add(self._nvpair.nvlist_alloc(ctypes.byref(nvlist), _UNIQUE_NAME, 0))
        return nvlist

    @staticmethod
    def _add(status: int) -> None:
        if status != 0:
            raise MemoryError(os.strerror(status))

    def _errors(self, failed: ctypes.c_void_p) -> dict[str, int]:
        """Return the error number of each snapshot that failed, by name, as the library reports them."""
        numbers: dict[str, int] = {}
        if not failed:
            return numbers
        pair = self._nvpair.nvlist_next_nvpair(failed, None)
        while pair:
            number = ctypes.c_int32()
            if self._nvpair.nvpair_value_int32(pair, ctypes.byref(number)) == 0:
                numbers[os.fsdecode(self._nvpair.nvpair_name(pair))] = number.value
            pair = self._nvpair.nvlist_next_nvpair(failed, pair)
        return numbers


def _failure(names: Sequence[str], status: int, errors: Mapping[str, int]) -> ZsnapdbError:
    reasons = "; ".join(f"{name}: {os.strerror(number)}" for name, number in sorted(errors.items())) or os.strerror(
        status
    )
    kind, hint = _KNOWN.get(
        next(iter(errors.values()), status), (CommandError, "see `zpool status` and `zfs list` for the datasets' state")
    )
    return kind(f"making the snapshots {', '.join(names)} failed: {reasons}", hint=hint)


@functools.cache
def load() -> Core | None:
    """Return the library, or None if it is not installed or may not open /dev/zfs."""
    for core_name, nvpair_name in _NAMES:
        try:
            core, nvpair = ctypes.CDLL(core_name), ctypes.CDLL(nvpair_name)
        except OSError:
            continue
        nvpair.nvlist_add_boolean.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        nvpair.nvlist_add_string.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
        nvpair.nvlist_free.argtypes = [ctypes.c_void_p]
        nvpair.nvlist_free.restype = None
        nvpair.nvlist_next_nvpair.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        nvpair.nvlist_next_nvpair.restype = ctypes.c_void_p
        nvpair.nvpair_name.argtypes = [ctypes.c_void_p]
        nvpair.nvpair_name.restype = ctypes.c_char_p
        nvpair.nvpair_value_int32.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        core.lzc_snapshot.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        if core.libzfs_core_init() == 0:
            return Core(core, nvpair)
    return None
