"""The parts of the campaign `field` that draw and judge."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from tests.campaigns.support import field_host, field_reasons, field_truth, field_variables
from tests.campaigns.support.field_callers import Caller, Calls
from tests.campaigns.support.field_reasons import Facts
from tests.campaigns.support.field_truth import Truth
from tests.campaigns.support.field_variables import Variable, Way
from zsnapdb.base.domain_types import Flavour

LIBRARIES = frozenset({"ha_archive", "auth_ed25519", "disks", "auth_socket", "mypluglib"})
PROPERTIES = frozenset({"quota", "direct", "copies"})
VARIABLES = tuple(
    Variable(name, "OFF", ("ON",), is_dynamic, is_option)
    for name, is_dynamic, is_option in (
        ("autocommit", True, False),
        ("general_log", True, True),
        ("innodb_strict_mode", True, True),
        ("ft_min_word_len", False, True),
        ("userstat", True, True),
        ("flush", True, True),
    )
)


def facts(**variables: str) -> Facts:
    chance = random.Random(1)
    site = field_host.draw(Flavour.MYSQL, chance, LIBRARIES, PROPERTIES)
    return Facts(site, Calls(Caller.CRON, chance), Truth({}, {}, variables, {}), ())


def test_a_round_depends_on_its_number_alone() -> None:
    def drawn(number: int) -> tuple[object, ...]:
        chance = random.Random(f"1/{number}")
        site = field_host.draw(Flavour.MARIADB, chance, LIBRARIES, PROPERTIES)
        return site, field_variables.draw(VARIABLES, Flavour.MARIADB, chance, 4)

    assert drawn(3) == drawn(3)
    assert len({str(drawn(number)) for number in range(20)}) == 20


def test_a_setting_is_made_in_a_way_that_its_variable_has() -> None:
    by_name = {one.name: one for one in VARIABLES}
    seen = set()
    for number in range(200):
        for setting in field_variables.draw(VARIABLES, Flavour.MYSQL, random.Random(number), 4):
            variable = by_name[setting.name]
            assert variable.is_option if setting.way is Way.FILE else variable.is_dynamic
            seen.add((setting.name, setting.way))
    assert {way for name, way in seen if name == "userstat"} == set(Way)
    assert {way for name, way in seen if name == "ft_min_word_len"} == {Way.FILE}


@pytest.mark.parametrize(
    ("default", "bounds", "values"),
    [
        ("100", ("1", "1000", "1"), ("50", "101", "200")),
        ("4096", ("1024", "6000", "1024"), ("2048", "5120")),
        ("0", ("0", "5", None), ("1", "2")),
        ("18446744073709551615", ("1", "18446744073709551615", "0"), ("9223372036854775807",)),
        ("none", ("0", "5", None), ()),
    ],
)
def test_numbers_lie_within_the_bounds(
    default: str, bounds: tuple[str, str, str | None], values: tuple[str, ...]
) -> None:
    assert field_variables._numbers(default, bounds) == values


def test_paths_identity_and_certificates_are_not_drawn() -> None:
    for name in ("server_id", "port", "innodb_page_size", "ssl_key", "wsrep_on", "lower_case_table_names"):
        assert field_variables.exclusion(name) is not None
    for name in (*field_variables.FAVOURITES, "default_storage_engine", "sql_mode"):
        assert field_variables.exclusion(name) is None, name


def test_a_refusal_is_right_only_if_its_reason_is_true() -> None:
    said = "innodb_flush_log_at_trx_commit = 0: a snapshot may lack rows that it claims"
    right = "redo log is not flushed at commit"
    assert field_reasons.judge("backup", 4, said, facts(innodb_flush_log_at_trx_commit="0")) == right
    assert field_reasons.judge("backup", 4, said, facts(innodb_flush_log_at_trx_commit="1")) is None
    assert field_reasons.judge("restore", 4, said, facts(innodb_flush_log_at_trx_commit="0")) is None
    assert field_reasons.judge("backup", 1, said, facts(innodb_flush_log_at_trx_commit="0")) is None
    assert field_reasons.judge("backup", 4, "something else", facts(innodb_flush_log_at_trx_commit="0")) is None


def test_differences_name_what_is_missing_new_and_other() -> None:
    lines = field_truth.differences({"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "5", "d": "4"}, ("none",))
    assert lines == ["b: '2' became '5'", "c: '3' became (absent)", "d: (absent) became '4'"]
    assert field_truth.differences({"a": "1"}, {"a": "2"}, ("a",)) == []


def test_a_login_path_can_be_read_by_its_key(tmp_path: Path) -> None:
    file = tmp_path / ".mylogin.cnf"
    field_host.write_login_path(file, {"user": "dba", "host": "localhost"})
    content = file.read_bytes()
    real = bytearray(16)
    for place, byte in enumerate(content[4:24]):
        real[place % 16] ^= byte
    lines, at = [], 24
    while at < len(content):
        (length,) = struct.unpack_from("<I", content, at)
        decryptor = Cipher(algorithms.AES(bytes(real)), modes.ECB()).decryptor()
        text = decryptor.update(content[at + 4 : at + 4 + length])
        lines.append(text[: -text[-1]].decode())
        at += 4 + length
    assert lines == ["[client]\n", 'user = "dba"\n', 'host = "localhost"\n']
    assert file.stat().st_mode & 0o777 == 0o600
