"""The ring of stages between TMA and WGMMA: who waits for what, and who says so.

Each stage has two mbarriers. *full*: the producer announces the stage's bytes (one arrive), TMA counts them down.
*empty*: one arrive of every consumer warp, to every CTA that multicasts into the stage. A barrier's phase is one bit
that flips each time it completes; `PipelineState` carries the stage index and that bit, so K may be of any length.
Notebook 03 builds this by hand, notebook 04 splits it over warp groups.
"""

import cutlass
import cutlass.cute as cute
from cutlass import pipeline
from cutlass.cute.nvgpu import warpgroup


def load_pipeline(barriers, stages: int, tx_bytes: int, consumer_warps: int, cluster: tuple[int, int] = (1, 1)):
    """The stage ring as CuTe's `PipelineTmaAsync`; `barriers` points to 2 * stages 64-bit words of shared memory.

    A stage is filled by the multicasts of this CTA's row and column of the cluster, so its empty barrier hears the
    consumer warps of all of those CTAs: cluster[0] + cluster[1] - 1 of them.
    """
    peers = cluster[0] + cluster[1] - 1
    return pipeline.PipelineTmaAsync.create(
        barrier_storage=barriers,
        num_stages=stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, peers * consumer_warps),
        tx_count=tx_bytes,
        cta_layout_vmnk=cute.make_layout((1, *cluster, 1)),
        defer_sync=True,
    )


def producer_state(stages: int):
    """A producer starts in the phase that an untouched empty barrier counts as passed: its first lap never waits."""
    return pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, stages)


def consumer_state(stages: int):
    return pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, stages)


@cute.jit
def mma_k_tile(mma: cute.TiledMma, acc: cute.Tensor, frag_a: cute.Tensor, frag_b: cute.Tensor, stage, first):
    """Issue the WGMMAs of one k-tile as one group. `first` (bool): overwrite the accumulator, do not add to it."""
    atom = cute.make_mma_atom(mma.op)
    atom.set(warpgroup.Field.ACCUMULATE, not first)
    warpgroup.fence()
    for k in cutlass.range_constexpr(cute.size(frag_a, mode=[2])):
        cute.gemm(atom, acc, frag_a[None, None, k, stage], frag_b[None, None, k, stage], acc)
        atom.set(warpgroup.Field.ACCUMULATE, True)
    warpgroup.commit_group()


@cute.jit
def issue(ring, state, k_tiles, mma: cute.TiledMma, acc: cute.Tensor, frag_a: cute.Tensor, frag_b: cute.Tensor):
    """Issue the WGMMAs of `k_tiles` >= 1 stages; returns (state behind them, state of the last stage).

    One WGMMA group stays in flight: stage k is handed back once group k + 1 has been issued and group k is done. The last
    one is still in flight on return: `finish` waits for it.
    """
    ring.consumer_wait(state)
    mma_k_tile(mma, acc, frag_a, frag_b, state.index, True)
    done = state.clone()
    state.advance()
    for _ in cutlass.range(1, k_tiles, unroll=1):
        ring.consumer_wait(state)
        mma_k_tile(mma, acc, frag_a, frag_b, state.index, False)
        warpgroup.wait_group(1)
        ring.consumer_release(done)
        done.advance()
        state.advance()
    return state, done


@cute.jit
def finish(ring, done):
    """Wait for the last WGMMA group and hand its stage back."""
    warpgroup.wait_group(0)
    ring.consumer_release(done)


@cute.jit
def multiply(ring, state, k_tiles, mma: cute.TiledMma, acc: cute.Tensor, frag_a: cute.Tensor, frag_b: cute.Tensor):
    """`issue` and `finish`: consume `k_tiles` >= 1 stages into the accumulator; returns the state behind them."""
    state, done = issue(ring, state, k_tiles, mma, acc, frag_a, frag_b)
    finish(ring, done)
    return state
