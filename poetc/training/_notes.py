"""Notes of the import that a training repeats."""

from __future__ import annotations

from collections.abc import Collection

from poetc.graph import TIED, Graph

MOST_TIED = 6  # weights of several operators that have a note each
_NAMED = 3  # of the others


def notes_of_import(graph: Graph, trained: Collection[str]) -> list[str]:
    """The notes of `graph`, without those on tied weights that are not trained. Many tied weights share a note."""
    names = {repr(name) for name in trained}
    notes, tied = list[str](), list[str]()
    for note in graph.notes:
        if not note.endswith(TIED):
            notes.append(note)
        elif (name := note.partition(" is the weight of ")[0]) in names:
            tied.append(name)
            notes += [note] if len(tied) <= MOST_TIED else []
    if others := tied[MOST_TIED:]:
        more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        notes.append(f"tied weights of several operators, too: {', '.join(others[:_NAMED])}{more}")
    return notes
