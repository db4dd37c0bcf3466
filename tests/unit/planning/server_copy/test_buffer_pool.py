"""How much memory a server gets that only recovers, replays or is checked."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.planning.server_copy.copy_options import (
    DEFAULT_BUFFER_POOL,
    buffer_pool,
    buffer_pool_lines,
    current_buffer_pool,
)

GIB = 1 << 30
BIG = {"innodb_buffer_pool_size": str(100 * GIB)}


@pytest.mark.parametrize(
    ("options", "variables", "free", "limit", "size"),
    [
        ((), BIG, 32 * GIB, None, 16 * GIB),
        ((), {"innodb_buffer_pool_size": str(2 * GIB)}, 32 * GIB, None, 2 * GIB),
        # An older manifest does not say what the server had.
        ((), {}, 8 * GIB, None, 4 * GIB),
        ((), {}, 800 * GIB, None, 8 * GIB),
        ((), BIG, 32 * GIB, 10 * GIB, 6 * GIB),
        # The site's own size stays, however it is written.
        (("innodb_buffer_pool_size=1G",), BIG, 32 * GIB, None, None),
        (("loose-innodb-buffer-pool-size = 1G",), BIG, 32 * GIB, None, None),
        (("innodb_buffer_pool_instances=4",), BIG, 32 * GIB, None, 16 * GIB),
        # A server never gets less than it would take by itself.
        ((), BIG, 200 << 20, None, None),
        ((), {"innodb_buffer_pool_size": str(DEFAULT_BUFFER_POOL)}, 32 * GIB, None, None),
        ((), BIG, None, None, None),
        # What a repository says is no number that a server has.
        ((), {"innodb_buffer_pool_size": "-1"}, 8 * GIB, None, 4 * GIB),
    ],
)
def test_the_buffer_pool_is_that_of_the_source_as_far_as_there_is_memory(
    options: Sequence[str], variables: Mapping[str, str], free: int | None, limit: int | None, size: int | None
) -> None:
    assert buffer_pool(options, variables, free, limit) == size


@given(st.integers(0, 1 << 45), st.none() | st.integers(0, 1 << 45), st.none() | st.integers(0, 1 << 45))
def test_it_is_never_more_than_there_is_and_never_less_than_the_default(
    free: int, limit: int | None, had: int | None
) -> None:
    variables = {} if had is None else {"innodb_buffer_pool_size": str(had)}
    size = buffer_pool((), variables, free, limit)
    if size is not None:
        assert DEFAULT_BUFFER_POOL < size <= min(bound for bound in (free // 2, limit, had) if bound is not None)
        assert buffer_pool_lines(size) == (f"innodb_buffer_pool_size={size}",)
    else:
        assert buffer_pool_lines(size) == ()


def test_a_restore_that_goes_on_takes_no_more_than_there_is_by_then() -> None:
    assert current_buffer_pool(4 * GIB, 8 * GIB) == 4 * GIB
    assert current_buffer_pool(4 * GIB, 2 * GIB) == 2 * GIB
    assert current_buffer_pool(4 * GIB, None) is None
    assert current_buffer_pool(None, 8 * GIB) is None
