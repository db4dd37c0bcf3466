"""The command of each verb, by the table that `zsnapdb-clone` has too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zsnapdb.jobs.clone.delegation import SERVED, parse
from zsnapdb.serve.roles import VerbKind
from zsnapdb.serve.verbs import (
    CloneDeed,
    CloneLogsVerb,
    CommitCloneVerb,
    CreateBranchVerb,
    DeleteBranchVerb,
    DiffBranchesVerb,
    ExtendCloneVerb,
    LogBranchVerb,
    NewClone,
    ProtectCloneVerb,
    SwitchBranchVerb,
    ToldOfClone,
    UnprotectCloneVerb,
)

_DIFFERENCE_BYTES = 256 << 10
"""How much a difference of two states shows. The helper keeps it for a day, as how each operation ended."""


@dataclass(frozen=True)
class CloneTerms:
    """What the helper decides about a new clone: its name, its lease in seconds, whether it must be masked.

    `most_bytes` is how much of its own it may have (None: as any clone).
    """

    name: str
    ttl: float
    masks: bool
    most_bytes: int | None = None


def create(wanted: NewClone, terms: CloneTerms, subject: str) -> Sequence[str]:
    """Return the words that make a clone of the subject. Every clone has a lease."""
    words = ["create", wanted.instance, terms.name, f"--ttl={_seconds(terms.ttl)}"]
    words += [f"--from={wanted.source}"] if wanted.source is not None else []
    words += [f"--at={wanted.at}"] if wanted.at is not None else []
    words += [f"--profile={wanted.profile}"] if wanted.profile is not None else []
    words += ["--mask"] if terms.masks else []
    words += [f"--quota={terms.most_bytes}"] if terms.most_bytes is not None else []
    words += [f"--heartbeat={wanted.heartbeat}"] if wanted.heartbeat is not None else []
    return parse((*words, "--json"), subject, SERVED).words


def deed(verb: CloneDeed, clone: str, ttl: float, subject: str) -> Sequence[str]:
    """Return the words that do something with the clone of that unchanging name.

    `ttl` (seconds) is the lease, or the protection, that it gets.
    """
    match verb:
        case ExtendCloneVerb():
            words = ["extend", clone, f"--ttl={_seconds(ttl)}"]
        case ProtectCloneVerb():
            words = ["protect", clone, f"--for={_seconds(ttl)}"]
        case UnprotectCloneVerb():
            words = ["protect", clone, "--for=0s"]
        case CommitCloneVerb():
            words = ["commit", clone, f"--message={verb.commit.message}"]
        case CreateBranchVerb():
            words = [_command(verb.kind), clone, verb.wanted.branch]
            words += [f"--from={verb.wanted.start}"] if verb.wanted.start is not None else []
        case SwitchBranchVerb() | DeleteBranchVerb():
            words = [_command(verb.kind), clone, verb.chosen.branch]
        case DiffBranchesVerb():
            states = verb.states
            words = [_command(verb.kind), clone, states.before, states.after]
            words += [f"--limit={states.limit}", f"--size={_DIFFERENCE_BYTES}"]
        case _:
            words = [_command(verb.kind), clone]
    return parse((*words, "--json"), subject, SERVED).words


def told(verb: ToldOfClone, clone: str, subject: str) -> Sequence[str]:
    """Return the words that tell something of the clone of that unchanging name."""
    words = [_command(verb.kind), clone]
    match verb:
        case CloneLogsVerb():
            words.append(f"--lines={verb.lines}")
        case LogBranchVerb():
            words += [verb.state] if verb.state is not None else []
    return parse(words, subject, SERVED).words


def _command(kind: VerbKind) -> str:
    return kind.removeprefix("clone.")


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}s"


def time_of(verb: CloneDeed) -> str | None:
    """Return the time that the verb asks for (None: as a new clone has)."""
    match verb:
        case ExtendCloneVerb():
            return verb.lease.ttl
        case ProtectCloneVerb():
            return verb.protection.time
        case _:
            return None
