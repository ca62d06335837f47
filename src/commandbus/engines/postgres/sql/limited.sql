-- name: insert_commands
-- In place of the statement of this name, and of the next ones, for a role that has no rights on tables.
select added, wait from commandbus.send_commands({arrays}, :origin::text, :notify::boolean)

-- name: count_pending
select commandbus.pending_in($1::text, $2::bigint)

-- name: key_holders
select domain, unique_key, command_id from commandbus.holders_of($1::text, $2::text)

-- name: known_ids
select command_id, domain from commandbus.known_among($1::text, $2::text)

-- name: sender_bucket
select domain, gate, concurrency, rate, burst, full_at, now
from commandbus.bucket_of($1::text, substr($2::text, 3))

-- name: fill_bucket
select commandbus.drain_bucket($1::text, substr($2::text, 3), $3::bigint)

-- name: insert_plain
select commandbus.send_plain($1::uuid, $2::text, $3::text, $4::text, $5::bigint::integer, $6::text,
    $7::boolean), 0::bigint
