"""Compiled kernels on disk: who compiles, what a name depends on, what a damaged or forbidden folder costs."""

import concurrent.futures
import dataclasses
import os
import subprocess
import sys
import zipfile

import pytest
import torch

import cute_kernels as ck
from cute_kernels import cache, evidence, registry
from cute_kernels import epilogue as ep
from cute_kernels.hopper import gated
from cute_kernels.hopper.kernel import PLAIN, Variant

SPEC = registry.get("swiglu_stacked")
CONFIG = SPEC.configs[0]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CUTE_KERNELS_CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.delenv("CUTE_KERNELS_CACHE", raising=False)
    cache._warn.cache_clear()
    return tmp_path / "kept"


def get(config=CONFIG, dtype="bfloat16", variant=PLAIN, spec=SPEC):
    return cache.compiled(spec, config, dtype, variant)


def test_a_second_call_compiles_nothing(folder):
    with ck.count_compiles() as first:
        made = get()
    with ck.count_compiles() as second:
        found = get()
    assert first == {"sm_90a": 1} and not second
    assert (found.ptx, found.cubin, found.registers, found.smem_dynamic) == (
        made.ptx,
        made.cubin,
        made.registers,
        made.smem_dynamic,
    )
    assert found.config == CONFIG and found.dtype == "bfloat16"
    with pytest.raises(TypeError, match="x: Tensor"):  # it is the function, and still alive
        found(1)
    assert cache.clear() == 1 and not list(folder.glob("*.zip"))


def test_a_second_process_compiles_nothing(folder):
    code = """
import cute_kernels as ck
from cute_kernels import cache, registry
from cute_kernels.hopper.kernel import PLAIN
spec = registry.get("gemm")
cache.compiled(spec, spec.configs[0], "float16", PLAIN)
print(ck.compile_counts())
"""
    said = [
        subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True) for _ in range(2)
    ]
    assert [s.stdout.strip() for s in said] == ["{'sm_90a': 1}", "{}"], said


def test_names_differ_in_everything_that_matters(folder):
    stacked, gemm = SPEC, registry.get("gemm")
    relu, more = ep.relu(ep.acc), ep.relu(ep.acc * 2)
    kinds = [
        (stacked, CONFIG, "bfloat16", PLAIN),
        (stacked, CONFIG, "float16", PLAIN),
        *(
            (stacked, CONFIG.with_(**{f: v}), "bfloat16", PLAIN)
            for f, v in (("group", 4), ("stages", 5), ("cluster", (1, 1)))
        ),
        (stacked, CONFIG, "bfloat16", Variant(early_weights=True)),
        (stacked, CONFIG, "bfloat16", Variant(traced=True)),
        *((stacked, CONFIG, "bfloat16", Variant(tree=gated.stacked(name))) for name in ("swiglu", "geglu", "glu")),
        (stacked, CONFIG, "bfloat16", Variant(tree=gated.stacked("swiglu", ("float32", None)))),
        *(
            (registry.get("swiglu_interleaved"), CONFIG, "bfloat16", Variant(tree=gated.paired(name)))
            for name in ("swiglu", "glu")
        ),
        (gemm, gemm.configs[0], "bfloat16", PLAIN),
        (gemm, gemm.configs[0], "bfloat16", Variant("float32")),
        (gemm, gemm.configs[0], "bfloat16", Variant(majors=("k", "mn"))),
        *((gemm, gemm.configs[0], "bfloat16", Variant(tree=ep.split(e)[0])) for e in (relu, more)),
    ]
    names = [cache.key(*kind) for kind in kinds]
    assert None not in names and len(set(names)) == len(names)
    assert names == [cache.key(*kind) for kind in kinds]
    again = cache.key(gemm, gemm.configs[0], "bfloat16", Variant(tree=ep.split(ep.relu(ep.acc))[0]))
    assert again == names[-2]


@pytest.mark.parametrize("spec", ck.kernels(), ids=lambda s: s.name)
def test_names_differ_in_every_field_of_a_configuration(folder, spec):
    base = spec.configs[0]
    names = {cache.key(spec, base, "bfloat16", PLAIN)}
    for field in dataclasses.fields(base):
        value = getattr(base, field.name)
        other = {bool: lambda v: not v, int: lambda v: v + 1, str: lambda v: v + "x", tuple: lambda v: (v[0] + 1, v[1])}
        names.add(cache.key(spec, base.with_(**{field.name: other[type(value)](value)}), "bfloat16", PLAIN))
    names.add(cache.key(dataclasses.replace(spec, arch="sm_100a"), base, "bfloat16", PLAIN))
    assert len(names) == 2 + len(dataclasses.fields(base)) and None not in names


def test_a_name_depends_on_sources_and_versions(folder, monkeypatch):
    before = cache.key(SPEC, CONFIG, "bfloat16", PLAIN)
    for module in ("cute_kernels.hopper.mainloop", "cute_kernels.compile"):
        real = evidence._code
        cache._sources.cache_clear(), evidence.kernel_digest.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(evidence, "_code", lambda name, m=module, real=real: real(name) + ("x" if name == m else ""))
            assert cache.key(SPEC, CONFIG, "bfloat16", PLAIN) != before
        cache._sources.cache_clear(), evidence.kernel_digest.cache_clear()
    for where, what, value in ((cache, "DSL_VERSION", "0"), (cache.importlib.metadata, "version", lambda name: "0")):
        with monkeypatch.context() as patch:
            patch.setattr(where, what, value)
            assert cache.key(SPEC, CONFIG, "bfloat16", PLAIN) != before
    assert cache.key(SPEC, CONFIG, "bfloat16", PLAIN) == before


def test_functions_of_others_are_not_kept(folder):
    gemm = registry.get("gemm")
    variant = Variant(tree=ep.split(ep.apply(lambda v: v * v, ep.acc))[0])
    assert cache.key(gemm, gemm.configs[0], "bfloat16", variant) is None
    with ck.count_compiles() as inside:
        get(gemm.configs[0], variant=variant, spec=gemm)
    assert inside and not folder.exists()


@pytest.mark.parametrize("damage", ["cut", "empty", "garbage", "another"])
def test_a_damaged_entry_is_made_again(folder, damage):
    get()
    (file,) = folder.glob("*.zip")
    whole = file.read_bytes()
    if damage == "another":
        with zipfile.ZipFile(file, "w") as entry:
            entry.writestr("about.json", "{}")
    else:
        file.write_bytes({"cut": whole[: len(whole) // 2], "empty": b"", "garbage": b"x" * 5000}[damage])
    with ck.count_compiles() as inside:
        get()
    assert inside == {"sm_90a": 1}
    with ck.count_compiles() as inside:
        get()
    assert not inside and not list(folder.glob(".making-*"))


def test_a_flipped_bit_is_noticed(folder):
    get()
    (file,) = folder.glob("*.zip")
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 4
    file.write_bytes(raw)
    with ck.count_compiles() as inside:
        get()
    assert inside == {"sm_90a": 1}


def test_a_process_that_dies_while_it_writes_leaves_no_entry(folder):
    """Nor a lock that the next one would wait for."""
    code = """
import os, zipfile
from cute_kernels import cache, registry
from cute_kernels.hopper.kernel import PLAIN
spec = registry.get("swiglu_stacked")
zipfile.ZipFile.write = lambda *args: os._exit(9)  # two of four members are written
cache.compiled(spec, spec.configs[0], "bfloat16", PLAIN)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert done.returncode == 9, done.stderr[-2000:]
    assert list(folder.glob("*.lock")) and not list(folder.glob("*.zip"))
    for compiles in ({"sm_90a": 1}, {}):
        with ck.count_compiles() as inside:
            get()
        assert inside == compiles


def test_a_folder_that_cannot_be_written(folder, monkeypatch):
    folder.parent.mkdir(exist_ok=True)
    folder.write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="compiled kernels are not kept"), ck.count_compiles() as inside:
        assert get().spill_bytes == 0
    assert inside == {"sm_90a": 1}
    folder.unlink()
    get()
    real = os.replace
    monkeypatch.setattr(os, "replace", lambda *args: (_ for _ in ()).throw(OSError(30, "Read-only file system")))
    cache._warn.cache_clear()
    with ck.count_compiles() as inside:
        get()  # reading needs no right to write
    assert not inside
    with pytest.warns(UserWarning, match="Read-only file system"):
        get(dtype="float16")
    monkeypatch.setattr(os, "replace", real)


def test_switched_off(folder, monkeypatch):
    monkeypatch.setenv("CUTE_KERNELS_CACHE", "0")
    with ck.count_compiles() as inside:
        get(), get()
    assert inside == {"sm_90a": 2} and not folder.exists() and cache.clear() == 0


MANY = """
import concurrent.futures, sys
import cute_kernels as ck
from cute_kernels import cache, registry
from cute_kernels.hopper.kernel import PLAIN
spec = registry.get("swiglu_stacked")
wanted = [spec.configs[i % 3] for i in range(8)]
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    made = list(pool.map(lambda config: cache.compiled(spec, config, "bfloat16", PLAIN), wanted))
assert all(c.config == config and c.spill_bytes == 0 for c, config in zip(made, wanted))
print(ck.compile_counts().get("sm_90a", 0))
"""


def test_two_processes_of_eight_threads_compile_each_configuration_once(folder):
    command = [sys.executable, "-W", "ignore", "-c", MANY]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda _: subprocess.run(command, capture_output=True, text=True), range(2)))
    assert all(d.returncode == 0 for d in done), [d.stderr[-2000:] for d in done]
    assert sum(int(d.stdout) for d in done) == 3 and len(list(folder.glob("*.zip"))) == 3
    assert torch.cuda.is_initialized() is False or torch.cuda.is_available()
