"""The forms in which a value is searched for."""

from __future__ import annotations

import base64

import pytest

from zsnapdb.planning.clone.masking import canaries, forms, longest


@pytest.mark.parametrize("before", [b"", b"x", b"xy", b"xyz", b"a longer text before "])
@pytest.mark.parametrize("after", [b"", b"x", b"xy", b"@example.invalid"])
def test_a_value_is_found_in_base64_wherever_it_lies(before: bytes, after: bytes) -> None:
    encoded = base64.b64encode(before + b"Zo Secret" + after)
    assert any(form in encoded for form in forms("Zo Secret"))


@pytest.mark.parametrize("charset", ["utf-8", "latin-1", "utf-16-be", "utf-16-le"])
def test_a_value_is_found_in_the_character_sets_of_columns(charset: str) -> None:
    assert any(form in "… Zoë Sécret …".replace("…", "-").encode(charset) for form in forms("Zoë Sécret"))


def test_a_value_is_found_as_a_word_of_a_fulltext_index() -> None:
    assert b"zsecret" in forms("ZSECRET")


def test_values_are_known_by_their_number_and_no_form_is_so_short_that_it_occurs_by_chance() -> None:
    made = canaries(("ZSECRET", "other value"))
    assert [canary.number for canary in made] == [1, 2]
    assert min(len(form) for form in made[0].forms) >= 6
    assert longest(made) == 22
    assert longest(()) == 0
