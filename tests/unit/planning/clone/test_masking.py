"""Whether a clone is masked, what is rebuilt for it, what is said to remain."""

from __future__ import annotations

import pytest

from zsnapdb.config import parse
from zsnapdb.errors import ConfigError, PreflightError
from zsnapdb.model import Flavour
from zsnapdb.planning.clone.masking import Table, is_masked, remains, renewing_options, to_rebuild

MARIADB = {"innodb_log_file_size": "134217728", "innodb_undo_tablespaces": "3"}


@pytest.mark.parametrize("is_requested", [True, False])
def test_a_policy_masks_whoever_asks_unless_it_was_masked_already(is_requested: bool) -> None:
    assert is_masked(required=True, configured=True, requested=is_requested, already=False)
    assert not is_masked(required=True, configured=True, requested=is_requested, already=True)
    assert is_masked(required=False, configured=True, requested=is_requested, already=False) == is_requested


def test_masking_with_nothing_is_refused() -> None:
    with pytest.raises(PreflightError, match="no masking configured"):
        is_masked(required=False, configured=False, requested=True, already=False)


def test_a_policy_without_anything_that_masks_is_no_configuration() -> None:
    text = (
        '[instance.main]\nsocket = "/s"\nrepository = "r"\n[instance.main.masking]\nrequired ='
        ' true\n[repository.r]\nurl = "file:///r"\n'
    )
    with pytest.raises(ConfigError, match="masking is required, but run is empty"):
        parse(text, "test")


def test_changed_tables_are_rebuilt_or_all_of_them_but_never_the_servers_own() -> None:
    changed, kept, system = (
        Table("shop", "a`b", "InnoDB", True),
        Table("shop", "kept", "InnoDB", False),
        Table("mysql", "user", "InnoDB", True),
    )
    assert to_rebuild([changed, kept, system], "changed") == [changed]
    assert to_rebuild([changed, kept, system], "all") == [changed, kept]
    assert changed.quoted == "`shop`.`a``b`"


def test_mariadb_is_given_other_sizes_so_that_redo_and_undo_are_made_anew() -> None:
    assert renewing_options(Flavour.MARIADB, (11, 8, 6), MARIADB) == (
        "innodb_log_file_size=142606336",
        "innodb_undo_tablespaces=4",
    )
    assert (
        renewing_options(Flavour.MARIADB, (11, 8, 6), {**MARIADB, "innodb_undo_tablespaces": "127"})[1]
        == "innodb_undo_tablespaces=126"
    )
    assert renewing_options(Flavour.MARIADB, (10, 6, 1), MARIADB) == ("innodb_log_file_size=142606336",)
    assert renewing_options(Flavour.MYSQL, (9, 7, 4), {}) == ()


def test_what_remains_is_said() -> None:
    clean = remains(Flavour.MARIADB, (11, 8, 6), MARIADB, {"InnoDB": 3}, undo_renewed=False)
    assert len(clean) == 1
    assert "snapshot" in clean[0]
    dirty = remains(
        Flavour.MARIADB,
        (10, 6, 1),
        {**MARIADB, "innodb_doublewrite": "ON", "innodb_file_per_table": "OFF"},
        {"Aria": 1},
        undo_renewed=False,
    )
    assert [
        word for word in ("ibdata1", "doublewrite", "undo", "Aria") if not any(word in line for line in dirty)
    ] == []
    assert any(
        "log files" in line for line in remains(Flavour.MYSQL, (9, 7, 4), {}, {}, undo_renewed=True, logs_known=False)
    )
    assert any("undo" in line for line in remains(Flavour.MYSQL, (8, 0, 11), {}, {}, undo_renewed=False))
