"""The launch surface: streams, events, choice of back end, reasons of a refused launch (spec/xpu.md 5)."""

import numpy as np
import pytest

import kohakutpu.backends.cpu  # noqa: F401 - the default runtime's choice, whatever other modules import
from kohakutpu.reference.xpu import ReferenceBackEnd
from kohakutpu.xpu import (
    Event, Geometry, KernelBuffer, KernelStream, KernelTimer, Occupancy, Shared, Wave, XpuError, XpuLaunchError, f32,
    i32, kernel, lane_block, lane_block_of, row_grid, thread, u8, wave,
)  # fmt: skip
from kohakutpu.xpu.launch import REASONS, Runtime
from kohakutpu.xpu.timer import Tier, within_peak


@Occupancy(max_threads=64)
@kernel
def double(out: KernelBuffer[i32], a: KernelBuffer[i32]):
    i = thread.global_id_x()
    s = Shared[i32](128)
    s[thread.x()] = a[i]
    out[i] = s[thread.x()] * 2


class Device(ReferenceBackEnd):
    """A device with limits that counts cycles."""

    name = "cpu"

    def __init__(self, there=True, **limits):
        self.there, self.limits = there, limits

    def available(self):
        return self.there

    def geometry(self):
        return Geometry(**self.limits)

    def run(self, request):
        super().run(request)
        return 100


def stream(*backends):
    runtime = Runtime()
    for backend in backends or (ReferenceBackEnd(),):
        runtime.register(backend)
    return KernelStream(runtime)


def buffers(count=64):
    return KernelBuffer(i32, count), KernelBuffer.of(i32, np.arange(count, dtype=np.int32))


def test_a_launch_counts_workgroups():
    out, a = buffers()
    double.launch(grid=[2], block=[32])(out, a)  # the thread's own stream, the default runtime
    assert out.download().tolist() == list(range(0, 128, 2))


def test_a_buffer_is_borrowed_until_its_stream_is_synced():
    (out, a), order = buffers(), stream()
    double.launch(order, grid=2, block=32)(out, a)
    with pytest.raises(XpuError, match="XPU-K02: a launch still uses this buffer"):
        a.free()
    with pytest.raises(XpuError, match="XPU-K02"):  # a view keeps its allocation alive too
        double.launch(order, grid=1, block=1)(out, a.slice(0, 4))
        a.free()
    order.sync()
    a.free()
    out.download()
    out.free()


@pytest.mark.parametrize(
    "limits, grid, block, shared, code, detail",
    [
        ({}, 1, 65, None, 4, "65 work-items, where Occupancy declares 64 at most"),
        ({"max_threads_per_block": 32}, 1, 33, None, 6, "33 in a block, 32 at most"),
        ({"shared_bytes_per_block": 512}, 1, 1, 4, 7, "516 bytes, 512 at most"),
        ({"shared_bytes_per_block": 100, "shared_bytes_per_block_opt_in": 515}, 1, 1, 4, 7, "516 bytes, 515 at most"),
    ],
)
def test_a_refused_launch_names_kernel_back_end_and_reason(limits, grid, block, shared, code, detail):
    out, a = buffers()
    with pytest.raises(XpuLaunchError) as caught:
        double.launch(stream(Device(**limits)), grid=grid, block=block, shared_bytes=shared)(out, a)
    assert str(caught.value) == f"double on cpu: {REASONS[code]}: {detail}" and caught.value.code == code


def test_a_kernel_without_code_is_refused_with_the_reason():
    @kernel
    def bad(out: KernelBuffer[i32]):
        out[0] = thread.clock()

    with pytest.raises(XpuLaunchError, match="bad on reference: no device code registered: thread.clock") as caught:
        bad.launch(stream(), grid=1)(KernelBuffer(i32, 1))
    assert caught.value.code == 0


@pytest.mark.parametrize("width", [4, 8, 16, 32])
def test_a_wave_kernel_has_no_scalar_build(width):
    """Reason 2 cannot occur: whatever the block, the code's waves are vectors of the declared width."""
    from kohakutpu.backends.cpu import CPU

    @Wave(width)
    @kernel
    def waves(y: KernelBuffer[f32]):
        y[thread.x()] = wave.reduce_sum_f32(y[thread.x()])

    for block, checked in ((1, True), (width, False), (3 * width + 1, False)):
        code = CPU.code(waves, (block, 1, 1), CPU.width_of(waves), checked)
        assert code.width == width and f"fadd <{width} x float>" in code.text


def test_a_launch_states_no_deadline():
    """Reason 5 cannot occur: there is nowhere to state one."""
    with pytest.raises(TypeError, match="deadline"):
        double.launch(stream(), grid=1, deadline=1)
    assert not {word for word in dir(KernelStream) if "deadline" in word or "submi" in word}


def test_a_misaligned_base_is_refused():
    slab = KernelBuffer(u8, 68)
    words = slab.slice(1, 64).word_view(f32)

    @kernel
    def reads(a: KernelBuffer[f32]):
        a[0] = a[1]

    with pytest.raises(XpuLaunchError, match=f"{REASONS[1]}: a begins at byte 1"):
        reads.launch(stream(), grid=1)(words)


def test_shared_memory_and_code_decide_what_is_available():
    assert stream(Device(shared_bytes_per_block=512)).runtime.kernel_available(double)
    assert not stream(Device(shared_bytes_per_block=511)).runtime.kernel_available(double)


def test_the_first_touch_chooses(monkeypatch, capsys):
    monkeypatch.delenv("XPU_BACKEND", raising=False)
    both = stream(ReferenceBackEnd(), Device())
    assert both.runtime.active().name == "cpu"
    with pytest.raises(XpuError, match=r"force\('reference'\) after the first touch, which chose cpu"):
        both.runtime.force("reference")
    forced = stream(ReferenceBackEnd(), Device()).runtime
    forced.force("reference")
    assert forced.active().name == "reference" and not capsys.readouterr().err
    monkeypatch.setenv("XPU_BACKEND", "cpu")
    assert stream(ReferenceBackEnd(), Device(there=False)).runtime.active().name == "reference"
    assert (
        capsys.readouterr().err
        == "note: XPU back end cpu is not available among those imported (reference); reference is used instead\n"
    )
    with pytest.raises(XpuError, match="no XPU back end is registered"):
        Runtime().active()


@pytest.mark.parametrize("grid", [0, (1, 2, 3, 4), 1.5, True, ()])
def test_a_wrong_grid_is_refused(grid):
    with pytest.raises(XpuError, match="one to three positive integers are expected"):
        double.launch(stream(), grid=grid, block=1)


def test_streams_and_events():
    order = stream()
    with pytest.raises(XpuError, match="wait_for an event that no stream recorded"):
        order.wait_for(Event())
    event = Event()
    event.record(order)
    KernelStream.create().wait_for(event)
    data = KernelBuffer(i32, 2)
    data.upload_async(order, np.array([1, 2], np.int32))
    assert data.download_async(order).tolist() == [1, 2]
    assert KernelStream.current() is KernelStream.current()
    order.destroy()
    for act in (order.sync, lambda: event.record(order), lambda: data.upload_async(order, [1, 2])):
        with pytest.raises(XpuError, match="this stream was destroyed"):
            act()


def test_the_tiers_of_a_timer():
    out, a = buffers()
    timer = KernelTimer()
    assert timer.tier is Tier.UNAVAILABLE and timer.elapsed_nanos() == timer.elapsed_cycles() == -1
    host = stream()
    timer.begin(host)
    double.launch(host, grid=2, block=32)(out, a)
    timer.end(host)
    assert timer.tier is Tier.HOST and timer.elapsed_nanos() > 0 and timer.elapsed_cycles() == -1
    simulated = stream(Device())
    timer.begin(simulated)
    double.launch(simulated, grid=2, block=32)(out, a)
    timer.end(simulated)
    assert timer.tier is Tier.SIMULATED and timer.elapsed_cycles() == 100 and timer.elapsed_nanos() == -1


def test_a_reading_against_the_peaks():
    assert within_peak(1000, 1000, 1.0, 0, 0) and not within_peak(1000, 1001, 1.0, 0, 0)
    assert not within_peak(1000, 0, 0, 2000, 1e9)
    for arguments in ((0, 1, 1, 1, 1), (5, 1, 0, 0, 0), (5, 0, 0, 1, 0)):
        with pytest.raises(XpuError, match="within_peak"):
            within_peak(*arguments)


def test_geometry_derives_only_what_is_reported():
    assert Geometry().dispatch_blocks(4) == 0 and Geometry().peak_bandwidth_gbps == 0
    part = Geometry(multiprocessors=8, simds_per_multiprocessor=4, memory_clock_khz=1_000_000, memory_bus_bits=256)
    assert part.simds == 32 and part.dispatch_blocks(4) == 8 and part.peak_bandwidth_gbps == 64.0


def test_the_host_sizes_blocks_by_the_wave():
    runtime = stream(Device(wave_size=16)).runtime
    assert lane_block(runtime) == lane_block_of(double, runtime) == 16 and row_grid(7) == 7

    @Wave(width=32)
    @kernel
    def wide(a: KernelBuffer[i32]):
        a[0] = 1

    assert lane_block_of(wide, runtime) == 32
