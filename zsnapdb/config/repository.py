"""Settings of a repository: its address and retention, and how its backups are created, encrypted and locked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    StrictBool,
    ValidationInfo,
    model_validator,
)

from zsnapdb.base.quantities import Level, Seconds, Size
from zsnapdb.config.instance import ObjectiveSettings
from zsnapdb.config.services import AbsolutePath, ConfigSection

STORE_ADDRESSES = {
    "s3://bucket[/prefix]": r"s3://[^/]+",
    "azure://account/container[/prefix]": r"azure://[^/]+/[^/]+",
    "gs://bucket[/prefix]": r"gs://[^/]+",
    "file:///folder": r"file:///",
}
"""The documented address syntax for each kind of store, and the pattern of such addresses. `zsnapdb.store.layers`
creates the stores.
"""

_ASCII = r"A-Za-z0-9._~!$&'()*+,;=:@ -"
_BUCKETS = {
    "s3": (
        r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}",
        (
            "the name of a bucket (letters, digits, dots, hyphens, underscores); set the host and port of the provider"
            " as s3.endpoint"
        ),
    ),
    "azure": (
        r"[a-z0-9]{3,24}/(?=[a-z0-9-]{3,63}$)[a-z0-9]+(-[a-z0-9]+)*",
        "an account (lower-case letters, digits) and a container (the same, and single hyphens) of Azure",
    ),
    "gs": (
        r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]",
        "the name of a bucket of Google (lower-case letters, digits, dots, hyphens, underscores)",
    ),
}
"""For each scheme, the pattern of a bucket, and the pattern's description in errors."""


@dataclass(frozen=True)
class StoreAddress:
    """The parts of a repository's address. The path has no slash at its ends.

    The field `bucket` is "" for a folder, and "account/container" for Azure.
    """

    scheme: str
    bucket: str
    path: str

    @property
    def prefix(self) -> str:
        """The prefix of the keys in a bucket. The prefix is "" or ends in a slash."""
        return f"{self.path}/" if self.path else ""


def parse_address(url: str) -> StoreAddress:
    """Return the parts of the address. If a part is unusable, raise ValueError with this part."""
    places = 2 if url.startswith("azure:") else 1
    if "@" in "".join(re.split(r"[/?#]", url.partition("://")[2], maxsplit=places)[:places]):
        raise ValueError("url must not contain an account or a password; use credentials_file")
    if not any(re.match(pattern, url) for pattern in STORE_ADDRESSES.values()):
        raise ValueError(f"url {url!r} is neither {' nor '.join(STORE_ADDRESSES)}")
    scheme, _, rest = url.partition("://")
    bucket, path = _parted(rest, places)
    pattern, description = _BUCKETS.get(scheme, ("", ""))
    if re.fullmatch(pattern, bucket) is None:
        raise ValueError(f"url {url!r}: {bucket!r} is not {description}")
    if bad := _unusable(path):
        raise ValueError(f"url {url!r} contains {bad!r}, which cannot be part of a repository's address")
    folders = path.removesuffix("/").split("/")
    if path and not {"", ".", ".."}.isdisjoint(folders):
        raise ValueError(f"url {url!r}: no folder in it may be empty, '.' or '..'")
    if scheme == "file" and not path:
        raise ValueError(f"url {url!r} names no folder")
    return StoreAddress(scheme, bucket, "/".join(folders))


def _parted(rest: str, count: int) -> tuple[str, str]:
    """Return the first `count` parts of an address without its scheme, and the path after them."""
    parts = rest.split("/", count)
    return "/".join(parts[:count]), "".join(parts[count:])


def _unusable(path: str) -> str:
    """Return the first invalid character in the path of an address; "" if every character is valid."""
    return next(
        (c for c in path if c != "/" and (not re.match(f"[{_ASCII}]", c) if c.isascii() else not c.isprintable())), ""
    )


ARCHIVE_CLASSES = ("GLACIER", "DEEP_ARCHIVE")
"""Storage classes of S3 whose objects cannot be read before the store has retrieved them."""

_ENDPOINT = r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?"


def _count(value: object, info: ValidationInfo) -> object:
    """Return the value of a retention rule unchanged. Raise ValueError if the value is a duration."""
    duration = re.fullmatch(r"\s*([0-9]{1,6})\s*([A-Za-z]+)\s*", value) if isinstance(value, str) else None
    if duration is None:
        return value
    within = f'; `within = "{duration[1]}{duration[2]}"` keeps all backups of that time'
    raise ValueError(
        f"is a number of backups, not a duration: write `{info.field_name} = {duration[1]}`"
        f"{within if duration[2] in ('h', 'd', 'w') else ''}"
    )


Count = Annotated[int, Field(ge=0, le=100_000), BeforeValidator(_count)]


class KeepRules(ConfigSection):
    """Rules that decide which snapshot sets are kept. A rule with the value 0 keeps nothing."""

    last: Count = 0
    hourly: Count = 0
    daily: Count = 0
    weekly: Count = 0
    monthly: Count = 0
    yearly: Count = 0
    within: Annotated[Seconds, Field(ge=0)] = 0.0
    minimum: Annotated[int, Field(ge=1, le=100_000)] = 1

    @property
    def is_empty(self) -> bool:
        """Return whether no rule keeps any snapshot set. The setting `minimum` is only a lower limit and not a rule."""
        return not (self.last or self.hourly or self.daily or self.weekly or self.monthly or self.yearly or self.within)

    @model_validator(mode="after")
    def _some_rule(self) -> KeepRules:
        if self.is_empty:
            raise ValueError(
                "no rule keeps anything, and what no rule keeps is removed; give at least one of last, hourly, daily,"
                " weekly, monthly, yearly, within"
            )
        return self


DEFAULT_KEEP = KeepRules.model_construct(last=7, daily=14, weekly=8, monthly=12)
"""The retention policy that setup writes, and that sizing assumes."""


class KeepSettings(KeepRules):
    """The retention policy. Without a policy, no snapshot set is ever removed."""

    example: ClassVar[str] = "{ daily = 14, weekly = 8 }"

    local: Annotated[int, Field(ge=1, le=100_000)] | None = None
    local_minimum: Annotated[int, Field(ge=1, le=100_000)] = 2
    sweep_after: Annotated[Seconds, Field(ge=3600)] = 7 * 86400.0


class StreamSettings(ConfigSection):
    """Settings for creating, splitting, compressing and transferring send streams.

    A transfer needs about (concurrency + 1) x chunk_size of memory, plus the compressed chunks that are being stored. A
    stream starts with chunks of 8 MiB, or larger chunks if it has at least 512 MiB; the chunks grow to chunk_size. If a
    connection transfers less than 60 MB/s and `bandwidth` is not set, more chunks are transferred concurrently.
    Together, these chunks contain at most 128 MiB of the stream, plus their compressed size. If a backup would have
    more than 650,000 chunks, its chunks become larger. Fewer chunks are then transferred concurrently, with at most 224
    MiB in total.
    """

    example: ClassVar[str] = "{ level = 3 }"

    send: Literal["plain", "compressed", "raw", "auto"] = "plain"
    chunk_size: Annotated[Size, Field(ge=1 << 20, le=1 << 30)] = 32 << 20
    level: Level = 3
    concurrency: Annotated[int, Field(ge=1, le=64)] = 3


class EncryptionSettings(ConfigSection):
    """Keys that can decrypt the backups of this host, and keys whose signed manifests this host trusts.

    Each value is a public key or the path of a secret file.
    """

    example: ClassVar[str] = '{ recipients = ["age1..."], signing_key_file = "/etc/zsnapdb/signing-key" }'

    recipients: tuple[Annotated[str, Field(pattern=r"^age1[0-9a-z]+$")], ...] = ()
    identity_file: AbsolutePath | None = None
    signing_key_file: AbsolutePath | None = None
    signers: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]{43}=$")], ...] = ()
    accept_plain: StrictBool = False
    """Whether a host that encrypts also uses unencrypted backups, for example older backups from before encryption was
    configured.
    """
    signing: Literal["none"] | None = None
    """With `"none"`, this host deliberately does not sign, and trusts everyone who can write to the repository."""

    @model_validator(mode="after")
    def _one_decision(self) -> EncryptionSettings:
        if self.signing is not None and self.signing_key_file is not None:
            raise ValueError('signing = "none" and signing_key_file contradict each other; leave one out')
        return self


class ObjectLockSettings(ConfigSection):
    """The lock of the objects in the bucket: who may end a lock early, and the lock's minimum duration in seconds.

    `governance`: accounts with a special permission may end a lock. `compliance`: nobody may end a lock, not even the
    bucket's owner.
    """

    mode: Literal["governance", "compliance"]
    period: Annotated[Seconds, Field(alias="for", ge=3600, le=100 * 366 * 86400)]


class ProviderSettings(ConfigSection):
    """Access to a bucket at a provider."""

    endpoint: str | None = None
    allow_http: StrictBool = False
    credentials_file: AbsolutePath | None = None

    @model_validator(mode="after")
    def _usable_endpoint(self) -> Self:
        if "@" in (self.endpoint or ""):
            raise ValueError("endpoint must not contain an account or a password; use credentials_file")
        if self.endpoint is not None and re.match(r"https?://", self.endpoint) is None:
            raise ValueError(f"endpoint {self.endpoint!r} does not begin with https://")
        if self.endpoint is not None and re.fullmatch(_ENDPOINT, self.endpoint) is None:
            raise ValueError(f"endpoint {self.endpoint!r} is not https://host[:port][/path]")
        if self.is_readable_on_the_way and not self.allow_http:
            raise ValueError(
                f"endpoint {self.endpoint} is not encrypted: anyone on the network path can read stored data and"
                f" change restored data; use https://, or set allow_http = true"
            )
        return self

    @property
    def is_readable_on_the_way(self) -> bool:
        """Return whether requests to the provider leave this host without TLS."""
        address = urlsplit(self.endpoint or "")
        host = address.hostname or ""
        return address.scheme == "http" and host not in ("localhost", "::1") and not re.match(r"127\.[0-9.]+$", host)


class S3Settings(ProviderSettings):
    """Access to the bucket of an `s3://` url, and storage options of the objects in it."""

    region: str | None = None
    addressing: Literal["auto", "path", "virtual"] = "auto"
    storage_class: str | None = None
    sse: Literal["AES256", "aws:kms"] | None = None
    sse_key: str | None = None
    checksum: Literal["auto", "sha256", "none"] = "auto"

    @model_validator(mode="after")
    def _usable(self) -> S3Settings:
        if self.sse_key is not None and self.sse != "aws:kms":
            raise ValueError('sse_key is the id of a KMS key; set sse = "aws:kms" too')
        if self.storage_class in ARCHIVE_CLASSES:
            raise ValueError(f"objects in storage_class {self.storage_class} cannot be read at once; use GLACIER_IR")
        return self


class AzureSettings(ProviderSettings):
    """Access to the container of an azure:// url.

    The setting `credentials_file` contains the line AZURE_STORAGE_ACCOUNT_KEY=... or AZURE_STORAGE_SAS_TOKEN=..., or
    the lines of a service principal: AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET.
    """


class GoogleSettings(ProviderSettings):
    """Access to the bucket of a gs:// url. The setting `credentials_file` is the JSON key of a service account."""


class RepositorySettings(ConfigSection):
    """Address of the backups and the options of their store.

    The address is s3://bucket/prefix, azure://account/container/prefix, gs://bucket/prefix or file:///folder.
    """

    url: str
    patience: Annotated[Seconds, Field(ge=0, le=7 * 86400)] = 3600.0
    evidence: StrictBool = False
    """Whether commands write records of their actions into the evidence log of the repository."""
    bandwidth: Annotated[Size, Field(ge=1 << 10)] | None = None
    s3: S3Settings = S3Settings.model_construct()
    azure: AzureSettings = AzureSettings.model_construct()
    gs: GoogleSettings = GoogleSettings.model_construct()
    stream: StreamSettings = StreamSettings.model_construct()
    encryption: EncryptionSettings = EncryptionSettings.model_construct()
    keep: KeepSettings | None = None
    objectives: ObjectiveSettings | None = None
    object_lock: ObjectLockSettings | None = None

    _flat_keys: tuple[str, ...] = PrivateAttr(default=())

    @model_validator(mode="wrap")
    @classmethod
    def _with_flat_keys(cls, read: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Accept S3 settings directly in the repository's table, as in configurations without a table `s3`."""
        flat = [key for key in S3Settings.model_fields if isinstance(read, dict) and key in read]
        if not flat or not isinstance(read, dict) or "s3" in read:
            return handler(read)
        rest = {key: value for key, value in read.items() if key not in flat}
        made = handler({**rest, "s3": {key: read[key] for key in flat}})
        made._flat_keys = tuple(flat)
        return made

    @property
    def provider(self) -> ProviderSettings | None:
        """Access to the bucket of the url; None if the url is a folder."""
        return {"s3": self.s3, "azure": self.azure, "gs": self.gs}.get(self.address.scheme)

    @property
    def idle_keys(self) -> tuple[str, ...]:
        """Keys without effect, because their table does not belong to the kind of store in the url."""
        tables: dict[str, ProviderSettings] = {"s3": self.s3, "azure": self.azure, "gs": self.gs}
        others = [(name, table) for name, table in tables.items() if table is not self.provider]
        return tuple(f"{name}.{key}" for name, table in others for key in sorted(table.model_fields_set))

    @property
    def flat_keys(self) -> tuple[str, ...]:
        """The S3 settings that the configuration contains directly in the repository's table, without a table `s3`."""
        return self._flat_keys

    @model_validator(mode="after")
    def _lockable(self) -> RepositorySettings:
        if self.object_lock is None:
            return self
        if not self.url.startswith("s3:"):
            raise ValueError("object_lock needs an s3:// url")
        if self.s3.checksum == "none":
            raise ValueError('object_lock needs checksums; set checksum = "auto" or "sha256"')
        return self

    @model_validator(mode="after")
    def _usable_address(self) -> RepositorySettings:
        parse_address(self.url)
        return self

    @property
    def address(self) -> StoreAddress:
        return parse_address(self.url)
