"""Every path of the project that the pages for developers name exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.references.pages import ROOT

DOCS = ROOT / "docs"
PAGES = [
    path
    for path in (
        DOCS / "architecture.md",
        *sorted((DOCS / "architecture").glob("*.md")),
        DOCS / "lab.md",
        DOCS / "threat-model.md",
    )
    if path.exists()
]
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`]+)`")
PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)+/?|[a-z_]+/")
FILE = re.compile(r"\.(py|md|txt|toml|json|sql|yml|html|patch)$")
TOP_FOLDERS = tuple(sorted(f"{path.name}/" for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "."))
PACKAGES = tuple(sorted(f"{path.name}/" for path in (ROOT / "zsnapdb").iterdir() if path.is_dir()))


def named_paths(text: str) -> Iterator[str]:
    """Return the paths in code quotes that begin with a folder of the project or of `zsnapdb`, and files in folders."""
    for quoted in CODE.findall(FENCE.sub("", text)):
        path = quoted.split()[0] if quoted.strip() else ""
        if PATH.fullmatch(path) and (path.startswith(TOP_FOLDERS + PACKAGES) or FILE.search(path)):
            yield path


def exists(path: str) -> bool:
    """Whether a path leads to a file or folder, from the top of the project or of `zsnapdb`."""
    return (ROOT / path).exists() or (ROOT / "zsnapdb" / path).exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_named_paths_of_a_page_exist(page: Path) -> None:
    assert [path for path in named_paths(page.read_text(encoding="utf-8")) if not exists(path)] == []


def names_in_files(text: str) -> list[tuple[str, str]]:
    """Return the pairs of "`name` in `path.py`" (or "of"): a name of the code and the module that has it."""
    return re.findall(r"`([A-Za-z_]+)`\s+(?:in|of)\s+`([\w/]+\.py)`", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_modules_have_the_names_that_a_page_gives_them(page: Path) -> None:
    for name, path in names_in_files(page.read_text(encoding="utf-8")):
        (file,) = (found for found in (ROOT / path, ROOT / "zsnapdb" / path) if found.exists())
        assert re.search(rf"\b{name}\b", file.read_text(encoding="utf-8")), f"{name} in {path}"


def test_names_in_files_are_found() -> None:
    assert names_in_files("the `run` of\n`jobs/run.py`, `x` in `y`, `Z` in `a/b.py`") == [
        ("run", "jobs/run.py"),
        ("Z", "a/b.py"),
    ]


def test_architecture_names_many_paths() -> None:
    named = {path for page in PAGES for path in named_paths(page.read_text(encoding="utf-8"))}
    assert len(named) > 100
    assert {"tests/unit/test_layering.py", "jobs/backup/run.py"} <= named


def listed_packages(text: str) -> set[str]:
    """Return the folders in the tree of Architecture, relative to `zsnapdb`."""
    found, parent = set[str](), ""
    for line in text.partition("```\nzsnapdb/\n")[2].partition("```")[0].split("\n"):
        names = re.findall(r"(?:^|(?<= ))([a-z_]+)/(?= |$)", line)
        if re.match(r"  \S", line) and names:
            parent = names[0]
            found.add(parent)
        elif names:
            found |= {f"{parent}/{name}" for name in names}
    return found


def test_architecture_lists_every_package() -> None:
    modules = (ROOT / "zsnapdb").rglob("__init__.py")
    packages = {path.parent.relative_to(ROOT / "zsnapdb").as_posix() for path in modules} - {"."}
    listed = listed_packages((DOCS / "architecture.md").read_text(encoding="utf-8"))
    with_use_cases = ("jobs/", "mysql/", "planning/")
    assert listed == {name for name in packages if "/" not in name or name.startswith(with_use_cases)}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("`jobs/none.py` and `zsnapdb/none/`", ["jobs/none.py", "zsnapdb/none/"]),
        ("`tests/none.py --only X`, `docs/none.md`", ["tests/none.py", "docs/none.md"]),
        ("`other/none.py`", ["other/none.py"]),
        ("`/run/zsnapdb`, `<instance>/writer.lock`, `unfinished/<id>.json`, `arch/um`", []),
    ],
)
def test_missing_paths_are_found(text: str, found: list[str]) -> None:
    assert [path for path in named_paths(text) if not exists(path)] == found
