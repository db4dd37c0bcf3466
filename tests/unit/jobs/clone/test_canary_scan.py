"""Every file of a masked clone is searched for values that must not be there."""

from __future__ import annotations

from pathlib import Path

import pytest

from zsnapdb.base.errors import ConsistencyError
from zsnapdb.jobs.clone import masking
from zsnapdb.planning.clone.masking import canaries

SECRETS = canaries(("ZSECRET", "other value"))


def test_a_clone_with_a_canary_in_any_file_is_refused_without_the_value_being_said(tmp_path: Path) -> None:
    (tmp_path / "data" / "shop").mkdir(parents=True)
    (tmp_path / "data" / "shop" / "people.ibd").write_bytes(b"\0" * 5000 + b"an other value of before")
    (tmp_path / "undo_001").write_bytes(b"\0" * 300 + "ZSECRET".encode("utf-16-be"))
    with pytest.raises(ConsistencyError) as caught:
        masking.refuse_canaries(tmp_path, SECRETS)
    assert "canary 2 in data/shop/people.ibd" in caught.value.message
    assert "canary 1 in undo_001" in caught.value.message
    assert "other value" not in str(caught.value)


def test_a_clone_without_canaries_passes(tmp_path: Path) -> None:
    (tmp_path / "people.ibd").write_bytes(b"masked" * 100)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    masking.refuse_canaries(tmp_path, SECRETS)
    masking.refuse_canaries(tmp_path, ())


@pytest.mark.parametrize("position", [0, 58, 61, 64, 120])
def test_a_canary_is_found_where_one_block_ends_and_the_next_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    monkeypatch.setattr(masking, "_BLOCK", 64)
    file = tmp_path / "file"
    file.write_bytes(b"x" * position + b"ZSECRET" + b"x" * 200)
    assert masking.numbers_in(file, SECRETS) == [1]
