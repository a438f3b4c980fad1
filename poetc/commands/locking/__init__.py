"""Schedules under version control: a lock file that CI recomputes, and the difference of two schedules in words."""

from poetc.commands.locking._check import Comparison, Report, check, findings_of, parse_tolerance
from poetc.commands.locking._check_reports import entry_text, github, junit, text
from poetc.commands.locking._diff import Difference, diff_artifacts
from poetc.commands.locking._diff_files import diff
from poetc.commands.locking._file import (
    VERSION,
    Entry,
    Hashes,
    LockFile,
    Options,
    Result,
    dumps,
    hash_of,
    hash_of_entry,
    line_of,
    read,
    write,
)
from poetc.commands.locking._lock import is_unchanged, lock, model_hash, options_of, request_of
