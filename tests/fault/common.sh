# shellcheck shell=sh
# The scripts of tests/fault and bench/fault share these. The caller sets `program` and `work`, and runs in $work.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fail() {
    echo "    $*"
    return 1
}
skip() {
    echo "skipped: $*"
    return 77
}
# small DIR OPTIONS...: the train command of a run of seconds, for four ranks of one thread each.
small() {
    dir=$1
    shift
    set -- train --run.dir="$work/$dir" --quiet --device=cpu --precision=fp32 --model.layers=2 --model.dim=64 --model.heads=4 \
        --model.kv_heads=2 --training.seq_len=64 --training.local_batch_size=1 --training.global_batch_size=8 \
        --data.synth_documents=60 --training.steps=40 --lr_scheduler.warmup=3 --validation.every=0 \
        --checkpoint.every='4 steps' --checkpoint.weights_every=0 --training.threads=1 "$@"
    # shellcheck disable=SC2086 # options are words
    "$program" launch -n 4 --restart-delay 0.1 ${launch:-} -- "$@"
}
# ranks_of DIR: the processes that train there.
ranks_of() { pgrep -f -- "^$program train --run.dir=$work/$1 "; }
# ended PID: waits until it has; fails after a minute.
ended() {
    for _ in $(seq 600); do
        case $(ps -o stat= -p "$1") in '' | Z*) return 0 ;; esac
        sleep 0.1
    done
    return 1
}
# attempts DIR: how often the run was started.
attempts() { cat "$work/$1/launch.jsonl" 2> /dev/null | wc -l; }
# steps DIR: how many steps its metrics have.
steps() { cat "$work/$1/metrics.jsonl" 2> /dev/null | wc -l; }
# await_steps DIR N
await_steps() {
    for _ in $(seq 600); do
        [ "$(steps "$1")" -ge "$2" ] && return 0
        sleep 0.05
    done
    return 1
}
