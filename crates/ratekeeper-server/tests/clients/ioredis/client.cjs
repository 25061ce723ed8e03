// Uses ioredis; the port is the argument. NODE_PATH is where it is installed.
const assert = require("node:assert/strict");

const port = Number(process.argv[2]);

async function session(name, options) {
  const { Redis } = require(name);
  const client = new Redis({ port, connectionName: "me", maxRetriesPerRequest: 0, retryStrategy: null, ...options });
  const key = `${name}-${JSON.stringify(options)}`;
  // It is ready once INFO has `loading:0`.
  await new Promise((ready, fail) => client.once("ready", ready).once("error", fail));
  assert.equal(await client.ping(), "PONG");
  assert.equal(await client.echo("hello"), "hello");
  assert.equal(await client.client("GETNAME"), "me");
  assert.deepEqual(await client.call("CL.THROTTLE", key, 1, 1, 86400), [0, 2, 1, -1, 86400]);
  assert.equal((await client.call("RATEKEEPER.CHECK", "per-user", key))[2], 2);

  const pipeline = client.pipeline();
  for (let n = 0; n < 1000; n++) pipeline.call("CL.THROTTLE", `many-${key}`, 99, 1, 86400);
  const answers = await pipeline.exec();
  assert.equal(answers.filter(([error]) => error).length, 0);
  assert.equal(answers.slice(0, 100).every(([, answer]) => answer[0] === 0), true);
  assert.equal(answers.slice(100).every(([, answer]) => answer[0] === 1), true);

  // MULTI and EXEC.
  const transaction = client.multi();
  for (let n = 0; n < 200; n++) transaction.call("CL.THROTTLE", `multi-${key}`, 99, 1, 86400);
  const queued = await transaction.exec();
  assert.deepEqual(queued.map(([error, answer]) => error ?? answer[0]), [...Array(100).fill(0), ...Array(100).fill(1)]);
  await assert.rejects(client.multi().call("CL.THROTTLE", `none-${key}`, 0, 1, 86400).get("x").exec(), /EXECABORT/);
  assert.equal((await client.call("CL.THROTTLE", `none-${key}`, 0, 1, 86400))[0], 0);
  await assert.rejects(client.watch("x"), /WATCH is not supported/);

  // Concurrent calls on one connection.
  const calls = Array.from({ length: 100 }, () => client.call("CL.THROTTLE", `calls-${key}`, 9, 1, 86400));
  assert.equal((await Promise.all(calls)).filter((answer) => answer[0] === 0).length, 10);

  await assert.rejects(client.get("x"), /unknown command 'get'/i);
  assert.equal(await client.ping(), "PONG");
  assert.equal(await client.quit(), "OK");
}

async function all() {
  for (const name of ["ioredis", "ioredis5"]) {
    for (const options of [
      {},
      { protocol: 3 },
      { enableAutoPipelining: true },
      { db: 0, username: "default", password: "any" },
      // Redis without a password replies with an error that ioredis handles.
      { password: "any" },
    ]) {
      await session(name, options);
    }
    const { Redis } = require(name);
    const other = new Redis({ port, username: "nobody", password: "any", retryStrategy: null, lazyConnect: true });
    other.on("error", () => {});
    await assert.rejects(other.connect().then(() => other.ping()));
    other.disconnect();
  }
  console.log("done");
}

all().catch((error) => {
  console.error(error);
  process.exit(1);
});
