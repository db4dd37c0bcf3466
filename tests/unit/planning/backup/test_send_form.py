"""The form of the streams: what is scarce decides."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.planning.backup.send_form import (
    SEND_FLAGS,
    Compressibility,
    SendForm,
    ZstdEffect,
    choose_form,
    form_of,
    forms_of,
)

HALVED = Compressibility(logical=100 << 30, lying=50 << 30, zstd=ZstdEffect(0.3, "in it"), level=3, processors=8)
sizes = st.integers(min_value=0, max_value=1 << 50)
facts = st.builds(
    Compressibility,
    logical=sizes,
    lying=sizes,
    zstd=st.none() | st.builds(ZstdEffect, st.floats(min_value=0.01, max_value=1.1), st.just("in it")),
    level=st.integers(min_value=0, max_value=19),
    processors=st.integers(min_value=1, max_value=256),
)


@pytest.mark.parametrize(
    ("known", "form", "reason"),
    [
        (HALVED, SendForm.PLAIN, "the pool stores 50% of the data's bytes, zstd 30% in it"),
        (replace(HALVED, processors=1), SendForm.COMPRESSED, "the server needs the only processor"),
        (
            replace(HALVED, zstd=ZstdEffect(0.49, "in it", 3.14)),
            SendForm.COMPRESSED,
            "zstd 49% in it for 3.1 s of a processor",
        ),
        (replace(HALVED, zstd=None), SendForm.PLAIN, "nothing is known of what zstd saves"),
        (replace(HALVED, level=0), SendForm.COMPRESSED, "level 0 saves none"),
        (replace(HALVED, lying=99 << 30, processors=1), SendForm.PLAIN, "99% of the data's bytes, so it saves little"),
        (replace(HALVED, logical=0, lying=0, processors=1), SendForm.PLAIN, "saves little"),
    ],
)
def test_what_is_scarce_decides_the_form_of_a_new_chain(known: Compressibility, form: SendForm, reason: str) -> None:
    choice = choose_form(known)
    assert (choice.form, reason in choice.reason) == (form, True), choice


@given(facts)
def test_blocks_are_sent_as_they_lie_only_if_the_pool_saved_a_tenth(known: Compressibility) -> None:
    if choose_form(known).form is SendForm.COMPRESSED:
        assert known.lying <= known.logical * 0.9


@given(facts, st.integers(min_value=0, max_value=1 << 50))
def test_a_pool_that_compresses_better_never_makes_the_stream_plain(known: Compressibility, less: int) -> None:
    better = replace(known, lying=max(0, known.lying - less))
    if choose_form(known).form is SendForm.COMPRESSED:
        assert choose_form(better).form is SendForm.COMPRESSED


def test_every_form_has_flags_of_its_own_and_unknown_flags_have_none() -> None:
    assert [form_of(SEND_FLAGS[form]) for form in SendForm] == list(SendForm)
    assert form_of(("-R",)) is None
    assert (forms_of("plain"), forms_of("raw")) == ((SendForm.PLAIN,), (SendForm.RAW,))
    assert forms_of("auto") == (SendForm.PLAIN, SendForm.COMPRESSED), "a raw chain begins only when it is asked for"
