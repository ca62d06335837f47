// graphile-worker, plain or with its local queue and batched completions.
const { Pool } = require("pg");
const { Logger, makeWorkerUtils, run } = require("graphile-worker");
const { main, sleep, task } = require("./kit.cjs");

const logger = new Logger(() => () => {});
const batched = {
  worker: {
    localQueue: { size: 500 },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
  },
};

main({
  async setup() {
    const utils = await makeWorkerUtils({ pgPool: new Pool({ ...task.pg }), logger });
    await utils.migrate();
  },
  async open() {
    this.utils = await makeWorkerUtils({ pgPool: new Pool({ ...task.pg, max: 16 }), logger });
  },
  send(data) {
    return this.utils.addJob("work", data);
  },
  sendUrgent(data) {
    return this.utils.addJob("work", data, { priority: -10 });
  },
  sendMany(data) {
    return this.utils.addJobs(data.map((payload) => ({ identifier: "work", payload })));
  },
  async prepare() {
    this.pool = new Pool({ ...task.pg, max: task.variant === "batched" ? 16 : 22 });
    const client = await this.pool.connect();
    client.release();
  },
  async work(tally) {
    await run({
      pgPool: this.pool,
      logger,
      concurrency: task.concurrency,
      noHandleSignals: true,
      crontab: "",
      preset: task.variant === "batched" ? batched : undefined,
      taskList: {
        work: tally.busy
          ? (data) => {
              tally.begin(data);
              return sleep(tally.busy);
            }
          : (data) => tally.begin(data),
      },
    });
  },
});
