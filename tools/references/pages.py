"""All pages that are made from the code, and their places."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tools.references import doctor_rules

ROOT = Path(__file__).parents[2]

PAGES: Mapping[str, Callable[[], str]] = {
    "docs/doctor.md": doctor_rules.page,
}
"""The path of each page below the top of the checkout, and what makes its text."""
