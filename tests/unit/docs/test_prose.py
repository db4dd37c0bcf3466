"""The number of sentences that the style forbids only falls, in each file."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import prose


def test_no_file_has_more_faults_than_recorded() -> None:
    allowed, more = prose.recorded_counts(), list[str]()
    for path in prose.files():
        faults = prose.faults_of(path)
        if len(faults) > allowed.get(path.relative_to(prose.ROOT).as_posix(), 0):
            more += [f"{fault.path}: {fault.rule}: {fault.sentence}" for fault in faults]
    assert more == []


@pytest.mark.parametrize(
    ("sentence", "rule"),
    [
        ("Of two sets the newer one is used here.", "begins with Of, What, Who or Which"),
        ("It returns what is noted about the readers.", "a clause in place of a noun"),
        ("The number of an error of the end of a file.", "three times of"),
        ("The job is begun anew after a while.", "an odd word"),
        ("word " * 31, "more than 30 words"),
    ],
)
def test_forbidden_sentence_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentence: str, rule: str) -> None:
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    page, module = tmp_path / "page.md", tmp_path / "module.py"
    page.write_text(f"# Title\n\nA plain sentence stands here. {sentence}\n")
    module.write_text(f'"""{sentence}"""\n')
    assert [fault.rule for fault in prose.faults_of(page)] == [rule]
    assert [fault.rule for fault in prose.faults_of(module)] == [rule]


def test_counts_are_lowered_and_never_raised() -> None:
    assert prose.lowered({"a": 3, "b": 2, "c": 1}, {"a": 1, "b": 5}) == {"a": 1, "b": 2}
