# The tests of a machine whose kernel is another one; `TESTS` is a line for each, its name and its program.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp TMPDIR=/tmp
mount -t securityfs security /sys/kernel/security
/run/busybox ip link set lo up
echo "lsm: $(cat /sys/kernel/security/lsm)"
cd FOLDER
while read -r name program; do
    echo "begin $name"
    "$program" --test-threads=1 --nocapture
    echo "end $name $?"
done <<'TESTS'
PROGRAMS
TESTS
/run/busybox poweroff -f
