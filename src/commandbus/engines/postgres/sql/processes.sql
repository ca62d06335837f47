-- name: add_processes
-- Nothing is added when one of them exists; one that comes into being meanwhile violates the key.
with moment as materialized (select commandbus.now_us() as now),
item as materialized (
    select * from rows from (
        unnest($1::text::uuid[]), unnest($2::text::text[]), unnest($3::text::text[]),
        unnest($4::text::text[]), unnest($5::text::text[]), unnest($6::text::text[]),
        unnest($7::text::text[]), unnest($8::text::bigint[]), unnest($9::text::uuid[]),
        unnest($10::text::uuid[]), unnest($11::text::boolean[])
    ) with ordinality as i (process_id, process_type, reply_to, status, state, progress, error, due_in,
        batch_id, parent_id, ended, n)),
taken as materialized (
    select i.process_id from item i join commandbus.process p on p.process_id = i.process_id),
added as (
    insert into commandbus.process (process_id, process_type, reply_to, status, version, state,
        progress, error, due_at, created_at, updated_at, finished_at, batch_id, parent_id)
    select i.process_id, i.process_type, i.reply_to, i.status, 1, i.state, i.progress, i.error,
        m.now + i.due_in, m.now, m.now, case when i.ended then m.now end, i.batch_id, i.parent_id
    from item i cross join moment m where not exists (select 1 from taken) order by i.n),
noted as (
    insert into commandbus.process_step (process_id, kind, step, command_id, at, details)
    select e.process_id, e.kind, e.step, e.command_id, m.now, e.details
    from moment m, unnest($12::text::uuid[], $13::text::text[], $14::text::text[], $15::text::uuid[],
        $16::text::text[]) with ordinality as e (process_id, kind, step, command_id, details, n)
    where not exists (select 1 from taken) order by e.n)
select process_id from taken

-- name: put_processes
-- Only the versions that the writer has seen; answers with those that were written.
with moment as materialized (select commandbus.now_us() as now),
changed as (
    update commandbus.process p set version = p.version + 1, status = i.status, state = i.state,
        progress = i.progress, error = i.error, due_at = p.created_at + i.due_in, updated_at = m.now,
        finished_at = case when i.ended then m.now end
    from moment m cross join rows from (
        unnest($1::text::uuid[]), unnest($2::text::bigint[]), unnest($3::text::text[]),
        unnest($4::text::text[]), unnest($5::text::text[]), unnest($6::text::text[]),
        unnest($7::text::bigint[]), unnest($8::text::boolean[])
    ) as i (process_id, version, status, state, progress, error, due_in, ended)
    where p.process_id = i.process_id and p.version = i.version
    returning p.process_id),
noted as (
    insert into commandbus.process_step (process_id, kind, step, command_id, at, details)
    select e.process_id, e.kind, e.step, e.command_id, m.now, e.details
    from moment m, unnest($9::text::uuid[], $10::text::text[], $11::text::text[], $12::text::uuid[],
        $13::text::text[]) with ordinality as e (process_id, kind, step, command_id, details, n)
    order by e.n)
select process_id from changed

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
