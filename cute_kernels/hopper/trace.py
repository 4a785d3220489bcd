"""An in-kernel timeline: each role of each CTA writes (clock, event) pairs to global memory. Off, it leaves no instruction.

A kernel is traced when it was built as `Variant(traced=True)`: its launch then takes a tensor, int64 and zeroed, of shape
(CTAs, roles, CAPACITY). One thread of a role writes. The first two entries are %globaltimer in nanoseconds and %clock64 at the
role's start, the rest are events, clock << 8 | kind. The roles of a CTA run on one multiprocessor and share its clock; the
global timer tells how far apart CTAs started. lab/timeline.py reads the tensor back.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

ROLES = ("producer", "consumer 1", "consumer 2")
CAPACITY = 2048  # events per role; what comes later is dropped

#: kinds of events; each begins a span, which the next event of its role ends
KINDS = ("idle", "wait", "load", "order", "mma", "epilogue", "store", "activation")
IDLE, WAIT, LOAD, ORDER, MULTIPLY, EPILOGUE, STORE, ACTIVATE = range(len(KINDS))


class Trace:
    """Whether a kernel is traced. `mark` returns the number of events written so far; off, it returns what it was given."""

    def __init__(self, on: bool):
        self.on = on

    @cute.jit
    def begin(self, events, cta, role):
        """The start of a role: its slice of the tensor, and how many entries it has."""
        count = Int32(0)
        mine = events
        if cutlass.const_expr(self.on):
            mine = events[cta, role, None]
            mine[0] = cute.arch.globaltimer()
            mine[1] = cute.arch.clock64()
            count = Int32(2)
        return mine, count

    @cute.jit
    def mark(self, mine, count, kind: cutlass.Constexpr, writes):
        """Event `kind` now. writes (bool): whether this thread is the one of its role that writes."""
        if cutlass.const_expr(self.on):
            if writes and count < CAPACITY:
                mine[count] = (cute.arch.clock64() << 8) | Int64(kind)
            count += 1
        return count
