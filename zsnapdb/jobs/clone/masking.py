"""Masks a copy of a server before anyone can reach it: the site's SQL files and scripts, then the removal of what the old rows left behind."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import SecretStr

from zsnapdb import hooks
from zsnapdb.config import MaskingSettings
from zsnapdb.errors import ConfigError, HookError, PreflightError, ServerError
from zsnapdb.gtid import GtidSet
from zsnapdb.hooks import Hook, When
from zsnapdb.jobs.fresh import fresh_password, fresh_server_id
from zsnapdb.jobs.server_copy.client_file import client_text
from zsnapdb.jobs.server_copy.prepare import Copy, check_inside, check_recovered
from zsnapdb.model import Position
from zsnapdb.mysql import accounts, applier, scrub, server, variables
from zsnapdb.mysql.session import Address, Session
from zsnapdb.planning.clone.masking import Table, remains, renewing_options, to_rebuild
from zsnapdb.planning.facts import ServerFacts
from zsnapdb.planning.family import family
from zsnapdb.planning.server_copy.identity import Access, binlog_paths

_ACCOUNT = "zsnapdb_mask"
_CLIENT = "mask.cnf"


@dataclass(frozen=True)
class MaskingStep:
    """One file of the site's masking, done. `statements` and `rows` (changed) are None for a script."""

    name: str
    statements: int | None
    rows: int | None
    seconds: float


@dataclass(frozen=True)
class MaskingReport:
    """What masking a copy did: its steps, the tables written anew, and where bytes of the old rows may still lie.

    Times in seconds.
    """

    steps: tuple[MaskingStep, ...]
    rebuilt: tuple[Table, ...]
    remains: tuple[str, ...]
    seconds: float


def check(masking: MaskingSettings) -> None:
    """Raise ConfigError or HookError unless every file that masks is there and may be read or executed."""
    for words in masking.run:
        if not _is_sql(words):
            hooks.check(_hook(words, masking))
        elif len(words) > 1 or not os.access(words[0], os.R_OK) or not Path(words[0]).is_absolute():
            raise ConfigError(
                f"masking.run {' '.join(words)} is not a readable SQL file", hint="name it with its whole path, alone"
            )


def _is_sql(words: tuple[str, ...]) -> bool:
    return words[0].endswith(".sql")


def _hook(words: tuple[str, ...], masking: MaskingSettings) -> Hook:
    return Hook(When.MASK, words, masking.timeout)


def mask(
    copy: Copy, masking: MaskingSettings, wanted: Position, unlogged: GtidSet | None, *, instance: str, clone: str
) -> MaskingReport:
    """Mask a mounted copy that was made separate from its source and whose server does not run.

    `wanted` is where it must recover to.

    Meanwhile its server listens on a socket in its private folder alone. Afterwards it was shut down cleanly and stands
    at `wanted` by its GTIDs; its files have no binlog, relay log, redo or undo from before. HookError if a step fails;
    after any error the copy is not to be handed out.
    """
    check(masking)
    began = time.monotonic()
    with _running(copy, masking.timeout) as session:
        applier.forget(session)
        facts, _ = check_recovered(session, wanted, unlogged)
        check_inside(facts, copy.root)
        environment = {
            "ZSNAPDB_HOOK": When.MASK.value,
            "ZSNAPDB_INSTANCE": instance,
            "ZSNAPDB_CLONE": clone,
            "ZSNAPDB_FLAVOUR": facts.flavour.value,
        }
        environment |= {
            "ZSNAPDB_SOCKET": str(copy.process().socket),
            "ZSNAPDB_DEFAULTS_FILE": str(copy.folder / _CLIENT),
        }
        scrub.prepare(session)
        since = variables.clock(session)
        steps = tuple(_step(session, words, masking, environment) for words in masking.run)
        rebuilt, undo_renewed = _scrub(session, facts, masking, since)
    _remove_logs(copy, facts)
    options = renewing_options(facts.flavour, facts.release, facts.variables)
    if options:
        renewing = replace(
            copy, settings=copy.settings.model_copy(update={"options": (*copy.settings.options, *options)})
        )
        with _running(renewing, masking.timeout):
            pass
        _remove_logs(copy, facts)
    known = "slow_query_log_file" in copy.variables
    left = remains(
        facts.flavour, facts.release, facts.variables, facts.engines, undo_renewed=undo_renewed, logs_known=known
    )
    return MaskingReport(steps, tuple(rebuilt), left, time.monotonic() - began)


@contextlib.contextmanager
def _running(copy: Copy, timeout: float) -> Iterator[Session]:
    """Run the copy's server, without network, for the block; then shut it down cleanly, all purged.

    On an error it is killed.

    The account of the block exists only as long as the server runs; its password is in a file of the private folder.
    """
    password = fresh_password()
    init_file, client = copy.folder / "init.sql", copy.folder / _CLIENT
    socket = copy.process().socket
    server.write_private(init_file, accounts.owner_sql(_ACCOUNT, ("localhost",), password), copy.settings.user)
    _write_client_file(copy, password)
    identity = copy.identity(server_id=fresh_server_id(), port=None, access=Access.ACCOUNTS, init_file=str(init_file))
    try:
        copy.start(identity, _ACCOUNT, password).close()
        init_file.unlink()
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
        init_file.unlink(missing_ok=True)
        client.unlink(missing_ok=True)


def _write_client_file(copy: Copy, password: SecretStr) -> None:
    file = copy.folder / _CLIENT
    login = client_text(Address(_ACCOUNT, copy.process().socket), password)
    # What a script changes must not be numbered: the copy's GTIDs stay those of its source.
    login += "".join(f"[{program}]\ninit-command={variables.STOP_LOGGING}\n" for program in ("mysql", "mariadb"))
    server.write_private(file, login, copy.settings.user)


def _step(
    session: Session, words: tuple[str, ...], masking: MaskingSettings, environment: Mapping[str, str]
) -> MaskingStep:
    began, name = time.monotonic(), " ".join(words)
    if not _is_sql(words):
        hooks.run(_hook(words, masking), environment)
        return MaskingStep(name, None, None, time.monotonic() - began)
    try:
        statements, rows = session.script(Path(words[0]).read_text())
    except (OSError, UnicodeDecodeError, ServerError) as error:
        raise HookError(
            f"masking with {name}: {error}", hint="correct the file; the clone was not handed out"
        ) from error
    return MaskingStep(name, statements, rows, time.monotonic() - began)


def _scrub(session: Session, facts: ServerFacts, masking: MaskingSettings, since: float) -> tuple[list[Table], bool]:
    """Remove what the running server keeps of the old rows.

    Return the tables written anew and whether undo was made anew.
    """
    chosen = to_rebuild(scrub.tables(session, facts.flavour, since), masking.rebuild)
    scrub.rebuild(session, chosen)
    scrub.forget_values(session, facts.flavour)
    scrub.purge(session)
    return chosen, family(facts.flavour).redo_is_replaceable and scrub.renew_undo(session)


def _remove_logs(copy: Copy, facts: ServerFacts) -> None:
    """Remove the logs of the copy, whose server was shut down slowly.

    `facts` are the running copy's, so every path is its own.
    """
    names = facts.variables
    logs = [binlog_paths(names, kind) for kind in ("log_bin", "relay_log")]
    binlog, relay = (None if found is None else Path(found[0]) for found in logs)
    datadir = Path(names["datadir"])
    is_replaceable = family(facts.flavour).redo_is_replaceable
    redo = datadir / names.get("innodb_log_group_home_dir", "") if is_replaceable else None
    doublewrite = datadir / names.get("innodb_doublewrite_dir", "") if is_replaceable else None
    scrub.remove_logs(binlog, relay, redo, doublewrite, _text_logs(copy, names))


def _text_logs(copy: Copy, running: Mapping[str, str]) -> list[Path]:
    """Return the copy's log files with statements in them: where its own server writes, and where the source's did, if that is on its volumes."""
    found = [Path(path) for path in scrub.text_logs(running)]
    for path in scrub.text_logs(copy.variables):
        # A log elsewhere was not copied.
        with contextlib.suppress(PreflightError):
            found.append(Path(copy.paths.translate(path)))
    return [path for path in found if path.is_relative_to(copy.root) and path != copy.process().error_log]
