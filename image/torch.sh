#!/bin/sh
# Builds PyTorch's wheel from source, for the architectures of TORCH_CUDA_ARCH_LIST alone. Runs in the Dockerfile's stage
# torch-source, which has compilers, nvcc and a venv with the lock's CUDA libraries; the wheel goes to TORCH_OUT.
#
#     TORCH_VERSION=2.10.0 TORCH_CUDA_ARCH_LIST=8.6 TORCH_OUT=/torch sh torch.sh
#
# TORCH_REPOSITORY and TORCH_COMMIT name another source, and the commit that its tag must have. The order of things: look
# for every tool, fetch, configure, build, point the libraries at the lock's CUDA, leave exactly one wheel. Exit code 2:
# something is missing or not what it should be; torch's own build would go on for hours without CUDA, cuDNN or NCCL.
set -eu

VERSION=${TORCH_VERSION:?torch.sh: TORCH_VERSION is not set}
OUT=${TORCH_OUT:?torch.sh: TORCH_OUT is not set}
ARCHITECTURES=${TORCH_CUDA_ARCH_LIST:?torch.sh: TORCH_CUDA_ARCH_LIST is not set}
REPOSITORY=${TORCH_REPOSITORY:-https://github.com/pytorch/pytorch}
SOURCE=${TORCH_SOURCE:-/src/pytorch}
PYTHON=${TORCH_PYTHON:-python}
MEMINFO=${TORCH_MEMINFO:-/proc/meminfo}
JOB_KIB=4194304 # a job of nvcc takes up to 4 GiB

fail() {
    echo "torch.sh: $*" >&2
    exit 2
}

for tool in git cmake ninja ccache nvcc patchelf "$PYTHON"; do
    command -v "$tool" >/dev/null || fail "$tool: not found; the stage toolkit installs it"
done

# As many jobs as the memory holds, and not more than there are cores.
free=$(awk '/^MemAvailable:/ { print $2 }' "$MEMINFO")
[ -n "$free" ] || fail "$MEMINFO does not say how much memory is available"
cores=$(nproc)
jobs=$((free / JOB_KIB))
[ "$jobs" -le "$cores" ] || jobs=$cores
[ "$jobs" -ge 1 ] || fail "$((free / 1024)) MiB of memory are available, one job takes up to $((JOB_KIB / 1024))"
export MAX_JOBS="$jobs"
echo "torch.sh: $VERSION for $ARCHITECTURES, $jobs jobs on $cores cores and $((free / 1048576)) GiB"

git clone --quiet --depth 1 --branch "v$VERSION" --recurse-submodules --shallow-submodules "$REPOSITORY" "$SOURCE"
commit=$(git -C "$SOURCE" rev-parse HEAD)
[ -z "${TORCH_COMMIT:-}" ] || [ "$commit" = "$TORCH_COMMIT" ] ||
    fail "v$VERSION of $REPOSITORY is commit $commit, expected $TORCH_COMMIT"
echo "torch.sh: $REPOSITORY at $commit"

# The lock's CUDA libraries are wheels below site-packages/nvidia; torch is built against their headers and libraries.
packages=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
nvidia=$packages/nvidia
for part in cudnn nccl; do
    [ -d "$nvidia/$part/lib" ] || fail "$nvidia/$part: not there; the lock has no nvidia-$part wheel"
done
# The wheels only have libraries with a version (libnccl.so.2); cmake and the linker look for names without one.
for library in "$nvidia"/*/lib/lib*.so.*; do
    [ -e "$library" ] || continue
    plain=${library%%.so.*}.so
    [ -e "$plain" ] || ln -s "$(basename "$library")" "$plain"
done

# Versions as the source asks for them: the lock has no compilers' packages.
"$PYTHON" -m pip install --disable-pip-version-check --quiet --requirement "$SOURCE/requirements-build.txt"

export TORCH_CUDA_ARCH_LIST="$ARCHITECTURES" USE_CUDA=1 BUILD_TEST=0
export USE_CUDNN=1 CUDNN_ROOT="$nvidia/cudnn" CUDNN_INCLUDE_DIR="$nvidia/cudnn/include" CUDNN_LIBRARY="$nvidia/cudnn/lib"
export USE_NCCL=1 USE_SYSTEM_NCCL=1 USE_DISTRIBUTED=1 NCCL_ROOT="$nvidia/nccl"
export NCCL_INCLUDE_DIR="$nvidia/nccl/include" NCCL_LIB_DIR="$nvidia/nccl/lib"
export CMAKE_GENERATOR=Ninja TORCH_NVCC_FLAGS="-Xfatbin -compress-all"
export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache
export PYTORCH_BUILD_VERSION="$VERSION" PYTORCH_BUILD_NUMBER=1
SOURCE_DATE_EPOCH=$(git -C "$SOURCE" log -1 --format=%ct)
export SOURCE_DATE_EPOCH
rm -rf "$OUT"
mkdir -p "$OUT/made" "$OUT/unpacked"

# torch turns an option off if it does not find its library, and says so in the summary only.
summary=$OUT/made/configure.log
(cd "$SOURCE" && CMAKE_ONLY=1 "$PYTHON" setup.py build) >"$summary" 2>&1 || {
    tail -n 40 "$summary"
    fail "the configuration failed; its last lines are above"
}
for option in USE_CUDA USE_CUDNN USE_NCCL; do
    value=$(sed -n "s/^-- *$option *: *//p" "$summary" | head -n 1)
    case $value in
    1 | ON | TRUE | YES) ;;
    *)
        grep -i -e cuda -e cudnn -e nccl "$summary" || :
        fail "$option is '$value' in the configuration's summary, expected ON; the lines about it are above"
        ;;
    esac
done
rm -f "$summary"
(cd "$SOURCE" && "$PYTHON" -m pip wheel --disable-pip-version-check --no-build-isolation --no-deps --wheel-dir "$OUT/made" .)

set -- "$OUT"/made/*.whl
if [ $# -ne 1 ] || [ ! -f "$1" ]; then fail "expected one wheel, found: $*"; fi
name=$(basename "$1")
case $name in
"torch-$VERSION-"*.whl) ;;
*) fail "the wheel is $name, expected torch-$VERSION-*.whl" ;;
esac

# At run time the CUDA libraries are the lock's, two folders above torch/lib.
"$PYTHON" -m zipfile -e "$1" "$OUT/unpacked"
# $ORIGIN is the loader's own word, not the shell's.
# shellcheck disable=SC2016
paths='$ORIGIN'
for folder in "$nvidia"/*/lib; do
    part=$(basename "$(dirname "$folder")")
    paths="$paths:\$ORIGIN/../../nvidia/$part/lib"
done
for library in "$OUT"/unpacked/torch/lib/*.so; do
    [ ! -e "$library" ] || patchelf --force-rpath --set-rpath "$paths" "$library"
done
"$PYTHON" -m pip install --disable-pip-version-check --quiet wheel
"$PYTHON" -m wheel pack --dest-dir "$OUT" "$OUT/unpacked" # writes the record of files anew
rm -rf "$OUT/made" "$OUT/unpacked"
[ -f "$OUT/$name" ] || fail "packing left no $name"
sha256sum "$OUT/$name"
du -h "$OUT/$name"
