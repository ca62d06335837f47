-- name: durability
select current_setting('fsync'), current_setting('synchronous_commit'),
    nullif(current_setting('synchronous_standby_names'), ''), pg_is_in_recovery()

-- name: oldest_snapshot
-- Who holds back the horizon behind which vacuum may clean: sessions, prepared transactions and
-- replication slots, the oldest first. Our own snapshot does not count.
select who, seconds from (
    select format('session %s (%s, %s)', pid, coalesce(nullif(application_name, ''), usename), state)
            as who,
        extract(epoch from clock_timestamp() - coalesce(xact_start, query_start)) as seconds,
        greatest(age(backend_xmin), age(backend_xid)) as age
    from pg_stat_activity
    where pid <> pg_backend_pid() and (backend_xmin is not null or backend_xid is not null)
    union all
    select format('prepared transaction %s', gid),
        extract(epoch from clock_timestamp() - prepared), age(transaction)
    from pg_prepared_xacts
    union all
    select format('replication slot %s', slot_name), 0, greatest(age(xmin), age(catalog_xmin))
    from pg_replication_slots where xmin is not null or catalog_xmin is not null) held
order by age desc nulls last limit 1

-- name: hot_tables
select relname, n_live_tup, n_dead_tup,
    coalesce('vacuumed ' || to_char(greatest(last_vacuum, last_autovacuum), 'YYYY-MM-DD HH24:MI:SS'),
        'never vacuumed')
from pg_stat_user_tables
where schemaname = $1 and relname in ('queue', 'lease', 'scheduled', 'tally', 'sleeper')
order by n_dead_tup desc

-- name: sequence
select case when is_called then last_value end from commandbus.command_seq_seq

-- name: overdue_leases
select count(*), min(lease_id) from commandbus.lease
where until < commandbus.now_us() - $1::bigint * 1000000

-- name: notifications
select pg_notification_queue_usage()

-- name: clock
select extract(epoch from clock_timestamp())

-- name: connections
select count(*), current_setting('max_connections')::integer,
    count(*) filter (where application_name like 'commandbus%')
from pg_stat_activity where backend_type = 'client backend'

-- name: size
select pg_size_pretty(coalesce(sum(pg_total_relation_size(c.oid)), 0))
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = $1 and c.relkind in ('r', 'p', 'm')

-- name: autovacuum
select current_setting('autovacuum')

-- name: connection_budget
-- What the server allows, keeps back for administrators, and has given out besides this connection;
-- and what is left to this role and this database where they have limits of their own.
select current_setting('max_connections')::integer,
    current_setting('superuser_reserved_connections')::integer
        + coalesce(current_setting('reserved_connections', true)::integer, 0),
    (select count(*) - 1 from pg_stat_activity where backend_type in ('client backend', 'walsender')),
    least(
        (select case when datconnlimit >= 0 then datconnlimit - (select count(*) - 1
            from pg_stat_activity a where a.datname = d.datname) else 2147483647 end
         from pg_database d where d.datname = current_database()),
        (select case when rolconnlimit >= 0 then rolconnlimit - (select count(*) - 1
            from pg_stat_activity a where a.usename = r.rolname) else 2147483647 end
         from pg_roles r where r.rolname = current_user))

-- name: encryption
select ssl, version, cipher, inet_server_addr() is null, coalesce(host(inet_server_addr()), '')
    in ('127.0.0.1', '::1') from pg_stat_ssl where pid = pg_backend_pid()

-- name: access
-- Whether every role may connect, and login roles that may though they have nothing to do with the bus.
select current_database(), has_database_privilege('public', d.oid, 'connect'), array(
    select r.rolname from pg_roles r
    where r.rolcanlogin and not r.rolsuper and r.rolname <> current_user
        and has_database_privilege(r.oid, d.oid, 'connect')
        and not has_schema_privilege(r.oid, $1, 'usage')
    order by r.rolname)
from pg_database d where d.datname = current_database()

-- name: search_path
-- Schemas that are looked through for names without a schema, in which other login roles may create
-- functions and operators; and those roles.
select n.nspname, array_agg(r.rolname order by r.rolname)
from unnest(current_schemas(false)) with ordinality as s (name, place)
join pg_namespace n on n.nspname = s.name
join pg_database d on d.datname = current_database()
join pg_roles r on r.rolcanlogin and not r.rolsuper and r.rolname <> current_user and r.oid <> d.datdba
    and has_database_privilege(r.oid, d.oid, 'connect')
    and has_schema_privilege(r.oid, n.oid, 'usage') and has_schema_privilege(r.oid, n.oid, 'create')
group by s.place, n.nspname order by s.place limit 1

-- name: rights
-- What every role may do here; the roles of the bus that have rights here, since a role of the same name
-- may be another database's; and those that lack the rights of this version, by its newest function.
select pg_get_userbyid(n.nspowner), array_remove(array[
        case when has_schema_privilege('public', n.oid, 'create') then 'create tables' end,
        case when exists (select from pg_class c where c.relnamespace = n.oid and c.relkind = 'r'
            and has_table_privilege('public', c.oid, 'insert, update, delete, truncate'))
            then 'write tables' end,
        case when exists (select from pg_class c where c.relnamespace = n.oid and c.relkind = 'r'
            and has_table_privilege('public', c.oid, 'select')) then 'read tables' end], null),
    array(select r.rolname from pg_roles r where r.rolname = any ($2::text[])
        and has_schema_privilege(r.oid, n.oid, 'usage') order by 1),
    array(select r.rolname from pg_roles r where r.rolname = any ($3::text[])
        and has_schema_privilege(r.oid, n.oid, 'usage')
        and not has_function_privilege(r.oid,
            to_regprocedure('commandbus.lock_capacity(text)'), 'execute'))
from pg_namespace n where n.nspname = $1

-- name: listeners
-- Processes with workers, as they reported themselves, and connections that listen.
select (select count(distinct (commandbus.as_jsonb(d.body)->>'host', commandbus.as_jsonb(d.body)->>'pid'))
        from commandbus.document d where d.kind = 'worker' and d.due_at > commandbus.now_us()),
    (select count(*) from pg_stat_activity a
        where a.application_name = 'commandbus listen' and a.datname = current_database())
