"""Writes, reads and checks the records of commands in a repository's evidence log.

For each instance and repository, a file on this host contains the last policy that this host recorded. Other hosts have
their own keys, and may have another policy.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from zsnapdb import __version__
from zsnapdb.base import files
from zsnapdb.base.errors import DamagedError, ZsnapdbError, exit_code
from zsnapdb.base.files import lock_file, make_private, open_regular
from zsnapdb.base.patterns import RepositoryId, Words, without_surrogates
from zsnapdb.config.settings import MaskingSettings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.record.record_file import HostRecord, folder_name
from zsnapdb.planning.evidence import (
    NOTHING,
    POLICY,
    ChainFinding,
    PolicyFacts,
    RememberedLink,
    findings,
    policy_changes,
    policy_lines,
)
from zsnapdb.planning.evidence import PolicyChange as PolicyChange
from zsnapdb.planning.repository.host_backup_record import EvidenceEnd
from zsnapdb.repository import crypto_keys, evidence_log
from zsnapdb.repository.evidence_log import EvidenceRecord, StoredRecord
from zsnapdb.repository.repository import Repository

_LOCK_SECONDS = 300.0
"""The time in seconds to wait for the lock.

A long wait is needed, because the holder of the lock writes to the repository, which may be slow.
"""


class RecordedPolicy(BaseModel):
    """The lines of the policy that this host last recorded in a repository's evidence log."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    format: Literal[1] = 1
    repository_id: RepositoryId
    lines: dict[Words, Words]


def observed(instance: Instance) -> dict[str, str]:
    """Return the lines of the configured policy. The function also reads the key files and the masking files.

    It raises no errors.
    """
    encryption, settings = instance.repository.encryption, instance.settings
    return policy_lines(
        PolicyFacts(
            repository=instance.repository,
            keep=settings.keep or instance.repository.keep,
            local=settings.local,
            binlog_keep=settings.binlog.keep,
            masking=settings.masking,
            identities=_public(
                encryption.identity_file, lambda file: [key.recipient for key in crypto_keys.read_identities(file)]
            ),
            signing_keys=_public(encryption.signing_key_file, lambda file: [crypto_keys.SigningKey.read(file).public]),
            scripts=_scripts(settings.masking),
        )
    )


def is_recorded(instance: Instance) -> bool:
    """Return whether this host has recorded the instance's policy in the evidence log and has not ended the log."""
    return _file(instance).exists()


@contextlib.contextmanager
def compare_policy(instance: Instance, repository_id: str) -> Iterator[tuple[PolicyChange, ...]]:
    """Yield the changes since the last recorded policy. If the block succeeds, record the present policy.

    If no policy is recorded for this repository yet, every line is a change. Only one process of this host runs the
    block at a time. Raises PreflightError or OSError if the file cannot be written, or if another run does not release
    the lock.
    """
    file = _file(instance)
    make_private(file.parent)
    with files.locked_file(lock_file(file.parent, file.stem), _LOCK_SECONDS):
        known, lines = _recorded(file), observed(instance)
        before = known.lines if known is not None and known.repository_id == repository_id else {}
        changes = policy_changes(before, lines)
        yield changes
        if not instance.repository.evidence:
            file.unlink(missing_ok=True)
        elif changes:
            recorded = RecordedPolicy(repository_id=repository_id, lines=lines)
            files.replace(file, recorded.model_dump_json().encode())


def _file(instance: Instance) -> Path:
    return instance.host.policies / instance.name / f"{folder_name(instance.settings.repository)}.json"


def _recorded(file: Path) -> RecordedPolicy | None:
    """Return the last recorded policy. If it is unreadable, the whole policy is recorded again."""
    try:
        return RecordedPolicy.model_validate_json(file.read_bytes())
    except (OSError, ValidationError):
        return None


def _public(file: Path | None, read: Callable[[Path], list[str]]) -> tuple[str, ...]:
    if file is None:
        return ()
    try:
        return tuple(read(file))
    except (ZsnapdbError, OSError):
        return (f"in {file}, which cannot be read",)


def _scripts(masking: MaskingSettings) -> dict[str, str]:
    digests = {}
    for words in masking.run:
        try:
            with open_regular(Path(words[0])) as script:
                digests[words[0]] = f"sha256 {hashlib.file_digest(script, 'sha256').hexdigest()}"
        except OSError as error:
            digests[words[0]] = f"it cannot be read: {error.strerror}"
    return digests


_PATIENCE = 30.0
"""The time in seconds for which an unreachable repository is retried.

The time is short, because the job itself has already ended.
"""


@dataclass(frozen=True)
class EvidenceLog:
    """The evidence records of an instance in the order of their numbers, and the faults in their hash chain.

    `foreign` contains the numbers of the records that this host did not write. If this host checks signatures of
    trusted signers, `foreign` is empty.
    """

    instance: str
    repository: str
    records: tuple[StoredRecord, ...]
    findings: tuple[ChainFinding, ...]
    foreign: frozenset[int] = frozenset()

    @property
    def believed(self) -> tuple[EvidenceRecord, ...]:
        """The records that this host trusts, in the order of their numbers."""
        readable = (stored.record for stored in self.records if stored.record is not None)
        return tuple(record for record in readable if record.number not in self.foreign)

    def alarm(self) -> ZsnapdbError | None:
        """The DamagedError to raise if the chain of records has a fault; None if it has no fault."""
        if not self.findings:
            return None
        return DamagedError(
            f"the evidence log of instance {self.instance} in repository {self.repository} was changed:"
            f" {self.findings[0].text}",
            hint="find out who can write to the repository; compare with a copy of the log that is stored elsewhere",
        )


@contextlib.contextmanager
def recorded(instance: Instance, job: str, command: Sequence[str], about: str = "") -> Iterator[None]:
    """Run the block, which is a job of the instance, and record the end of the job in the evidence log.

    An exception in the block is recorded and raised again. `about` is the object of the job, such as a clone. If the
    policy differs from the last recorded one, the change is recorded too. If the log cannot be written, the function
    only warns, because the job has already ended.
    """
    with recorded_keys((instance,), job, command, about):
        yield


@contextlib.contextmanager
def recorded_keys(
    instances: Sequence[Instance], job: str, command: Sequence[str], about: str = ""
) -> Iterator[list[PolicyChange]]:
    """Run the block, and record its end for each of the instances, like `recorded`.

    The block must add the changes of keys to the yielded list.
    """
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
    """If this host recorded a policy in the evidence log, write a last record that ends the log."""
    if is_recorded(instance):
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
    """If the policy changed, write a record of the changes. Then write the draft, unless it is a policy record."""
    with _warning(instance, "the action"):
        repository = instance.open_repository()
        with _warning(instance, "the policy"), compare_policy(instance, repository.id) as changes:
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
    """Return the newest evidence record that this host remembers.

    Raises DamagedError if this host's file about the newest record is unreadable.
    """
    known = _end(instance, repository)
    return RememberedLink(known.number, known.sha256) if known is not None else None


@dataclass(frozen=True)
class EvidencePage:
    """Consecutive records in order of their numbers. `is_last` says whether the log has no later records."""

    instance: str
    repository: str
    records: tuple[StoredRecord, ...]
    is_last: bool

    @property
    def last_number(self) -> int | None:
        """The number of the page's last record; None if there are no later records."""
        return self.records[-1].link.number if self.records and not self.is_last else None


def read_page(instance: Instance, after: int, most: int) -> EvidencePage:
    """Return at most `most` records after the number `after`.

    Unlike `read`, this function does not check the whole log.
    """
    repository = instance.open_repository()
    end, newest = _end(instance, repository), _remembered(instance, repository)
    owns = end.owns if end is not None else lambda _: False
    found = evidence_log.read(repository, instance.name, after=after, most=most + 1, newest=newest, owns=owns)
    if any(one.record is None for one in found):
        # Some records are older than this host's signing key. A later signed record may prove them.
        later = evidence_log.read(repository, instance.name, after=after, newest=newest, owns=owns)
        found = later[: most + 1]
    return EvidencePage(instance.name, instance.settings.repository, found[:most], is_last=len(found) <= most)


def read(instance: Instance) -> EvidenceLog:
    """Check the hash chain of the evidence log, and return the log.

    The log is also compared with the newest record that this host remembers.
    """
    repository = instance.open_repository()
    end, remembered = _end(instance, repository), _remembered(instance, repository)
    owns = end.owns if end is not None else lambda _: False
    records = evidence_log.read(repository, instance.name, newest=remembered, owns=owns)
    wrong = findings(evidence_log.links(records), remembered)
    keyring, foreign = repository.keyring, frozenset[int]()
    if not keyring.trusted and keyring.own is not None and keyring.own.tells_apart:
        foreign = frozenset(one.link.number for one in records if end is not None and not owns(one.link.number))
    return EvidenceLog(instance.name, instance.settings.repository, records, wrong, foreign)
