#!/usr/bin/env python3
"""Measures growing files and spools: memory of both ends, and the delay of the last byte.

    sterna lab run --rate 50Mbit --rtt 100ms -- bench/follow.py STERNA outrun [SECONDS [MBIT]]
    sterna lab run --rate 50Mbit --rtt 660ms -- bench/follow.py STERNA last-byte
    bench/follow.py STERNA spool

STERNA is the program. Prints the measurements and ends every process that it started.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

IN_LAB = "STERNA_LAB_B" in os.environ
ADDRESS = os.environ.get("STERNA_LAB_B", "127.0.0.1") + ":7399"


def descendants(pid: int) -> list[int]:
    """Returns the process and its descendants, outermost first."""
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid] + [deeper for child in children for deeper in descendants(int(child))]


def memory_kb(pid: int) -> int:
    """Returns the largest resident memory so far of the innermost process, kB."""
    status = pathlib.Path(f"/proc/{descendants(pid)[-1]}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status).group(1))


class Ends:
    """An agent and a copy that follows `source`, in a separate directory."""

    def __init__(self, sterna: str, top: pathlib.Path) -> None:
        self.sterna, self.top = sterna, top
        self.root = top / "root"
        self.root.mkdir()
        on_b = [sterna, "lab", "exec", "b", "--"] if IN_LAB else []
        agent = [sterna, "agent", "--root", str(self.root), "--authorize-any", "--listen", ADDRESS, "--state", str(top / "hub")]
        log = open(top / "agent.log", "w")
        self.agent = subprocess.Popen(on_b + agent, stdout=subprocess.PIPE, stderr=log, text=True)
        self.fingerprint = self.agent.stdout.readline().split()[-1]

    def follow(self, source: str, *flags: str) -> subprocess.Popen:
        copy = [self.sterna, "copy", "--json", "--state", str(self.top / "client"), "--trust", self.fingerprint, *flags]
        self.copy = subprocess.Popen(copy + [source, f"sterna://{ADDRESS}/"], stdout=open(self.top / "events", "w"))
        return self.copy

    def end(self) -> None:
        for process in (self.copy, self.agent):
            for pid in reversed(descendants(process.pid) if process.poll() is None else []):
                os.kill(pid, 15)
            process.wait()

    def memory(self) -> str:
        return f"VmHWM client {memory_kb(self.copy.pid)} kB, agent {memory_kb(self.agent.pid)} kB"


def outrun(ends: Ends, seconds: int = 40, mbit: int = 150) -> None:
    """Writes `mbit` Mbit/s for `seconds`, and prints the progress until 7/4 of this time."""
    source = ends.top / "capture.dat"
    with open(source, "wb", buffering=0) as file:
        piece = os.urandom(1 << 20)
        ends.follow(str(source), "--follow=5s")
        start, written = time.time(), 0
        step = max(seconds // 4, 10)
        for second in range(step, seconds * 7 // 4 + 1, step):
            while time.time() - start < second:
                while written < min(time.time() - start, seconds) * mbit * 1e6 / 8:
                    file.write(os.urandom(8) + piece[8:])
                    written += len(piece)
                time.sleep(0.02)
            parts = [part.stat().st_blocks * 512 for part in ends.root.glob(".sterna-*.part")]
            print(f"{second} s: written {written / 1e6:.0f} MB, arrived {max(parts, default=0) / 1e6:.0f} MB, {ends.memory()}")


def last_byte(ends: Ends) -> None:
    """Writes 0.9 MB and 100 bytes, 3 s apart, three times each, then closes the file."""
    source, total = ends.top / "capture.dat", 3_000_000
    file = open(source, "wb", buffering=0)
    file.write(os.urandom(total))
    copy = ends.follow(str(source), "--follow=60s", "--rate", "50Mbit")
    time.sleep(8)
    for size in [900_000, 100] * 3:
        data = os.urandom(size)
        start = time.time()
        file.write(data)
        total += size
        while not any(tail(part, total) == data[-50:] for part in ends.root.glob(".sterna-*.part")):
            time.sleep(0.005)
        print(f"{size} bytes written: the last byte was there {time.time() - start:.3f} s later")
        time.sleep(3)
    start = time.time()
    file.write(os.urandom(500_000))
    file.close()
    while not (ends.root / "capture.dat").exists():
        time.sleep(0.005)
    print(f"closed: published {time.time() - start:.3f} s later, exit code {copy.wait()}")


def tail(part: pathlib.Path, end: int) -> bytes:
    with open(part, "rb") as file:
        file.seek(end - 50)
        return file.read(50)


def spool(ends: Ends) -> None:
    """Writes 8,000 files of 3 kB six times. Each file is deleted after its arrival."""
    top = ends.top / "spool"
    top.mkdir()
    ends.follow(f"{top}/.", "--follow=1s", "--then", "delete")
    data = os.urandom(3000)
    for turn in range(6):
        directory = top / f"turn{turn}"
        directory.mkdir()
        start = time.time()
        for number in range(8000):
            (directory / f"file{number}").write_bytes(data)
        while any(directory.iterdir()):
            time.sleep(0.1)
        print(f"turn {turn}: written, sent and deleted in {time.time() - start:.1f} s, {ends.memory()}")


def main() -> None:
    sterna, what, *numbers = sys.argv[1:]
    sys.stdout.reconfigure(line_buffering=True)
    with tempfile.TemporaryDirectory() as top:
        ends = Ends(os.path.abspath(sterna), pathlib.Path(top))
        try:
            {"outrun": outrun, "last-byte": last_byte, "spool": spool}[what](ends, *map(int, numbers))
        finally:
            ends.end()


if __name__ == "__main__":
    main()
