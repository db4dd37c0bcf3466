"""Counts sentences that the style of the project forbids, in pages, docstrings, comments, help texts and hints.

`python -m tools.prose` prints them. `python -m tools.prose --lower` writes the counts per file into
`tests/unit/docs/prose.txt`, and raises none. The check finds patterns only: a reader decides whether text is plain.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
COUNTS = ROOT / "tests/unit/docs/prose.txt"
GENERATED = ("docs/man/", "docs/reference/", "docs/doctor.md", "docs/copies.md")

_ODD_WORDS = (
    r"\banew\b|\bbeside\b|\bmend(s|ed)?\b|\bdeeds?\b|\bseldom\b|\bfor ever\b|\bby turns\b|\bas good as\b"
    r"|\b(is|are|was|were|be) (told|gone|away|at work|under way)\b|\bthat (is|are|was|were) there\b|\bhears? of\b"
)
RULES = {
    "begins with Of, What, Who or Which": re.compile(r"^(Of|What|Who|Whoever|Whatever|Which|Whose)\b(?!.*\?$)"),
    "a clause in place of a noun": re.compile(
        r"\bwhat (is|was|are|were|has|had|it|they|the|a|an|others|somebody|nobody|no|each|can|may|must)\b"
        r"|\b(to|by|for|from|of|as) who(ever)?\b|\bwhoever\b",
        re.IGNORECASE,
    ),
    "three times of": re.compile(r"\bof\b([^.;:]*\bof\b){2}", re.IGNORECASE),
    "an odd word": re.compile(_ODD_WORDS, re.IGNORECASE),
}
"""What is wrong with a sentence, and the pattern that shows it."""
_LONGEST = 30
"""Words of a sentence."""
_SENTENCE = re.compile(r"(?<=[.!?])[)\"'`*]*\s+(?=[A-Z`\"(\[*])")
_CODE = re.compile(r"`[^`]*`")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_BLOCK = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_ITEM = re.compile(r"^\s*([-*+]|\d+\.)\s+")


@dataclass(frozen=True)
class ProseFault:
    """A sentence, its place and the rule that it breaks."""

    path: str
    rule: str
    sentence: str


def faults_of(path: Path) -> list[ProseFault]:
    """Return the faults of a page or a Python file."""
    name = path.relative_to(ROOT).as_posix()
    text = path.read_text(encoding="utf-8")
    paragraphs = _of_page(text) if path.suffix == ".md" else _of_code(text)
    return [
        ProseFault(name, rule, sentence)
        for paragraph in paragraphs
        for sentence in _SENTENCE.split(" ".join(paragraph.split()))
        for rule in _broken_rules(sentence)
    ]


def _broken_rules(sentence: str) -> Iterator[str]:
    bare = _CODE.sub("X", sentence)
    words = re.findall(r"[\w']+", bare)
    if len(words) < 4:
        return
    yield from (rule for rule, pattern in RULES.items() if pattern.search(bare))
    if len(words) > _LONGEST:
        yield f"more than {_LONGEST} words"


def _of_page(text: str) -> Iterator[str]:
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*+]|\d+\.) )", _LINK.sub(r"\1", _BLOCK.sub("", text))):
        if not block.lstrip().startswith(("#", "|", "<!--")):
            yield _ITEM.sub("", block)


def _of_code(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and _is_text(node.value):
            yield from re.split(r"\n\s*\n|\n(?=\s*- )", str(node.value.value))  # type: ignore[attr-defined]
        elif isinstance(node, ast.keyword) and node.arg in ("hint", "help") and _is_text(node.value):
            yield str(node.value.value)  # type: ignore[attr-defined]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string.lstrip("# ")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def files() -> list[Path]:
    """Return the pages and the Python files of the product."""
    pages = [*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    found = [*pages, *ROOT.glob("zsnapdb/**/*.py")]
    return sorted(path for path in found if not path.relative_to(ROOT).as_posix().startswith(GENERATED))


def recorded_counts() -> dict[str, int]:
    """Return the recorded counts of faults, by path. A file that is not listed may have none."""
    lines = COUNTS.read_text(encoding="utf-8").splitlines() if COUNTS.exists() else []
    return {path: int(count) for count, path in (line.split(" ", 1) for line in lines)}


def lowered(known: Mapping[str, int], found: Mapping[str, int]) -> dict[str, int]:
    """Return the smaller count of each known file. Files without faults are left out."""
    return {path: least for path, count in known.items() if (least := min(count, found.get(path, 0)))}


def main() -> None:
    """Print the faults, or lower the recorded counts."""
    faults = [fault for path in files() for fault in faults_of(path)]
    found = Counter(fault.path for fault in faults)
    if "--lower" in sys.argv:
        counts = lowered(recorded_counts() or found, found)
        COUNTS.write_text("".join(f"{count} {path}\n" for path, count in sorted(counts.items())), encoding="utf-8")
        return
    for fault in faults:
        print(f"{fault.path}: {fault.rule}: {fault.sentence}")
    print(f"{len(faults)} in {len(found)} files")


if __name__ == "__main__":
    main()
