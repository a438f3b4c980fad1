"""`poetc`, and `python -m poetc`."""

import os


def main() -> None:
    # Before numpy is loaded: its thread pool costs more than it gives on the small products of the host interpreter.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        from poetc.cli import main as command_line
    except KeyboardInterrupt:  # while modules are loaded
        os.write(2, b"poetc: interrupted\n")
        os._exit(130)
    command_line()


if __name__ == "__main__":
    main()
