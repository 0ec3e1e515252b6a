#!/usr/bin/env bash
# Common part of the scripts that copy over paths of the lab. These scripts source this file as root, at the top of the
# repository. It builds sterna and sets these variables:
#   sterna       the program
#   name         name of the lab, which is taken down at the end
#   work         directory in memory, removed at the end
#   fingerprint  fingerprint of the agents that `agent_at_b` starts
sterna=$PWD/target/release/sterna
name=$(basename "$0" .sh)-$$
work=$(mktemp -d "/dev/shm/$name.XXXX")
cargo build --release --locked -p sterna

cleanup() {
    "$sterna" lab down --name "$name" >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap cleanup EXIT
fingerprint=$("$sterna" id --state "$work/hub")

# Prints two counters: processor time that the hypervisor took from this machine (steal), and total processor time.
processors() { awk '/^cpu /{print $9, $2 + $3 + $4 + $5 + $6 + $7 + $8 + $9}' /proc/stat; }

# Starts an agent that receives files into $work/in until the lab goes down.
agent_at_b() {
    mkdir -p "$work/in"
    "$sterna" lab exec --name "$name" b -- "$sterna" agent --root "$work/in" --authorize-any --state "$work/hub" >/dev/null 2>&1 &
    agent=$!
    sleep 1
}
