"""Schedules: heuristics that find them, and searches that make them cheaper."""
