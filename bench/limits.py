#!/usr/bin/env python3
"""Imposes each limit in turn in the lab and checks the first name that sterna gives. As root.

Usage: bench/limits.py [--seeds N] [--only NAME,...] [--output FILE.jsonl] [--binary PATH] [--log DIR]
One JSON line a run, and a table on stderr at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
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
    """One imposed limit. lab: flags of `sterna lab up`; copy: flags of `sterna copy`; size_mb: of the file."""

    name: str
    expect: str
    lab: list[str]
    copy: list[str]
    size_mb: int
    pull: bool = False
    slow: str = ""  # "source" or "destination": on a throttled disk
    quota: str = ""  # "client" or "agent": held to a part of a processor, in percent
    percent: int = 100
    sysctl: list[str] = field(default_factory=list)


TCP1 = ["--via", "tcp", "--lanes", "1", "--congestion", "cubic"]
TCP8 = ["--via", "tcp", "--lanes", "8", "--congestion", "cubic"]
BBR = ["--via", "tcp", "--lanes", "1", "--congestion", "bbr"]
QUIC = ["--via", "quic"]
FAST = ["--rate", "1Gbit", "--rtt", "40ms"]
LONG = ["--rate", "1Gbit", "--rtt", "400ms"]
SMALL_RMEM = ["net.ipv4.tcp_rmem=4096 65536 524288"]
SMALL_WMEM = ["net.ipv4.tcp_wmem=4096 16384 524288"]

CASES = [
    Case("rmem-tcp", "receive_window", FAST, TCP1, 40, sysctl=SMALL_RMEM),
    Case("rmem-tcp8", "receive_window", FAST, TCP8, 120, sysctl=SMALL_RMEM),
    Case("rmem-tcp-pull", "receive_window", FAST, TCP1, 40, pull=True, sysctl=SMALL_RMEM),
    Case("wmem-tcp", "send_buffer", FAST, TCP1, 40, sysctl=SMALL_WMEM),
    Case("wmem-tcp8", "send_buffer", FAST, TCP8, 120, sysctl=SMALL_WMEM),
    Case("wmem-tcp-pull", "send_buffer", FAST, TCP1, 40, pull=True, sysctl=SMALL_WMEM),
    # Memory of QUIC lanes is --memory of the command: of its receive windows in a pull, of what it has in flight in a push.
    Case("memory-quic-pull", "receive_window", LONG, [*QUIC, "--rate", "800Mbit", "--memory", "6MB"], 60, pull=True),
    Case("memory-quic", "send_buffer", LONG, [*QUIC, "--rate", "800Mbit", "--memory", "6MB"], 60),
    Case("loss-1-tcp", "loss", ["--rate", "500Mbit", "--rtt", "20ms", "--loss", "1%", "--reverse-loss", "0"], TCP1, 8),
    Case("loss-0.1-tcp", "loss", ["--rate", "500Mbit", "--rtt", "30ms", "--loss", "0.1%", "--reverse-loss", "0"], TCP1, 16),
    Case("loss-1-tcp8", "loss", ["--rate", "500Mbit", "--rtt", "30ms", "--loss", "1%", "--reverse-loss", "0"], TCP8, 24),
    Case("loss-1-tcp-pull", "loss", ["--rate", "500Mbit", "--rtt", "20ms", "--loss", "1%", "--reverse-loss", "0"], TCP1, 8, pull=True),
    Case("policer-tcp", "policer", ["--rate", "500Mbit", "--rtt", "40ms", "--policer", "40Mbit:128KiB"], TCP1, 24),
    Case("policer-tcp8", "policer", ["--rate", "500Mbit", "--rtt", "40ms", "--policer", "60Mbit:128KiB"], TCP8, 40),
    Case("policer-bbr", "policer", ["--rate", "500Mbit", "--rtt", "40ms", "--policer", "40Mbit:128KiB"], BBR, 24),
    Case("policer-quic", "policer", ["--rate", "500Mbit", "--rtt", "40ms", "--policer", "40Mbit:128KiB"], [*QUIC, "--rate", "80Mbit"], 30),
    Case("full-tcp", "congestion_window", ["--rate", "60Mbit", "--rtt", "30ms"], TCP1, 30),
    Case("full-tcp8", "congestion_window", ["--rate", "60Mbit", "--rtt", "30ms"], TCP8, 30),
    Case("full-bbr", "congestion_window", ["--rate", "60Mbit", "--rtt", "30ms"], BBR, 30),
    Case("full-bbr-loss", "congestion_window", ["--rate", "60Mbit", "--rtt", "30ms", "--loss", "1%", "--reverse-loss", "0"], BBR, 30),
    Case("full-quic", "congestion_window", ["--rate", "60Mbit", "--rtt", "30ms"], QUIC, 30),
    Case("full-quic-given", "congestion_window", ["--rate", "60Mbit", "--rtt", "30ms"], [*QUIC, "--rate", "120Mbit"], 30),
    Case("cap-tcp", "rate_cap", FAST, [*TCP1, "--rate", "50Mbit"], 30),
    Case("cap-tcp8", "rate_cap", FAST, [*TCP8, "--rate", "50Mbit"], 30),
    Case("cap-tcp-pull", "rate_cap", FAST, [*TCP1, "--rate", "50Mbit"], 30, pull=True),
    Case("cap-quic", "rate_cap", FAST, [*QUIC, "--rate", "50Mbit"], 30),
    Case("cap-quic-pull", "rate_cap", FAST, [*QUIC, "--rate", "50Mbit"], 30, pull=True),
    Case("cap-quic-loss", "rate_cap", [*FAST, "--loss", "1%"], [*QUIC, "--rate", "50Mbit"], 30),
    Case("source-tcp", "source_disk", FAST, TCP1, 48, slow="source"),
    Case("source-tcp8", "source_disk", FAST, TCP8, 48, slow="source"),
    Case("source-quic", "source_disk", FAST, [*QUIC, "--rate", "800Mbit"], 48, slow="source"),
    Case("source-tcp-pull", "source_disk", FAST, TCP1, 48, slow="source", pull=True),
    Case("destination-tcp", "destination_disk", FAST, TCP1, 48, slow="destination"),
    Case("destination-tcp8", "destination_disk", FAST, TCP8, 48, slow="destination"),
    Case("destination-quic", "destination_disk", FAST, [*QUIC, "--rate", "800Mbit"], 48, slow="destination"),
    Case("destination-tcp-pull", "destination_disk", FAST, TCP1, 48, slow="destination", pull=True),
    Case("cpu-sender-tcp", "cpu", FAST, TCP1, 80, quota="client", percent=6),
    Case("cpu-sender-quic", "cpu", FAST, [*QUIC, "--rate", "800Mbit"], 40, quota="client", percent=15),
    Case("cpu-receiver-tcp", "cpu", FAST, TCP1, 80, quota="agent", percent=5),
    Case("cpu-receiver-quic", "cpu", FAST, [*QUIC, "--rate", "800Mbit"], 40, quota="agent", percent=12),
    Case("idle-tcp", "nothing_to_send", ["--rate", "1Gbit", "--rtt", "600ms"], TCP1, 0),
    Case("idle-quic", "nothing_to_send", ["--rate", "1Gbit", "--rtt", "600ms"], [*QUIC, "--rate", "100Mbit"], 0),
]

SLOW_BYTES_PER_SECOND = 12_000_000
BLKIO = Path("/sys/fs/cgroup/blkio")
CPU = Path("/sys/fs/cgroup/cpu")


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@contextlib.contextmanager
def slow_disk():
    """A file system on a loop device that the block layer throttles, both ways (cgroup v1, at its root)."""
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
            for kind in "read", "write":
                (BLKIO / f"blkio.throttle.{kind}_bps_device").write_text(f"{number} {SLOW_BYTES_PER_SECOND}")
            yield place
        finally:
            for kind in "read", "write":
                (BLKIO / f"blkio.throttle.{kind}_bps_device").write_text(f"{number} 0")
            subprocess.run(["umount", str(place)], check=False)
            subprocess.run(["losetup", "--detach", device], check=False)


@contextlib.contextmanager
def cpu_quota(percent: int):
    """A control group that gets a part of one processor."""
    group = CPU / f"sterna-limits-{os.getpid()}"
    group.mkdir()
    try:
        (group / "cpu.cfs_period_us").write_text("20000")
        (group / "cpu.cfs_quota_us").write_text(str(20000 * percent // 100))
        yield group
    finally:
        for _ in range(100):
            with contextlib.suppress(OSError):
                group.rmdir()
                return
            time.sleep(0.05)


def possible(case: Case) -> bool:
    """Whether this host can impose it."""
    has_disk = (BLKIO / "blkio.throttle.read_bps_device").exists() and Path("/dev/loop-control").exists()
    has_quota = (CPU / "cgroup.procs").exists()
    return (has_disk or not case.slow) and (has_quota or not case.quota)


def inside(group: Path | None, command: list[str]) -> list[str]:
    if group is None:
        return command
    return ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$0" "$@"', *command]


def payload(path: Path, size_mb: int) -> None:
    source = random.Random(7)
    with open(path, "wb") as file:
        for _ in range(size_mb):
            file.write(source.randbytes(1_000_000))
        if size_mb == 0:
            file.write(b"small")


def measure(case: Case, seed: int, binary: Path, logs: Path | None) -> dict:
    name = f"limits-{os.getpid()}"
    lab = [str(binary), "lab"]
    with contextlib.ExitStack() as stack:
        memory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sterna-limits-", dir="/dev/shm")))
        disk = stack.enter_context(slow_disk()) if case.slow else None
        group = stack.enter_context(cpu_quota(case.percent)) if case.quota else None
        source = disk if case.slow == "source" else memory / "source"
        destination = disk if case.slow == "destination" else memory / "destination"
        for place in source, destination:
            place.mkdir(exist_ok=True)
        payload(source / "data", case.size_mb) if case.slow != "source" else slow_payload(source, case.size_mb)
        sysctls = [f"--sysctl={setting}" for setting in case.sysctl]
        settled = " ".join(case.sysctl)
        sysctls += [f"--sysctl=net.ipv4.{key}={least} 33554432" for key, least in
                    (("tcp_rmem", "4096 131072"), ("tcp_wmem", "4096 16384")) if key not in settled]
        run(*lab, "up", "--name", name, "--seed", str(seed), "--cc", "cubic", *case.lab, *sysctls)
        stack.callback(subprocess.run, [*lab, "down", "--name", name], capture_output=True, check=False)
        agent_host, client_host = ("a", "b") if case.pull else ("b", "a")
        root = source if case.pull else destination
        agent_command = [str(binary), "agent", "--root", str(root), "--authorize-any", "--state", str(memory / "agent")]
        agent_command = inside(group if case.quota == "agent" else None, agent_command)
        agent = subprocess.Popen([*lab, "exec", "--name", name, agent_host, "--", *agent_command],
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        stack.callback(agent.wait)
        stack.callback(agent.terminate)
        fingerprint = agent.stdout.readline().split()[-1]
        address = {"a": "10.77.0.1", "b": "10.77.1.1"}[agent_host]
        ends = ([f"sterna://{address}/data", str(destination / "out")] if case.pull
                else [str(source / "data"), f"sterna://{address}/out"])
        log = ["--log", str(logs / f"{case.name}-{seed}.jsonl")] if logs else []
        copy = [str(binary), "copy", "--json", "--state", str(memory / "client"), "--trust", fingerprint, *case.copy, *log, *ends]
        copy = inside(group if case.quota == "client" else None, copy)
        done = subprocess.run(["timeout", "--signal=INT", "60", *lab, "exec", "--name", name, client_host, "--", *copy],
                              capture_output=True, text=True, check=False)
        summary = next((json.loads(line) for line in reversed(done.stdout.splitlines()) if '"summary"' in line), None)
        if summary is None:
            return {"case": case.name, "seed": seed, "expect": case.expect, "first": None, "right": False,
                    "error": (done.stderr + done.stdout)[-600:]}
        limits = summary["limits"]
        return {"case": case.name, "seed": seed, "expect": case.expect, "first": limits["first"],
                "right": limits["first"] == case.expect, "elapsed_s": round(summary["elapsed_s"], 2),
                "goodput_mbit_s": round(summary["goodput_bps"] / 1e6, 1), "shares": limits["shares"],
                "remedy": limits["remedies"].get(limits["first"] or "", ""), "facts": limits["facts"]}


def slow_payload(place: Path, size_mb: int) -> None:
    """Written past the throttle is not possible: it takes its time, and then leaves the page cache."""
    payload(place / "data", size_mb)
    run("sync", "-f", str(place / "data"))
    with open(place / "data", "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def table(rows: list[dict]) -> str:
    lines = ["| case | limit imposed | runs | right | named first (share) | goodput Mbit/s |", "|---|---|---|---|---|---|"]
    for name in dict.fromkeys(row["case"] for row in rows):
        of = [row for row in rows if row["case"] == name]
        named = ", ".join(f"{row['first']} {row.get('shares', {}).get(row['first'] or '', 0):.2f}" for row in of)
        rates = sorted(row.get("goodput_mbit_s", 0) for row in of)
        right = sum(row["right"] for row in of)
        lines.append(f"| {name} | {of[0]['expect']} | {len(of)} | {right} | {named} | {rates[len(rates) // 2]} |")
    right = sum(row["right"] for row in rows)
    lines.append(f"\n{right} of {len(rows)} runs named the imposed limit first: {100 * right / len(rows):.1f} %")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/sterna")
    parser.add_argument("--log", type=Path)
    arguments = parser.parse_args()
    wanted = [word for word in arguments.only.split(",") if word]
    cases = [case for case in CASES if not wanted or any(word in case.name for word in wanted)]
    for case in [case for case in cases if not possible(case)]:
        print(f"{case.name} is left out: this kernel lacks cgroup v1 with blkio or cpu, or loop devices", file=sys.stderr)
        cases.remove(case)
    if arguments.log:
        arguments.log.mkdir(parents=True, exist_ok=True)
    # A copy of the binary: the one in target/ may be built anew meanwhile.
    with tempfile.TemporaryDirectory(prefix="sterna-limits-bin-") as directory:
        binary = Path(shutil.copy2(arguments.binary, directory))
        rows = []
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            for case in cases:
                row = measure(case, seed, binary, arguments.log)
                rows.append(row)
                line = json.dumps(row)
                if arguments.output:
                    with open(arguments.output, "a") as file:
                        file.write(line + "\n")
                shown = {key: row.get(key) for key in ("case", "seed", "first", "right", "shares", "elapsed_s", "goodput_mbit_s", "remedy", "error") if row.get(key) is not None}
                print(json.dumps(shown), flush=True)
    print(table(rows), file=sys.stderr)
    return 0 if all(row["right"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
