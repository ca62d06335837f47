-- name: ended
select seq, error, reason from commandbus_outcome
where seq in (select value from json_each(?)) and status in ('COMPLETED', 'FAILED', 'CANCELED')
order by seq

-- name: erase_outcome
update commandbus_outcome
set result = case when result is null then null else ? end, error = ?, reason = ?
where seq = ?

-- name: erase_commands
update commandbus_command set data = ?, {erased}
where seq in (select value from json_each(?))

-- name: audit_of
select id, details from commandbus_audit where seq in (select value from json_each(?))

-- name: erase_audit
update commandbus_audit set details = ? where id = ?

-- name: erase_steps
delete from commandbus_recorded_step where seq in (select value from json_each(?))

-- name: erase_progress
delete from commandbus_progress where seq in (select value from json_each(?))
