"""Environment of a benchmark: host, kernel, settings and versions, needed to judge a result."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path

SETTINGS = ("net/core/rmem_max", "net/core/wmem_max", "net/core/default_qdisc", "net/ipv4/tcp_rmem", "net/ipv4/tcp_wmem",
            "net/ipv4/tcp_congestion_control", "net/ipv4/tcp_available_congestion_control", "net/ipv4/tcp_mtu_probing")
PACKAGES = ("iperf3", "curl", "nginx-light", "aria2", "rclone", "xrootd-client", "xrootd-server", "globus-gass-copy-progs",
            "globus-gridftp-server-progs", "libudt-dev")


def _output(argv: list[str]) -> str:
    try:
        return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=20).stdout.strip()
    except OSError:
        return ""


def _first(path: str, key: str) -> str:
    lines = Path(path).read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(key)), "")


def _setting(name: str) -> str:
    try:
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return ""


def read(lab: list[str], buffers: str) -> dict[str, object]:
    """Returns the environment as an object for JSON."""
    versions = {p: _output(["dpkg-query", "-W", "-f", "${Version}", p]) for p in PACKAGES}
    return {
        "kernel": platform.release(), "cpu": _first("/proc/cpuinfo", "model name"), "cpu_count": os.cpu_count(),
        "memory": _first("/proc/meminfo", "MemTotal"), "settings": {n.replace("/", "."): _setting(n) for n in SETTINGS},
        "packages": {name: version for name, version in versions.items() if version}, "lab": Path(lab[0]).name,
        "tcp_buffers_in_lab": buffers, "commit": _output(["git", "rev-parse", "HEAD"]),
        "uncommitted": bool(_output(["git", "status", "--porcelain", "--untracked-files=no"])),
    }


def write(path: Path, lab: list[str], buffers: str) -> None:
    """Writes the environment, unless an earlier part of the run has written it."""
    if not path.exists():
        path.write_text(json.dumps(read(lab, buffers), indent=1) + "\n")
