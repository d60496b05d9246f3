# The tests of a machine whose kernel is another one; one program has them.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp TMPDIR=/tmp
mount -t securityfs security /sys/kernel/security
# Stages get terminals of their own, so tests open some.
mkdir -p /dev/pts
mount -t devpts -o mode=620,ptmxmode=666 devpts /dev/pts
/run/busybox ip link set lo up
# Serves itself a folder in memory by NFS, with programs of packages that are not installed.  Nobody has held
# anything there before, so nobody is waited for to claim it.
nfs=NFS
export LD_LIBRARY_PATH=LIBRARIES
mkdir -p /var/lib/nfs /run/lent
touch /etc/exports /var/lib/nfs/etab
mount -t tmpfs -o mode=1777 tmpfs /run/lent
mount -t nfsd nfsd /proc/fs/nfsd
"$nfs/exportfs" -o rw,fsid=0,no_subtree_check 127.0.0.1:/run/lent
"$nfs/rpc.mountd" --no-nfs-version 3
"$nfs/rpc.nfsd" --no-nfs-version 3 2
echo Y >/proc/fs/nfsd/v4_end_grace
unset LD_LIBRARY_PATH
echo "kernel: $(uname -r)"
echo "lsm: $(cat /sys/kernel/security/lsm)"
cd FOLDER
for name in TESTS; do
    echo "begin $name"
    "PROGRAM" --test-threads=1 --nocapture "$name::"
    echo "end $name $?"
done
/run/busybox poweroff -f
