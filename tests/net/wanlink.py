#!/usr/bin/env python3
"""A slow link between two network namespaces, for kernels without netem: a TUN device `wan0` in each, joined by this
process, which holds every packet for a while. Keeps the order of packets. Ends when it is killed.

    wanlink.py NAMESPACE_A ADDRESS_A/LENGTH NAMESPACE_B ADDRESS_B/LENGTH --delay-ms 25
"""
import argparse
import collections
import ctypes
import fcntl
import os
import select
import struct
import subprocess
import time

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
QUEUE = 4096  # packets under way in one direction; more are dropped

libc = ctypes.CDLL(None, use_errno=True)


def enter(fd):
    if libc.setns(fd, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def device(namespace, address, home):
    """Makes `wan0` in the namespace and gives its file descriptor."""
    fd = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    enter(fd)
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", b"wan0", IFF_TUN | IFF_NO_PI))
    subprocess.check_call(["ip", "addr", "add", address, "dev", "wan0"])
    subprocess.check_call(["ip", "link", "set", "wan0", "up", "mtu", "1400"])
    enter(home)
    return tun


def main():
    parser = argparse.ArgumentParser()
    for name in ("namespace_a", "address_a", "namespace_b", "address_b"):
        parser.add_argument(name)
    parser.add_argument("--delay-ms", type=float, required=True)
    args = parser.parse_args()
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    a = device(args.namespace_a, args.address_a, home)
    b = device(args.namespace_b, args.address_b, home)
    other = {a: b, b: a}
    under_way = {a: collections.deque(), b: collections.deque()}
    print("wanlink up", flush=True)
    while True:
        due = [queue[0][0] for queue in under_way.values() if queue]
        wait = max(0.0, min(due) - time.monotonic()) if due else None
        for source in select.select([a, b], [], [], wait)[0]:
            try:
                while True:
                    packet = os.read(source, 2048)
                    if len(under_way[source]) < QUEUE:
                        under_way[source].append((time.monotonic() + args.delay_ms / 1e3, packet))
            except BlockingIOError:
                pass
        now = time.monotonic()
        for source, queue in under_way.items():
            while queue and queue[0][0] <= now:
                try:
                    os.write(other[source], queue.popleft()[1])
                except OSError:
                    pass  # the other side is down, or its queue full: the packet is lost


if __name__ == "__main__":
    main()
