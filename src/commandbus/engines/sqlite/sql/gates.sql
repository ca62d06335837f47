-- name: gates_of
-- The names of the limits of some domains.
select domain, gate from commandbus_limit where domain in (select value from json_each(?))

-- name: limits
select domain, gate, concurrency, rate, burst from commandbus_limit
where ? is null or domain = ? order by domain, gate

-- name: put_limit
insert into commandbus_limit (domain, gate, concurrency, rate, burst) values (?, ?, ?, ?, ?)
on conflict (domain, gate) do update set concurrency = excluded.concurrency, rate = excluded.rate,
    burst = excluded.burst

-- name: drop_limit
delete from commandbus_limit where domain = ? and gate = ? returning gate

-- name: mark_gated
insert into commandbus_domain (domain, gated) values (?, 1) on conflict (domain) do update set gated = 1

-- name: ensure_partition
insert into commandbus_partition (domain, requires) values (?, ?) on conflict do nothing

-- name: partitions
select requires from commandbus_partition where domain = ? order by requires

-- name: hold
insert into commandbus_held (domain, gate, priority, seq, attempts, crashes, releases, available_at)
values (?, ?, ?, ?, ?, ?, ?, ?)

-- name: touch
-- The earlier moment counts.
insert into commandbus_touch (domain, gate, at) values (?, ?, ?)
on conflict (domain, gate) do update set at = min(at, excluded.at)

-- name: touch_held
-- All gates of a domain with commands that wait.
insert into commandbus_touch (domain, gate, at)
select distinct domain, gate, :now from commandbus_held where domain = :domain
on conflict (domain, gate) do update set at = excluded.at

-- name: take_touches
delete from commandbus_touch where (domain, gate) in (
    select domain, gate from commandbus_touch where domain = ? and at <= ? order by at limit ?)
returning gate

-- name: running
select count(*) from commandbus_permit where domain = ? and gate = ?

-- name: bucket
select full_at from commandbus_bucket where domain = ? and gate = ?

-- name: put_bucket
insert into commandbus_bucket (domain, gate, full_at) values (?, ?, ?)
on conflict (domain, gate) do update set full_at = excluded.full_at

-- name: first_held
select h.gate, h.priority, h.seq, h.attempts, h.crashes, h.releases, h.available_at, c.command_type,
    c.requires
from commandbus_held h join commandbus_command c on c.seq = h.seq
where h.domain = ? and h.gate = ? order by h.priority, h.seq limit ?

-- name: held_priorities
-- Those of which something waits at a gate, from one to the next along the index.
with recursive found (priority) as (
    select * from (select priority from commandbus_held where domain = :domain and gate = :gate
        order by priority limit 1)
    union all
    select (select h.priority from commandbus_held h
            where h.domain = :domain and h.gate = :gate and h.priority > f.priority
            order by h.priority limit 1)
    from found f where f.priority is not null)
select priority from found where priority is not null

-- name: held_of_priority
-- As `first_held`, of one priority.
select h.gate, h.priority, h.seq, h.attempts, h.crashes, h.releases, h.available_at, c.command_type,
    c.requires
from commandbus_held h join commandbus_command c on c.seq = h.seq
where h.domain = ? and h.gate = ? and h.priority = ? order by h.seq limit ?

-- name: next_of_groups
-- The first one of each group of which none runs; the groups are walked, not their members.
select h.gate, h.priority, h.seq, h.attempts, h.crashes, h.releases, h.available_at, c.command_type,
    c.requires
from json_each(:gates) g
join commandbus_held h on h.seq = (select x.seq from commandbus_held x
    where x.domain = :domain and x.gate = g.value order by x.priority, x.seq limit 1)
join commandbus_command c on c.seq = h.seq
where not exists (select 1 from commandbus_permit s where s.domain = :domain and s.gate = g.value)

-- name: let_pass
delete from commandbus_held where seq = ?

-- name: take_permit
insert into commandbus_permit (domain, gate, seq) values (?, ?, ?)

-- name: permits_of
select seq from commandbus_permit where seq in (select value from json_each(?))

-- name: leave_permits
delete from commandbus_permit where seq in (select value from json_each(?)) returning domain, gate

-- name: followers
-- The first that wait behind those who hold the only permit of a group that knows no further gate; with the columns of `head`, and behind whom. At most so many of a group, and in all.
with leading as materialized (
    select s.seq, s.gate, l.key as place from json_each(:leaders) l join commandbus_permit s on s.seq = l.value
    where s.gate glob 'k:*'
        and not exists (select 1 from commandbus_permit x
            where x.domain = :domain and x.gate = s.gate and x.seq <> s.seq)
        and not exists (select 1 from commandbus_limit r where r.domain = :domain and r.gate <> 's')
        and not exists (select 1 from commandbus_partition p where p.domain = :domain))
select l.seq, h.seq, h.priority, h.attempts, h.crashes, h.releases, h.available_at, {command_of_head}
from leading l
join commandbus_held h on h.seq in (select x.seq from commandbus_held x
    where x.domain = :domain and x.gate = l.gate order by x.priority, x.seq
    limit min(:chain, :followers / (select count(*) from leading)))
left join commandbus_command c on c.seq = h.seq and {sound}
order by l.place, h.priority, h.seq

-- name: unhold
delete from commandbus_held where seq in (select value from json_each(?))

-- name: hand_over
update commandbus_permit set seq = ? where seq = ?

-- name: call_back
-- Ready work that never passed a gate goes back to the gates when a limit is set.
select q.priority, q.seq, q.attempts, q.crashes, q.releases, q.available_at, c.command_type
from commandbus_queue q join commandbus_command c on c.seq = q.seq
where q.domain = :domain and (:command_type is null or c.command_type = :command_type)
    and not exists (select 1 from commandbus_permit s where s.seq = q.seq)

-- name: routes
-- What decides where a command goes that comes back.
select seq, domain, priority, command_type, group_key, requires from commandbus_command
where seq in (select value from json_each(?))

-- name: sender_bucket
select l.domain, l.gate, l.concurrency, l.rate, l.burst, coalesce(b.full_at, 0)
from commandbus_limit l left join commandbus_bucket b on b.domain = l.domain and b.gate = ?
where l.domain = ? and l.gate = 's'

-- name: free_key
delete from commandbus_unique_key where domain = ? and unique_key = ?

-- name: held_at
select h.gate, (select count(*) from commandbus_permit s where s.domain = h.domain and s.gate = h.gate),
    (select c.command_id from commandbus_permit s join commandbus_command c on c.seq = s.seq
     where s.domain = h.domain and s.gate = h.gate order by s.seq limit 1)
from commandbus_held h where h.seq = ?
