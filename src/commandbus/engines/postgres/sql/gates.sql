-- name: admit
select passed, tagged, busy from commandbus.admit($1::text, $2::boolean, $3::bigint::integer, $4::text,
    $5::boolean, $6::bigint)

-- name: partitions
select domain, requires from commandbus.partition where domain = any ($1::text::text[]) order by 1, 2

-- name: gates_of
-- The names of the limits of some domains.
select domain, gate from commandbus.limit_rule where domain = any ($1::text::text[])

-- name: limits
select domain, gate, concurrency, rate, burst from commandbus.limit_rule
where $1::text is null or domain = $1::text order by domain collate "C", gate collate "C"

-- name: put_limit
insert into commandbus.limit_rule (domain, gate, concurrency, rate, burst)
values ($1::text, $2::text, $3::bigint, $4::double precision, $5::bigint)
on conflict (domain, gate) do update set concurrency = excluded.concurrency, rate = excluded.rate,
    burst = excluded.burst

-- name: drop_limit
delete from commandbus.limit_rule where domain = $1::text and gate = $2::text returning gate

-- name: mark_gated
select commandbus.mark_gated(domain, requires)
from unnest($1::text::text[], $2::text::text[]) as g (domain, requires)

-- name: touch_held
-- All gates of a domain with commands that wait.
insert into commandbus.touch (domain, gate, at)
select $1::text, gate, commandbus.now_us()
from (select distinct gate from commandbus.held where domain = $1::text) g

-- name: call_back
-- Ready work that never passed a gate goes back to the gates when a limit is set.
with gone as (
    delete from commandbus.queue where ctid = any (array(
        select q.ctid from commandbus.queue q
        cross join lateral (select c.command_type from commandbus.command c
            where c.seq = q.seq limit 1) c
        where q.domain = $1::text and ($2::text is null or c.command_type = $2::text)
            and not (q.keyed and exists (select 1 from commandbus.permit s where s.seq = q.seq))
        for update of q skip locked))
    returning *)
insert into commandbus.held (domain, gate, priority, seq, available_at, attempts, crashes, releases)
select g.domain, commandbus.first_gate(g.domain, c.command_type, null, null), g.priority, g.seq,
    g.available_at, g.attempts, g.crashes, g.releases
from gone g cross join lateral (
    select c.command_type from commandbus.command c where c.seq = g.seq limit 1) c

-- name: copy_held
copy commandbus.held (domain, gate, priority, seq, available_at) from stdin

-- name: copy_touch
copy commandbus.touch (domain, gate, at) from stdin

-- name: sender_bucket
-- Locked, so that sends of one sender count one after another; the first makes the row.
with made as (
    insert into commandbus.bucket (domain, gate, full_at)
    select $1::text, $2::text, 0 from commandbus.limit_rule l
    where l.domain = $1::text and l.gate = 's'
    on conflict (domain, gate) do update set full_at = bucket.full_at
    returning full_at)
select l.domain, l.gate, l.concurrency, l.rate, l.burst, m.full_at, commandbus.now_us()
from commandbus.limit_rule l cross join made m where l.domain = $1::text and l.gate = 's'

-- name: fill_bucket
update commandbus.bucket set full_at = $3::bigint where domain = $1::text and gate = $2::text

-- name: free_key
delete from commandbus.unique_key where domain = $1::text and unique_key = $2::text

-- name: held_at
select h.gate, (select count(*) from commandbus.permit s where s.domain = h.domain and s.gate = h.gate),
    (select c.command_id from commandbus.permit s join commandbus.command c on c.seq = s.seq
     where s.domain = h.domain and s.gate = h.gate order by s.seq limit 1)
from commandbus.held h where h.seq = $1::bigint
