#!/usr/bin/env bash
# Installs schemathesis and openapi-spec-validator (PyPI, MIT and Apache-2.0) in target/schemathesis, for the tests of the
# interfaces of the service. Does nothing if they are there already.
#
# With arguments, runs schemathesis after that: scripts/schemathesis.sh run URL ...
set -euo pipefail
cd "$(dirname "$0")/.."
# Releases that the tests know.
schemathesis=4.32.5
validator=0.9.0
place=target/schemathesis
installed=$place/installed-$schemathesis-$validator
if [ ! -e "$installed" ]; then
    rm -rf "$place"
    mkdir -p target
    python3 -m venv "$place"
    "$place/bin/python" -m pip --quiet --disable-pip-version-check install \
        "schemathesis==$schemathesis" "openapi-spec-validator==$validator"
    touch "$installed"
fi
[ $# -eq 0 ] || exec "$place/bin/schemathesis" "$@"
