"""`poetc`, and `python -m poetc`."""

import os
import threading


def main() -> None:
    # Before numpy is loaded: its thread pool costs more than it gives on the small products of the host interpreter.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        from poetc.cli import main as command_line
    except KeyboardInterrupt:  # while modules are loaded
        os.write(2, b"poetc: interrupted\n")
        os._exit(130)
    try:
        command_line()
    except SystemExit as end:
        # A MIP that was left behind aborts the process where it asks for Python's lock while Python ends.
        if any(thread.daemon for thread in threading.enumerate()) and isinstance(end.code, int):
            os._exit(end.code)
        raise


if __name__ == "__main__":
    main()
