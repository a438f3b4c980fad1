"""A schedule as a flat list of instructions with addresses, its checks, and its interpreter."""

from poetc.program._bundle import ProgramBundle, ProgramSwitch, lower_bundle
from poetc.program._check import OFFSET_LIMIT, ProgramError, check_program
from poetc.program._image import (
    PIECE,
    constants_image,
    initial_pages,
    packed_pages,
    packed_state,
    packed_state_bytes,
    page_blocks,
    state_image,
    store_image,
)
from poetc.program._interpret import (
    Copies,
    Interpreter,
    all_inputs,
    find_binding,
    fit_input,
    inputs_on_store,
    sample_inputs,
)
from poetc.program._ir import (
    Absence,
    BankRange,
    Binding,
    Call,
    Instruction,
    Move,
    Operand,
    Page,
    PageIn,
    PageOut,
    PageSource,
    Program,
    Space,
    Stream,
    reads_ahead,
    streams_of,
)
from poetc.program._limits import (
    RAW_FROM,
    Limit,
    boxes_of,
    chance_loss,
    is_added_to_scores,
    is_scaled,
    limit_of,
    limits,
    missing,
    missing_of,
    require_usable,
    require_values,
    scales_itself,
)
from poetc.program._lower import bank_high_water, lower, lower_inference, without_loss
from poetc.program._manifest import Manifest, manifest_of
from poetc.program._queues import check_queues, queues_of, workers_of
from poetc.program._scores import class_scores
from poetc.program._state_file import (
    CHECKPOINT_SLOTS,
    TRAILER_BYTES,
    StateTensor,
    checkpoint_block,
    identity_in,
    pack_state,
    paged_bytes,
    read_listed_state,
    read_state,
    regions,
    slot_blocks,
    state_identity,
    state_in_ram_bytes,
    store_blocks,
    tensors,
)
from poetc.program._store_file import is_trained, listed_layout, state_on_store, store_layout
