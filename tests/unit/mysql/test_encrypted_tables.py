"""A started copy that lacks its keys is not taken for a whole one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import ConsistencyError, ServerError
from zsnapdb.mysql.schema import tablespace_overwrite
from zsnapdb.mysql.session import Address, Session
from zsnapdb.planning.server_facts import ServerFacts

UNREADABLE = ServerError('(3185, "Can\'t find master key from keyring")')


class EncryptedServer(Session):
    """A server with these encrypted tables, and with or without its keys."""

    def __init__(self, *tables: tuple[str, str], has_keys: bool) -> None:
        self.address = Address("root", Path("/run/server.sock"))
        self.tables, self.has_keys = tables, has_keys

    def query(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        if "information_schema" in sql:
            return list(self.tables)
        if not self.has_keys:
            raise UNREADABLE
        return [(1,)]


MYSQL = ServerFacts(Flavour.MYSQL, "9.7.0", "uuid", 1, {}, {}, ())


def test_a_server_that_cannot_read_an_encrypted_table_is_refused_by_the_tables_name() -> None:
    with pytest.raises(ConsistencyError, match=r"`shop`\.`a``b`, which is encrypted.*3185") as refused:
        tablespace_overwrite.check(EncryptedServer(("shop", "a`b"), has_keys=False), MYSQL)
    assert refused.value.hint is not None
    assert "sandbox_reads" in refused.value.hint


def test_a_server_with_its_keys_or_without_encrypted_tables_is_whole() -> None:
    tablespace_overwrite.check(EncryptedServer(("shop", "orders"), has_keys=True), MYSQL)
    tablespace_overwrite.check(EncryptedServer(has_keys=False), MYSQL)
