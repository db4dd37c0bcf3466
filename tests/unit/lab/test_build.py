"""The demo builds only the products that its guests use, each after the products that it needs."""

from __future__ import annotations

from tests.lab.build import SERVERS_ONLY, products, with_needs

OF_TESTS = {"promtool", "mkdocs", "guest-agent", "guest-vm", "vm-cache"}


def test_demo_builds_no_part_that_only_tests_use() -> None:
    every = {product.name for product in products()}
    built = {product.name for product in with_needs(SERVERS_ONLY, products())}
    assert every - built == OF_TESTS


def test_products_follow_the_products_that_they_need() -> None:
    for some in (products(), with_needs(SERVERS_ONLY, products())):
        seen: set[str] = set()
        for product in some:
            assert set(product.needs) <= seen, product.name
            seen.add(product.name)
