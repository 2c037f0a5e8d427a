// kafkajs, the JavaScript client of most Node.js services. `node compat.js before|after` prints one line per check.
const assert = require("node:assert/strict");
const fs = require("node:fs");
const { Kafka, CompressionTypes, CompressionCodecs, ConfigResourceTypes, AssignerProtocol, logLevel } = require("kafkajs");
const SnappyCodec = require("kafkajs-snappy");
const lz4 = require("lz4js");
const zstd = require("@bokuweb/zstd-wasm");

CompressionCodecs[CompressionTypes.Snappy] = SnappyCodec;
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async (encoder) => Buffer.from(lz4.compress(encoder.buffer)),
  decompress: async (buffer) => Buffer.from(lz4.decompress(buffer)),
});
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async (encoder) => Buffer.from(zstd.compress(encoder.buffer, 3)),
  decompress: async (buffer) => Buffer.from(zstd.decompress(buffer)),
});

const phase = process.argv[2];
const count = process.env.KLAMM_QUICK ? 100 : 1000;

// The settings of security in librdkafka's words, for the run against a secured cluster.
function security() {
  if (!process.env.KLAMM_CLIENT_PROPERTIES) return {};
  const lines = fs.readFileSync(process.env.KLAMM_CLIENT_PROPERTIES, "utf8").split("\n").filter(Boolean);
  const read = Object.fromEntries(lines.map((line) => [line.slice(0, line.indexOf("=")), line.slice(line.indexOf("=") + 1)]));
  return {
    ssl: { ca: [fs.readFileSync(read["ssl.ca.location"], "utf8")] },
    sasl: { mechanism: read["sasl.mechanism"].toLowerCase(), username: read["sasl.username"], password: read["sasl.password"] },
  };
}

const kafka = new Kafka({
  ...security(),
  clientId: "compat",
  brokers: process.env.KLAMM_BOOTSTRAP_SERVERS.split(","),
  logLevel: logLevel.NOTHING,
  retry: { retries: 20 },
});
const admin = kafka.admin();

async function check(name, body) {
  try {
    await body();
    console.log(`ok ${name}`);
  } catch (error) {
    console.log(`not ok ${name}: ${String(error.message).split("\n")[0]}`);
  }
}

async function makeTopic(topic, numPartitions = 1, configEntries = []) {
  await admin.createTopics({ topics: [{ topic, numPartitions, replicationFactor: 1, configEntries }], waitForLeaders: true });
}

async function send(topic, messages, options = {}, producerOptions = {}) {
  const producer = kafka.producer(producerOptions);
  await producer.connect();
  try {
    return await producer.send({ topic, messages, acks: -1, ...options });
  } finally {
    await producer.disconnect();
  }
}

function read(topic, groupId, expected, onMember = async () => {}) {
  const consumer = kafka.consumer({ groupId, sessionTimeout: 6000, rebalanceTimeout: 10000 });
  const seen = [];
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => finish(new Error(`${seen.length} of ${expected} messages in 60 s`)), 60000);
    const finish = async (error) => {
      clearTimeout(timer);
      await consumer.disconnect();
      error ? reject(error) : resolve(seen);
    };
    (async () => {
      await consumer.connect();
      await consumer.subscribe({ topics: [topic], fromBeginning: true });
      await onMember(consumer);
      await consumer.run({
        eachMessage: async ({ partition, message }) => {
          seen.push({ partition, ...message });
          if (seen.length === expected) {
            await consumer.commitOffsets([{ topic, partition, offset: String(Number(message.offset) + 1) }]);
            setImmediate(finish);
          }
        },
      });
    })().catch(finish);
  });
}

async function twoMembersShareFourPartitions() {
  const topic = "js-work";
  await makeTopic(topic, 4);
  const members = [0, 1].map(() => kafka.consumer({ groupId: "js-workers", sessionTimeout: 6000, rebalanceTimeout: 10000 }));
  const owned = [0, 0];
  const seen = new Set();
  for (const [index, member] of members.entries()) {
    member.on(member.events.GROUP_JOIN, ({ payload }) => (owned[index] = (payload.memberAssignment[topic] || []).length));
    await member.connect();
    await member.subscribe({ topics: [topic], fromBeginning: true });
    await member.run({ eachMessage: async ({ message }) => seen.add(message.value.toString()) });
  }
  const until = async (what, done) => {
    for (const start = Date.now(); !done(); await new Promise((r) => setTimeout(r, 50)))
      if (Date.now() - start > 60000) throw new Error(`${what} did not happen in 60 s: ${owned}`);
  };
  try {
    await until("an even assignment", () => owned[0] === 2 && owned[1] === 2);
    await send(topic, [...Array(100).keys()].map((n) => ({ value: String(n), partition: n % 4 })));
    await until("reading all messages", () => seen.size === 100);
  } finally {
    await Promise.all(members.map((m) => m.disconnect()));
  }
}

async function committedAbortedAndFenced() {
  const topic = "js-transactions";
  await makeTopic(topic);
  const producer = kafka.producer({ transactionalId: "js-1", maxInFlightRequests: 1, idempotent: true });
  await producer.connect();
  const begin = async (from, value) => {
    const transaction = await from.transaction();
    await transaction.send({ topic, messages: [{ value }] });
    return transaction;
  };
  const position = (offset) => ({ consumerGroupId: "js-copiers", topics: [{ topic, partitions: [{ partition: 0, offset }] }] });
  await (await begin(producer, "first")).commit();
  const aborted = await begin(producer, "aborted");
  await aborted.sendOffsets(position("7"));
  await aborted.abort();
  await (await producer.transaction()).abort(); // nothing is open
  const second = await begin(producer, "second");
  await second.sendOffsets(position("2"));
  await second.commit();
  const zombie = await begin(producer, "zombie");
  const successor = kafka.producer({ transactionalId: "js-1", maxInFlightRequests: 1, idempotent: true });
  await successor.connect();
  const third = await begin(successor, "third");
  await assert.rejects(zombie.commit(), { type: /PRODUCER_FENCED|INVALID_PRODUCER_EPOCH/ });
  await third.commit();
  await Promise.all([producer.disconnect(), successor.disconnect()]);
  const seen = await read(topic, "g-transactions", 3);
  assert.deepEqual(seen.map((m) => m.value.toString()), ["first", "second", "third"]);
  const [{ partitions }] = await admin.fetchOffsets({ groupId: "js-copiers", topics: [topic] });
  assert.equal(partitions[0].offset, "2");
}

async function before() {
  for (const [name, compression] of Object.entries(CompressionTypes)) {
    await check(`produce and consume ${name}`, async () => {
      const topic = `js-${name.toLowerCase()}`;
      await makeTopic(topic);
      const values = [...Array(count).keys()].map((n) => `${n}-${"payload".repeat(10)}`);
      await send(topic, values.map((value) => ({ value })), { compression });
      const seen = await read(topic, `g-${topic}`, count);
      assert.deepEqual(seen.map((m) => m.value.toString()), values);
    });
  }
  await check("keys, headers, timestamps, null and empty values", async () => {
    await makeTopic("js-shapes");
    await send("js-shapes", [
      { key: "gone", value: null },
      { key: "", value: "" },
      { value: "v", headers: { h: ["1", "2"] }, timestamp: "1234" },
    ]);
    const [first, second, third] = await read("js-shapes", "g-shapes", 3);
    assert.equal(first.value, null);
    assert.equal(second.value.length, 0);
    assert.equal(third.timestamp, "1234");
    assert.deepEqual(third.headers.h.map(String), ["1", "2"]);
  });
  await check("idempotent producer", async () => {
    await makeTopic("js-once");
    const [sent] = await send("js-once", [{ value: "1" }, { value: "2" }], {}, { idempotent: true, maxInFlightRequests: 1 });
    assert.equal(sent.baseOffset, "0");
  });
  await check("transactions: commit, abort, offsets, fencing", committedAbortedAndFenced);
  await check("group with a rebalance", twoMembersShareFourPartitions);
  await check("admin", async () => {
    await makeTopic("js-admin", 2);
    await admin.createPartitions({ topicPartitions: [{ topic: "js-admin", count: 3 }] });
    const { topics } = await admin.fetchTopicMetadata({ topics: ["js-admin"] });
    assert.equal(topics[0].partitions.length, 3);
    assert.equal((await admin.fetchTopicOffsets("js-shapes"))[0].high, "3");
    assert.equal((await admin.fetchTopicOffsetsByTimestamp("js-shapes", 1))[0].offset, "0");
    assert.equal((await admin.describeCluster()).brokers.length, 1);
    await admin.deleteTopicRecords({ topic: "js-shapes", partitions: [{ partition: 0, offset: "1" }] });
    assert.equal((await admin.fetchTopicOffsets("js-shapes"))[0].low, "1");
    await admin.deleteTopics({ topics: ["js-admin"] });
    assert.ok(!(await admin.listTopics()).includes("js-admin"));
  });
  await check("config", async () => {
    await makeTopic("js-config", 1, [{ name: "retention.ms", value: "4321" }]);
    const resource = { type: ConfigResourceTypes.TOPIC, name: "js-config" };
    const value = async () =>
      (await admin.describeConfigs({ includeSynonyms: false, resources: [{ ...resource, configNames: ["retention.ms"] }] }))
        .resources[0].configEntries[0].configValue;
    assert.equal(await value(), "4321");
    await admin.alterConfigs({ validateOnly: false, resources: [{ ...resource, configEntries: [{ name: "retention.ms", value: "99" }] }] });
    assert.equal(await value(), "99");
  });
  await check("groups are listed and described", async () => {
    assert.ok((await admin.listGroups()).groups.some((g) => g.groupId === "g-shapes"));
    assert.equal((await admin.describeGroups(["g-shapes"])).groups[0].state, "Empty");
  });
}

async function after() {
  await check("commits survive a restart", async () => {
    const [{ partitions }] = await admin.fetchOffsets({ groupId: "g-shapes", topics: ["js-shapes"] });
    assert.equal(partitions[0].offset, "3");
    await send("js-shapes", [{ value: "after" }]);
    const [message] = await read("js-shapes", "g-shapes", 1);
    assert.equal(message.value.toString(), "after");
  });
  await check("groups are deleted", async () => {
    await admin.deleteGroups(["g-shapes"]);
    assert.ok(!(await admin.listGroups()).groups.some((g) => g.groupId === "g-shapes"));
  });
}

(async () => {
  await zstd.init();
  await admin.connect();
  await (phase === "before" ? before() : after());
  await admin.disconnect();
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
