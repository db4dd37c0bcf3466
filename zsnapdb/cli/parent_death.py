"""A command that ends with the program that began it, if that asks for it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import MutableMapping

VARIABLE = "ZSNAPDB_ENDS_WITH"
"""The environment variable with the id of the process that asks for it: that of the parent."""
_PR_SET_PDEATHSIG = 1


def end_with_parent(environment: MutableMapping[str, str]) -> None:
    """Have SIGTERM sent to this process when its parent has gone, also by kill -9; what it began is undone then.

    The variable is taken out of the environment: programs that this one starts end as they did. The kernel looks at the
    thread of the parent that started this process (prctl(2), PR_SET_PDEATHSIG). Only Linux knows it.
    """
    parent = environment.pop(VARIABLE, None)
    if parent is None or sys.platform != "linux":
        return
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM), 0, 0, 0) != 0:
        return
    if str(os.getppid()) != parent:
        # It went before the kernel was asked.
        os.kill(os.getpid(), signal.SIGTERM)
