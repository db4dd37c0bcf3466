"""The command of each verb that changes a clone, by the table that `zsnapdb-clone` has too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zsnapdb.jobs.clone.delegation import parse
from zsnapdb.serve.verbs import ChangeOfClone, ExtendCloneVerb, NewClone


@dataclass(frozen=True)
class CloneTerms:
    """What the helper decides about a new clone: its name, its lease in seconds, whether it must be masked."""

    name: str
    ttl: float
    masks: bool


def create(wanted: NewClone, terms: CloneTerms, subject: str) -> Sequence[str]:
    """Return the words that make a clone of the subject. Every clone has a lease."""
    words = ["create", wanted.instance, terms.name, f"--ttl={_seconds(terms.ttl)}"]
    words += [f"--at={wanted.at}"] if wanted.at is not None else []
    words += [f"--profile={wanted.profile}"] if wanted.profile is not None else []
    words += ["--mask"] if terms.masks else []
    return parse((*words, "--json"), subject).words


def change(verb: ChangeOfClone, clone: str, ttl: float, subject: str) -> Sequence[str]:
    """Return the words that change the clone of that unchanging name. `ttl` (seconds) is the lease that it gets."""
    command = verb.kind.removeprefix("clone.")
    words = (command, clone, f"--ttl={_seconds(ttl)}") if isinstance(verb, ExtendCloneVerb) else (command, clone)
    return parse((*words, "--json"), subject).words


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}s"
