"""Threads of one client contend for kazoo's Lock: <server> <threads> <warm-up ms> <ms>."""

import sys
import threading
import time

from kazoo.client import KazooClient

server, threads, warm_up, lasts = sys.argv[1], *map(int, sys.argv[2:])
client = KazooClient(hosts=server, timeout=10)
client.start()
grants = []
over = threading.Event()


def contend():
    lock = client.Lock("/kazoo-hot")
    while not over.is_set():
        lock.acquire()
        granted = time.monotonic_ns()
        # Only the holder appends.
        grants.append((granted, time.monotonic_ns()))
        lock.release()


workers = [threading.Thread(target=contend) for _ in range(threads)]
for worker in workers:
    worker.start()
time.sleep(warm_up / 1000)
first = len(grants)
begun = time.monotonic()
time.sleep(lasts / 1000)
counted = grants[first:]
seconds = time.monotonic() - begun
over.set()
for worker in workers:
    worker.join()
client.stop()
took = sorted(next[0] - before[1] for before, next in zip(counted, counted[1:]))
print(len(counted), seconds, took[len(took) // 2] / 1000, took[len(took) * 99 // 100] / 1000)
