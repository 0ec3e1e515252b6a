#!/usr/bin/env bash
# Installs the client of FTS3 and Rucio (PyPI, Apache-2.0) in target/fts3-client, for the tests of the service.
#
# Its library M2Crypto has no binary package and is compiled: this needs a C compiler and the headers of OpenSSL and
# Python. Does nothing if the client is there already.
set -euo pipefail
cd "$(dirname "$0")/.."
# Releases that the tests know.
fts3=3.14.2
rucio=41.5.1
m2crypto=0.51.0
swig=4.5.1
place=target/fts3-client
installed=$place/installed-$fts3-$m2crypto-$rucio
[ ! -e "$installed" ] || exit 0
rm -rf "$place"
mkdir -p target
python3 -m venv "$place"
PATH=$PWD/$place/bin:$PATH
pip() { python -m pip --quiet --disable-pip-version-check "$@"; }
pip install "swig==$swig" setuptools wheel
pip install --no-build-isolation "M2Crypto==$m2crypto"
pip install "fts3==$fts3" "rucio==$rucio"
touch "$installed"
