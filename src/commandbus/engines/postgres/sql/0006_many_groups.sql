-- Not for older programs: where all of a lease is keyed it says so once, under the number 0, which they
-- do not read; one that took such a lease back would let a whole group run at once, and block it.
-- The gates as before. Where many groups wait to be looked at, the few other gates are found without a
-- look at all of theirs; and a touch may be about several groups: `k*{k:one,k:other}`.
create index touch_others on commandbus.touch (domain, at) where gate not like 'k:%';

-- Lets pass what the gates of a domain allow, to the next gate or to the queue. One at a time per
-- domain, so that what is counted stays true; those who come meanwhile go on, or wait if told to.
-- Senders and settlers are never waited for: they only add touches. Answers how many passed, whether
-- tagged work did, and whether somebody else was at it.
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
    lock_key bigint := hashtextextended('commandbus.admit ' || the_domain, 0);
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
