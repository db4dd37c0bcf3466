"""Sets up a host: finds its servers and pools, plans, and writes the identity and the configuration.

What changes the server or the pool is left to the person: the plan has the commands.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from zsnapdb import text_files
from zsnapdb.config import DEFAULT_PATH, parse
from zsnapdb.errors import PreflightError, ServerError
from zsnapdb.jobs.repository import keys
from zsnapdb.mysql import discovery
from zsnapdb.mysql.discovery import ServerProcess
from zsnapdb.mysql.session import Address, greeting
from zsnapdb.planning.backup.placement import MountedFilesystem, mount_of
from zsnapdb.planning.family import flavour_in
from zsnapdb.planning.setup.facts import FoundPool, FoundServer, SetupAnswers, SetupFacts
from zsnapdb.planning.setup.plan import SetupPlan, plan_setup
from zsnapdb.zfs import datasets, version
from zsnapdb.zfs.mounts import mounted

__all__ = ["SetupAnswers", "SetupResult", "gather", "plan", "setup"]

_MODE = 0o640


@dataclass(frozen=True)
class SetupResult:
    """The plan of which the configuration and the identity were written, and the public part of the identity."""

    plan: SetupPlan
    recipient: str | None


def plan(answers: SetupAnswers, configuration: Path | None = None) -> SetupPlan:
    """Return the plan for this host. Changes nothing. PreflightError if not root asks: it would see no sockets."""
    if os.geteuid() != 0:
        raise PreflightError("setup looks at the sockets of every server", hint="run it as root")
    return plan_setup(gather(configuration or DEFAULT_PATH), answers)


def setup(answers: SetupAnswers, configuration: Path | None = None) -> SetupResult:
    """Write the identity and the configuration of the plan. PreflightError with the refusals of the plan."""
    made = plan(answers, configuration)
    if made.refusals:
        raise PreflightError("; ".join(made.refusals), hint="answer with --socket, --pool or --config")
    file = Path(made.configuration)
    file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    parse(made.text(None), str(file))
    recipient = None
    if made.identity is not None:
        (recipient,) = keys.generate(Path(made.identity), None).recipients
    _write_configuration(file, made.text(recipient))
    return SetupResult(made, recipient)


def _write_configuration(file: Path, text: str) -> None:
    """Write the configuration beside its place, and put it there. A file with nothing but comments is replaced."""
    new = file.with_name(f"{file.name}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)
    with open(descriptor, "w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    os.replace(new, file)


def gather(configuration: Path) -> SetupFacts:
    """Return what is found on this host: servers, pools, systemd, the configuration."""
    mounts = [MountedFilesystem(entry.path, entry.fstype, entry.source, entry.is_bind) for entry in mounted()]
    pools = datasets.pools()
    return SetupFacts(
        servers=tuple(_server(process, mounts) for process in discovery.server_processes()),
        pools=tuple(FoundPool(name, datasets.available(name)) for name in pools),
        zfs_release=version.kernel_release(),
        has_systemd=Path("/run/systemd/system").is_dir(),
        configuration=str(configuration),
        is_configured=_has_settings(configuration),
    )


def _has_settings(configuration: Path) -> bool:
    """Whether the file has more than comments. The configuration of a package has none."""
    if not configuration.exists():
        return False
    text = text_files.read_text(configuration, "the configuration", "run setup as root")
    return any(line.strip() and not line.lstrip().startswith("#") for line in text.split("\n"))


def _server(process: ServerProcess, mounts: list[MountedFilesystem]) -> FoundServer:
    mount = mount_of(process.datadir, mounts)
    flavour, said, page = flavour_in(process.program), None, None
    if process.sockets:
        try:
            said = greeting(Address("root", Path(process.sockets[0])))
            flavour = flavour_in(said, process.program)
            page = discovery.page_size(Path(process.sockets[0]))
        except ServerError:
            said = None
    is_zfs = mount is not None and mount.fstype == "zfs" and not mount.is_bind
    return FoundServer(
        pid=process.pid,
        account=process.account,
        program=process.program,
        sockets=process.sockets,
        datadir=process.datadir,
        flavour=flavour,
        filesystem=mount.fstype if mount is not None else "unknown",
        dataset=mount.source if mount is not None and is_zfs else "",
        version=said,
        page_size=page,
        used=0 if is_zfs else _size(Path(process.datadir)),
    )


def _size(folder: Path) -> int:
    """Return the size of the files below a folder in bytes. Files that go meanwhile do not count."""
    total = 0
    for parent, _, files in os.walk(folder, onerror=None, followlinks=False):
        for name in files:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except OSError:
                continue
    return total
