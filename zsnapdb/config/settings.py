"""The settings in zsnapdb.toml. An unknown key is an error, whose hint names the most similar known key."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, StrictBool, ValidationError, model_validator

from zsnapdb.base.errors import ConfigError, UsageError
from zsnapdb.base.files import password_in, read_text
from zsnapdb.base.patterns import RoleName, is_dataset
from zsnapdb.base.program_start import is_secret_name
from zsnapdb.base.quantities import WRITTEN, Seconds, Size
from zsnapdb.config.errors import every_error, explain, read_toml, unknown_names
from zsnapdb.config.instance import ControlSettings, DoctorSettings, ObjectiveSettings, VmSourceSettings
from zsnapdb.config.notifications import NotificationSettings
from zsnapdb.config.repository import KeepRules, KeepSettings, RepositorySettings
from zsnapdb.config.serve import ServeSettings
from zsnapdb.config.services import (
    AbsolutePath,
    AddressSettings,
    AgentSettings,
    CommandWords,
    ConfigSection,
    InstanceAgentSettings,
    MigrationSettings,
    PoolSettings,
    WorkerSettings,
)

DEFAULT_PATH = Path("/etc/zsnapdb/zsnapdb.toml")
_SETUP = "to write a configuration, run `zsnapdb setup s3://BUCKET/PREFIX` or `zsnapdb setup file:///FOLDER`"
_EXAMPLE = "`zsnapdb example zsnapdb.toml` prints an example that explains every key"


def _dataset(name: str) -> str:
    if not is_dataset(name):
        raise ValueError(f'{name!r} is not a dataset; write its name as `zfs list` prints it, such as "tank/mysql"')
    return name


Volumes = dict[RoleName, Annotated[str, AfterValidator(_dataset)]]


class LockSettings(ConfigSection):
    """The write lock during the snapshot."""

    strategy: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,31}$")] = "auto"
    """`auto`, or the name of a strategy in `mysql/locks`."""
    deadline: Annotated[Seconds, Field(gt=0, le=600)] = 5.0
    budget: Annotated[Seconds, Field(ge=0, le=86400)] = 60.0
    longest_statement: Annotated[Seconds, Field(gt=0, le=86400)] = 1.0
    kill: Literal["never", "select", "all"] = "never"
    stop_applier: StrictBool = False


class HookSettings(ConfigSection):
    """A user's script: when it runs, its command, its timeout, and the effect of its failure.

    `on_failure`: by default, a failing `done` hook causes a warning, and every other failing hook causes an error.
    """

    when: Literal["before", "locked", "after", "done"]
    run: Annotated[CommandWords, Field(min_length=1)]
    timeout: Annotated[Seconds, Field(gt=0, le=86400)] = 30.0
    on_failure: Literal["abort", "warn"] | None = None


class ServerSettings(ConfigSection):
    """How servers of this instance's version are started for restores and clones.

    The setting `binaries` maps series such as 10.11 or 8.4 to server programs. The setting `binary` is the program for
    all other series. Servers start only in a sandbox, unless `sandbox` is off. The setting `sandbox_reads` lists
    additional files and folders of the host that such a server may read.
    """

    binary: AbsolutePath | None = None
    binaries: dict[Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+$")], AbsolutePath] = Field({})
    programs: AbsolutePath | None = None
    user: str = "mysql"
    options: tuple[str, ...] = ()
    start_timeout: Annotated[Seconds, Field(gt=0)] = 120.0
    manager: Literal["auto", "detached", "systemd"] = "auto"
    memory: Annotated[Size, Field(ge=128 << 20)] | None = None
    processors: Annotated[float, Field(gt=0, le=1024)] | None = None
    nice: Annotated[int, Field(ge=0, le=19)] | None = None
    sandbox: Literal["required", "off"] = "required"
    sandbox_reads: tuple[AbsolutePath, ...] = ()


class ProbeSettings(ConfigSection):
    """A query to a restored server, and the expected value in the first column of the result's only row."""

    sql: Annotated[str, Field(min_length=1)]
    name: str | None = None
    expect: str | int | float | None = None
    at_least: int | float | None = None
    at_most: int | float | None = None

    @model_validator(mode="after")
    def _expects_something(self) -> ProbeSettings:
        bounds = (self.at_least, self.at_most)
        if (self.expect is None) == all(bound is None for bound in bounds):
            raise ValueError("give either expect, or at least one of at_least and at_most")
        return self


class DrillSettings(ConfigSection):
    """The location of the restored server in a drill, and the drill's checks.

    After the checks, the drill removes the server.

    The setting `sample` is the approximate number of bytes that the check of pages reads. The check of tables reads the
    same number of bytes. The setting `pages` says whether a drill on a host without innochecksum omits page checksums
    (`if-possible`) or is refused (`required`).
    """

    dataset: str | None = None
    sample: Annotated[Size, Field(ge=0)] = 1 << 30
    pages: Literal["required", "if-possible"] = "if-possible"
    check_timeout: Annotated[Seconds, Field(gt=0)] = 3600.0
    probe: tuple[ProbeSettings, ...] = ()


class DatasetKeySettings(ConfigSection):
    """The key of the instance's encrypted datasets. Datasets that are received from raw streams need it."""

    key_file: AbsolutePath | None = None
    """The file from which ZFS reads the key (keylocation=file:// in zfsprops(7))."""


class ChainSettings(ConfigSection):
    """Conditions under which the next backup is full, or an interrupted backup is continued. 0 means never."""

    full_every: Annotated[Seconds, Field(ge=0)] = 30 * 86400.0
    longest: Annotated[int, Field(ge=0, le=100_000)] = 0
    resume_within: Annotated[Seconds, Field(ge=0)] = 3 * 86400.0


class MaskingSettings(ConfigSection):
    """Masking of personal data in a clone before anyone can connect: SQL files (*.sql) and scripts, in order."""

    required: StrictBool = False
    run: tuple[Annotated[CommandWords, Field(min_length=1)], ...] = ()
    timeout: Annotated[Seconds, Field(gt=0, le=7 * 86400)] = 3600.0
    rebuild: Literal["changed", "all"] = "changed"
    keep_history: tuple[str, ...] = ()
    """Names (schema.table) of system-versioned tables whose history is kept. Masking must not change these tables."""
    canaries: tuple[Annotated[SecretStr, Field(min_length=6, max_length=200)], ...] = ()
    """Values that no file of a masked clone may contain."""

    @model_validator(mode="after")
    def _something_to_run(self) -> MaskingSettings:
        if self.required and not self.run:
            raise ValueError("masking is required, but run is empty; name an SQL file or a script")
        return self


OTHER_WRITERS_PAUSE = 600.0
"""The minimum number of seconds between two looks of an archiver for other writers. Each look costs requests."""


class BinlogSettings(ConfigSection):
    """How binlogs are archived, and when archived binlogs are removed from the server."""

    interval: Annotated[Seconds, Field(ge=1, le=86400)] = 10.0
    keep: Annotated[Seconds, Field(ge=0)] = 86400.0
    purge_files: Annotated[int, Field(ge=1, le=1000)] = 10
    read_within: Annotated[Seconds, Field(ge=0)] | None = None
    replicas: Annotated[int, Field(ge=0)] = 0
    backup_on_new_history: StrictBool = False


class InstanceSettings(ConfigSection):
    """A configured server: its connection, its datasets, and the repository of its backups.

    With `vm`, the instance is a virtual machine whose disks are the volumes. If `host` is also set, a backup locks the
    server inside the machine.
    """

    socket: AbsolutePath | None = None
    host: str | None = None
    port: Annotated[int, Field(gt=0, lt=65536)] = 3306
    user: str = "zsnapdb"
    password_file: AbsolutePath | None = None
    password_env: str | None = None
    tls: Literal["required", "preferred", "off"] | None = None
    """None means `preferred` for a socket or the loopback interface, and `required` for other addresses."""
    tls_ca: AbsolutePath | None = None
    tls_cert: AbsolutePath | None = None
    tls_key: AbsolutePath | None = None
    tls_verify: Literal["identity", "ca"] = "identity"
    allow_public_key: StrictBool = False
    volumes: Volumes | None = None
    vm: VmSourceSettings | None = None
    repository: str
    lock: LockSettings = LockSettings.model_construct()
    hooks: tuple[HookSettings, ...] = ()
    server: ServerSettings = ServerSettings.model_construct()
    control: ControlSettings = ControlSettings.model_construct()
    chain: ChainSettings = ChainSettings.model_construct()
    encryption: DatasetKeySettings = DatasetKeySettings.model_construct()
    masking: MaskingSettings = MaskingSettings.model_construct()
    pool: PoolSettings | None = None
    upgrade_queries: tuple[str, ...] = ()
    migration: MigrationSettings = MigrationSettings.model_construct()
    drill: DrillSettings = DrillSettings.model_construct()
    binlog: BinlogSettings = BinlogSettings.model_construct()
    keep: KeepSettings | None = None
    local: KeepRules = KeepRules.model_construct(within=7200.0, hourly=24)
    """Retention of the snapshot sets of `zsnapdb snapshot`."""
    objectives: ObjectiveSettings = ObjectiveSettings.model_construct()
    agent: InstanceAgentSettings = InstanceAgentSettings.model_construct()

    @model_validator(mode="after")
    def _one_way_to_reach(self) -> InstanceSettings:
        if self.vm is not None and (self.socket, self.volumes) != (None, None):
            raise ValueError("an instance with vm has no socket or volumes: its volumes are the machine's disks")
        if re.fullmatch(r"[^:]*:[0-9]+", self.host or ""):
            raise ValueError("host contains a port; write the port as port = 3306")
        if self.socket is not None and self.host is not None:
            raise ValueError("give at most one of socket and host")
        if self.password_file is not None and self.password_env is not None:
            raise ValueError("give at most one of password_file and password_env")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("give tls_cert and tls_key together")
        if self.tls == "off" and (self.tls_ca or self.tls_cert):
            raise ValueError('tls = "off" and certificates contradict each other; remove tls, tls_ca and tls_cert')
        if self.password_env is not None and not is_secret_name(self.password_env):
            raise ValueError(
                "the name in password_env must contain PASS, SECRET or TOKEN: programs that zsnapdb starts do not"
                " get variables with such names"
            )
        if self.agent.pool is not None and self.pool is None:
            raise ValueError("agent.pool needs a pool; set pool.size")
        if self.volumes is None:
            return self
        if not self.volumes:
            raise ValueError(
                "volumes is empty; name at least the dataset of the data directory, or leave out volumes to detect them"
            )
        if len(set(self.volumes.values())) != len(self.volumes):
            raise ValueError("volumes gives one dataset two roles")
        if len(pools := sorted({dataset.partition("/")[0] for dataset in self.volumes.values()})) > 1:
            raise ValueError(
                f"volumes has datasets in the pools {' and '.join(pools)}; all datasets of an instance must be in one"
                " pool, because ZFS snapshots only the datasets of one pool at the same moment"
            )
        return self

    def password(self) -> SecretStr:
        """Return the account's password (empty if none is configured).

        Raise ConfigError if the password cannot be read.
        """
        if self.password_file is not None:
            return password_in(self.password_file, "password_file")
        if self.password_env is not None:
            value = os.environ.get(self.password_env)
            if value is None:
                raise ConfigError(
                    f"password_env names {self.password_env}, which is not set",
                    hint="set it in the environment of zsnapdb",
                )
            return SecretStr(value)
        return SecretStr("")


class CloneSettings(ConfigSection):
    """Location, ports, lifetime and limits of clones.

    The default ports are below 32768. Linux uses the ports from 32768 on for outgoing connections (ip(7),
    ip_local_port_range), so a server may find such a port in use.
    """

    dataset: str | None = None
    mount_root: AbsolutePath = Path("/var/lib/zsnapdb/clones")
    first_port: Annotated[int, Field(ge=1024, le=65535)] = 23070
    last_port: Annotated[int, Field(ge=1024, le=65535)] = 23169
    reserved_ports: tuple[int, ...] = ()
    bind_address: str = "127.0.0.1"
    accounts: Literal["lock", "keep"] = "lock"
    server_user: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,31}$")] | None = None
    """Operating system account of the clones' servers. None means the account of the instance's server."""
    ttl: Annotated[Seconds, Field(gt=0)] = 86400.0
    max_ttl: Annotated[Seconds, Field(gt=0, le=10 * 365 * 86400.0)] = 30 * 86400.0
    max_protection: Annotated[Seconds, Field(gt=0, le=10 * 365 * 86400.0)] = 30 * 86400.0
    max_age: Annotated[Seconds, Field(gt=0, le=10 * 365 * 86400.0)] = 90 * 86400.0
    """Maximum time for which data cloned for a subject is kept, even if leases are extended. Root has no limit."""
    grace: Annotated[Seconds, Field(ge=0)] = 3600.0
    idle: Annotated[Seconds, Field(gt=0)] | None = None
    reap_limit: Annotated[int, Field(ge=1)] = 20
    per_owner: Annotated[int, Field(ge=0)] | None = None
    """Maximum number of clones per owner (0: no limit).

    Without a value, root has no limit, and a subject's limit is 10, or `serve.per_subject` if that is more.
    """
    total: Annotated[int, Field(ge=0)] | None = None
    """Maximum number of all clones (0: no limit).

    Without a value, the limit is 50 for a subject's request, and root has no limit.
    """
    free_floor: Annotated[Size, Field(ge=0)] = 1 << 30
    received_per_owner: Annotated[Size, Field(ge=0)] = 1 << 40
    """Maximum bytes of snapshot sets received for clones of a subject (0: no limit). Root has no limit."""
    received_total: Annotated[Size, Field(ge=0)] = 4 << 40
    """Maximum bytes of snapshot sets received for clones of all subjects together (0: no limit). Root has no limit."""
    receives: Annotated[int, Field(ge=1)] = 4
    """Maximum number of snapshot sets received concurrently for all subjects. Root has no limit."""
    quota: Annotated[Size, Field(ge=0)] = 20 << 30
    """Maximum bytes of a clone, excluding data shared with its source (0: no limit)."""
    keep_unused: Annotated[Seconds, Field(ge=0)] = 7 * 86400.0
    address: AddressSettings | None = None
    """Ports that clones keep even when they are reset. If this is None, a clone has the port of its server."""

    @model_validator(mode="after")
    def _port_range(self) -> CloneSettings:
        if self.last_port < self.first_port:
            raise ValueError("last_port is less than first_port")
        if self.address is not None:
            if self.first_port <= self.address.last_port and self.address.first_port <= self.last_port:
                raise ValueError("the ports of address overlap the ports of the servers, first_port to last_port")
            if self.accounts == "keep":
                raise ValueError(
                    'with [clones.address], `accounts` must not be "keep": HAProxy connects from this host, so an'
                    " account that only this host may use would be open to everybody"
                )
        if self.ttl > self.max_ttl:
            raise ValueError("ttl is longer than max_ttl")
        return self


class MachineSettings(ConfigSection):
    """Location, libvirt address and network of cloned virtual machines.

    If `network` is None, machines use an isolated network for clones. The leases and limits of `clones` apply to
    machines too.
    """

    dataset: str | None = None
    uri: str = "qemu:///system"
    folder: AbsolutePath = Path("/var/lib/zsnapdb/vms")
    network: str | None = None
    device_timeout: Annotated[Seconds, Field(gt=0)] = 30.0
    start_timeout: Annotated[Seconds, Field(gt=0)] = 300.0
    stop_timeout: Annotated[Seconds, Field(ge=0)] = 60.0


class RestoreSettings(ConfigSection):
    """Location of restored datasets and journals, and the replay of binlogs.

    `batch_size` is the number of binlog bytes between two snapshots. `workers` is the number of threads of the parallel
    applier; None means one per processor. `replay` says whether the server's applier or a client replays binlogs.
    `auto` means the applier, except for MySQL before 8.0.23, where the statements for the applier differ.
    `keep_replaced` says how long `zsnapdb reap` keeps the datasets of a server that a restore replaced; None means
    forever.
    """

    mount_root: AbsolutePath = Path("/var/lib/zsnapdb/restored")
    journal: AbsolutePath = Path("/var/lib/zsnapdb/restores")
    batch_size: Annotated[Size, Field(ge=1 << 20)] = 1 << 30
    workers: Annotated[int, Field(ge=1, le=256)] | None = None
    replay: Literal["auto", "applier", "client"] = "auto"
    keep_replaced: Annotated[Seconds, Field(gt=0)] | None = None


class SiteSettings(ConfigSection):
    """The contacts that a runbook lists, with one line for each."""

    contacts: tuple[str, ...] = ()


class Settings(ConfigSection):
    """The complete configuration."""

    instance: dict[str, InstanceSettings]
    repository: dict[str, RepositorySettings]
    clones: CloneSettings = CloneSettings.model_construct()
    vms: MachineSettings = MachineSettings.model_construct()
    restore: RestoreSettings = RestoreSettings.model_construct()
    site: SiteSettings = SiteSettings.model_construct()
    doctor: DoctorSettings = DoctorSettings.model_construct()
    agent: AgentSettings = AgentSettings.model_construct()
    fleet: WorkerSettings | None = None
    notifications: NotificationSettings = NotificationSettings.model_construct()
    serve: ServeSettings = ServeSettings.model_construct()

    @model_validator(mode="after")
    def _notified_instances_exist(self) -> Settings:
        for target, settings in self.notifications.to.items():
            for name in settings.instances:
                if name not in self.instance:
                    raise ValueError(f"notifications.to.{target} names instance {name!r}, which is not configured")
        return self

    def may_all_clone(self, name: str) -> bool:
        """Return whether people of every role that creates clones may clone this instance over HTTP."""
        return bool(self.instance[name].masking.run) or name in self.serve.unmasked

    def limit_of_service(self, name: str) -> str:
        """Return a sentence that says who cannot clone the instance over HTTP; "" if [serve] sets no such limit."""
        is_served = "serve" in self.model_fields_set and self.instance[name].vm is None
        if not is_served or self.may_all_clone(name):
            return ""
        return (
            f"developers cannot clone {name} over HTTP, only operators can: it has no masking.run, and serve.unmasked"
            " does not list it"
        )

    def with_binary(self, name: str | None, binary: Path | None) -> Settings:
        """Return the settings with `binary` as the instance's only server program.

        If `binary` is None, return the settings unchanged.
        """
        if binary is None:
            return self
        chosen, instance = self.one_instance(name)
        server = instance.server.model_copy(update={"binary": binary, "binaries": {}})
        changed = instance.model_copy(update={"server": server})
        return self.model_copy(update={"instance": {**self.instance, chosen: changed}})

    def one_instance(self, name: str | None) -> tuple[str, InstanceSettings]:
        """Return the named instance, or the only instance.

        Otherwise, raise UsageError with a list of the configured instances.
        """
        known = ", ".join(sorted(self.instance))
        if name is None:
            if len(self.instance) != 1:
                raise UsageError("several instances are configured; name an instance", hint=f"choose from: {known}")
            name = next(iter(self.instance))
        if name not in self.instance:
            raise UsageError(f"instance {name!r} is not configured", hint=f"choose from: {known}")
        return name, self.instance[name]


def parse(text: str, name: str) -> Settings:
    """Return the settings in the TOML text.

    Raises ConfigError with all errors in the text. The message refers to the text as `name`.
    """
    raw = read_toml(text, name)
    unknown = unknown_names(raw)
    try:
        settings = Settings.model_validate(raw, context=WRITTEN)
    except ValidationError:
        message, hint = explain(every_error(raw, Settings), Settings)
        hint = hint or (_EXAMPLE if "instance" in raw else f"{_SETUP}; {_EXAMPLE}")
        raise ConfigError(f"{name}: {'; '.join((message, *unknown))}", hint=hint) from None
    if unknown:
        raise ConfigError(f"{name}: {'; '.join(unknown)}", hint=_EXAMPLE)
    return settings


def load(path: Path | None = None) -> Settings:
    """Return the settings of the file (default: $ZSNAPDB_CONFIG, else /etc/zsnapdb/zsnapdb.toml)."""
    chosen = path_of(path)
    return parse(text_of(chosen), str(chosen))


def path_of(path: Path | None = None) -> Path:
    """Return the path of the file (default: $ZSNAPDB_CONFIG, else /etc/zsnapdb/zsnapdb.toml)."""
    return path or Path(os.environ.get("ZSNAPDB_CONFIG", str(DEFAULT_PATH)))


def text_of(path: Path) -> str:
    """Return the text of a configuration. Raise ConfigError if the file cannot be read."""
    hint = f"{_SETUP}; name another file with --config"
    return read_text(path, "the configuration", hint)
