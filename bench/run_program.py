"""`python -m bench.run_program PROGRAM ARGUMENT...` becomes the program: a child process that is not Python."""

from __future__ import annotations

import os
import sys


def main() -> None:
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
