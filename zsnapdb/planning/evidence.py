"""Verifies an instance's chain of evidence records, and finds changes of its backup policy. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict

from zsnapdb.base.patterns import Words
from zsnapdb.base.quantities import format_duration
from zsnapdb.config.repository import KeepRules, KeepSettings, ObjectLockSettings, RepositorySettings
from zsnapdb.config.settings import MaskingSettings

NOTHING = "0" * 64
"""The value that the first record contains in place of the hash of a previous record."""


@dataclass(frozen=True)
class StoredLink:
    """A stored record: its number, its SHA-256, and the SHA-256 of the previous record, which it contains.

    If the record itself is invalid, `problem` contains the reason, such as a bad signature; otherwise it is "".
    """

    number: int
    sha256: str
    previous: str
    problem: str = ""


@dataclass(frozen=True)
class RememberedLink:
    """The newest record that a host remembers from its own files or from an earlier report."""

    number: int
    sha256: str


@dataclass(frozen=True)
class ChainFinding:
    """A problem found at a record."""

    number: int
    text: str


def findings(links: Sequence[StoredLink], remembered: RememberedLink | None = None) -> tuple[ChainFinding, ...]:
    """Return the problems of the evidence chain, ordered by record number; none if the chain is complete.

    If a record in the middle is altered, the hash in the next record no longer matches. The last record is protected
    only by its signature or by `remembered`. Without both, the function cannot find a change of the last record or the
    removal of the newest records.
    """
    return (*_of_chain(links), *_of_end(links, remembered))


def _of_chain(links: Sequence[StoredLink]) -> Iterator[ChainFinding]:
    expected, before = 1, NOTHING
    for link in sorted(links, key=lambda link: link.number):
        if link.number > expected:
            last = link.number - 1
            which = f"record {expected} is" if last == expected else f"records {expected} to {last} are"
            yield ChainFinding(expected, f"{which} missing")
        elif link.previous != before and not link.problem:
            what = (
                "the first record refers to an earlier one" if expected == 1 else f"record {expected - 1} was altered"
            )
            yield ChainFinding(link.number, f"{what}: record {link.number} follows a record with another content")
        if link.problem:
            yield ChainFinding(link.number, f"record {link.number} is not valid: {link.problem}")
        expected, before = link.number + 1, link.sha256


def _of_end(links: Sequence[StoredLink], remembered: RememberedLink | None) -> Iterator[ChainFinding]:
    if remembered is None:
        return
    known = {link.number: link.sha256 for link in links}
    newest = max(known, default=0)
    if remembered.number > newest:
        yield ChainFinding(
            remembered.number, f"records {newest + 1} to {remembered.number}, which existed, are missing"
        )
    elif known.get(remembered.number, remembered.sha256) != remembered.sha256:
        yield ChainFinding(remembered.number, f"record {remembered.number} is not the one that was written")


POLICY = "policy"
"""The job name in a record about a policy change."""

_TIMES = ("within", "sweep_after")


class PolicyChange(BaseModel):
    """A changed line of the policy, or a changed key, with the old and the new text.

    The old text is "" if the line did not exist before, and the new text is "" if the line no longer exists.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    what: Words
    before: Words = ""
    after: Words = ""


@dataclass(frozen=True)
class PolicyFacts:
    """The facts from which the lines of a policy are built.

    The retention policy is `keep`. If it is None, backups are never removed. `identities` and `signing_keys` contain
    the public parts of this host's keys. The field `scripts` maps each file that masking runs to its SHA-256, or to the
    reason why the file cannot be read.
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
    """Return the lines of the policy about retention, about keys for reading and signing, and about masking."""
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
