"""Whatever others write, no parser ends in anything but an error of the package, leaves its folder or takes long.

`python3 tests/lab campaign fuzz` tries many more examples.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.unit.support.foreign_parsers import PARSERS, ForeignParser, check


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_what_others_write_is_read_or_refused_with_an_error_of_the_package(parser: ForeignParser) -> None:
    @settings(
        max_examples=200,
        derandomize=True,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def spoil(data: st.DataObject) -> None:
        check(parser, data.draw(parser.examples))

    spoil()
