// What every driver in JavaScript shares; the tasks and events are those of kit.py.
const fs = require("node:fs");
const os = require("node:os");
const readline = require("node:readline");

const task = JSON.parse(process.argv[2]);
const now = () => Number(process.hrtime.bigint()) / 1e9;
const sleep = (seconds) => new Promise((wake) => setTimeout(wake, seconds * 1000));

function emit(event) {
  fs.writeSync(1, JSON.stringify(event) + "\n");
}

function payloadOf(size) {
  const length = Math.max(1, size - '{"text": ""}'.length);
  const letter = () => Math.random().toString(36).slice(2, 3) || "x";
  return { text: Array.from({ length }, letter).join("") };
}

async function ready() {
  emit({ ready: true });
  const input = readline.createInterface({ input: process.stdin });
  await new Promise((go) => input.once("line", go));
}

class Tally {
  begun = 0;
  told = 0;
  first = 0;
  busy = task.busy || 0;
  file = task.call ? fs.openSync(`${os.tmpdir()}/commandbus-bench-${process.pid}`, "w") : null;
  step = Math.max(1, Math.floor((task.count || 0) / 100));

  begin(data) {
    if (this.begun === 0) this.first = now();
    this.begun += 1;
    if (this.begun % this.step === 0) this.tell();
    if (data && data.at !== undefined) emit({ late: now() - data.at });
    if (this.file !== null) fs.writeSync(this.file, "0123456789abcdef", 0);
  }

  tell() {
    this.told = this.begun;
    emit({ begun: this.begun, first: this.first, at: now(), pid: process.pid });
  }

  report() {
    setInterval(() => this.told !== this.begun && this.tell(), 5);
  }
}

async function fill(peer) {
  const chunk = task.chunk || 1000;
  const data = payloadOf(task.size || 100);
  const began = now();
  for (let first = 0; first < task.count; first += chunk) {
    await peer.sendMany(Array(Math.min(chunk, task.count - first)).fill(data));
  }
  return now() - began;
}

async function singles(peer) {
  const data = payloadOf(100);
  const began = now();
  let count = 0;
  const send = async () => {
    while (now() < began + task.seconds) {
      await peer.send(data);
      count += 1;
    }
  };
  await Promise.all(Array.from({ length: task.senders }, send));
  return { count, seconds: now() - began };
}

async function paced(peer) {
  for (let number = 0; number < task.count; number += 1) {
    await sleep(task.pause * (0.5 + Math.random()));
    await (task.urgent ? peer.sendUrgent({ at: now() }) : peer.send({ at: now() }));
  }
}

async function carryOut(peer) {
  if (task.op === "setup") {
    await peer.setup();
    emit({ ready: true });
    emit({ done: true });
  } else if (task.op === "work") {
    const tally = new Tally();
    await peer.prepare(tally);
    await ready();
    tally.report();
    await peer.work(tally);
    return;
  } else {
    await peer.open();
    await ready();
    if (task.op === "fill") emit({ done: true, seconds: await fill(peer) });
    else if (task.op === "singles") emit({ done: true, ...(await singles(peer)) });
    else {
      await paced(peer);
      emit({ done: true });
    }
  }
  process.exit(0);
}

function main(peer) {
  carryOut(peer).catch((error) => {
    console.error(error);
    process.exit(1);
  });
}

module.exports = { main, sleep, task };
