"""A clone gets the lowest free port of its range."""

from __future__ import annotations

import pytest

from zsnapdb.base.errors import PreflightError
from zsnapdb.planning.clone.kept_ports import choose_port


def test_the_lowest_free_port_is_taken() -> None:
    assert choose_port(33070, 33079, {33070}, lambda port: port != 33071) == 33072


def test_a_full_range_of_ports_says_so() -> None:
    with pytest.raises(PreflightError, match="no free port from 1 to 2"):
        choose_port(1, 2, {1}, lambda port: False)
