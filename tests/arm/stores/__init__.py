"""Stores of emulated boards: pages, checkpoints, streams, and cuts of power."""
