"""The settings in the page about object stores are valid."""

from __future__ import annotations

import re
import tomllib

import pytest
from pydantic import ValidationError
from tools.references.pages import ROOT

from zsnapdb.config.repository import RepositorySettings

BLOCK = re.compile(r"^```toml\n(.*?)^```", re.MULTILINE | re.DOTALL)


def repositories(page: str) -> list[RepositorySettings]:
    """Return the repositories in the TOML blocks of a page. Raise ValidationError if one is invalid."""
    documents = [tomllib.loads(block) for block in BLOCK.findall(page)]
    assert all(document.keys() == {"repository"} for document in documents)
    return [RepositorySettings.model_validate(found) for each in documents for found in each["repository"].values()]


def test_settings_of_object_stores_are_valid() -> None:
    found = repositories((ROOT / "docs/object-stores.md").read_text(encoding="utf-8"))
    assert len(found) >= 4
    assert all(one.url.partition(":")[0] in ("s3", "azure", "gs") and not one.flat_keys for one in found)
    endpoints = [one.s3.endpoint for one in found if one.url.startswith("s3:")]
    assert len(set(endpoints)) == len(endpoints)


@pytest.mark.parametrize("wrong", ['adressing = "path"', 'endpoint = "rgw.example.net"', 'storage_class = "GLACIER"'])
def test_wrong_setting_is_found(wrong: str) -> None:
    with pytest.raises(ValidationError):
        repositories(f'```toml\n[repository.a]\nurl = "s3://b"\n[repository.a.s3]\n{wrong}\n```\n')
