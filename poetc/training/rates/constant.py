"""The rate stays."""

from __future__ import annotations

from poetc.training.rates._schedule import KINDS, Kind

KINDS.add("constant", Kind("constant", number=0, example="constant", firmware="constant", formula="base"))
