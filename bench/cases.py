#!/usr/bin/env python3
"""Examines the cases of docs/cases in the lab, and writes the reports of the doctor into their pages. As root.

Usage: bench/cases.py [--only CASE[/STATE],...] [--binary PATH] [--output DIR] [--show]

A case is a sequence of states of one path: what was there, and what was there after each fix. Each state is examined by
`sterna doctor`, and its signed bundle is kept in DIR (bench/runs/<date>-vm-cases), compressed. A page has the report of
a state between the markers `<!-- state: NAME -->` and `<!-- end of state -->`. `--show` writes the pages again from the
bundles that are there, and examines nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import random
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from limits import ROOT, run, slow_disk

PAGES = ROOT / "docs/cases"
ADDRESS = "10.77.1.1"
# Part of a receive buffer that becomes window over the packets of the lab, on kernels from 6.6 on. The reports of the
# cases give windows, so the buffers here are those that have the same windows.
WINDOW_RATIO = 0.62
# Longest examination, s; the doctor itself keeps to 120 s.
TIME_MAX = 240
# Settings of hosts that limit nothing.
LARGE = {"tcp_rmem": "4096 131072 536870912", "tcp_wmem": "4096 16384 536870912"}
BETWEEN = re.compile(r"(<!-- state: (\S+) -->\n).*?(<!-- end of state -->\n)", re.DOTALL)


@dataclass(frozen=True)
class State:
    """State of a path. lab: flags of `sterna lab up`; a, b: settings of the hosts (`net.ipv4.` is added); write_bps: rate
    at which the disk of b writes, bytes/s."""

    lab: str
    a: dict[str, str] = field(default_factory=dict)
    b: dict[str, str] = field(default_factory=dict)
    write_bps: int = 0


def window(size: float) -> dict[str, str]:
    """Returns the setting of a receiver that announces a window of `size` bytes."""
    return {"tcp_rmem": f"4096 131072 {int(size / WINDOW_RATIO)}"}


def sends(size: float) -> dict[str, str]:
    """Returns the setting of a sender with a buffer of `size` bytes."""
    return {"tcp_wmem": f"4096 16384 {int(size)}"}


MIB = 1 << 20
NO_SACK = {"tcp_sack": "0"}
CASES: dict[str, dict[str, State]] = {
    "grnet": {
        "found": State("--profile grnet-8ms", a=sends(6 * MIB), b=window(3072 * 1024)),
        "window": State("--profile grnet-8ms", a=sends(6 * MIB), b=window(8 * MIB)),
        "newyork": State("--profile grnet-newyork", a=sends(256e6), b=window(8 * MIB)),
        "newyork-tuned": State("--profile grnet-newyork", b=window(131070 * 1024)),
    },
    "smart1": {
        "22-aug": State("--profile tigo-5mbit", b=NO_SACK),
        "30-aug": State("--profile tigo-policer"),
        "31-aug": State("--profile tigo-lifted"),
        "3-sep": State("--profile tigo-lifted", write_bps=250_000),
        "9-oct": State("--profile tigo-acks"),
        "20-oct": State("--profile tigo"),
    },
    "cern": {
        "default": State("--profile cern-australia", a=sends(4 * MIB), b=window(2 * MIB)),
        "receiver": State("--profile cern-australia", a=sends(4 * MIB), b=window(37 * MIB)),
        "both": State("--profile cern-australia", a=sends(80 * MIB), b=window(74 * MIB)),
        "tokyo": State("--profile cern-tokyo"),
    },
    "trollsat": {
        "found": State("--profile trollsat", b=window(825_000)),
        "window": State("--profile trollsat"),
        "errors": State("--profile trollsat --loss 0.1%"),
    },
}


def examine(state: State, binary: Path, bundle: Path) -> None:
    """Examines a state, and keeps the signed bundle."""
    name = f"case-{random.SystemRandom().randrange(1 << 32):x}"
    flags = [f"--sysctl-{host}=net.ipv4.{key}={value}" for host, own in (("a", state.a), ("b", state.b))
             for key, value in {**LARGE, **own}.items()]

    def on(host: str, *command: str) -> list[str]:
        return [str(binary), "lab", "exec", "--name", name, host, "--", *command]

    with contextlib.ExitStack() as stack:
        memory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sterna-case-", dir="/dev/shm")))
        root = stack.enter_context(slow_disk(state.write_bps, ("write",))) if state.write_bps else memory
        run(str(binary), "lab", "up", "--name", name, "--cc", "cubic", *state.lab.split(), *flags)
        stack.callback(lambda: subprocess.run([str(binary), "lab", "down", "--name", name], capture_output=True, check=False))
        command = on("b", str(binary), "agent", "--root", str(root), "--authorize-any", "--state", str(memory / "agent"))
        agent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        stack.callback(agent.wait)
        stack.callback(agent.kill)
        fingerprint = agent.stdout.readline().split()[-1]
        command = on("a", str(binary), "doctor", f"sterna://{ADDRESS}/", "--json", "--state", str(memory / "doctor"),
                     "--trust", fingerprint, "--bundle", str(memory / "bundle"), *(["--disk", str(memory)] if state.write_bps else []))
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True, timeout=TIME_MAX)
        with gzip.open(bundle, "wb") as kept:
            kept.write((memory / "bundle").read_bytes())


def report(bundle: Path, binary: Path) -> str:
    """Returns the report of a bundle, as a person reads it."""
    with tempfile.TemporaryDirectory() as directory:
        plain = Path(directory) / "bundle.json"
        plain.write_bytes(gzip.decompress(bundle.read_bytes()))
        return run(str(binary), "doctor", "show", str(plain))


def write(case: str, directory: Path, binary: Path) -> None:
    """Writes the reports of a case into its page."""
    page = PAGES / f"{case}.md"

    def block(match: re.Match[str]) -> str:
        bundle = directory / f"{case}-{match[2]}.json.gz"
        shown = f"```\n{report(bundle, binary)}```" if bundle.exists() else "Not examined yet."
        return f"{match[1]}{shown}\n{match[3]}"

    page.write_text(BETWEEN.sub(block, page.read_text()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases, or states as CASE/STATE, separated by commas")
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/sterna")
    parser.add_argument("--output", type=Path, required=True, help="directory of the bundles")
    parser.add_argument("--show", action="store_true", help="write the pages from the bundles that are there")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    wanted = [word for word in arguments.only.split(",") if word]
    # A copy, so that a later build changes no run.
    with tempfile.TemporaryDirectory() as directory:
        binary = Path(shutil.copy(arguments.binary, directory))
        for case, states in CASES.items():
            for name, state in states.items():
                if arguments.show or wanted and case not in wanted and f"{case}/{name}" not in wanted:
                    continue
                print(f"{case}/{name}", file=sys.stderr, flush=True)
                bundle = arguments.output / f"{case}-{name}.json.gz"
                examine(state, binary, bundle)
                print(report(bundle, binary), flush=True)
            if (PAGES / f"{case}.md").exists():
                write(case, arguments.output, binary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
