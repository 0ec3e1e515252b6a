"""Tables from raw.jsonl: share of the link, CPU and memory, and Sterna compared with the best peer."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from peers import BEFORE
from rows import ROWS, Row

Record = dict[str, object]
# Tools that move no file, or not over a network. They are not peers in a ratio.
NO_PEERS = ("iperf3-1", "iperf3-8", "cp", "floor-copy", "floor-hash", "floor-seal", "floor-both")


def read(raw: Path) -> list[Record]:
    """Returns the records of a run that count; an empty list if the run has not begun."""
    records = [json.loads(line) for line in raw.read_text().splitlines()] if raw.exists() else []
    return [record for record in records if not record.get("discarded")]


def _number(record: Record, key: str) -> float:
    return float(str(record.get(key) or 0))


def _median(records: list[Record], key: str) -> float:
    return statistics.median(_number(r, key) for r in records)


def _share(records: list[Record]) -> str:
    # A run that was cut off has only the bytes delivered by then; the rest is unknown.
    text = f"{100 * _median(records, 'share'):.1f}"
    if any(r["cut_off"] for r in records):
        return f"{text} (cut off)"
    return text if all(r["identical"] for r in records) else "wrong bytes or error"


def _line(peer: str, control: str, records: list[Record]) -> str:
    gigabytes = max(_median(records, "bytes") / 1e9, 1e-9)
    moved = _median(records, "bytes") > 0
    per_gb = [f"{_median(records, key) / gigabytes:.2f}" if moved else "–" for key in ("client_cpu_s", "server_cpu_s")]
    memory = [f"{_median(records, key) / 1e6:.0f}" for key in ("client_peak_bytes", "server_peak_bytes")]
    cells = [peer, control, _share(records), f"{_median(records, 'seconds'):.1f}", f"{_median(records, 'goodput_bits') / 1e6:.1f}",
             *per_gb, *memory, str(len(records))]
    return "| " + " | ".join(cells) + " |"


def _ratio(records: list[Record]) -> str:
    """Compares Sterna with the best file tool under any kernel congestion control."""
    best: dict[str, float] = {}
    for record in records:
        if record["peer"] not in NO_PEERS and record["identical"] and not str(record["peer"]).startswith(BEFORE):
            name = f"{record['peer']} {record['control']}"
            best[name] = max(best.get(name, 0.0), _number(record, "goodput_bits"))
    ours = {name: rate for name, rate in best.items() if name.startswith("sterna")}
    peers = {name: rate for name, rate in best.items() if not name.startswith("sterna")}
    if not ours or not peers:
        return ""
    ours_name, peer_name = max(ours, key=ours.__getitem__), max(peers, key=peers.__getitem__)
    factor = ours[ours_name] / peers[peer_name]
    return f"\n{ours_name.split()[0]} against the best peer, {peer_name}: {factor:.2f} times its goodput.\n"


def _floor(records: list[Record]) -> str:
    """Compares Sterna with the best result of this host for the same work on every byte."""
    rates = {peer: statistics.median(_number(r, "goodput_bits") for r in records if r["peer"] == peer)
             for peer in {str(r["peer"]) for r in records}}
    if not {"floor-copy", "floor-both", "sterna-tcp"} <= rates.keys():
        return ""
    floor, ours = rates["floor-both"], rates["sterna-tcp"]
    return (f"\nWith nothing around the bytes this host moves {rates['floor-copy'] / 1e9:.1f} Gbit/s, and {floor / 1e9:.1f} when both "
            f"ends also hash and encrypt; sterna-tcp against that: {ours / floor:.2f} times its goodput.\n")


def _cap(row: Row, records: list[Record]) -> str:
    """Compares the busiest second on the wire, as the emulated path measured it, with the cap."""
    lines = []
    for record in records if row.capped else []:
        forward = record["path"]["networks"][0]["forward"]  # type: ignore[index]
        share = 8 * forward["busiest_second_bytes"] / row.sterna_rate_bits
        lines.append(f"\n{record['peer']}: the busiest second on the wire had {100 * share:.2f} % of the cap.\n")
    return "".join(lines)


def _neighbour(records: list[Record]) -> str:
    """Rate of the competing flow beside the copy, compared with its rate alone."""
    lines = []
    for record in records:
        alone, beside = _number(record, "neighbour_alone_bits"), _number(record, "neighbour_beside_bits")
        if alone:
            lines.append(f"\nBeside {record['peer']} the cubic flow kept {beside / 1e6:.0f} Mbit/s of {alone / 1e6:.0f} alone "
                         f"({100 * beside / alone:.0f} %).\n")
    return "".join(lines)


def _builds(records: list[Record]) -> str:
    """Compares this build with the earlier one, over the repeats that both have."""
    shares: dict[str, dict[tuple[object, object], float]] = {}
    for record in records:
        if record["identical"]:
            shares.setdefault(str(record["peer"]), {})[record["control"], record["repeat"]] = 100 * _number(record, "share")
    lines = []
    for peer in (name for name in shares if BEFORE + name in shares):
        before, after = shares[BEFORE + peer], shares[peer]
        both = [after[run] - before[run] for run in after if run in before]
        if both:
            spread = f" ({min(both):+.1f} to {max(both):+.1f})" if len(both) > 1 else ""
            lines.append(f"\n{peer}: {statistics.median(both):+.1f} points{spread} against the earlier build, {len(both)} pairs.\n")
    return "".join(lines)


def _section(row: Row, records: list[Record]) -> str:
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((str(record["peer"]), str(record["control"])), []).append(record)
    asked = f" Sterna must reach: {row.target}." if row.target else ""
    head = ("| tool | kernel control | % of link | seconds | Mbit/s | client CPU s/GB | server CPU s/GB | client peak MB "
            "| server peak MB | runs |\n|---|---|---|---|---|---|---|---|---|---|\n")
    lines = "\n".join(_line(peer, control, group) for (peer, control), group in groups.items())
    flags = " ".join(row.lab) if row.lab else "none"
    return f"## {row.name}: {row.title}\n\nLab: `{flags}`. Data flows from a to b.{asked}\n\n{head}{lines}\n{_ratio(records)}{_floor(records)}{_cap(row, records)}{_neighbour(records)}{_builds(records)}"


def write(folder: Path) -> None:
    """Writes README.md of a run from its raw.jsonl."""
    records = read(folder / "raw.jsonl")
    place = json.loads((folder / "environment.json").read_text())
    sections = [_section(row, [r for r in records if r["row"] == row.name]) for row in ROWS]
    text = (f"# Benchmark {folder.name}\n\nKernel {place['kernel']}, {place['cpu_count']} x {place['cpu']}, {place['memory']}; TCP "
            f"buffers in the lab up to {place['tcp_buffers_in_lab']}; commit {place['commit'][:12]}. All of it is in environment.json, "
            "every run in raw.jsonl. Shares are goodput over the rate of the link, medians of the runs; handshakes are inside the time; "
            "files lie on tmpfs and are compared after each run.\n\n")
    (folder / "README.md").write_text(text + "\n".join(s for r, s in zip(ROWS, sections) if any(x["row"] == r.name for x in records)))
