"""`poetc`, and `python -m poetc`."""

import os


def main() -> None:
    # Before numpy is loaded: its thread pool costs more than it gives on the small products of the host interpreter.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from poetc.cli import main as command_line

    command_line()


if __name__ == "__main__":
    main()
