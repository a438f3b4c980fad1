"""The pages of results: tables that a benchmark makes anew."""

from __future__ import annotations

from bench._command import with_tables

PAGE = """text
<!-- t -->
| network | RAM | J |
|---|---|---|
| a | 1 | 5 |
| b | 1 | 6 |
| b | 2 | 7 |

more
"""
HEAD = ["network", "RAM", "J"]


def test_rows_that_are_not_made_anew_stay_in_their_place() -> None:
    made = {"t": [HEAD, ["b", "1", "4"], ["c", "1", "9"]]}
    page = with_tables(PAGE, made, {"t": 2})
    assert page == PAGE.replace("| b | 1 | 6 |", "| b | 1 | 4 |").replace("\n\nmore", "\n| c | 1 | 9 |\n\nmore")


def test_a_table_without_keys_or_with_another_head_is_made_as_a_whole() -> None:
    row = ["b", "1", "4"]
    assert "| a |" not in with_tables(PAGE, {"t": [HEAD, row]})
    assert "| a |" not in with_tables(PAGE, {"t": [[*HEAD[:2], "s"], row]}, {"t": 2})
    assert with_tables(PAGE, {"t": [HEAD]}, {"t": 2}) == PAGE  # no rows
