"""A device as its YAML describes it: memory, throughput, power, stores.

Every number carries its unit in its key, and a source. The file form is described in docs/how-to/add-a-device.md;
`poetc.devices.loading` reads it. Frozen once loaded.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from poetc.devices.units import format_bytes

MAIN = "main"  # the name of the processor that the profile's own sections describe

SourceKind = Literal["measured", "datasheet", "published", "modelled", "derived", "estimated"]


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a number comes from.

    `modelled`: by a model of the hardware; `derived`: computed from other numbers, the text says how; `estimated`: a
    guess.
    """

    kind: SourceKind
    text: str
    url: str = ""


class Quantity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number with its provenance. The unit is the suffix of the key that holds it.

    `low` and `high` are its band of confidence, where the source allows one.
    """

    value: int | float
    source: Source
    note: str = ""
    low: int | float | None = None
    high: int | float | None = None


class Cpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    core: str  # as compilers call it: cortex-m7
    fpu: Literal["none", "single", "double"]
    simd: Literal["none", "dsp", "neon", "helium", "sse", "avx2", "avx512"] = "none"
    numerics: Literal["separate", "fused"] = "separate"  # of its programs, if nothing else is asked for
    core_count: Quantity
    clock_hz: Quantity


class Bank(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One physical memory. A budget by bank places tensors in it; without one the cost model knows `Memory` alone.

    The costs of a byte are those beyond the memory in which the costs of `compute` were found; none: nothing.
    """

    kind: Literal["ram", "flash"]
    size_bytes: Quantity
    address: int | None = None
    read_bytes_per_s: Quantity | None = None
    read_ns_per_byte: Quantity | None = None
    write_ns_per_byte: Quantity | None = None
    read_pj_per_byte: Quantity | None = None  # apart from the power of the processor in that time
    write_pj_per_byte: Quantity | None = None
    section: str = ""  # of the linker, for the part of an arena that lies there


class Memory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ram_bytes: Quantity  # one piece that an arena, state and stack can use
    flash_bytes: Quantity | None = None
    flash_readable_in_place: bool  # constants (frozen parameters, masks) are read by the kernels from flash
    runtime_bytes: Quantity  # the runtime's own state, outside the arena
    stack_bytes: Quantity  # reserved for the deepest kernel call
    first_cache_bytes: Quantity | None = None  # of one core, for data
    cache_bytes: Quantity | None = (
        None  # the second level, of one core; data beyond it costs more, if that was measured
    )
    banks: dict[str, Bank] = {}


class Cycles(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cycles of the kernels by a model of the core's pipeline, of which `loop_ns` is made where it is not measured.

    A pass of a loop takes its instructions times the cycles of one of them, and the waits for memory. Keys of
    `per_instruction` are classes of kernels (poetc.kernels.loops).
    """

    counted: str  # the profile of an emulated board, whose `loop_ns` counts the instructions of the same kernels
    per_instruction: dict[str, Quantity]
    fetch_cycles_per_instruction: Quantity | None = None  # the wait for flash, on top
    second_ns_per_byte: Quantity | None = None  # of operands in the second level of cache
    far_ns_per_byte: Quantity | None = None  # beyond it


class Compute(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A roofline: overhead + max(macs/contraction + flops/elementwise, bytes/memory) / efficiency of the kind.

    Where a kernel's loops were measured: the sum over them of how often they run (poetc.kernels.loops) times `loop_ns`.
    """

    contraction_mac_per_s: Quantity  # dense convolution and matmul
    elementwise_flop_per_s: Quantity
    memory_bytes_per_s: Quantity
    operator_overhead_ns: Quantity
    efficiency: dict[str, Quantity] = {}  # of a kind (`Softmax`, `Conv/depthwise`), as a fraction of the roofline
    loop_ns: dict[str, dict[str, Quantity]] = {}  # by group and loop; absent in a group that is there: nothing
    cycles: Cycles | None = None


class Power(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Energy of an operator = active_w · time + the dynamic terms, where a source gives them apart from the power."""

    active_w: Quantity
    idle_w: Quantity  # while the processor waits
    pj_per_mac: Quantity | None = None
    pj_per_flop: Quantity | None = None
    pj_per_byte: Quantity | None = None


class Store(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Secondary storage.

    A transfer takes latency + bytes / bandwidth, in whole blocks, and draws the store's power and the processor's.
    """

    kind: Literal["sd", "emmc", "nor-flash", "nand-flash", "psram", "ssd", "file"]
    mode: Literal["sync", "dma"]  # dma: the hardware can transfer while the processor computes
    cpu_during_transfer: Literal["idle", "active"]  # the state of a waiting processor, which decides its power
    block_bytes: Quantity
    capacity_bytes: Quantity
    read_latency_ns: Quantity
    write_latency_ns: Quantity
    read_bytes_per_s: Quantity
    write_bytes_per_s: Quantity
    read_w: Quantity
    write_w: Quantity
    endurance_cycles: Quantity | None = None  # erase cycles of a block
    checksum_cycles_per_byte: Quantity | None = None  # of the processor, for each byte of a tensor, besides
    full_duplex: bool = False  # dma: reads and writes at once, rather than one transfer at a time


class Processor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A processor beside the main one, which `cpu`, `compute` and `power` of the profile describe.

    It runs the kinds of operators and the precisions that are listed, all where none is. Sections that it leaves out
    are those of the main one. The main one runs everything, and reaches every bank.
    """

    power: Power  # of this processor alone, beside that of the main one
    hand_over_ns: Quantity  # before it reads tensors of another processor, or another one reads its own
    cpu: Cpu | None = None
    compute: Compute | None = None
    flush_bytes_per_s: Quantity | None = None  # of operands that cross, out of one cache and into another; none: free
    kinds: tuple[str, ...] = ()
    precisions: tuple[Literal["f32", "i8"], ...] = ()
    banks: tuple[str, ...] = ()  # of RAM that it reaches


class ThreadPool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Threads inside kernels, one a core, on a device whose cores are equal.

    In n threads the work of a large kernel takes 1 / (1 + (n - 1) * efficiency) of its time, and `start_ns` more.
    """

    efficiency: Quantity  # of each core beside the first
    start_ns: Quantity  # to start the threads and to join them


class DeviceProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    title: str
    description: str = ""
    cpu: Cpu
    memory: Memory
    compute: Compute
    power: Power
    processors: dict[str, Processor] = {}  # beside the main one
    threads: ThreadPool | None = None
    stores: dict[str, Store] = {}
    default_store: str = ""  # the one that paging uses; empty if there is none

    def __repr__(self) -> str:
        return f"<device {self.name}: {self.title}; {format_bytes(self.ram_bytes)} RAM>"

    @property
    def ram_bytes(self) -> int:
        return int(self.memory.ram_bytes.value)

    def on(self, processor: str) -> DeviceProfile:
        """The device as one of its other processors sees it: with the rates and the power of that one."""
        other = self.processors[processor]
        return msgspec.structs.replace(
            self, cpu=other.cpu or self.cpu, compute=other.compute or self.compute, power=other.power
        )

    @property
    def flash_bytes(self) -> int | None:
        return None if self.memory.flash_bytes is None else int(self.memory.flash_bytes.value)

    @property
    def base_bytes(self) -> int:
        """RAM that is gone before the first tensor: the runtime's state and the stack."""
        return int(self.memory.runtime_bytes.value) + int(self.memory.stack_bytes.value)
