"""Each variable of each recorded release is in exactly one class, and no class names a variable that no release has."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.unit.support.recorded_variables import all_variables, releases, variables_of
from zsnapdb.base.domain_types import Flavour
from zsnapdb.planning.server_copy.source_facts import OPTIONS, RECORDED, kept_statements, recorded_variables
from zsnapdb.planning.server_copy.variables import NAMES, PREFIXES, VariableClass, class_of, classes, is_name, is_secret
from zsnapdb.planning.server_family import family

LISTED = [name for names in NAMES.values() for name in names.split()]
BEGINNINGS = [prefix for prefixes in PREFIXES.values() for prefix in prefixes.split()]


def test_releases_of_both_families_are_recorded() -> None:
    assert {release.split(".")[0] for release in releases()} == {
        "mysql-5",
        "mysql-8",
        "mysql-9",
        "mariadb-10",
        "mariadb-11",
    }


@pytest.mark.parametrize("release", releases())
def test_each_variable_of_a_release_is_classified(release: str) -> None:
    unknown = [name for name in variables_of(release) if class_of(name) is VariableClass.UNKNOWN]
    assert unknown == []
    assert all(is_name(name) for name in variables_of(release))


def test_no_variable_is_in_two_classes() -> None:
    assert [name for name, count in Counter(LISTED).items() if count > 1] == []
    assert [name for name, count in Counter(BEGINNINGS).items() if count > 1] == []
    several = {
        name: hits
        for name in all_variables() - set(LISTED)
        if len(hits := [beginning for beginning in BEGINNINGS if name.startswith(beginning)]) > 1
    }
    assert {name: hits for name, hits in several.items() if len({class_of(hit) for hit in hits}) > 1} == {}


def test_each_listed_name_is_a_variable_of_a_release() -> None:
    assert set(LISTED) - all_variables() == set()
    rest = all_variables() - set(LISTED)
    assert [beginning for beginning in BEGINNINGS if not any(name.startswith(beginning) for name in rest)] == []


@pytest.mark.parametrize("release", releases())
def test_each_kept_variable_has_an_option_or_a_statement(release: str) -> None:
    """A variable that no option sets needs another way into the copy."""
    renamed = {*OPTIONS, "ignore_db_dirs"}
    without = [
        name
        for name, has_option in variables_of(release).items()
        if not has_option and class_of(name).is_kept and class_of(name) is not VariableClass.STATEMENT
    ]
    assert set(without) <= renamed


def test_an_unknown_variable_is_kept() -> None:
    assert class_of("variable_of_a_later_release") is VariableClass.UNKNOWN
    assert VariableClass.UNKNOWN.is_kept


@pytest.mark.parametrize("kind", [kind for kind in VariableClass if not kind.is_kept])
def test_what_is_left_out_has_a_reason_and_variables(kind: VariableClass) -> None:
    assert len(kind.value) > 20
    assert NAMES.get(kind) or PREFIXES.get(kind)


def test_the_list_for_pages_has_every_class() -> None:
    assert {kind for kind, _, _ in classes()} == set(VariableClass)
    assert sum(len(names) for _, names, _ in classes()) == len(LISTED)


def test_strict_variables_are_kept() -> None:
    assert {class_of(name) for flavour in Flavour for name in family(flavour).strict_variables} == {VariableClass.KEPT}


@pytest.mark.parametrize(
    "name",
    ["report_password", "wsrep_sst_auth", "s3_secret_key", "file_key_management_filekey", "some_plugin_password"],
)
def test_a_secret_is_not_recorded(name: str) -> None:
    assert is_secret(name)
    assert name not in recorded_variables({name: "hunter2", "datadir": "/d"}, {name: "EXPLICIT /etc/my.cnf"})


def test_rules_for_passwords_are_no_secrets() -> None:
    kept = {name for name in all_variables() if class_of(name).is_kept and is_secret(name)}
    assert kept == set()


def test_recorded_are_the_settings_that_were_set() -> None:
    variables = {
        "datadir": "/d/",
        "version": "9.7.4",
        "hostname": "db1",
        "innodb_strict_mode": "OFF",
        "max_allowed_packet": "64",
        "time_zone": "SYSTEM",
        "plugin_dir": "/usr/lib/plugin/",
        "init_connect": "SET @a = 1;\nSET @b = 2",
    }
    origins = {
        "innodb_strict_mode": "DYNAMIC",
        "hostname": "COMPILED",
        "plugin_dir": "EXPLICIT /etc/my.cnf",
        "init_connect": "EXPLICIT",
    }
    recorded = recorded_variables(variables, origins)
    assert set(recorded) == {"datadir", "version", "innodb_strict_mode", "time_zone", "plugin_dir", "hostname"}
    # A server that does not name origins: everything that a copy keeps.
    assert set(recorded_variables(variables, None)) == {
        "datadir",
        "version",
        "innodb_strict_mode",
        "max_allowed_packet",
        "time_zone",
    }


@pytest.mark.parametrize(
    "name",
    [
        "character_set_client",
        "character_set_connection",
        "character_set_results",
        "collation_connection",
        "sql_big_selects",
    ],
)
def test_a_setting_whose_default_follows_an_option_of_the_copy_is_recorded(name: str) -> None:
    """The source has its compiled default, since the other variable was set later. A copy starts with the option."""
    origins = {"character_set_server": "DYNAMIC", "max_join_size": "DYNAMIC"}
    variables = {name: "1", "character_set_server": "latin1", "max_join_size": "5"}
    assert recorded_variables(variables, origins)[name] == "1"
    assert f"SET GLOBAL {name} = 1;" in kept_statements(recorded_variables(variables, origins))


def test_what_a_copy_always_needs_exists_in_a_release_or_with_a_plugin() -> None:
    plugins = ("keyring_", "file_key_management_", "hashicorp_key_", "aws_key_")
    assert [name for name in RECORDED if name not in all_variables() and not name.startswith(plugins)] == []
