
# Becomes this machine, of which only memory is written to, and does there what the file `order` says.
become() {
    mkdir /host /memory /machine
    mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=524288 host /host
    mount -t tmpfs -o size=1g tmpfs /memory
    mkdir /memory/up /memory/work
    mount -t overlay -o lowerdir=/host,upperdir=/memory/up,workdir=/memory/work overlay /machine
    for place in proc sys dev; do mount --move /$place /machine/$place; done
    for place in tmp run dev/shm; do
        mkdir -p /machine/$place
        mount -t tmpfs -o mode=1777 tmpfs /machine/$place
    done
    cp /order /machine/run/order
    cp /bin/busybox /machine/run/busybox
    exec switch_root /machine /bin/sh /run/order
}
