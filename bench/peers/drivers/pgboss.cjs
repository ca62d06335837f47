// pg-boss: batches of the given size, polled as often as it allows.
const PgBoss = require("pg-boss");
const { main, sleep, task } = require("./kit.cjs");

const QUEUE = "bench";

async function start(options) {
  const boss = new PgBoss({ ...task.pg, max: 16, ...options });
  boss.on("error", (error) => console.error(error));
  await boss.start();
  return boss;
}

main({
  async setup() {
    const boss = await start({ supervise: false, schedule: false });
    await boss.createQueue(QUEUE);
  },
  async open() {
    this.boss = await start({ supervise: false, schedule: false, migrate: false });
  },
  send(data) {
    return this.boss.send(QUEUE, data);
  },
  sendMany(list) {
    return this.boss.insert(list.map((data) => ({ name: QUEUE, data })));
  },
  async prepare() {
    this.boss = await start({});
  },
  async work(tally) {
    const options = { batchSize: task.concurrency, pollingIntervalSeconds: 0.5 };
    await this.boss.work(QUEUE, options, async (jobs) => {
      await Promise.all(
        jobs.map((job) => {
          tally.begin(job.data);
          return tally.busy ? sleep(tally.busy) : undefined;
        }),
      );
    });
  },
});
