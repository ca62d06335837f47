-- name: records
-- Everything known about commands. A row without outcome and without a place in a queue is running.
select c.seq, c.created_at, c.due_at, o.status, o.attempts, o.crashes, o.lease_id, o.worker, o.started_at,
    o.finished_at, o.result, o.error, o.reason,
    coalesce(q.attempts, s.attempts, h.attempts), coalesce(q.crashes, s.crashes, h.crashes),
    coalesce(q.available_at, s.due_at, h.available_at),
    p.percent, p.message, p.at,
    case when o.seq is null then (select a.details from commandbus.audit a
        where a.seq = c.seq and a.kind in ('FAILED', 'WORKER_LOST', 'MOVED_TO_TSQ')
        order by a.id desc limit 1) end,
    c.domain, c.command_type, c.command_id, c.data, c.correlation_id, c.priority, {c_optional}
from commandbus.command c
left join lateral commandbus.outcome_of(c.seq) o on true
left join commandbus.queue q on q.domain = commandbus.partition_of(c.domain, c.requires)
    and q.priority = c.priority and q.seq = c.seq
left join commandbus.scheduled s on s.seq = c.seq
left join commandbus.held h on h.seq = c.seq
left join commandbus.progress p on p.seq = c.seq

-- name: standing
-- Where a command stands, with its waiting row or its outcome locked, so that no other transaction takes it away.
select c.seq, c.priority, c.data, c.unique_key is not null, o.status, o.attempts, o.crashes, o.error,
    coalesce(q.attempts, s.attempts, h.attempts), coalesce(q.crashes, s.crashes, h.crashes),
    coalesce(q.seq, h.seq) is not null, s.seq is not null, c.batch_id
from commandbus.command c
left join lateral commandbus.lock_outcome(c.seq) o on true
left join lateral (select * from commandbus.queue q
    where q.domain = commandbus.partition_of(c.domain, c.requires) and q.priority = c.priority and q.seq = c.seq limit 1 for update) q on true
left join lateral (select * from commandbus.scheduled s where s.seq = c.seq limit 1 for update) s on true
left join lateral (select * from commandbus.held h where h.seq = c.seq limit 1 for update) h on true
where c.command_id = $1::uuid and c.domain = $2::text

-- name: delete_waiting
with ready as (delete from commandbus.queue q using commandbus.command c
    where c.seq = $3::bigint and q.domain = commandbus.partition_of($1::text, c.requires)
        and q.priority = $2::integer and q.seq = $3::bigint
    returning q.attempts, q.crashes, q.releases, q.available_at),
later as (delete from commandbus.scheduled where seq = $3::bigint
    returning attempts, crashes, releases, due_at),
held as (delete from commandbus.held where seq = $3::bigint
    returning attempts, crashes, releases, available_at)
select ready.*, commandbus.now_us() from ready union all select later.*, commandbus.now_us() from later
union all select held.*, commandbus.now_us() from held

-- name: edit_command
-- By an operator, while it waits: claims and retries go by these columns.
update commandbus.command set priority = coalesce($2::integer, priority),
    due_at = coalesce($3::bigint, due_at)
where seq = $1::bigint returning priority, command_type

-- name: revoke_parked
select commandbus.revoke_parked($1::bigint, $2::text)

-- name: take_up
-- A command is parked no more, and what an operator did about it is counted.
with gone as (delete from commandbus.outcome where seq = $1::bigint returning seq),
tallied as (insert into commandbus.tally (domain, status, n)
    select $2::text, t.status, t.n
    from gone, (values ('IN_TROUBLESHOOTING_QUEUE', -1), ($3::text, 1)) as t (status, n))
select seq from gone

-- name: note
-- Takes no lock: a worker notes, too, and may only add to the audit.
insert into commandbus.audit (seq, kind, at, details)
select c.seq, $3::text, commandbus.now_us(), $4::text
from commandbus.command c left join commandbus.outcome o on o.seq = c.seq
where c.command_id = $1::uuid and c.domain = $2::text and (not $5::boolean or o.status = 'IN_TROUBLESHOOTING_QUEUE')
returning seq

-- name: send_back
-- By an operator: it is due from now on, so that the time in which it was parked does not count.
update commandbus.command set due_at = commandbus.now_us(), data = coalesce($2::text, data)
where seq = $1::bigint

-- name: leases
select worker, claimed_at, seqs, unusual from commandbus.lease

-- name: endings
select c.command_id, c.domain, o.status, o.result, o.error, o.reason
from unnest($1::text::uuid[], $2::text::text[]) as w (command_id, domain)
cross join lateral (select c.seq, c.command_id, c.domain from commandbus.command c
    where c.command_id = w.command_id and c.domain = w.domain limit 1) c
cross join lateral commandbus.outcome_of(c.seq) o
where o.status <> 'IN_TROUBLESHOOTING_QUEUE'

-- name: parked
-- Parked commands, by way of the index of what did not simply complete.
select count(*) from commandbus.outcome o join commandbus.command c on c.seq = o.seq
where o.status = 'IN_TROUBLESHOOTING_QUEUE' and ($1::text is null or c.domain = $1::text)
    and ($2::text is null or c.command_type = $2::text)

-- name: group_parked
select c.domain, c.command_type, g.n, g.oldest, g.newest, c.command_id, o.error
from commandbus.group_parked($1::text, $2::text) g
join commandbus.command c on c.seq = g.example join commandbus.outcome o on o.seq = g.example

-- name: overdue
-- Parked for long, and not reported since.
select c.domain, c.command_id, c.command_type, o.finished_at, commandbus.as_jsonb(o.error) ->> 'code'
from commandbus.outcome o join commandbus.command c on c.seq = o.seq
where o.status = 'IN_TROUBLESHOOTING_QUEUE' and o.finished_at <= commandbus.now_us() - $1::bigint
    and not exists (select 1 from commandbus.audit a
        where a.seq = o.seq and a.kind = 'ESCALATED' and a.at >= o.finished_at)
order by o.seq limit $2::bigint

-- name: audit
select kind, at, details from commandbus.audit where seq = $1::bigint order by id

-- name: stats
-- Counted no further than the limit. The oldest of each priority are among its first sequences, so a
-- deep queue is not walked for them.
with recursive priorities (priority) as (
    (select priority from commandbus.queue where domain = $1::text order by priority limit 1)
    union all
    select (select q.priority from commandbus.queue q
            where q.domain = $1::text and q.priority > p.priority order by q.priority limit 1)
    from priorities p where p.priority is not null)
select m.now,
    (select count(*) from (select 1 from commandbus.queue where domain = $1::text
        limit $2::bigint) w),
    (select count(*) from (select 1 from commandbus.scheduled
        where domain = $1::text and due_at > m.now limit $2::bigint) w),
    (select count(*) from (select 1 from commandbus.scheduled
        where domain = $1::text and due_at <= m.now limit $2::bigint) w),
    (select coalesce(sum(cardinality(seqs)), 0)::bigint from commandbus.lease where domain = $1::text),
    least(h.oldest, t.oldest, (select min(f.available_at) from priorities p cross join lateral (
        select q.available_at from commandbus.queue q
        where q.domain = $1::text and q.priority = p.priority order by q.seq limit 100) f)),
    (select min(due_at) from commandbus.scheduled where domain = $1::text),
    (select paused_at from commandbus.domain where domain = $1::text),
    (select paused_reason from commandbus.domain where domain = $1::text),
    h.count, t.count
from (select commandbus.now_us() as now) m
cross join (select count(*), min(w.available_at) as oldest from (
    select available_at from commandbus.held where domain = $1::text limit $2::bigint) w) h
cross join (select count(*), min(q.available_at) as oldest from commandbus.partition p
    join commandbus.queue q on q.domain = commandbus.partition_of(p.domain, p.requires)
    where p.domain = $1::text) t

-- name: foreign_leases
-- When the first lease of another worker ends; and the workers with leases whose connection is closed.
select min(l.until) - commandbus.now_us(), coalesce(array_agg(distinct l.worker) filter (
    where l.worker = any (array(
        select d.key from commandbus.document d
        join commandbus.ended_sessions(array(
            select distinct commandbus.as_jsonb(d.body) ->> 'session' from commandbus.document d
            where d.kind = 'worker' and d.key in (select l.worker from commandbus.lease l))::text) e
            on e.process = commandbus.as_jsonb(d.body) ->> 'session'
        where d.kind = 'worker' and e.certain))), '{}')
from commandbus.lease l where l.worker <> $1::text

-- name: ended_sessions
select process from commandbus.ended_sessions($1::text)

-- name: ahead
-- Reads the index, up to the limit of the caller.
select count(*) from (select 1 from commandbus.queue
    where domain = $1::text and (priority, seq) < ($2::integer, $3::bigint) limit $4::bigint) a

-- name: tally
select status, sum(n)::bigint from commandbus.tally where domain = $1::text group by status

-- name: domains
select domain from commandbus.domain order by domain

-- name: last_sequence
select coalesce((select seq from commandbus.command order by seq desc limit 1), 0)

-- name: look_up_command
-- Along the index of the ids; the last row says how many were looked at, and where the look ended.
with looked (id) as materialized (select command_id from commandbus.command
    where command_id >= $1::uuid and command_id <= $2::uuid order by command_id desc limit $4::bigint)
select id, 0 from looked where right(replace(id::text, '-', ''), length($3::text)) = $3::text
union all
select (select id from looked order by id limit 1), (select count(*) from looked)

-- name: look_up_process
with looked (id) as materialized (select process_id from commandbus.process
    where process_id >= $1::uuid and process_id <= $2::uuid order by process_id desc limit $4::bigint)
select id, 0 from looked where right(replace(id::text, '-', ''), length($3::text)) = $3::text
union all
select (select id from looked order by id limit 1), (select count(*) from looked)

-- name: few_waiting
-- What waits, when it is little: then a page of pending commands need not look for them.
(select seq from commandbus.queue limit $1::bigint)
union all
(select seq from commandbus.scheduled limit $1::bigint)
union all
(select seq from commandbus.held limit $1::bigint)
limit $1::bigint

-- name: search_audit
-- Along the primary key, newest first, and no further back than the span.
select a.id, c.command_type, c.domain, c.command_id, a.kind, a.at, a.details
from commandbus.audit a join commandbus.command c on c.seq = a.seq
where a.id < coalesce($1::bigint, 9223372036854775807)
    and a.id > coalesce($1::bigint, (select id + 1 from commandbus.audit order by id desc limit 1))
        - $2::bigint
    and ($3::text is null or a.kind = $3::text) and ($4::text is null or c.domain = $4::text)
    and ($5::text is null or commandbus.as_jsonb(a.details) ->> 'actor' = $5::text)
order by a.id desc limit $6::bigint

-- name: ended_floor
select commandbus.ended_floor($1::bigint, $2::bigint)

-- name: recent_runs
select c.domain, o.status, o.attempts, c.due_at, o.started_at, o.finished_at
from (select e.* from (select commandbus.ended_floor(9223372036854775807, $1::bigint) as floor offset 0) b
    cross join lateral commandbus.ended_between(b.floor, 9223372036854775807) e
    order by e.seq desc limit $1::bigint) o
join commandbus.command c on c.seq = o.seq order by o.seq desc

-- name: prune
-- A piece of all outcomes in order of sequence; which of them go is decided by their moment. What a
-- process that has not ended may still ask for ended at no moment yet, nor did a member of an open batch;
-- of a complete one, members ended with it. Those whose trail names an operator come with domain and id,
-- for the ledger.
with seen as materialized (
    select o.seq, o.status, c.created_at, c.domain, c.command_id, case when c.reply_to is not null and exists (
            select 1 from commandbus.process p
            where p.process_id = c.correlation_id and p.finished_at is null)
        then 9223372036854775807 when c.batch_id is null then o.finished_at
        else greatest(o.finished_at, (
            select case when d.status = 'open' then 9223372036854775807
                else (commandbus.as_jsonb(d.body) ->> 'completed_at')::bigint end
            from commandbus.document d where d.kind = 'batch' and d.key = c.batch_id::text))
        end as finished_at
    from (select e.* from (
            select commandbus.ended_ceiling($1::bigint, $2::bigint) as ceiling offset 0) b
        cross join lateral commandbus.ended_between($1::bigint + 1, b.ceiling) e
        order by e.seq limit $2::bigint) o
    join commandbus.command c on c.seq = o.seq),
-- Receipts are locked before rows, as by erasure.
past as materialized (
    select seq from seen where finished_at < ($3::text::jsonb ->> status)::bigint),
gone_rows as (delete from commandbus.outcome where seq in (select seq from past) returning seq),
gone as materialized (
    select seq from commandbus.take_receipts(array(select seq from past))
    union all select seq from gone_rows),
commands as (delete from commandbus.command where seq in (select seq from gone)),
events as (delete from commandbus.audit where seq in (select seq from gone)
    returning seq, kind, details),
steps as (delete from commandbus.progress where seq in (select seq from gone))
select seq, status, finished_at, created_at, case when seq in (select e.seq from events e
        where e.kind = any ($4::text::text[]) or e.details like '%"actor"%') then domain || ' ' || command_id end
from seen order by seq

-- name: set_paused
-- Returns a row when that changes something.
insert into commandbus.domain as known (domain, paused_at, paused_reason, paused_by)
select $1::text, case when $2::boolean then commandbus.now_us() end, $3::text, $4::text
where $2::boolean or exists (select from commandbus.domain d where d.domain = $1::text)
on conflict (domain) do update set paused_at = excluded.paused_at,
    paused_reason = excluded.paused_reason, paused_by = excluded.paused_by
    where (known.paused_at is null) <> (excluded.paused_at is null)
        or known.paused_reason is distinct from excluded.paused_reason
returning 1

-- name: wake
select commandbus.wake($1::text, 0, $2::text) where $3::boolean

-- name: check
-- The update matches nothing and still asks for everything that a write needs, tables included.
with written as (update commandbus.domain set paused_by = null where domain = '' returning 1)
select (select count(*) from written), (select max(version) from commandbus.migration)
