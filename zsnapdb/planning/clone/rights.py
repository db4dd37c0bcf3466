"""The rights of the account that the users of a clone have. Pure."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from zsnapdb.base.model import Flavour
from zsnapdb.planning.family import family


class AccountRights(StrEnum):
    """What the users of a clone may do.

    schemas: everything in every schema but the server's own, and schemas of their own; nothing that changes the server,
    its files or its accounts. all: every privilege.
    """

    SCHEMAS = "schemas"
    ALL = "all"


_OF_SCHEMAS = (
    "SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, REFERENCES, INDEX, ALTER, CREATE TEMPORARY TABLES, LOCK TABLES,"
    " EXECUTE, CREATE VIEW, SHOW VIEW, CREATE ROUTINE, ALTER ROUTINE, EVENT, TRIGGER"
)


_READS_ROUTINES = "SHOW_ROUTINE"
"""Without it mysqldump fails at a routine whose definer is another account (refman 8.4, "SHOW CREATE PROCEDURE").

MySQL 8.0.20 and later know it. On MariaDB the privileges on every schema include SHOW CREATE ROUTINE.
"""


def grants(
    rights: AccountRights, account: str, flavour: Flavour, known: Collection[str] = (), *, patterns_are_names: bool
) -> tuple[str, ...]:
    """Return the statements that give these rights to the account, which has none yet. `account` is quoted.

    A privilege on the pattern `%` counts for every schema, also for one that does not exist yet. Of several entries
    that match a schema the server uses the one with the most specific name alone (refman 8.4, "Access Control, Stage
    2: Request Verification"; MariaDB manual, "GRANT"). So the entries for `mysql` and `sys` take these schemas out: who
    can write the tables of accounts, plugins and functions, or change a routine that runs with the rights of the
    server's own accounts, gives itself every right.

    `patterns_are_names`: the server reads `%` as a name, as MySQL with partial_revokes does. There the rights are
    global, and are revoked for the two schemas. `known` are the privileges that the server knows (SHOW PRIVILEGES).
    """
    if rights is AccountRights.ALL:
        return (f"GRANT ALL PRIVILEGES ON *.* TO {account} WITH GRANT OPTION",)
    looks = [*family(flavour).privileges_to_look, *(name for name in (_READS_ROUTINES,) if name in known)]
    sees = f"GRANT {', '.join(looks)} ON *.* TO {account}"
    if patterns_are_names:
        fences = tuple(f"REVOKE {_OF_SCHEMAS} ON {schema}.* FROM {account}" for schema in ("mysql", "sys"))
        return sees, f"GRANT {_OF_SCHEMAS} ON *.* TO {account}", *fences, f"GRANT SELECT, EXECUTE ON sys.* TO {account}"
    return (
        sees,
        f"GRANT ALL PRIVILEGES ON `%`.* TO {account}",
        # LOCK TABLES alone allows nothing: it needs SELECT too.
        f"GRANT LOCK TABLES ON mysql.* TO {account}",
        f"GRANT SELECT, EXECUTE, SHOW VIEW ON sys.* TO {account}",
    )
