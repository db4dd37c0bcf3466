"""The backup policy of an instance, line by line, and its difference from an earlier one. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict

from zsnapdb.base.patterns import Words
from zsnapdb.base.quantities import format_duration
from zsnapdb.config.repository import KeepRules, KeepSettings, ObjectLockSettings, RepositorySettings
from zsnapdb.config.settings import MaskingSettings

POLICY = "policy"
"""The job of a record about a change of the policy."""

_TIMES = ("within", "sweep_after")


class PolicyChange(BaseModel):
    """A line of the policy, or a key, with its old and new text. "" stands for a missing text."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    what: Words
    before: Words = ""
    after: Words = ""


@dataclass(frozen=True)
class PolicyFacts:
    """The sources of a policy.

    `keep` is the retention policy (None: backups are never removed). `identities` and `signing_keys` are the public
    parts of the keys of this host. `scripts` has the SHA-256 of each file that masking runs, or why it cannot be read.
    """

    repository: RepositorySettings
    keep: KeepSettings | None
    local: KeepRules
    binlog_keep: float
    masking: MaskingSettings
    identities: tuple[str, ...] = ()
    signing_keys: tuple[str, ...] = ()
    scripts: Mapping[str, str] = field(default_factory=dict)


def policy_lines(facts: PolicyFacts) -> dict[str, str]:
    """Return the lines of the policy: retention, keys for reading and signing, masking of clones."""
    return {
        "evidence": "kept" if facts.repository.evidence else "not kept",
        **_rules("retention", facts.keep),
        **_rules("retention of local sets", facts.local),
        "binlogs on the server": f"kept for {format_duration(facts.binlog_keep)}",
        "immutability": _lock(facts.repository.object_lock),
        **dict(_keys(facts)),
        **dict(_masking(facts.masking, facts.scripts)),
    }


def policy_changes(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[PolicyChange, ...]:
    """Return the differences between two policies by line; none if they are equal."""
    names = sorted(before.keys() | after.keys())
    compared = [PolicyChange(what=name, before=before.get(name, ""), after=after.get(name, "")) for name in names]
    return tuple(one for one in compared if one.before != one.after)


def _rules(what: str, keep: KeepRules | None) -> dict[str, str]:
    if keep is None:
        return {what: "nothing is ever removed"}
    rules = keep.model_dump(exclude_defaults=True)
    return {f"{what}, {name}": format_duration(rule) if name in _TIMES else str(rule) for name, rule in rules.items()}


def _lock(lock: ObjectLockSettings | None) -> str:
    return f"{lock.mode} for {format_duration(lock.period)}" if lock is not None else "none"


def _keys(facts: PolicyFacts) -> Iterator[tuple[str, str]]:
    encryption = facts.repository.encryption
    yield from ((f"recipient {key}", "can read new backups") for key in encryption.recipients)
    yield from ((f"identity {key}", "on this host") for key in facts.identities)
    yield from ((f"signing key {key}", "on this host") for key in facts.signing_keys)
    yield from ((f"signer {key}", "is believed") for key in encryption.signers)
    yield "backups that are not encrypted", "are accepted" if encryption.accept_plain else "are not accepted"


def _masking(masking: MaskingSettings, scripts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    yield "masking", "required" if masking.required else "on request" if masking.run else "none"
    for number, words in enumerate(masking.run, 1):
        yield f"masking, step {number}", f"{' '.join(words)} ({scripts.get(words[0], 'not read')})"
    if masking.run:
        yield "masking, rebuilt tables", masking.rebuild
        yield "masking, canaries", str(len(masking.canaries))
    yield from ((f"masking, history of {name}", "kept") for name in masking.keep_history)
