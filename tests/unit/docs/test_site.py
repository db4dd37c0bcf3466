"""The site of the documentation: every page is in its navigation, and every link leads to a page and a heading."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tools.references.pages import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md"))
WITH_LINKS = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "hooks" / "README.md"]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.*?)\s*$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")


def text_of(path: Path) -> str:
    return FENCE.sub("", path.read_text(encoding="utf-8"))


def anchors(path: Path) -> set[str]:
    """Return the anchors that Markdown makes of the headings of a page."""
    found = set()
    for heading in HEADING.findall(text_of(path)):
        plain = re.sub(r"[^\w\s-]", "", LINK.sub("", heading.replace("`", ""))).strip().lower()
        found.add(re.sub(r"[\s]+", "-", plain))
    return found


def broken(path: Path) -> list[str]:
    """Return the links of a page that lead nowhere. Addresses of other sites are not asked."""
    wrong = []
    for link in LINK.findall(CODE.sub(lambda code: code.group().replace("[", "("), text_of(path))):
        target, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        file = (path.parent / target).resolve() if target else path
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("path", WITH_LINKS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_leads_to_a_page_and_a_heading(path: Path) -> None:
    assert broken(path) == []


def test_a_link_to_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b` c\n[x](page.md#a-b-c) [y](page.md#d) [z](none.md) `[q](none.md)`\n```\n[r](none.md)\n```\n"
    )
    assert broken(page) == ["page.md#d", "none.md"]


def test_the_navigation_has_every_page_once() -> None:
    lines = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2].split("\n")
    listed = [line.rpartition(": ")[2] for line in lines if line.endswith(".md")]
    assert sorted(listed) == sorted(page.relative_to(DOCS).as_posix() for page in PAGES)


TITLES = {
    "vms": "Virtual machines",
    "vm": "Virtual machines",
    "faq": "FAQ",
    "json": "JSON",
    "http-api": "HTTP API",
}
"""The titles of pages whose file names are abbreviations."""


def test_title_menu_entry_and_file_name_of_a_page_are_the_same() -> None:
    lines = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2].split("\n")
    entries = dict(line.strip(" -").split(": ")[::-1] for line in lines if line.endswith(".md"))
    for page in PAGES:
        if page.stem == "index":
            continue
        stem = page.parent.name if page.stem == "README" else page.stem
        name = TITLES.get(stem, stem.replace("-", " ").capitalize())
        title = page.read_text(encoding="utf-8").partition("\n")[0]
        assert (title, entries[page.relative_to(DOCS).as_posix()]) == (f"# {name}", name)


def test_links_of_the_site_stay_in_the_site() -> None:
    for path in PAGES:
        for link in LINK.findall(text_of(path)):
            if not re.match(r"[a-z]+:|#", link):
                assert (path.parent / link.partition("#")[0]).resolve().is_relative_to(DOCS), f"{path}: {link}"


MKDOCS = shutil.which("mkdocs", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")


@pytest.mark.skipif(MKDOCS is None, reason="mkdocs is not installed (pip install '.[docs]'); the lab has it")
def test_the_site_is_built_with_strict_links(tmp_path: Path) -> None:
    assert MKDOCS is not None
    build = [MKDOCS, "build", "--strict", "--config-file", str(ROOT / "mkdocs.yml"), "--site-dir"]
    done = subprocess.run([*build, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    built = {page.relative_to(tmp_path).as_posix() for page in tmp_path.rglob("*.html")}
    for page in PAGES:
        name = page.relative_to(DOCS).with_suffix("").as_posix().removesuffix("/README")
        assert ("index.html" if name == "index" else f"{name}/index.html") in built
