"""The layout of a server on ZFS: its datasets with their properties, and the settings of the server for it. Pure.

Sources: the two-dataset layout of Percona's talk "MySQL and ZFS" (2019); OpenZFS documentation, "Workload Tuning";
zfsprops(7). Every property is one that a rule of the doctor finds good (`planning/advice`).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zsnapdb.base.model import Flavour
from zsnapdb.planning.family import family
from zsnapdb.planning.setup.facts import FoundServer

_KNOWS_ZSTD = (2, 0)
_HONOURS_DIRECT = (2, 3)
MOUNT = "/var/lib/mysql"
_COMMON = {"atime": "off", "xattr": "sa", "primarycache": "all", "logbias": "latency"}


@dataclass(frozen=True)
class NewDataset:
    """A dataset to be created, with its properties."""

    name: str
    properties: Mapping[str, str]


@dataclass(frozen=True)
class KeptLogs:
    """What a server that is moved keeps of its logs: the name of its binlogs, "" if it wrote none so far.

    Relay logs that are there stay in the data directory: the server has their paths relative to it.
    """

    binlog: str
    has_relay_logs: bool


@dataclass(frozen=True)
class ServerLayout:
    """The datasets of a server, outermost first, and where its option file says that its files lie."""

    datasets: tuple[NewDataset, ...]
    datadir: str
    option_file: str


def two_datasets(
    name: str,
    flavour: Flavour,
    page_size: int,
    release: tuple[int, ...],
    mount: str = MOUNT,
    kept: KeptLogs | None = None,
) -> ServerLayout:
    """Return the layout with the dataset `name` for logs and one below it for pages. `kept`: of a moved server."""
    parent = {
        **_COMMON,
        "recordsize": "128K",
        "compression": "zstd" if release >= _KNOWS_ZSTD else "lz4",
        "mountpoint": mount,
    }
    data = {**_COMMON, "recordsize": f"{page_size >> 10}K", "compression": "lz4"}
    if release >= _HONOURS_DIRECT:
        # The ARC is of use to clones, sends and reads that miss the buffer pool.
        data["direct"] = "disabled"
    datasets = (NewDataset(name, parent), NewDataset(f"{name}/data", data))
    return ServerLayout(datasets, f"{mount}/data", option_file(flavour, mount, kept))


def option_file(flavour: Flavour, mount: str = MOUNT, kept: KeptLogs | None = None) -> str:
    """Return the fragment of the server's option file for the layout. Doublewrite stays as it is.

    A server that is moved and wrote binlogs keeps their format and its GTID settings: replicas may depend on them.
    """
    facts = family(flavour)
    binlog = f"{mount}/{kept.binlog if kept is not None and kept.binlog else 'binlog'}"
    is_first = kept is None or not kept.binlog
    lines = {
        "datadir": f"{mount}/data",
        "innodb_log_group_home_dir": mount,
        **({"aria_log_dir_path": mount} if facts.has_aria else {}),
        "log_bin": binlog,
        "log_bin_index": f"{binlog}.index",
        **({} if kept is not None and kept.has_relay_logs else {"relay_log": f"{mount}/relay"}),
        "innodb_use_native_aio": "OFF",
        "sync_binlog": "1",
        # A server that does not know it goes on (refman 8.4, "Program Option Modifiers").
        "loose_binlog_row_metadata": "FULL",
        **(_first(flavour) if is_first else {}),
    }
    body = "".join(f"{name} = {value}\n" for name, value in lines.items())
    head = (
        "# The server's files on ZFS: logs in the outer dataset, pages in the inner one. Written by `zsnapdb setup`.\n"
    )
    return f"{head}[{facts.option_section}]\n{body}"


def _first(flavour: Flavour) -> dict[str, str]:
    """Return the options for a server that wrote no binlogs so far."""
    strict = family(flavour).numbers_always
    gtids = {"gtid_strict_mode": "ON"} if strict else {"gtid_mode": "ON", "enforce_gtid_consistency": "ON"}
    return {"binlog_format": "ROW", **gtids}


BINLOG_FRAGMENT = "zz-zsnapdb-binlog.cnf"


def binlog_options(flavour: Flavour) -> str:
    """Return the option file that turns on the binlogs of a server which writes none. They stay for a week.

    MariaDB removes no binlogs by default (MariaDB manual, "expire_logs_days").
    """
    facts = family(flavour)
    # A MariaDB that is a replica logs nothing of its source otherwise ("log_slave_updates").
    expiry = (
        {"expire_logs_days": "7", "log_slave_updates": "ON"}
        if facts.numbers_always
        else {"binlog_expire_logs_seconds": "604800"}
    )
    lines = {"log_bin": "binlog", "sync_binlog": "1", "loose_binlog_row_metadata": "FULL", **expiry, **_first(flavour)}
    body = "".join(f"{name} = {value}\n" for name, value in lines.items())
    head = "# Binlogs, to restore any moment between backups. Written by `zsnapdb setup`.\n"
    return f"{head}[{facts.option_section}]\n{body}"


UNIT = "zsnapdb-agent.service"
UNIT_FILE = f"/etc/systemd/system/{UNIT}"
_START, _STOPPED = "ExecStart=", "ExecStopPost=-"
PACKAGED_UNITS = ("/usr/lib/systemd/system", "/lib/systemd/system")
"""Where packages put units (systemd.unit(5))."""
CRON_FOLDER = "/etc/cron.d"
_CRON_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The PATH of cron has no folder with `zfs` (crontab(5), "PATH=/usr/bin:/bin")."""
_CRON_JOBS = (
    ("*/5 * * * *", ("binlog", "archive", "INSTANCE", "--once")),
    ("* * * * *", ("snapshot", "INSTANCE")),
    ("15 1 * * *", ("backup", "INSTANCE")),
    ("45 3 * * *", ("prune", "INSTANCE")),
    ("30 4 * * 6", ("verify", "INSTANCE")),
    ("30 5 * * 0", ("drill", "INSTANCE")),
    ("*/15 * * * *", ("reap",)),
    ("51 5 * * *", ("doctor", "INSTANCE")),
    ("23 * * * *", ("status", "--all", "--notify")),
)


def unit_text(example: str, program: Sequence[str], configuration: str) -> str:
    """Return the unit that runs this program with this configuration; all else is that of the example.

    `program` are the words that start zsnapdb; the first one is an absolute path.
    """
    start, with_it = _START + _words((*program, "agent")), _words(("--config", configuration))
    # systemd replaces %N by the name of the unit.
    stopped = f"{_STOPPED}{_words((*program, 'notify', 'failed'))} %N"
    return "\n".join(
        f"{command} {with_it}" if (command := _command(line, start, stopped)) else line for line in example.split("\n")
    )


def configuration_in(unit: str) -> str | None:
    """Return which configuration the agent of a unit reads; None if it names none."""
    for line in unit.split("\n"):
        if not line.startswith(_START):
            continue
        try:
            words = shlex.split(line.removeprefix(_START))
        except ValueError:
            return None
        if "--config" in words[:-1]:
            return words[words.index("--config") + 1].replace("%%", "%").replace("$$", "$")
    return None


def _command(line: str, start: str, stopped: str) -> str:
    return start if line.startswith(_START) else stopped if line.startswith(_STOPPED) else ""


def _words(words: Sequence[str]) -> str:
    return " ".join(_word(word) for word in words)


def cron_file(instance: str) -> str:
    """Return the file for the lines of this instance. cron leaves out names with other characters (cron(8))."""
    return f"{CRON_FOLDER}/zsnapdb-{re.sub('[^A-Za-z0-9_-]', '_', instance)}"


def cron_text(program: Sequence[str], instance: str, configuration: str) -> str:
    """Return the lines for a file of /etc/cron.d (crontab(5)): every job of this instance, with absolute paths."""
    lines = ["# Written by `zsnapdb setup`: cron runs all jobs. It mails errors and results that need a look to root."]
    lines += ["SHELL=/bin/sh", f"PATH={_CRON_PATH}"]
    for when, words in _CRON_JOBS:
        named = [instance if word == "INSTANCE" else word for word in words]
        command = shlex.join([*program, *named, "--config", configuration]).replace("%", "\\%")
        lines.append(f"{when} root {command} >/dev/null")
    return "\n".join(lines) + "\n"


def _word(text: str) -> str:
    """Return a word of a command line (systemd.service(5), "Command lines": quotes, specifiers, variables)."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


DEFAULT_USER = "zsnapdb"
SECRET_PLACE = "%s"  # noqa: S105 - a place, no password
"""Stands for the password in a statement."""
_CREATE = re.compile(r"CREATE USER (?P<name>[^ ]+) IDENTIFIED (?P<how>.+)")


@dataclass(frozen=True)
class AccountPlan:
    """The account, the statements that make it, and the file of its password (None: it logs in by the socket alone).

    Each statement can run twice. One that has SECRET_PLACE in it needs the password.
    """

    user: str
    statements: tuple[str, ...]
    password_file: str | None = None

    @property
    def shown(self) -> tuple[str, ...]:
        """The statements for people: they name the file in place of the password."""
        return tuple(
            f"{text.replace(SECRET_PLACE, f'<the password in {self.password_file}>')};" for text in self.statements
        )


def user_of(server: FoundServer) -> str:
    """Return the account that zsnapdb uses on the server: root where every server lets root in by its socket."""
    return "root" if family(server.flavour).root_uses_socket else DEFAULT_USER


def account_plan(server: FoundServer, grants: str, password_file: str) -> AccountPlan | None:
    """Return the account to be made with the statements of `grants`, None if the account is there on every server.

    The account has a password if root may look into the server and sees that nobody can log in by the socket alone.
    """
    user = user_of(server)
    if user == "root":
        return None
    needs_password = server.lets_root_in and not server.has_socket_login
    statements = tuple(_repeatable(text, needs_password) for text in _statements(grants))
    return AccountPlan(user, statements, password_file if needs_password else None)


def _statements(text: str) -> list[str]:
    """Return the statements of a text in which comments have lines of their own."""
    lines = [line for line in text.split("\n") if not line.startswith("--")]
    return [statement for part in "\n".join(lines).split(";") if (statement := " ".join(part.split()))]


def _repeatable(statement: str, needs_password: bool) -> str:
    match = _CREATE.fullmatch(statement)
    if match is None:
        return statement
    how = f"BY {SECRET_PLACE}" if needs_password else match["how"]
    return f"CREATE USER IF NOT EXISTS {match['name']} IDENTIFIED {how}"
