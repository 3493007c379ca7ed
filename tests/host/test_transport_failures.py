"""Harm on the way to a machine: what is made up for, and what is reported, by name and by address."""

import gzip
import hashlib
import json
import os
import socket
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from kohakutpu.host.model_transport import ModelTransport
from kohakutpu.host.transport import CONTROL_BASE, MEMORY_BASE, NoTransport, TransportError, Unanswered
from kohakutpu.host.transports import open_transport, wire
from kohakutpu.host.transports.opening import SpecError
from kohakutpu.host.transports.recording import Diverged, Recorder, RecordingError, Replay
from kohakutpu.host.transports.serving import Server, SessionLost
from kohakutpu.host.transports.socket_transport import SocketTransport
from kohakutpu.host.transports.stream import AddressError, Dropped, Stream, listen, parse_address
from kohakutpu.host.transports.wrappers import Rebased, Window
from kohakutpu.host.transports.xdma import XdmaTransport
from kohakutpu.machine import load
from kohakutpu.model.system import System

sys.path.insert(0, str(Path(__file__).parent))
from chaos import Harm  # noqa: E402
from fake_xdma import Card, FakeFiles  # noqa: E402
from transport_traffic import Ledger, Traffic  # noqa: E402
from transport_world import harmed, jtag_to, served  # noqa: E402

MACHINE = load("mm_mesh")
AT = MEMORY_BASE + 0x1240
ACCESSES = 2_000


def model():
    return ModelTransport(System(MACHINE))


# ---- no word lost, none done twice ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["socket", "jtag", "xdma"])
def test_harm_loses_and_repeats_nothing(kind, tmp_path):
    with harmed(kind, MACHINE, tmp_path, Harm(short=0.02, delay=0.01, drop=0.01)) as world:
        traffic = Traffic(world.transport, MACHINE, seed=3, longest=24)
        traffic.run(ACCESSES)
        assert min(world.harm().values()) > 5, "nothing was harmed: this shows nothing"
        assert world.ledger.words == traffic.ledger.words
        assert world.ledger.digest.digest() == traffic.ledger.digest.digest()


class Forgets(Ledger):
    """A machine that a careless link does harm to: every 400th register write is lost, or done again."""

    def __init__(self, inner, how):
        super().__init__(inner)
        self.how = how
        self.count = 0

    def write_block(self, address, data):
        if address < MEMORY_BASE:
            self.count += 1
            if self.count % 400 == 0:
                if self.how == "lost":
                    return
                super().write_block(address, data)
        super().write_block(address, data)


@pytest.mark.parametrize("how", ["lost", "twice"])
def test_traffic_sees_a_word_that_is_lost_or_done_twice(how):
    """Otherwise the tests above show nothing."""
    inner = Forgets(model(), how)
    traffic = Traffic(inner, MACHINE, seed=3, longest=24)
    with pytest.raises(AssertionError, match="at 0x1000"):
        for _ in range(20):
            traffic.run(500)
            assert inner.words == traffic.ledger.words, "at 0x10000000 and on: other words than were written"


def test_traffic_sees_a_wrong_word_in_memory():
    inner = model()
    traffic = Traffic(inner, MACHINE, seed=3)
    inner.write64(MEMORY_BASE + 0x4_0008, 1)
    with pytest.raises(AssertionError, match=r"at 0x10000040008, expected"):
        traffic.run(100)


def test_a_server_that_does_a_request_again_is_seen(tmp_path, monkeypatch):
    """A lost connection is where words would be done twice: a server with no memory of the last one does it twice."""

    def careless(server, stream):
        try:
            request = wire.receive_request(stream)
            server._last = server._execute(request)
            wire.send_reply(stream, server._last)
        except Dropped:
            server._lost = time.monotonic()
            return False
        if request.kind == wire.Kind.BYE:
            server._session = None
        return request.kind != wire.Kind.BYE

    monkeypatch.setattr(Server, "_answer", careless)
    with harmed("socket", MACHINE, tmp_path, Harm(drop=0.02), seed=2) as world:
        traffic = Traffic(world.transport, MACHINE, seed=3, longest=24)
        with pytest.raises(AssertionError, match="done twice|at 0x10|other words"):
            traffic.run(ACCESSES)
            assert world.ledger.words == traffic.ledger.words, "other words arrived than were sent"


# ---- socket --------------------------------------------------------------------------------------------------


def test_nobody_serves(tmp_path):
    with pytest.raises(NoTransport, match="nobody serves mm_mesh on .*/none: No such file") as caught:
        open_transport(f"socket:{tmp_path}/none", MACHINE)
    assert caught.value.exit_status == 3


def test_another_machine_is_refused(tmp_path):
    with served(model(), MACHINE, tmp_path / "s") as server:
        with pytest.raises(TransportError, match="mm_mesh is served here, and not quad") as caught:
            SocketTransport(tmp_path / "s", load("quad"))
        assert not isinstance(caught.value, NoTransport), "there is a way, to another machine: status 2"
        import dataclasses

        other = dataclasses.replace(MACHINE, rx_depth=8)
        with pytest.raises(TransportError, match="another machine of the name mm_mesh") as caught:
            SocketTransport(tmp_path / "s", other)
        assert not isinstance(caught.value, NoTransport)
        SocketTransport(tmp_path / "s", MACHINE).close()
    assert server.executed == 1


def test_a_second_client_is_refused(tmp_path):
    with served(model(), MACHINE, tmp_path / "s"), SocketTransport(tmp_path / "s", MACHINE) as first:
        with pytest.raises(NoTransport, match="in use by another client"):
            SocketTransport(tmp_path / "s", MACHINE)
        first.write64(AT, 5)
        assert first.read64(AT) == 5


def test_sessions_follow_one_another_on_one_machine(tmp_path):
    with served(model(), MACHINE, tmp_path / "s", single=False) as server:
        for number in range(3):
            with open_transport(f"socket:{tmp_path}/s", MACHINE) as transport:
                assert transport.read64(AT) == number and transport.walked == ({2: [(1, 2)]} if number else {})
                transport.write64(AT, number + 1)
                transport.walked = {2: [(1, 2)]}
        server.stop()


def test_a_client_that_goes_ends_the_server(tmp_path):
    with (
        pytest.raises(SessionLost, match="last request was number 1"),
        served(model(), MACHINE, tmp_path / "s", grace=0.2),
    ):
        transport = SocketTransport(tmp_path / "s", MACHINE)
        transport.write64(AT, 1)
        transport._hang_up()


def test_a_server_that_forgot_is_no_reason_to_do_it_again(tmp_path):
    """Another server on the same address: whether the write was done cannot be known."""
    with ExitStack() as stack:
        stack.enter_context(pytest.raises(SessionLost))
        stack.enter_context(served(model(), MACHINE, tmp_path / "s", grace=0.1))
        transport = SocketTransport(tmp_path / "s", MACHINE)
        transport.write64(AT, 1)
        transport._hang_up()
    with served(model(), MACHINE, tmp_path / "s"):
        with pytest.raises(NoTransport, match="whether the write of 8 bytes at 0x10000001240 was done is not known"):
            transport.write64(AT, 2)
        with pytest.raises(NoTransport, match="ended when it gave up a write of 8 bytes at 0x10000001240"):
            transport.read64(AT)
        SocketTransport(tmp_path / "s", MACHINE).close()


def test_silence_is_reported_by_address(tmp_path):
    class Asleep(Ledger):
        def read_block(self, address, length):
            time.sleep(0.6)
            return super().read_block(address, length)

    with pytest.raises(SessionLost), served(Asleep(model()), MACHINE, tmp_path / "s", grace=0.1):
        transport = SocketTransport(tmp_path / "s", MACHINE, timeout=0.2)
        with pytest.raises(
            Unanswered, match="the read of 8 bytes at 0x10000001240 was not answered .* within 0.2 s"
        ) as caught:
            transport.read64(AT)
        assert caught.value.exit_status == 4


@pytest.mark.parametrize("said", [b"HTTP/1.0 400 Bad Request\r\n\r\n", b"\xff" * 64, b"\1\0\0\0x", b""])
def test_something_else_on_the_socket_is_no_server(said):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(NoTransport, match="nobody serves mm_mesh"):
            SocketTransport(listener.getsockname(), MACHINE)
        thread.join()


DEEP = b"[" * 100_000
HELLO = {"engine": "model", "unit": "cycles", "bulk": True, "last": 0, "walked": {}, "progress": 0}


def answering(path, *answers):
    """A thread that answers the requests of one client with `answers`, (failed, payload) each."""
    listener = listen(path)

    def answer():
        with listener, listener.accept()[0] as connection:
            stream = Stream(connection, 5)
            for failed, payload in answers:
                request = wire.receive_request(stream)
                wire.send_reply(stream, wire.Reply(request.sequence, failed, 0.0, payload))

    thread = threading.Thread(target=answer)
    thread.start()
    return thread


def told(**fields):
    return json.dumps(HELLO | fields).encode()


@pytest.mark.parametrize(
    "payload, reason",
    [
        (b"[]", r"the hello is \[\], expected an object with engine"),
        (b"{}", "engine is missing"),
        (b"", "expected JSON"),
        (b"\xff\xfe\xfa", "expected JSON"),
        (DEEP, "nested too deep"),
        (told(engine=3), "engine of the hello is 3, expected a text"),
        (told(unit="days"), "unit of the hello is 'days', expected cycles or s"),
        (told(bulk=1), "bulk of the hello is 1, expected true or false"),
        (told(last=True), "last of the hello is True, expected a whole number"),
        (told(walked={"x": []}), "walked of the hello is .*, expected lists of pairs"),
        (told(walked={"1": [[1]]}), "walked of the hello"),
        (told(walked=[]), "walked of the hello"),
        (told(progress="1"), "progress of the hello is '1', expected null or a whole number"),
    ],
)
def test_a_hello_that_is_none_is_no_server(tmp_path, payload, reason):
    thread = answering(tmp_path / "s", (False, payload))
    with pytest.raises(NoTransport, match=f"does not speak the kohakutpu-socket protocol: .*{reason}") as caught:
        SocketTransport(tmp_path / "s", MACHINE)
    thread.join()
    assert caught.value.exit_status == 3


@pytest.mark.parametrize("payload", [b"[]", b"{}", b"\xff", DEEP, b'{"text": 1, "exit_status": 3}',
                                     b'{"text": "x", "exit_status": []}',
                                     b'{"text": "x", "exit_status": 7}'])  # fmt: skip
@pytest.mark.parametrize("greeted", [False, True])
def test_an_error_that_is_none_is_no_server(tmp_path, payload, greeted):
    thread = answering(tmp_path / "s", *[(False, told())] * greeted, (True, payload))
    with pytest.raises(NoTransport, match="does not speak the kohakutpu-socket protocol"):
        SocketTransport(tmp_path / "s", MACHINE).read64(AT)
    thread.join()


@pytest.mark.parametrize("payload", [b"", b"[1]", b"true", b"\xff", DEEP])
def test_a_progress_and_a_text_that_are_none_are_no_server(tmp_path, payload):
    thread = answering(tmp_path / "s", (False, told()), (False, payload))
    transport = SocketTransport(tmp_path / "s", MACHINE)
    with pytest.raises(NoTransport, match="does not speak the kohakutpu-socket protocol"):
        transport.progress  # noqa: B018
    with pytest.raises(NoTransport, match="ended when it gave up a progress"):
        transport.read64(AT)
    transport.close()
    thread.join()


def test_a_text_that_is_not_utf_8(tmp_path):
    thread = answering(tmp_path / "s", (False, told()), (False, b"\xff"))
    with (
        SocketTransport(tmp_path / "s", MACHINE) as transport,
        pytest.raises(NoTransport, match="does not speak .* in its answer to a diagnose"),
    ):
        transport.diagnose()
    thread.join()


@pytest.mark.parametrize("payload", [DEEP, b"[]", b"{}", b"\xff", b'{"session": []}'])
def test_a_hello_that_is_none_does_not_end_a_server(tmp_path, payload):
    with served(model(), MACHINE, tmp_path / "s"):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "s"))
            wire.send_request(Stream(client, 5), wire.Request(0, wire.Kind.HELLO, payload=payload))
            assert not client.recv(100)
        with SocketTransport(tmp_path / "s", MACHINE) as transport:
            transport.write64(AT, 9)


def test_noise_does_not_end_a_server(tmp_path):
    with served(model(), MACHINE, tmp_path / "s"):
        for noise in (b"", b"GET / HTTP/1.0\r\n\r\n", bytes(200), b"\x15\0\0\0" + bytes(8) + b"\1" + bytes(12)):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(tmp_path / "s"))
                client.sendall(noise)
        with SocketTransport(tmp_path / "s", MACHINE) as transport:
            transport.write64(AT, 9)
            assert transport.read64(AT) == 9


def test_addresses(tmp_path):
    assert parse_address("localhost:80") == ("localhost", 80) and parse_address("a/b:1") == Path("a/b:1")
    for wrong in ("", "host:", ":80", "host:0", "host:99999", "host:x"):
        with pytest.raises(AddressError, match="address"):
            parse_address(wrong)
    with pytest.raises(NoTransport, match="to this computer alone"):
        listen(("0.0.0.0", 0))
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NoTransport, match="it is there and is no socket"):
        listen(tmp_path / "file")
    with listen(tmp_path / "s"), pytest.raises(NoTransport, match="another server answers there"):
        listen(tmp_path / "s")
    listen(tmp_path / "s").close()  # what a dead server left is replaced


# ---- jtag ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "link, reason",
    [
        ({"skew": 1}, "reads at 0x800000 answer for the read 1 before"),
        ({"skew": 3}, "reads at 0x800000 answer for the read 3 before"),
        ({"skew": 9}, "no control agent to be believed at 0x800000"),
        ({"shift": 1}, "bursts of 8 beats at 0x20000000100 land 1 word away"),
        ({"shift": -2}, "bursts of 8 beats at 0x20000000100 land -2 words away"),
        ({"width": 32}, "as a master of 32 bits gives it"),
    ],
)
def test_a_link_that_is_not_to_be_trusted_is_refused(link, reason):
    inner = model()
    before = bytes(range(200))
    inner.write_block(MEMORY_BASE + 0x100, before + bytes(56))
    with jtag_to(inner, **link) as connect, pytest.raises(TransportError, match=reason) as caught:
        connect()
    assert caught.value.exit_status == 2
    if "shift" not in link:
        assert inner.read_block(MEMORY_BASE + 0x100, 200) == before


@pytest.mark.parametrize("link", [{"skew": 1}, {"skew": 4}, {"shift": 1}, {"shift": -3}, {"skew": 2, "shift": 5}])
def test_realigned_links_are_right(link):
    with jtag_to(model(), **link) as connect:
        with connect(realign=True) as transport:
            Traffic(transport, MACHINE, seed=4, longest=24).run(300)


def test_what_realigning_does_not_mend_is_refused():
    with jtag_to(model(), shift=1, always=True) as connect:
        with pytest.raises(TransportError, match="land 1 word away, single beats too"):
            connect(realign=True)


def test_blocks_are_single_beats_to_read_and_short_bursts_to_write():
    with jtag_to(model()) as connect, connect(burst=4) as transport:
        data = bytes(range(240)) * 4
        transport.write_block(MEMORY_BASE + 0xF08, data)
        assert transport.read_block(MEMORY_BASE + 0xF08, len(data)) == data
        assert connect.fake.most_beats == 4


def test_old_replies_are_not_taken_for_new_ones():
    with jtag_to(model(), stale=0.2) as connect, connect() as transport:
        Traffic(transport, MACHINE, seed=4, longest=8).run(300)
        assert transport.inner.stale > 20


def test_a_reply_that_never_comes_is_asked_for_again_and_nothing_done_twice():
    ledger = Ledger(model())
    with jtag_to(ledger, silent=2) as connect:
        connect.fake.link.silent = 0
        with connect(timeout=0.3) as transport:
            before = ledger.words
            connect.fake.link.silent = 2
            transport.write64(CONTROL_BASE, 7)
            assert transport.read64(CONTROL_BASE) == 7
            assert ledger.words == before + 1 and transport.inner.reconnected == 2
            connect.fake.link.silent = 100
            with pytest.raises(
                Unanswered, match="write of 8 bytes at 0x800000 was not answered .* within 0.3 s, asked 5 times"
            ):
                transport.write64(CONTROL_BASE, 8)


def test_an_address_that_does_not_answer_is_named():
    with jtag_to(model(), broken=frozenset({(1 << 41) + 0x1240})) as connect, connect() as transport:
        for access in (lambda: transport.read64(AT), lambda: transport.write64(AT, 1)):
            with pytest.raises(
                Unanswered, match=r"8 bytes at 0x10000001240: .*at 0x20000001240: .*timed out"
            ) as caught:
                access()
            assert caught.value.exit_status == 4
        transport.write64(AT + 8, 6)
        assert transport.read64(AT + 8) == 6


def test_a_server_that_was_started_again_is_no_reason_to_do_it_again():
    with jtag_to(model(), forgetful=True) as connect, connect() as transport:
        transport.write64(AT, 1)
        transport.inner._hang_up()
        with pytest.raises(NoTransport, match="whether the write of 8 bytes at 0x20000001240 was done is not known"):
            transport.write64(AT, 2)


def test_a_prompt_in_the_reply_is_no_reply():
    with jtag_to(model(), garbage=1) as connect, pytest.raises(NoTransport, match="no JTAG server on .*: 'Vivado% 0 "):
        connect()


def test_no_master_of_that_name():
    with jtag_to(model()) as connect, pytest.raises(Unanswered, match="no JTAG-to-AXI master hw_axi_7"):
        connect(master="hw_axi_7")


# ---- xdma ----------------------------------------------------------------------------------------------------


def card(inner=None, **options):
    return FakeFiles(inner or model(), "/dev/x", **options)


@pytest.mark.parametrize("channel", ["h2c_0", "c2h_0", "user"])
def test_a_device_that_is_not_there(channel):
    with pytest.raises(NoTransport, match=f"/dev/x_{channel}: no such file"):
        XdmaTransport("/dev/x", files=card(card=Card(missing=frozenset({channel}))))


def test_small_and_crooked_accesses_are_whole_granules():
    files = card()
    transport = XdmaTransport("/dev/x", files=files)
    transport.write_block(MEMORY_BASE, bytes(range(256)))
    files.counts.clear()
    transport.write64(MEMORY_BASE + 72, 0)
    assert files.counts == {"c2h_0": 1, "h2c_0": 1}  # read the granule, write it back; the fake refuses anything else
    expected = bytearray(range(256))
    expected[72:80] = bytes(8)
    assert transport.read_block(MEMORY_BASE, 256) == expected
    files.counts.clear()
    transport.write_block(MEMORY_BASE + 64, bytes(128))
    assert files.counts == {"h2c_0": 1}


def test_long_transfers_are_cut():
    files = card()
    transport = XdmaTransport("/dev/x", files=files)
    data = bytes(range(256)) * (3 << 12)
    transport.write_block(MEMORY_BASE + 8, data)
    assert transport.read_block(MEMORY_BASE + 8, len(data)) == data
    assert files.counts["h2c_0"] == 4


@pytest.mark.parametrize("channel, access", [("h2c_0", "write"), ("c2h_0", "read"), ("user", "read")])
@pytest.mark.parametrize("how, kind", [("dead", NoTransport), ("late", Unanswered)])
def test_a_device_that_fails_is_named_with_the_address(channel, access, how, kind):
    files = card()
    transport = XdmaTransport("/dev/x", files=files)
    files.card = Card(**{how: frozenset({channel})})
    address = CONTROL_BASE + 0x58 if channel == "user" else MEMORY_BASE + 0x1240
    with pytest.raises(kind, match=f"{access} of .* at {address:#x}: /dev/x_{channel}"):
        transport.read64(address) if access == "read" else transport.write_block(
            address & -64, bytes(64)
        ) or transport.write64(address, 1)
    files.card = Card()
    transport.write64(AT, 3)  # it is back
    assert transport.read64(AT) == 3


def test_a_register_write_that_failed_is_not_repeated():
    """Half of them were done before they failed: nobody can know which."""
    done = []
    for seed in range(12):
        ledger = Ledger(model())
        files = card(ledger, card=Card(fragile=True), harm=Harm(drop=1.0), seed=seed)
        transport = XdmaTransport("/dev/x", files=files)
        with pytest.raises(NoTransport, match="write of a register at 0x10000060: .* whether it was done is not known"):
            transport.write64(CONTROL_BASE + 0x60, 3)
        with pytest.raises(NoTransport, match="was given up in a write of a register at 0x10000060"):
            transport.read64(AT)
        done.append(ledger.words)
    assert set(done) == {0, 1}


def test_a_user_device_of_32_bits_is_refused():
    transport = XdmaTransport("/dev/x", files=card(card=Card(width=4)))
    with pytest.raises(NoTransport, match="read of a register at 0x10000010: .*gave 4 bytes of 8.*tears registers"):
        transport.read64(CONTROL_BASE + 0x10)
    with pytest.raises(NoTransport, match="write of a register at 0x10000000: .* took 4 bytes of 8"):
        transport.write64(CONTROL_BASE, 1)


def test_registers_through_the_dma_channels_need_no_user_device():
    ledger = Ledger(model())
    files = card(ledger, card=Card(width=4, missing=frozenset({"user"})))
    with XdmaTransport("/dev/x", registers="dma", files=files) as transport:
        transport.write64(CONTROL_BASE + 0x40, 0x21)
        assert transport.read64(CONTROL_BASE + 0x40) == 0x21 and ledger.words == 1
        assert set(files.counts) == {"h2c_0", "c2h_0"}
    with pytest.raises(TransportError, match="registers=mmap: expected one of user, dma"):
        open_transport("xdma:/dev/x,registers=mmap", MACHINE)


def test_real_files(tmp_path):
    """The system's own calls, on plain files in the place of devices."""
    for channel in ("h2c_0", "c2h_0", "user"):
        (tmp_path / f"x_{channel}").write_bytes(bytes(1 << 16))
    with open_transport(f"xdma:{tmp_path}/x,memory=0x1000", MACHINE) as transport:
        transport.write64(CONTROL_BASE + 0x40, 0x1122334455667788)
        assert transport.read64(CONTROL_BASE + 0x40) == 0x1122334455667788
        transport.write_block(MEMORY_BASE + 0x40, bytes(range(128)))
        os.replace(tmp_path / "x_h2c_0", tmp_path / "x_c2h_0")  # what went in is what comes out
        transport._release("c2h_0")
        assert transport.read_block(MEMORY_BASE + 0x48, 64) == bytes(range(8, 72))
        with pytest.raises(NoTransport, match="read of 8 bytes at 0x10000100000: .*x_c2h_0 failed at 0x101000"):
            transport.read64(MEMORY_BASE + 0x10_0000)
    with pytest.raises(NoTransport, match="/dev/null/x_h2c_0: not a directory"):
        open_transport("xdma:/dev/null/x", MACHINE)


# ---- record and replay -----------------------------------------------------------------------------------------


def script(transport):
    transport.write64(AT, 0x55)
    transport.write_block(AT + 8, bytes(range(40)))
    found = transport.read_block(AT, 48)
    with pytest.raises(TransportError, match="0x10001000000"):
        transport.read64(MEMORY_BASE + MACHINE.memory.bytes)
    transport.pause()
    return found, transport.now, transport.progress, transport.diagnose()


@pytest.fixture(params=["s.jsonl", "s.jsonl.gz"])
def recorded(request, tmp_path):
    path = tmp_path / request.param
    with open_transport(f"record:{path}:model", MACHINE) as transport:
        found = script(transport)
        assert not path.exists()
    assert len(list(tmp_path.iterdir())) == 1
    return path, found


def test_a_replay_says_what_the_machine_said(recorded):
    path, found = recorded
    with open_transport(f"replay:{path}", MACHINE) as again:
        assert script(again) == found
        assert again.finished() and again.unit == "cycles"
        with pytest.raises(
            Diverged, match="ends after 7 accesses, and the script asks for a read of 8 bytes at 0x10000001240"
        ):
            again.read64(AT)


@pytest.mark.parametrize(
    "step, reason",
    [
        (
            lambda t: t.write64(AT, 0x56),
            r"access 1 of 7 .* asks for a write of 8 bytes at 0x10000001240, 5600.*; recorded .*, 5500",
        ),
        (
            lambda t: t.write64(AT + 8, 0x55),
            "asks for a write of 8 bytes at 0x10000001248.*; recorded was a write of 8 bytes at 0x10000001240",
        ),
        (lambda t: t.read64(AT), "asks for a read of 8 bytes at 0x10000001240; recorded was a write"),
        (lambda t: t.pause(), "access 1 of 7 in .*: the script asks for a pause; recorded was a write"),
    ],
)
def test_another_script_is_refused_with_the_access(recorded, step, reason):
    with Replay(recorded[0], MACHINE) as again, pytest.raises(Diverged, match=reason) as caught:
        step(again)
    assert caught.value.exit_status == 2


@pytest.mark.parametrize(
    "damage, reason",
    [
        (lambda lines: lines[:-1], "is cut off after 8 lines"),
        (lambda lines: [*lines[:2], *lines[3:]], "is damaged: 6 entries"),
        (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], "is damaged: 7 entries"),
        (
            lambda lines: [lines[0].replace('"version": 1', '"version": 2'), *lines[1:]],
            "is of version 2, and version 1 is read",
        ),
        (lambda lines: ["{}\n", *lines[1:]], "is no recording of a session"),
        (lambda lines: [], "is no recording of a session"),
    ],
)
def test_a_damaged_recording_is_refused(recorded, damage, reason):
    path = recorded[0]
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt") as file:
        lines = damage(file.readlines())
    with opener(path, "wt") as file:
        file.writelines(lines)
    with pytest.raises(RecordingError, match=reason):
        Replay(path, MACHINE)


def rewritten(path, change):
    """The recording at `path` with its lines changed, and an end that fits them."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt") as file:
        lines = [json.loads(line) for line in file][:-1]
    change(lines)
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    end = {"end": len(lines) - 1, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    with opener(path, "wt") as file:
        file.write(text + json.dumps(end) + "\n")


def put(number, *places, value):
    def change(lines):
        at = lines[number - 1] if places else lines
        for place in places[:-1]:
            at = at[place]
        at[places[-1] if places else number - 1] = value

    return change


# Lines 2 to 8 are a write of 8 bytes, one of 40, a read of 48, a read that fails, a pause, a progress, a diagnose.
@pytest.mark.parametrize(
    "change, reason",
    [
        (lambda lines: lines[0].pop("digest"), ":1: .*digest is missing"),
        (put(1, "version", value=True), "is of version True, and version 1 is read"),
        (put(1, "machine", value=7), ":1: machine of the header is 7, expected a text"),
        (put(1, "spec", value=None), ":1: spec of the header is None"),
        (put(1, "unit", value=[]), r":1: unit of the header is \[\], expected cycles or s"),
        (put(1, "bulk", value="yes"), ":1: bulk of the header is 'yes', expected true or false"),
        (put(1, "progress", value=0), ":1: progress of the header is 0"),
        (put(1, "now", value="0"), ":1: now of the header is '0', expected a finite number"),
        (put(1, "now", value=float("nan")), ":1: now of the header is nan, expected a finite number"),
        (put(1, "now", value=10**400), ":1: now of the header"),
        (put(1, "walked", value=[1]), ":1: walked of the header"),
        (put(1, "walked", value={"1": 2}), ":1: walked of the header"),
        (put(2, value=DEEP.decode()), ":2: .*nested too deep"),
        (put(3, value="x"), ":3: .*expected JSON"),
        (put(2, value={}), r":2: the entry is {}, expected a list \[asked, outcome, answer, clock\]"),
        (put(2, value=[["pause"], "done", None]), ":2: the entry is .*, expected a list"),
        (put(2, 0, value="write"), ":2: what was asked is 'write', expected a read"),
        (put(2, 0, 1, value="0"), ":2: what was asked"),
        (put(2, 0, 2, value="5g"), ":2: what was asked"),
        (put(2, 0, value=["jump"]), ":2: what was asked"),
        (put(2, 1, value="well"), ":2: the outcome is 'well', expected done or failed"),
        (put(2, 2, value="00"), ":2: the answer is '00', expected null"),
        (put(2, 3, value=float("inf")), ":2: the clock is inf, expected a finite number"),
        (put(4, 0, 2, value=48.0), ":4: what was asked"),
        (put(4, 2, value="zz" * 48), ":4: the answer is .*, expected 48 bytes in hexadecimal"),
        (put(4, 2, value="00" * 8), ":4: the answer is .*, expected 48 bytes in hexadecimal"),
        (put(5, 2, value=None), ":5: the failure is None, expected a status of 1 to 4 and a text"),
        (put(5, 2, 0, value=9), ":5: the failure"),
        (put(5, 2, 0, value=True), ":5: the failure"),
        (put(5, 2, 1, value=3), ":5: the failure"),
        (put(7, 2, value="3"), ":7: the answer is '3', expected null or a whole number"),
        (put(8, 2, value=3), ":8: the answer is 3, expected a text"),
    ],
)
def test_a_recording_that_was_written_wrong_is_refused_by_line(recorded, change, reason):
    path, found = recorded
    rewritten(path, lambda lines: None)
    with Replay(path, MACHINE) as again:
        assert script(again) == found
    rewritten(path, change)
    with pytest.raises(RecordingError, match=f"^{path}.*{reason}"):
        Replay(path, MACHINE)


def test_a_recording_is_a_regular_file(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (Path("/dev/zero"), tmp_path / "fifo", tmp_path):
        with pytest.raises(RecordingError, match=f"{path} is no regular file"):
            Replay(path, MACHINE)


def test_recordings_of_other_machines_and_no_recordings(recorded, tmp_path):
    with pytest.raises(RecordingError, match="was recorded on mm_mesh .* and not on this quad"):
        Replay(recorded[0], load("quad"))
    with pytest.raises(NoTransport, match="there is no such recording"):
        Replay(tmp_path / "none", MACHINE)
    (tmp_path / "binary.gz").write_bytes(b"\1\2\3")
    with pytest.raises(RecordingError, match="cannot be read"):
        Replay(tmp_path / "binary.gz", MACHINE)
    with pytest.raises(RecordingError, match="there is no directory"):
        Recorder(model(), MACHINE, tmp_path / "no" / "where", "model")


def test_a_recording_of_a_failure_is_kept(tmp_path):
    path = tmp_path / "s.jsonl"
    with pytest.raises(ZeroDivisionError), open_transport(f"record:{path}:model", MACHINE) as transport:
        transport.read64(AT)
        raise ZeroDivisionError
    assert json.loads(path.read_text().splitlines()[-1])["end"] == 1
    with Replay(path, MACHINE) as again:
        assert again.read64(AT) == 0


# ---- wrappers and texts ------------------------------------------------------------------------------------------


def test_a_window_refuses_what_leaves_it():
    inner = Ledger(model())
    window = Window(inner, {"scratch": (AT, 64)})
    window.write64(AT + 56, 1)
    before = inner.inner.system.host.bytes_written
    for address, length in ((AT + 64, 8), (AT - 8, 8), (AT + 56, 16), (CONTROL_BASE, 8)):
        for access in (lambda: window.read_block(address, length), lambda: window.write_block(address, bytes(length))):
            with pytest.raises(
                TransportError,
                match=f"{length} bytes at {address:#x} leaves every window: scratch is 0x10000001240..\\+0x40",
            ):
                access()
    assert inner.inner.system.host.bytes_written == before
    with pytest.raises(TransportError, match="window odd: address 0x4 is not a multiple of 8"):
        Window(inner, {"odd": (4, 8)})


def test_rebased_windows_may_not_meet():
    with pytest.raises(
        TransportError, match="the control window at 0x10000000100 .* lies in the memory window at 0x10000000000"
    ):
        Rebased(model(), control=MEMORY_BASE + 0x100, memory=MEMORY_BASE)


@pytest.mark.parametrize(
    "spec, reason",
    [
        ("card", "no transport 'card': expected one of model, rtl"),
        ("", "no transport ''"),
        ("model:fast", "the models take no argument"),
        ("model,x=1", "model has no option x; it has none"),
        ("jtag:h:1,burst", "'burst' is no option: expected name=value"),
        ("jtag:h:1,burst=4,burst=8", "option burst is given twice"),
        ("jtag:h:1,burst=many", "burst=many: expected a number"),
        ("jtag:h:1,realign=yes", "realign=yes: expected 0 or 1"),
        ("jtag:/tmp/x", "expected HOST:PORT"),
        ("jtag:localhost:abc", "'localhost:abc' is no address: expected HOST:PORT"),
        ("socket:", "no address: expected HOST:PORT"),
        ("socket:localhost:1x", "'localhost:1x' is no address"),
        ("xdma:/dev/x,burst=1", "xdma has no option burst"),
        ("socket:/x,timeout=0", "timeout=0: expected a number of seconds"),
        ("record:x", "expected record:FILE:SPEC"),
        ("replay:", "expected replay:FILE"),
        ("record:f:card", "no transport 'card'"),
    ],
)
def test_what_names_no_transport(spec, reason):
    with pytest.raises(SpecError, match=reason):
        open_transport(spec, MACHINE)


@pytest.mark.parametrize("spec", ["socket:/x", "jtag:h:1", "xdma:/dev/x", "replay:x"])
def test_faults_are_planted_where_a_machine_starts(spec):
    with pytest.raises(SpecError, match="fault noc-lost-tail cannot be planted through"):
        open_transport(spec, MACHINE, faults=["noc-lost-tail"])


def test_a_socket_file_is_there_once_it_can_be_connected_to(tmp_path, monkeypatch):
    address, seen, link = tmp_path / "socket", [], os.link

    def watched(source, target):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.connect(str(source))
        seen.append(address.exists())
        link(source, target)

    monkeypatch.setattr(os, "link", watched)
    with listen(address):
        assert seen == [False] and [path.name for path in tmp_path.iterdir()] == ["socket"]
