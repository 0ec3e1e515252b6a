#!/usr/bin/env python3
"""Measures Sterna and its peers, each row over a separate emulated path. See bench/peers/README.md.

    bench/run.py                              every row, every installed peer, and the transfer service
    bench/run.py --only service               the transfer service and its scheduler alone
    bench/run.py --rows geo-1,far-0.5 --peers curl,sterna --repeat 3
    bench/run.py --into bench/runs/DATE-HOST  continue an earlier run: existing results are skipped
    bench/run.py --report bench/runs/DATE-HOST

Each run has a new pair of hosts, the same seed in each row, and files on tmpfs that are compared after the run. The
clock starts before the client, so the time includes handshakes. A run that reaches its time limit is cut off, and the
bytes delivered by then count. Raw results go to raw.jsonl, one object per line, and tables to README.md beside it.
The figures of the service go to service.json (bench/service.py) and tick.json (a turn of the scheduler). They are
measured if no rows and peers are chosen.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import filecmp
import json
import mmap
import os
import re
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import environment
import report
from measure import HostShare, Program, Usage, stored_bytes
from peers import PEERS, ROOT, STERNA, Peer, Place, with_build
from rows import ROWS, Row

# Time limit of a run, as a multiple of the ideal time, but at least LIMIT_MIN_S.
LIMIT_FACTOR, LIMIT_MIN_S = 3.0, 30.0
# Time for a server to start listening.
READY_S = 10.0
BUFFERS = "512MB"
# Time for which a competing flow has the path alone at first.
COMPETITOR_AHEAD_S = 5
# Largest number of attempts when the host stole too much processor time. The last attempt counts and records the share.
STOLEN_TRIES_MAX = 6
# One page of every WARM_SPAN bytes stays in use. WARM_BUFFERS is memory for sockets and programs in addition to the
# files.
WARM_SPAN, WARM_BUFFERS = 1 << 18, 2_000_000_000


@dataclass
class Hosts:
    """Hosts of a run: `prefix[i]` enters host i (0 sends, 1 receives), which has `address[i]`."""

    prefix: tuple[list[str], list[str]]
    address: tuple[str, str]


class Lab:
    """The two hosts of a row, up for one run; loopback if the row has no path."""

    def __init__(self, command: list[str], row: Row, control: str, seed: int, run: Path) -> None:
        self._command, self._row, self._control, self._seed, self._run = command, row, control, seed, run
        self._name = f"bench-{os.getpid()}"

    def __enter__(self) -> Hosts:
        if self._row.lab is None:
            return Hosts(([], []), ("127.0.0.1", "127.0.0.1"))
        up = [*self._command, "up", "--name", self._name, *self._row.lab, "--seed", str(self._seed), "--cc", self._control,
              "--buffers", BUFFERS, "--counters", str(self._run / "counters.json")]
        # The lab continues in the background and keeps stderr open, so a pipe there would never end.
        with (self._run / "lab.log").open("wb") as log:
            done = subprocess.run(up, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True)
        line = done.stdout.split()
        if done.returncode or "a" not in line:
            raise RuntimeError(f"the lab did not come up: {(self._run / 'lab.log').read_text(errors='replace')[-400:]}")
        addresses = (line[line.index("a") + 1], line[line.index("b") + 1])
        # Some peers resolve addresses to names and would wait ten seconds for a DNS server that the lab does not have.
        (self._run / "hosts").write_text(
            f"127.0.0.1 {socket.gethostname()} localhost\n{addresses[0]} host-a\n{addresses[1]} host-b\n")
        (self._run / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")
        with_names = ["unshare", "--mount", str(ROOT / "bench/peers/with-names.sh"), str(self._run)]
        enter = [[*self._command, "exec", "--name", self._name, host, "--", *with_names] for host in ("a", "b")]
        return Hosts((enter[0], enter[1]), addresses)

    def __exit__(self, *_: object) -> None:
        if self._row.lab is not None:
            subprocess.run([*self._command, "down", "--name", self._name], check=False)

    def counters(self) -> object:
        """Returns the packet counters of the path, available after the lab is down."""
        try:
            return json.loads((self._run / "counters.json").read_text())
        except (OSError, ValueError):
            return None


def make_source(row: Row, folder: Path) -> None:
    """Writes the row's files of random bytes beneath `folder`, 100 per folder."""
    folder.mkdir()
    folder.chmod(0o755)
    for index in range(row.file_count):
        name = f"file-{index}" if row.file_count == 1 else f"{index // 100:03}/file-{index}"
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        with path.open("wb") as file:
            for start in range(0, row.file_bytes, 1 << 22):
                file.write(os.urandom(min(1 << 22, row.file_bytes - start)))


def hold_memory(total: int, path: Path) -> None:
    """Uses `total` bytes of memory once, and keeps one page of each WARM_SPAN in use in the file `path`.

    A virtual machine returns free memory to its host in large units. The next use of this memory is slow (0.2 instead
    of 1.7 GB/s), so the order of the runs would influence their speed. A unit with a used page is not returned.
    """
    with path.open("wb") as file:
        for _ in range(0, total, WARM_SPAN):
            file.write(b"\1" * WARM_SPAN)
    fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
    with path.open("r+b") as file:
        for at in range(0, total, WARM_SPAN):
            # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
            if fallocate(file.fileno(), 3, at + mmap.PAGESIZE, WARM_SPAN - mmap.PAGESIZE) != 0:
                raise OSError(ctypes.get_errno(), f"free the memory of {path}")


def is_identical(source: Path, target: Path) -> bool:
    """Returns true if every file of `source` is in `target`, byte for byte."""
    names = [path.relative_to(source) for path in source.rglob("*") if path.is_file()]
    # Some tools also create the folder itself.
    target = target / source.name if (target / source.name).is_dir() else target
    return all((target / n).is_file() and filecmp.cmp(source / n, target / n, shallow=False) for n in names)


def start_competitor(hosts: Hosts, limit_s: float, run: Path) -> list[Program]:
    """Starts one cubic TCP flow from a to b some seconds before the copy, for at least the copy's time limit."""
    server = Program([*hosts.prefix[1], "iperf3", "-s", "-1", "-p", "9503"], run / "neighbour-server.log")
    wait_ready(server, lambda: server.listens_on(9503))
    client = Program([*hosts.prefix[0], "iperf3", "-c", hosts.address[1], "-p", "9503", "-C", "cubic", "--forceflush",
                      "-i", "1", "-t", str(int(limit_s) + 10)], run / "neighbour.log")
    time.sleep(COMPETITOR_AHEAD_S)
    return [client, server]


def wait_ready(program: Program, is_ready: object) -> None:
    """Waits until a server is ready. Raises an error with the server's output if the server ends or is too slow."""
    deadline = time.monotonic() + READY_S
    while not is_ready():  # type: ignore[operator]
        if program.has_ended() or time.monotonic() > deadline:
            raise RuntimeError(f"the server did not get ready: {program.text()[-400:]}")
        time.sleep(0.02)


def copy_once(row: Row, peer: Peer, hosts: Hosts, source: Path, work: Path, limit_s: float) -> dict[str, object]:
    """Runs one copy and returns its record without the names."""
    run, target = work / "run", work / "target"
    target.mkdir()
    target.chmod(0o777)
    server_host = 1 if peer.pushes else 0
    place = Place(row, source, target, run, hosts.address[server_host], target if peer.pushes else source)
    server, others = None, []
    if peer.server:
        server = Program([*hosts.prefix[server_host], *peer.server(place)], run / "server.log")
        ready_text = peer.ready_text
        wait_ready(server, (lambda: ready_text in server.text()) if ready_text else (lambda: server.listens_on(peer.port)))
        place.server_text = server.text
    if row.competitor:
        others = start_competitor(hosts, limit_s, run)
    command = [*hosts.prefix[1 - server_host], *peer.client(place)]
    if peer.rehearses:
        rehearsal = Program(command, run / "rehearsal.log")
        rehearsal.wait(limit_s)
        rehearsal.stop()
        # The agent holds the folder itself open, so only its content is removed.
        for path in target.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    client = Program(command, run / "client.log")
    in_time = client.wait(limit_s)
    stored = row.total_bytes if in_time else stored_bytes(target)
    used = client.stop()
    served = server.stop() if server else Usage(0.0, 0.0, 0, 0)
    for other in others:
        other.stop()
    record: dict[str, object] = {
        # Without the path of this checkout, which means nothing to other readers.
        "command": shlex.join(peer.client(place)).replace(f"{ROOT}/", ""), "seconds": round(used.seconds, 3), "limit_s": limit_s,
        "cut_off": not in_time, "exit_code": used.exit_code, "client_cpu_s": round(used.cpu_s, 3),
        "server_cpu_s": round(served.cpu_s, 3), "client_peak_bytes": used.peak_bytes, "server_peak_bytes": served.peak_bytes,
    }
    if peer.measures_only:
        return {**record, **iperf3_result(client.text())}
    identical = in_time and is_identical(source, target)
    record |= {"bytes": stored if identical or not in_time else 0, "identical": identical}
    if in_time and not identical:
        record["said"] = client.text()[-600:]
    if row.competitor:
        record |= neighbour_rates((run / "neighbour.log").read_text(errors="replace"), used.seconds)
    return record


def neighbour_rates(log: str, copy_s: float) -> dict[str, object]:
    """Returns the rate of the competing flow, bit/s: alone (without its first second), and beside the copy."""
    scale = {"K": 1e3, "M": 1e6, "G": 1e9, "": 1.0}
    line = re.compile(r"\]\s+(\d+)\.\d+-\d+\.\d+\s+sec\s.*?([\d.]+) ([KMG]?)bits/sec")
    rates = {int(m[1]): float(m[2]) * scale[m[3]] for m in line.finditer(log)}
    alone = [rate for second, rate in rates.items() if 1 <= second < COMPETITOR_AHEAD_S]
    beside = [rate for second, rate in rates.items() if COMPETITOR_AHEAD_S <= second < COMPETITOR_AHEAD_S + int(copy_s)]
    mean = lambda values: round(statistics.mean(values)) if values else None  # noqa: E731
    return {"neighbour_alone_bits": mean(alone), "neighbour_beside_bits": mean(beside)}


def iperf3_result(text: str) -> dict[str, object]:
    """Returns the bytes that iperf3 delivered, and the time."""
    try:
        end = json.loads(text)["end"]["sum_received"]
        return {"bytes": end["bytes"], "seconds": round(end["seconds"], 3), "identical": True}
    except (ValueError, KeyError):
        return {"bytes": 0, "identical": False, "said": text[-600:]}


def measure(row: Row, peer: Peer, control: str, repeat: int, source: Path, options: argparse.Namespace) -> dict[str, object]:
    """Runs one copy with separate hosts. The record of a failed run contains the reason."""
    limit_s = round(max(LIMIT_MIN_S, options.limit_factor * row.ideal_s), 1)
    record: dict[str, object] = {"row": row.name, "peer": peer.name, "control": control, "repeat": repeat}
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        work = Path(folder)
        work.chmod(0o755)
        (work / "run").mkdir()
        lab = Lab(shlex.split(options.lab), row, control, options.seed + repeat, work / "run")
        host = HostShare()
        try:
            with lab as hosts:
                record |= copy_once(row, peer, hosts, source, work, limit_s)
        except (OSError, RuntimeError, ValueError, subprocess.CalledProcessError) as error:
            record |= {"bytes": 0, "seconds": 0.0, "identical": False, "cut_off": False, "said": str(error)}
        record["path"] = lab.counters()
        record["stolen"] = host.stolen()
    bytes_done, seconds = float(str(record["bytes"])), float(str(record["seconds"]))
    record["goodput_bits"] = round(bytes_done * 8 / seconds) if seconds else 0
    record["share"] = round(float(str(record["goodput_bits"])) / row.rate_bits, 4)
    return record


def show(record: dict[str, object]) -> None:
    """Prints one line per run, for the waiting user."""
    share = f"{100 * float(str(record['share'])):5.1f} %"
    if record.get("discarded"):
        share = f"({share.strip()})"
    how = "cut off" if record.get("cut_off") else "same bytes" if record.get("identical") else f"no: {record.get('said')}"
    print(f"{record['row']:<12} {record['peer']:<16} {record['control']:<6} {share} in {record['seconds']} s, {how}", flush=True)


def controls_of(row: Row, peer: Peer) -> tuple[str, ...]:
    """Returns the kernel's congestion controls to run a peer with; one if the peer has its own."""
    return row.controls[-1:] if peer.own_control else row.controls


def run_rows(options: argparse.Namespace, into: Path) -> None:
    """Makes every requested run that `into` does not contain yet."""
    raw = into / "raw.jsonl"
    done = {(r["row"], r["peer"], r["control"], r["repeat"]) for r in report.read(raw)}
    work = Path(tempfile.mkdtemp(prefix="sterna-bench-", dir=options.tmpfs))
    work.chmod(0o755)
    try:
        for row in (row for row in ROWS if not options.rows or row.name in options.rows):
            peers = [PEERS[name] for name in options.peers or row.peers if name in PEERS]
            if options.before:
                # Side by side: both builds meet the same state of this machine.
                pairs = [(peer, with_build(peer, options.before)) if STERNA in peer.programs else (peer,) for peer in peers]
                peers = [peer for pair in pairs for peer in pair]
            wanted = [(peer, control, repeat) for repeat in range(options.repeat) for peer in peers
                      for control in controls_of(row, peer) if peer.is_installed()]
            wanted = [w for w in wanted if (row.name, w[0].name, w[1], w[2]) not in done]
            if not wanted:
                continue
            hold_memory(2 * row.total_bytes + WARM_BUFFERS, work / "held")
            source = work / "source"
            make_source(row, source)
            for peer, control, repeat in wanted:
                for attempt in range(STOLEN_TRIES_MAX):
                    record = measure(row, peer, control, repeat, source, options)
                    is_last = attempt + 1 == STOLEN_TRIES_MAX
                    record["discarded"] = float(str(record["stolen"])) > options.stolen_max and not is_last
                    with raw.open("a") as file:
                        file.write(json.dumps(record) + "\n")
                    show(record)
                    if not record["discarded"]:
                        break
            shutil.rmtree(source)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def measure_service(into: Path) -> None:
    """Measures the transfer service and a turn of its scheduler, unless `into` has their figures. Stores what they
    print. Raises an error if one of them fails."""
    if not (into / "service.json").exists():
        subprocess.run([sys.executable, str(ROOT / "bench/service.py"), str(STERNA), str(into)], check=True)
    if not (into / "tick.json").exists():
        command = ["cargo", "bench", "--locked", "-q", "-p", "sterna-sched", "--bench", "tick"]
        done = subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        print(done.stdout, end="", flush=True)
        figures = json.loads(done.stdout.strip().splitlines()[-1])
        (into / "tick.json").write_text(json.dumps(figures) + "\n")


def read_options() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    split = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--rows", type=split, default=[], help="names, comma separated: " + ", ".join(r.name for r in ROWS))
    parser.add_argument("--peers", type=split, default=[], help="names, comma separated: " + ", ".join(PEERS))
    parser.add_argument("--only", choices=("copies", "service"), help="measure only copies, or only the transfer service")
    parser.add_argument("--before", type=lambda path: str(Path(path).resolve()), metavar="PROGRAM",
                        help="also run this earlier build of sterna, beside each of its runs")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each, each with a seed of its own")
    parser.add_argument("--seed", type=int, default=1, help="of the path's random choices")
    parser.add_argument("--stolen-max", type=float, default=1.0,
                        help="a run counts when the host of this machine took no larger share of the processors (0 to 1)")
    parser.add_argument("--limit-factor", type=float, default=LIMIT_FACTOR, help="cut off at this many times the ideal")
    parser.add_argument("--lab", default=f"{STERNA} lab", help="command that has up, exec and down")
    parser.add_argument("--tmpfs", type=Path, default=Path("/dev/shm"), help="folder in memory for the files")
    parser.add_argument("--into", type=Path, help="folder of the results, new or begun")
    parser.add_argument("--report", type=Path, metavar="DIR", help="only write the tables of DIR again")
    return parser.parse_args()


def main() -> int:
    """Runs, writes the report, and fails if a copy was not identical."""
    options = read_options()
    if options.report:
        report.write(options.report)
        return 0
    if os.geteuid() != 0 and options.only != "service":
        print("bench: the lab needs root; only the rows on loopback can run without", file=sys.stderr)
        options.rows = [row.name for row in ROWS if row.lab is None]
    today = datetime.date.today().isoformat()
    into = options.into or ROOT / "bench/runs" / f"{today}-{socket.gethostname()}"
    into.mkdir(parents=True, exist_ok=True)
    environment.write(into / "environment.json", shlex.split(options.lab), BUFFERS)
    if options.only != "service":
        run_rows(options, into)
        report.write(into)
    if options.only == "service" or not (options.only or options.rows or options.peers):
        measure_service(into)
    print(f"results: {into}")
    return 1 if any(not r["identical"] and not r["cut_off"] for r in report.read(into / "raw.jsonl")) else 0


if __name__ == "__main__":
    sys.exit(main())
