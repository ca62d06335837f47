-- name: insert_plain
select commandbus.add_plain($1::uuid, $2::text, $3::text, $4::text, $5::bigint::integer, $6::text,
    $7::boolean), 0::bigint

-- name: lock_capacity
-- Sends to a domain with a capacity count one after another; else two could take the last place.
select commandbus.lock_capacity($1::text)

-- name: count_pending
-- Counts no further than the capacity, so that a deep queue does not make sends slow.
select (select count(*) from (select 1 from commandbus.queue where domain = $1::text limit $2::bigint) q)
     + (select count(*) from (select 1 from commandbus.scheduled where domain = $1::text limit $2::bigint) s)
     + (select count(*) from (select 1 from commandbus.held where domain = $1::text limit $2::bigint) h)
     + (select count(*) from commandbus.partition p cross join lateral (select 1 from commandbus.queue q
        where q.domain = commandbus.partition_of(p.domain, p.requires) limit $2::bigint) q
        where p.domain = $1::text)

-- name: key_holders
select k.domain, k.unique_key, c.command_id
from unnest($1::text::text[], $2::text::text[]) as wanted (domain, unique_key)
cross join lateral (select * from commandbus.unique_key u
    where u.domain = wanted.domain and u.unique_key = wanted.unique_key limit 1) k
cross join lateral (select c.command_id from commandbus.command c where c.seq = k.seq limit 1) c

-- name: known_ids
-- Only asked about commands that were left out or refused.
select c.command_id, c.domain from unnest($1::text::uuid[], $2::text::text[]) as w (command_id, domain)
cross join lateral (select c.command_id, c.domain from commandbus.command c
    where c.command_id = w.command_id and c.domain = w.domain limit 1) c

-- name: hold_keys
-- Before a COPY, which cannot leave rows out: the keys that were free are ours from here on.
insert into commandbus.unique_key (domain, unique_key, seq)
select * from unnest($1::text::text[], $2::text::text[], $3::text::bigint[])
    as k (domain, unique_key, seq) order by domain, unique_key, seq
on conflict do nothing returning seq

-- name: draw_sequences
select commandbus.now_us(), array(
    select nextval('commandbus.command_seq_seq') from generate_series(1, $1::bigint)),
    exists (select 1 from commandbus.limit_rule)

-- name: copy_commands
-- From some dozens of commands on, COPY is the fastest way in.
copy commandbus.command (seq, created_at, due_at, command_id, domain, command_type, data, correlation_id,
    priority, {optional})
from stdin

-- name: copy_plain
-- The same for commands that have nothing else.
copy commandbus.command (seq, command_id, domain, command_type, data, correlation_id, priority,
    created_at, due_at)
from stdin (format binary)

-- name: copy_queue
copy commandbus.queue (domain, priority, seq, available_at, keyed) from stdin

-- name: copy_plain_places
copy commandbus.queue (domain, priority, seq, available_at, keyed) from stdin (format binary)

-- name: copy_scheduled
copy commandbus.scheduled (domain, due_at, seq, priority, keyed) from stdin

-- name: announce
-- The rest of a send by COPY: domains that are new, and workers that sleep for them.
with item as materialized (
    select * from unnest($1::text::text[], $2::text::bigint[]) as i (domain, due_in)),
known as (
    insert into commandbus.domain (domain) select domain from item order by domain
    on conflict do nothing)
select commandbus.wake(domain, due_in, $3::text || case when $5::boolean then '*' else '' end)
from item where $4::boolean order by domain

-- name: first_waiting
-- What a claim that the server cannot carry out may have met.
select priority, seq from commandbus.queue where domain = $1::text order by priority, seq limit $2::bigint

-- name: take_place
-- A row that cannot be claimed leaves the queue, with its command parked.
delete from commandbus.queue where domain = $1::text and priority = $2::integer and seq = $3::bigint
returning attempts, crashes

-- name: aged
-- Whose turn has come by waiting: $2 microseconds count as one step of priority. Of each less urgent
-- priority, up to which sequence its first rows come before the first row of the most urgent one.
with recursive priorities (priority) as (
    (select priority from commandbus.queue where domain = $1::text order by priority limit 1)
    union all
    select (select q.priority from commandbus.queue q
            where q.domain = $1::text and q.priority > p.priority order by q.priority limit 1)
    from priorities p where p.priority is not null),
first as materialized (
    select p.priority, f.seq, p.priority * $2::bigint + f.available_at as rank
    from priorities p cross join lateral (
        select q.seq, q.available_at from commandbus.queue q
        where q.domain = $1::text and q.priority = p.priority order by q.seq limit $3::bigint) f),
urgent as materialized (select priority, rank from first order by priority, seq limit 1)
select f.priority, max(f.seq) + 1 from first f cross join urgent u
where f.priority > u.priority and f.rank < u.rank
group by f.priority order by min(f.rank)

-- name: next_moment
-- When an idle worker should look again: the next due command, the end of someone else's lease, or
-- very soon when a row is there that another transaction holds locked, and may yet release.
select (select min(moment) from (
    select min(until) from commandbus.lease where worker <> $2::text
    union all
    select min(t.at) from commandbus.touch t where t.domain = any ($1::text::text[])
        and not exists (select 1 from commandbus.domain d
            where d.domain = t.domain and d.paused_at is not null)
    union all
    select case when exists (select 1 from commandbus.queue q where q.domain = wanted.domain)
        then m.now + 50000 else
            (select s.due_at from commandbus.scheduled s where s.domain = wanted.domain
             order by s.due_at limit 1) end
    from unnest($1::text::text[]) as wanted (domain)
    where not exists (select 1 from commandbus.domain d
        where d.domain = split_part(wanted.domain, '#', 1) and d.paused_at is not null)
    ) as x (moment)) - m.now
from (select commandbus.now_us() as now) m

-- name: sweep
-- Promotes due work, bounded so that a flood is promoted in several claims; adds up the tally; and
-- says whether there are expired leases, which domains have gates, for which work was promoted, in how
-- many microseconds more is due, and to which domains a rescue returned commands since $2 microseconds.
-- What another worker is promoting right now is skipped.
with moment as materialized (
    select commandbus.now_us() as now, set_config('synchronous_commit', 'off', true)),
due as (
    delete from commandbus.scheduled where ctid = any (array(
        select s.row_id from moment m
        cross join unnest($1::text::text[]) as wanted (domain)
        cross join lateral (
            select ctid as row_id from commandbus.scheduled
            where domain = wanted.domain and due_at <= m.now
            order by due_at, seq limit 10000 for update skip locked) s))
    returning *),
routed as materialized (
    select d.*, case when d.keyed or (select exists (select 1 from commandbus.limit_rule)) then
        (select commandbus.first_gate(c.domain, c.command_type, c.group_key, c.requires)
         from commandbus.command c where c.seq = d.seq limit 1) end as gate
    from due d),
ready as (
    insert into commandbus.queue (domain, priority, seq, available_at, attempts, crashes, releases, keyed)
    select domain, priority, seq, due_at, attempts, crashes, releases, keyed
    from routed where gate is null),
waiting as (
    insert into commandbus.held (domain, gate, priority, seq, available_at, attempts, crashes, releases)
    select domain, gate, priority, seq, due_at, attempts, crashes, releases
    from routed where gate is not null),
touched as (
    insert into commandbus.touch (domain, gate, at)
    select distinct r.domain, r.gate, m.now from routed r cross join moment m where r.gate is not null),
parts as (
    delete from commandbus.tally where ctid = any (array(
        select ctid from commandbus.tally
        where (select count(*) from (select 1 from commandbus.tally limit 200) t) = 200
        for update skip locked))
    returning *),
whole as (
    insert into commandbus.tally (domain, status, n)
    select domain, status, sum(n) from parts group by domain, status)
select exists (select 1 from commandbus.lease l where l.until <= m.now),
    array(select d.domain from commandbus.domain d where d.domain = any ($1::text::text[]) and d.gated),
    array(select distinct domain from due),
    (select min(s.due_at) from unnest($1::text::text[]) as wanted (domain)
        cross join lateral (
            select due_at from commandbus.scheduled
            where domain = wanted.domain and due_at > m.now order by due_at limit 1) s) - m.now,
    array(select d.key from commandbus.document d
        where d.kind = 'rescue' and d.due_at > m.now - $2::bigint and d.key = any ($1::text::text[]))
from moment m

-- name: take_expired
-- Rescue by lease, never by command: only the transaction that deletes the row gives its work back.
delete from commandbus.lease where lease_id in (
    select lease_id from commandbus.lease
    where until <= commandbus.now_us() and not lease_id = any ($1::text::bigint[])
    order by lease_id limit $2::bigint for update skip locked)
returning lease_id, domain, worker, claimed_at, seqs, unusual

-- name: note_rescue
-- Tells other processes that commands came back with old keys, which the bounds of their claims hide. The
-- hint may be lost in a crash.
with moment as materialized (
    select commandbus.now_us() as now, set_config('synchronous_commit', 'off', true))
insert into commandbus.document as d (kind, key, version, status, due_at, body)
select 'rescue', w.domain, 1, '', m.now, '{}'
from unnest($1::text::text[]) as w (domain) cross join moment m order by w.domain
on conflict (kind, key) do update set due_at = greatest(d.due_at, excluded.due_at)

-- name: lock_leases
select lease_id, domain, worker, claimed_at, version, seqs, unusual from commandbus.lease
where lease_id = any ($1::text::bigint[]) and until > commandbus.now_us() order by lease_id for update

-- name: columns_of
-- What the queue and batches need to know of commands that no worker reports about; and which of
-- them holds the permit of their group, or is in one's chain.
select c.seq, c.priority, c.batch_id, case when c.group_key is not null then (
    select s.seq from commandbus.permit s where s.domain = c.domain and s.gate = 'k:' || c.group_key
        and s.seq = any ($1::text::bigint[]) order by s.seq <> c.seq limit 1) end
from commandbus.command c where c.seq = any ($1::text::bigint[])

-- name: renew
-- Never shorter than it was, and only while it is valid; locked in order, as settles do.
with moment as materialized (
    select commandbus.now_us() as now, set_config('synchronous_commit', 'off', true)),
held as materialized (
    select lease_id from commandbus.lease
    where lease_id = any ($1::text::bigint[]) and until > (select now from moment)
    order by lease_id for update)
update commandbus.lease l set until = greatest(l.until, m.now + $2::bigint)
from held h, moment m where l.lease_id = h.lease_id
returning l.lease_id

-- name: keep_leases_of
-- A dead worker cannot renew them; the worker that notices its death settles them in this transaction.
with held as materialized (
    select lease_id from commandbus.lease where worker = $1::text order by lease_id for update)
update commandbus.lease l set until = greatest(l.until, commandbus.now_us() + $2::bigint)
from held h where l.lease_id = h.lease_id
returning l.lease_id, l.domain, l.seqs, l.unusual

-- name: recorded_leases
-- Which lease recorded which outcome: tells a repeated settle from a lost lease.
select o.seq, o.lease_id, o.status from unnest($1::text::bigint[]) as w (seq)
cross join lateral commandbus.outcome_of(w.seq) o

-- name: put_progress
insert into commandbus.progress (seq, percent, message, at)
select $1::bigint, $3::double precision, $4::text, commandbus.now_us() from commandbus.lease
where lease_id = $2::bigint and until > commandbus.now_us() and $1::bigint = any (seqs)
on conflict (seq) do update
set percent = excluded.percent, message = excluded.message, at = excluded.at
returning 1

-- name: sleep
-- Falls asleep for a domain: only in a moment without unfinished sends, see the function wake.
insert into commandbus.sleeper (domain, process, until)
select $1::text, $2::text, commandbus.now_us() + $3::bigint
from set_config('synchronous_commit', 'off', true)
where pg_try_advisory_xact_lock(commandbus.wake_key($1::text))
on conflict (domain, process) do update set until = excluded.until
returning until

-- name: hold_session
-- The connection that executes this speaks for its process from now on; no row when it cannot.
insert into commandbus.session (process, pid, key, server)
select $1::text, pg_backend_pid(), $2::bigint, pg_postmaster_start_time()
where pg_try_advisory_lock($2::bigint)
on conflict (process) do update
set pid = excluded.pid, key = excluded.key, server = excluded.server
returning pid

-- name: forget_ended
-- Processes that ended without a word sleep no more, and are forgotten when no worker is known that was
-- theirs. One whose connection is back meanwhile has another key, and other rows once it has fallen asleep
-- again. A fleet whose connections were all cut executes this at the same moment: it waits for no row, so
-- that no two of them wait for each other.
with known as materialized (
    select s.process, s.key from commandbus.session s where s.process <> $1::text),
asleep as materialized (select s.domain, s.process, s.until from commandbus.sleeper s),
ended as materialized (
    select process from commandbus.ended_sessions(array(select process from known)::text)),
forgotten as materialized (
    select s.process, s.key from commandbus.session s
    join known k on k.process = s.process and k.key = s.key join ended e on e.process = s.process
    where not exists (
        select 1 from commandbus.document d
        where d.kind = 'worker' and commandbus.as_jsonb(d.body) ->> 'session' = s.process)
    for update of s skip locked),
awake as materialized (
    select s.domain, s.process, s.until from commandbus.sleeper s
    join asleep a on a.domain = s.domain and a.process = s.process and a.until = s.until
    join ended e on e.process = s.process
    for update of s skip locked),
deleted as (
    delete from commandbus.session s using forgotten f where s.process = f.process and s.key = f.key)
delete from commandbus.sleeper s using awake a
where s.domain = a.domain and s.process = a.process and s.until = a.until

-- name: end_session
delete from commandbus.session where process = $1::text

-- name: awaken
-- No longer asleep: senders may spare themselves the notifications. A later row is that of a worker of the
-- process that has fallen asleep meanwhile.
delete from commandbus.sleeper s
using unnest($1::text::text[], $2::text::bigint[]) as known (domain, until)
where s.process = $3::text and s.domain = known.domain and s.until <= known.until
    and set_config('synchronous_commit', 'off', true) is not null

-- name: stay_asleep
-- The listener's sign of life, which proves its own connection at the same time.
update commandbus.sleeper set until = commandbus.now_us() + $2::bigint where process = $1::text
returning domain, until

-- name: forget_sleepers
delete from commandbus.sleeper where process = $1::text or until < commandbus.now_us()
