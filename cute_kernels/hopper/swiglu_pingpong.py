"""`swiglu_pingpong` (Kernel-1): out = silu(x @ w_gate.T) * (x @ w_up.T) on SM90, one B operand after the other.

A consumer runs the gate's k loop, applies SiLU to the accumulators in its registers, runs up's k loop into other registers, and
stores the product. Each k loop is one turn of pingpong:

    consumer 1   gate of t | SiLU .... | up of t     | store t .........| gate of t + 2 ...
    consumer 2   ......... | gate t + 1| SiLU .......| up of t + 1 | store t + 1 ...

so SiLU runs under the other consumer's gate loop and the store under its up loop; the producer loads in the order of turns. With
an odd number of tiles the last one's loops follow each other without a turn.

A stage holds rows of A and of one weight only, so A is read twice: more bytes per operation than `swiglu_stacked`, which is why
that one wins most shapes (notebook 11). What a thread holds between the loops is the activated gate: as fp32, beside the
accumulators of up, or rounded to bf16 pairs (`packed`), half the registers and a wider tile.

Pipelines, shared memory: hopper/kernel.py, with one block of B in a stage. Measured on the H200:
notebooks/measured/h200/bench.json.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from . import epilogue, mainloop, trace, visitor
from .config import TileConfig, slot_widths
from .gated import TwoWeights
from .kernel import PLAIN, Variant

PACKED_MOST = 160  # registers of both branches, packed: the compiler holds many values between SiLU and packing


@dataclass(frozen=True)
class TwoLoopConfig(TileConfig):
    """A `TileConfig` of the two-loop kernel. packed: the activated gate waits for up as bf16 pairs, not as fp32."""

    schedule: str = "pingpong"
    packed: bool = False

    @property
    def loops(self) -> int:
        return 2

    @property
    def name(self) -> str:
        return super().name + ("_packed" if self.packed else "")

    def accumulators(self, b_parts: int) -> int:
        """fp32 registers per consumer thread that hold both branches."""
        one = super().accumulators(b_parts)
        return one + (one // 2 if self.packed else one)

    def validate(self, b_parts: int = 1, majors: tuple[str, str] = ("k", "k")) -> "TwoLoopConfig":
        self.need(self.schedule == "pingpong", f"schedule is {self.schedule!r}, this kernel takes pingpong")
        self.need(isinstance(self.packed, bool), f"packed is {self.packed!r}, must be a bool")
        super().validate(b_parts, majors)
        self.need(
            not self.packed or self.accumulators(b_parts) <= PACKED_MOST,
            f"{self.accumulators(b_parts)} registers of a packed gate and up, at most {PACKED_MOST} compile without spills",
        )
        return self


CONFIGS = (
    TwoLoopConfig(128, 96, cluster=(2, 1), stages=7, epi_slots=3),
    TwoLoopConfig(128, 96, cluster=(1, 2), stages=7, epi_slots=3),
    TwoLoopConfig(128, 80, cluster=(2, 1), stages=7, epi_slots=4),
    TwoLoopConfig(128, 64, cluster=(2, 1), stages=8, epi_slots=2),
    TwoLoopConfig(64, 192, cluster=(2, 1), stages=6, epi_slots=1),
    TwoLoopConfig(64, 128, cluster=(2, 1), stages=8, epi_slots=1),
)


class SwigluPingpong(TwoWeights):
    """One weight after the other: a stage holds rows of x and of one of them."""

    blocks = 1

    def __init__(self, config: TwoLoopConfig, dtype, variant: Variant = PLAIN):
        super().__init__(config, dtype, variant)
        bias = visitor.leaves(self.gate_tree)
        config.need(not (config.packed and bias), "a packed gate leaves no registers for the gate's bias")
        self.early_weights = (
            False  # its first loads alternate between two operands: it asks L2 for the gate's, and waits
        )

    def stored_tree(self, tree: visitor.Node) -> visitor.Node:
        self.gate_tree, up_tree = tree.inputs  # the gate's is evaluated between the loops
        return visitor.Apply(tree.function, (visitor.Accumulator(0), up_tree))

    @cute.jit
    def produce(self, ring, walk, k_tiles, load_a, from_a, to_a, loads_b, parts, events):
        """The loading warp: gate of two tiles, then up of the same two, as the consumers take turns."""
        mask_a, mask_b = self.multicast_masks(walk.rank_m, walk.rank_n)
        state = mainloop.producer_state(self.config.stages)
        log, written = self.trace.begin(events, self.cta(walk), 0)
        writes = cute.arch.lane_idx() == 0
        for index in cutlass.range(walk.first, walk.tiles, 2 * walk.step, unroll=1):
            for part in cutlass.range_constexpr(2):
                for tile in cutlass.range(index, cutlass.min(walk.tiles, index + 2 * walk.step), walk.step, unroll=1):
                    m, n = self.tile(walk, tile)
                    for k in cutlass.range(k_tiles, unroll=1):
                        written = self.trace.mark(log, written, trace.WAIT, writes)
                        ring.producer_acquire(state)
                        written = self.trace.mark(log, written, trace.LOAD, writes)
                        self.send(ring, state, load_a, from_a, to_a, state.index, m, k, mask_a)
                        to_b, from_b = parts[part]
                        self.send(ring, state, loads_b[part], from_b, to_b, state.index, n, k, mask_b)
                        state.advance()
        written = self.trace.mark(log, written, trace.WAIT, writes)
        ring.producer_tail(state)
        written = self.trace.mark(log, written, trace.IDLE, writes)

    @cute.jit
    def consume(self, ring, walk, k_tiles, group, lane, sA, sB, slots, store, tma_out, operands, events):
        """A consumer warp group: every second tile; gate in one turn, up in the next."""
        c = self.config
        mma, up, frag_a, frag_b = self.accumulator(group, sA, sB)
        gate = cute.make_rmem_tensor(up.shape, cutlass.Float32)
        held = cute.make_rmem_tensor((cute.size(up) // 2,), Int32) if c.packed else gate
        out = self.output(group, lane, slots, store, tma_out, operands)
        log, written = self.trace.begin(events, self.cta(walk), 1 + group)
        state = mainloop.consumer_state(c.stages)
        if group == 1:  # begins with the second tile, and gives the other one its first turn
            state.advance(k_tiles)
            self.your_turn(0)
        for index in cutlass.range(walk.first + group * walk.step, walk.tiles, 2 * walk.step, unroll=1):
            m, n = self.tile(walk, index)
            shared = group == 1 or index + walk.step < walk.tiles  # the other one has a tile beside this one

            written = self.trace.mark(log, written, trace.ORDER, lane == 0)
            self.my_turn(group)
            written = self.mark_multiply(ring, state, log, written, lane)
            state, done = mainloop.issue(ring, state, k_tiles, mma, gate, frag_a, frag_b)
            if shared:
                self.your_turn(1 - group)
                state.advance(k_tiles)
            mainloop.finish(ring, done)
            written = self.trace.mark(log, written, trace.ACTIVATE, lane == 0)
            self.activate(gate, held, operands, lane, m, n, out.shape)

            written = self.trace.mark(log, written, trace.ORDER, lane == 0)
            if shared:
                self.my_turn(group)
            written = self.mark_multiply(ring, state, log, written, lane)
            state, done = mainloop.issue(ring, state, k_tiles, mma, up, frag_a, frag_b)
            if index + walk.step < walk.tiles:  # the other one's gate: of this pair, or of the next
                self.your_turn(1 - group)
            if shared:
                state.advance(k_tiles)
            mainloop.finish(ring, done)
            written = self.store_tile((held, up), m, n, out, log, written)
        written = self.trace.mark(log, written, trace.WAIT, lane == 0)
        epilogue.drain(lane)
        written = self.trace.mark(log, written, trace.IDLE, lane == 0)

    @cute.jit
    def activate(self, gate, held, operands, lane, m, n, shape):
        """held = the left half of the tree, evaluated on the accumulators of the gate."""
        c = self.config
        columns = visitor.slot_columns(self.gate_tree, slot_widths(c.tile_n), self.spare_registers())
        values = visitor.Slab(self.gate_tree, operands, columns)
        across, in_slab = c.tile_n // columns, columns // 2
        for slab in cutlass.range_constexpr(c.group_rows // epilogue.SLOT_M * across):
            r, s = slab // across, slab % across
            loaded = values.load(lane, m * c.tile_m + r * epilogue.SLOT_M, n * c.tile_n + s * columns, shape)
            base = (r * across + s) * in_slab

            def accumulator(part, v, base=base):
                return gate[base + v]

            if cutlass.const_expr(c.packed):
                for v in cutlass.range_constexpr(0, in_slab, 2):
                    exact = cute.make_rmem_tensor((2,), cutlass.Float32)
                    for i in cutlass.range_constexpr(2):
                        exact[i] = values.value(loaded, accumulator, v + i)
                    pair = cute.make_rmem_tensor((2,), self.dtype)
                    pair.store(exact.load().to(self.dtype))  # both at once: one instruction
                    held[(base + v) // 2] = cute.recast_tensor(pair, Int32)[0]
            else:
                for v in cutlass.range_constexpr(in_slab):
                    held[base + v] = values.value(loaded, accumulator, v)

    def part_of(self, acc, part, base, v):
        held, up = acc
        i = base + v
        if part == 1:
            return up[i]
        if not self.config.packed:
            return held[i]
        pair = cute.make_rmem_tensor((2,), self.dtype)
        cute.recast_tensor(pair, Int32)[0] = held[i // 2]
        return pair[i % 2].to(cutlass.Float32)
