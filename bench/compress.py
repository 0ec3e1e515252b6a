#!/usr/bin/env python3
"""Measures the gain of --compress on real sensor data and its cost on random data.

Usage, as root: bench/compress.py --into bench/runs/DATE-HOST

Each run pushes one file of one kind (bench/sensor_data.sh) over a separate path, alternately with `never` and `auto`,
and compares the received file. Raw results go to compress.jsonl, one object per line, with the reported decisions.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import environment
from measure import Program
from peers import ROOT, STERNA
from rows import GBIT, MBIT, Row
from run import BUFFERS, Lab, wait_ready

KINDS = ("pass.ccsds", "fields.h5", "radar.nc", "fields.grib", "pictures.jp2", "random.bin")
# Time limit of a run, in seconds.
LIMIT_S = 120.0


def _row(name: str, rate_bits: int, lab: tuple[str, ...] | None) -> Row:
    return Row(name, name, rate_bits, 0.05, 1, 0, lab)


PATHS = {
    "100M": _row("100M", 100 * MBIT, ("--rate", "100Mbit", "--rtt", "50ms")),
    "1G": _row("1G", GBIT, ("--rate", "1Gbit", "--rtt", "50ms")),
    "loopback": _row("loopback", 10 * GBIT, None),
}


def copy_once(path: Row, source: Path, flags: list[str], work: Path) -> dict[str, object]:
    """Runs one copy and returns its record."""
    target, run = work / "target", work / "run"
    for folder in (target, run):
        folder.mkdir()
    with Lab([STERNA, "lab"], path, "cubic", 1, run) as hosts:
        agent = Program([*hosts.prefix[1], STERNA, "agent", "--root", str(target), "--authorize-any", "--listen",
                         f"{hosts.address[1]}:7373", "--state", str(run / "agent")], run / "agent.log")
        wait_ready(agent, lambda: "fingerprint SHA256:" in agent.text())
        found = re.search(r"fingerprint (SHA256:\S+)", agent.text())
        client = Program([*hosts.prefix[0], STERNA, "copy", "--json", "--trust", found.group(1) if found else "", "--state",
                          str(run / "client"), *flags, str(source), f"sterna://{hosts.address[1]}/"], run / "client.log")
        client.wait(LIMIT_S)
        used = client.stop()
        served = agent.stop()
    events = [json.loads(line) for line in client.text().splitlines() if line.startswith("{")]
    summary = next((event for event in events if event["event"] == "summary"), {})
    identical = (target / source.name).is_file() and filecmp.cmp(source, target / source.name, shallow=False)
    return {
        "path": path.name, "file": source.name, "bytes": source.stat().st_size, "flags": flags, "seconds": round(used.seconds, 3),
        "copy_seconds": round(summary.get("elapsed_s", 0.0), 3), "bytes_carried": summary.get("bytes_carried"),
        "bytes_encoded": summary.get("bytes_encoded"), "client_cpu_s": round(used.cpu_s, 3), "agent_cpu_s": round(served.cpu_s, 3),
        "client_peak_bytes": used.peak_bytes, "agent_peak_bytes": served.peak_bytes, "identical": identical,
        "decisions": [e["rationale"] for e in events if e["event"] == "decision" and e["subject"] == "compression"],
    }


def read_options() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, required=True, help="folder of the run, beneath bench/runs")
    parser.add_argument("--data", type=Path, default=Path("/dev/shm/sterna-sensor-data"), help="where the data is made, on tmpfs")
    parser.add_argument("--megabytes", type=int, default=200, help="size of each file")
    parser.add_argument("--paths", default=",".join(PATHS), help="which paths")
    parser.add_argument("--kinds", default=",".join(KINDS), help="which files")
    parser.add_argument("--via", default="tcp,quic", help="which transports")
    parser.add_argument("--flags", default="", help="more flags of the copy, such as '--lanes 1'")
    parser.add_argument("--repeat", type=int, default=1)
    return parser.parse_args()


def main() -> int:
    """Runs the selected copies."""
    options = read_options()
    subprocess.run([str(ROOT / "bench/sensor_data.sh"), str(options.data), str(options.megabytes)], check=True)
    options.into.mkdir(parents=True, exist_ok=True)
    environment.write(options.into / "environment.json", [STERNA, "lab"], BUFFERS)
    with (options.into / "compress.jsonl").open("a") as results:
        for path in options.paths.split(","):
            for kind in options.kinds.split(","):
                for flags in ([["--via", via, "--compress", wish, *shlex.split(options.flags)] for via in options.via.split(",")
                               for _ in range(options.repeat) for wish in ("never", "auto")]):
                    work = Path(tempfile.mkdtemp(prefix="sterna-compress-", dir="/dev/shm"))
                    try:
                        record = copy_once(PATHS[path], options.data / kind, flags, work)
                    finally:
                        shutil.rmtree(work)
                    results.write(json.dumps(record) + "\n")
                    results.flush()
                    print(json.dumps(record), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
