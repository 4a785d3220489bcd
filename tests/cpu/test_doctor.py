"""The doctor and the import check: each finding has its word, its mend and its exit code."""

import hashlib
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch

from cute_kernels import _require, device, doctor

ROOT = Path(__file__).parents[2]
GOOD = dict.fromkeys((*_require.DISTRIBUTIONS, *_require.OPTIONAL), _require.DSL_VERSION)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({}, "not installed"),
        (dict.fromkeys(GOOD, "4.7.0"), "4.7.0 is installed, 4.8.1 is needed"),
        ({**GOOD, "nvidia-cutlass-dsl-libs-cu12": "4.7.0"}, "mixed: nvidia-cutlass-dsl-libs-cu12 4.7.0"),
        (GOOD, None),
    ],
)
def test_versions(found, words, monkeypatch):
    problem = _require.problem(found)
    assert words in problem if words else problem is None
    monkeypatch.setattr(_require, "installed", lambda: found)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    if words is None:
        assert _require.require() is None and doctor.dsl_version().ok
    else:
        with pytest.raises(
            ImportError, match=r"cute_kernels: .*pip install --force-reinstall 'nvidia-cutlass-dsl\[cu13\]==4.8.1'"
        ):
            _require.require()
        assert doctor.dsl_version().ok is False and doctor.dsl_version().mend == _require.INSTALL


def test_import_error_is_no_stack_trace_of_the_dsl(tmp_path):
    """A real interpreter in which the DSL's metadata says 4.7.0."""
    info = tmp_path / "nvidia_cutlass_dsl-4.7.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-cutlass-dsl\nVersion: 4.7.0\n")
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; import cute_kernels"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "ImportError: cute_kernels: the CuTe DSL installation is mixed: nvidia-cutlass-dsl 4.7.0" in done.stderr
    assert "cutlass/" not in done.stderr


class FakeFile:
    def __init__(self, path, content):
        self.path, self.name = path, path.name
        self.hash = type(
            "Hash",
            (),
            {
                "mode": "sha256",
                "value": doctor.base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("="),
            },
        )

    def locate(self):
        return self.path

    def __str__(self):
        return self.name


def test_overwritten_and_missing_files(tmp_path, monkeypatch):
    path = tmp_path / "_cutlass_ir.so"
    path.write_bytes(b"cu13")
    monkeypatch.setattr(_require, "installed", lambda: {"nvidia-cutlass-dsl-libs-cu13": "4.8.1"})
    files = [FakeFile(path, b"cu13")]
    monkeypatch.setattr(metadata, "distribution", lambda name: type("D", (), {"files": files}))
    assert doctor.dsl_files().ok
    path.write_bytes(b"cu12")
    broken = doctor.dsl_files()
    assert (
        broken.ok is False
        and "libs-cu13: _cutlass_ir.so was overwritten" in broken.detail
        and "--force-reinstall" in broken.mend
    )
    path.unlink()
    assert "_cutlass_ir.so is missing" in doctor.dsl_files().detail


@pytest.mark.parametrize("kind", [None, "0x030200", "0x010802"])
def test_no_driver(kind, tmp_path, monkeypatch):
    """A note where there is no GPU of NVIDIA's, to be mended where the PCI bus has one."""

    def missing():
        raise OSError("libcuda.so.1")

    monkeypatch.setattr(doctor, "load_driver", missing)
    (tmp_path / "broken").mkdir()
    if kind is not None:
        (tmp_path / "0000:01:00.0").mkdir()
        (tmp_path / "0000:01:00.0" / "vendor").write_text("0x10de\n")
        (tmp_path / "0000:01:00.0" / "class").write_text(f"{kind}\n")
    real = doctor.has_nvidia_gpu
    monkeypatch.setattr(doctor, "has_nvidia_gpu", lambda: real(tmp_path))
    check = doctor.driver()
    if kind == "0x030200":
        assert check.ok is False and "none, though" in check.detail and "install the NVIDIA driver" in check.mend
    else:
        assert check.ok is None and "compiled here, not run" in check.detail


def test_a_driver_that_does_not_answer(monkeypatch):
    library = type("Library", (), {"cuInit": staticmethod(lambda flags: 100)})
    monkeypatch.setattr(doctor, "load_driver", library)
    check = doctor.driver()
    assert check.ok is False and "error 100" in check.detail and "NVIDIA driver" in check.mend


@pytest.mark.parametrize(("version", "ok"), [(13000, True), (12080, False)])
def test_driver_version(version, ok, monkeypatch):
    class Library:
        cuInit = staticmethod(lambda flags: 0)

        @staticmethod
        def cuDriverGetVersion(pointer):
            pointer._obj.value = version
            return 0

    monkeypatch.setattr(doctor, "load_driver", Library)
    check = doctor.driver()
    assert (
        check.ok is ok
        and f"CUDA {version // 1000}.{version % 1000 // 10}" in check.detail
        and bool(check.mend) is not ok
    )


def gpu(monkeypatch, capability, name):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: name)
    device.forget()


@pytest.mark.parametrize(
    ("capability", "target"),
    [
        ((9, 0), "sm_90a"),
        ((10, 0), "sm_100a"),
        ((10, 3), "sm_100a"),
        ((8, 9), None),
        ((12, 0), None),
        ((12, 1), None),
        ((11, 0), None),
    ],
)
def test_architecture_gate(capability, target, monkeypatch):
    gpu(monkeypatch, capability, "NVIDIA Test")
    (check,) = doctor.gpus()
    if target:
        assert device.target("cuda:0") == target and check.ok and target in check.detail
    else:
        with pytest.raises(
            device.UnsupportedDevice,
            match=rf"NVIDIA Test has compute capability {capability[0]}\.{capability[1]}; supported are 9\.0",
        ):
            device.target(0)
        assert check.ok is None and "supported are" in check.detail
    device.forget()


def test_cluster_query_restores_the_device_even_on_error(monkeypatch):
    entered = []

    class Guard:
        def __init__(self, index):
            self.index = index

        def __enter__(self):
            entered.append(self.index)

        def __exit__(self, *why):
            entered.append("left")

    monkeypatch.setattr(torch.cuda, "device", Guard)
    device.forget()
    with pytest.raises(Exception):  # noqa: B017  no driver here, or no such device
        device.max_clusters(99, 2)
    assert entered == [99, "left"]
    device.forget()


def test_exit_code_and_mend(monkeypatch, capsys):
    monkeypatch.setattr(
        doctor, "CHECKS", (lambda: doctor.Check("one", True, "fine"), lambda: doctor.Check("two", None, "so"))
    )
    assert doctor.main() == 0 and "nothing to mend" in capsys.readouterr().out

    def crash():
        raise ValueError("inside")

    monkeypatch.setattr(doctor, "CHECKS", (crash, lambda: [doctor.Check("three", False, "broken", "do this")]))
    assert doctor.main() == 1
    out = capsys.readouterr().out
    assert (
        "MEND  crash" in out and "ValueError: inside" in out and "-> do this" in out and "to mend: crash, three" in out
    )


def test_this_machine_is_healthy():
    found = {check.name: check for check in doctor.report()}
    broken = {name for name, check in found.items() if check.ok is False}
    assert not broken - {"NVIDIA driver"}  # CI need not have one, even beside a GPU
    assert found["compiling"].ok and found["CuTe DSL"].ok and found["CuTe DSL files"].ok


def test_the_command_finds_a_mixed_installation(tmp_path):
    """A real interpreter in which the cu12 libraries are of another version and a file is not what its RECORD says: the import
    would fail, the doctor speaks."""
    info = tmp_path / "nvidia_cutlass_dsl_libs_cu12-4.7.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-cutlass-dsl-libs-cu12\nVersion: 4.7.0\n")
    (tmp_path / "_cutlass_ir.so").write_bytes(b"of cu13")
    (info / "RECORD").write_text(f"_cutlass_ir.so,sha256={FakeFile(tmp_path, b'of cu12').hash.value},7\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", "cute_kernels", "doctor"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 1, done.stdout + done.stderr[-2000:]
    assert "mixed: nvidia-cutlass-dsl-libs-cu12 4.7.0 beside 4.8.1" in done.stdout
    assert "mixed installation: nvidia-cutlass-dsl-libs-cu12: _cutlass_ir.so was overwritten" in done.stdout
    assert f"-> {_require.INSTALL}" in done.stdout and "to mend: CuTe DSL, CuTe DSL files" in done.stdout
