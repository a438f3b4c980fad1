"""Reports on a solved problem: plain text, and one self-contained HTML page."""

from __future__ import annotations

from poetc.artifact import Artifact
from poetc.reporting._facts import Category, Origin, gather
from poetc.reporting._solved import Solved
from poetc.reporting._words import (
    band_rows,
    compute_once,
    enough_of_keep_all,
    guesses,
    of_keep_all,
    percent,
    proof,
    recomputed,
    recomputed_of,
    rounded_up,
    shorten,
    written,
)
from poetc.reporting._words import status as status_words
from poetc.reporting.choices import choice_notes, scope_sentence
from poetc.reporting.chrome_trace import chrome_trace
from poetc.reporting.html import html
from poetc.reporting.memory_viz import memory_viz
from poetc.reporting.network import network_text, solved_network
from poetc.reporting.text import text
from poetc.reporting.timeline import memory_timeline


def reports(artifact: Artifact) -> dict[str, str]:
    """File name → content of the reports that go into a solved directory."""
    solved = Solved.from_artifact(artifact)
    return {"report.html": html(solved), "report.txt": text(solved)}
