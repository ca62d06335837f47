-- What programs send by SQL passes the checks that `send` of the Python client makes, and a role that
-- only sends needs no rights on tables: the functions below run with those of their owner. Their
-- search path is fixed and all names are qualified, so that no object of a caller takes part.

-- Why a JSON text cannot be kept exactly, null when it can. Nearly all documents have no long number and
-- no exponent; only the others are looked at number by number.
create function commandbus.json_problem(document text, what text, bytes_max integer) returns text
    language plpgsql immutable parallel safe
as $$
declare
    parsed jsonb;
    number text;
begin
    if octet_length(document) > bytes_max then
        return format('%s takes %s bytes as JSON, more than the limit of %s; store the document '
            'elsewhere and send a reference to it', what, octet_length(document), bytes_max);
    end if;
    begin
        -- Unlike json, jsonb refuses what cannot be kept as text: NUL and lone surrogates.
        parsed := document::jsonb;
    exception
        when numeric_value_out_of_range then
            return format('%s has a number beyond the range of a double; send it as text', what);
        when statement_too_complex then
            return format('%s is nested deeper than 64 levels; flatten it', what);
        when data_exception then
            return format('%s cannot be kept as JSON: %s', what, sqlerrm);
    end;
    if jsonb_path_exists(parsed, 'strict $.**{64} ? (@.type() == "object" || @.type() == "array")') then
        return format('%s is nested deeper than 64 levels; flatten it', what);
    end if;
    if document ~ '[0-9]{19}|[0-9][eE]' then
        for number in
            select m.parts[1] from regexp_matches(
                regexp_replace(document, '"(?:\\.|[^"\\])*"', '""', 'g'),
                '-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?', 'g') as m (parts)
            where length(m.parts[1]) > 18 or m.parts[1] ~ '[eE]'
        loop
            if number ~ '^-?[0-9]+$' then
                if number::numeric not between -9223372036854775808 and 18446744073709551615 then
                    return format('%s has a whole number beyond 64 bits; send it as text', what);
                end if;
            elsif abs(number::numeric) > 1.797693134862315807e308 then
                return format('%s has a number beyond the range of a double; send it as text', what);
            end if;
        end loop;
    end if;
    return null;
end $$;

-- Seconds as microseconds. What a bigint cannot hold, infinity included, is cut off where it is still
-- out of every range that is allowed.
create function commandbus.as_microseconds(seconds numeric) returns bigint
    language sql immutable strict parallel safe
    return least(greatest(seconds * 1000000, -1e18), 1e18)::bigint;

-- Why a command cannot be sent, null when it can: the checks of the Python client, on the columns of the
-- table. Times are microseconds, `tags` and `headers` JSON texts, `requires` names with commas between.
create function commandbus.send_problem(domain text, command_type text, data text, reply_to text,
    priority integer, max_attempts integer, delay bigint, due_at bigint, expires_at bigint,
    unique_key text, tags text, headers text, group_key text, requires text, bytes_max integer)
    returns text language plpgsql immutable parallel safe
as $$
declare
    name    text;
    problem text;
begin
    foreach name in array array[domain, command_type, coalesce(reply_to, 'x')]
        || string_to_array(coalesce(requires, 'x'), ',') loop
        if name is null or name !~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,62}$' then
            return format('the name %s is not valid: use up to 63 letters, digits and _ . : -, beginning '
                'with a letter or underscore', quote_nullable(left(name, 80)));
        end if;
    end loop;
    if starts_with(command_type, 'commandbus.') then
        return format('the command type %L is reserved: such commands are written by the bus alone',
            command_type);
    end if;
    if priority is null or priority not between -32768 and 32767 then
        return format('priority must be between -32768 and 32767, not %s', priority);
    end if;
    if max_attempts not between 1 and 32767 then
        return format('max_attempts must be between 1 and 32767, not %s', max_attempts);
    end if;
    if delay not between 0 and 3162240000000000 then
        return format('delay must be between 0 and 3,162,240,000 seconds, not %s',
            round(delay / 1000000.0, 6));
    end if;
    if due_at not between -62135596800000000 and 253402300799999999
        or expires_at not between -62135596800000000 and 253402300799999999 then
        return 'due_at and expires_at must be in the years 1 to 9999';
    end if;
    if length(unique_key) not between 1 and 255 or length(group_key) not between 1 and 255 then
        return 'unique_key and group_key have 1 to 255 characters';
    end if;
    if data is null then
        return 'data must be JSON, not null';
    end if;
    problem := coalesce(commandbus.json_problem(data, 'data', bytes_max),
        commandbus.json_problem(tags, 'tags', 262144),
        commandbus.json_problem(headers, 'headers', 8192));
    if problem is not null then
        return problem;
    end if;
    if jsonb_typeof(headers::jsonb) <> 'object' then
        return 'headers must be a JSON object';
    end if;
    if jsonb_typeof(tags::jsonb) <> 'array' or jsonb_path_exists(tags::jsonb,
        'strict $[*] ? (@.type() != "string" || !(@ like_regex "^.{1,100}$" flag "s"))') then
        return 'tags must be texts of 1 to 100 characters';
    end if;
    return null;
end $$;

drop function commandbus.send;

-- Sends a command from any language, in the caller's transaction; returns the id of the command that
-- stands: the new one, or the one that holds the unique key.
create function commandbus.send(
    domain         text,
    command_type   text,
    data           json default 'null',
    command_id     uuid default null,
    correlation_id uuid default null,
    causation_id   uuid default null,
    reply_to       text default null,
    priority       integer default 5,
    delay          interval default null,
    due_at         timestamptz default null,
    expires_at     timestamptz default null,
    max_attempts   integer default null,
    unique_key     text default null,
    tags           text[] default null,
    headers        json default null,
    group_key      text default null,
    requires       text[] default null
) returns uuid
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    new_command uuid := coalesce(send.command_id, commandbus.new_id());
    content     text := coalesce(send.data, 'null')::text;
    rank        integer := coalesce(send.priority, 5);
    wait        bigint := coalesce(commandbus.as_microseconds(extract(epoch from send.delay)), 0);
    due         bigint := commandbus.as_microseconds(extract(epoch from send.due_at));
    expiry      bigint := commandbus.as_microseconds(extract(epoch from send.expires_at));
    marks       text := (select json_agg(t.tag order by t.n)::text from (
        select tag, min(n) as n from unnest(send.tags) with ordinality as u (tag, n) group by tag) t);
    extra       text := nullif(nullif(send.headers::text, 'null'), '{}');
    needs       text := (select string_agg(t.tag, ',' order by t.tag collate "C") from (
        select distinct coalesce(nullif(replace(tag, ',', ' '), ''), ' ') as tag
        from unnest(send.requires) as tag) t);
    holder      uuid;
    problem     text := commandbus.send_problem(send.domain, send.command_type, content, send.reply_to,
        rank, send.max_attempts, wait, due, expiry, send.unique_key, marks, extra, send.group_key,
        needs, 262144);
begin
    if send.delay is not null and send.due_at is not null then
        problem := 'give either delay or due_at, not both';
    end if;
    if problem is not null then
        raise exception '%', problem using errcode = 'invalid_parameter_value';
    end if;
    loop
        if (commandbus.add(new_command, send.domain, send.command_type, content, send.correlation_id,
                send.causation_id, send.reply_to, rank, send.max_attempts, wait, due, expiry,
                send.unique_key, marks, extra, null, send.group_key, needs, '', true)
           ).seq is not null then
            return new_command;
        end if;
        select c.command_id into holder from commandbus.unique_key k
        join commandbus.command c on c.seq = k.seq
        where k.domain = send.domain and k.unique_key = send.unique_key;
        if found then
            return holder;
        end if;
    end loop;
end $$;

-- What a program that connects as a sender uses in place of statements on tables. The parameters of this
-- one are those of the query insert_commands, whose text it contains.
create function commandbus.send_commands(text, text, text, text, text, text, text, text, text, text,
    text, text, text, text, text, text, text, text, text, boolean)
    returns table (added bigint, wait bigint)
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    problem text;
begin
    if $19 !~ '^[0-9a-z]{0,32}$' then
        raise exception 'the origin % is not valid', quote_literal(left($19, 80)) using
            errcode = 'invalid_parameter_value';
    end if;
    select coalesce(
        commandbus.send_problem(i.domain, i.command_type, i.data, i.reply_to, i.priority, i.max_attempts,
            i.delay, i.due_at, i.expires_at, i.unique_key, i.tags, i.headers, i.group_key, i.requires,
            67108864),
        case when i.batch_id is not null then 'a sender cannot add commands to a batch' end)
    into problem
    from rows from (
        unnest($2::text[]), unnest($3::text[]), unnest($4::text[]), unnest($7::text[]),
        unnest($8::integer[]), unnest($9::integer[]), unnest($10::bigint[]), unnest($11::bigint[]),
        unnest($12::bigint[]), unnest($13::text[]), unnest($14::text[]), unnest($15::text[]),
        unnest($16::uuid[]), unnest($17::text[]), unnest($18::text[])
    ) as i (domain, command_type, data, reply_to, priority, max_attempts, delay, due_at, expires_at,
        unique_key, tags, headers, batch_id, group_key, requires)
    order by 1 nulls last limit 1;
    if problem is not null then
        raise exception '%', problem using errcode = 'invalid_parameter_value';
    end if;
    return query
with moment as materialized (select commandbus.now_us() as now),
item as materialized (
    select nextval('commandbus.command_seq_seq') as seq, i.*,
        coalesce(i.due_at, m.now + coalesce(i.delay, 0)) as ready_at, m.now,
        case when i.group_key is not null or i.requires is not null
                or (select exists (select 1 from commandbus.limit_rule))
            then commandbus.first_gate(i.domain, i.command_type, i.group_key, i.requires) end as gate
    from moment m cross join rows from (
        unnest($1::text::uuid[]), unnest($2::text::text[]), unnest($3::text::text[]),
        unnest($4::text::text[]), unnest($5::text::uuid[]), unnest($6::text::uuid[]),
        unnest($7::text::text[]), unnest($8::text::integer[]), unnest($9::text::smallint[]),
        unnest($10::text::bigint[]), unnest($11::text::bigint[]), unnest($12::text::bigint[]),
        unnest($13::text::text[]), unnest($14::text::text[]), unnest($15::text::text[]),
        unnest($16::text::uuid[]), unnest($17::text::text[]), unnest($18::text::text[])
    ) as i (command_id, domain, command_type, data, correlation_id, causation_id, reply_to, priority,
        max_attempts, delay, due_at, expires_at, unique_key, tags, headers, batch_id,
        group_key, requires)),
held as (
    insert into commandbus.unique_key (domain, unique_key, seq)
    select domain, unique_key, seq from item where unique_key is not null
    order by domain, unique_key, seq
    on conflict do nothing returning seq),
new as materialized (
    select * from item where unique_key is null or seq in (select seq from held)),
kept as (
    insert into commandbus.command (seq, command_id, domain, command_type, data, correlation_id,
        causation_id, reply_to, priority, max_attempts, created_at, due_at, expires_at, unique_key,
        tags, headers, batch_id, group_key, requires)
    select seq, command_id, domain, command_type, data, coalesce(correlation_id, command_id),
        causation_id, reply_to, priority, max_attempts, now, ready_at, expires_at, unique_key, tags,
        headers, batch_id, group_key, requires
    from new),
/* places */
ready as (
    insert into commandbus.queue (domain, priority, seq, available_at, keyed)
    select domain, priority, seq, ready_at, unique_key is not null from new
    where ready_at <= now and gate is null),
waiting as (
    insert into commandbus.held (domain, gate, priority, seq, available_at)
    select domain, gate, priority, seq, ready_at from new where ready_at <= now and gate is not null),
touched as (
    insert into commandbus.touch (domain, gate, at)
    select distinct domain, gate, now from new where ready_at <= now and gate is not null),
places as (
    insert into commandbus.place (domain, requires)
    select distinct domain, requires from new where requires is not null on conflict do nothing),
later as (
    insert into commandbus.scheduled (domain, due_at, seq, priority, keyed)
    select domain, ready_at, seq, priority, unique_key is not null or gate is not null
    from new where ready_at > now),
/* end of places */
known as (
    insert into commandbus.domain as d (domain, gated)
    select n.domain, bool_or(n.gate is not null) from new n
    where not exists (select 1 from commandbus.domain d
        where d.domain = n.domain and (d.gated or n.gate is null))
    group by n.domain order by n.domain
    on conflict (domain) do update set gated = true where excluded.gated),
woken as materialized (
    select commandbus.wake(domain, greatest(0, min(ready_at - now)),
        case when bool_or(requires is not null) then $19::text || '*' else $19::text end)
    from new where $20::boolean group by domain)
select case when unique_key is null or seq in (select seq from held) then seq end, ready_at - now
from item where (select count(*) from woken) is not null order by item.seq;
end $$;

-- Answers about keys and ids that the caller names, and about nothing else.
create function commandbus.holders_of(domains text, unique_keys text)
    returns table (domain text, unique_key text, command_id uuid)
    language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
    select k.domain, k.unique_key, c.command_id
    from unnest($1::text[], $2::text[]) as w (domain, unique_key)
    join commandbus.unique_key k on k.domain = w.domain and k.unique_key = w.unique_key
    join commandbus.command c on c.seq = k.seq
$$;

create function commandbus.known_among(command_ids text, domains text)
    returns table (command_id uuid, domain text)
    language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
    select c.command_id, c.domain from unnest($1::uuid[], $2::text[]) as w (command_id, domain)
    join commandbus.command c on c.command_id = w.command_id and c.domain = w.domain
$$;

-- How many commands of a domain wait, counted no further than the limit of each place.
create function commandbus.pending_in(the_domain text, bound bigint) returns bigint
    language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
    select (select count(*) from (
            select 1 from commandbus.queue where domain = the_domain limit bound) q)
        + (select count(*) from (
            select 1 from commandbus.scheduled where domain = the_domain limit bound) s)
        + (select count(*) from (
            select 1 from commandbus.held where domain = the_domain limit bound) h)
        + (select count(*) from commandbus.place p cross join lateral (
            select 1 from commandbus.queue q
            where q.domain = commandbus.place_of(p.domain, p.requires) limit bound) q
            where p.domain = the_domain)
$$;

-- The bucket of a sender, locked; no row where the domain has no such limit.
create function commandbus.bucket_of(the_domain text, sender text)
    returns table (domain text, gate text, concurrency integer, rate double precision, burst integer,
        full_at bigint, now bigint)
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    return query
    with made as (
        insert into commandbus.bucket as b (domain, gate, full_at)
        select the_domain, 's:' || sender, 0 from commandbus.limit_rule l
        where l.domain = the_domain and l.gate = 's' and length(sender) between 1 and 255
        on conflict (domain, gate) do update set full_at = b.full_at
        returning b.full_at)
    select l.domain, l.gate, l.concurrency, l.rate, l.burst, m.full_at, commandbus.now_us()
    from commandbus.limit_rule l cross join made m where l.domain = the_domain and l.gate = 's';
end $$;

-- Takes tokens out of it; none can be put back.
create function commandbus.drain_bucket(the_domain text, sender text, until bigint) returns void
    language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
    update commandbus.bucket set full_at = greatest(full_at, until)
    where domain = the_domain and gate = 's:' || sender
$$;

-- A JSON text for searches, null where it is none: one bad row must not end the search.
create function commandbus.as_jsonb(document text) returns jsonb
    language plpgsql immutable parallel safe
as $$
begin
    return document::jsonb;
exception when data_exception or statement_too_complex then
    return null;
end $$;

revoke all on function commandbus.send, commandbus.send_commands, commandbus.holders_of,
    commandbus.known_among, commandbus.pending_in, commandbus.bucket_of, commandbus.drain_bucket
    from public;
