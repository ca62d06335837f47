-- What a command is held back by: others of its group, and tags that a worker must have.
alter table commandbus.command add column group_key text, add column requires text;

-- Whether anything in a domain was ever held back: else nobody asks.
alter table commandbus.domain add column gated boolean not null default false;

create table commandbus.limit_rule (
    domain      text not null,
    gate        text not null,
    concurrency integer,
    rate        double precision,
    burst       integer not null,
    primary key (domain, gate)
);

-- What is due and waits at a gate, in the order in which it passes.
create table commandbus.held (
    domain       text not null,
    gate         text not null,
    priority     integer not null,
    seq          bigint not null,
    available_at bigint not null,
    attempts     smallint not null default 0,
    crashes      smallint not null default 0,
    releases     smallint not null default 0,
    primary key (domain, gate, priority, seq)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0,
        vacuum_truncate = false);
create unique index held_seq on commandbus.held (seq);

-- Who passed a gate and has not ended.
create table commandbus.slot (
    domain text not null,
    gate   text not null,
    seq    bigint not null,
    primary key (seq, gate)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0,
        vacuum_truncate = false);
create index slot_gate on commandbus.slot (domain, gate);

-- When a gate is to be looked at: something came, something ended, or a token is due. Only added to
-- by those who send and settle, so that they never wait for each other, and taken by whoever opens.
create table commandbus.touch (
    domain text not null,
    gate   text not null,
    at     bigint not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0,
        vacuum_truncate = false);
create index touch_at on commandbus.touch (domain, at);

-- When the bucket of a gate is full.
create table commandbus.bucket (
    domain  text not null,
    gate    text not null,
    full_at bigint not null,
    primary key (domain, gate)
) with (fillfactor = 50);

-- Ready work for workers with certain tags lies in the queue under `domain#tags`.
create table commandbus.place (
    domain   text not null,
    requires text not null,
    primary key (domain, requires)
);

create function commandbus.place_of(domain text, requires text) returns text
    language sql immutable parallel safe
    return case when requires is null then domain else domain || '#' || requires end;

-- The next gate of a command that passed one, null when it passed them all. Before any: 'k:'.
create function commandbus.gate_after(the_domain text, command_type text, passed text) returns text
    language sql stable parallel safe
    return case
        when passed like 'k:%' and exists (select 1 from commandbus.limit_rule r
            where r.domain = the_domain and r.gate = 't:' || command_type) then 't:' || command_type
        when passed not in ('d', 'r') and exists (select 1 from commandbus.limit_rule r
            where r.domain = the_domain and r.gate = 'd') then 'd'
    end;

-- Where a command waits first, null when nothing holds it back.
create function commandbus.first_gate(domain text, command_type text, group_key text, requires text)
    returns text language sql stable parallel safe
    return case when group_key is not null then 'k:' || group_key
        else coalesce(commandbus.gate_after(domain, command_type, 'k:'),
            case when requires is not null then 'r' end) end;

-- Notes that a domain has gates, and where its tagged work lies.
create function commandbus.mark_gated(the_domain text, requires text) returns void
    language plpgsql volatile
as $$
begin
    if not exists (select 1 from commandbus.domain d where d.domain = the_domain and d.gated) then
        insert into commandbus.domain (domain, gated) values (the_domain, true)
        on conflict (domain) do update set gated = true;
    end if;
    if mark_gated.requires is not null then
        insert into commandbus.place (domain, requires) values (the_domain, mark_gated.requires)
        on conflict do nothing;
    end if;
end $$;

-- Lets pass what the gates of a domain allow, to the next gate or to the queue. One at a time per
-- domain, so that what is counted stays true; those who come meanwhile go on, or wait if told to.
-- Senders and settlers are never waited for: they only add touches. Answers how many passed, whether
-- tagged work did, and whether somebody else was at it.
create function commandbus.admit(the_domain text, patient boolean, pass_max integer,
    origin text, announce boolean, out passed bigint, out tagged boolean, out busy boolean)
    language plpgsql volatile
as $$
declare
    now_at   bigint;
    kind     text;
    ruled    boolean := exists (select 1 from commandbus.limit_rule r where r.domain = the_domain);
    spread   boolean := exists (select 1 from commandbus.place p where p.domain = the_domain);
    moved    bigint;
    placed   boolean;
    lock_key bigint := hashtextextended('commandbus.admit ' || the_domain, 0);
begin
    passed := 0;
    tagged := false;
    busy := false;
    perform set_config('synchronous_commit', 'off', true);
    if patient then
        perform pg_advisory_xact_lock(lock_key);
    elsif not pg_try_advisory_xact_lock(lock_key) then
        busy := true;
        return;
    end if;
    if exists (select 1 from commandbus.domain d
               where d.domain = the_domain and d.paused_at is not null) then
        return;
    end if;
    now_at := commandbus.now_us();
    if not exists (select 1 from commandbus.touch t where t.domain = the_domain and t.at <= now_at) then
        return;
    end if;
    -- In the order in which a command passes them: its key's, its type's, its domain's.
    foreach kind in array array['k:%', 't:%', '_'] loop
        with touched as (
            delete from commandbus.touch where ctid = any (array(
                select ctid from commandbus.touch t where t.domain = the_domain and t.at <= now_at
                    and t.gate like kind
                order by t.at limit 5 * pass_max))
            returning gate),
        looked_at as materialized (
            select t.gate, g.concurrency, r.rate, r.burst, b.full_at,
                least(g.concurrency - s.running, pass_max) as room,
                case when r.rate is not null then floor(r.burst
                    - greatest(0, coalesce(b.full_at, 0) - now_at - 1) * r.rate / 1000000) end as tokens
            from (select distinct gate from touched) t
            left join commandbus.limit_rule r on r.domain = the_domain
                and r.gate = case when t.gate like 'k:%' then 'k' else t.gate end
            cross join lateral (select case when t.gate like 'k:%' then coalesce(r.concurrency, 1)
                else r.concurrency end as concurrency) g
            left join commandbus.bucket b on b.domain = the_domain and b.gate = t.gate
            cross join lateral (select case when g.concurrency is not null then
                (select count(*) from commandbus.slot s where s.domain = the_domain and s.gate = t.gate)
                end as running) s),
        allowed as materialized (
            select *, greatest(0, least(coalesce(room, pass_max), tokens))::integer as count
            from looked_at),
        chosen as materialized (
            select a.gate, h.* from allowed a cross join lateral (
                select ctid as place, priority, seq, available_at, attempts, crashes, releases
                from commandbus.held h where h.domain = the_domain and h.gate = a.gate
                order by h.priority, h.seq limit a.count) h),
        gone as (
            delete from commandbus.held where ctid = any (array(select place from chosen))
            returning gate, priority, seq, available_at, attempts, crashes, releases),
        -- Held to be materialized: every part below is about the same rows.
        going as materialized (
            select g.*, c.requires, case when ruled then
                commandbus.gate_after(the_domain, c.command_type, g.gate) end as following
            from gone g left join lateral (
                select c.command_type, c.requires from commandbus.command c
                where (ruled or spread) and c.seq = g.seq limit 1) c on true),
        slotted as (
            insert into commandbus.slot (domain, gate, seq) select the_domain, gate, seq from going),
        further as (
            insert into commandbus.held (domain, gate, priority, seq, available_at, attempts, crashes,
                releases)
            select the_domain, following, priority, seq, available_at, attempts, crashes, releases
            from going where following is not null),
        ready as (
            insert into commandbus.queue (domain, priority, seq, available_at, attempts, crashes,
                releases, keyed)
            select commandbus.place_of(the_domain, requires), priority, seq, available_at, attempts,
                crashes, releases, true
            from going where following is null),
        -- Few: groups that run one at a time are left out, for what ends in them touches their gates.
        counted as materialized (
            select a.gate, a.rate, a.burst, a.full_at, a.room, a.tokens, a.count,
                (select count(*) from going g where g.gate = a.gate) as went
            from allowed a where a.rate is not null or a.room is null),
        filled as materialized (
            select c.gate, c.rate, c.burst,
                greatest(coalesce(c.full_at, 0), now_at) + round(c.went * 1000000 / c.rate)::bigint
                    as full_at,
                c.went = c.count and c.tokens <= coalesce(c.room, pass_max) as dry
            from counted c where c.rate is not null),
        kept as (
            insert into commandbus.bucket as b (domain, gate, full_at)
            select the_domain, gate, full_at from filled
            on conflict (domain, gate) do update set full_at = excluded.full_at),
        again as (
            insert into commandbus.touch (domain, gate, at)
            -- The bucket is empty and may not be all that is wanted: when enough tokens are there.
            select the_domain, f.gate, greatest(now_at, f.full_at - ((f.burst
                - greatest(1, least(f.burst, round(f.rate * 0.05)))) * 1000000 / f.rate)::bigint)
            from filled f where f.dry and not exists (select 1 from commandbus.touch t
                where t.domain = the_domain and t.gate = f.gate and t.at > now_at)
            union all
            select the_domain, c.gate, now_at from counted c
            where c.rate is null and c.room is null and c.went = pass_max
            union all
            select distinct the_domain, following, now_at from going where following is not null)
        select (select count(*) from going where following is null),
            exists (select 1 from going where following is null and requires is not null)
        into moved, placed;
        passed := passed + moved;
        tagged := tagged or placed;
    end loop;
    if tagged and announce then
        perform commandbus.wake(the_domain, 0, origin || '*');
    end if;
end $$;

drop function commandbus.send;
drop function commandbus.add;

-- Adds one command, checked before: the quickest way in for a single one. A null sequence means that
-- its unique key is taken.
create function commandbus.add(
    command_id uuid, domain text, command_type text, data text, correlation_id uuid,
    causation_id uuid, reply_to text, priority integer, max_attempts integer, delay bigint,
    due_at bigint, expires_at bigint, unique_key text, tags text, headers text, batch_id uuid,
    group_key text, requires text, origin text, announce boolean, out seq bigint, out due_in bigint)
    language plpgsql volatile
as $$
#variable_conflict use_column
declare
    now_at   bigint := commandbus.now_us();
    ready_at bigint := coalesce(add.due_at, now_at + add.delay);
    new_seq  bigint := nextval('commandbus.command_seq_seq');
    gate     text;
begin
    if add.unique_key is not null then
        insert into commandbus.unique_key (domain, unique_key, seq)
        values (add.domain, add.unique_key, new_seq) on conflict do nothing;
        if not found then
            return;
        end if;
    end if;
    if add.group_key is not null or add.requires is not null
        or exists (select 1 from commandbus.limit_rule r where r.domain = add.domain)
    then
        gate := commandbus.first_gate(add.domain, add.command_type, add.group_key, add.requires);
        if gate is not null then
            perform commandbus.mark_gated(add.domain, add.requires);
        end if;
    end if;
    insert into commandbus.command (seq, command_id, domain, command_type, data, correlation_id,
        causation_id, reply_to, priority, max_attempts, created_at, due_at, expires_at, unique_key,
        tags, headers, batch_id, group_key, requires)
    values (new_seq, add.command_id, add.domain, add.command_type, add.data,
        coalesce(add.correlation_id, add.command_id), add.causation_id, add.reply_to, add.priority,
        add.max_attempts, now_at, ready_at, add.expires_at, add.unique_key, add.tags, add.headers,
        add.batch_id, add.group_key, add.requires);
    if ready_at > now_at then
        insert into commandbus.scheduled (domain, due_at, seq, priority, keyed)
        values (add.domain, ready_at, new_seq, add.priority,
            add.unique_key is not null or gate is not null);
    elsif gate is null then
        insert into commandbus.queue (domain, priority, seq, available_at, keyed)
        values (add.domain, add.priority, new_seq, ready_at, add.unique_key is not null);
    else
        insert into commandbus.held (domain, gate, priority, seq, available_at)
        values (add.domain, gate, add.priority, new_seq, ready_at);
        insert into commandbus.touch (domain, gate, at) values (add.domain, gate, now_at);
    end if;
    if not exists (select 1 from commandbus.domain d where d.domain = add.domain) then
        insert into commandbus.domain (domain) values (add.domain) on conflict do nothing;
    end if;
    if announce then
        perform commandbus.wake(add.domain, greatest(0, ready_at - now_at),
            case when add.requires is null then origin else origin || '*' end);
    end if;
    seq := new_seq;
    due_in := ready_at - now_at;
end $$;

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
    language plpgsql volatile
as $$
#variable_conflict use_column
declare
    new_command uuid := coalesce(send.command_id, commandbus.new_id());
    holder      uuid;
    name        text;
begin
    foreach name in array array[send.domain, send.command_type, coalesce(send.reply_to, 'x')]
        || coalesce(send.requires, '{}') loop
        if name is null or name !~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,62}$' then
            raise exception 'the name % is not valid', quote_nullable(name) using
                errcode = 'invalid_parameter_value',
                hint = 'Use up to 63 letters, digits and _ . : -, beginning with a letter or underscore.';
        end if;
    end loop;
    if octet_length(send.data::text) > 262144 then
        raise exception 'the data takes more than 256 KiB' using
            errcode = 'invalid_parameter_value',
            hint = 'Store the document elsewhere and send a reference to it.';
    end if;
    -- Unlike json, jsonb refuses what cannot be kept as text: NUL and lone surrogates.
    perform send.data::jsonb, send.headers::jsonb;
    if send.max_attempts not between 1 and 32767 or length(send.unique_key) not between 1 and 255
        or length(send.group_key) not between 1 and 255
    then
        raise exception 'max_attempts, unique_key or group_key is out of range' using
            errcode = 'invalid_parameter_value',
            hint = 'max_attempts is 1 to 32767, keys have 1 to 255 characters.';
    end if;
    loop
        if (commandbus.add(new_command, send.domain, send.command_type,
                coalesce(send.data, 'null')::text, send.correlation_id, send.causation_id,
                send.reply_to, send.priority, send.max_attempts,
                (extract(epoch from coalesce(send.delay, '0')) * 1000000)::bigint,
                (extract(epoch from send.due_at) * 1000000)::bigint,
                (extract(epoch from send.expires_at) * 1000000)::bigint,
                send.unique_key, array_to_json(send.tags)::text, send.headers::text, null,
                send.group_key, (select string_agg(distinct tag, ',' order by tag) from unnest(send.requires) tag),
                '', true)
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
