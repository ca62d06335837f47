-- name: arrive_counts
-- What an ordinary send would have started from zero.
with came as materialized (
    select c.seq, c.domain, c.requires, c.priority, w.created_at, w.due_at, w.attempts, w.crashes, w.releases
    from unnest($1::text::uuid[], $2::text::text[], $3::text::bigint[], $4::text::bigint[],
        $5::text::smallint[], $6::text::smallint[], $7::text::smallint[])
        as w (command_id, domain, created_at, due_at, attempts, crashes, releases)
    join commandbus.command c on c.command_id = w.command_id and c.domain = w.domain),
made as (
    update commandbus.command c set created_at = w.created_at, due_at = w.due_at
    from came w where c.seq = w.seq),
ready as (
    update commandbus.queue q set attempts = w.attempts, crashes = w.crashes, releases = w.releases
    from came w where q.domain = commandbus.partition_of(w.domain, w.requires) and q.priority = w.priority
        and q.seq = w.seq),
later as (
    update commandbus.scheduled s set attempts = w.attempts, crashes = w.crashes, releases = w.releases
    from came w where s.seq = w.seq)
update commandbus.held h set attempts = w.attempts, crashes = w.crashes, releases = w.releases
from came w where h.seq = w.seq

-- name: arrive_parked
-- Out of the way that they came, to where they wait for an operator.
with came as materialized (
    select c.seq, w.*
    from unnest($1::text::uuid[], $2::text::text[], $3::text::smallint[], $4::text::smallint[],
        $5::text::text[], $6::text::bigint[], $7::text::bigint[], $8::text::text[], $9::text::text[])
        as w (command_id, domain, attempts, crashes, worker, started_at, finished_at, error, reason)
    join commandbus.command c on c.command_id = w.command_id and c.domain = w.domain),
gone as (delete from commandbus.scheduled s using came w where s.seq = w.seq),
tallied as (
    insert into commandbus.tally (domain, status, n)
    select domain, 'IN_TROUBLESHOOTING_QUEUE', count(*) from came group by domain)
insert into commandbus.outcome (seq, status, attempts, crashes, worker, started_at, finished_at, error,
    reason)
select seq, 'IN_TROUBLESHOOTING_QUEUE', attempts, crashes, worker, started_at, finished_at, error, reason
from came

-- name: arrive_audit
insert into commandbus.audit (seq, kind, at, details)
select c.seq, w.kind, w.at, w.details
from unnest($1::text::uuid[], $2::text::text[], $3::text::text[], $4::text::bigint[], $5::text::text[])
    with ordinality as w (command_id, domain, kind, at, details, n)
join commandbus.command c on c.command_id = w.command_id and c.domain = w.domain order by w.n

-- name: arrive_steps
insert into commandbus.recorded_step (seq, name, result, at)
select c.seq, w.name, w.result, w.at
from unnest($1::text::uuid[], $2::text::text[], $3::text::text[], $4::text::text[], $5::text::bigint[])
    as w (command_id, domain, name, result, at)
join commandbus.command c on c.command_id = w.command_id and c.domain = w.domain
