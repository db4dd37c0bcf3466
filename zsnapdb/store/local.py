"""A folder as object store (disk, NFS): written beside, synced, renamed; never half there."""

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
from zsnapdb.store.base import Afterlife, Body, ObjectHold, Store, StoredObject, Version

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
"""What a folder on another host says while that cannot be reached."""


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
        """Store the object: written to a temporary file, fsync, then renamed (or linked, which fails if there is one)."""
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
                f"object {key} exists in {self.folder}", hint="another run wrote it; it was not changed"
            ) from error
        except OSError as error:
            raise self._error(f"writing {key}", error) from error
        finally:
            if temporary is not None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)

    @staticmethod
    def _temporary(folder: Path) -> tuple[int, str]:
        """Open a new file in the folder, making that first.

        Somebody who removes the last object in it may be in between.
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
            return (self.folder / key).read_bytes()

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
        """Return the file's bytes; their SHA-256 is the tag."""
        body = self.get(key)
        return Version(body, hashlib.sha256(body).hexdigest())

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Be the only one in this folder, on all hosts that mount it (flock reaches over NFS), who replaces or removes."""
        try:
            with open(self.folder / _LOCK, "a") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield
        except FileNotFoundError:
            self.check()
            raise

    def replace(self, key: str, body: Body, *, tag: str) -> None:
        """Store the file in place of the one whose SHA-256 is `tag`."""
        try:
            with self._alone(), contextlib.suppress(FileNotFoundError):
                if hashlib.sha256((self.folder / key).read_bytes()).hexdigest() == tag:
                    self.put(key, body)
                    return
        except OSError as error:
            raise self._error(f"replacing {key}", error) from error
        raise ChangedError(
            f"object {key} in {self.folder} was changed meanwhile", hint="another run wrote it; it was not changed"
        )

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Yield the files whose path below the folder starts with the prefix."""
        self.check()
        top = os.path.join(self.folder, prefix.rpartition("/")[0])
        skip = len(os.path.join(self.folder, ""))
        found: list[StoredObject] = []

        def fail(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):
                raise self._error("listing", error) from error

        # Texts, not Path objects: there may be hundreds of thousands of files.
        for folder, _, names in os.walk(top, onerror=fail):
            for name in names:
                path = os.path.join(folder, name)
                if path.startswith(prefix, skip) and not name.startswith((_TEMPORARY, _LOCK)):
                    with contextlib.suppress(FileNotFoundError):
                        status = os.stat(path)
                        found.append(
                            StoredObject(path[skip:], status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))
                        )
        yield from sorted(found, key=lambda item: item.key)

    def folders(self, prefix: str) -> Iterator[str]:
        """Yield the names of the folders in the one that the prefix names."""
        self.check()
        try:
            with os.scandir(self.folder / prefix) as entries:
                found = [entry.name for entry in entries if entry.is_dir()]
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._error(f"listing {prefix}", error) from error
        yield from sorted(found)

    def delete(self, key: str) -> None:
        """Remove the file and the folders it leaves empty."""
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
        """Nothing holds a file."""
        return None

    def afterlife(self) -> Afterlife:
        """What is removed is gone; snapshots of the folder's file system are not ours to know."""
        return Afterlife(keeps_versions=False)

    def give_up(self) -> None:
        """Nothing waits here."""


def open_at(settings: RepositorySettings) -> tuple[Store, str]:
    """Return the folder that file:///folder names; its prefix is always empty."""
    return LocalStore(Path(urlsplit(settings.url).path)), ""
