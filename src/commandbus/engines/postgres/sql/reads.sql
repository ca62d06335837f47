-- name: records
-- Everything known about commands. A row without outcome and without a place in a queue is running.
select c.seq, c.domain, c.command_type, c.command_id, c.data, c.correlation_id, c.causation_id,
    c.reply_to, c.priority, c.max_attempts, c.created_at, c.due_at, c.expires_at, c.unique_key,
    c.tags, c.headers,
    o.status, o.attempts, o.crashes, o.lease_id, o.worker, o.started_at, o.finished_at, o.result,
    o.error, o.reason,
    coalesce(q.attempts, s.attempts), coalesce(q.crashes, s.crashes),
    coalesce(q.available_at, s.due_at),
    p.percent, p.message, p.at,
    case when o.seq is null then (select a.details from commandbus.audit a
        where a.seq = c.seq and a.kind in ('FAILED', 'WORKER_LOST', 'MOVED_TO_TSQ')
        order by a.id desc limit 1) end,
    c.batch_id
from commandbus.command c
left join commandbus.outcome o on o.seq = c.seq
left join commandbus.queue q on q.domain = c.domain and q.priority = c.priority and q.seq = c.seq
left join commandbus.scheduled s on s.seq = c.seq
left join commandbus.progress p on p.seq = c.seq

-- name: standing
-- Where a command stands, with its waiting row or its outcome locked, so that nobody takes it away.
select c.seq, c.priority, c.data, c.unique_key is not null, o.status, o.attempts, o.crashes, o.error,
    coalesce(q.attempts, s.attempts), coalesce(q.crashes, s.crashes),
    q.seq is not null, s.seq is not null, c.batch_id
from commandbus.command c
left join lateral (select * from commandbus.outcome o where o.seq = c.seq limit 1 for update) o on true
left join lateral (select * from commandbus.queue q where q.domain = c.domain
    and q.priority = c.priority and q.seq = c.seq limit 1 for update) q on true
left join lateral (select * from commandbus.scheduled s where s.seq = c.seq limit 1 for update) s on true
where c.command_id = $1::uuid and c.domain = $2::text

-- name: delete_waiting
with ready as (delete from commandbus.queue
    where domain = $1::text and priority = $2::integer and seq = $3::bigint returning seq),
later as (delete from commandbus.scheduled where seq = $3::bigint returning seq)
select seq from ready union all select seq from later

-- name: delete_outcome
with gone as (delete from commandbus.outcome where seq = $1::bigint returning seq),
tallied as (insert into commandbus.tally (domain, status, n)
    select $2::text, 'IN_TROUBLESHOOTING_QUEUE', -1 from gone)
select seq from gone

-- name: edit_data
update commandbus.command set data = $2::text where seq = $1::bigint

-- name: leases
select worker, claimed_at, seqs, unusual from commandbus.lease

-- name: parked
-- Parked commands, by way of the index of what did not simply complete.
select count(*) from commandbus.outcome o join commandbus.command c on c.seq = o.seq
where o.status = 'IN_TROUBLESHOOTING_QUEUE' and ($1::text is null or c.domain = $1::text)
    and ($2::text is null or c.command_type = $2::text)

-- name: audit
select kind, at, details from commandbus.audit where seq = $1::bigint order by id

-- name: stats
select m.now,
    (select count(*) from commandbus.queue where domain = $1::text),
    (select count(*) from commandbus.scheduled where domain = $1::text and due_at > m.now),
    (select count(*) from commandbus.scheduled where domain = $1::text and due_at <= m.now),
    (select coalesce(sum(cardinality(seqs)), 0)::bigint from commandbus.lease where domain = $1::text),
    (select min(available_at) from commandbus.queue where domain = $1::text),
    (select min(due_at) from commandbus.scheduled where domain = $1::text),
    (select paused_at from commandbus.domain where domain = $1::text),
    (select paused_reason from commandbus.domain where domain = $1::text)
from (select commandbus.now_us() as now) m

-- name: next_lease_end
select min(until) - commandbus.now_us() from commandbus.lease where worker <> $1::text

-- name: ahead
-- Along the index, and no further than anyone wants to know.
select count(*) from (select 1 from commandbus.queue
    where domain = $1::text and (priority, seq) < ($2::integer, $3::bigint) limit $4::bigint) a

-- name: tally
select status, sum(n)::bigint from commandbus.tally where domain = $1::text group by status

-- name: domains
select domain from commandbus.domain order by domain

-- name: set_paused
insert into commandbus.domain (domain, paused_at, paused_reason, paused_by)
values ($1::text, case when $2::boolean then commandbus.now_us() end, $3::text, $4::text)
on conflict (domain) do update set paused_at = excluded.paused_at,
    paused_reason = excluded.paused_reason, paused_by = excluded.paused_by

-- name: wake
select commandbus.wake($1::text, 0, $2::text) where $3::boolean

-- name: check
-- The update matches nothing and still asks for everything that a write needs, tables included.
with written as (update commandbus.domain set paused_by = null where domain = '' returning 1)
select (select count(*) from written), (select max(version) from commandbus.migration)
