"""Facts about a server's files: the written paths, the real block sizes, and MariaDB's DDL log."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from zsnapdb.base.errors import DamagedError, PreflightError
from zsnapdb.base.patterns import is_line
from zsnapdb.base.safe_open import UnsafeFileError, open_to_read, read_text
from zsnapdb.base.untrusted_text import fields_of
from zsnapdb.planning.backup.fitness import BlockSizes
from zsnapdb.planning.server_facts import ServerFacts

DIRECTORIES = (
    "datadir",
    "innodb_data_home_dir",
    "innodb_log_group_home_dir",
    "innodb_undo_directory",
    "innodb_doublewrite_dir",
    "aria_log_dir_path",
    "rocksdb_datadir",
    "rocksdb_wal_dir",
    "wsrep_data_home_dir",
)
BASENAMES = ("log_bin_basename", "relay_log_basename")
_FILES = ("log_bin_index", "relay_log_index")


@dataclass(frozen=True, order=True)
class ServerPath:
    """A path that the server writes, with symbolic links resolved, and the setting or file that contains the path."""

    what: str
    path: str


def _real(path: str, datadir: str) -> str:
    return os.path.realpath(os.path.join(datadir, path))


def _real_files(facts: ServerFacts, datadir: str) -> Iterator[tuple[str, str]]:
    """Yield each file of a tablespace as the server names it, and its path with symbolic links resolved.

    Each folder is resolved and searched for links only once, because a server may have tens of thousands of files.
    """
    folders: dict[str, tuple[str, set[str] | None]] = {}
    for file in facts.tablespace_files:
        name = file.rpartition("/")[2]
        folder = file[: len(file) - len(name)]
        if folder not in folders:
            real = _real(folder, datadir)
            folders[folder] = real.rstrip("/") + "/", _links(real)
        prefix, links = folders[folder]
        yield file, os.path.realpath(prefix + name) if links is None or name in links else prefix + name


def _links(folder: str) -> set[str] | None:
    """Return the names of the symbolic links in a folder; None if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if entry.is_symlink()}
    except OSError:
        return None


def _from_variables(facts: ServerFacts, datadir: str) -> Iterator[ServerPath]:
    for name in DIRECTORIES:
        value = facts.variables.get(name, "")
        if value:
            yield ServerPath(name, _real(value, datadir))
    for name in BASENAMES:
        value = facts.variables.get(name, "")
        if value:
            yield ServerPath(name, _real(os.path.dirname(os.path.join(datadir, value)), datadir))
    for name in _FILES:
        value = facts.variables.get(name, "")
        if value:
            yield ServerPath(name, _real(value, datadir))
    for value in facts.variables.get("innodb_directories", "").split(";"):
        if value:
            yield ServerPath("innodb_directories", _real(value, datadir))
    home = facts.variables.get("innodb_data_home_dir") or datadir
    for part in facts.variables.get("innodb_data_file_path", "").split(";"):
        if part:
            yield ServerPath("innodb_data_file_path", _real(os.path.join(home, part.split(":", 1)[0]), datadir))


def links_in(datadir: str, depth: int = 2) -> Iterator[ServerPath]:
    """Yield the symbolic links in the data directory and its schema folders.

    Such links point to tables outside these folders.
    """
    try:
        with os.scandir(datadir) as entries:
            for entry in entries:
                if entry.is_symlink():
                    yield ServerPath(f"symbolic link {entry.path}", os.path.realpath(entry.path))
                elif depth > 1 and entry.is_dir(follow_symlinks=False) and entry.name != ".zfs":
                    yield from links_in(entry.path, depth - 1)
    except OSError:
        # The placement check reports an unreadable data directory.
        return


def fixed_links(datadir: str) -> tuple[str, ...]:
    """Return the symbolic links in the data directory that have absolute targets.

    In a copy, such links lead to the files of the original server.
    """
    named = (link.what.removeprefix("symbolic link ") for link in links_in(os.path.realpath(datadir)))
    return tuple(path for path in named if os.path.isabs(_target_of(path)))


def _target_of(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


def with_real_paths(facts: ServerFacts) -> ServerFacts:
    """Return the facts with all path variables absolute and without symbolic links, like mount points."""
    variables = dict(facts.variables)
    datadir = os.path.realpath(variables["datadir"])
    for name in (*DIRECTORIES, *_FILES):
        if variables.get(name):
            variables[name] = _real(variables[name], datadir)
    for name in BASENAMES:
        if variables.get(name):
            folder, base = os.path.split(os.path.join(datadir, variables[name]))
            variables[name] = os.path.join(os.path.realpath(folder), base)
    return replace(facts, variables=variables)


def written_paths(facts: ServerFacts) -> tuple[ServerPath, ...]:
    """Return every path that the server writes, sorted and without duplicates."""
    datadir = os.path.realpath(facts.variables["datadir"])
    paths = {*_from_variables(facts, datadir), *links_in(datadir)}
    paths |= {
        ServerPath("tablespace", real) for _, real in _real_files(facts, datadir) if not real.startswith(datadir + "/")
    }
    return tuple(sorted(paths))


def absolute_tablespaces(facts: ServerFacts) -> tuple[str, ...]:
    """Return the tablespace files outside the data directory. The data dictionary contains their absolute paths."""
    datadir = os.path.realpath(facts.variables["datadir"])
    home = os.path.realpath(facts.variables.get("innodb_data_home_dir") or datadir)
    undo = os.path.realpath(facts.variables.get("innodb_undo_directory") or datadir)
    inside = (datadir + "/", home.rstrip("/") + "/", undo.rstrip("/") + "/")
    return tuple(file for file, real in _real_files(facts, datadir) if not real.startswith(inside))


_KEYRING_FILES = ("keyring_file_data", "keyring_encrypted_file_data", "file_key_management_filename")
_PASSPHRASE, _IN_FILE = "file_key_management_filekey", "FILE:"
_KEYRING_COMPONENTS = ("component_keyring_file.cnf", "component_keyring_encrypted_file.cnf")


KEYRING_VARIABLES = (*_KEYRING_FILES, _PASSPHRASE, "plugin_dir", "datadir")
"""The variables that `keyring_paths` reads."""


def keyring_paths(variables: Mapping[str, str]) -> tuple[ServerPath, ...]:
    """Return the files with the encryption keys of a server's tablespaces and logs, according to its variables.

    A variable names the key file of a plugin. The configuration <plugin_dir>/NAME.cnf names the key file of a
    component, or refers to a file in the data directory that names it (refman 8.4, "The component_keyring_file"). The
    result includes the file with the passphrase of an encrypted key file. A variable may contain the passphrase itself;
    its value is then a secret and not a path (MariaDB manual, "File Key Management Encryption Plugin").
    """
    datadir = os.path.realpath(variables["datadir"])
    paths = {ServerPath(name, _real(variables[name], datadir)) for name in _KEYRING_FILES if variables.get(name)}
    if variables.get(_PASSPHRASE, "").startswith(_IN_FILE):
        paths.add(ServerPath(_PASSPHRASE, _real(variables[_PASSPHRASE].removeprefix(_IN_FILE), datadir)))
    for folder in (variables.get("plugin_dir", ""), datadir):
        for name in _KEYRING_COMPONENTS:
            try:
                path = fields_of(read_text(Path(folder, name))).get("path")
            except (OSError, ValueError):
                continue
            except UnsafeFileError:
                # Only the server reads this file, which names another location of the keys.
                path = str(Path(folder, name))
            if isinstance(path, str) and path and is_line(path):
                paths.add(ServerPath(name, _real(path, datadir)))
    return tuple(sorted(paths))


def needed_by_appliers(facts: ServerFacts) -> tuple[ServerPath, ...]:
    """Return the folder in which a replica keeps the files of LOAD DATA statements until it applies the statements.

    See refman 8.4, "replica_load_tmpdir".
    """
    if not facts.channels:
        return ()
    names = ("replica_load_tmpdir", "slave_load_tmpdir")
    return tuple(
        ServerPath(name, os.path.realpath(facts.variables[name])) for name in names if facts.variables.get(name)
    )[:1]


def data_file_blocks(facts: ServerFacts) -> BlockSizes:
    """Return the real block sizes of the InnoDB data files.

    On ZFS, st_blksize is the file's own record size (zfs_getattr), not the current property `recordsize`.
    """
    datadir = os.path.realpath(facts.variables["datadir"])
    counts: Counter[int] = Counter()
    examples: dict[int, str] = {}
    for _, path in _real_files(facts, datadir):
        with contextlib.suppress(OSError):
            status = os.stat(path)
            if os.path.basename(path).startswith("ibtmp") or status.st_size == 0:
                continue
            counts[status.st_blksize] += 1
            if status.st_blksize not in examples:
                examples[status.st_blksize] = os.path.relpath(path, datadir)
    return BlockSizes(int(facts.variables.get("innodb_page_size", "16384")), dict(counts), examples)


FILE = "ddl_recovery.log"

_MAGIC = bytes((254, 254, 11, 2))
_EXECUTE = 1


def statements_half_done(datadir: Path) -> int:
    """Return the number of DDL statements that were unfinished when the state in `datadir` was written.

    Raises PreflightError if the DDL log is missing. Every running server has a DDL log, but log_ddl_recovery may place
    it outside `datadir`. Raises DamagedError if the file is not a DDL log of a known format.
    """
    try:
        with open_to_read(datadir / FILE) as file:
            header = file.read(9)
            if len(header) < 9:
                # The server has just created the log, which is still empty.
                return 0
            size = int.from_bytes(header[4:6], "little")
            if header[:4] != _MAGIC or size < 64:
                raise DamagedError(
                    f"{datadir / FILE} is not the DDL log of a known MariaDB",
                    hint="use lock.strategy = 'stage', which does not need this log",
                )
            count, at = 0, size
            while True:
                file.seek(at)
                kind = file.read(1)
                if not kind:
                    return count
                count += kind[0] == _EXECUTE
                at += size
    except FileNotFoundError as error:
        raise PreflightError(
            f"{datadir / FILE} does not exist, so running DDL cannot be detected",
            hint="use lock.strategy = 'stage', or leave log_ddl_recovery at its default",
        ) from error
