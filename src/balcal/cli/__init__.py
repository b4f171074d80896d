"""The command line. Results go to stdout, messages to stderr; the exit code is 0 only on success."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from balcal.cli import train, use
from balcal.cli.options import app
from balcal.cli.text import say
from balcal.runtime.names import plain

__all__ = ["app", "main", "train", "use"]


def _say(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
) -> None:
    """Print a warning as one sentence on stderr; those of other libraries with the place they come from."""
    ours = Path(filename).is_relative_to(Path(__file__).parents[1])
    sentence = f"balcal: {message}" if ours else f"{filename}:{lineno}: {category.__name__}: {message}"
    print(plain(sentence), file=sys.stderr)


def main(run: Callable[[], Any] = app) -> None:
    """Run a command. An error that the user can correct is one sentence; any other keeps its traceback."""
    warnings.showwarning = _say
    try:
        run()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        from balcal.core import BalcalError

        if not isinstance(error, BalcalError):
            raise
        say(f"balcal: {plain(error)}", file=sys.stderr)
        sys.exit(getattr(error, "exit_code", 1))
