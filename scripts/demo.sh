#!/usr/bin/env bash
# Demonstration: copies real files over a path with 660 ms and 1 % loss, once without flags and once with the rate of
# the path. Then runs curl over the same path for the same time as Sterna. At last the transfer service does the same
# for a job of many files, which the real client of FTS3 submits.
#
# As root the demo runs between two hosts of the lab. Otherwise it runs on loopback, which shows the commands without a
# comparison.
set -euo pipefail
cd "$(dirname "$0")/.."
sterna=${STERNA:-$PWD/target/release/sterna}
rate=50Mbit
path=(--profile trollsat --loss 1%)

if [ "${1:-}" != inside ]; then
    if [ "$(id -u)" = 0 ] && [ -c /dev/net/tun ]; then
        echo "== The lab: two hosts, ${path[*]} (660 ms of round trip, 50 Mbit/s, 1 % of packets lost)"
        exec "$sterna" lab run "${path[@]}" -- "$0" inside
    fi
    echo "== On loopback: the emulated path needs root and /dev/net/tun, so this shows the commands and no long path"
    export STERNA_LAB_B=127.0.0.1
    exec "$0" inside
fi

work=$(mktemp -d)
children=()
finish() {
    for child in "${children[@]}"; do
        kill "$child" 2>/dev/null || true
    done
    wait 2>/dev/null || true
    rm -rf "$work"
}
trap finish EXIT
on_b() { if [ -n "${STERNA_LAB:-}" ]; then exec "$sterna" lab exec b -- "$@"; else exec "$@"; fi; }

# Real files: programs and libraries of this machine, about 24 MB.
mkdir -p "$work/b/files" "$work/a"
total=0
while read -r size file; do
    [ $((total + size)) -le 25000000 ] || continue
    cp --no-preserve=mode "$file" "$work/b/files/"
    total=$((total + size))
done < <(find -L /usr/bin /usr/lib -maxdepth 2 -type f -size +100k -size -8M -printf '%s %p\n' 2>/dev/null | sort -k2 | awk '!seen[$2]++' | head -n 400)
echo "== $(find "$work/b/files" -type f | wc -l) files of this machine, $((total / 1000000)) MB, at host b"

(on_b "$sterna" agent --root "$work/b:ro" --authorize-any --listen "$STERNA_LAB_B:7373" --state "$work/state-b") \
    >"$work/agent.out" 2>"$work/agent.log" &
children+=($!)
for _ in $(seq 100); do
    grep -q '^listening' "$work/agent.out" 2>/dev/null && break
    sleep 0.1
done
echo '$ sterna agent --root /data:ro --authorize-any          # at host b'
cat "$work/agent.out"
fingerprint=$(awk '{print $4}' "$work/agent.out")

# Copies, and stores the elapsed time in ms in the variable named by the first argument.
copy() {
    local -n took=$1
    local into=$2 start
    shift 2
    echo "\$ sterna copy ${*:+$* }--trust SHA256:… sterna://b/files $into/          # at host a"
    mkdir -p "$work/$into"
    start=$(date +%s%N)
    "$sterna" copy "$@" --trust "$fingerprint" --state "$work/state-a" "sterna://$STERNA_LAB_B/files" "$work/$into/"
    # shellcheck disable=SC2034 # the caller reads this variable
    took=$((($(date +%s%N) - start) / 1000000))
    diff -r "$work/b/files" "$work/$into/files" && echo "every byte is the same"
}
found_ms=0 given_ms=0
echo "== Nothing given: the transport and the rate of the path are found"
copy found_ms found
echo "== The rate of the path given: used from the first packet on"
copy given_ms given --rate $rate

# Runs a job of the service: one agent at each host, both dial out to it.
service() {
    local here=${STERNA_LAB_A:-127.0.0.1} url agent site job client=target/fts3-client/bin/fts-rest-transfer-submit
    echo; echo "== The transfer service: a job of $(find "$work/b/files" -type f | wc -l) files from host b to host a"
    echo '$ sterna serve --dev                                              # at host a'
    "$sterna" serve --dev --listen "$here:8446" --state "$work/state-service" >"$work/serve.out" 2>"$work/serve.log" &
    children+=($!)
    for _ in $(seq 200); do
        grep -q '^ready' "$work/serve.out" 2>/dev/null && break
        sleep 0.1
    done
    cut -d' ' -f1-4 "$work/serve.out"
    url=https://$here:8446
    export STERNA_SERVICE=$url STERNA_STATE=$work/state-service X509_CERT_DIR=$work/state-service/service/dev/certificates
    export X509_USER_CERT=$work/state-service/service/dev/user.pem X509_USER_KEY=$work/state-service/service/dev/user.key
    mkdir -p "$work/site-a"
    for site in b.example a.example; do
        agent=$work/state-agent-$site
        echo "\$ sterna config site $site --add \$(sterna id)                      # one site for each host"
        "$sterna" config site "$site" --add "$("$sterna" id --state "$agent")" >"$work/site.out"
    done
    echo '$ sterna agent --root /data:ro --service URL                       # at both hosts'
    (on_b "$sterna" agent --root "$work/b:ro" --listen "$STERNA_LAB_B:7374" --service "$url" \
        --capath "$X509_CERT_DIR" --state "$work/state-agent-b.example") >"$work/b.out" 2>"$work/b.log" &
    children+=($!)
    # Host a opens no port: its agent pulls.
    "$sterna" agent --root "$work/site-a" --listen "$here:7375" --reachable-at none --service "$url" \
        --capath "$X509_CERT_DIR" --state "$work/state-agent-a.example" >"$work/a.out" 2>"$work/a.log" &
    children+=($!)
    find "$work/b/files" -type f -printf '%f\n' | python3 -c '
import json, sys
from urllib.parse import quote
names = [line.rstrip("\n") for line in sys.stdin]
pair = lambda name: {"sources": ["sterna://b.example/files/" + name], "destinations": ["sterna://a.example/" + name]}
json.dump({"files": [pair(name) for name in names]}, sys.stdout)' >"$work/bulk.json"
    if [ -x "$client" ]; then
        echo '$ fts-rest-transfer-submit -s URL -f bulk.json                      # the client of FTS3, unchanged'
        job=$("$client" -s "$url" --capath "$X509_CERT_DIR" --cert "$X509_USER_CERT" --key "$X509_USER_KEY" -f "$work/bulk.json" |
            grep -Eo '[0-9a-f-]{36}' | head -n 1)
    else
        echo "   (the client of FTS3 is not installed: the native interface takes the job)"
        job=$(curl --silent --capath "$X509_CERT_DIR" --cert "$X509_USER_CERT" --key "$X509_USER_KEY" -H 'Content-Type: application/json' --data "@$work/bulk.json" "$url/jobs" |
            grep -Eo '[0-9a-f-]{36}' | head -n 1)
    fi
    echo "\$ sterna watch $job"
    "$sterna" watch "$job"
    diff -r "$work/b/files" "$work/site-a" && echo "every byte is the same"
}

if [ -z "${STERNA_LAB:-}" ]; then
    service
    echo "== No comparison: on loopback any tool is as fast as this machine. As root, \`make demo\` runs Sterna and curl over"
    echo "   660 ms of round trip with 1 % of packets lost, where they differ"
    exit 0
fi
if ! command -v curl >/dev/null || ! command -v nginx >/dev/null; then
    service
    echo "== curl or nginx is missing: nothing to compare with"
    exit 0
fi
# curl gets one file with the same bytes, which avoids the round trips between files.
tar -cf "$work/b/files.tar" -C "$work/b" files
cat >"$work/nginx.conf" <<CONF
daemon off; pid $work/nginx.pid; error_log $work/nginx.log; worker_processes 1;
events {}
http { access_log off; sendfile on; server { listen $STERNA_LAB_B:8080; root $work/b; } }
CONF
chmod 755 "$work" "$work/b"
(on_b "$(command -v nginx)" -c "$work/nginx.conf" -p "$work" -e "$work/nginx.log") &
children+=($!)
for _ in $(seq 100); do
    [ -s "$work/nginx.pid" ] && break
    sleep 0.1
done
congestion=$(cat /proc/sys/net/ipv4/tcp_congestion_control)
sterna_s=$(awk "BEGIN { print $found_ms / 1000 }")
echo "\$ curl http://b/files.tar          # the same files in one; TCP with $congestion; cut off after $sterna_s s, when sterna was done"
start=$(date +%s%N)
code=0
curl --silent --max-time "$sterna_s" --output "$work/a/files.tar" "http://$STERNA_LAB_B:8080/files.tar" || code=$?
case $code in
    0) ended=done ;;
    28) ended="cut off" ;; # curl's exit code for a timeout
    *) ended="code $code" ;;
esac
curl_ms=$((($(date +%s%N) - start) / 1000000))
curl_bytes=$(stat -c %s "$work/a/files.tar" 2>/dev/null || echo 0)
tar_bytes=$(stat -c %s "$work/b/files.tar")

awk -v s="$total" -v c="$curl_bytes" -v tar="$tar_bytes" -v found="$found_ms" -v given="$given_ms" -v rate="$rate" -v c_ms="$curl_ms" -v cc="$congestion" -v ended="$ended" 'BEGIN {
    printf "\n%-20s %8s %8s %10s %10s %16s %16s\n", "", "MB", "s", "Mbit/s", "ended", "encrypted", "compressed"
    line = "%-20s %8.1f %8.1f %10.1f %10s %16s %16s\n"
    printf line, "sterna copy", s / 1e6, found / 1e3, s * 8 / found / 1e3, "done", "yes, verified", "where it helps"
    printf line, "the same, rate given", s / 1e6, given / 1e3, s * 8 / given / 1e3, "done", "yes, verified", "where it helps"
    printf line, "curl (" cc ")", c / 1e6, c_ms / 1e3, c * 8 / c_ms / 1e3, ended, "no", "no"
    if (ended == "cut off")
        printf "\ncurl had the same path for as long as sterna took, and was cut off then with %.0f %% of the bytes still to come.\n", \
            (1 - c / tar) * 100
    print "So short a run shows how a tool starts as much as how fast it is: docs/benchmarks.md has longer ones."
}'
service
