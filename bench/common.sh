# shellcheck shell=sh disable=SC2154
# Shell functions that bench/cpu/run, bench/gpu/run and bench/data/run share. Sourced with $bench set to
# this folder.
root=$bench/..
python=${PYTHON:-python3}

fail() { echo "$*" >&2 && exit 1; }

# Builds the given targets of a preset (all without any) in $build; prints the compiler's last lines
# when that fails.
build() { # PRESET TARGET...
    preset=$1
    shift
    if ! make_targets "$@" > "$work/build" 2>&1; then
        tail -n 20 "$work/build" >&2
        exit 1
    fi
}
make_targets() {
    [ -f "$build/build.ninja" ] || cmake --preset "$preset" -S "$root" -B "$build" || return
    ninja -C "$build" "$@"
}

print_machine() {
    echo "machine: $(uname -m), $(nproc) cores, $(lscpu | sed -n 's/^Model name: *//p' | head -n 1)"
}

has_module() { "$python" -c "import $1" 2> /dev/null; }
module_version() { "$python" -c "import $1; print($1.__version__)" 2> /dev/null; }

# Runs a peer: a line of JSON, or nothing when it fails. A peer that did not run has no figure.
peer() { # NAME ARGUMENT...
    script=$bench/peers/$1.py
    shift
    timeout 900 "$python" "$script" "$@" 2> "$work/peer" || tail -n 5 "$work/peer" >&2
}

# ---- numbers ----------------------------------------------------------------------------------------
field() { sed -n "s/.*\"$1\": *\"\{0,1\}\([^,\"}]*\).*/\1/p"; } # of a line of JSON
largest() { sort -n | tail -n 1; }
ratio() { # A B DIGITS: A / B, or - when one is absent
    awk -v a="${1:-0}" -v b="${2:-0}" -v d="$3" \
        'BEGIN { if (a > 0 && b > 0) printf "%.*f", d, a / b; else printf "-" }'
}
