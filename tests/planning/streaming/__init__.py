"""Operands that stream from the store."""
