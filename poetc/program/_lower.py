"""Schedule + MemoryPlan → Program: every action becomes an instruction, every tensor reference an offset."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from poetc.devices.tables import moved_by_rows, summed_tables
from poetc.graph import DType, Graph, Operator, Phase, Role, TensorType, TrainingGraph
from poetc.ops import Bound, Kernel, bind, spec, view_roots
from poetc.program._absences import absences_at
from poetc.program._banks import bank_peaks, gap, in_window, with_room
from poetc.program._blocks import blocks_in, call_in_blocks, sums_page
from poetc.program._check import ProgramError, check_program, operands
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
    QueueEntry,
    Space,
    reads_ahead,
    streams_of,
)
from poetc.program._queues import queues_of, workers_of
from poetc.program._state_file import CHECKPOINT_SLOTS, blocks_of_slot, paged_bytes
from poetc.runtime.layout import ALIGNMENT_BYTES, DEFAULT_BLOCK_BYTES, align, page_bytes
from poetc.scheduling import Allocation, Compute, Free, MemoryPlan, Paging, Problem, Schedule
from poetc.scheduling import Move as MoveAction
from poetc.scheduling import PageIn as PageInAction
from poetc.scheduling import PageOut as PageOutAction

_GIVEN = (Role.INPUT, Role.TARGET)


def lower(
    graph: Graph,
    problem: Problem,
    schedule: Schedule,
    plan: MemoryPlan,
    *,
    name: str | None = None,
    layout: Program | None = None,
    around: bool = False,
    starts: Mapping[str, int] | None = None,
) -> Program:
    """The program that runs `schedule` in the places that `plan` gives.

    `problem` was built from `graph` (same names). `layout` is another program of the same model, whose state and
    constants this one shares at the same offsets. Everything else is moved above its state, unless `plan` was made
    `around` it (`pack_around`). `starts`: the addresses of the arena's parts, where the problem has banks; on this
    machine they adjoin. The name defaults to "train" for a TrainingGraph and "infer" for another. Raises
    ProgramError if they do not fit together.
    """
    plan, banks = in_window(problem, schedule, plan, starts)
    program = Lowering(graph, problem, schedule, plan, layout, around, banks=banks).program(
        name or ("train" if isinstance(graph, TrainingGraph) else "infer")
    )
    if starts is not None and banks:
        program = replace(program, arena_address=starts[banks[0].name])
    check_program(program)
    return program


def lower_inference(
    graph: Graph,
    problem: Problem,
    schedule: Schedule,
    plan: MemoryPlan,
    training: Program,
    *,
    name: str = "infer",
    around: bool = False,
) -> Program:
    """`lower` of a forward-only graph, with the state and the constants where the training program has them."""
    return lower(graph, problem, schedule, plan, name=name, layout=training, around=around)


def without_loss(evaluation: Program) -> Program:
    """The program `infer` that `evaluation` is with a loss: the same actions in the same places, but for the loss."""
    loss, target = evaluation.outputs[0], evaluation.target
    assert target is not None
    left_out = {loss.operand.tensor, target.operand.tensor}
    instructions = tuple(
        i
        for i in evaluation.instructions
        if left_out.isdisjoint(o.tensor for o in (i.outputs if isinstance(i, Call) else (i.operand,)))
    )
    program = replace(
        evaluation,
        name="infer",
        instructions=instructions,
        target=None,
        outputs=evaluation.outputs[1:],
        absences=tuple(absences_at([(b.operand, {b.name}) for b in evaluation.state], instructions)),
    )
    program = replace(program, high_water_bytes=high_water(program))
    check_program(program)
    return program


@dataclass(frozen=True, slots=True)
class _Stay:
    """A tensor's bytes: readable at schedule actions [first, end), at `offset`."""

    first: int
    end: int
    offset: int
    size: int


@dataclass(slots=True)
class Lowering:
    graph: Graph
    problem: Problem
    schedule: Schedule
    plan: MemoryPlan
    layout: Program | None
    around: bool  # the plan's offsets are those of `layout`
    beside: Lowering | None = None  # another plan of the same step, lowered before: constants and pages are shared
    banks: tuple[BankRange, ...] = ()
    starts: list[int] = field(default_factory=list)  # for each action of the schedule, the instructions before it
    stays: dict[str, list[_Stay]] = field(init=False)
    workspaces: dict[int, list[Allocation]] = field(init=False)
    roots: dict[str, str] = field(init=False)
    known: dict[str, int] = field(init=False)  # tensor name -> Problem index
    flash: dict[str, Binding] = field(init=False)
    flash_bytes: int = field(init=False)
    pages: dict[str, int] = field(init=False)  # tensor name -> index into page_table
    page_table: list[Page] = field(init=False)
    next_version: dict[str, str] = field(init=False)  # state → the version that replaces it in place
    fixed_state: dict[str, Binding] = field(init=False)

    def __post_init__(self) -> None:
        layout = self.layout
        self.known = {t.name: i for i, t in enumerate(self.problem.tensors)}
        self.roots = view_roots(self.graph)
        self.fixed_state = {b.name: b for b in layout.state} if layout else {}
        self.flash = {b.name: b for b in layout.constants} if layout else {}
        self.flash_bytes = layout.flash_bytes if layout else 0
        self.page_table = list(layout.pages) if layout else []
        of_state = ((i, p) for i, p in enumerate(self.page_table) if (p.image or p.is_input) and not p.is_sums)
        self.pages = {p.tensor: i for i, p in of_state}
        if self.beside is not None:
            self.flash, self.flash_bytes = dict(self.beside.flash), self.beside.flash_bytes
            self.page_table, self.pages = self.beside.page_table, self.beside.pages
        names = [t.name for t in self.problem.tensors]
        self.next_version = {
            names[pair.input]: names[pair.output]
            for op in self.problem.operators
            for pair in op.in_place
            if pair.required
        }
        self.next_version |= {names[p.input]: names[p.output] for op in self.problem.operators for p in op.replaces}
        for op in self.graph.operators:  # in this order whatever the schedule, so that programs of a model agree
            for root in (self.roots[t] for t in op.inputs):
                if root in self.graph.values and root not in self.known and root not in self.fixed_state:
                    self._constant(root)
        self.stays = {}
        self.workspaces = {}
        for allocation in self.plan.allocations:
            if allocation.operator is not None and not allocation.tensors:
                self.workspaces.setdefault(allocation.operator, []).append(allocation)
            for (tensor, first), following in itertools.zip_longest(allocation.tensors, allocation.tensors[1:]):
                # The operator that takes the bytes over still reads its input, in the action where its output begins.
                end = allocation.end if following is None else following[1] + 1
                tensor_name = names[tensor]
                stay = _Stay(first, end, self._moved(tensor_name, allocation.offset_bytes), allocation.size_bytes)
                self.stays.setdefault(tensor_name, []).append(stay)

    # --- places -------------------------------------------------------------------------------------------------------

    def _moved(self, tensor: str, offset: int) -> int:
        """An offset of the plan in this program: the same, unless the state at the bottom is laid out by `layout`."""
        if self.layout is None or self.around:
            return offset
        if tensor in self.fixed_state:
            return self.fixed_state[tensor].operand.offset_bytes
        if offset < self.plan.state_bytes:
            raise ProgramError(
                f"{tensor or 'workspace'}: lies among the state, but the program that lays it out has no such state"
            )
        return offset - self.plan.state_bytes + self.layout.state_bytes

    def _operand(self, tensor: str, at: int, *, written: bool = False) -> Operand:
        """Where the bytes of `tensor` (maybe a view) are when action `at` runs."""
        root = self.roots[tensor]
        type = self.graph.tensors[tensor].type
        if root in self.known:
            for stay in self.stays.get(root, ()):
                if (stay.first == at) if written else (stay.first <= at < stay.end):
                    if type.size_bytes > stay.size:
                        raise ProgramError(f"{root}: {type.size_bytes} bytes in an allocation of {stay.size}")
                    return Operand(Space.ARENA, stay.offset, type, root)
            raise ProgramError(f"action {at}: {root} is not in RAM")
        if root in self.fixed_state:
            return Operand(Space.ARENA, self.fixed_state[root].operand.offset_bytes, type, root)
        if root not in self.flash:
            raise ProgramError(f"{root}: no operator makes it, and it has no value")
        return replace(self.flash[root].operand, type=type)

    def _constant(self, root: str) -> None:
        """A place in flash, if it has none yet."""
        if root not in self.flash:
            tensor = self.graph.tensors[root]
            operand = Operand(Space.FLASH, self.flash_bytes, tensor.type, root)
            self.flash[root] = Binding(root, tensor.role, operand)
            self.flash_bytes = align(self.flash_bytes + tensor.size_bytes)

    def _workspace(self, operator: int, at: int, size_bytes: int) -> Operand | None:
        if size_bytes == 0:
            return None
        for a in self.workspaces.get(operator, ()):
            if a.start <= at < a.end and a.size_bytes >= size_bytes:
                type = TensorType((size_bytes,), DType.U8)
                return Operand(Space.ARENA, self._moved("", a.offset_bytes), type, "")
        name = self.problem.operators[operator].name
        raise ProgramError(f"action {at}: {name} needs {size_bytes} bytes of workspace and the plan has none")

    # --- instructions -------------------------------------------------------------------------------------------------

    def instructions(self, written: Collection[int] = ()) -> tuple[Instruction, ...]:
        """All of them; `written`: the pages that the run has written before."""
        lowered: list[Instruction] = []
        self.starts.clear()
        for at, instruction in self._instructions(set(written)):
            while len(self.starts) <= at:
                self.starts.append(len(lowered))
            lowered.append(instruction)
        while len(self.starts) <= len(self.schedule.actions):
            self.starts.append(len(lowered))
        return tuple(lowered)

    def _instructions(self, written: set[int]) -> Iterator[tuple[int, Instruction]]:
        operators = {op.name: op for op in self.graph.operators}
        for at, action in enumerate(self.schedule.actions):
            match action:
                case Compute(operator=index):
                    call = self._call(operators[self.problem.operators[index].name], index, at, written)
                    written.update(s.page for s in streams_of(call) if s.source is None and s.page is not None)
                    yield at, call
                case PageOutAction(tensor=index):
                    page = self._page(self.problem.tensors[index].name)
                    if self.page_table[page].image and self.page_table[page].slots == 1:
                        continue  # never updated: the store holds these very bytes
                    written.add(page)
                    yield at, PageOut(self._operand(self.problem.tensors[index].name, at), page)
                case PageInAction(tensor=index):
                    page = self._page(self.problem.tensors[index].name)
                    tensor = self.problem.tensors[index].name
                    source = self._source(tensor, page, written)
                    yield at, PageIn(self._operand(tensor, at, written=True), page, source)
                case MoveAction(tensor=index):
                    tensor = self.problem.tensors[index].name
                    source_place, place = self._operand(tensor, at - 1), self._operand(tensor, at, written=True)
                    if source_place != place:  # else it is there already
                        yield at, Move(place, source_place)
                case Free():
                    pass

    def _call(self, op: Operator, index: int, at: int, written: Collection[int]) -> Call:
        kind, bound = spec(op.kind), bind(op, self.graph.tensors)
        if self.problem.operators[index].cut:
            return self._streamed_call(op, bound, index, at, written)
        kernel = self._kernel(op, index, kind.kernels(bound))
        return Call(
            operator=op.name,
            kind=op.kind,
            attributes=op.attributes,
            inputs=tuple(self._operand(t, at) for t in op.inputs),
            outputs=tuple(self._operand(t, at, written=True) for t in op.outputs),
            symbol=kernel.symbol,
            ints=kernel.ints,
            floats=kernel.floats,
            workspace=self._workspace(index, at, kernel.workspace_bytes),
            node=op.source,
        )

    def _streamed_call(self, op: Operator, bound: Bound, index: int, at: int, written: Collection[int]) -> Call:
        wanted = self.problem.operators[index]
        blocks = blocks_in(op, bound, wanted, self.problem, self.roots, self._block_bytes)
        workspace = self._workspace(index, at, wanted.workspace_bytes)
        if blocks is None or workspace is None or align(blocks.workspace_bytes) != wanted.workspace_bytes:
            raise ProgramError(f"{op.name}: there are no blocks of {wanted.block} along {wanted.cut}; solve again")
        stored = [s for s in blocks.streams if not s.in_ram]
        pages = {s.tensor: self._page(s.tensor) for s in stored}
        sources = {t: self._source(t, page, written) for t, page in pages.items()}
        whole = set(range(len(op.inputs) + len(op.outputs))) - {s.operand for s in stored}
        names = (*op.inputs, *op.outputs)
        places = {n: self._operand(names[n], at, written=n >= len(op.inputs)) for n in whole}
        return call_in_blocks(op, bound, blocks, workspace, places, pages, wanted.rewritten_bytes, sources)

    def _source(self, tensor: str, page: int, written: Collection[int]) -> PageSource:
        """The write of a page in which a reader finds this tensor."""
        region = self.page_table[page]
        if region.image and (page not in written or tensor == region.tensor):
            # The last run's slot holds the first version even after the new one is written.
            return PageSource.LAST_RUN if region.slots == 2 else PageSource.IMAGE
        return PageSource.THIS_RUN

    def _kernel(self, op: Operator, index: int, kernels: tuple[Kernel, ...]) -> Kernel:
        """The one that the problem names; the fastest where it names none."""
        wanted = self.problem.operators[index]
        kernel = next((k for k in kernels if wanted.kernel in ("", k.name)), None)
        if kernel is None:
            known = ", ".join(k.name for k in kernels)
            raise ProgramError(f"{op.name}: there is no kernel {wanted.kernel} for it, but {known}; solve again")
        size_bytes = align(kernel.workspace_bytes)
        if size_bytes != wanted.workspace_bytes:
            reason = f"the kernel {kernel.name} has a workspace of {size_bytes} bytes"
            raise ProgramError(f"{op.name}: {reason}, not of {wanted.workspace_bytes}; solve again")
        return kernel

    # --- pages --------------------------------------------------------------------------------------------------------

    @property
    def _block_bytes(self) -> int:
        if self.layout is not None and self.layout.pages:
            return self.layout.block_bytes
        return self.problem.page_buffer_bytes or DEFAULT_BLOCK_BYTES

    def _chain(self, tensor: str) -> list[str]:
        """The versions of state, the first one given."""
        chain = [tensor]
        while chain[-1] in self.next_version:
            chain.append(self.next_version[chain[-1]])
        return chain

    def _add_page(
        self, tensor: str, *, slots: int = 1, image: bool = False, final: str = "", is_input: bool = False
    ) -> int:
        type = self.graph.tensors[tensor].type
        last = self.page_table[-1] if self.page_table else None
        first = last.first_block + last.block_count * last.slots if last else self._blocks_of_checkpoints()
        count = page_bytes(type.size_bytes, self._block_bytes) // self._block_bytes
        self.page_table.append(Page(first, count, type.size_bytes, tensor, slots, image, final, type, is_input))
        return len(self.page_table) - 1

    def _blocks_of_checkpoints(self) -> int:
        """They come before the pages where all state is in RAM: see `checkpoint_block`."""
        if self.layout is not None:
            sizes = [b.operand.type.size_bytes for b in self.layout.state]
        else:
            tensors = self.graph.tensors
            state = [t for t in self.problem.tensors if t.initial and tensors[t.name].role not in _GIVEN]
            if any(t.initial == "store" for t in state):
                return 0
            sizes = [tensors[t.name].size_bytes for t in state]
        return CHECKPOINT_SLOTS * blocks_of_slot(sum(align(size) for size in sizes), self._block_bytes)

    def _state_pages(self) -> None:
        """Inputs that lie on the store, and state: one page for its first and last version, two slots if they are two.

        A version between them has a page of its own, should it ever be moved there.
        """
        tables = dict.fromkeys(summed_tables(self.graph, self.problem, self._block_bytes), 0)
        tables |= moved_by_rows(self.graph, self.problem, self._block_bytes)
        for tensor in self.problem.tensors:
            if tensor.initial != "store" or tensor.name in self.pages:
                continue
            if self.graph.tensors[tensor.name].role in _GIVEN:
                self.pages[tensor.name] = self._add_page(tensor.name, is_input=True)
            else:
                chain = self._chain(tensor.name)
                page = self._add_page(tensor.name, slots=min(len(chain), 2), image=True, final=chain[-1])
                self.pages |= {chain[0]: page, chain[-1]: page}
                if tensor.name in tables:
                    self.page_table.append(sums_page(self.page_table[-1], tables[tensor.name], self._block_bytes))

    def _page(self, tensor: str) -> int:
        if tensor not in self.pages:
            self.pages[tensor] = self._add_page(tensor)
        return self.pages[tensor]

    # --- bindings -----------------------------------------------------------------------------------------------------

    def _at_start(self, root: str) -> Operand:
        type = self.graph.tensors[root].type
        for stay in self.stays.get(root, ()):
            if stay.first == 0:
                return Operand(Space.ARENA, stay.offset, type, root)
        raise ProgramError(f"{root}: must be in RAM when a run begins, and the plan has no place for it")

    def _at_end(self, tensor: str) -> Operand:
        root = self.roots[tensor]
        type = self.graph.tensors[tensor].type
        for stay in self.stays.get(root, ()):
            if stay.end >= len(self.schedule.actions):
                return Operand(Space.ARENA, stay.offset, type, root)
        raise ProgramError(f"{root}: must be in RAM when a run ends, and the plan has no place for it")

    def _input(self, tensor: str) -> Binding | None:
        """None: nothing reads it."""
        if tensor not in self.known:
            return None
        described = self.graph.tensors[tensor]
        if self.problem.tensors[self.known[tensor]].initial == "store":
            place = Operand(Space.STORE, 0, described.type, tensor)
            return Binding(tensor, described.role, place, page=self._page(tensor))
        return Binding(tensor, described.role, self._at_start(tensor))

    def _target(self) -> Binding | None:
        named = (self.graph.target,) if isinstance(self.graph, TrainingGraph) else self.graph.inputs
        return next((self._input(t) for t in named if self.graph.tensors[t].role is Role.TARGET), None)

    def _state(self) -> Iterator[Binding]:
        if self.layout is not None:
            yield from (replace(b, final_tensor=b.name) for b in self.layout.state)
            return
        for tensor in self.problem.tensors:
            role = self.graph.tensors[tensor.name].role
            if tensor.initial == "ram" and role not in _GIVEN:
                final = self._chain(tensor.name)[-1]
                operand = self._at_start(tensor.name)
                if self._at_end(final).offset_bytes != operand.offset_bytes:
                    raise ProgramError(f"{tensor.name}: {final} ends the run elsewhere than {tensor.name} began it")
                yield Binding(tensor.name, role, operand, final)

    def _probes(self, instructions: tuple[Instruction, ...]) -> Mapping[str, tuple[int, Operand]]:
        if not isinstance(self.graph, TrainingGraph):
            return {}
        probes: dict[str, tuple[int, Operand]] = {}
        readers: dict[str, tuple[int, Operand]] = {}  # gradient -> the first update that reads it
        phases = {op.name: op.phase for op in self.graph.operators}
        for i, instruction in enumerate(instructions):
            if isinstance(instruction, Call) and phases[instruction.operator] is Phase.UPDATE:
                for operand in instruction.inputs:
                    readers.setdefault(operand.tensor, (i, operand))
        for parameter, gradient in self.graph.gradients.items():
            if self.roots[gradient] in readers and readers[self.roots[gradient]][1].space is not Space.STORE:
                index, operand = readers[self.roots[gradient]]
                whole, type_of_gradient = self.graph.tensors[parameter].type, self.graph.tensors[gradient].type
                is_whole = whole.elements == type_of_gradient.elements  # else a weight is trained in part
                type = TensorType(whole.shape, type_of_gradient.dtype) if is_whole else type_of_gradient
                probes[parameter] = index, replace(operand, type=type)
        return probes

    def _absences(self, instructions: tuple[Instruction, ...], state: tuple[Binding, ...]) -> Iterator[Absence]:
        """The instructions during which the place of state in RAM does not hold it, and the page that has it then."""
        return absences_at([(b.operand, set(self._chain(b.name))) for b in state], instructions)

    # --- all of it ----------------------------------------------------------------------------------------------------

    def program(self, name: str) -> Program:
        self._state_pages()
        instructions = self.instructions()
        state = tuple(sorted(self._state(), key=lambda b: b.operand.offset_bytes))
        training = isinstance(self.graph, TrainingGraph)
        target = self._target()
        inputs = [self._input(t) for t in self.graph.inputs if not (target and t == target.name)]
        results = self.graph.outputs  # of training and evaluation the loss comes first
        outputs = tuple(Binding(t, self.graph.tensors[t].role, self._at_end(t)) for t in results)
        state_bytes = self.layout.state_bytes if self.layout else self.plan.state_bytes
        arena_bytes = self._top(self.plan.arena_bytes, state_bytes)
        pages = any(isinstance(i, PageOut | PageIn) or streams_of(i) for i in instructions)
        bindings = [b for b in (*inputs, target) if b]
        buffer_offset = self._page_buffer(instructions, bindings, arena_bytes, state_bytes) if pages else None
        arena_bytes = max(arena_bytes, 0 if buffer_offset is None else buffer_offset + self._block_bytes)
        program = Program(
            name=name,
            instructions=instructions,
            arena_bytes=arena_bytes,
            state_bytes=state_bytes,
            flash_bytes=self.flash_bytes,
            inputs=tuple(b for b in inputs if b),
            target=target,
            outputs=outputs,
            state=state,
            constants=tuple(self.flash.values()),
            pages=tuple(self.page_table) if pages else (),
            block_bytes=self._block_bytes,
            page_buffer_offset=buffer_offset,
            probes=self._probes(instructions) if training else {},
            absences=tuple(self._absences(instructions, state)),
            banks=with_room(self.layout.banks, arena_bytes) if self.layout is not None else self.banks,
        )
        self._check_capacity(program)
        program = replace(program, high_water_bytes=high_water(program))
        return replace(program, queues=self._queues(program))

    def _queues(self, program: Program) -> tuple[tuple[QueueEntry, ...], ...]:
        """One for each processor, and one of the transfers where they overlap compute.

        None where all is done in turn.
        """
        overlaps = self.problem.paging is Paging.DMA
        processors = workers_of(program, self.schedule.actions, self.starts, overlaps=overlaps)
        count = max([*processors, *map(reads_ahead, program.instructions)]) + 1
        return queues_of(program, processors, count) if count > 1 else ()

    def _page_buffer(
        self, instructions: tuple[Instruction, ...], inputs: list[Binding], arena_bytes: int, state_bytes: int
    ) -> int:
        """Offset of the page buffer, one block: the plan's nameless allocation, or else above all others.

        Inputs on the store pass through it before the first action, beside the other inputs. Streams have their own.
        """
        if any(isinstance(i, PageOut | PageIn) for i in instructions):
            for a in self.plan.allocations:
                if not a.tensors and a.operator is None and a.size_bytes >= self._block_bytes:
                    return self._moved("", a.offset_bytes)
            return arena_bytes
        if any(b.page is not None for b in inputs):
            return gap(state_bytes, [b.operand for b in inputs if b.page is None], self._block_bytes)
        return next(i.blocks.buffer.offset_bytes for i in instructions if isinstance(i, Call) and i.blocks)

    def _top(self, arena_bytes: int, state_bytes: int) -> int:
        return align(arena_bytes - self.plan.state_bytes + state_bytes, ALIGNMENT_BYTES)

    def _check_capacity(self, program: Program) -> None:
        capacity = self.problem.store_capacity_bytes
        needed = paged_bytes(program)
        if capacity is not None and needed > capacity:
            raise ProgramError(f"the pages need {needed} bytes of the store, which has {capacity}")


def bank_high_water(program: Program) -> tuple[int, ...]:
    """`high_water` within each part of the arena, from where the part begins."""
    return bank_peaks(program, operands(program))


def high_water(program: Program) -> int:
    """The end of the highest byte of the arena that anything occupies.

    Sizes are not rounded up, but the state is written whole.
    """
    ends = [program.state_bytes]
    ends += [o.offset_bytes + o.type.size_bytes for o in operands(program) if o.space is Space.ARENA]
    if program.page_buffer_offset is not None:
        ends.append(program.page_buffer_offset + program.block_bytes)
    return max(ends)
