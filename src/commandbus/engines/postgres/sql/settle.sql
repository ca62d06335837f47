-- name: settle
-- Everything that a batch of settlements writes, in one statement. The proof of a row is its lease,
-- as this process last saw it: the lease must exist, be valid and have the expected version, and it is
-- deleted or shrunk here; rows without such a lease are not written, and their leases are missing
-- from the answer. Proof 0 stands for what needs none: rescue and operators, who hold other locks.
-- Leases come sorted, so that settles and renewals lock them in one order. Arrays shorter than the
-- first stand for the ordinary value. The lists of rows are declared in settle_query.py; `before`, `fenced`,
-- `places` and `after` are parts of the transport. Most settles need few of the parts, and a statement takes
-- longer to begin than to end a few commands: `others` and `answer` are left out where nothing needs them.
with moment as materialized (select commandbus.now_us() as now),
{before}
finished as (
    delete from commandbus.lease l
    using moment m, {ending} as w
    where l.lease_id = w.lease_id and l.version = w.version and l.until > m.now {fenced}
    returning l.lease_id, l.domain),
shrunk as (
    update commandbus.lease l set version = l.version + 1, seqs = w.rest::bigint[]
    from moment m, {shrinking} as w
    where l.lease_id = w.lease_id and l.version = w.version and l.until > m.now {fenced}
    returning l.lease_id, l.domain),
proof as materialized (
    select lease_id, domain from finished
    union all select lease_id, domain from shrunk
    union all select 0, :unproved_domain::text where :unproved_domain::text is not null),
{others}
{ended}
tallied as (
    insert into commandbus.tally (domain, status, n)
    select p.domain, t.status, t.n
    from {tallies} as t join proof p on p.lease_id = t.proof)
{answer}

-- name: ended
ended as (
    insert into commandbus.outcome (seq, status, attempts, crashes, lease_id, worker, started_at,
        finished_at, result, error, reason)
    select case when o.proof = 0 then commandbus.refuse_ended(o.seq) else o.seq end,
        coalesce(o.status, 'COMPLETED'), coalesce(o.attempts, 1), coalesce(o.crashes, 0),
        nullif(o.proof, 0), :worker::text,
        case when o.proof <> 0 and o.reason is distinct from 'EXPIRED' then m.now - o.ran end, m.now,
        o.result, o.error, o.reason
    from moment m, {outcomes} as o
    where o.proof in (select lease_id from proof)),

-- name: ended_plainly
-- Completed at the first attempt, without a result, and all under one lease: as most that are too few for
-- a receipt.
ended as (
    insert into commandbus.outcome (seq, status, attempts, crashes, lease_id, worker, started_at,
        finished_at)
    select o.seq, 'COMPLETED', 1, 0, p.lease_id, :worker::text, m.now - o.ran, m.now
    from moment m cross join proof p cross join {plain_outcomes} as o),

-- name: receipts_written
receipted as (
    insert into commandbus.receipt (first_seq, last_seq, lease_id, finished_at, members, worker, ran)
    select r.first_seq, r.last_seq, r.proof, m.now, r.members, :worker::text, r.ran::integer[]
    from moment m, {receipts} as r
    where r.proof in (select lease_id from proof)),

-- name: settle_others
freed as (
    delete from commandbus.unique_key k
    using {freed} as f
    where k.seq = f.seq and f.proof in (select lease_id from proof)
        and (select exists (select 1 from commandbus.unique_key))),
-- The permit of a group stays with others of a chain, as long as there are any.
handed_over as (
    update commandbus.permit s set seq = h.heir
    from {heirs} as h
    where s.seq = h.holder and h.proof in (select lease_id from proof)),
left_permits as (
    delete from commandbus.permit s
    using {left_permits} as f
    where s.seq = f.seq and f.proof in (select lease_id from proof)
    returning s.domain, s.gate, s.seq, f.back),
-- A command that ends in a group of one at a time lets the next one pass: nothing else can, as long as
-- its permit is taken. Not where one comes back, and may be the next one; nor where a limit decides.
handed as materialized (
    select s.domain, s.gate, n.* from left_permits s
    cross join lateral (
        select ctid as row_id, h.priority, h.seq, h.available_at, h.attempts, h.crashes, h.releases
        from commandbus.held h where h.domain = s.domain and h.gate = s.gate
        order by h.priority, h.seq limit 1 for update skip locked) n
    where s.gate like 'k:%' and not s.back
        and not exists (select 1 from commandbus.held x where x.domain = s.domain and x.gate = s.gate
            and (x.priority, x.seq) < (n.priority, n.seq))
        and s.domain not in (select domain from commandbus.limit_rule)
        and s.domain not in (select domain from commandbus.partition)
        and not exists (select 1 from commandbus.permit x
            where x.domain = s.domain and x.gate = s.gate and x.seq <> s.seq)),
not_held as (
    delete from commandbus.held where ctid = any (array(select row_id from handed))),
permitted as (
    insert into commandbus.permit (domain, gate, seq) select domain, gate, seq from handed),
passed as (
    insert into commandbus.queue (domain, priority, seq, available_at, attempts, crashes, releases, keyed)
    select domain, priority, seq, available_at, attempts, crashes, releases, true from handed),
touched as (
    insert into commandbus.touch (domain, gate, at)
    select distinct s.domain, s.gate, m.now from left_permits s cross join moment m
    where (s.domain, s.gate) not in (select domain, gate from handed)),
back as materialized (
    select p.domain, b.*, m.now, c.gate, c.requires from moment m cross join {requeues} as b
    join proof p on p.lease_id = b.proof
    left join lateral (
        select c.requires,
            commandbus.first_gate(c.domain, c.command_type, c.group_key, c.requires) as gate
        from commandbus.command c
        where c.seq = b.seq and (b.keyed or (select exists (select 1 from commandbus.limit_rule)))
        limit 1) c on true),
{places}
noted as (
    insert into commandbus.audit (seq, kind, at, details)
    select a.seq, a.kind, m.now, a.details
    from moment m, {audits} with ordinality as a
    where a.proof in (select lease_id from proof) order by a.n),
counted as (
    insert into commandbus.batch_count as b (batch_id, shard, completed, failed, canceled, parked)
    select c.batch_id, coalesce(:worker::text, ''), sum(c.completed), sum(c.failed), sum(c.canceled),
        sum(c.parked)
    from {batch_counts} as c
    where c.proof in (select lease_id from proof) group by c.batch_id order by c.batch_id
    on conflict (batch_id, shard) do update set completed = b.completed + excluded.completed,
        failed = b.failed + excluded.failed, canceled = b.canceled + excluded.canceled,
        parked = b.parked + excluded.parked),
woken as materialized (
    select commandbus.wake(w.domain, min(w.delay),
        case when bool_or(w.requires is not null) then :origin::text || '*' else :origin::text end)
    from (select domain, delay, requires from back
        union all select domain, 0, null from left_permits) w
    where :notify::boolean group by w.domain),

-- name: settle_answer
select p.lease_id, p.domain, h.priority, h.seq from proof p
left join (select domain, priority, min(seq) as seq from handed group by domain, priority) h
    on h.domain = p.domain
where (select count(*) from woken) is not null {after}

-- name: ends_answer
-- Where nothing can have let others pass.
select lease_id, domain, null::integer, null::bigint from proof where true {after}

-- name: settle_places
-- Where commands go that come back: to the queue, to their first gate, or to their time.
ready as (
    insert into commandbus.queue (domain, priority, seq, available_at, attempts, crashes, releases, keyed)
    select domain, priority, seq, now, attempts, crashes, releases, keyed
    from back where delay = 0 and gate is null),
waiting as (
    insert into commandbus.held (domain, gate, priority, seq, available_at, attempts, crashes, releases)
    select domain, gate, priority, seq, now, attempts, crashes, releases
    from back where delay = 0 and gate is not null),
returned as (
    insert into commandbus.touch (domain, gate, at)
    select distinct domain, gate, now from back where delay = 0 and gate is not null),
later as (
    insert into commandbus.scheduled (domain, due_at, seq, priority, attempts, crashes, releases, keyed)
    select domain, now + delay, seq, priority, attempts, crashes, releases, keyed or gate is not null
    from back where delay > 0),
