"""`python -m poetc`."""

from poetc.cli import main

if __name__ == "__main__":
    main()
