-- What the PGMQ transport keeps beside PGMQ's own tables. Safe to repeat.

-- Which queue carries which commands of a domain: one per priority, replies apart, and adopted ones,
-- whose messages are turned into commands by a mapping.
create table if not exists commandbus.pgmq_queue (
    queue_id integer generated always as identity primary key,
    queue    text not null unique,
    domain   text not null,
    priority integer not null,
    replies  boolean not null default false,
    mapping  text
);
create index if not exists pgmq_queue_domain on commandbus.pgmq_queue (domain);

-- Where the message of a command is, or was: written once, like the command.
create table if not exists commandbus.pgmq_message (
    seq      bigint primary key,
    queue_id integer not null,
    msg_id   bigint not null
);

create or replace function commandbus.pgmq_text_of(moment bigint) returns text
    language sql immutable parallel safe
    return to_char(('epoch'::timestamptz + moment * '1 microsecond'::interval) at time zone 'UTC',
        'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');

-- The documented form of a command as a message.
create or replace function commandbus.pgmq_envelope(
    command_id uuid, domain text, command_type text, data text, correlation_id uuid,
    causation_id uuid, reply_to text, max_attempts integer, created_at bigint, expires_at bigint,
    tags text, batch_id uuid) returns jsonb
    language sql stable parallel safe
    return jsonb_strip_nulls(jsonb_build_object(
            'command_id', command_id, 'domain', domain, 'command_type', command_type,
            'correlation_id', correlation_id, 'causation_id', causation_id, 'reply_to', reply_to,
            'max_attempts', max_attempts, 'created_at', commandbus.pgmq_text_of(created_at),
            'expires_at', commandbus.pgmq_text_of(expires_at), 'tags', tags::jsonb,
            'batch_id', batch_id))
        || jsonb_build_object('data', data::jsonb);

-- The headers of a message: those of its command, and a token that says which command this very
-- message carries; a copy under another number is not taken for it.
create or replace function commandbus.pgmq_headers(
    headers jsonb, seq bigint, msg_id bigint, crashes integer, releases integer) returns jsonb
    language sql immutable parallel safe
    return coalesce(headers, '{}') || jsonb_build_object('commandbus',
        case when crashes = 0 and releases = 0 then jsonb_build_array(seq, msg_id)
            else jsonb_build_array(seq, msg_id, crashes, releases) end);

-- What a token and a row of PGMQ say, within what the bus can keep: other programs write both.
create or replace function commandbus.pgmq_count(part text) returns smallint
    language sql immutable parallel safe
    return case when part is null then 0  -- nearly always
        when length(part) between 1 and 4 and translate(part, '0123456789', '') = ''
        then part::smallint else 0 end;

create or replace function commandbus.pgmq_moment(moment timestamptz) returns bigint
    language sql immutable parallel safe
    return case when moment is not null then
        (extract(epoch from greatest('1970-01-01 00:00:00+00'::timestamptz,
            least('9999-12-01 00:00:00+00'::timestamptz, moment))) * 1000000)::bigint end;

-- Undoes a statement that believed something of leases and messages which is not so.
create or replace function commandbus.pgmq_insist(is_so boolean) returns boolean
    language plpgsql stable
as $$
begin
    if is_so then
        return true;
    end if;
    raise exception 'a lease or a message is not as it was last seen' using errcode = 'CB409';
end $$;

-- Announces what others send to a queue, as the bus announces what it sends itself: only when a
-- process sleeps. It runs with the rights of its owner, never waits and never fails: the programs that
-- send have no rights on the bus and must not notice it. What the bus sends it announces by itself; the
-- condition of the trigger asks for a setting of such a transaction.
create or replace function commandbus.pgmq_tell() returns trigger
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
    if pg_try_advisory_xact_lock_shared(commandbus.wake_key(tg_argv[0])) then
        perform commandbus.wake(tg_argv[0], 0, '');
    elsif pg_notification_queue_usage() <= 0.9 then
        perform pg_notify('commandbus.wake', tg_argv[0] || ' ');
    end if;
    return null;
exception when others then
    return null;
end $$;

-- The queue of a domain's commands, or of replies to it, at one priority. A name that PGMQ does not
-- take is shortened, with a hash that tells `Orders` from `orders`, whose tables PGMQ would not. So are all
-- names in another schema than `commandbus`: its bus is another one, and PGMQ has one schema for all.
create or replace function commandbus.pgmq_queue_of(domain text, priority integer, replies boolean)
    returns text
    language sql immutable parallel safe
    return (select case when other = '' and domain ~ '^[a-z_][a-z0-9_]{0,29}$' then domain
            else left(regexp_replace(lower(domain), '[^a-z0-9_]', '_', 'g'), 21) || '_'
                || left(encode(sha256(convert_to(other || domain, 'UTF8')), 'hex'), 8) end
        || case when replies then '__replies' else '__commands' end
        || case when priority = 5 then '' when priority >= 0 then '_p' || priority
            else '_n' || -priority end
        from (select replace('commandbus.queue', '"commandbus"' || '.queue', '')) as s (other));

-- Grants rights to those of the bus's roles (see `commandbus db roles`) that exist. Rights on what
-- belongs to others are theirs to grant.
create or replace function commandbus.pgmq_grant(roles text, rights text) returns void
    language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    grantee text;
begin
    for grantee in
        select r.rolname from pg_roles r join pg_class c on c.oid = 'commandbus.pgmq_queue'::regclass
        join pg_namespace n on n.oid = c.relnamespace
        where r.rolname in (
            select n.nspname || '_' || role from unnest(string_to_array(roles, ' ')) as w (role))
    loop
        execute format('grant %s to %I', rights, grantee);
    end loop;
exception when insufficient_privilege then
    raise notice 'not granted to %: %', roles, rights;
end $$;

create or replace function commandbus.pgmq_grant_queue(the_queue text) returns void
    language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    q text := format('pgmq.%I', lower('q_' || the_queue));
    a text := format('pgmq.%I', lower('a_' || the_queue));
begin
    perform commandbus.pgmq_grant('worker', format('select, insert, update, delete on %s', q));
    perform commandbus.pgmq_grant('worker', format('insert on %s', a));
    perform commandbus.pgmq_grant('viewer', format('select on %s, %s', q, a));
    perform commandbus.pgmq_grant('admin', format('select, insert, update, delete, truncate on %s, %s', q, a));
    perform commandbus.pgmq_grant('worker admin',
        format('usage on sequence %s', pg_get_serial_sequence(q, 'msg_id')));
end $$;

-- The trigger that announces what others send, and the rights of the bus's roles. Where a queue belongs
-- to a role that does not let us make the trigger, PGMQ's own notifications serve.
create or replace function commandbus.pgmq_attach(the_queue text, the_domain text) returns void
    language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    the_table text := lower('q_' || the_queue);
begin
    perform commandbus.pgmq_grant_queue(the_queue);
    if not exists (select 1 from pg_trigger
        where tgrelid = to_regclass(format('pgmq.%I', the_table)) and tgname = 'commandbus_tell')
    then
        execute format('create trigger commandbus_tell after insert on pgmq.%I for each statement
            when (position(%L in coalesce(current_setting(''commandbus_pgmq.announced'', true), '''')) = 0)
            execute function commandbus.pgmq_tell(%L)', the_table, ' ' || the_domain || ' ', the_domain);
    end if;
exception when insufficient_privilege or wrong_object_type then
    raise notice 'no trigger on %, workers hear of messages by PGMQ''s own notifications', the_table;
end $$;

-- Creates the queue of a domain's commands or replies at a priority, or takes the one that exists.
-- It runs with the rights of its owner, so that programs need none to create tables; the name is made
-- here, so that they reach no queue of others. Its row is the lock: the others wait for it, then find
-- the queue. One that is known is left alone: it is in use, and even CREATE INDEX IF NOT EXISTS would
-- wait for that.
--
-- It is vacuumed early, because reads begin where its dead rows lie. One that is created here has room
-- for a read in the page of its message and no index on vt, by which the bus does not look: so a read
-- touches no index, and logs what has changed instead of the whole message. PGMQ's own functions work
-- as before.
create or replace function commandbus.pgmq_bind(
    the_domain text, the_priority integer, is_replies boolean) returns void
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    the_queue text := commandbus.pgmq_queue_of(the_domain, the_priority, is_replies);
    the_table text := lower('q_' || the_queue);
    owner     text;
    is_known  boolean := false;
begin
    if the_domain !~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,62}$' then
        raise exception 'the domain % has no valid name', the_domain
            using errcode = 'invalid_parameter_value';
    end if;
    insert into commandbus.domain (domain) values (the_domain) on conflict do nothing;
    insert into commandbus.pgmq_queue (queue, domain, priority, replies)
    values (the_queue, the_domain, the_priority, is_replies) on conflict (queue) do nothing;
    if not found then
        select domain into owner from commandbus.pgmq_queue where queue = the_queue;
        if owner <> the_domain then
            raise exception 'the queue % is bound to the domain % already', the_queue, owner
                using errcode = 'invalid_parameter_value';
        end if;
        if to_regclass(format('pgmq.%I', the_table)) is not null then
            return;
        end if;
        perform 1 from commandbus.pgmq_queue where queue = the_queue for update;
        is_known := true;
    end if;
    if to_regclass(format('pgmq.%I', the_table)) is null then
        perform pgmq.create(the_queue);
        if is_known then  -- it was dropped, and commands still have numbers of its messages
            perform setval(pg_get_serial_sequence(format('pgmq.%I', the_table), 'msg_id'), max(m.msg_id))
            from commandbus.pgmq_queue q join commandbus.pgmq_message m on m.queue_id = q.queue_id
            where q.queue = the_queue having max(m.msg_id) is not null;
        end if;
        execute format('alter table pgmq.%I set (fillfactor = 50)', the_table);
        execute format('drop index if exists pgmq.%I', the_table || '_vt_idx');
    end if;
    begin
        execute format('alter table pgmq.%I set (autovacuum_vacuum_scale_factor = 0,
            autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_insert_threshold = -1,
            autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0,
            autovacuum_analyze_threshold = 100000, vacuum_truncate = false)', the_table);
    exception when insufficient_privilege or wrong_object_type then
        raise notice '% keeps its settings for vacuum', the_table;
    end;
    perform commandbus.pgmq_attach(the_queue, the_domain);
end $$;
revoke execute on function commandbus.pgmq_bind(text, integer, boolean) from public;

-- Binds a queue of others to a domain, with the rights of the caller.
create or replace function commandbus.pgmq_adopt(
    the_queue text, the_domain text, the_priority integer, the_mapping text) returns void
    language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    owner text;
begin
    insert into commandbus.domain (domain) values (the_domain) on conflict do nothing;
    insert into commandbus.pgmq_queue as q (queue, domain, priority, mapping)
    values (the_queue, the_domain, the_priority, the_mapping)
    on conflict (queue) do update set priority = excluded.priority, mapping = excluded.mapping
        where q.domain = excluded.domain
    returning domain into owner;
    if owner is null then
        select domain into owner from commandbus.pgmq_queue where queue = the_queue;
        raise exception 'the queue % is bound to the domain % already', the_queue, owner
            using errcode = 'invalid_parameter_value';
    end if;
    perform commandbus.pgmq_attach(the_queue, the_domain);
end $$;

-- All rights of the bus's roles over PGMQ; repeated whenever the roles are made again.
create or replace function commandbus.pgmq_grants() returns void
    language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    perform commandbus.pgmq_grant('sender worker viewer admin', 'usage on schema pgmq');
    perform commandbus.pgmq_grant('sender worker viewer admin', 'select on commandbus.pgmq_queue');
    perform commandbus.pgmq_grant('worker viewer admin', 'select on pgmq.meta');
    if to_regclass('pgmq.notify_insert_throttle') is not null then
        perform commandbus.pgmq_grant('worker', 'select on pgmq.notify_insert_throttle');
    end if;
    perform commandbus.pgmq_grant('worker admin',
        'execute on function commandbus.pgmq_bind(text, integer, boolean)');
    perform commandbus.pgmq_grant('viewer',
        'execute on function commandbus.pgmq_count, commandbus.pgmq_moment');
    perform commandbus.pgmq_grant('worker', 'select, insert, update on commandbus.pgmq_message');
    perform commandbus.pgmq_grant_queue(queue) from commandbus.pgmq_queue
        where to_regclass(format('pgmq.%I', lower('q_' || queue))) is not null;
end $$;
select commandbus.pgmq_grants();
