"""The clones of this host, as the helper reads them from `zsnapdb clone list --json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue, ValidationError

from zsnapdb.base.errors import ConsistencyError
from zsnapdb.documents.api import ListedClone
from zsnapdb.jobs.clone.expected_clone import ExpectedClone
from zsnapdb.jobs.dataset_copies.properties import owner_text
from zsnapdb.serve.helper_messages import ResultAnswer
from zsnapdb.serve.roles import CloneOwnership


@dataclass(frozen=True)
class OwnedCommit:
    """A commit of a clone: its id, and the owner of the clone."""

    id: str
    owner: str

    def belongs_to(self, subject: str) -> bool:
        return self.owner == owner_text(subject)


class PublicClone(ListedClone):
    """A clone from `zsnapdb clone list --json`. `set` is the set of clones to which it belongs.

    `fields` contains all fields of the clone in that list.
    """

    owner: str
    guid: str
    set: str | None = None
    waits: bool = False
    fields: Mapping[str, JsonValue]

    @property
    def most_bytes(self) -> int:
        """The larger of the clone's quota, which includes its commits, and the clone's present size."""
        return max(self.quota, self.own_bytes or 0)

    @property
    def runs(self) -> bool:
        return self.pid is not None

    def belongs_to(self, subject: str) -> bool:
        return self.owner == owner_text(subject)

    @property
    def meant(self) -> ExpectedClone:
        """The clone's identity. A command that gets the identity cannot change another clone with the same name."""
        return ExpectedClone(owner=self.owner, id=self.id, guid=self.guid)

    def is_same_as(self, other: PublicClone) -> bool:
        """Return whether both values describe the same clone at different times.

        A later clone can have the same name.
        """
        return (self.id, self.owner, self.guid) == (other.id, other.owner, other.guid)


def seen_in(result: ResultAnswer) -> tuple[PublicClone, ...]:
    """Return the clones in the result of `zsnapdb clone list --json`, except pool clones, which have no owner yet.

    Raises ConsistencyError if the result has another format.
    """
    rows = result.document.get("clones")
    if not isinstance(rows, list):
        raise ConsistencyError("the answer has no list of clones", hint="update zsnapdb and its helper together")
    try:
        found = [PublicClone.model_validate({**row, "fields": row} if isinstance(row, dict) else row) for row in rows]
    except ValidationError as error:
        raise ConsistencyError("the list of clones has an unknown form", hint="restart the helper", about=()) from error
    return tuple(one for one in found if not one.waits)


def the_clone(clones: Sequence[PublicClone], name: str) -> PublicClone | None:
    """Return the clone with this name or id; None if no clone or more than one clone matches.

    Commands are called with the clone's id. The id must not also match another object, such as another subject's set of
    clones.
    """
    found = [clone for clone in clones if name in (clone.name, clone.id)]
    if len(found) != 1:
        return None
    others = [one for one in clones if one is not found[0] and found[0].id in (one.name, one.id, one.set)]
    return found[0] if not others else None


def belonging(clone: PublicClone, subject: str) -> CloneOwnership:
    """Return whether the subject owns the clone."""
    return CloneOwnership.OWN if clone.belongs_to(subject) else CloneOwnership.OTHERS
