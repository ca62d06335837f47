-- name: add_batch_counts
insert into commandbus.batch_count as b (batch_id, shard, completed, failed, canceled, parked)
select c.batch_id, $2::text, c.completed, c.failed, c.canceled, c.parked
from unnest($1::text::uuid[], $3::text::bigint[], $4::text::bigint[], $5::text::bigint[],
    $6::text::bigint[]) as c (batch_id, completed, failed, canceled, parked)
order by c.batch_id
on conflict (batch_id, shard) do update set completed = b.completed + excluded.completed,
    failed = b.failed + excluded.failed, canceled = b.canceled + excluded.canceled,
    parked = b.parked + excluded.parked

-- name: batch_counts
select batch_id, sum(completed)::bigint, sum(failed)::bigint, sum(canceled)::bigint,
    sum(parked)::bigint
from commandbus.batch_count where batch_id = any ($1::text::uuid[]) group by batch_id
