"""These tests need the outside models: POETC_MODELS names their folder (`make conformance MODELS=...`)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

collect_ignore_glob = [] if "POETC_MODELS" in os.environ else ["test_*.py"]

if "POETC_MODELS" in os.environ:
    for folder in ("light", "zoo", "thirdparty", "reference", "data"):
        if not any((Path(os.environ["POETC_MODELS"]) / folder).glob("*")):
            raise pytest.UsageError(f"POETC_MODELS={os.environ['POETC_MODELS']}: nothing in {folder}/")
