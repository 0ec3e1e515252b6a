"""Runs a program and measures time, CPU seconds and peak memory. Stops the program at a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

# Interval between memory samples: starts at the first value and doubles up to the second. VmHWM is a high-water mark,
# so only growth in the last interval is missed. Reason: reading all processes takes milliseconds, and the measured
# programs need all cores.
SAMPLE_S, SAMPLE_MAX_S = 0.1, 2.0
# Time for a program to end after SIGTERM.
GRACE_S = 3.0
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class HostShare:
    """Share of this machine's processor time that its host took for others (steal time), since the start."""

    def __init__(self) -> None:
        self._start = self._ticks()

    @staticmethod
    def _ticks() -> tuple[int, int]:
        # user, nice, system, idle, iowait, irq, softirq, steal; guests are in user.
        ticks = [int(tick) for tick in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return ticks[7], sum(ticks)

    def stolen(self) -> float:
        """Returns the share of all processor time: 0 on a machine without other guests."""
        (stolen, total), (stolen_before, total_before) = self._ticks(), self._start
        return round((stolen - stolen_before) / max(total - total_before, 1), 4)


@dataclass
class Usage:
    """Resources used by a program and its children."""

    seconds: float
    cpu_s: float
    peak_bytes: int
    exit_code: int


class Program:
    """A program in a separate session, so that all its children are found and ended."""

    def __init__(self, argv: list[str], log: Path, env: dict[str, str] | None = None) -> None:
        self.log = log
        self.started = time.monotonic()
        self._out = log.open("wb")
        self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=self._out, stderr=subprocess.STDOUT,
                                         start_new_session=True, env={**os.environ, **(env or {})})
        self.pid = self._process.pid
        self._peaks: dict[int, int] = {}
        self._cpu_seen: dict[int, float] = {}
        self._ended = threading.Event()
        self._end: tuple[float, float, int] = (0.0, 0.0, 0)
        threading.Thread(target=self._reap, daemon=True).start()
        threading.Thread(target=self._watch, daemon=True).start()

    def text(self) -> str:
        """Returns the output so far, stderr included."""
        return self.log.read_text(errors="replace")

    def has_ended(self) -> bool:
        """Returns true if the program has ended."""
        return self._ended.is_set()

    def wait(self, limit_s: float) -> bool:
        """Waits until the program ends. Returns False if it still runs after `limit_s`."""
        return self._ended.wait(limit_s)

    def stop(self) -> Usage:
        """Ends the program and its session if they still run, and returns the resources used."""
        self._sample()
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not self._ended.is_set():
                self._signal(number)
                self._ended.wait(GRACE_S)
        self._signal(signal.SIGKILL)
        self._out.close()
        end, cpu_s, exit_code = self._end
        # A killed parent has not waited for its children. Then the sampled values of the children count.
        return Usage(end - self.started, max(cpu_s, sum(self._cpu_seen.values())), sum(self._peaks.values()), exit_code)

    def listens_on(self, port: int) -> bool:
        """Returns true if a socket in the program's network namespace listens on TCP or UDP `port`. Sends no packet."""
        wanted = f":{port:04X}"
        for name, listening in (("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")):
            try:
                lines = Path(f"/proc/{self.pid}/net/{name}").read_text().splitlines()[1:]
            except OSError:
                continue
            fields = (line.split() for line in lines)
            if any(f[1].endswith(wanted) and f[3] == listening for f in fields):
                return True
        return False

    def _reap(self) -> None:
        _, status, usage = os.wait4(self.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._end = (time.monotonic(), usage.ru_utime + usage.ru_stime, self._process.returncode)
        self._ended.set()

    def _watch(self) -> None:
        pause = SAMPLE_S
        while not self._ended.wait(pause):
            self._sample()
            pause = min(pause * 2, SAMPLE_MAX_S)

    def _sample(self) -> None:
        for pid, cpu_s in self._session():
            self._cpu_seen[pid] = max(cpu_s, self._cpu_seen.get(pid, 0.0))
            try:
                status = Path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue
            for line in status.splitlines():
                if line.startswith("VmHWM:"):
                    # In kB, here units of 1024 bytes.
                    self._peaks[pid] = max(int(line.split()[1]) * 1024, self._peaks.get(pid, 0))

    def _session(self) -> list[tuple[int, float]]:
        """Returns the processes of the session with the CPU seconds of each."""
        members = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            # The name may contain spaces and parentheses. The fields start after the last parenthesis (proc(5)).
            fields = stat[stat.rindex(")") + 2:].split()
            if int(fields[3]) == self.pid:
                members.append((int(entry), (int(fields[11]) + int(fields[12])) / CLOCK_TICKS))
        return members

    def _signal(self, number: int) -> None:
        for pid, _ in self._session():
            try:
                os.kill(pid, number)
            except OSError:
                pass


def stored_bytes(folder: Path) -> int:
    """Returns the bytes stored beneath `folder`, without the holes of files that are written out of order."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                status = os.lstat(os.path.join(parent, name))
            except OSError:
                continue
            total += min(status.st_size, status.st_blocks * 512) if status.st_size else status.st_blocks * 512
    return total
