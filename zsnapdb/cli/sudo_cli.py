"""`zsnapdb-clone`: clones for users without root rights, through one sudo rule.

The rule (`zsnapdb example sudoers.d/zsnapdb-clone`) lets the members of a group run this program as root. So all input
(arguments, values and environment) is treated as hostile. `verbs/requests.py` lists the accepted arguments. The program
keeps only environment variables that concern text output. It reads neither ZSNAPDB_CONFIG nor the variables of options.
The configuration is always /etc/zsnapdb/zsnapdb.toml. Only the owner may change a clone. The owner is the account that
sudo names.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from zsnapdb.base import run_context
from zsnapdb.base.errors import NotAllowedError, ZsnapdbError
from zsnapdb.cli import main_process
from zsnapdb.cli.command_context import cached_configuration
from zsnapdb.jobs.dataset_copies.properties import owner_text
from zsnapdb.verbs.delegation import DelegatedRequest, parse, usage

_ROOT = "root"
_KEPT = ("LANG", "LC_ALL", "LC_CTYPE", "LC_MESSAGES", "TERM", "NO_COLOR", "COLUMNS", "SUDO_UID", "SUDO_USER")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Caller:
    """The account for which the command is run."""

    name: str
    uid: int
    gid: int


def caller_of(environment: Mapping[str, str]) -> Caller:
    """Return the account that sudo names, or root if sudo names none.

    Raises: NotAllowedError if this process is not root, or the account does not exist.
    """
    if os.geteuid() != 0:
        raise NotAllowedError(
            "you may not use clones without sudo",
            hint="run `sudo zsnapdb-clone`; it works if your administrator has set up `zsnapdb example"
            " sudoers.d/zsnapdb-clone`, and you are in its group",
        )
    uid = environment.get("SUDO_UID", "0")
    try:
        account = pwd.getpwuid(int(uid))
    except (ValueError, KeyError) as error:
        raise NotAllowedError(f"sudo names the account {uid!r}, which does not exist") from error
    return Caller(account.pw_name, account.pw_uid, account.pw_gid)


def clean_environment() -> None:
    """Remove every variable that does not concern text output, and set PATH."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    os.environ.clear()
    os.environ.update(kept)
    os.environ["PATH"] = _PATH


def main() -> None:
    """Run the command line of a user without root rights, and exit with its exit code."""
    main_process.open_standard_streams()
    main_process.own_umask()
    main_process.interrupt_on_signals()
    sys.exit(main_process.exit_code_of(_run))


def _run() -> None:
    caller = caller_of(os.environ)
    argv = sys.argv[1:]
    clean_environment()
    os.chdir("/")
    if argv in (["-h"], ["--help"]):
        print(usage())
        return
    request = parse(argv, caller.name)
    # Errors and evidence name the executed command.
    sys.argv[1:] = request.words
    if caller.name != _ROOT:
        # From here on, no error may name objects of other owners, neither from the configuration nor from damaged
        # clones.
        os.environ[run_context.AUDIENCE_VARIABLE] = owner_text(caller.name)
    with _hiding_unexpected():
        _run_request(request, caller)


def _run_request(request: DelegatedRequest, caller: Caller) -> None:
    from zsnapdb.cli.notified_commands import evidence_of_clone
    from zsnapdb.cli.progress import Terminal
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.clone import catalogue, lifecycle, logins
    from zsnapdb.jobs.clone.expected_clone import CAUSER_VARIABLE, GUID_VARIABLE, ExpectedClone

    settings = load()
    # When the command runs, a clone of another owner may have this name.
    meant = ExpectedClone(owner=caller.name).variables() if caller.name != _ROOT else {}
    if caller.name != _ROOT:
        os.environ[CAUSER_VARIABLE] = caller.name
    if request.guid is not None:
        os.environ[GUID_VARIABLE] = request.guid
    if request.clone and request.command != "create":
        catalogue.require_owner(settings, THIS_HOST, request.clone, caller.name)
        os.environ.update(meant)
    destroys = request.command == "destroy" and "--plan" not in request.words
    ending = catalogue.names_of(settings, THIS_HOST, request.clone) if destroys else set()
    if request.command != "login" or not request.wants_login_file:
        with cached_configuration({None: settings}):
            _zsnapdb(request.words)
    if request.wants_login_file:
        catalogue.require_owner(settings, THIS_HOST, request.clone, caller.name)
        os.environ.update(meant)
        # The evidence record of a new clone already states that its owner has the login.
        is_deed = request.command == "login"
        with evidence_of_clone(settings, request.clone) if is_deed else contextlib.nullcontext():
            if "--new" in request.words:
                logins.new_login(settings, THIS_HOST, request.clone, Terminal())
            path = lifecycle.write_login(settings, THIS_HOST, request.clone, caller.uid, caller.gid)
        print(f"--defaults-file={path}", file=sys.stdout if request.command == "login" else sys.stderr)
    for name in {request.clone, *ending} if destroys else ():
        lifecycle.forget_login(name)


@contextlib.contextmanager
def _hiding_unexpected() -> Iterator[None]:
    """Show the text of an unexpected error in the block only if the caller is an administrator."""
    try:
        yield
    except (ZsnapdbError, OSError, main_process.Failure):
        raise
    except Exception as error:
        if run_context.current_audience().sees_all:
            raise
        main_process.record_for_administrators(traceback.format_exc())
        raise ZsnapdbError("an unexpected error", about=()) from error


def _zsnapdb(words: Sequence[str]) -> None:
    """Run the command line of zsnapdb. Return on success; otherwise raise the error or exit."""
    from zsnapdb.cli.app import app

    try:
        app(args=list(words), prog_name="zsnapdb")
    except SystemExit as ended:
        if ended.code:
            raise
