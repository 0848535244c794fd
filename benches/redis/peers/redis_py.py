"""A process that contends with redis-py's Lock; the orders are described in src/worker.rs."""

import sys
import threading
import time

import redis


def sleep_until(moment):
    time.sleep(max(0, moment - time.monotonic_ns()) / 1e9)


def grant(client, key, task, until=0):
    # Its own pause between tries, 100 ms; the timeout outlasts every run.
    lock = client.lock(key, timeout=60)
    asked = time.monotonic_ns()
    assert lock.acquire()
    granted = time.monotonic_ns()
    if until:
        sleep_until(until)
    released = time.monotonic_ns()
    lock.release()
    return task, asked, granted, released


def steady(client, key, task, start, end):
    sleep_until(start)
    grants = []
    while True:
        grants.append(grant(client, key, task))
        if grants[-1][3] >= end:
            return grants


def drain(client, key, task, start, step, first, stride, everyone):
    number = first + task * stride
    sleep_until(start + number * step)
    until = start + everyone * step + 20_000_000 if number == 0 else 0
    return [grant(client, key, number, until)]


def main():
    client = redis.Redis.from_url(sys.argv[1])
    client.ping()
    print("ready", flush=True)
    for line in sys.stdin:
        verb, key, *numbers = line.split()
        tasks, *numbers = map(int, numbers)
        contend = {"steady": steady, "drain": drain}[verb]
        found = []

        def run(task):
            found.extend(contend(client, key, task, *numbers))

        threads = [threading.Thread(target=run, args=(task,)) for task in range(tasks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for line in found:
            print(*line)
        print("end", flush=True)


main()
