"""Writes every page that is made from the code: `make references`."""

from __future__ import annotations

from tools.references.pages import PAGES, ROOT


def main() -> None:
    """Write the pages that differ, and print their names."""
    for name, make in PAGES.items():
        file, text = ROOT / name, make()
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            print(name)


if __name__ == "__main__":
    main()
