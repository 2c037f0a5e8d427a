"""The command `klamm`.

Errors are one sentence and exit code 1, without a traceback. Only modules of the standard library are imported before
`main` runs, so that Ctrl-C during the imports prints no traceback either.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(130)


def _run() -> None:
    from klamm.cli.app import app
    from klamm.cli.client import sentence
    from klamm.cli.output import OutputGone, red

    try:
        app()
    except OutputGone:
        # Print nothing more, also when Python flushes its output at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        if (text := sentence(error)) is None:
            raise
        print(f"{red('Error:', sys.stderr)} {text}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
