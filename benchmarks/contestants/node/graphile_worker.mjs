// graphile-worker. The setup's `worker` is its preset's `worker` section.

import { DSN, SETTINGS, load } from "./given.mjs";
import { payload, started } from "./meter.mjs";

const { Logger, makeWorkerUtils, run, runMigrations } = load("graphile-worker");

// Its log line for every job is left out for everybody's sake: as in production, errors only.
const logger = new Logger(() => (level, message) => {
  if (level === "error") console.error(message);
});

export async function prepare() {
  await runMigrations({ connectionString: DSN, logger });
}

export async function work() {
  const runner = await run({
    logger,
    preset: { worker: { connectionString: DSN, ...SETTINGS.worker } },
    taskList: { noop: async ({ number }) => started(number) },
    parsedCronItems: [],
  });
  await runner.promise;
}

export async function open(concurrency) {
  const utils = await makeWorkerUtils({ connectionString: DSN, maxPoolSize: concurrency, logger });
  return {
    one: (number) => utils.addJob("noop", payload(number)),
    many: (numbers) => utils.addJobs(numbers.map((number) => ({ identifier: "noop", payload: payload(number) }))),
    close: () => utils.release(),
  };
}
