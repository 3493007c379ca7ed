"""`kohakutpu compile` of an XPU kernel: the flits of its launch, and what it refuses."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from kohakutpu.backends.ktpu import KtpuBackEnd
from kohakutpu.cli.main import main
from kohakutpu.lang.kernel import load
from kohakutpu.xpu.kernel import Kernel
from kohakutpu.xpu.launch import Request

ROOT = Path(__file__).resolve().parents[2]
SAXPY = f"{ROOT}/examples/saxpy_xpu.py:saxpy"
LAUNCH = ["--grid", "2", "--block", "64", "--shape", "y=128", "--shape", "x=2x64", "--arg", "a=2.5", "--arg", "n=100"]
FAMILY = '''
from kohakutpu.xpu import *

@device
def twice(v: f32) -> f32:
    return v + v

@device
def square(v: f32) -> f32:
    return v * v

@kernel
def scaled(y: KernelBuffer[f32], up: bool, *, N):
    v = square(y[thread.x()])
    y[thread.x()] = v * f32(N) if up else v

@kernel
def applied(y: KernelBuffer[f32], f: Function[twice, square]):
    y[thread.x()] = f(y[thread.x()])

@Wave(width=16)
@kernel
def products(y: KernelBuffer[f16], x: KernelBuffer[f16], w: KernelBuffer[f16]):
    acc: CooperativeMatrix[f16, 16, 16, Use.ACCUMULATOR]
    a: CooperativeMatrix[f16, 16, 32, Use.A]
    b: CooperativeMatrix[f16, 32, 16, Use.B]
    for turn in range(workgroup.x() + 1):
        a.load(x, turn * 512, 0, 32)
        b.load(w, turn * 512, 1, 32)
        acc.mma(a, b)
    acc.store(y, workgroup.x() * 256, 0, 16)
'''  # fmt: skip


@pytest.fixture
def called(capsys):
    """called(*argv) -> (status, stdout, stderr) of `kohakutpu compile`."""

    def call(*argv):
        status = main(["compile", *argv])
        return status, *capsys.readouterr()

    return call


@pytest.fixture
def family(tmp_path):
    """A file with a template, a kernel that takes a helper, and products."""
    path = tmp_path / "family.py"
    path.write_text(FAMILY)
    return str(path)


@pytest.mark.parametrize("machine", ["mm_mesh", "quad"])
def test_the_flits_are_those_that_a_launch_sends(called, machine):
    status, out, _ = called(SAXPY, *LAUNCH, "--machine", machine, "--flits")
    arguments = (np.ones(128, np.float32), np.ones(128, np.float32), 2.5, 100)
    request = Request(load(SAXPY, (Kernel,)), (2, 1, 1), (64, 1, 1), 0, arguments)
    (artifact,) = KtpuBackEnd(machine).lower(request).artifacts
    assert status == 0 and out == artifact.flit_listing()
    assert "VMUL" in out and "VST" in out and " last | RUN" in out
    status, out, _ = called(SAXPY, *LAUNCH, "--machine", machine, "--json")
    assert status == 0 and out == artifact.to_json()
    status, out, _ = called(SAXPY, *LAUNCH, "--machine", machine)
    assert status == 0 and artifact.digest in out and "predicted" in out


SHOWN = {
    "gelu": ("y=256 x=256 --arg n=250 --grid 2 --block 128", ["VEXP2", "VINV"]),
    "softmax": ("y=128 x=128 --arg n=64 --grid 2 --block 32", ["VSHUF", "VMAX", "VEXP2"]),
    "rmsnorm": ("y=256 x=256 w=128 --arg n=128 --grid 2", ["VSHUF", "VRSQRT"]),
    "gemm": ("y=1024 x=2048 w=2048 --arg depth=64 --arg cols=32 --arg activate=1 --grid 2x2", ["GEMM", "DRAIN", "VEXP2"]),
    "attention": ("out=256 q=512 k=2048 v=1024 s=512 o=256 --arg keys=64 --arg scale=0.125", ["GEMM", "DRAIN", "VMAX"]),
}  # fmt: skip


@pytest.mark.parametrize("name", SHOWN)
def test_kernels_that_the_machine_runs_show_their_flits(called, name):
    words, expected = SHOWN[name]
    shapes, *scalars = words.split(" --")
    argv = [part for shape in shapes.split() for part in ("--shape", shape)]
    argv += [part for pair in scalars for part in f"--{pair}".split()]
    status, out, err = called(f"{ROOT}/tests/xpu/ktpu_kernels.py:{name}", *argv, "--flits")
    assert status == 0 and not err and all(word in out for word in expected)
    assert out.count(" last | ") >= (8 if name == "attention" else 1)


def test_what_is_asked_for_is_what_is_lowered(called, family):
    launch = [f"{family}:scaled", "--shape", "y=16", "--arg", "up=true", "--knob", "N=3", "--flits"]
    status, three, _ = called(*launch)
    assert status == 0 and three.count("VMUL") == 2 and ".imm 0x404000" in three  # 3.0 in E8M15
    status, seven, _ = called(*(part.replace("N=3", "N=7") for part in launch))
    assert status == 0 and ".imm 0x40e000" in seven
    status, plain, _ = called(*(part.replace("true", "false") for part in launch))
    assert status == 0 and plain.count("VMUL") == 1
    status, out, err = called(*launch[:-3])
    assert status == 2 and not out and "its template values are ['N'], not []" in err


@pytest.mark.parametrize("name, reason", [
    ("cube", "--arg f=cube: expected one of twice, square"),
    ("twice", "applied on ktpu: no device code registered: XPU-N01: a function value has no code on ktpu (line "),
])  # fmt: skip
def test_a_parameter_that_holds_a_helper_takes_its_name(called, family, name, reason):
    status, out, err = called(f"{family}:applied", "--shape", "y=16", "--arg", f"f={name}", "--flits")
    assert status == 2 and not out and reason in err


def test_a_launch_of_several_artifacts_shows_all_and_is_no_one_file(called, family):
    launch = ["--grid", "2", "--shape", "y=512", "--shape", "x=1024", "--shape", "w=1024"]
    status, out, _ = called(f"{family}:products", *launch, "--flits")
    assert status == 0 and out.count("# stage 0 MG") == 2 and "GEMM" in out and "DRAIN" in out
    status, out, err = called(f"{family}:products", *launch, "--json")
    assert status == 2 and not out and "this launch is 2 artifacts" in err


@pytest.mark.parametrize("change, reason", [
    ({"--grid": "0"}, "--grid 0: expected one to three positive numbers joined by x, such as 4x2"),
    ({"--block": "4x4x4x4"}, "--block 4x4x4x4: expected one to three positive numbers"),
    ({"x=2x64": None}, "saxpy: --shape x=N is missing, the elements of the f32 buffer x"),
    ({"n=100": None}, "saxpy: --arg n=VALUE is missing, a u32"),
    ({"n=100": "n=x"}, "--arg n=x: expected a u32"),
    ({"n=100": "n=1.5"}, "argument n: a u32 expected, not 1.5"),
    ({"n=100": "m=1"}, "saxpy: --arg n=VALUE is missing"),
    ({"n=100": ["n=1", "--arg", "m=1"]}, "--arg m: saxpy has no such scalar parameter"),
    ({"x=2x64": ["x=128", "--shape", "z=9"]}, "--shape z: saxpy has no such buffer"),
    ({"n=100": ["n=1", "--knob", "N=3"]}, "saxpy: its template values are [], not ['N']"),
    ({"n=100": ["n=1", "--preq", "x"]}, "--preq: "),
    ({"n=100": ["n=1", "--lowering", "published"]}, "--lowering: "),
    ({"x=2x64": "x=64"}, "a read of x[64], which has 64 elements"),
    ({"--block": "5"}, "begins inside a word of 32 bytes"),
])  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(called, change, reason, tmp_path):
    argv = list(LAUNCH)
    for old, new in change.items():
        at = argv.index(old)
        if new is None:
            del argv[at - 1 : at + 1]
        elif old.startswith("--"):
            argv[at + 1] = new
        else:
            argv[at : at + 1] = [new] if isinstance(new, str) else new
    output = tmp_path / "flits"
    status, out, err = called(SAXPY, *argv, "--flits", "-o", str(output))
    assert status == 2 and reason in err and not out and not output.exists()


def test_a_kernel_of_tiles_takes_no_grid(called):
    shapes = ["--shape", "x=32x64", "--shape", "w=32x64"]
    status, out, err = called("kohakutpu.kernels.linear:linear_silu", *shapes, "--grid", "2")
    assert status == 2 and not out and "--grid: kohakutpu.kernels.linear:linear_silu is a kernel of tiles" in err


def test_a_file_says_which_kernels_it_has(called, tmp_path):
    shutil.copy(f"{ROOT}/examples/saxpy_xpu.py", tmp_path / "mine.py")
    status, _, err = called(f"{tmp_path}/mine.py:sexpy")
    assert status == 2 and "has no sexpy; its kernels are saxpy" in err
