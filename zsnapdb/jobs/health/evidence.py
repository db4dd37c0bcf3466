"""Writes what commands did into the evidence log of the repository, and reads and checks that log."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from zsnapdb import __version__
from zsnapdb.base.errors import DamagedError, ZsnapdbError, exit_code
from zsnapdb.base.patterns import without_surrogates
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.health import policy
from zsnapdb.jobs.record.record_file import HostRecord
from zsnapdb.planning.evidence.chain import NOTHING, ChainFinding, RememberedLink, findings
from zsnapdb.planning.evidence.policy import POLICY
from zsnapdb.planning.evidence.policy import PolicyChange as PolicyChange
from zsnapdb.planning.repository.host_record import EvidenceEnd
from zsnapdb.repository import evidence_log
from zsnapdb.repository.evidence_log import EvidenceRecord, StoredRecord
from zsnapdb.repository.repository import Repository

_PATIENCE = 30.0
"""For how many seconds a repository that does not answer is asked again: the command has done its work."""


@dataclass(frozen=True)
class EvidenceLog:
    """The records of an instance, by number, and what is wrong with their chain.

    `foreign` are the numbers of those that this host did not write, where it believes no signatures.
    """

    instance: str
    repository: str
    records: tuple[StoredRecord, ...]
    findings: tuple[ChainFinding, ...]
    foreign: frozenset[int] = frozenset()

    @property
    def believed(self) -> tuple[EvidenceRecord, ...]:
        """The records that can be believed, by number."""
        readable = (stored.record for stored in self.records if stored.record is not None)
        return tuple(record for record in readable if record.number not in self.foreign)

    def alarm(self) -> ZsnapdbError | None:
        """Return DamagedError if the chain is not whole."""
        if not self.findings:
            return None
        return DamagedError(
            f"the evidence log of instance {self.instance} in repository {self.repository} was changed:"
            f" {self.findings[0].text}",
            hint="find out who can write to the repository; compare with a copy of the log that lies elsewhere",
        )


@contextlib.contextmanager
def recorded(instance: Instance, job: str, command: Sequence[str], about: str = "") -> Iterator[None]:
    """Run the block, a job of the instance, and write into the evidence log how it ended. Its exception goes on.

    `about` names what the job was about, such as a clone.
    If the policy differs from the one that this host recorded last, that is written, too. A log that cannot be written
    is a warning: what was done is done.
    """
    with recorded_keys((instance,), job, command, about):
        yield


@contextlib.contextmanager
def recorded_keys(
    instances: Sequence[Instance], job: str, command: Sequence[str], about: str = ""
) -> Iterator[list[PolicyChange]]:
    """Do as `recorded` for each of the instances. The block adds the keys that it changed to the list."""
    at_work = [(instance, instance.host.now()) for instance in instances]
    code, changes = 0, list[PolicyChange]()
    try:
        yield changes
    except BaseException as error:
        own = getattr(error, "exit_code", None)
        code = own if isinstance(own, int) else exit_code(error)
        raise
    finally:
        for instance, started in at_work:
            draft = _draft(instance, job, command, started).model_copy(
                update={"exit_code": code, "changes": tuple(changes), "about": without_surrogates(about)}
            )
            _append(instance.impatient(_PATIENCE), draft)


def note_end(instance: Instance, command: Sequence[str]) -> None:
    """Write as the last record that the evidence log is kept no more, if this host recorded a policy in it."""
    if policy.is_recorded(instance):
        _append(instance.impatient(_PATIENCE), _draft(instance, POLICY, command, instance.host.now()))


def _draft(instance: Instance, job: str, command: Sequence[str], started: datetime) -> EvidenceRecord:
    return EvidenceRecord(
        number=1,
        previous=NOTHING,
        repository_id="unknown",
        instance=instance.name,
        run_id=instance.host.run_id(),
        job=job,
        command=without_surrogates(" ".join(command)),
        who=instance.host.who(),
        started=started,
        finished=instance.host.now(),
        exit_code=0,
        tool_version=__version__,
    )


def _append(instance: Instance, draft: EvidenceRecord) -> None:
    """Write what has changed in the policy, and then the record, unless it is about the policy itself."""
    with _warning(instance, "what was done"):
        repository = instance.open_repository()
        with _warning(instance, "the policy"), policy.compared(instance, repository.id) as changes:
            if changes:
                about = {"job": POLICY, "changes": changes, "started": draft.finished, "exit_code": 0}
                _write(instance, repository, draft.model_copy(update=about))
        if draft.job != POLICY:
            _write(instance, repository, draft)


@contextlib.contextmanager
def _warning(instance: Instance, what: str) -> Iterator[None]:
    try:
        yield
    except (ZsnapdbError, OSError) as error:
        instance.events.warn(f"{what} is not in the evidence log of the repository: {error}")


def _write(instance: Instance, repository: Repository, draft: EvidenceRecord) -> None:
    record, newest = HostRecord.of(instance, repository), _remembered(instance, repository)
    own = draft.model_copy(update={"repository_id": repository.id})
    end = evidence_log.append(repository, own, newest)
    if record is not None:
        own_record = ((end.number, end.number),)
        record.set_evidence_end(EvidenceEnd(number=end.number, sha256=end.sha256, own=own_record))


def _end(instance: Instance, repository: Repository) -> EvidenceEnd | None:
    record = HostRecord.of(instance, repository)
    return record.evidence_end() if record is not None else None


def _remembered(instance: Instance, repository: Repository) -> RememberedLink | None:
    """Return the newest record that this host knows of. DamagedError if what it remembers cannot be read."""
    known = _end(instance, repository)
    return RememberedLink(known.number, known.sha256) if known is not None else None


@dataclass(frozen=True)
class EvidencePage:
    """Some records in a row, by number. `is_last`: no later record was there."""

    instance: str
    repository: str
    records: tuple[StoredRecord, ...]
    is_last: bool

    @property
    def last_number(self) -> int | None:
        """The number after which the later records are; None if there are none."""
        return self.records[-1].link.number if self.records and not self.is_last else None


def read_page(instance: Instance, after: int, most: int) -> EvidencePage:
    """Return at most so many records after the one of that number. `read` alone says whether the log is whole."""
    repository = instance.open_repository()
    end, newest = _end(instance, repository), _remembered(instance, repository)
    owns = end.owns if end is not None else lambda _: False
    found = evidence_log.read(repository, instance.name, after=after, most=most + 1, newest=newest, owns=owns)
    if any(one.record is None for one in found):
        # Only a later record may prove one of a time when this host did not sign.
        later = evidence_log.read(repository, instance.name, after=after, newest=newest, owns=owns)
        found = later[: most + 1]
    return EvidencePage(instance.name, instance.settings.repository, found[:most], is_last=len(found) <= most)


def read(instance: Instance) -> EvidenceLog:
    """Return the evidence log, checked against itself and against what this host remembers of it."""
    repository = instance.open_repository()
    end, remembered = _end(instance, repository), _remembered(instance, repository)
    owns = end.owns if end is not None else lambda _: False
    records = evidence_log.read(repository, instance.name, newest=remembered, owns=owns)
    wrong = findings(evidence_log.links(records), remembered)
    keyring, foreign = repository.keyring, frozenset[int]()
    if not keyring.trusted and keyring.own is not None and keyring.own.tells_apart:
        foreign = frozenset(one.link.number for one in records if end is not None and not owns(one.link.number))
    return EvidenceLog(instance.name, instance.settings.repository, records, wrong, foreign)
