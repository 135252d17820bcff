# shellcheck shell=sh disable=SC2034 # some names are for those who source this
# ./demo and ./test share this; they source it from the root of the checkout.

logs=build/logs

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ] && [ "${TERM:-dumb}" != dumb ]; then
    bold=$(printf '\033[1m') dim=$(printf '\033[2m') red=$(printf '\033[31m')
    green=$(printf '\033[32m') plain=$(printf '\033[0m')
else
    bold='' dim='' red='' green='' plain=''
fi

heading() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }

# A wrong command line: one line, exit 2.
usage_error() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 2
}

# quoted WORD...: the words as the shell would read them again.
quoted() {
    for word in "$@"; do
        case $word in
        '' | *[!A-Za-z0-9_./=:,+@%-]*)
            printf " '%s'" "$(printf '%s' "$word" | sed "s/'/'\\\\''/g")"
            ;;
        *) printf ' %s' "$word" ;;
        esac
    done
}

# show COMMAND...: prints the command, then runs it.
show() {
    printf '%s$%s%s\n' "$dim" "$(quoted "$@")" "$plain"
    "$@"
}

# Shows the current step on a terminal, rewritten in place; prints nothing elsewhere. Uses a descriptor of
# its own, so that it is visible while the step's output goes to a log.
exec 3>&1
progress() {
    [ -t 3 ] && printf '\r%s  %s%s\033[K' "$dim" "$1" "$plain" >&3
    return 0
}
progress_end() {
    [ -t 3 ] && printf '\r\033[K' >&3
    return 0
}

# configure_and_build LOG LABEL FOLDER TARGET CMAKE-ARGUMENT...: everything goes to LOG.
configure_and_build() {
    log=$1 label=$2 folder=$3 target=$4
    shift 4
    mkdir -p "$(dirname "$log")" || return 1
    progress "$label: configuring"
    cmake "$@" > "$log" 2>&1 || {
        progress_end
        return 1
    }
    # Ninja's "[3/80] ..." lines go by on a terminal; the status comes last, through the same pipe.
    {
        # -k 0: every file that does not compile, not only the first
        NINJA_STATUS='[%f/%t] ' cmake --build "$folder" --target "$target" -- -k 0 2>&1
        echo "status $?"
    } | while IFS= read -r line; do
        case $line in
        '['*) progress "$label: ${line%%]*}]" ;;
        esac
        printf '%s\n' "$line" >> "$log"
    done
    progress_end
    tail -n 1 "$log" | grep -qx 'status 0'
}
