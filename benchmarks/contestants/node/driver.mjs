// The Node twin of `benchmarks/contestants/driver.py`: the same verbs, the same loops, the same answers.
//
//     node driver.mjs ADAPTER VERB '{"setting": …}'

import { existsSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const CHUNK = 1000;
const WARM_UP = 500; // ms

const [adapterName, verb, given] = process.argv.slice(2);
const options = JSON.parse(given);
const adapter = await import(`./${adapterName}.mjs`);

const PRODUCING = {
  fill: () => produce("many", chunks(options.count), 1),
  enqueue: () => produce("one", numbers(), options.concurrency, options.seconds),
  enqueue_many: () => produce("many", chunks(Infinity), 1, options.seconds),
  pulse,
};

if (verb === "prepare") {
  await adapter.prepare();
  process.exit(0);
} else if (verb === "work") {
  await waitForGo();
  await adapter.work();
} else {
  console.log(JSON.stringify(await PRODUCING[verb]()));
  process.exit(0);
}

async function waitForGo() {
  const directory = process.env.BENCH_METER;
  writeFileSync(join(directory, `${process.pid}.ready`), "");
  while (!existsSync(join(directory, "go"))) await sleep(5);
}

// Given `seconds`, as long as that after a warm-up; `rate` is of the time after it, in jobs a second.
async function produce(call, source, concurrency, seconds) {
  const producer = await adapter.open(concurrency);
  let began = performance.now();
  const warmUntil = began + (seconds ? WARM_UP : 0);
  const ends = seconds ? warmUntil + seconds * 1000 : Infinity;
  let count = 0;
  let before = 0;
  const run = async () => {
    for (;;) {
      const now = performance.now();
      if (now > ends) return;
      const { value, done } = source.next();
      if (done) return;
      if (now < warmUntil) [before, began] = [count, now];
      count += Array.isArray(value) ? value.length : 1;
      await producer[call](value);
    }
  };
  await Promise.all(Array.from({ length: concurrency }, run));
  const rate = ((count - before) * 1000) / (performance.now() - began);
  await producer.close();
  return { count, rate };
}

async function pulse() {
  const producer = await adapter.open(1);
  const sent = [];
  for (let number = 0; number < options.count; number++) {
    await sleep(options.interval * 1000 * (0.75 + Math.random() / 2));
    sent.push(Number(process.hrtime.bigint()));
    await producer.one(number);
  }
  await producer.close();
  return { count: options.count, sent };
}

function* numbers() {
  for (let number = 0; ; number++) yield number;
}

function* chunks(count) {
  for (let at = 0; at < count; at += CHUNK) {
    yield Array.from({ length: Math.min(CHUNK, count - at) }, (_, index) => at + index);
  }
}
