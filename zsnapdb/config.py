"""zsnapdb.toml -> typed settings. Unknown keys are refused, with the nearest known one as a hint."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from pathlib import Path
from types import UnionType
from typing import Annotated, Literal, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError, model_validator

from zsnapdb.errors import ConfigError
from zsnapdb.quantities import Level, Seconds, Size

DEFAULT_PATH = Path("/etc/zsnapdb/zsnapdb.toml")

_LATER_CLASSES = ("GLACIER", "DEEP_ARCHIVE")

Role = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")]
Volumes = dict[Role, str]

STORE_ADDRESSES = {"s3://bucket[/prefix]": r"s3://[^/]+", "file:///folder": r"file:///"}
"""How the address of each kind of store is written, and its form; `zsnapdb.store.open` has the stores."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LockSettings(_Section):
    """How the server is held still for the snapshot."""

    strategy: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,31}$")] = "auto"
    """`auto`, or a strategy of `mysql/locks`."""
    deadline: Annotated[Seconds, Field(gt=0, le=600)] = 5.0
    budget: Annotated[Seconds, Field(ge=0, le=86400)] = 60.0
    longest_statement: Annotated[Seconds, Field(gt=0, le=86400)] = 1.0
    kill: Literal["never", "select", "all"] = "never"
    stop_applier: bool = False


class HookSettings(_Section):
    """A script of the site: when it runs, what it is, how long it may take, what its failure means."""

    when: Literal["before", "locked", "after"]
    run: Annotated[
        tuple[str, ...],
        BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
        Field(min_length=1),
    ]
    timeout: Annotated[Seconds, Field(gt=0, le=86400)] = 30.0
    on_failure: Literal["abort", "warn"] = "abort"


class ServerSettings(_Section):
    """How a server of this instance's version is started for restores and clones."""

    binary: Path | None = None
    programs: Path | None = None
    user: str = "mysql"
    options: tuple[str, ...] = ()
    start_timeout: Annotated[Seconds, Field(gt=0)] = 120.0
    manager: Literal["auto", "detached", "systemd"] = "auto"
    memory: Annotated[Size, Field(ge=128 << 20)] | None = None
    processors: Annotated[float, Field(gt=0, le=1024)] | None = None
    nice: Annotated[int, Field(ge=0, le=19)] | None = None


class ProbeSettings(_Section):
    """A question to a drilled server and the answer a good restore gives: the first column of its only row."""

    sql: Annotated[str, Field(min_length=1)]
    name: str | None = None
    expect: str | int | float | None = None
    at_least: int | float | None = None
    at_most: int | float | None = None

    @model_validator(mode="after")
    def _expects_something(self) -> ProbeSettings:
        bounds = (self.at_least, self.at_most)
        if (self.expect is None) == all(bound is None for bound in bounds):
            raise ValueError("give either expect, or at_least and at_most or one of them")
        return self


class DrillSettings(_Section):
    """Where a restored server is tried and thrown away, and what is looked at.

    `sample`: about so many bytes of pages, and of tables, are checked.
    """

    dataset: str | None = None
    sample: Annotated[Size, Field(ge=0)] = 1 << 30
    check_timeout: Annotated[Seconds, Field(gt=0)] = 3600.0
    probe: tuple[ProbeSettings, ...] = ()


Count = Annotated[int, Field(ge=0, le=100_000)]


class KeepSettings(_Section):
    """Which backups stay. A rule that is 0 keeps nothing; without any rule nothing is ever removed."""

    last: Count = 0
    hourly: Count = 0
    daily: Count = 0
    weekly: Count = 0
    monthly: Count = 0
    yearly: Count = 0
    within: Annotated[Seconds, Field(ge=0)] = 0.0
    minimum: Annotated[int, Field(ge=1, le=100_000)] = 1
    local: Annotated[int, Field(ge=1, le=100_000)] | None = None
    sweep_after: Annotated[Seconds, Field(ge=3600)] = 7 * 86400.0

    @property
    def is_empty(self) -> bool:
        """Whether no rule keeps anything; `minimum` alone is a floor, not a rule."""
        return not (self.last or self.hourly or self.daily or self.weekly or self.monthly or self.yearly or self.within)

    @model_validator(mode="after")
    def _some_rule(self) -> KeepSettings:
        if self.is_empty:
            raise ValueError(
                "no rule keeps anything; give at least one of last, hourly, daily, weekly, monthly, yearly, within"
            )
        return self


class ChainSettings(_Section):
    """When the next backup is a full one, and how long an interrupted one is continued. 0: never for that."""

    full_every: Annotated[Seconds, Field(ge=0)] = 30 * 86400.0
    longest: Annotated[int, Field(ge=0, le=100_000)] = 0
    resume_within: Annotated[Seconds, Field(ge=0)] = 3 * 86400.0


class MaskingSettings(_Section):
    """What hides people's data in a clone before anyone may reach it: SQL files (*.sql) and scripts, in this order."""

    required: bool = False
    run: tuple[
        Annotated[
            tuple[str, ...],
            BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
            Field(min_length=1),
        ],
        ...,
    ] = ()
    timeout: Annotated[Seconds, Field(gt=0, le=7 * 86400)] = 3600.0
    rebuild: Literal["changed", "all"] = "changed"

    @model_validator(mode="after")
    def _something_to_run(self) -> MaskingSettings:
        if self.required and not self.run:
            raise ValueError("masking is required, and run names nothing that masks")
        return self


class BinlogSettings(_Section):
    """How binlogs are archived, and which archived ones may be removed from the server."""

    interval: Annotated[Seconds, Field(ge=1, le=86400)] = 10.0
    keep: Annotated[Seconds, Field(ge=0)] = 86400.0
    purge_files: Annotated[int, Field(ge=1, le=1000)] = 10
    replicas: Annotated[int, Field(ge=0)] = 0


class InstanceSettings(_Section):
    """A configured server: how to reach it, which datasets it lives on, where its backups go."""

    socket: Path | None = None
    host: str | None = None
    port: Annotated[int, Field(gt=0, lt=65536)] = 3306
    user: str = "zsnapdb"
    password_file: Path | None = None
    password_env: str | None = None
    volumes: Volumes | None = None
    repository: str
    lock: LockSettings = LockSettings()
    hooks: tuple[HookSettings, ...] = ()
    server: ServerSettings = ServerSettings()
    chain: ChainSettings = ChainSettings()
    masking: MaskingSettings = MaskingSettings()
    upgrade_queries: tuple[str, ...] = ()
    drill: DrillSettings = DrillSettings()
    binlog: BinlogSettings = BinlogSettings()
    keep: KeepSettings | None = None

    @model_validator(mode="after")
    def _one_way_to_reach(self) -> InstanceSettings:
        if (self.socket is None) == (self.host is None):
            raise ValueError("give exactly one of socket and host")
        if self.password_file is not None and self.password_env is not None:
            raise ValueError("give at most one of password_file and password_env")
        if self.volumes is None:
            return self
        if not self.volumes:
            raise ValueError(
                "volumes is empty; name at least the dataset of the data directory, or leave it out to have them found"
            )
        if len(set(self.volumes.values())) != len(self.volumes):
            raise ValueError("a dataset stands under two roles in volumes")
        return self

    def password(self) -> SecretStr:
        """Return the account's password (empty if none is configured). ConfigError if its source cannot be read."""
        if self.password_file is not None:
            try:
                return SecretStr(self.password_file.read_text().rstrip("\n"))
            except OSError as error:
                raise ConfigError(
                    f"reading password_file {self.password_file}: {error.strerror}",
                    hint="the file holds the password alone and must be readable by the user that runs zsnapdb",
                ) from error
        if self.password_env is not None:
            value = os.environ.get(self.password_env)
            if value is None:
                raise ConfigError(
                    f"password_env names {self.password_env}, which is not set",
                    hint="set it in the environment of zsnapdb",
                )
            return SecretStr(value)
        return SecretStr("")


class StreamSettings(_Section):
    """How a send stream is made, cut, compressed and moved.

    Memory is about (concurrency + 1) x chunk_size, and what the chunks in flight compress to.
    """

    send: Literal["plain", "compressed"] = "plain"
    chunk_size: Annotated[Size, Field(ge=1 << 20, le=1 << 30)] = 32 << 20
    level: Level = 3
    concurrency: Annotated[int, Field(ge=1, le=64)] = 3


class EncryptionSettings(_Section):
    """Who can read what this host writes, and whose manifests it believes.

    Everything here is a public key or the path of a secret.
    """

    recipients: tuple[Annotated[str, Field(pattern=r"^age1[0-9a-z]+$")], ...] = ()
    identity_file: Path | None = None
    signing_key_file: Path | None = None
    signers: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]{43}=$")], ...] = ()


class RepositorySettings(_Section):
    """Where backups go: s3://bucket/prefix or file:///folder."""

    url: str
    endpoint: str | None = None
    region: str | None = None
    credentials_file: Path | None = None
    addressing: Literal["auto", "path", "virtual"] = "auto"
    storage_class: str | None = None
    sse: Literal["AES256", "aws:kms"] | None = None
    sse_key: str | None = None
    checksum: Literal["auto", "sha256", "none"] = "auto"
    patience: Annotated[Seconds, Field(ge=0, le=7 * 86400)] = 3600.0
    bandwidth: Annotated[Size, Field(ge=1 << 10)] | None = None
    stream: StreamSettings = StreamSettings()
    encryption: EncryptionSettings = EncryptionSettings()
    keep: KeepSettings | None = None

    @model_validator(mode="after")
    def _known_scheme(self) -> RepositorySettings:
        if not any(re.match(form, self.url) for form in STORE_ADDRESSES.values()):
            raise ValueError(f"url {self.url!r} is neither {' nor '.join(STORE_ADDRESSES)}")
        if self.sse_key is not None and self.sse != "aws:kms":
            raise ValueError('sse_key is the id of a KMS key; it needs sse = "aws:kms"')
        if self.storage_class in _LATER_CLASSES:
            raise ValueError(f"storage_class {self.storage_class} cannot be read at once; GLACIER_IR can")
        return self


class CloneSettings(_Section):
    """Where clones live, which ports they take, how long they stay and how many there may be."""

    dataset: str | None = None
    mount_root: Path = Path("/var/lib/zsnapdb/clones")
    first_port: Annotated[int, Field(ge=1024, le=65535)] = 33070
    last_port: Annotated[int, Field(ge=1024, le=65535)] = 33169
    reserved_ports: tuple[int, ...] = ()
    bind_address: str = "127.0.0.1"
    accounts: Literal["lock", "keep"] = "lock"
    ttl: Annotated[Seconds, Field(gt=0)] = 86400.0
    max_ttl: Annotated[Seconds, Field(gt=0, le=10 * 365 * 86400.0)] = 30 * 86400.0
    max_protection: Annotated[Seconds, Field(gt=0, le=10 * 365 * 86400.0)] = 30 * 86400.0
    grace: Annotated[Seconds, Field(ge=0)] = 3600.0
    idle: Annotated[Seconds, Field(gt=0)] | None = None
    reap_limit: Annotated[int, Field(ge=1)] = 20
    per_owner: Annotated[int, Field(ge=0)] = 0
    total: Annotated[int, Field(ge=0)] = 0
    free_floor: Annotated[Size, Field(ge=0)] = 1 << 30
    keep_unused: Annotated[Seconds, Field(ge=0)] = 7 * 86400.0

    @model_validator(mode="after")
    def _port_range(self) -> CloneSettings:
        if self.last_port < self.first_port:
            raise ValueError("last_port is below first_port")
        if self.ttl > self.max_ttl:
            raise ValueError("ttl is longer than max_ttl")
        return self


class RestoreSettings(_Section):
    """Where restored datasets are mounted and journals kept; how binlogs are replayed.

    `batch_size`: bytes between two snapshots. `workers`: of the parallel applier (none: a processor each). `replay`: by
    the server's applier or by a client; auto is the applier, but for MySQL before 8.0.23, whose statements for it are
    others.
    """

    mount_root: Path = Path("/var/lib/zsnapdb/restored")
    journal: Path = Path("/var/lib/zsnapdb/restores")
    batch_size: Annotated[Size, Field(ge=1 << 20)] = 1 << 30
    workers: Annotated[int, Field(ge=1, le=256)] | None = None
    replay: Literal["auto", "applier", "client"] = "auto"


class SiteSettings(_Section):
    """Whom a runbook tells to call, a line each."""

    contacts: tuple[str, ...] = ()


class Settings(_Section):
    """The whole configuration."""

    instance: dict[str, InstanceSettings]
    repository: dict[str, RepositorySettings]
    clones: CloneSettings = CloneSettings()
    restore: RestoreSettings = RestoreSettings()
    site: SiteSettings = SiteSettings()

    @model_validator(mode="after")
    def _repositories_exist(self) -> Settings:
        for name, instance in self.instance.items():
            if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,47}", name):
                raise ValueError(f"instance name {name!r}: small letters, digits, - and _, at most 48")
            if instance.repository not in self.repository:
                raise ValueError(f"instance {name} names repository {instance.repository!r}, which is not configured")
        return self

    def one_instance(self, name: str | None) -> tuple[str, InstanceSettings]:
        """Return the named instance, or the only one. ConfigError names what there is."""
        known = ", ".join(sorted(self.instance))
        if name is None:
            if len(self.instance) != 1:
                raise ConfigError("several instances are configured and none was named", hint=f"name one of: {known}")
            name = next(iter(self.instance))
        if name not in self.instance:
            raise ConfigError(f"instance {name!r} is not configured", hint=f"known: {known}")
        return name, self.instance[name]


def _section_at(model: type[BaseModel], path: tuple[int | str, ...]) -> type[BaseModel] | None:
    """Return the model of the section at `path` below `model`; a name in a table of sections stands for any."""
    if not path:
        return model
    known = model.model_fields.get(str(path[0]))
    if known is None:
        return None
    annotation, rest = known.annotation, path[1:]
    if get_origin(annotation) is dict:
        annotation, rest = get_args(annotation)[1], rest[1:]
    elif get_origin(annotation) is tuple:
        annotation, rest = get_args(annotation)[0], rest[1:]
    elif get_origin(annotation) is UnionType:
        annotation = get_args(annotation)[0]
    return _section_at(annotation, rest) if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _known_keys(location: tuple[int | str, ...]) -> list[str]:
    """Return the keys allowed in the section that holds the last element of `location`."""
    section = _section_at(Settings, location[:-1])
    return list(section.model_fields) if section is not None else []


def _explain(error: ValidationError) -> tuple[str, str]:
    lines, hints = [], []
    for item in error.errors():
        where = ".".join(str(part) for part in item["loc"]) or "(file)"
        if item["type"] == "extra_forbidden":
            lines.append(f"unknown key {where}")
            near = difflib.get_close_matches(str(item["loc"][-1]), _known_keys(item["loc"]), n=1)
            hints.append(f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(_known_keys(item['loc']))}")
        elif item["type"] == "missing":
            lines.append(f"missing key {where}")
        else:
            lines.append(f"{where}: {item['msg'].removeprefix('Value error, ')}")
    return "; ".join(lines), " ".join(hints)


def parse(text: str, name: str) -> Settings:
    """Return the settings in the TOML text; `name` is what errors call it. ConfigError lists everything wrong."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name} is not valid TOML: {error}", hint="see configs/zsnapdb.example.toml") from error
    try:
        return Settings.model_validate(raw)
    except ValidationError as error:
        message, hint = _explain(error)
        raise ConfigError(f"{name}: {message}", hint=hint or "see configs/zsnapdb.example.toml") from error


def load(path: Path | None = None) -> Settings:
    """Return the settings of the file (default: $ZSNAPDB_CONFIG, else /etc/zsnapdb/zsnapdb.toml)."""
    chosen = path or Path(os.environ.get("ZSNAPDB_CONFIG", str(DEFAULT_PATH)))
    try:
        text = chosen.read_text()
    except OSError as error:
        raise ConfigError(
            f"reading the configuration {chosen}: {error.strerror}",
            hint="copy configs/zsnapdb.example.toml there, or name another file with --config",
        ) from error
    return parse(text, str(chosen))
