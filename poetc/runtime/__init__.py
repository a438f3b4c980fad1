"""The C runtime that emitted programs link against: sources shipped as package data."""
