"""Models of clones for programs, from the documents that zsnapdb prints and returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import quote

from pydantic import SecretStr, ValidationError

from zsnapdb.client.errors import CloneCommandError
from zsnapdb.documents.api import ListedClone
from zsnapdb.documents.base import Document
from zsnapdb.documents.comparison import BranchDifferenceDocument, TableDifferenceFields

EVERY_ADDRESS = ("*", "::", "0.0.0.0")  # noqa: S104 - it is recognised, and not listened on


class KnownClone(ListedClone):
    """A listed clone. Times are UTC. Users choose `name`; `id` never changes."""

    instance: str
    backup_id: str
    port: int
    masked: bool
    bind_address: str = "127.0.0.1"


class MadeClone(Document):
    """A new clone with its login."""

    clone: KnownClone
    user: str
    password: SecretStr
    of_pool: bool


class CloneReset(Document):
    """The result of a reset. The way is `undo` (changed rows), `swap` (for a pool clone) or `replace` (all data).

    The field `undone` is the number of undone row changes (None unless `way` is `undo`). The field `reason` says why a
    faster way was not possible.
    """

    way: str
    undone: int | None
    reason: str | None


class CloneChange(Document):
    """A clone after a change."""

    clone: KnownClone


class KnownClones(Document):
    """All clones that the caller may see."""

    clones: tuple[KnownClone, ...]


class CloneCommit(Document):
    """A committed state of a clone. The commit's id can be the `source` of a new clone."""

    id: str
    clone: str
    message: str = ""


class CloneBranch(Document):
    """A branch of a clone. The field `head` is the branch's newest commit (None if there is no commit yet)."""

    name: str
    head: str | None
    current: bool


class KnownBranches(Document):
    """The branches of a clone.

    The field `made` is the commit that was created to start the new branch, or None if no commit was needed.
    """

    clone: str
    current: str
    branches: tuple[CloneBranch, ...]
    made: str | None = None


class SwitchedClone(Document):
    """A clone after a switch. The field `committed` says whether the previous branch got the new commit `left_head`."""

    clone: KnownClone
    branch: str
    head: str | None
    left: str
    left_head: str | None
    committed: bool


class BranchCommit(Document):
    """A commit of a branch. The field `branches` lists the branches whose newest commit is this commit."""

    id: str
    parent: str | None
    created: str
    message: str = ""
    branches: tuple[str, ...] = ()


class BranchLog(Document):
    """The commits that lead to a branch or a commit, newest first."""

    commits: tuple[BranchCommit, ...]


class TableDifference(TableDifferenceFields):
    """A table in two states. Its values are untrusted text."""

    reason: str | None = None


class StateDifference(BranchDifferenceDocument):
    """Comparison of two states of a clone."""

    clone: str = ""
    tables: tuple[TableDifference, ...]
    left_out: bool = False


class KnownInstance(Document):
    """An instance that can be cloned.

    The field `masked` says whether its clones are masked. The field `pool` says whether pool clones are available.
    """

    name: str
    masked: bool
    pool: bool = False


class KnownInstances(Document):
    """All instances that can be cloned."""

    instances: tuple[KnownInstance, ...]


class FailureFields(Document):
    """An error of a command."""

    message: str
    hint: str | None = None
    code: str = ""


class CommandFailure(Document):
    """The document of a command that failed."""

    error: FailureFields


class Problem(Document):
    """An error of the API (RFC 9457)."""

    detail: str
    hint: str = ""
    code: str = ""
    exit_code: int | None = None


@dataclass(frozen=True)
class ReachableClone:
    """A running clone with its address and login. The flag `of_pool` says whether the clone came from the pool.

    At its creation, the lease ends at `expires` (UTC). The flag `local_only` says whether only clients on the clone's
    host can reach the clone. The GUID distinguishes the clone from a later clone with the same name. It is "" if the
    host has an earlier version, which does not report GUIDs.
    """

    name: str
    id: str
    instance: str
    backup_id: str
    port: int
    user: str
    password: str = field(repr=False)
    is_masked: bool = False
    of_pool: bool = False
    host: str = "127.0.0.1"
    expires: str = ""
    local_only: bool = False
    created: str = ""
    guid: str = ""

    @property
    def url(self) -> str:
        """A URL that contains the password: `mysql://USER:PASSWORD@HOST:PORT/`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"mysql://{self.user}:{quote(self.password, safe='')}@{host}:{self.port}/"


def reachable(made: MadeClone, host: str) -> ReachableClone:
    """Return the new clone as a `ReachableClone` with this host in its address."""
    clone = made.clone
    return ReachableClone(
        name=clone.name,
        id=clone.id,
        instance=clone.instance,
        backup_id=clone.backup_id,
        port=clone.port,
        user=made.user,
        password=made.password.get_secret_value(),
        is_masked=clone.masked,
        of_pool=made.of_pool,
        host=host,
        expires=clone.expires,
        local_only=bool(clone.local_only),
        created=clone.created,
        guid=clone.guid,
    )


D = TypeVar("D", bound=Document)


def parsed(model: type[D], text: str | bytes, what: str) -> D:
    """Return the document in the text. The text `what` names the sender in errors.

    Raises: CloneCommandError if the text is not a document of this model.
    """
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise CloneCommandError(
            f"{what} answered with a document that this library does not know",
            "install the same version of zsnapdb on both sides",
        ) from error


def failure_in(document: str | bytes, said: str, exit_code: int) -> CloneCommandError:
    """Return the error in a failed command's document. Without a document, return the text `said` from stderr."""
    try:
        failure = CommandFailure.model_validate_json(document).error
    except ValidationError:
        return CloneCommandError(said.strip()[-2000:], exit_code=exit_code)
    return CloneCommandError(failure.message, failure.hint or "", exit_code, code=failure.code)
