#!/usr/bin/env python3
"""Compares who tells which cause apart: the doctor, and the published rules of other tools over the same evidence.

Usage: bench/others.py [--evidence DIR] [--binary PATH]

DIR has evidence of examinations, compressed by zstd, each with its imposed causes in the name of the file, as in
crates/doctor/tests/bundles (the default). Each tool reads what it would have measured itself:

ss          the counters of the sender's kernel in the baseline flow: options, MSS, and the limits in shares of time
NDT7        the same counters as its server sends them, without options: windows, segments sent again, round trips
perfSONAR   packets of one port at a low rate: loss and delay of each direction, and the sizes that pass
NPAD        the arithmetic of pathdiag: target rate and round trip against windows, options, MSS and the loss budget

A cell counts the examinations in which the tool named the cause, perhaps among others; for a clean path, those in which
it named none. The row before the last counts the examinations with a name that was not imposed. "Loss" names random loss: none of
the other tools tells it from a policer or from congestion. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from limits import ROOT

# Share of time from which a window is the limit, as readers of ss and of NDT7 take it.
LIMITED = 0.25
# Part of segments sent again that is loss: below, slow start explains it.
LOSS = 1e-3
# Rise of the round trip that is a queue, as a factor.
QUEUE = 2
# Smallest segment over Ethernet that no device made smaller.
MSS_USUAL = 1400

Evidence = dict
Way = str


def records(evidence: Evidence, purpose: str, way: Way) -> list[dict]:
    """Returns the outcomes of a purpose in a direction, without those that failed."""
    found = [one["outcome"] for one in evidence["records"] if one["purpose"] == purpose and one["direction"] == way]
    return [next(iter(one.values())) for one in found if "failed" not in one]


def sender(evidence: Evidence, way: Way) -> dict | None:
    """Returns the stream of the baseline at its sender, with its first and last sample."""
    flows = records(evidence, "baseline", way)
    streams = flows[-1]["sender"]["streams"] if flows else []
    if not streams or len(streams[0]["samples"]) < 2:
        return None
    first, last = streams[0]["samples"][0], streams[0]["samples"][-1]
    time = max(last["at_us"] - first["at_us"], 1)
    return {**streams[0], "last": last, "rate": (last["acked"] - first["acked"]) * 8e6 / time,
            "window": (last["peer_window_limited_us"] - first["peer_window_limited_us"]) / time,
            "buffer": (last["send_buffer_limited_us"] - first["send_buffer_limited_us"]) / time,
            "again": last["resent"] / max(last["data_segments_out"], 1), "queue": last["rtt_us"] / max(last["rtt_min_us"], 1)}


def limits(stream: dict) -> set[str]:
    """Returns what the counters of time and of segments show."""
    named = {"receive_buffer"} if stream["window"] > LIMITED else set()
    named |= {"send_buffer"} if stream["buffer"] > LIMITED else set()
    return named | ({"random_loss"} if stream["again"] > LOSS else set())


def options(stream: dict) -> set[str]:
    names = {"sack": "no_sack", "timestamps": "no_timestamps", "window_scaling": "no_window_scaling"}
    named = {cause for option, cause in names.items() if not stream[option]}
    # Without scaling the window is the limit for that reason.
    return named | ({"mss_clamped"} if stream["mss"] < MSS_USUAL - 12 else set())


def ss(evidence: Evidence, way: Way) -> set[str]:
    stream = sender(evidence, way)
    if not stream:
        return set()
    named = limits(stream) | options(stream)
    return named - {"receive_buffer"} if "no_window_scaling" in named else named


def ndt7(evidence: Evidence, way: Way) -> set[str]:
    stream = sender(evidence, way)
    return limits(stream) if stream else set()


def perfsonar(evidence: Evidence, way: Way) -> set[str]:
    trains = records(evidence, "low_rate", way)
    echoes = records(evidence, "echoes", "forward")
    named = set()
    if trains and trains[-1]["received"] < trains[-1]["sent"]:
        named.add("random_loss")
    elif not trains and echoes:
        port = echoes[-1]["echoes"][0]
        lost = port["sent"] - port["reflected"] if way == "forward" else port["reflected"] - port["returned"]
        named |= {"random_loss"} if lost > 0 else set()
    if trains and trains[-1]["reordered"]:
        named.add("reordering")
    sizes = [size for train in records(evidence, "sizes", way) for size in train["sizes"] if size["bytes"] <= 1500]
    if any(size["sent"] and not size["received"] for size in sizes):
        named.add("pmtu_black_hole")
    return named


def npad(evidence: Evidence, way: Way) -> set[str]:
    stream = sender(evidence, way)
    if not stream:
        return set()
    named = options(stream)
    rtt = stream["last"]["rtt_min_us"] / 1e6
    # The user gives the target: the rate that the path carries by the trains of the doctor.
    target = max([train["received_bytes"] * 8e6 / max(train["bins"][-1]["last_arrival_us"] - train["bins"][0]["last_arrival_us"], 1)
                  for purpose in ("capacity", "overload") for train in records(evidence, purpose, way)
                  if train["bins"]] or [stream["rate"]])
    needed = target / 8 * rtt
    receiver = max((sample["peer_window"] for sample in stream["samples"]), default=0)
    named |= {"receive_buffer"} if receiver < needed and stream["window_scaling"] else set()
    named |= {"send_buffer"} if stream["last"]["send_buffer"] < needed else set()
    budget = (0.7 * stream["mss"] * 8 / max(target * rtt, 1)) ** 2
    return named | ({"random_loss"} if stream["again"] > max(budget, LOSS) else set())


TOOLS: dict[str, Callable[[Evidence, Way], set[str]]] = {"ss": ss, "NDT7": ndt7, "perfSONAR": perfsonar, "NPAD": npad}


def doctor(evidence: Evidence, binary: Path) -> dict[Way, set[str]]:
    """Returns the verdicts of the doctor, and the limits of its ladder, by direction."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"format": 1, "about": {}, "evidence": evidence}, file)
        file.flush()
        shown = subprocess.run([binary, "doctor", "show", file.name, "--json"], capture_output=True, text=True, check=True)
    named: dict[Way, set[str]] = {"forward": set(), "reverse": set()}
    reply = json.loads(shown.stdout)
    for verdict in [*reply["verdicts"], *reply["ladder"]]:
        if verdict["limit"] != "clean":
            # Options and modes are of both directions, and have one verdict.
            both = verdict["limit"] in ("no_sack", "no_timestamps", "rtt_modes")
            for way in named if both else (verdict["direction"],):
                named[way].add(verdict["limit"])
    return named


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--evidence", type=Path, default=ROOT / "crates/doctor/tests/bundles")
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/sterna")
    arguments = parser.parse_args()
    counts: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    wrong: dict[str, int] = defaultdict(int)
    for path in sorted(arguments.evidence.glob("*.json.zst")):
        causes, way = path.name.split(".")[:2]
        imposed = set(causes.split("+")) - {"clean"}
        evidence = json.loads(subprocess.run(["zstd", "-dc", path], capture_output=True, check=True).stdout)
        of_doctor = doctor(evidence, arguments.binary)
        for name in ("doctor", *TOOLS):
            named = {one: of_doctor[one] if name == "doctor" else TOOLS[name](evidence, one) for one in of_doctor}
            ways = tuple(named) if way == "both" else (way,)
            # A cause of both directions must be named in each.
            told = all(imposed <= named[one] for one in ways) and (bool(imposed) or not any(named.values()))
            counts[causes][name].append(told)
            wrong[name] += any(named[one] - (imposed if one in ways else set()) for one in named)
    names = ["doctor", *TOOLS]
    print("| cause | examinations | " + " | ".join(names) + " |\n|" + "---|" * (len(names) + 2))
    for cause, of in counts.items():
        print(f"| {re.sub('_', ' ', cause)} | {len(of['doctor'])} | " + " | ".join(str(sum(of[name])) for name in names) + " |")
    total = [sum(sum(of[name]) for of in counts.values()) for name in names]
    print(f"| names that were not imposed | | {' | '.join(str(wrong[name]) for name in names)} |")
    print(f"| all | {sum(len(of['doctor']) for of in counts.values())} | " + " | ".join(map(str, total)) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
