"""Plans the layout of a server on ZFS: its datasets with their properties, and the matching server settings. Pure.

Sources: the two-dataset layout of Percona's talk "MySQL and ZFS" (2019); OpenZFS documentation, "Workload Tuning";
zfsprops(7). The doctor's rules (`planning/advice`) accept every property of the layout.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from zsnapdb.base.domain_types import Flavour
from zsnapdb.config.settings import DEFAULT_PATH
from zsnapdb.planning.server_family import family
from zsnapdb.planning.setup.facts import FoundServer

_KNOWS_ZSTD = (2, 0)
_HONOURS_DIRECT = (2, 3)
MOUNT = "/var/lib/mysql"
_COMMON = {"atime": "off", "xattr": "sa", "primarycache": "all", "logbias": "latency"}


@dataclass(frozen=True)
class NewDataset:
    """A dataset that setup creates, with its properties."""

    name: str
    properties: Mapping[str, str]


@dataclass(frozen=True)
class KeptLogs:
    """The existing logs of a moved server. The name of its binlogs is empty if the server writes none.

    Existing relay logs stay in the data directory, because the server has recorded their relative paths.
    """

    binlog: str
    has_relay_logs: bool


@dataclass(frozen=True)
class ServerLayout:
    """The datasets of a server, outermost first, and the paths of its files in the option file."""

    datasets: tuple[NewDataset, ...]
    datadir: str
    option_file: str


def dataset_pair(
    name: str,
    flavour: Flavour,
    page_size: int,
    release: tuple[int, ...],
    mount: str = MOUNT,
    kept: KeptLogs | None = None,
) -> ServerLayout:
    """Return the layout with the dataset `name` for logs and a child dataset for pages.

    The argument `kept` describes the existing logs of a moved server.
    """
    parent = {
        **_COMMON,
        "recordsize": "128K",
        "compression": "zstd" if release >= _KNOWS_ZSTD else "lz4",
        "mountpoint": mount,
    }
    data = {**_COMMON, "recordsize": f"{page_size >> 10}K", "compression": "lz4"}
    if release >= _HONOURS_DIRECT:
        # Keep the ARC in use, because clones, sends, and reads that miss the buffer pool need it.
        data["direct"] = "disabled"
    datasets = (NewDataset(name, parent), NewDataset(f"{name}/data", data))
    return ServerLayout(datasets, f"{mount}/data", option_file(flavour, mount, kept))


def option_file(flavour: Flavour, mount: str = MOUNT, kept: KeptLogs | None = None) -> str:
    """Return the fragment of the server's option file for the layout. The fragment does not change doublewrite.

    A moved server with binlogs keeps its binlog format and GTID settings, because replicas may depend on them.
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
        # A server that does not know the option ignores it (refman 8.4, "Program Option Modifiers").
        "loose_binlog_row_metadata": "FULL",
        **(_first(flavour) if is_first else {}),
    }
    body = "".join(f"{name} = {value}\n" for name, value in lines.items())
    head = (
        "# The server's files on ZFS: logs in the outer dataset, pages in the inner one. Written by `zsnapdb setup`.\n"
    )
    return f"{head}[{facts.option_section}]\n{body}"


def _first(flavour: Flavour) -> dict[str, str]:
    """Return the binlog options for a server that has not written binlogs before."""
    strict = family(flavour).numbers_always
    gtids = {"gtid_strict_mode": "ON"} if strict else {"gtid_mode": "ON", "enforce_gtid_consistency": "ON"}
    return {"binlog_format": "ROW", **gtids}


BINLOG_FRAGMENT = "zz-zsnapdb-binlog.cnf"


def binlog_options(flavour: Flavour) -> str:
    """Return the option file that turns on binlogs, which the server then keeps for a week.

    MariaDB removes no binlogs by default (MariaDB manual, "expire_logs_days").
    """
    facts = family(flavour)
    # Without this option, a MariaDB replica does not log the changes of its source ("log_slave_updates").
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
_START, _STOPPED, _RELOADED = "ExecStart=", "ExecStopPost=-", "ExecReload=/usr/bin/env zsnapdb "
PACKAGED_UNITS = ("/usr/lib/systemd/system", "/lib/systemd/system")
"""The folders of packaged units (systemd.unit(5))."""
CRON_FOLDER = "/etc/cron.d"
_CRON_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The PATH for cron jobs, because cron's default contains no folder with `zfs` (crontab(5), "PATH=/usr/bin:/bin")."""
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
    """Return the text of the example unit, changed to run this program with this configuration.

    The argument `program` contains the command line that starts zsnapdb, with an absolute path first.
    """
    start, with_it = _START + _command_line((*program, "agent")), _command_line(("--config", configuration))
    # systemd replaces %N with the name of the unit.
    stopped = f"{_STOPPED}{_command_line((*program, 'notify', 'failed'))} %N"
    reloaded = f"ExecReload={_command_line((*program, 'config', 'check'))}"
    commands = {_START: start, _STOPPED: stopped, _RELOADED: reloaded}
    return "\n".join(
        next((f"{command} {with_it}" for begin, command in commands.items() if line.startswith(begin)), line)
        for line in example.split("\n")
    )


def configuration_in(unit: str) -> str | None:
    """Return the path of the configuration in the command line of an agent's unit; None if it contains none."""
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


def _command_line(words: Sequence[str]) -> str:
    return " ".join(_word(word) for word in words)


def cron_file(instance: str) -> str:
    """Return the cron file of this instance.

    Characters that cron does not accept in file names are replaced (cron(8)).
    """
    return f"{CRON_FOLDER}/zsnapdb-{re.sub('[^A-Za-z0-9_-]', '_', instance)}"


def cron_text(program: Sequence[str], instance: str, configuration: str) -> str:
    """Return the text of a file in /etc/cron.d (crontab(5)) with every job of this instance and absolute paths."""
    lines = ["# Written by `zsnapdb setup`: cron runs all jobs. It mails errors and results that need a look to root."]
    lines += ["SHELL=/bin/sh", f"PATH={_CRON_PATH}"]
    for when, words in _CRON_JOBS:
        named = [instance if word == "INSTANCE" else word for word in words]
        command = shlex.join([*program, *named, "--config", configuration]).replace("%", "\\%")
        lines.append(f"{when} root {command} >/dev/null")
    return "\n".join(lines) + "\n"


def cron_jobs(instance: str) -> tuple[str, ...]:
    """Return the command of each line in a cron file of setup, such as `prune main`."""
    return tuple(" ".join(instance if word == "INSTANCE" else word for word in words) for _, words in _CRON_JOBS)


def configuration_of_cron(text: str) -> str | None:
    """Return the configuration that the jobs in a cron file of setup read; None if no line names one."""
    jobs = (re.fullmatch(r"[^#].* --config (.+) >/dev/null", line) for line in text.split("\n"))
    named = next((job for job in jobs if job is not None), None)
    try:
        return shlex.split(named[1].replace("\\%", "%"))[0] if named is not None else None
    except ValueError:
        return None


def merged_cron(existing: str | None, text: str, instance: str, written: Collection[tuple[str, ...]]) -> str:
    """Return the existing cron file with the jobs that it lacks. All of its lines stay.

    A job in `written` is not added again, because a user removed its line.
    """
    if existing is None:
        return text
    lacking = [job for job in cron_jobs(instance) if f" {job} " not in existing and ("cron", job) not in written]
    new = [line for line in text.split("\n") if any(f" {job} " in line for job in lacking)]
    return "\n".join((existing.rstrip("\n"), *new)) + "\n" if new else existing


def command_line(configuration: str, *words: str) -> str:
    """Return a zsnapdb command. It contains the path of the configuration unless this is the default."""
    config = () if configuration == str(DEFAULT_PATH) else ("--config", configuration)
    return shlex.join(("zsnapdb", *words, *config))


def _word(text: str) -> str:
    """Return an argument, quoted for the command line of a systemd unit.

    Source: systemd.service(5), "Command lines" (quotes, specifiers, variables).
    """
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


DEFAULT_USER = "zsnapdb"
SECRET_PLACE = "%s"  # noqa: S105 - a place, no password
"""The placeholder for the password in a statement."""
_CREATE = re.compile(r"CREATE USER (?P<name>[^ ]+) IDENTIFIED (?P<how>.+)")


@dataclass(frozen=True)
class AccountPlan:
    """The account, the statements that create it, and its password file (None if only the socket is used).

    Each statement can be executed repeatedly. In a statement with SECRET_PLACE, the password must be inserted.
    """

    user: str
    statements: tuple[str, ...]
    password_file: str | None = None

    @property
    def shown(self) -> tuple[str, ...]:
        """The statements for display, with the name of the password file instead of the password."""
        return tuple(
            f"{text.replace(SECRET_PLACE, f'<the password in {self.password_file}>')};" for text in self.statements
        )


def user_of(server: FoundServer) -> str:
    """Return zsnapdb's account on the server. It is root if root can log in by socket on every server of the family."""
    return "root" if family(server.flavour).root_uses_socket else DEFAULT_USER


def account_plan(server: FoundServer, grants: str, password_file: str) -> AccountPlan | None:
    """Return the account that setup creates with the statements in `grants`; None if every server has the account.

    The account gets a password if root can query the server and the server supports no socket login without one.
    """
    user = user_of(server)
    if user == "root":
        return None
    needs_password = server.lets_root_in and not server.has_socket_login
    statements = tuple(_repeatable(text, needs_password) for text in _statements(grants))
    return AccountPlan(user, statements, password_file if needs_password else None)


def _statements(text: str) -> list[str]:
    """Return the SQL statements in a text. Comments in the text must be on separate lines."""
    lines = [line for line in text.split("\n") if not line.startswith("--")]
    return [statement for part in "\n".join(lines).split(";") if (statement := " ".join(part.split()))]


def _repeatable(statement: str, needs_password: bool) -> str:
    match = _CREATE.fullmatch(statement)
    if match is None:
        return statement
    how = f"BY {SECRET_PLACE}" if needs_password else match["how"]
    return f"CREATE USER IF NOT EXISTS {match['name']} IDENTIFIED {how}"
