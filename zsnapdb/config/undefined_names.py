"""Undefined names in a configuration. They are searched in the raw document, to report them with all other errors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from zsnapdb.base.patterns import INSTANCE


def unknown_names(raw: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a sentence for each invalid or undefined name of an instance or repository.

    `raw` is the TOML document, whose values may have any type; values of a wrong type are skipped.
    """
    instances, repositories = _table(raw, "instance"), _table(raw, "repository")
    sentences = [sentence for name, table in instances.items() for sentence in _of_instance(name, table, repositories)]
    silenced = _table(raw, "doctor").get("silenced")
    for rule in silenced if isinstance(silenced, list) else ():
        name = rule.get("instance") if isinstance(rule, dict) else None
        if isinstance(name, str) and name not in instances:
            sentences.append(
                f"doctor.silenced for the rule {rule.get('rule')} names instance {name!r}, which is not configured"
                f"{_choices(instances)}"
            )
    unmasked = _table(raw, "serve").get("unmasked")
    sentences += [
        f"serve.unmasked names instance {name!r}, which is not configured{_choices(instances)}"
        for name in (unmasked if isinstance(unmasked, list) else ())
        if isinstance(name, str) and name not in instances
    ]
    return tuple(sentences)


def _of_instance(name: str, table: object, repositories: Mapping[str, Any]) -> Iterator[str]:
    if not re.fullmatch(INSTANCE, name):
        yield f"instance name {name!r} is not valid; use at most 48 lower-case letters, digits, - and _"
    if not isinstance(table, dict):
        return
    own = table.get("repository")
    if isinstance(own, str) and own not in repositories:
        yield f"instance {name} names repository {own!r}, which is not configured{_choices(repositories)}"
    target = _table(_table(table, "agent"), "copy_to").get("to")
    for copy in (*_table(_table(table, "objectives"), "copies"), *([target] if isinstance(target, str) else [])):
        if copy not in repositories or copy == own:
            others = [repository for repository in repositories if repository != own]
            yield f"instance {name} has copies in {copy!r}, which is no other configured repository{_choices(others)}"


def _choices(names: Iterable[str]) -> str:
    """Return the configured names in brackets; "" if there is none."""
    known = ", ".join(sorted(names))
    return f" (configured: {known})" if known else ""


def _table(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    inner = table.get(key)
    return inner if isinstance(inner, dict) else {}
