-- name: insert_commands
-- One statement, so one round trip and one commit, for the commands of many senders.
-- Sequences are drawn in the order of the rows. A row whose unique key is taken is left out of
-- everything and comes back without a sequence. Where they wait is a part of the transport.
with moment as materialized (select commandbus.now_us() as now),
item as materialized (
    select nextval('commandbus.command_seq_seq') as seq, i.*,
        coalesce(i.due_at, m.now + coalesce(i.delay, 0)) as ready_at, m.now,
        case when i.group_key is not null or i.requires is not null
                or (select exists (select 1 from commandbus.limit_rule))
            then commandbus.first_gate(i.domain, i.command_type, i.group_key, i.requires) end as gate
    from moment m cross join {commands} as i),
free_keys as (
    insert into commandbus.unique_key (domain, unique_key, seq)
    select domain, unique_key, seq from item where unique_key is not null
    order by domain, unique_key, seq
    on conflict do nothing returning seq),
new as materialized (
    select * from item where unique_key is null or seq in (select seq from free_keys)),
kept as (
    insert into commandbus.command (seq, created_at, due_at, command_id, domain, command_type, data,
        correlation_id, priority, {optional})
    select seq, now, ready_at, command_id, domain, command_type, data,
        coalesce(correlation_id, command_id), priority, {optional}
    from new),
{places}
known as (
    insert into commandbus.domain as d (domain, gated)
    select n.domain, bool_or(n.gate is not null) from new n
    where not exists (select 1 from commandbus.domain d
        where d.domain = n.domain and (d.gated or n.gate is null))
    group by n.domain order by n.domain
    on conflict (domain) do update set gated = true where excluded.gated),
woken as materialized (
    select commandbus.wake(domain, greatest(0, min(ready_at - now)),
        case when bool_or(requires is not null) then :origin::text || '*' else :origin::text end)
    from new where :notify::boolean group by domain)
select case when unique_key is null or seq in (select seq from free_keys) then seq end, ready_at - now
from item where (select count(*) from woken) is not null order by item.seq

-- name: insert_places
-- Where new commands wait: in the queue, at their first gate, or for their time.
ready as (
    insert into commandbus.queue (domain, priority, seq, available_at, keyed)
    select domain, priority, seq, ready_at, unique_key is not null from new
    where ready_at <= now and gate is null),
waiting as (
    insert into commandbus.held (domain, gate, priority, seq, available_at)
    select domain, gate, priority, seq, ready_at from new where ready_at <= now and gate is not null),
touched as (
    insert into commandbus.touch (domain, gate, at)
    select distinct domain, gate, now from new where ready_at <= now and gate is not null),
places as (
    insert into commandbus.partition (domain, requires)
    select distinct domain, requires from new where requires is not null on conflict do nothing),
later as (
    insert into commandbus.scheduled (domain, due_at, seq, priority, keyed)
    select domain, ready_at, seq, priority, unique_key is not null or gate is not null
    from new where ready_at > now),

-- name: insert_command
-- The same for one command, by a function of the server.
select seq, due_in from commandbus.add({values}, :origin::text, :notify::boolean)
