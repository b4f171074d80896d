"""The command line, in this process or as torchrun starts it."""

import itertools
import os
import socket
import subprocess
import sys
from contextlib import suppress

from balcal.cli import main


def balcal_cli(*arguments, capsys):
    """What the command does, in this process: (exit code, stdout, stderr)."""
    old, sys.argv = sys.argv, ["balcal", *map(str, arguments)]
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.argv = old
    told = capsys.readouterr()
    return code, told.out, told.err


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]


PORTS = itertools.count(os.getpid() * 37)


def free_port():
    """Below those that the system gives to whoever connects somewhere, so that nobody takes it in the meantime."""
    while True:
        port = 10_000 + next(PORTS) % 20_000
        with socket.socket() as s, suppress(OSError):
            s.bind(("127.0.0.1", port))
            return str(port)


def torchrun(*arguments):
    command = [*TORCHRUN, "--master-port", free_port(), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
