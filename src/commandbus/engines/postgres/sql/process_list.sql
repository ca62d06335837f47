-- name: query_processes
-- That a command of a process is parked is looked up only for those that have not ended. What a status
-- says beside itself is a part, so that an index finds the few that fit.
select process_id, process_type, reply_to, status, version, state, progress, error,
    due_at - created_at, batch_id, parent_id, finished_at is not null, created_at, updated_at,
    finished_at, seq, commandbus.now_us() - created_at, parked
from commandbus.process p cross join lateral (
    select p.finished_at is null and exists (select 1 from commandbus.command c
        join commandbus.outcome o on o.seq = c.seq and o.status = 'IN_TROUBLESHOOTING_QUEUE'
        where c.correlation_id = p.process_id and c.correlation_id <> c.command_id
            and p.reply_to in (c.reply_to, c.domain)) as parked) w
where (:process_type::text is null or process_type = :process_type::text)
    and (:status::text is null
        or case when parked then 'WAITING_FOR_TROUBLESHOOTING' else status end = :status::text)
    and (:batch_id::uuid is null or batch_id = :batch_id::uuid)
    and (:parent_id::uuid is null or parent_id = :parent_id::uuid)
    and (:created_after::bigint is null or created_at >= :created_after::bigint)
    and (:created_before::bigint is null or created_at < :created_before::bigint)
    and (:before::bigint is null or seq < :before::bigint)
    {narrow}
order by seq desc limit :limit::bigint

-- name: ended
and status = :status::text

-- name: unended
and finished_at is null
