#!/usr/bin/env python3
"""Imposes conditions with random parameters in the lab. Compares the verdicts of sterna doctor with them. As root.

Usage: bench/doctor.py [--draws N] [--seed SEED] [--only NAME,...] [--kernels cubic,bbr] [--output FILE.jsonl]
                       [--binary PATH] [--log DIR] [--verdicts | --plain]

Each run draws a path, its direction and a cause (bench/conditions.py), starts an agent on host b, examines the path from
host a and judges the reply: the first verdict, no trouble on clean paths, the order of two causes, the numbers of
policers, the round trips. Then the remedy of the first cause is applied and the examination repeated: the rate must be
the one that the first examination predicted. The seed is random and printed; `--seed` repeats a draw.

Prints one JSON line per run, and on stderr a confusion matrix and the shares that are right. Exit code 1 below the bars.
`--verdicts` leaves the remedies out, which halves the time. `--plain` measures the conditions by iperf3 and ss instead
of the doctor, which shows if a cause really binds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from statistics import mean

from conditions import BUFFER, CASES, CUBIC_ONLY, EITHER, SEND_LEAST, SEND_MOST, WINDOW_MIN, Case, Setup, case_of
from limits import ROOT, cpu_quota, inside, run, slow_disk, wilson

ADDRESS = {"a": "10.77.0.1", "b": "10.77.1.1"}
# Issue 18, section 5. The share for the numbers of a policer is that of the first verdicts.
BARS = {"first verdict": 0.95, "clean path": 1.0, "order of pairs": 0.9, "predicted gain": 0.9, "policer rate": 0.95,
        "policer burst": 0.95, "round trips": 0.95}
RATE_ERROR, BURST_ERROR, GAIN_ERROR, RTT_ERROR = 0.03, 0.2, 0.15, 0.02
# Error of a round trip that the hosts of the lab add, s.
RTT_ERROR_S = 0.001
# Longest examination, s; the doctor itself keeps to 180 s.
TIME_MAX = 240
# Time in which the traffic of others fills the path, s.
CROSS_S = 4
# Time in which the doctor starts before it gets its CPU quota, s.
START_S = 0.5
# Time between two looks at a program that starts or ends, s, and their number.
LOOK_S, LOOKS = 0.1, 100
# Options of the doctor that a release may lack; without them these cases are left out.
NEEDED = {"disk": "--disk", "application": "--watch"}

# Reads from one connection at a rate, bytes/s.
READER = """
import socket, sys, time
port, rate = int(sys.argv[1]), float(sys.argv[2])
listener = socket.create_server(("0.0.0.0", port))
stream, start, count = listener.accept()[0], time.monotonic(), 0
while data := stream.recv(65536):
    count += len(data)
    time.sleep(max(0, start + count / rate - time.monotonic()))
"""
WRITER = "import socket, sys\nstream = socket.create_connection((sys.argv[1], int(sys.argv[2])))\nwhile True: stream.sendall(bytes(65536))"


class Bench:
    """A lab with its programs. Ends them in reverse order."""

    def __init__(self, setup: Setup, kernel: str, seed: int, arguments: argparse.Namespace, binary: Path) -> None:
        self.setup, self.kernel, self.seed = setup, kernel, seed
        self.arguments, self.binary = arguments, binary
        self.stack = contextlib.ExitStack()
        self.name = f"doctor-{random.SystemRandom().randrange(1 << 32):x}"

    def __enter__(self) -> Bench:
        with contextlib.ExitStack() as stack:
            self.memory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sterna-doctor-", dir="/dev/shm")))
            self.disk = stack.enter_context(slow_disk(self.setup.throttle, (self.setup.slow_kind,))) if self.setup.slow else None
            self.group = stack.enter_context(cpu_quota(self.setup.percent)) if self.setup.quota else None
            self._up(stack)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *cause: object) -> None:
        self.stack.close()

    def _up(self, stack: contextlib.ExitStack) -> None:
        flags = [word for name, value in self.setup.path.items() for word in (f"--{name}", value) if word]
        for host, settings in ("a", self.setup.a), ("b", self.setup.b):
            buffers = {"net.ipv4.tcp_rmem": f"4096 131072 {BUFFER}", "net.ipv4.tcp_wmem": f"4096 16384 {BUFFER}"}
            for send, ratio in (self.setup.send_most, SEND_MOST[self.kernel]), (self.setup.send_least, SEND_LEAST):
                if send and send[0] == host:
                    buffers["net.ipv4.tcp_wmem"] = f"4096 16384 {max(send[1] / ratio, WINDOW_MIN):.0f}"
            flags += [f"--sysctl-{host}={key}={value}" for key, value in {**buffers, **settings}.items()]
        self.counters = self.memory / "counters.json"
        run(str(self.binary), "lab", "up", "--name", self.name, "--seed", str(self.seed), "--cc", self.kernel, "--counters",
            str(self.counters), *flags)
        stack.callback(self.down)
        if self.setup.paced:
            host, mbit = self.setup.paced
            # A queue of 200 ms, and a burst below the smallest bucket of a policer.
            run(*self.on(host, "tc", "qdisc", "replace", "dev", "lab0", "root", "tbf", "rate", f"{mbit:.3f}mbit", "burst", "6000",
                         "latency", "200ms"))
        if self.setup.ssthresh:
            self.remember()
        for number, flags in enumerate(self.setup.cross):
            port = str(5300 + number)
            self.start(stack, "b", "iperf3", "--server", "--port", port)
            self.listening("b", port)
            self.start(stack, "a", "iperf3", "--client", ADDRESS["b"], "--port", port, "--time", "1000", *flags)
        if self.setup.cross:
            time.sleep(CROSS_S)

    def remember(self) -> None:
        """Lets both hosts remember a threshold of slow start, which a first connection takes from the route."""
        for host in ADDRESS:
            run(*self.on(host, "sysctl", "-qw", "net.ipv4.tcp_no_metrics_save=0", "net.ipv4.tcp_no_ssthresh_metrics_save=0"))
            run(*self.on(host, "ip", "route", "replace", "default", "dev", "lab0", "ssthresh", "lock", str(self.setup.ssthresh)))
        with contextlib.ExitStack() as stack:
            self.start(stack, "b", "iperf3", "--server", "--port", "5500")
            self.listening("b", "5500")
            run(*self.on("a", "iperf3", "--client", ADDRESS["b"], "--port", "5500", "--bytes", "1000"))
            # The kernel remembers a connection when both ends have closed it.
            closing = ("ss", "-tnH", "state", "connected", "exclude", "time-wait", "( sport = :5500 or dport = :5500 )")
            for _ in range(LOOKS):
                if not any(run(*self.on(host, *closing)).strip() for host in ADDRESS):
                    return
                time.sleep(LOOK_S)

    def down(self) -> None:
        subprocess.run([str(self.binary), "lab", "down", "--name", self.name], capture_output=True, check=False)

    def on(self, host: str, *command: str) -> list[str]:
        """Returns a command that runs on a host of the lab."""
        return [str(self.binary), "lab", "exec", "--name", self.name, host, "--", *command]

    def start(self, stack: contextlib.ExitStack, host: str, *command: str, group: Path | None = None) -> subprocess.Popen[str]:
        program = subprocess.Popen(self.on(host, *inside(group, list(command))), stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True)
        stack.callback(program.wait)
        stack.callback(program.kill)
        return program

    def listening(self, host: str, port: str) -> None:
        """Waits until a program listens on a port."""
        for _ in range(LOOKS):
            if run(*self.on(host, "ss", "-tlnH", f"sport = :{port}")).strip():
                return
            time.sleep(LOOK_S)

    def examine(self, seconds: float, log: str) -> dict:
        """Returns the reply of the doctor, or an object with its error."""
        root = self.disk if self.setup.slow == "b" else self.memory / "root"
        root.mkdir(exist_ok=True)
        of_agent = [str(self.binary), "agent", "--root", str(root), "--authorize-any", "--state", str(self.memory / "agent")]
        agent = self.start(self.stack, "b", *of_agent)
        fingerprint = agent.stdout.readline().split()[-1]
        if self.setup.quota == "b":
            # Later than its start, which alone would take a minute.
            (self.group / "cgroup.procs").write_text(str(agent.pid))
        command = [str(self.binary), "doctor", f"sterna://{ADDRESS['b']}/", "--json", "--state", str(self.memory / "doctor"),
                   "--trust", fingerprint]
        command += ["--max-rate", self.setup.max_rate] if self.setup.max_rate else []
        command += ["--time", f"{seconds:.0f}s"] if seconds else []
        if self.setup.slow:
            place = self.disk if self.setup.slow == "a" else self.memory
            command += [NEEDED["disk"], str(place)]
        command += ["--bundle", str(self.arguments.log / f"{log}.bundle.json")] if self.arguments.log else []
        return self.reply("a", command, log, self.group if self.setup.quota == "a" else None)

    def watch(self, seconds: float, log: str) -> dict:
        """Returns the summary of a passive observation of a slow program."""
        kind, mbit = self.setup.program
        host, reader = ("a", "1e12") if kind == "slow_writer" else ("b", str(mbit * 1e6 / 8))
        receiver = self.start(self.stack, "b", sys.executable, "-c", READER, "5400", reader)
        self.listening("b", "5400")
        if kind == "slow_writer":
            self.start(self.stack, "b", "iperf3", "--server", "--port", "5401")
            self.listening("b", "5401")
            observed = self.start(self.stack, "a", "iperf3", "--client", ADDRESS["b"], "--port", "5401", "--time", "600", "--bitrate", f"{mbit}M")
        else:
            self.start(self.stack, "a", sys.executable, "-c", WRITER, ADDRESS["b"], "5400")
            observed = receiver
        command = [str(self.binary), "doctor", NEEDED["application"], "--pid", str(observed.pid), "--time", f"{seconds:.0f}s", "--json"]
        return self.reply(host, command, log)

    def reply(self, host: str, command: list[str], log: str, group: Path | None = None) -> dict:
        program = subprocess.Popen(self.on(host, *command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.stack.callback(program.kill)
        if group:
            time.sleep(START_S)
            (group / "cgroup.procs").write_text(str(program.pid))
        try:
            output, messages = program.communicate(timeout=TIME_MAX)
        except subprocess.TimeoutExpired:
            program.kill()
            output, messages = program.communicate()
            messages += f"\nended after {TIME_MAX} s"
        if self.arguments.log:
            (self.arguments.log / f"{log}.stderr").write_text(messages)
        for line in reversed(output.splitlines()):
            with contextlib.suppress(json.JSONDecodeError):
                reply = json.loads(line)
                if isinstance(reply, dict) and "verdicts" in reply:
                    return reply
        return {"error": (messages + output)[-800:]}

    def plain(self, way: str) -> dict:
        """Returns the rate of one connection of iperf3, and what the kernel of its sender shows."""
        self.start(self.stack, "b", "iperf3", "--server", "--port", "5201", group=self.group if self.setup.quota == "b" else None)
        self.listening("b", "5201")
        rtt = float(self.setup.path["rtt"].removesuffix("ms")) / 1e3
        seconds = min(max(rtt * 14 + 3, 4), 14)
        group = self.group if self.setup.quota == "a" else None
        client = self.start(self.stack, "a", "iperf3", "--client", ADDRESS["b"], "--time", f"{seconds:.0f}", "--json",
                            "--interval", "0.5", *(["--reverse"] if way == "reverse" else []), group=group)
        looks: list[tuple[float, str]] = []
        while client.poll() is None and len(looks) < seconds * 3:
            time.sleep(0.5)
            look = run(*self.on("b" if way == "reverse" else "a", "ss", "-tinmH", "( sport = :5201 or dport = :5201 )"))
            # The connection that carries the data: a server has another one that controls it.
            lines = [line for line in look.splitlines() if "bytes_acked" in line]
            looks.append((time.monotonic(), max(lines, key=acked, default="")))
        try:
            report = json.loads(client.communicate(timeout=60)[0])
        except (subprocess.TimeoutExpired, json.JSONDecodeError) as error:
            return {"error": repr(error)[:300]}
        busiest = max((line for _, line in looks), key=acked, default="")
        rates = [(acked(line) - acked(before)) * 8 / (at - start) / 1e6 for (start, before), (at, line) in zip(looks, looks[1:])]
        rates = [rate for rate in rates if rate >= 0]
        names = ("rtt", "minrtt", "cwnd", "ssthresh", "bytes_acked", "bytes_retrans", "busy", "rwnd_limited", "sndbuf_limited",
                 "reordering", "reord_seen", "dsack_dups", "mss", "rcv_wnd", "snd_wnd", "pacing_rate", "delivery_rate")
        shown = {name: found[-1] for name in names if (found := re.findall(rf"\b{name}[: ](\S+)", busiest))}
        shown["options"] = [name for name in ("ts", "sack", "wscale") if re.search(rf"\b{name}\b", busiest)]
        return {"mbit_s": round(mean(rates[len(rates) // 2:] or [0]), 2), "series": [round(rate, 1) for rate in rates],
                "received": round(report.get("end", {}).get("sum_received", {}).get("bits_per_second", 0) / 1e6, 2), "ss": shown}


def acked(line: str) -> int:
    """Returns the acknowledged bytes of a connection in the output of ss."""
    return int(next(iter(re.findall(r"bytes_acked:(\d+)", line)), 0))


def first_of(reply: dict) -> tuple[str, str]:
    """Returns the name and the direction of the first verdict."""
    verdict = next(iter(reply.get("verdicts", [])), {})
    return verdict.get("limit", "none"), verdict.get("direction", "")


def names_in_order(reply: dict, way: str) -> list[str]:
    """Returns the limits of a direction: those of the ladder by their rates, then other verdicts."""
    here = [entry for part in ("ladder", "verdicts") for entry in reply.get(part, []) if way in (EITHER, entry.get("direction"))]
    return list(dict.fromkeys(entry["limit"] for entry in here))


def near(said: float | None, imposed: float, error: float) -> bool:
    return said is not None and abs(said - imposed) <= imposed * error


def judged(case: Case, reply: dict) -> dict[str, dict]:
    """Compares a reply with the condition, by the names of the bars. The gain is judged by `gain`."""
    limit, way = first_of(reply)
    is_right = limit == case.expect[0] and case.way in (EITHER, way)
    result = {"first verdict": {"imposed": [*case.expect, case.way], "said": [limit, way], "right": is_right}}
    verdicts = reply.get("verdicts", [])
    if case.expect == ("clean",):
        trouble = [[verdict["limit"], verdict["direction"]] for verdict in verdicts if verdict["limit"] != "clean"]
        result["clean path"] = {"imposed": [], "said": trouble, "right": bool(verdicts) and not trouble}
    if len(case.expect) > 1:
        names = [name for name in names_in_order(reply, case.way) if name in case.expect]
        result["order of pairs"] = {"imposed": list(case.expect), "said": names, "right": names == list(case.expect)}
    for verdict in verdicts:
        if verdict["limit"] == "policer" == case.expect[-1] and verdict["direction"] == case.way:
            for name, key, error in ("policer rate", "rate_bps", RATE_ERROR), ("policer burst", "burst_bytes", BURST_ERROR):
                said, imposed = verdict.get(key), case.facts[key]
                result[name] = {"imposed": imposed, "said": said, "right": near(said, imposed, error)}
        if verdict["limit"] == "rtt_modes" in case.expect:
            said = sorted(mode["rtt_s"] for mode in verdict.get("modes", []))
            pairs = zip(said, case.modes)
            right = len(said) == len(case.modes) and all(abs(one - other) <= RTT_ERROR_S + other * RTT_ERROR for one, other in pairs)
            result["round trips"] = {"imposed": list(case.modes), "said": said, "right": right}
    return result


def gain(case: Case, reply: dict, after: dict) -> dict:
    """Compares the rate that the first verdict predicts with the one measured after its remedy."""
    verdict = reply["verdicts"][0]
    measured = after.get("reverse_measured_bps" if verdict["direction"] == "reverse" else "measured_bps")
    before = reply.get("reverse_measured_bps" if verdict["direction"] == "reverse" else "measured_bps")
    predicted = verdict.get("predicted_bps")
    return {"before": before, "said": predicted, "imposed": measured, "first_after": first_of(after),
            "right": predicted is not None and bool(measured) and near(predicted, measured, GAIN_ERROR)}


def measure(name: str, kernel: str, seed: int, number: int, arguments: argparse.Namespace, binary: Path) -> dict:
    case = case_of(name, seed, number)
    row = {"case": name, "kernel": kernel, "draw": {"seed": seed, "number": number}, "condition": asdict(case)}
    log = f"{name}-{kernel}-{seed}-{number}"

    def reply_of(setup: Setup, log: str) -> dict:
        with Bench(setup, kernel, seed + number, arguments, binary) as bench:
            if arguments.plain:
                reply = bench.plain(case.way)
                bench.down()
                network = json.loads(bench.counters.read_text())["networks"][0]
                ways = {way: {key: network[way][key] for key in ("offered_packets", "dropped", "queue_bytes_max")} for way in network}
                return {**reply, "counters": ways}
            return bench.watch(case.seconds, log) if setup.program else bench.examine(case.seconds, log)

    if arguments.plain:
        before = reply_of(case.setup, log)
        return {**row, "plain": before, "plain_fixed": reply_of(case.fixed, log) if case.fixed else None}
    reply = reply_of(case.setup, log)
    row |= {"reply": reply, "judged": judged(case, reply)}
    if case.fixed and row["judged"]["first verdict"]["right"] and not arguments.verdicts:
        after = reply_of(case.fixed, f"{log}-fixed")
        row["judged"]["predicted gain"] = gain(case, reply, after)
        row["reply_after"] = after
    return row


def matrix(rows: list[dict]) -> str:
    """Returns the confusion matrix: imposed causes by first verdicts."""
    pairs = [(row["condition"]["expect"][0], row["judged"]["first verdict"]["said"][0]) for row in rows]
    names = sorted({said for _, said in pairs} | {imposed for imposed, _ in pairs})
    width = max(len(name) for name in names)
    heads = [f"{' ' * width}  {' '.join(f'{number:>3}' for number in range(len(names)))}"]
    for number, name in enumerate(names):
        counts = [sum(pair == (name, said) for pair in pairs) for said in names]
        heads.append(f"{name:<{width}}  {' '.join(f'{count or chr(46):>3}' for count in counts)}  {number}")
    return "\n".join(["imposed (rows) by first verdict (columns, numbered as the rows):", *heads])


def table(rows: list[dict]) -> str:
    lines = ["| case | runs | first right | named first | others named | gain said / measured, Mbit/s |", "|---|---|---|---|---|---|"]
    for name in dict.fromkeys(row["case"] for row in rows):
        of = [row for row in rows if row["case"] == name]
        right = sum(row["judged"]["first verdict"]["right"] for row in of)
        said = ", ".join(f"{row['kernel']}: {' '.join(row['judged']['first verdict']['said'])}" for row in of)
        others = sorted({verdict["limit"] for row in of for verdict in row["reply"].get("verdicts", [])[1:]} - set(of[0]["condition"]["expect"]))
        gains = [row["judged"]["predicted gain"] for row in of if "predicted gain" in row["judged"]]
        rates = ", ".join(f"{(one['said'] or 0) / 1e6:.1f}/{(one['imposed'] or 0) / 1e6:.1f}" for one in gains)
        lines.append(f"| {name} | {len(of)} | {right} | {said} | {', '.join(others)} | {rates} |")
    return "\n".join(lines)


def bars(rows: list[dict]) -> tuple[str, bool]:
    """Returns the shares that are right in words, and if all reach their bars."""
    lines, reached = [], True
    for name, bar in BARS.items():
        rights = [row["judged"][name]["right"] for row in rows if name in row["judged"]]
        if not rights:
            continue
        low, high = wilson(sum(rights), len(rights))
        share = sum(rights) / len(rights)
        reached &= share >= bar
        lines.append(f"{name}: {sum(rights)} of {len(rights)}, {100 * share:.1f} % (95 % interval {100 * low:.1f} to {100 * high:.1f}), "
                     f"bar {100 * bar:.0f} %{'' if share >= bar else ': below'}")
    return "\n".join(lines), reached


def missing(binary: Path) -> list[str]:
    """Returns the first words of the cases that this release, or this kernel, cannot run."""
    words = run(str(binary), "doctor", "--help")
    lacks = [name for name, option in NEEDED.items() if option not in words]
    lacks += [] if Path("/sys/fs/cgroup/cpu/cgroup.procs").exists() else ["cpu"]
    return lacks + ([] if Path("/sys/fs/cgroup/blkio/blkio.throttle.read_bps_device").exists() else ["disk"])


def names_of(arguments: argparse.Namespace, binary: Path) -> list[str]:
    wanted = [word for word in arguments.only.split(",") if word]
    names = [name for name in CASES if not wanted or any(word in name for word in wanted)]
    lacks = missing(binary)
    for name in [name for name in names if name.split("-")[0] in lacks]:
        print(f"{name} is left out: this release lacks an option, or this kernel cgroup v1", file=sys.stderr)
        names.remove(name)
    return names


def shown(row: dict) -> dict:
    """Returns a short form of a row for the terminal."""
    path = row["condition"]["setup"]["path"]
    short = {"case": row["case"], "kernel": row["kernel"], "way": row["condition"]["way"], "path": path}
    if "plain" in row:
        return {**short, "plain": row["plain"], "fixed_mbit_s": (row["plain_fixed"] or {}).get("mbit_s")}
    return {**short, "judged": row["judged"], "verdicts": [verdict["limit"] for verdict in row["reply"].get("verdicts", [])],
            "time_s": row["reply"].get("cost", {}).get("time_s"), **({"error": row["reply"]["error"]} if "error" in row["reply"] else {})}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1, help="how often each case is drawn")
    parser.add_argument("--seed", type=int, help="of the draws; fresh when not given")
    parser.add_argument("--only", default="", help="parts of the names of cases to run")
    parser.add_argument("--kernels", default="cubic,bbr", help="congestion controls of both hosts: cubic, bbr or both")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/sterna")
    parser.add_argument("--log", type=Path, help="directory for the messages and bundles of the doctor")
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument("--verdicts", action="store_true", help="judge the verdicts only, without their remedies")
    parts.add_argument("--plain", action="store_true", help="measure the conditions by iperf3 and ss instead")
    arguments = parser.parse_args()
    # Ends the programs and the lab of the current run too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}: bench/doctor.py --draws {arguments.draws} --seed {seed} draws the same again", file=sys.stderr)
    if arguments.log:
        arguments.log.mkdir(parents=True, exist_ok=True)
    # Uses a copy of the binary, because target/ may be rebuilt during the runs.
    with tempfile.TemporaryDirectory(prefix="sterna-doctor-bin-") as directory:
        binary = Path(shutil.copy2(arguments.binary, directory))
        rows, names = [], names_of(arguments, binary)
        runs = [(name, kernel, number) for number in range(arguments.draws) for name in names
                for kernel in arguments.kernels.split(",") if kernel == "cubic" or name not in CUBIC_ONLY]
        for name, kernel, number in runs:
            row = measure(name, kernel, seed, number, arguments, binary)
            rows.append(row)
            if arguments.output:
                with open(arguments.output, "a") as file:
                    file.write(json.dumps(row) + "\n")
            print(json.dumps(shown(row)), flush=True)
    if arguments.plain:
        return 0
    words, reached = bars(rows)
    print(f"{table(rows)}\n\n{matrix(rows)}\n\n{words}", file=sys.stderr)
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
