"""Where the runtime's numbers lie in memory and on the store, as poetc.h has it."""

from __future__ import annotations

ALIGNMENT_BYTES = 16
TRAILER_BYTES = 16  # at the end of the last block of every page: page, stamp, size, CRC-32, each 32 bits, little-endian
CHECKPOINT_TRAILER_BYTES = 32  # of a checkpoint: POETC_CHECKPOINT_TRAILER
CHECKPOINT_WORDS_BYTES = 32  # of the caller, in every checkpoint: POETC_CHECKPOINT_WORDS of 4 bytes
DEFAULT_BLOCK_BYTES = 512
SUMMED_BYTES = 8192  # of a table that is read by rows: a checksum each, POETC_SUMMED_BYTES


def page_bytes(size_bytes: int, block_bytes: int) -> int:
    """The bytes of a page with `size_bytes` of data on the store: with its trailer, in whole blocks."""
    return align(size_bytes + TRAILER_BYTES, block_bytes)


def sums_bytes(size_bytes: int) -> int:
    """The bytes of the checksums of all pieces of a table, 32 bits each."""
    return 4 * -(-size_bytes // SUMMED_BYTES)


def changed_bytes(rows: int) -> int:
    """The bytes of a list of rows that a step may have changed, behind the checksums: a count, and their numbers."""
    return 4 + 4 * rows


def parts_of_row(row_bytes: int) -> int:
    """Pieces with a checksum in which a row has a part, at most."""
    return -(-(row_bytes - 1) // SUMMED_BYTES) + 1


def has_sums(size_bytes: int, block_bytes: int) -> bool:
    """Whether a table of so many bytes has checksums, where it lies on a store with such blocks."""
    return size_bytes >= 2 * SUMMED_BYTES and SUMMED_BYTES % block_bytes == 0


def align(size_bytes: int, to: int = ALIGNMENT_BYTES) -> int:
    """`size_bytes` rounded up to a multiple of `to`."""
    return -(-size_bytes // to) * to
