"""Documents of the API and its tokens. The helper writes them; the API, the pages and clients show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AliasChoices, Field, JsonValue

from zsnapdb.documents.base import At, Document, secret, stamp


class ListedClone(Document):
    """Fields of a clone that programs of all releases read (`CloneFields`).

    If a host omits a field, the field has its default value.
    """

    name: str
    id: str
    owner: str = ""
    instance: str = ""
    requested: str = ""
    backup_id: str = ""
    position: str = ""
    created: str = ""
    guid: str = ""
    expires: str = ""
    protected_until: str | None = None
    own_bytes: int | None = None
    quota: int = 0
    phase: str = ""
    pid: int | None = None
    elsewhere: str | None = None
    port: int | None = None
    bind_address: str = ""
    address: str = ""
    local_only: bool | None = None
    masked: bool | str | None = None
    profile: str = ""


class PointsRange(Document):
    """A range of recoverable times.

    A new clone accepts every time from `from` to `to` as its `at`, and each of the backups as its `from`.
    """

    begin: Annotated[str, Field(alias="from")]
    to: str
    backups: tuple[str, ...]


class PointsGap(Document):
    """A period without recoverable states, with the reason."""

    begin: Annotated[str, Field(alias="from")]
    to: str
    reason: str


class UsableSet(Document):
    """A snapshot set on this host. A clone of the set needs no repository."""

    id: Annotated[str, Field(validation_alias=AliasChoices("id", "backup_id"))]
    state: str


class PointsDocument(Document):
    """The states of an instance that can be cloned, as known at the time `at`."""

    instance: str
    at: str
    recoverable: tuple[PointsRange, ...]
    gaps: tuple[PointsGap, ...]
    sets: tuple[UsableSet, ...] = ()


class PublicObjective(Document):
    """An objective and its state.

    The objective limits the age of the time `since` (UTC), for example the time of the newest backup.
    """

    objective: str
    subject: str
    verdict: str
    reason: str
    since: str | None
    seconds: float | None
    limit_seconds: float | None


class InstanceObjectives(Document):
    """The objectives of an instance. If they could not be checked, `error` is the code of the error."""

    instance: str
    verdict: str | None = None
    objectives: tuple[PublicObjective, ...] = ()
    error: str | None = None


class ObjectivesDocument(Document):
    """The objectives of each instance."""

    instances: tuple[InstanceObjectives, ...]


class PublicStep(Document):
    """A step of a drill: its kind and its duration in seconds."""

    kind: str
    seconds: float


class PublicDrill(Document):
    """A drill: its backup, times, outcome and steps."""

    drill_id: str
    backup_id: str
    requested: str
    started: str
    finished: str
    seconds: float
    outcome: str
    steps: tuple[PublicStep, ...] = ()


class PublicDrills(Document):
    """The newest drills of an instance, oldest first."""

    drills: tuple[PublicDrill, ...]


class EvidenceDocument(Document):
    """Records of an evidence log by number.

    The field `next` is the value of `after` for the next request, or null if there are no more records.
    """

    instance: str
    records: tuple[Mapping[str, JsonValue], ...]
    not_believed: tuple[Mapping[str, JsonValue], ...]
    next: int | None


class LogsDocument(Document):
    """The last lines of the error log of a clone's server.

    The server and the clone's users wrote the text.
    """

    clone: str
    lines: tuple[str, ...]


class ShownLogin(Document):
    """The login of a clone.

    Clients on the same host use `host` and `port`. All other clients use `address`, unless `local_only` is set.
    """

    host: str
    port: int
    address: str
    local_only: bool
    user: str
    password: str


class HeartbeatDocument(Document):
    """A clone with a heartbeat, and the maximum number of seconds until the next heartbeat."""

    clone: str
    heartbeat: int


class BegunOperation(Document):
    """A running request. The `Location` header contains the address of the operation."""

    operation: str


class CancelledOperation(Document):
    """A cancelled request."""

    operation: str
    state: Literal["cancelled"]


class TokenFields(Document):
    """A token, without its text. The field `revoked` is null if the token is not revoked.

    The kind is `token`, or `session` for a login to the pages. The issuer is that of the login ("" for a token of this
    host).
    """

    id: str
    subject: str
    role: str
    created: Annotated[str, At("created", stamp)]
    expires: Annotated[str, At("expires", stamp)]
    revoked: Annotated[str | None, At("revoked", stamp)]
    kind: str
    issuer: str


class NewTokenDocument(Document):
    """A new token. The field `text` is shown only once."""

    token: Annotated[TokenFields, At("stored")]
    text: Annotated[str, At("text", secret)]


class TokensDocument(Document):
    """The tokens of this host."""

    tokens: tuple[TokenFields, ...]


class RevokedTokenDocument(Document):
    """A revoked token."""

    token: TokenFields


class IssuerKeyFields(Document):
    """A public key of an issuer (RFC 7517): RSA (`n`, `e`) or an elliptic curve (`crv`, `x`, `y`)."""

    kid: str
    kty: str
    use: str | None
    alg: str | None
    n: str | None
    e: str | None
    crv: str | None
    x: str | None
    y: str | None


class LoginPlacesFields(Document):
    """Endpoints for a browser's login and for the exchange of a code for an id token."""

    authorization_endpoint: str
    token_endpoint: str


class IssuerKeysDocument(Document):
    """The usable keys with which an issuer signs id tokens, and their URL.

    The field `login` is null if the issuer cannot be used for logins to the pages.
    """

    issuer: str
    jwks_url: str
    keys: tuple[IssuerKeyFields, ...]
    login: LoginPlacesFields | None
