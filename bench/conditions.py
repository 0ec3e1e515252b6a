"""Conditions of a path that the path doctor must recognise, with random parameters. Used by bench/doctor.py.

A case is one cause, or two, in the lab: the path, the settings of both hosts and the programs beside the doctor. It
carries the setup after the remedy of the first cause, so that a predicted gain can be compared with a measured one.
"Forward" is from host a, where the doctor runs, to host b, where the agent runs.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from limits import between

# Round trips of the proof, ms.
RTTS = (8, 60, 150, 320, 660)
# Highest rate of a path by round trip, Mbit/s. Reason: the router of the lab shares two processors with both hosts, and
# a test must reach its steady state.
RATE_MAX = {8: 300, 60: 300, 150: 200, 320: 100, 660: 50}
# Shortest queue, ms. Reason: with 7 ms at 240 Mbit/s over 8 ms, CUBIC has 71 % of a clean path on a busy machine, since
# the router of the lab pauses; with 16 ms it has 94 %, with 32 ms 97 %. BBR has 97 % with each.
QUEUE_MIN_MS = 20
# Smallest window, bytes, and smallest bandwidth-delay product of a case about windows. Reason: a sender's kernel fills
# its buffer in pieces of up to 64 KiB, so smaller buffers have no exact effect.
WINDOW_MIN, BDP_MIN = 64_000, 300_000
# Data in flight per byte of a send buffer, measured in the lab: at least 0.75. CUBIC, which is not paced, often has 3
# times its buffer in flight (up to 6 times over 660 ms), BBR no more than the buffer.
SEND_LEAST = 0.75
SEND_MOST = {"cubic": 3.0, "bbr": SEND_LEAST}
# Buffers that limit no path of this file.
BUFFER = 67_108_864
# Part of a receive buffer that becomes window in the lab, whose packets come from a TUN device (0.895 over a network
# card with packets of 1500 bytes).
WINDOW_RATIO = 0.62
# Payload per byte of an IP packet: TCP with timestamps at MTU 1500.
PAYLOAD = 1448 / 1500
SEGMENT_BITS = 1448 * 8
# Part of the rate of a policer at which a sender is paced as its remedy.
PACED = 0.95
EITHER = ""

Settings = dict[str, str]


@dataclass(frozen=True)
class Setup:
    """One state of path and hosts. path: flags of `sterna lab up`; a, b: kernel settings of one host."""

    path: Settings
    a: Settings = field(default_factory=dict)
    b: Settings = field(default_factory=dict)
    max_rate: str = ""  # of the doctor
    paced: tuple[str, float] | None = None  # host whose sending is shaped, and its rate, Mbit/s
    cross: tuple[tuple[str, ...], ...] = ()  # flags of iperf3 clients that run beside the doctor; -R: from b
    slow: str = ""  # host with a throttled disk
    throttle: int = 0  # rate of this disk, bytes/s
    slow_kind: str = ""  # what it does slowly: read or write
    quota: str = ""  # host whose program has a CPU quota
    percent: float = 100  # of one processor
    send_most: tuple[str, float] | None = None  # host whose send buffer lets so many bytes be in flight at most
    send_least: tuple[str, float] | None = None  # the same, at least
    ssthresh: int = 0  # slow start threshold that both hosts remember of earlier connections, packets; 0: none
    program: tuple[str, float] | None = None  # program that --watch observes: slow_writer or slow_reader, its Mbit/s

    def with_path(self, **flags: str | None) -> Setup:
        """Returns a copy with other flags of the path; `None` removes one. An underscore stands for a hyphen."""
        path = {**self.path, **{name.replace("_", "-"): value for name, value in flags.items() if value is not None}}
        for name in [name.replace("_", "-") for name, value in flags.items() if value is None]:
            path.pop(name, None)
        return replace(self, path=path)

    def with_host(self, host: str, **settings: str) -> Setup:
        """Returns a copy with other settings (`net.ipv4.` is added) of host a or b."""
        return replace(self, **{host: {**getattr(self, host), **{f"net.ipv4.{k}": v for k, v in settings.items()}}})


@dataclass(frozen=True)
class Case:
    """A condition. expect: its causes, the binding one first. fixed: the setup after the remedy of the first cause."""

    expect: tuple[str, ...]
    way: str
    setup: Setup
    fixed: Setup | None = None
    facts: dict[str, float] = field(default_factory=dict)  # imposed numbers by the names of the verdict
    modes: tuple[float, ...] = ()  # imposed round trips, s
    seconds: float = 0  # time of the examination, if not the default


def sender(way: str) -> str:
    return "b" if way == "reverse" else "a"


def receiver(way: str) -> str:
    return "a" if way == "reverse" else "b"


def flag(way: str, name: str) -> str:
    """Returns the name of a flag of `lab up` that applies to one direction."""
    return f"reverse_{name}" if way == "reverse" else name


@dataclass(frozen=True)
class Drawn:
    """Parameters that all cases draw: a direction and a clean path."""

    way: str
    rtt: int
    mbit: float
    setup: Setup

    @property
    def bdp(self) -> float:
        """Bandwidth-delay product, bytes."""
        return self.mbit * 1e6 / 8 * self.rtt / 1e3


def drawn(draw: random.Random, rtts: tuple[int, ...] = RTTS, least: float = 0.3, bdp: float = 0) -> Drawn:
    """Draws a clean path. least: lowest rate, as a part of `RATE_MAX`; bdp: lowest bandwidth-delay product, bytes."""
    way, rtt = draw.choice(("forward", "reverse")), draw.choice(rtts)
    lowest = min(max(least * RATE_MAX[rtt], bdp * 8 / rtt / 1e3), RATE_MAX[rtt])
    mbit = round(between(draw, lowest, RATE_MAX[rtt]), 1)
    queue = max(rtt * between(draw, 0.8, 1.5), QUEUE_MIN_MS)
    path = {"rate": f"{mbit * 1000:.0f}kbit", "rtt": f"{rtt}ms", "queue": f"{queue:.0f}ms"}
    return Drawn(way, rtt, mbit, Setup(path))


def cubic_loss(mbit: float, rtt: float) -> float:
    """Returns the loss at which CUBIC has a rate (RFC 9438, at least Reno's)."""
    packets = mbit * 1e6 / SEGMENT_BITS * rtt / 1e3
    of_cubic = (1.054 * (rtt / 1e3) ** 0.75 / packets) ** (4 / 3)
    return max(of_cubic, (1.22 / packets) ** 2)


# Longest round trip, ms, over which a connection meets enough losses in the time of one experiment to have the rate of
# its response function. Reason: Reno loses 1.2 sqrt(p) packets in a round trip.
LOSS_STEADY_RTT = 8


def lossy(way: str, share: float) -> dict[str, str]:
    lost = f"{share * 100:.5f}%"
    return {"loss": "0" if way == "reverse" else lost, "reverse_loss": lost if way == "reverse" else "0"}


def rmem(most: float) -> dict[str, str]:
    return {"tcp_rmem": f"4096 {min(131072, int(most))} {int(most)}"}


def receive_buffer(draw: random.Random) -> Case:
    path = drawn(draw, bdp=BDP_MIN)
    buffer = max(path.bdp * between(draw, 0.15, 0.6), WINDOW_MIN) / WINDOW_RATIO
    return Case(("receive_buffer",), path.way, path.setup.with_host(receiver(path.way), **rmem(buffer)), path.setup)


def send_buffer(draw: random.Random) -> Case:
    path = drawn(draw, bdp=BDP_MIN)
    window = path.bdp * between(draw, 0.15, 0.4)
    return Case(("send_buffer",), path.way, replace(path.setup, send_most=(sender(path.way), window)), path.setup)


def slow_ramp(draw: random.Random) -> Case:
    """The hosts remember a low threshold of slow start from earlier connections, and CUBIC then grows slowly."""
    path = drawn(draw, rtts=(150, 320, 660), least=0.6)
    return Case(("slow_ramp",), EITHER, replace(path.setup, ssthresh=round(between(draw, 20, 80))), path.setup)


def no_scaling_on_the_way(draw: random.Random) -> Case:
    path = drawn(draw, rtts=RTTS[1:])
    return Case(("no_window_scaling",), EITHER, path.setup.with_path(strip="wscale"), path.setup)


def no_scaling_at_an_end(draw: random.Random) -> Case:
    path = drawn(draw, rtts=RTTS[1:])
    host = draw.choice("ab")
    return Case(("no_window_scaling",), EITHER, path.setup.with_host(host, tcp_window_scaling="0"), path.setup)


def no_sack_on_the_way(draw: random.Random) -> Case:
    path = drawn(draw)
    return Case(("no_sack",), EITHER, path.setup.with_path(strip="sack"), path.setup)


def no_sack_at_an_end(draw: random.Random) -> Case:
    path = drawn(draw)
    return Case(("no_sack",), EITHER, path.setup.with_host(draw.choice("ab"), tcp_sack="0"), path.setup)


def no_timestamps_on_the_way(draw: random.Random) -> Case:
    path = drawn(draw)
    return Case(("no_timestamps",), EITHER, path.setup.with_path(strip="timestamps"), path.setup)


def no_timestamps_at_an_end(draw: random.Random) -> Case:
    path = drawn(draw)
    return Case(("no_timestamps",), EITHER, path.setup.with_host(draw.choice("ab"), tcp_timestamps="0"), path.setup)


def modes_of(path: Drawn, extra_ms: list[float]) -> tuple[str, tuple[float, ...]]:
    """Returns the flag of the lab and the round trips, s, for equal-cost paths that are longer by `extra_ms`."""
    return ",".join(f"{extra:.1f}ms" for extra in extra_ms), tuple(sorted({(path.rtt + extra) / 1e3 for extra in extra_ms}))


def rtt_modes(draw: random.Random) -> Case:
    """One of some equal-cost paths is longer, by at least 2.5 ms: less is the jitter of hosts."""
    path = drawn(draw)
    longer = round(max(2.5, path.rtt * between(draw, 0.06, 0.5)), 1)
    ecmp, modes = modes_of(path, [0.0] * (draw.choice((2, 4, 8)) - 1) + [longer])
    return Case(("rtt_modes",), EITHER, path.setup.with_path(ecmp=ecmp), path.setup, modes=modes)


def random_loss(draw: random.Random) -> Case:
    """Loss that binds within some seconds: on long paths it must also end slow start before the path is full."""
    path = drawn(draw)
    loss = cubic_loss(path.mbit * between(draw, 0.1, 0.5), path.rtt)
    if path.rtt > LOSS_STEADY_RTT:
        loss = max(loss, between(draw, 2, 6) * 1448 / path.bdp)
    return Case(("random_loss",), path.way, path.setup.with_path(**lossy(path.way, loss)), path.setup, {"packets": loss})


def cross_of(way: str, *flags: str) -> tuple[str, ...]:
    return (*flags, "-R") if way == "reverse" else flags


def congestion_tcp(draw: random.Random) -> Case:
    """Long connections of others fill the path before the doctor comes."""
    path = drawn(draw, rtts=(8, 60, 150))
    flows = cross_of(path.way, "-P", str(draw.choice((2, 4, 8))), "-C", "cubic")
    return Case(("congestion",), path.way, replace(path.setup, cross=(flows,)))


def congestion_udp(draw: random.Random) -> Case:
    """Traffic of others that does not yield: most of the path, in bursts that fill its queue."""
    path = drawn(draw, rtts=(8, 60, 150))
    steady = cross_of(path.way, "-u", "-l", "1400", "-b", f"{path.mbit * between(draw, 0.4, 0.6):.1f}M")
    bursts = cross_of(path.way, "-P", "2", "-C", "cubic")
    return Case(("congestion",), path.way, replace(path.setup, cross=(steady, bursts)))


def policed(path: Drawn, mbit: float, burst: float) -> tuple[Setup, dict[str, float]]:
    """Returns the setup with a policer, and its numbers as they are imposed."""
    bits, size = int(mbit * 1e6), int(burst)
    setup = path.setup.with_path(**{flag(path.way, "policer"): f"{bits // 1000}kbit:{size}"})
    return setup, {"rate_bps": bits // 1000 * 1000, "burst_bytes": size}


def policer(draw: random.Random, least: float, most: float) -> Case:
    """least, most: range of the bucket, s of its rate."""
    path = drawn(draw)
    mbit = max(path.mbit * between(draw, 0.15, 0.5), 2)
    setup, facts = policed(path, mbit, max(mbit * 1e6 / 8 * between(draw, least, most), 15_000))
    return Case(("policer",), path.way, setup, replace(setup, paced=(sender(path.way), mbit * PACED)), facts)


def policer_shared(draw: random.Random) -> Case:
    """Eight connections of others share the policer with the doctor. They lose packets in it, and yield."""
    case = policer(draw, 0.05, 0.3)
    cross = (cross_of(case.way, "-P", "8", "-C", "cubic"),)
    return replace(case, setup=replace(case.setup, cross=cross), fixed=None)


def shaper(draw: random.Random) -> Case:
    path = drawn(draw)
    mbit = max(path.mbit * between(draw, 0.2, 0.5), 2)
    burst = int(max(mbit * 1e6 / 8 * between(draw, 0.1, 0.5), 100_000))
    given = f"{mbit * 1000:.0f}kbit:{burst}:{max(path.rtt * between(draw, 0.8, 1.5), QUEUE_MIN_MS):.0f}ms"
    facts = {"rate_bps": round(mbit * 1000) * 1000, "burst_bytes": burst}
    return Case(("shaper",), path.way, path.setup.with_path(**{flag(path.way, "shaper"): given}), facts=facts)


# Rate of data per rate of a return direction that carries its acknowledgements: 52 bytes for two segments.
ACK_FACTOR = 2 * 1448 / 52


def thin_return(draw: random.Random, path: Drawn, limit_mbit: float) -> Setup:
    """Returns a path whose return direction carries the acknowledgements of `limit_mbit`.

    Its queue is long: when acknowledgements are dropped, each acknowledges more, and the return direction is no limit. A
    policer that dropped 94 % of the acknowledgements cost 4 % of the rate.
    """
    other = "forward" if path.way == "reverse" else "reverse"
    given = f"{limit_mbit * 1000 / ACK_FACTOR:.0f}kbit:3000:{between(draw, 300, 500):.0f}ms"
    return path.setup.with_path(**{flag(other, "shaper"): given})


def ack_path(draw: random.Random) -> Case:
    path = drawn(draw, rtts=(8, 60, 150), least=0.5)
    return Case(("ack_path",), path.way, thin_return(draw, path, path.mbit * between(draw, 0.1, 0.4)), path.setup)


def reordering(draw: random.Random) -> Case:
    path = drawn(draw)
    late = f"{between(draw, 0.01, 0.05) * 100:.2f}%:{max(path.rtt * between(draw, 0.1, 0.5), 2):.1f}ms"
    return Case(("reordering",), path.way, path.setup.with_path(**{flag(path.way, "reorder"): late}), path.setup)


def pmtu_black_hole(draw: random.Random) -> Case:
    path = drawn(draw)
    return Case(("pmtu_black_hole",), EITHER, path.setup.with_path(path_mtu=str(draw.randint(1280, 1460)), no_icmp=""), path.setup)


def mss_clamped(draw: random.Random) -> Case:
    path = drawn(draw)
    return Case(("mss_clamped",), EITHER, path.setup.with_path(mss_clamp=str(draw.randint(536, 1300))), path.setup)


def disk(draw: random.Random, cause: str) -> Case:
    """A disk at a tenth to a half of the rate of the path."""
    path = drawn(draw, rtts=(8, 60, 150))
    host = sender(path.way) if cause == "disk_read" else receiver(path.way)
    throttle = int(path.mbit * 1e6 / 8 * between(draw, 0.1, 0.5))
    return Case((cause,), path.way, replace(path.setup, slow=host, throttle=throttle, slow_kind=cause.removeprefix("disk_")), path.setup)


def application(draw: random.Random, cause: str) -> Case:
    """A program that others run, observed by --watch: it writes or reads less than the path carries."""
    path = drawn(draw, rtts=(8, 60, 150))
    program = {"application_read": "slow_writer", "application_write": "slow_reader"}[cause]
    return Case((cause,), EITHER, replace(path.setup, program=(program, path.mbit * between(draw, 0.1, 0.5))), seconds=10)


def cpu(draw: random.Random, host: str) -> Case:
    """Bare TCP costs little: iperf3 receives 60 Mbit/s and sends 180 Mbit/s with 0.5 % of a processor."""
    path = drawn(draw, rtts=(8, 60), least=0.7)
    return Case(("cpu",), EITHER, replace(path.setup, quota=host, percent=round(between(draw, 0.3, 0.8), 2)), path.setup)


def rate_cap(draw: random.Random) -> Case:
    path = drawn(draw)
    cap = f"{path.mbit * 1000 * between(draw, 0.1, 0.5):.0f}kbit"
    # The doctor keeps to its rate, so it cannot know what the path carries beyond it: there is no gain to predict.
    return Case(("rate_cap",), EITHER, replace(path.setup, max_rate=cap))


def clean(draw: random.Random) -> Case:
    return Case(("clean",), EITHER, drawn(draw).setup)


def jitter(draw: random.Random) -> Case:
    return Case(("clean",), EITHER, drawn(draw).setup.with_path(jitter=f"{between(draw, 0.2, 1):.1f}ms"))


def deep_queue(draw: random.Random) -> Case:
    """A clean path whose queue adds more delay than the path (bufferbloat)."""
    path = drawn(draw)
    return Case(("clean",), EITHER, path.setup.with_path(queue=f"{max(path.rtt, QUEUE_MIN_MS) * between(draw, 2, 4):.0f}ms"))


def two_buffers(draw: random.Random) -> Case:
    path = drawn(draw, rtts=RTTS[1:], bdp=8 * BDP_MIN)
    first = draw.choice(("receive_buffer", "send_buffer"))
    low = path.bdp * between(draw, 0.1, 0.2)
    high = low * between(draw, 2, 3)
    of_receive, of_send = (low, high) if first == "receive_buffer" else (high, low)
    receives = path.setup.with_host(receiver(path.way), **rmem(of_receive / WINDOW_RATIO))
    send = (sender(path.way), of_send)
    if first == "receive_buffer":
        return Case((first, "send_buffer"), path.way, replace(receives, send_least=send), replace(path.setup, send_least=send))
    return Case((first, "receive_buffer"), path.way, replace(receives, send_most=send), receives)


def window_and(draw: random.Random, buffer: str, second: str) -> Case:
    """A buffer that binds first, and a limit at 1.6 to 3 times its rate."""
    of_loss, of_send = second == "random_loss", buffer == "send_buffer"
    rtts = (LOSS_STEADY_RTT,) if of_loss else (150, 320) if of_send else RTTS[1:]
    path = drawn(draw, rtts=rtts, bdp=BDP_MIN if of_loss else 6 * BDP_MIN if of_send else 2 * BDP_MIN)
    window = max(path.bdp * (between(draw, 0.2, 0.25) if of_send else between(draw, 0.1, 0.2)), WINDOW_MIN)
    mbit = window * 8 / path.rtt / 1e3 * between(draw, 1.6, 3)
    # The bucket holds what the window sends at once.
    bucket = window * between(draw, 1.5, 3) * (2 if of_send else 1)
    facts, modes = {}, ()
    if of_loss:
        loss = cubic_loss(mbit, path.rtt)
        fixed, facts = path.setup.with_path(**lossy(path.way, loss)), {"packets": loss}
    elif second == "policer":
        fixed, facts = policed(path, mbit, bucket)
    else:
        ecmp, modes = modes_of(path, [0.0, round(max(2.5, path.rtt * between(draw, 0.1, 0.5)), 1)])
        fixed = path.setup.with_path(ecmp=ecmp)
    if buffer == "receive_buffer":
        setup = fixed.with_host(receiver(path.way), **rmem(window / WINDOW_RATIO))
    else:
        setup = replace(fixed, send_most=(sender(path.way), window))
    # The rate after the remedy depends on the path that the hash of the ports selects, and on how a sender meets a
    # policer. Only the gain up to random loss is a number.
    return Case((buffer, second), path.way, setup, fixed if of_loss else None, facts, modes)


def ack_path_and_loss(draw: random.Random) -> Case:
    path = drawn(draw, rtts=(LOSS_STEADY_RTT,), least=0.7)
    mbit = path.mbit * between(draw, 0.3, 0.5)
    lost = lossy(path.way, cubic_loss(mbit, path.rtt))
    thin = thin_return(draw, path, mbit / between(draw, 2, 3))
    return Case(("ack_path", "random_loss"), path.way, thin.with_path(**lost), path.setup.with_path(**lost))


Draw = Callable[[random.Random], Case]

CASES: dict[str, Draw] = {
    "receive-buffer": receive_buffer,
    "send-buffer": send_buffer,
    "slow-ramp": slow_ramp,
    "no-scaling-way": no_scaling_on_the_way,
    "no-scaling-end": no_scaling_at_an_end,
    "no-sack-way": no_sack_on_the_way,
    "no-sack-end": no_sack_at_an_end,
    "no-timestamps-way": no_timestamps_on_the_way,
    "no-timestamps-end": no_timestamps_at_an_end,
    "rtt-modes": rtt_modes,
    "random-loss": random_loss,
    "congestion-tcp": congestion_tcp,
    "congestion-udp": congestion_udp,
    "policer-small": lambda draw: policer(draw, 0.005, 0.03),
    "policer-large": lambda draw: policer(draw, 0.1, 0.5),
    "policer-shared": policer_shared,
    "shaper": shaper,
    "ack-path": ack_path,
    "reordering": reordering,
    "pmtu-black-hole": pmtu_black_hole,
    "mss-clamped": mss_clamped,
    "disk-read": lambda draw: disk(draw, "disk_read"),
    "disk-write": lambda draw: disk(draw, "disk_write"),
    "application-read": lambda draw: application(draw, "application_read"),
    "application-write": lambda draw: application(draw, "application_write"),
    "cpu-a": lambda draw: cpu(draw, "a"),
    "cpu-b": lambda draw: cpu(draw, "b"),
    "rate-cap": rate_cap,
    "clean": clean,
    "clean-jitter": jitter,
    "clean-deep-queue": deep_queue,
    "both-buffers": two_buffers,
    "receive-buffer+loss": lambda draw: window_and(draw, "receive_buffer", "random_loss"),
    "receive-buffer+policer": lambda draw: window_and(draw, "receive_buffer", "policer"),
    "receive-buffer+modes": lambda draw: window_and(draw, "receive_buffer", "rtt_modes"),
    "send-buffer+policer": lambda draw: window_and(draw, "send_buffer", "policer"),
    "ack-path+loss": ack_path_and_loss,
}

# Cases whose cause does not exist with a congestion control.
CUBIC_ONLY = ("slow-ramp",)


def case_of(name: str, seed: int, number: int) -> Case:
    """Returns the case in draw `number`. The result does not depend on the other cases."""
    return CASES[name](random.Random(f"{seed}/{number}/{name}"))
