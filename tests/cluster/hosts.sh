# shellcheck shell=sh disable=SC2154
# Four hosts as network namespaces, joined by a bridge, with the addresses $net.1 to $net.4. mpirun reaches them by
# ./agent HOST COMMAND. The caller sets `tag` (of all names), `net` (free_net) and `work`, and runs in $work.

# A network of which this machine has no address, as it has after a run that was killed.
free_net() {
    n=13
    while ip -o -4 addr 2> /dev/null | grep -q " 10\.77\.$n\."; do n=$((n + 1)); done
    echo "10.77.$n"
}
make_hosts() {
    ip link add "$tag" type bridge && ip link set "$tag" up || return 1
    for i in 1 2 3 4; do
        ip netns add "$tag-$i" && ip link add "$tag-$i" type veth peer name eth0 netns "$tag-$i" &&
            ip link set "$tag-$i" master "$tag" up && ip netns exec "$tag-$i" ip addr add "$net.$i/24" dev eth0 &&
            ip netns exec "$tag-$i" ip link set eth0 up && ip netns exec "$tag-$i" ip link set lo up || return 1
    done
    cat > agent << END
#!/bin/sh
n=\${1##*.}
shift
exec env TERM=xterm ip netns exec $tag-\$n unshare --uts sh -c 'hostname host'"\$n"'; exec sh -c "\$*"' sh "\$@"
END
    chmod +x agent
}
remove_hosts() {
    for i in 1 2 3 4; do ip netns del "$tag-$i"; done 2> /dev/null
    ip link del "$tag" 2> /dev/null
}
on_host1() {
    OMPI_MCA_plm_rsh_agent=$work/agent OMPI_MCA_btl=tcp,self OMPI_MCA_oob_tcp_if_include=$net.0/24 \
        OMPI_MCA_btl_tcp_if_include=$net.0/24 \
        ip netns exec "$tag-1" unshare --uts sh -c 'hostname host1; exec "$@"' sh "$@"
}
