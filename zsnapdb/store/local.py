"""A folder as object store (disk, NFS): written beside, synced, renamed; never half there."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from zsnapdb.errors import ExistsError, NotThere, RepositoryError
from zsnapdb.store.base import StoredObject

_TEMPORARY = ".writing-"


class LocalStore:
    """Objects as files below `folder`. The folder must exist: a missing mount must not become an empty repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _error(self, doing: str, error: OSError) -> RepositoryError:
        return RepositoryError(f"{doing} in {self.folder}: {error.strerror}", hint="check the folder's mount, space and permissions")

    def check(self) -> None:
        """Prove that the folder is there and can be listed."""
        try:
            os.listdir(self.folder)
        except FileNotFoundError as error:
            raise NotThere(f"the repository folder {self.folder} does not exist", hint="mount it, or create it for a new repository") from error
        except OSError as error:
            raise self._error("listing", error) from error

    def put(self, key: str, body: bytes | memoryview, *, only_if_absent: bool = False) -> None:
        """Store the object: written to a temporary file, fsync, then renamed (or linked, which fails if there is one)."""
        target = self.folder / key
        temporary: str | None = None
        try:
            self.check()
            target.parent.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=target.parent)
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
            raise ExistsError(f"object {key} exists in {self.folder}", hint="another run wrote it; it was not changed") from error
        except OSError as error:
            raise self._error(f"writing {key}", error) from error
        finally:
            if temporary is not None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)

    def get(self, key: str) -> bytes:
        """Return the file's bytes."""
        try:
            return (self.folder / key).read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            self.check()
            raise NotThere(f"object {key} is not in {self.folder}") from error
        except OSError as error:
            raise self._error(f"reading {key}", error) from error

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Yield the files whose path below the folder starts with the prefix."""
        self.check()
        top = self.folder / prefix.rpartition("/")[0]
        found: list[StoredObject] = []

        def fail(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):
                raise self._error("listing", error) from error

        for folder, _, names in os.walk(top, onerror=fail):
            for name in names:
                path = Path(folder) / name
                key = path.relative_to(self.folder).as_posix()
                if key.startswith(prefix) and not name.startswith(_TEMPORARY):
                    with contextlib.suppress(FileNotFoundError):
                        found.append(StoredObject(key, path.stat().st_size))
        yield from sorted(found, key=lambda item: item.key)

    def delete(self, key: str) -> None:
        """Remove the file and the folders it leaves empty."""
        path = self.folder / key
        try:
            path.unlink(missing_ok=True)
            for parent in path.relative_to(self.folder).parents:
                if parent.name:
                    (self.folder / parent).rmdir()
        except OSError as error:
            if path.exists():
                raise self._error(f"removing {key}", error) from error
