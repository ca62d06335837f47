-- name: unfold
-- Outcomes that are to change become rows.
insert into commandbus.outcome select * from commandbus.take_receipts($1::text::bigint[])

-- name: lock_ended
select seq, error, reason from commandbus.outcome
where seq = any ($1::text::bigint[]) and status in ('COMPLETED', 'FAILED', 'CANCELED')
order by seq for update

-- name: erase_outcomes
update commandbus.outcome o
set result = case when o.result is null then null else $4::text end, error = e.error, reason = e.reason
from unnest($1::text::bigint[], $2::text::text[], $3::text::text[]) as e (seq, error, reason)
where o.seq = e.seq

-- name: erase_commands
update commandbus.command
set data = $2::text, {erased}
where seq = any ($1::text::bigint[])

-- name: audit_of
select id, details from commandbus.audit where seq = any ($1::text::bigint[])

-- name: erase_audit
update commandbus.audit a set details = e.details
from unnest($1::text::bigint[], $2::text::text[]) as e (id, details) where a.id = e.id

-- name: erase_rest
-- What handlers recorded of their steps, and how far they said they were.
with steps as (delete from commandbus.recorded_step where seq = any ($1::text::bigint[]))
delete from commandbus.progress where seq = any ($1::text::bigint[])
