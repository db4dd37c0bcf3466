"""The command line of each verb, from the table that `zsnapdb-clone` also uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from zsnapdb.verbs.delegation import parse
from zsnapdb.verbs.requests import SERVED, AboutClone, CloneAction, CloneQuery, CreateCloneVerb, NewClone


@dataclass(frozen=True)
class CloneTerms:
    """The helper's decisions about a new clone: its name, its lease in seconds, and whether it must be masked.

    `most_bytes` is its quota (None: that of any clone).
    """

    name: str
    ttl: float
    masks: bool
    most_bytes: int | None = None


def create(wanted: NewClone, terms: CloneTerms, subject: str) -> Sequence[str]:
    """Return the arguments that create a clone for the subject. Every clone has a lease."""
    ttl = {"ttl": _seconds(terms.ttl)}
    quota = f"{terms.most_bytes}B" if terms.most_bytes is not None else None
    decided = {"name": terms.name, **ttl, "mask": terms.masks, "quota": quota, "json": True}
    return _arguments(CreateCloneVerb.command, {**ttl, **dict(_sent_fields(wanted)), **decided}, subject)


def action_arguments(verb: CloneAction, clone: str, ttl: float, subject: str) -> Sequence[str]:
    """Return the arguments that run the verb on the clone with that id.

    `ttl` (seconds) is its new lease or protection.
    """
    times = {name: _seconds(ttl) for name in ("ttl", "for") if f"--{name}" in SERVED[verb.command].options}
    decided = {"name": clone, **times, **verb.fixed, "json": True}
    return _arguments(verb.command, {**dict(_sent_fields(verb)), **decided}, subject)


def query_arguments(verb: CloneQuery, clone: str, subject: str) -> Sequence[str]:
    """Return the arguments that report something about the clone with that id."""
    return _arguments(verb.command, {**dict(_sent_fields(verb)), **verb.fixed, "name": clone}, subject)


def _sent_fields(model: BaseModel) -> Iterator[tuple[str, object]]:
    """Yield the fields that were sent with a verb, by the names of arguments and options."""
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield from _sent_fields(value)
        elif not (isinstance(model, AboutClone) and name in ("kind", "key")):
            yield field.alias or name, value


def _arguments(command: str, values: Mapping[str, object], subject: str) -> Sequence[str]:
    """Return the arguments of `zsnapdb`. `parse` refuses a value that is no argument or option of the command."""
    rest = {name: value for name, value in values.items() if value is not None and value is not False}
    positional = [word.strip("[]").lower() for word in SERVED[command].words]
    words = [str(rest.pop(name)) for name in positional if name in rest]
    options = [f"--{name}" if value is True else f"--{name}={value}" for name, value in rest.items()]
    return parse((command, *options, *words), subject, SERVED).words


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}s"
