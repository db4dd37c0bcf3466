"""An object store in a folder, on a local disk or NFS.

Each file is written under a temporary name, synced and renamed, so a file under its final name is always complete.

The owner of the disk or the NFS export could create symbolic links in the folder, so links in the folder are never
followed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar, cast

from zsnapdb.base import files, filesystem_checks, safe_open
from zsnapdb.base.errors import ChangedError, ExistsError, NotFound, RepositoryError, UnreachableError
from zsnapdb.base.safe_open import UnsafeFileError
from zsnapdb.config.repository import RepositorySettings
from zsnapdb.store.base import (
    Body,
    DeletionPolicy,
    ObjectHold,
    Retrieval,
    Store,
    StoredObject,
    Version,
    most_bytes,
    no_retrievals,
    too_large,
)
from zsnapdb.store.layers import Layer

CALL_SECONDS = 300.0
LEAST_RATE = 1 << 20
"""Minimum rate in bytes per second.

The time limit of a call is CALL_SECONDS plus the time for the call's object at this rate.
"""
_LISTED_AT_ONCE = 1000

T = TypeVar("T")


class _Call(Generic[T]):
    """A call that another thread executes, and its result."""

    def __init__(self, what: Callable[[], T]) -> None:
        self._what: Callable[[], T] | None = what
        self._result: T | None = None
        self._error: BaseException | None = None
        self.began, self.process, self.done = time.monotonic(), os.getpid(), threading.Event()

    @property
    def hangs(self) -> bool:
        """Whether the call is still running. A call that the parent process started before a fork does not count."""
        return not self.done.is_set() and self.process == os.getpid()

    def make(self) -> None:
        """Execute the call. This method runs in the worker's thread."""
        assert self._what is not None
        try:
            self._result = self._what()
        except BaseException as error:
            self._error = error
        self._what = None
        self.done.set()

    def result(self) -> T:
        """Return the call's result, or raise its error."""
        if self._error is not None:
            raise self._error
        return cast(T, self._result)


class _Worker:
    """A thread that executes the calls of one other thread. It ends when the other thread releases the worker."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.calls: queue.SimpleQueue[_Call[Any] | None] = queue.SimpleQueue()
        threading.Thread(target=_run, args=(self.calls,), name="folder", daemon=True).start()

    def __del__(self) -> None:
        self.calls.put(None)


def _run(calls: queue.SimpleQueue[_Call[Any] | None]) -> None:
    while (call := calls.get()) is not None:
        call.make()
        # While the worker waits for a call, it must not keep the previous result in memory.
        del call


class TimedFolder(Layer):
    """A folder store with time limits.

    Raises UnreachableError for a call that hangs, and for every other call until the hanging call ends.
    """

    def __init__(self, inner: Store, folder: Path) -> None:
        super().__init__(inner)
        self._folder = folder
        self._own = threading.local()
        self._hung: _Call[Any] | None = None

    def _call(self, attempt: Callable[[], T], size: int = 0) -> T:
        if self._hung is not None and self._hung.hangs:
            raise self._error(time.monotonic() - self._hung.began)
        worker: _Worker | None = getattr(self._own, "worker", None)
        if worker is None or worker.process != os.getpid():
            worker = self._own.worker = _Worker()
        call, seconds = _Call(attempt), CALL_SECONDS + size / LEAST_RATE
        worker.calls.put(call)
        if not call.done.wait(seconds):
            self._hung, self._own.worker = call, None
            raise self._error(seconds)
        return call.result()

    def _error(self, seconds: float) -> UnreachableError:
        return UnreachableError(
            f"{self._folder} does not answer: a call has not ended for {seconds:.0f} s",
            hint="check the mount and its server; a call that hangs in the kernel ends when the server answers, or with"
            " `umount -f`",
        )

    def list(self, prefix: str) -> Iterator[StoredObject]:
        return self._each(partial(self.inner.list, prefix))

    def folders(self, prefix: str) -> Iterator[str]:
        return self._each(partial(self.inner.folders, prefix))

    def _each(self, begin: Callable[[], Iterator[T]]) -> Iterator[T]:
        listing = self._call(begin)
        while part := self._call(lambda: tuple(itertools.islice(listing, _LISTED_AT_ONCE))):
            yield from part

    def delete_many(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.delete(key)


_TEMPORARY = ".writing-"
_LOCK = ".replacing-lock"
_LOCK_SECONDS = 30.0
"""Maximum number of seconds to wait for the folder's lock. A replacement or removal holds the lock only briefly."""
_NOT_OBJECTS = (_TEMPORARY, ".replacing")
"""Name prefixes of files that are not objects. `.replacing` was a lock file that every account could open and lock."""
_ATTEMPTS = 10
_NO_LINKS = "no link below the folder of a repository is followed: it could lead anywhere on this host; remove it"
_AGAIN = {
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.ECONNRESET,
    errno.EAGAIN,
}
"""Errors of a network file system while its server is unreachable."""


_WITHOUT_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP}
"""Errors of link(2) on a file system without hard links, such as vfat, exfat, and some cifs and FUSE file systems."""


def _link(temporary: str, name: str, at: int) -> None:
    """Link the file to an unused name. Raises RepositoryError if the file system has no hard links."""
    try:
        os.link(temporary, name, src_dir_fd=at, dst_dir_fd=at)
    except OSError as error:
        if error.errno not in _WITHOUT_LINKS:
            raise
        raise RepositoryError(
            f"the file system of the repository cannot make hard links (link: {error.strerror}), so no object could be"
            " made without replacing another run's",
            hint="use a folder on ext4, xfs, zfs or NFS, not on vfat, exfat or a share without links",
        ) from error


def _time_of(seconds: float) -> datetime | None:
    """Return the modification time, or None if it cannot be represented.

    Any account that can write the file can set the time.
    """
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


class LocalStore:
    """Objects as files below `folder`.

    The folder must already exist. Otherwise, an empty repository would be created while the file system is not mounted.
    """

    def __init__(self, folder: Path, lock_seconds: float = _LOCK_SECONDS) -> None:
        self.folder, self.lock_seconds = folder, lock_seconds

    def _error(self, doing: str, error: OSError) -> RepositoryError:
        kind = UnreachableError if error.errno in _AGAIN else RepositoryError
        return kind(
            f"{doing} in {self.folder}: {error.strerror}", hint="check the folder's mount, space and permissions"
        )

    def check(self) -> None:
        """Check that the folder exists and can be listed."""
        try:
            os.listdir(self.folder)
        except FileNotFoundError as error:
            raise NotFound(
                f"the repository folder {self.folder} does not exist",
                hint="mount it, or create it for a new repository",
            ) from error
        except OSError as error:
            raise self._error("listing", error) from error

    def put(self, key: str, body: Body, *, only_if_absent: bool = False, sha256: str | None = None) -> None:  # noqa: ARG002 - a file proves nothing
        """Write and sync a temporary file, then rename it.

        With `only_if_absent`, link the file instead, because a link never replaces a file.
        """
        *names, name = key.split("/")
        try:
            self.check()
            for attempt in range(1, _ATTEMPTS + 1):
                # Another process may remove the new folder while it is still empty.
                try:
                    with self._folder(names, makes=True) as at:
                        self._put_at(at, name, body, only_if_absent=only_if_absent)
                        return
                except FileNotFoundError:
                    if attempt == _ATTEMPTS:
                        raise
        except FileExistsError as error:
            raise ExistsError(
                f"object {key} exists in {self.folder}", hint="another run wrote the object; it was not changed"
            ) from error
        except OSError as error:
            raise self._error(f"writing {key}", error) from error

    @staticmethod
    def _put_at(at: int, name: str, body: Body, *, only_if_absent: bool) -> None:
        temporary = f"{_TEMPORARY}{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with open(os.open(temporary, flags, 0o600, dir_fd=at), "wb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            if only_if_absent:
                _link(temporary, name, at)
                os.unlink(temporary, dir_fd=at)
            else:
                os.rename(temporary, name, src_dir_fd=at, dst_dir_fd=at)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=at)
            raise
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=at)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @contextlib.contextmanager
    def _folder(self, names: Sequence[str], *, makes: bool = False) -> Iterator[int]:
        """Open a folder of the repository.

        Raises RepositoryError if the folder's path contains a symbolic link, which could point outside the repository.
        """
        try:
            with safe_open.folder_below(self.folder, names, makes=makes) as at:
                yield at
        except UnsafeFileError as error:
            raise RepositoryError(error.message, hint=_NO_LINKS) from error

    @contextlib.contextmanager
    def _opened(self, key: str) -> Iterator[BinaryIO]:
        *names, name = key.split("/")
        with self._folder(names) as at:
            try:
                opened = safe_open.open_at(name, at)
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
                raise RepositoryError(f"{self.folder / key} is a symbolic link", hint=_NO_LINKS) from error
        with open(opened, "rb") as file:
            yield file

    def get(self, key: str) -> bytes:
        body = self._beginning(key)
        if len(body) > most_bytes(key):
            raise too_large(key, str(self.folder))
        return body

    def _beginning(self, key: str) -> bytes:
        with self._reading(key), self._opened(key) as file:
            return file.read(min(os.fstat(file.fileno()).st_size, most_bytes(key)) + 1)

    def read_into(self, key: str, target: memoryview) -> int:
        with self._reading(key), self._opened(key) as file:
            done = 0
            while done < len(target) and (read := file.readinto(target[done:])):  # type: ignore[attr-defined]
                done += read
            return max(done, os.fstat(file.fileno()).st_size)

    @contextlib.contextmanager
    def _reading(self, key: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            self.check()
            raise NotFound(f"object {key} is not in {self.folder}") from error
        except OSError as error:
            raise self._error(f"reading {key}", error) from error

    def read_version(self, key: str) -> Version:
        """Return the file's bytes, with their SHA-256 as the tag."""
        body = self._beginning(key)
        return Version(body, hashlib.sha256(body).hexdigest())

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Lock the folder, so that no other process replaces or removes objects, on any host that mounts the folder.

        Raises RepositoryError if another process still has the lock after the maximum wait.
        """
        try:
            with contextlib.ExitStack() as stack:
                try:
                    stack.enter_context(files.locked_file(self.folder / _LOCK, self.lock_seconds))
                except TimeoutError as error:
                    raise RepositoryError(
                        f"changing an object in {self.folder}: {error.strerror}",
                        hint="use `ps` to see what that process is; if it is not zsnapdb, end it; then try again",
                    ) from error
                yield
        except FileNotFoundError:
            self.check()
            raise

    def replace(self, key: str, body: Body, *, tag: str) -> None:
        """Replace the file if its SHA-256 is still `tag`."""
        try:
            with self._alone(), contextlib.suppress(NotFound):
                if hashlib.sha256(self._beginning(key)).hexdigest() == tag:
                    self.put(key, body)
                    return
        except OSError as error:
            raise self._error(f"replacing {key}", error) from error
        raise ChangedError(
            f"object {key} in {self.folder} was changed meanwhile",
            hint="another run wrote the object; this run did not change it",
        )

    def list(self, prefix: str) -> Iterator[StoredObject]:
        self.check()
        inner = prefix.rpartition("/")[0]
        self._refuse_links(inner)
        top = os.path.join(self.folder, inner)
        skip = len(os.path.join(self.folder, ""))
        objects: list[StoredObject] = []

        def fail(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):
                raise self._error("listing", error) from error

        # Strings are faster than Path objects, and there may be hundreds of thousands of files.
        for folder, _, names in os.walk(top, onerror=fail):
            for name in names:
                path = os.path.join(folder, name)
                if path.startswith(prefix, skip) and not name.startswith(_NOT_OBJECTS):
                    with contextlib.suppress(FileNotFoundError):
                        status = os.lstat(path)
                        when = _time_of(status.st_mtime)
                        # A replacement is a rename, so another version has another inode or later times. A writer can
                        # reset the mtime of a file, but not its ctime (inode(7)).
                        tag = f"{status.st_ino}-{status.st_mtime_ns}-{status.st_ctime_ns}"
                        objects.append(StoredObject(path[skip:], status.st_size, when, tag))
        yield from sorted(objects, key=lambda item: item.key)

    def _refuse_links(self, inner: str) -> None:
        try:
            safe_open.refuse_links(self.folder / inner, self.folder)
        except UnsafeFileError as error:
            raise RepositoryError(error.message, hint=_NO_LINKS) from error

    def folders(self, prefix: str) -> Iterator[str]:
        self.check()
        self._refuse_links(prefix.rstrip("/"))
        try:
            with os.scandir(self.folder / prefix) as entries:
                names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._error(f"listing {prefix}", error) from error
        yield from sorted(names)

    def delete(self, key: str) -> None:
        """Remove the file, and its parent folders that become empty.

        If the file is a symbolic link, only the link is removed.
        """
        *names, name = key.split("/")
        try:
            with self._alone():
                with contextlib.suppress(FileNotFoundError), self._folder(names) as at:
                    os.unlink(name, dir_fd=at)
                while names:
                    name = names.pop()
                    with self._folder(names) as at:
                        os.rmdir(name, dir_fd=at)
        except OSError as error:
            if (self.folder / key).exists():
                raise self._error(f"removing {key}", error) from error

    def delete_many(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.delete(key)

    def hold(self, key: str) -> ObjectHold | None:  # noqa: ARG002 - the protocol has it
        """Return None, because this store cannot protect files from removal."""
        return None

    def extend_lock(self, key: str, until: datetime) -> None:  # noqa: ARG002 - the protocol has it
        """Raise RepositoryError, because this store has no locks."""
        raise RepositoryError(
            f"{self.folder / key} cannot be locked: a folder has no locks", hint="use an s3:// url with object_lock"
        )

    def retrieval(self, key: str) -> Retrieval:  # noqa: ARG002 - as in the protocol
        """Return that the object can be read, because the listings of this store name no archive class."""
        return Retrieval.DONE

    def retrieve(self, key: str, tier: str, days: int) -> None:  # noqa: ARG002 - as in the protocol
        raise no_retrievals(str(self.folder))

    def afterlife(self) -> DeletionPolicy:
        """Return a policy that states that removed files are not kept.

        Snapshots of the folder's file system, which may keep removed files, are not considered.
        """
        return DeletionPolicy(keeps_versions=False)

    def give_up(self) -> None:
        """Do nothing, because no call of this store waits for another attempt."""


def refuse_unfit(settings: RepositorySettings) -> None:
    """Raise PreflightError if the folder of file:///folder is on a file system that cannot hold a repository.

    Raises RepositoryError if no file can be created in the folder. The check removes its test files.
    """
    folder = Path("/", settings.address.path)
    store = LocalStore(folder)
    store.check()
    hint = (
        "use a folder on ext4, xfs, zfs or NFS; a share or vfat must be mounted so that other accounts read nothing"
        " (file_mode=0600,dir_mode=0700 or umask=077)"
    )
    try:
        filesystem_checks.refuse_unfit(folder, filesystem_checks.REPOSITORY, hint)
    except OSError as error:
        raise store._error("making a folder", error) from error


def open_at(settings: RepositorySettings) -> tuple[Store, str]:
    """Return the store for the folder in file:///folder. The key prefix is always empty."""
    folder = Path("/", settings.address.path)
    return TimedFolder(LocalStore(folder), folder), ""
