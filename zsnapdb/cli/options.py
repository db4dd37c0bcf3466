"""Options that several commands share."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zsnapdb.base.errors import UsageError
from zsnapdb.cli import completion

if TYPE_CHECKING:
    from zsnapdb.config.settings import Settings
    from zsnapdb.jobs.base.host import Host

InstanceName = Annotated[
    str | None,
    typer.Argument(
        metavar="INSTANCE",
        help="A configured instance. Optional if only one is configured.",
        show_default=False,
        autocompletion=completion.instances,
    ),
]
NamedInstance = Annotated[
    str,
    typer.Argument(
        metavar="INSTANCE",
        help="A configured instance.",
        show_default=False,
        autocompletion=completion.instances,
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The configuration file.",
        readable=False,  # whoever may not read it is told so by `config.load`
        envvar="ZSNAPDB_CONFIG",
        show_default="/etc/zsnapdb/zsnapdb.toml",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
PlanOnly = Annotated[
    bool,
    typer.Option("--plan", "--dry-run", "-n", help="Print what the command would do and why; change nothing."),
]
ServerBinary = Annotated[
    Path | None,
    typer.Option(
        "--binary",
        metavar="PATH",
        help="The server program to start, of the series of the backup's server.",
        show_default="server.binaries and server.binary of the instance",
    ),
]
WithForeignSnapshots = Annotated[
    bool,
    typer.Option(
        "--with-foreign-snapshots",
        help="Also destroy snapshots that others (sanoid, an administrator) made on the datasets.",
    ),
]
POINT = "latest, latest-backup, a backup id, a time with its zone, 10m (so long ago), a GTID, or before-GTID"
"""The forms of a point in time, of every command that takes one."""

ReplicasWillBeRebuilt = Annotated[
    bool,
    typer.Option(
        "--replicas-will-be-rebuilt",
        help="Replace the server although others read its binlogs: each of them will be made anew afterwards.",
    ),
]
WaitTime = Annotated[
    str,
    typer.Option(
        "--wait",
        metavar="DURATION",
        help="If another run is at work, wait this long for its end, for example 10m; then end with 75.",
    ),
]


def _adopted(given: str | None) -> str | None:
    """Make the id that the caller chose the id of this run, before anything asks for one."""
    from zsnapdb.base import run_id

    if given is not None:
        if not run_id.is_one(given):
            raise UsageError(
                f"--once {given!r} is not the id of a run",
                hint=f"write a time (UTC) and 8 hexadecimal digits, such as {run_id.new()}",
            )
        run_id.adopt(given)
    return given


Once = Annotated[
    str | None,
    typer.Option(
        "--once",
        metavar="RUN",
        callback=_adopted,
        help="The id of this run, such as 20261127T080000Z-0123abcd. If the run of this id is done, only show what it"
        " made.",
        show_default=False,
    ),
]
RepositoryName = Annotated[
    str | None,
    typer.Option(
        "--repository",
        metavar="NAME",
        help="A configured repository to use instead of the instance's own.",
        show_default=False,
        autocompletion=completion.repositories,
    ),
]

AcceptOlder = Annotated[
    bool,
    typer.Option(
        "--accept-older",
        help="With latest: if something newer was stored that cannot be used, use what is before it.",
    ),
]

History = Annotated[
    str | None,
    typer.Option(
        "--history",
        metavar="ID",
        help="The binlog history with the point, if there are several; see `zsnapdb binlog status`.",
        show_default=False,
    ),
]

HANDOVER_KINDS = ("stopped", "look", "run", "promote", "replica")

RestoreFrom = Annotated[
    str,
    typer.Option(
        "--origin",
        "--from",
        metavar="ORIGIN",
        help="Where the volumes come from: repository, local (clones of the snapshots on this host), or auto (local if"
        " all are there).",
    ),
]
RestoreTarget = Annotated[
    str | None,
    typer.Option("--target", metavar="DATASET", help="The new dataset for the restored volumes.", show_default=False),
]
RestoreName = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="NAME",
        help="Without --target: restore to POOL/zsnapdb/restored/NAME.",
        show_default="INSTANCE",
    ),
]
HandoverName = Annotated[
    str,
    typer.Option(
        "--handover", metavar="HOW", help=f"How to hand over the restored server: {', '.join(HANDOVER_KINDS)}."
    ),
]
RestoredPort = Annotated[
    int | None,
    typer.Option(
        "--port",
        metavar="NUMBER",
        help="With run and replica: the port of the restored server.",
        show_default="a free port of the range for clones",
    ),
]
RestoredServerId = Annotated[
    int | None,
    typer.Option(
        "--server-id",
        metavar="NUMBER",
        help="The server_id of the restored server. With promote: the new one that you set in its option file.",
        show_default="random; with promote: none",
    ),
]
ReplicationAddress = Annotated[
    str | None,
    typer.Option("--source", metavar="HOST:PORT", help="With replica: the replication source.", show_default=False),
]
ReplicationUser = Annotated[
    str, typer.Option("--source-user", metavar="USER", help="With replica: the replication account on the source.")
]
ReplicationPasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--source-password-file",
        metavar="FILE",
        help="With replica: a file with the password of that account.",
        show_default=False,
    ),
]
LeaseFromNow = Annotated[
    str | None,
    typer.Option(
        "--ttl",
        metavar="DURATION",
        help="The new length of the lease from now, for example 2h.",
        show_default="clones.ttl",
    ),
]
ProtectionFromNow = Annotated[
    str,
    typer.Option(
        "--for",
        metavar="DURATION",
        help="Length of the protection from now, for example 2d; 0s ends the protection.",
        show_default=False,
    ),
]

CloneName = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The name of the clone.", show_default=False, autocompletion=completion.clones),
]


def clone_guids(settings: Settings, host: Host, name: str) -> tuple[str, ...]:
    """Return the GUIDs of the clones of that name. What finds them is loaded only if a command is to be repeated."""
    from zsnapdb.jobs.clone.once import guids

    return guids(settings, host, name)


SOURCE_HELP = (
    "What to clone: latest, live (a snapshot taken now), the id of a backup, a commit or a rewind, or @SNAPSHOT."
)


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
"""Variables that stand for no option of one command: of every command, and those that a hook is given."""
_LIKENESS = 0.85
"""How alike two names are when one may be meant by the other (difflib, ratio)."""


def name_variables(command: Any, prefix: str) -> None:
    """Let each option of a command be set by the variable that is named after it: `--wait` by `PREFIX_WAIT`.

    A name that follows from that of the option is not shown by help.
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
    """Return what the variables of a command's options begin with."""
    return f"{group_prefix}_{_word(command)}"


def _word(name: str) -> str:
    return name.replace("-", "_").upper()


def refuse_unknown(environment: Mapping[str, str], tree: Any) -> None:
    """Raise UsageError if a variable reads as one of ours and stands for no option: it would be ignored in silence.

    It reads so if it begins with the name of a command, or nearly has a name that is known. Others may be anybody's:
    orchestrators make names such as ZSNAPDB_VERSION. `tree` is the group of all commands, built when it is needed.
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
            hint = f"{meant} may be meant" if meant else "`zsnapdb COMMAND --help` lists the options"
            raise UsageError(f"the environment has {name}, and no option has this variable", hint=f"{hint}; unset it")


def nearest(name: str, known: Collection[str]) -> str | None:
    """Return the known name that may be meant, None if none is like it."""
    begin = len(PREFIX) + 1
    close = difflib.get_close_matches(name[begin:], [one[begin:] for one in known], 1, _LIKENESS)
    return f"{PREFIX}_{close[0]}" if close else None


def commands(group: Any, prefix: str = PREFIX) -> Iterator[Any]:
    """Yield every command below the group, its options with their variables."""
    for name, command in group.commands.items():
        here = command_prefix(prefix, name)
        if hasattr(command, "commands"):
            yield from commands(command, here)
        else:
            name_variables(command, here)
            yield command


def variables_of(command: Any) -> Iterator[str]:
    """Yield the variables of a command's options."""
    for parameter in command.params:
        if isinstance(parameter.envvar, str):
            yield parameter.envvar
