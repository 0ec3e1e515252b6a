#!/usr/bin/env python3
"""Records `sterna copy` in the lab and writes docs/copy.svg, the picture of the README. Needs root.

    scripts/picture.py [FILE]     STERNA=PATH selects the binary; the default is target/release/sterna

The copy runs on host a, in a pseudo-terminal. The agent runs on host b. The picture shows the terminal at the speed of
the copy, by CSS alone. A program that does not animate shows the last screen.
"""

from __future__ import annotations

import html
import os
import pty
import re
import select
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STERNA = os.environ.get("STERNA", str(ROOT / "target/release/sterna"))
LAB = ["--profile", "trollsat", "--loss", "1%"]
CAPTION = "# 660 ms of round-trip time, 50 Mbit/s, 1 % of packets lost"
FILES = {"S1A_0412.h5": 30_000_000, "S1A_0413.h5": 24_000_000, "S1A_0414.h5": 6_000_000}
COMMAND = "sterna copy --rate 50Mbit passes sterna://hub/"
COLUMNS, ROWS = 130, 10
# Longest recording. Reason: the copy takes about 13 s.
LIMIT_S = 120
# Time between two screens of the picture, and time for the last one before the picture starts again.
STEP_S, HOLD_S = 0.4, 6.0
# Time before the question about trust is answered, so that it can be read.
READ_S = 2.0
# Size of a character cell and of the margin, in pixels.
CELL_WIDTH, CELL_HEIGHT, MARGIN = 7.8, 18, 16
ESCAPE = re.compile(r"\x1b\[([\d;?]*)([A-Za-z])")


class Screen:
    """A terminal that understands what a progress display writes: lines, returns, cursor moves, erasure."""

    def __init__(self) -> None:
        self.lines = [""]
        self.row = self.column = 0

    def write(self, text: str) -> None:
        """Takes output of the program. A sequence that is not listed here, such as a colour, has no effect."""
        at = 0
        while at < len(text):
            escape = ESCAPE.match(text, at)
            if escape:
                self._control(escape[1], escape[2])
                at = escape.end()
                continue
            self._put(text[at])
            at += 1

    def _control(self, argument: str, kind: str) -> None:
        count = int(argument) if argument.isdigit() else 0
        match kind:
            case "A":
                self.row = max(self.row - max(count, 1), 0)
            case "B":
                self._to_row(self.row + max(count, 1))
            case "G":
                self.column = max(count, 1) - 1
            case "K":
                line = self.lines[self.row]
                self.lines[self.row] = "" if count == 2 else line[: self.column]
            case "J":
                self.lines[self.row] = self.lines[self.row][: self.column]
                del self.lines[self.row + 1:]

    def _put(self, character: str) -> None:
        if character == "\n":
            self._to_row(self.row + 1)
        elif character == "\r":
            self.column = 0
        elif character >= " ":
            if self.column == COLUMNS:
                self._to_row(self.row + 1)
                self.column = 0
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + character + line[self.column + 1:]
            self.column += 1

    def _to_row(self, row: int) -> None:
        self.row = row
        while len(self.lines) <= row:
            self.lines.append("")

    def shown(self) -> tuple[str, ...]:
        """Returns the last lines, as many as the picture has."""
        lines = [line.rstrip() for line in self.lines]
        while lines and not lines[-1]:
            lines.pop()
        return tuple(lines[-ROWS:])


def record(work: Path) -> list[tuple[float, tuple[str, ...]]]:
    """Runs the copy in a pseudo-terminal and trusts the agent. Returns the screens, each with its time."""
    screen = Screen()
    screen.write(f"{CAPTION}\r\n$ {COMMAND}\r\n")
    screens = [(0.0, screen.shown())]
    words = COMMAND.replace("sterna", STERNA, 1).split()
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(work)
        termios.tcsetwinsize(0, (24, COLUMNS))
        os.execve(STERNA, words, {**os.environ, "TERM": "xterm", "STERNA_STATE": str(work / "client")})
    start, answered, pending = time.monotonic(), False, b""
    while time.monotonic() - start < LIMIT_S:
        if not select.select([terminal], [], [], STEP_S)[0]:
            continue
        try:
            pending += os.read(terminal, 1 << 16)
        except OSError:
            break
        # A character may be cut between two reads.
        text = pending.decode(errors="ignore")
        pending = pending[len(text.encode()):]
        screen.write(text)
        if not answered and "?" in text:
            time.sleep(READ_S)
            os.write(terminal, b"yes\n")
            answered = True
        screens.append((time.monotonic() - start, screen.shown()))
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
        raise SystemExit("the copy failed:\n" + "\n".join(screen.lines))
    return screens


def sampled(screens: list[tuple[float, tuple[str, ...]]]) -> list[tuple[float, tuple[str, ...]]]:
    """Keeps the last screen of each step, and the last of all."""
    by_step = {int(at / STEP_S): (at, screen) for at, screen in screens}
    return [by_step[step] for step in sorted(by_step)]


def draw(screens: list[tuple[float, tuple[str, ...]]]) -> str:
    """Returns the SVG. Each line of text is one element, shown during the screens that have it."""
    end = screens[-1][0]
    total = end + HOLD_S
    shown: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for (start, screen), (stop, _) in zip(screens, [*screens[1:], (total, ())]):
        for row, text in enumerate(screen):
            spans = shown.setdefault((row, text), []) if text else []
            if spans and spans[-1][1] == start:
                spans[-1] = (spans[-1][0], stop)
            else:
                spans.append((start, stop))
    rules, texts = [], []
    for number, ((row, text), spans) in enumerate(shown.items()):
        last = spans[-1][1] == total
        kind = "comment" if text.startswith("#") else "command" if text.startswith("$ ") else ""
        moves = spans != [(0.0, total)]
        classes = " ".join(filter(None, (kind, f"t{number}" if moves else "", "" if last else "past")))
        if moves:
            switches = [(0.0, "hidden")] if spans[0][0] > 0 else []
            for appears, vanishes in spans:
                switches += [(appears, "visible"), (vanishes, "hidden")]
            steps = "".join(f"{100 * at / total:.2f}%{{visibility:{state}}}" for at, state in switches if at < total)
            rules.append(f"@keyframes k{number}{{{steps}}}")
            rules.append(f".t{number}{{animation:k{number} {total:.1f}s step-end infinite}}")
        place = f'x="{MARGIN}" y="{MARGIN + 34 + row * CELL_HEIGHT}" textLength="{len(text) * CELL_WIDTH:.1f}"'
        texts.append(f'<text {place} class="{classes}">{html.escape(text, quote=False)}</text>')
    return framed("\n".join(rules), "\n".join(texts))


def framed(rules: str, texts: str) -> str:
    """Returns the SVG with its window. The window has a dark background of its own, for light and dark pages."""
    width, height = round(2 * MARGIN + COLUMNS * CELL_WIDTH), 2 * MARGIN + 26 + ROWS * CELL_HEIGHT
    colours = ("#ff5f57", "#febc2e", "#28c840")
    dots = "".join(f'<circle cx="{20 + 18 * i}" cy="18" r="5" fill="{colour}"/>' for i, colour in enumerate(colours))
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"
 role="img" xml:space="preserve">
<title>A terminal: {html.escape(COMMAND)} copies three files over an emulated satellite path</title>
<style>
text{{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#d6deeb;white-space:pre}}
.comment{{fill:#8fa3b8}}.command{{fill:#fff;font-weight:bold}}.past{{visibility:hidden}}
{rules}
@media (prefers-reduced-motion:reduce){{text{{animation:none!important}}}}
</style>
<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8" fill="#11202e" stroke="#7f8fa0"/>
{dots}
{texts}
</svg>
"""


def inside(into: Path) -> None:
    """Runs on host a of the lab: starts the agent on host b, records the copy, and writes the picture."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "passes").mkdir()
        (work / "archive").mkdir()
        for name, size in FILES.items():
            (work / "passes" / name).write_bytes(os.urandom(size))
        serve = [STERNA, "agent", "--root", str(work / "archive"), "--authorize-any", "--state", str(work / "agent")]
        agent = subprocess.Popen([STERNA, "lab", "exec", "b", "--", *serve], stdout=subprocess.PIPE,
                                 stderr=subprocess.DEVNULL)
        try:
            agent.stdout.readline()  # type: ignore[union-attr]
            into.write_text(draw(sampled(record(work))))
        finally:
            agent.terminate()
            agent.wait()


def main() -> None:
    into = Path(sys.argv[-1] if len(sys.argv) > 1 else ROOT / "docs/copy.svg").absolute()
    if "STERNA_LAB_B" in os.environ:
        return inside(into)
    # The copy calls its agent hub: a separate mount namespace has an /etc/hosts of its own.
    with tempfile.NamedTemporaryFile("w") as hosts:
        named = (f'printf "127.0.0.1 localhost\\n%s hub\\n" "$STERNA_LAB_B" > {hosts.name} && '
                 f'mount --bind {hosts.name} /etc/hosts && exec "$@"')
        lab = [STERNA, "lab", "run", "--name", f"picture-{os.getpid()}", *LAB]
        inner = ["unshare", "--mount", "sh", "-c", named, "sh", sys.executable, __file__, str(into)]
        subprocess.run([*lab, "--", *inner], check=True)
    print(f"{into}: {into.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
