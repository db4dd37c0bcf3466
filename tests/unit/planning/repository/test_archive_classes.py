"""The price of a retrieval counts the objects whose retrieval is not running yet."""

from __future__ import annotations

import pytest

from zsnapdb.base.errors import UsageError
from zsnapdb.config.repository import ARCHIVE_CLASSES
from zsnapdb.planning.repository.archive_classes import OPTIONS, TIERS, ArchivedObjects, parse_tier


def test_each_archive_class_has_options() -> None:
    assert OPTIONS.keys() == set(ARCHIVE_CLASSES)


@pytest.mark.parametrize(
    ("running", "text"),
    [
        (0, "(Standard up to 12 h, about 2.10 USD; Bulk up to 48 h, about 0.28 USD)"),
        (500, "(500 of them running; Standard up to 12 h, about 1.05 USD; Bulk up to 48 h, about 0.14 USD)"),
        (1000, "(1000 of them running)"),
    ],
)
def test_the_price_is_of_the_retrievals_that_are_left(running: int, text: str) -> None:
    archived = ArchivedObjects("DEEP_ARCHIVE", 1000, 100 << 30, running)
    assert archived.describe().startswith("1000 objects (100.0 GiB) in the archive class DEEP_ARCHIVE cannot be read")
    assert archived.describe().endswith(text)


def test_each_class_has_each_tier() -> None:
    assert [parse_tier(tier.lower()) for tier in TIERS] == list(TIERS)
    for kind in ARCHIVE_CLASSES:
        assert all(ArchivedObjects(kind, 1, 1, 0).option(tier) is not None for tier in TIERS)
    with pytest.raises(UsageError) as refused:
        parse_tier("expedited")
    assert refused.value.hint == "choose one of standard, bulk"
