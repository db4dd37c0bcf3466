"""The example files that come with zsnapdb: configurations, units, policies, grants, hooks.

A wheel has the example files in the package's folder `shipped`. In a source tree, they are outside the package.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import UsageError
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.mysql.connection import greeting
from zsnapdb.mysql.schema import schema_catalogue
from zsnapdb.planning.server_family import flavour_in
from zsnapdb.planning.sql_quoting import quoted

_PACKAGE = Path(__file__).parents[2]
_FOLDERS = ("configs", "hooks", "docs")
_PAGES = (
    "disaster-recovery.md",
    "doctor.md",
    "health.md",
    "notifications.md",
    "other-snapshots.md",
    "restore.md",
    "servers.md",
)
"""The pages for administrators. The other pages in `docs` are for contributors."""
_ACCOUNT = re.compile(r"\bzsnapdb@localhost\b")
DEFAULT_USER = "zsnapdb"


@dataclass(frozen=True)
class Example:
    """An example file, with its name for `zsnapdb example`."""

    name: str
    file: Path

    @property
    def text(self) -> str:
        return self.file.read_text(encoding="utf-8")


def examples() -> tuple[Example, ...]:
    """Return all examples, sorted by name."""
    shipped = _PACKAGE / "shipped"
    root = shipped if shipped.is_dir() else _PACKAGE.parent
    pages = {root / "docs" / page for page in _PAGES}
    known = [
        Example(_name(file.relative_to(root)), file)
        for folder in _FOLDERS
        for file in sorted((root / folder).rglob("*"))
        if file.is_file() and (folder != "docs" or file in pages)
    ]
    return tuple(sorted(known, key=lambda example: example.name))


def _name(path: Path) -> str:
    parts = path.parts[1:] if path.parts[0] == "configs" else path.parts
    return "/".join(parts).replace(".example.", ".")


def find(name: str) -> Example:
    """Return the example with that full name, or the example whose last path component is that name.

    Raises UsageError, which lists all names, if there is no such example.
    """
    known = examples()
    matching = [example for example in known if example.name == name or example.name.endswith(f"/{name}")]
    if len(matching) != 1:
        raise UsageError(
            f"there is no example {name!r}", hint=f"choose from: {', '.join(example.name for example in known)}"
        )
    return matching[0]


def flavour_of(instance: Instance) -> Flavour:
    """Return the flavour of the instance's running server. This works before zsnapdb has an account on the server.

    Raises ServerError if the server cannot be reached.
    """
    return flavour_in(greeting(instance.address))


def grants(flavour: Flavour, user: str = DEFAULT_USER) -> str:
    """Return the statements that create zsnapdb's account `user` with its privileges on a server of this flavour."""
    text = find(f"grants-{flavour.value}.sql").text
    return text if user == DEFAULT_USER else _ACCOUNT.sub(lambda _: f"{quoted(user)}@localhost", text)


_MOST = 500
_PATIENCE = 3.0
"""The time limit in seconds for each answer of the server.

The limit is short, because a person is waiting at the shell.
"""


def table_names(instance: Instance, beginning: str) -> list[str]:
    """Return completions for `beginning`: the schemas, each with a dot, and the tables of the schema in `beginning`.

    Raises ServerError if the server does not answer.
    """
    schema, dot, _ = beginning.partition(".")
    with instance.session(read_timeout=_PATIENCE) as session:
        if not dot:
            return [f"{name}." for name in schema_catalogue.schemas(session)]
        return [f"{schema}.{name}" for name in schema_catalogue.names(session, schema, _MOST)]
