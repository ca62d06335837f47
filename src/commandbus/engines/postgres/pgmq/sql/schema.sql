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

-- Announces what others send to a queue, as the bus announces what it sends itself: only when
-- somebody sleeps. The bus says in a setting of its transaction which domains it has told already.
create or replace function commandbus.pgmq_tell() returns trigger
    language plpgsql volatile
as $$
begin
    if position(' ' || tg_argv[0] || ' ' in coalesce(current_setting('commandbus_pgmq.told', true), '')) = 0
    then
        perform commandbus.wake(tg_argv[0], 0, '');
    end if;
    return null;
end $$;

-- Creates a queue, or takes the one that exists, and binds it to a domain. Vacuumed early, because
-- reads begin where its dead rows lie. One that is created here has room for a read in the page of its
-- message and no index on vt, by which the bus does not look: so a read touches no index, and logs
-- what has changed instead of the whole message. PGMQ's own functions work as before.
create or replace function commandbus.pgmq_bind(
    the_queue text, the_domain text, the_priority integer, is_replies boolean, the_mapping text)
    returns integer
    language plpgsql volatile
as $$
declare
    the_table text := lower('q_' || the_queue);
    is_new    boolean := to_regclass(format('pgmq.%I', the_table)) is null;
    the_id    integer;
    owner     text;
begin
    perform commandbus.lock_mutex('pgmq ' || the_queue, true);
    select queue_id, domain into the_id, owner from commandbus.pgmq_queue where queue = the_queue;
    if owner <> the_domain then
        raise exception 'the queue % is bound to the domain % already', the_queue, owner
            using errcode = 'invalid_parameter_value';
    end if;
    if the_mapping is null then
        perform pgmq.create(the_queue);
    end if;
    begin
        if the_mapping is null then
            execute format('alter table pgmq.%I set (autovacuum_vacuum_scale_factor = 0,
                autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_insert_threshold = -1,
                autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0,
                autovacuum_analyze_threshold = 100000, vacuum_truncate = false)', the_table);
        end if;
        if is_new then
            execute format('alter table pgmq.%I set (fillfactor = 50)', the_table);
            execute format('drop index if exists pgmq.%I', the_table || '_vt_idx');
        end if;
        execute format('create or replace trigger commandbus_tell after insert on pgmq.%I
            for each statement execute function commandbus.pgmq_tell(%L)', the_table, the_domain);
    exception when insufficient_privilege or wrong_object_type then
        raise notice 'no trigger on %, workers hear of messages by PGMQ''s own notifications', the_table;
    end;
    if the_id is null then
        insert into commandbus.pgmq_queue (queue, domain, priority, replies, mapping)
        values (the_queue, the_domain, the_priority, is_replies, the_mapping)
        returning queue_id into the_id;
    else
        update commandbus.pgmq_queue set priority = the_priority, mapping = the_mapping
        where queue_id = the_id
            and (priority, mapping) is distinct from (the_priority, the_mapping);
    end if;
    insert into commandbus.domain (domain) values (the_domain) on conflict do nothing;
    return the_id;
end $$;
