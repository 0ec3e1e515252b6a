"""Rows of the benchmark: a path, the data to copy over it, and the flags for Sterna."""

from __future__ import annotations

from dataclasses import dataclass, field

MB = 1_000_000
GB = 1_000_000_000
MBIT = 1_000_000
GBIT = 1_000_000_000

SINGLE_FILE_PEERS = ("iperf3-1", "iperf3-8", "curl", "aria2", "rclone", "xrdcp", "globus-url-copy", "udt", "sterna")
TREE_PEERS = ("curl", "aria2", "rclone", "xrdcp", "globus-url-copy", "sterna")
LOOPBACK_PEERS = ("cp", "curl", "equal-work", "aria2", "rclone", "xrdcp", "globus-url-copy",
                  "floor-copy", "floor-hash", "floor-seal", "floor-both", "sterna-tcp", "sterna-quic")
STERNA_ONLY = ("sterna-quic", "sterna-tcp")


@dataclass(frozen=True)
class Row:
    """One row. `lab` are the flags of `sterna lab up`; None means loopback, where `rate_bits` is only a scale."""

    name: str
    title: str
    rate_bits: int
    rtt_s: float
    file_count: int
    file_bytes: int
    lab: tuple[str, ...] | None
    peers: tuple[str, ...] = SINGLE_FILE_PEERS
    controls: tuple[str, ...] = ("cubic", "bbr")
    given_bits: int | None = None
    target: str = ""
    sterna_flags: tuple[str, ...] = ()
    competitor: bool = False
    capped: bool = False

    @property
    def total_bytes(self) -> int:
        """Total size of the files."""
        return self.file_count * self.file_bytes

    @property
    def sterna_rate_bits(self) -> int:
        """Value for `--rate`; not used on loopback."""
        return self.given_bits or self.rate_bits

    @property
    def ideal_s(self) -> float:
        """Time for all bytes at the rate of the link, plus one round trip."""
        return self.total_bytes * 8 / self.rate_bits + self.rtt_s

    @property
    def bdp_bytes(self) -> int:
        """Bandwidth-delay product."""
        return int(self.rate_bits * self.rtt_s / 8)


def _path(rate: str, rtt: str, *more: str) -> tuple[str, ...]:
    return ("--rate", rate, "--rtt", rtt, *more)


def _sterna_row(name: str, title: str, size: int, lab: tuple[str, ...], rtt_s: float, **more: object) -> Row:
    values: dict[str, object] = {"peers": STERNA_ONLY, "controls": ("bbr",), **more}
    return Row(name, title, GBIT, rtt_s, 1, size, lab, **values)  # type: ignore[arg-type]


# Paths of the comparison: a geostationary hop, a long terrestrial path, and a path with a policer.
COMPARED = (
    Row("geo", "660 ms, 50 Mbit/s, no loss, 200 MB", 50 * MBIT, 0.66, 1, 200 * MB, _path("50Mbit", "660ms"), target="88 %"),
    Row("geo-0.01", "660 ms, 50 Mbit/s, 0.01 % loss, 200 MB", 50 * MBIT, 0.66, 1, 200 * MB,
        _path("50Mbit", "660ms", "--loss", "0.01%"), target="88 %"),
    Row("geo-1", "660 ms, 50 Mbit/s, 1 % loss, 200 MB", 50 * MBIT, 0.66, 1, 200 * MB,
        _path("50Mbit", "660ms", "--loss", "1%"), target="87 %"),
    Row("far-0.5", "320 ms, 100 Mbit/s, 0.5 % loss, 200 MB", 100 * MBIT, 0.32, 1, 200 * MB,
        _path("100Mbit", "320ms", "--loss", "0.5%"), target="85 %"),
    Row("policer", "320 ms, policer 30 Mbit/s with 64 KiB, 100 MB", 30 * MBIT, 0.32, 1, 100 * MB,
        _path("100Mbit", "320ms", "--policer", "30Mbit:64KiB"), given_bits=29 * MBIT, target="86 %"),
    Row("fast-0.01", "260 ms, 1 Gbit/s, 0.01 % loss, 1 GB", GBIT, 0.26, 1, GB,
        _path("1Gbit", "260ms", "--loss", "0.01%"), target="80 %"),
)

# Many small files, and loopback without a path.
SPECIAL = (
    Row("small-files", "150 ms, 1 Gbit/s, 10,000 files of 100 KB", GBIT, 0.15, 10_000, 100_000, _path("1Gbit", "150ms"),
        peers=TREE_PEERS, controls=("bbr",), target="14 s"),
    Row("loopback", "loopback, 4 GB, tmpfs to tmpfs", 10 * GBIT, 0.0, 1, 4 * GB, None,
        peers=LOOPBACK_PEERS, controls=("cubic",), target="best peer"),
)

# Rows for Sterna only: reordering, a short queue, a competing flow, file sizes, lane counts.
ALONE = (
    _sterna_row("clean-1g", "50 ms, 1 Gbit/s, 1 GB", GB, _path("1Gbit", "50ms"), 0.05),
    _sterna_row("reorder-5ms", "50 ms, 1 Gbit/s, 1 % of packets 5 ms late, 1 GB", GB,
                _path("1Gbit", "50ms", "--reorder", "1%:5ms"), 0.05, target="at least 90 % of clean-1g"),
    _sterna_row("queue-0.1", "50 ms, 1 Gbit/s, queue of 0.1 BDP, 1 GB", GB,
                _path("1Gbit", "50ms", "--queue", "0.1bdp"), 0.05, target="at least 90 % of clean-1g"),
    _sterna_row("neighbour", "50 ms, 1 Gbit/s, beside one cubic flow, 1 GB", GB, _path("1Gbit", "50ms"), 0.05,
                competitor=True, controls=("cubic",)),
    _sterna_row("neighbour-half", "50 ms, 1 Gbit/s, beside one cubic flow, told 500 Mbit/s, 1 GB", GB, _path("1Gbit", "50ms"), 0.05,
                competitor=True, controls=("cubic",), given_bits=GBIT // 2),
    Row("cap", "50 ms, 1 Gbit/s, told 100 Mbit/s, 200 MB", 100 * MBIT, 0.05, 1, 200 * MB, _path("1Gbit", "50ms"), peers=STERNA_ONLY,
        controls=("bbr",), capped=True, target="no second above the cap"),
    *(_sterna_row(f"size-{size // MB}MB", f"50 ms, 1 Gbit/s, {size // MB} MB", size, _path("1Gbit", "50ms"), 0.05)
      for size in (MB, 10 * MB, 100 * MB, 5 * GB, 20 * GB)),
    *(_sterna_row(f"lanes-{lanes}", f"50 ms, 1 Gbit/s, 1 GB, {lanes} lanes", GB, _path("1Gbit", "50ms"), 0.05,
                  sterna_flags=("--lanes", str(lanes)))
      for lanes in (1, 4, 16, 64)),
)

# Harder conditions: no rate is given, and hosts, queues or return paths limit the transfer.
HARD_PEERS = ("curl", "equal-work", "sterna-first", "sterna-first-push", "sterna-again", "sterna-again-push", "sterna")
MANY_PEERS = ("sterna", "sterna-first", "sterna-push", "sterna-first-push")
HARD = (
    Row("small-files-found", "150 ms, 1 Gbit/s, 10,000 files of 100 kB, nothing given", GBIT, 0.15, 10_000, 100_000,
        _path("1Gbit", "150ms"), peers=(*MANY_PEERS, "rclone"), controls=("bbr",), target="within 10 % of the rate given"),
    Row("tiny-files-found", "150 ms, 1 Gbit/s, 100,000 files of 1 kB, nothing given", GBIT, 0.15, 100_000, 1000,
        _path("1Gbit", "150ms"), peers=MANY_PEERS, controls=("bbr",), target="within 10 % of the rate given"),
    Row("hosts-3g", "148 ms, 3 Gbit/s, MTU 9000, 3 GB", 3 * GBIT, 0.148, 1, 3 * GB, _path("3Gbit", "148ms", "--mtu", "9000"),
        peers=HARD_PEERS, controls=("bbr",), target="equal work"),
    Row("hosts-2g", "30 ms, 2 Gbit/s, MTU 9000, 3 GB", 2 * GBIT, 0.03, 1, 3 * GB, _path("2Gbit", "30ms", "--mtu", "9000"),
        peers=HARD_PEERS, controls=("bbr",), target="equal work"),
    Row("shallow", "150 ms, 500 Mbit/s, queue of 0.1 BDP, 500 MB", 500 * MBIT, 0.15, 1, 500 * MB,
        _path("500Mbit", "150ms", "--queue", "0.1bdp"), peers=HARD_PEERS, controls=("bbr",), target="equal work"),
    Row("reorder-5", "50 ms, 1 Gbit/s, 5 % of packets 5 ms late, 1 GB", GBIT, 0.05, 1, GB,
        _path("1Gbit", "50ms", "--reorder", "5%:5ms"), peers=HARD_PEERS, controls=("bbr",), target="equal work"),
    Row("outage", "320 ms, 100 Mbit/s, nothing passes for 10 s, 300 MB", 100 * MBIT, 0.32, 1, 300 * MB,
        _path("100Mbit", "320ms", "--outage", "8s+10s"), peers=HARD_PEERS, controls=("bbr",), target="37.7 s"),
    Row("outage-20", "320 ms, 100 Mbit/s, nothing passes for 20 s, 300 MB", 100 * MBIT, 0.32, 1, 300 * MB,
        _path("100Mbit", "320ms", "--outage", "8s+20s"), peers=HARD_PEERS[:-1], controls=("bbr",), target="47.7 s"),
    Row("loss-5", "660 ms, 50 Mbit/s, 5 % loss, 200 MB", 50 * MBIT, 0.66, 1, 200 * MB, _path("50Mbit", "660ms", "--loss", "5%"),
        peers=HARD_PEERS, controls=("bbr",), target="84 %"),
    Row("udp-policed", "50 ms, 400 Mbit/s, a policer of 50 Mbit/s for UDP alone, 700 MB", 400 * MBIT, 0.05, 1, 700 * MB,
        _path("400Mbit", "50ms", "--policer", "50Mbit:64KiB:udp"), peers=HARD_PEERS[:-1], controls=("bbr",), target="more than QUIC's 12 %"),
    Row("satellite", "600 ms, 150 Mbit/s and 1 Mbit/s back, 500 MB", 150 * MBIT, 0.6, 1, 500 * MB,
        _path("150Mbit", "600ms", "--reverse-rate", "1Mbit"), peers=HARD_PEERS, controls=("bbr",), target="88 %"),
    Row("satellite-1", "600 ms, 150 Mbit/s and 1 Mbit/s back, 1 % loss both ways, 500 MB", 150 * MBIT, 0.6, 1, 500 * MB,
        _path("150Mbit", "600ms", "--reverse-rate", "1Mbit", "--loss", "1%"), peers=HARD_PEERS, controls=("bbr",), target="85 %"),
)

# Web servers: tools that read them by ranges, compared.
WEB_PEERS = ("aria2", "sterna-web")
WEB = (
    Row("web-660", "660 ms, 50 Mbit/s, no loss, 200 MB, from nginx", 50 * MBIT, 0.66, 1, 200 * MB, _path("50Mbit", "660ms"),
        peers=WEB_PEERS, controls=("bbr", "cubic"), target="aria2"),
    Row("web-660-1", "660 ms, 50 Mbit/s, 1 % loss, 200 MB, from nginx", 50 * MBIT, 0.66, 1, 200 * MB,
        _path("50Mbit", "660ms", "--loss", "1%"), peers=WEB_PEERS, controls=("bbr",), target="aria2"),
    Row("web-150", "150 ms, 1 Gbit/s, 0.01 % loss, 1 GB, from nginx", GBIT, 0.15, 1, GB,
        _path("1Gbit", "150ms", "--loss", "0.01%"), peers=WEB_PEERS, controls=("bbr", "cubic"), target="aria2"),
    Row("web-8", "8 ms, 1 Gbit/s, no loss, 1 GB, from nginx", GBIT, 0.008, 1, GB, _path("1Gbit", "8ms"),
        peers=WEB_PEERS, controls=("bbr", "cubic"), target="aria2"),
)

ROWS = COMPARED + HARD + WEB + SPECIAL + ALONE
