// pg-boss. The setup's `boss` goes to the constructor, `queue` to `createQueue`, `work` to `work`.

import { DSN, SETTINGS, load } from "./given.mjs";
import { payload, started } from "./meter.mjs";

const { PgBoss } = load("pg-boss");
const QUEUE = "noop";

async function start(options) {
  const boss = new PgBoss({ connectionString: DSN, ...SETTINGS.boss, ...options });
  boss.on("error", console.error);
  await boss.start();
  return boss;
}

export async function prepare() {
  const boss = await start({});
  await boss.createQueue(QUEUE, SETTINGS.queue ?? {});
  await boss.stop();
}

export async function work() {
  const boss = await start({});
  await boss.work(QUEUE, SETTINGS.work ?? {}, async (jobs) => {
    for (const job of jobs) started(job.data.number);
  });
  process.on("SIGTERM", async () => {
    await boss.stop();
    process.exit(0);
  });
}

export async function open(concurrency) {
  const boss = await start({ max: concurrency, supervise: false, schedule: false });
  return {
    one: (number) => boss.send(QUEUE, payload(number)),
    many: (numbers) => boss.insert(QUEUE, numbers.map((number) => ({ data: payload(number) }))),
    close: () => boss.stop({ graceful: false }),
  };
}
