"""The command line: thin verbs. Results go to stdout, messages to stderr; exit code 0 only on success."""

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
    """A warning is a sentence too, on stderr; those of other people's libraries say where they come from."""
    ours = Path(filename).is_relative_to(Path(__file__).parents[1])
    told = f"balcal: {message}" if ours else f"{filename}:{lineno}: {category.__name__}: {message}"
    print(plain(told), file=sys.stderr)


def main(run: Callable[[], Any] = app) -> None:
    """Errors that the user can mend are one sentence; anything else is ours, and keeps its traceback."""
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
