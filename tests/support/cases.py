"""Small files that were rebuilt from what users described in public."""

from pathlib import Path

CASES = Path(__file__).parents[1] / "cases"
