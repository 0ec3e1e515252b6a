#!/usr/bin/env bash
# Installs the NDT7 client of Measurement Lab (npm, Apache-2.0) in target/ndt7-client, for the tests. Needs node and npm.
set -euo pipefail
cd "$(dirname "$0")/.."

for command in node npm; do
    if ! command -v "$command" >/dev/null 2>&1; then
        echo "ndt7-client: no $command: install nodejs and npm" >&2
        exit 1
    fi
done
# Releases that the tests know. `ws` is the WebSocket of node: the client runs in browsers.
ndt7=0.1.4
ws=8.18.3
place=target/ndt7-client
installed=$place/installed-$ndt7-$ws
if [ ! -e "$installed" ]; then
    rm -rf "$place"
    mkdir -p "$place"
    npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$place" "@m-lab/ndt7@$ndt7" "ws@$ws"
    touch "$installed"
fi
cp scripts/ndt7-client.cjs "$place/run.cjs"
