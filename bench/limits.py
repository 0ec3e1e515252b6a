#!/usr/bin/env python3
"""Imposes limits with random parameters in the lab. Checks the limit that sterna names first and its facts. As root.

Usage: bench/limits.py [--draws N] [--seed SEED] [--only NAME,...] [--output FILE.jsonl] [--binary PATH] [--log DIR]
                       [--record DIR]

Each run draws rate, RTT, loss, bucket, buffers, queue and file size of each case from the ranges given in the case. The
seed is random and printed; `--seed` repeats a draw. A stated fact is right if it is within 10 % of the imposed value,
or if its stated range contains this value. Prints one JSON line per run, and a table on stderr at the end.

`--record` keeps the input of the limit account, with the imposed values at its head, in the format of
crates/proto/tests/limit_traces. Only pushes are recorded, because the account is at the sending end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Case:
    """One imposed limit. lab: flags of `sterna lab up`; copy: flags of `sterna copy`; size: bytes of the file."""

    expect: str
    lab: list[str]
    copy: list[str]
    size: int
    facts: dict[str, float] = field(default_factory=dict)  # imposed values, by the names of `facts` in --json
    pull: bool = False
    slow: str = ""  # "source" or "destination": the end with a throttled disk
    throttle: int = 0  # rate of the throttled disk, bytes/s
    quota: str = ""  # "client" or "agent": the end with a CPU quota, `percent` of one processor
    percent: int = 100
    sysctl: list[str] = field(default_factory=list)


TCP1 = ["--via", "tcp", "--lanes", "1", "--congestion", "cubic"]
TCP8 = ["--via", "tcp", "--lanes", "8", "--congestion", "cubic"]
BBR = ["--via", "tcp", "--lanes", "1", "--congestion", "bbr"]
QUIC = ["--via", "quic"]

# Payload per byte of an IP packet in a lane of full segments at MTU 1500: TCP with timestamps.
TCP_PAYLOAD = 1448 / 1500
# Time that the copy should take, s; determines the file size. Reason: long enough for some sawteeth of the congestion
# window, short enough for many runs.
SECONDS = 6

# Smallest number of losses on each lane in the loss cases.
LOSSES_OF_LANE = 12


def between(draw: random.Random, least: float, most: float) -> float:
    """Draws a value from a log-uniform distribution."""
    return math.exp(draw.uniform(math.log(least), math.log(most)))


def link(mbit: float, rtt_ms: float, *more: str) -> list[str]:
    return ["--rate", f"{mbit:.0f}Mbit", "--rtt", f"{rtt_ms:.0f}ms", *more]


def size_of(mbit: float, seconds: float = SECONDS) -> int:
    """Returns the size of a file that takes `seconds`, bytes."""
    return int(min(max(mbit * 1e6 / 8 * seconds, 2e6), 160e6))


def lanes_of(copy: list[str]) -> int:
    return 8 if copy == TCP8 else 1


def receive_buffer(draw: random.Random, copy: list[str], pull: bool = False) -> Case:
    buffer, rtt = int(between(draw, 256e3, 1e6)), round(between(draw, 20, 120))
    carries = buffer / 2 * 8 / rtt / 1e3 * lanes_of(copy)
    facts = {"receive_buffer_max_bytes": buffer, "rtt_s": rtt / 1e3}
    return Case("receive_window", link(max(carries * 3, 100), rtt), copy, size_of(carries), facts, pull,
                sysctl=[f"net.ipv4.tcp_rmem=4096 65536 {buffer}"])


def send_buffer(draw: random.Random, copy: list[str], pull: bool = False) -> Case:
    buffer, rtt = int(between(draw, 256e3, 1e6)), round(between(draw, 20, 120))
    carries = buffer * 8 / rtt / 1e3 * lanes_of(copy)
    facts = {"send_buffer_max_bytes": buffer, "rtt_s": rtt / 1e3}
    return Case("send_buffer", link(max(carries * 3, 100), rtt), copy, size_of(carries), facts, pull,
                sysctl=[f"net.ipv4.tcp_wmem=4096 16384 {buffer}"])


def memory(draw: random.Random, expect: str, pull: bool) -> Case:
    """Limits the memory of QUIC lanes by --memory: the windows in a pull, the bytes in flight in a push."""
    megabytes, rtt = round(between(draw, 5, 9)), round(between(draw, 300, 600))
    given = [*QUIC, "--rate", "800Mbit", "--memory", f"{megabytes}MB"]
    return Case(expect, link(1000, rtt), given, size_of(megabytes * 4e3 / rtt, 8), {}, pull)


def loss(draw: random.Random, copy: list[str], pull: bool = False) -> Case:
    share, rtt = between(draw, 0.001, 0.015), round(between(draw, 10, 60))
    # Rate of a cubic lane (RFC 9438, at least the rate of reno), Mbit/s.
    carries = max(1.054 / share**0.75 * (rtt / 1e3) ** 0.75, 1.22 / share**0.5) * 1448 * 8 / rtt / 1e3 * lanes_of(copy)
    # Fast enough that slow start meets a loss before a full queue.
    path = link(max(carries * 8, 200), rtt, "--loss", f"{share * 100:.3f}%", "--reverse-loss", "0")
    # Long enough that each lane has enough losses to detect the limit.
    size = max(size_of(carries), int(LOSSES_OF_LANE * 1448 / share) * lanes_of(copy))
    return Case("loss", path, copy, size, {"loss": share}, pull)


def policer(draw: random.Random, copy: list[str]) -> Case:
    mbit, rtt, bucket = round(between(draw, 20, 100)), round(between(draw, 10, 100)), round(between(draw, 64e3, 512e3))
    given = [*copy, "--rate", f"{mbit * 2}Mbit"] if copy == QUIC else copy
    path = link(500, rtt, "--policer", f"{mbit}Mbit:{bucket}")
    return Case("policer", path, given, size_of(mbit, 8), {"policed_bps": mbit * 1e6})


def full(draw: random.Random, copy: list[str], lossy: bool = False, given: bool = False) -> Case:
    """A full path. The queue has at least 12 ms: a queue below 5 ms looks like a policer (docs/tuning.md)."""
    mbit, rtt, queue = round(between(draw, 20, 250)), round(between(draw, 24, 120)), between(draw, 0.5, 2)
    more = ["--loss", f"{between(draw, 0.001, 0.01) * 100:.3f}%", "--reverse-loss", "0"] if lossy else []
    copy = [*copy, "--rate", f"{mbit * 2}Mbit"] if given else copy
    payload = 1 if QUIC[1] in copy else TCP_PAYLOAD
    path = link(mbit, rtt, "--queue", f"{queue:.2f}bdp", *more)
    return Case("congestion_window", path, copy, size_of(mbit, 8), {"rate_bps": mbit * 1e6 * payload})


def overshoot(draw: random.Random) -> Case:
    """A fast path with a queue that slow start overflows once: a few losses, then a full path."""
    mbit, rtt = round(between(draw, 150, 500)), round(between(draw, 20, 80))
    path = link(mbit, rtt, "--queue", f"{between(draw, 0.8, 1.5):.2f}bdp")
    return Case("congestion_window", path, TCP1, size_of(mbit, 4), {"rate_bps": mbit * 1e6 * TCP_PAYLOAD})


def thin_return(draw: random.Random, least: float, most: float) -> tuple[int, list[str]]:
    """Returns the rate of a path whose return direction has only a fraction of this rate, and the flags of the path."""
    mbit, rtt, queue = round(between(draw, 200, 400)), round(between(draw, 20, 60)), round(between(draw, 40, 120))
    kbit = round(between(draw, least, most) * mbit * 1e3)
    return mbit, link(mbit, rtt, "--reverse-rate", f"{kbit}kbit", "--queue", f"{queue}ms")


def ack_path(draw: random.Random) -> Case:
    """TCP acknowledges every second packet with 52 bytes, 1.7 % of the rate. ACKs that do not fit are thinned."""
    mbit, path = thin_return(draw, 0.0008, 0.0035)
    return Case("ack_path", path, TCP1, size_of(mbit))


def carried_return(draw: random.Random) -> Case:
    """QUIC lanes acknowledge every 50th packet, 0.1 % of the rate. This fits a return direction too slow for TCP."""
    mbit, path = thin_return(draw, 0.0015, 0.005)
    return Case("congestion_window", path, QUIC, size_of(mbit, 5), {"rate_bps": mbit * 1e6})


def cap(draw: random.Random, copy: list[str], pull: bool = False, lossy: bool = False) -> Case:
    mbit, rtt = round(between(draw, 10, 80)), round(between(draw, 10, 120))
    more = ["--loss", f"{between(draw, 0.001, 0.01) * 100:.3f}%"] if lossy else []
    return Case("rate_cap", link(500, rtt, *more), [*copy, "--rate", f"{mbit}Mbit"], size_of(mbit), {"rate_cap_bps": mbit * 1e6}, pull)


def disk(draw: random.Random, end: str, copy: list[str], pull: bool = False) -> Case:
    throttle = int(between(draw, 5e6, 15e6))
    given = [*copy, "--rate", "800Mbit"] if copy == QUIC else copy
    name = {"source": "source_bytes_per_s", "destination": "destination_bytes_per_s"}[end]
    return Case(f"{end}_disk", link(1000, between(draw, 10, 80)), given, throttle * 4, {name: throttle}, pull, end, throttle)


def processor(draw: random.Random, end: str, copy: list[str]) -> Case:
    """A CPU quota that carries a tenth to a half of the link. TCP needs a third of the CPU time of QUIC per byte."""
    cost = 1 if copy == QUIC else 0.3
    quota, percent = ("client", between(draw, 5, 15)) if end == "sender" else ("agent", between(draw, 5, 12))
    given = [*copy, "--rate", "800Mbit"] if copy == QUIC else copy
    facts = {"cpu_at_receiver": float(end == "receiver")}
    return Case("cpu", link(1000, between(draw, 10, 60)), given, 60_000_000, facts, quota=quota, percent=round(percent * cost))


def silence(draw: random.Random, copy: list[str]) -> Case:
    """A path with an outage that is longer than the copy of the file."""
    mbit, away = round(between(draw, 20, 60)), round(between(draw, 8, 12))
    path = link(mbit, round(between(draw, 20, 150)), "--outage", f"2s+{away}s")
    return Case("silence", path, [*copy, "--rate", f"{mbit}Mbit"], size_of(mbit, 4))


def idle(draw: random.Random, copy: list[str]) -> Case:
    return Case("nothing_to_send", link(1000, between(draw, 400, 700)), copy, 5)


CASES = {
    "rmem-tcp": lambda draw: receive_buffer(draw, TCP1),
    "rmem-tcp8": lambda draw: receive_buffer(draw, TCP8),
    "rmem-tcp-pull": lambda draw: receive_buffer(draw, TCP1, pull=True),
    "wmem-tcp": lambda draw: send_buffer(draw, TCP1),
    "wmem-tcp8": lambda draw: send_buffer(draw, TCP8),
    "wmem-tcp-pull": lambda draw: send_buffer(draw, TCP1, pull=True),
    "memory-quic-pull": lambda draw: memory(draw, "receive_window", pull=True),
    "memory-quic": lambda draw: memory(draw, "send_buffer", pull=False),
    "loss-tcp": lambda draw: loss(draw, TCP1),
    "loss-tcp8": lambda draw: loss(draw, TCP8),
    "loss-tcp-pull": lambda draw: loss(draw, TCP1, pull=True),
    "policer-tcp": lambda draw: policer(draw, TCP1),
    "policer-tcp8": lambda draw: policer(draw, TCP8),
    "policer-bbr": lambda draw: policer(draw, BBR),
    "policer-quic": lambda draw: policer(draw, QUIC),
    "full-tcp": lambda draw: full(draw, TCP1),
    "full-tcp8": lambda draw: full(draw, TCP8),
    "full-bbr": lambda draw: full(draw, BBR),
    "full-bbr-loss": lambda draw: full(draw, BBR, lossy=True),
    "full-quic": lambda draw: full(draw, QUIC),
    "full-quic-loss": lambda draw: full(draw, QUIC, lossy=True),
    "full-quic-given": lambda draw: full(draw, QUIC, given=True),
    "overshoot-tcp": overshoot,
    "ack-path-tcp": ack_path,
    "thin-return-quic": carried_return,
    "cap-tcp": lambda draw: cap(draw, TCP1),
    "cap-tcp8": lambda draw: cap(draw, TCP8),
    "cap-tcp-pull": lambda draw: cap(draw, TCP1, pull=True),
    "cap-quic": lambda draw: cap(draw, QUIC),
    "cap-quic-pull": lambda draw: cap(draw, QUIC, pull=True),
    "cap-quic-loss": lambda draw: cap(draw, QUIC, lossy=True),
    "source-tcp": lambda draw: disk(draw, "source", TCP1),
    "source-tcp8": lambda draw: disk(draw, "source", TCP8),
    "source-quic": lambda draw: disk(draw, "source", QUIC),
    "source-tcp-pull": lambda draw: disk(draw, "source", TCP1, pull=True),
    "destination-tcp": lambda draw: disk(draw, "destination", TCP1),
    "destination-tcp8": lambda draw: disk(draw, "destination", TCP8),
    "destination-quic": lambda draw: disk(draw, "destination", QUIC),
    "destination-tcp-pull": lambda draw: disk(draw, "destination", TCP1, pull=True),
    "cpu-sender-tcp": lambda draw: processor(draw, "sender", TCP1),
    "cpu-sender-quic": lambda draw: processor(draw, "sender", QUIC),
    "cpu-receiver-tcp": lambda draw: processor(draw, "receiver", TCP1),
    "cpu-receiver-quic": lambda draw: processor(draw, "receiver", QUIC),
    "silence-tcp": lambda draw: silence(draw, TCP1),
    "silence-quic": lambda draw: silence(draw, QUIC),
    "idle-tcp": lambda draw: idle(draw, TCP1),
    "idle-quic": lambda draw: idle(draw, [*QUIC, "--rate", "100Mbit"]),
}


def drawn(name: str, seed: int, number: int) -> Case:
    """Returns the case of this name in draw `number`. The result does not depend on the other cases."""
    return CASES[name](random.Random(f"{seed}/{number}/{name}"))


# Facts that the remedy of each limit states. Only stated facts are judged.
STATED = {
    "receive_window": ["receive_buffer_max_bytes", "rtt_s"],
    "send_buffer": ["send_buffer_max_bytes", "rtt_s"],
    "loss": ["loss"],
    "policer": ["policed_bps"],
    "congestion_window": ["rate_bps"],
    "rate_cap": ["rate_cap_bps"],
    "source_disk": ["source_bytes_per_s"],
    "destination_disk": ["destination_bytes_per_s"],
    "cpu": ["cpu_at_receiver"],
}


def judged(case: Case, limits: dict) -> dict[str, dict]:
    """Compares each stated fact with the imposed value. A congestion window that still grows states no rate."""
    first, facts = limits["first"], limits["facts"]
    if first == "congestion_window" and facts["is_growing"] or first != case.expect:
        return {}
    result = {}
    for name in STATED.get(first or "", []):
        if name not in case.facts or name not in facts:
            continue
        said, imposed = facts[name], case.facts[name]
        least, most = said if isinstance(said, list) else (said, said)
        most = math.inf if most is None else most
        right = least <= imposed * 1.1 and most >= imposed * 0.9
        result[name] = {"imposed": imposed, "said": said, "right": bool(right)}
    return result


def wilson(right: int, count: int) -> tuple[float, float]:
    """Returns the 95 % confidence interval of a share (Wilson, 1927)."""
    if count == 0:
        return 0.0, 1.0
    z, share = 1.96, right / count
    middle, spread = share + z * z / (2 * count), z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return (middle - spread) / (1 + z * z / count), (middle + spread) / (1 + z * z / count)


BLKIO = Path("/sys/fs/cgroup/blkio")
CPU = Path("/sys/fs/cgroup/cpu")


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@contextlib.contextmanager
def slow_disk(throttle: int, kinds: tuple[str, ...] = ("read", "write")):
    """A file system on a loop device, throttled by the block layer (cgroup v1, at its root)."""
    with tempfile.TemporaryDirectory(prefix="sterna-limits-", dir="/var/tmp") as directory:
        image, place = Path(directory) / "image", Path(directory) / "disk"
        place.mkdir()
        with open(image, "wb") as file:
            file.truncate(400_000_000)
        device = run("losetup", "--find", "--show", "--direct-io=on", str(image)).strip()
        number = run("lsblk", "-no", "MAJ:MIN", device).strip()
        try:
            run("mkfs.ext4", "-q", "-O", "^has_journal", device)
            run("mount", device, str(place))
            for kind in kinds:
                (BLKIO / f"blkio.throttle.{kind}_bps_device").write_text(f"{number} {throttle}")
            yield place
        finally:
            for kind in "read", "write":
                (BLKIO / f"blkio.throttle.{kind}_bps_device").write_text(f"{number} 0")
            subprocess.run(["umount", str(place)], check=False)
            subprocess.run(["losetup", "--detach", device], check=False)


@contextlib.contextmanager
def cpu_quota(percent: float):
    """A control group with a fraction of one processor."""
    group = CPU / f"sterna-limits-{os.getpid()}"
    group.mkdir()
    try:
        # The kernel requires a quota of at least 1 ms per period.
        period_us = max(20_000, math.ceil(100_000 / percent))
        (group / "cpu.cfs_period_us").write_text(str(period_us))
        (group / "cpu.cfs_quota_us").write_text(str(int(period_us * percent / 100)))
        yield group
    finally:
        for _ in range(100):
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.05)


def possible(case: Case) -> bool:
    """Returns true if this host can impose the limit."""
    has_disk = (BLKIO / "blkio.throttle.read_bps_device").exists() and Path("/dev/loop-control").exists()
    has_quota = (CPU / "cgroup.procs").exists()
    return (has_disk or not case.slow) and (has_quota or not case.quota)


def inside(group: Path | None, command: list[str]) -> list[str]:
    if group is None:
        return command
    return ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$0" "$@"', *command]


def payload(path: Path, size: int) -> None:
    source = random.Random(7)
    with open(path, "wb") as file:
        for start in range(0, size, 1_000_000):
            file.write(source.randbytes(min(size - start, 1_000_000)))


def recorded(case: Case, name: str, path: Path, kept: Path) -> None:
    """Writes the recording with the imposed values at its head."""
    lines = [f"# {name}: lab {' '.join(case.lab + case.sysctl)}; copy {' '.join(case.copy)}, {case.size} bytes", f"# first {case.expect}"]
    lines += [f"# fact {fact} {value:.6g}" for fact, value in case.facts.items()]
    kept.write_text("\n".join(lines) + "\n" + path.read_text())


def measure(name: str, case: Case, seed: int, arguments: argparse.Namespace, binary: Path) -> dict:
    host = f"limits-{os.getpid()}"
    lab = [str(binary), "lab"]
    with contextlib.ExitStack() as stack:
        memory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sterna-limits-", dir="/dev/shm")))
        disk = stack.enter_context(slow_disk(case.throttle)) if case.slow else None
        group = stack.enter_context(cpu_quota(case.percent)) if case.quota else None
        source = disk if case.slow == "source" else memory / "source"
        destination = disk if case.slow == "destination" else memory / "destination"
        for place in source, destination:
            place.mkdir(exist_ok=True)
        payload(source / "data", case.size) if case.slow != "source" else slow_payload(source, case.size)
        sysctls = [f"--sysctl={setting}" for setting in case.sysctl]
        settled = " ".join(case.sysctl)
        sysctls += [f"--sysctl=net.ipv4.{key}={least} 33554432" for key, least in
                    (("tcp_rmem", "4096 131072"), ("tcp_wmem", "4096 16384")) if key not in settled]
        run(*lab, "up", "--name", host, "--seed", str(seed), "--cc", "cubic", *case.lab, *sysctls)
        stack.callback(subprocess.run, [*lab, "down", "--name", host], capture_output=True, check=False)
        agent_host, client_host = ("a", "b") if case.pull else ("b", "a")
        root = source if case.pull else destination
        agent_command = [str(binary), "agent", "--root", str(root), "--authorize-any", "--state", str(memory / "agent")]
        agent_command = inside(group if case.quota == "agent" else None, agent_command)
        agent = subprocess.Popen([*lab, "exec", "--name", host, agent_host, "--", *agent_command],
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        stack.callback(agent.wait)
        stack.callback(agent.terminate)
        fingerprint = agent.stdout.readline().split()[-1]
        address = {"a": "10.77.0.1", "b": "10.77.1.1"}[agent_host]
        ends = ([f"sterna://{address}/data", str(destination / "out")] if case.pull
                else [str(source / "data"), f"sterna://{address}/out"])
        more = ["--log", str(arguments.log / f"{name}-{seed}.jsonl")] if arguments.log else []
        trace = memory / "trace"
        more += ["--record-samples", str(trace)] if arguments.record and not case.pull else []
        copy = [str(binary), "copy", "--json", "--state", str(memory / "client"), "--trust", fingerprint, *case.copy, *more, *ends]
        copy = inside(group if case.quota == "client" else None, copy)
        done = subprocess.run(["timeout", "--signal=INT", "60", *lab, "exec", "--name", host, client_host, "--", *copy],
                              capture_output=True, text=True, check=False)
        row = {"case": name, "seed": seed, "expect": case.expect, "first": None, "right": False, "lab": case.lab + case.sysctl,
               "copy": case.copy, "size": case.size}
        summary = next((json.loads(line) for line in reversed(done.stdout.splitlines()) if '"summary"' in line), None)
        if summary is None:
            return {**row, "error": (done.stderr + done.stdout)[-600:]}
        if trace.exists():
            recorded(case, name, trace, arguments.record / f"{name}.txt")
        limits = summary["limits"]
        return {**row, "first": limits["first"], "right": limits["first"] == case.expect,
                "judged": judged(case, limits), "elapsed_s": round(summary["elapsed_s"], 2),
                "goodput_mbit_s": round(summary["goodput_bps"] / 1e6, 1), "shares": limits["shares"],
                "remedy": limits["remedies"].get(limits["first"] or "", ""), "facts": limits["facts"]}


def slow_payload(place: Path, size: int) -> None:
    """Writes the file at the rate of the throttled disk, then removes it from the page cache."""
    payload(place / "data", size)
    run("sync", "-f", str(place / "data"))
    with open(place / "data", "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def share_of(what: str, rights: list[bool]) -> str:
    low, high = wilson(sum(rights), len(rights))
    percent = 100 * sum(rights) / max(len(rights), 1)
    return f"{what}: {sum(rights)} of {len(rights)} right, {percent:.1f} % (95 % interval {100 * low:.1f} to {100 * high:.1f})"


def table(rows: list[dict]) -> str:
    lines = ["| case | limit imposed | runs | right | named first (share) | facts right | goodput Mbit/s |", "|---|---|---|---|---|---|---|"]
    facts = [fact["right"] for row in rows for fact in row.get("judged", {}).values()]
    for name in dict.fromkeys(row["case"] for row in rows):
        of = [row for row in rows if row["case"] == name]
        named = ", ".join(f"{row['first']} {row.get('shares', {}).get(row['first'] or '', 0):.2f}" for row in of)
        rates = sorted(row.get("goodput_mbit_s", 0) for row in of)
        told = [fact["right"] for row in of for fact in row.get("judged", {}).values()]
        right = sum(row["right"] for row in of)
        lines.append(f"| {name} | {of[0]['expect']} | {len(of)} | {right} | {named} | {sum(told)} of {len(told)} | {rates[len(rates) // 2]} |")
    return "\n".join([*lines, "", share_of("first names", [row["right"] for row in rows]), share_of("stated facts", facts)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1, help="how often each case is drawn")
    parser.add_argument("--seed", type=int, help="of the draws; fresh when not given")
    parser.add_argument("--only", default="", help="parts of the names of cases to run")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/sterna")
    parser.add_argument("--log", type=Path)
    parser.add_argument("--record", type=Path, help="directory for what the account of each push was given")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}: bench/limits.py --draws {arguments.draws} --seed {seed} draws the same again", file=sys.stderr)
    wanted = [word for word in arguments.only.split(",") if word]
    names = [name for name in CASES if not wanted or any(word in name for word in wanted)]
    for name in [name for name in names if not possible(drawn(name, seed, 0))]:
        print(f"{name} is left out: this kernel lacks cgroup v1 with blkio or cpu, or loop devices", file=sys.stderr)
        names.remove(name)
    for directory in filter(None, (arguments.log, arguments.record)):
        directory.mkdir(parents=True, exist_ok=True)
    # Uses a copy of the binary, because target/ may be rebuilt during the runs.
    with tempfile.TemporaryDirectory(prefix="sterna-limits-bin-") as directory:
        binary = Path(shutil.copy2(arguments.binary, directory))
        rows = []
        for number in range(arguments.draws):
            for name in names:
                row = measure(name, drawn(name, seed, number), seed + number, arguments, binary)
                row["draw"] = {"seed": seed, "number": number}
                rows.append(row)
                if arguments.output:
                    with open(arguments.output, "a") as file:
                        file.write(json.dumps(row) + "\n")
                shown = ("case", "first", "right", "judged", "shares", "elapsed_s", "goodput_mbit_s", "remedy", "lab", "error")
                print(json.dumps({key: row[key] for key in shown if key in row}), flush=True)
    print(table(rows), file=sys.stderr)
    return 0 if all(row["right"] and all(fact["right"] for fact in row["judged"].values()) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
