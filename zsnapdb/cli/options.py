"""Options that several commands share."""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.main import get_command

from zsnapdb.base.errors import UsageError
from zsnapdb.cli import completion

if TYPE_CHECKING:
    from zsnapdb.config.settings import Settings
    from zsnapdb.jobs.base.host import Host


def option(name: str, metavar: str, text: str, **more: Any) -> Any:
    """Return an option with a value. In the help, `metavar` stands for the value, and `text` describes the option."""
    return typer.Option(name, metavar=metavar, help=text, **more)


def flag(name: str, text: str) -> Any:
    """Return an option without a value, or with one of a few values. The option's help is `text`."""
    return typer.Option(name, help=text)


def argument(metavar: str, text: str, **more: Any) -> Any:
    """Return an argument. In the help, `metavar` stands for the argument, and `text` describes it."""
    return typer.Argument(metavar=metavar, help=text, **more)


InstanceName = Annotated[
    str | None,
    argument(
        "INSTANCE", "Configured instance. Optional if only one is configured.", autocompletion=completion.instances
    ),
]
NamedInstance = Annotated[str, argument("INSTANCE", "Configured instance.", autocompletion=completion.instances)]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Configuration file.",
        readable=False,  # `config.load` reports an unreadable file
        envvar="ZSNAPDB_CONFIG",
        show_default="/etc/zsnapdb/zsnapdb.toml",
    ),
]
AsJson = Annotated[bool, flag("--json", "Print one JSON document instead of text.")]
PlanOnly = Annotated[
    bool, typer.Option("--plan", "--dry-run", "-n", help="Print the plan with its reasons, and change nothing.")
]
ServerBinary = Annotated[
    Path | None,
    option(
        "--binary",
        "PATH",
        "Server program to start, of the same series as the server of the backup.",
        show_default="server.binaries and server.binary of the instance",
    ),
]
WithForeignSnapshots = Annotated[
    bool,
    flag(
        "--with-foreign-snapshots",
        "Also destroy snapshots of the datasets that another program or an administrator made.",
    ),
]
POINT = "latest, latest-backup, backup id, time with zone, 10m (ago), GTID or before-GTID"
"""The ways to specify a point in time, for every command with such an option."""

ReplicasWillBeRebuilt = Annotated[
    bool,
    flag(
        "--replicas-will-be-rebuilt",
        "Replace the server although replicas read its binlogs. Each replica must be rebuilt afterwards.",
    ),
]
WaitTime = Annotated[
    str, option("--wait", "DURATION", "Longest wait for another run to end, for example 10m. Exit code 75 afterwards.")
]


def _adopted(given: str | None) -> str | None:
    """Make the given id the id of this run, before any code reads the run id.

    Raises: UsageError if the text is not a run id.
    """
    from zsnapdb.base import run_context

    if given is not None:
        if not run_context.is_run_id(given):
            raise UsageError(
                f"--once {given!r} is not a run id",
                hint=f"write a time (UTC) and 8 hexadecimal digits, such as {run_context.new_run_id()}",
            )
        run_context.adopt_run_id(given)
    return given


Once = Annotated[
    str | None,
    option(
        "--once",
        "RUN",
        "Id of this run, such as 20261127T080000Z-0123abcd. A finished run is only shown.",
        callback=_adopted,
    ),
]
RepositoryName = Annotated[
    str | None,
    option(
        "--repository",
        "NAME",
        "Configured repository to use instead of the repository of the instance.",
        autocompletion=completion.repositories,
    ),
]

AcceptOlder = Annotated[
    bool, flag("--accept-older", "With latest: use the newest usable state if a newer one cannot be used.")
]

History = Annotated[
    str | None,
    option("--history", "ID", "Binlog history of the point, if there are several (`zsnapdb binlog status`)."),
]

HANDOVER_KINDS = ("stopped", "look", "run", "promote", "replica")

RestoreFrom = Annotated[
    str,
    typer.Option(
        "--origin",
        "--from",
        metavar="ORIGIN",
        help="Origin of the volumes: repository, local (snapshots on this host), or auto (prefers local).",
    ),
]
RestoreTarget = Annotated[str | None, option("--target", "DATASET", "New dataset for the restored volumes.")]
RestoreName = Annotated[
    str | None,
    option("--as", "NAME", "Without --target: restore to POOL/zsnapdb/restored/NAME.", show_default="INSTANCE"),
]
HandoverName = Annotated[
    str, option("--handover", "HOW", f"Final state of the restored server: {', '.join(HANDOVER_KINDS)}.")
]
GREATEST_SERVER_ID = 2**32 - 1
"""Maximum server_id in both families (refman 8.4, "server_id")."""

RestoredPort = Annotated[
    int | None,
    option(
        "--port",
        "NUMBER",
        "With run and replica: port of the restored server.",
        min=1,
        max=65535,
        show_default="a free port of the range for clones",
    ),
]
RestoredServerId = Annotated[
    int | None,
    option(
        "--server-id",
        "NUMBER",
        "The server_id of the restored server. With promote: the new one in its option file.",
        min=1,
        max=GREATEST_SERVER_ID,
        show_default="random; with promote: none",
    ),
]
ReplicationAddress = Annotated[str | None, option("--source", "HOST:PORT", "With replica: replication source.")]
ReplicationUser = Annotated[str, option("--source-user", "USER", "With replica: replication account on the source.")]
ReplicationPasswordFile = Annotated[
    Path | None, option("--source-password-file", "FILE", "With replica: file with the password of that account.")
]
LeaseFromNow = Annotated[
    str | None,
    option("--ttl", "DURATION", "New length of the lease from now, for example 2h.", show_default="clones.ttl"),
]
ProtectionFromNow = Annotated[
    str, option("--for", "DURATION", "Length of the protection from now, for example 2d; 0s ends the protection.")
]

CloneName = Annotated[str, argument("NAME", "Name of the clone.", autocompletion=completion.clones)]


def _use_guid(context: typer.Context, given: str | None) -> str | None:
    """Let the command use only the clone with this GUID.

    Raises: UsageError if the text is not a GUID.
    """
    if given is not None:
        from zsnapdb.jobs.clone.expected_clone import GUID_VARIABLE
        from zsnapdb.verbs.argument_patterns import CLONE_GUID

        if CLONE_GUID.fullmatch(given) is None:
            raise UsageError(f"--guid {given!r} is not a GUID", hint="copy `guid` of `zsnapdb clone list --json`")
        os.environ[GUID_VARIABLE] = given
        context.call_on_close(lambda: os.environ.pop(GUID_VARIABLE, None))
    return given


CloneGuid = Annotated[
    str | None,
    option(
        "--guid",
        "GUID",
        "GUID of the clone (`clone list --json`). Another clone of the same name is refused.",
        callback=_use_guid,
        expose_value=False,
        show_default=False,
        allow_from_autoenv=False,
    ),
]


def _with_guid(guid: CloneGuid = None) -> None: ...


def guid_option() -> Any:
    """Return a new option `--guid`, which each command on an existing clone has."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(_with_guid)
    made: Any = get_command(app)
    return next(parameter for parameter in made.params if parameter.name == "guid")


def refuse_for_machines(hint: str, **given: bool) -> None:
    """Raise UsageError if an option was given that virtual machines do not support. Names use `_` for `-`."""
    wrong = [f"--{name.replace('_', '-')}" for name, is_given in given.items() if is_given]
    if wrong:
        raise UsageError(f"{', '.join(wrong)} cannot be used with a virtual machine", hint=hint)


def clone_guids(settings: Settings, host: Host, name: str) -> tuple[str, ...]:
    """Return the GUIDs of the clones with this name.

    The module is imported in the function, because only commands with a run id (`--once`) call the function.
    """
    from zsnapdb.jobs.clone.run_results import guids

    return guids(settings, host, name)


SOURCE_HELP = "Source: latest, live (new snapshot), id of a backup, commit or rewind, or @SNAPSHOT."


PREFIX = "ZSNAPDB"
OTHERS = frozenset(
    f"{PREFIX}_{name}"
    for name in (
        *(
            "CONFIG",
            "RUN_ID",
            "SUBJECT",
            "SUBJECT_ISSUER",
            "MEANT_CLONE",
            "CLONE_GUID",
            "URL",
            "TOKEN",
            "LOG_LEVEL",
            "LOG_FORMAT",
            "JSON_PROGRESS",
            "ENDS_WITH",
        ),
        *("HOOK", "INSTANCE", "FLAVOUR", "BACKUP_ID", "LOCK", "SNAPSHOTS", "OUTCOME", "STATUS", "ERROR", "MESSAGE"),
        *("CLONE", "SOCKET", "DEFAULTS_FILE"),
    )
)
"""Variables that do not belong to a single command's option, because they are for all commands or for hooks.
"""
_LIKENESS = 0.85
"""Minimum similarity (ratio of difflib) at which a name is treated as a misspelling of another name."""


def name_variables(command: Any, prefix: str) -> None:
    """Give each option of a command an environment variable with its name: `PREFIX_WAIT` sets `--wait`.

    The help does not show such variables, because their names follow from the names of the options.
    """
    for parameter in getattr(command, "params", ()):
        if parameter.param_type_name != "option":
            continue
        parameter.show_envvar = parameter.envvar is not None
        if parameter.envvar is None and parameter.allow_from_autoenv:
            long = next(name for name in parameter.opts if name.startswith("--"))
            parameter.envvar = f"{prefix}_{_word(long.removeprefix('--'))}"
        parameter.allow_from_autoenv = False


def command_prefix(group_prefix: str, command: str) -> str:
    """Return the prefix of the variables for a command's options."""
    return f"{group_prefix}_{_word(command)}"


def _word(name: str) -> str:
    return name.replace("-", "_").upper()


def refuse_unknown(environment: Mapping[str, str], tree: Any) -> None:
    """Raise UsageError if an environment variable looks like one of zsnapdb's but belongs to no option.

    Otherwise, zsnapdb would silently ignore the variable. A variable looks like one of zsnapdb's variables if its name
    starts with a command's prefix or resembles a known name. Other variables are allowed, because orchestrators set
    names such as ZSNAPDB_VERSION. The function `tree` builds the group of all commands when it is needed.
    """
    ours = sorted(name for name in environment if name.startswith(f"{PREFIX}_") and name not in OTHERS)
    if not ours:
        return
    root = tree()
    known = {*OTHERS, *(name for command in commands(root) for name in variables_of(command))}
    beginnings = tuple(f"{command_prefix(PREFIX, name)}_" for name in root.commands)
    for name in ours:
        meant = nearest(name, known)
        if name not in known and (meant or name.startswith(beginnings)):
            hint = f"{meant} may be the right option" if meant else "`zsnapdb COMMAND --help` lists the options"
            raise UsageError(f"the environment has {name}, which belongs to no option", hint=f"{hint}; unset it")


def nearest(name: str, known: Collection[str]) -> str | None:
    """Return the known name that is most similar to this name; None if no known name is similar."""
    begin = len(PREFIX) + 1
    close = difflib.get_close_matches(name[begin:], [one[begin:] for one in known], 1, _LIKENESS)
    return f"{PREFIX}_{close[0]}" if close else None


def commands(group: Any, prefix: str = PREFIX) -> Iterator[Any]:
    """Yield every command of the group and its subgroups, after giving environment variables to its options."""
    for name, command in group.commands.items():
        here = command_prefix(prefix, name)
        if hasattr(command, "commands"):
            yield from commands(command, here)
        else:
            name_variables(command, here)
            yield command


def variables_of(command: Any) -> Iterator[str]:
    """Yield the environment variables of a command's options."""
    for parameter in command.params:
        if isinstance(parameter.envvar, str):
            yield parameter.envvar
