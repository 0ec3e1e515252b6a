#!/usr/bin/env python3
"""Writes the current tables of docs/benchmarks.md from the raw runs that the page names.

    bench/page.py            write the tables between the markers of the page
    bench/page.py --check    fail if the page and the raw runs disagree

The first marker of each pair names the runs, folders of bench/runs, oldest first: <!-- runs: 2026-11-24-vm-final -->
for copies, and <!-- service runs: 2026-11-25-vm-service --> for the transfer service. A cell has one value per run, in
this order. Everything between the markers is generated.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import report
from rows import HARD, MB, ROWS, Row

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/benchmarks.md"
BETWEEN_MARKERS = re.compile(r"(<!-- runs: (.+?) -->\n).*?(<!-- end of runs -->\n)", re.DOTALL)
BETWEEN_SERVICE_MARKERS = re.compile(r"(<!-- service runs: (.+?) -->\n).*?(<!-- end of service runs -->\n)", re.DOTALL)
# Columns of the first table, each with its tools.
COLUMNS = {"first, pull": ("sterna-first",), "first, push": ("sterna-first-push",), "again, pull": ("sterna-again",),
           "again, push": ("sterna-again-push",), "rate given (pull / push)": ("sterna", "sterna-push"),
           "equal work": ("equal-work",), "curl": ("curl",)}
# Memory beyond three bandwidth-delay products that a copy may use at one end; see ARCHITECTURE.md.
MEMORY_BEYOND_PATH = 64 * MB
# Rows with a bound for memory. Many small files also need memory for their names.
BOUNDED = [row for row in ROWS if (row in HARD or row.name == "lanes-64") and row.file_count == 1]

Run = list[report.Record]


@dataclass(frozen=True)
class Figure:
    """A figure of the transfer service: its name in service.json or tick.json, its name here, and its bar."""

    key: str
    name: str
    unit: str
    digits: int = 0
    least: float | None = None
    most: float | None = None

    def bar(self) -> str:
        """Returns the bar in words; empty if the figure has none."""
        if self.least is not None:
            return f"at least {self.least:,.0f}"
        return f"under {self.most:,.0f}" if self.most is not None else ""

    def is_missed(self, value: float) -> bool:
        """Returns true if a value misses the bar."""
        return self.least is not None and value < self.least or self.most is not None and value >= self.most


# Source of the bars: the specification of the service.
FIGURES = (
    Figure("native bulk submit, files/s", "Native submission of 200,000 files", "files/s", least=20_000),
    Figure("streamed submit of 1,000,000 files, files/s", "Manifest of 1,000,000 files, sent while it is made", "files/s",
           least=20_000),
    Figure("FTS3 submit of 200 files, jobs/s", "FTS3 submission of 200 files", "jobs/s", least=50),
    Figure("completions, files/s", "Completions", "files/s", least=500),
    Figure("status of 100 jobs meanwhile, ms (median)", "Status of 100 jobs while files complete, median", "ms", 1, most=20),
    Figure("tick_ms_median", "Turn of the scheduler over 1,000,000 files on 1,000 links, median", "ms", 1, most=100),
    Figure("memory with 10,000 transfers under way, MB", "Memory with 10,000 transfers under way", "MB", most=400),
    Figure("threads with 10,000 transfers under way", "Threads with 10,000 transfers under way", ""),
    Figure("memory with 1,000,000 files that wait, MB", "Memory with 1,000,000 files that wait", "MB"),
    Figure("cancellation of 10,000 transfers, s", "Cancellation of a job with 10,000 transfers under way", "s", 2, most=2),
    Figure("cancellation of one of 1,000 transfers, ms (median)",
           "Cancellation of one of 1,000 transfers under way, median", "ms", 1, most=2000),
    Figure("cancellation of one of 1,000 transfers, ms (maximum)", "The same, maximum", "ms", 1, most=2000),
    Figure("last worker stopped after the last cancellation, ms", "Last worker stopped after the last cancellation", "ms", 1,
           most=2000),
)


def _find(run: Run, row: str, peer: str) -> list[report.Record]:
    return [record for record in run if record["row"] == row and record["peer"] == peer]


def _title(row: Row) -> str:
    return row.title.removesuffix(", nothing given")


def _median(records: list[report.Record], key: str) -> float:
    return statistics.median(float(str(record[key])) for record in records)


def _is_timed(row: Row) -> bool:
    """Returns true for rows whose result is a time: many small files, and paths with an outage."""
    return row.file_count > 1 or "--outage" in (row.lab or ())


def _value(row: Row, records: list[report.Record]) -> float:
    """Returns seconds, or per cent of the link, with the precision of the page."""
    return round(_median(records, "seconds"), 1) if _is_timed(row) else round(100 * _median(records, "share"), 1)


def _text(row: Row, records: list[report.Record]) -> str:
    """Returns a value without its unit, or what came instead."""
    value = _value(row, records)
    if any(record["cut_off"] for record in records):
        return f"over {value:.0f}" if _is_timed(row) else f"cut off at {value:.1f}"
    return f"{value:.1f}" if all(record["identical"] for record in records) else "failed"


def _cell(row: Row, runs: list[Run], tool: str) -> str:
    texts = [_text(row, found) if (found := _find(run, row.name, tool)) else "–" for run in runs]
    return "" if set(texts) == {"–"} else f"{', '.join(texts)} {'s' if _is_timed(row) else '%'}"


def _shares(runs: list[Run]) -> str:
    lines = ["| path | " + " | ".join(COLUMNS) + " | asked |", "|---" * (len(COLUMNS) + 2) + "|"]
    for row in HARD:
        cells = [" / ".join(filter(None, (_cell(row, runs, tool) for tool in tools))) for tools in COLUMNS.values()]
        lines.append("| " + " | ".join([_title(row), *cells, row.target]) + " |")
    return "\n".join(lines)


def _asked(row: Row, run: Run, tool: str) -> float:
    """Returns the target of a row: seconds, or per cent of the link."""
    if row.target == "equal work":
        return _value(row, _find(run, row.name, "equal-work"))
    if row.target == "within 10 % of the rate given":
        return round(1.1 * _value(row, _find(run, row.name, "sterna-push" if tool.endswith("push") else "sterna")), 1)
    return float(re.findall(r"[\d.]+", row.target)[0])


def _gap(row: Row, run: Run, tool: str) -> str:
    """Returns by how much a copy misses the target of its row; empty if it does not."""
    value, asked = _value(row, _find(run, row.name, tool)), _asked(row, run, tool)
    gap = round(value - asked if _is_timed(row) else asked - value, 1)
    return f"{gap:.1f} {'s' if _is_timed(row) else '% of the link'}" if gap > 0 else ""


def _missed(runs: list[Run]) -> str:
    """Lists the copies at first contact that miss the target of their row, and the memory above its bound."""
    lines = []
    for row in HARD:
        for tool, name in (("sterna-first", "first, pull"), ("sterna-first-push", "first, push")):
            gaps = [f"{gap} (run {number})" for number, run in enumerate(runs, 1) if (gap := _gap(row, run, tool))]
            if gaps:
                lines.append(f"- {_title(row)}: {name} by {' and '.join(gaps)}")
    for row in BOUNDED:
        gaps = [f"{peak - bound:.0f} MB (run {number})" for number, run in enumerate(runs, 1)
                if (peak := round(_peak(run, row))) > (bound := round(_bound(row)))]
        if gaps:
            lines.append(f"- {row.title}: memory by {' and '.join(gaps)}")
    return "**Missed:**\n\n" + "\n".join(lines) if lines else "No target is missed."


def _loopback(runs: list[Run]) -> str:
    lines = ["| loopback, 4 GB | Gbit/s |", "|---|---|"]
    names = {"sterna-tcp": "Sterna over TCP", "sterna-quic": "Sterna over QUIC", "equal-work": "equal work",
             "floor-both": "floor with hash and encryption",
             "globus-url-copy": "globus-url-copy", "curl": "curl, without encryption"}
    for peer, name in names.items():
        found = [_find(run, "loopback", peer) for run in runs]
        rates = [f"{_median(records, 'goodput_bits') / 1e9:.1f}" if records else "–" for records in found]
        lines.append(f"| {name} | {', '.join(rates)} |")
    return "\n".join(lines)


def _peak(run: Run, row: Row) -> float:
    """Returns the largest memory of either end, in MB, in any copy by Sterna."""
    copies = [record for record in run if record["row"] == row.name and str(record["peer"]).startswith("sterna")]
    return max(float(str(copy[key])) for copy in copies for key in ("client_peak_bytes", "server_peak_bytes")) / MB


def _bound(row: Row) -> float:
    return (3 * row.bdp_bytes + MEMORY_BEYOND_PATH) / MB


def _memory(runs: list[Run]) -> str:
    lines = ["| path, one file | peak memory of an end, MB | bound, MB |", "|---|---|---|"]
    for row in BOUNDED:
        lines.append(f"| {row.title} | {', '.join(f'{_peak(run, row):.0f}' for run in runs)} | {_bound(row):.0f} |")
    return "\n".join(lines)


def tables(names: list[str]) -> str:
    """Returns the generated part of the page. Raises an error that names a run that does not exist."""
    runs = [report.read(ROOT / "bench/runs" / name / "raw.jsonl") for name in names]
    for name, run in zip(names, runs):
        if not run:
            raise SystemExit(f"bench/runs/{name}: no raw run; mend the names in {PAGE.relative_to(ROOT)}")
    links = " and ".join(f"[{name}](../bench/runs/{name}/)" for name in names)
    head = f"Raw results: {links}. A cell with several values has one for each run, in this order."
    return "\n\n".join([head, _shares(runs), _missed(runs), _loopback(runs), _memory(runs)]) + "\n"


def _figures(name: str) -> dict[str, float]:
    """Returns the figures of a run of the service. Raises an error that names a run without any."""
    folder = ROOT / "bench/runs" / name
    files = [path for path in (folder / "service.json", folder / "tick.json") if path.exists()]
    if not files:
        raise SystemExit(f"bench/runs/{name}: no figures of the service; mend the names in {PAGE.relative_to(ROOT)}")
    return {key: value for path in files for key, value in json.loads(path.read_text()).items()}


def service_tables(names: list[str]) -> str:
    """Returns the generated part of the page about the transfer service."""
    runs = [_figures(name) for name in names]
    links = " and ".join(f"[{name}](../bench/runs/{name}/)" for name in names)
    lines = [f"Raw results: {links}. A cell has one value for each run, in this order.", "",
             "| figure | measured | bar |", "|---|---|---|"]
    missed = []
    for figure in FIGURES:
        values = [run.get(figure.key) for run in runs]
        texts = ["–" if value is None else f"{value:,.{figure.digits}f}" for value in values]
        lines.append(f"| {figure.name} | {'; '.join(texts)} {figure.unit}".rstrip() + f" | {figure.bar()} |")
        gaps = [f"{text} (run {number})" for number, (value, text) in enumerate(zip(values, texts), 1)
                if value is not None and figure.is_missed(value)]
        missed += [f"- {figure.name}: {' and '.join(gaps)}"] if gaps else []
    ending = "**Missed:**\n\n" + "\n".join(missed) if missed else "No bar is missed."
    return "\n".join(lines) + f"\n\n{ending}\n"


def _generated(page: str, markers: re.Pattern[str], write: Callable[[list[str]], str]) -> str:
    """Returns the page with the part between two markers written anew."""
    found = markers.search(page)
    if not found:
        raise SystemExit(f"{PAGE.relative_to(ROOT)} lacks the markers {markers.pattern}")
    return page[: found.start()] + found[1] + write(found[2].split()) + found[3] + page[found.end():]


def main() -> None:
    page = PAGE.read_text()
    wanted = _generated(page, BETWEEN_MARKERS, tables)
    wanted = _generated(wanted, BETWEEN_SERVICE_MARKERS, service_tables)
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(wanted)
    elif page != wanted:
        raise SystemExit(f"{PAGE.relative_to(ROOT)} differs from its raw runs: run bench/page.py")


if __name__ == "__main__":
    main()
