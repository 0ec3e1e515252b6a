#!/usr/bin/env python3
"""Measures the transfer service on this host: submissions, status, completions, memory, cancellation.

Usage: bench/service.py PROGRAM [DIRECTORY]
  PROGRAM    sterna, a release build
  DIRECTORY  receives service.json; default: print only

Starts `sterna serve --dev` on loopback, with its database on the disk of the temporary directory, and drives it by
HTTPS from this process. Transfers are mock ones, which move no bytes. Client and service share the cores of the host.
"""
import argparse
import http.client
import json
import os
import pathlib
import sqlite3
import ssl
import statistics
import subprocess
import tempfile
import threading
import time


class Service:
    """Running service, with its certificates."""

    def __init__(self, program, state):
        self.state = pathlib.Path(state)
        config = self.state / "service.toml"
        config.write_text("[replicas]\npatience_s = 1\n")
        arguments = [program, "serve", "--dev", "--listen", "127.0.0.1:0", "--log-level", "warn", "--state", state,
                     "--config", str(config)]
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        words = self.process.stdout.readline().split()
        values = dict(zip(words[0::2], words[1::2]))
        self.port = int(values["ready"].rsplit(":", 1)[1])
        self.context = ssl.create_default_context(cafile=next(pathlib.Path(values["capath"]).glob("*.0")))
        self.context.load_cert_chain(values["cert"], values["key"])

    def connect(self):
        return http.client.HTTPSConnection("localhost", self.port, context=self.context, timeout=300)

    def database(self):
        return sqlite3.connect(f"file:{next(self.state.rglob('sterna.db'))}?mode=ro", uri=True)

    def memory_mb(self):
        """Returns the resident memory in MB."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1000

    def threads(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def stop(self):
        self.process.terminate()
        self.process.wait()


def call(connection, method, path, body=None, kind="application/json"):
    """Sends a request and returns the reply. Errors: the status is not of success."""
    headers = {"Content-Type": kind} if body is not None else {}
    connection.request(method, path, body, headers)
    reply = connection.getresponse()
    text = reply.read()
    if reply.status not in (200, 201, 204):
        raise RuntimeError(f"{method} {path[:80]}: {reply.status} {text[:200]}")
    return json.loads(text) if text else None


def manifest(files, links, seconds, name):
    """Returns a job of mock transfers as lines of JSON."""
    lines = ['{"metadata": {"bench": true}}']
    for number in range(files):
        host = number % links
        lines.append(json.dumps({
            "sources": [f"mock://s{host}.example/{name}{number}?size=1000000"],
            "destination": f"mock://d{host}.example/{name}{number}?time={seconds}", "size": 1000000,
        }))
    return "\n".join(lines).encode()


def wait_for_end(connection, job):
    while call(connection, "GET", f"/api/v1/jobs/{job}")["finished_ms"] is None:
        time.sleep(0.05)


def parallel(service, count, work):
    """Runs work(connection, number) in `count` threads with one connection each; returns the time."""
    started = time.monotonic()
    threads = [threading.Thread(target=lambda n=n: work(service.connect(), n)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.monotonic() - started


def bulk(service, results):
    """Native submission of one large job whose endpoints are banned, so that nothing starts."""
    connection = service.connect()
    call(connection, "POST", "/ban/se", json.dumps({"storage": "mock://s0.example", "status": "wait", "allow_submit": True}))
    files = 200_000
    body = manifest(files, 1, 0, "bulk")
    started = time.monotonic()
    call(connection, "POST", "/api/v1/jobs", body, "application/x-ndjson")
    results["native bulk submit, files/s"] = files / (time.monotonic() - started)
    results["memory with 200,000 files that wait, MB"] = service.memory_mb()


def stream(service, results):
    """Native submission of a manifest of a million files that is sent while it is made, to a banned endpoint."""
    connection = service.connect()
    call(connection, "POST", "/ban/se", json.dumps({"storage": "mock://s0.example", "status": "wait", "allow_submit": True}))
    files, before, during = 1_000_000, service.memory_mb(), []

    def lines():
        yield b'{"metadata": {"bench": true}}\n'
        for first in range(0, files, 1000):
            during.append(service.memory_mb())
            yield "".join(
                f'{{"sources": ["mock://s0.example/{number}?size=1000000"], "destination": "mock://d0.example/{number}", '
                f'"size": 1000000}}\n' for number in range(first, first + 1000)).encode()

    started = time.monotonic()
    connection.request("POST", "/api/v1/jobs", lines(), {"Content-Type": "application/x-ndjson"}, encode_chunked=True)
    reply = json.loads(connection.getresponse().read())
    results["streamed submit of 1,000,000 files, files/s"] = files / (time.monotonic() - started)
    results["memory before it, MB"] = before
    results["memory during it, MB (maximum)"] = max(during)
    while call(connection, "GET", f"/api/v1/jobs/{reply['id']}")["state"] == "open":
        time.sleep(0.1)
    path = f"/api/v1/jobs/{reply['id']}/files?limit=1"
    last = call(connection, "GET", path)["files"][0]["number"] + files - 1
    while call(connection, "GET", f"/api/v1/files/{last}")["why"] is None:
        time.sleep(0.1)
    results["memory with 1,000,000 files that wait, MB"] = service.memory_mb()


def fts_jobs(service, results):
    """FTS3 submissions of 200 files each, by four clients."""
    jobs = 25

    def work(connection, number):
        for job in range(jobs):
            files = [{"sources": [f"mock://s0.example/f{n}?size=1"], "destinations": [f"mock://d0.example/{number}-{job}-{n}"],
                      "metadata": {"request_id": str(n)}} for n in range(200)]
            call(connection, "POST", "/jobs", json.dumps({"files": files, "params": {"job_metadata": {"issuer": "rucio"}}}))

    results["FTS3 submit of 200 files, jobs/s"] = 4 * jobs / parallel(service, 4, work)


def completions(service, results):
    """Completions of transfers that end at once, and the status of 100 jobs meanwhile."""
    connection = service.connect()
    ids = []
    for number in range(100):
        files = [{"sources": [f"mock://x{number % 50}.example/f?size=1"], "destinations": [f"mock://y.example/{number}?time=600"]}]
        ids.append(call(connection, "POST", "/jobs", json.dumps({"files": files, "params": {}}))["job_id"])
    files, times = 20_000, []
    path = "/jobs/" + ",".join(ids) + "?files=file_state,dest_surl,finish_time,start_time,reason,source_surl,file_metadata"
    started = time.monotonic()
    job = call(connection, "POST", "/api/v1/jobs", manifest(files, 100, 0, "done"), "application/x-ndjson")["id"]
    while call(connection, "GET", f"/api/v1/jobs/{job}")["finished_ms"] is None:
        asked = time.monotonic()
        call(connection, "GET", path)
        times.append((time.monotonic() - asked) * 1000)
        time.sleep(0.1)
    results["completions, files/s"] = files / (time.monotonic() - started)
    results["status of 100 jobs meanwhile, ms (median)"] = statistics.median(times)


def concurrent(service, results):
    """10,000 transfers under way."""
    connection = service.connect()
    links = 200
    job = call(connection, "POST", "/api/v1/jobs", manifest(10_000, links, 600, "long"), "application/x-ndjson")["id"]
    while call(connection, "GET", f"/api/v1/jobs/{job}")["entries"]["active"] < 10_000:
        time.sleep(0.1)
    results["memory with 10,000 transfers under way, MB"] = service.memory_mb()
    results["threads with 10,000 transfers under way"] = service.threads()
    started = time.monotonic()
    call(connection, "POST", f"/api/v1/jobs/{job}/cancel")
    results["cancellation of 10,000 transfers, s"] = time.monotonic() - started


def cancellation(service, results):
    """Cancellation of 1,000 transfers under way, one by one, until each has its final state and no worker runs one."""
    connection, count, clients = service.connect(), 1000, 4
    job = call(connection, "POST", "/api/v1/jobs", manifest(count, 20, 600, "cancel"), "application/x-ndjson")["id"]
    while call(connection, "GET", f"/api/v1/jobs/{job}")["entries"]["active"] < count:
        time.sleep(0.1)
    files = [file["number"] for file in call(connection, "GET", f"/api/v1/jobs/{job}/files?limit={count}")["files"]]
    times = []

    def work(connection, number):
        for file in files[number::clients]:
            asked = time.monotonic()
            reply = call(connection, "POST", f"/api/v1/files/{file}/cancel")
            took = (time.monotonic() - asked) * 1000
            if reply["state"] != "cancelled":
                raise RuntimeError(f"file {file} is {reply['state']} after its cancellation")
            times.append(took)

    parallel(service, clients, work)
    started = time.monotonic()
    while sum(host["active"] for host in call(connection, "GET", "/status/hosts").values()):
        time.sleep(0.001)
    if len(times) != count:
        raise RuntimeError(f"{len(times)} of {count} files were cancelled")
    results["cancellation of one of 1,000 transfers, ms (median)"] = statistics.median(times)
    results["cancellation of one of 1,000 transfers, ms (maximum)"] = max(times)
    results["last worker stopped after the last cancellation, ms"] = (time.monotonic() - started) * 1000


def swap(service, results):
    """Files that leave a banned source for another replica, with 1,000,000 files in the queue, beside completions."""
    connection, entries = service.connect(), 500_000
    # One transfer runs, for as long as the measurement takes, and the others wait for it.
    call(connection, "PATCH", "/api/v1/config/endpoints/mock%3A%2F%2Fslow.example", json.dumps({"max_in": 1}))
    for host in ("full", "free"):
        ban = {"storage": f"mock://{host}.example", "status": "wait", "allow_submit": True}
        call(connection, "POST", "/ban/se", json.dumps(ban))
    lines = ['{"metadata": {"bench": true}}']
    lines.extend(
        f'{{"sources": ["mock://full.example/{number}?size=1000000", "mock://free.example/{number}?size=1000000"], '
        f'"destination": "mock://slow.example/{number}?time=600", "size": 1000000}}' for number in range(entries))
    body = "\n".join(lines).encode()
    job = call(connection, "POST", "/api/v1/jobs", body, "application/x-ndjson")["id"]
    started = time.monotonic()
    call(connection, "POST", "/ban/se", json.dumps({"storage": "mock://full.example", "status": "wait", "allow_submit": True}))
    results["reply to a ban of a storage with 500,000 files that wait, s"] = time.monotonic() - started
    # Now the second replica has no obstacle: each file of the first one leaves it.
    call(connection, "DELETE", "/ban/se?storage=mock%3A%2F%2Ffree.example")

    def swapped():
        query = "SELECT COUNT(*) FROM decisions WHERE kind = 'swap'"
        return service.database().execute(query).fetchone()[0]

    while not swapped():
        time.sleep(0.1)
    first, started, files = swapped(), time.monotonic(), 20_000
    other = call(connection, "POST", "/api/v1/jobs", manifest(files, 100, 0, "x"), "application/x-ndjson")["id"]
    wait_for_end(connection, other)
    took = time.monotonic() - started
    results["files that leave a banned source, of 1,000,000 in the queue, files/s"] = (swapped() - first) / took
    results["completions meanwhile, files/s"] = files / took
    call(connection, "POST", f"/api/v1/jobs/{job}/cancel")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("directory", nargs="?")
    options = parser.parse_args()
    results = {}
    for measure in [bulk, stream, fts_jobs, completions, concurrent, cancellation, swap]:
        with tempfile.TemporaryDirectory() as state:
            service = Service(os.path.abspath(options.program), state)
            try:
                measure(service, results)
            finally:
                service.stop()
    for name, value in results.items():
        print(f"{name}: {value:,.1f}")
    if options.directory:
        directory = pathlib.Path(options.directory)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "service.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
