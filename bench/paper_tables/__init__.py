"""The tables of `make papers`, a module each: its runs, and its rows from their answers."""
