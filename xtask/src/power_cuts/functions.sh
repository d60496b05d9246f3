# What the scripts of power cuts are made of; /disk is the disk that is cut off.

export SMELT_CACHE=/disk/cache

# The device whose serial number is $1.
disk() {
    for device in /sys/block/vd*; do
        [ "$(cat "$device/serial")" = "$1" ] && echo "/dev/${device##*/}"
    done
}

# One process writes each block as it comes, past the page cache, from block $1 of the disk on: a
# block is one write to the pipe, and nothing is started to tell something.
record() {
    device=$(disk disk)
    mount -t ext4 -o commit=1 "$device" /disk || poweroff -f
    mkfifo /tmp/told
    dd if=/tmp/told of="$device" bs=4096 seek="$1" oflag=direct conv=notrunc 2>/dev/null &
    teller=$!
    exec 4>/tmp/told
}

tell() {
    printf '%-4096s' "$*" >&4
}

recorded() {
    tell done
    exec 4>&-
    wait "$teller"
    poweroff -f
}

# run VALUE [FLAG]…
run() {
    value=$1
    shift
    part=whole
    case "$*" in *--only*) part=part ;; esac
    {
        LD_PRELOAD=$PRELOAD smelt run /p.toml --set "value=$value" "$@" 2>&1 >/dev/null
        echo "ended $?"
    } | while read -r line; do
        echo "$value $line" >/dev/console
        # Lines are "[2/4] NAME sealed in …", "[2/4] NAME hit" and others.
        case "$line" in
        "["*"] "*" sealed in "* | "["*"] "*" hit")
            name=${line#*] }
            tell result "$value" "${name%% *}"
            ;;
        "ended "*) tell ended "$value" "${line#ended }" $part ;;
        esac
    done
}

collect() {
    tell collects
    LD_PRELOAD=$PRELOAD smelt cache gc "$@" >/dev/console
    tell collected $?
}

# check CUT FRESH VALUE…: what a cut left, told on the disk `facts`; FRESH is built afterwards.
check() {
    echo "cut $1"
    fresh=$2
    device=$(disk "cut$1")
    shift 2
    if mount -t ext4 "$device" /disk; then
        echo mounted
        if cd /disk/cache/out; then
            for tree in *; do [ -e "$tree" ] && echo "tree $tree"; done
            find * -type f -exec sha256sum {} + | sed 's/^/file /'
            cd /
        fi
        echo "checked $(smelt cache fsck --json)"
        for value in "$@"; do echo "plan $value $(smelt plan /p.toml --json --set "value=$value")"; done
        smelt run /p.toml --set "value=$fresh" >/dev/null
        echo "run $?"
        echo "again $(smelt cache fsck --json)"
        umount /disk
    fi
} >>/tmp/facts

checked() {
    dd if=/tmp/facts of="$(disk facts)" bs=4096 conv=notrunc,fsync
    poweroff -f
}
