"""kazoo's locks, driven by lines on standard input.

    acquire PATH TTL_MS WAIT_MS    ok | busy      (the ttl is the session's)
    release PATH                   ok | lost

Arguments: HOSTS KIND, which is Lock, ReadLock or WriteLock.
"""

import sys

from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout

client = KazooClient(hosts=sys.argv[1], timeout=4)
kind = getattr(client, sys.argv[2])
locks = {}


def acquire(path, ttl, wait):
    lock = kind(path, "kazoo")
    locks[path] = lock
    try:
        got = lock.acquire(blocking=wait != "0", timeout=int(wait) / 1000 or None)
    except LockTimeout:
        got = False
    return "ok" if got else "busy"


def release(path):
    return "ok" if locks.pop(path).release() else "lost"


client.start()
print("ready", flush=True)
for line in sys.stdin:
    verb, *arguments = line.split()
    print({"acquire": acquire, "release": release}[verb](*arguments), flush=True)
