"""What one server carries, from what one command costs it; and what to change as a fleet grows."""

from __future__ import annotations

from dataclasses import dataclass

from bench.figures import Results, number

OURS = "commandbus"
RATES = (1_000, 5_000, 20_000, 50_000)
"""Commands per second, sent and carried out."""
SERVER_CORES = 16
USABLE = 0.7
"""Of a core's time: the rest is for vacuum, checkpoints and whoever else reads."""
POOLED_CONNECTIONS = 200


@dataclass(frozen=True)
class Cost:
    """Of one command, from its send to its outcome."""

    server_us: float
    worker_us: float
    wal: float
    commits: float
    connections: float
    """Of one worker."""
    idle: float
    """Statements per second of one worker."""

    def server_rate(self, cores: int) -> float:
        """Commands per second before the server's cores are full."""
        return cores * USABLE * 1e6 / self.server_us

    def workers(self, rate: float) -> int:
        """Processes that are needed for handlers that do nothing."""
        return max(1, round(rate * self.worker_us / (USABLE * 1e6) + 0.5))

    def wal_megabytes(self, rate: float) -> float:
        return rate * self.wal / 1e6


def cost(results: Results) -> Cost | None:
    names = ("send_cpu", "server_cpu", "worker_cpu", "send_wal", "wal", "commits")
    found = [results.median(OURS, name) for name in names]
    if any(value is None for value in found):
        return None
    send_cpu, server_cpu, worker_cpu, send_wal, wal, commits = (value or 0.0 for value in found)
    return Cost(
        server_us=send_cpu + server_cpu,
        worker_us=worker_cpu,
        wal=send_wal + wal,
        commits=commits,
        connections=float(results.growth.get("connections", 3.0)),
        idle=results.median(OURS, "idle") or 0.0,
    )


def section(results: Results) -> list[str]:
    """Markdown."""
    found = cost(results)
    if found is None:
        return []
    cores = int(results.about.get("cores") or 2)
    lines = [
        "## What one server carries",
        "",
        (
            "From the costs above: one command, sent in bulk and carried out, takes"
            f" {found.server_us:.0f} µs of the server's processors, {found.worker_us:.0f} µs of a"
            f" worker's and {number(found.wal)} bytes of WAL. A worker waits on"
            f" {found.connections:.0f} connections and, idle, sends {number(found.idle)} statements"
            f" per second. Processors are planned to {USABLE:.0%}. Commands that are sent one by one"
            " add a commit each; a sender with many at once shares them."
        ),
        "",
        "| commands/s | server cores | workers, no-op handlers | commits/s | WAL MB/s | GB/day |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for rate in RATES:
        wal = found.wal_megabytes(rate)
        lines.append(
            f"| {rate:,} | {rate * found.server_us / (USABLE * 1e6):.1f} | {found.workers(rate)} |"
            f" {number(rate * found.commits)} | {wal:.1f} | {wal * 86.4:.0f} |"
        )
    lines += [
        "",
        (
            f"So {cores} cores for the server alone carry about {number(found.server_rate(cores))}"
            f" commands per second, {SERVER_CORES} cores about"
            f" {number(found.server_rate(SERVER_CORES))} where locks and the WAL's one insertion path"
            " leave it that; measure before you believe the second figure."
        ),
        "",
        *stages(found),
    ]
    return lines


def stages(found: Cost) -> list[str]:
    pooled = int(POOLED_CONNECTIONS / max(1.0, found.connections))
    return [
        "| fleet | what limits it | what to change |",
        "|---|---|---|",
        "| 1 to 8 workers | the workers' own processors | nothing; one process per core |",
        (
            f"| up to {pooled} workers | connections: {found.connections:.0f} each,"
            f" {POOLED_CONNECTIONS} in all | raise `max_connections`; fast disk for the WAL;"
            " autovacuum stays at its defaults |"
        ),
        (
            f"| {pooled} to 500 workers | memory and snapshots of many connections | a pooler in"
            " transaction mode for claims and settles; wake-ups by polling or over a few direct"
            " connections |"
        ),
        (
            "| hundreds of workers, tens of thousands of commands per second | WAL volume, commits"
            " and one queue's hot index pages | several databases, one per domain or group of"
            " domains; history by partitions that are dropped, not deleted; synchronous replicas only"
            " where they are needed |"
        ),
        (
            "| many readers: dashboards, reports | reads beside the hot tables | replicas for reads;"
            " workers and sends stay on the primary |"
        ),
        "",
        (
            f"A fleet of 300 idle workers costs the server {number(300 * found.idle)} statements per"
            " second."
        ),
    ]
