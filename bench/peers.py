"""Command lines of all peers: the server runs beside the files, the client at the destination."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Callable

from rows import Row

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
STERNA = str(ROOT / "target/release/sterna")
UDT_COPY = str(ROOT / "target/peers/udt_copy")
FLOOR = str(ROOT / "target/peers/floor")
B3SUM = str(ROOT / "target/peers/bin/b3sum")
# On loopback UDT slows down with a buffer much larger than the path needs (bench/peers/README.md). The buffer is four
# times the bandwidth-delay product, between UDT's default of 12 MB and 512 MB.
UDT_BUFFER_MIN, UDT_BUFFER_MAX = 12_000_000, 512_000_000


@dataclass
class Place:
    """Locations of a run. The server's host has the files beneath `source`; the client writes beneath `target`."""

    row: Row
    source: Path
    target: Path
    run: Path
    server_address: str
    # Folder that an agent serves: `source` for a pull, `target` for a push.
    server_root: Path
    server_text: Callable[[], str] = lambda: ""

    def fill(self, template: str, port: int | str) -> Path:
        """Writes a configuration from the template `bench/peers/TEMPLATE.in` and returns its path."""
        text = (HERE / "peers" / f"{template}.in").read_text()
        for name, value in (("@RUN@", self.run), ("@PORT@", port), ("@LISTEN@", port), ("@ROOT@", self.source), ("@ABOVE@", self.source.parent)):
            text = text.replace(name, str(value))
        path = self.run / template
        path.write_text(text)
        return path

    def names(self) -> list[str]:
        """Returns the paths of the copied files beneath `source`."""
        return sorted(str(path.relative_to(self.source)) for path in self.source.rglob("*") if path.is_file())

    @property
    def is_tree(self) -> bool:
        """True if the run copies a folder of many files."""
        return self.row.file_count > 1


@dataclass(frozen=True)
class Peer:
    """A tool to measure. `server` and `client` return command lines; the server is ready when it listens on `port`."""

    name: str
    programs: tuple[str, ...]
    client: Callable[[Place], list[str]]
    server: Callable[[Place], list[str]] | None = None
    port: int = 0
    # Text that the server prints when it is ready. Empty: the server is ready when it listens on `port`.
    ready_text: str = ""
    # The tool has its own congestion control, so the kernel's setting makes no difference.
    own_control: bool = False
    # The tool copies no file; its output contains the result.
    measures_only: bool = False
    # The client runs on the sending host, and the server on the receiving host.
    pushes: bool = False
    # The tool copies once before the measured run, so that it has a record of the path.
    rehearses: bool = False

    def is_installed(self) -> bool:
        """Returns true if all programs of the tool are installed."""
        return all(shutil.which(program, path="/usr/bin:/usr/sbin:/bin:/usr/local/bin") or Path(program).is_file()
                   for program in self.programs)


def _nginx(place: Place) -> list[str]:
    return ["/usr/sbin/nginx", "-c", str(place.fill("nginx.conf", 9580)), "-p", str(place.run)]


def _nginx_tls(place: Place) -> list[str]:
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                    "-subj", "/CN=bench", "-keyout", str(place.run / "key.pem"), "-out", str(place.run / "cert.pem")],
                   check=True, capture_output=True)
    ssl = f"9581 ssl; ssl_protocols TLSv1.3; ssl_certificate {place.run}/cert.pem; ssl_certificate_key {place.run}/key.pem"
    return ["/usr/sbin/nginx", "-c", str(place.fill("nginx.conf", ssl)), "-p", str(place.run)]


def _equal_work(place: Place) -> list[str]:
    """Does the same work as sterna: TLS 1.3, and a BLAKE3 digest of the file at both ends during the transfer."""
    source, target, url = place.source / "file-0", place.target / "file-0", f"https://{place.server_address}:9581/file-0"
    copy = f"curl -sSk '{url}' | tee '{target}' | {B3SUM} --num-threads 1"
    return ["sh", "-c", f"{B3SUM} --num-threads 1 '{source}' & {copy}; wait"]


def _curl(place: Place) -> list[str]:
    url = f"http://{place.server_address}:9580"
    if not place.is_tree:
        return ["curl", "-sS", "-o", str(place.target / "file-0"), f"{url}/file-0"]
    lines = [f'url = "{url}/{name}"\noutput = "{place.target / name}"\n' for name in place.names()]
    (place.run / "curl.conf").write_text("".join(lines))
    return ["curl", "-sS", "--parallel", "--parallel-max", "64", "--create-dirs", "-K", str(place.run / "curl.conf")]


def _aria2(place: Place) -> list[str]:
    url = f"http://{place.server_address}:9580"
    shared = ["aria2c", "-q", "-x16", "-s16", "-k1M", "--file-allocation=none", "--allow-overwrite=true",
              "--auto-file-renaming=false", "-d", str(place.target)]
    if not place.is_tree:
        return [*shared, "-o", "file-0", f"{url}/file-0"]
    (place.run / "aria2.list").write_text("".join(f"{url}/{name}\n  out={name}\n" for name in place.names()))
    return [*shared, "-j64", "-i", str(place.run / "aria2.list")]


def _rclone(place: Place) -> list[str]:
    shared = ["rclone", "copy", "--config", "/dev/null", "--http-url", f"http://{place.server_address}:9580",
              "--multi-thread-streams", "16", "--multi-thread-cutoff", "1M", "--local-no-preallocate", "--retries", "1"]
    if place.is_tree:
        return [*shared, "--transfers", "64", "--checkers", "64", ":http:", str(place.target)]
    return [*shared, ":http:file-0", str(place.target)]


def _xrootd(place: Place) -> list[str]:
    (place.run / "xrootd").mkdir(mode=0o777, exist_ok=True)
    (place.run / "xrootd").chmod(0o777)
    place.run.chmod(0o777)
    return ["xrootd", "-c", str(place.fill("xrootd.cfg", 9594)), "-l", str(place.run / "xrootd" / "log"), "-R", "nobody"]


def _xrdcp(place: Place) -> list[str]:
    # The export is the parent folder, because xrdcp does not copy a root. A folder keeps its name in the target.
    url = f"root://{place.server_address}:9594//{place.source.name}"
    if place.is_tree:
        return ["xrdcp", "-f", "-s", "-r", "--parallel", "4", url, f"{place.target}/"]
    return ["xrdcp", "-f", "-s", "--streams", "8", f"{url}/file-0", str(place.target / "file-0")]


def _gridftp(place: Place) -> list[str]:
    address = place.server_address
    return ["/usr/sbin/globus-gridftp-server", "-aa", "-anonymous-user", "nobody", "-p", "9511", "-control-interface", address,
            "-data-interface", address, "-log-level", "warn", "-logfile", str(place.run / "gridftp.log"), "-c", "/dev/null"]


def _globus_url_copy(place: Place) -> list[str]:
    url = f"ftp://anonymous:x@{place.server_address}:9511{place.source}"
    if place.is_tree:
        return ["globus-url-copy", "-r", "-cd", "-cc", "16", "-pp", "-fast", f"{url}/", f"file://{place.target}/"]
    return ["globus-url-copy", "-p", "8", "-fast", f"{url}/file-0", f"file://{place.target}/file-0"]


def _udt_flags(place: Place) -> list[str]:
    return ["--buffer", str(min(max(UDT_BUFFER_MIN, 4 * place.row.bdp_bytes), UDT_BUFFER_MAX))]


def _udt_server(place: Place) -> list[str]:
    return [UDT_COPY, "send", *_udt_flags(place), "9501", str(place.source / "file-0")]


def _udt_client(place: Place) -> list[str]:
    return [UDT_COPY, "recv", *_udt_flags(place), place.server_address, "9501", str(place.target / "file-0")]


def _iperf3_server(_place: Place) -> list[str]:
    return ["iperf3", "-s", "-1", "-p", "9502"]


def _iperf3(streams: int) -> Callable[[Place], list[str]]:
    def client(place: Place) -> list[str]:
        # Runs for the time that the file would take at the rate of the link. -R: the server sends.
        seconds = max(5, round(place.row.ideal_s))
        return ["iperf3", "-c", place.server_address, "-p", "9502", "-R", "-J", "-P", str(streams), "-t", str(seconds)]

    return client


def _agent(place: Place) -> list[str]:
    return [STERNA, "agent", "--root", str(place.server_root), "--authorize-any", "--listen",
            f"{place.server_address}:7373", "--state", str(place.run / "agent")]


def _sterna(*flags: str, push: bool = False, is_told: bool = True) -> Callable[[Place], list[str]]:
    def client(place: Place) -> list[str]:
        found = re.search(r"fingerprint (SHA256:\S+)", place.server_text())
        trust = found.group(1) if found else "SHA256:unknown"
        is_told_rate = is_told and place.row.lab is not None
        rate = ["--rate", f"{place.row.sterna_rate_bits // 1000}kbit"] if is_told_rate else []
        name = "" if place.is_tree else "file-0"
        remote = f"sterna://{place.server_address}/{name}"
        near, far = (str(place.source / name), remote) if push else (remote, str(place.target / name))
        return [STERNA, "copy", *rate, "--trust", trust, "--state", str(place.run / "client"), *flags,
                *place.row.sterna_flags, near, far]

    return client


def _sterna_peer(name: str, *flags: str, push: bool = False, is_told: bool = True, rehearses: bool = False) -> Peer:
    return Peer(name, (STERNA,), _sterna(*flags, push=push, is_told=is_told), _agent, port=7373,
                ready_text="fingerprint SHA256:", own_control=True, pushes=push, rehearses=rehearses)


def _sterna_web(place: Place) -> list[str]:
    # Uses the same server as aria2, with sterna's default settings.
    return [STERNA, "copy", "--state", str(place.run / "client"), f"http://{place.server_address}:9580/file-0",
            str(place.target / "file-0")]


def _floor(steps: str) -> Callable[[Place], list[str]]:
    return lambda place: [FLOOR, steps, "2", str(place.source / "file-0"), str(place.target / "file-0")]


def _cp(place: Place) -> list[str]:
    return ["cp", "-r", f"{place.source}/.", str(place.target)]


PEERS = {peer.name: peer for peer in (
    Peer("iperf3-1", ("iperf3",), _iperf3(1), _iperf3_server, port=9502, measures_only=True),
    Peer("iperf3-8", ("iperf3",), _iperf3(8), _iperf3_server, port=9502, measures_only=True),
    Peer("curl", ("curl", "nginx"), _curl, _nginx, port=9580),
    Peer("equal-work", ("curl", "nginx", "openssl", B3SUM), _equal_work, _nginx_tls, port=9581),
    Peer("aria2", ("aria2c", "nginx"), _aria2, _nginx, port=9580),
    Peer("rclone", ("rclone", "nginx"), _rclone, _nginx, port=9580),
    Peer("xrdcp", ("xrdcp", "xrootd"), _xrdcp, _xrootd, port=9594),
    Peer("globus-url-copy", ("globus-url-copy", "globus-gridftp-server"), _globus_url_copy, _gridftp, port=9511),
    Peer("udt", (UDT_COPY,), _udt_client, _udt_server, port=9501, own_control=True),
    Peer("cp", ("cp",), _cp, own_control=True),
    *(Peer(f"floor-{steps}", (FLOOR,), _floor(steps), own_control=True) for steps in ("copy", "hash", "seal", "both")),
    Peer("sterna-web", (STERNA, "nginx"), _sterna_web, _nginx, port=9580),
    _sterna_peer("sterna"),
    _sterna_peer("sterna-push", push=True),
    # Without flags: first over a path without a record, then over the same path again.
    _sterna_peer("sterna-first", is_told=False),
    _sterna_peer("sterna-first-push", push=True, is_told=False),
    _sterna_peer("sterna-again", is_told=False, rehearses=True),
    _sterna_peer("sterna-again-push", push=True, is_told=False, rehearses=True),
    _sterna_peer("sterna-quic", "--via", "quic"),
    _sterna_peer("sterna-tcp", "--via", "tcp"),
)}

# Prefix of the names of peers that run an earlier build of sterna.
BEFORE = "before:"


def with_build(peer: Peer, program: str) -> Peer:
    """Returns `peer`, a peer of sterna, with another build of the program."""
    swap = lambda command: [program if word == STERNA else word for word in command]  # noqa: E731
    server = peer.server
    return replace(peer, name=BEFORE + peer.name, programs=tuple(swap(peer.programs)), client=lambda place: swap(peer.client(place)),
                   server=(lambda place: swap(server(place))) if server else None)
