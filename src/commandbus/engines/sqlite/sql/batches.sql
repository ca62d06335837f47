-- name: add
insert into commandbus_batch_count (batch_id, shard, completed, failed, canceled, parked)
values (?, ?, ?, ?, ?, ?)
on conflict (batch_id, shard) do update set completed = completed + excluded.completed,
    failed = failed + excluded.failed, canceled = canceled + excluded.canceled,
    parked = parked + excluded.parked

-- name: counts
select sum(completed), sum(failed), sum(canceled), sum(parked) from commandbus_batch_count
where batch_id = ?

-- name: batch_of
-- For ends that no worker reports; workers bring the batch along.
select batch_id from commandbus_command where seq = ? and batch_id is not null
