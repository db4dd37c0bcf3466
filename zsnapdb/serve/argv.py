"""The command of each verb, by the table that `zsnapdb-clone` has too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from zsnapdb.verbs.delegation import parse
from zsnapdb.verbs.requests import SERVED, AboutClone, CloneDeed, CreateCloneVerb, NewClone, ToldOfClone


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
    ttl = {"ttl": _seconds(terms.ttl)}
    quota = f"{terms.most_bytes}B" if terms.most_bytes is not None else None
    decided = {"name": terms.name, **ttl, "mask": terms.masks, "quota": quota, "json": True}
    return _words(CreateCloneVerb.command, {**ttl, **dict(_sent(wanted)), **decided}, subject)


def deed(verb: CloneDeed, clone: str, ttl: float, subject: str) -> Sequence[str]:
    """Return the words that do something with the clone of that unchanging name.

    `ttl` (seconds) is the lease, or the protection, that it gets.
    """
    times = {name: _seconds(ttl) for name in ("ttl", "for") if f"--{name}" in SERVED[verb.command].options}
    decided = {"name": clone, **times, **verb.fixed, "json": True}
    return _words(verb.command, {**dict(_sent(verb)), **decided}, subject)


def told(verb: ToldOfClone, clone: str, subject: str) -> Sequence[str]:
    """Return the words that tell something of the clone of that unchanging name."""
    return _words(verb.command, {**dict(_sent(verb)), **verb.fixed, "name": clone}, subject)


def _sent(model: BaseModel) -> Iterator[tuple[str, object]]:
    """Yield what was sent with a verb, by the names of words and options."""
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield from _sent(value)
        elif not (isinstance(model, AboutClone) and name in ("kind", "key")):
            yield field.alias or name, value


def _words(command: str, values: Mapping[str, object], subject: str) -> Sequence[str]:
    """Return the words of zsnapdb. What is no word or option of the command is refused, as what people say is."""
    rest = {name: value for name, value in values.items() if value is not None and value is not False}
    positional = [word.strip("[]").lower() for word in SERVED[command].words]
    words = [str(rest.pop(name)) for name in positional if name in rest]
    options = [f"--{name}" if value is True else f"--{name}={value}" for name, value in rest.items()]
    return parse((command, *options, *words), subject, SERVED).words


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}s"
