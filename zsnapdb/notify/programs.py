"""Runs the program that delivers a notification: sendmail, or a script of the site."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence

from zsnapdb.base import program_start
from zsnapdb.base.errors import CommandError
from zsnapdb.base.program_start import for_site
from zsnapdb.notify.failure import DeliveryFailure

_OUTPUT = 500


def run(argv: Sequence[str], text: bytes, seconds: float) -> None:
    """Run the program with the text on stdin, and return after exit status 0. DeliveryFailure otherwise.

    It has the environment of this process without secrets. After `seconds` its process group is killed.
    """
    with tempfile.TemporaryFile() as content, tempfile.TemporaryFile() as output:
        content.write(text)
        content.seek(0)
        try:
            process = subprocess.Popen(
                argv,
                stdin=content,
                stdout=output,
                stderr=output,
                env=for_site(),
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise DeliveryFailure(f"{argv[0]} cannot be started: {error.strerror}", may_work_later=False) from None
        try:
            status = program_start.wait(process, seconds, output)
        except subprocess.TimeoutExpired:
            raise DeliveryFailure(f"{argv[0]} did not end within {seconds:.1f} s", may_work_later=True) from None
        except CommandError as error:
            raise DeliveryFailure(error.message, may_work_later=True) from None
        finally:
            if process.poll() is None:
                program_start.kill(process, is_group=True)
        output.seek(0)
        said = " ".join(output.read(_OUTPUT).decode(errors="replace").split())
    if status != 0:
        more = f": {said}" if said else ""
        raise DeliveryFailure(f"{argv[0]} ended with exit status {status}{more}", may_work_later=True)
