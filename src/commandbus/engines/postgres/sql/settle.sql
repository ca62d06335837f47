-- name: settle
-- Everything that a batch of settlements writes, in one statement. The proof of a row is its lease,
-- as this process last saw it: the lease must exist, be valid and have the expected version, and it is
-- deleted or shrunk here; rows without such a lease are not written, and their leases are missing
-- from the answer. Proof 0 stands for what needs none: rescue and operators, who hold other locks.
-- Leases come sorted, so that settles and renewals lock them in one order. Arrays shorter than the
-- first stand for the ordinary value. The marked parts are those that another transport puts its own
-- in place of.
with moment as materialized (select commandbus.now_us() as now),
/* before */
finished as (
    delete from commandbus.lease l
    using moment m, unnest($1::text::bigint[], $2::text::integer[]) as w (lease_id, version)
    where l.lease_id = w.lease_id and l.version = w.version and l.until > m.now /* proof */
    returning l.lease_id, l.domain),
shrunk as (
    update commandbus.lease l set version = l.version + 1, seqs = w.rest::bigint[]
    from moment m,
        unnest($3::text::bigint[], $4::text::integer[], $5::text::text[]) as w (lease_id, version, rest)
    where l.lease_id = w.lease_id and l.version = w.version and l.until > m.now /* proof */
    returning l.lease_id, l.domain),
proof as materialized (
    select lease_id, domain from finished
    union all select lease_id, domain from shrunk
    union all select 0, $6::text where $6::text is not null),
ended as (
    insert into commandbus.outcome (seq, status, attempts, crashes, lease_id, worker, started_at,
        finished_at, result, error, reason)
    select o.seq, coalesce(o.status, 'COMPLETED'), coalesce(o.attempts, 1), coalesce(o.crashes, 0),
        nullif(o.proof, 0), $7::text,
        case when o.proof <> 0 and o.reason is distinct from 'EXPIRED' then m.now - o.ran end, m.now,
        o.result, o.error, o.reason
    from moment m, rows from (
        unnest($8::text::bigint[]), unnest($9::text::bigint[]), unnest($10::text::text[]),
        unnest($11::text::smallint[]), unnest($12::text::smallint[]), unnest($13::text::bigint[]),
        unnest($14::text::text[]), unnest($15::text::text[]), unnest($16::text::text[])
    ) as o (proof, seq, status, attempts, crashes, ran, result, error, reason)
    where o.proof in (select lease_id from proof)),
tallied as (
    insert into commandbus.tally (domain, status, n)
    select p.domain, t.status, t.n
    from unnest($17::text::bigint[], $18::text::text[], $19::text::bigint[]) as t (proof, status, n)
    join proof p on p.lease_id = t.proof),
freed as (
    delete from commandbus.unique_key k
    using unnest($20::text::bigint[], $21::text::bigint[]) as f (proof, seq)
    where k.seq = f.seq and f.proof in (select lease_id from proof)
        and (select exists (select 1 from commandbus.unique_key))),
-- The place of a group stays with others of a chain, as long as there are any.
handed_over as (
    update commandbus.slot s set seq = h.heir
    from unnest($45::text::bigint[], $46::text::bigint[], $47::text::bigint[]) as h (proof, holder, heir)
    where s.seq = h.holder and h.proof in (select lease_id from proof)),
left_slots as (
    delete from commandbus.slot s
    using unnest($42::text::bigint[], $43::text::bigint[], $44::text::boolean[]) as f (proof, seq, back)
    where s.seq = f.seq and f.proof in (select lease_id from proof)
    returning s.domain, s.gate, s.seq, f.back),
-- Whoever ends in a group that runs one at a time lets the next one pass: nobody else can, as long as
-- its slot is taken. Not where somebody comes back, and may be the next one; nor where a limit decides.
handed as materialized (
    select s.domain, s.gate, n.* from left_slots s
    cross join lateral (
        select ctid as place, h.priority, h.seq, h.available_at, h.attempts, h.crashes, h.releases
        from commandbus.held h where h.domain = s.domain and h.gate = s.gate
        order by h.priority, h.seq limit 1 for update skip locked) n
    where s.gate like 'k:%' and not s.back
        and not exists (select 1 from commandbus.held x where x.domain = s.domain and x.gate = s.gate
            and (x.priority, x.seq) < (n.priority, n.seq))
        and s.domain not in (select domain from commandbus.limit_rule)
        and s.domain not in (select domain from commandbus.place)
        and not exists (select 1 from commandbus.slot x
            where x.domain = s.domain and x.gate = s.gate and x.seq <> s.seq)),
not_held as (
    delete from commandbus.held where ctid = any (array(select place from handed))),
slotted as (
    insert into commandbus.slot (domain, gate, seq) select domain, gate, seq from handed),
passed as (
    insert into commandbus.queue (domain, priority, seq, available_at, attempts, crashes, releases, keyed)
    select domain, priority, seq, available_at, attempts, crashes, releases, true from handed),
touched as (
    insert into commandbus.touch (domain, gate, at)
    select distinct s.domain, s.gate, m.now from left_slots s cross join moment m
    where (s.domain, s.gate) not in (select domain, gate from handed)),
back as materialized (
    select p.domain, b.*, m.now, c.gate, c.requires from moment m cross join rows from (
        unnest($22::text::bigint[]), unnest($23::text::bigint[]), unnest($24::text::integer[]),
        unnest($25::text::smallint[]), unnest($26::text::smallint[]), unnest($27::text::smallint[]),
        unnest($28::text::boolean[]), unnest($29::text::bigint[])
    ) as b (proof, seq, priority, attempts, crashes, releases, keyed, delay)
    join proof p on p.lease_id = b.proof
    left join lateral (
        select c.requires,
            commandbus.first_gate(c.domain, c.command_type, c.group_key, c.requires) as gate
        from commandbus.command c
        where c.seq = b.seq and (b.keyed or (select exists (select 1 from commandbus.limit_rule)))
        limit 1) c on true),
/* places */
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
/* end of places */
noted as (
    insert into commandbus.audit (seq, kind, at, details)
    select a.seq, a.kind, m.now, a.details
    from moment m, unnest($30::text::bigint[], $31::text::bigint[], $32::text::text[],
        $33::text::text[]) with ordinality as a (proof, seq, kind, details, n)
    where a.proof in (select lease_id from proof) order by a.n),
counted as (
    insert into commandbus.batch_count as b (batch_id, shard, completed, failed, canceled, parked)
    select c.batch_id, coalesce($7::text, ''), sum(c.completed), sum(c.failed), sum(c.canceled),
        sum(c.parked)
    from unnest($36::text::bigint[], $37::text::uuid[], $38::text::bigint[], $39::text::bigint[],
        $40::text::bigint[], $41::text::bigint[])
        as c (proof, batch_id, completed, failed, canceled, parked)
    where c.proof in (select lease_id from proof) group by c.batch_id order by c.batch_id
    on conflict (batch_id, shard) do update set completed = b.completed + excluded.completed,
        failed = b.failed + excluded.failed, canceled = b.canceled + excluded.canceled,
        parked = b.parked + excluded.parked),
woken as materialized (
    select commandbus.wake(w.domain, min(w.delay),
        case when bool_or(w.requires is not null) then $34::text || '*' else $34::text end)
    from (select domain, delay, requires from back
        union all select domain, 0, null from left_slots) w
    where $35::boolean group by w.domain)
select p.lease_id, p.domain, h.priority, h.seq from proof p
left join (select domain, priority, min(seq) as seq from handed group by domain, priority) h
    on h.domain = p.domain
where (select count(*) from woken) is not null /* after */
