"""Calls of libzfs_core in this process: one call and one transaction group for a whole snapshot set.

The server stays locked until the snapshot is complete. The snapshot itself takes about two milliseconds; starting the
`zfs` command takes many times as long. `zfs snapshot` also calls lzc_snapshot(), which creates all snapshots or none,
in one transaction group (libzfs_core.h: "The snapshots are created atomically"; the library's interface is stable). The
steps after a snapshot also use the library, because each forced transaction group makes the server's commits wait for
the disks. If the library cannot be loaded, `zfs` commands are run instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from zsnapdb.base.domain_types import pool_of
from zsnapdb.base.errors import CommandError, ExistsError, NotFound, PreflightError, ZsnapdbError

_NAMES = (
    ("libzfs_core.so.3", "libnvpair.so.3"),
    ("libzfs_core.so.1", "libnvpair.so.1"),
    ("libzfs_core.so", "libnvpair.so"),
)
"""File names of the library: in OpenZFS 2.0-2.4 on Linux, in 0.8 and older, and with development links."""

_UNIQUE_NAME = 1
"""NV_UNIQUE_NAME in nvpair.h."""

_UNTIL_RELEASED = -1
"""The value for holds that are not released when a file descriptor is closed (libzfs_core.c, lzc_hold)."""

_SET_ALL = b"""
arguments = ...
for _, set_prop in ipairs({ zfs.check.set_prop, zfs.sync.set_prop }) do
    for name, values in pairs(arguments["names"]) do
        for key, value in pairs(values) do
            assert(set_prop(name, key, value) == 0)
        end
    end
end
for bookmark, name in pairs(arguments["bookmarks"]) do
    assert(zfs.sync.bookmark(name, bookmark) == 0)
end
"""
"""Channel program that sets properties and creates bookmarks in one transaction group (zfs-program(8)).

After a failure, ZFS does not undo the earlier steps. So the program first checks that all properties can be set.
"""
_FACTS = b"""
arguments = ...
facts = {}
for name in pairs(arguments["names"]) do
    facts[name] = { guid = zfs.get_prop(name, "guid"), createtxg = zfs.get_prop(name, "createtxg") }
end
return facts
"""
"""A read-only channel program, which needs no transaction group. Use the program only for a few short, urgent facts.

The pool's internal history (`zpool history -i`) records each channel program and its answer, but no `zfs get` (observed
with OpenZFS 2.3.9).
"""
_ORIGINS = b"""
arguments = ...
facts = {}
for name in pairs(arguments["names"]) do
    facts[name] = { guid = zfs.get_prop(zfs.get_prop(name, "origin"), "guid") }
end
return facts
"""
"""A channel program like `_FACTS`. While a channel program runs, no snapshot can be renamed."""
_NUMBERS = 1 << 64
"""The number to add to negative numbers, because channel programs return signed 64-bit numbers, but ZFS uses unsigned
ones (zcp_get.c).
"""
_INSTRUCTIONS, _MEMORY = 10_000_000, 10 << 20
"""Limits of a channel program: the defaults of zfs-program(8)."""

_DENIED = (PreflightError, "run as root or grant the permission with `zfs allow` (see `zsnapdb example zfs-allow.md`)")
_KNOWN = {
    errno.EEXIST: (ExistsError, "see `zfs list -t all` and `zfs holds`; nothing was overwritten"),
    errno.ENOENT: (NotFound, "check the dataset with `zfs list`"),
    **dict.fromkeys((errno.EPERM, errno.EACCES), _DENIED),
    errno.ENOSPC: (PreflightError, "free space in the pool: `zfs list -o space`"),
    errno.EDQUOT: (PreflightError, "raise the quota of the dataset, or remove snapshots: `zfs list -o space`"),
    errno.EXDEV: (PreflightError, "all datasets of an instance must be in one pool"),
}


@dataclass(frozen=True)
class SnapshotFacts:
    """The GUID of a snapshot and the transaction group that created it."""

    guid: int
    createtxg: int


class Core:
    """The loaded and initialised libraries libzfs_core and libnvpair."""

    def __init__(self, core: ctypes.CDLL, nvpair: ctypes.CDLL) -> None:
        self._core = core
        self._nvpair = nvpair

    def snapshot(self, names: Sequence[str], properties: Mapping[str, str]) -> None:
        """Create all snapshots in one transaction group, each with the user properties.

        If a snapshot cannot be created, none is created, and an error with the reason is raised.
        """
        with self._lists() as make, self._failed() as failed:
            snapshots = make()
            for name in names:
                self._add(self._nvpair.nvlist_add_boolean(snapshots, os.fsencode(name)))
            status = self._core.lzc_snapshot(snapshots, self._texts(make, properties), ctypes.byref(failed))
            self._check("making the snapshots", names, status, failed)

    def hold(self, tags: Mapping[str, str]) -> None:
        """Hold each snapshot (full name) under its tag.

        All snapshots are in one pool. If a hold fails, this call holds none.

        If snapshots are missing, raises NotFound with their names. lzc_hold skips missing snapshots, holds the others
        and reports no failure (libzfs_core.c). In that case, this method releases the holds on the others.
        """
        with self._lists() as make, self._failed() as failed:
            status = self._core.lzc_hold(self._texts(make, tags), _UNTIL_RELEASED, ctypes.byref(failed))
            skipped = self._errors(failed) if status == 0 else {}
            if not skipped:
                self._check("holding", list(tags), status, failed)
                return
        error = _failure("holding", sorted(skipped), status, skipped)
        held = {name: tag for name, tag in tags.items() if name not in skipped}
        try:
            if held:
                self.release(held)
        except ZsnapdbError as unreleased:
            error.add_note(
                f"the holds {', '.join(sorted(set(held.values())))} on {', '.join(held)} stay: {unreleased.message}"
            )
        raise error

    def release(self, tags: Mapping[str, str]) -> None:
        """Release the hold with the given tag on each snapshot (full name). All snapshots are in one pool.

        If a release fails, no hold is released. A missing hold raises no error, as with lzc_release (libzfs_core.c).
        """
        with self._lists() as make, self._failed() as failed:
            held = make()
            for name, tag in tags.items():
                of_one = make()
                self._add(self._nvpair.nvlist_add_boolean(of_one, os.fsencode(tag)))
                self._add(self._nvpair.nvlist_add_nvlist(held, os.fsencode(name), of_one))
            status = self._core.lzc_release(held, ctypes.byref(failed))
            if status != 0:
                self._check("releasing", list(tags), status, failed)

    def bookmark(self, sources: Mapping[str, str]) -> None:
        """Create bookmarks in one pool, each from its snapshot (full names).

        If a bookmark cannot be created, none is created.
        """
        with self._lists() as make, self._failed() as failed:
            status = self._core.lzc_bookmark(self._texts(make, sources), ctypes.byref(failed))
            self._check("making the bookmarks", list(sources), status, failed)

    def set_each(self, values: Mapping[str, Mapping[str, str]], bookmarks: Mapping[str, str] | None = None) -> bool:
        """Set user properties on datasets or snapshots (full names), and create bookmarks.

        `bookmarks` maps each bookmark to its snapshot. All names are in one pool, and all changes share one transaction
        group. Return whether all changes were made. This needs root and a ZFS module with zfs.sync.bookmark
        (zfs-program(8)). After a failure, the caller runs `zfs` commands, which report the reason.
        """
        with self._lists() as make, self._failed() as answer:
            arguments, names = make(), make()
            for name, own in values.items():
                self._add(self._nvpair.nvlist_add_nvlist(names, os.fsencode(name), self._texts(make, own)))
            self._add(self._nvpair.nvlist_add_nvlist(arguments, b"names", names))
            marks = self._texts(make, bookmarks or {})
            self._add(self._nvpair.nvlist_add_nvlist(arguments, b"bookmarks", marks))
            status: int = self._core.lzc_channel_program(
                os.fsencode(pool_of(next(iter(values)))),
                _SET_ALL,
                _INSTRUCTIONS,
                _MEMORY,
                arguments,
                ctypes.byref(answer),
            )
            return status == 0

    def facts(self, names: Sequence[str]) -> dict[str, SnapshotFacts] | None:
        """Return the facts of each snapshot, keyed by full name. All snapshots are in one pool.

        The result is None if a snapshot is missing or if the caller is not root (zfs-program(8)). The `zfs` commands
        then report the reason.
        """
        said = self._numbers(_FACTS, names, ("guid", "createtxg"))
        return None if said is None else {name: SnapshotFacts(*numbers) for name, numbers in said.items()}

    def origin_guid(self, dataset: str) -> int | None:
        """Return the GUID of the snapshot that a dataset was cloned from.

        The result is None in the same cases as for `facts`.
        """
        said = self._numbers(_ORIGINS, [dataset], ("guid",))
        return None if said is None else said[dataset][0]

    def _numbers(self, program: bytes, names: Sequence[str], keys: Sequence[str]) -> dict[str, list[int]] | None:
        """Return the numbers that a channel program reads for each name.

        The result is None if the program fails or a number is missing.
        """
        with self._lists() as make, self._failed() as answer:
            arguments = make()
            asked = self._texts(make, dict.fromkeys(names, ""))
            self._add(self._nvpair.nvlist_add_nvlist(arguments, b"names", asked))
            status: int = self._core.lzc_channel_program_nosync(
                os.fsencode(pool_of(names[0])), program, _INSTRUCTIONS, _MEMORY, arguments, ctypes.byref(answer)
            )
            said = self._inside(answer, b"return") if status == 0 else None
            if said is None:
                return None
            known = {}
            for name in names:
                of_one = self._inside(said, os.fsencode(name))
                numbers = [self._number(of_one, key.encode()) for key in keys]
                if None in numbers:
                    return None
                known[name] = [number for number in numbers if number is not None]
            return known

    def exists(self, name: str) -> bool | None:
        """Whether a dataset or snapshot exists. The name must be valid and have at most 255 bytes.

        The result is None if the kernel does not answer, for example if the pool's I/O is suspended. lzc_exists() asks
        the kernel without starting a program (libzfs_core.c). The call returns success or failure, with the reason in
        errno. The call truncates longer names and does not support bookmarks.
        """
        ctypes.set_errno(0)
        if self._core.lzc_exists(os.fsencode(name)):
            return True
        return False if ctypes.get_errno() == errno.ENOENT else None

    @contextlib.contextmanager
    def _lists(self) -> Iterator[Callable[[], ctypes.c_void_p]]:
        """Yield a function that allocates empty nvlists. The nvlists are freed after the block."""
        made: list[ctypes.c_void_p] = []

        def make() -> ctypes.c_void_p:
            made.append(self._list())
            return made[-1]

        try:
            yield make
        finally:
            for nvlist in made:
                self._nvpair.nvlist_free(nvlist)

    @contextlib.contextmanager
    def _failed(self) -> Iterator[ctypes.c_void_p]:
        """Yield a pointer to an nvlist that the library will allocate. The nvlist is freed after the block."""
        answer = ctypes.c_void_p()
        try:
            yield answer
        finally:
            if answer:
                self._nvpair.nvlist_free(answer)

    def _texts(self, make: Callable[[], ctypes.c_void_p], texts: Mapping[str, str]) -> ctypes.c_void_p:
        nvlist = make()
        for key, value in texts.items():
            self._add(self._nvpair.nvlist_add_string(nvlist, os.fsencode(key), os.fsencode(value)))
        return nvlist

    def _check(self, doing: str, names: Sequence[str], status: int, failed: ctypes.c_void_p) -> None:
        """Raise an error if the call failed, or if it reported an error for a name, such as a missing snapshot."""
        errors = self._errors(failed)
        if status != 0 or errors:
            raise _failure(doing, names, status, errors)

    def _list(self) -> ctypes.c_void_p:
        nvlist = ctypes.c_void_p()
        self._add(self._nvpair.nvlist_alloc(ctypes.byref(nvlist), _UNIQUE_NAME, 0))
        return nvlist

    def _inside(self, nvlist: ctypes.c_void_p, name: bytes) -> ctypes.c_void_p | None:
        """Return the nested nvlist with this name; None if it does not exist.

        The parent nvlist frees the nested nvlist.
        """
        found = ctypes.c_void_p()
        status: int = self._nvpair.nvlist_lookup_nvlist(nvlist, name, ctypes.byref(found))
        return found if status == 0 else None

    def _number(self, nvlist: ctypes.c_void_p | None, name: bytes) -> int | None:
        number = ctypes.c_int64()
        if nvlist is None or self._nvpair.nvlist_lookup_int64(nvlist, name, ctypes.byref(number)) != 0:
            return None
        return number.value % _NUMBERS

    @staticmethod
    def _add(status: int) -> None:
        if status != 0:
            raise MemoryError(os.strerror(status))

    def _errors(self, failed: ctypes.c_void_p) -> dict[str, int]:
        """Return the errno that the library reports for each failed snapshot, keyed by snapshot name."""
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


def _failure(doing: str, names: Sequence[str], status: int, errors: Mapping[str, int]) -> ZsnapdbError:
    reasons = "; ".join(f"{name}: {os.strerror(number)}" for name, number in sorted(errors.items())) or os.strerror(
        status
    )
    kind, hint = _KNOWN.get(
        next(iter(errors.values()), status), (CommandError, "see `zpool status` and `zfs list` for the datasets' state")
    )
    return kind(f"{doing} {', '.join(names)} failed: {reasons}", hint=hint)


@functools.cache
def load() -> Core | None:
    """Return the library; None if the library is not installed, or if this process may not open /dev/zfs."""
    for core_name, nvpair_name in _NAMES:
        try:
            core, nvpair = ctypes.CDLL(core_name, use_errno=True), ctypes.CDLL(nvpair_name)
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
        nvpair.nvlist_add_nvlist.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        core.lzc_snapshot.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        core.lzc_hold.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
        core.lzc_release.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        core.lzc_bookmark.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        core.lzc_exists.argtypes = [ctypes.c_char_p]
        core.lzc_exists.restype = ctypes.c_int
        for program in (core.lzc_channel_program, core.lzc_channel_program_nosync):
            program.argtypes = [*[ctypes.c_char_p] * 2, *[ctypes.c_uint64] * 2, *[ctypes.c_void_p] * 2]
        nvpair.nvlist_lookup_nvlist.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        nvpair.nvlist_lookup_int64.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        if core.libzfs_core_init() == 0:
            return Core(core, nvpair)
    return None
