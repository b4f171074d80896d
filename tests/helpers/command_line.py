"""Run the command line: in this process, or with torchrun in two."""

import itertools
import os
import socket
import subprocess
import sys
from contextlib import suppress

from balcal.cli import main


def balcal_cli(*arguments, capsys):
    """Run a command in this process; returns (exit code, stdout, stderr)."""
    old, sys.argv = sys.argv, ["balcal", *map(str, arguments)]
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.argv = old
    printed = capsys.readouterr()
    return code, printed.out, printed.err


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]


PORTS = itertools.count(os.getpid() * 37)


def free_port():
    """A port below those that the system assigns to outgoing connections, so that it stays free."""
    while True:
        port = 10_000 + next(PORTS) % 20_000
        with socket.socket() as s, suppress(OSError):
            s.bind(("127.0.0.1", port))
            return str(port)


def torchrun(*arguments):
    """Run a script or module in two processes."""
    command = [*TORCHRUN, "--master-port", free_port(), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
