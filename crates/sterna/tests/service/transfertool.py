"""Drives the service by the transfer tool of Rucio (PyPI `rucio`), unmodified, as its daemons do.

Arguments: endpoint, certificate, key, directory for the configuration of Rucio. Prints the results as JSON.
"""
import json
import os
import pathlib
import sys
import time
from types import SimpleNamespace

endpoint, cert, key, home = sys.argv[1:5]
home = pathlib.Path(home)
(home / "etc").mkdir(parents=True, exist_ok=True)
proxy = home / "proxy.pem"
proxy.write_text(pathlib.Path(cert).read_text() + pathlib.Path(key).read_text())
(home / "etc" / "rucio.cfg").write_text(f"""
[database]
default = sqlite:///{home}/rucio.db
[conveyor]
usercert = {proxy}
use_deterministic_id = True
[transfers]
scitags_enable = False
[policy]
permission = generic
schema = generic
""")
os.environ["RUCIO_HOME"] = str(home)

from rucio.transfertool.fts3 import FTS3Transfertool  # noqa: E402


def rse(name):
    return SimpleNamespace(
        name=name, id=name * 4, attributes={}, is_tape=lambda: False, is_tape_or_staging_required=lambda: False)


def transfer(number, source="a", destination="b", query="", sources=None):
    """Returns what Rucio's submitter hands to its transfer tool."""
    request = SimpleNamespace(
        request_id=f"{number:032x}", scope="mock", name=f"file{number}", activity="User Subscriptions", request_type="T",
        byte_count=7, md5=None, adler32="1a2b3c4d")
    ends = [SimpleNamespace(rse=rse(name)) for name in (sources or [source])]
    return SimpleNamespace(
        rws=request, sources=ends, src=ends[0], dst=SimpleNamespace(rse=rse(destination)),
        source_url=lambda end: f"mock://{end.rse.name}.example/file{number}?size=7&checksum=1a2b3c4d",
        dest_url=f"mock://{destination}.example/file{number}?checksum=1a2b3c4d&{query}")


def params(**more):
    values = {"account": "root", "verify_checksum": "both", "copy_pin_lifetime": None, "bring_online": None,
              "job_metadata": {"issuer": "rucio", "multi_sources": False, "overwrite_when_only_on_disk": False},
              "overwrite": True, "overwrite_when_only_on_disk": False, "priority": 3, "s3alternate": True,
              "max_time_in_queue": 168}
    return {**values, **more}


tool = FTS3Transfertool(endpoint, source_strategy="orderly")
tool.verify = False
results = {"whoami": tool.whoami(), "schema": tool.version()["schema"]["major"]}
bulk = tool.submit([transfer(number, query="time=0") for number in range(5)], params())
several = tool.submit([transfer(10, sources=["bad", "a"], query="time=0")], params(
    job_metadata={"issuer": "rucio", "multi_sources": True, "overwrite_when_only_on_disk": False}))
first, second = transfer(20, "a", "b", "size=7"), transfer(21, "b", "c", "time=0")
second.source_url = lambda end: first.dest_url
hops = tool.submit([first, second], params(multihop=True))
# A second submission of the same request finds the first job.
results["same"] = tool.submit([transfer(0)], params()) == bulk
long = tool.submit([transfer(30, query="time=600")], params())
results["priority"] = tool.update_priority(long, 5)["priority"]
results["cancelled"] = tool.cancel([long])["job_state"]
requests = {
    bulk: {f"{n:032x}": {} for n in range(5)}, several: {f"{10:032x}": {}}, hops: {f"{n:032x}": {} for n in (20, 21)}}
while True:
    answers = tool.bulk_query({**requests, "nope": {"x": {}}})
    jobs = [tool.query([job])[0]["job_state"] for job in requests]
    if all(state not in ("SUBMITTED", "ACTIVE") for state in jobs):
        break
    time.sleep(0.2)
answers = tool.bulk_query({**requests, "nope": {"x": {}}})
results["jobs"] = jobs
results["reports"] = [sorted({type(report).__name__ for report in answers[job].values()}) for job in requests]
results["requests"] = [len(answers[job]) for job in requests]
results["missing"] = str(answers["nope"])
tool.set_se_status("mock://banned.example", "maintenance", ban=True)
results["banned"] = [ban["se"] for ban in tool.list_se_status()]
tool.set_se_status("mock://banned.example", "maintenance", ban=False)
results["lifted"] = tool.list_se_status()
tool.set_se_config("mock://b.example", inbound_max_active=17)
results["config"] = tool.get_se_config("mock://b.example")["se_info"]["inbound_max_active"]
print(json.dumps(results))
