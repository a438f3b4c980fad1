"""Fuzz targets, a parser each: `python -m tests.fuzz`, or `make fuzz`."""
