"""The masking of a server's copy, before anyone can connect to the copy.

First the configured SQL files and scripts run. Then the bytes of old rows are removed from the server's files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import SecretStr

from zsnapdb import hooks
from zsnapdb.base import safe_open
from zsnapdb.base.domain_types import Position
from zsnapdb.base.errors import ConfigError, ConsistencyError, HookError, PreflightError, ServerError
from zsnapdb.base.files import open_regular
from zsnapdb.base.gtid import GtidSet
from zsnapdb.base.program_start import NO_LOGIN_PATHS
from zsnapdb.config.settings import MaskingSettings
from zsnapdb.hooks import Hook, When
from zsnapdb.jobs.base.host import fresh_password, fresh_server_id
from zsnapdb.jobs.host.server_copy import Copy, check_inside, check_recovered, client_file
from zsnapdb.mysql import accounts, variables
from zsnapdb.mysql.process import server
from zsnapdb.mysql.replication import channels
from zsnapdb.mysql.schema import row_remnants, tablespace_overwrite
from zsnapdb.mysql.schema.row_remnants import SharedTablespace
from zsnapdb.mysql.schema.schema_catalogue import stored_tables
from zsnapdb.mysql.session import Address, Session
from zsnapdb.planning.clone.masking import (
    MARGIN_NS,
    Canary,
    Changes,
    FileState,
    Scrubbed,
    canaries,
    histories_to_drop,
    longest,
    needs_rebuild,
    remains,
    renewing_options,
)
from zsnapdb.planning.schema_content import CatalogueTable
from zsnapdb.planning.server_copy.copy_options import LoginAccess, binlog_paths
from zsnapdb.planning.server_facts import ServerFacts
from zsnapdb.planning.server_family import family
from zsnapdb.planning.sql_quoting import IDENTITY, only_on_server

_BLOCK = 8 << 20


def refuse_canaries(root: Path, canaries: tuple[Canary, ...]) -> None:
    """Raise ConsistencyError if a file below `root` contains a canary, a secret value that masking must remove.

    The error names the file and the number of the canary, never the value. Links are not followed.
    """
    hits = [
        f"canary {number} in {file.relative_to(root)}"
        for file in _files_below(root)
        for number in numbers_in(file, canaries)
    ]
    if hits:
        raise ConsistencyError(
            f"after masking, files of the clone still contain values that must not be there: {'; '.join(hits)}",
            hint='correct the masking files, or rebuild all tables with masking.rebuild = "all"; this clone was not'
            " handed out",
        )


def numbers_in(file: Path, canaries: tuple[Canary, ...]) -> list[int]:
    """Return the numbers of the canaries that the file contains."""
    missing, numbers, rest = list(canaries), [], b""
    overlap = longest(canaries) - 1
    with safe_open.open_to_read(file) as opened:
        while missing and (block := opened.read(_BLOCK)):
            text = rest + block
            numbers += [canary.number for canary in missing if any(form in text for form in canary.forms)]
            missing = [canary for canary in missing if canary.number not in numbers]
            rest = text[-overlap:]
    return sorted(numbers)


def _files_below(root: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(root):
        for name in sorted(names):
            file = Path(folder) / name
            if file.is_file() and not file.is_symlink():
                yield file


_LOOKS = 20


@dataclass(frozen=True)
class _RuleFile:
    """A file of the masking rules, and the metadata of its inode.

    Every write updates `changed_ns`, which no program can set.
    """

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int


def digest(masking: MaskingSettings) -> str:
    """Return the SHA-256 of the rules: the settings, and the content of the first file of each entry in `masking.run`.

    Files that a script reads are not included.

    Raises:
        ConfigError: a file cannot be read.
    """
    rules = hashlib.sha256()
    canaries = [value.get_secret_value() for value in masking.canaries]
    rules.update(json.dumps([masking.run, masking.rebuild, masking.keep_history, canaries]).encode())
    for words in masking.run:
        try:
            with open_regular(Path(words[0])) as file:
                rules.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise ConfigError(
                f"reading the masking file {words[0]}: {error.strerror}", hint="give the absolute path of a file"
            ) from error
    return rules.hexdigest()


@contextlib.contextmanager
def unchanged(masking: MaskingSettings, rules: str) -> Iterator[None]:
    """Check that the rules have the digest `rules` before the block and do not change during the block.

    A file counts as changed even if a second change restored its content.

    Raises:
        PreflightError: the rules differ before the block, or a file was written or replaced during the block.
    """
    before = _settled(masking)
    if digest(masking) != rules:
        raise _changed()
    yield
    if _files(masking) != before:
        raise _changed()


def _settled(masking: MaskingSettings) -> list[_RuleFile]:
    """Wait until the last change of each file is older than `MARGIN_NS`, and return the files.

    If a file changes twice within one tick of the kernel's clock, its change time does not show the second change
    (inode(7)).

    Raises:
        PreflightError: a file keeps changing.
    """
    for _ in range(_LOOKS):
        files = _files(masking)
        if all(abs(time.time_ns() - file.changed_ns) >= MARGIN_NS for file in files):
            return files
        time.sleep(MARGIN_NS / 1e9)
    raise _changed()


def _changed() -> PreflightError:
    return PreflightError(
        "the settings of masking or a file of masking.run were changed meanwhile", hint="run the command again"
    )


def _files(masking: MaskingSettings) -> list[_RuleFile]:
    files = []
    for words in masking.run:
        try:
            seen = os.stat(words[0])
        except OSError as error:
            raise ConfigError(
                f"reading the masking file {words[0]}: {error.strerror}", hint="give the absolute path of a file"
            ) from error
        files.append(_RuleFile(seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns))
    return files


_ACCOUNT = "zsnapdb_mask"
_NO_GTIDS = "sql_log_bin = 0"
"""Session setting for masking scripts: their changes get no GTIDs, so that the copy keeps the GTIDs of its source."""


@dataclass(frozen=True)
class MaskingStep:
    """A masking file that was run. `rows` counts the changed rows. For a script, `statements` and `rows` are None."""

    name: str
    statements: int | None
    rows: int | None
    seconds: float


@dataclass(frozen=True)
class MaskingReport:
    """The result of masking a copy: steps, rebuilt tables, and places where bytes of old rows may remain.

    Times are in seconds.
    """

    steps: tuple[MaskingStep, ...]
    rebuilt: tuple[CatalogueTable, ...]
    remains: tuple[str, ...]
    seconds: float


def check(masking: MaskingSettings) -> None:
    """Raise ConfigError or HookError unless every masking file exists and can be read or executed."""
    for words in masking.run:
        if not _is_sql(words):
            hooks.check(_hook(words, masking))
        elif len(words) > 1 or not _is_readable(Path(words[0])):
            raise ConfigError(
                f"masking.run {' '.join(words)} is not a readable SQL file",
                hint="give the absolute path of the SQL file, without arguments",
            )


def _is_readable(file: Path) -> bool:
    return file.is_absolute() and file.is_file() and os.access(file, os.R_OK)


def _is_sql(words: tuple[str, ...]) -> bool:
    return words[0].endswith(".sql")


def _hook(words: tuple[str, ...], masking: MaskingSettings) -> Hook:
    return Hook(When.MASK, words, masking.timeout)


def mask(
    copy: Copy,
    masking: MaskingSettings,
    rules: str,
    position: Position,
    unlogged: GtidSet | None,
    *,
    instance: str,
    clone: str,
) -> MaskingReport:
    """Mask a mounted copy. Its server must be stopped, and its files must no longer have the source's identity.

    The server must recover to `position`. During masking the server listens only on a socket in its private folder.
    Afterwards the server is shut down cleanly, and its GTIDs are those of `position`. The files then contain no earlier
    binlog, relay log, redo log or undo log. If an error occurs, the copy must not be handed out.

    Raises:
        PreflightError: the rules do not have the digest `rules` (see `digest`).
        HookError: a step failed.
        ConsistencyError: a file still contains a canary.
    """
    check(masking)
    began = time.monotonic()
    password, socket = fresh_password(), copy.process().socket
    with contextlib.ExitStack() as stack:
        session = stack.enter_context(_running(copy, masking.timeout, password))
        here = only_on_server(variables.global_variables(session, IDENTITY), _NO_GTIDS)
        login = stack.enter_context(client_file(Address(_ACCOUNT, socket), password, here))
        channels.forget_channels(session)
        facts, _ = check_recovered(session, position, unlogged)
        check_inside(facts, copy.root)
        before, since_ns = _prepare(session, facts)
        names = {"ZSNAPDB_SOCKET": str(socket), "ZSNAPDB_DEFAULTS_FILE": str(login)}
        copied = {"ZSNAPDB_INSTANCE": instance, "ZSNAPDB_CLONE": clone}
        with unchanged(masking, rules):
            of_server = {"ZSNAPDB_HOOK": When.MASK.value, "ZSNAPDB_FLAVOUR": facts.flavour.value}
            environment = {**of_server, **NO_LOGIN_PATHS, **names, **copied}
            steps = tuple(_step(session, words, masking, environment) for words in masking.run)
        row_remnants.drop_history(session, histories_to_drop(stored_tables(session), masking.keep_history))
        had_histograms = row_remnants.forget_values(session, facts.flavour)
        row_remnants.purge(session)
    _remove_logs(copy, facts)
    # The slow shutdown has written every change to the files.
    changes = Changes(before, tablespace_overwrite.states(Path(facts.variables["datadir"])), since_ns)
    options = (*copy.settings.options, *renewing_options(facts.flavour, facts.release, facts.variables))
    renewing = replace(copy, settings=copy.settings.model_copy(update={"options": options}))
    with _running(renewing, masking.timeout, fresh_password()) as session:
        row_remnants.prepare(session)
        if had_histograms:
            row_remnants.overwrite_histograms(session)
        rebuilt, undo_renewed = _scrub(session, facts, masking, changes)
        shared = row_remnants.shared_tablespaces(session, facts.flavour)
    _remove_logs(copy, facts)
    has_slow_log, freed = "slow_query_log_file" in copy.variables, _empty_doublewrite(facts)
    scrubbed = Scrubbed(undo_renewed, has_slow_log, freed, _empty_free_pages(copy, facts, shared))
    refuse_canaries(copy.root, canaries(tuple(value.get_secret_value() for value in masking.canaries)))
    remaining = remains(facts.flavour, facts.release, facts.variables, facts.engines, scrubbed)
    return MaskingReport(steps, tuple(rebuilt), remaining, time.monotonic() - began)


def _prepare(session: Session, facts: ServerFacts) -> tuple[dict[str, FileState], int]:
    """Prepare the server. Return the states of the table files before masking, and the time of these states."""
    row_remnants.leave_no_binlog(session)
    row_remnants.settle(session)
    # Wait, so that the files that masking writes get later times than existing files.
    time.sleep(2 * MARGIN_NS / 1e9)
    since_ns = time.time_ns()
    return tablespace_overwrite.states(Path(facts.variables["datadir"])), since_ns


@contextlib.contextmanager
def _running(copy: Copy, timeout: float, password: SecretStr) -> Iterator[Session]:
    """Run the copy's server without a network during the block.

    After the block, purge the server's binlogs and shut the server down cleanly. If an error occurs, the server is
    killed. The account of the session has the password `password`, and exists only while the server runs.
    """
    init_file = copy.folder / "init.sql"
    socket = copy.process().socket
    server.write_private(init_file, accounts.owner_sql(_ACCOUNT, ("localhost",), password), copy.settings.user)
    identity = copy.identity(
        server_id=fresh_server_id(), port=None, access=LoginAccess.ACCOUNTS, init_file=str(init_file)
    )
    try:
        copy.start(identity, _ACCOUNT, password).close()
        safe_open.remove(init_file)
        with Session.open(Address(_ACCOUNT, socket), password, read_timeout=timeout, scripts=True) as session:
            variables.stop_logging(session)
            yield session
            variables.shut_down_slowly(session)
            accounts.drop(session, _ACCOUNT)
        copy.process().stop(timeout=timeout)
    except BaseException:
        copy.process().kill()
        raise
    finally:
        safe_open.remove(init_file)


def _step(
    session: Session, words: tuple[str, ...], masking: MaskingSettings, environment: Mapping[str, str]
) -> MaskingStep:
    began, name = time.monotonic(), " ".join(words)
    if not _is_sql(words):
        hooks.run(_hook(words, masking), environment)
        return MaskingStep(name, None, None, time.monotonic() - began)
    try:
        with open_regular(Path(words[0])) as file:
            statements, rows = session.script(file.read().decode())
    except (OSError, UnicodeDecodeError, ServerError) as error:
        raise HookError(
            f"masking with {name}: {error}",
            hint="correct the file, then make the clone again; this clone was not handed out",
        ) from error
    return MaskingStep(name, statements, rows, time.monotonic() - began)


def _scrub(
    session: Session, facts: ServerFacts, masking: MaskingSettings, changes: Changes
) -> tuple[list[CatalogueTable], bool]:
    """Remove old rows from the files of tables, from undo logs and from Aria's log.

    Return the rebuilt tables, and whether the undo tablespaces were created again.
    """
    chosen = needs_rebuild(stored_tables(session), masking.rebuild, masking.keep_history, changes)
    row_remnants.rebuild(session, chosen)
    row_remnants.purge(session)
    kind = family(facts.flavour)
    if kind.has_aria:
        row_remnants.renew_aria_log(session)
    return chosen, kind.redo_is_replaceable and row_remnants.renew_undo(session)


def _empty_doublewrite(facts: ServerFacts) -> bool:
    """Empty the doublewrite buffer of the copy after a slow shutdown (innodb_fast_shutdown = 0).

    Return True if the buffer now contains no old page. Doublewrite files outside the system tablespace were removed
    with the logs.
    """
    if family(facts.flavour).redo_is_replaceable:
        return True
    return tablespace_overwrite.empty_doublewrite(_system_files(facts)[0], _page_size(facts))


def _empty_free_pages(copy: Copy, facts: ServerFacts, shared: tuple[SharedTablespace, ...]) -> tuple[str, ...]:
    """Empty the free pages of shared tablespaces in the copy after a slow shutdown.

    Return the names of the tablespaces that could not be emptied.
    """
    datadir, system = Path(facts.variables["datadir"]), _system_files(facts)
    files = {"the system tablespace": system[0], **{one.name: datadir / one.path for one in shared}}
    if (datadir / "mysql.ibd").is_file():
        files["mysql.ibd"] = datadir / "mysql.ibd"
    top = Path(os.path.realpath(copy.root))
    missed = [
        name
        for name, file in files.items()
        if not Path(os.path.realpath(file)).is_relative_to(top)
        or (name == "the system tablespace" and len(system) > 1)
        or not tablespace_overwrite.empty_free_pages(file, _page_size(facts))
    ]
    return tuple(missed)


def _system_files(facts: ServerFacts) -> list[Path]:
    """Return the files of the system tablespace (refman 8.4, innodb_data_file_path)."""
    names = facts.variables
    folder = Path(names["datadir"]) / names.get("innodb_data_home_dir", "")
    return [folder / part.partition(":")[0] for part in names.get("innodb_data_file_path", "ibdata1").split(";")]


def _page_size(facts: ServerFacts) -> int:
    return int(facts.variables.get("innodb_page_size", "16384"))


def _remove_logs(copy: Copy, facts: ServerFacts) -> None:
    """Remove the logs of the copy after a slow shutdown. All paths in `facts` lead into the copy."""
    names = facts.variables
    logs = [binlog_paths(names, kind) for kind in ("log_bin", "relay_log")]
    binlog, relay = (None if paths is None else Path(paths[0]) for paths in logs)
    datadir = Path(names["datadir"])
    is_replaceable = family(facts.flavour).redo_is_replaceable
    redo = datadir / names.get("innodb_log_group_home_dir", "") if is_replaceable else None
    doublewrite = datadir / names.get("innodb_doublewrite_dir", "") if is_replaceable else None
    row_remnants.remove_logs(datadir, binlog, relay, redo, doublewrite, _text_logs(copy, names))


def _text_logs(copy: Copy, running: Mapping[str, str]) -> list[Path]:
    """Return the copy's log files that may contain statements of the copy's server or the source."""
    logs = [Path(path) for path in row_remnants.text_logs(running)]
    for path in row_remnants.text_logs(copy.variables):
        # Skip a log outside the volumes, because it was not copied.
        with contextlib.suppress(PreflightError):
            logs.append(Path(copy.paths.translate(path)))
    return [path for path in logs if path.is_relative_to(copy.root) and path != copy.process().error_log]
