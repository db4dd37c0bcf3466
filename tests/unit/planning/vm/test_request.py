"""Names, limits and space of requested machines."""

from __future__ import annotations

import pytest

from zsnapdb.base.errors import ExistsError, PreflightError, UsageError
from zsnapdb.planning.clone.lease import Quota
from zsnapdb.planning.vm import request


def test_the_template_names_each_clone_by_its_number() -> None:
    assert request.names("pxc{n}", 3) == ("pxc1", "pxc2", "pxc3")
    assert request.names("single", 1) == ("single",)


@pytest.mark.parametrize(
    ("template", "count"), [("pxc", 2), ("pxc{n}", 0), ("pxc{n}", 51), ("../{n}", 1), ("-x{n}", 1), ("", 1), ("a b", 1)]
)
def test_a_template_that_does_not_name_the_clones_is_wrong_usage(template: str, count: int) -> None:
    with pytest.raises(UsageError):
        request.names(template, count)


def test_a_name_that_a_machine_or_a_foreign_domain_has_is_refused() -> None:
    request.refuse_taken(["a"], ["b"], ["c"])
    with pytest.raises(ExistsError, match="virtual machine a"):
        request.refuse_taken(["a"], ["a"], [])
    with pytest.raises(ExistsError, match="did not make"):
        request.refuse_taken(["x", "a"], [], ["a"])


def test_the_limits_count_all_requested_machines() -> None:
    request.admit_requests(Quota(3, 0, 0), "ada", ["ada"], 1, 2)
    with pytest.raises(PreflightError, match="per_owner"):
        request.admit_requests(Quota(3, 0, 0), "ada", ["ada"], 1, 3)


def test_the_space_of_a_clone_is_thin_whatever_its_base_reserves() -> None:
    words = request.ZvolSpace("vda", 1 << 20, 16384, 2 << 20).words
    assert words == (
        "1048576 bytes, volblocksize 16384; the base reserves 2097152 bytes, the clone reserves nothing (thin)"
    )


def test_disks_in_two_pools_are_refused() -> None:
    request.refuse_other_pools(["tank", "tank"])
    with pytest.raises(PreflightError, match="several pools"):
        request.refuse_other_pools(["tank", "dozer"])
