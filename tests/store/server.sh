# shellcheck shell=sh
# Starts and stops server.py, and lets the environment lead to it. The caller has set `store_dir` to this folder.
export AWS_ACCESS_KEY_ID=test-key AWS_SECRET_ACCESS_KEY=test/secret+key AWS_REGION=eu-test-1 no_proxy=127.0.0.1
unset AWS_SESSION_TOKEN AWS_PROFILE AWS_ENDPOINT_URL_S3 AWS_MAX_ATTEMPTS
server=
stop_server() {
    exec 9>&-
    [ -n "$server" ] && kill "$server" 2> /dev/null
    [ -n "$server" ] && wait "$server" 2> /dev/null
    server=
}
# start_ours [OPTION...]: server.py, until stop_server; at $address where that is set
start_ours() {
    mkfifo input.$$ port.$$ || exit 1
    : "${address:=127.0.0.1}"
    python3 "$store_dir/server.py" --address "$address" "$@" < input.$$ > port.$$ &
    server=$!
    exec 9> input.$$
    read -r port < port.$$
    rm input.$$ port.$$
    export AWS_ENDPOINT_URL="http://$address:$port"
}
