-- compatible from: 6
-- Older programs that still run count the capacity of a domain under another lock.
-- Every role that may connect to the database can hold any advisory lock, so no statement of the bus
-- waits for one. Locks that must be waited for are rows, which take the right to call lock_mutex.
create table commandbus.mutex (
    name text primary key
);

-- Holds a lock until the end of the transaction; false when it is not free and not to be waited for.
create function commandbus.lock_mutex(the_name text, patient boolean) returns boolean
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
    for attempt in 1..2 loop
        if patient then
            perform from commandbus.mutex m where m.name = the_name for update;
        else
            perform from commandbus.mutex m where m.name = the_name for update skip locked;
        end if;
        if found then
            return true;
        end if;
        insert into commandbus.mutex (name) values (the_name) on conflict do nothing;
    end loop;
    return false;
end $$;

-- Announces that a domain has work, now or in `due_in` microseconds, if anybody sleeps for it.
--
-- A transaction that notifies takes a lock on the whole database to commit, so a busy fleet must not
-- be notified. Whether somebody sleeps is asked after the shared lock is held, with a snapshot taken
-- then: a worker falls asleep only while it has that lock alone, that is, when every send that could
-- not see it asleep is committed and visible to its next claim. The announcement is always made when
-- there is no such order: without fresh snapshots (in a caller's REPEATABLE READ transaction), and when
-- the lock is not free at once, because a worker is falling asleep, or another program holds it.
create or replace function commandbus.wake(the_domain text, due_in bigint, origin text) returns boolean
    language plpgsql volatile
as $$
declare
    locked boolean := pg_try_advisory_xact_lock_shared(commandbus.wake_key(the_domain));
begin
    if locked and current_setting('transaction_isolation') = 'read committed' and not exists (
        select 1 from commandbus.sleeper s
        where s.domain = the_domain and s.process <> origin and s.until > commandbus.now_us())
    then
        return false;
    end if;
    -- A full queue of notifications would refuse the whole transaction, whatever else it does; whoever
    -- sleeps finds the work at its poll interval.
    if pg_notification_queue_usage() > 0.9 then
        return false;
    end if;
    perform pg_notify('commandbus.wake', concat_ws(' ', the_domain, origin, nullif(due_in, 0)));
    return true;
end $$;

-- As before, but the lock of a domain is only tried, as in the function wake.
create or replace function commandbus.add_plain(command_id uuid, domain text, command_type text, data text,
    priority integer, origin text, announce boolean, out seq bigint)
    language plpgsql volatile
as $$
#variable_conflict use_column
declare
    locked boolean := case when announce then
        pg_try_advisory_xact_lock_shared(commandbus.wake_key(add_plain.domain)) else true end;
    now_at bigint := commandbus.now_us();
    ready  boolean;
begin
    select exists (select 1 from commandbus.domain d where d.domain = add_plain.domain and not d.gated)
        and not (announce and exists (select 1 from commandbus.sleeper s
            where s.domain = add_plain.domain and s.process <> origin and s.until > now_at))
    into ready;
    if not locked or not ready or current_setting('transaction_isolation') <> 'read committed' then
        seq := (commandbus.add(add_plain.command_id, add_plain.domain, add_plain.command_type,
            add_plain.data, null, null, null, add_plain.priority, null, 0, null, null, null, null, null,
            null, null, null, origin, announce)).seq;
        return;
    end if;
    seq := nextval('commandbus.command_seq_seq');
    insert into commandbus.command (seq, command_id, domain, command_type, data, correlation_id,
        priority, created_at, due_at)
    values (add_plain.seq, add_plain.command_id, add_plain.domain, add_plain.command_type,
        add_plain.data, add_plain.command_id, add_plain.priority, now_at, now_at);
    insert into commandbus.queue (domain, priority, seq, available_at)
    values (add_plain.domain, add_plain.priority, add_plain.seq, now_at);
end $$;

-- As before, but under a mutex.
create or replace function commandbus.admit(the_domain text, patient boolean, pass_max integer,
    origin text, announce boolean, ageing bigint default null,
    out passed bigint, out tagged boolean, out busy boolean)
    language plpgsql volatile
    -- The first of many touches, along their index: never all of them, sorted.
    set enable_sort = off set enable_bitmapscan = off
as $$
declare
    now_at   bigint;
    kind     text;
    taken    tid[];
    ruled    boolean := exists (select 1 from commandbus.limit_rule r where r.domain = the_domain);
    spread   boolean := exists (select 1 from commandbus.place p where p.domain = the_domain);
    moved    bigint;
    placed   boolean;
begin
    passed := 0;
    tagged := false;
    busy := false;
    -- What others have taken to look at, and not finished, is still to be seen here.
    if not exists (select 1 from commandbus.touch t
                   where t.domain = the_domain and t.at <= commandbus.now_us()) then
        return;
    end if;
    perform set_config('synchronous_commit', 'off', true);
    if not commandbus.lock_mutex('admit ' || the_domain, patient) then
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
    foreach kind in array array['k%', 't:%', '_'] loop
        if kind = 'k%' then
            taken := array(
                (select ctid from commandbus.touch t
                    where t.domain = the_domain and t.at <= now_at and t.gate like 'k:%'
                    order by t.at limit 5 * pass_max)
                union all
                (select ctid from commandbus.touch t
                    where t.domain = the_domain and t.at <= now_at and t.gate not like 'k:%'
                        and t.gate like 'k*%'
                    order by t.at limit pass_max / 10));
        else
            taken := array(select ctid from commandbus.touch t
                where t.domain = the_domain and t.at <= now_at and t.gate not like 'k:%'
                    and t.gate like kind
                order by t.at limit 5 * pass_max);
        end if;
        continue when cardinality(taken) = 0;
        with touched as (
            delete from commandbus.touch where ctid = any (taken) returning gate),
        looked_at as materialized (
            select t.gate, g.concurrency, r.rate, r.burst, b.full_at,
                least(g.concurrency - s.running, pass_max) as room,
                case when r.rate is not null then floor(r.burst
                    - greatest(0, coalesce(b.full_at, 0) - now_at - 1) * r.rate / 1000000) end as tokens
            from (select distinct g.gate from touched t cross join unnest(
                case when t.gate like 'k*%' then substr(t.gate, 3)::text[] else array[t.gate] end)
                as g (gate)) t
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
                order by h.priority, h.seq limit a.count) h
            where ageing is null or a.gate like 'k:%'
            union all
            select a.gate, h.* from allowed a
            cross join lateral commandbus.first_held(the_domain, a.gate, a.count, ageing) h
            where ageing is not null and a.gate not like 'k:%'),
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
