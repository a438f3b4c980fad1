"""Stores on this machine: files, flash and cards, pages, checkpoints, and cuts of power."""
