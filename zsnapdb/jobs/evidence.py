"""Writes what commands did into the evidence log of the repository, and reads and checks that log."""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from zsnapdb import __version__
from zsnapdb.errors import DamagedError, ZsnapdbError, exit_code
from zsnapdb.jobs.instance import Instance
from zsnapdb.jobs.record_file import HostRecord
from zsnapdb.planning.evidence.chain import NOTHING, ChainFinding, RememberedLink, findings
from zsnapdb.planning.repository.host_record import EvidenceEnd
from zsnapdb.repository import evidence_log
from zsnapdb.repository.evidence_log import EvidenceRecord, StoredRecord, WhoPart

_PATIENCE = 30.0
"""For how many seconds a repository that does not answer is asked again: the command has done its work."""


@dataclass(frozen=True)
class EvidenceLog:
    """The records of an instance, by number, and what is wrong with their chain."""

    instance: str
    repository: str
    records: tuple[StoredRecord, ...]
    findings: tuple[ChainFinding, ...]

    @property
    def believed(self) -> tuple[EvidenceRecord, ...]:
        """The records that can be believed, by number."""
        return tuple(stored.record for stored in self.records if stored.record is not None)

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
def recorded(instance: Instance, job: str, command: Sequence[str]) -> Iterator[None]:
    """Run the block, a job of the instance, and write into the evidence log how it ended. Its exception goes on.

    A log that cannot be written is a warning: what was done is done.
    """
    started = instance.host.now()
    code = 0
    try:
        yield
    except BaseException as error:
        own = getattr(error, "exit_code", None)
        code = own if isinstance(own, int) else exit_code(error)
        raise
    finally:
        draft = EvidenceRecord(
            number=1,
            previous=NOTHING,
            repository_id="unknown",
            instance=instance.name,
            run_id=instance.host.run_id(),
            job=job,
            command=" ".join(command),
            who=who(),
            started=started,
            finished=instance.host.now(),
            exit_code=code,
            tool_version=__version__,
        )
        _append(instance.impatient(_PATIENCE), draft)


def _append(instance: Instance, draft: EvidenceRecord) -> None:
    try:
        repository = instance.open_repository()
        record = HostRecord.of(instance, repository)
        known = record.evidence_end() if record is not None else None
        newest = RememberedLink(known.number, known.sha256) if known is not None else None
        own = draft.model_copy(update={"repository_id": repository.id})
        end = evidence_log.append(repository, own, newest)
        if record is not None:
            record.set_evidence_end(EvidenceEnd(number=end.number, sha256=end.sha256))
    except (ZsnapdbError, OSError) as error:
        instance.events.warn(f"what was done is not in the evidence log of the repository: {error}")


def read(instance: Instance) -> EvidenceLog:
    """Return the evidence log, checked against itself and against what this host remembers of it."""
    repository = instance.open_repository()
    records = evidence_log.read(repository, instance.name)
    record = HostRecord.of(instance, repository)
    known = record.evidence_end() if record is not None else None
    remembered = RememberedLink(known.number, known.sha256) if known is not None else None
    wrong = findings(evidence_log.links(records), remembered)
    return EvidenceLog(instance.name, instance.settings.repository, records, wrong)


def who() -> WhoPart:
    """Return who runs this command, as far as the kernel and sudo say. Source: proc(5), loginuid; sudo(8)."""
    return WhoPart(
        account=_account(os.geteuid()), login=_login(), sudo=os.environ.get("SUDO_USER", ""), host=socket.gethostname()
    )


def _login() -> str:
    with contextlib.suppress(OSError, ValueError):
        uid = int(Path("/proc/self/loginuid").read_text())
        # 4294967295 stands for a process that nobody logged in for, such as a service.
        return _account(uid) if uid != 2**32 - 1 else ""
    return ""


def _account(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
