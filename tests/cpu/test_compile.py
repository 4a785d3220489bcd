"""`build` reads the right facts off an artifact, for both targets in one process, without a GPU or a driver."""

import os
import re
import subprocess
import sys
from types import SimpleNamespace

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.utils.blackwell_helpers as sm100
import pytest
import torch
from cutlass import Float32, memory
from cutlass.cute.nvgpu import OperandMajorMode, tcgen05

import cute_kernels as ck
from cute_kernels import compile as compiling


@cute.kernel
def scale_kernel(x: cute.Tensor, out: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    index = block * 128 + thread
    if index < x.shape[0]:
        out[index] = x[index] * Float32(2)


@cute.jit
def scale(x: cute.Tensor, out: cute.Tensor, stream: cuda.CUstream):
    scale_kernel(x, out).launch(grid=(cute.ceil_div(x.shape[0], 128), 1, 1), block=(128, 1, 1), stream=stream)


@cute.kernel
def umma_kernel(mma: cute.TiledMma, layout_a: cute.ComposedLayout, layout_b: cute.ComposedLayout, out: cute.Tensor):
    """One tcgen05.mma of whatever lies in shared memory: only its instructions are of interest."""
    thread, _, _ = cute.arch.thread_idx()
    smem = memory.SmemAllocator()
    slot = smem.allocate_array(cutlass.Int32, 1)
    done = smem.allocate_array(cutlass.Int64, 1)
    sA = smem.allocate_tensor(cutlass.BFloat16, layout_a.outer, 1024, swizzle=layout_a.inner)
    sB = smem.allocate_tensor(cutlass.BFloat16, layout_b.outer, 1024, swizzle=layout_b.inner)
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    if warp == 0:
        cute.arch.alloc_tmem(128, slot)
        cute.arch.mbarrier_init(done, 1)
    cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    address = cute.arch.retrieve_tmem_ptr(Float32, 16, slot)
    acc = cute.make_tensor(address, mma.make_fragment_C(mma.partition_shape_C((128, 128))).layout)
    if warp == 0:
        cute.gemm(mma, acc, mma.make_fragment_A(sA)[None, None, 0, 0], mma.make_fragment_B(sB)[None, None, 0, 0], acc)
        with cute.arch.elect_one():
            tcgen05.commit(done)
    cute.arch.mbarrier_wait(done, 0)
    atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x32), Float32)
    copy = tcgen05.make_tmem_copy(atom, acc[(None, None), 0, 0])
    mine = copy.get_slice(thread)
    registers = cute.make_rmem_tensor(mine.partition_D(cute.make_identity_tensor((128, 128))).shape, Float32)
    cute.copy(copy, mine.partition_S(acc[(None, None), 0, 0]), registers)
    cute.arch.fence_view_async_tmem_load()
    total = Float32(0)
    for i in cutlass.range_constexpr(cute.size(registers)):
        total += registers[i]
    out[thread] = total
    cute.arch.sync_threads()
    if warp == 0:
        cute.arch.dealloc_tmem(address, 128)


@cute.jit
def umma(out: cute.Tensor, stream: cuda.CUstream):
    mma = sm100.make_trivial_tiled_mma(
        cutlass.BFloat16,
        cutlass.BFloat16,
        OperandMajorMode.K,
        OperandMajorMode.K,
        Float32,
        tcgen05.CtaGroup.ONE,
        (128, 128),
    )
    layout_a = sm100.make_smem_layout_a(mma, (128, 128, 64), cutlass.BFloat16, 1)
    layout_b = sm100.make_smem_layout_b(mma, (128, 128, 64), cutlass.BFloat16, 1)
    umma_kernel(mma, layout_a, layout_b, out).launch(grid=(1, 1, 1), block=(128, 1, 1), stream=stream)


@cute.kernel
def hungry_kernel(x: cute.Tensor, out: cute.Tensor):
    """96 live fp32 values in each of 1024 threads, which may have 64 registers: it must spill."""
    thread, _, _ = cute.arch.thread_idx()
    values = cute.make_rmem_tensor(96, Float32)
    for i in cutlass.range_constexpr(96):
        values[i] = x[thread * 96 + i]
    for step in cutlass.range(x.shape[0], unroll=1):
        factor = x[step]
        for i in cutlass.range_constexpr(96):
            values[i] = values[i] * factor + values[(i + 7) % 96]
    for i in cutlass.range_constexpr(96):
        out[thread * 96 + i] = values[i]


@cute.jit
def hungry(x: cute.Tensor, out: cute.Tensor, stream: cuda.CUstream):
    hungry_kernel(x, out).launch(grid=(1, 1, 1), block=(1024, 1, 1), stream=stream)


def vectors(count):
    return [*(ck.fake_vector("float32") for _ in range(count)), ck.env_stream()]


def test_both_targets_in_one_process():
    for arch in ("sm_90a", "sm_100a", "sm_90a"):
        c = ck.build(scale, vectors(2), arch=arch)
        assert c.target == arch and f".target {arch}" in c.ptx and c.threads == 128
        assert c.registers > 0 and c.spill_bytes == 0 and c.smem_dynamic == 0
        assert re.search(rf"\.target\s+{arch.removesuffix('a')}", c.sass)  # the cubin says so too
        assert c.mnemonics["EXIT"] >= 1


def test_tcgen05_forms_are_counted():
    c = ck.build(umma, vectors(1), arch="sm_100a")
    assert "tcgen05.mma" in c.ptx and ".target sm_100a" in c.ptx
    assert c.instructions["UTCHMMA"] >= 1 and c.instructions["LDTM"] >= 1 and c.instructions["UTCBAR"] >= 1
    assert "HGMMA" not in c.instructions
    assert c.smem_dynamic >= 2 * 128 * 64 * 2  # both operands
    with pytest.raises(ck.CompileError, match="umma for sm_90a"):
        ck.build(umma, vectors(1), arch="sm_90a")


def test_spills_are_seen():
    c = ck.build(hungry, vectors(2))
    assert c.spill_bytes > 0 and c.registers <= 64
    assert c.instructions["STL"] > 0 and c.instructions["LDL"] > 0


def test_error_names_kernel_target_and_cause():
    @cute.jit
    def broken(x: cute.Tensor, stream: cuda.CUstream):
        scale_kernel(x, undefined_name).launch(grid=(1, 1, 1), block=(1, 1, 1), stream=stream)  # noqa: F821

    with pytest.raises(ck.CompileError, match="broken for sm_90a.*undefined_name"):
        ck.build(broken, vectors(1))


def test_nothing_is_left_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ck.build(scale, vectors(2))
    assert not list(tmp_path.iterdir())


def test_calling_without_a_gpu_is_a_clean_error():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    x = torch.zeros(4, 64, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="x is on cpu"):
        ck.swiglu(x, x, x)
    with pytest.raises(ck.UnsupportedDevice, match="no CUDA GPU here.*compiled"):
        ck.device.target("cuda")


def test_import_needs_no_driver():
    """A fresh interpreter that may not see any GPU imports, lists and compiles."""
    code = (
        "import cute_kernels as ck; print([k.name for k in ck.kernels()]);"
        "c = ck.compile_only('gemm', arch='sm_90a'); print(c.target, c.registers)"
    )
    blind = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=blind)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\['gemm', 'swiglu_stacked', 'swiglu_pingpong', 'swiglu_interleaved'\]\nsm_90a 168", done.stdout)


def test_tools_are_found():
    assert compiling.find_tool("nvdisasm") and compiling.find_tool("cuobjdump")
    with pytest.raises(ck.CompileError, match="pip install nvidia-cuda-nosuchtool"):
        compiling.find_tool("nosuchtool")


@pytest.mark.parametrize(
    "order", ["import cutlass.cute as cute, cute_kernels", "import cute_kernels, cutlass.cute as cute"]
)
def test_host_probes_build_wgmma_layouts_without_a_gpu(order, tmp_path):
    """Whichever is imported first: with no GPU and no CUTE_DSL_ARCH the DSL alone would take sm_100a and refuse."""
    file = tmp_path / "probe.py"
    file.write_text(
        f"{order}\nimport cutlass\nfrom cute_kernels.hopper import tiles\n"
        "@cute.jit\ndef probe():\n    print(cute.size(tiles.tiled_mma(cutlass.BFloat16, 64).tv_layout_C_tiled))\nprobe()\n"
    )
    blind = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(compiling.Path(ck.__file__).parents[1])}
    blind.pop("CUTE_DSL_ARCH", None)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, env=blind)
    assert done.returncode == 0 and done.stdout.strip() == str(64 * 64), done.stderr[-500:]


def test_options_do_not_change_the_target():
    spec = ck.kernels()[0]
    args = [*(ck.fake_matrix("bfloat16") for _ in range(3)), compiling.cutlass.Int32(1), ck.env_stream()]
    host = spec.factory(spec.configs[-1], compiling.DTYPES["bfloat16"])
    with pytest.raises(ck.CompileError):
        ck.build(host, args, arch="sm_90a", options="--gpu-arch sm_100a")


def test_a_compilation_without_artifacts_is_an_error(monkeypatch):
    empty = SimpleNamespace(__ptx__=None, __cubin__=None)
    monkeypatch.setattr(compiling.cute, "compile", lambda *a, **k: empty)
    with pytest.raises(ck.CompileError, match="kept no PTX"):
        ck.build(lambda: None, [])
