"""`make references`: writes the generated pages, and removes manual pages of removed commands."""

from __future__ import annotations

from tools.references.pages import MAN, ROOT, made


def main() -> None:
    """Write the pages that differ, and print their names."""
    texts = made()
    for name, text in texts.items():
        file = ROOT / name
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            print(name)
    for file in (ROOT / MAN).iterdir():
        if f"{MAN}/{file.name}" not in texts:
            file.unlink()
            print(f"{MAN}/{file.name} (removed)")


if __name__ == "__main__":
    main()
