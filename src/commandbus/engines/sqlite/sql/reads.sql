-- name: records
-- Everything known about commands. A row without outcome and without a place in a queue is running.
select c.seq, c.created_at, c.due_at, o.status, o.attempts, o.crashes, o.lease_id, o.worker, o.started_at,
    o.finished_at, o.result, o.error, o.reason,
    coalesce(q.attempts, s.attempts, h.attempts), coalesce(q.crashes, s.crashes, h.crashes),
    coalesce(q.available_at, s.due_at, h.available_at),
    p.percent, p.message, p.at,
    case when o.seq is null then (select a.details from commandbus_audit a
        where a.seq = c.seq and a.kind in ('FAILED', 'WORKER_LOST', 'MOVED_TO_TSQ')
        order by a.id desc limit 1) end,
    c.domain, c.command_type, c.command_id, c.data, c.correlation_id, c.priority, {c_optional}

-- name: requests
-- What is asked of workers and of running commands now, as a text for each kind: it changes with every request.
select kind, group_concat(key || ' ' || version) from commandbus_document
where kind in ('worker.request', 'cancellation') group by kind

-- name: of_commands
from commandbus_command c left join commandbus_outcome o on o.seq = c.seq

-- name: of_outcomes
-- What ended is looked for among the outcomes, however many commands wait behind them.
from commandbus_outcome o cross join commandbus_command c on c.seq = o.seq

-- name: with_places
left join commandbus_queue q on q.domain = c.domain || coalesce('#' || c.requires, '')
    and q.priority = c.priority and q.seq = c.seq
left join commandbus_scheduled s on s.seq = c.seq
left join commandbus_held h on h.seq = c.seq
left join commandbus_progress p on p.seq = c.seq

-- name: ending
select o.status, o.result, o.error, o.reason
from commandbus_command c cross join commandbus_outcome o on o.seq = c.seq
where c.command_id = ? and c.domain = ? and o.status <> 'IN_TROUBLESHOOTING_QUEUE'

-- name: parked
-- Parked commands, by way of the index of what did not simply complete.
select count(*) from commandbus_outcome o join commandbus_command c on c.seq = o.seq
where o.status = 'IN_TROUBLESHOOTING_QUEUE' and (:domain is null or c.domain = :domain)
    and (:command_type is null or c.command_type = :command_type)

-- name: group_parked
with parked as (select o.seq, c.domain, c.command_type, o.finished_at,
        iif(json_valid(o.error), json_extract(o.error, '$.code', '$.exception', '$.place'), null) as failed
    from commandbus_outcome o join commandbus_command c on c.seq = o.seq
    where o.status = 'IN_TROUBLESHOOTING_QUEUE' and (:domain is null or c.domain = :domain)
        and (:command_type is null or c.command_type = :command_type)),
grouped as (select count(*) as n, min(finished_at) as oldest, max(finished_at) as newest,
        max(seq) as example
    from parked group by domain, command_type, failed)
select c.domain, c.command_type, g.n, g.oldest, g.newest, c.command_id, o.error
from grouped g join commandbus_command c on c.seq = g.example
join commandbus_outcome o on o.seq = g.example

-- name: overdue
-- Parked for long, and not reported since.
select c.domain, c.command_id, c.command_type, o.finished_at, iif(json_valid(o.error), json_extract(o.error, '$.code'), null)
from commandbus_outcome o join commandbus_command c on c.seq = o.seq
where o.status = 'IN_TROUBLESHOOTING_QUEUE' and o.finished_at <= ?
    and not exists (select 1 from commandbus_audit a
        where a.seq = o.seq and a.kind = 'ESCALATED' and a.at >= o.finished_at)
order by o.seq limit ?

-- name: audit
select kind, at, details from commandbus_audit where seq = ? order by id

-- name: stats
-- Counted no further than the limit. The oldest of each priority are among its first sequences, so a
-- deep queue is not walked for them.
with recursive priorities (priority) as (
    select min(priority) from commandbus_queue where domain = :domain
    union all
    select (select min(priority) from commandbus_queue q
            where q.domain = :domain and q.priority > p.priority)
    from priorities p where p.priority is not null)
select
    (select count(*) from (select 1 from commandbus_queue where domain = :domain limit :cap)),
    (select count(*) from (select 1 from commandbus_scheduled
        where domain = :domain and due_at > :now limit :cap)),
    (select count(*) from (select 1 from commandbus_scheduled
        where domain = :domain and due_at <= :now limit :cap)),
    (select coalesce(sum(json_array_length(members)), 0) from commandbus_lease where domain = :domain),
    (select min(oldest) from (
        select (select min(available_at) from (select available_at from commandbus_queue q
            where q.domain = :domain and q.priority = p.priority order by seq limit 100)) as oldest
        from priorities p
        union all
        select min(available_at) from (select available_at from commandbus_held
            where domain = :domain limit :cap)
        union all
        select min(q.available_at) from commandbus_partition p cross join commandbus_queue q
        where p.domain = :domain and q.domain = p.domain || '#' || p.requires)),
    (select min(due_at) from commandbus_scheduled where domain = :domain),
    (select paused_at from commandbus_domain where domain = :domain),
    (select paused_reason from commandbus_domain where domain = :domain),
    (select count(*) from commandbus_held where domain = :domain),
    (select count(*) from commandbus_partition p cross join commandbus_queue q
     where p.domain = :domain and q.domain = p.domain || '#' || p.requires)

-- name: next_lease_end
select min(until) from commandbus_lease where worker <> ?

-- name: ahead
-- Reads the index, up to the limit of the caller.
select count(*) from (select 1 from commandbus_queue
    where domain = ? and (priority, seq) < (?, ?) limit ?)

-- name: tally
select status, n from commandbus_tally where domain = ?

-- name: domains
select domain from commandbus_domain order by domain

-- name: last_sequence
select coalesce((select seq from sqlite_sequence where name = 'commandbus_command'), 0)

-- name: look_up_command
-- Along the index of the ids; the last row says how many were looked at, and where the look ended.
with looked (id) as (select command_id from commandbus_command
    where command_id >= :lowest and command_id <= :below order by command_id desc limit :scan)
select id, 0 from looked where substr(hex(id), 33 - length(:tail)) = :tail
union all
select min(id), count(*) from looked

-- name: look_up_process
with looked (id) as (select process_id from commandbus_process
    where process_id >= :lowest and process_id <= :below order by process_id desc limit :scan)
select id, 0 from looked where substr(hex(id), 33 - length(:tail)) = :tail
union all
select min(id), count(*) from looked

-- name: few_waiting
-- What waits, when it is little: then a page of pending commands need not look for them.
select seq from (select seq from commandbus_queue limit :limit)
union all
select seq from (select seq from commandbus_scheduled limit :limit)
union all
select seq from (select seq from commandbus_held limit :limit)
limit :limit

-- name: search_audit
-- Along the primary key, newest first, and no further back than the span.
select a.id, c.command_type, c.domain, c.command_id, a.kind, a.at, a.details
from commandbus_audit a join commandbus_command c on c.seq = a.seq
where a.id > coalesce(:before, (select max(id) + 1 from commandbus_audit)) - :span
    and (:before is null or a.id < :before)
    and (:kind is null or a.kind = :kind) and (:domain is null or c.domain = :domain)
    and (:actor is null or case when json_valid(a.details) then
        json_extract(a.details, '$.actor') = :actor end)
order by a.id desc limit :limit

-- name: recent_runs
select c.domain, o.status, o.attempts, c.due_at, o.started_at, o.finished_at
from commandbus_outcome o cross join commandbus_command c on c.seq = o.seq
order by o.seq desc limit ?

-- name: prunable
-- A piece of all outcomes in order of sequence; which of them go is decided by their moment.
-- What a process that has not ended may still ask for ended at no moment yet, nor did a member of an open
-- batch; of a complete one, members ended with it. Those whose trail names an operator come with their
-- domain, for the ledger.
select o.seq, o.status, case when c.reply_to is not null and exists (
        select 1 from commandbus_process p
        where p.process_id = c.correlation_id and p.finished_at is null)
    then 9223372036854775807 when c.batch_id is null then o.finished_at
    else max(o.finished_at, coalesce((
        select case when d.status = 'open' then 9223372036854775807
            when json_valid(d.body) then json_extract(d.body, '$.completed_at') end
        from commandbus_document d where d.kind = 'batch' and d.key = lower(
            substr(hex(c.batch_id), 1, 8) || '-' || substr(hex(c.batch_id), 9, 4) || '-'
            || substr(hex(c.batch_id), 13, 4) || '-' || substr(hex(c.batch_id), 17, 4) || '-'
            || substr(hex(c.batch_id), 21))), 0)) end, c.created_at,
    case when exists (select 1 from commandbus_audit a where a.seq = o.seq
        and (a.kind in (select value from json_each(?)) or a.details like '%"actor"%')) then c.domain end, c.command_id
from commandbus_outcome o cross join commandbus_command c on c.seq = o.seq
where o.seq > ? order by o.seq limit ?

-- name: prune_outcomes
delete from commandbus_outcome where seq in (select value from json_each(?))

-- name: prune_commands
delete from commandbus_command where seq in (select value from json_each(?))

-- name: prune_audit
delete from commandbus_audit where seq in (select value from json_each(?))

-- name: prune_progress
delete from commandbus_progress where seq in (select value from json_each(?))

-- name: waiting_domains
-- For the watcher: which of these domains have something ready, and when the next is due.
select wanted.value,
    exists (select 1 from commandbus_queue q where q.domain = wanted.value),
    (select min(moment) from (
        select min(due_at) as moment from commandbus_scheduled where domain = wanted.value
        union all select min(at) from commandbus_touch where domain = wanted.value)),
    exists (select 1 from commandbus_partition p cross join commandbus_queue q
        where p.domain = wanted.value and q.domain = p.domain || '#' || p.requires)
from json_each(?) wanted
where not exists (select 1 from commandbus_domain d
                  where d.domain = wanted.value and d.paused_at is not null)
