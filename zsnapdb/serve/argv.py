"""The command of each verb, by the table that `zsnapdb-clone` has too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zsnapdb.jobs.clone.delegation import SERVED, parse
from zsnapdb.serve.verbs import (
    ChangeOfClone,
    CloneLogsVerb,
    CommitCloneVerb,
    ExtendCloneVerb,
    NewClone,
    ProtectCloneVerb,
    UnprotectCloneVerb,
)


@dataclass(frozen=True)
class CloneTerms:
    """What the helper decides about a new clone: its name, its lease in seconds, whether it must be masked."""

    name: str
    ttl: float
    masks: bool


def create(wanted: NewClone, terms: CloneTerms, subject: str) -> Sequence[str]:
    """Return the words that make a clone of the subject. Every clone has a lease."""
    words = ["create", wanted.instance, terms.name, f"--ttl={_seconds(terms.ttl)}"]
    words += [f"--from={wanted.source}"] if wanted.source is not None else []
    words += [f"--at={wanted.at}"] if wanted.at is not None else []
    words += [f"--profile={wanted.profile}"] if wanted.profile is not None else []
    words += ["--mask"] if terms.masks else []
    words += [f"--heartbeat={wanted.heartbeat}"] if wanted.heartbeat is not None else []
    return parse((*words, "--json"), subject, SERVED).words


def change(verb: ChangeOfClone, clone: str, ttl: float, subject: str) -> Sequence[str]:
    """Return the words that change the clone of that unchanging name.

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
        case _:
            words = [verb.kind.removeprefix("clone."), clone]
    return parse((*words, "--json"), subject, SERVED).words


def logs(verb: CloneLogsVerb, clone: str, subject: str) -> Sequence[str]:
    """Return the words that show the end of the log of the clone of that unchanging name."""
    return parse(("logs", clone, f"--lines={verb.lines}", "--json"), subject, SERVED).words


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}s"


def time_of(verb: ChangeOfClone) -> str | None:
    """Return the time that the verb asks for (None: as a new clone has)."""
    match verb:
        case ExtendCloneVerb():
            return verb.lease.ttl
        case ProtectCloneVerb():
            return verb.protection.time
        case _:
            return None
