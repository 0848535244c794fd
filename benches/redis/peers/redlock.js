// A process that contends with npm's redlock on one node; the orders are described in src/worker.rs.
'use strict';

const { createInterface } = require('node:readline');
const { setTimeout: sleep } = require('node:timers/promises');
const { Redis } = require('ioredis');
const Redlock = require('redlock');

// Outlasts every run.
const TTL = 60_000;

const now = () => process.hrtime.bigint();
const sleepUntil = async (moment) => {
  const left = moment - now();
  if (left > 0n) await sleep(Number(left) / 1e6);
};

async function grant(locks, key, task, until) {
  const asked = now();
  const lock = await locks.lock(key, TTL);
  const granted = now();
  if (until) await sleepUntil(until);
  const released = now();
  await lock.unlock();
  return [task, asked, granted, released];
}

async function steady(locks, key, task, [start, end]) {
  await sleepUntil(start);
  const grants = [];
  for (;;) {
    const found = await grant(locks, key, task);
    grants.push(found);
    if (found[3] >= end) return grants;
  }
}

async function drain(locks, key, task, [start, step, first, stride, all]) {
  const number = first + BigInt(task) * stride;
  await sleepUntil(start + number * step);
  const until = number === 0n ? start + all * step + 20_000_000n : undefined;
  return [await grant(locks, key, number, until)];
}

async function main() {
  const client = new Redis(process.argv[2]);
  await client.ping();
  // Its own delays: 200 ms and up to 100 of jitter, but for ever.
  const locks = new Redlock([client], { retryCount: -1 });
  console.log('ready');
  for await (const line of createInterface({ input: process.stdin })) {
    const [verb, key, tasks, ...rest] = line.split(' ');
    const numbers = rest.map(BigInt);
    const contend = { steady, drain }[verb];
    const all = Array.from({ length: Number(tasks) }, (_, task) => contend(locks, key, task, numbers));
    const found = (await Promise.all(all)).flat();
    console.log([...found.map((values) => values.join(' ')), 'end'].join('\n'));
  }
  client.disconnect();
}

main();
