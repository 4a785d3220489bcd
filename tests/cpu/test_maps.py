"""Index maps of the finished kernels, computed from CuTe and proven on the CPU."""

import cutlass
import cutlass.cute as cute
import numpy as np
import pytest
import torch
from cutlass.cute.runtime import from_dlpack

import cute_kernels as ck
from cute_kernels.hopper import epilogue, scheduler, tiles


def accumulator_map(n, warp_groups):
    """(threads, values, 2): row and column of every accumulator value of a 64 * warp_groups x n tile."""
    found = {}

    @cute.jit
    def probe():
        tv = tiles.tiled_mma(cutlass.BFloat16, n, warp_groups).tv_layout_C_tiled
        rows = 64 * warp_groups
        values = cute.size(tv, mode=[1])
        found["mn"] = [
            [(tv((t, v)) % rows, tv((t, v)) // rows) for v in range(values)] for t in range(128 * warp_groups)
        ]

    probe()
    return np.array(found["mn"])


@pytest.mark.parametrize("n", [32, 64, 128])
@pytest.mark.parametrize("warp_groups", [1, 2])
def test_stacked_tile_puts_gate_and_up_in_one_thread(n, warp_groups):
    """Value v of the gate half and value v + n/2 belong to one thread, one row, columns j and n + j: nothing is shuffled."""
    mn = accumulator_map(2 * n, warp_groups)
    half = mn.shape[1] // 2
    assert half == n // 2
    gate, up = mn[:, :half], mn[:, half:]
    assert (gate[..., 0] == up[..., 0]).all()
    assert (gate[..., 1] + n == up[..., 1]).all()
    assert gate[..., 1].max() == n - 1
    assert len({tuple(x) for x in gate.reshape(-1, 2)}) == 64 * warp_groups * n  # every output element once
    # and the gate half is itself the accumulator of a 64 x n WGMMA: what stmatrix and the store slots expect
    assert (gate == accumulator_map(n, warp_groups)).all()


@pytest.mark.parametrize("n", [64, 128, 256])
def test_slab_is_a_contiguous_run_of_values(n):
    """Columns [j * e, (j + 1) * e) of a row slab are values [j * e/2, (j + 1) * e/2) of a thread: store_tile's `base`."""
    mn = accumulator_map(n, 1)
    e = 64
    for j in range(n // e):
        part = mn[:, j * e // 2 : (j + 1) * e // 2]
        assert (part - [0, j * e] == accumulator_map(e, 1)).all()


def test_wrong_pairing_is_caught():
    """The proof can fail: neighbours in the accumulator are columns j and j + 1, not gate and up of one element."""
    mn = accumulator_map(256, 1)
    assert not (mn[:, 0::2, 1] + 128 == mn[:, 1::2, 1]).all()


@pytest.mark.parametrize("major", ["k", "mn"])
def test_stacked_stage_is_two_stages_of_half_the_rows(major):
    """Bytes of stage s of (2T, 64) are those of stages 2s and 2s + 1 of (T, 64): two loads fill what one WGMMA reads."""
    found = {}

    @cute.jit
    def probe(t: cutlass.Constexpr, stages: cutlass.Constexpr):
        whole = tiles.operand_layout(cutlass.BFloat16, 2 * t, stages, major).outer
        part = tiles.operand_layout(cutlass.BFloat16, t, 2 * stages, major).outer
        found["whole"] = [whole((r, k, s)) for s in range(stages) for r in range(2 * t) for k in range(64)]
        found["part"] = [
            part((r % t, k, 2 * s + r // t)) for s in range(stages) for r in range(2 * t) for k in range(64)
        ]

    for t in (32, 64, 128) if major == "k" else (64, 128):
        probe(t, 3)
        assert found["whole"] == found["part"]
        assert sorted(found["whole"]) == list(range(3 * 2 * t * 64))


@pytest.mark.parametrize("dtype", [cutlass.BFloat16, cutlass.Float32], ids=["bfloat16", "float32"])
@pytest.mark.parametrize("row_bytes", sorted(epilogue.ATOMS))
def test_slots_hold_each_element_once(row_bytes, dtype):
    found = {}
    columns = row_bytes * 8 // dtype.width

    @cute.jit
    def probe():
        layout = epilogue.slot_layout(dtype, columns, 3).outer
        found["at"] = [layout((m, n, s)) for s in range(3) for m in range(64) for n in range(columns)]

    probe()
    assert sorted(found["at"]) == list(range(3 * 64 * columns))


@pytest.mark.parametrize(
    ("tiles_m", "tiles_n", "group"), [(1, 1, 8), (3, 5, 8), (8, 4, 8), (9, 7, 8), (17, 3, 4), (5, 9, 1)]
)
def test_rasterisation_visits_every_tile_once(tiles_m, tiles_n, group):
    order = torch.full((tiles_m * tiles_n, 2), -1, dtype=torch.int32)

    @cute.jit
    def walk(out: cute.Tensor, rows: cutlass.Int32, columns: cutlass.Int32, size: cutlass.Int32):
        for i in range(rows * columns):
            m, n = scheduler.grouped_tile(cutlass.Int32(i), rows, scheduler.divisors(rows, columns, size))
            out[i, 0] = m
            out[i, 1] = n

    walk(from_dlpack(order), tiles_m, tiles_n, group)
    seen = [tuple(x) for x in order.tolist()]
    assert sorted(seen) == [(m, n) for m in range(tiles_m) for n in range(tiles_n)]
    first = seen[: min(group, tiles_m)]
    assert first == [(m, 0) for m in range(len(first))]  # down a group before the next column


def test_multicast_masks():
    """Bit of every CTA that takes part: A along the row of the cluster, B along its column (M is the fast rank)."""
    from cute_kernels.hopper.kernel import WarpSpecializedGemm

    for cluster in ((1, 1), (2, 1), (1, 2), (2, 2)):
        kernel = WarpSpecializedGemm(ck.TileConfig(128, 128, cluster=cluster), cutlass.BFloat16)
        got = torch.zeros(cluster[0], cluster[1], 2, dtype=torch.int32)

        @cute.jit
        def masks(out: cute.Tensor, kernel: cutlass.Constexpr, cluster: cutlass.Constexpr):
            for m in cutlass.range_constexpr(cluster[0]):
                for n in cutlass.range_constexpr(cluster[1]):
                    a, b = kernel.multicast_masks(cutlass.Int32(m), cutlass.Int32(n))
                    out[m, n, 0] = cutlass.Int32(a)
                    out[m, n, 1] = cutlass.Int32(b)

        masks(from_dlpack(got), kernel, cluster)
        for m in range(cluster[0]):
            for n in range(cluster[1]):
                row = sum(1 << (m + cluster[0] * j) for j in range(cluster[1]))
                column = sum(1 << (i + cluster[0] * n) for i in range(cluster[0]))
                assert got[m, n].tolist() == [row if cluster[1] > 1 else 0, column if cluster[0] > 1 else 0]
