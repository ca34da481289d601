#!/usr/bin/env bash
# What `make xpu-check` needs, in one git-ignored folder; nothing else is touched.
#   ocloc   Intel's offline compiler for its GPUs, as packages of a newer Debian suite,
#           from the mirror that apt already uses, run through their own loader
#   venv    torch (CPU), triton-xpu (Triton's Intel back end; it installs `triton`, so
#           it cannot share .venv), Intel's OpenCL runtime for CPUs
# usage: fetch.sh DIR     A second run keeps what is there. A failure says what failed.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
dir=$(cd "$1" && pwd)
python=${PYTHON:-python3}
suite=${XPU_SUITE:-forky}
stamp=$(cat "$here/fetch.sh" "$here/../../pyproject.toml" | sha256sum | cut -c1-16)-$suite

fail() {
    echo "xpu-check: FAILED to fetch: $1" >&2
    exit 1
}

# quiet unless it fails
try() {
    local what=$1
    shift
    "$@" >"$dir/fetch.log" 2>&1 || {
        tail -n 15 "$dir/fetch.log" >&2
        fail "$what"
    }
}

fetch_ocloc() {
    local root=$dir/ocloc-root mirror libs packages
    packages="intel-ocloc libigc2 libc6 libgcc-s1 libstdc++6 zlib1g"
    command -v apt-get >/dev/null || fail "ocloc: apt-get is missing, Debian needed"
    mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep -m1 -E '/debian/?$') ||
        fail "ocloc: no Debian mirror among apt's sources"
    rm -rf "$root" && mkdir -p "$root/apt/lists/partial" "$root/apt/archives/partial"
    local keys=/usr/share/keyrings/debian-archive-keyring.gpg
    echo "deb [signed-by=$keys] $mirror $suite main" >"$root/apt/sources.list"
    cat >"$root/apt/apt.conf" <<CONF
Dir::State "$root/apt"; Dir::State::lists "$root/apt/lists";
Dir::State::status "/dev/null";
Dir::Cache "$root/apt"; Dir::Cache::archives "$root/apt/archives";
Dir::Etc::sourcelist "$root/apt/sources.list"; Dir::Etc::sourceparts "/dev/null";
APT::Update::Error-Mode "any";
CONF
    export APT_CONFIG=$root/apt/apt.conf
    try "package lists of Debian $suite" apt-get -qq update
    cd "$root/apt"
    # shellcheck disable=SC2086
    try "packages $packages of Debian $suite" apt-get -qq download $packages
    for package in *.deb; do
        try "unpacking $package" dpkg -x "$package" "$root"
    done
    local binary
    binary=$(ls "$root"/usr/bin/ocloc* | head -n 1) || fail "ocloc: not in the packages"
    libs=$root/usr/lib/x86_64-linux-gnu
    cat >"$dir/ocloc" <<RUN
#!/bin/sh
exec "$libs/ld-linux-x86-64.so.2" --library-path "$libs" "$binary" "\$@"
RUN
    chmod +x "$dir/ocloc"
    try "ocloc does not know bmg-g31" "$dir/ocloc" query CL_DEVICE_EXTENSIONS -device bmg-g31
}

fetch_venv() {
    local pip=("$dir/venv/bin/python" -m pip install -qq)
    rm -rf "$dir/venv"
    try "a virtual environment of $python" "$python" -m venv "$dir/venv"
    # torch by its own command first: the CPU build is found that way
    try "torch 2.13.0" "${pip[@]}" torch==2.13.0
    try "triton-xpu 3.3.0b1" "${pip[@]}" triton-xpu==3.3.0b1
    try "Intel's OpenCL runtime" "${pip[@]}" intel-opencl-rt intel-cmplr-lib-rt pyopencl
    # what fspec imports
    local needs
    mapfile -t needs < <("$dir/venv/bin/python" -c "
import tomllib
print(*tomllib.load(open('$here/../../pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')")
    try "fspec's dependencies" "${pip[@]}" "${needs[@]}"
    [ -e "$dir/venv/lib/libintelocl.so" ] || fail "libintelocl.so is not in the venv"
    mkdir -p "$dir/icd"
    echo "$dir/venv/lib/libintelocl.so" >"$dir/icd/intel-cpu.icd"
}

for part in ocloc venv; do
    if [ "$(cat "$dir/$part.stamp" 2>/dev/null)" != "$stamp" ]; then
        echo "xpu-check: fetching $part"
        (fetch_$part)
        echo "$stamp" >"$dir/$part.stamp"
    fi
done
