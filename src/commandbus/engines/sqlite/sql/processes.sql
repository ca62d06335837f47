-- name: exists
select process_id from commandbus_process where process_id = ?

-- name: add
insert into commandbus_process (process_id, process_type, reply_to, status, version, state, progress,
    error, due_at, created_at, updated_at, finished_at, batch_id, parent_id)
values (?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: version
select version from commandbus_process where process_id = ?

-- name: change
-- Only the version that the writer has seen.
update commandbus_process set version = version + 1, status = ?, state = ?, progress = ?, error = ?,
    due_at = created_at + ?, updated_at = ?, finished_at = ?
where process_id = ? and version = ?

-- name: note
insert into commandbus_process_step (process_id, kind, step, command_id, at, details)
values (?, ?, ?, ?, ?, ?)

-- name: get
select process_id, process_type, reply_to, status, version, state, progress, error,
    due_at - created_at, batch_id, parent_id, finished_at is not null, created_at, updated_at,
    finished_at, seq
from commandbus_process where process_id = ?

-- name: due
select process_id, process_type, reply_to, status, version, state, progress, error,
    due_at - created_at, batch_id, parent_id, finished_at is not null, created_at, updated_at,
    finished_at, seq
from commandbus_process where process_type in (select value from json_each(?)) and due_at <= ?
order by due_at limit ?

-- name: next_due
select min(due_at) from commandbus_process
where process_type in (select value from json_each(?)) and due_at is not null

-- name: query
-- That a command of a process is parked is looked up only for those that have not ended.
select p.process_id, process_type, p.reply_to, status, version, state, progress, error,
    due_at - created_at, batch_id, parent_id, finished_at is not null, created_at, updated_at,
    finished_at, p.seq,
    finished_at is null and exists (select 1 from commandbus_command c
        join commandbus_outcome o on o.seq = c.seq and o.status = 'IN_TROUBLESHOOTING_QUEUE'
        where c.correlation_id = p.process_id and c.correlation_id <> c.command_id
            and (c.reply_to = p.reply_to or c.domain = p.reply_to)) as parked
from commandbus_process p
where (:process_type is null or process_type = :process_type)
    and (:status is null
        or case when parked then 'WAITING_FOR_TROUBLESHOOTING' else status end = :status)
    and (:batch_id is null or batch_id = :batch_id)
    and (:parent_id is null or parent_id = :parent_id)
    and (:created_after is null or created_at >= :created_after)
    and (:created_before is null or created_at < :created_before)
    and (:before is null or p.seq < :before)

-- name: newest_first
order by p.seq desc limit :limit

-- name: count
-- Begun from what is parked, so that not every process has to be asked for its commands.
with parked as materialized (
    select c.correlation_id, c.domain, c.reply_to
    from commandbus_outcome o cross join commandbus_command c on c.seq = o.seq
    where o.status = 'IN_TROUBLESHOOTING_QUEUE' and c.correlation_id <> c.command_id
    order by o.seq desc limit :limit)
select process_type, case when (process_id, reply_to) in (
        select correlation_id, domain from parked union all
        select correlation_id, reply_to from parked where reply_to is not null)
    then 'WAITING_FOR_TROUBLESHOOTING' else status end, count(*)
from (select * from commandbus_process where finished_at is null order by seq desc limit :limit)
group by 1, 2

-- name: one
select p.process_id, process_type, p.reply_to, status, version, state, progress, error,
    due_at - created_at, batch_id, parent_id, finished_at is not null, created_at, updated_at,
    finished_at, p.seq,
    finished_at is null and exists (select 1 from commandbus_command c
        join commandbus_outcome o on o.seq = c.seq and o.status = 'IN_TROUBLESHOOTING_QUEUE'
        where c.correlation_id = p.process_id and c.correlation_id <> c.command_id
            and (c.reply_to = p.reply_to or c.domain = p.reply_to))
from commandbus_process p where p.process_id = ?

-- name: events
select process_id, kind, step, command_id, details, at from commandbus_process_step
where process_id = ? order by id

-- name: recorded
select name, result from commandbus_recorded_step where seq = ?

-- name: record
insert into commandbus_recorded_step (seq, name, result, at) values (?, ?, ?, ?) on conflict do nothing
