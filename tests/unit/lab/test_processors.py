"""A lab whose guests have two processors is built beside the ordinary one, which stays as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import build
from tests.lab.cache import Cache
from tests.lab.guest import Lab
from tests.lab.host import LabError


def test_a_guest_has_one_processor_or_two(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="1 or 2 processors, not 3"):
        Lab.ready(Cache(tmp_path), processors=3)


def test_the_kernel_for_two_processors_is_not_part_of_the_ordinary_lab(tmp_path: Path) -> None:
    builder = build.Builder(Cache(tmp_path))
    ordinary = {product.name: builder.key(product) for product in build.products()}
    more = {product.name: builder.key(product) for product in build.several_processors()}
    assert not ordinary.keys() & more.keys()
    assert ordinary["kernel"] != more[build.SMP_KERNEL]
