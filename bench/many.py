#!/usr/bin/env python3
"""Measures what third-party copies cost the process that requests them: threads, memory and processor time.

Starts pairs of agents on loopback, requests copies between the agents of each pair from one process
(`crates/net/examples/third_party_copies.rs`), and appends one line of JSON for each count to FOLDER/many.jsonl.
Idle copies have a rate at which they send a packet every few seconds. Active copies have a rate at which all of them
together take 40 Mbit/s. The agents run on the same host, and their processor time is not counted."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STERNA = ROOT / "target/release/sterna"
PROGRAM = ROOT / "target/release/examples/third_party_copies"
# An agent serves 64 sessions of one peer. A pair of agents has one session more while a copy starts over.
COPIES_OF_PAIR = 60
# Larger than a copy can send while it is measured.
FILE_BYTES = 50_000_000


class Agent:
    """An agent of its own state, with a root of its own."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.root.mkdir(parents=True)
        command = [str(STERNA), "agent", "--listen", "127.0.0.1:0", "--state", str(folder / "state"), "--root", str(self.root),
                   "--authorize-any", "--third-party", "any"]
        self.log = (folder / "log").open("w")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()  # type: ignore[union-attr]
        found = re.match(r"listening (\S+) fingerprint (\S+)", line)
        if not found:
            raise RuntimeError(f"the agent printed {line!r}; its log: {(folder / 'log').read_text()}")
        self.url, self.key = found.groups()

    def stop(self) -> None:
        """Ends the agent."""
        self.process.kill()
        self.process.wait()
        self.log.close()


def measure(count: int, rate_bits: int, seconds: int) -> dict[str, object]:
    """Runs `count` copies at `rate_bits` each, and returns their cost."""
    with tempfile.TemporaryDirectory(prefix="sterna-many-", dir="/dev/shm") as work:
        agents: list[Agent] = []
        try:
            lines, data = [], Path(work) / "data"
            data.write_bytes(os.urandom(FILE_BYTES))
            for pair in range(-(-count // COPIES_OF_PAIR)):
                source, target = Agent(Path(work) / f"{pair}-a"), Agent(Path(work) / f"{pair}-b")
                agents += [source, target]
                (source.root / "file").hardlink_to(data)
                for number in range(min(COPIES_OF_PAIR, count - pair * COPIES_OF_PAIR)):
                    lines.append(f"{source.url}/file {source.key} {target.url}/{number} {target.key}\n")
            done = subprocess.run([str(PROGRAM), f"{rate_bits}bit", str(seconds)], input="".join(lines), text=True,
                                  capture_output=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{count} copies: {done.stderr[-1000:]}")
            return json.loads(done.stdout) | {"rate_bits": rate_bits, "seconds": seconds}
        finally:
            for agent in agents:
                agent.stop()


def main() -> int:
    """Measures each count, and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("into", type=Path, metavar="FOLDER")
    parser.add_argument("--idle", type=int, nargs="*", default=[1, 100, 1000], help="numbers of idle copies")
    parser.add_argument("--active", type=int, nargs="*", default=[200], help="numbers of active copies")
    parser.add_argument("--seconds", type=int, default=30, help="time to measure")
    options = parser.parse_args()
    subprocess.run(["cargo", "build", "--release", "--locked", "-p", "sterna", "-p", "sterna-net", "--bins", "--example",
                    "third_party_copies", "--target-dir", str(ROOT / "target")], check=True, cwd=ROOT)
    options.into.mkdir(parents=True, exist_ok=True)
    for count, rate_bits in [(count, 64_000) for count in options.idle] + [(count, 40_000_000 // count) for count in options.active]:
        record = measure(count, rate_bits, options.seconds)
        print(json.dumps(record), flush=True)
        with (options.into / "many.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
