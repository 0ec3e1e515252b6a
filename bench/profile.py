#!/usr/bin/env python3
"""CPU profile of a copy: samples both ends of a push from memory to memory over a veth pair. As root, with perf.

Usage: bench/profile.py [--binary PATH]... [--rate RATE] [--mtu MTU,...] [--lanes N] [--size MB] [--output FILE.jsonl]

Prints CPU seconds per GB of each end and each kind of work. Runs of several binaries alternate. A sample belongs to the
function that was running. A system call counts by its name and includes all kernel work inside it. For a send over veth
this includes the path to the other socket.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SAMPLES_PER_S = 999
NEAR, FAR = "10.78.1.1", "10.78.1.2"

# Kinds of samples in user space. The first pattern that matches the innermost function counts.
USER = (
    ("hash", re.compile(r"blake3")),
    ("encryption", re.compile(r"aes|gcm|ghash|aead|chacha|rustls::crypto|poly1305")),
    ("copies", re.compile(r"memmove|memcpy|memset")),
    ("engine", re.compile(r"noq|quinn|sorted_index_buffer|tracing|range_set|hashbrown")),
    ("wake-ups", re.compile(r"tokio|mio::|std::sys::sync|futex")),
    ("memory", re.compile(r"malloc|free|alloc|bytes::")),
    ("sterna", re.compile(r"sterna")),
)
# Kinds of samples in the kernel. The first pattern that matches any function on the stack counts.
KERNEL = (
    ("send", re.compile(r"sys_send")),
    ("receive", re.compile(r"sys_recv")),
    ("wake-ups", re.compile(r"epoll|futex|eventfd|timerfd")),
    ("files", re.compile(r"sys_(p?read|p?write|fallocate|fsync|copy_file|f?truncate|openat|mmap|munmap)|page_fault|fault")),
    ("interrupts", re.compile(r"asm_|irq")),
)


def kind_of(stack: list[tuple[str, str]]) -> str:
    """Returns the kind of a sample. stack: functions from the innermost, each with its object file."""
    function, home = stack[0]
    if "kernel" in home:
        names = " ".join(name for name, _ in stack)
        return next((kind for kind, pattern in KERNEL if pattern.search(names)), "other")
    return next((kind for kind, pattern in USER if pattern.search(function)), "other")


def kinds(recording: Path) -> collections.Counter[str]:
    """Returns the CPU seconds of each kind in a recording."""
    text = subprocess.run(["perf", "script", "-i", str(recording), "-F", "comm,ip,sym,dso"], check=True, capture_output=True,
                          text=True, errors="replace").stdout
    seconds: collections.Counter[str] = collections.Counter()
    for sample in text.split("\n\n"):
        frames = [re.match(r"\s*[0-9a-f]+ (.*) \((.*)\)$", line) for line in sample.splitlines()[1:]]
        stack = [(frame[1], frame[2]) for frame in frames if frame]
        if stack:
            seconds[kind_of(stack)] += 1 / SAMPLES_PER_S
    return seconds


def sh(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


class Link:
    """Two network namespaces with a veth pair between them."""

    def __init__(self, mtu: int) -> None:
        self.ends = [f"profile-{os.getpid()}-{end}" for end in "ab"]
        for end in self.ends:
            sh("ip", "netns", "add", end)
        sh("ip", "link", "add", "v0", "netns", self.ends[0], "mtu", str(mtu), "type", "veth", "peer", "name", "v0", "netns", self.ends[1],
           "mtu", str(mtu))
        for end, address in zip(self.ends, (NEAR, FAR)):
            sh("ip", "-n", end, "address", "add", f"{address}/24", "dev", "v0")
            sh("ip", "-n", end, "link", "set", "v0", "up")

    def inside(self, end: int, *command: str) -> list[str]:
        """Returns a command that runs at one of the ends."""
        return ["ip", "netns", "exec", self.ends[end], *command]

    def close(self) -> None:
        """Deletes both namespaces."""
        for end in self.ends:
            subprocess.run(["ip", "netns", "del", end], check=False)


def record(into: Path, command: list[str]) -> list[str]:
    return ["perf", "record", "-q", "-F", str(SAMPLES_PER_S), "-g", "-o", str(into), "--", *command]


def one_run(binary: str, mtu: int, options: argparse.Namespace, place: Path) -> list[dict]:
    """Samples one push and returns a result for each end."""
    path = Link(mtu)
    agent = None
    try:
        for name in "out", "hub", "home":
            shutil.rmtree(place / name, ignore_errors=True)
            (place / name).mkdir()
        state = {**os.environ, "STERNA_STATE": str(place / "home")}
        serve = [binary, "agent", "--root", str(place / "out"), "--state", str(place / "hub"), "--listen", FAR, "--authorize-any"]
        agent = subprocess.Popen(record(place / "receiver", path.inside(1, *serve)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                 start_new_session=True)
        time.sleep(1.5)
        key = subprocess.run([binary, "id", "--state", str(place / "hub")], check=True, capture_output=True, text=True).stdout
        trust = re.search(r"SHA256:\S+", key)
        if not trust:
            sys.exit(f"profile: {binary} id printed no fingerprint: {key}")
        copy = [binary, "copy", "--via", "quic", "--rate", options.rate, "--lanes", options.lanes, "--trust", trust[0],
                str(place / "data"), f"sterna://{FAR}/"]
        began = time.monotonic()
        done = subprocess.run(record(place / "sender", path.inside(0, *copy)), env=state, capture_output=True, text=True, check=False)
        took = time.monotonic() - began
        if done.returncode:
            sys.exit(f"profile: the copy failed: {done.stdout}{done.stderr}")
        for process in subprocess.run(["pgrep", "-f", f"agent --root {place / 'out'}"], capture_output=True, text=True, check=False).stdout.split():
            if Path(f"/proc/{process}/exe").resolve() == Path(binary).resolve():
                os.kill(int(process), signal.SIGTERM)
        agent.wait(timeout=30)
        agent = None
        gigabytes = options.size / 1000
        results = []
        for end in "sender", "receiver":
            seconds = kinds(place / end)
            results.append({"binary": binary, "mtu": mtu, "rate": options.rate, "lanes": options.lanes, "size_mb": options.size, "end": end,
                            "mbit_s": round(options.size * 8 / took), "cpu_s_per_gb": round(sum(seconds.values()) / gigabytes, 3),
                            "kinds": {kind: round(value / gigabytes, 3) for kind, value in seconds.most_common()}})
        return results
    finally:
        if agent:
            os.killpg(agent.pid, signal.SIGKILL)
        path.close()


def main() -> None:
    """Runs the profiles and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", action="append")
    parser.add_argument("--rate", default="1Gbit")
    parser.add_argument("--mtu", default="1500,9000")
    parser.add_argument("--lanes", default="auto")
    parser.add_argument("--size", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    binaries = [str(Path(binary).resolve()) for binary in options.binary or [ROOT / "target/release/sterna"]]
    results: list[dict] = []
    with tempfile.TemporaryDirectory(prefix="sterna-profile-", dir="/dev/shm") as directory:
        place = Path(directory)
        with open(place / "data", "wb") as data:
            for _ in range(options.size):
                data.write(os.urandom(1_000_000))
        for _ in range(options.repeat):
            for mtu in map(int, options.mtu.split(",")):
                for binary in binaries:
                    results += one_run(binary, mtu, options, place)
    if options.output:
        with options.output.open("a") as output:
            output.writelines(json.dumps(result) + "\n" for result in results)
    report(results)


def report(results: list[dict]) -> None:
    """Prints medians as a Markdown table."""
    groups: dict[tuple, list[dict]] = collections.defaultdict(list)
    for result in results:
        groups[(result["mtu"], result["end"], result["binary"])].append(result)

    def median(values: list[float]) -> float:
        return sorted(values)[len(values) // 2]

    names = sorted({kind for result in results for kind in result["kinds"]},
                   key=lambda kind: -sum(result["kinds"].get(kind, 0) for result in results))
    print("| MTU | end | binary | Mbit/s | s/GB | " + " | ".join(names) + " |")
    print("|---|---|---|---|---|" + "---|" * len(names))
    for (mtu, end, binary), runs in sorted(groups.items()):
        cells = [f"{median([run['kinds'].get(kind, 0) for run in runs]):.2f}" for kind in names]
        print(f"| {mtu} | {end} | {Path(binary).name} | {median([run['mbit_s'] for run in runs]):.0f} | "
              f"{median([run['cpu_s_per_gb'] for run in runs]):.2f} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
