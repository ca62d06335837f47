-- name: lock_processes
-- In one order, so that routers with overlapping batches wait for each other instead of locking up.
select process_id, process_type, reply_to, status, version, state, progress, error,
    due_at - created_at, batch_id, parent_id, finished_at is not null, created_at, updated_at,
    finished_at, seq, commandbus.now_us() - created_at
from commandbus.process where process_id = any ($1::text::uuid[]) order by process_id for update

-- name: due_processes
select process_id, process_type, reply_to, status, version, state, progress, error,
    due_at - created_at, batch_id, parent_id, finished_at is not null, created_at, updated_at,
    finished_at, seq, commandbus.now_us() - created_at
from commandbus.process where process_type = any ($1::text::text[]) and due_at <= commandbus.now_us()
order by due_at limit $2::bigint for update skip locked

-- name: next_process_due
select min(due_at) - commandbus.now_us() from commandbus.process
where process_type = any ($1::text::text[]) and due_at is not null

-- name: get_process
select process_id, process_type, reply_to, status, version, state, progress, error,
    due_at - created_at, batch_id, parent_id, finished_at is not null, created_at, updated_at,
    finished_at, seq, commandbus.now_us() - created_at,
    finished_at is null and exists (select 1 from commandbus.command c
        join commandbus.outcome o on o.seq = c.seq and o.status = 'IN_TROUBLESHOOTING_QUEUE'
        where c.correlation_id = p.process_id and c.correlation_id <> c.command_id
            and p.reply_to in (c.reply_to, c.domain))
from commandbus.process p where process_id = $1::uuid

-- name: count_processes
-- Begun from what is parked, so that not every process has to be asked for its commands.
with parked as materialized (
    select c.correlation_id, c.domain, c.reply_to
    from (select seq from commandbus.outcome where status = 'IN_TROUBLESHOOTING_QUEUE'
        order by seq desc limit $1::bigint) o
    join commandbus.command c on c.seq = o.seq and c.correlation_id <> c.command_id)
select process_type, case when (process_id, reply_to) in (
        select correlation_id, domain from parked union all
        select correlation_id, reply_to from parked where reply_to is not null)
    then 'WAITING_FOR_TROUBLESHOOTING' else status end, count(*)
from (select * from commandbus.process where finished_at is null order by seq desc limit $1::bigint) p
group by 1, 2

-- name: process_events
select process_id, kind, step, command_id, details, at from commandbus.process_step
where process_id = $1::uuid order by id

-- name: recorded_steps
select name, result from commandbus.recorded_step where seq = $1::bigint

-- name: record_step
-- Once, and only under the lease.
with held as (
    select 1 from commandbus.lease
    where lease_id = $2::bigint and until > commandbus.now_us() and $1::bigint = any (seqs)),
kept as (
    insert into commandbus.recorded_step (seq, name, result, at)
    select $1::bigint, $3::text, $4::text, commandbus.now_us() from held on conflict do nothing)
select 1 from held
