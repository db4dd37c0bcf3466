"""The evidence log, which records actions. Its records are numbered, chained by hashes, written once and never changed.

Record N contains the SHA-256 of record N - 1 exactly as stored, including its signature. So the following records
reveal if a record was altered, removed or moved.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from zsnapdb.base.errors import ConsistencyError, DamagedError, NotFound
from zsnapdb.base.patterns import InstanceName, Moment, RepositoryId, RunId, Sha256, Words, first_problem
from zsnapdb.planning import creation_order
from zsnapdb.planning.evidence import NOTHING, PolicyChange, RememberedLink, StoredLink
from zsnapdb.repository import layout
from zsnapdb.repository.repository import Repository

_ATTEMPTS = 100
"""Maximum number of attempts to append a record while other writers append records."""
_STEPS = 50
"""The number of records that are requested one by one before the whole log is listed."""
_GAP = 1000
"""Largest accepted gap between a number and the next smaller number. Removed records leave a gap."""


class AuthorPart(BaseModel):
    """The account that ran a command, its login account, and the account that called sudo ("" if unknown).

    If a service such as `zsnapdb serve` ran the command, `subject` is the user of the service. `issuer` is the issuer
    of the user's id token; "" if the user had a zsnapdb token.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    account: Words
    login: Words = ""
    sudo: Words = ""
    subject: Words = ""
    issuer: Words = ""
    host: Words


class EvidenceRecord(BaseModel):
    """The actions of a run. `command` contains the arguments as typed, and `exit_code` is the result.

    `about` is the clone that the command acted on; "" means the whole instance. An automatic removal adds its reason to
    `about`. `changes` contains the changed keys or, for the job POLICY, the changes in the policy of the host.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: Literal[1] = 1
    number: Annotated[int, Field(ge=1, lt=10**8)]
    previous: Sha256
    repository_id: RepositoryId
    instance: InstanceName
    run_id: RunId
    job: Words
    command: Words
    about: Words = ""
    who: AuthorPart
    started: Moment
    finished: Moment
    exit_code: Annotated[int, Field(ge=-64, le=255)]
    changes: Annotated[tuple[PolicyChange, ...], Field(max_length=10_000)] = ()
    tool_version: Words

    @property
    def by(self) -> str:
        """A short description of the actor."""
        who = self.who
        of_issuer = f"{who.subject}, vouched for by {who.issuer}" if who.issuer else ""
        person = of_issuer or who.subject or who.sudo or who.login
        via = f" ({person})" if person and person != who.account else ""
        return f"{who.account}{via} on {who.host}"


@dataclass(frozen=True)
class StoredRecord:
    """A record and its link in the hash chain.

    If the record is not trusted, `record` is None and `link` contains the reason.
    """

    link: StoredLink
    record: EvidenceRecord | None


def append(repository: Repository, draft: EvidenceRecord, newest: RememberedLink | None) -> RememberedLink:
    """Write the record at the end of the chain, and return its number and hash.

    This function sets `number` and `previous`; their values in the draft are ignored.

    If `newest` is still the newest record, the log is not listed.

    Raises: ConsistencyError if another run writes a record first at every attempt.
    """
    last = newest or end(repository, draft.instance)
    for _ in range(_ATTEMPTS):
        record = draft.model_copy(update={"number": last.number + 1, "previous": last.sha256})
        body = repository.keyring.signed_if_able(record.model_dump_json().encode())
        if repository.put_same(layout.evidence(draft.instance, record.number), body):
            return RememberedLink(record.number, hashlib.sha256(body).hexdigest())
        # Another run has written this number first.
        last = end(repository, draft.instance, last.number)
    raise ConsistencyError(
        f"the evidence log of instance {draft.instance} has no free place at its end", hint="run the command again"
    )


def read(
    repository: Repository,
    instance: str,
    *,
    after: int = 0,
    most: int | None = None,
    newest: RememberedLink | None = None,
    owns: Callable[[int], bool] = lambda _: False,
) -> tuple[StoredRecord, ...]:
    """Return at most `most` records (None: all) after number `after`, in order.

    A record that this host wrote (`owns`) is trusted without a signature if the next trusted record contains its hash.
    The newest record is trusted if its hash is the hash in `newest`.
    """
    keys = sorted(listed.key.number for listed in repository.list(layout.evidence_log(instance)))
    found: list[StoredRecord] = []
    for number in reversed([one for one in keys if one > after][:most]):
        proof = newest.sha256 if newest is not None and newest.number == number else ""
        if found and found[-1].record is not None and found[-1].link.number == number + 1:
            proof = proof or found[-1].record.previous
        found.append(_parsed(repository, instance, number, proof if owns(number) else ""))
    return tuple(reversed(found))


def newest_number(repository: Repository, instance: str, known: int = 0) -> int:
    """Return the number of the newest record; 0 if the log is empty.

    `known` is the newest number that this host has recorded. The records after it are requested one by one, so that the
    whole log, which only grows, need not be listed.
    """
    number = known
    while known and number < known + _STEPS and repository.exists(layout.evidence(instance, number + 1)):
        number += 1
    return number if number and number < known + _STEPS else _last_listed(repository, instance, known)


def record(repository: Repository, instance: str, number: int) -> EvidenceRecord | None:
    """Return the record with that number; None if it does not exist or is not trusted."""
    try:
        return _parsed(repository, instance, number).record
    except NotFound:
        return None


def links(records: Sequence[StoredRecord]) -> list[StoredLink]:
    """Return the hash chain of the records."""
    return [record.link for record in records]


def end(repository: Repository, instance: str, known: int = 0) -> RememberedLink:
    """Return the number and hash of the newest record. `known` is the newest number that this host has recorded."""
    last = _last_listed(repository, instance, known)
    if not last:
        return RememberedLink(0, NOTHING)
    return RememberedLink(last, hashlib.sha256(repository.get(layout.evidence(instance, last))).hexdigest())


def _last_listed(repository: Repository, instance: str, known: int) -> int:
    """Return the number of the newest record.

    A number far above all others is ignored, because any writer can create one.
    """
    numbers = [listed.key.number for listed in repository.list(layout.evidence_log(instance))]
    return creation_order.greatest_reached(numbers, known if known in numbers else 0, _GAP)


def _parsed(repository: Repository, instance: str, number: int, proof: str = "") -> StoredRecord:
    key = layout.evidence(instance, number)
    body = repository.get(key)
    sha256 = hashlib.sha256(body).hexdigest()
    try:
        keyring = repository.keyring.believing_all() if sha256 == proof else repository.keyring
        record = EvidenceRecord.model_validate_json(keyring.verified(body, str(key)))
    except DamagedError as error:
        return StoredRecord(StoredLink(number, sha256, NOTHING, error.message), None)
    except ValidationError as error:
        return StoredRecord(StoredLink(number, sha256, NOTHING, f"it cannot be read: {first_problem(error)}"), None)
    own = (record.number, record.instance, record.repository_id)
    if own != (number, instance, repository.id):
        problem = f"it is record {record.number} of instance {record.instance}, repository {record.repository_id}"
        return StoredRecord(StoredLink(number, sha256, record.previous, problem), None)
    return StoredRecord(StoredLink(number, sha256, record.previous), record)
