// npm's redlock on the nodes of these URLs, driven by lines on standard input:
//
//     acquire KEY TTL_MS WAIT_MS    ok | busy
//     extend KEY TTL_MS             ok | lost
//     release KEY                   ok | lost

const readline = require("node:readline");
const Redis = require("ioredis");
const Redlock = require("redlock");

const RETRY_MS = 5;

const clients = process.argv.slice(2).map((url) => new Redis(url));
const locks = new Map();

const verbs = {
  async acquire(key, ttl, wait) {
    const redlock = new Redlock(clients, {
      retryCount: Math.ceil(wait / RETRY_MS),
      retryDelay: RETRY_MS,
      retryJitter: 0,
    });
    return outcome("busy", async () => {
      locks.set(key, await redlock.lock(key, Number(ttl)));
    });
  },
  async extend(key, ttl) {
    return outcome("lost", async () => {
      locks.set(key, await locks.get(key).extend(Number(ttl)));
    });
  },
  async release(key) {
    return outcome("lost", () => locks.get(key).unlock());
  },
};

async function outcome(refusal, action) {
  try {
    await action();
    return "ok";
  } catch (error) {
    if (error instanceof Redlock.LockError) return refusal;
    throw error;
  }
}

async function main() {
  await Promise.all(clients.map((client) => client.ping()));
  console.log("ready");
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [verb, ...args] = line.split(" ");
    console.log(await verbs[verb](...args));
  }
  process.exit();
}

main();
