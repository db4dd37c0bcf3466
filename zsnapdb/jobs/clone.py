"""Clones: a writable copy of a local snapshot set with its own server. Its facts are user properties of its datasets."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from zsnapdb.config import Settings
from zsnapdb.errors import ConsistencyError, ExistsError, NotThere, PreflightError
from zsnapdb.jobs.common import BACKUP_PROPERTY, INSTANCE_PROPERTY, POSITION_PROPERTY, Instance, exclusive, find_set, now, undone_on_error
from zsnapdb.jobs.copies import PRIVATE_FOLDER, Copy, Layout, check_inside, check_recovered, lay_out, refuse_absolute
from zsnapdb.jobs.observe import KEPT_PROPERTIES, with_found_volumes
from zsnapdb.model import PROPERTY, Flavour, Position, SnapshotSet
from zsnapdb.mysql import server
from zsnapdb.mysql.paths import absolute_tablespaces, with_real_paths
from zsnapdb.mysql.probe import probe
from zsnapdb.planning.facts import ServerFacts
from zsnapdb.planning.identity import Access, PathMap
from zsnapdb.planning.ports import choose_port
from zsnapdb.zfs import datasets
from zsnapdb.zfs.mounts import mounted

CLONE_PROPERTY = f"{PROPERTY}:clone"
ROLE_PROPERTY = f"{PROPERTY}:role"
PORT_PROPERTY = f"{PROPERTY}:port"
CREATED_PROPERTY = f"{PROPERTY}:created"
FLAVOUR_PROPERTY = f"{PROPERTY}:flavour"
ROOT_PROPERTY = f"{PROPERTY}:root"

CLONES_LOCK = "clones"
LOCK_PATIENCE = 60.0

ACCOUNT = "zsnapdb_clone"
_NAME = re.compile(r"^[a-z0-9][a-z0-9_-]{0,31}$")
_FACTS = (
    CLONE_PROPERTY,
    ROLE_PROPERTY,
    INSTANCE_PROPERTY,
    BACKUP_PROPERTY,
    PORT_PROPERTY,
    CREATED_PROPERTY,
    FLAVOUR_PROPERTY,
    ROOT_PROPERTY,
    POSITION_PROPERTY,
)
_LOOK = (*_FACTS, "used")


@dataclass(frozen=True)
class CloneInfo:
    """A clone as its datasets tell it. `own_bytes` is what it alone occupies."""

    name: str
    instance: str
    backup_id: str
    flavour: Flavour
    port: int
    created: str
    position: str
    top: str
    datasets: tuple[str, ...]
    mount: Path
    own_bytes: int
    pid: int | None


@dataclass(frozen=True)
class Created:
    """A new clone that answers: how to reach it, and how long its parts took, in seconds."""

    info: CloneInfo
    user: str
    password: SecretStr
    position: Position
    clone_seconds: float
    start_seconds: float

    @property
    def dsn(self) -> str:
        """A URL with the password in it: for the person who asked, not for logs."""
        return f"mysql://{self.user}:{self.password.get_secret_value()}@127.0.0.1:{self.info.port}/"


def home(settings: Settings, pool: str) -> str:
    """Return the dataset all clones in the pool live under: configured, or zsnapdb/clones. PreflightError if it is configured elsewhere."""
    chosen = settings.clones.dataset or f"{pool}/zsnapdb/clones"
    if chosen.split("/", 1)[0] != pool:
        raise PreflightError(f"clones.dataset {chosen} is not in the pool {pool} of the instance", hint="a ZFS clone lives in the pool of its snapshot")
    return chosen


def listing(settings: Settings) -> list[CloneInfo]:
    """Return the clones on this host, oldest first, whether their instance is still configured or not. Only datasets marked by us, locally, count."""
    homes = [settings.clones.dataset] if settings.clones.dataset else [f"{pool}/zsnapdb/clones" for pool in datasets.pools()]
    found = {info.top: info for top in homes if datasets.exists(top) for info in _below(top)}
    return sorted(found.values(), key=lambda info: info.created)


def _below(home_dataset: str) -> Iterator[CloneInfo]:
    groups: dict[str, dict[str, dict[str, datasets.Property]]] = {}
    for dataset, properties in datasets.children(home_dataset, _LOOK).items():
        if properties[CLONE_PROPERTY].is_local:
            groups.setdefault(properties[CLONE_PROPERTY].value, {})[dataset] = properties
    for name, members in groups.items():
        top = min(members, key=len)
        facts = members[top]
        if not facts[PORT_PROPERTY].is_local:
            continue
        mount = Path(facts[ROOT_PROPERTY].value)
        flavour = Flavour(facts[FLAVOUR_PROPERTY].value)
        yield CloneInfo(
            name=name,
            instance=facts[INSTANCE_PROPERTY].value,
            backup_id=facts[BACKUP_PROPERTY].value,
            flavour=flavour,
            port=int(facts[PORT_PROPERTY].value),
            created=facts[CREATED_PROPERTY].value,
            position=facts[POSITION_PROPERTY].value,
            top=top,
            datasets=tuple(sorted(members, key=len)),
            mount=mount,
            own_bytes=int(facts["used"].value),
            pid=server.ServerProcess(mount / PRIVATE_FOLDER).pid(),
        )


def find(settings: Settings, name: str) -> CloneInfo:
    """Return the clone of that name; NotThere names those there are."""
    known = listing(settings)
    for info in known:
        if info.name == name:
            return info
    raise NotThere(f"there is no clone {name!r}", hint=f"known: {', '.join(i.name for i in known) or 'none'}")


@dataclass(frozen=True)
class ClonePlan:
    """What making a clone does: from which snapshot set, into which datasets, on which port."""

    name: str
    facts: ServerFacts
    chosen: SnapshotSet
    layout: Layout
    copy: Copy
    port: int


def plan(settings: Settings, instance: Instance, wanted: str, name: str | None) -> ClonePlan:
    """Return what `create` would do; changes nothing. Refuses what would fail: a name or folder taken, no port, no server program."""
    with instance.session() as session:
        facts = with_real_paths(probe(session))
    instance = with_found_volumes(instance, facts)
    refuse_absolute(absolute_tablespaces(facts))
    chosen = find_set(instance, wanted)
    name = name or f"{instance.name}-{secrets.token_hex(3)}"
    if not _NAME.match(name):
        raise PreflightError(f"clone name {name!r}", hint="small letters, digits, - and _, at most 32")
    server.find_binary(instance.settings.server.binary, facts.flavour)
    server.account(instance.settings.server.user)
    pool = next(iter(instance.volumes.values())).split("/", 1)[0]
    top = f"{home(settings, pool)}/{name}"
    if datasets.exists(top):
        raise ExistsError(f"the clone {name} exists: {top}", hint="name another, or `zsnapdb clone destroy` it")
    port = choose_port(settings.clones.first_port, settings.clones.last_port, {info.port for info in listing(settings)}, _port_is_free)
    source = {role: (dataset, _mountpoint(dataset)) for role, dataset in instance.volumes.items()}
    planned = lay_out(source, top, str(settings.clones.mount_root / name))
    root = settings.clones.mount_root / name
    if root.exists() and any(root.iterdir()):
        raise ExistsError(f"{root}, where the clone would be mounted, is not empty", hint="name another, or empty the folder")
    copy = Copy(
        facts.flavour,
        facts.variables,
        PathMap(tuple((point, planned.mountpoints[role]) for role, (_, point) in source.items())),
        root,
        instance.settings.server,
    )
    copy.render(copy.identity(server_id=1, port=port, access=Access.ACCOUNTS))
    return ClonePlan(name, facts, chosen, planned, copy, port)


def create(settings: Settings, instance: Instance, wanted: str, name: str | None) -> Created:
    """Make a clone of the local snapshot set `wanted` (a backup id or latest) and start its server.

    Afterwards it answers on a port of its own with a fresh account, shares neither identity, path nor replication with
    its source, and stands at exactly the recorded position; or it is gone again and the error says why.
    """
    # Under the lock two runs never take the same name or port; the slow start is outside it.
    with exclusive(CLONES_LOCK, doing="making or destroying a clone", patience=LOCK_PATIENCE):
        planned = plan(settings, instance, wanted, name)
        began = time.monotonic()
        with undone_on_error(lambda: _destroy_marked(planned)):
            _clone_datasets(instance, planned)
    cloned = time.monotonic()
    facts, copy = planned.facts, planned.copy
    with undone_on_error(lambda: _remove_failed(planned)):
        position = copy.recorded_position(has_gtids=facts.has_gtids)
        datasets.set_properties(planned.layout.top, {POSITION_PROPERTY: position.describe()[:4000]})
        password = _start(copy, facts, position, planned.port)
    return Created(find(settings, planned.name), ACCOUNT, password, position, cloned - began, time.monotonic() - cloned)


def destroy(settings: Settings, name: str) -> CloneInfo:
    """Stop the clone's server and destroy exactly its datasets. Each must carry its name, set locally, or nothing is destroyed."""
    with exclusive(CLONES_LOCK, doing="making or destroying a clone", patience=LOCK_PATIENCE):
        return _destroy(find(settings, name), name)


def _destroy(info: CloneInfo, name: str) -> CloneInfo:
    for dataset in info.datasets:
        found = datasets.properties(dataset, [CLONE_PROPERTY])[CLONE_PROPERTY]
        if not (found.is_local and found.value == name):
            raise PreflightError(f"{dataset} does not carry the mark of clone {name}", hint="it is not ours to destroy; look at `zfs get all`")
    server.ServerProcess(info.mount / PRIVATE_FOLDER).kill()
    for dataset in reversed(info.datasets):
        datasets.unmount(dataset)
        datasets.destroy(dataset)
    _remove_folders(info.mount)
    return info


def _remove_folders(root: Path) -> None:
    """Remove the private folder, where it lies beside the datasets and not in one, and the folders they were mounted at."""
    private = root / PRIVATE_FOLDER
    if private.is_dir() and not os.path.ismount(root):
        shutil.rmtree(private, ignore_errors=True)
    for folder in (*(root.iterdir() if root.is_dir() else ()), root):
        # Whatever is not an empty folder stays, and is nobody's loss.
        with contextlib.suppress(OSError):
            folder.rmdir()


def _mountpoint(dataset: str) -> str:
    for entry in reversed(mounted()):
        if entry.source == dataset and entry.fstype == "zfs" and not entry.is_bind:
            return entry.path
    raise PreflightError(f"dataset {dataset} is not mounted", hint="a clone needs to know the paths its source uses: `zfs mount`")


def _port_is_free(port: int) -> bool:
    with socket.socket() as probe_socket:
        try:
            probe_socket.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _clone_datasets(instance: Instance, plan: ClonePlan) -> None:
    """Clone every volume, outermost first, each marked in the command that makes it."""
    planned, name = plan.layout, plan.name
    facts_of_clone = {
        CLONE_PROPERTY: name,
        INSTANCE_PROPERTY: instance.name,
        BACKUP_PROPERTY: plan.chosen.backup_id,
        PORT_PROPERTY: str(plan.port),
        CREATED_PROPERTY: f"{now():%Y-%m-%dT%H:%M:%SZ}",
        FLAVOUR_PROPERTY: plan.facts.flavour.value,
        ROOT_PROPERTY: str(plan.copy.root),
    }
    parent = planned.top.rpartition("/")[0]
    if not datasets.exists(parent):
        datasets.create(parent, {"mountpoint": "none", "canmount": "off"})
    if planned.top not in planned.datasets.values():
        datasets.create(planned.top, {"mountpoint": "none", "canmount": "off", **facts_of_clone})
    for role, dataset in sorted(planned.datasets.items(), key=lambda item: len(item[1])):
        snapshot = plan.chosen.snapshots[role]
        tuned = datasets.properties(snapshot.dataset, KEPT_PROPERTIES)
        options = {key: found.value for key, found in tuned.items() if found.value != datasets.UNSET}
        options |= {"mountpoint": planned.mountpoints[role], "canmount": "on", ROLE_PROPERTY: role}
        options |= facts_of_clone if dataset == planned.top else {CLONE_PROPERTY: name}
        datasets.clone(snapshot.full_name, dataset, options)


def _start(copy: Copy, facts: ServerFacts, position: Position, port: int) -> SecretStr:
    """Start the clone's server under a new identity, check that it is one, and return the password of its account."""
    copy.make_private()
    server.remove_identity(copy.datadir)
    password = SecretStr(secrets.token_urlsafe(18) + "-aA9")
    init_file = copy.folder / "init.sql"
    server.write_private(init_file, _account_sql(password), copy.settings.user)
    server_id = secrets.randbelow(2**31) + 2**31 - 1
    identity = copy.identity(server_id=server_id, port=port, access=Access.ACCOUNTS, init_file=str(init_file))
    with copy.start(identity, ACCOUNT, password) as session:
        found, _ = check_recovered(session, position, facts.gtid_purged)
        _check_identity(found, facts, copy, server_id, port)
    init_file.unlink()
    copy.write_option_file(copy.identity(server_id=server_id, port=port, access=Access.ACCOUNTS))
    credentials = f"[client]\nuser={ACCOUNT}\npassword={password.get_secret_value()}\nhost=127.0.0.1\nport={port}\n"
    server.write_private(copy.folder / "client.cnf", credentials, copy.settings.user)
    return password


def _account_sql(password: SecretStr) -> str:
    """Return the statements that make the clone's account, outside its binlog, so that its GTIDs stay the source's."""
    secret = password.get_secret_value()
    lines = ["SET SESSION sql_log_bin = 0;"]
    for host in ("localhost", "127.0.0.1"):
        lines += [
            f"DROP USER IF EXISTS '{ACCOUNT}'@'{host}';",
            f"CREATE USER '{ACCOUNT}'@'{host}' IDENTIFIED BY '{secret}';",
            f"GRANT ALL PRIVILEGES ON *.* TO '{ACCOUNT}'@'{host}' WITH GRANT OPTION;",
        ]
    return "\n".join(lines) + "\n"


def _check_identity(found: ServerFacts, source: ServerFacts, copy: Copy, server_id: int, port: int) -> None:
    """Raise ConsistencyError unless the started server shares nothing with its source and nothing in it acts by itself."""
    wrong = []
    if found.server_uuid is not None and found.server_uuid == source.server_uuid:
        wrong.append(f"server_uuid is the source's, {found.server_uuid}")
    if found.server_id != server_id or found.server_id == source.server_id:
        wrong.append(f"server_id is {found.server_id}, not {server_id}")
    if int(found.variables["port"]) != port:
        wrong.append(f"port is {found.variables['port']}, not {port}")
    if found.variables["event_scheduler"].upper() not in ("OFF", "DISABLED"):
        wrong.append(f"event_scheduler is {found.variables['event_scheduler']}")
    if any(channel.receiving or channel.applying for channel in found.channels):
        wrong.append("replication is running")
    if wrong:
        raise ConsistencyError("the clone's server is not separate from its source: " + "; ".join(wrong), hint="it was stopped and removed; report this")
    check_inside(found, copy.root)


def _remove_failed(plan: ClonePlan) -> None:
    """Leave nothing of a clone that did not come up: its server is ended, its datasets, each proved ours, are destroyed."""
    with exclusive(CLONES_LOCK, doing="making or destroying a clone", patience=LOCK_PATIENCE):
        plan.copy.process().kill()
        _destroy_marked(plan)


def _destroy_marked(plan: ClonePlan) -> None:
    for dataset in sorted({plan.layout.top, *plan.layout.datasets.values()}, key=len, reverse=True):
        if datasets.exists(dataset) and datasets.properties(dataset, [CLONE_PROPERTY])[CLONE_PROPERTY] == datasets.Property(plan.name, "local"):
            datasets.unmount(dataset)
            datasets.destroy(dataset)
    _remove_folders(plan.copy.root)
