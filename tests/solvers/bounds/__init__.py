"""Bounds: relaxations, their rules, and HiGHS."""
