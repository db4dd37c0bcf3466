"""The policy for the backups of an instance as this host has it now, and as it was when it was recorded last.

What was recorded lies in a file of this host for each instance and repository: another host has its own keys, and may
have another policy.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from zsnapdb.base import private_lock, whole_file
from zsnapdb.base.errors import ZsnapdbError
from zsnapdb.base.patterns import RepositoryId, Words
from zsnapdb.base.text_files import open_regular
from zsnapdb.config.settings import MaskingSettings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.private_folder import lock_file, make_private
from zsnapdb.jobs.record.record_file import folder_name
from zsnapdb.planning.evidence.policy import PolicyChange, PolicyFacts, policy_changes, policy_lines
from zsnapdb.repository import keys

_LOCK_SECONDS = 300.0
"""The holder of the lock writes to the repository, which may keep it waiting."""


class RecordedPolicy(BaseModel):
    """The policy that this host recorded last in the evidence log of this repository, by line."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    format: Literal[1] = 1
    repository_id: RepositoryId
    lines: dict[Words, Words]


def observed(instance: Instance) -> dict[str, str]:
    """Return the lines of the policy that is configured now. Reads files of keys and of masking; raises nothing."""
    encryption, settings = instance.repository.encryption, instance.settings
    return policy_lines(
        PolicyFacts(
            repository=instance.repository,
            keep=settings.keep or instance.repository.keep,
            local=settings.local,
            binlog_keep=settings.binlog.keep,
            masking=settings.masking,
            identities=_public(
                encryption.identity_file, lambda file: [key.recipient for key in keys.read_identities(file)]
            ),
            signing_keys=_public(encryption.signing_key_file, lambda file: [keys.SigningKey.read(file).public]),
            scripts=_scripts(settings.masking),
        )
    )


def is_recorded(instance: Instance) -> bool:
    """Whether this host recorded the policy of the instance, and has not recorded since that the log ends."""
    return _file(instance).exists()


@contextlib.contextmanager
def compared(instance: Instance, repository_id: str) -> Iterator[tuple[PolicyChange, ...]]:
    """Yield what has changed since the policy was recorded last. If the block ends well, the policy is recorded.

    Everything is new if nothing was recorded in this repository. The block runs as the only one of this host.
    PreflightError or OSError if the disk refuses, or if another run does not let go.
    """
    file = _file(instance)
    make_private(file.parent)
    with private_lock.locked(lock_file(file.parent, file.stem), _LOCK_SECONDS):
        known, lines = _recorded(file), observed(instance)
        before = known.lines if known is not None and known.repository_id == repository_id else {}
        changes = policy_changes(before, lines)
        yield changes
        if not instance.repository.evidence:
            file.unlink(missing_ok=True)
        elif changes:
            recorded = RecordedPolicy(repository_id=repository_id, lines=lines)
            whole_file.replace(file, recorded.model_dump_json().encode())


def _file(instance: Instance) -> Path:
    return instance.host.policies / instance.name / f"{folder_name(instance.settings.repository)}.json"


def _recorded(file: Path) -> RecordedPolicy | None:
    """Return what was recorded last. A file that cannot be read counts as absent: all is recorded once more."""
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
    """Return the SHA-256 of each file that masking runs."""
    digests = {}
    for words in masking.run:
        try:
            with open_regular(Path(words[0])) as script:
                digests[words[0]] = f"sha256 {hashlib.file_digest(script, 'sha256').hexdigest()}"
        except OSError as error:
            digests[words[0]] = f"it cannot be read: {error.strerror}"
    return digests
