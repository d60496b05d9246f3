# A board whose contiguous area (CMA) others take; what is found goes to the console as facts.

# The kernel's words would come between those of a fact.
dmesg -n 1
mount -t tmpfs disk /disk
mount -t cgroup2 groups /sys/fs/cgroup
echo +memory >/sys/fs/cgroup/cgroup.subtree_control
export SMELT_CACHE=/disk/cache

fact() {
    echo "fact $*" >/dev/console
}

# CmaFree and others of /proc/meminfo, in KiB.
meminfo() {
    sed -n "s/^$1: *\([0-9]*\) kB/\1/p" /proc/meminfo
}

fails() {
    sed -n 's/^cma_alloc_fail //p' /proc/vmstat
}

# hold BUFFERS: another program takes contiguous memory, and ends a second after the kernel has had
# to refuse somebody.
hold() {
    contiguous /dev/video0 "$1" 1000 >/tmp/held 2>&1 &
    holder=$!
    until [ -s /tmp/held ]; do sleep 0.1; done
    fact held "$(cat /tmp/held)"
    before=$(fails)
    {
        until [ "$(fails)" -gt "$before" ]; do sleep 0.1; done
        sleep 1
        kill "$holder"
    } &
}

held_by_nobody() {
    kill "$holder"
    wait "$holder"
}

# run NAME: runs NAME.toml and tells what smelt reports of it.
run() {
    fact "$1.free_kib" "$(meminfo CmaFree)"
    smelt run "/$1.toml" >/dev/console 2>&1
    fact "$1.exit" $?
    fact "$1.report" "$(smelt report --json | tr -d '\n')"
}

end() {
    dmesg | grep 'cma: ' | while read -r line; do fact kernel "$line"; done
    fact end
    poweroff -f
}
