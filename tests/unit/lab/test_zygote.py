"""A child of the zygote copies its pages at once: later first writes cost nothing."""

from __future__ import annotations

import subprocess
import sys

from tests.lab.guest import CHECKOUT

PAGES = 4000
SCRIPT = f"""
import os, resource, sys
sys.path.insert(0, {str(CHECKOUT)!r})
from tests.lab.inside import zygote
memory = bytearray(b"x" * {PAGES * 4096})
def written():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    memory[::4096] = bytes(len(memory[::4096]))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
for owns in (False, True):
    if os.fork() == 0:
        if owns:
            zygote._own_pages()
        print(written(), flush=True)
        os._exit(0)
    os.wait()
"""


def test_a_child_that_owns_its_pages_takes_no_fault_at_its_first_write_to_each() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=True)
    shared, own = map(int, done.stdout.split())
    assert shared > PAGES / 2
    assert own < PAGES / 20
