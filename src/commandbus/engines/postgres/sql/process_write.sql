-- name: add_processes
-- Nothing is added when one of them exists; one that comes into being meanwhile violates the key.
with moment as materialized (select commandbus.now_us() as now),
item as materialized (
    select * from {added} with ordinality as i),
taken as materialized (
    select i.process_id from item i join commandbus.process p on p.process_id = i.process_id),
added as (
    insert into commandbus.process (process_id, process_type, reply_to, status, version, state,
        progress, error, due_at, created_at, updated_at, finished_at, batch_id, parent_id)
    select i.process_id, i.process_type, i.reply_to, i.status, 1, i.state, i.progress, i.error,
        m.now + i.due_in, m.now, m.now, case when i.ended then m.now end, i.batch_id, i.parent_id
    from item i cross join moment m where not exists (select 1 from taken) order by i.n),
noted as (
    insert into commandbus.process_step (process_id, kind, step, command_id, at, details)
    select e.process_id, e.kind, e.step, e.command_id, m.now, e.details
    from moment m, {events} with ordinality as e
    where not exists (select 1 from taken) order by e.n)
select process_id from taken

-- name: put_processes
-- Only the versions that the writer has seen; answers with those that were written.
with moment as materialized (select commandbus.now_us() as now),
changed as (
    update commandbus.process p set version = p.version + 1, status = i.status, state = i.state,
        progress = i.progress, error = i.error, due_at = p.created_at + i.due_in, updated_at = m.now,
        finished_at = case when i.ended then m.now end
    from moment m cross join {changed} as i
    where p.process_id = i.process_id and p.version = i.version
    returning p.process_id),
noted as (
    insert into commandbus.process_step (process_id, kind, step, command_id, at, details)
    select e.process_id, e.kind, e.step, e.command_id, m.now, e.details
    from moment m, {events} with ordinality as e
    order by e.n)
select process_id from changed
