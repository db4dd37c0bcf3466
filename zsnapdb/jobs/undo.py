"""Undoes what a failing block began."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def undone_on_error(undo: Callable[[], None]) -> Iterator[None]:
    """Call `undo` if the block fails. The block's own error is what is raised; a failure of `undo` is noted on it."""
    try:
        yield
    except BaseException as error:
        try:
            undo()
        except Exception as second:
            error.add_note(f"and while undoing what was begun: {second}")
        raise
