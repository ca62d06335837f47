-- name: survey
-- Along the queues and what is parked, not along all commands.
with live (seq, parked) as (
    select seq, 0 from commandbus_queue union all select seq, 0 from commandbus_scheduled
    union all select seq, 0 from commandbus_held
    union all select seq, 1 from commandbus_outcome where status = 'IN_TROUBLESHOOTING_QUEUE'),
going (parked, batch, process) as (
    select l.parked, c.batch_id is not null,
        exists (select 1 from commandbus_process p where p.finished_at is null
            and p.reply_to in (c.reply_to, c.domain))
    from live l join commandbus_command c on c.seq = l.seq)
select
    (select count(*) from going where not parked and not batch and not process),
    (select count(*) from going where parked and not batch and not process),
    (select count(*) from commandbus_document where kind = 'moving'),
    (select coalesce(sum(json_array_length(members)), 0) from commandbus_lease),
    (select count(*) from going where batch),
    (select count(*) from going where process and not batch)

-- name: departing
-- What waits or is parked, and belongs to no batch and no process that goes on here.
select c.seq, c.created_at, c.due_at,
    coalesce(q.attempts, s.attempts, h.attempts, o.attempts),
    coalesce(q.crashes, s.crashes, h.crashes, o.crashes), coalesce(q.releases, s.releases, h.releases, 0),
    coalesce(q.available_at, s.due_at, h.available_at, c.due_at),
    o.status, o.worker, o.started_at, o.finished_at, o.error, o.reason,
    c.domain, c.command_type, c.command_id, c.data, c.correlation_id, c.priority, {c_optional}
from commandbus_command c
left join commandbus_outcome o on o.seq = c.seq
left join commandbus_queue q on q.domain = c.domain || coalesce('#' || c.requires, '')
    and q.priority = c.priority and q.seq = c.seq
left join commandbus_scheduled s on s.seq = c.seq
left join commandbus_held h on h.seq = c.seq
where c.seq > ? and c.batch_id is null
    and (o.status = 'IN_TROUBLESHOOTING_QUEUE'
        or (o.seq is null and coalesce(q.seq, s.seq, h.seq) is not null))
    and not exists (select 1 from commandbus_process p where p.finished_at is null
        and p.reply_to in (c.reply_to, c.domain))
order by c.seq limit ?

-- name: audit_of
select kind, at, details from commandbus_audit where seq = ? order by id

-- name: steps_of
select name, result, at from commandbus_recorded_step where seq = ? order by at

-- name: keep
insert into commandbus_document (kind, key, version, status, due_at, body) values (?, ?, 1, ?, ?, ?)
