"""Emitted code in the build systems of firmware projects."""
