-- name: last_seq
-- Sequences are given out here, under the write lock, so that bulk inserts need no row by row answer.
-- And whether any limit is set anywhere.
select coalesce((select seq from sqlite_sequence where name = 'commandbus_command'), 0),
    exists (select 1 from commandbus_limit)

-- name: insert_command
insert into commandbus_command (seq, created_at, due_at, command_id, domain, command_type, data,
    correlation_id, priority, {optional})
values (?, ?, ?, ?, ?, ?, ?, ?, ?, {places_of_optional})

-- name: has_id
-- Only asked when an insert was refused, to name the culprit.
select 1 from commandbus_command where command_id = ? and domain = ? and seq < ?

-- name: insert_queue
insert into commandbus_queue (domain, priority, seq, attempts, crashes, releases, available_at)
values (?, ?, ?, 0, 0, 0, ?)

-- name: insert_scheduled
insert into commandbus_scheduled (domain, due_at, seq, attempts, crashes, releases)
values (?, ?, ?, 0, 0, 0)

-- name: ensure_domain
insert into commandbus_domain (domain) values (?) on conflict do nothing

-- name: key_holder
select c.command_id from commandbus_unique_key k join commandbus_command c on c.seq = k.seq
where k.domain = ? and k.unique_key = ?

-- name: hold_key
insert into commandbus_unique_key (domain, unique_key, seq) values (?, ?, ?)

-- name: free_keys
-- A final outcome frees the key; the lookup goes through the command, which knows its key.
delete from commandbus_unique_key where (domain, unique_key, seq) in (
    select c.domain, c.unique_key, c.seq from json_each(?) ended
    join commandbus_command c on c.seq = ended.value where c.unique_key is not null)

-- name: count_pending
-- Counts no further than the capacity, so that a deep queue does not make sends slow.
select (select count(*) from (select 1 from commandbus_queue where domain = :domain limit :limit))
     + (select count(*) from (select 1 from commandbus_scheduled where domain = :domain limit :limit))
     + (select count(*) from (select 1 from commandbus_held where domain = :domain limit :limit))
     + (select count(*) from commandbus_partition p cross join commandbus_queue q
        where p.domain = :domain and q.domain = p.domain || '#' || p.requires)

-- name: domain_state
select paused_at is not null, gated from commandbus_domain where domain = ?

-- name: due
-- Due work of a domain, in order of time, bounded so that a flood is promoted in several claims. A row
-- without its command comes with nulls: if it stayed, something would be due at once for ever.
select c.priority, s.seq, s.attempts, s.crashes, s.releases, s.due_at, c.command_type, c.group_key,
    c.requires
from commandbus_scheduled s left join commandbus_command c on c.seq = s.seq
where s.domain = ? and s.due_at <= ? order by s.due_at, s.seq limit ?

-- name: promote
insert into commandbus_queue (domain, priority, seq, attempts, crashes, releases, available_at)
values (?, ?, ?, ?, ?, ?, ?)

-- name: unschedule
-- By range: everything up to the last promoted key was promoted.
delete from commandbus_scheduled where domain = ? and (due_at, seq) <= (?, ?)

-- name: head
-- The first commands of a domain. A queue row without its command comes back with nulls, and so does
-- one whose command was damaged: columns of a file take values of any type. The parts about the command
-- are in rows.py.
select q.seq, q.priority, q.attempts, q.crashes, q.releases, q.available_at, {command_of_head}
from commandbus_queue q left join commandbus_command c on c.seq = q.seq and {sound}
where q.domain = ? order by q.priority, q.seq limit ?

-- name: fresh_head
-- As `head`, without commands whose workers died.
select q.seq, q.priority, q.attempts, q.crashes, q.releases, q.available_at, {command_of_head}
from commandbus_queue q left join commandbus_command c on c.seq = q.seq and {sound}
where q.domain = ? and q.crashes = 0 order by q.priority, q.seq limit ?

-- name: priorities
-- Those of which something is ready: from one to the next along the index, whatever lies between.
with recursive found (priority) as (
    select * from (select priority from commandbus_queue where domain = :domain order by priority limit 1)
    union all
    select (select q.priority from commandbus_queue q
            where q.domain = :domain and q.priority > f.priority order by q.priority limit 1)
    from found f where f.priority is not null)
select priority from found where priority is not null

-- name: head_of_priority
-- As `head`, of one priority.
select q.seq, q.priority, q.attempts, q.crashes, q.releases, q.available_at, {command_of_head}
from commandbus_queue q left join commandbus_command c on c.seq = q.seq and {sound}
where q.domain = ? and q.priority = ? order by q.seq limit ?

-- name: has_command
select 1 from commandbus_command where seq = ?

-- name: take_head
-- By range: under the write lock the head is exactly the rows up to its last key.
delete from commandbus_queue where domain = ? and (priority, seq) <= (?, ?)

-- name: insert_lease
insert into commandbus_lease (domain, worker, claimed_at, until, members) values (?, ?, ?, ?, ?)
returning lease_id

-- name: next_due
-- When a busy worker should promote due work again.
select min((select s.due_at from commandbus_scheduled s where s.domain = wanted.value
            order by s.due_at limit 1))
from json_each(:domains) wanted
where not exists (select 1 from commandbus_domain d
                  where d.domain = wanted.value and d.paused_at is not null)

-- name: next_moment
-- When an idle worker should look again: the next due command or the end of someone else's lease.
select min(moment) from (
    select min(until) as moment from commandbus_lease where worker <> :worker
    union all
    select (select s.due_at from commandbus_scheduled s where s.domain = wanted.value
            order by s.due_at limit 1)
    from json_each(:domains) wanted
    where not exists (select 1 from commandbus_domain d
                      where d.domain = wanted.value and d.paused_at is not null)
    union all
    select (select min(t.at) from commandbus_touch t where t.domain = wanted.value)
    from json_each(:domains) wanted
    where not exists (select 1 from commandbus_domain d
                      where d.domain = wanted.value and d.paused_at is not null))

-- name: leases
select lease_id, domain, worker, claimed_at, until, members from commandbus_lease
where lease_id in (select value from json_each(?))

-- name: expired_leases
select lease_id, domain, worker, claimed_at, members from commandbus_lease where until <= ?

-- name: all_leases
select lease_id, domain, worker, claimed_at, members from commandbus_lease

-- name: shrink_lease
update commandbus_lease set members = ? where lease_id = ?

-- name: delete_lease
delete from commandbus_lease where lease_id = ?

-- name: renew_lease
-- Never shorter than it was, and only while it is valid.
update commandbus_lease set until = max(until, ?) where lease_id = ? and until > ? returning lease_id

-- name: keep_leases_of
-- A dead worker cannot renew them; the process that learns of its death settles them in this transaction.
update commandbus_lease set until = max(until, ?) where worker = ? returning lease_id, members

-- name: batches_of
select seq, batch_id from commandbus_command where seq in (select value from json_each(?))

-- name: recorded_leases
-- Which lease recorded which outcome: tells a repeated settle from a lost lease.
select seq, lease_id, status from commandbus_outcome where seq in (select value from json_each(?))

-- name: insert_outcome
insert into commandbus_outcome (seq, status, attempts, crashes, lease_id, worker, started_at,
    finished_at, result, error, reason)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: delete_outcome
delete from commandbus_outcome where seq = ?

-- name: reschedule
insert into commandbus_scheduled (domain, due_at, seq, attempts, crashes, releases)
select domain, ?, seq, ?, ?, ? from commandbus_command where seq = ?

-- name: insert_audit
insert into commandbus_audit (seq, kind, at, details) values (?, ?, ?, ?)

-- name: add_tally
insert into commandbus_tally (domain, status, n) values (?, ?, ?)
on conflict (domain, status) do update set n = n + excluded.n

-- name: put_progress
insert into commandbus_progress (seq, percent, message, at) values (?, ?, ?, ?)
on conflict (seq) do update set percent = excluded.percent, message = excluded.message, at = excluded.at

-- name: standing
-- Where a command stands: its waiting row if it has one, its outcome if it has one.
select c.seq, c.priority, c.data, o.status, o.attempts, o.crashes, o.error,
    coalesce(q.attempts, s.attempts, h.attempts), coalesce(q.crashes, s.crashes, h.crashes),
    coalesce(q.seq, s.seq, h.seq) is not null, c.requires
from commandbus_command c
left join commandbus_outcome o on o.seq = c.seq
left join commandbus_queue q on q.domain = c.domain || coalesce('#' || c.requires, '')
    and q.priority = c.priority and q.seq = c.seq
left join commandbus_scheduled s on s.seq = c.seq
left join commandbus_held h on h.seq = c.seq
where c.command_id = ? and c.domain = ?

-- name: delete_queue
delete from commandbus_queue where domain = ? and priority = ? and seq = ?

-- name: delete_scheduled
delete from commandbus_scheduled where seq = ?

-- name: delete_held
delete from commandbus_held where seq = ?

-- name: send_back
-- By an operator: it is due from now on, so that the time in which it was parked does not count.
update commandbus_command set due_at = ?, data = coalesce(?, data) where seq = ?

-- name: waiting_row
-- How often a waiting command was tried, and since or until when it waits.
select attempts, crashes, releases, available_at from commandbus_queue
where domain = :partition and priority = :priority and seq = :seq
union all select attempts, crashes, releases, due_at from commandbus_scheduled where seq = :seq
union all select attempts, crashes, releases, available_at from commandbus_held where seq = :seq

-- name: edit_command
-- By an operator, while it waits: claims and retries go by these columns.
update commandbus_command set priority = coalesce(?, priority), due_at = coalesce(?, due_at)
where seq = ?

-- name: set_paused
-- Returns a row when that changes something.
insert into commandbus_domain (domain, paused_at, paused_reason, paused_by)
select column1, column2, column3, column4 from (values (?, ?, ?, ?))
where column2 is not null or exists (select 1 from commandbus_domain where domain = column1)
on conflict (domain) do update set paused_at = excluded.paused_at,
    paused_reason = excluded.paused_reason, paused_by = excluded.paused_by
    where (paused_at is null) <> (excluded.paused_at is null)
        or paused_reason is not excluded.paused_reason
returning 1
