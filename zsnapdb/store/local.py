"""A folder as object store (disk, NFS). A file is written under another name, synced and renamed: never half there."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from zsnapdb.config import RepositorySettings
from zsnapdb.errors import ChangedError, ExistsError, NotThere, RepositoryError, UnreachableError
from zsnapdb.store.base import Afterlife, Body, ObjectHold, Store, StoredObject, Version, most_bytes, too_large

_TEMPORARY = ".writing-"
_LOCK = ".replacing"
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
"""Errors of a network file system while its host cannot be reached."""


class LocalStore:
    """Objects as files below `folder`. The folder must exist: a missing mount must not become an empty repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _error(self, doing: str, error: OSError) -> RepositoryError:
        kind = UnreachableError if error.errno in _AGAIN else RepositoryError
        return kind(
            f"{doing} in {self.folder}: {error.strerror}", hint="check the folder's mount, space and permissions"
        )

    def check(self) -> None:
        """Prove that the folder is there and can be listed."""
        try:
            os.listdir(self.folder)
        except FileNotFoundError as error:
            raise NotThere(
                f"the repository folder {self.folder} does not exist",
                hint="mount it, or create it for a new repository",
            ) from error
        except OSError as error:
            raise self._error("listing", error) from error

    def put(self, key: str, body: Body, *, only_if_absent: bool = False, sha256: str | None = None) -> None:  # noqa: ARG002 - a file proves nothing
        """Store the object: write a temporary file, sync it, then rename it (or link it, which fails if one exists)."""
        target = self.folder / key
        temporary: str | None = None
        try:
            self.check()
            descriptor, temporary = self._temporary(target.parent)
            with open(descriptor, "wb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            if only_if_absent:
                os.link(temporary, target)
                os.unlink(temporary)
            else:
                os.rename(temporary, target)
            temporary = None
            folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except FileExistsError as error:
            raise ExistsError(
                f"object {key} exists in {self.folder}", hint="another run wrote the object; it was not changed"
            ) from error
        except OSError as error:
            raise self._error(f"writing {key}", error) from error
        finally:
            if temporary is not None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)

    @staticmethod
    def _temporary(folder: Path) -> tuple[int, str]:
        """Create the folder and open a new file in it.

        Another process may remove the empty folder in between; then this tries again.
        """
        for _ in range(10):
            folder.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                return tempfile.mkstemp(prefix=_TEMPORARY, dir=folder)
        folder.mkdir(parents=True, exist_ok=True)
        return tempfile.mkstemp(prefix=_TEMPORARY, dir=folder)

    def get(self, key: str) -> bytes:
        """Return the file's bytes."""
        with self._reading(key):
            body = self._beginning(key)
        if len(body) > most_bytes(key):
            raise too_large(key, str(self.folder))
        return body

    def _beginning(self, key: str) -> bytes:
        """Return the file's bytes, at most one more than a file under this key may have."""
        with (self.folder / key).open("rb") as file:
            return file.read(most_bytes(key) + 1)

    def read_into(self, key: str, target: memoryview) -> int:
        """Read the file."""
        with self._reading(key), (self.folder / key).open("rb", buffering=0) as file:
            done = 0
            while done < len(target) and (read := file.readinto(target[done:])):
                done += read
            return max(done, os.fstat(file.fileno()).st_size)

    @contextlib.contextmanager
    def _reading(self, key: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            self.check()
            raise NotThere(f"object {key} is not in {self.folder}") from error
        except OSError as error:
            raise self._error(f"reading {key}", error) from error

    def read_version(self, key: str) -> Version:
        """Return the file's bytes. Their SHA-256 is the tag."""
        with self._reading(key):
            body = self._beginning(key)
        return Version(body, hashlib.sha256(body).hexdigest())

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Lock the folder: no other process, on any host that mounts it, replaces or removes (flock works over NFS)."""
        try:
            with open(self.folder / _LOCK, "a") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield
        except FileNotFoundError:
            self.check()
            raise

    def replace(self, key: str, body: Body, *, tag: str) -> None:
        """Replace the file if its SHA-256 is still `tag`."""
        try:
            with self._alone(), contextlib.suppress(FileNotFoundError):
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
        """Yield the files whose path below the folder starts with the prefix."""
        self.check()
        top = os.path.join(self.folder, prefix.rpartition("/")[0])
        skip = len(os.path.join(self.folder, ""))
        objects: list[StoredObject] = []

        def fail(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):
                raise self._error("listing", error) from error

        # Strings, not Path objects: there may be hundreds of thousands of files.
        for folder, _, names in os.walk(top, onerror=fail):
            for name in names:
                path = os.path.join(folder, name)
                if path.startswith(prefix, skip) and not name.startswith((_TEMPORARY, _LOCK)):
                    with contextlib.suppress(FileNotFoundError):
                        status = os.stat(path)
                        objects.append(
                            StoredObject(path[skip:], status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))
                        )
        yield from sorted(objects, key=lambda item: item.key)

    def folders(self, prefix: str) -> Iterator[str]:
        """Yield the names of the folders in the folder that the prefix names."""
        self.check()
        try:
            with os.scandir(self.folder / prefix) as entries:
                names = [entry.name for entry in entries if entry.is_dir()]
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._error(f"listing {prefix}", error) from error
        yield from sorted(names)

    def delete(self, key: str) -> None:
        """Remove the file, and the folders above it that are empty then."""
        path = self.folder / key
        try:
            with self._alone():
                path.unlink(missing_ok=True)
                for parent in path.relative_to(self.folder).parents:
                    if parent.name:
                        (self.folder / parent).rmdir()
        except OSError as error:
            if path.exists():
                raise self._error(f"removing {key}", error) from error

    def delete_many(self, keys: Sequence[str]) -> None:
        """Remove the files one by one."""
        for key in keys:
            self.delete(key)

    def hold(self, key: str) -> ObjectHold | None:  # noqa: ARG002 - the protocol has it
        """Return None: this store protects no file from removal."""
        return None

    def extend_lock(self, key: str, until: datetime) -> None:  # noqa: ARG002 - the protocol has it
        """Raise RepositoryError: this store has no locks."""
        raise RepositoryError(
            f"{self.folder / key} cannot be locked: a folder has no locks", hint="use an s3:// url with object_lock"
        )

    def afterlife(self) -> Afterlife:
        """Return that removed files are gone. Snapshots of the folder's file system are not known here."""
        return Afterlife(keeps_versions=False)

    def give_up(self) -> None:
        """Do nothing: no call of this store waits."""


def open_at(settings: RepositorySettings) -> tuple[Store, str]:
    """Return the store of the folder that file:///folder names. The key prefix is always empty."""
    return LocalStore(Path(urlsplit(settings.url).path)), ""
