// What the harness gives a contestant's process, and the packages it was installed with.

import { createRequire } from "node:module";

export const DSN = process.env.BENCH_DSN;
export const SETTINGS = JSON.parse(process.env.BENCH_SETTINGS);

// The packages lie in an environment of their own, not above this file.
export const load = createRequire(process.env.BENCH_MODULES);
