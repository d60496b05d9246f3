#!/bin/busybox sh
# The first process of a guest: makes a system, then does what the lines behind these say.

/bin/busybox mkdir -p /proc /sys /dev /tmp /disk
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module options; do insmod "/modules/$module.ko" $options; done </modules/order
export PATH=/bin HOME=/tmp TMPDIR=/tmp
