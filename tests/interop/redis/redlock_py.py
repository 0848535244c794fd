"""redlock-py on the nodes of these URLs, driven by lines on standard input.

    acquire KEY TTL_MS WAIT_MS    ok | busy
    release KEY                   ok
"""

import sys

from redlock import Redlock

RETRY_S = 0.005

manager = Redlock(list(sys.argv[1:]))
locks = {}


def acquire(key, ttl, wait):
    manager.retry_count = 1 + int(int(wait) / 1000 / RETRY_S)
    manager.retry_delay = RETRY_S
    lock = manager.lock(key, int(ttl))
    if not lock:
        return "busy"
    locks[key] = lock
    return "ok"


def release(key):
    manager.unlock(locks.pop(key))
    return "ok"


for server in manager.servers:
    server.ping()
print("ready", flush=True)
for line in sys.stdin:
    verb, *arguments = line.split()
    print({"acquire": acquire, "release": release}[verb](*arguments), flush=True)
