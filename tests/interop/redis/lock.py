"""A redis-py Lock, driven by lines on standard input.

    acquire KEY TTL_MS WAIT_MS    ok | busy
    extend KEY TTL_MS             ok | lost
    release KEY                   ok | lost
"""

import sys

from redis import Redis
from redis.exceptions import LockError

client = Redis.from_url(sys.argv[1])
locks = {}


def acquire(key, ttl, wait):
    lock = client.lock(key, timeout=int(ttl) / 1000, sleep=0.005)
    locks[key] = lock
    if lock.acquire(blocking=wait != "0", blocking_timeout=int(wait) / 1000):
        return "ok"
    return "busy"


def extend(key, ttl):
    return outcome(lambda: locks[key].extend(int(ttl) / 1000, replace_ttl=True))


def release(key):
    return outcome(lambda: locks.pop(key).release())


def outcome(action):
    try:
        action()
        return "ok"
    except LockError:
        return "lost"


client.ping()
print("ready", flush=True)
for line in sys.stdin:
    verb, *arguments = line.split()
    print({"acquire": acquire, "extend": extend, "release": release}[verb](*arguments), flush=True)
