"""`zsnapdb-clone`: clones for people without root, by one rule of sudo.

The rule (`zsnapdb example sudoers.d/zsnapdb-clone`) lets the members of a group run this program as root. So everything
they pass is hostile: words, values, environment. Only the words below are known, no word can be shortened, each value
has a pattern, and no option names a file, a program, an address or an owner. Of the environment only what shows text is
kept, so neither ZSNAPDB_CONFIG nor a variable of an option is read: the configuration is /etc/zsnapdb/zsnapdb.toml.
A clone is changed only for its owner, the account that sudo names.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zsnapdb.base.errors import NotAllowedError, UsageError
from zsnapdb.base.patterns import BACKUP_ID, INSTANCE
from zsnapdb.cli import exit_codes

_KEPT = ("LANG", "LC_ALL", "LC_CTYPE", "LC_MESSAGES", "TERM", "NO_COLOR", "COLUMNS", "SUDO_UID", "SUDO_USER")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_CLONE = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_INSTANCE = re.compile(INSTANCE)
_SOURCE = re.compile(rf"latest|{BACKUP_ID}")
_POINT = re.compile(r"[0-9A-Za-z][0-9A-Za-z:.,+ -]{0,999}")
_DURATION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,3})?(ms|s|m|h|d|w)")
_PROFILE = re.compile(r"tiny|normal")
_FLAG = None


@dataclass(frozen=True)
class DelegatedCommand:
    """A command for people without root: what it runs, its words in order, its options, the form of each value."""

    runs: str
    help: str
    words: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    options: Mapping[str, re.Pattern[str] | None] = field(default_factory=dict)


_NAME = {"NAME": _CLONE}
_SHOWN: Mapping[str, re.Pattern[str] | None] = {"--json": _FLAG}
_PLANNED: Mapping[str, re.Pattern[str] | None] = {"--plan": _FLAG, "--json": _FLAG}
_CREATE: Mapping[str, re.Pattern[str] | None] = {
    "--from": _SOURCE,
    "--at": _POINT,
    "--ttl": _DURATION,
    "--heartbeat": _DURATION,
    "--profile": _PROFILE,
    "--mask": _FLAG,
    "--no-start": _FLAG,
    **_PLANNED,
}
COMMANDS: Mapping[str, DelegatedCommand] = {
    "create": DelegatedCommand(
        "clone create", "make a clone of an instance", {"INSTANCE": _INSTANCE, "NAME": _CLONE}, _CREATE
    ),
    "list": DelegatedCommand("clone list", "list all clones", {}, _SHOWN),
    "login": DelegatedCommand(
        "clone connect",
        "write a file with the login that only you can read, or print the login",
        _NAME,
        {"--dsn": _FLAG, "--env": _FLAG, **_SHOWN},
    ),
    "start": DelegatedCommand("clone start", "start its server", _NAME, _PLANNED),
    "stop": DelegatedCommand("clone stop", "stop its server", _NAME, _PLANNED),
    "reset": DelegatedCommand("clone reset", "give it its first data again", _NAME, {"--from": _SOURCE, **_PLANNED}),
    "extend": DelegatedCommand("clone extend", "extend its lease", _NAME, {"--ttl": _DURATION, **_PLANNED}),
    "beat": DelegatedCommand("clone beat", "say that you still use it", _NAME, _SHOWN),
    "destroy": DelegatedCommand("clone destroy", "destroy it", _NAME, _PLANNED),
}


@dataclass(frozen=True)
class Caller:
    """The account for which the command is run."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True)
class DelegatedRequest:
    """A command line that may be run: its command, the clone that it is about ("" if none), the words for zsnapdb."""

    command: str
    clone: str
    words: tuple[str, ...]

    @property
    def source(self) -> str:
        """The snapshot set that the clone is to be made of; "" if none is named."""
        return next((word.removeprefix("--from=") for word in self.words if word.startswith("--from=")), "")

    @property
    def wants_login_file(self) -> bool:
        """Whether the login is to be written to a file of the caller."""
        if self.command == "create":
            return not {"--plan", "--no-start"} & set(self.words)
        return self.command == "login" and not {"--dsn", "--env", "--json"} & set(self.words)


def usage() -> str:
    """Return what the program can be asked for."""
    lines = ["Usage: zsnapdb-clone COMMAND, one of:"]
    for name, command in COMMANDS.items():
        options = [option if form is None else f"{option}=VALUE" for option, form in command.options.items()]
        lines.append(f"  {' '.join((name, *command.words, *(f'[{option}]' for option in options)))}")
        lines.append(f"      {command.help}")
    return "\n".join(lines)


def parse(argv: Sequence[str], caller: str) -> DelegatedRequest:
    """Return the command line that zsnapdb runs for this caller. UsageError if a word of it is not known."""
    command = COMMANDS.get(argv[0]) if argv else None
    if command is None:
        raise UsageError(f"unknown command {argv[0]!r}" if argv else "no command is given", hint=usage())
    values: dict[str, str] = {}
    options: dict[str, str] = {}
    rest = list(argv[1:])
    while rest:
        word = rest.pop(0)
        if word.startswith("-"):
            name, equals, value = word.partition("=")
            if name not in command.options:
                raise UsageError(f"unknown option {name!r} of {argv[0]}", hint=usage())
            form = command.options[name]
            if form is not None and not equals:
                value = rest.pop(0) if rest else ""
            if (form is None and equals) or (form is not None and form.fullmatch(value) is None):
                raise UsageError(f"invalid value {value!r} of {name}", hint=usage())
            options[name] = name if form is None else f"{name}={value}"
        else:
            expected = next((name for name in command.words if name not in values), None)
            if expected is None or command.words[expected].fullmatch(word) is None:
                raise UsageError(f"invalid {expected or 'word'} {word!r}", hint=usage())
            values[expected] = word
    missing = [name for name in command.words if name not in values]
    if missing:
        raise UsageError(f"{missing[0]} is missing", hint=usage())
    own = [f"--name={values['NAME']}", f"--owner={caller}"] if argv[0] == "create" else []
    positional = [value for name, value in values.items() if name != "NAME" or argv[0] != "create"]
    return DelegatedRequest(
        argv[0], values.get("NAME", ""), (*command.runs.split(), *own, *options.values(), *positional)
    )


def caller_of(environment: Mapping[str, str]) -> Caller:
    """Return the account that sudo names; root itself if sudo names none. NotAllowedError if this is not root."""
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
    """Remove every variable that is not about showing text, and set PATH."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    os.environ.clear()
    os.environ.update(kept)
    os.environ["PATH"] = _PATH


def main() -> None:
    """Run the command line of a person without root, and end with its exit code."""
    exit_codes.open_standard_streams()
    exit_codes.own_umask()
    exit_codes.interrupt_on_signals()
    sys.exit(exit_codes.exit_code_of(_run))


def _run() -> None:
    caller = caller_of(os.environ)
    argv = sys.argv[1:]
    clean_environment()
    os.chdir("/")
    if argv in (["-h"], ["--help"]):
        print(usage())
        return
    request = parse(argv, caller.name)
    # Errors and evidence name the command that is run.
    sys.argv[1:] = request.words
    from zsnapdb.cli.evidencing import evidence_of_clone
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.clone import login_file, ownership

    settings = load()
    if request.clone and request.command != "create":
        ownership.require_owner(settings, THIS_HOST, request.clone, caller.name)
    if request.source:
        ownership.require_own_source(settings, request.source, caller.name)
    destroys = request.command == "destroy" and "--plan" not in request.words
    ending = ownership.names_of(settings, THIS_HOST, request.clone) if destroys else set()
    if request.command != "login" or not request.wants_login_file:
        _zsnapdb(request.words)
    if request.wants_login_file:
        # Another clone may have the name by now.
        ownership.require_owner(settings, THIS_HOST, request.clone, caller.name)
        # The record of a new clone says that its owner has the login.
        is_deed = request.command == "login"
        with evidence_of_clone(settings, request.clone) if is_deed else contextlib.nullcontext():
            path = login_file.write_login(settings, THIS_HOST, request.clone, caller.uid, caller.gid)
        print(_login_line(path), file=sys.stdout if request.command == "login" else sys.stderr)
    for name in {request.clone, *ending} if destroys else ():
        login_file.forget_login(name)


def _login_line(path: Path) -> str:
    return f"--defaults-file={path}"


def _zsnapdb(words: Sequence[str]) -> None:
    """Run the command line of zsnapdb. It returns if the command succeeds, and raises what ends it otherwise."""
    from zsnapdb.cli.app import app

    try:
        app(args=list(words), prog_name="zsnapdb")
    except SystemExit as ended:
        if ended.code:
            raise
