// The Node twin of `benchmarks/meter.py`: same file format, written by a timer since Node cannot map a file.

import { openSync, writeSync } from "node:fs";
import { join } from "node:path";

const FLUSH_MS = 10;

let starts;
let size = 0;
let runs = 0n;

export function started(number) {
  if (starts === undefined) open();
  if (number < size) starts[number] = process.hrtime.bigint();
  runs += 1n;
}

export function payload(number) {
  return { number, note: "some words to fill it" };
}

function open() {
  size = Number(process.env.BENCH_METER_SIZE);
  starts = new BigInt64Array(size + 1);
  const bytes = Buffer.from(starts.buffer);
  const file = openSync(join(process.env.BENCH_METER, `${process.pid}.starts`), "w");
  let seen = 0n;
  let written = 0n;
  setInterval(() => {
    if (runs !== seen) {
      // Busy: only the count, which is cheap.
      seen = starts[size] = runs;
      writeSync(file, bytes, size * 8, 8, size * 8);
    } else if (runs !== written) {
      written = runs;
      writeSync(file, bytes, 0, bytes.length, 0);
    }
  }, FLUSH_MS).unref();
}
