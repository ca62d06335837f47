-- name: look
-- Whether PGMQ is there, its version as an extension, what was noted about it, the columns of its
-- messages, and the mark of our own tables.
select to_regclass('pgmq.meta') is not null,
    (select extversion from pg_extension where extname = 'pgmq'),
    obj_description(to_regnamespace('pgmq'), 'pg_namespace'),
    array(select attname::text from pg_attribute
        where attrelid = to_regclass('pgmq.message_record') and attnum > 0 and not attisdropped),
    obj_description(to_regclass($1::text), 'pg_class')

-- name: usage
select (select count(*) from commandbus.pgmq_queue), (select count(*) from pgmq.meta),
    (select coalesce(sum(n), 0) from commandbus.tally where status = 'REFUSED')
